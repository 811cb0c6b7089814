//! Writes that are on their way.
//!
//! The watch may tell of a write before its answer is there. So that the router can know its own
//! echo (feature C9), changes of an object that is being written wait here until the answer says
//! which of them it was. The cache itself has them at once.

use reeve_core::change::{Cause, Change, Origin};
use reeve_core::gvk::Gvk;
use reeve_core::ids::{ObjectName, ResourceVersion, Uid};
use reeve_core::object::{ParseObjectError, SharedObject};

use super::Cache;

/// The most changes of one object that wait for its writes. Somebody else changes it in a loop
/// then, and would starve the router of it; the oldest go ahead as they are.
const MAX_DEFERRED: usize = 64;

/// A write that is on its way. What becomes of it must be said; dropped without a word, its
/// outcome is unknown.
#[must_use]
pub(crate) struct Writing {
    cache: Cache,
    gvk: Gvk,
    name: ObjectName,
    origin: Origin,
    /// The outcome is not yet said.
    open: bool,
}

/// The writes of one object, and the changes that wait for them.
#[derive(Default)]
pub(super) struct InFlight {
    writes: usize,
    deferred: Vec<Change>,
}

// === impl Writing ===

impl Writing {
    pub(super) fn new(cache: Cache, gvk: Gvk, name: ObjectName, origin: Origin) -> Self {
        cache.inner.in_flight.lock().entry((gvk.clone(), name.clone())).or_default().writes += 1;
        Self { cache, gvk, name, origin, open: true }
    }

    /// The server answered with the object's new state (also when it is being deleted and has a
    /// `deletionTimestamp`).
    pub(crate) fn answered(mut self, json: &[u8]) -> Result<SharedObject, ParseObjectError> {
        let object = self.cache.absorb(&self.gvk, json, &self.origin)?;
        let version = object.meta().resource_version;
        self.claim(|change| version_of(change) == Some(version));
        self.open = false;
        Ok(object)
    }

    /// The server answered that the object of this UID is gone.
    pub(crate) fn deleted(mut self, uid: &Uid) {
        self.cache.absorb_delete(&self.gvk, &self.name, uid, &self.origin);
        self.claim(|change| {
            change.new.is_none() && change.old.as_ref().is_some_and(|old| old.meta().uid == *uid)
        });
        self.open = false;
    }

    /// The server refused, or was never reached: nothing changed.
    pub(crate) fn refused(mut self) {
        self.open = false;
    }

    /// It may have been carried out: reads of the object are held (see [`Cache::hold`]).
    pub(crate) fn unknown(self) {
        drop(self);
    }

    /// The waiting change that was this write is ours.
    fn claim(&self, is_ours: impl Fn(&Change) -> bool) {
        let mut in_flight = self.cache.inner.in_flight.lock();
        let Some(writes) = in_flight.get_mut(&(self.gvk.clone(), self.name.clone())) else { return };
        for change in writes.deferred.iter_mut().filter(|change| is_ours(change)) {
            change.cause = Cause::Write(self.origin.clone());
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.open {
            self.cache.hold(&self.gvk, &self.name);
        }
        let mut in_flight = self.cache.inner.in_flight.lock();
        let key = (self.gvk.clone(), self.name.clone());
        let Some(writes) = in_flight.get_mut(&key) else { return };
        writes.writes -= 1;
        if writes.writes == 0 {
            for change in in_flight.remove(&key).into_iter().flat_map(|writes| writes.deferred) {
                self.cache.inner.outbox.push(change);
            }
        }
    }
}

// === impl InFlight ===

impl InFlight {
    /// Keeps a change back; if too many wait, the oldest goes to `tell`.
    pub(super) fn defer(&mut self, change: Change, tell: impl FnOnce(Change)) {
        if self.deferred.len() == MAX_DEFERRED {
            tell(self.deferred.remove(0));
        }
        self.deferred.push(change);
    }
}

fn version_of(change: &Change) -> Option<ResourceVersion> {
    change.new.as_ref().map(|new| new.meta().resource_version)
}
