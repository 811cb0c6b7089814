//! A small cluster with a virtual clock, in which a plugin runs as under the host.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::{Value, json};

use super::case::{Run, finish, own, start, to_value};
use super::fake::{FakeCall, FakeObject, identity};
use super::plan::{Plan, StagedEvent, text};
use super::store::{Identity, Store};
use crate::backend::{Gvk, Item};
use crate::context::Context;
use crate::error::Error;
use crate::object::ObjectName;
use crate::reconciler::{Cleanup, Reconciler, flow};

/// More runs than this without time passing are a hot loop: a plugin that triggers itself.
const MAX_RUNS: usize = 100;
/// How long a wait lasts that gives no timeout, as in the host.
const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

type Flow = fn(&Context) -> Result<(), Error>;

/// A cluster in memory.
#[derive(Debug)]
pub struct World {
    manifest: Value,
    reconcile: Flow,
    cleanup: Option<Flow>,
    store: Store,
    now: SystemTime,
    due: BTreeMap<ObjectName, Due>,
    waits: Vec<Waiting>,
    failures: BTreeMap<ObjectName, u32>,
    answers: BTreeMap<ObjectName, BTreeMap<String, Value>>,
    config: Value,
    events: Vec<StagedEvent>,
    runs: Vec<Run>,
}

/// When and why a primary runs next.
#[derive(Clone, Debug)]
struct Due {
    at: SystemTime,
    reason: &'static str,
}

/// A primary that waits.
#[derive(Clone, Debug)]
struct Waiting {
    primary: ObjectName,
    request: Value,
    until: SystemTime,
}

