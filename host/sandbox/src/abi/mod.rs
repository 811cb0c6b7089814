//! The contract `reeve:plugin@0.1.0` on the host's side.
//!
//! Invariant: only the files of this folder name WIT types; what leaves it are the types of
//! reeve-core. A later contract gets a folder of its own beside this one.

mod bindings;
mod context;
mod convert;
#[expect(unreachable_pub, reason = "the generated code re-exports these types, which needs them to be `pub`")]
mod resources;
pub(crate) mod state;

pub(crate) use convert::denied;

use reeve_core::failure::Failure;
use reeve_core::ids::ObjectName;
use reeve_core::object::SharedObject;
use wasmtime::Store;
use wasmtime::component::{HasSelf, InstancePre, Linker, Resource};

use crate::config::MAX_MAPPED;
use crate::inspect::Roles;
use crate::limits::Ended;

use bindings::exports::reeve::plugin as exports;
use resources::{ContextHandle, ObjectHandle};
use state::State;

/// The version of the contract that this host knows.
pub(crate) const ABI: &str = "0.1.0";

/// A linked component: instances are made from it, and where its exports are is known.
#[derive(Clone)]
pub(crate) struct Guest {
    pre: InstancePre<State>,
    plugin: exports::plugin::GuestIndices,
    reconciler: Option<exports::reconciler::GuestIndices>,
    cleanup: Option<exports::cleanup::GuestIndices>,
    mapper: Option<exports::mapper::GuestIndices>,
}

/// One call of a fresh instance.
pub(crate) trait Call: Send {
    /// What the guest returns.
    type Output: Send;

    /// Makes the instance and calls it.
    fn call(
        self,
        guest: &Guest,
        store: &mut Store<State>,
    ) -> impl Future<Output = wasmtime::Result<Self::Output>> + Send;
}

/// Calls `describe`.
pub(crate) struct Describe;

/// Makes an instance and calls nothing.
pub(crate) struct Probe;

/// Calls `map`.
pub(crate) struct Map {
    /// The name of the watch.
    pub(crate) watch: String,
    /// The object that changed.
    pub(crate) changed: SharedObject,
}

/// Which function of a run is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// `reconciler.reconcile`
    Reconcile,
    /// `cleanup.cleanup`
    Cleanup,
}

impl Role {
    /// The word in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reconcile => "reconcile",
            Self::Cleanup => "cleanup",
        }
    }
}

/// Puts the host's interface into a linker.
pub(crate) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    bindings::reeve::plugin::host::add_to_linker::<_, HasSelf<State>>(linker, |state| state)
}

impl Guest {
    /// Finds the exports of the roles that the component has.
    pub(crate) fn new(pre: InstancePre<State>, roles: Roles) -> wasmtime::Result<Self> {
        Ok(Self {
            plugin: exports::plugin::GuestIndices::new(&pre)?,
            reconciler: roles.reconcile.then(|| exports::reconciler::GuestIndices::new(&pre)).transpose()?,
            cleanup: roles.cleanup.then(|| exports::cleanup::GuestIndices::new(&pre)).transpose()?,
            mapper: roles.map.then(|| exports::mapper::GuestIndices::new(&pre)).transpose()?,
            pre,
        })
    }
}

impl Call for Describe {
    type Output = String;

    async fn call(self, guest: &Guest, store: &mut Store<State>) -> wasmtime::Result<String> {
        let instance = guest.pre.instantiate_async(&mut *store).await?;
        guest.plugin.load(&mut *store, &instance)?.call_describe(&mut *store).await
    }
}

impl Call for Probe {
    type Output = ();

    async fn call(self, guest: &Guest, store: &mut Store<State>) -> wasmtime::Result<()> {
        let instance = guest.pre.instantiate_async(&mut *store).await?;
        guest.plugin.load(&mut *store, &instance).map(drop)
    }
}

impl Call for Role {
    type Output = Result<(), Failure>;

    async fn call(self, guest: &Guest, store: &mut Store<State>) -> wasmtime::Result<Self::Output> {
        let instance = guest.pre.instantiate_async(&mut *store).await?;
        // The context is not in the resource table: all there is to it is the store's state, and
        // its one handle ends with the call.
        let context = Resource::<ContextHandle>::new_borrow(0);
        let result = match (self, &guest.reconciler, &guest.cleanup) {
            (Self::Reconcile, Some(reconciler), _) => {
                reconciler.load(&mut *store, &instance)?.call_reconcile(&mut *store, context).await?
            }
            (Self::Cleanup, _, Some(cleanup)) => {
                cleanup.load(&mut *store, &instance)?.call_cleanup(&mut *store, context).await?
            }
            _ => return Err(Ended::NoRole(self.as_str()).into()),
        };
        Ok(result.map_err(|failure| convert::failure_from_guest(&failure)))
    }
}

impl Call for Map {
    type Output = Result<Vec<ObjectName>, Failure>;

    async fn call(self, guest: &Guest, store: &mut Store<State>) -> wasmtime::Result<Self::Output> {
        let Some(mapper) = &guest.mapper else { return Err(Ended::NoRole("map").into()) };
        let instance = guest.pre.instantiate_async(&mut *store).await?;
        let handle = store.data_mut().table.push(ObjectHandle(self.changed))?;
        let borrowed = Resource::new_borrow(handle.rep());
        let result =
            mapper.load(&mut *store, &instance)?.call_map(&mut *store, &self.watch, borrowed).await?;
        let names = match result {
            Ok(names) => names,
            Err(failure) => return Ok(Err(convert::failure_from_guest(&failure))),
        };
        if names.len() > MAX_MAPPED {
            return Err(Ended::Limit { what: "mapped names", limit: MAX_MAPPED as u64, place: "" }.into());
        }
        let names: Vec<_> = names.into_iter().map(convert::name_from_guest).collect();
        let parts = names.iter().flat_map(|name| [name.namespace_or_empty(), &name.name]);
        Ok(convert::check_names(parts).map(|()| names))
    }
}
