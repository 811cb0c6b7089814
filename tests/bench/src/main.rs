//! `make bench`: the project's measurements, as ratios against a peer in the same run where there
//! is a peer, and beside them the target that each is held against.
//!
//! A figure is printed, never asserted in a test: machines differ. With `--check` a missed target
//! makes the command end with 1.

mod bare;
mod cache;
mod dispatch;
mod fleet;
mod idle;
mod memory;
mod swap;
mod table;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use table::Table;

// The host's own allocator, so that its memory is measured as it is.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the host.
#[derive(Debug, Parser)]
struct Arguments {
    /// What to measure; nothing means all.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Ends with 1 if a target is missed.
    #[arg(long)]
    check: bool,
    /// How many Websites `fleet` reconciles.
    #[arg(long, default_value_t = 1000)]
    websites: usize,
}

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A run of a plugin against bare wasmtime.
    Dispatch,
    /// 50,000 objects of 2 KB in the cache.
    Cache,
    /// From a changed file to the first reconcile on the new version.
    Swap,
    /// A host that does nothing.
    Idle,
    /// 1,000 Websites on a real control plane.
    Fleet,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut table = Table::default();
    let done = measure(&arguments, &mut table);
    table::say(&table.to_string());
    match done {
        Err(error) => {
            table::say(&format!("bench: {error:#}"));
            ExitCode::FAILURE
        }
        Ok(()) if arguments.check && table.missed() > 0 => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
    }
}

fn measure(arguments: &Arguments, table: &mut Table) -> anyhow::Result<()> {
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    // First, while this process is small.
    if wanted(Part::Cache) {
        table::progress("cache: 50,000 objects of 2 KB");
        cache::measure(table)?;
    }
    if wanted(Part::Dispatch) {
        table::progress("dispatch: one run of a plugin against bare wasmtime");
        dispatch::measure(table)?;
    }
    if wanted(Part::Swap) {
        table::progress("swap: from a changed file to the first reconcile on it");
        swap::measure(table)?;
    }
    if wanted(Part::Idle) {
        table::progress("idle: a host with one plugin and nothing to do");
        idle::measure(table)?;
    }
    if wanted(Part::Fleet) {
        table::progress("fleet: Websites on a real control plane");
        fleet::measure(table, arguments.websites)?;
    }
    Ok(())
}
