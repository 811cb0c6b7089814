//! The cache as one plugin may see it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use futures::future::BoxFuture;
use reeve_core::gvk::{Gvk, Scope};
use reeve_core::ids::ObjectName;
use reeve_core::object::{ManagedFields, Object, SharedObject};
use reeve_core::read::{Query, ReadError, Reader};

use super::cell::Cell;
use super::coverage::{Coverage, Flavour};
use super::index::{Indexes, names};
use super::store::Store;
use super::vouchers::StreamId;
use super::{Cache, View, ViewKind};
use crate::watch::{Namespaces, StreamSpec};

/// What a reader hears whose stream has not been opened, or has said nothing yet.
const NO_LIST: &str = "its first list is on its way";

/// The reader of one view.
pub(crate) struct ViewReader {
    cache: Cache,
    view: View,
}

/// One spec in the namespaces that one read is about.
struct Part<'a> {
    spec: &'a StreamSpec,
    /// `[None]`: wherever the spec is.
    namespaces: Vec<Option<Arc<str>>>,
}

// === impl ViewReader ===

impl ViewReader {
    pub(crate) fn new(cache: Cache, view: View) -> Self {
        Self { cache, view }
    }

    fn kind(&self, gvk: &Gvk) -> Result<&ViewKind, ReadError> {
        self.view.kinds.get(gvk).ok_or_else(|| ReadError::NotDeclared(gvk.clone()))
    }
}

impl Reader for ViewReader {
    fn get(&self, gvk: &Gvk, name: &ObjectName) -> Result<Option<SharedObject>, ReadError> {
        let kind = self.kind(gvk)?;
        let cells = self.cache.cells_of(gvk);
        let name = if scope(&cells) == Some(Scope::Cluster) {
            ObjectName::cluster(&name.name)
        } else {
            name.clone()
        };
        let parts = parts(gvk, kind, name.namespace.as_ref(), scope(&cells))?;
        let mut not_synced = None;
        for part in &parts {
            match serving(gvk, &cells, part) {
                Ok(cell) => {
                    let store = cell.read();
                    let found = store.get(&name).filter(|object| part.shows(&store, object));
                    if let Some(object) = found {
                        return Ok(Some(Arc::clone(object)));
                    }
                }
                Err(error) => not_synced = Some(error),
            }
        }
        not_synced.map_or(Ok(None), Err)
    }

    fn list(&self, gvk: &Gvk, query: &Query) -> Result<Arc<[SharedObject]>, ReadError> {
        let kind = self.kind(gvk)?;
        let pointer = match &query.index {
            Some((index, _)) => Some(
                kind.indexes.get(index).ok_or_else(|| ReadError::NoIndex(gvk.clone(), index.to_string()))?,
            ),
            None => None,
        };
        let cells = self.cache.cells_of(gvk);
        let cluster = scope(&cells) == Some(Scope::Cluster);
        let namespace = query.namespace.as_ref().filter(|_| !cluster);
        let parts = parts(gvk, kind, namespace, scope(&cells))?;
        let mut served = Vec::with_capacity(parts.len());
        for part in &parts {
            served.push((part, serving(gvk, &cells, part)?));
        }
        if let [(part, cell)] = &served[..] {
            return Ok(part.list(&cell.read(), query, pointer).into());
        }
        let mut found = BTreeMap::new();
        for (part, cell) in served {
            for object in part.list(&cell.read(), query, pointer) {
                found.entry(object.meta().name.clone()).or_insert(object);
            }
        }
        Ok(found.into_values().collect())
    }

    fn held(&self, gvk: &Gvk, name: Option<&ObjectName>) -> Option<BoxFuture<'static, ()>> {
        if self.view.kinds.contains_key(gvk) { self.cache.inner.holds.held(gvk, name) } else { None }
    }
}

fn scope(cells: &[Arc<Cell>]) -> Option<Scope> {
    cells.iter().find_map(|cell| cell.read().scope)
}

/// The specs that a read is about.
fn parts<'a>(
    gvk: &Gvk,
    kind: &'a ViewKind,
    namespace: Option<&Arc<str>>,
    scope: Option<Scope>,
) -> Result<Vec<Part<'a>>, ReadError> {
    let parts: Vec<Part<'a>> = kind
        .specs
        .iter()
        .filter_map(|spec| {
            let namespaces = match (&spec.namespaces, namespace) {
                _ if scope == Some(Scope::Cluster) => vec![None],
                (Namespaces::All, namespace) => vec![namespace.cloned()],
                (Namespaces::Only(these), None) => these.iter().cloned().map(Some).collect(),
                (Namespaces::Only(these), Some(one)) if these.contains(one) => vec![Some(Arc::clone(one))],
                (Namespaces::Only(_), Some(_)) => return None,
            };
            Some(Part { spec, namespaces })
        })
        .collect();
    if parts.is_empty() {
        Err(ReadError::OutOfScope(gvk.clone(), namespace.map(ToString::to_string).unwrap_or_default()))
    } else {
        Ok(parts)
    }
}

