use reeve_core::gvk::Scope;
use serde_json::json;

use super::*;

fn kind(group: &str, kind: &str, plural: &str) -> Kind {
    let gvk = Gvk::new(group, "v1", kind);
    Kind { gvk, plural: plural.into(), scope: Scope::Namespaced, verbs: Vec::new(), subresources: Vec::new() }
}

fn refusal(code: u16, body: &serde_json::Value, retry_after: Option<&str>) -> Refusal {
    let mut headers = HeaderMap::new();
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, seconds.parse().unwrap());
    }
    Refusal::read(StatusCode::from_u16(code).unwrap(), &headers, body.to_string().as_bytes())
}

fn status(reason: &str, message: &str, causes: &serde_json::Value) -> serde_json::Value {
    json!({"kind": "Status", "reason": reason, "message": message, "details": {"causes": causes}})
}

#[track_caller]
fn check(code: u16, body: &serde_json::Value, expected: (&str, &str, bool), text: &str) {
    let kind = kind("apps", "Deployment", "deployments");
    let name = ObjectName::namespaced("web", "a");
    let tried = Tried { verb: "apply", kind: &kind, name: &name, subresource: None };
    let failure = refusal(code, body, None).failure(tried);
    assert_eq!((&*failure.code, &*failure.category, failure.transient), expected);
    assert!(failure.message.contains(text), "{}", failure.message);
    assert!(failure.message.starts_with("failed to apply Deployment.apps web/a: "), "{}", failure.message);
}

#[test]
fn each_answer_becomes_the_failure_that_it_means() {
    let none = json!([]);
    let invalid = status(
        "Invalid",
        "Deployment.apps \"a\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0",
        &json!([{"field": "spec.replicas", "reason": "FieldValueInvalid", "message": "Invalid value: -1"}]),
    );
    check(422, &invalid, ("INVALID_WRITE", "validation", false), "spec.replicas: Invalid value: -1");
    let typed = json!({"kind": "Status", "message": "failed to create typed patch object (/a; apps/v1, Kind=Deployment): .spec.x: field not declared in schema"});
    check(500, &typed, ("INVALID_WRITE", "validation", false), ".spec.x: field not declared in schema");
    check(500, &status("InternalError", "boom", &none), ("API_UNAVAILABLE", "network", true), "boom");
    check(409, &status("Conflict", "modified", &none), ("CONFLICT", "conflict", true), "modified");
    check(409, &status("AlreadyExists", "exists", &none), ("ALREADY_EXISTS", "conflict", false), "exists");
    check(
        404,
        &status("NotFound", "namespaces \"x\" not found", &none),
        ("NOT_FOUND", "not-found", true),
        "namespaces",
    );
    check(
        404,
        &json!("404 page not found"),
        ("KIND_NOT_SERVED", "dependency", true),
        "CustomResourceDefinition",
    );
    check(429, &status("TooManyRequests", "slow", &none), ("TOO_MANY_REQUESTS", "quota", true), "slow");
    check(503, &json!("<html>"), ("API_UNAVAILABLE", "network", true), "answered 503");
    check(401, &status("Unauthorized", "Unauthorized", &none), ("FORBIDDEN", "auth", true), "credentials");
}

#[test]
fn the_four_senses_of_403_are_told_apart() {
    let none = json!([]);
    let rbac = "deployments.apps \"a\" is forbidden: User \"u\" cannot patch resource \"deployments\" in API group \"apps\" in the namespace \"web\"";
    let rule =
        "the rule to add: apiGroups [\"apps\"], resources [\"deployments\"], verbs [\"create\", \"patch\"]";
    check(403, &status("Forbidden", rbac, &none), ("FORBIDDEN", "permission", true), rule);
    check(
        403,
        &status("Forbidden", "exceeded quota: q", &none),
        ("QUOTA_EXCEEDED", "quota", true),
        "exceeded quota",
    );
    let ending = status("Forbidden", "unable to create", &json!([{"reason": "NamespaceTerminating"}]));
    check(403, &ending, ("NAMESPACE_TERMINATING", "dependency", true), "unable to create");
    let policy = status("Forbidden", "admission webhook \"p\" denied the request: no", &none);
    check(403, &policy, ("FORBIDDEN", "permission", false), "denied the request");
}

#[test]
fn values_of_a_secret_stay_out_of_the_text() {
    let kind = kind("", "Secret", "secrets");
    let name = ObjectName::namespaced("web", "a");
    let tried = Tried { verb: "apply", kind: &kind, name: &name, subresource: None };
    let body = status(
        "Invalid",
        "Secret \"a\" is invalid: data[k]: Invalid value: \"hunter2\"",
        &json!([{"field": "data[k]", "reason": "FieldValueInvalid", "message": "Invalid value: \"hunter2\""}]),
    );
    let text = format!("{:?}", refusal(422, &body, None).failure(tried));
    assert!(text.contains("data[k]: FieldValueInvalid") && !text.contains("hunter2"), "{text}");
}

#[test]
fn retry_after_is_believed_within_reason() {
    let body = json!({"kind": "Status", "details": {"retryAfterSeconds": 7}});
    assert_eq!(refusal(429, &body, None).retry_after, Some(Duration::from_secs(7)));
    assert_eq!(refusal(429, &body, Some("3")).retry_after, Some(Duration::from_secs(3)));
    assert_eq!(refusal(429, &body, Some("86400")).retry_after, Some(MAX_RETRY_AFTER));
    assert_eq!(refusal(503, &json!({}), None).retry_after, None);
    assert!(refusal(503, &json!({}), None).is_outage() && !refusal(503, &json!({}), Some("1")).is_outage());
}

#[test]
fn a_failed_test_is_not_an_invalid_object() {
    let message = "the server rejected our request due to an error in our request";
    assert!(refusal(422, &status("Invalid", message, &json!([])), None).is_failed_test());
    let invalid = status("Invalid", "x is invalid", &json!([{"field": "metadata.finalizers"}]));
    assert!(!refusal(422, &invalid, None).is_failed_test());
    let other = status("Invalid", "x is invalid", &json!([{"field": "metadata.uid"}]));
    assert!(refusal(422, &other, None).is_other_life());
}

#[test]
fn fields_of_another_manager_are_not_a_stale_version() {
    let causes = json!([{"reason": "FieldManagerConflict", "field": ".data.k", "message": "conflict with \"kubectl\""}]);
    let conflict = refusal(409, &status("Conflict", "Apply failed with 1 conflict", &causes), None);
    assert!(!conflict.is_conflict());
    assert!(refusal(409, &status("Conflict", "modified", &json!([])), None).is_conflict());
}

#[test]
fn long_texts_are_cut_at_a_character() {
    assert_eq!(cut("aé", 2), "a");
    assert_eq!(cut("aé", 3), "aé");
}
