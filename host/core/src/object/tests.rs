use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn website() -> Gvk {
    Gvk::new("example.dev", "v1", "Website")
}

fn full() -> Value {
    json!({
        "apiVersion": "example.dev/v1",
        "kind": "Website",
        "metadata": {
            "annotations": {"note": "metadata: {\"managedFields\": 1}"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": "2026-01-02T00:00:00Z",
            "finalizers": ["reeve.dev/website", "x"],
            "generation": 3,
            "labels": {"app": "web", "tier": ""},
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}],
            "name": "site",
            "namespace": "web",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "u1"},
                {"apiVersion": "apps/v1", "kind": "Deployment", "name": "b", "uid": "0cdb8d1c-6a3e-4a53-9a43-4b1b0d3f2f11", "controller": true},
            ],
            "resourceVersion": "4711",
            "uid": "9b2f5d3e-0000-4a53-9a43-4b1b0d3f2f11",
        },
        "spec": {"metadata": {"managedFields": []}},
        "status": {"kind": "x"},
    })
}

fn parse(value: &Value) -> Object {
    Object::parse(&website(), &value.to_string(), ManagedFields::Strip).unwrap()
}

#[test]
fn metadata_is_parsed() {
    let object = parse(&full());
    let meta = object.meta();
    assert_eq!(meta.name, ObjectName::namespaced("web", "site"));
    assert_eq!(meta.uid.as_str(), "9b2f5d3e-0000-4a53-9a43-4b1b0d3f2f11");
    assert_eq!((meta.resource_version, meta.generation, meta.deleting), (ResourceVersion(4711), 3, true));
    assert_eq!((meta.label("app"), meta.label("tier"), meta.label("none")), (Some("web"), Some(""), None));
    assert_eq!(meta.labels.iter().collect::<Vec<_>>(), [("app", "web"), ("tier", "")]);
    assert!(meta.has_finalizer("x") && !meta.has_finalizer("y"));
    let owner = meta.controller().unwrap();
    assert_eq!((owner.api_version(), owner.kind(), owner.name()), ("apps/v1", "Deployment", "b"));
    assert!(
        owner.is_of(&Gvk::new("apps", "v1beta1", "Deployment"))
            && !owner.is_of(&Gvk::new("", "v1", "Deployment"))
    );
    assert_eq!(owner.group_kind(), Gvk::new("apps", "v1", "Deployment").group_kind());
    assert_eq!(meta.owners[0].uid().as_str(), "u1");
    assert!(meta.owners[0].is_of(&Gvk::new("", "v1", "ConfigMap")));
    assert_eq!(object.pointer("/metadata/labels/app"), Some("\"web\""));
}

#[test]
fn managed_fields_go_wherever_they_stand_and_only_those_of_the_object() {
    let others = [r#""name":"a""#, r#""uid":"u""#, r#""resourceVersion":"1""#];
    for place in 0..=others.len() {
        let mut members = others.to_vec();
        members.insert(place, r#""managedFields" : [{"a":"}]"}] "#);
        for (open, close) in [("", ""), (" ", "\n")] {
            let json = format!(
                "{open}{{ \"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\": {{{}}} ,\"managedFields\":1}}{close}",
                members.join(",")
            );
            let pod = Gvk::new("", "v1", "Pod");
            let object = Object::parse(&pod, &json, ManagedFields::Strip).unwrap();
            let mut expected: Value = serde_json::from_str(&json).unwrap();
            expected["metadata"].as_object_mut().unwrap().remove("managedFields");
            assert_eq!(serde_json::from_str::<Value>(object.json()).unwrap(), expected);
            let kept = Object::parse(&pod, &json, ManagedFields::Keep).unwrap();
            assert_eq!(kept.json(), json.trim());
        }
    }
    let only = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"managedFields":[]}}"#;
    let error = Object::parse(&Gvk::new("", "v1", "Pod"), only, ManagedFields::Strip).unwrap_err();
    assert_eq!(error.to_string(), "failed to read the object: metadata.name is missing or not usable");
}

#[test]
fn items_of_a_list_get_their_kind() {
    for missing in [&["apiVersion", "kind"][..], &["apiVersion"], &["kind"]] {
        let mut item = full();
        for key in missing {
            item.as_object_mut().unwrap().remove(*key);
        }
        let object = parse(&item);
        assert_eq!(
            (object.pointer("/apiVersion"), object.pointer("/kind")),
            (Some("\"example.dev/v1\""), Some("\"Website\""))
        );
        assert_eq!(
            serde_json::from_str::<Value>(object.json()).unwrap(),
            serde_json::from_str::<Value>(parse(&full()).json()).unwrap()
        );
    }
}

