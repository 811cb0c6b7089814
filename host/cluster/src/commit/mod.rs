//! Commit: the only writer to the API server.
//!
//! A run stages a [`Plan`](reeve_core::plan::Plan); [`Committer::commit`] brings it to the cluster:
//! children → prune → other writes → status and conditions in one request → events. Everything
//! that would change nothing is left out. Whoever calls holds a [`Leading`], the [`Ticket`] of the
//! key and the plugin's [`Grant`]; every request passes the door in `request.rs`.
//!
//! Invariants: nothing is sent without the right to write at that moment; no child is
//! created for a primary that is gone or being deleted, nor anything that a run staged while the
//! primary lived; every write to the primary carries its UID or the
//! version that the run saw; a run that failed changes nothing but status and events.

mod answer;
mod children;
pub(crate) mod conditions;
mod contains;
mod desired;
mod diff;
mod finalizer;
mod kinds;
mod memory;
mod metrics;
mod outcome;
mod prune;
mod refusal;
pub(crate) mod request;
mod status;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reeve_core::change::Origin;
use reeve_core::failure::{Failure, code};
use reeve_core::grant::{Denied, Grant};
use reeve_core::gvk::{Gvk, Kind};
use reeve_core::ids::{ObjectName, PluginName};
use reeve_core::leading::{Leading, LostLease};
use reeve_core::manifest::Manifest;
use reeve_core::object::SharedObject;
use reeve_core::plan::Outcome;
use reeve_core::queue::Ticket;
use reeve_core::reason::Reason;
use serde_json::Value;
use tokio::time::Instant;

pub use self::conditions::{OF_THE_HOST, RECONCILED, STALLED, error_id};
use self::kinds::KindMemory;
use self::memory::Memory;
use self::metrics::CommitMetrics;
use self::outcome::Failed;
pub use self::request::REQUEST_LIMIT;
use self::request::{Door, Pass, WriteError};
use self::status::Lacking;
use crate::cluster::Cluster;
use crate::events::Events;

/// The label of every child: its value is the plugin's name.
pub const LABEL: &str = "reeve.dev/plugin";
/// The annotation of every child: the digest of what was applied last.
pub const APPLIED: &str = "reeve.dev/applied";
/// [`APPLIED`] as a pointer into an object.
const APPLIED_POINTER: &str = "/metadata/annotations/reeve.dev~1applied";
/// How long a whole commit may take (feature D3).
pub const COMMIT_LIMIT: Duration = Duration::from_mins(1);
/// How often a write to the primary is tried on a fresh object before the key is run again: with
/// two writers the second try succeeds nearly always.
const TRIES: usize = 4;

/// Commits plans. Cheap to clone.
#[derive(Clone)]
pub struct Committer {
    inner: Arc<Inner>,
    namespace: Arc<str>,
}

struct Inner {
    door: Arc<Door>,
    applied: Memory,
    statuses: Memory,
    /// Conditions that were told as events, because the kind keeps none.
    told: Memory,
    lacking: Lacking,
    kinds: KindMemory,
    events: Events,
}

/// One run and what it came to.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// The plugin's manifest.
    pub manifest: &'a Manifest,
    /// The key.
    pub primary: &'a ObjectName,
    /// The primary as the run read it; `None` when it was gone.
    pub object: Option<&'a SharedObject>,
    /// What the run staged, or how it failed.
    pub outcome: &'a Outcome,
    /// Failures so far, including this one.
    pub attempts: u32,
    /// Whether the object had its last attempt.
    pub stalled: bool,
}

/// What a commit did. Its `Debug` names the answers but does not show them: they may be tokens.
#[derive(Clone, Default, PartialEq)]
pub struct Committed {
    /// Write requests sent.
    pub writes: u32,
    /// Writes left out because nothing was to change.
    pub skipped: u32,
    /// The answers of writes with an id, for the run that follows.
    pub answers: BTreeMap<String, Value>,
    /// `Some` when the key is to be run again at once.
    pub again: Option<Reason>,
}

/// A commit that ended early, with what it did until then. Its `Debug` names the answers but does
/// not show them: they may be tokens.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Unfinished {
    /// Why it ended.
    #[source]
    pub error: CommitError,
    /// The answers of the writes with an id that were sent before: the run that follows needs them,
    /// or it would make the same objects again. Empty when the object's life is over.
    pub answers: BTreeMap<String, Value>,
}

/// Why a commit ended early. What was sent before stays; the next run finds it done.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Something changed under the plan: refresh and run again, three times at once at most.
    #[error("an object changed while the plan was made")]
    Conflict,
    /// The primary is gone, replaced, or on its way out: the plan is dropped, the key run again.
    #[error("the object that the plan was made for is gone")]
    Gone,
    /// The plan asks for more than the plugin was granted.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The right to write has ended.
    #[error(transparent)]
    Lost(#[from] LostLease),
    /// The API server refused, or the host did.
    #[error(transparent)]
    Failed(Failure),
    /// The API server is away, or its answer is: no failure of the object.
    #[error(transparent)]
    Outage(Failure),
}

