//! Kinds of children that an older version of a plugin made and this one does not declare any more
//! (feature C2): they are watched, metadata only, until no child of them is left, so that pruning
//! finds them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use reeve_cluster::cache::{View, ViewKind};
use reeve_cluster::watch::{Namespaces, StreamSpec, StreamState, Subscription};
use reeve_cluster::{Cluster, CommitError, Committer};
use reeve_core::gvk::Gvk;
use reeve_core::ids::PluginName;
use reeve_core::labels::Selector;
use reeve_core::leading::Leading;
use reeve_core::manifest::{Manifest, Watch};
use reeve_core::read::{Query, Reader};
use tokio_util::sync::CancellationToken;

use crate::roster::SharedRoster;

/// The label of every child.
const LABEL: &str = "reeve.dev/plugin";
/// So often the memory is read before a version comes into service without it.
const TRIES: u32 = 3;
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a version waits for the first list of such kinds: their CRD may be gone for good.
const SYNC: Duration = Duration::from_secs(3);
/// How often it is looked whether children are left.
const LOOK: Duration = Duration::from_secs(15);

/// One such kind.
pub struct Former {
    gvk: Gvk,
    watch: Subscription,
    reader: Arc<dyn Reader>,
}

impl Former {
    /// Whether it is known that no child is left.
    fn is_over(&self) -> bool {
        self.watch.state() == StreamState::Live
            && self.reader.list(&self.gvk, &Query::default()).is_ok_and(|list| list.is_empty())
    }
}

/// Opens the watches of the kinds that the plugin has left behind.
pub(super) async fn open(
    cluster: &Cluster,
    committer: &Committer,
    manifest: &Manifest,
    namespaces: &BTreeSet<Arc<str>>,
) -> Vec<Former> {
    let Some(known) = recall(committer, &manifest.name).await else { return Vec::new() };
    let declared: BTreeSet<_> =
        manifest.watches.iter().filter(|watch| watch.relation.is_owned()).map(Watch::gvk).collect();
    let former: Vec<_> = known
        .difference(&declared)
        .filter_map(|gvk| watch(cluster, &manifest.name, gvk, namespaces))
        .collect();
    let synced = futures::future::join_all(former.iter().map(|former| former.watch.synced()));
    if tokio::time::timeout(SYNC, synced).await.is_err() {
        tracing::warn!(plugin = %manifest.name, "children of a kind that the plugin no longer declares cannot be listed yet; they are pruned once they can");
    }
    former
}

async fn recall(committer: &Committer, plugin: &PluginName) -> Option<BTreeSet<Gvk>> {
    for tries in 1..=TRIES {
        match committer.recall(plugin).await {
            Ok(known) => return Some(known),
            Err(error) if tries == TRIES => {
                tracing::warn!(%plugin, %error, "failed to read which kinds the plugin made children of: those of kinds that it no longer declares are not pruned");
            }
            Err(error) => {
                tracing::debug!(%plugin, %error, "failed to read which kinds the plugin made children of, trying again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    None
}

fn watch(
    cluster: &Cluster,
    plugin: &PluginName,
    gvk: &Gvk,
    namespaces: &BTreeSet<Arc<str>>,
) -> Option<Former> {
    let spec = StreamSpec {
        gvk: gvk.clone(),
        namespaces: if namespaces.is_empty() {
            Namespaces::All
        } else {
            Namespaces::Only(namespaces.clone())
        },
        labels: Selector::match_labels([(LABEL, plugin.as_str())]).ok()?,
        fields: None,
        metadata_only: true,
        managed_fields: false,
    };
    let watch = cluster.watch(&spec);
    let kind = ViewKind { specs: vec![spec], indexes: BTreeMap::new() };
    let reader = cluster.reader(View { plugin: plugin.clone(), kinds: [(gvk.clone(), kind)].into() });
    Some(Former { gvk: gvk.clone(), watch, reader })
}

/// Lets go of such kinds once no child of them is left, until the shutdown.
pub(crate) async fn let_go(
    roster: SharedRoster,
    committer: Committer,
    leading: Leading,
    shutdown: CancellationToken,
) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        let roster = roster.load_full();
        for registration in roster.all_serving() {
            let over: BTreeSet<Gvk> = registration
                .former
                .lock()
                .iter()
                .filter(|former| former.is_over())
                .map(|former| former.gvk.clone())
                .collect();
            if over.is_empty() {
                continue;
            }
            let plugin = registration.name();
            let released: Result<(), CommitError> = committer.let_go(&leading, plugin, &over).await;
            match released {
                Ok(()) => {
                    registration.former.lock().retain(|former| !over.contains(&former.gvk));
                    tracing::info!(%plugin, kinds = ?over, "no child of these kinds is left: they are no longer watched");
                }
                Err(error) => {
                    tracing::debug!(%plugin, %error, "failed to let go of former kinds, trying again");
                }
            }
        }
    }
}
