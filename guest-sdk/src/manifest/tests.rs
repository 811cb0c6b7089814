use serde_json::{Value, json};

use super::*;

/// The contract's example, which the host's own tests read.
const EXAMPLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../wit/0.1.0/manifest.example.json"));

#[test]
fn an_authors_calls_give_every_field_of_the_contracts_example() {
    let paused = Predicate::field("/spec/paused", json!(true));
    let changed = Predicate::generation_changed().and(paused.negated());
    let annotated = Predicate::annotations_changed().and(Predicate::labels("app=web"));
    let zones = Watch::new("v1", "Node", Relation::Map)
        .name("zones")
        .select_labels("topology.kubernetes.io/zone")
        .select_fields("spec.unschedulable=false")
        .metadata_only()
        .predicate(Predicate::labels_changed());
    let pods = Watch::new("v1", "Pod", Relation::OwnedByAny)
        .name("pods")
        .predicate(Predicate::resource_version_changed());
    let manifest = Manifest::new("app", "1.2.3", "example.dev/v1", "App")
        .description("Every field of a manifest")
        .select_labels("tier in (a,b)")
        .select_fields("metadata.namespace!=kube-system")
        .predicate(changed.or(annotated))
        .when_gone()
        .owns("apps/v1", "Deployment")
        .watch_index("v1", "ConfigMap", "config")
        .watch_label("v1", "Secret", "example.dev/app")
        .reads("v1", "Namespace")
        .watch(zones)
        .watch(pods)
        .writes("v1", "Pod/eviction", &[Verb::Create])
        .writes("v1", "Event", &[Verb::Create, Verb::Apply, Verb::Patch, Verb::Delete])
        .index("config", "example.dev/v1", "App", "/spec/volumes/*/configMap")
        .resync(Duration::from_hours(1))
        .retry(
            Retry::new()
                .base(Duration::from_millis(500))
                .cap(Duration::from_mins(1))
                .max_attempts(3)
                .on_exhausted(OnExhausted::Stop),
        )
        .limits(
            Limits::new()
                .memory_mib(32)
                .deadline(Duration::from_secs(10))
                .concurrency(8)
                .log_lines(64)
                .events(4)
                .host_calls(1000)
                .staged_kib(512)
                .children(50),
        )
        .status(StatusStrategy::Apply)
        .finalizer_limit(Duration::from_mins(1))
        .keep_managed_fields();
    let stated: Value = serde_json::from_str(EXAMPLE).unwrap();
    assert_eq!(Value::Object(manifest.fields().clone()), stated);
    assert_eq!(serde_json::from_str::<Value>(&manifest.to_json()).unwrap(), stated);
}

#[test]
fn a_manifest_from_text_is_given_as_it_is() {
    assert_eq!(Manifest::from_text("no JSON").to_json(), "no JSON");
    assert_eq!(Manifest::from_text(r#"{"name":"a"}"#).fields()["name"], "a");
}
