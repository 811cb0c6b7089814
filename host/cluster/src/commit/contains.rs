//! Whether a live object still holds everything that is desired of it.
//!
//! The server adds defaults and other writers add fields, so the live object is first *projected*
//! onto the fields of the desired one; then the two are compared. List elements are matched by the
//! keys that server-side apply uses for the lists of Kubernetes' own kinds; every other list is
//! one value, matched by position.
//!
//! Where the server normalises a value in a way that is not known here, the comparison says "no"
//! and the child is applied once more; [`Projection::fingerprint`] then remembers what the server made of it,
//! so that this happens at most once per version that was applied, never in a loop.

use reeve_core::gvk::Gvk;
use reeve_core::ids::Digest;
use serde_json::{Map, Value};

/// The part of `live` that `desired` speaks of.
pub(crate) struct Projection(Value);

impl Projection {
    /// Projects a live object onto a desired one.
    pub(crate) fn of(live: &Value, desired: &Value, gvk: &Gvk) -> Self {
        Self(project(live, desired, &mut Path::new(gvk)))
    }

    /// Whether nothing that is desired is missing or different.
    pub(crate) fn holds(&self, desired: &Value, gvk: &Gvk) -> bool {
        same(&self.0, desired, &mut Path::new(gvk))
    }

    /// A fingerprint, to recognise what the server once made of the desired state.
    pub(crate) fn fingerprint(&self) -> u64 {
        let hex = Digest::of(self.0.to_string().as_bytes()).hex();
        u64::from_str_radix(hex.get(..16).unwrap_or_default(), 16).unwrap_or_default()
    }
}

/// Where in an object the walk stands.
struct Path<'a> {
    keys: Vec<&'a str>,
    /// One of Kubernetes' own kinds, whose lists and quantities are known.
    builtin: bool,
    /// ConfigMaps and Secrets hold texts, never quantities.
    plain: bool,
}

impl<'a> Path<'a> {
    fn new(gvk: &Gvk) -> Self {
        let builtin = !gvk.group.contains('.') || gvk.group.ends_with(".k8s.io");
        Self { keys: Vec::new(), builtin, plain: matches!(&*gvk.kind, "ConfigMap" | "Secret") }
    }

    /// The last key, for an element of a list that of the list.
    fn last(&self) -> &'a str {
        self.keys.last().copied().unwrap_or_default()
    }

    fn quantity(&self) -> bool {
        !self.plain && self.keys.iter().any(|key| QUANTITIES.contains(key))
    }
}

/// Fields that hold quantities, or maps of them.
const QUANTITIES: [&str; 16] = [
    "limits",
    "requests",
    "hard",
    "used",
    "capacity",
    "allocatable",
    "sizeLimit",
    "divisor",
    "averageValue",
    "overhead",
    "default",
    "defaultRequest",
    "max",
    "min",
    "maxLimitRequestRatio",
    "storage",
];

/// The keys of the associative lists of Kubernetes' own kinds, by the list's field; several where
/// kinds differ. The first set all of whose keys some desired element has is taken.
fn list_keys(path: &Path<'_>) -> &'static [&'static [&'static str]] {
    match path.last() {
        // metadata.ownerReferences is the same for every kind.
        "ownerReferences" => &[&["uid"]],
        _ if !path.builtin => &[],
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "secrets"
        | "webhooks"
        | "resourceClaims"
        | "validations" => &[&["name"]],
        "ports" => &[&["containerPort", "protocol"], &["port", "protocol"]],
        "volumeMounts" => &[&["mountPath"]],
        "volumeDevices" => &[&["devicePath"]],
        "hostAliases" | "podIPs" => &[&["ip"]],
        "conditions" => &[&["type"]],
        "topologySpreadConstraints" => &[&["topologyKey", "whenUnsatisfiable"]],
        _ => &[],
    }
}

/// What the server takes for a key that an element leaves out.
fn key_default(key: &str) -> Value {
    match key {
        "protocol" => Value::from("TCP"),
        _ => Value::Null,
    }
}

