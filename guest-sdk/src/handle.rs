//! Objects and lists in the host's cache, read lazily.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::backend::{Item, Items, ListImpl, ObjectImpl};
use crate::condition::Condition;
use crate::decode;
use crate::error::Error;
use crate::object::ObjectName;

/// One version of one object in the host's cache. It does not change while it is held.
///
/// Reading one field costs about a microsecond, parsing a whole 5 KB object some thirty: take
/// [`field`](Self::field) for a few values, [`parse`](Self::parse) for many.
pub struct Handle {
    item: ObjectImpl,
    kind: String,
}

/// A snapshot of a list, in order of namespace and name.
pub struct Handles {
    items: ListImpl,
    kind: String,
}

// === impl Handle ===

impl Handle {
    pub(crate) fn new(item: ObjectImpl, kind: &str) -> Self {
        Self { item, kind: kind.to_owned() }
    }

    /// The whole object as JSON text, without `metadata.managedFields`.
    pub fn raw(&self) -> String {
        self.item.raw()
    }

    /// The whole object as a `serde` type.
    ///
    /// # Errors
    /// [`INVALID_OBJECT`](crate::code::INVALID_OBJECT), permanent, with the path of the value that
    /// does not fit, for example `spec.replicas: invalid type: string, expected u32`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let json = self.item.raw();
        decode::object::<T>("", &json).map_err(|error| self.name_in(error))
    }

    /// The value at a JSON pointer (RFC 6901), for example `/spec/replicas`; `None` where there is
    /// none or `null`.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn field<T: DeserializeOwned>(&self, pointer: &str) -> Result<Option<T>, Error> {
        let Some(json) = self.item.get(pointer) else {
            return Ok(None);
        };
        decode::object::<Option<T>>(pointer, &json).map_err(|error| self.name_in(error))
    }

    /// Several values in one crossing, in the order of the pointers, as JSON text.
    pub fn fields(&self, pointers: &[&str]) -> Vec<Option<String>> {
        self.item.get_many(&owned(pointers))
    }

    /// Name and namespace.
    pub fn name(&self) -> ObjectName {
        self.item.name()
    }

    /// `metadata.uid`: unique over time.
    pub fn uid(&self) -> String {
        self.item.uid()
    }

    /// `metadata.resourceVersion`.
    pub fn resource_version(&self) -> String {
        self.item.resource_version()
    }

    /// `metadata.generation`; 0 for kinds that have none.
    pub fn generation(&self) -> u64 {
        self.item.generation()
    }

    /// Whether the object is being deleted.
    pub fn deleting(&self) -> bool {
        self.item.deleting()
    }

    /// The condition of that type in `status.conditions`; `None` also if they cannot be read.
    pub fn condition(&self, kind: &str) -> Option<Condition> {
        let json = self.item.get("/status/conditions")?;
        let conditions: Vec<Condition> = serde_json::from_str(&json).ok()?;
        conditions.into_iter().find(|condition| condition.kind == kind)
    }

    /// The primary is named by the host anyway; any other object is named here.
    fn name_in(&self, mut error: Error) -> Error {
        if !self.kind.is_empty() {
            error.message = format!("{} {}: {}", self.kind, self.item.name(), error.message);
        }
        error
    }
}

/// Name and version; never the content.
impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({} {} @{})", self.kind, self.name(), self.resource_version())
    }
}

// === impl Handles ===

impl Handles {
    pub(crate) fn new(items: ListImpl, kind: &str) -> Self {
        Self { items, kind: kind.to_owned() }
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.items.len() as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.len() == 0
    }

    /// The object at an index, `None` past the end.
    pub fn at(&self, index: usize) -> Option<Handle> {
        let item = self.items.at(u32::try_from(index).ok()?)?;
        Some(Handle { item, kind: self.kind.clone() })
    }

    /// The object at an index as JSON text, `None` past the end.
    pub fn raw(&self, index: usize) -> Option<String> {
        self.items.raw(u32::try_from(index).ok()?)
    }

    /// All objects, one after another.
    pub fn iter(&self) -> impl Iterator<Item = Handle> + '_ {
        (0..self.len()).filter_map(|index| self.at(index))
    }

    /// Several values of the object at an index in one crossing, as JSON text; empty past the end.
    pub fn fields(&self, index: usize, pointers: &[&str]) -> Vec<Option<String>> {
        u32::try_from(index).map_or_else(|_| Vec::new(), |index| self.items.get_many(index, &owned(pointers)))
    }

    /// All objects as a `serde` type.
    ///
    /// # Errors
    /// As [`Handle::parse`], for the first that does not fit; it is named.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let mut all = Vec::with_capacity(self.len());
        for index in 0..self.items.len() {
            let Some(json) = self.items.raw(index) else { break };
            let parsed = decode::object("", &json).map_err(|error| match self.at(index as usize) {
                Some(handle) => handle.name_in(error),
                None => error,
            })?;
            all.push(parsed);
        }
        Ok(all)
    }

    /// All objects as they are.
    ///
    /// # Errors
    /// Never for objects of a real cluster; as [`Handle::parse`].
    pub fn values(&self) -> Result<Vec<Value>, Error> {
        self.parse()
    }
}

impl std::fmt::Debug for Handles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handles({} × {})", self.len(), self.kind)
    }
}

fn owned(pointers: &[&str]) -> Vec<String> {
    pointers.iter().map(|&pointer| pointer.to_owned()).collect()
}
