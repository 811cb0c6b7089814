//! The status of the primary: only the difference, only through the subresource (feature C4).
//!
//! A merge patch replaces a list as a whole, and `conditions` is a list that several writers
//! share. So a patch names the resourceVersion that the difference was computed from: it cannot
//! undo what another wrote in between, and, as the status subresource of custom resources ignores
//! a UID, it is also what keeps it from reaching another life of the object. When the server
//! answers 409, the difference is computed anew on the fresh object, [`TRIES`] times at most.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use reeve_core::gvk::{Gvk, Kind};
use reeve_core::ids::{Digest, PluginName};
use reeve_core::manifest::StatusStrategy;
use reeve_core::object::SharedObject;
use reeve_core::plan::Condition;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::conditions::{self, Changes, Verdict};
use super::diff;
use super::request::{Action, Pass, Right, Send, WriteError};
use super::{CommitError, Committer, TRIES};

/// How long it is believed that a kind does not keep a field of its status: then its CRD may have
/// changed, and one write finds out.
const LACKS_FOR: Duration = Duration::from_mins(10);

/// What is to become of a status.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) strategy: StatusStrategy,
    /// The plugin's merge patch.
    pub(crate) patch: Option<&'a Map<String, Value>>,
    /// The plugin's conditions.
    pub(crate) conditions: &'a [Condition],
    /// What the host says.
    pub(crate) verdict: Verdict<'a>,
    /// The generation that the run read.
    pub(crate) generation: u64,
}

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StatusDone {
    /// It is as wanted, conditions and all, or what has no place in it was told before.
    Kept,
    /// The kind keeps no conditions: they must be told in another way.
    WithoutConditions,
}

/// Top-level fields of a status that the server dropped from an answer, by kind.
#[derive(Default)]
pub(crate) struct Lacking(Mutex<HashMap<Gvk, (Instant, BTreeSet<String>)>>);

impl Lacking {
    fn of(&self, gvk: &Gvk) -> BTreeSet<String> {
        let mut all = self.0.lock();
        match all.get(gvk) {
            Some((since, fields)) if since.elapsed() < LACKS_FOR => fields.clone(),
            Some(_) => {
                all.remove(gvk);
                BTreeSet::new()
            }
            None => BTreeSet::new(),
        }
    }

    /// Remembers fields; those that are new.
    fn learn(&self, gvk: &Gvk, fields: BTreeSet<String>) -> Vec<String> {
        let mut all = self.0.lock();
        let (_, known) = all.entry(gvk.clone()).or_insert_with(|| (Instant::now(), BTreeSet::new()));
        fields.into_iter().filter(|field| known.insert(field.clone())).collect()
    }
}

/// A status as it is to be, computed from a live one.
struct Target {
    status: Map<String, Value>,
    /// What changes; empty when nothing does.
    difference: Map<String, Value>,
}

fn target(
    live: &Map<String, Value>,
    wanted: &Wanted<'_>,
    changes: &Changes,
    lacking: &BTreeSet<String>,
    now: &str,
) -> Target {
    let mut status = live.clone();
    if let Some(patch) = wanted.patch {
        let own =
            patch.iter().filter(|(key, _)| !matches!(key.as_str(), "conditions" | "observedGeneration"));
        diff::merge_map(&mut status, &own.map(|(key, value)| (key.clone(), value.clone())).collect());
    }
    let spoken = wanted.patch.is_some() || !wanted.conditions.iter().all(conditions::is_of_the_host);
    if spoken && wanted.generation > 0 {
        status.insert("observedGeneration".to_owned(), json!(wanted.generation));
    }
    if let Some(list) = conditions::merge(list(live), changes, wanted.generation, now) {
        status.insert("conditions".to_owned(), Value::Array(list));
    }
    let mut difference = diff::diff(live, &status);
    difference.retain(|key, _| !lacking.contains(key));
    Target { status, difference }
}

