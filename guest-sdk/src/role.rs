//! The adapters between the contract's exports and imports and the SDK's traits. With
//! [`crate::wit`] the only module that names WIT types.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use crate::backend::{Backend, Gvk, Item, Items};
use crate::context::Context;
use crate::error::{Category, Error};
use crate::handle::Handle;
use crate::log::Level;
use crate::object::ObjectName;
use crate::outcome::milliseconds;
use crate::reconciler::{Cleanup, Mapper, Reconciler, flow};
use crate::wit::describes::reeve::plugin::host;
use crate::wit::{cleans_up, describes, maps, reconciles};

/// The type that the export macros export: a plugin behind the contract.
pub struct Exported<P>(PhantomData<P>);

impl<P: Reconciler> describes::exports::reeve::plugin::plugin::Guest for Exported<P> {
    fn describe() -> String {
        P::manifest().to_json()
    }
}

impl<P: Reconciler> reconciles::exports::reeve::plugin::reconciler::Guest for Exported<P> {
    fn reconcile(ctx: &host::Context) -> Result<(), host::Failure> {
        run(ctx, flow::reconcile::<P>)
    }
}

impl<P: Cleanup> cleans_up::exports::reeve::plugin::cleanup::Guest for Exported<P> {
    fn cleanup(ctx: &host::Context) -> Result<(), host::Failure> {
        run(ctx, flow::cleanup::<P>)
    }
}

impl<P: Mapper> maps::exports::reeve::plugin::mapper::Guest for Exported<P> {
    fn map(watch: String, changed: &host::Object) -> Result<Vec<host::ObjectName>, host::Failure> {
        hook_panics();
        let changed = Handle::new(HostObject::lent(changed), &watch);
        let names = P::map(&watch, &changed).map_err(host::Failure::from)?;
        Ok(names.into_iter().map(Into::into).collect())
    }
}

fn run(ctx: &host::Context, flow: fn(&Context) -> Result<(), Error>) -> Result<(), host::Failure> {
    hook_panics();
    let ctx = Context::new(HostContext::lent(ctx));
    flow(&ctx).map_err(Into::into)
}

/// Sends the message of a panic to the host's log, as the trap that follows says nothing of it.
fn hook_panics() {
    static HOOKED: AtomicBool = AtomicBool::new(false);
    if HOOKED.swap(true, Ordering::Relaxed) {
        return;
    }
    std::panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("a panic without a message");
        let location = info.location().map(ToString::to_string).unwrap_or_default();
        log(Level::Error, message, &[("panic", &location)]);
    }));
}

/// Writes a log line to the host.
pub(crate) fn log(level: Level, message: &str, fields: &[(&str, &str)]) {
    let level = match level {
        Level::Trace => host::Level::Trace,
        Level::Debug => host::Level::Debug,
        Level::Info => host::Level::Info,
        Level::Warn => host::Level::Warn,
        Level::Error => host::Level::Error,
    };
    let fields: Vec<(String, String)> =
        fields.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    host::log(level, message, &fields);
}

/// The context of one call, lent by the host.
///
/// The contract gives `&Resource` for the time of an export, and the SDK's types have no
/// lifetime: the handle is copied, and never dropped, as it belongs to the caller. A handle that
/// an author smuggles out of a run is refused by the component model when it is used.
pub(crate) struct HostContext(ManuallyDrop<host::Context>);

/// An object of the host: lent for one call, or the plugin's own.
pub(crate) struct HostObject {
    object: ManuallyDrop<host::Object>,
    owned: bool,
}

/// A list of the host.
pub(crate) struct HostList(host::ObjectList);

impl HostContext {
    #[expect(unsafe_code, reason = "a copy of a lent handle, which ManuallyDrop keeps from being dropped")]
    fn lent(lent: &host::Context) -> Self {
        Self(ManuallyDrop::new(unsafe { host::Context::from_handle(lent.handle()) }))
    }
}

impl HostObject {
    #[expect(unsafe_code, reason = "a copy of a lent handle, which ManuallyDrop keeps from being dropped")]
    fn lent(lent: &host::Object) -> Self {
        let object = ManuallyDrop::new(unsafe { host::Object::from_handle(lent.handle()) });
        Self { object, owned: false }
    }

    fn owned(object: host::Object) -> Self {
        Self { object: ManuallyDrop::new(object), owned: true }
    }
}

impl Drop for HostObject {
    #[expect(unsafe_code, reason = "an owned handle is dropped exactly once, here")]
    fn drop(&mut self) {
        if self.owned {
            unsafe { ManuallyDrop::drop(&mut self.object) }
        }
    }
}

