//! The `reeve` command. Exit codes: 0 well, 1 failed, 2 not usable as typed, 141 output closed.

mod build;
mod crds;
mod inspect;
mod new;
mod output;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs Kubernetes controllers as sandboxed WebAssembly components.
#[derive(Debug, Parser)]
#[command(name = "reeve", version)]
struct Cli {
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
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Inspect(args) => run::wait(inspect::run(args)),
        Command::Build(args) => build::run(&args),
        Command::New(args) => new::run(&args),
        Command::Crds(args) => crds::run(&args),
    };
    output::exit_code(done)
}
