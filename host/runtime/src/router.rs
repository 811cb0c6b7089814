//! From a change to the runs that it asks for: a pure function of the change and the routes of the
//! roster, tested by tables.
//!
//! Invariant: a change that somebody else made is never taken for an echo. What a plugin's own
//! write left on its primary (feature C9) is told apart by content: only status and finalizers,
//! and for plugins that write their primary's metadata, labels and annotations.

use std::collections::HashMap;
use std::sync::Arc;

use reeve_cluster::watch::Namespaces;
use reeve_core::change::{Cause, Change, Origin};
use reeve_core::gvk::{GroupKind, Gvk, Scope};
use reeve_core::ids::{ObjectName, PluginName};
use reeve_core::labels::Selector;
use reeve_core::manifest::Relation;
use reeve_core::object::{Object, SharedObject};
use reeve_core::predicate::{self, Predicate};
use reeve_core::queue::Priority;
use reeve_core::read::{Query, Reader};
use reeve_core::reason::Reason;

mod fields;
#[cfg(test)]
mod tests;

pub use fields::{Fields, InvalidFields};

/// The annotation whose change asks for a run at once; its value is free, for example a time.
pub const RECONCILE_AT: &str = "/metadata/annotations/reeve.dev~1reconcile-at";

/// The routes of all plugins that serve, by the kind that changes.
#[derive(Debug, Clone, Default)]
pub struct RouteTable {
    by_kind: HashMap<Gvk, Vec<Arc<Route>>>,
}

/// How changes of one kind concern one plugin.
pub struct Route {
    /// Whose.
    pub plugin: PluginName,
    /// The kind that changes.
    pub gvk: Gvk,
    /// The kind of the objects that are reconciled.
    pub primary: Gvk,
    /// Where those live.
    pub scope: Scope,
    /// Which objects of the changing kind the plugin sees.
    pub namespaces: Namespaces,
    /// Which of them by labels.
    pub labels: Selector,
    /// Which of them by fields.
    pub fields: Option<Fields>,
    /// Which updates count.
    pub predicate: Option<Predicate>,
    /// How primaries are found.
    pub target: Target,
    /// For lookups in an index.
    pub reader: Arc<dyn Reader>,
}

/// How a changed object leads to primaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// It is one.
    Primary {
        /// The plugin runs once more when it is gone.
        when_gone: bool,
        /// The plugin declares writes to its primary kind, so labels and annotations may be its own.
        writes_metadata: bool,
    },
    /// By relation; the name is that of the watch.
    Related(Arc<str>, Relation),
}

/// What a change asks for.
#[derive(Debug, Clone)]
pub enum Routed {
    /// A run.
    Run(Run),
    /// The primary is gone: nothing more is kept of it.
    Forget(PluginName, ObjectName),
    /// The plugin says which primaries: both states of an update.
    Map {
        /// Whose `map`.
        plugin: PluginName,
        /// The name of the watch.
        watch: Arc<str>,
        /// One or two states.
        objects: Vec<SharedObject>,
        /// Of the runs.
        priority: Priority,
    },
}

/// One run of one plugin on one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Of which plugin.
    pub plugin: PluginName,
    /// On which object.
    pub name: ObjectName,
    /// Why.
    pub reason: Reason,
    /// How urgent.
    pub priority: Priority,
    /// The change came from this key's own write: a loop, if it goes on.
    pub own: bool,
}

// === impl RouteTable ===

impl RouteTable {
    /// A table of these routes.
    pub fn new(routes: impl IntoIterator<Item = Arc<Route>>) -> Self {
        let mut by_kind: HashMap<Gvk, Vec<Arc<Route>>> = HashMap::new();
        for route in routes {
            by_kind.entry(route.gvk.clone()).or_default().push(route);
        }
        Self { by_kind }
    }
}

/// What a change asks for.
pub fn route(change: &Change, table: &RouteTable) -> Vec<Routed> {
    let mut routed = Vec::new();
    for route in table.by_kind.get(&change.gvk).map_or(&[][..], Vec::as_slice) {
        let old = change.old.as_ref().filter(|object| route.sees(object));
        let new = change.new.as_ref().filter(|object| route.sees(object));
        if old.is_none() && new.is_none() {
            continue;
        }
        match &route.target {
            Target::Primary { when_gone, writes_metadata } => {
                route.primary_changed(change, old, new, *when_gone, *writes_metadata, &mut routed);
            }
            Target::Related(watch, relation) => {
                route.related_changed(change, old, new, watch, relation, &mut routed);
            }
        }
    }
    routed
}

