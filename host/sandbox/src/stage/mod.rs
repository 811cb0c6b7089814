//! What a run stages, checked as it is staged and kept as data.
//!
//! Invariants: nothing here has been sent. A plan whose children were refused or are too many is
//! never complete, so a mistake in one child cannot prune another.

mod child;
mod status;
mod wait;
mod write;

use std::collections::HashMap;
use std::time::Duration;

use reeve_core::failure::{Failure, code};
use reeve_core::gvk::Gvk;
use reeve_core::ids::ObjectName;
use reeve_core::manifest::Limits;
use reeve_core::plan::Plan;
use serde::de::DeserializeOwned;

use crate::config::MAX_DOCUMENT;
use crate::limits::Ended;

/// A refusal inside (the plugin sees it), a limit outside (the run ends).
pub(crate) type Staged = Result<Result<(), Failure>, Ended>;

/// Writes with and without an id, and waits, that one run may stage. Children have their own
/// limit in the manifest; more than this of the others is a plugin in a loop.
const MAX_WRITES: usize = 1_000;
const MAX_WAITS: usize = 64;
/// Conditions of one object. Kubernetes' own kinds have less than ten.
const MAX_CONDITIONS: usize = 64;

/// The plan of a run in the making.
#[derive(Debug)]
pub(crate) struct Staging {
    plan: Plan,
    limits: Limits,
    bytes: usize,
    /// Where in the plan a child of this kind and name is.
    children: HashMap<(Gvk, ObjectName), usize>,
    /// A child was refused, so what is staged is not all there should be.
    child_refused: bool,
    dropped_events: u32,
}

impl Staging {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            plan: Plan::default(),
            limits,
            bytes: 0,
            children: HashMap::new(),
            child_refused: false,
            dropped_events: 0,
        }
    }

    pub(crate) fn dropped_events(&self) -> u32 {
        self.dropped_events
    }

    pub(crate) fn children_complete(&mut self) {
        self.plan.complete = true;
    }

    /// The soonest of several wins.
    pub(crate) fn requeue_after(&mut self, ms: u64) {
        let asked = Duration::from_millis(ms);
        self.plan.requeue_after = Some(self.plan.requeue_after.map_or(asked, |known| known.min(asked)));
    }

    /// The plan of a run that returned ok.
    pub(crate) fn into_plan(mut self) -> Plan {
        self.plan.complete &= !self.child_refused;
        self.plan
    }

    /// The plan of a run that returned a failure: only what tells users about it.
    pub(crate) fn into_plan_of_failure(self) -> Plan {
        let Plan { status, conditions, events, .. } = self.plan;
        Plan { status, conditions, events, ..Plan::default() }
    }

    /// Counts a document, and reads it as JSON of the type that is expected.
    fn document<T: DeserializeOwned>(&mut self, what: &str, text: &str) -> Result<Result<T, Failure>, Ended> {
        self.charge(text.len())?;
        if text.len() > MAX_DOCUMENT {
            let size = text.len();
            return Ok(Err(invalid(format!("{what} has {size} bytes, an API server takes {MAX_DOCUMENT}"))));
        }
        Ok(serde_json::from_str(text).map_err(|error| invalid(format!("{what} is not readable: {error}"))))
    }

    /// Counts staged bytes.
    fn charge(&mut self, bytes: usize) -> Result<(), Ended> {
        self.bytes = self.bytes.saturating_add(bytes);
        let limit = u64::from(self.limits.staged_kib);
        if self.bytes as u64 > limit * 1024 {
            return Err(Ended::Limit {
                what: "KiB staged",
                limit,
                place: " (`limits.stagedKib` in the manifest)",
            });
        }
        Ok(())
    }
}

/// An argument that is not usable.
fn invalid(message: impl Into<String>) -> Failure {
    Failure::permanent(code::INVALID_ARGUMENT, "validation", message)
}

/// Whether a text can be the name of an object: not empty, at most 253 bytes, nothing that would
/// change the URL that it becomes a part of. The API server judges the rest.
fn check_name(what: &str, name: &str) -> Result<(), Failure> {
    let bad = |c: char| c == '/' || c == '%' || c.is_control() || c.is_whitespace();
    if name.is_empty() || name.len() > 253 || name == "." || name == ".." || name.contains(bad) {
        return Err(invalid(format!(
            "{what} {name:?} is not usable: give 1 to 253 bytes without '/', '%' and spaces"
        )));
    }
    Ok(())
}

/// Whether `apiVersion` and `kind` name a kind.
fn check_kind(api_version: &str, kind: &str) -> Result<Gvk, Failure> {
    let part = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-')
    };
    let usable = match api_version.split_once('/') {
        Some((group, version)) => part(group) && part(version),
        None => part(api_version),
    };
    if usable && part(kind) {
        Ok(Gvk::from_api_version(api_version, kind))
    } else {
        Err(invalid(format!(
            "apiVersion {api_version:?} and kind {kind:?} name no kind: write them as objects do, \
             for example \"apps/v1\" and \"Deployment\""
        )))
    }
}

#[cfg(test)]
mod tests;
