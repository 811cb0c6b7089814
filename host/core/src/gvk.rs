//! Kinds of objects: as written ([`Gvk`]) and as served by a cluster ([`Kind`]).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Group, version and kind, as a manifest or an object writes them.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gvk {
    /// The API group; empty for the core kinds.
    #[serde(default)]
    pub group: Arc<str>,
    /// The version within the group.
    pub version: Arc<str>,
    /// The kind, in `CamelCase`.
    pub kind: Arc<str>,
}

/// Group and kind without the version: what grants and owner references go by.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GroupKind {
    /// The API group; empty for the core kinds.
    pub group: Arc<str>,
    /// The kind, in `CamelCase`.
    pub kind: Arc<str>,
}

/// A kind that the cluster serves: what discovery says of a [`Gvk`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kind {
    /// What was asked for.
    pub gvk: Gvk,
    /// The plural that stands in URLs, for example `deployments`.
    pub plural: Arc<str>,
    /// Whether its objects live in namespaces.
    pub scope: Scope,
    /// The verbs of the resource itself, for example `list`.
    pub verbs: Vec<Arc<str>>,
    /// The names of its subresources, for example `status`.
    pub subresources: Vec<Arc<str>>,
}

/// Where the objects of a kind live.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// In the cluster as a whole.
    Cluster,
}

// === impl Gvk ===

impl Gvk {
    /// A kind of these three parts.
    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// Reads `apiVersion` (`v1`, `apps/v1`) and `kind`.
    pub fn from_api_version(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self::new(group, version, kind)
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Without the version.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: Arc::clone(&self.group), kind: Arc::clone(&self.kind) }
    }
}

/// `Deployment.v1.apps`, `ConfigMap.v1`: the form that kubectl takes.
impl fmt::Display for Gvk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind, self.version)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

impl fmt::Debug for Gvk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl GroupKind ===

/// `Deployment.apps`, `ConfigMap`.
impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

// === impl Kind ===

impl Kind {
    /// Whether the kind has this subresource.
    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|known| &**known == name)
    }
}
