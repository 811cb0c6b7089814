//! A store behind its lock, with its gauges.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use prometheus::IntGauge;
use reeve_core::gvk::{Gvk, Scope};
use reeve_core::ids::{ResourceVersion, Uid};
use reeve_core::object::{Meta, SharedObject};

use super::coverage::{Coverage, Flavour};
use super::store::Store;
use super::vouchers::StreamId;
use crate::metrics::CacheMetrics;

/// The store of one kind in one form.
pub(crate) struct Cell {
    pub(crate) gvk: Gvk,
    pub(crate) flavour: Flavour,
    store: RwLock<Store>,
    objects: IntGauge,
    bytes: IntGauge,
}

/// Write access; the gauges follow when it ends.
pub(super) struct Write<'a> {
    store: RwLockWriteGuard<'a, Store>,
    cell: &'a Cell,
}

// === impl Cell ===

impl Cell {
    pub(super) fn new(gvk: &Gvk, flavour: Flavour, metrics: &CacheMetrics) -> Self {
        let labels = [&gvk.to_string(), flavour.label()];
        Self {
            gvk: gvk.clone(),
            flavour,
            store: RwLock::default(),
            objects: metrics.objects.with_label_values(&labels),
            bytes: metrics.bytes.with_label_values(&labels),
        }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Store> {
        self.store.read()
    }

    pub(super) fn write(&self) -> Write<'_> {
        Write { store: self.store.write(), cell: self }
    }

    /// The object that is kept of this version, so that a list shares it.
    pub(crate) fn same(&self, meta: &Meta) -> Option<SharedObject> {
        self.read().same(meta).cloned()
    }

    /// Everything up to `position` was told by the stream.
    pub(crate) fn advance(&self, id: StreamId, position: ResourceVersion) {
        self.write().advance(id, position);
    }

    /// Why the stream is not up to date, for readers who come before its first list.
    pub(crate) fn note(&self, id: StreamId, note: &str) {
        self.write().note(id, Some(note.into()));
    }

    /// The kind is not served any more.
    pub(crate) fn suspend(&self, id: StreamId, note: &str) {
        self.write().suspend(id, note.into());
    }

    /// Discovery says where the kind's objects live.
    pub(crate) fn set_scope(&self, scope: Scope) {
        self.write().scope = Some(scope);
    }
}

// === impl Store: what readers ask ===

impl Store {
    /// Whether one stream that delivered its first list covers all of `wanted`.
    pub(super) fn synced(&self, wanted: &Coverage) -> bool {
        self.streams.values().any(|stream| stream.position.is_some() && self.covers(&stream.coverage, wanted))
    }

    /// Why no stream that covers `wanted` is up to date.
    pub(super) fn why_not(&self, wanted: &Coverage) -> Option<Arc<str>> {
        let mut covering = self.streams.values().filter(|stream| self.covers(&stream.coverage, wanted));
        covering.find_map(|stream| stream.note.clone())
    }

    /// The streams whose vouching means "within these fields".
    pub(super) fn streams_with(&self, fields: &str) -> Vec<StreamId> {
        let with =
            self.streams.iter().filter(|(_, stream)| stream.coverage.fields.as_deref() == Some(fields));
        with.map(|(id, _)| *id).collect()
    }

    pub(super) fn owned(&self, owner: &Uid) -> Vec<SharedObject> {
        super::index::names(self.owners.get(owner)).filter_map(|name| self.get(name).cloned()).collect()
    }

    pub(super) fn add_index(&mut self, pointer: &Arc<str>) {
        self.indexes.add(pointer, self.sorted.values());
    }

    /// Namespaces do not count for kinds that live in the cluster as a whole.
    fn covers(&self, wider: &Coverage, narrower: &Coverage) -> bool {
        if self.scope == Some(Scope::Cluster) {
            let anywhere = |coverage: &Coverage| Coverage { namespace: None, ..coverage.clone() };
            anywhere(wider).covers(&anywhere(narrower))
        } else {
            wider.covers(narrower)
        }
    }
}

// === impl Write ===

impl Deref for Write<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl DerefMut for Write<'_> {
    fn deref_mut(&mut self) -> &mut Store {
        &mut self.store
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        self.cell.objects.set(i64::try_from(self.store.len()).unwrap_or(i64::MAX));
        self.cell.bytes.set(i64::try_from(self.store.bytes()).unwrap_or(i64::MAX));
    }
}
