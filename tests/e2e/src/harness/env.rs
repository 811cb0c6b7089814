//! What one scenario has to itself: a namespace, a folder, hosts and proxies.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::controlplane::ControlPlane;
use super::host::{Host, Start, put};
use super::kube::Kube;
use super::process::tail;
use crate::fault_proxy::{FaultProxy, Options, Transport, Upstream};

/// Lines of each host's log that a failed scenario shows.
const SHOWN: usize = 40;

/// One scenario's surroundings.
pub struct Env {
    /// The namespace of its objects.
    pub namespace: String,
    /// The cluster as its administrator.
    pub kube: Kube,
    plane: Arc<ControlPlane>,
    dir: PathBuf,
    cache: PathBuf,
    hosts: AtomicU32,
    logs: Mutex<Vec<PathBuf>>,
    ports: Mutex<Vec<u16>>,
}

/// A host to be started.
pub struct HostBuilder<'a> {
    env: &'a Env,
    files: Vec<(String, Vec<u8>)>,
    arguments: Vec<OsString>,
    namespaces: Vec<String>,
    kubeconfig: PathBuf,
    proxied: bool,
    waits: bool,
}

// === impl Env ===

impl Env {
    /// A new namespace for the scenario, and a folder below `root`.
    pub async fn new(name: &str, plane: Arc<ControlPlane>, root: &Path) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("s").tempdir_in(root)?.keep();
        let kube = Kube::new(plane.kubeconfig(), plane.programs().kubectl()).await?;
        let mut namespace = name.replace('_', "-");
        namespace.truncate(63);
        let namespace = namespace.trim_end_matches('-').to_owned();
        let env = Self {
            namespace,
            kube,
            plane,
            dir,
            cache: root.join("compiled"),
            hosts: AtomicU32::new(0),
            logs: Mutex::default(),
            ports: Mutex::default(),
        };
        env.new_namespace(&env.namespace).await?;
        Ok(env)
    }

    /// Creates a namespace.
    pub async fn new_namespace(&self, name: &str) -> anyhow::Result<()> {
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        self.kube.create(&object).await?;
        Ok(())
    }

    /// The control plane, which other scenarios use at the same time.
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// A folder of the scenario's own.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A host that sees the scenario's namespace only, with a proxy between it and the server.
    pub fn host(&self) -> HostBuilder<'_> {
        HostBuilder {
            env: self,
            files: Vec::new(),
            arguments: Vec::new(),
            namespaces: vec![self.namespace.clone()],
            kubeconfig: self.plane.kubeconfig().to_owned(),
            proxied: true,
            waits: true,
        }
    }

    /// A proxy in front of the server of a kubeconfig.
    pub async fn proxy(&self, kubeconfig: &Path) -> anyhow::Result<FaultProxy> {
        let number = self.hosts.fetch_add(1, Ordering::SeqCst);
        FaultProxy::start(Options {
            upstream: Upstream::from_kubeconfig(kubeconfig).await?,
            transport: Transport::Plain,
            port: 0,
            control_port: None,
            kubeconfig: self.dir.join(format!("proxy{number}.kubeconfig")),
        })
    }

    /// A Probe with this spec in the scenario's namespace.
    pub fn probe(&self, name: &str, spec: &Value) -> Value {
        json!({
            "apiVersion": "test.reeve.dev/v1",
            "kind": "Probe",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": spec,
        })
    }

    /// A ConfigMap with this data in the scenario's namespace.
    pub fn config_map(&self, name: &str, data: &Value) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": self.namespace },
            "data": data,
        })
    }

    /// The admin ports that its hosts listened on.
    pub fn admin_ports(&self) -> Vec<u16> {
        self.ports.lock().clone()
    }

    /// What a failed scenario leaves to look at.
    pub fn report(&self) -> String {
        let logs = self.logs.lock();
        let tails = logs
            .iter()
            .map(|log| format!("\n--- {} (last {SHOWN} lines)\n{}", log.display(), tail(log, SHOWN)));
        std::iter::once(format!("namespace {}", self.namespace)).chain(tails).collect()
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            tracing::error!(%error, dir = %self.dir.display(), "failed to remove a scenario's folder");
        }
    }
}

// === impl HostBuilder ===

impl HostBuilder<'_> {
    /// With this plugin in its folder.
    #[must_use]
    pub fn plugin(mut self, file: &str, bytes: &[u8]) -> Self {
        self.files.push((file.to_owned(), bytes.to_vec()));
        self
    }

    /// With a further argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Seeing these namespaces instead; none means all.
    #[must_use]
    pub fn namespaces(mut self, names: &[&str]) -> Self {
        self.namespaces = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// With the server and the rights of this kubeconfig.
    #[must_use]
    pub fn kubeconfig(mut self, path: &Path) -> Self {
        path.clone_into(&mut self.kubeconfig);
        self
    }

    /// Without a proxy before its server.
    #[must_use]
    pub fn direct(mut self) -> Self {
        self.proxied = false;
        self
    }

    /// Without waiting until it is ready.
    #[must_use]
    pub fn at_once(mut self) -> Self {
        self.waits = false;
        self
    }

    /// Starts it, behind a proxy of its own, and waits until it is ready.
    pub async fn start(self) -> anyhow::Result<Host> {
        let proxy = if self.proxied { Some(self.env.proxy(&self.kubeconfig).await?) } else { None };
        self.start_with(proxy).await
    }

    /// Starts it behind this proxy, whose rules may be in force already.
    pub async fn start_behind(self, proxy: FaultProxy) -> anyhow::Result<Host> {
        self.start_with(Some(proxy)).await
    }

    async fn start_with(self, proxy: Option<FaultProxy>) -> anyhow::Result<Host> {
        let number = self.env.hosts.fetch_add(1, Ordering::SeqCst);
        let dir = self.env.dir.join(format!("host{number}"));
        std::fs::create_dir_all(&dir)?;
        for (file, bytes) in &self.files {
            put(&dir.join("plugins"), file, bytes)?;
        }
        let mut arguments = self.arguments;
        for namespace in self.namespaces {
            arguments.extend(["--namespace".into(), namespace.into()]);
        }
        self.env.logs.lock().push(dir.join("reeve.log"));
        let kubeconfig = proxy.as_ref().map_or(self.kubeconfig, |proxy| proxy.kubeconfig().to_owned());
        let host = Host::start(Start { dir, cache: self.env.cache.clone(), kubeconfig, arguments, proxy })?;
        self.env.ports.lock().push(host.admin_port());
        if self.waits {
            host.ready().await?;
        }
        Ok(host)
    }
}
