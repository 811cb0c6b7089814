//! The objects that fail now, and why: what the admin API shows (feature D6).

mod causes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use reeve_core::failure::Failure;
use reeve_core::ids::PluginName;
use reeve_core::queue::Key;

pub use causes::{Cause, MAX_CAUSES};

/// So many failing objects are kept in detail; the metrics count all of them.
pub const MAX_KEPT: usize = 10_000;

/// The failing objects. Cheap to clone.
#[derive(Clone, Default)]
pub struct Failures(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    failing: BTreeMap<Key, Failing>,
    causes: causes::Causes,
}

/// Why one object fails.
#[derive(Debug, Clone)]
pub struct Failing {
    /// The last failure.
    pub failure: Failure,
    /// The word to search logs and conditions for.
    pub error_id: String,
    /// Failures in a row.
    pub attempts: u32,
    /// The last attempt has been made.
    pub stalled: bool,
    /// When it failed first without a success in between.
    pub first: SystemTime,
    /// When it failed last.
    pub last: SystemTime,
}

impl Failures {
    /// A run failed.
    pub(crate) fn note(&self, key: &Key, failure: &Failure, error_id: String, attempts: u32, stalled: bool) {
        let mut state = self.0.lock();
        let now = SystemTime::now();
        state.causes.note(key, failure, now);
        let failing = &mut state.failing;
        let first = failing.get(key).map_or(now, |before| before.first);
        if failing.len() < MAX_KEPT || failing.contains_key(key) {
            let failure = failure.clone();
            failing.insert(key.clone(), Failing { failure, error_id, attempts, stalled, first, last: now });
        }
    }

    /// A run succeeded, or the object is gone.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.lock().failing.remove(key);
    }

    pub(crate) fn forget_plugin(&self, plugin: &PluginName) {
        self.0.lock().failing.retain(|key, _| key.plugin != *plugin);
    }

    /// How many objects of a plugin fail.
    pub fn count(&self, plugin: &PluginName) -> usize {
        self.0.lock().failing.keys().filter(|key| key.plugin == *plugin).count()
    }

    /// The commonest causes since the host started, at most so many.
    pub fn commonest(&self, limit: usize) -> Vec<Cause> {
        self.0.lock().causes.commonest(limit)
    }

    /// Those that failed last, newest first, at most so many.
    pub fn latest(&self, limit: usize) -> Vec<(Key, Failing)> {
        let state = self.0.lock();
        let mut all: Vec<_> =
            state.failing.iter().map(|(key, failing)| (key.clone(), failing.clone())).collect();
        drop(state);
        all.sort_by_key(|(_, failing)| std::cmp::Reverse(failing.last));
        all.truncate(limit);
        all
    }
}
