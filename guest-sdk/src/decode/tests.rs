use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only the shape matters")]
struct Doc {
    spec: Spec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only the shape matters")]
struct Spec {
    html: String,
    #[serde(default)]
    replicas: u8,
    #[serde(default)]
    ports: Vec<Port>,
    #[serde(default)]
    mode: Option<Mode>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only the shape matters")]
struct Port {
    number: u16,
}

#[derive(Debug, Deserialize)]
enum Mode {
    Fast,
}

#[track_caller]
fn check(json: &str, expected: &str) {
    let error = super::object::<Doc>("", json).unwrap_err();
    assert_eq!(error.message(), expected);
    assert_eq!(error.code(), "INVALID_OBJECT");
    assert!(!error.is_transient());
}

#[test]
fn the_path_and_never_the_value_is_named() {
    check(
        r#"{"spec":{"html":"x","replicas":"hunter2"}}"#,
        "spec.replicas: invalid type: string, expected u8",
    );
    check(r#"{"spec":{"html":"x","replicas":300}}"#, "spec.replicas: invalid value: integer, expected u8");
    check(r#"{"spec":{"html":{"a":1}}}"#, "spec.html: invalid type: map, expected a string");
    check(r#"{"spec":{"html":["x, y"]}}"#, "spec.html: invalid type: sequence, expected a string");
    check(r#"{"spec":{"html":null}}"#, "spec.html: invalid type: null, expected a string");
    check(r#"{"spec":{"html":true}}"#, "spec.html: invalid type: boolean, expected a string");
    check(r#"{"spec":{"replicas":1}}"#, "spec: missing field `html`");
    check(r#"{"kind":"Doc"}"#, "missing field `spec`");
    check(r#"{"spec":{"html":"x","mode":"Slow"}}"#, "spec.mode: unknown variant, expected `Fast`");
    check(
        r#"{"spec":{"html":"x, \"y\": [","ports":[{"number":1},{"number":70000}]}}"#,
        "spec.ports[1].number: invalid value: integer, expected u16",
    );
    check(
        r#"{"spec":{"html":"x","ports":[{"number":1,"name":"a"}]}}"#,
        "spec.ports[0].name: unknown field `name`, expected `number`",
    );
    check(
        r#"{"spec":{"html":"x","labels":{"a":"b","c":7}}}"#,
        "spec.labels.c: invalid type: integer, expected a string",
    );
    check("[1]", "[0]: invalid type: integer, expected struct Spec");
}

#[test]
fn lines_do_not_matter() {
    check(
        "{\n  \"spec\": {\n    \"html\": \"x\",\n    \"replicas\": -1\n  }\n}",
        "spec.replicas: invalid value: integer, expected u8",
    );
}

#[test]
fn another_object_is_named() {
    let error = super::object::<Doc>("Deployment web/a", r#"{"spec":1}"#).unwrap_err();
    assert_eq!(error.message(), "Deployment web/a: spec: invalid type: integer, expected struct Spec");
    assert_eq!(error.details(), [("path".to_owned(), "spec".to_owned())]);
}

#[test]
fn what_an_author_says_stays_as_it_is() {
    let error =
        crate::Error::from(<serde_json::Error as serde::de::Error>::custom("no two ports may be equal"));
    assert_eq!(error.message(), "no two ports may be equal");
}
