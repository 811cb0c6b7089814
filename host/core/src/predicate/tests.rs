use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::gvk::Gvk;
use crate::object::ManagedFields;

fn object(change: impl FnOnce(&mut Value)) -> Object {
    let mut object = json!({
        "apiVersion": "example.dev/v1", "kind": "Website",
        "metadata": {
            "name": "site", "uid": "u1", "resourceVersion": "1", "generation": 1,
            "labels": {"app": "web"}, "annotations": {"a": "1"}, "managedFields": [1],
        },
        "spec": {"replicas": 1, "paused": null}, "status": {"ready": false},
    });
    change(&mut object);
    let gvk = Gvk::new("example.dev", "v1", "Website");
    Object::parse(&gvk, &object.to_string(), ManagedFields::Keep).unwrap()
}

/// A later version of the object.
fn later(change: impl FnOnce(&mut Value)) -> Object {
    object(|object| {
        object["metadata"]["resourceVersion"] = json!("2");
        change(object);
    })
}

/// The updates of H4, each of which changes one thing.
fn updates() -> Vec<(&'static str, Object)> {
    vec![
        ("nothing", object(|_| {})),
        ("version", later(|_| {})),
        ("status", later(|object| object["status"] = json!({"ready": true}))),
        ("no status", later(|object| drop(object.as_object_mut().unwrap().remove("status")))),
        ("managed fields", later(|object| object["metadata"]["managedFields"] = json!([2]))),
        ("generation", later(|object| object["metadata"]["generation"] = json!(2))),
        ("spec", later(|object| object["spec"]["replicas"] = json!(2))),
        ("labels", later(|object| object["metadata"]["labels"] = json!({"app": "db"}))),
        ("annotations", later(|object| object["metadata"]["annotations"]["a"] = json!("2"))),
        ("finalizers", later(|object| object["metadata"]["finalizers"] = json!(["x"]))),
        ("deletion", later(|object| object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"))),
        (
            "owners",
            later(|object| {
                object["metadata"]["ownerReferences"] =
                    json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]);
            }),
        ),
        ("recreated", later(|object| object["metadata"]["uid"] = json!("u2"))),
    ]
}

#[track_caller]
fn check(predicate: &str, admitted: &[&str]) {
    let predicate: Option<Predicate> = serde_json::from_str(predicate).unwrap();
    let old = object(|_| {});
    let seen: Vec<_> = updates()
        .into_iter()
        .filter(|(_, new)| admits(predicate.as_ref(), Some(&old), Some(new)))
        .map(|(what, _)| what)
        .collect();
    assert_eq!(seen, admitted, "{predicate:?}");
}

const ALL: [&str; 13] = [
    "nothing",
    "version",
    "status",
    "no status",
    "managed fields",
    "generation",
    "spec",
    "labels",
    "annotations",
    "finalizers",
    "deletion",
    "owners",
    "recreated",
];

#[test]
fn h4_by_default_all_but_status_version_and_managed_fields_triggers() {
    check(
        "null",
        &["generation", "spec", "labels", "annotations", "finalizers", "deletion", "owners", "recreated"],
    );
}

