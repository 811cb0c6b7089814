//! Writes that are no children, status, conditions or events.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::{Category, Error};
use crate::object::ObjectName;

/// Any other write, staged with [`Context::write`](crate::Context::write) and committed after the
/// run. The manifest must declare kind and verb with [`writes`](crate::Manifest::writes).
///
/// ```
/// use reeve_sdk::{Write, json};
///
/// let scale = Write::merge_patch("apps/v1", "Deployment", "web", &json!({ "spec": { "replicas": 2 } }))?
///     .subresource("scale");
/// # Ok::<(), reeve_sdk::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "stage it with `Context::write` or `Context::ask`"]
pub struct Write {
    request: Map<String, Value>,
}

/// What happens to the dependents of an object that is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They go first.
    Foreground,
    /// They go afterwards; the default.
    Background,
    /// They stay.
    Orphan,
}

/// What the API server answered to a write that was staged with an id.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The object, as the server returned it.
    Ok(Value),
    /// It refused.
    Failure(Error),
}

// === impl Write ===

impl Write {
    /// Creates an object; with `metadata.generateName` the server completes the name.
    ///
    /// # Errors
    /// The body cannot be serialised, or has no `apiVersion` or `kind`.
    pub fn create(body: &impl Serialize) -> Result<Self, Error> {
        Self::whole("create", body)
    }

    /// Server-side apply of some fields of an object, with the plugin's own field manager.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn apply(body: &impl Serialize) -> Result<Self, Error> {
        Self::whole("apply", body)
    }

    /// A JSON merge patch (RFC 7386).
    ///
    /// # Errors
    /// The patch cannot be serialised.
    pub fn merge_patch(
        api_version: &str,
        kind: &str,
        name: &str,
        patch: &impl Serialize,
    ) -> Result<Self, Error> {
        Ok(Self::named("merge-patch", api_version, kind, name).with("body", serde_json::to_value(patch)?))
    }

    /// A JSON patch (RFC 6902): a list of operations.
    ///
    /// # Errors
    /// The patch cannot be serialised.
    pub fn json_patch(
        api_version: &str,
        kind: &str,
        name: &str,
        patch: &impl Serialize,
    ) -> Result<Self, Error> {
        Ok(Self::named("json-patch", api_version, kind, name).with("body", serde_json::to_value(patch)?))
    }

    /// Deletes an object.
    pub fn delete(api_version: &str, kind: &str, name: &str) -> Self {
        Self::named("delete", api_version, kind, name)
    }

    /// In another namespace than the primary's.
    pub fn namespace(self, namespace: &str) -> Self {
        self.with("namespace", json!(namespace))
    }

    /// To a subresource, for example `scale`, `eviction`, `token`.
    pub fn subresource(self, name: &str) -> Self {
        self.with("subresource", json!(name))
    }

    /// Only if the object is still of this version; otherwise the host refreshes it and runs
    /// again.
    pub fn if_resource_version(self, version: &str) -> Self {
        self.with("resourceVersion", json!(version))
    }

    /// Only if the object is still the one with this UID.
    pub fn if_uid(self, uid: &str) -> Self {
        self.with("uid", json!(uid))
    }

    /// An apply takes fields that other managers own.
    pub fn force(self) -> Self {
        self.with("force", json!(true))
    }

    /// The server checks and answers, and persists nothing.
    pub fn dry_run(self) -> Self {
        self.with("dryRun", json!(true))
    }

    /// What happens to the dependents of a deleted object.
    pub fn propagation(self, propagation: Propagation) -> Self {
        self.with(
            "propagation",
            json!(match propagation {
                Propagation::Foreground => "foreground",
                Propagation::Background => "background",
                Propagation::Orphan => "orphan",
            }),
        )
    }

    /// The request as the contract writes it.
    pub fn request(&self) -> &Map<String, Value> {
        &self.request
    }

    /// Which object it is about; the name is empty for `generateName`.
    pub fn object_name(&self) -> ObjectName {
        let text = |key: &str| self.request.get(key).and_then(Value::as_str).map(str::to_owned);
        ObjectName { namespace: text("namespace"), name: text("name").unwrap_or_default() }
    }

    fn whole(verb: &str, body: &impl Serialize) -> Result<Self, Error> {
        let body = serde_json::to_value(body)?;
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str);
        let (Some(api_version), Some(kind)) = (text("/apiVersion"), text("/kind")) else {
            return Err(Error::permanent(
                crate::code::INVALID_ARGUMENT,
                format!("{verb} needs a body with `apiVersion` and `kind`"),
            ));
        };
        let name = text("/metadata/name").or(text("/metadata/generateName")).unwrap_or("");
        let mut write = Self::named(verb, api_version, kind, name);
        if let Some(namespace) = text("/metadata/namespace") {
            write = write.namespace(namespace);
        }
        Ok(write.with("body", body))
    }

    fn named(verb: &str, api_version: &str, kind: &str, name: &str) -> Self {
        Self { request: Map::new() }
            .with("verb", json!(verb))
            .with("apiVersion", json!(api_version))
            .with("kind", json!(kind))
            .with("name", json!(name))
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.request.insert(key.to_owned(), value);
        self
    }
}

// === impl Answer ===

impl Answer {
    /// Reads `{"ok": …}` or `{"failure": {…}}`.
    pub(crate) fn read(json: &str) -> Result<Self, Error> {
        let mut answer: Map<String, Value> = serde_json::from_str(json)?;
        if let Some(object) = answer.remove("ok") {
            return Ok(Self::Ok(object));
        }
        let failure = answer.remove("failure").unwrap_or_default();
        let text = |key: &str| failure.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
        let transient = failure.get("transient").and_then(Value::as_bool).unwrap_or(false);
        let category = Category::from_word(&text("category"));
        let error = Error::permanent(text("code"), text("message")).category(category);
        Ok(Self::Failure(Error { transient, ..error }))
    }

    /// The object, or the refusal as the run's own failure.
    ///
    /// # Errors
    /// What the API server refused it with.
    pub fn into_result(self) -> Result<Value, Error> {
        match self {
            Self::Ok(object) => Ok(object),
            Self::Failure(error) => Err(error),
        }
    }
}
