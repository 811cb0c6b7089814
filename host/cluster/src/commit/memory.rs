//! What was written last, so that the same is not written again.

use std::collections::HashMap;

use parking_lot::Mutex;
use reeve_core::ids::{PluginName, ResourceVersion, Uid};
use reeve_core::object::SharedObject;

/// How many objects one memory holds. At the bound the half that was used least recently is
/// forgotten, which costs a comparison with the live object, not a write.
const REMEMBERED: usize = 100_000;

/// The last write of each plugin to each object.
#[derive(Default)]
pub(crate) struct Memory(Mutex<Table>);

#[derive(Default)]
struct Table {
    clock: u64,
    entries: HashMap<(PluginName, Uid), Entry>,
}

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Of what was sent.
    pub(crate) digest: Box<str>,
    /// The version that the write returned, or a later one that was found to hold all of it.
    pub(crate) version: ResourceVersion,
    /// What the server made of the fields, where it is not what was sent.
    pub(crate) normalised: Option<u64>,
    used: u64,
}

impl Memory {
    /// The last write, if it was this one.
    pub(crate) fn get(&self, plugin: &PluginName, uid: &Uid, digest: &str) -> Option<Entry> {
        let mut table = self.0.lock();
        table.clock += 1;
        let clock = table.clock;
        let entry =
            table.entries.get_mut(&(plugin.clone(), uid.clone())).filter(|entry| &*entry.digest == digest)?;
        entry.used = clock;
        Some(entry.clone())
    }

    /// Whether the object is as the last write left it, and that was this one.
    pub(crate) fn is_last(&self, plugin: &PluginName, object: &SharedObject, digest: &str) -> bool {
        self.get(plugin, &object.meta().uid, digest)
            .is_some_and(|entry| entry.version == object.meta().resource_version)
    }

    /// Remembers a write.
    pub(crate) fn put(
        &self,
        plugin: &PluginName,
        uid: &Uid,
        digest: &str,
        version: ResourceVersion,
        normalised: Option<u64>,
    ) {
        self.put_within(
            REMEMBERED,
            plugin,
            uid,
            Entry { digest: digest.into(), version, normalised, used: 0 },
        );
    }

    fn put_within(&self, bound: usize, plugin: &PluginName, uid: &Uid, entry: Entry) {
        let mut table = self.0.lock();
        table.clock += 1;
        let used = table.clock;
        if table.entries.len() >= bound {
            let mut ages: Vec<u64> = table.entries.values().map(|entry| entry.used).collect();
            let middle = ages.len() / 2;
            let median = *ages.select_nth_unstable(middle).1;
            table.entries.retain(|_, entry| entry.used >= median);
        }
        table.entries.insert((plugin.clone(), uid.clone()), Entry { used, ..entry });
    }

    /// The object is gone.
    pub(crate) fn remove(&self, plugin: &PluginName, uid: &Uid) {
        self.0.lock().entries.remove(&(plugin.clone(), uid.clone()));
    }

    /// The plugin is gone.
    pub(crate) fn forget(&self, plugin: &PluginName) {
        self.0.lock().entries.retain(|(owner, _), _| owner != plugin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_memory_forgets_the_older_half() {
        let memory = Memory::default();
        let plugin: PluginName = "web".parse().unwrap();
        let uid = |index: u32| Uid::new(&index.to_string());
        let entry = || Entry { digest: "d".into(), version: ResourceVersion(1), normalised: None, used: 0 };
        for index in 0..8 {
            memory.put_within(8, &plugin, &uid(index), entry());
        }
        assert!(memory.get(&plugin, &uid(0), "d").is_some(), "a look refreshes");
        memory.put_within(8, &plugin, &uid(8), entry());
        let kept: Vec<u32> =
            (0..9).filter(|index| memory.get(&plugin, &uid(*index), "d").is_some()).collect();
        assert_eq!(kept, [0, 5, 6, 7, 8]);
        assert!(memory.get(&plugin, &uid(0), "other").is_none());
        memory.forget(&plugin);
        assert!(memory.get(&plugin, &uid(0), "d").is_none());
    }
}
