//! Many Websites on a real control plane: what a reconcile costs the API server and the host.

use std::time::Duration;

use anyhow::ensure;
use reeve_e2e::fleet::{Fleet, Writes};
use reeve_e2e::harness::controlplane::{ControlPlane, Programs};
use reeve_e2e::harness::guests;
use reeve_e2e::harness::kube::Kube;
use reeve_e2e::harness::wait::eventually;
use tokio::time::Instant;

use crate::idle::start;
use crate::table::{Table, progress};

/// How long all may take.
const LONG: Duration = Duration::from_mins(8);

#[expect(clippy::cast_precision_loss, reason = "thousands")]
pub(crate) fn measure(table: &mut Table, size: usize) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let root = tempfile::Builder::new().prefix("reeve-bench").tempdir()?;
        let programs = Programs::ensure()?;
        let plane = ControlPlane::start(&programs, root.path())?;
        let kube = Kube::new(plane.kubeconfig(), programs.kubectl()).await?;
        for crd in guests::crds()? {
            kube.install(&crd).await?;
        }
        let fleet = Fleet::new(&kube, "fleet", size).await?;
        progress(&format!("applying {size} Websites"));
        fleet.apply("one", 1).await?;
        let objects = size as f64;

        progress("reconciling them");
        let before = Writes::so_far(&plane)?;
        let host = start(root.path(), &plane, &guests::plugin("website")?, Vec::new())?;
        host.ready().await?;
        let synced = Instant::now();
        fleet.wait_ready(1, LONG).await?;
        let first = synced.elapsed();
        fleet.wait_ready(size, LONG).await?;
        let all = synced.elapsed();
        host.idle().await?;
        let created = Writes::so_far(&plane)?.since(&before);
        let usage = host.process().usage()?;
        let metrics = host.metrics().await?;
        let failed = metrics.sum("controller_runtime_reconcile_errors_total", &[("controller", "website")]);
        fleet.check().await?;
        table.figure(&format!("{size} Websites, all Ready after"), format!("{:.1} s", all.as_secs_f64()));
        table.at_most("first one Ready after the first sync", first.as_secs_f64(), 0.5, "s");
        table.at_most("writes per new Website", created.all as f64 / objects, 5.1, "");
        table.figure("  of which", created.to_string());
        table.at_most("conflicts", created.conflicts as f64, 0.0, "");
        table.at_most("failed reconciles", failed, 0.0, "");
        table.at_most("CPU of the host per Website", usage.cpu.as_secs_f64() * 1e3 / objects, 4.0, "ms");
        table.at_most("RSS of the host", usage.rss_kib as f64 / 1024.0, 64.0, "MiB");

        progress("changing every spec");
        let before = Writes::so_far(&plane)?;
        fleet.apply("two", 1).await?;
        fleet.wait_ready(size, LONG).await?;
        host.idle().await?;
        let changed = Writes::so_far(&plane)?.since(&before);
        table.at_most("writes per spec change", changed.all as f64 / objects, 3.0, "");
        table.figure("  of which", changed.to_string());
        host.stop(Duration::from_secs(40)).await?;
        drop(host);

        progress("restarting with nothing changed");
        let before = Writes::so_far(&plane)?;
        let host = start(root.path(), &plane, &guests::plugin("website")?, Vec::new())?;
        host.ready().await?;
        eventually("every Website was looked at again", LONG, async || {
            let metrics = host.metrics().await?;
            let runs = metrics.sum("controller_runtime_reconcile_total", &[("controller", "website")]);
            ensure!(runs >= objects, "{runs} runs");
            Ok(())
        })
        .await?;
        host.idle().await?;
        let restart = Writes::so_far(&plane)?.since(&before);
        table.at_most("writes of a restart with nothing changed", restart.all as f64, 0.0, "");
        host.stop(Duration::from_secs(40)).await?;
        Ok(())
    })
}
