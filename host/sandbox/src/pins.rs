//! One version of each thing for the length of a run (feature B3).
//!
//! Invariant: whatever a run has read of an object, by name or in a list, it reads again the same,
//! however the cache moves on. A list that is read later shows objects as they were read before.

use std::collections::HashMap;
use std::sync::Arc;

use reeve_core::gvk::Gvk;
use reeve_core::ids::ObjectName;
use reeve_core::object::SharedObject;
use reeve_core::read::Query;

use crate::config::{MAX_LISTS, MAX_PINNED};
use crate::limits::Ended;

/// What a run has read.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    /// `None`: it was not there when the run looked.
    objects: HashMap<Gvk, HashMap<ObjectName, Option<SharedObject>>>,
    lists: HashMap<Gvk, HashMap<Query, Arc<[SharedObject]>>>,
    entries: usize,
    list_count: usize,
}

impl Pins {
    /// What the run saw under this name, if it looked; it may have seen that nothing is there.
    pub(crate) fn object(&self, gvk: &Gvk, name: &ObjectName) -> Option<&Option<SharedObject>> {
        self.objects.get(gvk)?.get(name)
    }

    /// What the run saw for this query, if it asked.
    pub(crate) fn list(&self, gvk: &Gvk, query: &Query) -> Option<Arc<[SharedObject]>> {
        self.lists.get(gvk)?.get(query).cloned()
    }

    pub(crate) fn pin_object(
        &mut self,
        gvk: &Gvk,
        name: ObjectName,
        object: Option<SharedObject>,
    ) -> Result<(), Ended> {
        // A long name counts for more: what was not there is kept by its name as well.
        self.charge(1 + (name.name.len() + name.namespace_or_empty().len()) / 64)?;
        self.objects.entry(gvk.clone()).or_default().insert(name, object);
        Ok(())
    }

    /// Pins a list and every object in it, and gives the list as the run is to see it: objects
    /// that were read before stand in it in the version read before, and those that were not
    /// there then are left out. `primary` counts as read.
    pub(crate) fn pin_list(
        &mut self,
        gvk: &Gvk,
        query: Query,
        list: Arc<[SharedObject]>,
        primary: Option<&SharedObject>,
    ) -> Result<Arc<[SharedObject]>, Ended> {
        self.list_count += 1;
        if self.list_count > MAX_LISTS {
            return Err(Ended::Limit { what: "different lists", limit: MAX_LISTS as u64, place: "" });
        }
        self.charge(list.len())?;
        let pinned = self.objects.entry(gvk.clone()).or_default();
        let mut differs = false;
        for object in list.iter() {
            let first = match primary {
                Some(primary) if primary.meta().uid == object.meta().uid => primary,
                _ => object,
            };
            let seen = pinned.entry(object.meta().name.clone()).or_insert_with(|| Some(Arc::clone(first)));
            differs |= !seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, object));
        }
        let list = if differs {
            list.iter().filter_map(|object| pinned.get(&object.meta().name).cloned().flatten()).collect()
        } else {
            list
        };
        self.lists.entry(gvk.clone()).or_default().insert(query, Arc::clone(&list));
        Ok(list)
    }

    fn charge(&mut self, entries: usize) -> Result<(), Ended> {
        self.entries = self.entries.saturating_add(entries);
        if self.entries > MAX_PINNED {
            let place = "; narrow the lists by namespace, labels, owner or index";
            return Err(Ended::Limit { what: "objects read", limit: MAX_PINNED as u64, place });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use reeve_core::object::{ManagedFields, Object};

    use super::*;

    fn gvk() -> Gvk {
        Gvk::new("", "v1", "ConfigMap")
    }

    fn object(name: &str, version: u64) -> SharedObject {
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"web","uid":"uid-{name}","resourceVersion":"{version}"}}}}"#
        );
        Arc::new(Object::parse(&gvk(), &json, ManagedFields::Strip).expect("an object"))
    }

    fn versions(list: &[SharedObject]) -> Vec<(String, u64)> {
        list.iter().map(|o| (o.meta().name.name.to_string(), o.meta().resource_version.0)).collect()
    }

    #[test]
    fn a_list_shows_objects_as_they_were_read_before() {
        let mut pins = Pins::default();
        let name = |name| ObjectName::namespaced("web", name);
        pins.pin_object(&gvk(), name("a"), Some(object("a", 1))).expect("in limits");
        pins.pin_object(&gvk(), name("b"), None).expect("in limits");
        let cache: Arc<[_]> = [object("a", 5), object("b", 6), object("c", 7), object("p", 8)].into();
        let primary = object("p", 3);
        let list = pins.pin_list(&gvk(), Query::default(), cache, Some(&primary)).expect("in limits");
        let seen = [("a".to_owned(), 1), ("c".to_owned(), 7), ("p".to_owned(), 3)];
        assert_eq!(versions(&list), seen);
        assert_eq!(pins.list(&gvk(), &Query::default()).map(|list| versions(&list)), Some(seen.to_vec()));
        let found = |which| {
            pins.object(&gvk(), &name(which)).map(|o| o.as_ref().map(|o| o.meta().resource_version.0))
        };
        assert_eq!(found("c"), Some(Some(7)), "what a list showed is pinned by name as well");
        assert_eq!(found("b"), Some(None));
        assert_eq!(found("d"), None);
    }

    #[test]
    fn a_list_that_agrees_with_what_was_read_is_not_copied() {
        let mut pins = Pins::default();
        let cache: Arc<[_]> = [object("a", 1), object("b", 2)].into();
        let list = pins.pin_list(&gvk(), Query::default(), Arc::clone(&cache), None).expect("in limits");
        assert!(Arc::ptr_eq(&cache, &list));
    }
}
