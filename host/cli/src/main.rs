//! The `reeve` command. Exit codes: 0 well, 1 failed, 2 not usable as typed, 141 output closed.

mod build;
mod commands;
mod completions;
mod crds;
mod inspect;
mod new;
mod output;
mod run;

use std::process::ExitCode;

use clap::Parser as _;

// Gives memory back after a burst of lists, which the C library's allocator does not.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    output::exit_code(commands::Cli::parse().run())
}
