//! The sets that indexes consist of.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use reeve_core::ids::ObjectName;

/// Up to here a sorted array is smaller and faster than a tree; most owners have a few children.
const FEW: usize = 16;

/// A set of names, in order. Most have one element, so that takes one small allocation.
#[derive(Debug)]
pub(crate) enum Names {
    /// Sorted.
    Few(Vec<ObjectName>),
    /// More than [`FEW`].
    Many(BTreeSet<ObjectName>),
}

/// From a value to the names of the objects that have it.
#[derive(Debug)]
pub(crate) struct NamesBy<K>(HashMap<K, Names>);

// === impl Names ===

impl Names {
    fn insert(&mut self, name: &ObjectName) {
        match self {
            Self::Few(names) => {
                let Err(place) = names.binary_search(name) else { return };
                if names.len() < FEW {
                    names.reserve_exact(1);
                    names.insert(place, name.clone());
                } else {
                    let mut many: BTreeSet<_> = std::mem::take(names).into_iter().collect();
                    many.insert(name.clone());
                    *self = Self::Many(many);
                }
            }
            Self::Many(names) => {
                names.insert(name.clone());
            }
        }
    }

    /// Whether none is left.
    fn remove(&mut self, name: &ObjectName) -> bool {
        match self {
            Self::Few(names) => {
                if let Ok(place) = names.binary_search(name) {
                    names.remove(place);
                }
                names.is_empty()
            }
            Self::Many(names) => {
                names.remove(name);
                names.is_empty()
            }
        }
    }

    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = &ObjectName> + '_> {
        match self {
            Self::Few(names) => Box::new(names.iter()),
            Self::Many(names) => Box::new(names.iter()),
        }
    }
}

// === impl NamesBy ===

impl<K> Default for NamesBy<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq> NamesBy<K> {
    pub(crate) fn insert(&mut self, key: K, name: &ObjectName) {
        self.0.entry(key).or_insert_with(|| Names::Few(Vec::new())).insert(name);
    }

    pub(crate) fn remove<Q>(&mut self, key: &Q, name: &ObjectName)
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.0.get_mut(key).is_some_and(|names| names.remove(name)) {
            self.0.remove(key);
        }
    }

    pub(crate) fn get<Q>(&self, key: &Q) -> Option<&Names>
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.0.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_sorted_and_unique_across_both_forms() {
        let mut by: NamesBy<&str> = NamesBy::default();
        let name = |index: usize| ObjectName::namespaced("web", &format!("{index:02}"));
        for index in (0..FEW * 2).rev().chain(0..FEW) {
            by.insert("x", &name(index));
        }
        let found: Vec<_> = by.get("x").unwrap().iter().cloned().collect();
        assert_eq!(found, (0..FEW * 2).map(name).collect::<Vec<_>>());
        for index in 0..FEW * 2 {
            by.remove("x", &name(index));
        }
        assert!(by.get("x").is_none(), "an empty set takes no memory");
    }
}
