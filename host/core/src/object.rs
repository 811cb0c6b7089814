//! An object of the cluster as the host keeps it: the server's JSON text and parsed metadata.
//!
//! Invariant: an [`Object`] never changes. No `serde_json::Value` tree is kept: plugins read
//! single fields by pointer or take the text as a whole.

use std::sync::Arc;

use crate::gvk::{GroupKind, Gvk};
use crate::ids::{ObjectName, ResourceVersion, Uid};
use crate::json;

mod parse;

/// One version of one object.
#[derive(Debug)]
pub struct Object {
    pub(crate) json: Box<str>,
    pub(crate) meta: Meta,
    places: Places,
}

/// Where the parts of an object stand in its text that nearly every read is about, so that a read
/// of the status does not go through the whole spec.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Places {
    metadata: Place,
    spec: Place,
    status: Place,
}

/// The place of a value; empty where there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    start: u32,
    end: u32,
}

/// The parts of `metadata` that the host itself works with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Namespace and name.
    pub name: ObjectName,
    /// The identity of this life of the object.
    pub uid: Uid,
    /// The version that the server gave.
    pub resource_version: ResourceVersion,
    /// 0 for kinds without generations.
    pub generation: u64,
    /// `deletionTimestamp` is set.
    pub deleting: bool,
    /// In the order of the object.
    pub owners: Box<[Owner]>,
    /// In the order of the object.
    pub labels: Labels,
    /// In the order of the object.
    pub finalizers: Box<[Box<str>]>,
}

/// The labels of an object, in one allocation.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Labels {
    /// Keys and values in turn.
    text: Box<str>,
    /// Where each of them ends.
    ends: Box<[u32]>,
}

/// One owner reference.
#[derive(Clone, PartialEq, Eq)]
pub struct Owner {
    /// `apiVersion`, `kind` and `name` one after the other.
    text: Box<str>,
    /// Where `apiVersion` and `kind` end.
    ends: [u16; 2],
    uid: Uid,
    controller: bool,
}

/// Whether `metadata.managedFields` stays in the kept text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ManagedFields {
    /// The default: it is a quarter of many objects and hardly any plugin reads it.
    Strip,
    /// On a plugin's request.
    Keep,
}

/// Why a text is no object.
#[derive(Debug, thiserror::Error)]
pub enum ParseObjectError {
    /// Not JSON, or not of the shape of an object.
    #[error("failed to read the object: {0}")]
    Json(#[from] serde_json::Error),
    /// `metadata.name`, `metadata.uid` or `metadata.resourceVersion` is missing or no number.
    #[error("failed to read the object: {0} is missing or not usable")]
    Missing(&'static str),
    /// Another kind than was asked for, such as a `Table` or a `Status`.
    #[error("failed to read the object: expected {expected}, found {found}")]
    OtherKind {
        /// What was asked for.
        expected: Gvk,
        /// `kind.apiVersion` as found.
        found: String,
    },
}

// === impl Object ===

impl Object {
    /// Reads the server's answer, a watch event's object or an item of a list.
    ///
    /// Space around it and, unless kept, `metadata.managedFields` are cut; `apiVersion` and `kind`
    /// are written in where a list omits them.
    pub fn parse(gvk: &Gvk, json: &str, managed: ManagedFields) -> Result<Self, ParseObjectError> {
        parse::object(gvk, json, managed)
    }

    /// Reads a `PartialObjectMetadata`, or an item of a `PartialObjectMetadataList`, of this kind.
    /// The kept text has the `apiVersion` and `kind` of the object itself, and only `metadata`.
    pub fn parse_metadata(gvk: &Gvk, json: &str, managed: ManagedFields) -> Result<Self, ParseObjectError> {
        parse::metadata(gvk, json, managed)
    }

    /// The same version of the object with nothing but `apiVersion`, `kind` and `metadata`: what a
    /// metadata-only watch shows where a full one serves it.
    #[must_use]
    pub fn to_metadata(&self, gvk: &Gvk) -> Self {
        parse::with_type(gvk, self.metadata(), self.meta.clone())
    }

    /// The JSON text: `apiVersion` and `kind` are always in it.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// The parsed metadata.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The JSON text at an RFC 6901 pointer. `""` is the whole object.
    pub fn pointer(&self, pointer: &str) -> Option<&str> {
        let (part, rest) = self.enter(pointer);
        json::pointer(part, rest)
    }

    /// Every value at a pointer with `*` for the elements of an array, as [`json::pointer_each`].
    pub fn pointer_each(&self, pointer: &str) -> Vec<&str> {
        let (part, rest) = self.enter(pointer);
        json::pointer_each(part, rest)
    }

    /// Several pointers, answers in the same order.
    pub fn pointer_many<P: AsRef<str>>(&self, pointers: &[P]) -> Vec<Option<&str>> {
        pointers.iter().map(|each| self.pointer(each.as_ref())).collect()
    }

    /// The part in whose text the rest of the pointer is to be looked for; without text where the
    /// object does not have that part.
    fn enter<'a>(&self, pointer: &'a str) -> (&str, &'a str) {
        let first = pointer.strip_prefix('/').and_then(|rest| rest.split('/').next());
        let place = match first {
            Some("metadata") => self.places.metadata,
            Some("spec") => self.places.spec,
            Some("status") => self.places.status,
            _ => return (&self.json, pointer),
        };
        let rest = pointer.get(1 + first.map_or(0, str::len)..).unwrap_or_default();
        (place.of(&self.json), rest)
    }

    /// The text of `metadata`.
    pub(crate) fn metadata(&self) -> &str {
        self.places.metadata.of(&self.json)
    }

    /// The text in three pieces, without what stands in `metadata` and `status`.
    pub(crate) fn around_metadata_and_status(&self) -> [&str; 3] {
        let Places { metadata, status, .. } = self.places;
        let (first, second) =
            if status.start < metadata.start { (status, metadata) } else { (metadata, status) };
        let piece = |from: u32, to: usize| self.json.get(from as usize..to).unwrap_or_default();
        [
            piece(0, first.start as usize),
            piece(first.end, second.start as usize),
            piece(second.end, self.json.len()),
        ]
    }

    /// The bytes that this object takes in memory, with what its metadata points to, without the
    /// allocator's rounding.
    pub fn size(&self) -> usize {
        let meta = &self.meta;
        // Each `Arc<str>` has two counters before its text.
        let shared = |text: &Arc<str>| text.len() + 2 * size_of::<usize>();
        let owners: usize = meta.owners.iter().map(|owner| size_of::<Owner>() + owner.text.len()).sum();
        let finalizers: usize = meta.finalizers.iter().map(|each| size_of::<Box<str>>() + each.len()).sum();
        size_of::<Self>()
            + self.json.len()
            + shared(&meta.name.name)
            + meta.name.namespace.as_ref().map_or(0, shared)
            + owners
            + finalizers
            + meta.labels.text.len()
            + size_of_val(&*meta.labels.ends)
    }
}

// === impl Place ===

impl Place {
    fn of(self, text: &str) -> &str {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

// === impl Meta ===

impl Meta {
    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key)
    }

