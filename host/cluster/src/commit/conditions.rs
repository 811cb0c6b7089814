//! Conditions: merged by type, with times that change only when the status does.

use reeve_core::failure::{Failure, code};
use reeve_core::ids::{Digest, ObjectName, PluginName};
use reeve_core::manifest::OnExhausted;
use reeve_core::plan::{Condition, ConditionStatus};
use serde_json::{Map, Value, json};

use super::refusal::cut;

/// Whether the last run or commit of the plugin that wrote it succeeded.
pub const RECONCILED: &str = "Reconciled";
/// The object had its last attempt without success.
pub const STALLED: &str = "Stalled";

/// The types that only the host sets, also those that its runtime adds to a plan. On a kind that
/// has no status they are told as events; a plugin's own are refused there.
pub const OF_THE_HOST: [&str; 4] = [RECONCILED, STALLED, "HotLoop", "CleanupOverdue"];

/// The most bytes of a message that the host writes; the API convention allows 32,768.
const MAX_MESSAGE: usize = 4_096;
/// The most bytes of a reason, as the API convention says.
const MAX_REASON: usize = 1_024;

/// What the host itself has to say of a run.
#[derive(Clone, Copy)]
pub(crate) enum Verdict<'a> {
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed { failure: &'a Failure, id: &'a str, stalled: bool, exhausted: OnExhausted },
}

/// Changes to a list of conditions.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// One per type, a later one replaces.
    pub(crate) set: Vec<Condition>,
    /// Types to take out.
    pub(crate) remove: Vec<&'static str>,
}

/// The error id of a failure (feature D6): the same plugin, object, code and message give the same
/// eight hex digits, so a repeated failure changes no condition, and log, condition and admin API
/// can be searched for one word.
pub fn error_id(plugin: &PluginName, object: &ObjectName, failure: &Failure) -> String {
    let text = format!("{plugin}\n{object}\n{}\n{}", failure.code, failure.message);
    Digest::of(text.as_bytes()).hex().chars().take(8).collect()
}

/// Whether a condition is the host's own.
pub(crate) fn is_of_the_host(condition: &Condition) -> bool {
    OF_THE_HOST.contains(&condition.kind.as_str())
}

/// What the host sets and removes, given what stands there.
pub(crate) fn host(plugin: &PluginName, live: &[Value], verdict: Verdict<'_>) -> Changes {
    let ours =
        |kind: &str| find(live, kind).filter(|found| text(found, "message").starts_with(&prefix(plugin)));
    match verdict {
        Verdict::Succeeded => {
            let mut changes = Changes::default();
            if ours(RECONCILED).is_some_and(|found| text(found, "status") == "False") {
                changes.set.push(Condition {
                    kind: RECONCILED.to_owned(),
                    status: ConditionStatus::True,
                    reason: "Succeeded".to_owned(),
                    message: format!("{}the last run succeeded", prefix(plugin)),
                });
            }
            if ours(STALLED).is_some() {
                changes.remove.push(STALLED);
            }
            changes
        }
        Verdict::Failed { failure, id, stalled, exhausted } => {
            let reason = reason(&failure.code);
            let suffix = format!(" (error id {id})");
            let said = format!("{}{}", prefix(plugin), failure.message);
            let message = format!("{}{suffix}", cut(&said, MAX_MESSAGE - suffix.len()));
            let mut set = vec![Condition {
                kind: RECONCILED.to_owned(),
                status: ConditionStatus::False,
                reason: reason.clone(),
                message,
            }];
            if stalled {
                let then = match exhausted {
                    OnExhausted::Slow => "it is retried at the longest delay",
                    OnExhausted::Stop => "it is left until it changes",
                };
                set.push(Condition {
                    kind: STALLED.to_owned(),
                    status: ConditionStatus::True,
                    reason,
                    message: format!("{}no attempt succeeded; {then}{suffix}", prefix(plugin)),
                });
            }
            Changes { set, remove: Vec::new() }
        }
    }
}

/// The list with the changes merged in; `None` when nothing changes.
///
/// The order and all conditions of others stay. `lastTransitionTime` moves only with `status`.
/// A condition that stands there without `observedGeneration` is not rewritten only to add it:
/// the kind's schema may not have the field.
pub(crate) fn merge(live: &[Value], changes: &Changes, generation: u64, now: &str) -> Option<Vec<Value>> {
    let mut list: Vec<Value> =
        live.iter().filter(|found| !changes.remove.contains(&text(found, "type"))).cloned().collect();
    let mut differs = list.len() != live.len();
    for condition in &changes.set {
        match list.iter_mut().find(|found| text(found, "type") == condition.kind) {
            Some(found) if unchanged(found, condition, generation) => {}
            Some(found) => {
                let kept = text(found, "lastTransitionTime").to_owned();
                let same_status = text(found, "status") == condition.status.as_str();
                let time = if same_status && !kept.is_empty() { &kept } else { now };
                *found = written(condition, generation, time, found.as_object());
                differs = true;
            }
            None => {
                list.push(written(condition, generation, now, None));
                differs = true;
            }
        }
    }
    differs.then_some(list)
}

/// A condition as it is sent, over what stood there (fields that others added stay).
pub(crate) fn written(
    condition: &Condition,
    generation: u64,
    time: &str,
    old: Option<&Map<String, Value>>,
) -> Value {
    let mut map = old.cloned().unwrap_or_default();
    map.insert("type".to_owned(), json!(condition.kind));
    map.insert("status".to_owned(), json!(condition.status.as_str()));
    map.insert("reason".to_owned(), json!(condition.reason));
    map.insert("message".to_owned(), json!(condition.message));
    map.insert("lastTransitionTime".to_owned(), json!(time));
    if generation > 0 {
        map.insert("observedGeneration".to_owned(), json!(generation));
    }
    Value::Object(map)
}

