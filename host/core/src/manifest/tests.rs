use serde_json::{Value, json};

use super::{Manifest, ManifestError};

/// The document that the SDK's tests compare with what an author's calls give.
const EXAMPLE: &str = include_str!("../../../../wit/0.1.0/manifest.example.json");

fn example() -> Value {
    serde_json::from_str(EXAMPLE).unwrap()
}

#[test]
fn every_field_of_the_contracts_example_is_read_and_kept() {
    let manifest = Manifest::parse(EXAMPLE).unwrap();
    let mut kept = serde_json::to_value(&manifest).unwrap();
    // Defaults are written out, so what is compared is what the example says.
    let mut stated = example();
    for document in [&mut kept, &mut stated] {
        for watch in document["watches"].as_array_mut().unwrap() {
            watch.as_object_mut().unwrap().entry("metadataOnly").or_insert(json!(false));
        }
        for write in document["writes"].as_array_mut().unwrap() {
            let verbs = write["verbs"].as_array_mut().unwrap();
            verbs.sort_by_key(Value::to_string);
        }
    }
    assert_eq!(kept, stated);
}

#[test]
fn three_fields_are_enough() {
    let text = r#"{"name":"a","version":"1","primary":{"apiVersion":"v1","kind":"ConfigMap"}}"#;
    let manifest = Manifest::parse(text).unwrap();
    assert_eq!(manifest.limits.memory_mib, 64);
    assert_eq!(manifest.retry.max_attempts, 5);
    assert_eq!(manifest.resync.as_secs(), 36_000);
}

#[track_caller]
fn check_refused(pointer: &str, key: &str, value: Value, expected: &str) {
    let mut document = example();
    document.pointer_mut(pointer).unwrap()[key] = value;
    let error = Manifest::parse(&document.to_string()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn an_unknown_field_asks_for_a_newer_host() {
    check_refused("", "shards", json!(3), "a newer host is needed");
    check_refused("/limits", "gpus", json!(3), "a newer host is needed");
    check_refused("/watches/0", "relation", json!("cousin"), "a newer host is needed");
}

#[test]
fn what_contradicts_itself_is_refused_by_name() {
    check_refused("", "version", json!(""), "`version`");
    check_refused("", "name", json!("Not A Label"), "not a DNS label");
    check_refused("/primary", "apiVersion", json!("a/b/c"), "`primary`");
    check_refused("/watches/1/relation", "index", json!("none"), "which `indexes` does not declare");
    check_refused("/watches/5", "name", json!("zones"), "two watches are called \"zones\"");
    check_refused("/indexes/0", "pointer", json!("spec"), "does not begin with '/'");
    let config = example()["indexes"][0].clone();
    let job = json!({ "name": "x", "apiVersion": "batch/v1", "kind": "Job", "pointer": "/x" });
    check_refused("", "indexes", json!([config, job]), "which is not watched");
    check_refused("/limits", "memoryMib", json!(0), "`limits.memoryMib`");
    check_refused("/retry", "capMs", json!(1), "`retry`");
    check_refused("/primary", "labels", json!("a in b"), "label selector");
    // "Never" by the largest number would overflow the timers: 0 is never.
    check_refused("", "resyncSeconds", json!(u64::MAX), "`resyncSeconds`");
    check_refused("", "finalizerLimitSeconds", json!(u64::MAX), "`finalizerLimitSeconds`");
}

#[test]
fn what_is_no_document_is_refused() {
    assert!(matches!(Manifest::parse("nothing"), Err(ManifestError::Json(_))));
    let large = " ".repeat(super::MAX_MANIFEST_BYTES + 1);
    assert!(matches!(Manifest::parse(&large), Err(ManifestError::TooLarge(_))));
}
