//! What is due when, and what came before what.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::Key;

/// The time of the operation that is going on, the timers of all lanes, and a counter that gives
/// everything its place in the order of arrival.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) now: Instant,
    count: u64,
    timers: BTreeMap<Due, Key>,
}

/// A running timer; timers of one moment come due in the order in which they were set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    pub(super) at: Instant,
    count: u64,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { now: Instant::now(), count: 0, timers: BTreeMap::new() }
    }

    /// A number larger than all before.
    pub(super) fn count(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    pub(super) fn set(&mut self, at: Instant, key: Key) -> Due {
        let due = Due { at, count: self.count() };
        self.timers.insert(due, key);
        due
    }

    pub(super) fn cancel(&mut self, due: Due) {
        self.timers.remove(&due);
    }

    /// When the next timer comes due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.keys().next().map(|due| due.at)
    }

    /// A timer that has come due.
    pub(super) fn pop_due(&mut self) -> Option<Key> {
        let first = self.timers.first_entry()?;
        (first.key().at <= self.now).then(|| first.remove())
    }
}
