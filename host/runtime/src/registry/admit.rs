//! From a loaded version to one that could serve: grant, link, probe, watches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;

use reeve_cluster::cache::{View, ViewKind};
use reeve_cluster::watch::{Namespaces, StreamSpec, StreamState, Subscription};
use reeve_cluster::{Cluster, Committer};
use reeve_core::grant::{Ceiling, Denied, Grant, Verb};
use reeve_core::gvk::{Gvk, Scope};
use reeve_core::labels::{InvalidSelector, Selector};
use reeve_core::manifest::{Manifest, WriteAccess};
use reeve_core::read::Reader;
use reeve_sandbox::{Loaded, Reject, Sandbox};

use super::former;
use crate::metrics::Metrics;
use crate::roster::Registration;
use crate::router::{Fields, InvalidFields, Route, Target};
use crate::source::SourceId;

/// The pause before a kind that is watched but not known to discovery is looked up again.
const RESOLVE_AGAIN: Duration = Duration::from_millis(500);

/// What admissions go by. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Admission {
    pub(crate) sandbox: Sandbox,
    pub(crate) cluster: Cluster,
    pub(crate) committer: Committer,
    pub(crate) ceiling: Arc<Ceiling>,
    /// Empty means all.
    pub(crate) namespaces: Arc<BTreeSet<Arc<str>>>,
    pub(crate) metrics: Metrics,
}

impl From<Reject> for AdmitError {
    fn from(reject: Reject) -> Self {
        Self::Reject(Box::new(reject))
    }
}

/// Why a version that could be loaded does not come into service.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdmitError {
    /// It wants more than the host's ceiling allows.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Denied(Vec<Denied>),
    /// It does not link, or no instance comes up.
    #[error(transparent)]
    Reject(Box<Reject>),
    /// A selector that the host cannot evaluate.
    #[error("watch {watch:?}: {reason}")]
    Selector { watch: String, reason: String },
}

impl Admission {
    /// Takes all steps; `tell` is told what is waited for, and the empty list when it came.
    pub(crate) async fn admit<F: Future<Output = ()>>(
        &self,
        loaded: &Loaded,
        source: SourceId,
        number: u64,
        tell: impl Fn(Vec<String>) -> F,
    ) -> Result<Registration, AdmitError> {
        let manifest = loaded.manifest();
        let cleanup = loaded.inspection().roles.cleanup;
        let grant = Arc::new(Grant::effective(manifest, cleanup, &self.ceiling).map_err(AdmitError::Denied)?);
        tracing::info!(plugin = %manifest.name, version = manifest.version, may = %grant.lines().join("; "), "grant");
        let code = self.sandbox.link(loaded, Arc::clone(&grant))?;
        code.probe().await?;
        self.metrics
            .compile_seconds
            .with_label_values(&[manifest.name.as_str()])
            .set(loaded.compile_time().as_secs_f64());

        let specs = self.specs(manifest, &grant)?;
        let indexes = manifest
            .indexes
            .iter()
            .map(|index| self.cluster.add_index(&index.gvk(), &index.pointer))
            .collect();
        let watches: Vec<_> = specs.iter().map(|spec| self.cluster.watch(spec)).collect();
        synced(&watches, &specs, &tell).await;
        let primary = manifest.primary.gvk();
        let scope = self.scope(&primary, &tell).await;
        let former = former::open(&self.cluster, &self.committer, manifest, &self.namespaces).await;
        let former = Mutex::new(former);
        let reader = self.cluster.reader(view(manifest, &specs));
        let routes = routes(manifest, &grant, scope, &specs, &reader)?;
        let alive = self.metrics.alive(&manifest.name, number);
        let config = "null".into();
        Ok(Registration {
            code,
            source,
            number,
            primary,
            scope,
            reader,
            config,
            routes,
            watches,
            former,
            indexes,
            alive,
        })
    }

    /// What is watched: the primary's spec first, then those of the watches in their order.
    fn specs(&self, manifest: &Manifest, grant: &Grant) -> Result<Vec<StreamSpec>, AdmitError> {
        let primary = &manifest.primary;
        let own = ("primary", primary.gvk(), &primary.labels, &primary.fields, false);
        let watched = manifest.watches.iter();
        let watched = watched
            .map(|watch| (watch.name(), watch.gvk(), &watch.labels, &watch.fields, watch.metadata_only));
        std::iter::once(own)
            .chain(watched)
            .map(|(name, gvk, labels, fields, metadata_only)| {
                let labels = labels.as_ref().map(|text| text.parse::<Selector>()).transpose();
                let refuse = |error: InvalidSelector| AdmitError::Selector {
                    watch: name.to_owned(),
                    reason: error.to_string(),
                };
                Ok(StreamSpec {
                    namespaces: self.namespaces(grant, &gvk),
                    labels: labels.map_err(refuse)?.unwrap_or_default(),
                    fields: fields.as_deref().map(Into::into),
                    metadata_only,
                    managed_fields: manifest.managed_fields,
                    gvk,
                })
            })
            .collect()
    }

