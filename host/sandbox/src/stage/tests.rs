use reeve_core::grant::{Ceiling, Grant};
use reeve_core::manifest::Manifest;
use reeve_core::plan::{ConditionStatus, Propagation, WaitTarget, WaitUntil, WriteAction};
use serde_json::{Value, json};

use super::*;

fn grant() -> Grant {
    let manifest = json!({
        "name": "test", "version": "1",
        "primary": {"apiVersion": "test.reeve.dev/v1", "kind": "Thing"},
        "watches": [
            {"apiVersion": "apps/v1", "kind": "Deployment", "relation": "owned"},
            {"apiVersion": "v1", "kind": "Pod", "relation": "read"},
        ],
        "writes": [
            {"apiVersion": "v1", "kind": "Pod", "verbs": ["create", "apply", "patch", "delete"]},
            {"apiVersion": "v1", "kind": "Pod", "verbs": ["create"], "subresources": ["eviction"]},
        ],
    });
    let manifest = Manifest::parse(&manifest.to_string()).expect("a manifest");
    Grant::effective(&manifest, false, &Ceiling::default_in("reeve-system")).expect("a grant")
}

fn primary() -> ObjectName {
    ObjectName::namespaced("web", "x")
}

fn staging() -> Staging {
    Staging::new(Limits::default())
}

/// Stages one thing; the plan, or the refusal's code and message.
fn plan(stage: impl FnOnce(&mut Staging) -> Staged) -> Result<Plan, (String, String)> {
    let mut staging = staging();
    let staged = stage(&mut staging).expect("no limit is reached");
    staged.map(|()| staging.into_plan()).map_err(|failure| (failure.code, failure.message))
}

#[track_caller]
fn refused(result: Result<Plan, (String, String)>, code: &str, part: &str) {
    let (found, message) = result.expect_err("it was taken");
    assert_eq!(found, code, "{message}");
    assert!(message.contains(part), "{part:?} is not in {message:?}");
}

fn child(object: &Value, options: &[(&str, &str)]) -> Result<Plan, (String, String)> {
    let options: Vec<_> =
        options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    plan(|staging| staging.child(&object.to_string(), &options, &primary(), &grant()))
}

fn deployment(metadata: &Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 1}})
}

#[test]
fn a_child_is_in_its_owners_namespace() {
    let plan = child(&deployment(&json!({"name": "a"})), &[("adopt", "true")]).expect("a plan");
    assert_eq!(plan.children[0].name, ObjectName::namespaced("web", "a"));
    assert!(plan.children[0].adopt);
    let elsewhere = deployment(&json!({"name": "a", "namespace": "other"}));
    refused(child(&elsewhere, &[]), code::CROSS_NAMESPACE_OWNER, "in namespace other");
}

#[test]
fn a_child_that_is_not_usable_is_refused_with_the_field() {
    let invalid = code::INVALID_ARGUMENT;
    refused(child(&json!([]), &[]), invalid, "is not readable");
    refused(child(&json!({"kind": "Deployment"}), &[]), invalid, "`apiVersion`");
    refused(child(&json!({"apiVersion": "apps/v1"}), &[]), invalid, "`kind`");
    refused(child(&deployment(&json!({})), &[]), invalid, "`metadata.name`");
    refused(child(&deployment(&json!({"name": "a/b"})), &[]), invalid, "\"a/b\"");
    refused(child(&deployment(&json!({"name": ".."})), &[]), invalid, "\"..\"");
    refused(
        child(&json!({"apiVersion": "a/b/c", "kind": "D", "metadata": {"name": "a"}}), &[]),
        invalid,
        "a/b/c",
    );
    refused(child(&deployment(&json!({"name": "a"})), &[("prune", "true")]), invalid, "`prune`");
    refused(child(&deployment(&json!({"name": "a"})), &[("adopt", "yes")]), invalid, "\"yes\"");
}

