//! The swap line: bytes come in, a version comes into service, or is refused and changes nothing.
//!
//! Per place (a file, a ConfigMap): load (inspect, compile, describe) → claim the name → admit
//! (grant, link, probe, open and sync watches and indexes) → swap the roster → queue all objects.
//! Steps of one place follow one another, places go on side by side, and newer bytes of a place end
//! the way of older ones that are not in service yet.
//!
//! Invariants: a version is in the roster only after every step succeeded, so a bad one displaces
//! nothing. Bytes that were refused are not tried again. One name is served from one place.

mod admit;
mod finalizers;
pub(crate) mod former;
mod notice;
mod place;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use reeve_cluster::Committer;
use reeve_core::ids::{Digest, PluginName};
use reeve_core::queue::{LaneConfig, Queue};
use reeve_core::reason::Reason;
use reeve_sandbox::{Loaded, Reject, Sandbox};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::dispatch::Dispatch;
use crate::enqueue;
use crate::mapper::Mapper;
use crate::metrics::Metrics;
use crate::roster::{Registration, SharedRoster, Slot};
use crate::source::{Again, Artifact, SourceEvent, SourceId};

use place::{Next, Place, Way, load};

pub(crate) use admit::{Admission, AdmitError};
pub use former::Former;
pub(crate) use notice::Notices;
pub use view::{NextView, PlaceView, Published, Views};

/// Progress reports of admissions on their way; a report more waits.
const PROGRESS: usize = 16;

/// What the registry works with.
pub(crate) struct Parts {
    pub(crate) sandbox: Sandbox,
    pub(crate) committer: Committer,
    pub(crate) queue: Queue,
    pub(crate) roster: SharedRoster,
    pub(crate) dispatch: Dispatch,
    pub(crate) mapper: Mapper,
    pub(crate) metrics: Metrics,
    pub(crate) again: Again,
    pub(crate) admission: Admission,
    pub(crate) notices: Notices,
    pub(crate) views: Views,
    /// How many sources tell when they have looked at everything.
    pub(crate) sources: usize,
}

/// The owner of all places and names.
pub(crate) struct Registry {
    parts: Parts,
    places: BTreeMap<SourceId, Place>,
    names: BTreeMap<PluginName, SourceId>,
    steps: JoinSet<Step>,
    progress: mpsc::Receiver<Progress>,
    report: mpsc::Sender<Progress>,
    ways: u64,
    versions: u64,
    listed: usize,
}

/// The end of a step.
enum Step {
    Loaded(u64, SourceId, Result<Loaded, Reject>),
    Admitted(u64, SourceId, Result<Box<Registration>, AdmitError>),
}

/// What an admission waits for; empty when nothing is wrong.
pub(crate) struct Progress {
    way: u64,
    source: SourceId,
    waits: Vec<String>,
}

impl Registry {
    pub(crate) fn new(parts: Parts) -> Self {
        let (report, progress) = mpsc::channel(PROGRESS);
        Self {
            parts,
            places: BTreeMap::new(),
            names: BTreeMap::new(),
            steps: JoinSet::new(),
            progress,
            report,
            ways: 0,
            versions: 0,
            listed: 0,
        }
    }