/// The first store, the fullest last, that is synced for all of a part.
fn serving<'a>(gvk: &Gvk, cells: &'a [Arc<Cell>], part: &Part<'_>) -> Result<&'a Arc<Cell>, ReadError> {
    let wanted = part.spec.flavour();
    let mut why = None;
    for cell in cells.iter().rev().filter(|cell| cell.flavour.serves(wanted)) {
        let store = cell.read();
        let mut missing = part.coverages().filter(|coverage| !store.synced(coverage));
        match missing.next() {
            None => return Ok(cell),
            Some(coverage) => why = why.or_else(|| store.why_not(&coverage)),
        }
    }
    Err(ReadError::NotSynced(gvk.clone(), why.as_deref().unwrap_or(NO_LIST).to_owned()))
}

// === impl Part ===

impl Part<'_> {
    fn coverages(&self) -> impl Iterator<Item = Coverage> {
        self.namespaces.iter().map(|namespace| Coverage {
            namespace: namespace.clone(),
            labels: self.spec.labels.clone(),
            fields: self.spec.fields.clone(),
        })
    }

    /// Whether an object of the store is within the spec; its namespace was checked.
    fn shows(&self, store: &Store, object: &Object) -> bool {
        let meta = object.meta();
        self.spec.labels.matches(meta)
            && self
                .spec
                .fields
                .as_deref()
                .is_none_or(|fields| store.vouched(&meta.name, &store.streams_with(fields)))
    }

    /// By the narrowest way there is: an index, the owner, the namespace, everything.
    fn list(&self, store: &Store, query: &Query, pointer: Option<&Arc<str>>) -> Vec<SharedObject> {
        let vouching: Option<Vec<StreamId>> =
            self.spec.fields.as_deref().map(|fields| store.streams_with(fields));
        let within = |object: &&SharedObject| {
            let meta = object.meta();
            self.spec.labels.matches(meta)
                && query.labels.as_ref().is_none_or(|labels| labels.matches(meta))
                && query.owner.as_ref().is_none_or(|owner| meta.owners.iter().any(|each| each.uid() == owner))
                && vouching.as_ref().is_none_or(|streams| store.vouched(&meta.name, streams))
        };
        let here = |object: &&SharedObject| self.is_here(object);
        let value = query.index.as_ref().map(|(_, value)| &**value);
        if let (Some(pointer), Some(value)) = (pointer, value) {
            return match store.indexes.get(pointer) {
                Some(index) => {
                    objects(store, index.get(value)).filter(here).filter(within).cloned().collect()
                }
                // Its hold is gone while the plugin still runs: the answer is the same, only slower.
                None => store
                    .sorted
                    .values()
                    .filter(|object| Indexes::has(object, pointer, value))
                    .filter(here)
                    .filter(within)
                    .cloned()
                    .collect(),
            };
        }
        if let Some(owner) = &query.owner {
            return objects(store, store.owners.get(owner)).filter(here).filter(within).cloned().collect();
        }
        let mut found = Vec::new();
        for namespace in &self.namespaces {
            match namespace {
                None => found.extend(store.sorted.values().filter(within).cloned()),
                Some(namespace) => {
                    let from = ObjectName { namespace: Some(Arc::clone(namespace)), name: "".into() };
                    let range = store.sorted.range((Bound::Included(from), Bound::Unbounded));
                    let range = range.take_while(|(name, _)| name.namespace.as_ref() == Some(namespace));
                    found.extend(range.map(|(_, object)| object).filter(within).cloned());
                }
            }
        }
        found
    }

    fn is_here(&self, object: &Object) -> bool {
        let namespace = &object.meta().name.namespace;
        self.namespaces.iter().any(|wanted| wanted.is_none() || wanted == namespace)
    }
}

fn objects<'a>(
    store: &'a Store,
    found: Option<&'a super::names::Names>,
) -> impl Iterator<Item = &'a SharedObject> {
    names(found).filter_map(|name| store.get(name))
}

// === impl StreamSpec ===

impl StreamSpec {
    /// The form in which its objects are kept.
    pub(crate) fn flavour(&self) -> Flavour {
        let managed = if self.managed_fields { ManagedFields::Keep } else { ManagedFields::Strip };
        Flavour { metadata_only: self.metadata_only, managed }
    }

    /// One coverage per namespace.
    pub(crate) fn coverages(&self) -> BTreeSet<Option<Arc<str>>> {
        match &self.namespaces {
            Namespaces::All => BTreeSet::from([None]),
            Namespaces::Only(these) => these.iter().cloned().map(Some).collect(),
        }
    }
}
