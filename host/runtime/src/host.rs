//! The host: all parts, started and stopped in order.
//!
//! Start: admin port → sandbox → cluster → dispatch → registry → sources. Stop: sources and
//! registry → queue (no new runs) → runs within their grace, commits included → watches, waits,
//! router → admin port last. Every task is in one set, and its unexpected end stops the host.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry as MetricsRegistry;
use reeve_cluster::commit::Committer;
use reeve_cluster::{Cluster, ClusterOptions, Connection};
use reeve_core::change::Change;
use reeve_core::leading::Leading;
use reeve_core::queue::{Key, Queue, QueueMetrics};
use reeve_sandbox::{Sandbox, SandboxConfig, SandboxError};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Admin, AdminError, Readiness};
use crate::apiserver::ApiServer;
use crate::config::{ConfigError, Grace, HostConfig};
use crate::dispatch::Dispatch;
use crate::enqueue;
use crate::failures::Failures;
use crate::mapper::{self, Mapper};
use crate::metrics::Metrics;
use crate::registry::{Admission, Notices, Parts, Registry, Views, former};
use crate::roster::SharedRoster;
use crate::router::{self, Routed};
use crate::source::configmap::{ConfigMapSource, Touched};
use crate::source::dir::DirSource;
use crate::source::{self, Again, Source};
use crate::wait::Waits;

/// After the grace period guests are told to end and are killed soon after; a commit that is on its
/// way has this long to end too.
const AFTER_GRACE: Duration = Duration::from_secs(5);
/// The rest stops at once, events have 2 s to leave; what goes on after this is ended.
const LAST: Duration = Duration::from_secs(3);

/// A running host.
pub struct Host {
    tasks: Tasks,
    stop: Stop,
    queue: Queue,
    readiness: Readiness,
    grace: Grace,
    admin_addr: Option<SocketAddr>,
    views: Views,
}

/// Tasks by name.
#[derive(Default)]
struct Tasks {
    set: JoinSet<()>,
    names: HashMap<Id, String>,
}

/// What is stopped when.
#[derive(Default)]
struct Stop {
    /// Sources and registry.
    intake: CancellationToken,
    /// Guests in work.
    runs: CancellationToken,
    /// Everything else but the admin port.
    rest: CancellationToken,
    /// The admin port.
    admin: CancellationToken,
}

/// Why a host does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The admin port is not there.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// Plugins cannot be run on this machine.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A bug: two metrics of one name.
    #[error("failed to register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// How a host ended that was not asked to, or not in time.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RunError {
    /// A part ended by itself; all others were stopped.
    #[error("the host stopped because {} ended: {}", .0.join(" and "), .1)]
    Ended(Vec<String>, String),
    /// The second signal came.
    #[error("the host was stopped by force with {0} runs in work; they will be done again")]
    Forced(usize),
}

