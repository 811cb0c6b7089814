//! A run of a plugin in the sandbox against the same component on bare wasmtime.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::future::BoxFuture;
use reeve_core::grant::{Ceiling, Grant};
use reeve_core::gvk::Gvk;
use reeve_core::ids::ObjectName;
use reeve_core::object::{ManagedFields, Object, SharedObject};
use reeve_core::read::{Query, ReadError, Reader};
use reeve_core::reason::Reason;
use reeve_e2e::harness::guests;
use reeve_sandbox::{Plugin, Request, Role, Sandbox, SandboxConfig};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bare::Bare;
use crate::table::{Table, percentile};

/// Runs before anything is counted: slots get warm.
const WARM_UP: usize = 2_000;
/// Runs that are timed one by one. The two sides alternate, so that noise meets both.
const TIMED: usize = 20_000;
/// How long throughput is measured.
const THROUGHPUT: Duration = Duration::from_secs(3);

/// The one object, in memory.
struct One(SharedObject);

impl Reader for One {
    fn get(&self, _: &Gvk, _: &ObjectName) -> Result<Option<SharedObject>, ReadError> {
        Ok(Some(Arc::clone(&self.0)))
    }

    fn list(&self, _: &Gvk, _: &Query) -> Result<Arc<[SharedObject]>, ReadError> {
        Ok(Arc::new([Arc::clone(&self.0)]))
    }

    fn held(&self, _: &Gvk, _: Option<&ObjectName>) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

pub(crate) fn measure(table: &mut Table) -> anyhow::Result<()> {
    let bytes = guests::plugin("measured")?;
    let object = object();
    let bare = Bare::new(&bytes, Box::leak(object.json().to_owned().into_boxed_str()))
        .map_err(|error| anyhow::anyhow!("bare wasmtime: {error:#}"))?;
    let shared = Arc::new(object);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;

    let sandbox = sandbox(1)?;
    let plugin = runtime.block_on(link(&sandbox, &bytes))?;
    let request = request(&shared);
    // On the guests' own threads, as the dispatcher does: no hand-over between threads per run.
    let (mut ours, mut peer) = runtime.block_on(sandbox.handle().spawn(async move {
        let (mut ours, mut peer) = (Vec::with_capacity(TIMED), Vec::with_capacity(TIMED));
        for number in 0..WARM_UP + TIMED {
            let begin = Instant::now();
            let outcome = plugin.run(Role::Reconcile, request.clone()).await;
            let middle = Instant::now();
            let staged = bare.run().map_err(|error| anyhow::anyhow!("bare wasmtime: {error:#}"))?;
            let end = Instant::now();
            ensure!(outcome.failure.is_none(), "{:?}", outcome.failure);
            ensure!(outcome.plan.children.len() == 1 && staged == 1, "the run staged something else");
            if number >= WARM_UP {
                ours.push(micros(middle - begin));
                peer.push(micros(end - middle));
            }
        }
        anyhow::Ok((ours, peer))
    }))??;
    let (p50, p99) = (percentile(&mut ours, 50), percentile(&mut ours, 99));
    let bare = percentile(&mut peer, 50);
    table.figure("dispatch p50 / p99, µs", format!("{p50:.1} / {p99:.1}"));
    table.figure("bare wasmtime p50 / p99, µs", format!("{bare:.1} / {:.1}", percentile(&mut peer, 99)));
    table.at_most("dispatch p50 / bare p50", p50 / bare, 2.0, "×");
    table.at_most("dispatch p99 / p50", p99 / p50, 5.0, "×");

    let one = throughput(&runtime, &bytes, &shared, 1)?;
    let two = throughput(&runtime, &bytes, &shared, 2)?;
    table.figure("runs a second, 1 / 2 threads", format!("{one:.0} / {two:.0}"));
    table.at_least("throughput of 2 threads / 1", two / one, 1.4, "×");
    Ok(())
}

fn throughput(
    runtime: &tokio::runtime::Runtime,
    bytes: &[u8],
    object: &SharedObject,
    threads: usize,
) -> anyhow::Result<f64> {
    let sandbox = sandbox(threads)?;
    let plugin = runtime.block_on(link(&sandbox, bytes))?;
    let begin = Instant::now();
    let until = begin + THROUGHPUT;
    // Several runs per thread, so that none idles between two.
    let workers: Vec<_> = (0..threads * 4)
        .map(|_| {
            let (plugin, request) = (plugin.clone(), request(object));
            sandbox.handle().spawn(async move {
                let mut runs = 0_u32;
                while Instant::now() < until {
                    let outcome = plugin.run(Role::Reconcile, request.clone()).await;
                    if outcome.failure.is_none() {
                        runs += 1;
                    }
                    tokio::task::yield_now().await;
                }
                runs
            })
        })
        .collect();
    let mut runs = 0.0;
    for worker in workers {
        runs += f64::from(runtime.block_on(worker)?);
    }
    Ok(runs / begin.elapsed().as_secs_f64())
}

fn sandbox(threads: usize) -> anyhow::Result<Sandbox> {
    let config = SandboxConfig { threads, cache_dir: None, ..SandboxConfig::default() };
    Ok(Sandbox::new(config, &prometheus::Registry::new())?)
}

async fn link(sandbox: &Sandbox, bytes: &[u8]) -> anyhow::Result<Plugin> {
    let loaded = sandbox.load(bytes.into()).await?;
    let grant = Grant::effective(loaded.manifest(), false, &Ceiling::default_in("reeve-system"))
        .map_err(|denied| anyhow::anyhow!("{denied:?}"))?;
    sandbox.link(&loaded, Arc::new(grant)).context("failed to link")
}

fn request(object: &SharedObject) -> Request {
    Request {
        name: object.meta().name.clone(),
        primary: Some(Arc::clone(object)),
        reasons: Reason::Updated.into(),
        attempt: 1,
        reader: Arc::new(One(Arc::clone(object))),
        config: "null".into(),
        answers: Arc::new(BTreeMap::new()),
        cancel: CancellationToken::new(),
    }
}

/// 5 KB, as many custom resources have.
fn object() -> Object {
    let rows: Vec<_> = (0..60)
        .map(|number| serde_json::json!({ "name": format!("row-{number}"), "value": "x".repeat(32), "weight": number }))
        .collect();
    let json = serde_json::json!({
        "apiVersion": "test.reeve.dev/v1",
        "kind": "Measured",
        "metadata": {
            "name": "one", "namespace": "bench", "uid": "5a5b9c3e-3b3b-4b3b-8b3b-1f1f1f1f1f1f",
            "resourceVersion": "42", "generation": 3, "labels": { "app": "bench" },
        },
        "spec": { "rows": rows, "title": "A title", "replicas": 3 },
        "status": { "phase": "Ready" },
    });
    let gvk = Gvk::new("test.reeve.dev", "v1", "Measured");
    match Object::parse(&gvk, &json.to_string(), ManagedFields::Strip) {
        Ok(object) => object,
        Err(error) => unreachable!("the object above is well-formed: {error}"),
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
