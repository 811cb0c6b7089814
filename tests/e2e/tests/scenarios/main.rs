//! The scenarios, each written once and run on every server. `README.md` has the table.

mod harness;

use std::process::ExitCode;

fn main() -> ExitCode {
    reeve_e2e::harness::runner::run(&[("harness", harness::TABLE)])
}
