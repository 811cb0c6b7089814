//! JSON merge patches (RFC 7386): applying one, and computing the smallest one.

use serde_json::{Map, Value};

/// Applies a merge patch.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(target) = target {
        merge_map(target, patch);
    }
}

/// Applies a merge patch to a map.
pub(crate) fn merge_map(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// The smallest merge patch that turns `from` into `to`; empty when they are equal.
///
/// A merge patch cannot say `null` as a value, so nulls in `to` count as absent.
pub(crate) fn diff(from: &Map<String, Value>, to: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for key in from.keys() {
        if to.get(key).is_none_or(Value::is_null) && !from.get(key).is_none_or(Value::is_null) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    for (key, value) in to {
        match (from.get(key), value) {
            (_, Value::Null) => {}
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                let inner = diff(old, new);
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            (_, new) => {
                patch.insert(key.clone(), without_nulls(new));
            }
        }
    }
    patch
}

/// Nulls of maps taken out, at any depth below maps: a merge patch would read them as removals.
pub(crate) fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, value)| (key.clone(), without_nulls(value)))
                .collect(),
        ),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::needless_pass_by_value, reason = "tables of values read better without borrows")]

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(map) => map,
            other => Map::from_iter([("value".to_owned(), other)]),
        }
    }

    #[track_caller]
    fn check(from: Value, to: Value, patch: Value) {
        assert_eq!(Value::Object(diff(&map(from), &map(to))), patch);
    }

    #[test]
    fn a_diff_names_only_what_differs() {
        check(json!({"a": 1}), json!({"a": 1}), json!({}));
        check(json!({"a": 1}), json!({"a": 2}), json!({"a": 2}));
        check(json!({"a": 1, "b": 2}), json!({"b": 2}), json!({"a": null}));
        check(json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 1, "c": 3}}), json!({"a": {"c": 3}}));
        check(json!({"a": [1, 2]}), json!({"a": [2]}), json!({"a": [2]}));
        check(json!({"a": {"b": 1}}), json!({"a": []}), json!({"a": []}));
        check(json!({}), json!({"a": null}), json!({}));
        check(json!({"a": null}), json!({}), json!({}));
        check(json!({"a": 1}), json!({"a": {"b": null}}), json!({"a": {}}));
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..4i64).prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn applying_the_diff_gives_the_target(from in values(), to in values()) {
            let plain = |value| map(without_nulls(&Value::Object(map(value))));
            let (from, to) = (plain(from), plain(to));
            let mut result = from.clone();
            let patch = diff(&from, &to);
            merge_map(&mut result, &patch);
            prop_assert_eq!(&result, &to);
            prop_assert!(diff(&result, &to).is_empty());
            prop_assert_eq!(patch.is_empty(), from == to);
        }
    }
}
