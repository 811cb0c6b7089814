//! What a plugin may do: declared by its manifest, within the operator's ceiling (feature F5).
//!
//! The ceiling comes only from the host's own configuration, so nobody who can edit a plugin or
//! its ConfigMap can widen it. A grant is computed once, at load, printed, and checked at every
//! read and every write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::gvk::{GroupKind, Gvk};
use crate::ids::{ObjectName, PluginName};
use crate::manifest::{Manifest, StatusStrategy};

mod ceiling;
mod rbac;

pub use ceiling::{Ceiling, CeilingRule, InvalidCeilingRule, Rule};
pub use rbac::{RbacRule, guess_plural};

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

/// The effective grant of one plugin: declared within the ceiling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    plugin: PluginName,
    primary: Gvk,
    cleanup: bool,
    status: StatusStrategy,
    /// Kinds that may be read, the primary among them.
    reads: BTreeSet<Gvk>,
    /// Kinds that may be children.
    children: BTreeSet<GroupKind>,
    /// Other writes: group kind and subresource (or empty) → verbs.
    writes: BTreeMap<(GroupKind, Box<str>), BTreeSet<Verb>>,
    /// The first version that the manifest names of each kind.
    versions: BTreeMap<GroupKind, Gvk>,
    ceiling: Ceiling,
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
    #[error("plugin {plugin} may not {verb} {what}: the host's ceiling excludes it; allow it with {rule}")]
    Ceiling {
        /// Whose grant.
        plugin: PluginName,
        /// What was tried.
        verb: &'static str,
        /// Kind, subresource and name or namespace.
        what: String,
        /// The flags that would allow it.
        rule: String,
    },
}

// === impl Verb ===

impl Verb {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 5] = [Self::Get, Self::Create, Self::Apply, Self::Patch, Self::Delete];

    /// As manifests and `--allow` write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Create => "create",
            Self::Apply => "apply",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the host does to children: create, apply, repair and prune.
const CHILD_VERBS: [Verb; 4] = [Verb::Create, Verb::Apply, Verb::Patch, Verb::Delete];

// === impl Grant ===

impl Grant {
    /// What the manifest declares, within the ceiling. `cleanup` says whether the plugin exports
    /// `cleanup`, and so needs a finalizer.
    ///
    /// Refused with everything that the ceiling excludes in every namespace. What it allows in
    /// some namespaces only is checked at each read and write.
    pub fn effective(manifest: &Manifest, cleanup: bool, ceiling: &Ceiling) -> Result<Self, Vec<Denied>> {
        let mut grant = Self {
            plugin: manifest.name.clone(),
            primary: manifest.primary.gvk(),
            cleanup,
            status: manifest.status,
            reads: manifest.read_kinds().collect(),
            children: BTreeSet::new(),
            writes: BTreeMap::new(),
            versions: BTreeMap::new(),
            ceiling: ceiling.clone(),
        };
        for watch in manifest.watches.iter().filter(|watch| watch.relation.is_owned()) {
            grant.children.insert(watch.gvk().group_kind());
        }
        for write in &manifest.writes {
            let whole = [String::new()];
            let subresources =
                if write.subresources.is_empty() { &whole[..] } else { &write.subresources[..] };
            for subresource in subresources {
                let key = (write.gvk().group_kind(), subresource.as_str().into());
                grant.writes.entry(key).or_default().extend(&write.verbs);
            }
        }
        for gvk in manifest.read_kinds().chain(manifest.writes.iter().map(crate::manifest::WriteAccess::gvk))
        {
            grant.versions.entry(gvk.group_kind()).or_insert(gvk);
        }
        let denied: Vec<_> = grant.declared().filter_map(|access| grant.excluded(&access)).collect();
        if denied.is_empty() { Ok(grant) } else { Err(denied) }
    }

    /// Whose grant it is.
    pub fn plugin(&self) -> &PluginName {
        &self.plugin
    }

    /// The primary kind.
    pub fn primary(&self) -> &Gvk {
        &self.primary
    }