/// The key set by which the elements of a desired list are told apart, if it is associative.
fn keys_of(desired: &[Value], path: &Path<'_>) -> Option<&'static [&'static str]> {
    list_keys(path).iter().copied().find(|keys| {
        let first = keys.first().copied().unwrap_or_default();
        desired.iter().all(|element| element.get(first).is_some())
    })
}

/// The live element with the same keys.
fn twin<'v>(live: &'v [Value], element: &Value, keys: &[&str]) -> Option<&'v Value> {
    let value = |of: &Value, key: &str| of.get(key).cloned().unwrap_or_else(|| key_default(key));
    live.iter().find(|candidate| keys.iter().all(|key| value(candidate, key) == value(element, key)))
}

fn project<'a>(live: &Value, desired: &'a Value, path: &mut Path<'a>) -> Value {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => {
            let mut out = Map::new();
            for (key, wanted) in desired {
                if let Some(found) = live.get(key) {
                    path.keys.push(key);
                    out.insert(key.clone(), project(found, wanted, path));
                    path.keys.pop();
                }
            }
            Value::Object(out)
        }
        (Value::Array(live), Value::Array(desired)) => match keys_of(desired, path) {
            // Elements that are missing leave a null, so that positions stay those of `desired`.
            Some(keys) => desired
                .iter()
                .map(|wanted| {
                    twin(live, wanted, keys).map_or(Value::Null, |found| project(found, wanted, path))
                })
                .collect(),
            None => live
                .iter()
                .enumerate()
                .map(|(index, found)| {
                    desired.get(index).map_or(Value::Null, |wanted| project(found, wanted, path))
                })
                .collect(),
        },
        (live, _) => live.clone(),
    }
}

fn same<'a>(live: &Value, desired: &'a Value, path: &mut Path<'a>) -> bool {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => desired.iter().all(|(key, wanted)| {
            path.keys.push(key);
            let same = match live.get(key) {
                Some(found) => same(found, wanted, path),
                // The server leaves out what is empty.
                None => is_empty(wanted),
            };
            path.keys.pop();
            same
        }),
        (Value::Array(live), Value::Array(desired)) => {
            live.len() == desired.len()
                && live.iter().zip(desired).all(|(found, wanted)| same(found, wanted, path))
        }
        (Value::Null, wanted) => is_empty(wanted),
        (live, desired) => {
            live == desired || same_number(live, desired) || (path.quantity() && same_quantity(live, desired))
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_empty),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

fn same_number(left: &Value, right: &Value) -> bool {
    // Exact: 1 and 1.0 are the same number in JSON, and both are representable.
    matches!((left.as_f64(), right.as_f64()), (Some(left), Some(right)) if left.total_cmp(&right).is_eq())
}

fn same_quantity(left: &Value, right: &Value) -> bool {
    match (quantity(left), quantity(right)) {
        (Some(left), Some(right)) => (left - right).abs() <= left.abs().max(right.abs()) * 1e-12,
        _ => false,
    }
}

