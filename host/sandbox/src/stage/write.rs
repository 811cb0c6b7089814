//! Writes that are neither children nor status.

use reeve_core::failure::Failure;
use reeve_core::grant::{Grant, WriteRequest};
use reeve_core::gvk::Gvk;
use reeve_core::ids::{ObjectName, ResourceVersion, Uid};
use reeve_core::plan::{Propagation, Write, WriteAction};
use serde::Deserialize;
use serde_json::Value;

use super::{MAX_WRITES, Staged, Staging, check_kind, check_name, invalid};
use crate::abi::denied;
use crate::limits::Ended;

/// Bytes of an answer's id.
const MAX_ID: usize = 128;

/// The document of the contract.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    verb: Verb,
    api_version: String,
    kind: String,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
    body: Option<Value>,
    resource_version: Option<String>,
    uid: Option<String>,
    force: Option<bool>,
    #[serde(default)]
    dry_run: bool,
    propagation: Option<How>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Verb {
    Create,
    Apply,
    MergePatch,
    JsonPatch,
    Delete,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum How {
    Foreground,
    Background,
    Orphan,
}

impl Staging {
    pub(crate) fn write(
        &mut self,
        id: Option<String>,
        request: &str,
        primary: &ObjectName,
        grant: &Grant,
    ) -> Staged {
        let document = self.document("the write", request)?;
        let write = match document.and_then(|document| parse(id, document, primary, grant)) {
            Ok(write) => write,
            Err(failure) => return Ok(Err(failure)),
        };
        if let Some(id) = &write.id
            && self.plan.writes.iter().any(|known| known.id.as_ref() == Some(id))
        {
            return Ok(Err(invalid(format!("two writes of this run have the id {id:?}: give each its own"))));
        }
        if self.plan.writes.len() >= MAX_WRITES {
            return Err(Ended::Limit { what: "writes", limit: MAX_WRITES as u64, place: "" });
        }
        self.plan.writes.push(write);
        Ok(Ok(()))
    }
}

fn parse(
    id: Option<String>,
    document: Document,
    primary: &ObjectName,
    grant: &Grant,
) -> Result<Write, Failure> {
    if id.as_ref().is_some_and(|id| id.is_empty() || id.len() > MAX_ID) {
        return Err(invalid(format!("the id of a write has 1 to {MAX_ID} bytes")));
    }
    let gvk = check_kind(&document.api_version, &document.kind)?;
    if let Some(subresource) = &document.subresource {
        check_name("subresource", subresource)?;
    }
    let (name, generate_name) = name(&document, primary)?;
    for (given, field, verb) in [
        (document.force.is_some(), "force", Verb::Apply),
        (document.propagation.is_some(), "propagation", Verb::Delete),
    ] {
        if given && document.verb != verb {
            return Err(invalid(format!(
                "`{field}` does not go with verb {:?}: leave it out",
                document.verb
            )));
        }
    }
    if document.verb == Verb::Create && (document.resource_version.is_some() || document.uid.is_some()) {
        return Err(invalid("`resourceVersion` and `uid` do not go with verb create: nothing is there yet"));
    }
    let resource_version = document
        .resource_version
        .as_deref()
        .map(|text| {
            ResourceVersion::parse(text)
                .ok_or_else(|| invalid(format!("resourceVersion {text:?} is none that an API server gave")))
        })
        .transpose()?;
    let write = Write {
        id,
        action: action(&document, &gvk, generate_name)?,
        gvk,
        name,
        subresource: document.subresource,
        resource_version,
        uid: document.uid.as_deref().map(Uid::new),
        dry_run: document.dry_run,
    };
    grant
        .check_write(&WriteRequest {
            verb: write.action.verb(),
            gvk: &write.gvk,
            subresource: write.subresource.as_deref(),
            name: &write.name,
        })
        .map_err(|refusal| denied(&refusal))?;
    Ok(write)
}

/// The name from the document or from the body, and whether it is a prefix only. The namespace is
/// the primary's where neither gives one; an empty one stands for "none".
fn name(document: &Document, primary: &ObjectName) -> Result<(ObjectName, bool), Failure> {
    let in_body = |field: &str| {
        let metadata = document.body.as_ref()?.get("metadata")?;
        metadata.get(field)?.as_str()
    };
    let whole_object = document.subresource.is_none() && matches!(document.verb, Verb::Create | Verb::Apply);
    let from_body = |field| if whole_object { in_body(field) } else { None };
    let agreed = |what: &str, given: Option<&str>, in_body: Option<&str>| match (given, in_body) {
        (Some(given), Some(in_body)) if given != in_body => Err(invalid(format!(
            "the write names {what} {given:?} and its body {in_body:?}: make them equal"
        ))),
        (given, in_body) => Ok(given.or(in_body).map(str::to_owned)),
    };
    let namespace = agreed("namespace", document.namespace.as_deref(), from_body("namespace"))?;
    let namespace = match namespace.as_deref() {
        Some("") => None,
        Some(namespace) => {
            check_name("namespace", namespace)?;
            Some(namespace.into())
        }
        None => primary.namespace.clone(),
    };
    let exact = agreed("name", document.name.as_deref(), from_body("name"))?;
    let prefix = (document.verb == Verb::Create).then(|| from_body("generateName")).flatten();
    let (name, generate_name) = match (exact, prefix) {
        (Some(name), _) => (name, false),
        (None, Some(prefix)) => (prefix.to_owned(), true),
        (None, None) => return Err(invalid("the write names no object: give `name`")),
    };
    check_name("name", &name)?;
    Ok((ObjectName { namespace, name: name.into() }, generate_name))
}

fn action(document: &Document, gvk: &Gvk, generate_name: bool) -> Result<WriteAction, Failure> {
    let body = match (&document.body, document.verb) {
        (Some(_), Verb::Delete) => return Err(invalid("a delete has no body: leave it out")),
        (None, Verb::Delete) => Value::Null,
        (Some(body @ Value::Array(_)), Verb::JsonPatch) => body.clone(),
        (_, Verb::JsonPatch) => return Err(invalid("a json-patch needs an array as `body` (RFC 6902)")),
        (Some(Value::Object(body)), Verb::Create | Verb::Apply) if document.subresource.is_none() => {
            let mut body = body.clone();
            for (field, value) in [("apiVersion", gvk.api_version()), ("kind", gvk.kind.to_string())] {
                let known = body.entry(field).or_insert_with(|| Value::from(value.clone()));
                if *known != *value {
                    return Err(invalid(format!(
                        "the body has {field} {known}, the write {value:?}: make them equal"
                    )));
                }
            }
            Value::Object(body)
        }
        (Some(body @ Value::Object(_)), _) => body.clone(),
        (_, verb) => return Err(invalid(format!("verb {verb:?} needs a JSON object as `body`"))),
    };
    Ok(match document.verb {
        Verb::Create => WriteAction::Create { body, generate_name },
        Verb::Apply => WriteAction::Apply { body, force: document.force.unwrap_or(false) },
        Verb::MergePatch => WriteAction::MergePatch { body },
        Verb::JsonPatch => WriteAction::JsonPatch { body },
        Verb::Delete => WriteAction::Delete {
            propagation: match document.propagation {
                Some(How::Foreground) => Propagation::Foreground,
                Some(How::Orphan) => Propagation::Orphan,
                Some(How::Background) | None => Propagation::Background,
            },
        },
    })
}