    /// Whether objects of this kind may be read in a namespace; `None` is a cluster-scoped
    /// object, or a list over all namespaces.
    pub fn check_read(&self, gvk: &Gvk, namespace: Option<&str>) -> Result<(), Denied> {
        let access = Access { verb: Verb::Get, kind: gvk.group_kind(), subresource: "".into() };
        if !self.reads.contains(gvk) {
            return Err(self.not_declared(Verb::Get, gvk.to_string(), "watches"));
        }
        self.check_ceiling(&access, namespace, || match namespace {
            Some(namespace) => format!("{gvk} in namespace {namespace}"),
            None => format!("{gvk} in all namespaces"),
        })
    }

    /// The namespaces in which a declared kind may be read; `None` is all of them, and the
    /// cluster's own objects.
    pub fn read_namespaces(&self, gvk: &Gvk) -> Option<BTreeSet<Arc<str>>> {
        self.ceiling.namespaces(Verb::Get, &gvk.group_kind(), "")
    }

    /// Whether a staged write is allowed: only what the manifest lists under `writes`. Children,
    /// the status and the finalizer of the primary have checks of their own.
    pub fn check_write(&self, request: &WriteRequest<'_>) -> Result<(), Denied> {
        let access = Access::of(request);
        let declared = self.writes.get(&(access.kind.clone(), access.subresource.clone()));
        if !declared.is_some_and(|verbs| verbs.contains(&request.verb)) {
            return Err(self.not_declared(request.verb, request.to_string(), "writes"));
        }
        self.check_ceiling(&access, request.name.namespace.as_deref(), || request.to_string())
    }

    /// Whether the host may do this to a child of the plugin: any write of the object itself, of
    /// a kind that a watch with relation `owned` declares. That the object is the plugin's own is
    /// the committer's to see.
    pub fn check_child(&self, request: &WriteRequest<'_>) -> Result<(), Denied> {
        if request.subresource.is_some() || !self.may_own(request.gvk) {
            let place = "watches` with relation `owned";
            return Err(self.not_declared(request.verb, request.to_string(), place));
        }
        self.check_ceiling(&Access::of(request), request.name.namespace.as_deref(), || request.to_string())
    }

    /// Whether the host may write the status of this primary.
    pub fn check_status(&self, name: &ObjectName) -> Result<(), Denied> {
        self.check_primary(Some("status"), name)
    }

    /// Whether the host may set and remove the plugin's finalizer on this primary.
    pub fn check_finalizer(&self, name: &ObjectName) -> Result<(), Denied> {
        self.check_primary(None, name)
    }

    /// Whether objects of this kind may be children, in whatever version.
    pub fn may_own(&self, gvk: &Gvk) -> bool {
        self.children.contains(&gvk.group_kind())
    }

