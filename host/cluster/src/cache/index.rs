//! Declared indexes: from the value at a JSON pointer to the objects that have it.

use std::collections::BTreeMap;
use std::sync::Arc;

use reeve_core::ids::ObjectName;
use reeve_core::json;
use reeve_core::object::{Object, SharedObject};

use super::names::{Names, NamesBy};

/// The indexes of one store, by pointer: plugins that declare the same one share it.
#[derive(Default)]
pub(crate) struct Indexes(BTreeMap<Arc<str>, NamesBy<Box<str>>>);

// === impl Indexes ===

impl Indexes {
    /// Adds an index over the objects there are; nothing if it is there.
    pub(crate) fn add<'a>(&mut self, pointer: &Arc<str>, objects: impl Iterator<Item = &'a SharedObject>) {
        if self.0.contains_key(pointer) {
            return;
        }
        let mut index = NamesBy::default();
        for object in objects {
            for value in values(object, pointer) {
                index.insert(value, &object.meta().name);
            }
        }
        self.0.insert(Arc::clone(pointer), index);
    }

    pub(crate) fn drop_index(&mut self, pointer: &str) {
        self.0.remove(pointer);
    }

    pub(crate) fn insert(&mut self, object: &Object) {
        for (pointer, index) in &mut self.0 {
            for value in values(object, pointer) {
                index.insert(value, &object.meta().name);
            }
        }
    }

    pub(crate) fn remove(&mut self, object: &Object) {
        for (pointer, index) in &mut self.0 {
            for value in values(object, pointer) {
                index.remove(&*value, &object.meta().name);
            }
        }
    }

    /// The index over a pointer, if there is one.
    pub(crate) fn get(&self, pointer: &str) -> Option<&NamesBy<Box<str>>> {
        self.0.get(pointer)
    }

    /// Whether the object itself has the value; what an index answers without being one.
    pub(crate) fn has(object: &Object, pointer: &str, value: &str) -> bool {
        object.pointer_each(pointer).into_iter().filter_map(json::scalar).any(|found| found == value)
    }
}

fn values(object: &Object, pointer: &str) -> Vec<Box<str>> {
    let found = object.pointer_each(pointer);
    found.into_iter().filter_map(json::scalar).map(Into::into).collect()
}

/// Names in order; for lists.
pub(crate) fn names(found: Option<&Names>) -> impl Iterator<Item = &ObjectName> {
    found.into_iter().flat_map(Names::iter)
}
