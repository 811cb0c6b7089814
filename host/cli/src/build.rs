//! `reeve build [PATH]`: a plugin's crate becomes a component that carries its CRDs.
//!
//! It works on any crate, in this workspace or elsewhere, with the toolchain it finds. What is
//! written has been looked into: it is a plugin for this host.

mod crds;
mod sections;
mod toolchain;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use reeve_sandbox::{Sandbox, SandboxConfig, componentize};

use crate::output;

/// Builds a plugin's crate into a component with its CRDs in it.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// The folder of the crate.
    #[arg(default_value = ".")]
    path: PathBuf,
    /// Where to write the component; default is `reeve/NAME.wasm` in the crate's target folder.
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Passes a feature of the crate to cargo.
    #[arg(long, value_name = "FEATURE")]
    features: Vec<String>,
    /// Builds only what the crate's lock file says, without the network.
    #[arg(long)]
    offline: bool,
}

/// Runs the sub-command.
pub(crate) fn run(args: &BuildArgs) -> anyhow::Result<()> {
    let plugin = toolchain::Crate::find(&args.path, args.offline)?;
    let target = toolchain::Target::find(&plugin.folder)?;
    let documents = crds::read(&plugin.folder.join("crds"))?;
    progress(&format!("building {} for {}", plugin.name, target.triple()));
    let file = plugin.build(target, &args.features)?;
    let bytes =
        std::fs::read(&file).with_context(|| format!("{}: failed to read the file", file.display()))?;
    let component = if target.is_component() { bytes } else { componentize(&bytes)? };
    let component = sections::finish(&component, &crds::Crd::joined(&documents))?;

    let config = SandboxConfig { threads: 1, max_instances: 1, ..SandboxConfig::default() };
    let sandbox = Sandbox::new(config, &prometheus::Registry::new())?;
    let inspection = sandbox
        .inspect(&component)
        .with_context(|| format!("{} was built, but no host can load it", plugin.name))?;

    let out = match &args.out {
        Some(out) => out.clone(),
        None => plugin.target_folder.join("reeve").join(format!("{}.wasm", plugin.name)),
    };
    write(&out, &component)?;
    output::line(&format!("{}", out.display()));
    output::line(&format!("  digest  {}", inspection.digest));
    output::line(&format!("  size    {} bytes", component.len()));
    output::line(&format!("  target  {}", target.triple()));
    output::line(&format!(
        "  crds    {}",
        if documents.is_empty() { "none".to_owned() } else { names(&documents) }
    ));
    Ok(())
}

fn names(documents: &[crds::Crd]) -> String {
    let names: Vec<&str> = documents.iter().map(|crd| crd.name.as_str()).collect();
    names.join(", ")
}

/// Writes beside and renames, so that a host that watches the folder sees the file as a whole.
fn write(out: &Path, component: &[u8]) -> anyhow::Result<()> {
    let folder = match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if out.is_dir() {
        bail!(
            "{} is a folder: give --out a file, for example {}",
            out.display(),
            out.join("plugin.wasm").display()
        );
    }
    std::fs::create_dir_all(folder)
        .with_context(|| format!("failed to make the folder {}", folder.display()))?;
    let failed = || format!("failed to write {}", out.display());
    let mut file =
        tempfile::Builder::new().prefix(".reeve-build-").tempfile_in(folder).with_context(failed)?;
    file.write_all(component).with_context(failed)?;
    readable(file.as_file()).with_context(failed)?;
    file.persist(out).with_context(failed)?;
    Ok(())
}

/// A temporary file is private; a plugin is for whoever runs the host.
#[cfg(unix)]
fn readable(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn readable(_: &std::fs::File) -> std::io::Result<()> {
    Ok(())
}

/// What goes on, for people: on standard error, as cargo's own progress. Nobody may be reading.
fn progress(text: &str) {
    let _ = writeln!(std::io::stderr(), "reeve: {text}");
}

#[cfg(test)]
mod tests;
