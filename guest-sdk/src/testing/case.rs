//! One run of one function.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};

use super::fake::{FakeCall, FakeObject};
use super::plan::Plan;
use crate::backend::Item;
use crate::context::Context;
use crate::error::Error;
use crate::handle::Handle;
use crate::object::ObjectName;
use crate::reconciler::{Cleanup, Mapper, Reconciler, flow};

/// The virtual clock of a test begins at 2026-01-01T00:00:00Z.
pub(super) fn start() -> SystemTime {
    crate::time::parse_rfc3339("2026-01-01T00:00:00Z").unwrap_or(UNIX_EPOCH)
}

/// The deadline that a manifest has by default.
const DEADLINE: Duration = Duration::from_secs(30);

/// What one run finds.
#[derive(Clone, Debug)]
#[must_use = "end it with `run`, `cleanup` or `gone`"]
pub struct Case {
    primary: Value,
    objects: Vec<Value>,
    config: Value,
    attempt: u32,
    reasons: Vec<String>,
    remaining: Duration,
    cancelled: bool,
    now: SystemTime,
    answers: BTreeMap<String, Value>,
}

/// What one run did.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    result: Result<(), Error>,
    plan: Plan,
}

impl Case {
    /// With this primary object. `apiVersion`, `kind`, a UID and a resourceVersion are filled in
    /// where they are missing.
    ///
    /// # Panics
    /// If it cannot be serialised or has no `metadata.name`.
    #[track_caller]
    pub fn new(primary: impl Serialize) -> Self {
        let primary = to_value(primary);
        assert!(primary["metadata"]["name"].is_string(), "the primary needs a metadata.name");
        Self {
            primary,
            objects: Vec::new(),
            config: Value::Null,
            attempt: 1,
            reasons: vec!["created".to_owned()],
            remaining: DEADLINE,
            cancelled: false,
            now: start(),
            answers: BTreeMap::new(),
        }
    }

    /// And this object in the cache. To be a child it needs the owner reference and the label
    /// that the host gives: see [`child`](Self::child).
    ///
    /// # Panics
    /// If it cannot be serialised.
    #[track_caller]
    pub fn object(mut self, object: impl Serialize) -> Self {
        self.objects.push(to_value(object));
        self
    }

    /// And this child of the primary in the cache: as the host would have made it.
    ///
    /// # Panics
    /// If it cannot be serialised.
    #[track_caller]
    pub fn child<P: Reconciler>(mut self, child: impl Serialize) -> Self {
        self.fill::<P>();
        let mut child = to_value(child);
        let plugin = P::manifest().fields()["name"].clone();
        own(&mut child, &self.primary, &plugin);
        self.objects.push(child);
        self
    }

    /// With this configuration.
    ///
    /// # Panics
    /// If it cannot be serialised.
    #[track_caller]
    pub fn config(mut self, config: impl Serialize) -> Self {
        self.config = to_value(config);
        self
    }

    /// As the n-th attempt.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// For these reasons.
    pub fn reasons(mut self, reasons: &[&str]) -> Self {
        self.reasons = reasons.iter().map(|&reason| reason.to_owned()).collect();
        self
    }

    /// With this much time left.
    pub fn remaining(mut self, remaining: Duration) -> Self {
        self.remaining = remaining;
        self
    }

    /// Told to come to an end.
    pub fn cancelled(mut self) -> Self {
        self.cancelled = true;
        self
    }

    /// At this time; without it at 2026-01-01T00:00:00Z.
    pub fn now(mut self, now: SystemTime) -> Self {
        self.now = now;
        self
    }

    /// With the answer of an earlier write: `{"ok": …}` or `{"failure": {…}}`.
    pub fn answer(mut self, id: &str, answer: Value) -> Self {
        self.answers.insert(id.to_owned(), answer);
        self
    }

    /// Runs [`Reconciler::reconcile`] as the host would.
    pub fn run<P: Reconciler>(self) -> Run {
        self.drive::<P>(flow::reconcile::<P>)
    }

    /// Runs [`Cleanup::cleanup`] on the primary, which is marked as being deleted.
    pub fn cleanup<P: Cleanup>(mut self) -> Run {
        self.primary["metadata"]["deletionTimestamp"] = json!(crate::time::to_rfc3339(self.now));
        self.drive::<P>(flow::cleanup::<P>)
    }

    /// Runs [`Reconciler::gone`]: the primary is known by its name only.
    pub fn gone<P: Reconciler>(mut self) -> Run {
        self.fill::<P>();
        let (mut call, plan) = self.call::<P>();
        call.primary = None;
        finish(call, &plan, flow::reconcile::<P>)
    }

