//! Children: applied where something is to change, and only there (feature C2).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::stream::{FuturesUnordered, StreamExt};
use reeve_core::failure::{Failure, code};
use reeve_core::gvk::{GroupKind, Gvk, Kind, Scope};
use reeve_core::ids::{ObjectName, PluginName, Uid};
use reeve_core::object::SharedObject;
use reeve_core::plan::Child;
use serde_json::Value;

use super::contains::Projection;
use super::desired::Desired;
use super::request::{Accepted, Action, Pass, Right, Send, WriteError};
use super::{APPLIED, APPLIED_POINTER, CommitError, Committer, LABEL};

/// How many children of one commit are applied at once. Three or four is a usual set; more would
/// let one key take the connections of others.
const CHILDREN_AT_ONCE: usize = 4;

/// Whose the live object of a child's name is.
enum Live {
    /// There is none.
    Absent,
    /// It is ours.
    Ours(SharedObject),
    /// It is ours and on its way out: its end triggers the next run.
    Leaving,
    /// It has no controller and the child adopts it.
    Adopted(SharedObject),
}

/// What happened to one child.
enum Done {
    Written,
    Skipped,
}

impl Committer {
    /// Applies the staged children. After the first that fails no more are begun; those on their
    /// way are waited for, so that nothing is left unknown.
    pub(super) async fn apply_children(
        &self,
        pass: &Pass<'_>,
        children: &[(Arc<Kind>, &Child)],
        owner_kind: &Gvk,
        owner: &SharedObject,
    ) -> Result<(), CommitError> {
        // A namespace or a definition must be there before what lives in it.
        let (first, rest): (Vec<_>, Vec<_>) = children
            .iter()
            .partition(|(kind, _)| matches!(&*kind.gvk.kind, "Namespace" | "CustomResourceDefinition"));
        for wave in [first, rest] {
            let mut waiting = wave.into_iter();
            let mut running = FuturesUnordered::new();
            let mut failed = None;
            loop {
                while failed.is_none() && running.len() < CHILDREN_AT_ONCE {
                    let Some((kind, child)) = waiting.next() else { break };
                    running.push(self.apply_child(pass, kind, child, owner_kind, owner));
                }
                match running.next().await {
                    Some(Ok(())) => {}
                    Some(Err(error)) => {
                        failed.get_or_insert(error);
                    }
                    None => break,
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn apply_child(
        &self,
        pass: &Pass<'_>,
        kind: &Kind,
        child: &Child,
        owner_kind: &Gvk,
        owner: &SharedObject,
    ) -> Result<(), CommitError> {
        let plugin = &pass.origin.plugin;
        let desired = Desired::build(child, kind, plugin, owner_kind, owner).map_err(CommitError::Failed)?;
        let seen = self.door().cluster.cache().get(&child.gvk, &desired.name);
        let live = whose(seen.as_ref(), &desired, plugin, &child.gvk, owner_kind, owner)
            .map_err(CommitError::Failed)?;
        let done = match live {
            // Nothing new is made for a primary on its way out.
            Live::Absent if owner.meta().deleting => Done::Skipped,
            Live::Absent => {
                // The primary may have gone since the commit began.
                self.same_life(owner_kind, owner)?;
                self.create(pass, kind, &child.gvk, &desired, owner_kind, owner).await?
            }
            Live::Leaving => Done::Skipped,
            Live::Ours(live) if self.is_current(plugin, &child.gvk, &desired, &live) => Done::Skipped,
            Live::Ours(live) | Live::Adopted(live) => {
                self.replace(pass, kind, &child.gvk, &desired, &live).await?
            }
        };
        if matches!(done, Done::Skipped) {
            pass.skipped.fetch_add(1, Ordering::Relaxed);
            self.door().metrics.skipped.with_label_values(&[plugin.as_str(), &*child.gvk.kind]).inc();
        }
        Ok(())
    }

    /// The skip rule of C2: the digest is the one last applied, and the live object is of the
    /// version that the apply returned or still holds all that is desired.
    fn is_current(&self, plugin: &PluginName, gvk: &Gvk, desired: &Desired, live: &SharedObject) -> bool {
        let meta = live.meta();
        let known = self.applied().get(plugin, &meta.uid, &desired.digest);
        if known.as_ref().is_some_and(|entry| entry.version == meta.resource_version) {
            return true;
        }
        let Ok(value) = serde_json::from_str::<Value>(live.json()) else { return false };
        let annotated =
            value.get("metadata").and_then(|meta| meta.get("annotations")).and_then(|all| all.get(APPLIED));
        if annotated.and_then(Value::as_str) != Some(&*desired.digest) {
            return false;
        }
        let projection = Projection::of(&value, &desired.body, gvk);
        let normalised = known.and_then(|entry| entry.normalised);
        let current = projection.holds(&desired.body, gvk)
            || normalised.is_some_and(|known| known == projection.fingerprint());
        if current {
            self.applied().put(plugin, &meta.uid, &desired.digest, meta.resource_version, normalised);
        }
        current
    }

    /// The first apply of a child that the cache does not have. It names a version that no object
    /// has: the server creates what is absent and refuses with 409 what is there, so an object
    /// that appeared unseen is never taken over.
    async fn create(
        &self,
        pass: &Pass<'_>,
        kind: &Kind,
        gvk: &Gvk,
        desired: &Desired,
        owner_kind: &Gvk,
        owner: &SharedObject,
    ) -> Result<Done, CommitError> {
        let body = desired.if_absent();
        match self.door().write(pass, &apply(kind, desired, &body)).await {
            Ok(accepted) => {
                self.applied_now(pass, gvk, desired, &accepted);
                Ok(Done::Written)
            }
            Err(WriteError::Refused(refusal, _)) if refusal.is_conflict() => {
                self.settle_unseen(pass, kind, gvk, desired, owner_kind, owner).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// An object was there that the cache did not have (the watch is behind, or selects by label):
    /// reads it once and decides.
    async fn settle_unseen(
        &self,
        pass: &Pass<'_>,
        kind: &Kind,
        gvk: &Gvk,
        desired: &Desired,
        owner_kind: &Gvk,
        owner: &SharedObject,
    ) -> Result<Done, CommitError> {
        let Some(live) = self.door().refresh(pass, kind, &desired.name).await? else {
            return Err(CommitError::Conflict);
        };
        match whose(Some(&live), desired, &pass.origin.plugin, gvk, owner_kind, owner)
            .map_err(CommitError::Failed)?
        {
            Live::Ours(live) if self.is_current(&pass.origin.plugin, gvk, desired, &live) => {
                Ok(Done::Skipped)
            }
            Live::Ours(live) | Live::Adopted(live) => self.replace(pass, kind, gvk, desired, &live).await,
            Live::Leaving | Live::Absent => Ok(Done::Skipped),
        }
    }

    /// An apply to a known life of an object.
    async fn replace(
        &self,
        pass: &Pass<'_>,
        kind: &Kind,
        gvk: &Gvk,
        desired: &Desired,
        live: &SharedObject,
    ) -> Result<Done, CommitError> {
        let body = desired.for_life(live.meta().uid.as_str());
        match self.door().write(pass, &apply(kind, desired, &body)).await {
            Ok(accepted) => {
                self.applied_now(pass, gvk, desired, &accepted);
                Ok(Done::Written)
            }
            Err(WriteError::Refused(refusal, _)) if refusal.is_conflict() || refusal.is_other_life() => {
                // It was deleted, and perhaps made again, unseen; the next run shall see it.
                self.door().refresh(pass, kind, &desired.name).await?;
                Err(CommitError::Conflict)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn applied_now(&self, pass: &Pass<'_>, gvk: &Gvk, desired: &Desired, accepted: &Accepted) {
        let Some(object) = &accepted.object else { return };
        let meta = object.meta();
        let normalised = serde_json::from_str::<Value>(object.json()).ok().and_then(|value| {
            let projection = Projection::of(&value, &desired.body, gvk);
            (!projection.holds(&desired.body, gvk)).then(|| projection.fingerprint())
        });
        self.applied().put(
            &pass.origin.plugin,
            &meta.uid,
            &desired.digest,
            meta.resource_version,
            normalised,
        );
    }
}

fn apply<'a>(kind: &'a Kind, desired: &'a Desired, body: &'a Value) -> Send<'a> {
    let action = Action::Apply { body, force: true };
    Send { right: Right::Child, kind, name: &desired.name, subresource: None, action, dry_run: false }
}

/// Whether a child is this plugin's below this primary.
pub(crate) fn is_child(object: &SharedObject, plugin: &PluginName, owner: &Uid) -> bool {
    let meta = object.meta();
    meta.label(LABEL) == Some(plugin.as_str())
        && meta.controller().is_some_and(|controller| controller.uid() == owner)
}

fn whose(
    live: Option<&SharedObject>,
    desired: &Desired,
    plugin: &PluginName,
    gvk: &Gvk,
    owner_kind: &Gvk,
    owner: &SharedObject,
) -> Result<Live, Failure> {
    let Some(live) = live else { return Ok(Live::Absent) };
    let meta = live.meta();
    if is_child(live, plugin, &owner.meta().uid) {
        return Ok(if meta.deleting { Live::Leaving } else { Live::Ours(SharedObject::clone(live)) });
    }
    let what = format!("{} {}", gvk.group_kind(), desired.name);
    let primary = format!("{} {}", owner_kind.group_kind(), owner.meta().name);
    let refuse = |why: &str| {
        Failure::permanent(
            code::CHILD_NOT_OWNED,
            "conflict",
            format!("{what} exists and is not a child of {primary}: {why}"),
        )
    };
    match meta.controller() {
        // Left over from the last life of the primary: the garbage collector is on its way to it.
        Some(controller)
            if controller.group_kind() == owner_kind.group_kind()
                && *controller.name() == *owner.meta().name.name
                && *controller.uid() != owner.meta().uid =>
        {
            let mut failure = refuse(
                "it still belongs to the deleted object of the same name; it is waited for until the garbage collector has taken it",
            );
            failure.transient = true;
            Err(failure)
        }
        Some(controller) if *controller.uid() != owner.meta().uid => Err(refuse(&format!(
            "it is controlled by {} {}; give the child another name",
            controller.group_kind(),
            controller.name()
        ))),
        Some(_) if meta.label(LABEL).is_some_and(|label| label != plugin.as_str()) => Err(refuse(&format!(
            "it is the child of plugin {} on the same object; give the child another name",
            meta.label(LABEL).unwrap_or_default()
        ))),
        // Our own, whose label another took away: a drift to repair.
        Some(_) if live.pointer(APPLIED_POINTER).is_some() && !meta.deleting => {
            Ok(Live::Ours(SharedObject::clone(live)))
        }
        _ if meta.deleting => {
            let mut failure = refuse("it is being deleted, and its end is waited for");
            failure.transient = true;
            Err(failure)
        }
        _ if desired.adopt => Ok(Live::Adopted(SharedObject::clone(live))),
        _ => Err(refuse(
            "it has no controller of ours; give the child another name, delete that object, or stage it with `adopt`",
        )),
    }
}

/// The names that a run wants, by kind.
pub(crate) fn wanted(
    children: &[(Arc<Kind>, &Child)],
    owner: &ObjectName,
) -> HashSet<(GroupKind, ObjectName)> {
    children
        .iter()
        .map(|(kind, child)| {
            let namespace = match kind.scope {
                Scope::Namespaced => child.name.namespace.clone().or_else(|| owner.namespace.clone()),
                Scope::Cluster => None,
            };
            (child.gvk.group_kind(), ObjectName { namespace, name: child.name.name.clone() })
        })
        .collect()
}