impl From<WriteError> for CommitError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Lost(lost) => Self::Lost(lost),
            WriteError::Denied(denied) => Self::Denied(denied),
            WriteError::Outage(failure) => Self::Outage(failure),
            WriteError::Refused(refusal, _) if refusal.is_conflict() || refusal.is_other_life() => {
                Self::Conflict
            }
            WriteError::Refused(refusal, failure) if refusal.is_outage() => Self::Outage(failure),
            WriteError::Refused(_, failure) | WriteError::Unusable(failure) => Self::Failed(failure),
        }
    }
}

impl std::fmt::Debug for Committed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Committed")
            .field("writes", &self.writes)
            .field("skipped", &self.skipped)
            .field("answers", &self.answers.keys())
            .field("again", &self.again)
            .finish()
    }
}

impl std::fmt::Debug for Unfinished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unfinished")
            .field("error", &self.error)
            .field("answers", &self.answers.keys())
            .finish()
    }
}

impl CommitError {
    /// As it is reported, logged and put into a condition.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Conflict => Failure::transient(code::CONFLICT, "conflict", self.to_string()),
            Self::Gone => Failure::transient(code::CONFLICT, "not-found", self.to_string()),
            Self::Denied(denied) => Failure::permanent(code::NOT_GRANTED, "permission", denied.to_string()),
            Self::Lost(lost) => Failure::transient(code::ABORTED, "internal", lost.to_string()),
            Self::Failed(failure) | Self::Outage(failure) => failure.clone(),
        }
    }
}

impl Committer {
    /// Over a cluster. The host's own objects are kept in the connection's default namespace
    /// (in a cluster: the pod's) unless [`Self::in_namespace`] says otherwise.
    pub fn new(cluster: Cluster, registry: &prometheus::Registry) -> Result<Self, prometheus::Error> {
        let namespace = cluster.connection().default_namespace().into();
        let metrics = CommitMetrics::new(registry)?;
        let door = Arc::new(Door::new(cluster, metrics));
        let events = Events::new(Arc::clone(&door));
        Ok(Self {
            inner: Arc::new(Inner {
                door,
                applied: Memory::default(),
                statuses: Memory::default(),
                told: Memory::default(),
                lacking: Lacking::default(),
                kinds: KindMemory::default(),
                events,
            }),
            namespace,
        })
    }

    /// With the host's own objects in this namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// The events that go beside commits; its `run` must be spawned for them to leave.
    pub fn events(&self) -> &Events {
        &self.inner.events
    }

    /// Forgets what is remembered of a plugin that was removed.
    pub fn forget(&self, plugin: &PluginName) {
        self.inner.applied.forget(plugin);
        self.inner.statuses.forget(plugin);
        self.inner.told.forget(plugin);
        self.inner.kinds.forget(plugin);
    }

    /// Brings what a run staged to the cluster.
    pub async fn commit(
        &self,
        leading: &Leading,
        ticket: &Ticket,
        grant: &Grant,
        work: Work<'_>,
    ) -> Result<Committed, Unfinished> {
        let origin = origin(ticket);
        let pass = Pass::new(leading, Some(grant), &origin);
        let result = self.timed(&pass, self.commit_outcome(&pass, &work)).await;
        let (writes, skipped) = (pass.sent.load(Ordering::Relaxed), pass.skipped.load(Ordering::Relaxed));
        let answers = pass.answers.into_inner();
        match result {
            Ok(()) => {
                let again = (!answers.is_empty()).then_some(Reason::Answer);
                Ok(Committed { writes, skipped, answers, again })
            }
            // Another life of the object has nothing to do with what this one asked for. An object
            // on its way out has: its cleanup may need the name of what was made.
            Err(error @ CommitError::Gone) if !self.lives(&work) => {
                Err(Unfinished { error, answers: BTreeMap::new() })
            }
            Err(error) => Err(Unfinished { error, answers }),
        }
    }

    /// Puts the plugin's finalizer on the primary: one request, or none when it is there.
    pub async fn add_finalizer(
        &self,
        leading: &Leading,
        ticket: &Ticket,
        grant: &Grant,
        object: &SharedObject,
    ) -> Result<SharedObject, CommitError> {
        let origin = origin(ticket);
        let pass = Pass::new(leading, Some(grant), &origin);
        self.timed(&pass, async {
            if object.meta().deleting {
                return Err(CommitError::Gone);
            }
            let kind = self.door().resolve(grant.primary()).await?;
            self.patch_finalizers(&pass, object, &kind, true).await?.ok_or(CommitError::Gone)
        })
        .await
    }

