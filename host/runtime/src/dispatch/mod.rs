//! From a ticket to its end: look up the version, run it, commit, settle.
//!
//! Invariant: a key is worked on by one run at a time. The ticket is the right to do so, the
//! `Arc<Registration>` that is taken at the start pins the version, and both live until the end.

mod answers;
mod guard;
mod loops;
mod overdue;
mod run;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;
use reeve_cluster::Cluster;
use reeve_cluster::commit::Committer;
use reeve_core::ids::PluginName;
use reeve_core::leading::Leading;
use reeve_core::queue::{Key, Priority, Push, Queue, Settle, Ticket};
use reeve_core::reason::Reason;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::dispatch::answers::Answers;
use crate::dispatch::guard::Guard;
use crate::dispatch::loops::Loops;
use crate::failures::Failures;
use crate::metrics::Metrics;
use crate::roster::{Roster, SharedRoster};
use crate::router::Run;
use crate::wait::Waits;

/// The most objects for which a run was asked on the admin port and has not begun.
pub(crate) const MAX_EXTERNAL: usize = 1_024;

/// Everything that a run needs beside its version. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Dispatch(Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) queue: Queue,
    pub(crate) roster: SharedRoster,
    pub(crate) cluster: Cluster,
    pub(crate) committer: Committer,
    pub(crate) leading: Leading,
    pub(crate) waits: Waits,
    pub(crate) metrics: Metrics,
    pub(crate) failures: Failures,
    guard: Guard,
    loops: Loops,
    answers: Answers,
    /// Stale writes in a row.
    conflicts: Mutex<HashMap<Key, u32>>,
    external: Mutex<HashSet<Key>>,
}

/// Why a run cannot be asked for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ExternalError {
    #[error("{MAX_EXTERNAL} requests are waiting already: come back later")]
    Full,
}

impl Parts {
    #[expect(clippy::too_many_arguments, reason = "one constructor, called once, of what a run needs")]
    pub(crate) fn new(
        queue: Queue,
        roster: SharedRoster,
        cluster: Cluster,
        committer: Committer,
        leading: Leading,
        waits: Waits,
        metrics: Metrics,
        failures: Failures,
    ) -> Self {
        Self {
            guard: Guard::new(metrics.clone()),
            loops: Loops::new(metrics.clone()),
            answers: Answers::default(),
            conflicts: Mutex::default(),
            external: Mutex::default(),
            queue,
            roster,
            cluster,
            committer,
            leading,
            waits,
            metrics,
            failures,
        }
    }
}

impl Dispatch {
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// What serves.
    pub(crate) fn roster(&self) -> arc_swap::Guard<Arc<Roster>> {
        self.0.roster.load()
    }

    /// The queue.
    pub(crate) fn queue(&self) -> &Queue {
        &self.0.queue
    }

    /// The cluster.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    /// The objects that fail.
    pub(crate) fn failures(&self) -> &Failures {
        &self.0.failures
    }

    /// Asks for a run that a change leads to.
    pub(crate) fn ask(&self, run: Run) {
        let key = Key { plugin: run.plugin, name: run.name };
        let after = self.0.loops.delay(&key, run.reason, run.own);
        self.0.queue.push(key, Push { after, priority: run.priority, reason: run.reason });
    }

    /// Asks for a run on behalf of the admin port.
    pub(crate) fn ask_external(&self, key: Key) -> Result<(), ExternalError> {
        let mut external = self.0.external.lock();
        if external.len() >= MAX_EXTERNAL && !external.contains(&key) {
            return Err(ExternalError::Full);
        }
        external.insert(key.clone());
        drop(external);
        self.0.queue.push(key, Push::now(Reason::External).priority(Priority::HIGH));
        Ok(())
    }

