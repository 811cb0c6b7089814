//! From a ticket to its end.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::*;

/// A host with one probe of this manifest.
async fn host(kind: Probe, name: &str, change: Value) -> Fixture {
    let fixture = Fixture::start().await;
    fixture.install("p.wasm", &probe(kind, &manifest(name, "1.0.0", change)));
    fixture.serving("p.wasm", "1.0.0").await;
    fixture
}

fn runs_of(fixture: &Fixture, name: &str) -> u64 {
    fixture.status(name, "/runs").and_then(|runs| runs.as_u64()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_costs_its_writes_and_a_second_run_none() {
    let fixture = host(Probe::Cleanup, "line", json!({})).await;
    let child = json!({"apply": {"object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}}}});
    fixture.api.apply(object("a", json!({"steps": [child, {"status": {"x": 1}}]})));
    soon("the status", || fixture.status("a", "/x")).await;
    // The echo of the child runs the owner once more, to no effect.
    until("the second run", || runs("line", "a").total == 2 && runs("line", "a").now == 0).await;
    let writes = || (fixture.api.writes("/probes/a"), fixture.api.writes("/configmaps/c"));
    assert_eq!(writes(), (2, 1), "finalizer and status, and the child");
    let (status, _) = fixture.http("POST", "/reconcile/line/default/a").await;
    assert_eq!(status, 202);
    until("the third run", || runs("line", "a").total == 3 && runs("line", "a").now == 0).await;
    assert_eq!(writes(), (2, 1), "nothing is written where nothing changes");
    assert_eq!(fixture.http("POST", "/reconcile/line/default/none").await.0, 404);
    assert_eq!(fixture.http("POST", "/reconcile/none/default/a").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleanup_may_ask_for_time_and_then_lets_go() {
    let fixture = host(Probe::Cleanup, "tidy", json!({})).await;
    let cleanup = json!([{"when": {"runsBelow": 99}, "requeueAfterMs": 300}]);
    fixture.api.apply(object("a", json!({"count": true, "cleanup": cleanup})));
    soon("a run", || fixture.status("a", "/runs")).await;
    fixture.api.delete("probes", "a");
    soon("two cleanups", || fixture.status("a", "/cleanups").filter(|count| count.as_u64() >= Some(2))).await;
    fixture.api.apply(object("a", json!({"count": true, "cleanup": []})));
    until("the object is let go", || fixture.api.get("probes", "a").is_none()).await;
    until("nothing runs", || runs("tidy", "a").now == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_wants_to_know_runs_once_more_when_its_object_is_gone() {
    let primary = json!({"apiVersion": "test.reeve.dev/v1", "kind": "Probe", "whenGone": true});
    let fixture = host(Probe::Plain, "gone", json!({"primary": primary})).await;
    fixture.api.apply(object("a", json!({"count": true})));
    soon("a run", || fixture.status("a", "/runs")).await;
    fixture.api.delete("probes", "a");
    until("the last run", || runs("gone", "a").total == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_retried_until_the_object_is_stalled_and_a_success_resets() {
    let fixture = host(Probe::Plain, "flaky", json!({})).await;
    let steps = json!([{"when": {"attemptBelow": 7}, "fail": {"code": "FLAKY", "message": "not yet"}}]);
    fixture.api.apply(object("a", json!({"echo": true, "steps": steps})));
    soon("stalled", || fixture.condition("a", "Stalled").filter(|stalled| stalled == "True FLAKY")).await;
    let (_, failures) = fixture.http("GET", "/failures").await;
    assert!(failures.contains("\"FLAKY\"") && failures.contains("errorId"), "{failures}");
    soon("healed", || fixture.condition("a", "Reconciled").filter(|done| done == "True Succeeded")).await;
    assert_eq!(fixture.condition("a", "Stalled"), None);
    assert_eq!(fixture.status("a", "/run/attempt"), Some(json!(7)));
    assert_eq!(
        fixture.metric("controller_runtime_reconcile_errors_total{controller=\"flaky\"}").await,
        Some(6.0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permanent_failure_waits_for_a_change() {
    let fixture = host(Probe::Plain, "stuck", json!({})).await;
    let fail = json!([{"fail": {"code": "BAD_SPEC", "transient": false}}]);
    fixture.api.apply(object("a", json!({"steps": fail})));
    soon("the condition", || fixture.condition("a", "Reconciled").filter(|done| done == "False BAD_SPEC"))
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(runs("stuck", "a").total, 1);
    fixture.api.apply(object("a", json!({"steps": []})));
    soon("healed", || fixture.condition("a", "Reconciled").filter(|done| done == "True Succeeded")).await;
    assert_eq!(
        fixture.metric("controller_runtime_terminal_reconcile_errors_total{controller=\"stuck\"}").await,
        Some(1.0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_counts_no_attempt_and_ends_by_itself() {
    let fixture =
        host(Probe::Plain, "outage", json!({"retry": {"baseMs": 50, "capMs": 400, "maxAttempts": 2}})).await;
    fixture.api.fault("PATCH /apis/test.reeve.dev/v1/namespaces/default/probes/a/status", 503, 2);
    fixture.api.apply(object("a", json!({"count": true, "echo": true})));
    soon("the status", || fixture.status("a", "/run/attempt").filter(|attempt| attempt == 1)).await;
    assert_eq!(fixture.condition("a", "Stalled"), None);
    fixture.api.set_down(true);
    until("the check", || true).await;
    let lost = async {
        loop {
            let (status, text) = fixture.http("GET", "/readyz?verbose").await;
            assert_eq!(status, 200, "the loss of the API server makes nobody unready: {text}");
            if text.contains("[!]apiserver") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), lost).await.expect("the loss was not noticed");
    assert_eq!(fixture.http("GET", "/readyz/apiserver").await.0, 500);
    fixture.api.apply(object("b", json!({"count": true})));
    fixture.api.set_down(false);
    soon("the object that came meanwhile", || fixture.status("b", "/runs")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_object_leaves_others_alone_and_is_quarantined() {
    let fixture = host(Probe::Plain, "poison", json!({})).await;
    fixture.api.apply(object("bad", json!({"steps": [{"panic": "boom"}]})));
    fixture.api.apply(object("good", json!({"count": true})));
    soon("the other object", || fixture.status("good", "/runs")).await;
    soon("stalled", || fixture.condition("bad", "Stalled").filter(|stalled| stalled == "True TRAP")).await;
    assert_eq!(fixture.metric("reeve_plugin_quarantined_objects{plugin=\"poison\"}").await, Some(1.0));
    assert!(
        fixture.metric("controller_runtime_reconcile_panics_total{controller=\"poison\"}").await >= Some(5.0)
    );
    fixture.api.apply(object("bad", json!({"count": true})));
    soon("healed by a change", || {
        fixture.condition("bad", "Reconciled").filter(|done| done == "True Succeeded")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn complaint_3_own_writes_do_not_run_a_plugin_for_ever() {
    let fixture = host(Probe::Plain, "hot", json!({})).await;
    // A status that differs each time: the echo does not come back.
    fixture.api.apply(object("status", json!({"count": true, "steps": [{"status": {"n": "$(runs)"}}]})));
    // A child that differs each time: a loop, which is slowed and named.
    let child = json!({"apply": {"object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hot"}, "data": {"n": "$(runs)"}}}});
    fixture.api.apply(object("child", json!({"count": true, "steps": [child]})));
    soon("the condition", || fixture.condition("child", "HotLoop").filter(|found| found == "True OwnWrites"))
        .await;
    let before = runs("hot", "child").total;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(runs("hot", "child").total <= before + 1, "it is slowed to one run in 30 s");
    assert_eq!(runs_of(&fixture, "status"), 1);
    assert_eq!(fixture.metric("reeve_plugin_hot_loops_total{plugin=\"hot\"}").await, Some(1.0));
    // A change of the object itself does not wait, and a run without writes ends the loop.
    fixture.api.apply(object("child", json!({"count": false, "steps": []})));
    soon("the end", || fixture.condition("child", "HotLoop").filter(|found| found == "False Settled")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_wake_at_the_change_and_fail_at_their_timeout() {
    let watches = json!([{"apiVersion": "v1", "kind": "Secret", "relation": "read"}]);
    let fixture = host(Probe::Plain, "waits", json!({"watches": watches})).await;
    let wait = |timeout: u64| json!({"wait": {"apiVersion": "v1", "kind": "Secret", "namespace": "default", "name": "s", "exists": true, "timeoutMs": timeout}});
    fixture.api.apply(object("late", json!({"echo": true, "steps": [wait(300)]})));
    fixture.api.apply(object("patient", json!({"count": true, "echo": true, "steps": [wait(60_000)]})));
    soon("the timeout", || {
        fixture.condition("late", "Reconciled").filter(|done| done == "False WAIT_TIMEOUT")
    })
    .await;
    assert_eq!(runs_of(&fixture, "patient"), 1);
    assert_eq!(fixture.metric("reeve_waits").await, Some(2.0));
    fixture.api.apply(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}}),
    );
    soon("woken", || fixture.status("patient", "/run/reasons").filter(|reasons| *reasons == json!(["wait"])))
        .await;
    soon("healed", || fixture.condition("late", "Reconciled").filter(|done| done == "True Succeeded")).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(runs_of(&fixture, "patient"), 2, "a wait wakes once");
    fixture.api.delete("probes", "late");
    fixture.api.delete("probes", "patient");
    let end = tokio::time::Instant::now() + Duration::from_secs(10);
    while fixture.metric("reeve_waits").await != Some(0.0) {
        assert!(tokio::time::Instant::now() < end, "waits of objects that are gone stay");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_of_a_write_is_offered_to_the_run_that_follows_at_once() {
    let writes = json!([{"apiVersion": "v1", "kind": "ConfigMap", "verbs": ["create"]}]);
    let fixture = host(Probe::Plain, "asks", json!({"writes": writes})).await;
    let steps = json!([
        {"as": "got", "answer": {"id": "made"}},
        {"when": {"runsBelow": 1}, "write": {"id": "made", "request": {"verb": "create", "apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": "made", "body": {"data": {"a": "b"}}}}},
    ]);
    fixture.api.apply(object("a", json!({"count": true, "echo": true, "steps": steps})));
    let got = soon("the answer", || {
        fixture.status("a", "/results/got").filter(|got| got.to_string().contains("resourceVersion"))
    })
    .await;
    assert!(got.to_string().contains("made"));
    assert_eq!(fixture.status("a", "/run/reasons"), Some(json!(["answer"])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_mapped_by_the_plugin_and_a_failed_map_runs_everything() {
    let watches = json!([{"apiVersion": "v1", "kind": "ConfigMap", "relation": "map", "name": "configs"}]);
    let fixture = host(Probe::Mapping, "maps", json!({"watches": watches})).await;
    for name in ["a", "b", "c"] {
        fixture.api.apply(object(name, json!({"count": true})));
    }
    until("first runs", || ["a", "b", "c"].iter().all(|name| runs_of(&fixture, name) == 1)).await;
    let config = |to: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default", "annotations": {"test.reeve.dev/maps-to": to}}});
    fixture.api.apply(config("default/a"));
    until("mapped", || runs_of(&fixture, "a") == 2).await;
    fixture.api.apply(config("default/b"));
    until("both states are mapped", || runs_of(&fixture, "a") == 3 && runs_of(&fixture, "b") == 2).await;
    assert_eq!(runs_of(&fixture, "c"), 1);
    fixture.api.apply(config("!fail"));
    until("everything runs", || runs_of(&fixture, "c") == 2).await;
    assert_eq!(fixture.metric("reeve_map_total{plugin=\"maps\",result=\"error\"}").await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_run_again_after_the_resync_interval() {
    let fixture = host(Probe::Plain, "resync", json!({"resyncSeconds": 1})).await;
    fixture.api.apply(object("a", json!({"count": true, "echo": true})));
    soon("a resync", || fixture.status("a", "/run/reasons").filter(|reasons| *reasons == json!(["resync"])))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_write_is_run_again_and_becomes_a_failure_only_after_three_times() {
    let status = json!({"status": "update", "retry": {"baseMs": 20_000, "capMs": 20_000}});
    let fixture = host(Probe::Plain, "stale", status).await;
    fixture.api.fault("PUT /apis/test.reeve.dev/v1/namespaces/default/probes/a/status", 409, 2);
    fixture.api.fault("PATCH /apis/test.reeve.dev/v1/namespaces/default/probes/a/status", 409, 2);
    fixture.api.apply(object("a", json!({"count": true})));
    soon("a run that got through", || fixture.status("a", "/runs")).await;
    assert_eq!(
        fixture.metric("controller_runtime_reconcile_errors_total{controller=\"stale\"}").await,
        Some(0.0)
    );
}
