//! Finalizers that are held longer than the plugin's limit (feature C6).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reeve_core::json;
use reeve_core::manifest::Manifest;
use reeve_core::object::Object;
use reeve_core::plan::{Condition, ConditionStatus, Event, Plan};

/// The condition that names such a finalizer.
pub(super) const CONDITION: &str = "CleanupOverdue";

/// Adds condition and event to the plan of a cleanup run when the deletion is older than the limit;
/// says whether it is.
pub(super) fn note(manifest: &Manifest, object: &Object, plan: &mut Plan) -> bool {
    let Some(age) = deleting_for(object, SystemTime::now()) else { return false };
    if age < manifest.finalizer_limit {
        return false;
    }
    let limit = manifest.finalizer_limit.as_secs();
    let finalizer = manifest.name.field_manager();
    let message = format!(
        "plugin {}: finalizer {finalizer} is held for more than {limit} s after the deletion; see why cleanup does not end, or remove the finalizer by hand",
        manifest.name
    );
    plan.events.push(Event {
        warning: true,
        reason: CONDITION.to_owned(),
        action: "Cleanup".to_owned(),
        note: message.clone(),
    });
    plan.conditions.push(Condition {
        kind: CONDITION.to_owned(),
        status: ConditionStatus::True,
        reason: "FinalizerHeld".to_owned(),
        message,
    });
    true
}

fn deleting_for(object: &Object, now: SystemTime) -> Option<Duration> {
    let text = object.pointer("/metadata/deletionTimestamp").and_then(json::string)?;
    let since = UNIX_EPOCH + Duration::from_secs(seconds_of(&text)?);
    Some(now.duration_since(since).unwrap_or_default())
}

/// Seconds since 1970 of `2026-12-01T12:00:00Z`, the one form in which Kubernetes writes times.
fn seconds_of(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month) || year < 1970 {
        return None;
    }
    // Days from civil, with years that begin in March.
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = shifted_year / 4 - shifted_year / 100 + shifted_year / 400;
    let days = shifted_year * 365 + leap_days + (shifted_month * 153 + 2) / 5 + day.checked_sub(1)?;
    // From the first of March of year 0 to the first of January of 1970.
    Some((days.checked_sub(719_468)?) * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T00:00:01Z", Some(951_782_401)),
            ("2026-12-01T13:56:01Z", Some(1_796_133_361)),
            ("soon", None),
            ("2026-13-01T00:00:00Z", None),
        ] {
            assert_eq!(seconds_of(text), seconds, "{text}");
        }
    }
}
