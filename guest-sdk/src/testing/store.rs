//! The objects of a [`World`](super::World), and what the API server does to them.

use serde_json::{Value, json};

use super::fake::{identity, is_child};
use super::merge;

/// Objects with versions, UIDs and generations.
#[derive(Debug, Default)]
pub(super) struct Store {
    objects: Vec<Value>,
    /// What was applied last, per child: a later apply removes what it no longer names.
    applied: Vec<Value>,
    versions: u64,
    /// How many writes changed something.
    pub(super) writes: usize,
}

/// Group, kind, namespace and name.
pub(super) type Identity = (String, String, String, String);

impl Store {
    pub(super) fn all(&self) -> &[Value] {
        &self.objects
    }

    pub(super) fn find(&self, wanted: &Identity) -> Option<&Value> {
        self.objects.iter().find(|object| identity(object) == *wanted)
    }

    /// Puts an object as it is; keeps what the server keeps, and counts the generation up if
    /// anything but metadata and status changed. Returns whether anything did.
    pub(super) fn put(&mut self, mut object: Value) -> bool {
        let wanted = identity(&object);
        let live = self.find(&wanted).cloned().unwrap_or(Value::Null);
        for key in ["uid", "generation", "creationTimestamp", "resourceVersion", "deletionTimestamp"] {
            if !live["metadata"][key].is_null() {
                object["metadata"][key] = live["metadata"][key].clone();
            }
        }
        for key in ["finalizers", "ownerReferences"] {
            if object["metadata"][key].is_null() && !live["metadata"][key].is_null() {
                object["metadata"][key] = live["metadata"][key].clone();
            }
        }
        if object["status"].is_null() && !live["status"].is_null() {
            object["status"] = live["status"].clone();
        }
        if object == live {
            return false;
        }
        self.versions += 1;
        self.writes += 1;
        if live.is_null() {
            if object["metadata"]["uid"].is_null() {
                object["metadata"]["uid"] = json!(format!("uid-{}", self.versions));
            }
            object["metadata"]["generation"] = json!(1);
        } else if desired(&live) != desired(&object) {
            object["metadata"]["generation"] =
                json!(live["metadata"]["generation"].as_u64().unwrap_or(0) + 1);
        }
        object["metadata"]["resourceVersion"] = json!(self.versions.to_string());
        self.objects.retain(|known| identity(known) != wanted);
        let finalized = object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if object["metadata"]["deletionTimestamp"].is_null() || !finalized {
            self.objects.push(object);
        } else {
            self.collect(&object);
        }
        true
    }

    /// Applies a child; returns whether anything changed.
    pub(super) fn apply(&mut self, desired: &Value) -> bool {
        let wanted = identity(desired);
        let mut live = self.find(&wanted).cloned().unwrap_or_else(|| json!({}));
        let known = self.applied.iter().position(|before| identity(before) == wanted);
        let before = known.map_or(Value::Null, |at| self.applied.swap_remove(at));
        merge::apply(&mut live, &before, desired);
        self.applied.push(desired.clone());
        self.put(live)
    }

    /// Deletes an object, or marks it if it has finalizers.
    pub(super) fn delete(&mut self, wanted: &Identity, now: &str) {
        let Some(mut object) = self.find(wanted).cloned() else { return };
        if object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty()) {
            object["metadata"]["deletionTimestamp"] = json!(now);
            self.objects.retain(|known| identity(known) != *wanted);
            self.objects.push(object);
        } else {
            self.collect(&object);
        }
        self.writes += 1;
    }

    /// The children of a primary for a plugin.
    pub(super) fn children(&self, uid: &str, plugin: &str) -> Vec<Identity> {
        self.objects.iter().filter(|object| is_child(object, uid, plugin)).map(identity).collect()
    }

    /// Removes an object and, as the garbage collector does, what it controls.
    fn collect(&mut self, object: &Value) {
        let gone = identity(object);
        self.objects.retain(|known| identity(known) != gone);
        self.applied.retain(|known| identity(known) != gone);
        let uid = object["metadata"]["uid"].clone();
        let dependents: Vec<Value> = self
            .objects
            .iter()
            .filter(|object| {
                let owners = object["metadata"]["ownerReferences"].as_array();
                owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == uid))
            })
            .cloned()
            .collect();
        for dependent in dependents {
            self.collect(&dependent);
        }
    }
}

/// The object without what does not count for the generation.
fn desired(object: &Value) -> Value {
    let mut desired = object.clone();
    if let Value::Object(fields) = &mut desired {
        fields.remove("metadata");
        fields.remove("status");
    }
    desired
}
