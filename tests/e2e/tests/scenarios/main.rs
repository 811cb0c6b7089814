//! The scenarios, each written once and run on every server. `README.md` has the table.

mod badinput;
mod cache;
mod complaints;
mod containment;
mod deploy;
mod gaps;
mod harness;
mod mapping;
mod queue;
mod startstop;
mod subresources;
mod support;
mod table;
mod watch;
mod writes;

use std::process::ExitCode;

use reeve_e2e::harness::runner::{Module, run};

const MODULES: &[Module] = &[
    ("harness", harness::TABLE),
    ("queue", queue::TABLE),
    ("startstop", startstop::TABLE),
    ("watch", watch::TABLE),
    ("gaps", gaps::TABLE),
    ("cache", cache::TABLE),
    ("mapping", mapping::TABLE),
    ("writes", writes::TABLE),
    ("subresources", subresources::TABLE),
    ("complaints", complaints::TABLE),
    ("containment", containment::TABLE),
    ("badinput", badinput::TABLE),
    ("deploy", deploy::TABLE),
];

fn main() -> ExitCode {
    run(MODULES, vec![("table", Box::new(|| table::check(MODULES)))])
}