#[test]
fn a_document_that_no_api_server_takes_is_refused() {
    let huge = deployment(&json!({"name": "a", "annotations": {"a": "x".repeat(MAX_DOCUMENT)}}));
    refused(child(&huge, &[]), code::INVALID_ARGUMENT, "an API server takes 3145728");
}

#[test]
fn a_child_of_a_kind_that_is_not_owned_is_refused_by_name() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
    refused(child(&pod, &[]), code::NOT_DECLARED, "Pod.v1");
}

#[test]
fn a_later_child_of_the_same_name_replaces() {
    let mut staging = staging();
    for replicas in 1..=2 {
        let mut object = deployment(&json!({"name": "a"}));
        object["spec"]["replicas"] = replicas.into();
        staging.child(&object.to_string(), &[], &primary(), &grant()).expect("no limit").expect("staged");
    }
    staging.children_complete();
    let plan = staging.into_plan();
    assert!(plan.complete);
    assert_eq!(plan.children.len(), 1);
    assert_eq!(plan.children[0].body["spec"]["replicas"], 2);
}

#[test]
fn status_patches_merge_in_order() {
    let mut staging = staging();
    for patch in [
        json!({"a": {"b": 1, "c": 1}, "d": 1}),
        json!({"a": {"b": null}, "d": {"e": 2}}),
        json!({"a": {"f": [1]}}),
    ] {
        staging.status(&patch.to_string()).expect("no limit").expect("staged");
    }
    let expected = json!({"a": {"b": null, "c": 1, "f": [1]}, "d": {"e": 2}});
    assert_eq!(staging.into_plan().status.map(Value::Object), Some(expected));
}

