//! A host over a scripted API server, with probe plugins in a folder.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use reeve_cluster::{ConnectOptions, Connection};
use reeve_runtime::config::{Grace, HostConfig, Pace};
use reeve_runtime::registry::PlaceView;
use reeve_runtime::{Host, RunError};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::api::Api;

/// How long anything may take that should happen soon, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// Which probe.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Probe {
    Plain,
    Cleanup,
    Mapping,
}

/// A running host.
pub(crate) struct Fixture {
    pub(crate) api: Api,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) admin: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    pub(crate) force: CancellationToken,
    views: reeve_runtime::registry::Views,
    task: Option<JoinHandle<Result<(), RunError>>>,
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut HostConfig)) -> Self {
        watch_runs();
        let api = Api::start().await;
        let folder = tempfile::tempdir().unwrap();
        let host = host(&api, folder.path(), change).await.unwrap();
        let (shutdown, force) = (CancellationToken::new(), CancellationToken::new());
        let (admin, views) = (host.admin_addr().unwrap(), host.views().clone());
        let running = host.run(shutdown.clone(), force.clone());
        #[expect(clippy::disallowed_methods, reason = "the fixture owns the task")]
        let task = Some(tokio::spawn(running));
        Self { api, folder, admin, shutdown, force, views, task }
    }

    /// Puts a plugin into the folder, in one piece.
    pub(crate) fn install(&self, file: &str, bytes: &[u8]) {
        let hidden = self.folder.path().join(format!(".{file}"));
        std::fs::write(&hidden, bytes).unwrap();
        std::fs::rename(&hidden, self.folder.path().join("plugins").join(file)).unwrap();
    }

    pub(crate) fn remove(&self, file: &str) {
        std::fs::remove_file(self.folder.path().join("plugins").join(file)).unwrap();
    }

    /// What became of a file.
    pub(crate) fn place(&self, file: &str) -> Option<PlaceView> {
        self.views.load().places.iter().find(|place| place.source.ends_with(file)).cloned()
    }

    /// Waits until a file's plugin is in service in this version.
    pub(crate) async fn serving(&self, file: &str, version: &str) {
        let what = format!("{file} {version} in service");
        soon(&what, || {
            self.place(file).filter(|place| place.version.as_deref() == Some(version) && place.next.is_none())
        })
        .await;
    }

    /// Waits until a file's error contains a text.
    pub(crate) async fn refused(&self, file: &str, why: &str) -> PlaceView {
        soon(&format!("{file} refused: {why}"), || {
            self.place(file).filter(|place| place.error.as_ref().is_some_and(|error| error.contains(why)))
        })
        .await
    }

    /// One field of a probe's status.
    pub(crate) fn status(&self, name: &str, pointer: &str) -> Option<Value> {
        self.api.get("probes", name)?.pointer(&format!("/status{pointer}")).cloned()
    }

    /// A condition of a probe: `status reason`.
    pub(crate) fn condition(&self, name: &str, kind: &str) -> Option<String> {
        let conditions = self.status(name, "/conditions")?;
        let found = conditions.as_array()?.iter().find(|condition| condition["type"] == kind)?;
        Some(format!("{} {}", found["status"].as_str()?, found["reason"].as_str()?))
    }

    /// A metric by its line's beginning.
    pub(crate) async fn metric(&self, series: &str) -> Option<f64> {
        let (_, text) = self.http("GET", "/metrics").await;
        let line =
            text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// A request to the admin port: status and body.
    pub(crate) async fn http(&self, method: &str, path: &str) -> (u16, String) {
        let mut stream = tokio::net::TcpStream::connect(self.admin).await.unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let body = if head.contains("chunked") { unchunk(body) } else { body.to_owned() };
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
    }

    /// Stops the host and says how it ended.
    pub(crate) async fn stop(&mut self) -> Result<(), RunError> {
        self.shutdown.cancel();
        self.ended().await
    }

    /// Waits for the end of the host.
    pub(crate) async fn ended(&mut self) -> Result<(), RunError> {
        let task = self.task.take().unwrap();
        tokio::time::timeout(SOON, task).await.expect("the host did not end").unwrap()
    }
}

fn unchunk(body: &str) -> String {
    let (mut text, mut rest) = (String::new(), body);
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        text.push_str(&after[..length]);
        rest = after[length..].trim_start_matches("\r\n");
        if length == 0 {
            break;
        }
    }
    text
}