#[test]
fn other_things_are_refused() {
    for (change, expected) in [
        (json!({"kind": "Table"}), "expected Website.v1.example.dev, found Table.example.dev/v1"),
        (json!({"apiVersion": "v1", "kind": "Status"}), "expected Website.v1.example.dev, found Status.v1"),
        (json!({"metadata": null}), "metadata is missing or not usable"),
        (
            json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "x1"}}),
            "metadata.resourceVersion is missing",
        ),
        (json!({"metadata": {"name": "a", "uid": "", "resourceVersion": "1"}}), "metadata.uid is missing"),
        (json!({"metadata": {"name": 1}}), "expected a string"),
        (json!({"metadata": []}), "expected the metadata of an object"),
    ] {
        let mut object = full();
        object.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let error =
            Object::parse(&website(), &object.to_string(), ManagedFields::Strip).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    for text in ["", "[]", "1", "{\"a\":}", "{} {}"] {
        assert!(Object::parse(&website(), text, ManagedFields::Strip).is_err(), "{text:?}");
    }
}

/// Object bodies never reach error texts.
#[test]
fn errors_say_nothing_of_the_content() {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "data": {"password": "aHVudGVyMg=="}, "metadata": {"name": "s"}});
    let error =
        Object::parse(&Gvk::new("", "v1", "Secret"), &secret.to_string(), ManagedFields::Strip).unwrap_err();
    assert!(!error.to_string().contains("aHVudGVyMg"));
    let broken = secret.to_string().replace("\"metadata\"", "metadata");
    let error = Object::parse(&Gvk::new("", "v1", "Secret"), &broken, ManagedFields::Strip).unwrap_err();
    assert!(!error.to_string().contains("aHVudGVyMg"), "{error}");
}

#[test]
fn metadata_only_objects_have_the_kind_of_the_object() {
    let mut partial = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"});
    partial["metadata"] = full()["metadata"].clone();
    let mut item = partial.clone();
    item.as_object_mut().unwrap().retain(|key, _| key == "metadata");
    let full = parse(&full());
    let expected: Value = serde_json::from_str(full.to_metadata(&website()).json()).unwrap();
    assert_eq!(expected.pointer("/metadata/name"), Some(&json!("site")));
    assert_eq!(expected.as_object().unwrap().keys().collect::<Vec<_>>(), ["apiVersion", "kind", "metadata"]);
    for each in [partial.clone(), item] {
        let object = Object::parse_metadata(&website(), &each.to_string(), ManagedFields::Strip).unwrap();
        assert_eq!(serde_json::from_str::<Value>(object.json()).unwrap(), expected);
        assert_eq!(object.meta(), full.meta());
    }
    let kept = Object::parse_metadata(&website(), &partial.to_string(), ManagedFields::Keep).unwrap();
    assert!(kept.pointer("/metadata/managedFields").is_some());
    partial["kind"] = json!("Website");
    assert!(Object::parse_metadata(&website(), &partial.to_string(), ManagedFields::Strip).is_err());
}

/// The shortcut to the usual parts finds what a walk through the whole text finds.
#[test]
fn pointers_into_the_usual_parts() {
    let mut objects = vec![full(), json!({"metadata": full()["metadata"], "spec": null, "data": {"a": 1}})];
    objects
        .push(json!({"status": {}, "kind": "Website", "spec": [1], "metadata": full()["metadata"], "z": 1}));
    for (value, managed) in
        objects.iter().flat_map(|value| [(value, ManagedFields::Strip), (value, ManagedFields::Keep)])
    {
        for text in [value.to_string(), format!(" {value:#}\n")] {
            let object = Object::parse(&website(), &text, managed).unwrap();
            for pointer in [
                "",
                "/",
                "/metadata",
                "/metadata/name",
                "/metadata/managedFields",
                "/metadata/uid",
                "/spec",
                "/spec/0",
                "/spec/metadata/managedFields",
                "/specs",
                "/status",
                "/status/kind",
                "/data/a",
                "/kind",
                "/z",
                "spec",
                "/metadata/",
            ] {
                assert_eq!(
                    object.pointer(pointer),
                    crate::json::pointer(object.json(), pointer),
                    "{pointer} of {text}"
                );
                assert_eq!(object.pointer_each(pointer), crate::json::pointer_each(object.json(), pointer));
            }
        }
    }
    let only = parse(&full()).to_metadata(&website());
    assert_eq!((only.pointer("/metadata/name"), only.pointer("/spec")), (Some("\"site\""), None));
}

