//! The objects of one kind in one form: a plain data structure without locks, time or IO.
//!
//! Each entry knows which streams vouch for it, and goes when none does. Three rules keep it true
//! in whatever order events, lists and the answers of writes come:
//!
//! 1. a version replaces only an older one of the same name;
//! 2. what is in a grave ([`Graves`]) stays there;
//! 3. a stream that covers a version and has passed it knows better: if the store does not have
//!    that version then, it is history.
//!
//! Invariant: `entries`, `sorted`, `owners` and `indexes` are about the same objects.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use reeve_core::gvk::Scope;
use reeve_core::ids::{ObjectName, ResourceVersion, Uid};
use reeve_core::object::{Meta, SharedObject};

use super::coverage::{Coverage, Membership};
use super::graves::Graves;
use super::index::Indexes;
use super::names::NamesBy;
use super::vouchers::{StreamId, Vouchers};

/// The objects of one kind in one form.
#[derive(Default)]
pub(crate) struct Store {
    entries: HashMap<ObjectName, Entry>,
    /// The same objects, in the order of lists.
    pub(super) sorted: BTreeMap<ObjectName, SharedObject>,
    pub(super) owners: NamesBy<Uid>,
    pub(super) indexes: Indexes,
    pub(super) streams: BTreeMap<StreamId, Stream>,
    graves: Graves,
    /// Whether the kind lives in namespaces; known with the first list.
    pub(super) scope: Option<Scope>,
    bytes: usize,
}

struct Entry {
    object: SharedObject,
    vouchers: Vouchers,
}

/// One stream as the store sees it.
pub(super) struct Stream {
    pub(super) coverage: Coverage,
    /// Every change up to here was told; `None` before the first list.
    pub(super) position: Option<ResourceVersion>,
    /// Why it is not up to date, for readers who come before its first list.
    pub(super) note: Option<Arc<str>>,
}

/// Who says that an object is as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A list or a watch event.
    Stream(StreamId),
    /// The answer of a write.
    Write,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The store changed.
    Changed(Delta),
    /// It was known.
    Same,
    /// It was older than what is known.
    Stale,
}

/// One change of the store.
#[derive(Debug, Clone)]
pub(crate) struct Delta {
    pub(crate) old: Option<SharedObject>,
    pub(crate) new: Option<SharedObject>,
}

/// A whole list.
pub(crate) struct Listed {
    /// By name, so that the changes come in order.
    pub(crate) objects: BTreeMap<ObjectName, SharedObject>,
    /// The list's own version.
    pub(crate) version: ResourceVersion,
    /// The server's history went back: the list overrides whatever is newer.
    pub(crate) rewound: bool,
}

// === impl Store ===