/// A host that is not running yet; its plugins are below `folder`.
pub(crate) async fn host(
    api: &Api,
    folder: &Path,
    change: impl FnOnce(&mut HostConfig),
) -> Result<Host, reeve_runtime::StartError> {
    let kubeconfig = folder.join("kubeconfig");
    std::fs::write(&kubeconfig, api.kubeconfig()).unwrap();
    std::fs::create_dir_all(folder.join("plugins")).unwrap();
    let registry = prometheus::Registry::new();
    let options = ConnectOptions { kubeconfig: Some(kubeconfig), context: None };
    let connection = Connection::open(&options, &registry).await.unwrap();
    let mut config = HostConfig {
        plugin_dirs: vec![folder.join("plugins")],
        admin_addr: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        cache_dir: Some(compile_cache()),
        grace: Grace::Limited(Duration::from_secs(10)),
        guest_threads: 2,
        pace: Pace {
            quiet: Duration::from_millis(10),
            gone_after: Duration::from_millis(200),
            ..Pace::default()
        },
        ..HostConfig::new("default")
    };
    change(&mut config);
    Host::start(config, connection, registry).await
}

/// Compiled code is shared by the tests of this process.
fn compile_cache() -> PathBuf {
    static CACHE: OnceLock<tempfile::TempDir> = OnceLock::new();
    CACHE.get_or_init(|| tempfile::tempdir().unwrap()).path().join("compiled")
}

/// Waits until something is there.
pub(crate) async fn soon<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "did not come: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    soon(what, || holds().then_some(())).await;
}

// --- plugins

/// A manifest with this name and version over `Probe`; `change` is merged into it.
pub(crate) fn manifest(name: &str, version: &str, change: Value) -> Value {
    let mut manifest = json!({
        "name": name,
        "version": version,
        "primary": {"apiVersion": "test.reeve.dev/v1", "kind": "Probe"},
        "watches": [{"apiVersion": "v1", "kind": "ConfigMap", "relation": "owned"}],
        "retry": {"baseMs": 50, "capMs": 400},
        "limits": {"deadlineMs": 5000},
    });
    let Value::Object(change) = change else { return manifest };
    for (key, value) in change {
        manifest[key] = value;
    }
    manifest
}

/// A probe with this manifest.
pub(crate) fn probe(kind: Probe, manifest: &Value) -> Vec<u8> {
    probe_text(kind, &manifest.to_string())
}

/// A probe whose `describe` returns this (plugins/probe/README.md).
pub(crate) fn probe_text(kind: Probe, text: &str) -> Vec<u8> {
    const MARKER: &[u8] = b"@reeve-probe-manifest@";
    let name = match kind {
        Probe::Plain => "reeve_probe_plain.wasm",
        Probe::Cleanup => "reeve_probe_cleanup.wasm",
        Probe::Mapping => "reeve_probe_mapping.wasm",
    };
    let mut bytes = std::fs::read(built().join(name)).unwrap();
    let at = bytes.windows(MARKER.len()).position(|window| window == MARKER).unwrap() + MARKER.len();
    let block = &mut bytes[at..at + 8192 - MARKER.len()];
    block.fill(b' ');
    block[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// The folder with the built plugins.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = root.join("target/plugins");
        let output = Command::new("cargo")
            .args(["build", "--quiet", "--profile", "plugin", "--target", "wasm32-wasip2", "--manifest-path"])
            .arg(root.join("plugins/Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "the plugins could not be built: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        target.join("wasm32-wasip2/plugin")
    })
}

/// A `Probe` object with this spec.
pub(crate) fn object(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "test.reeve.dev/v1", "kind": "Probe", "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

// --- what runs when

/// The turns of this process, by plugin and object.
#[derive(Default)]
struct Runs(Mutex<HashMap<(String, String), Seen>>);

/// The runs of one key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) now: usize,
    pub(crate) most: usize,
    pub(crate) total: usize,
}

/// What has been seen of a key.
pub(crate) fn runs(plugin: &str, name: &str) -> Seen {
    let key = (plugin.to_owned(), format!("default/{name}"));
    watch_runs().0.lock().get(&key).copied().unwrap_or_default()
}

#[expect(clippy::disallowed_methods, reason = "REEVE_TEST_LOG shows what a failing test logs")]
fn watch_runs() -> &'static Arc<Runs> {
    static RUNS: OnceLock<Arc<Runs>> = OnceLock::new();
    RUNS.get_or_init(|| {
        let runs = Arc::new(Runs::default());
        let subscriber = tracing_subscriber::registry().with(RunLayer(Arc::clone(&runs)));
        let filter = std::env::var("REEVE_TEST_LOG").map(tracing_subscriber::EnvFilter::new);
        let subscriber = subscriber.with(
            filter.ok().map(|filter| tracing_subscriber::fmt::layer().with_test_writer().with_filter(filter)),
        );
        tracing::subscriber::set_global_default(subscriber).unwrap();
        runs
    })
}

struct RunLayer(Arc<Runs>);

#[derive(Default)]
struct Fields(HashMap<&'static str, String>);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: tracing::Subscriber> Layer<S> for RunLayer {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != "reeve::turn" {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut runs = self.0.0.lock();
        let seen = runs.entry((fields.0["plugin"].clone(), fields.0["object"].clone())).or_default();
        if fields.0["message"] == "begins" {
            seen.now += 1;
            seen.total += 1;
            seen.most = seen.most.max(seen.now);
        } else {
            seen.now -= 1;
        }
    }
}