#[test]
fn h4_each_predicate_holds_for_its_change() {
    check(r#""generationChanged""#, &["generation", "recreated"]);
    check(r#""labelsChanged""#, &["labels", "recreated"]);
    check(r#""annotationsChanged""#, &["annotations", "recreated"]);
    check(r#""resourceVersionChanged""#, &ALL[1..]);
    check(r#"{"labels":"app=db"}"#, &["labels"]);
    check(r#"{"labels":"app"}"#, &ALL);
    check(r#"{"field":{"pointer":"/spec/replicas","equals":2}}"#, &["spec"]);
    check(r#"{"field":{"pointer":"/spec/paused","equals":null}}"#, &ALL);
    check(r#"{"field":{"pointer":"/spec/none","equals":null}}"#, &ALL);
    check(r#"{"field":{"pointer":"/spec/none","equals":1}}"#, &[]);
    check(r#"{"field":{"pointer":"/status","equals":{"ready":true}}}"#, &["status"]);
}

#[test]
fn h4_and_or_not() {
    check(
        r#"{"any":["labelsChanged",{"field":{"pointer":"/spec/replicas","equals":2}}]}"#,
        &["spec", "labels", "recreated"],
    );
    check(
        r#"{"all":["resourceVersionChanged",{"not":"labelsChanged"},{"not":{"labels":"app=db"}}]}"#,
        &ALL[1..ALL.len() - 1].iter().copied().filter(|what| *what != "labels").collect::<Vec<_>>(),
    );
    check(r#"{"all":[]}"#, &ALL);
    check(r#"{"any":[]}"#, &[]);
    check(r#"{"not":{"any":[]}}"#, &ALL);
}

#[test]
fn creations_and_deletions() {
    let web = object(|_| {});
    for (predicate, admitted) in [
        ("null", true),
        (r#""generationChanged""#, true),
        (r#""labelsChanged""#, true),
        (r#""annotationsChanged""#, true),
        (r#""resourceVersionChanged""#, true),
        (r#"{"labels":"app=web"}"#, true),
        (r#"{"labels":"app=db"}"#, false),
        (r#"{"field":{"pointer":"/spec/replicas","equals":1}}"#, true),
        (r#"{"not":"generationChanged"}"#, false),
    ] {
        let parsed: Option<Predicate> = serde_json::from_str(predicate).unwrap();
        for (old, new) in [(None, Some(&web)), (Some(&web), None)] {
            assert_eq!(admits(parsed.as_ref(), old, new), admitted, "{predicate}");
            assert_eq!(admits_related(parsed.as_ref(), old, new), admitted, "{predicate}");
        }
    }
}

#[test]
fn every_new_version_of_a_related_object_triggers_by_default() {
    let old = object(|_| {});
    for (what, new) in updates() {
        assert_eq!(admits_related(None, Some(&old), Some(&new)), what != "nothing", "{what}");
    }
    let labels = Predicate::LabelsChanged;
    assert!(!admits_related(Some(&labels), Some(&old), Some(&later(|_| {}))));
}

/// C9: an own write of status and finalizers is an echo, everything else with it is not.
#[test]
fn c9_foreign_changes_are_told_from_own_writes() {
    let old = object(|_| {});
    for (writes_metadata, echoes) in [
        (false, &["nothing", "version", "status", "no status", "managed fields", "finalizers"][..]),
        (
            true,
            &[
                "nothing",
                "version",
                "status",
                "no status",
                "managed fields",
                "labels",
                "annotations",
                "finalizers",
            ],
        ),
    ] {
        let seen: Vec<_> = updates()
            .into_iter()
            .filter(|(_, new)| !changed_beyond_own_writes(&old, new, writes_metadata))
            .map(|(what, _)| what)
            .collect();
        assert_eq!(seen, echoes);
    }
}

/// A `ConfigMap` has neither generation nor spec.
#[test]
fn a_kind_without_generation_triggers_by_its_content() {
    let map = |version: &str, data: &str| {
        let text = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": data},
            "metadata": {"name": "a", "uid": "u", "resourceVersion": version}});
        Object::parse(&Gvk::new("", "v1", "ConfigMap"), &text.to_string(), ManagedFields::Strip).unwrap()
    };
    assert!(admits(None, Some(&map("1", "x")), Some(&map("2", "y"))));
    assert!(!admits(None, Some(&map("1", "x")), Some(&map("2", "x"))));
    assert!(!admits(Some(&Predicate::GenerationChanged), Some(&map("1", "x")), Some(&map("2", "y"))));
}

#[test]
fn bad_predicates_are_refused() {
    for bad in [
        r#""changed""#,
        r#"{"labels":"a b"}"#,
        r#"{"field":{"pointer":"/a"}}"#,
        r#"{"field":{"pointer":"/a","equals":1,"more":1}}"#,
        r#"{"all":"generationChanged"}"#,
    ] {
        assert!(serde_json::from_str::<Predicate>(bad).is_err(), "{bad}");
    }
    for (predicate, good) in [
        (r#"{"field":{"pointer":"/a~1b","equals":1}}"#, true),
        (r#"{"all":[{"any":[{"not":{"field":{"pointer":"a","equals":1}}}]}]}"#, false),
        (r#"{"field":{"pointer":"/a~b","equals":1}}"#, false),
    ] {
        assert_eq!(
            serde_json::from_str::<Predicate>(predicate).unwrap().check().is_ok(),
            good,
            "{predicate}"
        );
    }
}

fn predicates() -> impl Strategy<Value = Predicate> {
    let leaf = prop_oneof![
        Just(Predicate::GenerationChanged),
        Just(Predicate::LabelsChanged),
        Just(Predicate::AnnotationsChanged),
        Just(Predicate::ResourceVersionChanged),
        prop::sample::select(vec!["", "app=web", "app!=web"])
            .prop_map(|text| Predicate::Labels(text.parse().unwrap())),
        (0..3).prop_map(|value| Predicate::Field {
            pointer: "/spec/replicas".to_owned(),
            equals: json!(value)
        }),
    ];
    leaf.prop_recursive(4, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Predicate::All),
            prop::collection::vec(inner.clone(), 0..3).prop_map(Predicate::Any),
            inner.prop_map(|inner| Predicate::Not(Box::new(inner))),
        ]
    })
}

proptest! {
    #[test]
    fn predicates_round_trip_and_obey_de_morgan(one in predicates(), other in predicates()) {
        let json = serde_json::to_string(&one).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Predicate>(&json).unwrap(), &one);
        let not = |predicate: &Predicate| Predicate::Not(Box::new(predicate.clone()));
        let all = not(&Predicate::All(vec![one.clone(), other.clone()]));
        let any = Predicate::Any(vec![not(&one), not(&other)]);
        let old = object(|_| {});
        for (what, new) in updates() {
            prop_assert_eq!(admits(Some(&all), Some(&old), Some(&new)), admits(Some(&any), Some(&old), Some(&new)), "{}", what);
        }
    }
}