fn unchanged(found: &Value, condition: &Condition, generation: u64) -> bool {
    text(found, "status") == condition.status.as_str()
        && text(found, "reason") == condition.reason
        && text(found, "message") == condition.message
        && found
            .get("observedGeneration")
            .is_none_or(|found| generation == 0 || found.as_u64() == Some(generation))
}

pub(crate) fn find<'a>(live: &'a [Value], kind: &str) -> Option<&'a Value> {
    live.iter().find(|found| text(found, "type") == kind)
}

fn text<'a>(condition: &'a Value, key: &str) -> &'a str {
    condition.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn prefix(plugin: &PluginName) -> String {
    format!("plugin {plugin}: ")
}

/// A code as the pattern for reasons allows it: `[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?`.
fn reason(failure_code: &str) -> String {
    let word: String = failure_code
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | ',' | ':') { c } else { '_' })
        .collect();
    let word = cut(word.trim_end_matches([',', ':']), MAX_REASON);
    if word.starts_with(|c: char| c.is_ascii_alphabetic()) { word.to_owned() } else { code::HOST.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, status: ConditionStatus, reason: &str) -> Condition {
        Condition { kind: kind.to_owned(), status, reason: reason.to_owned(), message: "m".to_owned() }
    }

    fn live(kind: &str, status: &str, reason: &str, generation: u64) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": "m", "lastTransitionTime": "t0", "observedGeneration": generation})
    }

    fn set(condition: Condition) -> Changes {
        Changes { set: vec![condition], remove: Vec::new() }
    }

    #[test]
    fn the_time_moves_only_with_the_status() {
        let ready = |status, reason| set(condition("Ready", status, reason));
        let before = [live("Other", "True", "x", 1), live("Ready", "False", "a", 1)];
        assert_eq!(merge(&before, &ready(ConditionStatus::False, "a"), 1, "t1"), None);
        let same = merge(&before, &ready(ConditionStatus::False, "b"), 2, "t1").unwrap();
        assert_eq!(same, [live("Other", "True", "x", 1), live("Ready", "False", "b", 2)]);
        let other = merge(&before, &ready(ConditionStatus::True, "b"), 2, "t1").unwrap();
        assert_eq!(other[1]["lastTransitionTime"], "t1");
        assert_eq!(other[0], before[0]);
    }

    #[test]
    fn new_ones_are_appended_and_kinds_without_generation_have_none() {
        let list = merge(&[], &set(condition("Ready", ConditionStatus::Unknown, "a")), 0, "t1").unwrap();
        assert_eq!(
            list,
            [
                json!({"type": "Ready", "status": "Unknown", "reason": "a", "message": "m", "lastTransitionTime": "t1"})
            ]
        );
    }

    #[test]
    fn a_missing_observed_generation_is_not_chased() {
        let mut old = live("Ready", "True", "a", 1);
        old.as_object_mut().unwrap().remove("observedGeneration");
        assert_eq!(merge(&[old], &set(condition("Ready", ConditionStatus::True, "a")), 7, "t1"), None);
        let grown = merge(
            &[live("Ready", "True", "a", 1)],
            &set(condition("Ready", ConditionStatus::True, "a")),
            7,
            "t1",
        );
        assert_eq!(grown.unwrap()[0]["observedGeneration"], 7);
    }

    #[test]
    fn the_host_speaks_only_after_a_failure_and_takes_back_only_its_own_words() {
        let web: PluginName = "web".parse().unwrap();
        let other: PluginName = "other".parse().unwrap();
        let name = ObjectName::namespaced("n", "o");
        assert_eq!(host(&web, &[], Verdict::Succeeded), Changes::default());
        let failure = Failure::transient("DB DOWN", "network", "no answer");
        let id = error_id(&web, &name, &failure);
        assert_eq!(id.len(), 8);
        assert_eq!(id, error_id(&web, &name, &failure.clone().detail("attempt", "2")));
        assert_ne!(id, error_id(&other, &name, &failure));
        let verdict =
            Verdict::Failed { failure: &failure, id: &id, stalled: true, exhausted: OnExhausted::Slow };
        let failed = merge(&[], &host(&web, &[], verdict), 3, "t1").unwrap();
        assert_eq!(failed[0]["reason"], "DB_DOWN");
        assert_eq!(failed[0]["message"], format!("plugin web: no answer (error id {id})"));
        assert_eq!(failed[1]["type"], "Stalled");
        // The same failure again changes nothing.
        assert_eq!(merge(&failed, &host(&web, &failed, verdict), 3, "t2"), None);
        assert_eq!(host(&other, &failed, Verdict::Succeeded), Changes::default());
        let healed = merge(&failed, &host(&web, &failed, Verdict::Succeeded), 3, "t2").unwrap();
        assert_eq!(healed.len(), 1);
        assert_eq!((&healed[0]["status"], &healed[0]["lastTransitionTime"]), (&json!("True"), &json!("t2")));
        assert_eq!(host(&web, &healed, Verdict::Succeeded), Changes::default());
    }

    #[test]
    fn reasons_fit_the_pattern() {
        for (given, expected) in
            [("A_B", "A_B"), ("a b", "a_b"), ("1x", "HOST"), ("", "HOST"), ("X:", "X"), ("Ä", "HOST")]
        {
            assert_eq!(reason(given), expected);
        }
    }
}
