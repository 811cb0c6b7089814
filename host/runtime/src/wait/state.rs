//! Who waits for what, and when something is due.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use reeve_cluster::watch::{StreamSpec, Subscription};
use reeve_core::gvk::Gvk;
use reeve_core::ids::ObjectName;
use reeve_core::labels::Selector;
use reeve_core::plan::{Wait, WaitTarget};
use reeve_core::queue::Key;
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct State {
    pub(super) next_id: u64,
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) by_key: HashMap<Key, Vec<u64>>,
    pub(super) named: HashMap<(Gvk, ObjectName), Vec<u64>>,
    pub(super) selected: HashMap<Gvk, Vec<u64>>,
    pub(super) timers: BTreeSet<(Instant, u64)>,
    pub(super) fresh: Vec<u64>,
}

pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) wait: Wait,
    pub(super) selector: Option<Selector>,
    pub(super) spec: StreamSpec,
    pub(super) deadline: Instant,
    pub(super) phase: Phase,
    pub(super) poll: Option<(Instant, Duration)>,
    pub(super) subscription: Subscription,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The state was not seen yet.
    Waiting,
    /// The key was woken by it, and it still holds.
    Met,
    /// The key was woken by the timeout; the state would still wake it.
    TimedOut,
}

impl State {
    pub(super) fn remove(&mut self, id: u64) {
        let Some(entry) = self.entries.remove(&id) else { return };
        self.timers.remove(&(entry.deadline, id));
        if let Some((due, _)) = entry.poll {
            self.timers.remove(&(due, id));
        }
        match &entry.wait.target {
            WaitTarget::Labels(_) => drop_id(&mut self.selected, &entry.wait.gvk, id),
            WaitTarget::Name(name) => {
                let namespace = entry.wait.namespace.as_deref().map(Into::into);
                let name = ObjectName { namespace, name: name.as_str().into() };
                drop_id(&mut self.named, &(entry.wait.gvk, name), id);
            }
        }
    }
}

fn drop_id<K: std::hash::Hash + Eq>(map: &mut HashMap<K, Vec<u64>>, key: &K, id: u64) {
    if let Some(ids) = map.get_mut(key) {
        ids.retain(|known| *known != id);
        if ids.is_empty() {
            map.remove(key);
        }
    }
}
