//! The exclusive right to work on a key, and how it ends.

use std::sync::Arc;
use std::time::Duration;

use super::lane::Given;
use super::{Key, Priority, Shared};
use crate::reason::{Reason, Reasons};

/// The exclusive right to work on a key. Dropped without [`Ticket::settle`] it counts as a
/// transient failure, so that no key is ever lost.
#[must_use = "a dropped ticket is a failed run"]
pub struct Ticket {
    shared: Arc<Shared>,
    given: Given,
    settled: bool,
}

/// How work on a key ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// Well. Attempts are reset.
    Done,
    /// Well, and again after this time unless something happens before. Attempts are reset.
    After(Duration),
    /// Neither well nor badly: once more at once. Attempts stay as they are.
    Again(Reason),
    /// It could not be worked on yet, and nobody is to blame: again after this time, or when
    /// something happens, for the same reasons. Attempts stay as they are.
    Hold(Duration),
    /// Badly.
    Failed {
        /// Whether and when it is tried again.
        retry: FailureRetry,
    },
}

/// Whether and when failed work is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureRetry {
    /// After the back-off, or exactly after `retry_after`.
    Transient {
        /// What the failure asked for.
        retry_after: Option<Duration>,
    },
    /// The API server is away: after a back-off of its own, and it counts no attempt.
    Outage,
    /// When something happens.
    Permanent,
}

/// What follows from the end of work on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Failures in a row so far.
    pub attempts: u32,
    /// Whether the last attempt has been made: the object became, or still is, stalled.
    pub stalled: bool,
    /// When the key runs again: zero when it is ready, `None` when nothing is planned.
    pub next: Option<Duration>,
}

// === impl Ticket ===

impl Ticket {
    pub(super) fn new(shared: Arc<Shared>, given: Given) -> Self {
        Self { shared, given, settled: false }
    }

    /// What to work on.
    pub fn key(&self) -> &Key {
        &self.given.key
    }

    /// Why.
    pub fn reasons(&self) -> Reasons {
        self.given.wish.reasons
    }

    /// 1 for the first attempt, then one more than failures in a row.
    pub fn attempt(&self) -> u32 {
        self.given.attempt
    }

    /// How urgent it was.
    pub fn priority(&self) -> Priority {
        self.given.wish.priority
    }

    /// How long it was ready before it was taken.
    pub fn waited(&self) -> Duration {
        self.given.waited
    }

    /// Ends the work.
    pub fn settle(mut self, settle: Settle) -> Settled {
        self.settled = true;
        self.shared.settle(&self.given.key, settle)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.settled {
            let retry = FailureRetry::Transient { retry_after: None };
            self.shared.settle(&self.given.key, Settle::Failed { retry });
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("given", &self.given).finish_non_exhaustive()
    }
}
