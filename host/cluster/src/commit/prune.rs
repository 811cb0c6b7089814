//! Pruning: children that a run which declared its set complete no longer wants (feature C2).

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;

use futures::stream::{FuturesUnordered, StreamExt};
use reeve_core::gvk::{GroupKind, Gvk};
use reeve_core::ids::{ObjectName, Uid};
use reeve_core::object::SharedObject;
use serde_json::json;

use super::children::is_child;
use super::request::{Action, Pass, Right, Send, WriteError};
use super::{CommitError, Committer};

/// How many children of one commit are deleted at once.
const DELETES_AT_ONCE: usize = 4;

impl Committer {
    /// Deletes the cached children of these kinds that are not wanted.
    pub(super) async fn prune(
        &self,
        pass: &Pass<'_>,
        kinds: &BTreeSet<Gvk>,
        wanted: &HashSet<(GroupKind, ObjectName)>,
        owner: &Uid,
    ) -> Result<(), CommitError> {
        let plugin = &pass.origin.plugin;
        let cache = self.door().cluster.cache();
        let mut seen = HashSet::new();
        let mut surplus = Vec::new();
        for gvk in kinds {
            for object in cache.owned(gvk, owner) {
                let key = (gvk.group_kind(), object.meta().name.clone());
                // A kind may be watched in two versions; its objects are the same.
                if is_child(&object, plugin, owner)
                    && !object.meta().deleting
                    && !wanted.contains(&key)
                    && seen.insert(key)
                {
                    surplus.push((gvk.clone(), object));
                }
            }
        }
        let mut waiting = surplus.into_iter();
        let mut running = FuturesUnordered::new();
        let mut failed = None;
        loop {
            while failed.is_none() && running.len() < DELETES_AT_ONCE {
                let Some((gvk, object)) = waiting.next() else { break };
                running.push(self.delete_child(pass, gvk, object));
            }
            match running.next().await {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    failed.get_or_insert(error);
                }
                None => break,
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn delete_child(&self, pass: &Pass<'_>, gvk: Gvk, object: SharedObject) -> Result<(), CommitError> {
        let uid = &object.meta().uid;
        let kind = self.door().resolve(&gvk).await?;
        let options = json!({"preconditions": {"uid": uid.as_str()}, "propagationPolicy": "Background"});
        // A kind that the new version of a plugin dropped is no longer in its grant, but the
        // children that an older one left are the host's to tidy up.
        let declared = pass.grant.is_none_or(|grant| grant.may_own(&gvk));
        let send = Send {
            right: if declared { Right::Child } else { Right::Host },
            kind: &kind,
            name: &object.meta().name,
            subresource: None,
            action: Action::Delete { options: &options, uid: Some(uid) },
            dry_run: false,
        };
        self.applied().remove(&pass.origin.plugin, uid);
        match self.door().write(pass, &send).await {
            Ok(_) => Ok(()),
            // Gone, or another life that is not ours to delete.
            Err(WriteError::Refused(refusal, _)) if refusal.is_not_found() || refusal.is_conflict() => {
                pass.skipped.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}
