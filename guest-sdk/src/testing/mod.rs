//! Tests without a cluster, without a host and without Wasm: plain `cargo test`.
//!
//! - [`Case`] runs one function once on objects that the test lays out, and gives the [`Run`]:
//!   its result and everything that it staged, to be asserted on.
//! - [`World`] is a small cluster with a virtual clock that commits what is staged as the host
//!   does: children with owner references, pruning, status, conditions, finalizers, cleanup,
//!   waits, requeues and retries. It is for what takes several runs: idempotence, deletion, time.
//!
//! ```
//! use reeve_sdk::prelude::*;
//! use reeve_sdk::testing::{Case, World};
//!
//! struct Timed;
//! impl Reconciler for Timed {
//!     type Object = Value;
//!     fn manifest() -> Manifest { Manifest::new("timed", "1.0.0", "x.dev/v1", "Timed") }
//!     fn reconcile(ctx: &Context, object: &Value) -> Result<Outcome, Error> {
//!         let seen = object["status"]["runs"].as_u64().unwrap_or(0);
//!         ctx.set_status(&json!({ "runs": seen + 1 }))?;
//!         Ok(Outcome::requeue_after(Duration::from_secs(60)))
//!     }
//! }
//!
//! let timed = json!({ "metadata": { "name": "a", "namespace": "default" } });
//! let run = Case::new(timed.clone()).run::<Timed>();
//! assert_eq!(run.plan().requeue_after, Some(Duration::from_secs(60)));
//!
//! let mut world = World::new::<Timed>();
//! world.put(timed);
//! world.settle();
//! world.advance(Duration::from_secs(121));
//! assert_eq!(world.object("x.dev/v1", "Timed", "default/a")["status"]["runs"], 3);
//! ```
//!
//! The fake checks what the host checks: kinds and verbs that the manifest does not declare,
//! children without a name, `conditions` in a status. It knows no schemas, admission or quotas;
//! `reeve dev` and a real cluster do.

mod case;
pub(crate) mod fake;
mod merge;
mod plan;
mod selector;
mod store;
mod world;

use std::cell::RefCell;

use crate::log::Level;

pub use case::{Case, Run};
pub use plan::{Plan, StagedChild, StagedCondition, StagedEvent, StagedWrite};
pub use world::World;

/// The most log lines that are kept per thread for [`logs`]; older ones go, so that a test that
/// loops does not eat the memory.
const MAX_LOG_LINES: usize = 10_000;

/// A log line that a plugin wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// How much it matters.
    pub level: Level,
    /// The text.
    pub message: String,
    /// The fields.
    pub fields: Vec<(String, String)>,
}

thread_local! {
    static LINES: RefCell<Vec<LogLine>> = const { RefCell::new(Vec::new()) };
}

/// Takes the log lines that plugins wrote on this thread since the last call.
pub fn logs() -> Vec<LogLine> {
    LINES.with_borrow_mut(std::mem::take)
}

pub(crate) fn capture(level: Level, message: &str, fields: &[(&str, &str)]) {
    let fields = fields.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    LINES.with_borrow_mut(|lines| {
        if lines.len() == MAX_LOG_LINES {
            lines.remove(0);
        }
        lines.push(LogLine { level, message: message.to_owned(), fields });
    });
}

#[cfg(test)]
mod tests;
