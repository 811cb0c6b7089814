//! `make soak-short`: 1,000 Websites on a real control plane, with everything that happens to a
//! host in a bad week: the API server is killed, the host is killed, the plugin is swapped twice.
//!
//! It ends with 0 only if every Website is Ready with its three children, no child is duplicate or
//! orphaned, no finalizer is lost, and a restart with nothing changed writes nothing.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::Parser;
use reeve_e2e::fleet::{Fleet, Writes};
use reeve_e2e::harness::controlplane::{ControlPlane, Programs};
use reeve_e2e::harness::guests;
use reeve_e2e::harness::host::{Host, Start};
use reeve_e2e::harness::kube::Kube;
use reeve_e2e::harness::wait::eventually;
use tokio::time::Instant;

/// How long all Websites may take to get Ready, faults included. Two cores do it in one to two
/// minutes; only a failure waits longer.
const ALL_READY: Duration = Duration::from_mins(8);

/// Reconciles many Websites through crashes and swaps, and checks what is left.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many Websites.
    #[arg(long, default_value_t = 1000)]
    websites: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match soak(&Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("the soak failed: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn soak(arguments: &Arguments) -> anyhow::Result<()> {
    let size = arguments.websites;
    let root = tempfile::Builder::new().prefix("reeve-soak").tempdir()?;
    let begin = Instant::now();
    let tell = |text: &str| say(&format!("{:7.1} s  {text}", begin.elapsed().as_secs_f64()));

    tell("starting a control plane");
    let programs = Programs::ensure()?;
    let plane = ControlPlane::start(&programs, root.path())?;
    let kube = Kube::new(plane.kubeconfig(), programs.kubectl()).await?;
    for crd in guests::crds()? {
        kube.install(&crd).await?;
    }
    // The garbage collector looks for new kinds every 30 s; a restarted one looks at once.
    plane.part("restart", "kube-controller-manager")?;
    let versions = versions()?;
    let fleet = Fleet::new(&kube, "soak", size).await?;

    tell("starting the host");
    let host = start(root.path(), &plane, &versions[0])?;
    host.ready().await?;
    host.serves("website", &versions[0].0).await?;

    tell(&format!("applying {size} Websites with kubectl"));
    let applying = fleet.apply("one", 1);
    let meddling = async {
        fleet.wait_ready(size / 5, ALL_READY).await?;
        tell("a fifth is Ready: killing kube-apiserver");
        plane.part("kill", "kube-apiserver")?;
        plane.part("start", "kube-apiserver")?;
        tell("kube-apiserver is back");
        anyhow::Ok(())
    };
    // kubectl sees the outage too: what it could not apply then is applied again below.
    let (applied, meddled) = futures::join!(applying, meddling);
    meddled?;
    if let Err(error) = applied {
        tell(&format!("kubectl was interrupted ({}), applying again", first_line(&error)));
        eventually("the Websites are applied", ALL_READY, async || fleet.apply("one", 1).await).await?;
    }
    fleet.wait_ready(size / 2, ALL_READY).await?;
    tell("half are Ready: swapping the plugin");
    host.put("website.wasm", &versions[1].1)?;
    host.serves("website", &versions[1].0).await?;
    tell("killing the host");
    host.process().kill()?;
    drop(host);
    let host = start(root.path(), &plane, &versions[1])?;
    host.ready().await?;
    tell("the host is back: changing every spec, and swapping the plugin again");
    fleet.apply("two", 1).await?;
    host.put("website.wasm", &versions[2].1)?;
    host.serves("website", &versions[2].0).await?;
    fleet.wait_ready(size, ALL_READY).await?;
    host.idle().await?;
    tell("all are Ready: checking children, owners, finalizers, conditions");
    fleet.check().await?;
    let usage = host.process().usage()?;
    let code = host.stop(Duration::from_secs(40)).await?;
    ensure!(code == Some(0), "the host ended with {code:?}");
    drop(host);

    tell("restarting the host with nothing changed");
    let before = Writes::so_far(&plane)?;
    let host = start(root.path(), &plane, &versions[2])?;
    host.ready().await?;
    host.serves("website", &versions[2].0).await?;
    let runs = eventually("every Website was looked at again", ALL_READY, async || {
        let runs =
            host.metrics().await?.sum("controller_runtime_reconcile_total", &[("controller", "website")]);
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        let wanted = size as f64;
        ensure!(runs >= wanted, "{runs} runs");
        Ok(runs)
    })
    .await?;
    host.idle().await?;
    let after = Writes::so_far(&plane)?;
    let restart = after.since(&before);
    fleet.check().await?;

    tell("deleting all Websites");
    fleet.delete(ALL_READY).await?;
    let code = host.stop(Duration::from_secs(40)).await?;
    ensure!(code == Some(0), "the host ended with {code:?}");
    ensure!(restart.all == 0, "the restart wrote: {restart}");
    tell("done");
    say(&format!(
        "websites {size}\nwrites, faults and two spec versions included: {before}\n\
         writes of the restart: {}, in {runs} runs\nhost: {:.1} s CPU, peak {} MiB RSS\ntime: {:.0} s",
        restart.all,
        usage.cpu.as_secs_f64(),
        usage.peak_rss_kib / 1024,
        begin.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Three versions of the website plugin that differ in nothing but their version.
fn versions() -> anyhow::Result<[(String, Vec<u8>); 3]> {
    let bytes = guests::plugin("website")?;
    let version = |number: u32| {
        let text = format!("1.0.{number}");
        anyhow::Ok((text.clone(), guests::replaced(&bytes, "1.0.0", &text)?))
    };
    Ok([version(0)?, version(1)?, version(2)?])
}

fn start(root: &Path, plane: &ControlPlane, plugin: &(String, Vec<u8>)) -> anyhow::Result<Host> {
    let dir = root.join("host");
    reeve_e2e::harness::host::put(&dir.join("plugins"), "website.wasm", &plugin.1)?;
    Host::start(Start {
        dir,
        cache: root.join("compiled"),
        kubeconfig: plane.kubeconfig().to_owned(),
        arguments: Vec::new(),
        proxy: None,
    })
}

fn first_line(error: &anyhow::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().chars().take(160).collect()
}

#[expect(clippy::print_stderr, reason = "a command speaks to who ran it")]
fn say(text: &str) {
    eprintln!("{text}");
}
