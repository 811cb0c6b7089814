//! A host with one plugin, a warm compile cache, and nothing to do.

use std::path::Path;
use std::time::Duration;

use reeve_e2e::harness::controlplane::{ControlPlane, Programs};
use reeve_e2e::harness::guests;
use reeve_e2e::harness::host::{Host, Start, put};
use reeve_e2e::harness::kube::Kube;

use crate::table::Table;

pub(crate) fn measure(table: &mut Table) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let root = tempfile::Builder::new().prefix("reeve-bench").tempdir()?;
        let programs = Programs::ensure()?;
        let plane = ControlPlane::start(&programs, root.path())?;
        let kube = Kube::new(plane.kubeconfig(), programs.kubectl()).await?;
        for crd in guests::crds()? {
            kube.install(&crd).await?;
        }
        let bytes = guests::plugin("website")?;
        // The first start compiles, the second is measured.
        for warm in [false, true] {
            let host = start(root.path(), &plane, &bytes, Vec::new())?;
            host.ready().await?;
            host.serves("website", "1.0.0").await?;
            host.idle().await?;
            if warm {
                #[expect(clippy::cast_precision_loss, reason = "KiB of a process")]
                let rss = host.process().usage()?.rss_kib as f64 / 1024.0;
                table.at_most("idle host, one plugin, RSS", rss, 40.0, "MiB");
            }
            host.stop(Duration::from_secs(40)).await?;
        }
        Ok(())
    })
}

/// Starts a host with the website plugin; its compile cache outlives it.
pub(crate) fn start(
    root: &Path,
    plane: &ControlPlane,
    plugin: &[u8],
    arguments: Vec<std::ffi::OsString>,
) -> anyhow::Result<Host> {
    let dir = root.join("host");
    put(&dir.join("plugins"), "website.wasm", plugin)?;
    Host::start(Start {
        dir,
        cache: root.join("compiled"),
        kubeconfig: plane.kubeconfig().to_owned(),
        arguments,
        proxy: None,
    })
}
