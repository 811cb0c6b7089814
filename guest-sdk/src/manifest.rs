//! What a plugin says of itself.

mod limits;

use std::time::Duration;

pub use limits::{Limits, OnExhausted, Retry, StatusStrategy};

use serde_json::{Map, Value, json};

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
mod tests;