    /// Whether the object carries this finalizer.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|known| &**known == finalizer)
    }

    /// The owner that controls the object.
    pub fn controller(&self) -> Option<&Owner> {
        self.owners.iter().find(|owner| owner.controller)
    }
}

// === impl Labels ===

impl Labels {
    /// Labels of these keys and values, in this order.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut text = String::new();
        let mut ends = Vec::new();
        for part in pairs.into_iter().flat_map(|(key, value)| [key, value]) {
            text.push_str(part);
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        }
        Self { text: text.into(), ends: ends.into() }
    }

    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// Keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut start = 0;
        let mut part = move |end: u32| {
            let text = self.text.get(start..end as usize).unwrap_or_default();
            start = end as usize;
            text
        };
        self.ends.chunks_exact(2).map(move |ends| (part(ends[0]), part(ends[1])))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.ends.len() / 2
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

impl std::fmt::Debug for Labels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

// === impl Owner ===

impl Owner {
    /// An owner reference of these parts.
    pub fn new(api_version: &str, kind: &str, name: &str, uid: Uid, controller: bool) -> Self {
        let end = |length: usize| u16::try_from(length).unwrap_or(u16::MAX);
        Self {
            text: [api_version, kind, name].concat().into(),
            ends: [end(api_version.len()), end(api_version.len() + kind.len())],
            uid,
            controller,
        }
    }

    /// Group and version as written, for example `apps/v1`.
    pub fn api_version(&self) -> &str {
        self.text.get(..self.ends[0].into()).unwrap_or_default()
    }

    /// The owner's kind.
    pub fn kind(&self) -> &str {
        self.text.get(self.ends[0].into()..self.ends[1].into()).unwrap_or_default()
    }

    /// The owner's name; its namespace is the object's own (or none).
    pub fn name(&self) -> &str {
        self.text.get(self.ends[1].into()..).unwrap_or_default()
    }

    /// The owner's UID.
    pub fn uid(&self) -> &Uid {
        &self.uid
    }

    /// Whether this is the managing controller; at most one owner is.
    pub fn controller(&self) -> bool {
        self.controller
    }

    /// Group and kind: two versions of one group are the same owner.
    pub fn group_kind(&self) -> GroupKind {
        Gvk::from_api_version(self.api_version(), self.kind()).group_kind()
    }

    /// Whether the owner is of this group and kind, in whatever version.
    pub fn is_of(&self, gvk: &Gvk) -> bool {
        let group = self.api_version().split_once('/').map_or("", |(group, _)| group);
        group == &*gvk.group && self.kind() == &*gvk.kind
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (api_version, kind, name) = (self.api_version(), self.kind(), self.name());
        write!(
            f,
            "{kind}.{api_version} {name} ({}{})",
            self.uid,
            if self.controller { ", controller" } else { "" }
        )
    }
}

/// What a change or a read hands around.
pub type SharedObject = Arc<Object>;

#[cfg(test)]
mod tests;