impl Backend for HostContext {
    fn name(&self) -> ObjectName {
        self.0.name().into()
    }

    fn primary(&self) -> Option<HostObject> {
        self.0.primary().map(HostObject::owned)
    }

    fn reasons(&self) -> Vec<String> {
        self.0.reasons()
    }

    fn attempt(&self) -> u32 {
        self.0.attempt()
    }

    fn remaining_ms(&self) -> u64 {
        self.0.remaining_ms()
    }

    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }

    fn config(&self) -> String {
        self.0.config()
    }

    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn get(&self, kind: &Gvk, name: &ObjectName) -> Result<Option<HostObject>, Error> {
        let found = self.0.get(&kind.into(), &name.clone().into())?;
        Ok(found.map(HostObject::owned))
    }

    fn list(&self, kind: &Gvk, filters: &[(String, String)]) -> Result<HostList, Error> {
        Ok(HostList(self.0.list_objects(&kind.into(), filters)?))
    }

    fn children(&self, kind: &Gvk) -> Result<HostList, Error> {
        Ok(HostList(self.0.children(&kind.into())?))
    }

    fn answer(&self, id: &str) -> Option<String> {
        self.0.answer(id)
    }

    fn apply_child(&self, object: &str, options: &[(String, String)]) -> Result<(), Error> {
        Ok(self.0.apply_child(object, options)?)
    }

    fn children_complete(&self) {
        self.0.children_complete();
    }

    fn set_status(&self, status: &str) -> Result<(), Error> {
        Ok(self.0.set_status(status)?)
    }

    fn set_condition(&self, kind: &str, status: &str, reason: &str, message: &str) -> Result<(), Error> {
        Ok(self.0.set_condition(kind, status, reason, message)?)
    }

    fn emit_event(&self, kind: &str, reason: &str, action: &str, note: &str) -> Result<(), Error> {
        Ok(self.0.emit_event(kind, reason, action, note)?)
    }

    fn write(&self, id: Option<&str>, request: &str) -> Result<(), Error> {
        Ok(self.0.write(id, request)?)
    }

    fn wait_for(&self, request: &str) -> Result<(), Error> {
        Ok(self.0.wait_for(request)?)
    }

    fn requeue_after(&self, ms: u64) {
        self.0.requeue_after(ms);
    }
}

impl Item for HostObject {
    fn raw(&self) -> String {
        self.object.raw()
    }

    fn get(&self, pointer: &str) -> Option<String> {
        self.object.get(pointer)
    }

    fn get_many(&self, pointers: &[String]) -> Vec<Option<String>> {
        self.object.get_many(pointers)
    }

    fn name(&self) -> ObjectName {
        self.object.name().into()
    }

    fn uid(&self) -> String {
        self.object.uid()
    }

    fn resource_version(&self) -> String {
        self.object.resource_version()
    }

    fn generation(&self) -> u64 {
        self.object.generation()
    }

    fn deleting(&self) -> bool {
        self.object.deleting()
    }
}

impl Items for HostList {
    fn len(&self) -> u32 {
        self.0.len()
    }

    fn raw(&self, index: u32) -> Option<String> {
        self.0.raw(index)
    }

    fn at(&self, index: u32) -> Option<HostObject> {
        self.0.at(index).map(HostObject::owned)
    }

    fn get_many(&self, index: u32, pointers: &[String]) -> Vec<Option<String>> {
        self.0.get_many(index, pointers)
    }
}

impl From<host::ObjectName> for ObjectName {
    fn from(name: host::ObjectName) -> Self {
        Self { namespace: name.namespace, name: name.name }
    }
}

impl From<ObjectName> for host::ObjectName {
    fn from(name: ObjectName) -> Self {
        Self { namespace: name.namespace, name: name.name }
    }
}

impl From<&Gvk> for host::Gvk {
    fn from(kind: &Gvk) -> Self {
        Self { group: kind.group.clone(), version: kind.version.clone(), kind: kind.kind.clone() }
    }
}

impl From<Error> for host::Failure {
    fn from(error: Error) -> Self {
        Self {
            category: error.category.as_str().to_owned(),
            code: error.code,
            severity: error.severity,
            transient: error.transient,
            message: error.message,
            retry_after_ms: error.retry_after.map(milliseconds),
            details: error.details,
        }
    }
}

impl From<host::Failure> for Error {
    fn from(failure: host::Failure) -> Self {
        Self {
            category: Category::from_word(&failure.category),
            code: failure.code,
            severity: failure.severity,
            transient: failure.transient,
            message: failure.message,
            retry_after: failure.retry_after_ms.map(Duration::from_millis),
            details: failure.details,
        }
    }
}
