//! The fake behind a [`Context`](crate::Context): objects from memory, staging into a plan.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use super::merge;
use super::plan::{Plan, StagedChild, StagedCondition, StagedEvent, StagedWrite, text};
use super::selector::Selector;
use crate::backend::{Backend, Gvk, Item, Items};
use crate::condition::ConditionStatus;
use crate::error::{Category, Error, code};
use crate::object::ObjectName;

/// One run, as the test lays it out.
pub(crate) struct FakeCall {
    pub(super) name: ObjectName,
    pub(super) primary: Option<FakeObject>,
    pub(super) objects: Vec<FakeObject>,
    pub(super) manifest: Value,
    pub(super) reasons: Vec<String>,
    pub(super) attempt: u32,
    pub(super) remaining: Duration,
    pub(super) cancelled: bool,
    pub(super) config: Value,
    pub(super) now: SystemTime,
    pub(super) answers: BTreeMap<String, Value>,
    pub(super) plan: Rc<RefCell<Plan>>,
}

/// An object in memory.
#[derive(Clone)]
pub(crate) struct FakeObject(pub(super) Rc<Value>);

/// Some of them.
pub(crate) struct FakeList(Vec<FakeObject>);

impl FakeCall {
    /// The watches of the manifest for a kind.
    fn watches<'a>(&'a self, kind: &'a Gvk) -> impl Iterator<Item = &'a Value> {
        let watches = self.manifest["watches"].as_array().map(Vec::as_slice).unwrap_or_default();
        watches.iter().filter(move |watch| is_of(watch, kind))
    }

    fn declared(&self, kind: &Gvk) -> Result<(), Error> {
        if is_of(&self.manifest["primary"], kind) || self.watches(kind).next().is_some() {
            return Ok(());
        }
        Err(not_declared(format!(
            "{} is not declared in the plugin's manifest: add it to `watches`",
            kind.kind
        )))
    }

    fn owned(&self, kind: &Gvk) -> Result<(), Error> {
        let owned = |watch: &Value| matches!(text(watch, "/relation"), "owned" | "ownedByAny");
        if self.watches(kind).any(owned) {
            return Ok(());
        }
        Err(not_declared(format!("{} is not declared as owned in the plugin's manifest", kind.kind)))
    }

    fn of_kind(&self, kind: &Gvk) -> impl Iterator<Item = &FakeObject> {
        self.primary.iter().chain(&self.objects).filter(|object| is_of(&object.0, kind))
    }

    fn matches(&self, kind: &Gvk, object: &Value, key: &str, value: &str) -> Result<bool, Error> {
        Ok(match key {
            "namespace" => text(object, "/metadata/namespace") == value,
            "labels" => value.parse::<Selector>().map_err(invalid)?.matches(object),
            "owner" => owners(object).any(|owner| text(owner, "/uid") == value),
            _ => {
                let Some(index) = key.strip_prefix("index:") else {
                    return Err(invalid(format!("a list has no filter {key:?}")));
                };
                let indexes = self.manifest["indexes"].as_array().map(Vec::as_slice).unwrap_or_default();
                let Some(index) = indexes.iter().find(|known| known["name"] == index && is_of(known, kind))
                else {
                    return Err(not_declared(format!("{} has no index {index:?}", kind.kind)));
                };
                let tokens: Vec<&str> = text(index, "/pointer").split('/').skip(1).collect();
                indexed(object, &tokens, value)
            }
        })
    }
}

impl Backend for FakeCall {
    fn name(&self) -> ObjectName {
        self.name.clone()
    }

    fn primary(&self) -> Option<FakeObject> {
        self.primary.clone()
    }

    fn reasons(&self) -> Vec<String> {
        self.reasons.clone()
    }

    fn attempt(&self) -> u32 {
        self.attempt
    }

    fn remaining_ms(&self) -> u64 {
        crate::outcome::milliseconds(self.remaining)
    }

    fn cancelled(&self) -> bool {
        self.cancelled
    }

    fn config(&self) -> String {
        self.config.to_string()
    }

    fn now(&self) -> SystemTime {
        self.now
    }

    fn get(&self, kind: &Gvk, name: &ObjectName) -> Result<Option<FakeObject>, Error> {
        self.declared(kind)?;
        // An object without a namespace is of a cluster-scoped kind, for which it is ignored.
        let found = self.of_kind(kind).find(|object| {
            let found = object.name();
            found.name == name.name && (found.namespace.is_none() || found.namespace == name.namespace)
        });
        Ok(found.cloned())
    }

