//! `reeve run`: the host, against a cluster.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use reeve_cluster::{ConnectOptions, Connection};
use reeve_core::grant::CeilingRule;
use reeve_runtime::config::{self, ConfigMaps, Grace, HostConfig};
use reeve_runtime::logging::{self, LogFormat};
use reeve_runtime::{Host, RunError};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Runs the host: loads plugins, watches the cluster, reconciles.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The kubeconfig; default: $KUBECONFIG, ~/.kube/config, then the pod's own ServiceAccount.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; default: its current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// A folder whose *.wasm files are plugins; may be given several times.
    #[arg(long, value_name = "DIR")]
    plugins: Vec<PathBuf>,
    /// Takes plugins from ConfigMaps with the label reeve.dev/plugin in the host's namespace too.
    #[arg(long)]
    configmaps: bool,
    /// A further namespace in which such ConfigMaps are looked for; implies --configmaps.
    #[arg(long, value_name = "NAMESPACE")]
    configmap_namespace: Vec<String>,
    /// A namespace whose objects plugins see; may be given several times; default: all.
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// The host's own namespace; default: $POD_NAMESPACE, then the kubeconfig's.
    #[arg(long, value_name = "NAMESPACE")]
    host_namespace: Option<String>,
    /// What plugins may do at most: `default` (everything but Secrets outside of the host's
    /// namespace, RBAC objects and webhook configurations) or `GROUP/KIND[/SUBRESOURCE][@NAMESPACE][:VERB,…]`.
    #[arg(long, value_name = "RULE")]
    allow: Vec<CeilingRule>,
    /// Where probes, metrics and the admin API are served, or `off`.
    #[arg(long, value_name = "ADDR", default_value_t = AdminAddr(Some(config::DEFAULT_ADMIN_ADDR)))]
    admin_addr: AdminAddr,
    /// How long runs in work may go on after the stop signal: seconds, or `unlimited`.
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    grace: Grace,
    /// Where compiled plugins are kept: a private folder, or `none`; default: the user's cache folder.
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Threads that run plugins; default: one per core.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// The largest plugin that is taken, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = config::DEFAULT_MAX_PLUGIN_BYTES)]
    max_plugin_bytes: usize,
    /// How log lines look: auto (text on a terminal, JSON elsewhere), human or json.
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    log_format: LogFormat,
    /// The log level, or levels by target (info,TARGET=debug); default: $REEVE_LOG, then info.
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

/// An address, or none.
#[derive(Debug, Clone, Copy)]
struct AdminAddr(Option<SocketAddr>);

impl std::str::FromStr for AdminAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self(None));
        }
        text.parse()
            .map(|addr| Self(Some(addr)))
            .map_err(|_| "write IP:PORT, for example 0.0.0.0:8080, or off".to_owned())
    }
}

impl std::fmt::Display for AdminAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(addr) => addr.fmt(f),
            None => f.write_str("off"),
        }
    }
}

/// Runs the sub-command.
pub(crate) fn run(args: RunArgs) -> anyhow::Result<()> {
    let filter = args.log.clone().or_else(config::log_from_env).unwrap_or_else(|| "info".to_owned());
    logging::init(args.log_format, &filter, config::colour_from_env())?;
    // Watches and requests are all that runs here: guests have threads of their own.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, usize::from).min(4))
        .thread_name("reeve")
        .enable_all()
        .build()
        .context("failed to start threads")?;
    let done = runtime.block_on(host(args));
    // What a signal's handler or a blocking read still holds must not hold the process.
    runtime.shutdown_background();
    done
}

/// Runs a sub-command that waits for something, on this thread.
pub(crate) fn wait(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start")?
        .block_on(work)
}

async fn host(args: RunArgs) -> anyhow::Result<()> {
    let (shutdown, force) = (CancellationToken::new(), CancellationToken::new());
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for signals")?;
    let registry = metrics()?;
    let options = ConnectOptions { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
    let connection = Connection::open(&options, &registry).await?;
    let config = host_config(args, connection.default_namespace());
    tracing::info!(server = connection.server(), host_namespace = config.host_namespace, "starting");
    let host = Host::start(config, connection, registry).await?;
    if let Some(addr) = host.admin_addr() {
        tracing::info!(%addr, "admin port: /healthz /readyz /metrics /plugins /queue /streams /failures");
    }
    let running = host.run(shutdown.clone(), force.clone());
    tokio::pin!(running);
    loop {
        tokio::select! {
            ended = &mut running => return ended.map_err(|error: RunError| error.into()),
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if shutdown.is_cancelled() {
            tracing::warn!("second signal: stopping by force");
            force.cancel();
        }
        shutdown.cancel();
    }
}

fn host_config(args: RunArgs, default_namespace: &str) -> HostConfig {
    let namespace = args.host_namespace.or_else(config::namespace_from_env);
    let mut config = HostConfig::new(namespace.unwrap_or_else(|| default_namespace.to_owned()));
    if args.configmaps || !args.configmap_namespace.is_empty() {
        config.configmaps = ConfigMaps::On { namespaces: args.configmap_namespace.into_iter().collect() };
    }
    match args.cache_dir {
        Some(none) if none.as_os_str() == "none" => config.cache_dir = None,
        Some(folder) => config.cache_dir = Some(folder),
        None => {}
    }
    HostConfig {
        plugin_dirs: args.plugins,
        namespaces: args.namespace.into_iter().collect(),
        allow: args.allow,
        admin_addr: args.admin_addr.0,
        grace: args.grace,
        guest_threads: args.threads,
        max_plugin_bytes: args.max_plugin_bytes,
        ..config
    }
}

/// The registry of all metrics, with those of the process itself.
fn metrics() -> anyhow::Result<prometheus::Registry> {
    let registry = prometheus::Registry::new();
    let process = prometheus::process_collector::ProcessCollector::for_self();
    registry.register(Box::new(process)).context("failed to register the process's metrics")?;
    Ok(registry)
}