    /// Takes the plugin's finalizer off the primary. An object that is gone is fine.
    pub async fn remove_finalizer(
        &self,
        leading: &Leading,
        ticket: &Ticket,
        grant: &Grant,
        object: &SharedObject,
    ) -> Result<(), CommitError> {
        let origin = origin(ticket);
        let pass = Pass::new(leading, Some(grant), &origin);
        self.timed(&pass, async {
            let kind = self.door().resolve(grant.primary()).await?;
            self.patch_finalizers(&pass, object, &kind, false).await.map(drop)
        })
        .await
    }

    /// Shows a failure that did not come with an [`Outcome`] (a commit's, the host's) on the
    /// primary: condition `Reconciled`=False, `Stalled` after the last attempt. The same failure
    /// again costs no request.
    #[expect(
        clippy::too_many_arguments,
        reason = "the proofs and the facts of one call; a struct would be used once"
    )]
    pub async fn report(
        &self,
        leading: &Leading,
        ticket: &Ticket,
        grant: &Grant,
        manifest: &Manifest,
        object: &SharedObject,
        failure: &Failure,
        attempts: u32,
        stalled: bool,
    ) -> Result<Committed, CommitError> {
        let origin = origin(ticket);
        let pass = Pass::new(leading, Some(grant), &origin);
        self.timed(&pass, async {
            let generation = object.meta().generation;
            let failed = Failed { failure, attempts, stalled, generation, staged: None };
            self.record_failure(&pass, manifest, object, failed).await?;
            Ok(Committed {
                writes: pass.sent.load(Ordering::Relaxed),
                skipped: pass.skipped.load(Ordering::Relaxed),
                ..Committed::default()
            })
        })
        .await
    }

    async fn timed<T>(
        &self,
        pass: &Pass<'_>,
        work: impl Future<Output = Result<T, CommitError>>,
    ) -> Result<T, CommitError> {
        let started = Instant::now();
        let result = tokio::time::timeout(COMMIT_LIMIT, work).await.unwrap_or_else(|_| {
            let text = format!(
                "the commit did not end within {} s, the API server is too slow",
                COMMIT_LIMIT.as_secs()
            );
            Err(CommitError::Outage(Failure::transient(code::API_UNAVAILABLE, "network", text)))
        });
        let seconds = self.door().metrics.seconds.with_label_values(&[pass.origin.plugin.as_str()]);
        seconds.observe(started.elapsed().as_secs_f64());
        result
    }

    /// The primary as the cache has it now, if it still is what the run was about.
    fn same_life(&self, gvk: &Gvk, read: &SharedObject) -> Result<SharedObject, CommitError> {
        let cache = self.door().cluster.cache();
        let meta = read.meta();
        match cache.get(gvk, &meta.name) {
            Some(now) if now.meta().uid != meta.uid || (now.meta().deleting && !meta.deleting) => {
                Err(CommitError::Gone)
            }
            Some(now) if now.meta().resource_version >= meta.resource_version => Ok(now),
            None if cache.covers(gvk, &meta.name) => Err(CommitError::Gone),
            _ => Ok(SharedObject::clone(read)),
        }
    }

    /// Whether the cache still has the primary that the run read.
    fn lives(&self, work: &Work<'_>) -> bool {
        let now = self.door().cluster.cache().get(&work.manifest.primary.gvk(), work.primary);
        work.object.zip(now).is_some_and(|(read, now)| now.meta().uid == read.meta().uid)
    }

    /// The same life in its newest known version.
    fn newest(&self, gvk: &Gvk, object: &SharedObject) -> SharedObject {
        let meta = object.meta();
        let newer = self.door().cluster.cache().get(gvk, &meta.name);
        newer
            .filter(|now| now.meta().uid == meta.uid && now.meta().resource_version > meta.resource_version)
            .unwrap_or_else(|| SharedObject::clone(object))
    }

    /// A version after `current`: the cache's if it has one, else the server's. `Ok(None)`: gone.
    async fn fresher(
        &self,
        pass: &Pass<'_>,
        kind: &Kind,
        current: &SharedObject,
    ) -> Result<Option<SharedObject>, CommitError> {
        let name = &current.meta().name;
        if let Some(cached) = self.door().cluster.cache().get(&kind.gvk, name)
            && cached.meta().resource_version > current.meta().resource_version
        {
            return Ok(Some(cached));
        }
        Ok(self.door().refresh(pass, kind, name).await?)
    }

    fn door(&self) -> &Door {
        &self.inner.door
    }

    fn applied(&self) -> &Memory {
        &self.inner.applied
    }

    fn statuses(&self) -> &Memory {
        &self.inner.statuses
    }

    fn told(&self) -> &Memory {
        &self.inner.told
    }

    fn lacking(&self) -> &Lacking {
        &self.inner.lacking
    }

    fn kinds(&self) -> &KindMemory {
        &self.inner.kinds
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }
}

fn origin(ticket: &Ticket) -> Origin {
    Origin { plugin: ticket.key().plugin.clone(), primary: ticket.key().name.clone() }
}

/// The time as `metav1.Time` writes it.
fn now() -> String {
    let now = k8s_openapi::jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