    fn list(&self, kind: &Gvk, filters: &[(String, String)]) -> Result<FakeList, Error> {
        self.declared(kind)?;
        for (key, value) in filters {
            // A filter that is none is refused, whatever there is to filter.
            self.matches(kind, &Value::Null, key, value)?;
        }
        let mut found = Vec::new();
        for object in self.of_kind(kind) {
            let mut matches = true;
            for (key, value) in filters {
                matches &= self.matches(kind, &object.0, key, value)?;
            }
            if matches {
                found.push(object.clone());
            }
        }
        found.sort_by_key(Item::name);
        Ok(FakeList(found))
    }

    fn children(&self, kind: &Gvk) -> Result<FakeList, Error> {
        self.declared(kind)?;
        let uid = self.primary.as_ref().map(Item::uid).unwrap_or_default();
        let plugin = text(&self.manifest, "/name");
        let mut found: Vec<FakeObject> =
            self.of_kind(kind).filter(|object| is_child(&object.0, &uid, plugin)).cloned().collect();
        found.sort_by_key(Item::name);
        Ok(FakeList(found))
    }

    fn answer(&self, id: &str) -> Option<String> {
        self.answers.get(id).map(Value::to_string)
    }

    fn apply_child(&self, object: &str, options: &[(String, String)]) -> Result<(), Error> {
        let mut child = parse("a child", object)?;
        for pointer in ["/apiVersion", "/kind", "/metadata/name"] {
            if text(&child, pointer).is_empty() {
                return Err(invalid(format!("a child needs {}", pointer[1..].replace('/', "."))));
            }
        }
        if let Some((key, _)) = options.iter().find(|(key, _)| key != "adopt") {
            return Err(invalid(format!("apply-child has no option {key:?}")));
        }
        self.owned(&Gvk::new(text(&child, "/apiVersion"), text(&child, "/kind")))?;
        if text(&child, "/metadata/namespace").is_empty()
            && let Some(namespace) = &self.name.namespace
        {
            child["metadata"]["namespace"] = Value::String(namespace.clone());
        }
        let mut plan = self.plan.borrow_mut();
        plan.children.retain(|staged| identity(&staged.object) != identity(&child));
        let adopt = options.iter().any(|(key, value)| key == "adopt" && value == "true");
        plan.children.push(StagedChild { object: child, adopt });
        Ok(())
    }

    fn children_complete(&self) {
        self.plan.borrow_mut().complete = true;
    }

    fn set_status(&self, status: &str) -> Result<(), Error> {
        let patch: Map<String, Value> =
            serde_json::from_str(status).map_err(|_| invalid("a status must be a JSON object".to_owned()))?;
        for key in ["conditions", "observedGeneration"] {
            if patch.contains_key(key) {
                return Err(invalid(format!("status.{key} is the host's: use a condition")));
            }
        }
        merge::stage(self.plan.borrow_mut().status.get_or_insert_default(), patch);
        Ok(())
    }

    fn set_condition(&self, kind: &str, status: &str, reason: &str, message: &str) -> Result<(), Error> {
        let status = match status {
            "True" => ConditionStatus::True,
            "False" => ConditionStatus::False,
            _ => ConditionStatus::Unknown,
        };
        let word = |text: &str| {
            text.starts_with(|first: char| first.is_ascii_alphabetic())
                && text.chars().all(|each| each.is_ascii_alphanumeric() || "_,:.-/".contains(each))
        };
        if !word(kind) || !word(reason) {
            return Err(invalid(format!(
                "condition {kind:?} with reason {reason:?}: both must be CamelCase words"
            )));
        }
        let mut plan = self.plan.borrow_mut();
        plan.conditions.retain(|staged| staged.kind != kind);
        plan.conditions.push(StagedCondition {
            kind: kind.to_owned(),
            status,
            reason: reason.to_owned(),
            message: message.to_owned(),
        });
        Ok(())
    }

    fn emit_event(&self, kind: &str, reason: &str, action: &str, note: &str) -> Result<(), Error> {
        if reason.is_empty() || action.is_empty() {
            return Err(invalid("an event needs a reason and an action".to_owned()));
        }
        self.plan.borrow_mut().events.push(StagedEvent {
            warning: kind == "Warning",
            reason: reason.to_owned(),
            action: action.to_owned(),
            note: note.to_owned(),
        });
        Ok(())
    }

    fn write(&self, id: Option<&str>, request: &str) -> Result<(), Error> {
        let request = parse("a request", request)?;
        let verb = match text(&request, "/verb") {
            "merge-patch" | "json-patch" => "patch",
            verb @ ("create" | "apply" | "delete") => verb,
            verb => return Err(invalid(format!("a write has no verb {verb:?}"))),
        };
        let kind = Gvk::new(text(&request, "/apiVersion"), text(&request, "/kind"));
        let subresource = text(&request, "/subresource");
        let writes = self.manifest["writes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let lists = |list: &Value, word: &str| {
            list.as_array().is_some_and(|list| list.iter().any(|item| item == word))
        };
        let allowed = writes.iter().filter(|access| is_of(access, &kind)).any(|access| {
            let of_object = subresource.is_empty() && access.get("subresources").is_none();
            lists(&access["verbs"], verb) && (of_object || lists(&access["subresources"], subresource))
        });
        if !allowed {
            return Err(not_declared(format!("{verb} {} {subresource}: add it to `writes`", kind.kind)));
        }
        self.plan.borrow_mut().writes.push(StagedWrite { id: id.map(str::to_owned), request });
        Ok(())
    }

