//! The ready entries of one lane, in the order in which they are taken.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::time::Instant;

use super::Priority;
use super::clock::Clock;
use crate::ids::ObjectName;

/// The ready entries of one lane. Every operation takes O(log n), but for the look at the oldest,
/// which is O(levels): there are as many as the host has names for priorities, that is three.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// The last one comes first.
    levels: BTreeMap<Priority, Level>,
    len: usize,
}

/// Entries of one priority. Invariant: none of its maps has an empty element.
#[derive(Debug, Default)]
struct Level {
    namespaces: HashMap<Option<Arc<str>>, Namespace>,
    /// Whose turn it is: the first one's. Each namespace has one turn.
    turns: BTreeMap<u64, Option<Arc<str>>>,
    /// By the moment since which they are ready.
    by_age: BTreeMap<u64, ObjectName>,
}

/// Entries of one priority and namespace.
#[derive(Debug)]
struct Namespace {
    turn: u64,
    /// First in, first out.
    names: BTreeMap<u64, ObjectName>,
}

/// Where a ready entry stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    /// Its level.
    pub(super) priority: Priority,
    /// Since when it is ready.
    pub(super) since: Instant,
    /// Its place within its namespace.
    order: u64,
    /// Its place by age, which a raise does not change.
    age: u64,
}

impl Ready {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entry that is ready longest.
    pub(super) fn oldest(&self) -> Option<&ObjectName> {
        Self::oldest_of(self.levels.values())
    }

    /// The entry that is ready longest of those that are not in the highest level.
    pub(super) fn oldest_below(&self) -> Option<&ObjectName> {
        Self::oldest_of(self.levels.values().rev().skip(1))
    }

    fn oldest_of<'a>(levels: impl Iterator<Item = &'a Level>) -> Option<&'a ObjectName> {
        levels
            .filter_map(|level| level.by_age.first_key_value())
            .min_by_key(|(age, _)| **age)
            .map(|(_, name)| name)
    }

    /// The first entry of the namespace whose turn it is in the highest level.
    pub(super) fn first(&self) -> Option<&ObjectName> {
        let level = self.levels.values().next_back()?;
        let namespace = level.turns.values().next()?;
        level.namespaces.get(namespace)?.names.values().next()
    }

    pub(super) fn insert(&mut self, name: &ObjectName, priority: Priority, clock: &mut Clock) -> Spot {
        let age = clock.count();
        let order = self.enter(name, priority, age, clock);
        Spot { priority, since: clock.now, order, age }
    }

    /// To the end of a higher level.
    pub(super) fn raise(
        &mut self,
        name: &ObjectName,
        spot: Spot,
        priority: Priority,
        clock: &mut Clock,
    ) -> Spot {
        self.leave(name, spot);
        let order = self.enter(name, priority, spot.age, clock);
        Spot { priority, order, ..spot }
    }

    pub(super) fn remove(&mut self, name: &ObjectName, spot: Spot) {
        self.leave(name, spot);
    }

    /// Ends the turn of a namespace, where it still has entries in that level.
    pub(super) fn end_turn(&mut self, name: &ObjectName, priority: Priority, clock: &mut Clock) {
        let Some(level) = self.levels.get_mut(&priority) else { return };
        let Some(namespace) = level.namespaces.get_mut(&name.namespace) else { return };
        level.turns.remove(&namespace.turn);
        namespace.turn = clock.count();
        level.turns.insert(namespace.turn, name.namespace.clone());
    }

    fn enter(&mut self, name: &ObjectName, priority: Priority, age: u64, clock: &mut Clock) -> u64 {
        let level = self.levels.entry(priority).or_default();
        level.by_age.insert(age, name.clone());
        self.len += 1;
        let namespace = level.namespaces.entry(name.namespace.clone()).or_insert_with(|| {
            let turn = clock.count();
            level.turns.insert(turn, name.namespace.clone());
            Namespace { turn, names: BTreeMap::new() }
        });
        let order = clock.count();
        namespace.names.insert(order, name.clone());
        order
    }

    fn leave(&mut self, name: &ObjectName, spot: Spot) {
        let Some(level) = self.levels.get_mut(&spot.priority) else { return };
        let Some(namespace) = level.namespaces.get_mut(&name.namespace) else { return };
        level.by_age.remove(&spot.age);
        self.len -= usize::from(namespace.names.remove(&spot.order).is_some());
        if namespace.names.is_empty() {
            level.turns.remove(&namespace.turn);
            level.namespaces.remove(&name.namespace);
        }
        if level.namespaces.is_empty() {
            self.levels.remove(&spot.priority);
        }
    }
}
