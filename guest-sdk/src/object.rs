//! Typed objects.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A custom resource with a typed `spec` and `status`.
///
/// ```
/// use reeve_sdk::Object;
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// struct WebsiteSpec {
///     html: String,
///     #[serde(default)]
///     replicas: u32,
/// }
///
/// let site: Object<WebsiteSpec> = reeve_sdk::json::from_str(
///     r#"{"metadata": {"name": "a", "generation": 3}, "spec": {"html": "<h1>Hi</h1>"}}"#,
/// ).unwrap();
/// assert_eq!(site.metadata.generation, 3);
/// assert_eq!(site.spec.replicas, 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Object<Spec, Status = Value> {
    /// `metadata`.
    pub metadata: Metadata,
    /// `spec`.
    pub spec: Spec,
    /// `status`, `None` before the first one was written.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// The metadata of an object, as far as plugins use it. Absent fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Unique per kind and namespace.
    pub name: String,
    /// `None` for cluster-scoped kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Unique over time: an object made again under the same name has another.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Changes with every write.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Changes with every change of the spec; 0 for kinds that have none.
    pub generation: u64,
    /// RFC 3339; see [`crate::time::parse_rfc3339`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    /// RFC 3339; set while the object is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// `metadata.labels`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// `metadata.finalizers`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// `metadata.ownerReferences`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
}

/// An owner of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// The owner's `apiVersion`.
    pub api_version: String,
    /// The owner's kind.
    pub kind: String,
    /// The owner's name, in the same namespace or cluster-scoped.
    pub name: String,
    /// The owner's UID.
    pub uid: String,
    /// Whether it is the one that controls the object.
    pub controller: bool,
}

/// The name of an object within its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// `None` for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl ObjectName {
    /// An object in a namespace.
    pub fn namespaced(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }

    /// An object of a cluster-scoped kind.
    pub fn cluster(name: impl Into<String>) -> Self {
        Self { namespace: None, name: name.into() }
    }
}

/// `namespace/name`, or `name` alone.
impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

/// `#[serde(default)]` on an `Option<Status>` would ask for `Status: Default`.
fn none<T>() -> Option<T> {
    None
}
