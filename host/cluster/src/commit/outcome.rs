//! What an outcome asks for, in its order: children → prune → other writes → status → events.

use std::collections::BTreeSet;
use std::sync::Arc;

use reeve_core::failure::{Failure, Layer, code};
use reeve_core::grant::{Verb, WriteRequest};
use reeve_core::gvk::{Gvk, Kind};
use reeve_core::ids::ObjectName;
use reeve_core::manifest::{Manifest, Watch};
use reeve_core::object::SharedObject;
use reeve_core::plan::{Child, Condition, Event, Plan};
use serde_json::{Map, Value};

use super::children::wanted;
use super::conditions::{STALLED, Verdict, error_id, is_of_the_host};
use super::request::{Pass, REQUEST_LIMIT};
use super::status::{StatusDone, Wanted};
use super::{CommitError, Committer, Work};
use crate::events::Regarding;

/// A failure to record.
#[derive(Clone, Copy)]
pub(super) struct Failed<'a> {
    pub(super) failure: &'a Failure,
    pub(super) attempts: u32,
    pub(super) stalled: bool,
    /// The generation that the run read.
    pub(super) generation: u64,
    /// What a guest that failed had staged.
    pub(super) staged: Option<&'a Plan>,
}

impl Committer {
    pub(super) async fn commit_outcome(&self, pass: &Pass<'_>, work: &Work<'_>) -> Result<(), CommitError> {
        // Before anything else, so that a host without the right to write does not even look.
        pass.leading.check(REQUEST_LIMIT)?;
        let object =
            work.object.map(|read| self.same_life(&work.manifest.primary.gvk(), read)).transpose()?;
        let plan = &work.outcome.plan;
        match (&work.outcome.failure, &object) {
            (None, _) => self.commit_plan(pass, work, object.as_ref()).await,
            (Some((layer, failure)), Some(object)) => {
                let staged = (*layer == Layer::Guest).then_some(plan);
                let generation = work.object.map_or(0, |read| read.meta().generation);
                let (attempts, stalled) = (work.attempts, work.stalled);
                let failed = Failed { failure, attempts, stalled, generation, staged };
                self.record_failure(pass, work.manifest, object, failed).await
            }
            (Some(_), None) => Ok(()),
        }
    }

    async fn commit_plan(
        &self,
        pass: &Pass<'_>,
        work: &Work<'_>,
        object: Option<&SharedObject>,
    ) -> Result<(), CommitError> {
        let plan = &work.outcome.plan;
        let primary = work.manifest.primary.gvk();
        let kind = self.door().resolve(&primary).await?;
        let spoken = plan.status.is_some() || !plan.conditions.iter().all(is_of_the_host);
        if spoken && !kind.has_subresource("status") {
            return Err(CommitError::Failed(no_status(&primary)));
        }
        let mut children: Vec<(Arc<Kind>, &Child)> = Vec::with_capacity(plan.children.len());
        for child in &plan.children {
            // All are checked before one is sent.
            if let Some(grant) = pass.grant {
                let asked =
                    WriteRequest { verb: Verb::Apply, gvk: &child.gvk, subresource: None, name: &child.name };
                grant.check_child(&asked)?;
            }
            children.push((self.door().resolve(&child.gvk).await?, child));
        }
        // Nothing is made for a primary that is gone.
        if let Some(object) = object {
            if !children.is_empty() {
                self.remember(pass, &owned_kinds(work.manifest)).await?;
                self.apply_children(pass, &children, &primary, object).await?;
            }
            if plan.complete {
                let mut kinds = self.inner.kinds.known(&pass.origin.plugin);
                kinds.append(&mut owned_kinds(work.manifest));
                self.prune(pass, &kinds, &wanted(&children, &object.meta().name), &object.meta().uid).await?;
            }
        }
        self.carry_out(pass, &plan.writes, &primary, object).await?;
        if let Some(object) = object {
            let done = if kind.has_subresource("status") {
                let wanted = Wanted {
                    strategy: work.manifest.status,
                    patch: plan.status.as_ref(),
                    conditions: &plan.conditions,
                    verdict: Verdict::Succeeded,
                    generation: work.object.map_or(0, |read| read.meta().generation),
                };
                let current = self.newest(&primary, object);
                self.write_status(pass, &kind, &current, &wanted).await?
            } else {
                let state = (!plan.conditions.is_empty()).then(|| format!("{:?}", plan.conditions));
                self.told_or_not(&pass.origin.plugin, object, state.as_deref())
            };
            if done == StatusDone::WithoutConditions {
                self.tell_conditions(pass, &primary, object, &plan.conditions);
            }
        }
        self.emit(pass, &primary, work.primary, object, &plan.events);
        Ok(())
    }