    /// What the host is told to look at, within what the ceiling allows.
    fn namespaces(&self, grant: &Grant, gvk: &Gvk) -> Namespaces {
        match (self.namespaces.is_empty(), grant.read_namespaces(gvk)) {
            (true, None) => Namespaces::All,
            (true, Some(allowed)) => Namespaces::Only(allowed),
            (false, None) => Namespaces::Only((*self.namespaces).clone()),
            (false, Some(allowed)) => {
                Namespaces::Only(self.namespaces.intersection(&allowed).cloned().collect())
            }
        }
    }

    async fn scope<F: Future<Output = ()>>(&self, gvk: &Gvk, tell: &impl Fn(Vec<String>) -> F) -> Scope {
        loop {
            match self.cluster.discovery().resolve(gvk).await {
                Ok(kind) => return kind.scope,
                Err(error) => tell(vec![error.to_string()]).await,
            }
            tokio::time::sleep(RESOLVE_AGAIN).await;
        }
    }
}

/// Ends when every watch has its first list, and tells what is wrong in the meantime.
async fn synced<F: Future<Output = ()>>(
    watches: &[Subscription],
    specs: &[StreamSpec],
    tell: &impl Fn(Vec<String>) -> F,
) {
    let mut told = Vec::new();
    let mut states: Vec<_> = watches.iter().map(Subscription::changed).collect();
    loop {
        let now: Vec<_> = states.iter_mut().map(|state| state.borrow_and_update().clone()).collect();
        if now.iter().all(|state| *state == StreamState::Live) {
            if !told.is_empty() {
                tell(Vec::new()).await;
            }
            return;
        }
        let waits: Vec<String> = now
            .into_iter()
            .zip(specs)
            .filter_map(|(state, spec)| match state {
                StreamState::Pending { why } | StreamState::Broken { why } => {
                    Some(format!("the watch of {} is not up to date: {why}", spec.gvk))
                }
                StreamState::Listing | StreamState::Live => None,
            })
            .collect();
        // A stream that is being listed again after it was pending says nothing new.
        if !waits.is_empty() && waits != told {
            told.clone_from(&waits);
            tell(waits).await;
        }
        // An error would mean that a subscription went, and all are held here.
        let (_changed, _, _) =
            futures::future::select_all(states.iter_mut().map(|state| state.changed().boxed())).await;
    }
}

fn view(manifest: &Manifest, specs: &[StreamSpec]) -> View {
    let mut kinds: BTreeMap<Gvk, ViewKind> = BTreeMap::new();
    for spec in specs {
        let kind = kinds.entry(spec.gvk.clone()).or_insert_with(|| {
            let indexes = manifest.indexes.iter().filter(|index| index.gvk() == spec.gvk);
            let indexes =
                indexes.map(|index| (index.name.as_str().into(), index.pointer.as_str().into())).collect();
            ViewKind { specs: Vec::new(), indexes }
        });
        kind.specs.push(spec.clone());
    }
    View { plugin: manifest.name.clone(), kinds }
}

fn routes(
    manifest: &Manifest,
    grant: &Grant,
    scope: Scope,
    specs: &[StreamSpec],
    reader: &Arc<dyn Reader>,
) -> Result<Vec<Arc<Route>>, AdmitError> {
    let primary = manifest.primary.gvk();
    let writes_primary = |write: &WriteAccess| {
        write.gvk().group_kind() == primary.group_kind()
            && (write.verbs.contains(&Verb::Patch) || write.verbs.contains(&Verb::Apply))
    };
    let target = Target::Primary {
        when_gone: manifest.primary.when_gone,
        writes_metadata: manifest.writes.iter().any(writes_primary),
    };
    let own = ("primary", &manifest.primary.predicate, target);
    let watched = manifest.watches.iter().map(|watch| {
        let target = Target::Related(watch.name().into(), watch.relation.clone());
        (watch.name(), &watch.predicate, target)
    });
    std::iter::once(own)
        .chain(watched)
        .zip(specs)
        .map(|((name, predicate, target), spec)| {
            let fields = spec.fields.as_ref().map(|text| text.parse::<Fields>()).transpose();
            let refuse = |error: InvalidFields| AdmitError::Selector {
                watch: name.to_owned(),
                reason: error.to_string(),
            };
            Ok(Arc::new(Route {
                plugin: grant.plugin().clone(),
                gvk: spec.gvk.clone(),
                primary: primary.clone(),
                scope,
                namespaces: spec.namespaces.clone(),
                labels: spec.labels.clone(),
                fields: fields.map_err(refuse)?,
                predicate: predicate.clone(),
                target,
                reader: Arc::clone(reader),
            }))
        })
        .collect()
}
