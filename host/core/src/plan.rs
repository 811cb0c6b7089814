//! What a run staged, as data. Nothing here has been sent.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::failure::{Failure, Layer};
use crate::grant::Verb;
use crate::gvk::Gvk;
use crate::ids::{ObjectName, ResourceVersion, Uid};

/// Everything that one run staged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// The desired children, in the order staged; one per kind and name (a later one replaces).
    pub children: Vec<Child>,
    /// Whether `children` is all there should be, so that the rest is pruned.
    pub complete: bool,
    /// A merge patch of the status, without `conditions` and `observedGeneration`.
    pub status: Option<Map<String, Value>>,
    /// One per type, a later one replaces.
    pub conditions: Vec<Condition>,
    /// In the order staged.
    pub events: Vec<Event>,
    /// In the order staged.
    pub writes: Vec<Write>,
    /// What to wait for; each wakes the key.
    pub waits: Vec<Wait>,
    /// When to come back in any case; the soonest asked for.
    pub requeue_after: Option<Duration>,
}

/// A desired child.
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    /// Its kind, from its `apiVersion` and `kind`.
    pub gvk: Gvk,
    /// Its name; the namespace is the primary's where the child gave none.
    pub name: ObjectName,
    /// The object as staged.
    pub body: Map<String, Value>,
    /// Takes over an object that has no controller.
    pub adopt: bool,
}

/// A condition as a plugin sets it; the host adds times and generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// For example `Ready`.
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: ConditionStatus,
    /// A `CamelCase` word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// The three values of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConditionStatus {
    /// `True`
    True,
    /// `False`
    False,
    /// `Unknown`
    Unknown,
}

/// An event about the primary.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Event {
    /// A `Warning` rather than `Normal`.
    pub warning: bool,
    /// At most 128 bytes.
    pub reason: String,
    /// At most 128 bytes.
    pub action: String,
    /// At most 1024 bytes.
    pub note: String,
}

/// Any other write.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The answer is offered under this id in the run that follows at once.
    pub id: Option<String>,
    /// What to do.
    pub action: WriteAction,
    /// The kind of the object.
    pub gvk: Gvk,
    /// The object; for `generateName` the name is the prefix.
    pub name: ObjectName,
    /// For example `scale`, `eviction`, `token`.
    pub subresource: Option<String>,
    /// Refused with 409 unless the object is of this version.
    pub resource_version: Option<ResourceVersion>,
    /// Refused with 409 unless the object is of this life.
    pub uid: Option<Uid>,
    /// Nothing is persisted.
    pub dry_run: bool,
}

/// What a [`Write`] does.
#[derive(Debug, Clone, PartialEq)]
pub enum WriteAction {
    /// POST; `generate_name` makes the name a prefix.
    Create {
        /// The object.
        body: Value,
        /// Whether the server completes the name.
        generate_name: bool,
    },
    /// Server-side apply.
    Apply {
        /// The fields.
        body: Value,
        /// Takes fields from other managers.
        force: bool,
    },
    /// RFC 7386.
    MergePatch {
        /// The patch.
        body: Value,
    },
    /// RFC 6902.
    JsonPatch {
        /// The patch.
        body: Value,
    },
    /// DELETE.
    Delete {
        /// What happens to dependents.
        propagation: Propagation,
    },
}

/// What happens to the dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Propagation {
    /// They go first.
    Foreground,
    /// They go afterwards.
    #[default]
    Background,
    /// They stay.
    Orphan,
}

/// What a run waits for (feature D5).
#[derive(Debug, Clone, PartialEq)]
pub struct Wait {
    /// The kind of the awaited object.
    pub gvk: Gvk,
    /// The namespace; `None` for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// Which object.
    pub target: WaitTarget,
    /// The state to come to.
    pub until: WaitUntil,
    /// From the first wait for the same thing; then `WAIT_TIMEOUT`.
    pub timeout: Duration,
    /// How often to look where the kind is not watched: 2 s, backing off to 30 s.
    pub poll: Duration,
}

/// Which object a [`Wait`] is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WaitTarget {
    /// One by name.
    Name(String),
    /// Any that the selector matches.
    Labels(String),
}

/// The state that a [`Wait`] is for.
#[derive(Debug, Clone, PartialEq)]
pub enum WaitUntil {
    /// A condition of this type has this status.
    Condition(String, String),
    /// The value at a pointer equals this.
    Equals(String, Value),
    /// The object is there, or gone.
    Exists(bool),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What it staged. Empty when the guest broke.
    pub plan: Plan,
    /// `None` after ok.
    pub failure: Option<(Layer, Failure)>,
    /// What it used.
    pub usage: Usage,
}

/// What a run used, for limits, metrics and slow-reconcile logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// From instantiation to return.
    pub total: Duration,
    /// Waiting in host calls.
    pub host_wait: Duration,
    /// The most linear memory in bytes.
    pub peak_memory: u64,
    /// How many host calls.
    pub host_calls: u64,
    /// Log lines written.
    pub log_lines: u32,
    /// Log lines dropped over the limit.
    pub dropped_logs: u32,
    /// Events dropped over the limit.
    pub dropped_events: u32,
}

impl ConditionStatus {
    /// As Kubernetes writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl WriteAction {
    /// The verb that a grant must allow.
    pub const fn verb(&self) -> Verb {
        match self {
            Self::Create { .. } => Verb::Create,
            Self::Apply { .. } => Verb::Apply,
            Self::MergePatch { .. } | Self::JsonPatch { .. } => Verb::Patch,
            Self::Delete { .. } => Verb::Delete,
        }
    }
}
