//! Finalizers: added and removed by JSON patches that lose nobody else's (feature C6).

use reeve_core::ids::ObjectName;
use reeve_core::object::SharedObject;
use serde_json::{Value, json};

use super::request::{Action, Pass, Right, Send, WriteError};
use super::{CommitError, Committer, TRIES};

/// The operations that add a finalizer; `None` when it is there.
///
/// The test of the whole list makes the write fail rather than overwrite a finalizer that another
/// added meanwhile. The server takes a missing list for the `null` that is tested then.
fn adding(object: &SharedObject, finalizer: &str) -> Option<Value> {
    let meta = object.meta();
    if meta.has_finalizer(finalizer) {
        return None;
    }
    let uid = json!({"op": "test", "path": "/metadata/uid", "value": meta.uid.as_str()});
    Some(if meta.finalizers.is_empty() {
        json!([
            uid,
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": [finalizer]},
        ])
    } else {
        let list: Vec<&str> = meta.finalizers.iter().map(|known| &**known).collect();
        json!([
            uid,
            {"op": "test", "path": "/metadata/finalizers", "value": list},
            {"op": "add", "path": "/metadata/finalizers/-", "value": finalizer},
        ])
    })
}

/// The operations that remove a finalizer; `None` when it is not there.
fn removing(object: &SharedObject, finalizer: &str) -> Option<Value> {
    let meta = object.meta();
    let index = meta.finalizers.iter().position(|known| &**known == finalizer)?;
    let path = format!("/metadata/finalizers/{index}");
    Some(json!([
        {"op": "test", "path": "/metadata/uid", "value": meta.uid.as_str()},
        {"op": "test", "path": path, "value": finalizer},
        {"op": "remove", "path": path},
    ]))
}

impl Committer {
    /// One patch, tried again on the fresh object when its tests did not hold. `Ok(None)`: the
    /// object is gone.
    pub(super) async fn patch_finalizers(
        &self,
        pass: &Pass<'_>,
        object: &SharedObject,
        kind: &reeve_core::gvk::Kind,
        add: bool,
    ) -> Result<Option<SharedObject>, CommitError> {
        let finalizer = pass.origin.plugin.field_manager();
        let name: &ObjectName = &object.meta().name;
        let mut current = SharedObject::clone(object);
        for _ in 0..TRIES {
            let operations = if add { adding(&current, &finalizer) } else { removing(&current, &finalizer) };
            let Some(operations) = operations else { return Ok(Some(current)) };
            let send = Send {
                right: Right::Finalizer,
                kind,
                name,
                subresource: None,
                action: Action::Json(&operations),
                dry_run: false,
            };
            match self.door().write(pass, &send).await {
                Ok(accepted) => return Ok(Some(accepted.object.unwrap_or(current))),
                Err(WriteError::Refused(refusal, _)) if refusal.is_not_found() => return Ok(None),
                Err(WriteError::Refused(refusal, _)) if refusal.is_conflict() || refusal.is_failed_test() => {
                    match self.fresher(pass, kind, &current).await? {
                        Some(fresh) if fresh.meta().uid == current.meta().uid => current = fresh,
                        _ => return Ok(None),
                    }
                    if add && current.meta().deleting {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(CommitError::Conflict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::testing::object;

    fn with(finalizers: &Value) -> SharedObject {
        object(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1", "finalizers": finalizers}}))
    }

    #[test]
    fn adding_tests_the_list_that_was_seen() {
        let uid = json!({"op": "test", "path": "/metadata/uid", "value": "u"});
        let null = json!([uid, {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": ["f"]}]);
        assert_eq!(adding(&with(&json!(null)), "f"), Some(null.clone()));
        assert_eq!(adding(&with(&json!([])), "f"), Some(null));
        let second = json!([uid, {"op": "test", "path": "/metadata/finalizers", "value": ["x"]},
            {"op": "add", "path": "/metadata/finalizers/-", "value": "f"}]);
        assert_eq!(adding(&with(&json!(["x"])), "f"), Some(second));
        assert_eq!(adding(&with(&json!(["x", "f"])), "f"), None);
    }

    #[test]
    fn removing_tests_what_stands_at_the_index() {
        let patch = json!([
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "test", "path": "/metadata/finalizers/1", "value": "f"},
            {"op": "remove", "path": "/metadata/finalizers/1"}]);
        assert_eq!(removing(&with(&json!(["x", "f"])), "f"), Some(patch));
        assert_eq!(removing(&with(&json!(["x"])), "f"), None);
    }
}
