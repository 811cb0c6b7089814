//! What a plugin says of itself.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::outcome::milliseconds;
use crate::predicate::Predicate;

/// A plugin's manifest: its name, the kinds it works on, and its limits.
///
/// The host grants a plugin exactly what stands here, within the operator's ceiling; a read or
/// write of another kind is refused by name. Everything has a default but the four arguments of
/// [`new`](Self::new).
///
/// ```
/// use std::time::Duration;
/// use reeve_sdk::{Limits, Manifest, Verb};
///
/// let manifest = Manifest::new("website", "1.0.0", "example.reeve.dev/v1", "Website")
///     .description("Serves a page of HTML")
///     .owns("v1", "ConfigMap")
///     .owns("apps/v1", "Deployment")
///     .reads("v1", "Node")
///     .watch_label("v1", "Secret", "example.reeve.dev/website")
///     .writes("apps/v1", "Deployment/scale", &[Verb::Patch])
///     .resync(Duration::from_secs(3600))
///     .limits(Limits::new().memory_mib(32).deadline(Duration::from_secs(10)));
/// # assert!(manifest.to_json().contains("Website"));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Manifest {
    fields: Map<String, Value>,
    /// Says it instead of the fields.
    text: Option<String>,
}

/// A kind beside the primary one that is read, that triggers, or both; for
/// [`Manifest::watch`]. The short forms are [`Manifest::owns`], [`Manifest::reads`] and
/// [`Manifest::watch_label`].
#[derive(Clone, Debug, PartialEq)]
#[must_use = "pass it to `Manifest::watch`"]
pub struct Watch {
    fields: Map<String, Value>,
}

/// How a change of a watched object finds the primaries that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The primary is its controller. The plugin may apply and delete such children.
    Owned,
    /// As `Owned`, and any owner reference triggers.
    OwnedByAny,
    /// The value of this label is the name of a primary in the same namespace.
    Label(String),
    /// Primaries of the same namespace (or cluster-scoped) that have the object's name in this
    /// index over the primary kind.
    Index(String),
    /// [`Mapper::map`](crate::Mapper::map) says which.
    Map,
    /// It never triggers.
    Read,
}

/// What is done to an object that is no child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// POST.
    Create,
    /// Server-side apply.
    Apply,
    /// Merge patch and JSON patch.
    Patch,
    /// DELETE.
    Delete,
}

/// What one run may use. The host's own ceiling applies beside it.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "pass it to `Manifest::limits`"]
pub struct Limits {
    fields: Map<String, Value>,
}

/// How failures are retried: exponentially with ±10 % jitter.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "pass it to `Manifest::retry`"]
pub struct Retry {
    fields: Map<String, Value>,
}

/// What happens to an object after its last attempt, when it is marked `Stalled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExhausted {
    /// Its delays go on doubling to the cap; the default.
    Slow,
    /// It is left until it changes.
    Stop,
}

/// How the status is written; each writes only the difference, and nothing when there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusStrategy {
    /// A merge patch; the default.
    Merge,
    /// Server-side apply with the plugin's field manager: several plugins can share a status.
    Apply,
    /// A replace with the resourceVersion that the run read.
    Update,
}

// === impl Manifest ===

impl Manifest {
    /// A plugin called `name` (a DNS label; its identity for ever, it stands in the finalizer and
    /// the children's label), of a version (free text), that reconciles one kind.
    pub fn new(name: &str, version: &str, api_version: &str, kind: &str) -> Self {
        let mut fields = Map::new();
        set(&mut fields, "name", json!(name));
        set(&mut fields, "version", json!(version));
        set(&mut fields, "sdk", json!(concat!("reeve-sdk ", env!("CARGO_PKG_VERSION"))));
        set(&mut fields, "primary", json!({ "apiVersion": api_version, "kind": kind }));
        Self { fields, text: None }
    }

