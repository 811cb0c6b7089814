//! Everything else that a plugin staged (feature C3).

use std::sync::atomic::Ordering;

use reeve_core::failure::Failure;
use reeve_core::gvk::Gvk;
use reeve_core::ids::Uid;
use reeve_core::object::SharedObject;
use reeve_core::plan::{Propagation, Write, WriteAction};
use serde_json::{Map, Value, json};

use super::contains::Projection;
use super::diff;
use super::request::{Accepted, Action, Pass, Right, Send, WriteError};
use super::{CommitError, Committer};

impl Committer {
    /// Carries the writes out in their order. The answer, or refusal, of a write with an id is
    /// kept for the run that follows; the refusal of one without an id ends the commit.
    pub(super) async fn carry_out(
        &self,
        pass: &Pass<'_>,
        writes: &[Write],
        primary: &Gvk,
        object: Option<&SharedObject>,
    ) -> Result<(), CommitError> {
        for write in writes {
            if let Some(object) = object.filter(|_| may_create(&write.action)) {
                // The primary may have gone since the commit began.
                self.same_life(primary, object)?;
            }
            // Every write to the primary carries its UID.
            let own = write.gvk.group_kind() == primary.group_kind() && write.name == pass.origin.primary;
            let uid = write.uid.as_ref().or_else(|| object.filter(|_| own).map(|object| &object.meta().uid));
            if write.id.is_none() && self.is_done(pass, write, uid) {
                pass.skipped.fetch_add(1, Ordering::Relaxed);
                self.door()
                    .metrics
                    .skipped
                    .with_label_values(&[pass.origin.plugin.as_str(), &*write.gvk.kind])
                    .inc();
                continue;
            }
            let result = self.send(pass, write, uid).await;
            let conditional = uid.is_some() || write.resource_version.is_some();
            match (result, &write.id) {
                (Ok(accepted), Some(id)) => {
                    let answer: Value = serde_json::from_slice(&accepted.body).unwrap_or_default();
                    pass.answers.lock().insert(id.clone(), json!({"ok": answer}));
                }
                (Ok(accepted), None) => self.note(pass, write, accepted.object.as_ref()),
                // Lost, denied and outage end the commit whether or not somebody waits for an answer.
                (Err(WriteError::Refused(refusal, failure)), Some(_)) if refusal.is_outage() => {
                    return Err(CommitError::Outage(failure));
                }
                (Err(WriteError::Refused(_, failure) | WriteError::Unusable(failure)), Some(id)) => {
                    pass.answers.lock().insert(id.clone(), json!({"failure": as_answer(&failure)}));
                }
                (Err(WriteError::Refused(refusal, _)), None)
                    if refusal.is_not_found()
                        && !refusal.is_unserved()
                        && matches!(write.action, WriteAction::Delete { .. }) => {}
                (Err(WriteError::Refused(refusal, _)), None)
                    if conditional
                        && (refusal.is_conflict() || refusal.is_failed_test() || refusal.is_other_life()) =>
                {
                    let kind = self.door().resolve(&write.gvk).await?;
                    self.door().refresh(pass, &kind, &write.name).await?;
                    return Err(CommitError::Conflict);
                }
                (Err(error), _) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn send(&self, pass: &Pass<'_>, write: &Write, uid: Option<&Uid>) -> Result<Accepted, WriteError> {
        let kind = self.door().resolve(&write.gvk).await?;
        let version = write.resource_version.map(|version| version.to_string());
        let body = match &write.action {
            WriteAction::Create { body, generate_name } => created(body, write, *generate_name),
            WriteAction::Apply { body, .. } => {
                let mut body = typed(body, &write.gvk);
                set_meta(&mut body, "name", Some(&*write.name.name));
                set_meta(&mut body, "namespace", write.name.namespace.as_deref());
                conditional(body, uid, version.as_deref())
            }
            WriteAction::MergePatch { body } => conditional(body.clone(), uid, version.as_deref()),
            WriteAction::JsonPatch { body } => tested(body, uid, version.as_deref()),
            WriteAction::Delete { propagation } => {
                let mut options = json!({"propagationPolicy": match propagation {
                    Propagation::Foreground => "Foreground",
                    Propagation::Background => "Background",
                    Propagation::Orphan => "Orphan",
                }});
                let mut preconditions = Map::new();
                if let Some(uid) = uid {
                    preconditions.insert("uid".to_owned(), json!(uid.as_str()));
                }
                if let Some(version) = &version {
                    preconditions.insert("resourceVersion".to_owned(), json!(version));
                }
                if let (false, Value::Object(options)) = (preconditions.is_empty(), &mut options) {
                    options.insert("preconditions".to_owned(), Value::Object(preconditions));
                }
                options
            }
        };
        let action = match &write.action {
            WriteAction::Create { generate_name, .. } => {
                Action::Create { body: &body, generate: *generate_name }
            }
            WriteAction::Apply { force, .. } => Action::Apply { body: &body, force: *force },
            WriteAction::MergePatch { .. } => Action::Merge(&body),
            WriteAction::JsonPatch { .. } => Action::Json(&body),
            WriteAction::Delete { .. } => Action::Delete { options: &body, uid },
        };
        let subresource = write.subresource.as_deref();
        let send = Send {
            right: Right::Write,
            kind: &kind,
            name: &write.name,
            subresource,
            action,
            dry_run: write.dry_run,
        };
        self.door().write(pass, &send).await
    }

    /// Whether the cache shows that a write would change nothing.
    fn is_done(&self, pass: &Pass<'_>, write: &Write, uid: Option<&Uid>) -> bool {
        let cache = self.door().cluster.cache();
        if write.subresource.is_some() || write.dry_run || !cache.covers(&write.gvk, &write.name) {
            return false;
        }
        let Some(live) = cache.get(&write.gvk, &write.name) else {
            return matches!(write.action, WriteAction::Delete { .. });
        };
        let stale = write.resource_version.is_some_and(|version| version != live.meta().resource_version);
        if stale || uid.is_some_and(|uid| *uid != live.meta().uid) {
            // The server has to say so.
            return false;
        }
        match &write.action {
            WriteAction::MergePatch { body } => {
                let Ok(before) = serde_json::from_str::<Value>(live.json()) else { return false };
                let mut after = before.clone();
                diff::merge(&mut after, body);
                before == after
            }
            WriteAction::Apply { body, .. } => {
                let Some(last) = self.applied().get(&pass.origin.plugin, &live.meta().uid, &digest(body))
                else {
                    return false;
                };
                last.version == live.meta().resource_version
                    || serde_json::from_str::<Value>(live.json())
                        .is_ok_and(|value| Projection::of(&value, body, &write.gvk).holds(body, &write.gvk))
            }
            _ => false,
        }
    }

    /// Remembers an apply, so that the next run can leave it out.
    fn note(&self, pass: &Pass<'_>, write: &Write, object: Option<&SharedObject>) {
        if let (WriteAction::Apply { body, .. }, Some(object), None, false) =
            (&write.action, object, &write.subresource, write.dry_run)
        {
            let meta = object.meta();
            self.applied().put(&pass.origin.plugin, &meta.uid, &digest(body), meta.resource_version, None);
        }
    }
}

/// Whether a write can make an object that was not there.
fn may_create(action: &WriteAction) -> bool {
    matches!(action, WriteAction::Create { .. } | WriteAction::Apply { .. })
}

fn digest(body: &Value) -> String {
    reeve_core::ids::Digest::of(body.to_string().as_bytes()).hex()
}

/// A failure as `answer(id)` shows it, in the words of the contract.
fn as_answer(failure: &Failure) -> Value {
    json!({
        "code": failure.code, "category": failure.category, "severity": failure.severity,
        "transient": failure.transient, "message": failure.message,
        "retryAfterMs": failure.retry_after.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
    })
}

/// With `apiVersion` and `kind`, where they are missing.
fn typed(body: &Value, gvk: &Gvk) -> Value {
    let mut body = body.clone();
    if let Value::Object(map) = &mut body {
        map.entry("apiVersion".to_owned()).or_insert_with(|| json!(gvk.api_version()));
        map.entry("kind".to_owned()).or_insert_with(|| json!(&*gvk.kind));
    }
    body
}

fn created(body: &Value, write: &Write, generate: bool) -> Value {
    // The object of a subresource (an Eviction, a TokenRequest) is of another kind.
    if write.subresource.is_some() {
        return body.clone();
    }
    let mut body = typed(body, &write.gvk);
    if generate {
        if let Some(Value::Object(meta)) = body.get_mut("metadata") {
            meta.remove("name");
        }
        set_meta(&mut body, "generateName", Some(&*write.name.name));
    } else if !write.name.name.is_empty() {
        set_meta(&mut body, "name", Some(&*write.name.name));
    }
    set_meta(&mut body, "namespace", write.name.namespace.as_deref());
    body
}

fn set_meta(body: &mut Value, key: &str, value: Option<&str>) {
    let (Value::Object(map), Some(value)) = (body, value) else { return };
    let meta = map.entry("metadata".to_owned()).or_insert_with(|| json!({}));
    if let Value::Object(meta) = meta {
        meta.insert(key.to_owned(), json!(value));
    }
}

/// A body that the server refuses unless the object is of this life and version.
fn conditional(mut body: Value, uid: Option<&Uid>, version: Option<&str>) -> Value {
    set_meta(&mut body, "uid", uid.map(Uid::as_str));
    set_meta(&mut body, "resourceVersion", version);
    body
}

/// The same for a JSON patch.
fn tested(body: &Value, uid: Option<&Uid>, version: Option<&str>) -> Value {
    let test = |path: &str, value: &str| json!({"op": "test", "path": path, "value": value});
    let uid = uid.map(|uid| test("/metadata/uid", uid.as_str()));
    let version = version.map(|version| test("/metadata/resourceVersion", version));
    let operations = body.as_array().cloned().unwrap_or_default();
    uid.into_iter().chain(version).chain(operations).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preconditions_go_where_each_kind_of_patch_can_carry_them() {
        let uid = Uid::new("u");
        assert_eq!(
            conditional(json!({"spec": 1}), Some(&uid), Some("7")),
            json!({"spec": 1, "metadata": {"uid": "u", "resourceVersion": "7"}})
        );
        assert_eq!(conditional(json!({"spec": 1}), None, None), json!({"spec": 1}));
        assert_eq!(
            tested(&json!([{"op": "remove", "path": "/x"}]), Some(&uid), Some("7")),
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
                {"op": "remove", "path": "/x"},
            ])
        );
    }
}