    /// Staged status and events of a guest's failure, and the host's conditions of any failure.
    pub(super) async fn record_failure(
        &self,
        pass: &Pass<'_>,
        manifest: &Manifest,
        object: &SharedObject,
        failed: Failed<'_>,
    ) -> Result<(), CommitError> {
        let primary = manifest.primary.gvk();
        let Failed { failure, attempts, stalled, generation, staged } = failed;
        let plugin = &pass.origin.plugin;
        let id = error_id(plugin, &object.meta().name, failure);
        let kind = self.door().resolve(&primary).await?;
        let nothing: (Option<&Map<String, Value>>, &[Condition], &[Event]) = (None, &[], &[]);
        let (patch, conditions, events) =
            staged.map_or(nothing, |plan: &Plan| (plan.status.as_ref(), &plan.conditions, &plan.events));
        let done = if kind.has_subresource("status") {
            let verdict =
                Verdict::Failed { failure, id: &id, stalled, exhausted: manifest.retry.on_exhausted };
            let wanted = Wanted { strategy: manifest.status, patch, conditions, verdict, generation };
            let current = self.newest(&primary, object);
            self.write_status(pass, &kind, &current, &wanted).await?
        } else {
            let state = if stalled { format!("{id} stalled") } else { id.clone() };
            self.told_or_not(plugin, object, Some(&state))
        };
        let mut events = events.to_vec();
        let broke = matches!(
            &*failure.code,
            code::TRAP | code::OUT_OF_MEMORY | code::DEADLINE_EXCEEDED | code::LIMIT_EXCEEDED
        );
        if stalled || broke || done == StatusDone::WithoutConditions {
            events.push(Event {
                warning: true,
                reason: if stalled { STALLED.to_owned() } else { failure.code.clone() },
                action: "Reconcile".to_owned(),
                note: format!("{} (error id {id})", failure.message),
            });
        }
        tracing::debug!(%plugin, object = %object.meta().name, code = %failure.code, error_id = %id, attempts, stalled, "a failure was recorded");
        self.emit(pass, &primary, &object.meta().name, Some(object), &events);
        Ok(())
    }

    /// Conditions of a kind that keeps none, told as events.
    fn tell_conditions(
        &self,
        pass: &Pass<'_>,
        primary: &Gvk,
        object: &SharedObject,
        conditions: &[Condition],
    ) {
        let events: Vec<Event> = conditions
            .iter()
            .map(|condition| Event {
                warning: false,
                reason: condition.reason.clone(),
                action: "Reconcile".to_owned(),
                note: format!("{}={}: {}", condition.kind, condition.status.as_str(), condition.message),
            })
            .collect();
        self.emit(pass, primary, &object.meta().name, Some(object), &events);
    }

    fn emit(
        &self,
        pass: &Pass<'_>,
        primary: &Gvk,
        name: &ObjectName,
        object: Option<&SharedObject>,
        events: &[Event],
    ) {
        for event in events {
            let regarding = Regarding {
                gvk: primary.clone(),
                name: name.clone(),
                uid: object.map(|object| object.meta().uid.clone()),
                version: object.map(|object| object.meta().resource_version),
            };
            self.inner.events.emit(pass.leading, Some(&pass.origin.plugin), regarding, event.clone());
        }
    }
}

/// The kinds that the plugin's manifest declares as children.
fn owned_kinds(manifest: &Manifest) -> BTreeSet<Gvk> {
    manifest.watches.iter().filter(|watch| watch.relation.is_owned()).map(Watch::gvk).collect()
}

fn no_status(primary: &Gvk) -> Failure {
    Failure::permanent(
        code::NO_STATUS_SUBRESOURCE,
        "validation",
        format!(
            "{} has no status subresource, so neither status nor conditions can be staged; add `subresources: {{status: {{}}}}` to its CustomResourceDefinition, or emit events",
            primary.group_kind()
        ),
    )
}