    /// A manifest from its text, which is given to the host as it is, even if it is none: for
    /// plugins that are generated, and for tests of a host.
    pub fn from_text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { fields: serde_json::from_str(&text).unwrap_or_default(), text: Some(text) }
    }

    /// One sentence for people.
    pub fn description(self, text: &str) -> Self {
        self.with("description", json!(text))
    }

    // --- the primary kind

    /// Only primaries that a label selector matches, for example `app=web,tier in (a,b)`.
    pub fn select_labels(self, selector: &str) -> Self {
        self.primary("labels", json!(selector))
    }

    /// Only primaries that a field selector matches (what the API server can do for the kind).
    pub fn select_fields(self, selector: &str) -> Self {
        self.primary("fields", json!(selector))
    }

    /// Which changes of a primary trigger. Without it: any change but of `status`,
    /// `resourceVersion` and `managedFields`.
    pub fn predicate(self, predicate: Predicate) -> Self {
        self.primary("predicate", predicate.into_json())
    }

    /// Calls [`Reconciler::gone`](crate::Reconciler::gone) once when a primary is gone.
    pub fn when_gone(self) -> Self {
        self.primary("whenGone", json!(true))
    }

    // --- other kinds

    /// Children of this kind: the plugin may apply, read and delete them, and their changes
    /// trigger their primary.
    pub fn owns(self, api_version: &str, kind: &str) -> Self {
        self.watch(Watch::new(api_version, kind, Relation::Owned))
    }

    /// Objects of this kind may be read; their changes do not trigger.
    pub fn reads(self, api_version: &str, kind: &str) -> Self {
        self.watch(Watch::new(api_version, kind, Relation::Read))
    }

    /// Objects of this kind may be read, and a change triggers the primary of the same namespace
    /// whose name is the value of this label.
    pub fn watch_label(self, api_version: &str, kind: &str, label: &str) -> Self {
        self.watch(Watch::new(api_version, kind, Relation::Label(label.to_owned())))
    }

    /// Objects of this kind may be read, and a change triggers the primaries of the same namespace
    /// that have the object's name in an index over the primary kind (see
    /// [`index`](Self::index)).
    pub fn watch_index(self, api_version: &str, kind: &str, index: &str) -> Self {
        self.watch(Watch::new(api_version, kind, Relation::Index(index.to_owned())))
    }

    /// Objects of this kind may be read, and [`Mapper::map`](crate::Mapper::map) says whom a
    /// change concerns; `name` is what it is called with.
    pub fn watch_map(self, name: &str, api_version: &str, kind: &str) -> Self {
        self.watch(Watch::new(api_version, kind, Relation::Map).name(name))
    }

    /// Any watch.
    pub fn watch(self, watch: Watch) -> Self {
        self.push("watches", Value::Object(watch.fields))
    }

    /// An index over the primary or a watched kind, for [`Query::index`](crate::Query::index) and
    /// [`watch_index`](Self::watch_index): the values at a JSON pointer, in which `*` stands for
    /// every element of an array, for example `/spec/volumes/*/configMap/name`.
    pub fn index(self, name: &str, api_version: &str, kind: &str, pointer: &str) -> Self {
        self.push(
            "indexes",
            json!({ "name": name, "apiVersion": api_version, "kind": kind, "pointer": pointer }),
        )
    }

    /// Writes that are no children: of a kind, or of a subresource of it as in `Pod/eviction`.
    pub fn writes(self, api_version: &str, kind: &str, verbs: &[Verb]) -> Self {
        let (kind, subresource) = match kind.split_once('/') {
            Some((kind, subresource)) => (kind, Some(subresource)),
            None => (kind, None),
        };
        let verbs: Vec<&str> = verbs.iter().map(|verb| verb.as_str()).collect();
        let mut access = Map::new();
        set(&mut access, "apiVersion", json!(api_version));
        set(&mut access, "kind", json!(kind));
        set(&mut access, "verbs", json!(verbs));
        if let Some(subresource) = subresource {
            set(&mut access, "subresources", json!([subresource]));
        }
        self.push("writes", Value::Object(access))
    }

    // --- behaviour

    /// When to run again without a change, with ±10 % jitter; default 10 h, zero is never.
    pub fn resync(self, interval: Duration) -> Self {
        self.with("resyncSeconds", json!(interval.as_secs()))
    }

    /// How failures are retried.
    pub fn retry(self, retry: Retry) -> Self {
        self.with("retry", Value::Object(retry.fields))
    }

    /// What one run may use.
    pub fn limits(self, limits: Limits) -> Self {
        self.with("limits", Value::Object(limits.fields))
    }

    /// How the status is written.
    pub fn status(self, strategy: StatusStrategy) -> Self {
        self.with(
            "status",
            json!(match strategy {
                StatusStrategy::Merge => "merge",
                StatusStrategy::Apply => "apply",
                StatusStrategy::Update => "update",
            }),
        )
    }

    /// How long a finalizer may be held before the host reports it; default 15 min.
    pub fn finalizer_limit(self, limit: Duration) -> Self {
        self.with("finalizerLimitSeconds", json!(limit.as_secs()))
    }

    /// Keeps `metadata.managedFields` in the cached objects of this plugin's kinds; they cost
    /// memory.
    pub fn keep_managed_fields(self) -> Self {
        self.with("managedFields", json!(true))
    }

    /// The document that the host reads.
    pub fn to_json(&self) -> String {
        match &self.text {
            Some(text) => text.clone(),
            None => serde_json::to_string(&self.fields).unwrap_or_default(),
        }
    }

    /// The document's fields.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        set(&mut self.fields, key, value);
        self
    }

    fn primary(mut self, key: &str, value: Value) -> Self {
        if let Some(Value::Object(primary)) = self.fields.get_mut("primary") {
            set(primary, key, value);
        }
        self
    }

    fn push(mut self, key: &str, value: Value) -> Self {
        match self.fields.get_mut(key) {
            Some(Value::Array(list)) => list.push(value),
            _ => set(&mut self.fields, key, Value::Array(vec![value])),
        }
        self
    }
}