impl Host {
    /// Starts everything. The cluster need not answer yet, and no plugin need be there. Call it
    /// within a multi-threaded tokio runtime.
    pub async fn start(
        config: HostConfig,
        connection: Connection,
        metrics_registry: MetricsRegistry,
    ) -> Result<Self, StartError> {
        config.validate()?;
        warn_without_election();
        let listener = listen(config.admin_addr).await?;
        let admin_addr = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let metrics = Metrics::new(&metrics_registry)?;
        let sandbox = Sandbox::new(sandbox_config(&config), &metrics_registry)?;
        let (cluster, changes) = Cluster::new(connection, &ClusterOptions::default(), &metrics_registry)?;
        let committer =
            Committer::new(cluster.clone(), &metrics_registry)?.in_namespace(&config.host_namespace);
        let events = committer.events().clone();
        let queue = Queue::new(QueueMetrics::new(&metrics_registry)?);
        let roster = SharedRoster::default();
        let failures = Failures::default();
        let waits = Waits::new(cluster.clone(), queue.clone(), metrics.clone());
        let dispatch = Dispatch::new(crate::dispatch::Parts::new(
            queue.clone(),
            Arc::clone(&roster),
            cluster.clone(),
            committer.clone(),
            Leading::solo(),
            waits.clone(),
            metrics.clone(),
            failures,
        ));
        let mapper = Mapper::new(queue.clone(), Arc::clone(&roster), metrics.clone());
        let apiserver = ApiServer::new(cluster.clone(), metrics.clone());
        let (again, views, readiness) = (Again::default(), Views::default(), Readiness::default());
        let mut host = Self {
            tasks: Tasks::default(),
            stop: Stop::default(),
            queue: queue.clone(),
            readiness: readiness.clone(),
            grace: config.grace,
            admin_addr,
            views: views.clone(),
        };
        let Self { tasks, stop, .. } = &mut host;
        let rest = || stop.rest.clone();

        if let Some(listener) = listener {
            let (registry, views, apiserver) = (metrics_registry, views.clone(), apiserver.clone());
            let (dispatch, metrics) = (dispatch.clone(), metrics.clone());
            let admin = Admin { registry, views, readiness, apiserver, dispatch, metrics };
            tasks.spawn("admin port", admin.serve(listener, stop.admin.clone()));
        }
        let (sources, touched) = sources(&config, &cluster, &again);
        let routing = Routing {
            roster: Arc::clone(&roster),
            dispatch: dispatch.clone(),
            mapper: mapper.clone(),
            waits: waits.clone(),
            touched,
            metrics: metrics.clone(),
        };
        tasks.spawn("router", routing.run(changes, rest()));
        let (sender, ending) = (events.clone(), rest());
        tasks.spawn("events", async move { sender.run(ending).await });
        tasks.spawn("API server check", apiserver.run(rest()));
        tasks.spawn("waits", waits.run(rest()));
        tasks.spawn("mapper", mapper.clone().run(rest()));
        tasks.spawn("resync", enqueue::resync(queue.clone(), Arc::clone(&roster), rest()));
        tasks.spawn("dispatch", dispatch.clone().run(config.max_runs, stop.runs.clone()));
        let namespaces = config.namespaces.iter().map(|name| name.as_str().into()).collect();
        let former = former::let_go(Arc::clone(&roster), committer.clone(), Leading::solo(), rest());
        tasks.spawn("former kinds", former);
        let admission = Admission {
            sandbox: sandbox.clone(),
            cluster,
            committer: committer.clone(),
            ceiling: Arc::new(config.ceiling()),
            namespaces: Arc::new(namespaces),
            metrics: metrics.clone(),
        };
        let notices = Notices::new(events, Leading::solo());
        let parts = Parts {
            sandbox,
            committer,
            queue,
            roster,
            dispatch,
            mapper,
            metrics,
            again,
            admission,
            notices,
            views,
            sources: sources.len(),
        };
        let (found, told) = mpsc::channel(source::EVENTS);
        tasks.spawn("registry", Registry::new(parts).run(told, stop.intake.clone()));
        for source in sources {
            tasks.spawn(&source.name(), source.run(found.clone(), stop.intake.clone()));
        }
        Ok(host)
    }

    /// Where probes and metrics are served.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin_addr
    }

    /// What lies in the sources, and what became of it.
    pub fn views(&self) -> &Views {
        &self.views
    }

    /// Runs until `shutdown`, or until a part ends by itself, and stops in order. `force` ends it at
    /// once, whatever is in work.
    pub async fn run(
        mut self,
        shutdown: CancellationToken,
        force: CancellationToken,
    ) -> Result<(), RunError> {
        let failed = tokio::select! {
            () = shutdown.cancelled() => None,
            () = force.cancelled() => None,
            end = self.tasks.next() => end,
        };
        let mut ended = Vec::new();
        if let Some((name, reason)) = &failed {
            tracing::error!(part = name, reason, "a part of the host ended; the host stops");
            ended.push(name.clone());
        }
        self.readiness.stopping();
        tracing::info!(grace = ?self.grace, "stopping: no new runs; runs in work go on within the grace period");
        self.stop.intake.cancel();
        self.queue.shutdown();
        let forced = tokio::select! {
            () = force.cancelled() => true,
            () = self.drain() => false,
        };
        let in_work = self.queue.snapshot().iter().map(|lane| lane.in_work).sum();
        self.stop.runs.cancel();
        self.stop.rest.cancel();
        self.stop.admin.cancel();
        if !forced {
            // Each of the rest ends at its next step.
            let rest = async {
                while let Some((name, reason)) = self.tasks.next().await {
                    ended.extend(is_panic(&reason).then_some(name));
                }
            };
            if tokio::time::timeout(LAST, rest).await.is_err() {
                tracing::warn!("some parts did not end in time, and are ended");
            }
        }
        self.tasks.set.shutdown().await;
        match failed {
            Some((_, reason)) => Err(RunError::Ended(ended, reason)),
            None if forced => Err(RunError::Forced(in_work)),
            None => {
                tracing::info!("stopped");
                Ok(())
            }
        }
    }

    /// Waits for the runs in work within the grace period, then ends their guests and waits for what
    /// they are committing.
    async fn drain(&self) {
        match self.grace {
            Grace::Unlimited => self.queue.drained().await,
            Grace::Limited(grace) => {
                if tokio::time::timeout(grace, self.queue.drained()).await.is_ok() {
                    return;
                }
                tracing::warn!("the grace period is over: runs in work are ended, and will be done again");
                self.stop.runs.cancel();
                if tokio::time::timeout(AFTER_GRACE, self.queue.drained()).await.is_err() {
                    tracing::warn!("some runs did not end in time, and are dropped");
                }
            }
        }
    }
}

