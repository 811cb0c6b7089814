//! A thousand Websites: what the soak and the bench do with them and count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::harness::controlplane::ControlPlane;
use crate::harness::kube::{Kube, condition};
use crate::harness::wait::eventually;

/// The kind.
pub const WEBSITE: &str = "example.reeve.dev/v1/Website";
/// The kinds of its children, of which each has one.
pub const CHILDREN: [&str; 3] = ["v1/ConfigMap", "apps/v1/Deployment", "v1/Service"];
/// What the plugin's finalizer is called.
const FINALIZER: &str = "reeve.dev/website";

/// Websites of one namespace.
pub struct Fleet {
    kube: Kube,
    namespace: String,
    size: usize,
}

/// Requests of the host that changed something, from the audit log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writes {
    /// All.
    pub all: usize,
    /// By resource and verb, for example `configmaps patch`.
    pub by_kind: BTreeMap<String, usize>,
    /// Those that were answered with 409.
    pub conflicts: usize,
}

// === impl Fleet ===

impl Fleet {
    /// A fleet in a namespace that it makes; nothing is applied yet.
    pub async fn new(kube: &Kube, namespace: &str, size: usize) -> anyhow::Result<Self> {
        kube.kubectl(&["create", "namespace", namespace], "").await?;
        Ok(Self { kube: kube.clone(), namespace: namespace.to_owned(), size })
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Applies all with kubectl: replicas 0 and `kib` KiB of HTML that says `text`.
    pub async fn apply(&self, text: &str, kib: usize) -> anyhow::Result<()> {
        let filler = "reeve ".repeat(kib * 1024 / 6);
        let mut documents = String::new();
        for number in 0..self.size {
            write!(
                documents,
                "---\napiVersion: example.reeve.dev/v1\nkind: Website\nmetadata:\n  name: site-{number:04}\n  namespace: {}\nspec:\n  replicas: 0\n  html: \"<p>{text} {number}</p> {filler}\"\n",
                self.namespace
            )?;
        }
        self.kube.kubectl(&["apply", "--server-side", "-f", "-"], &documents).await?;
        Ok(())
    }

    /// The Websites that are Ready for their newest generation.
    pub async fn ready(&self) -> anyhow::Result<usize> {
        let sites = self.kube.list(WEBSITE, &self.namespace, "").await?;
        Ok(sites.iter().filter(|site| is_ready(site)).count())
    }

    /// Waits until at least `count` are Ready.
    pub async fn wait_ready(&self, count: usize, within: Duration) -> anyhow::Result<()> {
        eventually(&format!("{count} Websites are Ready"), within, async || {
            let ready = self.ready().await?;
            ensure!(ready >= count, "{ready} are");
            Ok(())
        })
        .await
    }

    /// Makes sure that all are Ready, that each has its three children and one finalizer of ours,
    /// and that there is no other child: no duplicate, no orphan.
    pub async fn check(&self) -> anyhow::Result<()> {
        let sites = self.kube.list(WEBSITE, &self.namespace, "").await?;
        ensure!(sites.len() == self.size, "{} of {} Websites are there", sites.len(), self.size);
        let mut uids = BTreeSet::new();
        for site in &sites {
            let name = &site["metadata"]["name"];
            ensure!(is_ready(site), "{name} is not Ready: {}", site["status"]);
            for entry in site["status"]["conditions"].as_array().into_iter().flatten() {
                ensure!(entry["status"] == "True", "{name} has a condition that is not True: {entry}");
            }
            let ours = site["metadata"]["finalizers"].as_array().map_or(0, |finalizers| {
                finalizers.iter().filter(|finalizer| *finalizer == FINALIZER).count()
            });
            ensure!(ours == 1, "{name} has our finalizer {ours} times");
            uids.insert(site["metadata"]["uid"].as_str().context("a Website without UID")?.to_owned());
        }
        for kind in CHILDREN {
            let children = self.kube.list(kind, &self.namespace, "reeve.dev/plugin=website").await?;
            let owners: BTreeSet<_> = children.iter().filter_map(controller).collect();
            ensure!(
                children.len() == self.size,
                "there are {} of {kind} instead of {}",
                children.len(),
                self.size
            );
            ensure!(owners == uids, "the owners of the {kind}s are not exactly the Websites");
        }
        Ok(())
    }

    /// Deletes all with kubectl and waits until they and their children are gone.
    pub async fn delete(&self, within: Duration) -> anyhow::Result<()> {
        self.kube
            .kubectl(&["delete", "websites", "--all", "--wait=false", "-n", &self.namespace], "")
            .await?;
        for kind in [WEBSITE].into_iter().chain(CHILDREN) {
            let labels = if kind == WEBSITE { "" } else { "reeve.dev/plugin=website" };
            eventually(&format!("every {kind} is gone"), within, async || {
                let left = self.kube.list(kind, &self.namespace, labels).await?.len();
                ensure!(left == 0, "{left} are left");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

// === impl Writes ===

impl Writes {
    /// What the host has written so far. Take two and [`since`](Self::since) one another.
    pub fn so_far(plane: &ControlPlane) -> anyhow::Result<Self> {
        let entries = plane.audited(|entry| {
            entry["userAgent"].as_str().is_some_and(|agent| agent.starts_with("reeve/"))
                && entry["stage"] == "ResponseComplete"
                && matches!(entry["verb"].as_str(), Some("create" | "update" | "patch" | "delete"))
        })?;
        let mut writes = Self { all: entries.len(), ..Self::default() };
        for entry in &entries {
            let object = &entry["objectRef"];
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            let mut key = text(&object["resource"]);
            if let Some(subresource) = object["subresource"].as_str() {
                key = format!("{key}/{subresource}");
            }
            *writes.by_kind.entry(format!("{key} {}", text(&entry["verb"]))).or_default() += 1;
            if entry["responseStatus"]["code"] == 409 {
                writes.conflicts += 1;
            }
        }
        Ok(writes)
    }

    /// What was written after `earlier` was taken.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let by_kind = self
            .by_kind
            .iter()
            .map(|(key, count)| (key.clone(), count - earlier.by_kind.get(key).copied().unwrap_or(0)))
            .filter(|(_, count)| *count > 0)
            .collect();
        Self { all: self.all - earlier.all, by_kind, conflicts: self.conflicts - earlier.conflicts }
    }
}

impl std::fmt::Display for Writes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} conflicts)", self.all, self.conflicts)?;
        for (key, count) in &self.by_kind {
            write!(f, ", {key} {count}")?;
        }
        Ok(())
    }
}

/// Ready, and the condition is about the newest generation.
pub fn is_ready(site: &Value) -> bool {
    let current = crate::harness::kube::find_condition(site, "Ready")
        .is_some_and(|ready| ready["observedGeneration"] == site["metadata"]["generation"]);
    current && condition(site, "Ready") == Some("True")
}

fn controller(child: &Value) -> Option<String> {
    let owners = child["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)?["uid"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ready_is_about_the_newest_generation() {
        let site = |generation: u64, status: &str| {
            let ready = json!({ "type": "Ready", "status": status, "observedGeneration": 2 });
            json!({ "metadata": { "generation": generation }, "status": { "conditions": [ready] } })
        };
        assert!(is_ready(&site(2, "True")));
        assert!(!is_ready(&site(3, "True")));
        assert!(!is_ready(&site(2, "False")));
        assert!(!is_ready(&json!({})));
    }

    #[test]
    fn writes_are_counted_from_a_point_on() {
        let writes = |all, patch| Writes {
            all,
            by_kind: [("services patch".to_owned(), patch), ("nodes patch".to_owned(), 1)].into(),
            conflicts: 0,
        };
        let new = writes(7, 6).since(&writes(3, 2));
        assert_eq!(new.to_string(), "4 (0 conflicts), services patch 4");
    }
}
