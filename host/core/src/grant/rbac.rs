//! The least RBAC rules with which the host can serve a grant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use super::{CHILD_VERBS, Grant, Verb};
use crate::gvk::GroupKind;
use crate::manifest::StatusStrategy;

/// One rule of a Role or `ClusterRole`, as RBAC writes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RbacRule {
    /// In a Role of this namespace; `None` is a `ClusterRole`. It is not part of the rule itself.
    #[serde(skip)]
    pub namespace: Option<Arc<str>>,
    /// One group.
    pub api_groups: Vec<String>,
    /// Plurals, with their subresource.
    pub resources: Vec<String>,
    /// As RBAC names them.
    pub verbs: Vec<String>,
}

/// What one resource needs: namespace, group and resource → verbs.
type Needs = BTreeMap<(Option<Arc<str>>, Arc<str>, String), BTreeSet<&'static str>>;

impl Grant {
    /// The least rules that the host needs for this plugin, with the plurals that discovery
    /// knows and [`guess_plural`] where it knows none.
    ///
    /// On a cluster with the admission plugin `OwnerReferencesPermissionEnforcement` (not on by
    /// default) `update` of the primary's subresource `finalizers` is needed beside them.
    pub fn rbac_rules(&self, plural: &dyn Fn(&crate::gvk::Gvk) -> Option<Arc<str>>) -> Vec<RbacRule> {
        let mut needs = Needs::new();
        let mut need = |verb: Verb, kind: &GroupKind, subresource: &str, words: &[&'static str]| {
            let resource =
                self.versions.get(kind).and_then(plural).unwrap_or_else(|| guess_plural(&kind.kind).into());
            let resource = if subresource.is_empty() {
                resource.to_string()
            } else {
                format!("{resource}/{subresource}")
            };
            let places: Vec<_> = match self.ceiling.namespaces(verb, kind, subresource) {
                None => vec![None],
                Some(some) => some.into_iter().map(Some).collect(),
            };
            for place in places {
                needs.entry((place, Arc::clone(&kind.group), resource.clone())).or_default().extend(words);
            }
        };
        for gvk in &self.reads {
            need(Verb::Get, &gvk.group_kind(), "", words(Verb::Get, ""));
        }
        for kind in &self.children {
            for verb in CHILD_VERBS {
                need(verb, kind, "", words(verb, ""));
            }
        }
        for ((kind, subresource), verbs) in &self.writes {
            for &verb in verbs {
                need(verb, kind, subresource, words(verb, subresource));
            }
        }
        let primary = self.primary.group_kind();
        let status: &[_] =
            if self.status == StatusStrategy::Update { &["patch", "update"] } else { &["patch"] };
        need(Verb::Patch, &primary, "status", status);
        if self.cleanup {
            need(Verb::Patch, &primary, "", &["patch"]);
        }
        let events = (None, "events.k8s.io".into(), "events".to_owned());
        needs.entry(events).or_default().extend(["create", "patch"]);
        rules(needs)
    }
}

/// One rule for all resources of a group that need the same.
fn rules(needs: Needs) -> Vec<RbacRule> {
    let mut merged: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for ((namespace, group, resource), verbs) in needs {
        merged.entry((namespace, group, verbs)).or_default().push(resource);
    }
    merged
        .into_iter()
        .map(|((namespace, group, verbs), resources)| RbacRule {
            namespace,
            api_groups: vec![group.to_string()],
            resources,
            verbs: ORDER.into_iter().filter(|verb| verbs.contains(verb)).map(str::to_owned).collect(),
        })
        .collect()
}

/// The order in which people write verbs.
const ORDER: [&str; 7] = ["get", "list", "watch", "create", "update", "patch", "delete"];

/// What RBAC calls a verb. An apply may create, which the server checks beside the patch; of a
/// subresource it cannot.
fn words(verb: Verb, subresource: &str) -> &'static [&'static str] {
    match verb {
        Verb::Get => &["get", "list", "watch"],
        Verb::Create => &["create"],
        Verb::Apply if subresource.is_empty() => &["create", "patch"],
        Verb::Apply | Verb::Patch => &["patch"],
        Verb::Delete => &["delete"],
    }
}

/// The plural that Kubernetes itself guesses where it has no discovery: lower case, `-es` after
/// `s`, `-ies` for `-y`, else `-s`; `endpoints` is its own. Right for all built-in kinds, and for
/// custom ones whose CRD does not say otherwise.
pub fn guess_plural(kind: &str) -> String {
    let singular = kind.to_ascii_lowercase();
    if singular == "endpoints" {
        singular
    } else if let Some(stem) = singular.strip_suffix('y') {
        format!("{stem}ies")
    } else if singular.ends_with('s') {
        format!("{singular}es")
    } else {
        format!("{singular}s")
    }
}
