//! The toolchain that builds guests: which target it has, and what cargo says of a crate.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, anyhow, bail};
use serde_json::Value;

/// The profile that plugins are built with; a crate or workspace may define its own.
const PROFILE: &str = "plugin";
/// What the profile is where the workspace does not define it: small, with function names.
const PROFILE_SETTINGS: [&str; 6] = [
    "inherits=\"release\"",
    "opt-level=\"s\"",
    "lto=\"fat\"",
    "codegen-units=1",
    "panic=\"abort\"",
    "strip=\"debuginfo\"",
];

/// A guest target, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Gives components; clocks, randomness and panics work as authors expect.
    Wasip2,
    /// Gives core modules, which are made components.
    Unknown,
}

/// A plugin's crate.
#[derive(Debug)]
pub(super) struct Crate {
    /// The package's name.
    pub(super) name: String,
    /// Where its `Cargo.toml` is.
    pub(super) folder: PathBuf,
    /// Where cargo builds.
    pub(super) target_folder: PathBuf,
    workspace: PathBuf,
    offline: bool,
}

impl Target {
    pub(super) const fn triple(self) -> &'static str {
        match self {
            Self::Wasip2 => "wasm32-wasip2",
            Self::Unknown => "wasm32-unknown-unknown",
        }
    }

    /// Whether its linker already makes components.
    pub(super) const fn is_component(self) -> bool {
        matches!(self, Self::Wasip2)
    }

    /// The first that the toolchain of a folder has a standard library for.
    pub(super) fn find(folder: &Path) -> anyhow::Result<Self> {
        let sysroot =
            answer(Command::new("rustc").args(["--print", "sysroot"]).current_dir(folder), "rustc")?;
        let has = |target: &Self| {
            let library = Path::new(sysroot.trim()).join("lib/rustlib").join(target.triple()).join("lib");
            std::fs::read_dir(library).is_ok_and(|mut files| files.next().is_some())
        };
        [Self::Wasip2, Self::Unknown].into_iter().find(has).ok_or_else(|| {
            anyhow!(
                "the Rust toolchain in {} has no guest target: add it with `rustup target add wasm32-wasip2`",
                sysroot.trim()
            )
        })
    }
}

impl Crate {
    /// Asks cargo for the crate in a folder.
    pub(super) fn find(folder: &Path, offline: bool) -> anyhow::Result<Self> {
        let folder = if folder.ends_with("Cargo.toml") { folder.parent().unwrap_or(folder) } else { folder };
        let manifest = folder.join("Cargo.toml");
        if !manifest.is_file() {
            bail!(
                "{} has no Cargo.toml: give the folder of a plugin's crate, or make one with `reeve new NAME`",
                folder.display()
            );
        }
        let folder = std::path::absolute(folder)?.canonicalize()?;
        let metadata = metadata(&folder, false, offline)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let packages = metadata["packages"].as_array().into_iter().flatten();
        let is_plugin = |package: &&Value| {
            let targets = package["targets"].as_array().into_iter().flatten();
            targets.into_iter().any(|target| has_kind(target, "cdylib"))
        };
        let here = folder.join("Cargo.toml");
        let is_here = |package: &Value| Path::new(&text(&package["manifest_path"])) == here;
        let Some(package) = packages.clone().find(|package| is_here(package)) else {
            let plugins: Vec<String> =
                packages.filter(is_plugin).map(|package| text(&package["name"])).collect();
            bail!(
                "{} is a workspace and no crate: give the folder of one of its plugins ({})",
                folder.display(),
                plugins.join(", ")
            );
        };
        if !is_plugin(&package) {
            bail!(
                "the crate {} is no plugin: its Cargo.toml needs\n\n[lib]\ncrate-type = [\"cdylib\"]",
                text(&package["name"])
            );
        }
        Ok(Self {
            name: text(&package["name"]),
            folder,
            target_folder: text(&metadata["target_directory"]).into(),
            workspace: text(&metadata["workspace_root"]).into(),
            offline,
        })
    }

