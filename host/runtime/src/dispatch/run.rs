//! One turn of one key: deletion check → finalizer → run → commit → what comes next.

use std::time::Duration;

use reeve_cluster::commit::{CommitError, Unfinished, Work, error_id};
use reeve_core::failure::{Failure, Layer, code};
use reeve_core::object::SharedObject;
use reeve_core::plan::{Outcome, Plan, Wait};
use reeve_core::queue::{FailureRetry, Key, Settle, Settled, Ticket};
use reeve_core::read::ReadError;
use reeve_core::reason::Reason;
use reeve_sandbox::{Request, Role};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::guard::Ended;
use super::loops::After;
use super::{NOT_YET, Parts, overdue};
use crate::roster::Registration;

/// So many stale writes in a row are run again at once; then they are a transient failure.
const CONFLICTS_AT_ONCE: u32 = 3;

/// One turn.
pub(super) struct Turn<'a> {
    pub(super) parts: &'a Parts,
    pub(super) registration: &'a Registration,
    pub(super) key: &'a Key,
    pub(super) abort: &'a CancellationToken,
}

/// How a turn ended.
pub(super) enum End {
    /// Well, and there is nothing more to do.
    Done,
    /// Well, and the plugin asked to come back.
    After(Duration),
    /// Once more at once.
    Again(Reason),
    /// It could not begin, or not go on; nobody is to blame.
    Hold(Duration),
    /// The API server is away.
    Outage(Failure),
    /// Badly.
    Failed(Layer, Failure),
    /// The host stops.
    Aborted,
}

impl From<ReadError> for End {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotSynced(..) => Self::Hold(NOT_YET),
            error => Self::Failed(Layer::Host, Failure::permanent(code::HOST, "internal", error.to_string())),
        }
    }
}