fn list(status: &Map<String, Value>) -> &[Value] {
    status.get("conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The status of an object, empty where it has none.
pub(crate) fn status_of(object: &SharedObject) -> Map<String, Value> {
    object.pointer("/status").and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
}

/// The staged conditions, then the host's, one per type.
fn changes(wanted: &Wanted<'_>, host: Changes) -> Changes {
    let mut set: Vec<Condition> = wanted.conditions.to_vec();
    for condition in host.set {
        // A plugin that sets a condition of the host's name itself has the word.
        if !set.iter().any(|staged| staged.kind == condition.kind) {
            set.push(condition);
        }
    }
    let remove =
        host.remove.into_iter().filter(|kind| !set.iter().any(|staged| staged.kind == *kind)).collect();
    Changes { set, remove }
}

impl Committer {
    /// Brings the status of an object to what is wanted, in one request or none.
    pub(super) async fn write_status(
        &self,
        pass: &Pass<'_>,
        kind: &Kind,
        object: &SharedObject,
        wanted: &Wanted<'_>,
    ) -> Result<StatusDone, CommitError> {
        let plugin = &pass.origin.plugin;
        let mut current = SharedObject::clone(object);
        for _ in 0..TRIES {
            let live = status_of(&current);
            let changes = changes(wanted, conditions::host(plugin, list(&live), wanted.verdict));
            let lacking = self.lacking().of(&kind.gvk);
            let without = lacking.contains("conditions") && !changes.set.is_empty();
            let target = target(&live, wanted, &changes, &lacking, &super::now());
            let digest = fingerprint(wanted, &changes);
            if target.difference.is_empty() || self.statuses().is_last(plugin, &current, &digest) {
                if wanted.patch.is_some() || !changes.set.is_empty() {
                    pass.skipped.fetch_add(1, Ordering::Relaxed);
                    self.door().metrics.skipped.with_label_values(&[plugin.as_str(), &*kind.gvk.kind]).inc();
                }
                return Ok(self.told_or_not(plugin, &current, without.then_some(&*digest)));
            }
            let body = body(&current, &target, wanted, &changes);
            let action = match wanted.strategy {
                StatusStrategy::Merge => Action::Merge(&body),
                StatusStrategy::Apply => Action::Apply { body: &body, force: true },
                StatusStrategy::Update => Action::Replace(&body),
            };
            let name = &current.meta().name;
            let send = Send {
                right: Right::Status,
                kind,
                name,
                subresource: Some("status"),
                action,
                dry_run: false,
            };
            match self.door().write(pass, &send).await {
                Ok(accepted) => {
                    let Some(answer) = accepted.object else { return Ok(StatusDone::Kept) };
                    let kept = status_of(&answer);
                    let dropped: BTreeSet<String> = target
                        .difference
                        .iter()
                        .filter(|(key, value)| !is_nothing(value) && !kept.contains_key(*key))
                        .map(|(key, _)| key.clone())
                        .collect();
                    let no_conditions = without || dropped.contains("conditions");
                    let new = self.lacking().learn(&kind.gvk, dropped);
                    if !new.is_empty() {
                        tracing::warn!(
                            kind = %kind.gvk, %plugin, fields = new.join(","),
                            "the kind's schema does not keep these status fields; they are left out from now on, and conditions become events"
                        );
                    }
                    // What the server made something else of must not be sent again and again.
                    if !diff::diff(&kept, &target.status).is_empty() {
                        self.statuses().put(
                            plugin,
                            &answer.meta().uid,
                            &digest,
                            answer.meta().resource_version,
                            None,
                        );
                    }
                    return Ok(self.told_or_not(plugin, &answer, no_conditions.then_some(&*digest)));
                }
                Err(WriteError::Refused(refusal, _)) if refusal.is_not_found() => {
                    return Err(CommitError::Gone);
                }
                Err(WriteError::Refused(refusal, _)) if refusal.is_conflict() || refusal.is_other_life() => {
                    match self.fresher(pass, kind, &current).await? {
                        Some(fresh) if fresh.meta().uid == current.meta().uid => current = fresh,
                        _ => return Err(CommitError::Gone),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(CommitError::Conflict)
    }

    /// Whether conditions that have no place in the status (`Some`: their digest) are still to be
    /// told: each state once.
    pub(super) fn told_or_not(
        &self,
        plugin: &PluginName,
        object: &SharedObject,
        digest: Option<&str>,
    ) -> StatusDone {
        let meta = object.meta();
        match digest {
            None => self.told().remove(plugin, &meta.uid),
            Some(digest) if self.told().get(plugin, &meta.uid, digest).is_some() => {}
            Some(digest) => {
                self.told().put(plugin, &meta.uid, digest, meta.resource_version, None);
                return StatusDone::WithoutConditions;
            }
        }
        StatusDone::Kept
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// What is wanted, without times: the same on every run that wants the same.
fn fingerprint(wanted: &Wanted<'_>, changes: &Changes) -> String {
    let conditions: Vec<Value> = changes
        .set
        .iter()
        .map(|condition| conditions::written(condition, wanted.generation, "", None))
        .collect();
    Digest::of(json!([wanted.patch, wanted.generation, conditions, changes.remove]).to_string().as_bytes())
        .short()
}

fn body(current: &SharedObject, target: &Target, wanted: &Wanted<'_>, changes: &Changes) -> Value {
    let meta = current.meta();
    let version = meta.resource_version.to_string();
    match wanted.strategy {
        StatusStrategy::Merge => {
            json!({"metadata": {"uid": meta.uid.as_str(), "resourceVersion": version}, "status": target.difference})
        }
        StatusStrategy::Update => {
            let mut whole: Value = serde_json::from_str(current.json()).unwrap_or_default();
            if let Value::Object(whole) = &mut whole {
                whole.insert("status".to_owned(), Value::Object(target.status.clone()));
            }
            whole
        }
        StatusStrategy::Apply => {
            // Only what is the plugin's: an apply owns all that it names, and gives up the rest.
            let staged = Value::Object(wanted.patch.cloned().unwrap_or_default());
            let mut status = diff::without_nulls(&staged);
            if let Value::Object(status) = &mut status {
                status.remove("conditions");
                status.remove("observedGeneration");
                if let Some(generation) = target.status.get("observedGeneration") {
                    status.insert("observedGeneration".to_owned(), generation.clone());
                }
                let all = target.status.get("conditions").and_then(Value::as_array);
                let own: Vec<&Value> = all
                    .into_iter()
                    .flatten()
                    .filter(|found| {
                        changes
                            .set
                            .iter()
                            .any(|set| found.get("type").and_then(Value::as_str) == Some(&set.kind))
                    })
                    .collect();
                if !own.is_empty() {
                    status.insert("conditions".to_owned(), json!(own));
                }
            }
            let identity = |pointer: &str| {
                current.pointer(pointer).and_then(|json| serde_json::from_str::<Value>(json).ok())
            };
            json!({
                "apiVersion": identity("/apiVersion"), "kind": identity("/kind"),
                "metadata": {"name": &*meta.name.name, "uid": meta.uid.as_str(), "resourceVersion": version},
                "status": status,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::needless_pass_by_value, reason = "tables of values read better without borrows")]
    use reeve_core::failure::Failure;
    use reeve_core::manifest::OnExhausted;
    use reeve_core::plan::ConditionStatus;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        serde_json::from_value(value).unwrap()
    }

    fn ready(status: ConditionStatus) -> Condition {
        Condition { kind: "Ready".to_owned(), status, reason: "R".to_owned(), message: "m".to_owned() }
    }

    #[track_caller]
    fn check(live: Value, patch: Option<Value>, conditions: &[Condition], lacking: &[&str], expected: Value) {
        let patch = patch.map(map);
        let wanted = Wanted {
            strategy: StatusStrategy::Merge,
            patch: patch.as_ref(),
            conditions,
            verdict: Verdict::Succeeded,
            generation: 2,
        };
        let lacking = lacking.iter().map(|&key| key.to_owned()).collect();
        let changes = changes(&wanted, Changes::default());
        assert_eq!(
            Value::Object(target(&map(live), &wanted, &changes, &lacking, "now").difference),
            expected
        );
    }

    #[test]
    fn the_difference_is_all_that_is_sent() {
        let set = json!({"type": "Ready", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "now", "observedGeneration": 2});
        check(json!({}), Some(json!({"url": "a"})), &[], &[], json!({"url": "a", "observedGeneration": 2}));
        check(json!({"url": "a", "observedGeneration": 2}), Some(json!({"url": "a"})), &[], &[], json!({}));
        check(
            json!({"url": "a", "observedGeneration": 2, "x": 1}),
            Some(json!({"url": null})),
            &[],
            &[],
            json!({"url": null}),
        );
        check(json!({"url": "a"}), None, &[], &[], json!({}));
        check(
            json!({}),
            None,
            &[ready(ConditionStatus::True)],
            &[],
            json!({"conditions": [set], "observedGeneration": 2}),
        );
        check(
            json!({"conditions": [set], "observedGeneration": 2}),
            None,
            &[ready(ConditionStatus::True)],
            &[],
            json!({}),
        );
    }

    #[test]
    fn what_is_the_hosts_cannot_be_staged_as_status() {
        check(
            json!({"observedGeneration": 2}),
            Some(json!({"observedGeneration": 9, "conditions": []})),
            &[],
            &[],
            json!({}),
        );
    }

    #[test]
    fn what_the_schema_does_not_keep_is_left_out() {
        let both = [ready(ConditionStatus::True)];
        check(
            json!({}),
            Some(json!({"url": "a"})),
            &both,
            &["conditions", "observedGeneration"],
            json!({"url": "a"}),
        );
        check(
            json!({"url": "a"}),
            Some(json!({"url": "a"})),
            &both,
            &["conditions", "observedGeneration"],
            json!({}),
        );
    }

    #[test]
    fn a_plugins_own_word_on_a_host_condition_wins() {
        let plugin = "web".parse().unwrap();
        let failure = Failure::transient("X", "network", "no");
        let verdict =
            Verdict::Failed { failure: &failure, id: "1", stalled: false, exhausted: OnExhausted::Slow };
        let own = [Condition { kind: "Reconciled".to_owned(), ..ready(ConditionStatus::Unknown) }];
        let wanted =
            Wanted { strategy: StatusStrategy::Merge, patch: None, conditions: &own, verdict, generation: 1 };
        let all = changes(&wanted, conditions::host(&plugin, &[], verdict));
        assert_eq!(all.set, own);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_kind_lacks_is_believed_for_a_while() {
        let lacking = Lacking::default();
        let gvk = Gvk::new("a", "v1", "A");
        let fields = || BTreeSet::from(["conditions".to_owned()]);
        assert_eq!(lacking.learn(&gvk, fields()), ["conditions"]);
        assert!(lacking.learn(&gvk, fields()).is_empty());
        assert_eq!(lacking.of(&gvk), fields());
        tokio::time::advance(LACKS_FOR).await;
        assert!(lacking.of(&gvk).is_empty());
    }
}
