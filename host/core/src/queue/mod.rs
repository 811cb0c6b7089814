//! The work queue: which key is worked on next, and never twice at once.
//!
//! One lane per plugin. A key has one entry in its lane, however often it is pushed; a [`Ticket`]
//! is the exclusive right to work on it, and its key is not handed out again before it is settled
//! or dropped, also across versions of the plugin.
//!
//! # Order
//! 1. Between plugins with something ready and free concurrency: weighted fair, each ticket costs
//!    1/weight.
//! 2. Within a lane: the highest priority; every [`AGEING_EVERY`]th ticket of a lane goes to the
//!    entry that is ready longest, whatever its priority. So an entry with *k* older ones in its
//!    lane is taken at the latest with the `AGEING_EVERY`·(k + 1)th ticket of the lane.
//! 3. Within a priority: namespaces in turn.
//! 4. Within a namespace: first in, first out; an entry whose priority was raised goes to the end
//!    of its new level.
//!
//! # Bounds
//! The queue holds at most one entry per key, so it is as large as the set of names that is
//! pushed; [`Queue::forget`] ends what it knows of a name. Keys in work are bounded by the lanes'
//! concurrency, delays by [`MAX_DELAY`].

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::ids::{ObjectName, PluginName};
use crate::manifest::Retry;
use crate::reason::Reason;

mod metrics;
mod ticket;

pub use metrics::QueueMetrics;
pub use ticket::{FailureRetry, Settle, Settled, Ticket};

/// Every how manyth ticket of a lane goes to the entry that is ready longest. At 8 an eighth of
/// the work drains the backlog, and a live event waits for at most one ticket more.
pub const AGEING_EVERY: u64 = 8;

/// The longest delay; more is cut to it. Half a year is "never" for a controller, and far from
/// what a clock can add.
pub const MAX_DELAY: Duration = Duration::from_secs(180 * 24 * 3600);

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
pub struct Queue {}

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
        unimplemented!()
    }

    /// An empty queue whose jitter follows from the seed.
    pub fn with_seed(metrics: QueueMetrics, seed: u64) -> Self {
        unimplemented!()
    }

    /// Opens a plugin's lane, or changes it and resets the attempts of all its keys.
    pub fn open(&self, plugin: &PluginName, config: LaneConfig) {
        unimplemented!()
    }

    /// Closes a plugin's lane: its entries are dropped, pushes are ignored, and tickets that are
    /// out settle to nothing. Their keys stay locked should the lane be opened again before.
    pub fn close(&self, plugin: &PluginName) {
        unimplemented!()
    }

    /// Asks for work on a key. What is known of it is merged: the sooner time, the higher
    /// priority, all reasons. While the key is in work, it runs once more afterwards. Reasons
    /// [`Reason::Swap`] and [`Reason::Config`] reset its attempts.
    ///
    /// Ignored after [`Queue::shutdown`] and where the plugin has no lane.
    pub fn push(&self, key: Key, push: Push) {
        unimplemented!()
    }

    /// The object is gone and nobody wants to know: drops the entry and the attempts. A ticket
    /// that is out settles to nothing, unless the key is pushed again before.
    pub fn forget(&self, key: &Key) {
        unimplemented!()
    }

    /// The next key to work on, as soon as there is one; `None` after [`Queue::shutdown`]. Safe
    /// to cancel, and to call from several tasks.
    pub async fn next(&self) -> Option<Ticket> {
        unimplemented!()
    }

    /// Hands out nothing more and takes nothing more.
    pub fn shutdown(&self) {
        unimplemented!()
    }

    /// Ends when no ticket is out.
    pub async fn drained(&self) {
        unimplemented!()
    }

    /// All lanes, in order of their names.
    pub fn snapshot(&self) -> Vec<LaneSnapshot> {
        unimplemented!()
    }
}