// === impl Watch ===

impl Watch {
    /// Objects of a kind that concern primaries by a relation.
    pub fn new(api_version: &str, kind: &str, relation: Relation) -> Self {
        let mut fields = Map::new();
        set(&mut fields, "apiVersion", json!(api_version));
        set(&mut fields, "kind", json!(kind));
        set(
            &mut fields,
            "relation",
            match relation {
                Relation::Owned => json!("owned"),
                Relation::OwnedByAny => json!("ownedByAny"),
                Relation::Label(label) => json!({ "label": label }),
                Relation::Index(index) => json!({ "index": index }),
                Relation::Map => json!("map"),
                Relation::Read => json!("read"),
            },
        );
        Self { fields }
    }

    /// The name that [`Mapper::map`](crate::Mapper::map) is called with; the default is the kind.
    /// Two watches of one kind need two names.
    pub fn name(self, name: &str) -> Self {
        self.with("name", json!(name))
    }

    /// Only objects that a label selector matches.
    pub fn select_labels(self, selector: &str) -> Self {
        self.with("labels", json!(selector))
    }

    /// Only objects that a field selector matches.
    pub fn select_fields(self, selector: &str) -> Self {
        self.with("fields", json!(selector))
    }

    /// Only `metadata` is watched and can be read: far less memory.
    pub fn metadata_only(self) -> Self {
        self.with("metadataOnly", json!(true))
    }

    /// Which changes trigger. Without it: every change, of the status too.
    pub fn predicate(self, predicate: Predicate) -> Self {
        self.with("predicate", predicate.into_json())
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        set(&mut self.fields, key, value);
        self
    }
}

// === impl Limits and Retry ===

impl Limits {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Linear memory in MiB, 1 to 512; default 64.
    pub fn memory_mib(self, mib: u32) -> Self {
        self.with("memoryMib", json!(mib))
    }

