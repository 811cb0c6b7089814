//! The swap line: what comes into service, what is refused, and what goes on meanwhile.

use std::time::Duration;

use base64::Engine as _;
use reeve_core::ids::Digest;
use reeve_runtime::config::ConfigMaps;
use serde_json::json;

use crate::fixture::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_takes_over_and_runs_in_work_finish_on_theirs() {
    let fixture = Fixture::start().await;
    let limits = json!({"limits": {"deadlineMs": 30_000}});
    fixture.install("a.wasm", &probe(Probe::Plain, &manifest("swap-a", "1.0.0", limits.clone())));
    fixture.serving("a.wasm", "1.0.0").await;
    let steps = json!([{"sleepMs": 4000}]);
    fixture.api.apply(object("x", json!({"echo": true, "count": true, "steps": steps})));
    until("the first run", || runs("swap-a", "x").now == 1).await;
    fixture.install("a.wasm", &probe(Probe::Plain, &manifest("swap-a", "2.0.0", limits)));
    fixture.serving("a.wasm", "2.0.0").await;
    assert_eq!(runs("swap-a", "x").total, 1, "the second run waits for the first");
    assert_eq!(fixture.metric("reeve_plugin_versions_alive{plugin=\"swap-a\"}").await, Some(2.0));
    soon("the old version's status", || {
        fixture.status("x", "/run/version").filter(|version| version == "1.0.0")
    })
    .await;
    soon("the new version's status", || {
        fixture.status("x", "/run/version").filter(|version| version == "2.0.0")
    })
    .await;
    assert_eq!(fixture.status("x", "/run/reasons"), Some(json!(["swap"])));
    assert_eq!(fixture.status("x", "/runs"), Some(json!(2)));
    assert_eq!(runs("swap-a", "x").most, 1);
    assert_eq!(fixture.metric("reeve_plugin_versions_alive{plugin=\"swap-a\"}").await, Some(1.0));
    assert_eq!(fixture.metric("reeve_swap_total{plugin=\"swap-a\",result=\"swapped\"}").await, Some(2.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_bytes_displace_nothing_and_are_tried_once() {
    let fixture = Fixture::start().await;
    let good = probe(Probe::Plain, &manifest("swap-b", "1.0.0", json!({})));
    fixture.install("b.wasm", &good);
    fixture.serving("b.wasm", "1.0.0").await;
    let newer = manifest("swap-b", "2.0.0", json!({"holograms": true}));
    let forbidden = json!({"watches": [{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "relation": "read"}]});
    let mut cut = good.clone();
    cut.truncate(good.len() / 2);
    for (bytes, why) in [
        (b"not a component".to_vec(), "no WebAssembly"),
        (cut, "no valid WebAssembly"),
        (probe(Probe::Plain, &newer), "newer host"),
        (probe_text(Probe::Plain, "!panic"), "describe"),
        (probe_text(Probe::Plain, "{}"), "missing field"),
        (probe(Probe::Plain, &manifest("swap-b", "2.0.0", forbidden)), "--allow"),
    ] {
        fixture.install("b.wasm", &bytes);
        let place = fixture.refused("b.wasm", why).await;
        assert!(place.error.as_ref().unwrap().contains("b.wasm"), "the file is not named: {place:?}");
        assert_eq!((place.state, place.version.as_deref()), ("serving", Some("1.0.0")), "{why}");
    }
    let rejected = "reeve_swap_rejected_total{plugin=\"swap-b\"}";
    let tried = fixture.metric(rejected).await;
    assert_eq!(tried, Some(6.0));
    fixture.api.apply(object("b", json!({"echo": true})));
    soon("a run of the good version", || {
        fixture.status("b", "/run/version").filter(|version| version == "1.0.0")
    })
    .await;
    // The good bytes are back: nothing is loaded, the error is gone.
    fixture.install("b.wasm", &good);
    fixture.serving("b.wasm", "1.0.0").await;
    assert_eq!(fixture.metric(rejected).await, tried);
    assert_eq!(fixture.metric("reeve_swap_total{plugin=\"swap-b\",result=\"swapped\"}").await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_whose_kind_is_missing_waits_while_the_old_one_goes_on() {
    let fixture = Fixture::start().await;
    fixture.install("c.wasm", &probe(Probe::Plain, &manifest("swap-c", "1.0.0", json!({}))));
    fixture.serving("c.wasm", "1.0.0").await;
    let late = json!({"watches": [{"apiVersion": "late.reeve.dev/v1", "kind": "Late", "relation": "read"}]});
    fixture.install("c.wasm", &probe(Probe::Plain, &manifest("swap-c", "2.0.0", late)));
    let place = fixture.refused("c.wasm", "Late").await;
    assert_eq!((place.state, place.next.unwrap().state), ("serving", "pending"));
    fixture.api.apply(object("c", json!({"echo": true})));
    soon("a run of the old version", || {
        fixture.status("c", "/run/version").filter(|version| version == "1.0.0")
    })
    .await;
    fixture.api.serve_kind("late.reeve.dev/v1", "lates", "Late", vec![]);
    let began = tokio::time::Instant::now();
    fixture.serving("c.wasm", "2.0.0").await;
    assert!(began.elapsed() < Duration::from_secs(5), "B5: it starts within 5 s of its kind's arrival");
    soon("a run of the new version", || {
        fixture.status("c", "/run/version").filter(|version| version == "2.0.0")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_version_that_waits_keeps_nobody_else_waiting_and_can_be_replaced() {
    let fixture = Fixture::start().await;
    let late = json!({"watches": [{"apiVersion": "late.reeve.dev/v1", "kind": "Late", "relation": "read"}]});
    fixture.install("d.wasm", &probe(Probe::Plain, &manifest("swap-d", "1.0.0", late)));
    fixture.refused("d.wasm", "Late").await;
    fixture.install("e.wasm", &probe(Probe::Plain, &manifest("swap-e", "1.0.0", json!({}))));
    fixture.serving("e.wasm", "1.0.0").await;
    let (status, text) = fixture.http("POST", "/reconcile/swap-d/default/x").await;
    assert!(status == 409 && text.contains("Late"), "{status} {text}");
    fixture.install("d.wasm", &probe(Probe::Plain, &manifest("swap-d", "1.1.0", json!({}))));
    fixture.serving("d.wasm", "1.1.0").await;
    assert_eq!(fixture.metric("reeve_swap_total{plugin=\"swap-d\",result=\"superseded\"}").await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_file_of_the_same_name_is_refused_until_the_first_goes() {
    let fixture = Fixture::start().await;
    fixture.install("f.wasm", &probe(Probe::Plain, &manifest("swap-f", "1.0.0", json!({}))));
    fixture.serving("f.wasm", "1.0.0").await;
    fixture.install("g.wasm", &probe(Probe::Plain, &manifest("swap-f", "2.0.0", json!({}))));
    let error = fixture.refused("g.wasm", "already").await.error.unwrap();
    assert!(error.contains("f.wasm") && error.contains("g.wasm"), "both are named: {error}");
    assert_eq!(fixture.place("f.wasm").unwrap().version.as_deref(), Some("1.0.0"));
    fixture.remove("f.wasm");
    fixture.serving("g.wasm", "2.0.0").await;
    assert!(fixture.place("f.wasm").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_whose_file_is_gone_stops_and_what_it_leaves_is_reported() {
    let fixture = Fixture::start().await;
    fixture.install("h.wasm", &probe(Probe::Cleanup, &manifest("swap-h", "1.0.0", json!({}))));
    fixture.serving("h.wasm", "1.0.0").await;
    fixture.api.apply(object("h", json!({"count": true})));
    soon("a run", || fixture.status("h", "/runs")).await;
    fixture.remove("h.wasm");
    until("the plugin is out of service", || fixture.place("h.wasm").is_none()).await;
    assert_eq!(fixture.metric("reeve_plugin_finalizers_held{plugin=\"swap-h\"}").await, Some(1.0));
    until("an event on the object", || {
        fixture.api.writes("POST /apis/events.k8s.io/v1/namespaces/default/events") > 0
    })
    .await;
    let (status, _) = fixture.http("POST", "/reconcile/swap-h/default/h").await;
    assert_eq!(status, 404);
    // It comes back and takes its objects up again.
    fixture.install("h.wasm", &probe(Probe::Cleanup, &manifest("swap-h", "1.0.1", json!({}))));
    fixture.serving("h.wasm", "1.0.1").await;
    fixture.api.delete("probes", "h");
    until("the object is let go", || fixture.api.get("probes", "h").is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_without_cleanup_releases_the_finalizers_of_the_old_one() {
    let fixture = Fixture::start().await;
    fixture.install("i.wasm", &probe(Probe::Cleanup, &manifest("swap-i", "1.0.0", json!({}))));
    fixture.serving("i.wasm", "1.0.0").await;
    fixture.api.apply(object("i", json!({"count": true})));
    let finalizers = || fixture.api.get("probes", "i").unwrap()["metadata"]["finalizers"].clone();
    soon("a run", || fixture.status("i", "/runs")).await;
    assert_eq!(finalizers(), json!(["reeve.dev/swap-i"]));
    fixture.install("i.wasm", &probe(Probe::Plain, &manifest("swap-i", "2.0.0", json!({}))));
    fixture.serving("i.wasm", "2.0.0").await;
    until("no finalizer", || finalizers() == json!([]) || finalizers().is_null()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_of_a_kind_that_a_new_version_dropped_are_pruned() {
    let fixture = Fixture::start().await;
    let secrets = json!({"watches": [
        {"apiVersion": "v1", "kind": "ConfigMap", "relation": "owned"},
        {"apiVersion": "v1", "kind": "Secret", "relation": "owned"},
    ]});
    fixture.install("j.wasm", &probe(Probe::Plain, &manifest("swap-j", "1.0.0", secrets)));
    fixture.serving("j.wasm", "1.0.0").await;
    let child = |kind: &str| json!({"apply": {"object": {"apiVersion": "v1", "kind": kind, "metadata": {"name": "j"}}}});
    let steps =
        json!([child("ConfigMap"), {"when": {"versionIs": "1.0.0"}, "apply": child("Secret")["apply"]}]);
    fixture.api.apply(object("j", json!({"steps": steps})));
    soon("the child", || fixture.api.get("secrets", "j")).await;
    fixture.install("j.wasm", &probe(Probe::Plain, &manifest("swap-j", "2.0.0", json!({}))));
    fixture.serving("j.wasm", "2.0.0").await;
    until("the child of the dropped kind is pruned", || fixture.api.get("secrets", "j").is_none()).await;
    assert!(fixture.api.get("configmaps", "j").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_comes_from_a_configmap_only_with_its_digest() {
    let on = ConfigMaps::On { namespaces: std::collections::BTreeSet::new() };
    let fixture = Fixture::start_with(|config| config.configmaps = on).await;
    let good = probe(Probe::Plain, &manifest("swap-k", "1.0.0", json!({})));
    let better = probe(Probe::Plain, &manifest("swap-k", "2.0.0", json!({})));
    let configmap = |bytes: &[u8], digest: Digest| {
        let data = base64::engine::general_purpose::STANDARD.encode(bytes);
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "k", "namespace": "default", "labels": {"reeve.dev/plugin": "swap-k"},
                "annotations": {"reeve.dev/digest": digest.to_string()},
            },
            "binaryData": {"plugin.wasm": data},
        })
    };
    fixture.api.apply(configmap(&good, Digest::of(&good)));
    fixture.serving("default/k", "1.0.0").await;
    // New bytes under the old digest: a write in two steps, or somebody else's.
    fixture.api.apply(configmap(&better, Digest::of(&good)));
    let error = fixture.refused("default/k", "annotation").await.error.unwrap();
    let (old, new) = (Digest::of(&good).to_string(), Digest::of(&better).to_string());
    assert!(error.contains(&old) && error.contains(&new) && error.contains("default/k"), "{error}");
    assert_eq!(fixture.place("default/k").unwrap().version.as_deref(), Some("1.0.0"));
    until("an event", || fixture.api.writes("POST /apis/events.k8s.io/v1/namespaces/default/events") > 0)
        .await;
    fixture.api.apply(configmap(&better, Digest::of(&better)));
    fixture.serving("default/k", "2.0.0").await;
    fixture.api.delete("configmaps", "k");
    until("the plugin is out of service", || fixture.place("default/k").is_none()).await;
}
