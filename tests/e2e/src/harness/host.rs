//! The host as its users run it: the `reeve` program, driven from outside.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::Value;

use super::metrics::Metrics;
use super::process::{Process, tail};
use super::wait::{eventually, soon};
use crate::fault_proxy::FaultProxy;

/// How long a host may take until it is ready: it compiles its plugins first.
const READY: Duration = Duration::from_mins(1);

/// A running host with a folder of plugins and, mostly, a proxy before its API server.
pub struct Host {
    process: Mutex<Process>,
    admin: kube::Client,
    admin_port: u16,
    /// Its folder of plugins.
    plugins: PathBuf,
    /// What stands between it and the API server.
    proxy: Option<FaultProxy>,
}

/// How to start a [`Host`].
pub struct Start {
    /// A folder for its log, plugins and caches; it has to be of its own.
    pub dir: PathBuf,
    /// Where compiled plugins are kept; may be shared.
    pub cache: PathBuf,
    /// The kubeconfig of its API server, the proxy's if there is one.
    pub kubeconfig: PathBuf,
    /// Further arguments of `reeve run`.
    pub arguments: Vec<OsString>,
    /// Kept as long as the host.
    pub proxy: Option<FaultProxy>,
}

/// One run of a probe as its log line tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// `reconcile`, `cleanup`, `gone` or `map`.
    pub role: String,
    /// The plugin.
    pub plugin: String,
    /// `namespace/name` of the object.
    pub object: String,
    /// The object's UID, empty when it is gone.
    pub uid: String,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// Why.
    pub reasons: Vec<String>,
    /// The plugin's version.
    pub version: String,
    /// When, as the host's log has it.
    pub at: String,
}

/// The host's program, built unless `REEVE_BIN` names one.
pub fn program() -> anyhow::Result<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    program.as_deref().map_err(|text| anyhow!("{text}"))
}

#[expect(clippy::disallowed_methods, reason = "REEVE_BIN and CARGO_TARGET_DIR are the tests' configuration")]
fn build() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("REEVE_BIN") {
        let path = PathBuf::from(path);
        ensure!(path.exists(), "REEVE_BIN is {}, which does not exist", path.display());
        return Ok(path);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // The same packages as the Makefile: another choice would compile wasmtime with other features.
    let status = Command::new("cargo")
        .args(["build", "--quiet", "-p", "reeve-cli", "-p", "reeve-e2e"])
        .current_dir(&root)
        .status()
        .context("failed to run cargo")?;
    ensure!(status.success(), "the host could not be built: see the compiler's messages above");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("debug/reeve"))
}

// === impl Host ===

impl Host {
    /// Starts it; returns at once, see [`ready`](Self::ready).
    pub fn start(start: Start) -> anyhow::Result<Self> {
        let plugins = start.dir.join("plugins");
        std::fs::create_dir_all(&plugins)?;
        let admin_port = free_port()?;
        let mut command = Command::new(program()?);
        command
            .arg("run")
            .arg("--kubeconfig")
            .arg(&start.kubeconfig)
            .arg("--plugins")
            .arg(&plugins)
            .args(["--admin-addr", &format!("127.0.0.1:{admin_port}")])
            .args(["--log-format", "json"])
            .arg("--cache-dir")
            .arg(&start.cache)
            .args(&start.arguments)
            .env("RUST_BACKTRACE", "1")
            .env_remove("RUST_LOG");
        let process = Process::start("reeve run", command, &start.dir.join("reeve.log"))?;
        let mut config = kube::Config::new(format!("http://127.0.0.1:{admin_port}").parse()?);
        config.default_retry = false;
        let admin = kube::Client::try_from(config)?;
        Ok(Self { process: Mutex::new(process), admin, admin_port, plugins, proxy: start.proxy })
    }

    /// The proxy before its API server.
    pub fn proxy(&self) -> anyhow::Result<&FaultProxy> {
        self.proxy.as_ref().context("this host speaks to its API server directly")
    }

    /// Its admin port.
    pub fn admin_port(&self) -> u16 {
        self.admin_port
    }

