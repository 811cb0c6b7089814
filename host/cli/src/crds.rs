//! `reeve crds FILE…`: the CRDs that plugins carry, as YAML that `kubectl apply -f -` takes.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use reeve_sandbox::{Sandbox, SandboxConfig};

use crate::output;

/// Prints the CRDs that plugins carry.
#[derive(Debug, Args)]
pub(crate) struct CrdsArgs {
    /// The components.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Runs the sub-command.
pub(crate) fn run(args: &CrdsArgs) -> anyhow::Result<()> {
    let config = SandboxConfig { threads: 1, max_instances: 1, ..SandboxConfig::default() };
    let sandbox = Sandbox::new(config, &prometheus::Registry::new())?;
    let mut documents = Vec::new();
    for file in &args.files {
        let bytes =
            std::fs::read(file).with_context(|| format!("{}: failed to read the file", file.display()))?;
        documents.extend(sandbox.inspect(&bytes).with_context(|| file.display().to_string())?.crds);
    }
    if documents.is_empty() {
        bail!(
            "none of these plugins carries a CRD; put them as YAML into the crate's folder `crds` and build it with `reeve build`"
        );
    }
    for document in documents {
        output::text(&format!("---\n{}", document.trim_start_matches("---").trim()));
    }
    Ok(())
}