impl Turn<'_> {
    /// Takes the turn, and says how the ticket is to be settled.
    pub(super) async fn take(&self, ticket: &Ticket) -> (Settle, End) {
        let plugin = self.key.plugin.as_str();
        let metrics = &self.parts.metrics;
        let began = Instant::now();
        metrics.active_workers.with_label_values(&[plugin]).inc();
        let end = self.turn(ticket).await;
        metrics.active_workers.with_label_values(&[plugin]).dec();
        metrics.reconcile_time.with_label_values(&[plugin]).observe(began.elapsed().as_secs_f64());
        let settle = match &end {
            End::Done => Settle::Done,
            End::After(delay) => Settle::After(*delay),
            End::Again(reason) => Settle::Again(*reason),
            End::Hold(delay) => Settle::Hold(*delay),
            End::Aborted => Settle::Again(Reason::Retry),
            End::Outage(_) => Settle::Failed { retry: FailureRetry::Outage },
            End::Failed(_, failure) if failure.transient => {
                Settle::Failed { retry: FailureRetry::Transient { retry_after: failure.retry_after } }
            }
            End::Failed(..) => Settle::Failed { retry: FailureRetry::Permanent },
        };
        (settle, end)
    }

    /// What is to be forgotten of a key that is well, before its next run can begin.
    pub(super) fn succeeded(&self, end: &End) {
        if matches!(end, End::Done | End::After(_)) {
            self.parts.failures.forget(self.key);
        }
        if !matches!(end, End::Failed(Layer::Broke, _) | End::Aborted | End::Hold(_)) {
            self.parts.guard.note(self.key, Ended::Whole);
        }
    }

    /// Counts and logs the end.
    pub(super) fn conclude(&self, end: End, settled: Settled) {
        let plugin = self.key.plugin.as_str();
        let metrics = &self.parts.metrics;
        let count = |result: &str| metrics.reconcile_total.with_label_values(&[plugin, result]).inc();
        match end {
            End::Done => {
                count("success");
                tracing::debug!("reconciled");
            }
            End::After(delay) => {
                count("requeue_after");
                tracing::debug!(
                    after_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
                    "reconciled, comes back"
                );
            }
            End::Again(reason) => {
                count("requeue");
                tracing::debug!(reason = reason.as_str(), "runs again");
            }
            End::Hold(_) | End::Aborted => self.parts.guard.abandoned(self.key),
            End::Outage(failure) => {
                count("error");
                metrics.reconcile_errors.with_label_values(&[plugin]).inc();
                metrics.failure(&self.key.plugin, Layer::Host, &failure);
                tracing::warn!(
                    code = failure.code,
                    category = failure.category,
                    error = failure.message,
                    next_ms = millis(settled.next),
                    "failed to reconcile: the API server is away; it is tried again and no attempt is counted"
                );
            }
            End::Failed(layer, failure) => {
                count("error");
                self.failed(layer, &failure, settled);
            }
        }
    }

    fn failed(&self, layer: Layer, failure: &Failure, settled: Settled) {
        let plugin = self.key.plugin.as_str();
        let metrics = &self.parts.metrics;
        metrics.reconcile_errors.with_label_values(&[plugin]).inc();
        metrics.failure(&self.key.plugin, layer, failure);
        if !failure.transient {
            metrics.terminal_errors.with_label_values(&[plugin]).inc();
        }
        match failure.code.as_str() {
            code::TRAP if layer == Layer::Broke => metrics.panics.with_label_values(&[plugin]).inc(),
            code::DEADLINE_EXCEEDED if layer == Layer::Broke => {
                metrics.timeouts.with_label_values(&[plugin]).inc();
            }
            _ => {}
        }
        if layer == Layer::Broke {
            self.parts.guard.note(self.key, Ended::Broke { next: settled.next });
        }
        let error_id = error_id(&self.key.plugin, &self.key.name, failure);
        tracing::warn!(
            code = failure.code,
            category = failure.category,
            severity = failure.severity,
            transient = failure.transient,
            error = failure.message,
            error_id,
            layer = ?layer,
            attempts = settled.attempts,
            stalled = settled.stalled,
            next_ms = millis(settled.next),
            "failed to reconcile"
        );
        self.parts.failures.note(self.key, failure, error_id, settled.attempts, settled.stalled);
    }

    async fn turn(&self, ticket: &Ticket) -> End {
        let registration = self.registration;
        if let Some(known) = registration.reader.held(&registration.primary, Some(&self.key.name)) {
            known.await;
        }
        let object = match registration.reader.get(&registration.primary, &self.key.name) {
            Ok(object) => object,
            Err(error) => return error.into(),
        };
        let turn = match object.clone() {
            None => self.gone(ticket).await,
            Some(object) if object.meta().deleting => self.tidy(ticket, object).await,
            Some(object) => self.advance(ticket, object).await,
        };
        if !matches!(turn, Err(CommitError::Conflict)) {
            self.parts.conflicts.lock().remove(self.key);
        }
        match turn {
            Ok(end) => end,
            Err(error) => {
                let end = self.not_committed(error);
                if let (End::Failed(_, failure), Some(object)) = (&end, &object) {
                    self.report(ticket, object, failure).await;
                }
                end
            }
        }
    }

    /// Shows a failure of the commit on the object.
    async fn report(&self, ticket: &Ticket, object: &SharedObject, failure: &Failure) {
        let (parts, registration) = (self.parts, self.registration);
        let attempts = ticket.attempt();
        let stalled = self.is_stalled(failure, attempts);
        let (grant, manifest) = (registration.grant(), registration.manifest());
        let reported = parts.committer.report(
            &parts.leading,
            ticket,
            grant,
            manifest,
            object,
            failure,
            attempts,
            stalled,
        );
        if let Err(error) = reported.await {
            tracing::debug!(%error, "failed to show the failure on the object");
        }
    }

    fn is_stalled(&self, failure: &Failure, attempts: u32) -> bool {
        failure.transient && attempts >= self.registration.manifest().retry.max_attempts
    }

    /// The primary is gone: the plugin runs once more if it wants to know.
    async fn gone(&self, ticket: &Ticket) -> Result<End, CommitError> {
        let reasons = ticket.reasons();
        let told = reasons.contains(Reason::Deleted) || ticket.attempt() > 1;
        if self.registration.manifest().primary.when_gone && told {
            self.call(ticket, Role::Reconcile, None).await
        } else {
            Ok(End::Done)
        }
    }

    /// The primary is being deleted: cleanup, then the finalizer goes.
    async fn tidy(&self, ticket: &Ticket, object: SharedObject) -> Result<End, CommitError> {
        if !object.meta().has_finalizer(&self.key.plugin.field_manager()) {
            return Ok(End::Done);
        }
        if self.registration.code.inspection().roles.cleanup {
            match self.call(ticket, Role::Cleanup, Some(&object)).await? {
                End::Done => {}
                end => return Ok(end),
            }
        }
        self.remove_finalizer(ticket, &object).await?;
        Ok(End::Done)
    }

    /// The primary lives: the finalizer is right before the first run.
    async fn advance(&self, ticket: &Ticket, mut object: SharedObject) -> Result<End, CommitError> {
        let parts = self.parts;
        let held = object.meta().has_finalizer(&self.key.plugin.field_manager());
        match (self.registration.code.inspection().roles.cleanup, held) {
            (true, false) => {
                object = parts
                    .committer
                    .add_finalizer(&parts.leading, ticket, self.registration.grant(), &object)
                    .await?;
            }
            (false, true) => {
                tracing::info!("the plugin no longer has a cleanup: its finalizer is released");
                self.remove_finalizer(ticket, &object).await?;
                match self.registration.reader.get(&self.registration.primary, &self.key.name) {
                    Ok(Some(fresh)) if fresh.meta().uid == object.meta().uid => object = fresh,
                    Ok(_) => return Ok(End::Done),
                    Err(error) => return Ok(error.into()),
                }
            }
            _ => {}
        }
        self.call(ticket, Role::Reconcile, Some(&object)).await
    }

    async fn remove_finalizer(&self, ticket: &Ticket, object: &SharedObject) -> Result<(), CommitError> {
        let parts = self.parts;
        parts.committer.remove_finalizer(&parts.leading, ticket, self.registration.grant(), object).await
    }

    /// Runs the guest and commits what it staged.
    async fn call(
        &self,
        ticket: &Ticket,
        role: Role,
        object: Option<&SharedObject>,
    ) -> Result<End, CommitError> {
        let (parts, registration) = (self.parts, self.registration);
        let request = Request {
            name: self.key.name.clone(),
            primary: object.cloned(),
            reasons: ticket.reasons(),
            attempt: ticket.attempt(),
            reader: registration.reader.clone(),
            config: registration.config.clone(),
            answers: parts.answers.get(self.key),
            cancel: self.abort.clone(),
        };
        let echo = parts.loops.begins(self.key, ticket.reasons());
        let mut outcome = registration.code.run(role, request).await;
        if self.abort.is_cancelled() && outcome.failure.is_some() {
            return Ok(End::Aborted);
        }
        if outcome.failure.is_none()
            && let Some(failure) = self.refuse_waits(&outcome.plan.waits)
        {
            outcome = refused(outcome, failure);
        }
        if outcome.failure.as_ref().is_none_or(|(layer, _)| *layer == Layer::Guest) {
            outcome.plan.conditions.extend(parts.loops.condition(self.key));
            if role == Role::Cleanup
                && let Some(object) = object
                && overdue::note(registration.manifest(), object, &mut outcome.plan)
            {
                parts.metrics.finalizers_overdue.with_label_values(&[self.key.plugin.as_str()]).inc();
            }
        }
        let attempts = if outcome.failure.is_some() { ticket.attempt() } else { 0 };
        let stalled = outcome.failure.as_ref().is_some_and(|(_, failure)| self.is_stalled(failure, attempts));
        let work = Work {
            manifest: registration.manifest(),
            primary: &self.key.name,
            object,
            outcome: &outcome,
            attempts,
            stalled,
        };
        let committed = parts.committer.commit(&parts.leading, ticket, registration.grant(), work).await;
        let committed = committed.map_err(|Unfinished { error, answers }| {
            parts.answers.add(self.key, answers);
            error
        });
        let committed = match (committed, outcome.failure) {
            // The run's own failure is what counts; that its status could not be written is a detail.
            (Err(error), Some((layer, failure))) if !matches!(error, CommitError::Conflict) => {
                tracing::debug!(%error, "failed to write the status of a failed run");
                return Ok(End::Failed(layer, failure));
            }
            (Err(error), _) => return Err(error),
            (Ok(_), Some((layer, failure))) => return Ok(End::Failed(layer, failure)),
            (Ok(committed), None) => committed,
        };
        parts.waits.set(self.key, &outcome.plan.waits);
        parts.answers.add(self.key, committed.answers);
        let after = parts.loops.ended(self.key, echo, committed.writes);
        Ok(match (committed.again, outcome.plan.requeue_after) {
            (Some(reason), _) => End::Again(reason),
            (None, _) if after == After::Over => End::Again(Reason::Retry),
            (None, Some(delay)) => End::After(delay),
            // A cleanup that waits is not done.
            (None, None) if role == Role::Cleanup && !outcome.plan.waits.is_empty() => {
                End::After(WAITING_CLEANUP)
            }
            (None, None) => End::Done,
        })
    }

    /// Why these waits are a failure, if they are.
    fn refuse_waits(&self, waits: &[Wait]) -> Option<Failure> {
        let refused = waits.iter().find(|wait| {
            let namespaces = self.registration.grant().read_namespaces(&wait.gvk);
            let inside =
                |namespace: &String| namespaces.as_ref().is_none_or(|some| some.contains(namespace.as_str()));
            !wait.namespace.as_ref().map_or(namespaces.is_none(), inside)
        });
        if let Some(wait) = refused {
            let place = wait.namespace.as_deref().unwrap_or("the whole cluster");
            let text = format!(
                "waiting for {} in {place} is outside of the host's ceiling; allow reading it with --allow",
                wait.gvk
            );
            return Some(Failure::permanent(code::NOT_GRANTED, "permission", text));
        }
        self.parts.waits.refuse(self.key, waits)
    }

    fn not_committed(&self, error: CommitError) -> End {
        match error {
            CommitError::Conflict => {
                let mut conflicts = self.parts.conflicts.lock();
                let count = conflicts.entry(self.key.clone()).or_default();
                *count += 1;
                if *count <= CONFLICTS_AT_ONCE {
                    return End::Again(Reason::Conflict);
                }
                conflicts.remove(self.key);
                let text = format!(
                    "a write was refused as stale {} times in a row; the object changes faster than it can be written",
                    CONFLICTS_AT_ONCE + 1
                );
                End::Failed(Layer::Host, Failure::transient(code::CONFLICT, "conflict", text))
            }
            // The cache learns of it in a moment, and then the key is routed anew.
            CommitError::Gone => End::Hold(NOT_YET),
            CommitError::Denied(_) | CommitError::Failed(_) => End::Failed(Layer::Host, error.failure()),
            CommitError::Lost(_) => End::Outage(error.failure()),
            CommitError::Outage(failure) => End::Outage(failure),
        }
    }
}

/// A cleanup that waits for something is looked at again after this, should its wait be forgotten.
const WAITING_CLEANUP: Duration = Duration::from_mins(10);

/// The outcome of a run whose waits are refused: what a failure of the guest may still tell.
fn refused(outcome: Outcome, failure: Failure) -> Outcome {
    let Outcome { plan, usage, .. } = outcome;
    let Plan { status, conditions, events, .. } = plan;
    let plan = Plan { status, conditions, events, ..Plan::default() };
    Outcome { plan, failure: Some((Layer::Guest, failure)), usage }
}

fn millis(delay: Option<Duration>) -> Option<u64> {
    delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX))
}