    /// From start to end of a run, 10 ms to 10 min; default 30 s.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with("deadlineMs", json!(milliseconds(deadline)))
    }

    /// Objects in work at once, 1 to 256; default 4.
    pub fn concurrency(self, objects: u32) -> Self {
        self.with("concurrency", json!(objects))
    }

    /// Log lines of one run; default 256.
    pub fn log_lines(self, lines: u32) -> Self {
        self.with("logLines", json!(lines))
    }

    /// Events of one run; default 16.
    pub fn events(self, events: u32) -> Self {
        self.with("events", json!(events))
    }

    /// Host calls of one run; default 100,000.
    pub fn host_calls(self, calls: u64) -> Self {
        self.with("hostCalls", json!(calls))
    }

    /// KiB staged in one run; default 8,192.
    pub fn staged_kib(self, kib: u32) -> Self {
        self.with("stagedKib", json!(kib))
    }

    /// Children of one run; default 1,000.
    pub fn children(self, children: u32) -> Self {
        self.with("children", json!(children))
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        set(&mut self.fields, key, value);
        self
    }
}

impl Retry {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The first delay, doubled with each failure; default 1 s.
    pub fn base(self, delay: Duration) -> Self {
        self.with("baseMs", json!(milliseconds(delay)))
    }

    /// The longest delay; default 5 min.
    pub fn cap(self, delay: Duration) -> Self {
        self.with("capMs", json!(milliseconds(delay)))
    }

    /// Failures until the object is `Stalled`; default 5.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with("maxAttempts", json!(attempts))
    }

    /// What happens then.
    pub fn on_exhausted(self, what: OnExhausted) -> Self {
        self.with(
            "onExhausted",
            json!(match what {
                OnExhausted::Slow => "slow",
                OnExhausted::Stop => "stop",
            }),
        )
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        set(&mut self.fields, key, value);
        self
    }
}

// === impl Verb ===

impl Verb {
    /// The word of the contract.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Apply => "apply",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

fn set(map: &mut Map<String, Value>, key: &str, value: Value) {
    map.insert(key.to_owned(), value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_what_the_host_reads() {
        let manifest = Manifest::new("a", "1", "x.dev/v1", "X")
            .select_labels("l")
            .when_gone()
            .predicate(Predicate::labels("a=b").negated().and(Predicate::generation_changed()))
            .owns("apps/v1", "Deployment")
            .watch_label("v1", "Secret", "x.dev/x")
            .watch_map("nodes", "v1", "Node")
            .index("cm", "x.dev/v1", "X", "/spec/cm")
            .writes("v1", "Pod/eviction", &[Verb::Create])
            .resync(Duration::from_secs(60))
            .retry(Retry::new().base(Duration::from_millis(10)).on_exhausted(OnExhausted::Stop))
            .limits(Limits::new().memory_mib(8))
            .status(StatusStrategy::Apply);
        assert_eq!(
            Value::Object(manifest.fields().clone()),
            json!({
                "name": "a", "version": "1", "sdk": concat!("reeve-sdk ", env!("CARGO_PKG_VERSION")),
                "primary": {
                    "apiVersion": "x.dev/v1", "kind": "X", "labels": "l", "whenGone": true,
                    "predicate": { "all": [{ "not": { "labels": "a=b" } }, "generationChanged"] },
                },
                "watches": [
                    { "apiVersion": "apps/v1", "kind": "Deployment", "relation": "owned" },
                    { "apiVersion": "v1", "kind": "Secret", "relation": { "label": "x.dev/x" } },
                    { "name": "nodes", "apiVersion": "v1", "kind": "Node", "relation": "map" },
                ],
                "indexes": [{ "name": "cm", "apiVersion": "x.dev/v1", "kind": "X", "pointer": "/spec/cm" }],
                "writes": [{ "apiVersion": "v1", "kind": "Pod", "verbs": ["create"], "subresources": ["eviction"] }],
                "resyncSeconds": 60,
                "retry": { "baseMs": 10, "onExhausted": "stop" },
                "limits": { "memoryMib": 8 },
                "status": "apply",
            })
        );
    }
}
