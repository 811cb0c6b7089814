//! `make demo`: what Reeve does, shown with kubectl and checked at each step; `make dev` with
//! `--stay`: the same start, which stays up with a live log.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser;
use reeve_e2e::fleet::{WEBSITE, is_ready};
use reeve_e2e::harness::controlplane::{ControlPlane, Programs};
use reeve_e2e::harness::guests;
use reeve_e2e::harness::host::{Host, Start, put};
use reeve_e2e::harness::kube::{Kube, condition};
use reeve_e2e::harness::wait::soon;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

/// The namespace that the host calls its own here.
const HOST_NAMESPACE: &str = "reeve-system";
/// How many Websites are in work while the plugin is swapped.
const CROWD: usize = 30;

/// Shows a controller host at work on a real API server.
#[derive(Debug, Parser)]
struct Arguments {
    /// Starts everything, then stays up with the host's log until Ctrl-C.
    #[arg(long)]
    stay: bool,
}

struct Demo {
    plane: ControlPlane,
    kube: Kube,
    host: Host,
    dir: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(&Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("the demo failed: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = tempfile::Builder::new().prefix("reeve-demo").tempdir()?;
    let demo = Demo::start(root.path()).await?;
    if arguments.stay {
        demo.stay().await?;
    } else {
        demo.show().await?;
    }
    let code = demo.host.stop(Duration::from_secs(40)).await?;
    ensure!(code == Some(0), "the host ended with {code:?}");
    Ok(())
}

// === impl Demo ===

impl Demo {
    async fn start(root: &Path) -> anyhow::Result<Self> {
        step("A real control plane: etcd, kube-apiserver, controllers, a Node");
        let programs = Programs::ensure()?;
        let plane = ControlPlane::start(&programs, root)?;
        let kube = Kube::new(plane.kubeconfig(), programs.kubectl()).await?;
        say(&format!("kubeconfig: {}", plane.kubeconfig().display()));
        for crd in guests::crds()? {
            kube.install(&crd).await?;
        }
        // The garbage collector looks for new kinds every 30 s; a restarted one looks at once.
        plane.part("restart", "kube-controller-manager")?;

        step("The host, with the plugin `website` in its folder");
        let dir = root.join("host");
        put(&dir.join("plugins"), "website.wasm", &guests::plugin("website")?)?;
        say(&format!(
            "$ reeve run --kubeconfig {} --plugins {}/plugins --configmaps",
            plane.kubeconfig().display(),
            dir.display()
        ));
        let arguments = ["--configmaps", "--host-namespace", HOST_NAMESPACE];
        let host = Host::start(Start {
            dir: dir.clone(),
            cache: root.join("compiled"),
            kubeconfig: plane.kubeconfig().to_owned(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            proxy: None,
        })?;
        let demo = Self { plane, kube, host, dir };
        demo.kubectl(&["create", "namespace", HOST_NAMESPACE], "").await?;
        demo.host.ready().await?;
        demo.host.serves("website", "1.0.0").await?;
        say(&format!("the host is ready; admin port {}", demo.host.admin_port()));
        Ok(demo)
    }

    async fn show(&self) -> anyhow::Result<()> {
        self.apply().await?;
        self.change().await?;
        self.swap().await?;
        self.refuse().await?;
        self.config_map().await?;
        self.delete().await?;
        step("Done: every step above was read back from the cluster");
        Ok(())
    }

    async fn apply(&self) -> anyhow::Result<()> {
        step("A Website is applied: the plugin makes a ConfigMap, a Deployment and a Service");
        self.kubectl(&["apply", "-f", "-"], &website("hello", 2, "<h1>Hello</h1>")).await?;
        self.kubectl(&["wait", "--for=condition=Ready", "website/hello", "--timeout=60s"], "").await?;
        self.kubectl(&["get", "website,configmap,deployment,service", "-l", "reeve.dev/plugin=website"], "")
            .await?;
        self.kubectl(&["get", "website", "hello"], "").await?;
        for kind in ["v1/ConfigMap", "apps/v1/Deployment", "v1/Service"] {
            let children = self.kube.list(kind, "default", "reeve.dev/plugin=website").await?;
            ensure!(children.len() == 1, "{} children of kind {kind}", children.len());
            let owner = &children[0]["metadata"]["ownerReferences"][0];
            ensure!(owner["name"] == "hello" && owner["controller"] == true, "{kind}: owner {owner}");
        }
        Ok(())
    }

    async fn change(&self) -> anyhow::Result<()> {
        step("Its spec changes: only what differs is written");
        let patch = r#"{"spec":{"html":"<h1>Hello again</h1>","replicas":3}}"#;
        self.kubectl(&["patch", "website", "hello", "--type=merge", "-p", patch], "").await?;
        soon("three replicas and the new page are there", async || {
            let children =
                self.kube.list("apps/v1/Deployment", "default", "reeve.dev/plugin=website").await?;
            let live = children.first().context("there is no Deployment")?;
            ensure!(live["status"]["availableReplicas"] == 3, "{}", live["status"]);
            let site = self.kube.get(WEBSITE, "default", "hello").await?;
            ensure!(is_ready(&site) && site["status"]["readyReplicas"] == 3, "{}", site["status"]);
            let maps = self.kube.list("v1/ConfigMap", "default", "reeve.dev/plugin=website").await?;
            let page = maps.first().context("there is no ConfigMap")?["data"].to_string();
            ensure!(page.contains("Hello again"), "{page}");
            Ok(())
        })
        .await?;
        self.kubectl(&["get", "deployment,website"], "").await?;
        Ok(())
    }

    async fn swap(&self) -> anyhow::Result<()> {
        step(&format!("The plugin's file changes while {CROWD} Websites are in work"));
        let crowd: String =
            (0..CROWD).map(|number| website(&format!("crowd-{number:02}"), 0, "one of many")).collect();
        self.kubectl(&["apply", "-f", "-"], &crowd).await?;
        say("$ mv website-next.wasm plugins/website.wasm");
        self.host.put("website.wasm", &guests::plugin("website-next")?)?;
        self.host.serves("website", "1.1.0").await?;
        soon("every page has the new version's footer", async || {
            let maps = self.kube.list("v1/ConfigMap", "default", "reeve.dev/plugin=website").await?;
            let new = maps.iter().filter(|map| map["data"].to_string().contains("Served by Reeve")).count();
            ensure!(new == CROWD + 1, "{new} of {}", maps.len());
            Ok(())
        })
        .await?;
        soon("all Websites are Ready", async || {
            let sites = self.kube.list(WEBSITE, "default", "").await?;
            let ready = sites.iter().filter(|site| condition(site, "Ready") == Some("True")).count();
            ensure!(ready == CROWD + 1, "{ready} of {}", sites.len());
            Ok(())
        })
        .await?;
        let metrics = self.host.metrics().await?;
        let failed = metrics.sum("controller_runtime_reconcile_errors_total", &[("controller", "website")]);
        ensure!(failed == 0.0, "{failed} reconciles failed");
        say(&format!(
            "version 1.1.0 serves, all {} Websites are Ready with the new footer, no reconcile failed",
            CROWD + 1
        ));
        Ok(())
    }

    async fn refuse(&self) -> anyhow::Result<()> {
        step("A broken file takes its place: it is refused, the old version goes on");
        let good = guests::plugin("website")?;
        say("$ head -c 2000 website.wasm > plugins/website.wasm");
        self.host.put("website.wasm", &good[..2000])?;
        let refusal = soon("the refusal is in the log", async || {
            let lines = self.host.log_lines("website.wasm")?;
            lines.into_iter().rfind(|line| line.contains("refused")).context("there is none")
        })
        .await?;
        say(&refusal);
        self.kubectl(&["patch", "website", "hello", "--type=merge", "-p", r#"{"spec":{"replicas":1}}"#], "")
            .await?;
        soon("the old version reconciles", async || {
            let children =
                self.kube.list("apps/v1/Deployment", "default", "reeve.dev/plugin=website").await?;
            let hello =
                children.iter().find(|child| child["metadata"]["ownerReferences"][0]["name"] == "hello");
            let live = hello.context("there is no Deployment of hello")?;
            ensure!(live["spec"]["replicas"] == 1, "{}", live["spec"]["replicas"]);
            Ok(())
        })
        .await?;
        self.host.serves("website", "1.1.0").await
    }

    async fn config_map(&self) -> anyhow::Result<()> {
        step("A second plugin comes as a ConfigMap, and is updated through it");
        let first = guests::plugin("hello-configmap")?;
        let second = guests::replaced(&first, "1.0.0", "1.0.1")?;
        for (version, bytes) in [("1.0.0", &first), ("1.0.1", &second)] {
            let file = self.dir.join("hello.wasm");
            std::fs::write(&file, bytes)?;
            let digest = Self::reeve(&["inspect", &file.to_string_lossy(), "--digest"])?;
            let from = format!("--from-file=plugin.wasm={}", file.display());
            let made = self
                .kube
                .kubectl(
                    &[
                        "-n",
                        HOST_NAMESPACE,
                        "create",
                        "configmap",
                        "hello",
                        &from,
                        "--dry-run=client",
                        "-o",
                        "json",
                    ],
                    "",
                )
                .await?;
            let mut object: Value = serde_json::from_str(&made)?;
            object["metadata"]["labels"] = json!({ "reeve.dev/plugin": "hello-configmap" });
            object["metadata"]["annotations"] = json!({ "reeve.dev/digest": digest.trim() });
            say(&format!(
                "$ kubectl -n {HOST_NAMESPACE} create configmap hello {from}  # and label, and digest annotation"
            ));
            self.kubectl(&["apply", "--server-side", "-f", "-"], &object.to_string()).await?;
            self.host.serves("hello-configmap", version).await?;
            say(&format!("hello-configmap {version} serves"));
        }
        Ok(())
    }

    async fn delete(&self) -> anyhow::Result<()> {
        step("The Website is deleted: the plugin cleans up, then it goes with its children");
        let finalizers = self.kube.get(WEBSITE, "default", "hello").await?["metadata"]["finalizers"].clone();
        ensure!(finalizers == json!(["reeve.dev/website"]), "finalizers {finalizers}");
        self.kubectl(&["delete", "website", "hello", "--timeout=60s"], "").await?;
        soon("its Deployment is gone", async || {
            let children =
                self.kube.list("apps/v1/Deployment", "default", "reeve.dev/plugin=website").await?;
            ensure!(children.len() == CROWD, "{} Deployments are there", children.len());
            Ok(())
        })
        .await?;
        self.kubectl(&["get", "events", "--field-selector=involvedObject.name=hello"], "").await?;
        Ok(())
    }

    /// Follows the host's log until Ctrl-C.
    async fn stay(&self) -> anyhow::Result<()> {
        let kubeconfig = self.plane.kubeconfig().display();
        step("Everything is up. In another shell:");
        say(&format!(
            "  export KUBECONFIG={kubeconfig}\n  {} apply -f plugins/website/examples/hello.yaml\n  cp my-plugin.wasm {}/\nCtrl-C ends everything. The host's log:",
            self.plane.programs().kubectl().display(),
            self.host.plugins_dir().display()
        ));
        let path = self.host.process().log().to_owned();
        let mut log = tokio::fs::File::open(&path).await?;
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        let interrupted = tokio::signal::ctrl_c();
        tokio::pin!(interrupted);
        loop {
            tokio::select! {
                signal = &mut interrupted => return signal.context("failed to wait for Ctrl-C"),
                _ = ticks.tick() => {
                    self.host.process().alive()?;
                    let mut text = String::new();
                    log.read_to_string(&mut text).await?;
                    if !text.is_empty() {
                        say(text.trim_end());
                    }
                    log.seek(std::io::SeekFrom::Current(0)).await?;
                }
            }
        }
    }

    /// Runs kubectl, showing the command and what it answers.
    async fn kubectl(&self, arguments: &[&str], input: &str) -> anyhow::Result<()> {
        say(&format!("$ kubectl {}", arguments.join(" ")));
        let output = self.kube.kubectl(arguments, input).await?;
        let shown: Vec<_> = output.lines().take(12).collect();
        say(&shown.join("\n"));
        if output.lines().count() > shown.len() {
            say(&format!("… {} more", output.lines().count() - shown.len()));
        }
        Ok(())
    }

    fn reeve(arguments: &[&str]) -> anyhow::Result<String> {
        say(&format!("$ reeve {}", arguments.join(" ")));
        let output =
            std::process::Command::new(reeve_e2e::harness::host::program()?).args(arguments).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}

fn website(name: &str, replicas: u32, html: &str) -> String {
    format!(
        "---\napiVersion: example.reeve.dev/v1\nkind: Website\nmetadata:\n  name: {name}\n  namespace: default\nspec:\n  replicas: {replicas}\n  html: {html:?}\n"
    )
}

fn step(text: &str) {
    say(&format!("\n== {text}"));
}

#[expect(clippy::print_stdout, reason = "a command speaks to who ran it")]
fn say(text: &str) {
    println!("{text}");
}