/// What 50,000 objects of 2 KB may take is 1.5 times their bytes, maps included: metadata that
/// takes more than a quarter leaves the maps too little.
#[test]
fn metadata_is_small_beside_an_object_of_2_kb() {
    let mut object = full();
    object["spec"] = json!({"html": "x".repeat(1_365)});
    let parsed = parse(&object);
    let bytes = parsed.json().len();
    assert!((1_900..2_100).contains(&bytes), "{bytes}");
    assert!(parsed.size() - bytes < 512, "{}", parsed.size() - bytes);
}

#[test]
fn uids_are_equal_by_their_text() {
    let uuid = "9b2f5d3e-0000-4a53-9a43-4b1b0d3f2f11";
    assert_eq!(Uid::new(uuid), Uid::new(uuid));
    assert_eq!(Uid::new(uuid).to_string(), uuid);
    assert_eq!(Uid::new("é").as_str(), "é");
    assert_ne!(Uid::new("a"), Uid::new("b"));
}

proptest! {
    /// Against the way that builds a tree.
    #[test]
    fn parsing_agrees_with_a_tree(
        labels in prop::collection::btree_map(any::<String>(), any::<String>(), 0..5),
        name in "[a-z]{1,8}|\\PC{1,8}",
        namespace in prop::option::of("[a-z]{1,8}"),
        finalizers in prop::option::of(prop::collection::vec(any::<String>(), 0..3)),
        owners in prop::collection::vec((any::<String>(), any::<String>(), any::<String>(), any::<String>(), any::<Option<bool>>()), 0..3),
        version in any::<u64>(),
        generation in any::<Option<u64>>(),
        deleting in any::<bool>(),
        managed in any::<Option<bool>>(),
        kinds in any::<bool>(),
        pretty in any::<bool>(),
    ) {
        let mut object = json!({"metadata": {"name": name, "uid": "u", "resourceVersion": version.to_string(), "labels": labels}});
        if kinds {
            object["apiVersion"] = json!("example.dev/v1");
            object["kind"] = json!("Website");
        }
        let metadata = object["metadata"].as_object_mut().unwrap();
        let mut set = |key: &str, value: Option<Value>| value.map(|value| metadata.insert(key.to_owned(), value));
        set("namespace", namespace.clone().map(Value::from));
        set("finalizers", finalizers.clone().map(Value::from));
        set("generation", generation.map(Value::from));
        set("deletionTimestamp", deleting.then(|| json!("2026-01-01T00:00:00Z")));
        set("managedFields", managed.map(|some| if some { json!([{"manager": "a"}]) } else { json!([]) }));
        set("ownerReferences", (!owners.is_empty()).then(|| owners.iter().map(|(version, kind, name, uid, controller)| {
            json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": controller})
        }).collect()));
        let text = if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) }.unwrap();
        let parsed = Object::parse(&website(), &text, ManagedFields::Strip).unwrap();

        object["metadata"].as_object_mut().unwrap().remove("managedFields");
        object["apiVersion"] = json!("example.dev/v1");
        object["kind"] = json!("Website");
        prop_assert_eq!(serde_json::from_str::<Value>(parsed.json()).unwrap(), object);
        let meta = parsed.meta();
        prop_assert_eq!(&*meta.name.name, name);
        prop_assert_eq!(meta.name.namespace.as_deref(), namespace.as_deref());
        prop_assert_eq!((meta.resource_version.0, meta.generation, meta.deleting), (version, generation.unwrap_or(0), deleting));
        let pairs = labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        prop_assert_eq!(meta.labels.iter().collect::<Vec<_>>(), pairs.collect::<Vec<_>>());
        prop_assert_eq!(meta.finalizers.iter().map(|each| &**each).collect::<Vec<_>>(), finalizers.unwrap_or_default());
        let seen: Vec<_> = meta.owners.iter().map(|owner| {
            (owner.api_version().to_owned(), owner.kind().to_owned(), owner.name().to_owned(), owner.uid().to_string(), Some(owner.controller()))
        }).collect();
        let expected: Vec<_> = owners.into_iter().map(|(a, b, c, d, controller)| (a, b, c, d, Some(controller.unwrap_or(false)))).collect();
        prop_assert_eq!(seen, expected);
    }
}
