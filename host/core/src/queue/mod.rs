//! The work queue: which key is worked on next, and never twice at once.
//!
//! One lane per plugin. A key has one entry in its lane, however often it is pushed; a [`Ticket`]
//! is the exclusive right to work on it, and its key is not handed out again before it is settled
//! or dropped, also across versions of the plugin.
//!
//! # Order
//! 1. Between plugins with something ready and free concurrency: weighted fair, each ticket costs
//!    1/weight.
//! 2. Within a lane: the highest priority; but every [`AGEING_EVERY`]th ticket of a lane goes to
//!    the entry of a lower priority that is ready longest. So an entry that has *k* older ones
//!    below the highest priority is taken with the `AGEING_EVERY`·(k + 1)th ticket of the lane at
//!    the latest.
//! 3. Within a priority: namespaces in turn.
//! 4. Within a namespace: first in, first out; an entry whose priority was raised goes to the end
//!    of its new level.
//!
//! # Bounds
//! The queue holds at most one entry per key, so it is as large as the set of names that is
//! pushed; [`Queue::forget`] ends what it knows of a name. Keys in work are bounded by the lanes'
//! concurrency, delays by [`MAX_DELAY`].

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::ids::{ObjectName, PluginName};
use crate::manifest::Retry;
use crate::reason::Reason;

mod clock;
mod lane;
mod metrics;
mod ready;
mod retry;
mod state;
mod ticket;

use state::{Offer, State};

pub use metrics::QueueMetrics;
pub use ticket::{FailureRetry, Settle, Settled, Ticket};

/// Every how manyth ticket of a lane goes to the oldest entry below the highest priority. At 8 an
/// eighth of the work drains the backlog, and a live event waits for at most one ticket more.
pub const AGEING_EVERY: u64 = 8;

/// The longest delay; more is cut to it. Half a year is "never" for a controller, and far from
/// what a clock can add.
pub const MAX_DELAY: Duration = Duration::from_hours(180 * 24);

/// What is worked on: one object for one plugin.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// For which plugin.
    pub plugin: PluginName,
    /// The primary object.
    pub name: ObjectName,
}

/// How urgent a request is; more is sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(pub i16);

/// A request for work on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Push {
    /// Not before this has passed; zero is at once.
    pub after: Duration,
    /// How urgent.
    pub priority: Priority,
    /// Why.
    pub reason: Reason,
}

/// How a plugin's lane works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneConfig {
    /// The most keys in work at once; 0 pauses the lane.
    pub concurrency: u32,
    /// The share of tickets relative to other lanes; 0 counts as 1.
    pub weight: u32,
    /// How failures are retried.
    pub retry: Retry,
}

/// A lane at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneSnapshot {
    /// Whose lane.
    pub plugin: PluginName,
    /// Entries that could be taken but for concurrency.
    pub ready: usize,
    /// Entries with a time still to pass.
    pub waiting: usize,
    /// Tickets that are out.
    pub in_work: usize,
    /// How long the oldest ready entry has been ready.
    pub oldest: Option<Duration>,
    /// Keys at or past their last attempt.
    pub stalled: usize,
}

/// The work queue; clones are the same queue.
#[derive(Clone)]
pub struct Queue {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Somebody who waits for a ticket may find one, or a sooner timer.
    changed: Notify,
    /// The last ticket came back.
    idle: Notify,
}

// === impl Priority ===

impl Priority {
    /// Initial lists, resyncs, swaps.
    pub const LOW: Self = Self(-100);
    /// Changes.
    pub const NORMAL: Self = Self(0);
    /// People.
    pub const HIGH: Self = Self(100);
}

// === impl Push ===

impl Push {
    /// At once, with [`Priority::NORMAL`].
    pub fn now(reason: Reason) -> Self {
        Self { after: Duration::ZERO, priority: Priority::NORMAL, reason }
    }

    /// With this priority.
    #[must_use]
    pub fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// Not before this has passed.
    #[must_use]
    pub fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }
}

// === impl Queue ===

