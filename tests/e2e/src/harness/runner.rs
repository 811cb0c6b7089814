//! Runs a table of scenarios, each on each server, and looks for what was left behind.
//!
//! The table is a value, not attributes, so that the servers are chosen here, the document of
//! scenarios can be compared with it, and something runs after the last one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use parking_lot::Mutex;

use super::controlplane::{ControlPlane, Programs};
use super::env::Env;
use super::guests;
use super::kube::Kube;
use super::process;

/// No scenario may take longer; one that hangs shall not hide the others.
const LIMIT: Duration = Duration::from_mins(3);

/// An API server to run scenarios on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// etcd, kube-apiserver, controller manager and scheduler.
    Real,
}

/// One scenario.
pub struct Scenario {
    /// The function's name: first the scenario's, as `q1_create_gives_one_run`.
    pub name: &'static str,
    /// The scenarios and complaints that it proves, as the table in README.md names them.
    pub proves: &'static [&'static str],
    /// The function.
    pub run: for<'a> fn(&'a Env) -> LocalBoxFuture<'a, anyhow::Result<()>>,
}

/// A module's name and its scenarios.
pub type Module = (&'static str, &'static [Scenario]);

/// A test's name and the test.
pub type Check = (&'static str, Box<dyn FnOnce() -> anyhow::Result<()> + Send>);

/// Makes a module's `TABLE` of its scenarios: `function: "Q1", "Q2";`.
#[macro_export]
macro_rules! scenarios {
    ($($function:ident: $($proves:literal),+;)*) => {
        pub(crate) const TABLE: &[$crate::harness::runner::Scenario] = &[$(
            $crate::harness::runner::Scenario {
                name: stringify!($function),
                proves: &[$($proves),+],
                run: |env| Box::pin($function(env)),
            },
        )*];
    };
}

/// What all scenarios of a run share; made when the first one needs it.
struct Shared {
    root: PathBuf,
    plane: OnceLock<Result<Arc<ControlPlane>, String>>,
    ports: Mutex<Vec<u16>>,
}

// === impl Server ===

impl Server {
    /// All servers.
    pub const ALL: [Self; 1] = [Self::Real];

    /// As it stands in test names and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Real => "real",
        }
    }
}

/// Runs the scenarios that the command line asks for, as `cargo test` does.
/// `checks` are tests without a server.
pub fn run(modules: &[Module], checks: Vec<Check>) -> ExitCode {
    let arguments = Arguments::from_args();
    match run_with(&arguments, modules, checks) {
        Ok(code) => code,
        Err(error) => {
            say(&format!("scenarios: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run_with(arguments: &Arguments, modules: &[Module], checks: Vec<Check>) -> anyhow::Result<ExitCode> {
    let root = tempfile::Builder::new().prefix("reeve-e2e").tempdir()?;
    let shared =
        Arc::new(Shared { root: root.path().to_owned(), plane: OnceLock::new(), ports: Mutex::default() });
    let mut trials: Vec<_> = checks
        .into_iter()
        .map(|(name, check)| {
            Trial::test(name, move || check().map_err(|error| Failed::from(format!("{error:#}"))))
        })
        .collect();
    for (module, scenarios) in modules {
        for scenario in *scenarios {
            for server in Server::ALL {
                let shared = Arc::clone(&shared);
                let name = format!("{module}::{}::{}", server.name(), scenario.name);
                trials.push(Trial::test(name, move || {
                    run_one(&shared, server, scenario).map_err(|error| Failed::from(format!("{error:#}")))
                }));
            }
        }
    }
    let mut names: Vec<_> = trials.iter().map(Trial::name).collect();
    names.sort_unstable();
    let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    ensure!(twice.is_empty(), "these stand in the tables twice: {twice:?}");
    let conclusion = libtest_mimic::run(arguments, trials);
    let ports = shared.ports.lock().clone();
    ensure!(Arc::into_inner(shared).is_some(), "a scenario's thread still runs");
    check_for_dirt(root.path(), &ports)?;
    root.close()?;
    Ok(conclusion.exit_code())
}

fn run_one(shared: &Shared, server: Server, scenario: &Scenario) -> anyhow::Result<()> {
    let plane = match server {
        Server::Real => shared.plane()?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let env = Env::new(scenario.name, plane, &shared.root).await?;
        let ran = tokio::time::timeout(LIMIT, (scenario.run)(&env)).await;
        shared.ports.lock().extend(env.admin_ports());
        let ran = ran.unwrap_or_else(|_| Err(anyhow!("not done after {LIMIT:?}")));
        ran.map_err(|error| anyhow!("{error:#}\n{}", env.report()))
    })
}

// === impl Shared ===

impl Shared {
    /// The control plane with all CRDs, started by the first who asks.
    fn plane(&self) -> anyhow::Result<Arc<ControlPlane>> {
        let plane = self.plane.get_or_init(|| self.start().map_err(|error| format!("{error:#}")));
        plane.clone().map_err(|text| anyhow!(text))
    }

    fn start(&self) -> anyhow::Result<Arc<ControlPlane>> {
        let plane = ControlPlane::start(&Programs::ensure()?, &self.root)?;
        self.ports.lock().extend(plane.ports());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let kube = Kube::new(plane.kubeconfig(), plane.programs().kubectl()).await?;
            for crd in guests::crds()? {
                kube.install(&crd).await.context("failed to install a CRD")?;
            }
            anyhow::Ok(())
        })?;
        Ok(Arc::new(plane))
    }
}

/// Whatever scenarios started has to be gone: processes, listening ports, files.
fn check_for_dirt(root: &Path, ports: &[u16]) -> anyhow::Result<()> {
    let mut left = Vec::new();
    for (pid, name) in process::children()? {
        left.push(format!("process {pid} ({name})"));
    }
    for port in ports {
        if std::net::TcpListener::bind(("127.0.0.1", *port)).is_err() {
            left.push(format!("port {port}"));
        }
    }
    for entry in std::fs::read_dir(root)? {
        let path = entry?.path();
        // The compile cache and the supervisor's log are the run's own and go with its folder.
        let own = path.file_name().is_some_and(|name| name == "compiled") || path.extension().is_some();
        if !own {
            left.push(path.display().to_string());
        }
    }
    if left.is_empty() { Ok(()) } else { bail!("the scenarios left behind: {}", left.join(", ")) }
}

#[expect(clippy::print_stderr, reason = "the runner speaks to who ran it")]
fn say(text: &str) {
    eprintln!("{text}");
}
