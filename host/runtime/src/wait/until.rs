//! Whether an awaited state holds, on JSON text.

use reeve_core::json;
use reeve_core::plan::{Wait, WaitTarget, WaitUntil};
use serde_json::Value;

/// Whether the state holds for one object; `None` when there is none.
pub(super) fn holds(until: &WaitUntil, object: Option<&str>) -> bool {
    match (until, object) {
        (WaitUntil::Exists(wanted), object) => object.is_some() == *wanted,
        (_, None) => false,
        (WaitUntil::Condition(kind, status), Some(object)) => {
            let conditions = json::pointer(object, "/status/conditions");
            let conditions: Vec<Value> =
                conditions.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            conditions
                .iter()
                .any(|condition| condition["type"] == kind.as_str() && condition["status"] == status.as_str())
        }
        (WaitUntil::Equals(pointer, wanted), Some(object)) => match json::pointer(object, pointer) {
            Some(text) => serde_json::from_str::<Value>(text).is_ok_and(|value| value == *wanted),
            None => wanted.is_null(),
        },
    }
}

/// Whether the state holds for one of several objects, or for there being none.
pub(super) fn any_holds<'a>(until: &WaitUntil, objects: impl Iterator<Item = &'a str>) -> bool {
    let mut objects = objects.peekable();
    if objects.peek().is_none() || *until == WaitUntil::Exists(false) {
        return holds(until, objects.next());
    }
    objects.any(|object| holds(until, Some(object)))
}

/// What did not come, for people: `Deployment.v1.apps web/a did not become Available=True`.
pub(super) fn describe(wait: &Wait) -> String {
    let target = match &wait.target {
        WaitTarget::Name(name) => name.clone(),
        WaitTarget::Labels(labels) => format!("with labels {labels}"),
    };
    let place = wait.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
    let state = match &wait.until {
        WaitUntil::Condition(kind, status) => format!("did not become {kind}={status}"),
        WaitUntil::Equals(pointer, _) => format!("did not come to the awaited value at {pointer}"),
        WaitUntil::Exists(true) => "did not appear".to_owned(),
        WaitUntil::Exists(false) => "did not go".to_owned(),
    };
    format!("{} {place}{target} {state}", wait.gvk)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn states_hold_by_condition_value_and_existence() {
        let ready = json!({"spec": {"n": 2}, "status": {"conditions": [
            {"type": "Progressing", "status": "False"}, {"type": "Available", "status": "True"},
        ]}})
        .to_string();
        let condition = |kind: &str, status: &str| WaitUntil::Condition(kind.to_owned(), status.to_owned());
        let equals = |pointer: &str, value: Value| WaitUntil::Equals(pointer.to_owned(), value);
        for (until, there, gone) in [
            (condition("Available", "True"), true, false),
            (condition("Available", "False"), false, false),
            (condition("Other", "True"), false, false),
            (equals("/spec/n", json!(2)), true, false),
            (equals("/spec/n", json!("2")), false, false),
            (equals("/spec/m", Value::Null), true, false),
            (WaitUntil::Exists(true), true, false),
            (WaitUntil::Exists(false), false, true),
        ] {
            assert_eq!(holds(&until, Some(&ready)), there, "{until:?}");
            assert_eq!(holds(&until, None), gone, "{until:?} without an object");
            assert_eq!(any_holds(&until, ["{}", &ready].into_iter()), there, "{until:?} in a list");
            assert_eq!(any_holds(&until, std::iter::empty()), gone, "{until:?} in an empty list");
        }
    }
}
