//! An object of the cluster as the host keeps it: the server's JSON text and parsed metadata.
//!
//! Invariant: an [`Object`] never changes. No `serde_json::Value` tree is kept: plugins read
//! single fields by pointer or take the text as a whole.

use std::sync::Arc;

use crate::gvk::{Gvk, GroupKind};
use crate::ids::{ObjectName, ResourceVersion, Uid};

/// One version of one object.
#[derive(Debug)]
pub struct Object {
    pub(crate) json: Box<str>,
    pub(crate) meta: Meta,
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
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// In the order of the object.
    pub finalizers: Box<[Box<str>]>,
}

/// One owner reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Group and version as written, for example `apps/v1`.
    pub api_version: Box<str>,
    /// The owner's kind.
    pub kind: Box<str>,
    /// The owner's name; its namespace is the object's own.
    pub name: Box<str>,
    /// The owner's UID.
    pub uid: Uid,
    /// Whether this is the managing controller; at most one owner is.
    pub controller: bool,
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

impl Object {
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
        crate::json::pointer(&self.json, pointer)
    }
}

impl Meta {
    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(known, _)| &**known == key).map(|(_, value)| &**value)
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

impl Owner {
    /// Group and kind: two versions of one group are the same owner.
    pub fn group_kind(&self) -> GroupKind {
        Gvk::from_api_version(&self.api_version, &self.kind).group_kind()
    }
}

/// What a change or a read hands around.
pub type SharedObject = Arc<Object>;
