//! What a run staged.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::condition::ConditionStatus;

/// Everything that one run staged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The desired children, in the order staged.
    pub children: Vec<StagedChild>,
    /// Whether the children are all there should be.
    pub complete: bool,
    /// The merge patch of the status; `None` when none was staged.
    pub status: Option<Map<String, Value>>,
    /// One per type.
    pub conditions: Vec<StagedCondition>,
    /// In the order staged.
    pub events: Vec<StagedEvent>,
    /// In the order staged.
    pub writes: Vec<StagedWrite>,
    /// The wait-for requests as the contract writes them.
    pub waits: Vec<Value>,
    /// The soonest that was asked for.
    pub requeue_after: Option<Duration>,
}

/// A child as it was staged.
#[derive(Clone, Debug, PartialEq)]
pub struct StagedChild {
    /// The object; the namespace is filled in.
    pub object: Value,
    /// Whether it takes over an object that has no controller.
    pub adopt: bool,
}

/// A condition as it was staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedCondition {
    /// For example `Ready`.
    pub kind: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// A `CamelCase` word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// An event as it was staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedEvent {
    /// A `Warning` rather than `Normal`.
    pub warning: bool,
    /// A `CamelCase` word.
    pub reason: String,
    /// A `CamelCase` verb.
    pub action: String,
    /// A sentence.
    pub note: String,
}

/// Another write as it was staged.
#[derive(Clone, Debug, PartialEq)]
pub struct StagedWrite {
    /// The id of a write whose answer matters.
    pub id: Option<String>,
    /// The request as the contract writes it.
    pub request: Value,
}

impl Plan {
    /// The staged child of a kind and name.
    ///
    /// # Panics
    /// If there is none, with what there is.
    #[track_caller]
    #[expect(clippy::panic, reason = "an assertion for tests")]
    pub fn child(&self, kind: &str, name: &str) -> &Value {
        self.find_child(kind, name).unwrap_or_else(|| {
            let staged: Vec<String> = self
                .children
                .iter()
                .map(|child| {
                    format!("{} {}", text(&child.object, "/kind"), text(&child.object, "/metadata/name"))
                })
                .collect();
            panic!("no {kind} {name} was staged, only {staged:?}")
        })
    }

    /// The staged child of a kind and name, if there is one.
    pub fn find_child(&self, kind: &str, name: &str) -> Option<&Value> {
        let mut objects = self.children.iter().map(|child| &child.object);
        objects.find(|child| text(child, "/kind") == kind && text(child, "/metadata/name") == name)
    }

    /// A field of the staged status; `null` when it was not staged.
    pub fn status(&self, field: &str) -> &Value {
        self.status.as_ref().and_then(|status| status.get(field)).unwrap_or(&Value::Null)
    }

    /// The staged condition of a type.
    ///
    /// # Panics
    /// If there is none, with what there is.
    #[track_caller]
    #[expect(clippy::panic, reason = "an assertion for tests")]
    pub fn condition(&self, kind: &str) -> &StagedCondition {
        match self.conditions.iter().find(|condition| condition.kind == kind) {
            Some(condition) => condition,
            None => panic!("no condition {kind} was staged, only {:?}", self.conditions),
        }
    }
}

pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}