    /// Builds it and says which file came out. Cargo's progress and errors go to standard error.
    pub(super) fn build(&self, target: Target, features: &[String]) -> anyhow::Result<PathBuf> {
        let mut command = Command::new("cargo");
        command
            .args(["build", "--lib", "--message-format=json-render-diagnostics"])
            .args(["--profile", PROFILE, "--target", target.triple(), "--package", &self.name])
            .args(features.iter().flat_map(|feature| ["--features", feature]))
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if self.offline {
            command.arg("--offline");
        }
        if !self.defines_profile()? {
            for setting in PROFILE_SETTINGS {
                command.arg("--config").arg(format!("profile.{PROFILE}.{setting}"));
            }
        }
        command.arg("--config").arg(self.remap(target)?);
        let mut child = command.spawn().context("failed to run cargo")?;
        let mut file = None;
        if let Some(stdout) = child.stdout.take() {
            for line in BufReader::new(stdout).lines() {
                file = self.artifact(&line.context("failed to read what cargo said")?).or(file);
            }
        }
        let status = child.wait().context("failed to wait for cargo")?;
        if !status.success() {
            bail!("cargo could not build {} ({status}); its messages stand above", self.name);
        }
        file.ok_or_else(|| anyhow!("cargo built {}, but named no .wasm file", self.name))
    }

    /// The `.wasm` file in one of cargo's messages, if it is about this crate's `cdylib`.
    fn artifact(&self, line: &str) -> Option<PathBuf> {
        let message: Value = serde_json::from_str(line).ok()?;
        let ours = message["reason"] == "compiler-artifact"
            && has_kind(&message["target"], "cdylib")
            && message["manifest_path"].as_str().map(Path::new) == Some(&self.folder.join("Cargo.toml"));
        let files = message["filenames"].as_array().filter(|_| ours)?;
        let mut files = files.iter().filter_map(Value::as_str).map(PathBuf::from);
        files.find(|file| file.extension().is_some_and(|extension| extension == "wasm"))
    }

    fn defines_profile(&self) -> anyhow::Result<bool> {
        let manifest = self.workspace.join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest).with_context(|| manifest.display().to_string())?;
        Ok(text.lines().any(|line| line.trim() == format!("[profile.{PROFILE}]")))
    }

    /// Keeps the builder's folders out of the component, so that it is the same wherever it is
    /// built and tells nothing of the machine.
    fn remap(&self, target: Target) -> anyhow::Result<String> {
        let mut flags = vec![format!("--remap-path-prefix={}=/plugin", self.workspace.display())];
        for (name, folder) in self.path_dependencies()? {
            flags.push(format!("--remap-path-prefix={}=/{name}", folder.display()));
        }
        if let Some(home) = cargo_home() {
            flags.push(format!("--remap-path-prefix={}=/cargo", home.display()));
        }
        Ok(format!("target.{}.rustflags={}", target.triple(), serde_json::to_string(&flags)?))
    }

    /// The crates of other folders that it is built from, such as an SDK that is not published.
    fn path_dependencies(&self) -> anyhow::Result<Vec<(String, PathBuf)>> {
        let packages = metadata(&self.folder, true, self.offline)?["packages"].take();
        let local = packages.as_array().into_iter().flatten().filter(|package| package["source"].is_null());
        Ok(local
            .filter_map(|package| {
                let folder = Path::new(package["manifest_path"].as_str()?).parent()?;
                let name = package["name"].as_str()?.to_owned();
                (!folder.starts_with(&self.workspace)).then(|| (name, folder.to_path_buf()))
            })
            .collect())
    }
}

/// What cargo says of the crate in a folder, and of those that it depends on.
fn metadata(folder: &Path, dependencies: bool, offline: bool) -> anyhow::Result<Value> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--format-version=1"]).current_dir(folder);
    if !dependencies {
        command.arg("--no-deps");
    }
    if offline {
        command.arg("--offline");
    }
    serde_json::from_str(&answer(&mut command, "cargo metadata")?)
        .context("failed to read what `cargo metadata` said")
}

fn has_kind(target: &Value, kind: &str) -> bool {
    target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|known| known == kind))
}

/// Runs a tool and gives what it printed.
fn answer(command: &mut Command, tool: &str) -> anyhow::Result<String> {
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("there is no Rust toolchain on the PATH ({tool}): install one with rustup")
        }
        Err(error) => return Err(error).with_context(|| format!("failed to run {tool}")),
    };
    if !output.status.success() {
        bail!("{tool} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{tool} printed no text"))
}

#[expect(clippy::disallowed_methods, reason = "where cargo keeps sources is cargo's own configuration")]
fn cargo_home() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    set("CARGO_HOME").map(PathBuf::from).or_else(|| set("HOME").map(|home| Path::new(&home).join(".cargo")))
}
