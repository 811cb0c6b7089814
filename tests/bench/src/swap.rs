//! From a changed file to the first reconcile on the new version, compile included.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use reeve_e2e::fleet::WEBSITE;
use reeve_e2e::harness::controlplane::{ControlPlane, Programs};
use reeve_e2e::harness::guests;
use reeve_e2e::harness::kube::{Kube, condition};
use reeve_e2e::harness::wait::soon;
use serde_json::json;
use tokio::time::Instant;

use crate::idle::start;
use crate::table::{Table, percentile};

/// How often the file changes, each time to bytes that were never compiled before.
const SWAPS: u32 = 15;
/// What the source waits after a change for more of it; it is not part of the figure.
const DEBOUNCE: Duration = Duration::from_millis(50);

pub(crate) fn measure(table: &mut Table) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut samples = runtime.block_on(swaps())?;
    let bytes = guests::plugin("website")?.len() / 1024;
    let p50 = percentile(&mut samples, 50);
    table.at_most(&format!("file changed → first reconcile on it, {bytes} KiB, p50"), p50, 300.0, "ms");
    Ok(())
}

async fn swaps() -> anyhow::Result<Vec<f64>> {
    let root = tempfile::Builder::new().prefix("reeve-bench").tempdir()?;
    let programs = Programs::ensure()?;
    let plane = ControlPlane::start(&programs, root.path())?;
    let kube = Kube::new(plane.kubeconfig(), programs.kubectl()).await?;
    for crd in guests::crds()? {
        kube.install(&crd).await?;
    }
    let bytes = guests::plugin("website")?;
    let host = start(root.path(), &plane, &bytes, Vec::new())?;
    host.ready().await?;
    host.serves("website", "1.0.0").await?;
    kube.apply(&json!({
        "apiVersion": "example.reeve.dev/v1", "kind": "Website",
        "metadata": { "name": "one", "namespace": "default" }, "spec": { "html": "x", "replicas": 0 },
    }))
    .await?;
    soon("the Website is Ready", async || {
        let site = kube.get(WEBSITE, "default", "one").await?;
        ensure!(condition(&site, "Ready") == Some("True"), "{}", site["status"]);
        Ok(())
    })
    .await?;
    let mut samples = Vec::new();
    for number in 0..SWAPS {
        host.idle().await?;
        let version = format!("1.0.{}", char::from_digit(number % 9 + 1, 10).context("a digit")?);
        // Unlike bytes each time: a custom section at the end, which nobody reads.
        let mut next = guests::replaced(&bytes, "1.0.0", &version)?;
        next.extend([0, 6, 4]);
        next.extend(format!("swp{}{}", number / 10, number % 10).bytes().take(5));
        let runs =
            host.metrics().await?.sum("controller_runtime_reconcile_total", &[("controller", "website")]);
        let begin = Instant::now();
        host.put("website.wasm", &next)?;
        soon("the new version has reconciled", async || {
            let metrics = host.metrics().await?;
            let now = metrics.sum("controller_runtime_reconcile_total", &[("controller", "website")]);
            ensure!(now > runs, "{now} runs");
            Ok(())
        })
        .await?;
        samples.push((begin.elapsed().saturating_sub(DEBOUNCE)).as_secs_f64() * 1e3);
        host.serves("website", &version).await?;
    }
    host.stop(Duration::from_secs(40)).await?;
    Ok(samples)
}