    /// Takes what the sources tell until the shutdown.
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<SourceEvent>, shutdown: CancellationToken) {
        self.publish();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                event = events.recv() => match event {
                    Some(event) => self.source_told(event),
                    None => return,
                },
                Some(progress) = self.progress.recv() => self.progressed(progress),
                Some(step) = self.steps.join_next(), if !self.steps.is_empty() => self.step_ended(step),
            }
            self.publish();
        }
    }

    fn source_told(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Found(artifact) => self.found(artifact),
            SourceEvent::Refused { source, reason } => {
                self.count_source_error(&source, "refused");
                self.end_way(&source);
                self.reject(&source, None, reason, None);
            }
            SourceEvent::FetchFailed { source, reason } => {
                self.count_source_error(&source, "fetch");
                tracing::warn!(%source, %reason, "failed to fetch a plugin");
                self.places.entry(source).or_default().fetch_error = Some(reason);
            }
            SourceEvent::Gone(source) => self.gone(&source),
            SourceEvent::Listed => self.listed += 1,
        }
    }

    fn count_source_error(&self, source: &SourceId, kind: &str) {
        let source = match source {
            SourceId::File(_) => "directory",
            SourceId::ConfigMap(_) => "configmap",
        };
        self.parts.metrics.source_errors.with_label_values(&[source, kind]).inc();
    }

    fn found(&mut self, artifact: Artifact) {
        let Artifact { source, bytes, digest } = artifact;
        let place = self.places.entry(source.clone()).or_default();
        place.fetch_error = None;
        match &place.next {
            Next::Loading(way) | Next::Admitting { way, .. } if way.digest == digest => return,
            Next::Rejected { digest: Some(rejected), blocked_by: None, .. } if *rejected == digest => return,
            _ => {}
        }
        let back = place.serving.as_ref().is_some_and(|(_, serving)| *serving == digest);
        self.end_way(&source);
        if back {
            // The bytes in service are there again: nothing is to be done.
            return;
        }
        self.ways += 1;
        let (id, sandbox, place) = (self.ways, self.parts.sandbox.clone(), source.clone());
        tracing::info!(%source, digest = digest.short(), bytes = bytes.len(), "loading a plugin");
        let task = self.steps.spawn(async move {
            let loaded = load(&sandbox, bytes, &place).await;
            Step::Loaded(id, place, loaded)
        });
        let way = Way { id, digest, began: Instant::now(), task };
        self.places.entry(source).or_default().next = Next::Loading(way);
    }

    /// Ends what is on its way from this place, and gives its name back.
    fn end_way(&mut self, source: &SourceId) {
        let Some(place) = self.places.get_mut(source) else { return };
        match std::mem::take(&mut place.next) {
            Next::Loading(way) => way.task.abort(),
            Next::Admitting { way, plugin, .. } => {
                way.task.abort();
                self.parts.metrics.swaps.with_label_values(&[plugin.as_str(), "superseded"]).inc();
                self.give_back(&plugin, source);
            }
            Next::Nothing | Next::Rejected { .. } => {}
        }
    }

    fn step_ended(&mut self, step: Result<Step, tokio::task::JoinError>) {
        match step {
            Ok(Step::Loaded(id, source, loaded)) if self.is_current(id, &source) => match loaded {
                Ok(loaded) => self.claim(&source, &loaded),
                Err(reject) => self.reject_way(&source, format!("{source}: {reject}"), None),
            },
            Ok(Step::Admitted(id, source, admitted)) if self.is_current(id, &source) => match admitted {
                Ok(registration) => self.swap(&source, *registration),
                Err(error) => self.reject_way(&source, format!("{source}: {error}"), None),
            },
            // A newer way took the place.
            Ok(_) => {}
            Err(error) if error.is_cancelled() => {}
            Err(error) => {
                tracing::error!(%error, "bug: the host panicked while it loaded a plugin");
                let lost: Vec<_> = self
                    .places
                    .iter()
                    .filter(|(_, place)| place.is_lost())
                    .map(|(source, _)| source.clone())
                    .collect();
                for source in lost {
                    self.reject_way(
                        &source,
                        format!("{source}: the host failed to load it; see its log"),
                        None,
                    );
                }
            }
        }
    }

    fn is_current(&self, id: u64, source: &SourceId) -> bool {
        self.places.get(source).is_some_and(|place| match &place.next {
            Next::Loading(way) | Next::Admitting { way, .. } => way.id == id,
            Next::Nothing | Next::Rejected { .. } => false,
        })
    }

    /// The manifest is known: its name must be free, or this place's own.
    fn claim(&mut self, source: &SourceId, loaded: &Loaded) {
        let manifest = loaded.manifest();
        let plugin = manifest.name.clone();
        if let Some(holder) = self.names.get(&plugin)
            && holder != source
        {
            let reason = format!(
                "{source}: a plugin called {plugin} is loaded from {holder} already: rename one of them, or remove one"
            );
            self.reject_way(source, reason, Some(plugin));
            return;
        }
        self.names.insert(plugin.clone(), source.clone());
        let Some(place) = self.places.get_mut(source) else { return };
        let Next::Loading(way) = std::mem::take(&mut place.next) else { return };
        self.versions += 1;
        let (id, number) = (way.id, self.versions);
        let (admission, loaded, report, to) =
            (self.parts.admission.clone(), loaded.clone(), self.report.clone(), source.clone());
        let task = self.steps.spawn(async move {
            let tell = |waits| {
                let progress = Progress { way: id, source: to.clone(), waits };
                // An error means that the host stops.
                let report = report.clone();
                async move { report.send(progress).await.unwrap_or_default() }
            };
            let admitted = admission.admit(&loaded, to.clone(), number, tell).await;
            Step::Admitted(id, to, admitted.map(Box::new))
        });
        let version = manifest.version.clone();
        let way = Way { task, ..way };
        place.next = Next::Admitting { way, plugin: plugin.clone(), version, waits: Vec::new() };
        self.parts.metrics.swap_pending.with_label_values(&[plugin.as_str()]).set(1);
    }

    fn progressed(&mut self, progress: Progress) {
        let Some(place) = self.places.get_mut(&progress.source) else { return };
        let Next::Admitting { way, plugin, waits, .. } = &mut place.next else { return };
        if way.id != progress.way {
            return;
        }
        let why = progress.waits.join("; ");
        if !why.is_empty() {
            tracing::warn!(%plugin, source = %progress.source, %why, "the new version waits; what is in service goes on");
        }
        *waits = progress.waits;
        if place.serving.is_none() {
            let slot = Slot::Waiting { why: why.into() };
            let roster = self.parts.roster.load().with(plugin, slot);
            self.parts.roster.store(Arc::new(roster));
        }
    }

    /// The new version takes over.
    fn swap(&mut self, source: &SourceId, registration: Registration) {
        let Some(place) = self.places.get_mut(source) else { return };
        let Next::Admitting { way, plugin, .. } = std::mem::take(&mut place.next) else { return };
        let before = place.serving.replace((plugin.clone(), way.digest));
        if let Some((renamed, _)) = before.filter(|(name, _)| *name != plugin) {
            self.stop(&renamed, source);
        }
        let registration = Arc::new(registration);
        let manifest = Arc::clone(registration.manifest());
        let old = self.parts.roster.load().serving(&plugin).cloned();
        let metrics = &self.parts.metrics;
        metrics.open(&manifest);
        let lane = LaneConfig { concurrency: manifest.limits.concurrency, weight: 1, retry: manifest.retry };
        self.parts.queue.open(&plugin, lane);
        let roster = self.parts.roster.load().with(&plugin, Slot::Serving(Arc::clone(&registration)));
        self.parts.roster.store(Arc::new(roster));
        self.parts.dispatch.reset(&plugin, false);
        let (reason, rate) = match &old {
            Some(_) => (Reason::Swap, Some(enqueue::SWAP_RATE)),
            None => (Reason::Created, None),
        };
        let objects = enqueue::all(&self.parts.queue, &registration, reason, rate);
        let (digest, took) = (way.digest.short(), way.began.elapsed());
        let former = old.as_ref().map(|old| (old.manifest().version.clone(), old.digest().short()));
        metrics.serving(
            &plugin,
            former.as_ref().map(|(version, digest)| (&**version, &**digest)),
            &manifest.version,
            &digest,
        );
        metrics.swaps.with_label_values(&[plugin.as_str(), "swapped"]).inc();
        metrics.swap_seconds.with_label_values(&[plugin.as_str()]).observe(took.as_secs_f64());
        metrics.swap_pending.with_label_values(&[plugin.as_str()]).set(0);
        tracing::info!(
            %plugin, %source, version = manifest.version, digest, objects,
            took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            before = former.map(|(version, _)| version).unwrap_or_default(),
            "plugin in service"
        );
        let note = format!("plugin {plugin} {} ({digest}) is in service", manifest.version);
        self.parts.notices.source(source, false, "PluginInService", &note);
        if let Some(old) = old.filter(|old| old.primary != registration.primary) {
            finalizers::report(
                &self.parts.metrics,
                &self.parts.notices,
                &old,
                "its new version has another primary kind",
            );
        }
    }

    fn reject_way(&mut self, source: &SourceId, reason: String, blocked_by: Option<PluginName>) {
        let Some(place) = self.places.get_mut(source) else { return };
        let digest = match std::mem::take(&mut place.next) {
            Next::Loading(way) => way.digest,
            Next::Admitting { way, plugin, .. } => {
                self.give_back(&plugin, source);
                self.parts.metrics.swaps.with_label_values(&[plugin.as_str(), "rejected"]).inc();
                way.digest
            }
            other => {
                place.next = other;
                return;
            }
        };
        self.reject(source, Some(digest), reason, blocked_by);
    }

    fn reject(
        &mut self,
        source: &SourceId,
        digest: Option<Digest>,
        reason: String,
        blocked_by: Option<PluginName>,
    ) {
        let place = self.places.entry(source.clone()).or_default();
        let serving = place.serving.as_ref().map(|(name, serving)| format!("{name} {}", serving.short()));
        if digest.is_some() {
            let plugin = place.serving.as_ref().map_or("", |(name, _)| name.as_str());
            self.parts.metrics.rejected.with_label_values(&[plugin]).inc();
        }
        if let Some(serving) = &serving {
            tracing::error!(%source, %reason, serving, "plugin refused; the version in service goes on");
        } else {
            tracing::error!(%source, %reason, "plugin refused");
        }
        self.parts.notices.source(source, true, "PluginRejected", &reason);
        place.next = Next::Rejected { digest, reason, blocked_by };
    }

    /// A name that is neither served from this place nor on its way any more is free for others.
    fn give_back(&mut self, plugin: &PluginName, source: &SourceId) {
        self.parts.metrics.swap_pending.with_label_values(&[plugin.as_str()]).set(0);
        let served = self
            .places
            .get(source)
            .and_then(|place| place.serving.as_ref())
            .is_some_and(|(name, _)| name == plugin);
        if served || self.names.get(plugin) != Some(source) {
            return;
        }
        self.names.remove(plugin);
        if matches!(self.parts.roster.load().slot(plugin), Some(Slot::Waiting { .. })) {
            let roster = self.parts.roster.load().without(plugin);
            self.parts.roster.store(Arc::new(roster));
        }
        self.offer_blocked(plugin);
    }

    /// Those that were refused because of this name are offered again.
    fn offer_blocked(&self, plugin: &PluginName) {
        for (source, place) in &self.places {
            if matches!(&place.next, Next::Rejected { blocked_by: Some(by), .. } if by == plugin) {
                self.parts.again.ask(source.clone());
            }
        }
    }

    fn gone(&mut self, source: &SourceId) {
        self.end_way(source);
        let Some(place) = self.places.remove(source) else { return };
        if let Some((plugin, _)) = place.serving {
            self.stop(&plugin, source);
        }
    }

    /// Takes a plugin out of service.
    fn stop(&mut self, plugin: &PluginName, source: &SourceId) {
        let old = self.parts.roster.load().serving(plugin).cloned();
        let roster = self.parts.roster.load().without(plugin);
        self.parts.roster.store(Arc::new(roster));
        self.parts.queue.close(plugin);
        self.parts.mapper.forget_plugin(plugin);
        self.parts.dispatch.reset(plugin, true);
        self.parts.committer.forget(plugin);
        tracing::info!(%plugin, %source, "plugin out of service: it is gone from its source");
        if let Some(old) = old {
            finalizers::report(&self.parts.metrics, &self.parts.notices, &old, "it is gone from its source");
            self.parts.metrics.remove_info(plugin, &old.manifest().version, &old.digest().short());
        }
        self.parts.metrics.close(plugin);
        self.names.remove(plugin);
        self.offer_blocked(plugin);
    }

    fn publish(&self) {
        let roster = self.parts.roster.load();
        let places = self.places.iter().map(|(source, place)| place.view(source, &roster)).collect();
        let settled = self.places.values().all(Place::is_settled);
        self.parts.views.publish(Published { places, listed: self.listed >= self.parts.sources, settled });
    }
}