    /// The object is gone: nothing is kept of it.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.queue.forget(key);
        self.forget_memory(key);
    }

    /// The plugin is gone, or another version took over (then answers and waits stay).
    pub(crate) fn reset(&self, plugin: &PluginName, gone: bool) {
        self.0.guard.reset(plugin);
        self.0.loops.reset(plugin);
        self.0.conflicts.lock().retain(|key, _| key.plugin != *plugin);
        if gone {
            self.0.answers.forget_plugin(plugin);
            self.0.waits.forget_plugin(plugin);
            self.0.failures.forget_plugin(plugin);
            self.0.external.lock().retain(|key| key.plugin != *plugin);
        }
    }

    /// Works on tickets until the queue is shut down, then waits for the runs in work. `abort` ends
    /// their guests.
    pub(crate) async fn run(self, max_runs: usize, abort: CancellationToken) {
        let permits = Arc::new(Semaphore::new(max_runs));
        let mut runs = JoinSet::new();
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
            let Some(ticket) = self.0.queue.next().await else { break };
            // Finished runs leave nothing but their places.
            while runs.try_join_next().is_some() {}
            let (dispatch, abort) = (self.clone(), abort.clone());
            runs.spawn(async move {
                let _permit = permit;
                let key = ticket.key().clone();
                // A bug of the host in one run must not take the others with it. The ticket was
                // dropped, so the key comes back after its back-off.
                if std::panic::AssertUnwindSafe(dispatch.work(ticket, &abort)).catch_unwind().await.is_err() {
                    tracing::error!(plugin = %key.plugin, object = %key.name, "bug: the host panicked in a run; the object is tried again");
                    dispatch.0.guard.abandoned(&key);
                }
            });
        }
        while runs.join_next().await.is_some() {}
    }

    async fn work(&self, ticket: Ticket, abort: &CancellationToken) {
        let key = ticket.key().clone();
        if ticket.reasons().contains(Reason::External) {
            self.0.external.lock().remove(&key);
        }
        let Some(registration) = self.0.roster.load().serving(&key.plugin).cloned() else {
            // The plugin went between push and now: its lane is closed.
            ticket.settle(Settle::Done);
            return;
        };
        if let Some(delay) = self.0.guard.hold(&key, ticket.reasons()) {
            ticket.settle(Settle::Hold(delay));
            return;
        }
        let span = tracing::info_span!(
            "reconcile",
            plugin = %key.plugin,
            object = %key.name,
            reasons = %ticket.reasons(),
            attempt = ticket.attempt(),
            reconcile_id = %uuid::Uuid::new_v4(),
        );
        let turn = run::Turn { parts: &self.0, registration: &registration, key: &key, abort };
        async {
            // Between these two lines nobody else may work on the key; tests look at them. (A span
            // would not do: a connection that is opened meanwhile keeps it open.)
            tracing::trace!(target: "reeve::turn", plugin = %key.plugin, object = %key.name, "begins");
            let (settle, ended) = turn.take(&ticket).await;
            tracing::trace!(target: "reeve::turn", plugin = %key.plugin, object = %key.name, "ends");
            turn.succeeded(&ended);
            let settled = ticket.settle(settle);
            turn.conclude(ended, settled);
        }
        .instrument(span)
        .await;
        self.forget_if_gone(&registration, &key);
    }

    /// Keeps nothing of an object that is not there any more.
    fn forget_if_gone(&self, registration: &crate::roster::Registration, key: &Key) {
        if matches!(registration.reader.get(&registration.primary, &key.name), Ok(None)) {
            self.forget_memory(key);
        }
    }

    fn forget_memory(&self, key: &Key) {
        self.0.guard.forget(key);
        self.0.loops.forget(key);
        self.0.answers.forget(key);
        self.0.waits.forget(key);
        self.0.failures.forget(key);
        self.0.conflicts.lock().remove(key);
    }
}

/// How long a key waits when its turn could not begin: the cache is not there yet, or says
/// something else than the API server.
const NOT_YET: Duration = Duration::from_millis(500);
