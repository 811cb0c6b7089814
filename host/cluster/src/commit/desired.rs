//! A desired child as it is sent: the plugin's fields, and what the host adds to them.

use reeve_core::failure::{Failure, code};
use reeve_core::gvk::{Gvk, Kind, Scope};
use reeve_core::ids::{Digest, ObjectName, PluginName};
use reeve_core::object::SharedObject;
use reeve_core::plan::Child;
use serde_json::{Map, Value, json};

use super::{APPLIED, LABEL};

/// The hex digits of a digest that are written and compared: 128 bits.
const DIGEST_DIGITS: usize = 32;

/// A child ready to be applied.
pub(crate) struct Desired {
    /// With owner, label and annotation.
    pub(crate) body: Value,
    /// The digest in its annotation: of everything else that is sent.
    pub(crate) digest: String,
    pub(crate) name: ObjectName,
    pub(crate) adopt: bool,
}

impl Desired {
    /// Builds it, or says why no such child can be.
    pub(crate) fn build(
        child: &Child,
        kind: &Kind,
        plugin: &PluginName,
        owner_kind: &Gvk,
        owner: &SharedObject,
    ) -> Result<Self, Failure> {
        let owner = owner.meta();
        let name = place(child, kind, owner_kind, &owner.name)?;
        let mut body = child.body.clone();
        if kind.has_subresource("status") {
            body.remove("status");
        }
        secret_texts(&mut body, &child.gvk);
        let mut meta = match body.remove("metadata") {
            Some(Value::Object(meta)) => meta,
            _ => Map::new(),
        };
        // What only the server sets; a child made from a live object may carry it.
        for key in [
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "managedFields",
            "selfLink",
            "generateName",
        ] {
            meta.remove(key);
        }
        meta.insert("name".to_owned(), json!(&*name.name));
        match &name.namespace {
            Some(namespace) => meta.insert("namespace".to_owned(), json!(&**namespace)),
            None => meta.remove("namespace"),
        };
        let reference = json!({
            "apiVersion": owner_kind.api_version(), "kind": &*owner_kind.kind, "name": &*owner.name.name,
            "uid": owner.uid.as_str(), "controller": true, "blockOwnerDeletion": true,
        });
        meta.insert("ownerReferences".to_owned(), owners(meta.get("ownerReferences"), reference, child)?);
        entry(&mut meta, "labels").insert(LABEL.to_owned(), json!(plugin.as_str()));
        let annotations = entry(&mut meta, "annotations");
        annotations.remove(APPLIED);
        if annotations.is_empty() {
            meta.remove("annotations");
        }
        body.insert("apiVersion".to_owned(), json!(child.gvk.api_version()));
        body.insert("kind".to_owned(), json!(&*child.gvk.kind));
        body.insert("metadata".to_owned(), Value::Object(meta));
        let mut body = Value::Object(body);
        // serde_json's maps are sorted, so the text is the same for the same fields.
        let mut digest = Digest::of(body.to_string().as_bytes()).hex();
        digest.truncate(DIGEST_DIGITS);
        if let Some(meta) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            entry(meta, "annotations").insert(APPLIED.to_owned(), json!(digest));
        }
        Ok(Self { body, digest, name, adopt: child.adopt })
    }

    /// The body for an object that is not there: refused with 409 if it is. A version that no
    /// object has (etcd's first write is 2) is ignored by an apply that creates, and stale for
    /// one that meets an object.
    pub(crate) fn if_absent(&self) -> Value {
        self.with("resourceVersion", "1")
    }

    /// The body for an object that is known: refused by the server if it is of another life.
    pub(crate) fn for_life(&self, uid: &str) -> Value {
        self.with("uid", uid)
    }

    fn with(&self, key: &str, value: &str) -> Value {
        let mut body = self.body.clone();
        if let Some(meta) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.insert(key.to_owned(), json!(value));
        }
        body
    }
}

/// Where the child lives. An owner must be in its dependent's namespace or cluster-scoped, else
/// the garbage collector takes it for absent and deletes the dependent.
fn place(child: &Child, kind: &Kind, owner_kind: &Gvk, owner: &ObjectName) -> Result<ObjectName, Failure> {
    let name = &child.name;
    let cross = |text: String| Err(Failure::permanent(code::CROSS_NAMESPACE_OWNER, "validation", text));
    match (kind.scope, &owner.namespace) {
        (Scope::Cluster, None) => Ok(ObjectName { namespace: None, name: name.name.clone() }),
        (Scope::Cluster, Some(_)) => cross(format!(
            "{} {} is cluster-scoped and cannot be a child of {} {owner}, which lives in a namespace; stage it with `write` and delete it in `cleanup`",
            child.gvk.group_kind(),
            name.name,
            owner_kind.group_kind(),
        )),
        (Scope::Namespaced, Some(home))
            if name.namespace.as_ref().is_some_and(|namespace| namespace != home) =>
        {
            cross(format!(
                "{} {name} cannot be a child of {} {owner}: an owner and its child live in one namespace",
                child.gvk.group_kind(),
                owner_kind.group_kind(),
            ))
        }
        (Scope::Namespaced, Some(home)) => {
            Ok(ObjectName { namespace: Some(home.clone()), name: name.name.clone() })
        }
        (Scope::Namespaced, None) if name.namespace.is_none() => Err(Failure::permanent(
            code::INVALID_ARGUMENT,
            "validation",
            format!(
                "{} {name} needs `metadata.namespace`, as its owner {owner} is cluster-scoped",
                child.gvk.group_kind()
            ),
        )),
        (Scope::Namespaced, None) => Ok(name.clone()),
    }
}

/// The plugin's own owner references, none of which may control, and the primary's.
fn owners(staged: Option<&Value>, primary: Value, child: &Child) -> Result<Value, Failure> {
    let mut list: Vec<Value> = staged.and_then(Value::as_array).cloned().unwrap_or_default();
    list.retain(|owner| owner.get("uid") != primary.get("uid"));
    if list.iter().any(|owner| owner.get("controller") == Some(&Value::Bool(true))) {
        return Err(Failure::permanent(
            code::CHILD_NOT_OWNED,
            "validation",
            format!(
                "{} {} names another controller: a child's controller is its primary, leave `controller` out",
                child.gvk.group_kind(),
                child.name
            ),
        ));
    }
    list.push(primary);
    Ok(Value::Array(list))
}

/// `stringData` of a Secret becomes `data`, as the server would do: else dropped keys would stay,
/// and the live object could not be compared.
fn secret_texts(body: &mut Map<String, Value>, gvk: &Gvk) {
    if &*gvk.kind != "Secret" || !gvk.group.is_empty() {
        return;
    }
    let Some(Value::Object(texts)) = body.remove("stringData") else { return };
    let data = entry(body, "data");
    for (key, text) in texts {
        if let Value::String(text) = text {
            let bytes = k8s_openapi::ByteString(text.into_bytes());
            data.insert(key, serde_json::to_value(bytes).unwrap_or_default());
        }
    }
}

/// The map under a key, made if it is missing or of another shape.
fn entry<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let value = map.entry(key.to_owned()).or_insert_with(|| Value::Object(Map::new()));
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it was just made an object"),
    }
}
