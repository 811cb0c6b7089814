//! Start and stop (controllers.md §2.5, scenarios S and M).

use std::time::Duration;

use reeve_runtime::config::Grace;
use reeve_runtime::{RunError, StartError};
use serde_json::json;

use crate::api::Api;
use crate::fixture::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_runs_in_work_end_within_the_grace_period_and_none_begins() {
    let mut fixture = Fixture::start().await;
    fixture.install("a.wasm", &probe(Probe::Plain, &manifest("stop-a", "1.0.0", json!({}))));
    fixture.serving("a.wasm", "1.0.0").await;
    fixture.api.apply(object("a", json!({"count": true, "steps": [{"sleepMs": 600}]})));
    until("a run", || runs("stop-a", "a").now == 1).await;
    fixture.shutdown.cancel();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(fixture.http("GET", "/readyz/running").await.0, 500, "a host that stops is not ready");
    fixture.api.apply(object("b", json!({"count": true})));
    assert_eq!(fixture.ended().await, Ok(()));
    assert_eq!(fixture.status("a", "/runs"), Some(json!(1)), "what ran was committed");
    assert_eq!(runs("stop-a", "b").total, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_without_grace_runs_are_ended_and_nothing_of_them_is_written() {
    let mut fixture = Fixture::start_with(|config| config.grace = Grace::Limited(Duration::ZERO)).await;
    let limits = json!({"limits": {"deadlineMs": 60_000}});
    fixture.install("a.wasm", &probe(Probe::Plain, &manifest("stop-b", "1.0.0", limits)));
    fixture.serving("a.wasm", "1.0.0").await;
    fixture.api.apply(object("a", json!({"count": true, "steps": [{"spinMs": -1}]})));
    until("a run", || runs("stop-b", "a").now == 1).await;
    let began = tokio::time::Instant::now();
    assert_eq!(fixture.stop().await, Ok(()));
    assert!(began.elapsed() < Duration::from_secs(5), "it took {:?}", began.elapsed());
    assert_eq!(fixture.status("a", "/conditions"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_forces() {
    let mut fixture = Fixture::start_with(|config| config.grace = Grace::Unlimited).await;
    fixture.install(
        "a.wasm",
        &probe(Probe::Plain, &manifest("stop-c", "1.0.0", json!({"limits": {"deadlineMs": 60_000}}))),
    );
    fixture.serving("a.wasm", "1.0.0").await;
    fixture.api.apply(object("a", json!({"steps": [{"sleepMs": 50_000}]})));
    until("a run", || runs("stop-c", "a").now == 1).await;
    fixture.shutdown.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    fixture.force.cancel();
    assert_eq!(fixture.ended().await, Err(RunError::Forced(1)));
}

/// S10: no task is left on the runtime that the host was started on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_a_stopped_host_leaves_no_task() {
    let api = Api::start().await;
    let folder = tempfile::tempdir().unwrap();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let before = tasks();
    let host = host(&api, folder.path(), |_| {}).await.unwrap();
    let shutdown = tokio_util::sync::CancellationToken::new();
    let bytes = probe(Probe::Plain, &manifest("stop-d", "1.0.0", json!({})));
    std::fs::write(folder.path().join("plugins/a.wasm"), bytes).unwrap();
    api.apply(object("a", json!({"count": true})));
    let stop = async {
        soon("a run", || api.get("probes", "a").filter(|object| object["status"]["runs"] == 1)).await;
        shutdown.cancel();
    };
    let (ended, ()) =
        tokio::join!(host.run(shutdown.clone(), tokio_util::sync::CancellationToken::new()), stop);
    assert_eq!(ended, Ok(()));
    // The API server's own connections end when it sees that nobody is there any more.
    until("no task is left", || tasks() <= before).await;
}

/// S12, and a port is given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s12_a_port_in_use_is_named() {
    let mut fixture = Fixture::start().await;
    let (api, folder, admin) = (fixture.api.clone(), tempfile::tempdir().unwrap(), fixture.admin);
    let second = || host(&api, folder.path(), |config| config.admin_addr = Some(admin));
    match second().await {
        Err(StartError::Admin(error)) => {
            let text = error.to_string();
            assert!(text.contains(&admin.to_string()) && text.contains("--admin-addr"), "{text}");
        }
        other => panic!("expected a refusal, found {:?}", other.map(|host| host.admin_addr())),
    }
    assert_eq!(fixture.stop().await, Ok(()));
    assert!(second().await.is_ok());
}

/// M1: every series is there at 0 before the first run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m1_all_series_are_there_before_the_first_run() {
    let fixture = Fixture::start().await;
    fixture.install("a.wasm", &probe(Probe::Plain, &manifest("series", "1.0.0", json!({}))));
    fixture.serving("a.wasm", "1.0.0").await;
    let mut series = vec![
        "controller_runtime_reconcile_errors_total{controller=\"series\"}".to_owned(),
        "controller_runtime_terminal_reconcile_errors_total{controller=\"series\"}".to_owned(),
        "controller_runtime_reconcile_panics_total{controller=\"series\"}".to_owned(),
        "controller_runtime_reconcile_timeouts_total{controller=\"series\"}".to_owned(),
        "controller_runtime_reconcile_time_seconds_count{controller=\"series\"}".to_owned(),
        "controller_runtime_active_workers{controller=\"series\"}".to_owned(),
        "workqueue_adds_total{controller=\"series\",name=\"series\"}".to_owned(),
        "workqueue_retries_total{controller=\"series\",name=\"series\"}".to_owned(),
        "workqueue_queue_duration_seconds_count{controller=\"series\",name=\"series\"}".to_owned(),
        "workqueue_work_duration_seconds_count{controller=\"series\",name=\"series\"}".to_owned(),
        "workqueue_unfinished_work_seconds{controller=\"series\",name=\"series\"}".to_owned(),
        "workqueue_longest_running_processor_seconds{controller=\"series\",name=\"series\"}".to_owned(),
    ];
    for result in ["success", "error", "requeue", "requeue_after"] {
        series
            .push(format!("controller_runtime_reconcile_total{{controller=\"series\",result=\"{result}\"}}"));
    }
    for series in series {
        assert_eq!(fixture.metric(&series).await, Some(0.0), "{series}");
    }
    assert_eq!(
        fixture.metric("controller_runtime_max_concurrent_reconciles{controller=\"series\"}").await,
        Some(4.0)
    );
    let (_, text) = fixture.http("GET", "/metrics").await;
    for bound in ["0.005", "0.45", "1.25", "60", "+Inf"] {
        let bucket = format!(
            "controller_runtime_reconcile_time_seconds_bucket{{controller=\"series\",le=\"{bound}\"}} 0"
        );
        assert!(text.contains(&bucket), "{bucket}");
    }
}

/// M4: readiness by named checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m4_readiness_is_told_by_named_checks() {
    let fixture = Fixture::start().await;
    fixture.install("a.wasm", &probe(Probe::Plain, &manifest("ready", "1.0.0", json!({}))));
    fixture.serving("a.wasm", "1.0.0").await;
    assert_eq!(fixture.http("GET", "/healthz").await, (200, "ok".to_owned()));
    assert_eq!(fixture.http("GET", "/readyz").await, (200, "ok".to_owned()));
    let (status, text) = fixture.http("GET", "/readyz?verbose&exclude=plugins").await;
    assert_eq!(status, 200);
    assert!(
        text.contains("[+]sources ok\n[+]plugins excluded: ok\n") && text.ends_with("readyz check passed\n"),
        "{text}"
    );
    assert_eq!(fixture.http("GET", "/readyz/plugins").await, (200, "ok".to_owned()));
    assert_eq!(fixture.http("GET", "/readyz/nothing").await.0, 404);
    let (_, plugins) = fixture.http("GET", "/plugins").await;
    for part in ["\"serving\"", "\"1.0.0\"", "sha256:", "own ConfigMap", "\"failing\":0"] {
        assert!(plugins.contains(part), "{part} is not in {plugins}");
    }
    assert!(fixture.http("GET", "/streams").await.1.contains("Probe.v1.test.reeve.dev"));
    assert!(fixture.http("GET", "/queue").await.1.contains("\"plugin\":\"ready\""));
}
