//! One run: a fresh instance, called once, under its limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use reeve_core::failure::{Failure, Layer, code};
use reeve_core::grant::Grant;
use reeve_core::ids::ObjectName;
use reeve_core::manifest::Manifest;
use reeve_core::object::SharedObject;
use reeve_core::plan::{Outcome, Plan, Usage};
use reeve_core::read::Reader;
use reeve_core::reason::Reasons;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use wasmtime::{Store, UpdateDeadline};

use crate::abi::state::{Facts, Run, State, Time};
use crate::abi::{Call, Guest, Map, Probe, Role};
use crate::classify::{Stop, classify};
use crate::config::{CANCEL_GRACE, HEAVY_AFTER_SLICES, HOST_CALL_SLACK, MAP_DEADLINE, MAX_HANDLES};
use crate::inspect::Inspection;
use crate::limits::Ended;
use crate::log::GuestLog;
use crate::metrics::{PluginMetrics, RoleMetrics};
use crate::pins::Pins;
use crate::reject::Reject;
use crate::sandbox::Host;
use crate::stage::Staging;
use crate::wasi::Clocks;

/// A linked plugin. Cheap to clone; a clone that is in work pins its version.
#[derive(Clone)]
pub struct Plugin(Arc<Inner>);

struct Inner {
    host: Arc<Host>,
    guest: Guest,
    facts: Arc<Facts>,
    inspection: Arc<Inspection>,
    metrics: PluginMetrics,
}

/// What a run is about.
#[derive(Clone)]
pub struct Request {
    /// The key.
    pub name: ObjectName,
    /// The primary as the cache has it; `None` when it is gone.
    pub primary: Option<SharedObject>,
    /// Why it runs.
    pub reasons: Reasons,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// What the plugin may read.
    pub reader: Arc<dyn Reader>,
    /// The plugin's configuration, JSON; `null` without one.
    pub config: Arc<str>,
    /// Answers of earlier writes, by id.
    pub answers: Arc<BTreeMap<String, serde_json::Value>>,
    /// Tells the run to stop: `cancelled()` says so at once, and after half a second it is ended
    /// with `ABORTED`.
    pub cancel: CancellationToken,
}

// === impl Plugin ===

impl Plugin {
    pub(crate) fn new(host: Arc<Host>, guest: Guest, facts: Arc<Facts>, inspection: Arc<Inspection>) -> Self {
        let metrics = host.metrics.plugin(facts.manifest.name.as_str());
        metrics.peak_memory.set(0);
        Self(Arc::new(Inner { host, guest, facts, inspection, metrics }))
    }