impl Store {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of the objects.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, name: &ObjectName) -> Option<&SharedObject> {
        self.entries.get(name).map(|entry| &entry.object)
    }

    /// The object that is kept of this version, so that a relist shares it.
    pub(crate) fn same(&self, meta: &Meta) -> Option<&SharedObject> {
        self.get(&meta.name).filter(|kept| {
            kept.meta().resource_version == meta.resource_version && kept.meta().uid == meta.uid
        })
    }

    /// Whether one of these streams vouches for the object.
    pub(super) fn vouched(&self, name: &ObjectName, streams: &[StreamId]) -> bool {
        self.entries.get(name).is_some_and(|entry| streams.iter().any(|id| entry.vouchers.contains(*id)))
    }

    pub(crate) fn open(&mut self, id: StreamId, coverage: Coverage) {
        self.streams.insert(id, Stream { coverage, position: None, note: None });
    }

    /// Ends a stream. What only it vouched for goes, without a change: nobody watches it.
    pub(crate) fn close(&mut self, id: StreamId) {
        self.streams.remove(&id);
        let mut orphans = Vec::new();
        for (name, entry) in &mut self.entries {
            if entry.vouchers.contains(id) && !entry.vouchers.remove(id) {
                orphans.push(name.clone());
            }
        }
        for name in orphans {
            self.take(&name);
        }
    }

    /// Everything up to `position` was told by the stream.
    pub(crate) fn advance(&mut self, id: StreamId, position: ResourceVersion) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.position = stream.position.max(Some(position));
            stream.note = None;
        }
    }

    /// Why the stream is not up to date.
    pub(crate) fn note(&mut self, id: StreamId, note: Option<Arc<str>>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.note = note;
        }
    }

    /// An object is in this state.
    pub(crate) fn upsert(&mut self, source: Source, object: SharedObject) -> Outcome {
        let meta = object.meta();
        if let Some(known) = self.get(&meta.name) {
            let known = known.meta().resource_version;
            if meta.resource_version <= known {
                self.vouch_for_known(source, &meta.name);
                return if meta.resource_version == known { Outcome::Same } else { Outcome::Stale };
            }
        }
        if self.graves.is_past(&meta.uid, meta.resource_version) || self.is_history(source, &object) {
            return Outcome::Stale;
        }
        let vouchers = self.vouchers_of(source, &object);
        self.set(object, vouchers)
    }

    /// A stream says that an object is gone from it, at the version of `meta`.
    pub(crate) fn remove(&mut self, id: StreamId, meta: &Meta) -> Outcome {
        let Some(selective) = self.streams.get(&id).map(|stream| stream.coverage.selective()) else {
            return Outcome::Same;
        };
        if selective {
            self.graves.left(&meta.uid, id, meta.resource_version, meta.resource_version);
        } else {
            self.graves.bury(&meta.uid);
        }
        let Some(entry) = self.entries.get_mut(&meta.name) else { return Outcome::Same };
        let known = entry.object.meta();
        let newer = known.resource_version > meta.resource_version;
        if known.uid != meta.uid {
            if newer {
                return Outcome::Same;
            }
            // Another object has had the name since.
            let uid = known.uid.clone();
            self.graves.bury(&uid);
        } else if selective && (newer || entry.vouchers.remove(id)) {
            // With a newer version at hand the stream will tell of it too.
            return Outcome::Same;
        }
        self.take(&meta.name)
            .map_or(Outcome::Same, |old| Outcome::Changed(Delta { old: Some(old), new: None }))
    }

    /// A write deleted an object.
    pub(crate) fn deleted(&mut self, name: &ObjectName, uid: &Uid) -> Outcome {
        self.graves.bury(uid);
        if self.get(name).is_none_or(|known| known.meta().uid != *uid) {
            return Outcome::Same;
        }
        self.take(name).map_or(Outcome::Same, |old| Outcome::Changed(Delta { old: Some(old), new: None }))
    }

    /// A stream read everything anew. What it knew and did not find is gone, unless it is newer
    /// than the list.
    pub(crate) fn replace(&mut self, id: StreamId, listed: Listed) -> Vec<Delta> {
        let Some(stream) = self.streams.get(&id) else { return Vec::new() };
        let coverage = stream.coverage.clone();
        let selective = coverage.selective();
        if listed.rewound {
            self.rewind(listed.version);
        }
        let mut deltas = Vec::new();
        for (name, entry) in &self.entries {
            let known = entry.object.meta();
            // A list of everything knows of more than what its stream vouches for.
            let concerned = entry.vouchers.contains(id)
                || (!selective && coverage.contains(&entry.object) == Membership::Certain(true));
            if concerned
                && !listed.objects.contains_key(name)
                && (listed.rewound || known.resource_version <= listed.version)
            {
                deltas.push(Delta { old: Some(Arc::clone(&entry.object)), new: None });
            }
        }
        deltas.sort_unstable_by(|a, b| name_of(a).cmp(&name_of(b)));
        deltas.retain(|delta| {
            let Some(meta) = delta.old.as_ref().map(|old| old.meta()) else { return false };
            if selective {
                let changed = ResourceVersion(meta.resource_version.0 + 1);
                self.graves.left(&meta.uid, id, listed.version, changed);
                let entry = self.entries.get_mut(&meta.name);
                if entry.is_some_and(|entry| entry.vouchers.remove(id)) {
                    return false;
                }
            } else {
                self.graves.bury(&meta.uid);
            }
            self.take(&meta.name);
            true
        });
        for (name, object) in listed.objects {
            if listed.rewound && self.same(object.meta()).is_none() {
                // Out of the way, so that it is no newer version; told as one change all the same.
                let old = self.take(&name);
                let vouchers = self.vouchers_of(Source::Stream(id), &object);
                if let Outcome::Changed(delta) = self.set(object, vouchers) {
                    deltas.push(Delta { old, new: delta.new });
                }
            } else if let Outcome::Changed(delta) = self.upsert(Source::Stream(id), object) {
                deltas.push(delta);
            }
        }
        self.advance(id, listed.version);
        deltas
    }

    /// The kind is not served any more. Readers are told so; what is kept stays until a list says
    /// otherwise, as a server that has just started may deny a kind that it has.
    pub(crate) fn suspend(&mut self, id: StreamId, note: Arc<str>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.position = None;
            stream.note = Some(note);
        }
    }

    /// The versions start over from `version`, so nothing that was known of them holds.
    fn rewind(&mut self, version: ResourceVersion) {
        self.graves.clear();
        for stream in self.streams.values_mut() {
            stream.position = stream.position.map(|position| position.min(version));
        }
    }

    /// The stream knows this object too, whatever version of it.
    fn vouch_for_known(&mut self, source: Source, name: &ObjectName) {
        let Source::Stream(id) = source else { return };
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Some(stream) = self.streams.get(&id) else { return };
        let meta = entry.object.meta();
        if stream.coverage.contains(&entry.object) != Membership::Certain(false)
            && !self.graves.has_left(&meta.uid, id, meta.resource_version)
        {
            entry.vouchers.add(id);
        }
    }

    /// Rule 3: another stream covers this version and has passed it, but the store has not got it.
    fn is_history(&self, source: Source, object: &SharedObject) -> bool {
        let version = object.meta().resource_version;
        self.streams.iter().any(|(id, stream)| {
            source != Source::Stream(*id)
                && stream.position.is_some_and(|position| version <= position)
                && stream.coverage.contains(object) == Membership::Certain(true)
        })
    }

    /// Who vouches for a version that is new to the store.
    fn vouchers_of(&self, source: Source, object: &SharedObject) -> Vec<StreamId> {
        let meta = object.meta();
        let before = self.entries.get(&meta.name).filter(|entry| entry.object.meta().uid == meta.uid);
        let vouches = |id: StreamId, stream: &Stream| match stream.coverage.contains(object) {
            _ if source == Source::Stream(id) => true,
            Membership::Certain(member) => member,
            Membership::Guess(member) if source == Source::Write => member,
            // The stream itself will tell whether it is still in it.
            Membership::Guess(_) => before.is_some_and(|entry| entry.vouchers.contains(id)),
        };
        let vouching = self.streams.iter().filter(|(id, stream)| {
            vouches(**id, stream) && !self.graves.has_left(&meta.uid, **id, meta.resource_version)
        });
        vouching.map(|(id, _)| *id).collect()
    }

    /// Puts a version in the place of an older one or of nothing.
    fn set(&mut self, object: SharedObject, vouchers: Vec<StreamId>) -> Outcome {
        let meta = object.meta();
        let name = meta.name.clone();
        if let Some(before) = self.entries.get(&name) {
            let old = before.object.meta();
            if old.uid == meta.uid {
                for (id, stream) in &self.streams {
                    let left = before.vouchers.contains(*id) && !vouchers.contains(id);
                    if left && stream.coverage.contains(&object) == Membership::Certain(false) {
                        self.graves.left(&meta.uid, *id, meta.resource_version, meta.resource_version);
                    }
                }
            } else {
                let uid = old.uid.clone();
                self.graves.bury(&uid);
            }
        }
        let old = self.take(&name);
        let Some(vouchers) = Vouchers::new(vouchers) else {
            return old.map_or(Outcome::Stale, |old| Outcome::Changed(Delta { old: Some(old), new: None }));
        };
        self.bytes += object.size();
        for owner in &object.meta().owners {
            self.owners.insert(owner.uid().clone(), &name);
        }
        self.indexes.insert(&object);
        self.sorted.insert(name.clone(), Arc::clone(&object));
        self.entries.insert(name, Entry { object: Arc::clone(&object), vouchers });
        Outcome::Changed(Delta { old, new: Some(object) })
    }

    /// Takes an object out of everything.
    fn take(&mut self, name: &ObjectName) -> Option<SharedObject> {
        let object = self.entries.remove(name)?.object;
        self.sorted.remove(name);
        for owner in &object.meta().owners {
            self.owners.remove(owner.uid(), name);
        }
        self.indexes.remove(&object);
        self.bytes -= object.size();
        Some(object)
    }
}

fn name_of(delta: &Delta) -> Option<&ObjectName> {
    delta.old.as_ref().or(delta.new.as_ref()).map(|object| &object.meta().name)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
