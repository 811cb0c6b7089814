//! What one store holds: everything that a single call of a guest may touch.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reeve_core::grant::Grant;
use reeve_core::labels::Selector;
use reeve_core::manifest::Manifest;
use reeve_core::object::SharedObject;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wasmtime::component::{Resource, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use super::resources::{ListHandle, ObjectHandle};
use crate::config::{MAX_HANDLES, SOFT_DEADLINE_PERCENT};
use crate::limits::{Ended, MemoryLimit};
use crate::log::GuestLog;
use crate::pins::Pins;
use crate::run::Request;
use crate::stage::Staging;
use crate::wasi::{self, Clocks};

/// The data of a store.
pub(crate) struct State {
    pub(crate) table: ResourceTable,
    pub(crate) memory: MemoryLimit,
    pub(crate) time: Time,
    pub(crate) log: Arc<Mutex<GuestLog>>,
    pub(crate) calls: Calls,
    /// `None` outside of `reconcile` and `cleanup`.
    pub(crate) run: Option<Box<Run>>,
    clocks: Clocks,
    /// Made when the guest first asks for something of WASI; many runs never do.
    wasi: Option<WasiCtx>,
}

/// When a call has to end.
#[derive(Debug, Clone)]
pub(crate) struct Time {
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
    soft: Instant,
    pub(crate) cancel: CancellationToken,
}

/// How often the guest called the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calls {
    pub(crate) made: u64,
    pub(crate) limit: u64,
    /// Time in which the guest waited for a host call.
    pub(crate) waited: Duration,
}

/// What a run is about.
pub(crate) struct Run {
    pub(crate) request: Request,
    pub(crate) facts: Arc<Facts>,
    pub(crate) pins: Pins,
    pub(crate) staging: Staging,
}

/// What all runs of one plugin share.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) grant: Arc<Grant>,
    /// Finds the children of the plugin: label `reeve.dev/plugin`.
    pub(crate) children: Selector,
}

// === impl Time ===

impl Time {
    pub(crate) fn new(limit: Duration, cancel: CancellationToken) -> Self {
        let started = Instant::now();
        Self {
            started,
            deadline: started + limit,
            soft: started + limit * SOFT_DEADLINE_PERCENT / 100,
            cancel,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    pub(crate) fn should_end(&self) -> bool {
        self.cancel.is_cancelled() || Instant::now() >= self.soft
    }
}

// === impl State ===

impl State {
    pub(crate) fn new(
        memory_mib: u32,
        host_calls: u64,
        time: Time,
        log: GuestLog,
        clocks: Clocks,
        run: Option<Box<Run>>,
    ) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_HANDLES);
        Self {
            table,
            memory: MemoryLimit::new(memory_mib),
            time,
            log: Arc::new(Mutex::new(log)),
            calls: Calls { made: 0, limit: host_calls, waited: Duration::ZERO },
            run,
            clocks,
            wasi: None,
        }
    }

    /// Counts one host call.
    pub(super) fn count(&mut self) -> Result<(), Ended> {
        self.calls.made += 1;
        if self.calls.made > self.calls.limit {
            let place = " (`limits.hostCalls` in the manifest)";
            return Err(Ended::Limit { what: "host calls", limit: self.calls.limit, place });
        }
        Ok(())
    }

    /// Counts one call of the context and gives the run that it belongs to.
    pub(super) fn run(&mut self) -> Result<&mut Run, Ended> {
        self.count()?;
        // No handle of a context exists outside of a run, so a guest cannot come here.
        self.run.as_deref_mut().ok_or(Ended::OutOfPlace)
    }

    pub(super) fn push_object(&mut self, object: SharedObject) -> wasmtime::Result<Resource<ObjectHandle>> {
        self.table.push(ObjectHandle(object)).map_err(|_| too_many_handles().into())
    }

    pub(super) fn push_list(&mut self, list: Arc<[SharedObject]>) -> wasmtime::Result<Resource<ListHandle>> {
        self.table.push(ListHandle(list)).map_err(|_| too_many_handles().into())
    }

    /// Waits for something of the host. The deadline of the run holds here as well: the run as a
    /// whole is dropped then.
    pub(super) async fn wait(&mut self, what: impl Future<Output = ()>) {
        let since = Instant::now();
        what.await;
        self.calls.waited += since.elapsed();
    }
}

fn too_many_handles() -> Ended {
    Ended::Limit {
        what: "object handles at once",
        limit: MAX_HANDLES as u64,
        place: "; drop handles that are done with",
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let ctx = self.wasi.get_or_insert_with(|| wasi::context(self.clocks, &self.log));
        WasiCtxView { ctx, table: &mut self.table }
    }
}
