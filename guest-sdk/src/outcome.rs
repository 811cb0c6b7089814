//! How a run ends well.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::backend::Backend;
use crate::context::Context;
use crate::error::Error;

/// How a run ended, and when to come back.
///
/// | outcome | children that are no longer staged | comes back |
/// |---|---|---|
/// | [`done`](Self::done) | are deleted | when something changes, or at the resync |
/// | [`requeue_after`](Self::requeue_after) | stay | and after the delay |
/// | [`wait_for`](Self::wait_for) | stay | and when the awaited object comes to its state |
/// | [`pending`](Self::pending) | stay | when something changes, or an answer is there |
///
/// [`children_complete`](Self::children_complete) and
/// [`children_incomplete`](Self::children_incomplete) say otherwise.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "return it from `reconcile`"]
pub struct Outcome {
    done: bool,
    /// What the author said, where they said something.
    complete: Option<bool>,
    requeue_after: Option<Duration>,
    waits: Vec<Wait>,
}

/// What to wait for: another object that comes to a state.
///
/// The host watches it and runs the object again at the moment of the change. If the state does
/// not come in time (default 5 min), the run fails with `WAIT_TIMEOUT`. A state that already
/// holds brings the run back at once: look first, and wait only for what is not there yet.
///
/// ```
/// use std::time::Duration;
/// use reeve_sdk::{Outcome, Wait};
///
/// # fn reconcile() -> Outcome {
/// Outcome::wait_for(
///     Wait::on("apps/v1", "Deployment", "web").condition("Available").timeout(Duration::from_secs(120)),
/// )
/// # }
/// # let _ = reconcile();
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "pass it to `Outcome::wait_for`"]
pub struct Wait {
    request: Map<String, Value>,
}

// === impl Outcome ===

impl Outcome {
    /// The object is in its desired state, as far as this plugin can bring it. The children
    /// staged in this run are all there should be.
    pub const fn done() -> Self {
        Self { done: true, complete: None, requeue_after: None, waits: Vec::new() }
    }

    /// Come back after a delay in any case.
    pub const fn requeue_after(delay: Duration) -> Self {
        Self { done: false, complete: None, requeue_after: Some(delay), waits: Vec::new() }
    }

    /// Come back when another object comes to a state.
    pub fn wait_for(wait: Wait) -> Self {
        Self { done: false, complete: None, requeue_after: None, waits: vec![wait] }
    }

    /// Nothing more for now: the next event, or the [answer](Context::ask) of a write, brings it
    /// back.
    pub const fn pending() -> Self {
        Self { done: false, complete: None, requeue_after: None, waits: Vec::new() }
    }

    /// And wait for this too: whichever comes first.
    pub fn and_wait_for(mut self, wait: Wait) -> Self {
        self.done = false;
        self.waits.push(wait);
        self
    }

    /// And come back after a delay in any case; the sooner of several.
    pub fn and_requeue_after(mut self, delay: Duration) -> Self {
        self.done = false;
        self.requeue_after = Some(self.requeue_after.map_or(delay, |known| known.min(delay)));
        self
    }

    /// The children staged in this run are all there should be: the host deletes the others.
    pub const fn children_complete(mut self) -> Self {
        self.complete = Some(true);
        self
    }

    /// There may be children that this run did not stage: the host deletes none.
    pub const fn children_incomplete(mut self) -> Self {
        self.complete = Some(false);
        self
    }

    /// Hands it to the host. `done_completes` is false where "done" says nothing about children:
    /// in a cleanup it would delete them also under `kubectl delete --cascade=orphan`.
    pub(crate) fn stage(self, ctx: &Context, done_completes: bool) -> Result<(), Error> {
        if self.complete.unwrap_or(self.done && done_completes) {
            ctx.children_complete();
        }
        for wait in &self.waits {
            ctx.backend().wait_for(&serde_json::to_string(&wait.request)?)?;
        }
        if let Some(delay) = self.requeue_after {
            ctx.backend().requeue_after(milliseconds(delay));
        }
        Ok(())
    }
}

// === impl Wait ===

impl Wait {
    /// For one object, in the primary's namespace where the kind has namespaces.
    pub fn on(api_version: &str, kind: &str, name: &str) -> Self {
        let mut request = Map::new();
        request.insert("apiVersion".to_owned(), json!(api_version));
        request.insert("kind".to_owned(), json!(kind));
        request.insert("name".to_owned(), json!(name));
        Self { request }
    }

    /// For any object that a label selector matches.
    pub fn on_labels(api_version: &str, kind: &str, selector: &str) -> Self {
        let mut wait = Self::on(api_version, kind, "");
        wait.request.remove("name");
        wait.with("labels", json!(selector))
    }

    /// In another namespace than the primary's.
    pub fn namespace(self, namespace: &str) -> Self {
        self.with("namespace", json!(namespace))
    }

    /// Until this condition is `True`.
    pub fn condition(self, kind: &str) -> Self {
        self.with("condition", json!(kind))
    }

    /// Until this condition has another status: `False` or `Unknown`.
    pub fn condition_is(self, kind: &str, status: crate::ConditionStatus) -> Self {
        self.with("condition", json!(format!("{kind}={}", status.as_str())))
    }

    /// Until the value at a JSON pointer equals this.
    pub fn equals(self, pointer: &str, value: Value) -> Self {
        self.with("pointer", json!(pointer)).with("equals", value)
    }

    /// Until it is there.
    pub fn exists(self) -> Self {
        self.with("exists", json!(true))
    }

    /// Until it is gone.
    pub fn gone(self) -> Self {
        self.with("exists", json!(false))
    }

    /// How long at most, counted from the first run that waits for it; the default is 5 min.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with("timeoutMs", json!(milliseconds(timeout)))
    }

    /// How often to look at first where the kind cannot be watched; the default is 2 s, backing
    /// off to 30 s.
    pub fn poll(self, interval: Duration) -> Self {
        self.with("pollMs", json!(milliseconds(interval)))
    }

    /// The request as the contract writes it.
    pub fn request(&self) -> &Map<String, Value> {
        &self.request
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.request.insert(key.to_owned(), value);
        self
    }
}

/// Whole milliseconds, rounded up so that nothing comes early.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1000).saturating_add(duration.subsec_micros().div_ceil(1000).into())
}