#[test]
fn the_hosts_own_fields_are_refused() {
    let invalid = code::INVALID_ARGUMENT;
    refused(plan(|s| s.status(r#"{"conditions":[]}"#)), invalid, "set-condition");
    refused(plan(|s| s.status(r#"{"observedGeneration":1}"#)), invalid, "observedGeneration");
    refused(plan(|s| s.status("3")), invalid, "is not readable");
    let condition = |kind: &str, status: &'static str, reason: &str| {
        let (kind, reason) = (kind.to_owned(), reason.to_owned());
        plan(move |s| s.condition(kind, status, reason, ""))
    };
    refused(condition("Stalled", "True", "R"), invalid, "the host's");
    refused(condition("Reconciled", "True", "R"), invalid, "the host's");
    refused(condition("Ready", "true", "R"), invalid, "\"true\"");
    refused(condition("", "True", "R"), invalid, "type");
    refused(condition("Ready", "True", "no word"), invalid, "no word");
    refused(condition("Ready", "True", ""), invalid, "reason");
    let plan = condition("example.com/Ready", "Unknown", "Because_1").expect("a plan");
    assert_eq!(plan.conditions[0].status, ConditionStatus::Unknown);
}

#[test]
fn a_later_condition_of_the_same_type_replaces() {
    let mut staging = staging();
    for status in ["False", "True"] {
        let staged = staging.condition("Ready".into(), status, "R".into(), "m");
        staged.expect("no limit").expect("staged");
    }
    let plan = staging.into_plan();
    assert_eq!((plan.conditions.len(), plan.conditions[0].status), (1, ConditionStatus::True));
}

#[test]
fn events_are_cut_to_what_the_api_takes() {
    let plan =
        plan(|s| s.event("Warning", "Failed".into(), String::new(), &"é".repeat(2_000))).expect("a plan");
    let event = &plan.events[0];
    assert_eq!((event.warning, event.action.as_str(), event.note.len()), (true, "Failed", 1_024));
    let invalid = code::INVALID_ARGUMENT;
    refused(self::plan(|s| s.event("Info", "R".into(), "A".into(), "")), invalid, "\"Info\"");
    refused(self::plan(|s| s.event("Normal", String::new(), "A".into(), "")), invalid, "reason");
    refused(self::plan(|s| s.event("Normal", "R".repeat(129), "A".into(), "")), invalid, "129 bytes");
}

fn write(id: Option<&str>, request: &Value) -> Result<Plan, (String, String)> {
    plan(|staging| staging.write(id.map(str::to_owned), &request.to_string(), &primary(), &grant()))
}

fn pod(verb: &str, rest: &Value) -> Value {
    let mut request = json!({"verb": verb, "apiVersion": "v1", "kind": "Pod"});
    if let (Some(request), Some(rest)) = (request.as_object_mut(), rest.as_object()) {
        request.extend(rest.clone());
    }
    request
}

#[test]
fn writes_are_read_as_they_are_meant() {
    let one = |request: &Value| write(None, request).expect("a plan").writes.remove(0);
    let create = one(&pod("create", &json!({"body": {"metadata": {"generateName": "p-"}}})));
    let WriteAction::Create { body, generate_name } = create.action else { panic!("no create") };
    assert!(generate_name);
    assert_eq!((body["apiVersion"].as_str(), body["kind"].as_str()), (Some("v1"), Some("Pod")));
    assert_eq!(create.name, ObjectName::namespaced("web", "p-"));

    let apply = one(&pod("apply", &json!({"name": "p", "namespace": "", "body": {}, "force": true})));
    assert_eq!(apply.name, ObjectName::cluster("p"));
    assert!(matches!(apply.action, WriteAction::Apply { force: true, .. }));

    let patch =
        one(&pod("json-patch", &json!({"name": "p", "body": [], "resourceVersion": "7", "uid": "u"})));
    assert!(matches!(patch.action, WriteAction::JsonPatch { .. }));
    assert_eq!(
        (patch.resource_version.map(|v| v.0), patch.uid.map(|u| u.to_string())),
        (Some(7), Some("u".into()))
    );

    let delete = one(&pod("delete", &json!({"name": "p", "propagation": "orphan", "dryRun": true})));
    assert_eq!(delete.action, WriteAction::Delete { propagation: Propagation::Orphan });
    assert!(delete.dry_run);

    let evict = json!({"name": "p", "subresource": "eviction", "body": {"apiVersion": "policy/v1", "kind": "Eviction"}});
    let evict = one(&pod("create", &evict));
    assert_eq!(evict.subresource.as_deref(), Some("eviction"));
    let WriteAction::Create { body, .. } = evict.action else { panic!("no create") };
    assert_eq!(body["kind"], "Eviction", "the body of a subresource is of its own kind");
}

#[test]
fn writes_that_contradict_themselves_are_refused() {
    let invalid = code::INVALID_ARGUMENT;
    for (request, part) in [
        (json!({"verb": "replace", "apiVersion": "v1", "kind": "Pod"}), "unknown variant `replace`"),
        (pod("delete", &json!({"name": "p", "grace": 1})), "unknown field `grace`"),
        (pod("create", &json!({"body": {}})), "names no object"),
        (pod("create", &json!({"name": "p"})), "needs a JSON object"),
        (pod("create", &json!({"name": "p", "body": {}, "uid": "u"})), "do not go with verb create"),
        (pod("create", &json!({"name": "p", "body": {"metadata": {"name": "q"}}})), "make them equal"),
        (pod("apply", &json!({"name": "p", "body": {"kind": "Node"}})), "make them equal"),
        (pod("json-patch", &json!({"name": "p", "body": {}})), "array"),
        (pod("delete", &json!({"name": "p", "body": {}})), "no body"),
        (pod("delete", &json!({"name": "p", "force": true})), "`force`"),
        (pod("apply", &json!({"name": "p", "body": {}, "propagation": "orphan"})), "`propagation`"),
        (pod("delete", &json!({"name": "p", "resourceVersion": "x"})), "\"x\""),
        (pod("delete", &json!({"name": "p", "subresource": "a/b"})), "a/b"),
    ] {
        refused(write(None, &request), invalid, part);
    }
    let delete = pod("delete", &json!({"name": "p"}));
    refused(write(Some(""), &delete), invalid, "id");
    refused(
        plan(|staging| {
            let mut stage = || staging.write(Some("a".into()), &delete.to_string(), &primary(), &grant());
            stage().and_then(|_| stage())
        }),
        invalid,
        "\"a\"",
    );
}

#[test]
fn a_write_outside_of_the_grant_is_refused_by_name() {
    let node = json!({"verb": "delete", "apiVersion": "v1", "kind": "Node", "name": "n", "namespace": ""});
    refused(write(None, &node), code::NOT_DECLARED, "Node.v1");
    let patch = pod("merge-patch", &json!({"name": "p", "subresource": "eviction", "body": {}}));
    refused(write(None, &patch), code::NOT_DECLARED, "eviction");
}

fn wait(request: &Value) -> Result<Plan, (String, String)> {
    plan(|staging| staging.wait(&request.to_string(), &primary(), &grant()))
}

#[test]
fn waits_are_read_as_they_are_meant() {
    let one = |rest: Value| {
        let mut request = json!({"apiVersion": "v1", "kind": "Pod"});
        if let (Some(request), Some(rest)) = (request.as_object_mut(), rest.as_object()) {
            request.extend(rest.clone());
        }
        wait(&request).map(|mut plan| plan.waits.remove(0))
    };
    let ready = one(json!({"name": "p", "condition": "Ready"})).expect("a wait");
    assert_eq!(ready.until, WaitUntil::Condition("Ready".into(), "True".into()));
    assert_eq!((ready.namespace.as_deref(), ready.target), (Some("web"), WaitTarget::Name("p".into())));
    assert_eq!((ready.timeout.as_secs(), ready.poll.as_secs()), (600, 2));
    let gone = one(json!({"labels": "a=b", "exists": false, "timeoutMs": 5, "pollMs": 100})).expect("a wait");
    assert_eq!((gone.until, gone.timeout.as_millis()), (WaitUntil::Exists(false), 5));
    let null = one(json!({"name": "p", "pointer": "/a", "equals": null})).expect("a wait");
    assert_eq!(null.until, WaitUntil::Equals("/a".into(), Value::Null));
    for (rest, part) in [
        (json!({"exists": true}), "`name` or `labels`"),
        (json!({"name": "p", "labels": "a", "exists": true}), "`name` or `labels`"),
        (json!({"name": "p"}), "one of `condition`"),
        (json!({"name": "p", "condition": "A", "exists": true}), "one of `condition`"),
        (json!({"name": "p", "pointer": "/a"}), "one of `condition`"),
        (json!({"name": "p", "pointer": "a", "equals": 1}), "JSON pointer"),
        (json!({"name": "p", "condition": "=True"}), "Type=Status"),
        (json!({"labels": "a in (", "exists": true}), "no selector"),
        (json!({"name": "p", "exists": true, "timeoutMs": 0}), "`timeoutMs` is 0"),
        (json!({"name": "p", "exists": true, "pollMs": 1}), "`pollMs` is 1"),
        (json!({"name": "p", "exists": true, "until": 1}), "unknown field `until`"),
    ] {
        let (code, message) = one(rest).expect_err(part);
        assert!(code == code::INVALID_ARGUMENT && message.contains(part), "{message}");
    }
    let node = json!({"apiVersion": "v1", "kind": "Node", "namespace": "", "name": "n", "exists": true});
    refused(wait(&node), code::NOT_DECLARED, "Node.v1");
}

#[test]
fn what_is_staged_without_end_ends_the_run() {
    let mut staging = staging();
    let request = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "exists": true}).to_string();
    let last = (0..=MAX_WAITS).map(|_| staging.wait(&request, &primary(), &grant())).last();
    assert!(matches!(last, Some(Err(Ended::Limit { what: "waits", .. }))), "{last:?}");
}