impl World {
    /// An empty cluster for a plugin without cleanup.
    pub fn new<P: Reconciler>() -> Self {
        Self {
            manifest: Value::Object(P::manifest().fields().clone()),
            reconcile: flow::reconcile::<P>,
            cleanup: None,
            store: Store::default(),
            now: start(),
            due: BTreeMap::new(),
            waits: Vec::new(),
            failures: BTreeMap::new(),
            answers: BTreeMap::new(),
            config: Value::Null,
            events: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// An empty cluster for a plugin with cleanup: primaries get its finalizer.
    pub fn with_cleanup<P: Cleanup>() -> Self {
        Self { cleanup: Some(flow::cleanup::<P>), ..Self::new::<P>() }
    }

    /// Sets the plugin's configuration; all primaries run.
    ///
    /// # Panics
    /// If it cannot be serialised.
    #[track_caller]
    pub fn config(&mut self, config: impl Serialize) {
        self.config = to_value(config);
        for name in self.primaries() {
            self.trigger(name, Duration::ZERO, "config");
        }
    }

    /// Creates an object or replaces it, as a user does. A primary may leave out `apiVersion` and
    /// `kind`. An object that has a status and is put without one keeps it.
    ///
    /// # Panics
    /// If it cannot be serialised or has no `metadata.name`.
    #[track_caller]
    pub fn put(&mut self, object: impl Serialize) {
        let mut object = to_value(object);
        assert!(object["metadata"]["name"].is_string(), "an object needs a metadata.name");
        for key in ["apiVersion", "kind"] {
            if object[key].is_null() {
                object[key] = self.manifest["primary"][key].clone();
            }
        }
        let id = identity(&object);
        if self.store.put(object) {
            self.changed(&id);
        }
    }

    /// Merges a patch into an object, as another controller does; `name` is `namespace/name`, or
    /// the name alone for cluster-scoped kinds.
    ///
    /// # Panics
    /// If there is no such object.
    #[track_caller]
    pub fn patch(&mut self, api_version: &str, kind: &str, name: &str, patch: &Value) {
        let mut object = self.object(api_version, kind, name).clone();
        super::merge::patch(&mut object, patch);
        self.put(object);
    }

    /// Deletes an object as a user does: with finalizers it is only marked. The garbage collector
    /// deletes what it controls.
    pub fn delete(&mut self, api_version: &str, kind: &str, name: &str) {
        let id = address(api_version, kind, name);
        // Whom it concerned must be known before it is gone.
        let concerned = self.store.find(&id).map(|object| self.concerned(object)).unwrap_or_default();
        let now = crate::time::to_rfc3339(self.now);
        self.store.delete(&id, &now);
        for name in concerned {
            self.trigger(name, Duration::ZERO, "updated");
        }
    }

    /// Runs all that is due now, until nothing is, and says how many runs that took.
    ///
    /// # Panics
    /// After 100 runs: the plugin triggers itself.
    #[track_caller]
    pub fn settle(&mut self) -> usize {
        let mut count = 0;
        loop {
            self.wake();
            let next = self.due.iter().filter(|(_, due)| due.at <= self.now).min_by_key(|(_, due)| due.at);
            let Some(name) = next.map(|(name, _)| name.clone()) else { return count };
            assert!(
                count < MAX_RUNS,
                "{name} ran {MAX_RUNS} times without time passing: the plugin triggers itself"
            );
            self.run(&name);
            count += 1;
        }
    }

    /// Lets time pass, and runs what comes due on the way, each at its time.
    ///
    /// # Panics
    /// As [`settle`](Self::settle).
    #[track_caller]
    pub fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        self.settle();
        loop {
            let timeouts = self.waits.iter().map(|wait| wait.until);
            let next = self.due.values().map(|due| due.at).chain(timeouts).filter(|at| *at > self.now).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = next;
            self.settle();
        }
        self.now = end;
    }

    /// The virtual time.
    pub fn now(&self) -> SystemTime {
        self.now
    }

    /// An object; `name` is `namespace/name`, or the name alone for cluster-scoped kinds.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    #[expect(clippy::panic, reason = "an assertion for tests")]
    pub fn object(&self, api_version: &str, kind: &str, name: &str) -> &Value {
        match self.find(api_version, kind, name) {
            Some(object) => object,
            None => panic!("there is no {kind} {name}"),
        }
    }

    /// An object, if there is one.
    pub fn find(&self, api_version: &str, kind: &str, name: &str) -> Option<&Value> {
        self.store.find(&address(api_version, kind, name))
    }

    /// All objects.
    pub fn objects(&self) -> &[Value] {
        self.store.all()
    }

    /// How many writes changed something, users' included. A plugin that is idempotent makes none
    /// when it runs again.
    pub fn writes(&self) -> usize {
        self.store.writes
    }

    /// The events so far.
    pub fn events(&self) -> &[StagedEvent] {
        &self.events
    }

    /// The runs so far.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Makes a primary run, as a resync does.
    pub fn resync(&mut self, name: &str) {
        let name = match name.split_once('/') {
            Some((namespace, name)) => ObjectName::namespaced(namespace, name),
            None => ObjectName::cluster(name),
        };
        self.trigger(name, Duration::ZERO, "resync");
    }

    // --- triggers

    fn trigger(&mut self, name: ObjectName, after: Duration, reason: &'static str) {
        let at = self.now + after;
        self.due
            .entry(name)
            .and_modify(|due| {
                if at < due.at {
                    *due = Due { at, reason };
                }
            })
            .or_insert(Due { at, reason });
    }

    fn changed(&mut self, id: &Identity) {
        let Some(object) = self.store.find(id) else { return };
        for name in self.concerned(object) {
            self.trigger(name, Duration::ZERO, "updated");
        }
    }

    fn is_primary(&self, object: &Value) -> bool {
        let primary = &self.manifest["primary"];
        Gvk::new(text(object, "/apiVersion"), text(object, "/kind"))
            == Gvk::new(text(primary, "/apiVersion"), text(primary, "/kind"))
            && primary["labels"].as_str().is_none_or(|selector| {
                selector.parse::<super::selector::Selector>().is_ok_and(|selector| selector.matches(object))
            })
    }

    fn primaries(&self) -> Vec<ObjectName> {
        let all = self.store.all().iter().filter(|object| self.is_primary(object));
        all.map(|object| FakeObject(Rc::new(object.clone())).name()).collect()
    }

    /// The primaries that a change of an object concerns. A watch with the relation `map` is left
    /// to [`Case::map`](super::Case::map) and [`resync`](Self::resync).
    fn concerned(&self, object: &Value) -> Vec<ObjectName> {
        let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
        let mut names = Vec::new();
        if self.is_primary(object) {
            names.push(ObjectName {
                namespace: namespace.clone(),
                name: text(object, "/metadata/name").to_owned(),
            });
        }
        for watch in self.manifest["watches"].as_array().into_iter().flatten() {
            if text(watch, "/kind") != text(object, "/kind") {
                continue;
            }
            match &watch["relation"] {
                Value::String(owned) if owned == "owned" || owned == "ownedByAny" => {
                    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
                    let kind = &self.manifest["primary"]["kind"];
                    names.extend(owners.filter(|owner| owner["kind"] == *kind).map(|owner| ObjectName {
                        namespace: namespace.clone(),
                        name: text(owner, "/name").to_owned(),
                    }));
                }
                relation => {
                    if let Some(label) = relation["label"].as_str()
                        && let Some(name) = object["metadata"]["labels"][label].as_str()
                    {
                        names.push(ObjectName { namespace: namespace.clone(), name: name.to_owned() });
                    } else if relation["index"].is_string() {
                        names.extend(self.primaries());
                    }
                }
            }
        }
        names
    }

    /// Triggers those whose wait is over.
    fn wake(&mut self) {
        let waits = std::mem::take(&mut self.waits);
        for wait in waits {
            if self.come_true(&wait) {
                self.trigger(wait.primary, Duration::ZERO, "wait");
            } else if wait.until <= self.now {
                self.fail(
                    &wait.primary,
                    &Error::transient("WAIT_TIMEOUT", "the awaited object did not come to its state in time"),
                );
            } else {
                self.waits.push(wait);
            }
        }
    }

    fn come_true(&self, wait: &Waiting) -> bool {
        let request = &wait.request;
        let selector =
            request["labels"].as_str().and_then(|labels| labels.parse::<super::selector::Selector>().ok());
        let namespace = request["namespace"].as_str().or(wait.primary.namespace.as_deref());
        let found = self.store.all().iter().find(|object| {
            text(object, "/kind") == text(request, "/kind")
                && object["metadata"]["namespace"].as_str().is_none_or(|found| Some(found) == namespace)
                && match &selector {
                    Some(selector) => selector.matches(object),
                    None => object["metadata"]["name"] == request["name"],
                }
        });
        if let Some(exists) = request["exists"].as_bool() {
            return found.is_some() == exists;
        }
        let Some(object) = found else { return false };
        match request["condition"].as_str() {
            Some(condition) => {
                let (kind, status) = condition.split_once('=').unwrap_or((condition, "True"));
                let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
                conditions.into_iter().any(|found| found["type"] == kind && found["status"] == status)
            }
            None => object.pointer(text(request, "/pointer")) == Some(&request["equals"]),
        }
    }

    // --- runs

    fn run(&mut self, name: &ObjectName) {
        let due = self.due.remove(name);
        let (before, others) =
            std::mem::take(&mut self.waits).into_iter().partition(|wait| wait.primary == *name);
        let before: Vec<Waiting> = before;
        self.waits = others;
        let primary = &self.manifest["primary"];
        let id = address(text(primary, "/apiVersion"), text(primary, "/kind"), &name.to_string());
        let mut object = self.store.find(&id).filter(|object| self.is_primary(object)).cloned();
        if object.is_none() && primary["whenGone"] != true {
            self.failures.remove(name);
            return;
        }
        let deleting =
            object.as_ref().is_some_and(|object| !object["metadata"]["deletionTimestamp"].is_null());
        let finalizer = format!("reeve.dev/{}", text(&self.manifest, "/name"));
        let flow = match self.cleanup {
            Some(cleanup) if deleting => cleanup,
            None if deleting => return,
            Some(_) | None => self.reconcile,
        };
        if let Some(object) = &mut object
            && self.cleanup.is_some()
            && !deleting
        {
            object["metadata"]["finalizers"] = json!([finalizer]);
            self.store.put(object.clone());
            *object = self.store.find(&id).cloned().unwrap_or_default();
        }
        let plan = Rc::new(RefCell::new(Plan::default()));
        let call = FakeCall {
            name: name.clone(),
            primary: object.clone().map(|object| FakeObject(Rc::new(object))),
            objects: self
                .store
                .all()
                .iter()
                .filter(|other| identity(other) != id)
                .map(|other| FakeObject(Rc::new(other.clone())))
                .collect(),
            manifest: self.manifest.clone(),
            reasons: vec![due.map_or("manual", |due| due.reason).to_owned()],
            attempt: self.failures.get(name).map_or(1, |failures| failures + 1),
            remaining: Duration::from_secs(30),
            cancelled: false,
            config: self.config.clone(),
            now: self.now,
            answers: self.answers.remove(name).unwrap_or_default(),
            plan: Rc::clone(&plan),
        };
        let run = finish(call, &plan, flow);
        self.runs.push(run.clone());
        let committed = run.result().map_err(Clone::clone).and_then(|()| match &object {
            Some(object) => self.commit(name, object, run.staged()),
            None => Ok(()),
        });
        if let Some(object) = &object {
            self.commit_status(&id, object, run.staged(), committed.as_ref().err());
        }
        self.events.extend(run.staged().events.iter().cloned());
        match committed {
            Err(error) => self.fail(name, &error),
            Ok(()) => {
                self.failures.remove(name);
                let plan = run.staged();
                if let Some(delay) = plan.requeue_after {
                    self.trigger(name.clone(), delay, "timer");
                }
                for request in &plan.waits {
                    // The timeout counts from the first run that waits for the same thing.
                    let timeout = request["timeoutMs"].as_u64().map_or(WAIT_TIMEOUT, Duration::from_millis);
                    let known = before.iter().find(|wait| wait.request == *request).map(|wait| wait.until);
                    let until = known.unwrap_or(self.now + timeout);
                    self.waits.push(Waiting { primary: name.clone(), request: request.clone(), until });
                }
                if deleting && plan.waits.is_empty() && plan.requeue_after.is_none() {
                    let mut object = self.store.find(&id).cloned().unwrap_or_default();
                    if let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut() {
                        finalizers.retain(|known| *known != *finalizer);
                        self.store.put(object);
                    }
                }
            }
        }
    }

    /// Children, pruning, other writes.
    fn commit(&mut self, name: &ObjectName, primary: &Value, plan: &Plan) -> Result<(), Error> {
        let plugin = self.manifest["name"].clone();
        let uid = text(primary, "/metadata/uid").to_owned();
        let before = self.store.children(&uid, plugin.as_str().unwrap_or(""));
        for child in &plan.children {
            let mut object = child.object.clone();
            own(&mut object, primary, &plugin);
            let id = identity(&object);
            if let Some(live) = self.store.find(&id)
                && !before.contains(&id)
                && !(child.adopt && live["metadata"]["ownerReferences"].is_null())
            {
                return Err(Error::permanent(
                    "CHILD_NOT_OWNED",
                    format!("{} {} exists and is not owned by {name}", id.1, id.3),
                ));
            }
            // The echo of a child write triggers its owner once.
            if self.store.apply(&object) {
                self.changed(&id);
            }
        }
        if plan.complete {
            let wanted: Vec<Identity> = plan.children.iter().map(|child| identity(&child.object)).collect();
            let now = crate::time::to_rfc3339(self.now);
            for id in before.iter().filter(|id| !wanted.contains(id)) {
                self.store.delete(id, &now);
            }
        }
        for write in &plan.writes {
            let answer = self.write(name, &write.request);
            if let Some(id) = &write.id {
                self.answers.entry(name.clone()).or_default().insert(id.clone(), json!({ "ok": answer }));
                self.trigger(name.clone(), Duration::ZERO, "answer");
            }
        }
        Ok(())
    }

    /// Another write, without the server's checks. A JSON patch and subresources change nothing.
    fn write(&mut self, primary: &ObjectName, request: &Value) -> Value {
        let namespace = request["namespace"].as_str().or(primary.namespace.as_deref());
        let mut object = request["body"].clone();
        let kind = Gvk::new(text(request, "/apiVersion"), text(request, "/kind"));
        let id: Identity =
            (kind.group, kind.kind, namespace.unwrap_or("").to_owned(), text(request, "/name").to_owned());
        if request["subresource"].is_string() || request["dryRun"] == true {
            return object;
        }
        match text(request, "/verb") {
            "delete" => {
                let now = crate::time::to_rfc3339(self.now);
                self.store.delete(&id, &now);
                return Value::Null;
            }
            "create" | "apply" => {
                if let (Some(namespace), true) = (namespace, object["metadata"]["namespace"].is_null()) {
                    object["metadata"]["namespace"] = json!(namespace);
                }
                if self.store.apply(&object) {
                    self.changed(&identity(&object));
                }
            }
            "merge-patch" => {
                if let Some(mut live) = self.store.find(&id).cloned() {
                    super::merge::patch(&mut live, &object);
                    if self.store.put(live) {
                        self.changed(&id);
                    }
                }
            }
            _ => {}
        }
        self.store.find(&id).cloned().unwrap_or(object)
    }

    /// Status and conditions, with the host's own about the run.
    fn commit_status(&mut self, id: &Identity, read: &Value, plan: &Plan, failure: Option<&Error>) {
        let Some(mut object) = self.store.find(id).cloned() else { return };
        let generation = read["metadata"]["generation"].clone();
        if let Some(patch) = &plan.status {
            super::merge::patch(&mut object["status"], &Value::Object(patch.clone()));
        }
        let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let mut set = |kind: &str, status: &str, reason: &str, message: &str| {
            let now = crate::time::to_rfc3339(self.now);
            let known = conditions.iter().position(|known| known["type"] == kind);
            let since = known
                .filter(|&at| conditions[at]["status"] == status)
                .map_or(json!(now), |at| conditions[at]["lastTransitionTime"].clone());
            let condition = json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": since, "observedGeneration": generation,
            });
            match known {
                Some(at) => conditions[at] = condition,
                None => conditions.push(condition),
            }
        };
        for condition in &plan.conditions {
            set(&condition.kind, condition.status.as_str(), &condition.reason, &condition.message);
        }
        let failed = object["status"]["conditions"].as_array().is_some_and(|conditions| {
            conditions.iter().any(|known| known["type"] == "Reconciled" && known["status"] == "False")
        });
        match failure {
            Some(error) => set("Reconciled", "False", error.code(), error.message()),
            None if failed => set("Reconciled", "True", "Reconciled", "the last run succeeded"),
            None => {}
        }
        if !conditions.is_empty() {
            object["status"]["conditions"] = Value::Array(conditions);
        }
        if plan.status.is_some() || !plan.conditions.is_empty() {
            object["status"]["observedGeneration"] = generation;
        }
        if object["status"].is_null() {
            return;
        }
        // The echo of a status does not trigger the plugin that wrote it.
        self.store.put(object);
    }

    fn fail(&mut self, name: &ObjectName, error: &Error) {
        let failures = self.failures.entry(name.clone()).or_default();
        *failures += 1;
        let retry = &self.manifest["retry"];
        let base = retry["baseMs"].as_u64().unwrap_or(1_000);
        let cap = retry["capMs"].as_u64().unwrap_or(300_000);
        let backoff = base.saturating_mul(1 << (*failures - 1).min(30)).min(cap);
        if error.is_transient() {
            let delay = error.delay().unwrap_or(Duration::from_millis(backoff));
            self.trigger(name.clone(), delay, "retry");
        }
    }
}

/// From `apiVersion`, kind and `namespace/name`.
fn address(api_version: &str, kind: &str, name: &str) -> Identity {
    let kind = Gvk::new(api_version, kind);
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    (kind.group, kind.kind, namespace.to_owned(), name.to_owned())
}