/// A Kubernetes quantity as a number: `100m`, `1Gi`, `2e3`, `1`.
fn quantity(value: &Value) -> Option<f64> {
    let text = match value {
        Value::Number(number) => return number.as_f64(),
        Value::String(text) => text.as_str(),
        _ => return None,
    };
    let end =
        text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let factor = match suffix {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        exponent => 10f64.powi(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(number * factor)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::needless_pass_by_value, reason = "tables of values read better without borrows")]

    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_of(gvk: &Gvk, live: &Value, desired: &Value, expected: bool) {
        let projection = Projection::of(live, desired, gvk);
        assert_eq!(projection.holds(desired, gvk), expected, "live {live} desired {desired}");
    }

    #[track_caller]
    fn check(live: Value, desired: Value, expected: bool) {
        check_of(&Gvk::new("apps", "v1", "Deployment"), &live, &desired, expected);
    }

    #[test]
    fn defaults_and_foreign_fields_do_not_matter() {
        check(
            json!({"spec": {"replicas": 1, "strategy": {"type": "x"}}}),
            json!({"spec": {"replicas": 1}}),
            true,
        );
        check(json!({"spec": {"replicas": 2}}), json!({"spec": {"replicas": 1}}), false);
        check(json!({"spec": {}}), json!({"spec": {"replicas": 1}}), false);
        check(json!({"spec": {"replicas": 1}}), json!({"spec": {"replicas": 1.0}}), true);
        check(
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
            json!({"metadata": {"labels": {"a": "1"}}}),
            true,
        );
    }

    #[test]
    fn what_is_empty_may_be_left_out() {
        check(json!({}), json!({"spec": {"a": {}, "b": [], "c": null}}), true);
        check(json!({"spec": null}), json!({"spec": {}}), true);
        check(json!({}), json!({"a": ""}), false);
        check(json!({}), json!({"a": false}), false);
    }

    #[test]
    fn associative_lists_match_by_key_and_ignore_order_and_foreign_elements() {
        let live = json!({"containers": [{"name": "sidecar"}, {"name": "web", "image": "a", "x": 1}]});
        check(live.clone(), json!({"containers": [{"name": "web", "image": "a"}]}), true);
        check(live.clone(), json!({"containers": [{"name": "web", "image": "b"}]}), false);
        check(live, json!({"containers": [{"name": "other"}]}), false);
        let pod = json!({"ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "UDP"}]});
        check(pod.clone(), json!({"ports": [{"containerPort": 80}]}), true);
        check(pod.clone(), json!({"ports": [{"containerPort": 80, "protocol": "UDP"}]}), true);
        check(pod, json!({"ports": [{"containerPort": 81}]}), false);
        let service = json!({"ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}]});
        check(service.clone(), json!({"ports": [{"port": 80, "targetPort": 8080}]}), true);
        check(service, json!({"ports": [{"port": 80, "targetPort": 8081}]}), false);
        let mounts =
            json!({"volumeMounts": [{"mountPath": "/a", "name": "x"}, {"mountPath": "/b", "name": "x"}]});
        check(mounts, json!({"volumeMounts": [{"mountPath": "/b", "name": "x"}]}), true);
    }

    #[test]
    fn other_lists_are_one_value() {
        check(json!({"args": ["a", "b"]}), json!({"args": ["a", "b"]}), true);
        check(json!({"args": ["b", "a"]}), json!({"args": ["a", "b"]}), false);
        check(json!({"args": ["a", "b"]}), json!({"args": ["a"]}), false);
        check(
            json!({"tolerations": [{"key": "a", "operator": "Equal"}]}),
            json!({"tolerations": [{"key": "a"}]}),
            true,
        );
    }

    #[test]
    fn custom_kinds_have_no_known_lists_but_owners() {
        let gvk = Gvk::new("example.com", "v1", "Site");
        let live = json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}});
        check_of(&gvk, &live, &json!({"spec": {"containers": [{"name": "a"}]}}), false);
        let owned = json!({"metadata": {"ownerReferences": [{"uid": "1"}, {"uid": "2", "name": "b"}]}});
        check_of(&gvk, &owned, &json!({"metadata": {"ownerReferences": [{"uid": "2", "name": "b"}]}}), true);
    }

    #[test]
    fn quantities_compare_as_numbers_only_where_they_are_quantities() {
        for (left, right, equal) in [
            (json!("1"), json!("1000m"), true),
            (json!("1"), json!(1), true),
            (json!("1Gi"), json!("1024Mi"), true),
            (json!("0.1"), json!("100m"), true),
            (json!("2e3"), json!("2k"), true),
            (json!("1Gi"), json!("1G"), false),
            (json!("x"), json!("1"), false),
        ] {
            check(json!({"limits": {"cpu": left}}), json!({"limits": {"cpu": right}}), equal);
        }
        check(json!({"value": "1"}), json!({"value": "1000m"}), false);
        let map = Gvk::new("", "v1", "ConfigMap");
        check_of(&map, &json!({"data": {"limits": "1"}}), &json!({"data": {"limits": "1000m"}}), false);
    }

    #[test]
    fn the_fingerprint_sees_only_what_is_desired() {
        let gvk = Gvk::new("apps", "v1", "Deployment");
        let desired = json!({"spec": {"replicas": 1, "odd": "1h"}});
        let print = |live: Value| Projection::of(&live, &desired, &gvk).fingerprint();
        let first = print(json!({"spec": {"replicas": 1, "odd": "1h0m0s"}, "status": {"a": 1}}));
        assert_eq!(
            first,
            print(json!({"spec": {"replicas": 1, "odd": "1h0m0s", "x": 1}, "status": {"a": 2}}))
        );
        assert_ne!(first, print(json!({"spec": {"replicas": 2, "odd": "1h0m0s"}})));
    }
}