    /// Its process.
    pub fn process(&self) -> parking_lot::MutexGuard<'_, Process> {
        self.process.lock()
    }

    /// The folder from which it loads plugins.
    pub fn plugins_dir(&self) -> &Path {
        &self.plugins
    }

    /// Puts a plugin into its folder, in the place of one of the same file name at once.
    pub fn put(&self, file: &str, bytes: &[u8]) -> anyhow::Result<()> {
        put(&self.plugins, file, bytes)
    }

    /// Waits until `/readyz` says so.
    pub async fn ready(&self) -> anyhow::Result<()> {
        eventually("the host is ready", READY, async || {
            self.process().alive()?;
            let (status, text) = self.admin("GET", "/readyz?verbose").await?;
            ensure!(status == 200, "/readyz: {status} {text}");
            Ok(())
        })
        .await
    }

    /// Waits until this version of a plugin serves.
    pub async fn serves(&self, plugin: &str, version: &str) -> anyhow::Result<()> {
        eventually(&format!("{plugin} {version} serves"), READY, async || {
            self.process().alive()?;
            let metrics = self.metrics().await?;
            let serving = metrics.sum("reeve_plugin_info", &[("plugin", plugin), ("version", version)]);
            ensure!(serving > 0.0, "/plugins: {}", self.plugins().await?);
            Ok(())
        })
        .await
    }

    /// Sends a request to its admin port: status and body.
    pub async fn admin(&self, method: &str, target: &str) -> anyhow::Result<(u16, String)> {
        let request = http::Request::builder().method(method).uri(target).body(Vec::new().into())?;
        let response = self.admin.send(request).await.with_context(|| format!("{method} {target}"))?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Its metrics now.
    pub async fn metrics(&self) -> anyhow::Result<Metrics> {
        let (status, text) = self.admin("GET", "/metrics").await?;
        ensure!(status == 200, "/metrics: {status} {text}");
        Ok(Metrics::parse(&text))
    }

    /// What `/plugins` says.
    pub async fn plugins(&self) -> anyhow::Result<Value> {
        let (status, text) = self.admin("GET", "/plugins").await?;
        ensure!(status == 200, "/plugins: {status} {text}");
        Ok(serde_json::from_str(&text)?)
    }

    /// The lines of its log that are JSON.
    pub fn log(&self) -> anyhow::Result<Vec<Value>> {
        let path = self.process().log().to_owned();
        let text = std::fs::read_to_string(&path)?;
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The lines of its log as text that contain this.
    pub fn log_lines(&self, part: &str) -> anyhow::Result<Vec<String>> {
        let path = self.process().log().to_owned();
        let text = std::fs::read_to_string(&path)?;
        Ok(text.lines().filter(|line| line.contains(part)).map(str::to_owned).collect())
    }

    /// The runs of probes so far, oldest first.
    pub fn calls(&self) -> anyhow::Result<Vec<Call>> {
        Ok(self.log()?.iter().filter_map(call).collect())
    }

    /// The runs for one object, by its name.
    pub fn calls_of(&self, name: &str) -> anyhow::Result<Vec<Call>> {
        let mut calls = self.calls()?;
        calls.retain(|call| call.object.rsplit('/').next() == Some(name));
        Ok(calls)
    }

    /// Waits until an object had at least that many runs, and returns them.
    pub async fn called(&self, name: &str, times: usize) -> anyhow::Result<Vec<Call>> {
        soon(&format!("{name} has {times} runs"), async || {
            self.process().alive()?;
            let calls = self.calls_of(name)?;
            ensure!(calls.len() >= times, "it has {}: {calls:#?}", calls.len());
            Ok(calls)
        })
        .await
    }

    /// Waits until nothing is queued, in work, or on its way from the watches.
    pub async fn idle(&self) -> anyhow::Result<()> {
        soon("the host is idle", async || {
            self.process().alive()?;
            let metrics = self.metrics().await?;
            for series in
                ["workqueue_depth", "controller_runtime_active_workers", "reeve_cache_changes_pending"]
            {
                let value = metrics.int(series, &[]);
                ensure!(value == 0, "{series} is {value}");
            }
            Ok(())
        })
        .await
    }

    /// Stops it with SIGTERM and returns its exit code.
    pub async fn stop(&self, within: Duration) -> anyhow::Result<Option<i32>> {
        self.process().signal("TERM")?;
        self.wait(within).await
    }

    /// Waits until it ended and returns its exit code.
    pub async fn wait(&self, within: Duration) -> anyhow::Result<Option<i32>> {
        let what = "the host ends";
        let log = self.process().log().to_owned();
        let status = eventually(what, within, async || {
            self.process().ended()?.with_context(|| format!("it runs; its last lines:\n{}", tail(&log, 10)))
        })
        .await?;
        Ok(status.code())
    }
}

/// Writes a plugin beside its place, then renames it into it.
pub fn put(dir: &Path, file: &str, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)?;
    let part = dir.join(format!(".{file}.part"));
    std::fs::write(&part, bytes)?;
    std::fs::rename(&part, dir.join(file))?;
    Ok(())
}

/// A port that was free a moment ago.
fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Reads the log line that a probe writes at the beginning of each run.
fn call(line: &Value) -> Option<Call> {
    let role = match line["message"].as_str()?.strip_prefix("probe ")? {
        "run" => "reconcile",
        role @ ("cleanup" | "gone" | "map") => role,
        _ => return None,
    };
    // The guest's own fields are one text of `key=value` pairs, because their names are the guest's.
    let guest = line["fields"].as_str().unwrap_or_default();
    let text = |name: &str| {
        let mut pairs = guest.split(' ').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map_or("", |(_, value)| value).to_owned()
    };
    Some(Call {
        role: role.to_owned(),
        plugin: line["span"]["plugin"].as_str().unwrap_or_default().to_owned(),
        object: match text("namespace").as_str() {
            "" => text("name"),
            namespace => format!("{namespace}/{}", text("name")),
        },
        uid: text("uid"),
        attempt: text("attempt").parse().unwrap_or(0),
        reasons: text("reasons").split(',').filter(|reason| !reason.is_empty()).map(str::to_owned).collect(),
        version: text("version"),
        at: line["timestamp"].as_str().unwrap_or_default().to_owned(),
    })
}
