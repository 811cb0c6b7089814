//! Status, conditions and events: what users see of a run.

use reeve_core::plan::{Condition, ConditionStatus, Event};
use serde_json::{Map, Value};

use super::{MAX_CONDITIONS, Staged, Staging, invalid};
use crate::limits::Ended;
use crate::text::cut;

/// What Kubernetes allows for a condition's reason and message, in bytes.
const MAX_REASON: usize = 1_024;
const MAX_MESSAGE: usize = 32 * 1_024;
/// What `events.k8s.io/v1` allows for an event's reason, action and note, in bytes.
const MAX_EVENT_WORD: usize = 128;
const MAX_EVENT_NOTE: usize = 1_024;
/// What a field of the status is called that the host keeps itself.
const HOST_FIELDS: [(&str, &str); 2] =
    [("conditions", "use set-condition"), ("observedGeneration", "the host writes it with every status")];
/// The conditions that the host keeps itself.
const HOST_CONDITIONS: [&str; 2] = ["Reconciled", "Stalled"];

impl Staging {
    /// Stages a merge patch of the status. Several merge in the order in which they came.
    pub(crate) fn status(&mut self, patch: &str) -> Staged {
        let patch: Map<String, Value> = match self.document("the status", patch)? {
            Ok(patch) => patch,
            Err(failure) => return Ok(Err(failure)),
        };
        for (field, instead) in HOST_FIELDS {
            if patch.contains_key(field) {
                return Ok(Err(invalid(format!("status.{field} is the host's: {instead}"))));
            }
        }
        match &mut self.plan.status {
            Some(status) => merge(status, patch),
            None => self.plan.status = Some(patch),
        }
        Ok(Ok(()))
    }

    /// Stages a condition; a later one of the same type replaces it.
    pub(crate) fn condition(&mut self, kind: String, status: &str, reason: String, message: &str) -> Staged {
        self.charge(kind.len() + reason.len() + message.len())?;
        let status = match status {
            "True" => ConditionStatus::True,
            "False" => ConditionStatus::False,
            "Unknown" => ConditionStatus::Unknown,
            _ => {
                return Ok(Err(invalid(format!(
                    "condition {kind:?} has status {status:?}: give `True`, `False` or `Unknown`"
                ))));
            }
        };
        if !is_word(&kind, 316, |b| matches!(b, b'.' | b'/' | b'-' | b'_')) {
            return Ok(Err(invalid(format!(
                "condition type {kind:?} is not usable: give a word such as `Ready`"
            ))));
        }
        if HOST_CONDITIONS.contains(&kind.as_str()) {
            return Ok(Err(invalid(format!("condition {kind} is the host's: choose another type"))));
        }
        if !is_word(&reason, MAX_REASON, |b| matches!(b, b'_' | b',' | b':')) {
            return Ok(Err(invalid(format!(
                "condition {kind} has reason {reason:?}: give a word of letters, digits and '_', such as `AllReady`"
            ))));
        }
        let condition = Condition { kind, status, reason, message: cut(message, MAX_MESSAGE).to_owned() };
        let conditions = &mut self.plan.conditions;
        if let Some(known) = conditions.iter_mut().find(|known| known.kind == condition.kind) {
            *known = condition;
        } else if conditions.len() < MAX_CONDITIONS {
            conditions.push(condition);
        } else {
            return Err(Ended::Limit { what: "conditions", limit: MAX_CONDITIONS as u64, place: "" });
        }
        Ok(Ok(()))
    }

    /// Stages an event. One over the limit is dropped and counted.
    pub(crate) fn event(&mut self, kind: &str, reason: String, action: String, note: &str) -> Staged {
        self.charge(reason.len() + action.len() + note.len().min(MAX_EVENT_NOTE))?;
        let warning = match kind {
            "Normal" => false,
            "Warning" => true,
            _ => return Ok(Err(invalid(format!("event type {kind:?}: give `Normal` or `Warning`")))),
        };
        for (what, word) in [("reason", &reason), ("action", &action)] {
            if word.len() > MAX_EVENT_WORD || (what == "reason" && word.is_empty()) {
                return Ok(Err(invalid(format!(
                    "an event's {what} has {} bytes: give 1 to {MAX_EVENT_WORD}",
                    word.len()
                ))));
            }
        }
        if self.plan.events.len() >= self.limits.events as usize {
            self.dropped_events = self.dropped_events.saturating_add(1);
            return Ok(Ok(()));
        }
        // The API wants an action; most authors have none to tell beside the reason.
        let action = if action.is_empty() { reason.clone() } else { action };
        self.plan.events.push(Event { warning, reason, action, note: cut(note, MAX_EVENT_NOTE).to_owned() });
        Ok(Ok(()))
    }
}

/// Letters, digits and some others between; begins with a letter, ends with a letter or digit.
fn is_word(text: &str, limit: usize, inside: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= limit
        && bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(|&b| b.is_ascii_alphanumeric() || b == b'_')
        && bytes.iter().all(|&b| b.is_ascii_alphanumeric() || inside(b))
}

/// Merges a merge patch into another: what is `null` stays `null`, as it is still to be removed.
fn merge(into: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(known)), Value::Object(value)) => merge(known, value),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}
