//! The objects that fail now, and why: what the admin API shows (feature D6).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use reeve_core::failure::Failure;
use reeve_core::ids::PluginName;
use reeve_core::queue::Key;

/// So many failing objects are kept in detail; the metrics count all of them.
pub const MAX_KEPT: usize = 10_000;

/// The failing objects. Cheap to clone.
#[derive(Clone, Default)]
pub struct Failures(Arc<Mutex<BTreeMap<Key, Failing>>>);

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
        let mut failing = self.0.lock();
        let now = SystemTime::now();
        let first = failing.get(key).map_or(now, |before| before.first);
        if failing.len() < MAX_KEPT || failing.contains_key(key) {
            let failure = failure.clone();
            failing.insert(key.clone(), Failing { failure, error_id, attempts, stalled, first, last: now });
        }
    }

    /// A run succeeded, or the object is gone.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }

    pub(crate) fn forget_plugin(&self, plugin: &PluginName) {
        self.0.lock().retain(|key, _| key.plugin != *plugin);
    }

    /// How many objects of a plugin fail.
    pub fn count(&self, plugin: &PluginName) -> usize {
        self.0.lock().keys().filter(|key| key.plugin == *plugin).count()
    }

    /// Those that failed last, newest first, at most so many.
    pub fn latest(&self, limit: usize) -> Vec<(Key, Failing)> {
        let failing = self.0.lock();
        let mut all: Vec<_> = failing.iter().map(|(key, failing)| (key.clone(), failing.clone())).collect();
        drop(failing);
        all.sort_by_key(|(_, failing)| std::cmp::Reverse(failing.last));
        all.truncate(limit);
        all
    }
}
