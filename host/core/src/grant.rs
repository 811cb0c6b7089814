//! What a plugin may do: declared by its manifest, within the operator's ceiling (feature F5).
//!
//! The ceiling comes only from the host's own configuration, so nobody who can edit a plugin or
//! its ConfigMap can widen it. A grant is computed once, at load, printed, and checked at every
//! read and every write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::gvk::{GroupKind, Gvk};
use crate::ids::{ObjectName, PluginName};

/// What is done to an object. `Get` covers get, list and watch, as a cache needs all three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// Get, list and watch.
    Get,
    /// POST.
    Create,
    /// Server-side apply.
    Apply,
    /// Merge patch and JSON patch.
    Patch,
    /// DELETE.
    Delete,
}

/// What the operator allows at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceiling {
    /// The host's own namespace: Secrets are allowed only there by default.
    pub host_namespace: Arc<str>,
    /// From `--allow`; empty means the default ceiling.
    pub rules: Vec<CeilingRule>,
}

/// One `--allow`: `GROUP/KIND[/SUBRESOURCE][@NAMESPACE][:VERB,…]`, `*` for any group, kind,
/// subresource; the core group is empty, as in `/ConfigMap@web:get,apply`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CeilingRule {
    /// `None` for any.
    pub group: Option<Arc<str>>,
    /// `None` for any.
    pub kind: Option<Arc<str>>,
    /// `None` for any.
    pub namespace: Option<Arc<str>>,
    /// Empty for any.
    pub verbs: BTreeSet<Verb>,
}

/// The effective grant of one plugin: declared within the ceiling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub(crate) plugin: PluginName,
    pub(crate) primary: Gvk,
    pub(crate) cleanup: bool,
    /// Kinds that may be read.
    pub(crate) reads: BTreeSet<Gvk>,
    /// Kinds that may be children.
    pub(crate) children: BTreeSet<GroupKind>,
    /// Other writes: (group kind, subresource or empty) → verbs.
    pub(crate) writes: BTreeMap<(GroupKind, String), BTreeSet<Verb>>,
    pub(crate) ceiling: Ceiling,
}

/// A write as a grant sees it.
#[derive(Debug, Clone, Copy)]
pub struct WriteRequest<'a> {
    /// What is done.
    pub verb: Verb,
    /// To which kind.
    pub gvk: &'a Gvk,
    /// To which subresource.
    pub subresource: Option<&'a str>,
    /// To which object.
    pub name: &'a ObjectName,
}

/// Something that the grant does not cover.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The manifest does not declare it.
    #[error("plugin {plugin} may not {verb} {what}: its manifest does not declare it; add it to `{place}`")]
    NotDeclared {
        /// Whose grant.
        plugin: PluginName,
        /// What was tried.
        verb: &'static str,
        /// Kind, subresource and name.
        what: String,
        /// `watches` or `writes`.
        place: &'static str,
    },
    /// The operator's ceiling excludes it.
    #[error("plugin {plugin} may not {verb} {what}: the host's ceiling excludes it; allow it with --allow {rule:?}")]
    Ceiling {
        /// Whose grant.
        plugin: PluginName,
        /// What was tried.
        verb: &'static str,
        /// Kind, subresource and name or namespace.
        what: String,
        /// The flag that would allow it.
        rule: String,
    },
}
