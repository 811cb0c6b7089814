//! One copy of each object, and what was written to it.
//!
//! The watch streams feed it, `commit` adds the answers of writes, plugins read it through a
//! [`View`]. There is one `Store` per kind and form, behind one lock that is never
//! held across an await.
//!
//! Invariants: the cache never goes back in version and never brings back what was deleted; a
//! change is told once, after the cache holds it, and in the order of the changes of its kind.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use reeve_core::change::{Cause, Change, Origin};
use reeve_core::gvk::Gvk;
use reeve_core::ids::{ObjectName, PluginName, Uid};
use reeve_core::labels::Selector;
use reeve_core::object::{ManagedFields, Object, ParseObjectError, SharedObject};
use tokio::sync::mpsc;

use crate::metrics::CacheMetrics;
use crate::watch::StreamSpec;

mod cell;
mod coverage;
mod graves;
mod holds;
mod index;
mod names;
mod outbox;
mod reader;
mod store;
mod vouchers;
mod writing;

pub(crate) use cell::Cell;
pub(crate) use coverage::{Coverage, Flavour};
pub(crate) use outbox::CHANNEL;
pub(crate) use reader::ViewReader;
pub(crate) use store::{Delta, Listed};
pub(crate) use vouchers::StreamId;
pub(crate) use writing::Writing;

use holds::Holds;
use outbox::Outbox;
use store::{Outcome, Source};
use writing::InFlight;

/// What one plugin may see.
#[derive(Debug, Clone)]
pub struct View {
    /// Whose.
    pub plugin: PluginName,
    /// The kinds that its manifest declares and its grant allows.
    pub kinds: BTreeMap<Gvk, ViewKind>,
}

/// How one plugin sees one kind: exactly what its own watches of that kind are for, even where a
/// wider stream serves them.
#[derive(Debug, Clone)]
pub struct ViewKind {
    /// The specs that the plugin has subscriptions of; an object is seen if one of them covers it.
    pub specs: Vec<StreamSpec>,
    /// The declared indexes: name → pointer. Each needs an [`IndexHold`].
    pub indexes: BTreeMap<Arc<str>, Arc<str>>,
}

/// Keeps an index. It goes with the last hold of its pointer.
pub struct IndexHold {
    cache: Cache,
    gvk: Gvk,
    pointer: Arc<str>,
}

/// All cached objects. Cheap to clone.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    cells: RwLock<HashMap<(Gvk, Flavour), Arc<Cell>>>,
    /// How many holds each index has. Locked before `cells`.
    indexes: Mutex<HashMap<Gvk, BTreeMap<Arc<str>, usize>>>,
    in_flight: Mutex<HashMap<(Gvk, ObjectName), InFlight>>,
    holds: Holds,
    outbox: Outbox,
    metrics: CacheMetrics,
}

// === impl Cache ===

