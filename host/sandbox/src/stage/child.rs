//! Desired children.

use reeve_core::failure::{Failure, code};
use reeve_core::grant::{Grant, Verb, WriteRequest};
use reeve_core::ids::ObjectName;
use reeve_core::plan::Child;
use serde_json::{Map, Value};

use super::{Staged, Staging, check_kind, check_name, invalid};
use crate::abi::denied;
use crate::limits::Ended;

impl Staging {
    pub(crate) fn child(
        &mut self,
        object: &str,
        options: &[(String, String)],
        primary: &ObjectName,
        grant: &Grant,
    ) -> Staged {
        let body = self.document("the child", object)?;
        let child = match body.and_then(|body| parse(body, options, primary, grant)) {
            Ok(child) => child,
            Err(failure) => {
                self.child_refused = true;
                return Ok(Err(failure));
            }
        };
        let at =
            *self.children.entry((child.gvk.clone(), child.name.clone())).or_insert(self.plan.children.len());
        if let Some(staged) = self.plan.children.get_mut(at) {
            *staged = child;
        } else if at < self.limits.children as usize {
            self.plan.children.push(child);
        } else {
            let limit = self.limits.children.into();
            return Err(Ended::Limit {
                what: "children",
                limit,
                place: " (`limits.children` in the manifest)",
            });
        }
        Ok(Ok(()))
    }
}

fn text<'a>(value: Option<&'a Value>, what: &str) -> Result<&'a str, Failure> {
    match value {
        Some(Value::String(text)) => Ok(text),
        _ => Err(invalid(format!(
            "the child has no `{what}`: every child needs apiVersion, kind and metadata.name"
        ))),
    }
}

fn parse(
    body: Map<String, Value>,
    options: &[(String, String)],
    primary: &ObjectName,
    grant: &Grant,
) -> Result<Child, Failure> {
    let gvk = check_kind(text(body.get("apiVersion"), "apiVersion")?, text(body.get("kind"), "kind")?)?;
    let metadata = body.get("metadata").and_then(Value::as_object);
    let name = text(metadata.and_then(|metadata| metadata.get("name")), "metadata.name")?;
    check_name("metadata.name", name)?;
    let namespace = match metadata.and_then(|metadata| metadata.get("namespace")) {
        None | Some(Value::Null) => primary.namespace.clone(),
        Some(Value::String(namespace)) => {
            check_name("metadata.namespace", namespace)?;
            Some(namespace.as_str().into())
        }
        Some(_) => return Err(invalid(format!("metadata.namespace of child {gvk} {name} is no text"))),
    };
    if primary.namespace.is_some() && namespace != primary.namespace {
        return Err(Failure::permanent(
            code::CROSS_NAMESPACE_OWNER,
            "validation",
            format!(
                "child {gvk} {name} is in namespace {}, its owner in {}: Kubernetes collects such children as \
                 garbage; leave metadata.namespace out",
                namespace.as_deref().unwrap_or_default(),
                primary.namespace_or_empty()
            ),
        ));
    }
    let mut adopt = false;
    for (key, value) in options {
        adopt = match (key.as_str(), value.as_str()) {
            ("adopt", "true") => true,
            ("adopt", "false") => false,
            ("adopt", _) => {
                return Err(invalid(format!("option `adopt` is {value:?}: give `true` or `false`")));
            }
            _ => {
                return Err(invalid(format!(
                    "a child has no option `{key}`: the one there is is `adopt`; a later one needs a newer host"
                )));
            }
        };
    }
    let name = ObjectName { namespace, name: name.into() };
    grant
        .check_child(&WriteRequest { verb: Verb::Apply, gvk: &gvk, subresource: None, name: &name })
        .map_err(|refusal| denied(&refusal))?;
    Ok(Child { gvk, name, body, adopt })
}