    /// What the plugin says of itself.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.0.facts.manifest
    }

    /// What it may do.
    pub fn grant(&self) -> &Arc<Grant> {
        &self.0.facts.grant
    }

    /// What its bytes say.
    pub fn inspection(&self) -> &Inspection {
        &self.0.inspection
    }

    /// Makes one instance and calls nothing.
    ///
    /// # Errors
    /// [`Reject::Probe`] when the instance does not come up within the manifest's limits.
    pub async fn probe(&self) -> Result<(), Reject> {
        let host = &self.0.host;
        let _slot = host.loading.acquire().await.map_err(|error| Reject::Host(error.to_string()))?;
        let inner = Arc::clone(&self.0);
        let work = async move {
            let state = inner.state(inner.deadline(), CancellationToken::new(), None);
            call(&inner.host, &inner.guest, state, inner.fuel(), Probe).await
        };
        let (state, result) = host.threads.run(work.in_current_span()).await.map_err(Reject::Host)?;
        result.map_err(|stop| match classify(stop, &state) {
            (Layer::Host, failure) => Reject::Host(failure.to_string()),
            (_, failure) => Reject::Probe(failure),
        })
    }

    /// Runs the plugin for one object.
    ///
    /// Waits for a free instance first, which counts neither as time nor as failure. Never fails:
    /// what went wrong is in the outcome. Dropping the future ends the run.
    pub async fn run(&self, role: Role, request: Request) -> Outcome {
        let Some(slot) = self.slot(&request.cancel).await else { return ended(aborted()) };
        let inner = Arc::clone(&self.0);
        let work = async move {
            let outcome = inner.run(role, request).await;
            drop(slot);
            outcome
        };
        match self.0.host.threads.run(work.in_current_span()).await {
            Ok(outcome) => outcome,
            Err(reason) => {
                let failure =
                    Failure::transient(code::HOST, "internal", format!("the host failed in a run: {reason}"));
                self.0.role_metrics(role).count("host");
                ended((Layer::Host, failure))
            }
        }
    }

    /// Asks the plugin which primaries a changed object of a watch concerns.
    ///
    /// # Errors
    /// The plugin's own failure, or how it broke. It has a second at most.
    pub async fn map(&self, watch: &str, object: SharedObject) -> Result<Vec<ObjectName>, Failure> {
        let cancel = CancellationToken::new();
        let Some(slot) = self.slot(&cancel).await else { return Err(aborted().1) };
        let (inner, map) = (Arc::clone(&self.0), Map { watch: watch.to_owned(), changed: object });
        let work = async move {
            let result = inner.map(map, cancel).await;
            drop(slot);
            result
        };
        self.0.host.threads.run(work.in_current_span()).await.unwrap_or_else(|reason| {
            Err(Failure::transient(code::HOST, "internal", format!("the host failed in a run: {reason}")))
        })
    }

    async fn slot(&self, cancel: &CancellationToken) -> Option<OwnedSemaphorePermit> {
        let slots = Arc::clone(&self.0.host.slots);
        tokio::select! {
            biased;
            slot = slots.acquire_owned() => slot.ok(),
            () = cancel.cancelled() => None,
        }
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("name", &self.0.facts.manifest.name)
            .field("digest", &self.0.inspection.digest)
            .finish_non_exhaustive()
    }
}

// === impl Inner ===

impl Inner {
    async fn run(&self, role: Role, request: Request) -> Outcome {
        let limits = self.facts.manifest.limits;
        let cancel = request.cancel.clone();
        let run = Run {
            request,
            facts: Arc::clone(&self.facts),
            pins: Pins::default(),
            staging: Staging::new(limits),
        };
        let state = self.state(self.deadline(), cancel, Some(Box::new(run)));
        let (mut state, result) = call(&self.host, &self.guest, state, self.fuel(), role).await;
        let staging = state.run.take().map(|run| run.staging);
        let usage = self.settle(&state, staging.as_ref());
        let (plan, failure) = match result {
            Ok(Ok(())) => (staging.map(Staging::into_plan), None),
            Ok(Err(failure)) => (staging.map(Staging::into_plan_of_failure), Some((Layer::Guest, failure))),
            Err(stop) => (None, Some(classify(stop, &state))),
        };
        self.role_metrics(role).observe(failure.as_ref(), usage.total);
        Outcome { plan: plan.unwrap_or_default(), failure, usage }
    }

    async fn map(&self, map: Map, cancel: CancellationToken) -> Result<Vec<ObjectName>, Failure> {
        let state = self.state(self.deadline().min(MAP_DEADLINE), cancel, None);
        let (state, result) = call(&self.host, &self.guest, state, self.fuel(), map).await;
        let usage = self.settle(&state, None);
        let result = match result {
            Ok(Ok(names)) => Ok(names),
            Ok(Err(failure)) => Err((Layer::Guest, failure)),
            Err(stop) => Err(classify(stop, &state)),
        };
        self.metrics.map.observe(result.as_ref().err(), usage.total);
        result.map_err(|(_, failure)| failure)
    }

    fn deadline(&self) -> Duration {
        self.facts.manifest.limits.deadline()
    }

    /// How many bytes one host call may carry.
    fn fuel(&self) -> usize {
        (self.facts.manifest.limits.staged_kib as usize) * 1024 + HOST_CALL_SLACK
    }

    fn state(&self, deadline: Duration, cancel: CancellationToken, run: Option<Box<Run>>) -> State {
        let limits = &self.facts.manifest.limits;
        State::new(
            limits.memory_mib,
            limits.host_calls,
            Time::new(deadline, cancel),
            GuestLog::new(limits.log_lines),
            Clocks::Live,
            run,
        )
    }

