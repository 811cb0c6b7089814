//! The sub-commands, and what each runs.

use clap::{Parser, Subcommand};

use crate::{build, completions, crds, inspect, new, run};

/// Runs Kubernetes controllers as sandboxed WebAssembly components.
#[derive(Debug, Parser)]
#[command(name = "reeve", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Inspect(inspect::InspectArgs),
    Build(build::BuildArgs),
    New(new::NewArgs),
    Crds(crds::CrdsArgs),
    Completions(completions::CompletionsArgs),
}

impl Cli {
    /// Does what was asked for.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Run(args) => run::run(args),
            Command::Inspect(args) => run::wait(inspect::run(args)),
            Command::Build(args) => build::run(&args),
            Command::New(args) => new::run(&args),
            Command::Crds(args) => crds::run(&args),
            Command::Completions(args) => completions::run::<Self>(&args),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// A flag that does not exist is a usage error that names the nearest one.
    #[test]
    fn a_misspelt_flag_names_the_nearest() {
        for (typed, meant) in [("--plugin", "--plugins"), ("--admin-adr=x", "--admin-addr")] {
            let error = Cli::try_parse_from(["reeve", "run", typed]).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(meant), "{error}");
        }
        let error = Cli::try_parse_from(["reeve", "inspct"]).unwrap_err();
        assert!(error.to_string().contains("'inspect'"), "{error}");
    }
}