impl Cache {
    pub(crate) fn new(registry: &prometheus::Registry) -> Result<Self, prometheus::Error> {
        let metrics = CacheMetrics::new(registry)?;
        let inner = Inner {
            cells: RwLock::default(),
            indexes: Mutex::default(),
            in_flight: Mutex::default(),
            holds: Holds::new(metrics.clone()),
            outbox: Outbox::new(metrics.outbox.clone()),
            metrics,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Takes the changes to the router, until that is gone.
    pub(crate) async fn forward(self, router: mpsc::Sender<Change>) {
        self.inner.outbox.run(router).await;
    }

    /// Ends when there is room for more changes. Streams wait for it before each event.
    pub(crate) async fn room(&self) {
        self.inner.outbox.room().await;
    }

    // --- what streams do

    /// Opens a stream into the store of its kind and form.
    pub(crate) fn open(&self, gvk: &Gvk, flavour: Flavour, id: StreamId, coverage: Coverage) -> Arc<Cell> {
        let indexes = self.inner.indexes.lock();
        let mut cells = self.inner.cells.write();
        let cell = cells
            .entry((gvk.clone(), flavour))
            .or_insert_with(|| Arc::new(Cell::new(gvk, flavour, &self.inner.metrics)));
        let mut store = cell.write();
        for pointer in indexes.get(gvk).into_iter().flat_map(BTreeMap::keys) {
            store.add_index(pointer);
        }
        store.open(id, coverage);
        drop(store);
        Arc::clone(cell)
    }

    /// Closes a stream; its store goes with the last one.
    pub(crate) fn close(&self, cell: &Cell, id: StreamId) {
        let mut cells = self.inner.cells.write();
        let mut store = cell.write();
        store.close(id);
        let unused = store.streams.is_empty();
        drop(store);
        if unused {
            cells.remove(&(cell.gvk.clone(), cell.flavour));
        }
    }

    /// A watch event: an object is in this state.
    pub(crate) fn observed(&self, cell: &Cell, id: StreamId, object: SharedObject) {
        let mut store = cell.write();
        let version = object.meta().resource_version;
        let outcome = store.upsert(Source::Stream(id), object);
        store.advance(id, version);
        self.settle(cell, outcome, Cause::Watch);
    }

    /// A watch event: an object is gone from the stream.
    pub(crate) fn removed(&self, cell: &Cell, id: StreamId, object: &Object) {
        let mut store = cell.write();
        let outcome = store.remove(id, object.meta());
        store.advance(id, object.meta().resource_version);
        self.settle(cell, outcome, Cause::Watch);
    }

    /// A list was read to its end.
    pub(crate) fn replaced(&self, cell: &Cell, id: StreamId, listed: Listed, cause: &Cause) {
        let mut store = cell.write();
        for delta in store.replace(id, listed) {
            self.tell(&cell.gvk, delta, cause.clone());
        }
    }

    fn settle(&self, cell: &Cell, outcome: Outcome, cause: Cause) {
        match outcome {
            Outcome::Changed(delta) => self.tell(&cell.gvk, delta, cause),
            Outcome::Same => {}
            Outcome::Stale => self.inner.metrics.stale.inc(),
        }
    }

    /// Must be called while the store is locked: that keeps changes in order.
    fn tell(&self, gvk: &Gvk, delta: Delta, cause: Cause) {
        let change = Change { gvk: gvk.clone(), old: delta.old, new: delta.new, cause };
        let Some(name) = change.name() else { return };
        if !matches!(change.cause, Cause::Write(_)) {
            self.inner.holds.told(gvk, name);
        }
        let mut in_flight = self.inner.in_flight.lock();
        if !in_flight.is_empty()
            && let Some(writes) = in_flight.get_mut(&(gvk.clone(), name.clone()))
        {
            writes.defer(change, |change| self.inner.outbox.push(change));
        } else {
            self.inner.outbox.push(change);
        }
    }

    // --- what commit does

    /// The newest cached version of an object, in the fullest form there is. For `commit`, which no
    /// view bounds. `None`: not cached; see [`Self::covers`].
    pub(crate) fn get(&self, gvk: &Gvk, name: &ObjectName) -> Option<SharedObject> {
        self.cells_of(gvk).iter().find_map(|cell| cell.read().get(name).cloned())
    }

    /// All cached objects of a kind that name this UID as an owner, by namespace and name.
    pub(crate) fn owned(&self, gvk: &Gvk, owner: &Uid) -> Vec<SharedObject> {
        let mut found = BTreeMap::new();
        for cell in self.cells_of(gvk) {
            for object in cell.read().owned(owner) {
                found.entry(object.meta().name.clone()).or_insert(object);
            }
        }
        found.into_values().collect()
    }

    /// Whether a missing object of this name is known to be missing: some stream for all objects
    /// of its namespace has delivered its first list.
    pub(crate) fn covers(&self, gvk: &Gvk, name: &ObjectName) -> bool {
        let wanted =
            Coverage { namespace: name.namespace.clone(), labels: Selector::everything(), fields: None };
        self.cells_of(gvk).iter().any(|cell| cell.read().synced(&wanted))
    }

    /// Announces a write of a known name, right before it is sent.
    pub(crate) fn writing(&self, gvk: &Gvk, name: &ObjectName, origin: Origin) -> Writing {
        Writing::new(self.clone(), gvk.clone(), name.clone(), origin)
    }

    /// Takes the object of a write's answer into the cache, if it is newer and some stream covers
    /// it. For names that were not known before (`generateName`), else [`Self::writing`].
    pub(crate) fn absorb(
        &self,
        gvk: &Gvk,
        json: &[u8],
        origin: &Origin,
    ) -> Result<SharedObject, ParseObjectError> {
        let json =
            std::str::from_utf8(json).map_err(|error| serde_json::Error::io(std::io::Error::other(error)))?;
        let answer = Arc::new(Object::parse(gvk, json, ManagedFields::Strip)?);
        for cell in self.cells_of(gvk) {
            let object = match (cell.flavour.metadata_only, cell.flavour.managed) {
                (false, ManagedFields::Strip) => Arc::clone(&answer),
                (false, ManagedFields::Keep) => Arc::new(Object::parse(gvk, json, ManagedFields::Keep)?),
                (true, ManagedFields::Strip) => Arc::new(answer.to_metadata(gvk)),
                (true, ManagedFields::Keep) => {
                    Arc::new(Object::parse(gvk, json, ManagedFields::Keep)?.to_metadata(gvk))
                }
            };
            let mut store = cell.write();
            let outcome = store.upsert(Source::Write, object);
            self.settle(&cell, outcome, Cause::Write(origin.clone()));
        }
        Ok(answer)
    }

    /// Takes out an object that a write deleted, and remembers that this UID is gone.
    pub(crate) fn absorb_delete(&self, gvk: &Gvk, name: &ObjectName, uid: &Uid, origin: &Origin) {
        for cell in self.cells_of(gvk) {
            let mut store = cell.write();
            let outcome = store.deleted(name, uid);
            self.settle(&cell, outcome, Cause::Write(origin.clone()));
        }
    }

    /// Holds the reads of an object until the watch tells of it, or
    /// [`HOLD_LIMIT`](reeve_core::read::HOLD_LIMIT).
    pub(crate) fn hold(&self, gvk: &Gvk, name: &ObjectName) {
        self.inner.holds.hold(gvk, name);
    }

    // --- indexes

    pub(crate) fn add_index(&self, gvk: &Gvk, pointer: &str) -> IndexHold {
        let pointer: Arc<str> = pointer.into();
        let mut indexes = self.inner.indexes.lock();
        let users = indexes.entry(gvk.clone()).or_default().entry(Arc::clone(&pointer)).or_default();
        *users += 1;
        if *users == 1 {
            for cell in self.cells_of(gvk) {
                cell.write().add_index(&pointer);
            }
        }
        IndexHold { cache: self.clone(), gvk: gvk.clone(), pointer }
    }

    /// The stores of a kind, the fullest first.
    fn cells_of(&self, gvk: &Gvk) -> Vec<Arc<Cell>> {
        let cells = self.inner.cells.read();
        Flavour::ALL.iter().filter_map(|flavour| cells.get(&(gvk.clone(), *flavour)).cloned()).collect()
    }
}

// === impl IndexHold ===

impl Drop for IndexHold {
    fn drop(&mut self) {
        let mut indexes = self.cache.inner.indexes.lock();
        let Some(pointers) = indexes.get_mut(&self.gvk) else { return };
        let Some(users) = pointers.get_mut(&self.pointer) else { return };
        *users -= 1;
        if *users == 0 {
            pointers.remove(&self.pointer);
            if pointers.is_empty() {
                indexes.remove(&self.gvk);
            }
            for cell in self.cache.cells_of(&self.gvk) {
                cell.write().indexes.drop_index(&self.pointer);
            }
        }
    }
}

#[cfg(test)]
mod tests;
