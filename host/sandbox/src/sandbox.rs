//! The sandbox: from the bytes of a component to a plugin that can be run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reeve_core::grant::Grant;
use reeve_core::labels::Selector;
use reeve_core::manifest::{Manifest, Relation};
use tokio::sync::Semaphore;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::abi::Guest;
use crate::abi::state::Facts;
use crate::cache::CodeCache;
use crate::compile::{Compiler, Described};
use crate::config::{LOAD_INSTANCES, POOL_MEMORY_MIB, SandboxConfig};
use crate::describe::describe;
use crate::engine::{self, Allocation, Ticker};
use crate::inspect::{Inspection, inspect};
use crate::link;
use crate::metrics::Metrics;
use crate::reject::Reject;
use crate::run::Plugin;
use crate::threads::GuestThreads;

/// The label that the host gives to a plugin's children.
const PLUGIN_LABEL: &str = "reeve.dev/plugin";

/// Loads plugins and owns what they run on. Cheap to clone; threads end with the last clone and
/// the last plugin.
#[derive(Debug, Clone)]
pub struct Sandbox(Arc<Host>);

/// What all plugins of one sandbox share.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) engine: Engine,
    pub(crate) threads: GuestThreads,
    /// One permit for each instance of a run.
    pub(crate) slots: Arc<Semaphore>,
    /// The same for `describe` and probes, so that loading never waits for runs.
    pub(crate) loading: Semaphore,
    pub(crate) metrics: Metrics,
    compiler: Arc<Compiler>,
    config: SandboxConfig,
    allocation: Allocation,
    _ticker: Ticker,
}

/// Why a sandbox cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Wasmtime does not run here.
    #[error("failed to set up the WebAssembly engine: {0}")]
    Engine(String),
    /// The threads for guests cannot be started.
    #[error("failed to start the threads for plugins: {0}")]
    Threads(#[from] std::io::Error),
    /// The directory for compiled code is not safe to use.
    #[error(
        "the cache directory {path} {reason}: it holds native code, so give one that this user owns, with mode 0700, or none"
    )]
    CacheDirectory {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A metric of that name is registered already.
    #[error("failed to register the sandbox's metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// A component that was inspected, compiled and described. It runs nothing before it is linked.
#[derive(Clone)]
pub struct Loaded {
    component: Component,
    manifest: Arc<Manifest>,
    inspection: Arc<Inspection>,
    compile_time: Duration,
}

// === impl Sandbox ===

impl Sandbox {
    /// Sets up the engine, the threads and the cache directory.
    ///
    /// # Errors
    /// See [`SandboxError`]: the machine, the directory, or a registry that has these metrics.
    pub fn new(config: SandboxConfig, registry: &prometheus::Registry) -> Result<Self, SandboxError> {
        let metrics = Metrics::register(registry)?;
        let (engine, allocation) = engine::build(&config)?;
        let cache = config.cache_dir.as_deref().map(|path| CodeCache::open(path, &engine)).transpose()?;
        let compiler =
            Arc::new(Compiler::new(engine.clone(), cache, config.max_component_bytes, metrics.clone()));
        Ok(Self(Arc::new(Host {
            _ticker: Ticker::start(engine.clone())?,
            threads: GuestThreads::start(config.threads)?,
            slots: Arc::new(Semaphore::new(config.max_instances.max(1) as usize)),
            loading: Semaphore::new(LOAD_INSTANCES as usize),
            engine,
            metrics,
            compiler,
            config,
            allocation,
        })))
    }

    /// How instances get their memory on this machine.
    pub fn allocation(&self) -> Allocation {
        self.0.allocation
    }

    /// How many instances live now.
    pub fn live_instances(&self) -> usize {
        usize::try_from(self.0.metrics.live_instances.get()).unwrap_or_default()
    }

    /// The runtime of the threads that run guests. Work that is spawned on it runs plugins without
    /// a hand-over between threads, which is most of the time of a short run; it must never block.
    pub fn handle(&self) -> &tokio::runtime::Handle {
        self.0.threads.handle()
    }

    /// Looks at the bytes of a component, running nothing.
    ///
    /// # Errors
    /// Why it is no plugin for this host.
    pub fn inspect(&self, bytes: &[u8]) -> Result<Inspection, Reject> {
        inspect(bytes, self.0.config.max_component_bytes).map(|(inspection, _)| inspection)
    }

    /// Inspects, compiles (or finds compiled) and describes a component.
    ///
    /// # Errors
    /// Why it is not loaded; [`Reject::is_transient`] says whether that is the host's doing.
    pub async fn load(&self, bytes: Arc<[u8]>) -> Result<Loaded, Reject> {
        let host = &self.0;
        let compiled = host.compiler.compile(&host.threads, bytes).await?;
        let text = match compiled.described {
            Described::Before(text) => text,
            Described::NotYet(code) => {
                let described = describe(host, &compiled.component).await;
                if let Some(code) = code {
                    let manifest = described.as_ref().ok().cloned();
                    host.compiler.keep(&host.threads, &compiled.inspection, code, manifest).await?;
                }
                described?
            }
        };
        let manifest = Manifest::parse(&text)?;
        let ceiling = host.config.max_memory_mib.min(POOL_MEMORY_MIB);
        if manifest.limits.memory_mib > ceiling {
            return Err(Reject::MemoryCeiling { wanted: manifest.limits.memory_mib, ceiling });
        }
        let mapped = manifest.watches.iter().find(|watch| watch.relation == Relation::Map);
        if let (Some(watch), false) = (mapped, compiled.inspection.roles.map) {
            return Err(Reject::NoMapper(watch.name().to_owned()));
        }
        Ok(Loaded {
            component: compiled.component,
            manifest: Arc::new(manifest),
            inspection: Arc::new(compiled.inspection),
            compile_time: compiled.time,
        })
    }

    /// Links a component under a grant.
    ///
    /// # Errors
    /// [`Reject::Import`] names the first import that the grant does not cover.
    pub fn link(&self, loaded: &Loaded, grant: Arc<Grant>) -> Result<Plugin, Reject> {
        link::check_imports(&loaded.inspection, &grant)?;
        let unlinked = |error: wasmtime::Error| Reject::Link(format!("{error:#}"));
        let linker = link::linker(&self.0.engine).map_err(unlinked)?;
        let pre = linker.instantiate_pre(&loaded.component).map_err(unlinked)?;
        let guest = Guest::new(pre, loaded.inspection.roles).map_err(unlinked)?;
        let name = loaded.manifest.name.as_str();
        let facts = Facts {
            manifest: Arc::clone(&loaded.manifest),
            grant,
            children: Selector::match_labels([(PLUGIN_LABEL, name)])
                .map_err(|error| Reject::Link(error.to_string()))?,
        };
        Ok(Plugin::new(Arc::clone(&self.0), guest, Arc::new(facts), Arc::clone(&loaded.inspection)))
    }
}

// === impl Loaded ===

impl Loaded {
    /// What `describe` returned.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// What the bytes say.
    pub fn inspection(&self) -> &Inspection {
        &self.inspection
    }

    /// How long it took to compile; zero when it was found compiled.
    pub fn compile_time(&self) -> Duration {
        self.compile_time
    }
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded")
            .field("plugin", &self.manifest.name)
            .field("digest", &self.inspection.digest)
            .finish_non_exhaustive()
    }
}