impl Queue {
    /// An empty queue whose jitter differs from that of every other.
    pub fn new(metrics: QueueMetrics) -> Self {
        Self::with_seed(metrics, rand::random())
    }

    /// An empty queue whose jitter follows from the seed.
    pub fn with_seed(metrics: QueueMetrics, seed: u64) -> Self {
        let shared = Arc::new_cyclic(|shared| {
            metrics.attach(shared);
            Shared {
                state: Mutex::new(State::new(metrics, seed)),
                changed: Notify::new(),
                idle: Notify::new(),
            }
        });
        Self { shared }
    }

    /// Opens a plugin's lane, or changes it and resets the attempts of all its keys.
    pub fn open(&self, plugin: &PluginName, config: LaneConfig) {
        self.shared.change(|state| state.open(plugin, config));
    }

    /// Closes a plugin's lane: its entries are dropped, pushes are ignored, and tickets that are
    /// out settle to nothing. Their keys stay locked should the lane be opened again before.
    pub fn close(&self, plugin: &PluginName) {
        self.shared.change(|state| state.close(plugin));
    }

    /// Asks for work on a key. What is known of it is merged: the sooner time, the higher
    /// priority, all reasons. While the key is in work, it runs once more afterwards. Reasons
    /// [`Reason::Swap`] and [`Reason::Config`] reset its attempts.
    ///
    /// Ignored after [`Queue::shutdown`] and where the plugin has no lane.
    pub fn push(&self, key: Key, push: Push) {
        self.shared.change(|state| state.push(key, push));
    }

    /// The object is gone and nobody wants to know: drops the entry and the attempts. A ticket
    /// that is out settles to nothing, unless the key is pushed again before.
    pub fn forget(&self, key: &Key) {
        self.shared.change(|state| state.forget(key));
    }

    /// The next key to work on, as soon as there is one; `None` after [`Queue::shutdown`]. Safe
    /// to cancel, and to call from several tasks.
    pub async fn next(&self) -> Option<Ticket> {
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            let due = match self.shared.locked().offer() {
                Offer::Stopped => return None,
                Offer::Ticket(given, more) => {
                    if more {
                        self.shared.changed.notify_one();
                    }
                    return Some(Ticket::new(Arc::clone(&self.shared), given));
                }
                Offer::Wait(due) => due,
            };
            // Who waits for the soonest timer may be cancelled; then another one has to.
            let mut heir = Heir { changed: &self.shared.changed, needed: due.is_some() };
            match due {
                Some(due) => _ = tokio::time::timeout_at(due, changed).await,
                None => changed.await,
            }
            heir.needed = false;
        }
    }

    /// Hands out nothing more and takes nothing more. Tickets that are out settle to nothing.
    pub fn shutdown(&self) {
        self.shared.change(State::stop);
        self.shared.changed.notify_waiters();
    }

    /// Ends when no ticket is out.
    pub async fn drained(&self) {
        loop {
            let mut idle = pin!(self.shared.idle.notified());
            idle.as_mut().enable();
            if self.shared.locked().is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// All open lanes, in order of their names.
    pub fn snapshot(&self) -> Vec<LaneSnapshot> {
        self.shared.locked().snapshot()
    }
}

// === impl Shared ===

impl Shared {
    /// The state, at the present moment. The lock is never held across an await.
    fn locked(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.advance(Instant::now());
        state
    }

    /// Changes the state and wakes one that waits for a ticket; it wakes the next if there is
    /// more.
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.locked());
        self.changed.notify_one();
    }

    fn settle(&self, key: &Key, settle: Settle) -> Settled {
        let (settled, idle) = {
            let mut state = self.locked();
            (state.settle(&key.plugin, &key.name, settle), state.is_idle())
        };
        self.changed.notify_one();
        if idle {
            self.idle.notify_waiters();
        }
        settled
    }

    fn refresh(&self) {
        self.locked().refresh();
    }
}

/// Wakes another one that waits for a ticket when this one is dropped too early.
struct Heir<'a> {
    changed: &'a Notify,
    needed: bool,
}

impl Drop for Heir<'_> {
    fn drop(&mut self) {
        if self.needed {
            self.changed.notify_one();
        }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