    /// The grant in lines for people: `read ConfigMap.v1`, `own Service`, `patch Deployment.apps/scale`.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for gvk in &self.reads {
            let primary = if *gvk == self.primary { " (primary)" } else { "" };
            lines.push(format!("read {gvk}{primary}{}", self.places(&[Verb::Get], &gvk.group_kind(), "")));
        }
        for kind in &self.children {
            lines.push(format!("own {kind}{}", self.places(&CHILD_VERBS, kind, "")));
        }
        for ((kind, subresource), verbs) in &self.writes {
            let verbs: Vec<_> = verbs.iter().copied().collect();
            let words = verbs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let access = Access { verb: Verb::Get, kind: kind.clone(), subresource: subresource.clone() };
            lines.push(format!("{words} {access}{}", self.places(&verbs, kind, subresource)));
        }
        let primary = self.primary.group_kind();
        lines.push(format!(
            "write the status of {primary}{}",
            self.places(&[Verb::Patch], &primary, "status")
        ));
        if self.cleanup {
            lines.push(format!("keep a finalizer on {primary}{}", self.places(&[Verb::Patch], &primary, "")));
        }
        lines
    }

    /// Where all of the verbs are allowed, where that is not everywhere.
    fn places(&self, verbs: &[Verb], kind: &GroupKind, subresource: &str) -> String {
        let some = verbs.iter().filter_map(|&verb| self.ceiling.namespaces(verb, kind, subresource));
        match some.reduce(|one, other| &one & &other) {
            None => String::new(),
            Some(none) if none.is_empty() => " (nowhere within the ceiling)".to_owned(),
            Some(some) => format!(" (only in namespace {})", some.into_iter().collect::<Vec<_>>().join(", ")),
        }
    }

    fn check_primary(&self, subresource: Option<&str>, name: &ObjectName) -> Result<(), Denied> {
        let request = WriteRequest { verb: Verb::Patch, gvk: &self.primary, subresource, name };
        self.check_ceiling(&Access::of(&request), name.namespace.as_deref(), || request.to_string())
    }

    fn check_ceiling(
        &self,
        access: &Access,
        namespace: Option<&str>,
        what: impl FnOnce() -> String,
    ) -> Result<(), Denied> {
        if self.ceiling.allows(access.verb, &access.kind, &access.subresource, namespace) {
            return Ok(());
        }
        Err(Denied::Ceiling {
            plugin: self.plugin.clone(),
            verb: access.verb.as_str(),
            what: what(),
            rule: self.ceiling.remedy(access.verb, &access.kind, &access.subresource, namespace),
        })
    }

    /// Everything that the plugin may come to do, as the ceiling sees it.
    fn declared(&self) -> impl Iterator<Item = Access> {
        let whole = |verb, kind: &GroupKind| Access { verb, kind: kind.clone(), subresource: "".into() };
        let reads = self.reads.iter().map(move |gvk| whole(Verb::Get, &gvk.group_kind()));
        let children = self
            .children
            .iter()
            .flat_map(move |kind| CHILD_VERBS.into_iter().map(move |verb| whole(verb, kind)));
        let writes = self.writes.iter().flat_map(|((kind, subresource), verbs)| {
            verbs.iter().map(move |&verb| Access {
                verb,
                kind: kind.clone(),
                subresource: subresource.clone(),
            })
        });
        let finalizer = self.cleanup.then(|| whole(Verb::Patch, &self.primary.group_kind()));
        reads.chain(children).chain(writes).chain(finalizer)
    }

    fn excluded(&self, access: &Access) -> Option<Denied> {
        let namespaces = self.ceiling.namespaces(access.verb, &access.kind, &access.subresource);
        if namespaces.is_none_or(|namespaces| !namespaces.is_empty()) {
            return None;
        }
        Some(Denied::Ceiling {
            plugin: self.plugin.clone(),
            verb: access.verb.as_str(),
            what: access.to_string(),
            rule: self.ceiling.remedy(access.verb, &access.kind, &access.subresource, None),
        })
    }

    fn not_declared(&self, verb: Verb, what: String, place: &'static str) -> Denied {
        Denied::NotDeclared { plugin: self.plugin.clone(), verb: verb.as_str(), what, place }
    }
}

/// One verb on one kind: what a ceiling is asked about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Access {
    verb: Verb,
    kind: GroupKind,
    /// Empty for the object itself.
    subresource: Box<str>,
}

impl Access {
    fn of(request: &WriteRequest<'_>) -> Self {
        Self {
            verb: request.verb,
            kind: request.gvk.group_kind(),
            subresource: request.subresource.unwrap_or_default().into(),
        }
    }
}

/// `Deployment.apps/scale`.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        if self.subresource.is_empty() { Ok(()) } else { write!(f, "/{}", self.subresource) }
    }
}

/// `Deployment.v1.apps/scale web/site`.
impl fmt::Display for WriteRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.gvk.fmt(f)?;
        if let Some(subresource) = self.subresource {
            write!(f, "/{subresource}")?;
        }
        write!(f, " {}", self.name)
    }
}

#[cfg(test)]
mod tests;
