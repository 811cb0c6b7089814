use super::*;

#[test]
fn the_document_is_what_the_host_reads() {
    let manifest = Manifest::new("a", "1", "x.dev/v1", "X")
        .select_labels("l")
        .when_gone()
        .predicate(Predicate::labels("a=b").negated().and(Predicate::generation_changed()))
        .owns("apps/v1", "Deployment")
        .watch_label("v1", "Secret", "x.dev/x")
        .watch_map("nodes", "v1", "Node")
        .index("cm", "x.dev/v1", "X", "/spec/cm")
        .writes("v1", "Pod/eviction", &[Verb::Create])
        .resync(Duration::from_mins(1))
        .retry(Retry::new().base(Duration::from_millis(10)).on_exhausted(OnExhausted::Stop))
        .limits(Limits::new().memory_mib(8))
        .status(StatusStrategy::Apply);
    assert_eq!(
        Value::Object(manifest.fields().clone()),
        json!({
            "name": "a", "version": "1", "sdk": concat!("reeve-sdk ", env!("CARGO_PKG_VERSION")),
            "primary": {
                "apiVersion": "x.dev/v1", "kind": "X", "labels": "l", "whenGone": true,
                "predicate": { "all": [{ "not": { "labels": "a=b" } }, "generationChanged"] },
            },
            "watches": [
                { "apiVersion": "apps/v1", "kind": "Deployment", "relation": "owned" },
                { "apiVersion": "v1", "kind": "Secret", "relation": { "label": "x.dev/x" } },
                { "name": "nodes", "apiVersion": "v1", "kind": "Node", "relation": "map" },
            ],
            "indexes": [{ "name": "cm", "apiVersion": "x.dev/v1", "kind": "X", "pointer": "/spec/cm" }],
            "writes": [{ "apiVersion": "v1", "kind": "Pod", "verbs": ["create"], "subresources": ["eviction"] }],
            "resyncSeconds": 60,
            "retry": { "baseMs": 10, "onExhausted": "stop" },
            "limits": { "memoryMib": 8 },
            "status": "apply",
        })
    );
}
