//! Answers of staged writes, for the runs that follow (feature C3). In memory only, never logged.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use reeve_core::ids::PluginName;
use reeve_core::queue::Key;
use serde_json::Value;

/// The most answers of one object; the one whose id comes first by name goes.
pub(super) const MAX_PER_KEY: usize = 64;
/// The most bytes of all answers as JSON; the objects whose answers are oldest lose theirs, and
/// their plugins ask again.
pub(super) const MAX_BYTES: usize = 32 * 1024 * 1024;

/// Answers by key.
#[derive(Default)]
pub(crate) struct Answers(Mutex<State>);

#[derive(Default)]
struct State {
    by_key: HashMap<Key, Kept>,
    order: VecDeque<Key>,
    bytes: usize,
}

struct Kept {
    answers: Arc<BTreeMap<String, Value>>,
    bytes: usize,
}

impl Answers {
    /// The answers of one object.
    pub(crate) fn get(&self, key: &Key) -> Arc<BTreeMap<String, Value>> {
        self.0.lock().by_key.get(key).map(|kept| Arc::clone(&kept.answers)).unwrap_or_default()
    }

    /// Adds answers; one of the same id is replaced.
    pub(crate) fn add(&self, key: &Key, new: BTreeMap<String, Value>) {
        if new.is_empty() {
            return;
        }
        let mut state = self.0.lock();
        let mut answers = state.remove(key).unwrap_or_default();
        let map = Arc::make_mut(&mut answers);
        map.extend(new);
        while map.len() > MAX_PER_KEY {
            map.pop_first();
        }
        let bytes = map.iter().map(|(id, answer)| id.len() + answer.to_string().len()).sum();
        state.bytes += bytes;
        state.order.push_back(key.clone());
        state.by_key.insert(key.clone(), Kept { answers, bytes });
        while state.bytes > MAX_BYTES {
            let Some(oldest) = state.order.front().cloned() else { break };
            state.remove(&oldest);
        }
    }

    /// The object is gone.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }

    /// The plugin is gone.
    pub(crate) fn forget_plugin(&self, plugin: &PluginName) {
        let mut state = self.0.lock();
        let keys: Vec<_> = state.order.iter().filter(|key| key.plugin == *plugin).cloned().collect();
        for key in keys {
            state.remove(&key);
        }
    }
}

impl State {
    fn remove(&mut self, key: &Key) -> Option<Arc<BTreeMap<String, Value>>> {
        let kept = self.by_key.remove(key)?;
        self.bytes -= kept.bytes;
        self.order.retain(|known| known != key);
        Some(kept.answers)
    }
}

#[cfg(test)]
mod tests {
    use reeve_core::ids::ObjectName;

    use super::*;

    fn key(name: &str) -> Key {
        Key { plugin: "p".parse().unwrap(), name: ObjectName::namespaced("n", name) }
    }

    #[test]
    fn answers_stay_until_replaced_and_are_bounded() {
        let answers = Answers::default();
        let big = Value::String("x".repeat(MAX_BYTES / 4));
        answers.add(&key("a"), [("t".to_owned(), Value::from(1))].into());
        answers.add(&key("a"), [("t".to_owned(), Value::from(2)), ("u".to_owned(), Value::from(3))].into());
        assert_eq!(answers.get(&key("a")).len(), 2);
        assert_eq!(answers.get(&key("a"))["t"], 2);
        for name in ["b", "c", "d", "e"] {
            answers.add(&key(name), [("t".to_owned(), big.clone())].into());
        }
        assert!(answers.get(&key("a")).is_empty() && answers.get(&key("b")).is_empty());
        assert_eq!(answers.get(&key("e")).len(), 1);
        answers.forget_plugin(&"p".parse().unwrap());
        assert_eq!(answers.0.lock().bytes, 0);
        let many = (0..100).map(|id| (format!("{id:03}"), Value::Null)).collect();
        answers.add(&key("a"), many);
        assert_eq!(answers.get(&key("a")).len(), MAX_PER_KEY);
    }
}
