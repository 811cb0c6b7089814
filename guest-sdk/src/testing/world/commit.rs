//! One run in a [`World`], and what the host makes of what it staged.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::case::{Run, finish, own};
use super::super::fake::{FakeCall, FakeObject, identity};
use super::super::merge;
use super::super::plan::{Plan, text};
use super::super::store::Identity;
use super::{Flow, WAIT_TIMEOUT, Waiting, World, address};
use crate::backend::Gvk;
use crate::error::Error;
use crate::object::ObjectName;

impl World {
    pub(super) fn run(&mut self, name: &ObjectName) {
        let reason = self.due.remove(name).map_or("manual", |due| due.reason);
        let (before, others): (Vec<Waiting>, Vec<Waiting>) =
            std::mem::take(&mut self.waits).into_iter().partition(|wait| wait.primary == *name);
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
        let flow = match self.cleanup {
            Some(cleanup) if deleting => cleanup,
            None if deleting => return,
            Some(_) | None => self.reconcile,
        };
        if self.cleanup.is_some() && !deleting && object.is_some() {
            self.finalizer(&id, true);
            object = self.store.find(&id).cloned();
        }
        let run = self.call(name, &id, object.as_ref(), reason, flow);
        self.runs.push(run.clone());
        let committed = run.result().map_err(Clone::clone).and_then(|()| match &object {
            Some(object) => self.commit(name, object, run.staged()),
            None => Ok(()),
        });
        if let Some(object) = &object {
            self.commit_status(&id, object, run.staged(), committed.as_ref().err());
        }
        self.events.extend(run.staged().events.iter().cloned());
        if let Err(error) = committed {
            self.fail(name, &error);
            return;
        }
        self.come_back(name, run.staged(), &before);
        if deleting && run.staged().waits.is_empty() && run.staged().requeue_after.is_none() {
            self.finalizer(&id, false);
        }
    }

    /// Runs the plugin over what is there now.
    fn call(
        &mut self,
        name: &ObjectName,
        id: &Identity,
        object: Option<&Value>,
        reason: &str,
        flow: Flow,
    ) -> Run {
        let fake = |object: &Value| FakeObject(Rc::new(object.clone()));
        let plan = Rc::new(RefCell::new(Plan::default()));
        let call = FakeCall {
            name: name.clone(),
            primary: object.map(fake),
            objects: self.store.all().iter().filter(|other| identity(other) != *id).map(fake).collect(),
            manifest: self.manifest.clone(),
            reasons: vec![reason.to_owned()],
            attempt: self.failures.get(name).map_or(1, |failures| failures + 1),
            remaining: Duration::from_secs(30),
            cancelled: false,
            config: self.config.clone(),
            now: self.now,
            answers: self.answers.remove(name).unwrap_or_default(),
            plan: Rc::clone(&plan),
        };
        finish(call, &plan, flow)
    }

    /// After a success: forgets the failures, and notes when to come back.
    fn come_back(&mut self, name: &ObjectName, plan: &Plan, before: &[Waiting]) {
        self.failures.remove(name);
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
    }

    /// Adds the plugin's finalizer, or removes it; those of others stay.
    fn finalizer(&mut self, id: &Identity, held: bool) {
        let finalizer = json!(format!("reeve.dev/{}", text(&self.manifest, "/name")));
        let Some(mut object) = self.store.find(id).cloned() else { return };
        let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        if finalizers.contains(&finalizer) == held {
            return;
        }
        if held {
            finalizers.push(finalizer);
        } else {
            finalizers.retain(|known| *known != finalizer);
        }
        object["metadata"]["finalizers"] = Value::Array(finalizers);
        self.store.put(object);
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
            if object["metadata"]["namespace"] != primary["metadata"]["namespace"]
                && primary["metadata"]["namespace"].is_string()
            {
                return Err(Error::permanent(
                    "CROSS_NAMESPACE_OWNER",
                    format!("{} {} lies in another namespace than {name}", id.1, id.3),
                ));
            }
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
                    merge::patch(&mut live, &object);
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
            merge::patch(&mut object["status"], &Value::Object(patch.clone()));
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

    pub(super) fn fail(&mut self, name: &ObjectName, error: &Error) {
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
