//! A small cluster with a virtual clock, in which a plugin runs as under the host.

mod commit;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;

use super::case::{Run, start, to_value};
use super::fake::{FakeObject, identity};
use super::plan::{StagedEvent, text};
use super::store::{Identity, Store};
use crate::backend::{Gvk, Item};
use crate::context::Context;
use crate::error::Error;
use crate::object::ObjectName;
use crate::reconciler::{Cleanup, Reconciler, flow};

/// More runs than this without time passing are a hot loop: a plugin that triggers itself.
const MAX_RUNS: usize = 100;
/// How long a wait lasts that gives no timeout, as in the host.
const WAIT_TIMEOUT: Duration = Duration::from_mins(5);

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
}

/// From `apiVersion`, kind and `namespace/name`.
fn address(api_version: &str, kind: &str, name: &str) -> Identity {
    let kind = Gvk::new(api_version, kind);
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    (kind.group, kind.kind, namespace.to_owned(), name.to_owned())
}