// === impl Route ===

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route")
            .field("plugin", &self.plugin)
            .field("gvk", &self.gvk)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl Route {
    fn sees(&self, object: &Object) -> bool {
        let namespace = match (&self.namespaces, &object.meta().name.namespace) {
            (Namespaces::Only(only), Some(namespace)) => only.contains(namespace),
            _ => true,
        };
        namespace
            && self.labels.matches(object.meta())
            && self.fields.as_ref().is_none_or(|fields| fields.matches(object))
    }

    fn run(&self, name: ObjectName, reason: Reason, change: &Change) -> Run {
        let own = origin(change).is_some_and(|origin| origin.plugin == self.plugin && origin.primary == name);
        Run { plugin: self.plugin.clone(), name, reason, priority: priority(change), own }
    }

    fn primary_changed(
        &self,
        change: &Change,
        old: Option<&SharedObject>,
        new: Option<&SharedObject>,
        when_gone: bool,
        writes_metadata: bool,
        routed: &mut Vec<Routed>,
    ) {
        let forget = |object: &SharedObject| Routed::Forget(self.plugin.clone(), object.meta().name.clone());
        let run = |object: &SharedObject, reason| self.run(object.meta().name.clone(), reason, change);
        match (old, new) {
            (None, Some(new)) => {
                if predicate::admits(self.predicate.as_ref(), None, Some(new)) {
                    routed.push(Routed::Run(run(new, Reason::Created)));
                }
            }
            // It left the selector, but it is there: that is not "gone".
            (Some(old), None) if change.new.is_some() || !when_gone => routed.push(forget(old)),
            (Some(old), None) => {
                routed.push(forget(old));
                routed.push(Routed::Run(Run { priority: Priority::NORMAL, ..run(old, Reason::Deleted) }));
            }
            (Some(old), Some(new)) if change.replaced() => {
                routed.push(forget(old));
                routed.push(Routed::Run(run(new, Reason::Created)));
            }
            (Some(old), Some(new)) => {
                if old.pointer(RECONCILE_AT) != new.pointer(RECONCILE_AT)
                    && new.pointer(RECONCILE_AT).is_some()
                {
                    routed.push(Routed::Run(Run { priority: Priority::HIGH, ..run(new, Reason::Manual) }));
                    return;
                }
                let update = run(new, Reason::Updated);
                if update.own && !predicate::changed_beyond_own_writes(old, new, writes_metadata) {
                    return;
                }
                // A deletion begins whatever the predicate says: the finalizer waits for it.
                let deletion = old.meta().deleting != new.meta().deleting;
                if deletion || predicate::admits(self.predicate.as_ref(), Some(old), Some(new)) {
                    routed.push(Routed::Run(update));
                }
            }
            (None, None) => {}
        }
    }

    fn related_changed(
        &self,
        change: &Change,
        old: Option<&SharedObject>,
        new: Option<&SharedObject>,
        watch: &Arc<str>,
        relation: &Relation,
        routed: &mut Vec<Routed>,
    ) {
        let (before, now) = (old.map(|object| &**object), new.map(|object| &**object));
        if *relation == Relation::Read || !predicate::admits_related(self.predicate.as_ref(), before, now) {
            return;
        }
        if *relation == Relation::Map {
            let objects = old.into_iter().chain(new).cloned().collect();
            let (plugin, watch) = (self.plugin.clone(), Arc::clone(watch));
            routed.push(Routed::Map { plugin, watch, objects, priority: priority(change) });
            return;
        }
        let mut names: Vec<ObjectName> = Vec::new();
        for object in old.into_iter().chain(new) {
            for name in self.related(object, relation) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        let reason = if relation.is_owned() { Reason::Child } else { Reason::Mapped };
        routed.extend(names.into_iter().map(|name| Routed::Run(self.run(name, reason, change))));
    }

    /// The primaries that one state of an object leads to.
    fn related(&self, object: &Object, relation: &Relation) -> Vec<ObjectName> {
        let meta = object.meta();
        match relation {
            Relation::Owned | Relation::OwnedByAny => {
                let primary = self.primary.group_kind();
                let any = *relation == Relation::OwnedByAny;
                let owners =
                    meta.owners.iter().filter(|owner| (any || owner.controller()) && is_of(owner, &primary));
                owners.filter_map(|owner| self.beside(object, owner.name())).collect()
            }
            Relation::Label(key) => {
                meta.label(key).and_then(|value| self.beside(object, value)).into_iter().collect()
            }
            Relation::Index(index) => {
                let namespace = match self.scope {
                    Scope::Namespaced => meta.name.namespace.clone(),
                    Scope::Cluster => None,
                };
                let query = Query {
                    namespace,
                    index: Some((index.as_str().into(), Arc::clone(&meta.name.name))),
                    ..Query::default()
                };
                // Not synced: the primaries are all told when they come.
                let found = self.reader.list(&self.primary, &query);
                found
                    .map(|list| list.iter().map(|primary| primary.meta().name.clone()).collect())
                    .unwrap_or_default()
            }
            Relation::Map | Relation::Read => Vec::new(),
        }
    }

    /// A primary of this name, in the object's namespace if primaries live in namespaces.
    fn beside(&self, object: &Object, name: &str) -> Option<ObjectName> {
        match self.scope {
            Scope::Cluster => Some(ObjectName::cluster(name)),
            Scope::Namespaced => {
                let namespace = object.meta().name.namespace.clone()?;
                Some(ObjectName { namespace: Some(namespace), name: name.into() })
            }
        }
    }
}

fn is_of(owner: &reeve_core::object::Owner, primary: &GroupKind) -> bool {
    owner.group_kind() == *primary
}

/// A first list is low; a deletion never is.
fn priority(change: &Change) -> Priority {
    if change.cause == Cause::Initial && change.new.is_some() { Priority::LOW } else { Priority::NORMAL }
}

fn origin(change: &Change) -> Option<&Origin> {
    match &change.cause {
        Cause::Write(origin) => Some(origin),
        _ => None,
    }
}
