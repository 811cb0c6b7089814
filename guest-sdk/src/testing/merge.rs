//! Merges of JSON documents: RFC 7386 and a simple server-side apply.

use serde_json::{Map, Value};

/// Lays one merge patch on another, so that the result does what both would in turn.
pub(super) fn stage(onto: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match (onto.get_mut(&key), value) {
            (Some(Value::Object(inner)), Value::Object(value)) => stage(inner, value),
            (_, value) => {
                onto.insert(key, value);
            }
        }
    }
}

/// Applies a merge patch (RFC 7386).
pub(super) fn patch(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(object) = target else { return };
    for (key, value) in fields {
        if value.is_null() {
            object.remove(key);
        } else {
            self::patch(object.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Applies what is desired now, and removes what was desired before and is no longer. Lists are
/// replaced as a whole.
pub(super) fn apply(live: &mut Value, before: &Value, desired: &Value) {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => {
            if let Value::Object(before) = before {
                for key in before.keys().filter(|key| !desired.contains_key(*key)) {
                    live.remove(key);
                }
            }
            for (key, value) in desired {
                let before = before.get(key).unwrap_or(&Value::Null);
                apply(live.entry(key.clone()).or_insert(Value::Null), before, value);
            }
        }
        (live, desired) => *live = desired.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_sets_and_removes() {
        let mut value = json!({ "a": { "b": 1, "c": 2 }, "d": [1] });
        patch(&mut value, &json!({ "a": { "b": null, "e": 3 }, "d": [2] }));
        assert_eq!(value, json!({ "a": { "c": 2, "e": 3 }, "d": [2] }));
    }

    #[test]
    fn an_apply_removes_only_its_own() {
        let mut live = json!({ "data": { "a": "1", "foreign": "2" } });
        apply(&mut live, &json!({ "data": { "a": "1" } }), &json!({ "data": { "b": "3" } }));
        assert_eq!(live, json!({ "data": { "b": "3", "foreign": "2" } }));
    }
}