    fn wait_for(&self, request: &str) -> Result<(), Error> {
        let request = parse("a request", request)?;
        let target = request.get("name").is_some() != request.get("labels").is_some();
        let until =
            ["condition", "equals", "exists"].iter().filter(|key| request.get(**key).is_some()).count();
        if !target || until != 1 || text(&request, "/kind").is_empty() {
            return Err(invalid(
                "a wait needs a kind, a name or labels, and a condition, a value or existence".to_owned(),
            ));
        }
        self.plan.borrow_mut().waits.push(request);
        Ok(())
    }

    fn requeue_after(&self, ms: u64) {
        let delay = Duration::from_millis(ms);
        let mut plan = self.plan.borrow_mut();
        plan.requeue_after = Some(plan.requeue_after.map_or(delay, |known| known.min(delay)));
    }
}

impl Item for FakeObject {
    fn raw(&self) -> String {
        self.0.to_string()
    }

    fn get(&self, pointer: &str) -> Option<String> {
        self.0.pointer(pointer).map(Value::to_string)
    }

    fn get_many(&self, pointers: &[String]) -> Vec<Option<String>> {
        pointers.iter().map(|pointer| self.get(pointer)).collect()
    }

    fn name(&self) -> ObjectName {
        let namespace = text(&self.0, "/metadata/namespace");
        ObjectName {
            namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
            name: text(&self.0, "/metadata/name").to_owned(),
        }
    }

    fn uid(&self) -> String {
        text(&self.0, "/metadata/uid").to_owned()
    }

    fn resource_version(&self) -> String {
        text(&self.0, "/metadata/resourceVersion").to_owned()
    }

    fn generation(&self) -> u64 {
        self.0.pointer("/metadata/generation").and_then(Value::as_u64).unwrap_or(0)
    }

    fn deleting(&self) -> bool {
        self.0.pointer("/metadata/deletionTimestamp").is_some()
    }
}

impl Items for FakeList {
    fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    fn raw(&self, index: u32) -> Option<String> {
        self.at(index).map(|object| object.raw())
    }

    fn at(&self, index: u32) -> Option<FakeObject> {
        self.0.get(index as usize).cloned()
    }

    fn get_many(&self, index: u32, pointers: &[String]) -> Vec<Option<String>> {
        self.at(index).map_or_else(Vec::new, |object| object.get_many(pointers))
    }
}

/// What two versions of one object have in common.
pub(super) fn identity(object: &Value) -> (String, String, String, String) {
    let kind = Gvk::new(text(object, "/apiVersion"), text(object, "/kind"));
    let part = |pointer| text(object, pointer).to_owned();
    (kind.group, kind.kind, part("/metadata/namespace"), part("/metadata/name"))
}

/// Whether an object is a child of the primary with that UID for that plugin.
pub(super) fn is_child(object: &Value, uid: &str, plugin: &str) -> bool {
    object["metadata"]["labels"]["reeve.dev/plugin"] == plugin
        && owners(object).any(|owner| owner["controller"] == true && text(owner, "/uid") == uid)
}

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

/// Whether a document's `apiVersion` and `kind` are of a kind; versions of one group are one.
fn is_of(document: &Value, kind: &Gvk) -> bool {
    let found = Gvk::new(text(document, "/apiVersion"), text(document, "/kind"));
    found.group == kind.group && found.kind == kind.kind
}

/// Whether the values at a pointer's tokens, `*` for every element, contain this one.
fn indexed(value: &Value, tokens: &[&str], expected: &str) -> bool {
    match tokens {
        [] => match value {
            Value::String(text) => text == expected,
            Value::Number(_) | Value::Bool(_) => value.to_string().as_str() == expected,
            _ => false,
        },
        ["*", rest @ ..] => value.as_array().into_iter().flatten().any(|item| indexed(item, rest, expected)),
        [token, rest @ ..] => {
            value.pointer(&format!("/{token}")).is_some_and(|inner| indexed(inner, rest, expected))
        }
    }
}

fn parse(what: &str, text: &str) -> Result<Value, Error> {
    serde_json::from_str(text).map_err(|_| invalid(format!("{what} must be JSON")))
}

fn not_declared(message: String) -> Error {
    Error::permanent(code::NOT_DECLARED, message).category(Category::Permission)
}

fn invalid(message: String) -> Error {
    Error::permanent(code::INVALID_ARGUMENT, message).category(Category::Validation)
}