const PANICKED: &str = "it panicked";

fn is_panic(reason: &str) -> bool {
    reason.starts_with(PANICKED)
}

// === impl Tasks ===

impl Tasks {
    fn spawn(&mut self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.set.spawn(task);
        self.names.insert(handle.id(), name.to_owned());
    }

    /// The next task that ends: its name and why.
    async fn next(&mut self) -> Option<(String, String)> {
        let (id, reason) = match self.set.join_next_with_id().await? {
            Ok((id, ())) => (id, "it returned".to_owned()),
            Err(error) => (error.id(), reason(error)),
        };
        Some((self.names.remove(&id).unwrap_or_default(), reason))
    }
}

fn reason(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied());
            format!("{PANICKED}: {}", text.unwrap_or("without words"))
        }
        Err(error) => error.to_string(),
    }
}

/// The right to write comes without a Lease in this version.
fn warn_without_election() {
    if crate::config::namespace_from_env().is_some() {
        tracing::warn!(
            "running in a cluster without leader election: run one replica only, with the update strategy Recreate"
        );
    }
}

async fn listen(addr: Option<SocketAddr>) -> Result<Option<TcpListener>, AdminError> {
    match addr {
        Some(addr) => admin::bind(addr).await.map(Some),
        None => Ok(None),
    }
}

fn sandbox_config(config: &HostConfig) -> SandboxConfig {
    let default = SandboxConfig::default();
    SandboxConfig {
        threads: if config.guest_threads == 0 { default.threads } else { config.guest_threads },
        max_instances: config.max_instances,
        cache_dir: config.cache_dir.clone(),
        max_component_bytes: config.max_plugin_bytes,
        ..default
    }
}

fn sources(config: &HostConfig, cluster: &Cluster, again: &Again) -> (Vec<Source>, Option<Touched>) {
    // The same folder twice would be two places of each name.
    let mut seen = HashSet::new();
    let dirs = config.plugin_dirs.iter().filter(|path| seen.insert(path.as_path()));
    let mut sources: Vec<_> = dirs
        .map(|path| {
            Source::Dir(DirSource::new(path.clone(), config.max_plugin_bytes, config.pace, again.clone()))
        })
        .collect();
    let namespaces = config.configmap_namespaces();
    if namespaces.is_empty() {
        return (sources, None);
    }
    let (source, touched) = ConfigMapSource::new(
        cluster.clone(),
        &namespaces,
        config.max_plugin_bytes,
        config.pace.gone_after,
        again.clone(),
    );
    sources.push(Source::ConfigMaps(source));
    (sources, Some(touched))
}

/// Who is told of a change.
struct Routing {
    roster: SharedRoster,
    dispatch: Dispatch,
    mapper: Mapper,
    waits: Waits,
    touched: Option<Touched>,
    metrics: Metrics,
}

impl Routing {
    /// Takes changes as fast as they come: nothing here waits for anything.
    async fn run(self, mut changes: mpsc::Receiver<Change>, shutdown: CancellationToken) {
        loop {
            let change = tokio::select! {
                () = shutdown.cancelled() => return,
                change = changes.recv() => match change {
                    Some(change) => change,
                    None => return,
                },
            };
            self.metrics.changes.inc();
            for routed in router::route(&change, self.roster.load().routes()) {
                match routed {
                    Routed::Run(run) => self.dispatch.ask(run),
                    Routed::Forget(plugin, name) => self.dispatch.forget(&Key { plugin, name }),
                    Routed::Map { plugin, watch, objects, priority } => {
                        self.mapper.ask(&plugin, mapper::Request { watch, objects, priority });
                    }
                }
            }
            self.waits.note(&change);
            if let Some(touched) = &self.touched {
                touched.note(&change);
            }
        }
    }
}
