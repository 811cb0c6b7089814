//! Components to native code: one at a time, off the async threads, kept on disk.
//!
//! Compiling takes up to seconds of all cores and 160 MB for a moment; two at once would be what
//! kills a pod with a tight memory limit.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::cache::CodeCache;
use crate::inspect::{Inspection, inspect};
use crate::metrics::Metrics;
use crate::reject::Reject;
use crate::threads::GuestThreads;

/// Compiles, and remembers what was compiled.
#[derive(Debug)]
pub(crate) struct Compiler {
    engine: Engine,
    cache: Option<CodeCache>,
    one: Semaphore,
    max_bytes: usize,
    metrics: Metrics,
}

/// A component that can be linked.
pub(crate) struct Compiled {
    pub(crate) inspection: Inspection,
    pub(crate) component: Component,
    /// Zero when it came from the cache.
    pub(crate) time: Duration,
    pub(crate) described: Described,
}

/// Whether `describe` was called for this code before.
pub(crate) enum Described {
    /// It returned this.
    Before(String),
    /// Not yet. The code waits for it to become an entry of the cache.
    NotYet(Option<Vec<u8>>),
}

impl Compiler {
    pub(crate) fn new(engine: Engine, cache: Option<CodeCache>, max_bytes: usize, metrics: Metrics) -> Self {
        Self { engine, cache, one: Semaphore::new(1), max_bytes, metrics }
    }

    /// Inspects and compiles what was delivered.
    pub(crate) async fn compile(
        self: &Arc<Self>,
        threads: &GuestThreads,
        bytes: Arc<[u8]>,
    ) -> Result<Compiled, Reject> {
        let this = Arc::clone(self);
        let found = blocking(threads, move || this.inspect_or_find(bytes)).await??;
        let (inspection, bytes) = match found {
            Found::Compiled(compiled) => return Ok(*compiled),
            Found::Component(inspection, bytes) => (inspection, bytes),
        };
        let _one = self.one.acquire().await.map_err(|error| Reject::Host(error.to_string()))?;
        let this = Arc::clone(self);
        blocking(threads, move || this.compile_now(inspection, &bytes)).await?
    }

    fn inspect_or_find(&self, bytes: Arc<[u8]>) -> Result<Found, Reject> {
        let (inspection, component) = inspect(&bytes, self.max_bytes)?;
        if let Some(compiled) = self.find(&inspection) {
            return Ok(Found::Compiled(Box::new(compiled)));
        }
        Ok(Found::Component(inspection, component.map_or(bytes, Into::into)))
    }

    fn find(&self, inspection: &Inspection) -> Option<Compiled> {
        let cache = self.cache.as_ref()?;
        let entry = cache.find(&inspection.digest)?;
        match load(&self.engine, &entry.code) {
            Ok(component) => {
                self.metrics.cache_hits.inc();
                Some(Compiled {
                    inspection: inspection.clone(),
                    component,
                    time: Duration::ZERO,
                    described: Described::Before(entry.manifest),
                })
            }
            Err(error) => {
                tracing::warn!(%error, "a cache entry does not fit this host and is made again");
                cache.remove(&inspection.digest);
                None
            }
        }
    }

    fn compile_now(&self, inspection: Inspection, bytes: &[u8]) -> Result<Compiled, Reject> {
        // While this one waited for its turn, another may have compiled the same bytes.
        if let Some(compiled) = self.find(&inspection) {
            return Ok(compiled);
        }
        let began = Instant::now();
        let refused = |error: wasmtime::Error| Reject::Compile(format!("{error:#}"));
        let (component, code) = match &self.cache {
            None => (Component::from_binary(&self.engine, bytes).map_err(refused)?, None),
            Some(cache) => {
                let code = self.engine.precompile_component(bytes).map_err(refused)?;
                match cache.put(&inspection.digest, &code).map_err(wasmtime::Error::from) {
                    // Mapped from the file, its pages can be given back to the kernel.
                    Ok(path) => (load(&self.engine, &path).map_err(refused)?, Some(code)),
                    Err(error) => {
                        tracing::warn!(%error, "compiled code cannot be kept: the next start compiles it again");
                        (Component::from_binary(&self.engine, bytes).map_err(refused)?, None)
                    }
                }
            }
        };
        let time = began.elapsed();
        self.metrics.compile_seconds.observe(time.as_secs_f64());
        Ok(Compiled { inspection, component, time, described: Described::NotYet(code) })
    }

    /// Keeps what `describe` returned with the code; without a manifest the code is not kept.
    pub(crate) async fn keep(
        self: &Arc<Self>,
        threads: &GuestThreads,
        inspection: &Inspection,
        code: Vec<u8>,
        manifest: Option<String>,
    ) -> Result<(), Reject> {
        let (this, digest) = (Arc::clone(self), inspection.digest);
        blocking(threads, move || {
            let Some(cache) = &this.cache else { return };
            let Some(manifest) = manifest else { return cache.remove(&digest) };
            if let Err(error) = cache.complete(&digest, &code, &manifest) {
                tracing::warn!(%error, "compiled code cannot be kept: the next start compiles it again");
            }
        })
        .await
    }
}

enum Found {
    Compiled(Box<Compiled>),
    /// To be compiled.
    Component(Inspection, Arc<[u8]>),
}

async fn blocking<T: Send + 'static>(
    threads: &GuestThreads,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Reject> {
    threads.handle().spawn_blocking(work).await.map_err(|error| Reject::Host(error.to_string()))
}

/// Maps compiled code.
#[expect(
    unsafe_code,
    reason = "wasmtime trusts the file: the callers pass code that this process has just written to the private \
              directory, or whose checksum they have just compared with the one written down with it"
)]
fn load(engine: &Engine, path: &Path) -> wasmtime::Result<Component> {
    unsafe { Component::deserialize_file(engine, path) }
}