    /// Ends the log, and says what was used.
    fn settle(&self, state: &State, staging: Option<&Staging>) -> Usage {
        let mut log = state.log.lock();
        log.finish();
        let usage = Usage {
            total: state.time.started.elapsed(),
            host_wait: state.calls.waited,
            peak_memory: state.memory.peak() as u64,
            host_calls: state.calls.made,
            log_lines: log.written(),
            dropped_logs: log.dropped(),
            dropped_events: staging.map_or(0, Staging::dropped_events),
        };
        self.metrics.host_calls.inc_by(usage.host_calls);
        self.metrics.dropped_logs.inc_by(usage.dropped_logs.into());
        self.metrics.dropped_events.inc_by(usage.dropped_events.into());
        let peak = i64::try_from(usage.peak_memory).unwrap_or(i64::MAX);
        if self.metrics.peak_memory.get() < peak {
            self.metrics.peak_memory.set(peak);
        }
        usage
    }

    fn role_metrics(&self, role: Role) -> &RoleMetrics {
        match role {
            Role::Reconcile => &self.metrics.reconcile,
            Role::Cleanup => &self.metrics.cleanup,
        }
    }
}

impl RoleMetrics {
    fn observe(&self, failure: Option<&(Layer, Failure)>, total: Duration) {
        self.seconds.observe(total.as_secs_f64());
        self.count(match failure {
            None => "ok",
            Some((Layer::Guest, _)) => "failure",
            Some((_, failure)) => match failure.code.as_str() {
                code::OUT_OF_MEMORY => "out-of-memory",
                code::DEADLINE_EXCEEDED => "deadline",
                code::LIMIT_EXCEEDED => "limit",
                code::ABORTED => "aborted",
                code::HOST => "host",
                _ => "trap",
            },
        });
    }
}

fn aborted() -> (Layer, Failure) {
    let text = "the run did not begin because the host stops or may no longer write";
    (Layer::Host, Failure::transient(code::ABORTED, "internal", text))
}

fn ended(failure: (Layer, Failure)) -> Outcome {
    Outcome { plan: Plan::default(), failure: Some(failure), usage: Usage::default() }
}

/// Makes a store for `state` and a call in it until it returns, breaks, or must end, and gives
/// the state back. Everything that bounds a guest is set up here.
pub(crate) async fn call<C: Call>(
    host: &Host,
    guest: &Guest,
    state: State,
    fuel: usize,
    call: C,
) -> (State, Result<C::Output, Stop>) {
    let time = state.time.clone();
    let turn = host.threads.turn();
    let _live = Live::new(host);
    let mut store = Store::new(&host.engine, state);
    store.limiter(|state| &mut state.memory);
    store.set_hostcall_fuel(fuel);
    // Beside those of the contract, which end by a limit of their own with a better text.
    store.set_max_component_handles(2 * MAX_HANDLES);
    store.set_epoch_deadline(1);
    let mut slices = 0_u32;
    let next = turn.clone();
    store.epoch_deadline_callback(move |context| {
        if context.data().time.is_over() {
            return Err(Ended::Deadline.into());
        }
        slices = slices.saturating_add(1);
        Ok(if slices < HEAVY_AFTER_SLICES {
            UpdateDeadline::Yield(1)
        } else {
            UpdateDeadline::YieldCustom(1, Box::pin(next.clone().wait()))
        })
    });
    let result = tokio::select! {
        // The guest first: a run that never waits sets up no timer.
        biased;
        result = turn.during(call.call(guest, &mut store)) => result.map_err(Stop::Error),
        // A guest that computes is ended by the epoch; this is for one that waits.
        () = tokio::time::sleep_until(time.deadline) => Err(Stop::Deadline),
        () = cancelled(&time.cancel) => Err(Stop::Aborted),
    };
    (store.into_data(), result)
}

async fn cancelled(cancel: &CancellationToken) {
    cancel.cancelled().await;
    tokio::time::sleep(CANCEL_GRACE).await;
}

/// Counts a live instance as long as it exists, also when its run is dropped.
struct Live<'a>(&'a Host);

impl<'a> Live<'a> {
    fn new(host: &'a Host) -> Self {
        host.metrics.live_instances.inc();
        Self(host)
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.0.metrics.live_instances.dec();
    }
}