    /// Runs [`Mapper::map`] on a changed object.
    ///
    /// # Errors
    /// What the mapper returned.
    pub fn map<P: Mapper>(watch: &str, changed: impl Serialize) -> Result<Vec<ObjectName>, Error> {
        P::map(watch, &Handle::new(FakeObject(Rc::new(to_value(changed))), watch))
    }

    fn drive<P: Reconciler>(mut self, flow: fn(&Context) -> Result<(), Error>) -> Run {
        self.fill::<P>();
        let (call, plan) = self.call::<P>();
        finish(call, &plan, flow)
    }

    fn fill<P: Reconciler>(&mut self) {
        let primary = P::manifest().fields()["primary"].clone();
        for key in ["apiVersion", "kind"] {
            if self.primary[key].is_null() {
                self.primary[key] = primary[key].clone();
            }
        }
        for (key, value) in [("uid", "uid-1"), ("resourceVersion", "1")] {
            if self.primary["metadata"][key].is_null() {
                self.primary["metadata"][key] = json!(value);
            }
        }
    }

    fn call<P: Reconciler>(self) -> (FakeCall, Rc<RefCell<Plan>>) {
        let plan = Rc::new(RefCell::new(Plan::default()));
        let primary = FakeObject(Rc::new(self.primary));
        let call = FakeCall {
            name: primary.name(),
            primary: Some(primary),
            objects: self.objects.into_iter().map(|object| FakeObject(Rc::new(object))).collect(),
            manifest: Value::Object(P::manifest().fields().clone()),
            reasons: self.reasons,
            attempt: self.attempt,
            remaining: self.remaining,
            cancelled: self.cancelled,
            config: self.config,
            now: self.now,
            answers: self.answers,
            plan: Rc::clone(&plan),
        };
        (call, plan)
    }
}

impl Run {
    pub(super) fn new(result: Result<(), Error>, plan: Plan) -> Self {
        Self { result, plan }
    }

    /// What the run staged.
    ///
    /// # Panics
    /// If the run failed, with its error. [`staged`](Self::staged) does not.
    #[track_caller]
    #[expect(clippy::panic, reason = "an assertion for tests")]
    pub fn plan(&self) -> &Plan {
        match &self.result {
            Ok(()) => &self.plan,
            Err(error) => panic!("the run failed with {error}"),
        }
    }

    /// The error that the run failed with.
    ///
    /// # Panics
    /// If it did not fail.
    #[track_caller]
    #[expect(clippy::panic, reason = "an assertion for tests")]
    pub fn error(&self) -> &Error {
        match &self.result {
            Ok(()) => panic!("the run was expected to fail, and staged {:?}", self.plan),
            Err(error) => error,
        }
    }

    /// What the run staged, whether it failed or not. Of a failed run the host commits only
    /// status, conditions and events.
    pub fn staged(&self) -> &Plan {
        &self.plan
    }

    /// How the run ended.
    ///
    /// # Errors
    /// What it failed with.
    pub fn result(&self) -> Result<(), &Error> {
        self.result.as_ref().copied()
    }
}

/// Runs a flow over a fake.
pub(super) fn finish(
    call: FakeCall,
    plan: &Rc<RefCell<Plan>>,
    flow: fn(&Context) -> Result<(), Error>,
) -> Run {
    let result = flow(&Context::new(call));
    Run::new(result, plan.borrow().clone())
}

/// Makes an object a child of the primary, as the host does.
pub(super) fn own(child: &mut Value, primary: &Value, plugin: &Value) {
    if child["metadata"]["namespace"].is_null() && primary["metadata"]["namespace"].is_string() {
        child["metadata"]["namespace"] = primary["metadata"]["namespace"].clone();
    }
    child["metadata"]["labels"]["reeve.dev/plugin"] = plugin.clone();
    child["metadata"]["ownerReferences"] = json!([{
        "apiVersion": primary["apiVersion"],
        "kind": primary["kind"],
        "name": primary["metadata"]["name"],
        "uid": primary["metadata"]["uid"],
        "controller": true,
        "blockOwnerDeletion": true,
    }]);
}

#[track_caller]
#[expect(clippy::panic, reason = "an assertion for tests")]
pub(super) fn to_value(object: impl Serialize) -> Value {
    match serde_json::to_value(object) {
        Ok(value) => value,
        Err(error) => panic!("the object cannot be serialised: {error}"),
    }
}
