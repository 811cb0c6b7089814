//! Which kinds a plugin ever made children of, remembered in the cluster (feature C2).
//!
//! A new version of a plugin may drop a kind; its children must still be found and pruned. So
//! before the first child of a kind is written, the kind is put into the ConfigMap
//! `reeve-plugin-NAME` in the host's namespace: one request for each plugin and set of kinds, not
//! for each object. The runtime [recalls](Committer::recall) the set at load, watches the kinds
//! that the manifest no longer declares (metadata only, label `reeve.dev/plugin=NAME`) and
//! [lets go](Committer::let_go) of one once no child of it is left.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reeve_core::change::Origin;
use reeve_core::gvk::{Gvk, Kind, Scope};
use reeve_core::ids::{ObjectName, PluginName};
use reeve_core::leading::Leading;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::request::{Action, Pass, Right, Send, WriteError};
use super::{CommitError, Committer};

/// How long a refused write of the memory is left alone. The children are written all the same.
const RETRY: Duration = Duration::from_mins(5);

/// What is known of each plugin's ConfigMap.
#[derive(Default)]
pub(crate) struct KindMemory(Mutex<HashMap<PluginName, Arc<Known>>>);

struct Known {
    /// One at a time reads or writes the ConfigMap.
    turn: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `None` until it was read.
    kinds: Option<BTreeSet<Gvk>>,
    not_before: Option<Instant>,
}

// === impl KindMemory ===

impl KindMemory {
    fn of(&self, plugin: &PluginName) -> Arc<Known> {
        let mut all = self.0.lock();
        let known = || Arc::new(Known { turn: Semaphore::new(1), state: Mutex::default() });
        Arc::clone(all.entry(plugin.clone()).or_insert_with(known))
    }

    pub(crate) fn forget(&self, plugin: &PluginName) {
        self.0.lock().remove(plugin);
    }

    /// What is known without asking the server.
    pub(crate) fn known(&self, plugin: &PluginName) -> BTreeSet<Gvk> {
        self.of(plugin).state.lock().kinds.clone().unwrap_or_default()
    }
}

impl Known {
    /// Whether nothing has to be written for these kinds now.
    fn settled(&self, kinds: &BTreeSet<Gvk>) -> bool {
        let state = self.state.lock();
        state.kinds.as_ref().is_some_and(|known| known.is_superset(kinds))
            || state.not_before.is_some_and(|moment| Instant::now() < moment)
    }
}

impl Committer {
    /// The kinds that a plugin ever made children of, read from the cluster. One request.
    pub async fn recall(&self, plugin: &PluginName) -> Result<BTreeSet<Gvk>, CommitError> {
        let known = self.kinds().of(plugin);
        let _turn = known.turn.acquire().await.ok();
        let kinds = self.read_kinds(plugin).await?;
        known.state.lock().kinds = Some(kinds.clone());
        Ok(kinds)
    }

    /// Takes kinds out of the memory: no child of them is left and the manifest declares them no
    /// more. At most two requests.
    pub async fn let_go(
        &self,
        leading: &Leading,
        plugin: &PluginName,
        kinds: &BTreeSet<Gvk>,
    ) -> Result<(), CommitError> {
        let known = self.kinds().of(plugin);
        let _turn = known.turn.acquire().await.ok();
        let before = self.read_kinds(plugin).await?;
        let after: BTreeSet<Gvk> = before.difference(kinds).cloned().collect();
        if after != before {
            let origin = Origin { plugin: plugin.clone(), primary: self.memory_name(plugin) };
            self.write_kinds(&Pass::new(leading, None, &origin), &after).await?;
        }
        known.state.lock().kinds = Some(after);
        Ok(())
    }

    /// Makes sure that these kinds are in the memory, before a child of them is written.
    pub(super) async fn remember(&self, pass: &Pass<'_>, kinds: &BTreeSet<Gvk>) -> Result<(), CommitError> {
        let plugin = &pass.origin.plugin;
        let known = self.kinds().of(plugin);
        if known.settled(kinds) {
            return Ok(());
        }
        let _turn = known.turn.acquire().await.ok();
        if known.settled(kinds) {
            return Ok(());
        }
        let loaded = known.state.lock().kinds.clone();
        let result = async {
            let before = match loaded {
                Some(before) => before,
                None => self.read_kinds(plugin).await?,
            };
            let after: BTreeSet<Gvk> = before.union(kinds).cloned().collect();
            if after != before {
                self.write_kinds(pass, &after).await?;
            }
            Ok(after)
        };
        match result.await {
            Ok(after) => {
                known.state.lock().kinds = Some(after);
                Ok(())
            }
            Err(WriteError::Refused(_, failure) | WriteError::Unusable(failure)) => {
                known.state.lock().not_before = Some(Instant::now() + RETRY);
                tracing::warn!(
                    %plugin, code = %failure.code,
                    "cannot remember the kinds of a plugin's children, so a version that drops a kind will not prune them: {}",
                    failure.message
                );
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn read_kinds(&self, plugin: &PluginName) -> Result<BTreeSet<Gvk>, WriteError> {
        let body = self.door().get(&config_maps(), &self.memory_name(plugin)).await?;
        let object: Value = body.and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default();
        let data = object.get("data").and_then(Value::as_object);
        Ok(data.map(|data| data.keys().filter_map(|key| parse_kind(key)).collect()).unwrap_or_default())
    }

    async fn write_kinds(&self, pass: &Pass<'_>, kinds: &BTreeSet<Gvk>) -> Result<(), WriteError> {
        let plugin = &pass.origin.plugin;
        let name = self.memory_name(plugin);
        let data: Map<String, Value> = kinds.iter().map(|gvk| (gvk.to_string(), json!(""))).collect();
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": &*name.name, "namespace": name.namespace, "annotations": {
                "reeve.dev/description": format!("Kinds that plugin {plugin} made children of. Kept by Reeve, so that a version that drops a kind still prunes it."),
            }},
            "data": data,
        });
        let send = Send {
            right: Right::Host,
            kind: &config_maps(),
            name: &name,
            subresource: None,
            action: Action::Apply { body: &body, force: true },
            dry_run: false,
        };
        self.door().write(pass, &send).await.map(drop)
    }

    fn memory_name(&self, plugin: &PluginName) -> ObjectName {
        ObjectName::namespaced(self.namespace(), &format!("reeve-plugin-{plugin}"))
    }
}

/// `Deployment.v1.apps`, as [`Gvk`] displays itself and as a ConfigMap's key may look.
fn parse_kind(key: &str) -> Option<Gvk> {
    let (kind, rest) = key.split_once('.')?;
    let (version, group) = rest.split_once('.').unwrap_or((rest, ""));
    (!kind.is_empty() && !version.is_empty()).then(|| Gvk::new(group, version, kind))
}

pub(crate) fn config_maps() -> Kind {
    Kind {
        gvk: Gvk::new("", "v1", "ConfigMap"),
        plural: "configmaps".into(),
        scope: Scope::Namespaced,
        verbs: Vec::new(),
        subresources: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip_through_their_keys() {
        for gvk in [
            Gvk::new("", "v1", "ConfigMap"),
            Gvk::new("apps", "v1", "Deployment"),
            Gvk::new("a.b.c", "v1beta1", "X"),
        ] {
            assert_eq!(parse_kind(&gvk.to_string()), Some(gvk));
        }
        assert_eq!(parse_kind("README"), None);
    }
}
