use tokio::sync::watch;
use tokio::time::Instant;

use super::*;
use crate::events::Regarding;

fn data(value: &str) -> Plan {
    Plan { children: vec![map(json!({"k": value}))], ..Plan::default() }
}

#[tokio::test(start_paused = true)]
async fn without_the_lease_no_request_leaves() {
    let mut bench = Bench::new().await;
    let (sender, receiver) = watch::channel(Some(Instant::now() + Duration::from_secs(3)));
    bench.leading = Leading::until(receiver);
    bench.commit(data("1")).await.unwrap();
    bench.rig.api.take_calls();
    tokio::time::advance(Duration::from_secs(3)).await;
    assert!(matches!(bench.commit(website(1)).await, Err(CommitError::Lost(_))));
    let failure = Failure::transient("DOWN", "network", "no");
    assert!(matches!(bench.report(&failure, false).await, Err(CommitError::Lost(_))));
    assert!(matches!(
        bench.committer.add_finalizer(&bench.leading, &bench.ticket, &bench.grant, &bench.site()).await,
        Err(CommitError::Lost(_))
    ));
    assert!(bench.rig.api.take_calls().is_empty());
    sender.send_replace(Some(Instant::now() + Duration::from_secs(3)));
    bench.commit(data("2")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_within_a_commit_ends_the_commit() {
    let mut bench = Bench::new().await;
    bench.with_map(json!({"k": "1"})).await;
    let (_sender, receiver) = watch::channel(Some(Instant::now() + Duration::from_secs(3)));
    bench.leading = Leading::until(receiver);
    // The first write takes until the Lease is over: it is cut off there, and no other follows.
    bench.rig.api.fault(MAPS, Fault::Hang);
    let begun = Instant::now();
    let result = bench
        .commit(Plan { status: serde_json::from_value(json!({"url": "u"})).unwrap(), ..data("2") })
        .await;
    assert!(matches!(result, Err(CommitError::Outage(_))), "{result:?}");
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
    assert_eq!(bench.rig.api.take_calls(), [format!("PATCH {MAPS}/a")]);
}

#[tokio::test(start_paused = true)]
async fn a_write_of_unknown_outcome_holds_the_reads_of_its_object() {
    let bench = Bench::new().await;
    bench.with_map(json!({"k": "1"})).await;
    bench.rig.api.quiet(true);
    for fault in [Fault::CutAfter, Fault::Hang] {
        bench.rig.api.fault(MAPS, fault);
        let Err(CommitError::Outage(failure)) = bench.commit(data("2")).await else { panic!("no outage") };
        assert_eq!(failure.code, code::API_UNAVAILABLE);
    }
    // The next run finds what was done, in one more write at most.
    bench.rig.api.take_calls();
    bench.commit(data("2")).await.unwrap();
    assert_eq!(bench.rig.api.take_calls(), [format!("PATCH {MAPS}/a")]);
    assert!(bench.metric("reeve_commit_writes_total", &[("result", "unknown")]) >= 2);
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_is_told_from_one_that_is_away() {
    let bench = Bench::new().await;
    bench.with_map(json!({"k": "1"})).await;
    let status = json!({"kind": "Status", "reason": "TooManyRequests", "message": "slow down"});
    bench.rig.api.fault(MAPS, Fault::Answer(429, vec![("retry-after", "7")], status));
    let Err(CommitError::Failed(failure)) = bench.commit(data("2")).await else { panic!("no failure") };
    assert_eq!((failure.transient, failure.retry_after), (true, Some(Duration::from_secs(7))));
    bench.rig.api.fault(MAPS, Fault::Answer(503, vec![], json!("down")));
    assert!(matches!(bench.commit(data("2")).await, Err(CommitError::Outage(_))));
}

#[tokio::test(start_paused = true)]
async fn a_commit_ends_in_time_whatever_the_server_does() {
    let bench = Bench::new().await;
    bench.with_map(json!({})).await;
    let many = (0..40).map(|index| {
        child(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{index}")}}))
    });
    let plan = Plan { children: many.collect(), ..Plan::default() };
    for index in 0..40 {
        bench.rig.api.fault(&format!("{MAPS}/m{index}"), Fault::Hang);
    }
    let begun = Instant::now();
    assert!(matches!(bench.commit(plan).await, Err(CommitError::Outage(_))));
    assert!(begun.elapsed() <= Duration::from_secs(11), "the first failure ends it: {:?}", begun.elapsed());
}

fn event(note: &str) -> Event {
    Event { warning: false, reason: "Rolled".to_owned(), action: "Roll".to_owned(), note: note.to_owned() }
}

#[tokio::test(start_paused = true)]
async fn complaint_23_events_are_limited_merged_and_the_last_gets_through() {
    let bench = Bench::new().await;
    let shutdown = tokio_util::sync::CancellationToken::new();
    let events = bench.committer.events().clone();
    let token = shutdown.clone();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { events.run(token).await });
    let plan =
        Plan { events: (0..100).map(|index| event(&format!("step {index}"))).collect(), ..Plan::default() };
    bench.commit(plan).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let calls = bench.rig.api.calls();
    assert_eq!(calls.len(), 26);
    let last = &calls.last().unwrap().body;
    assert_eq!(last["note"], "step 99");
    assert_eq!(
        (&last["reportingController"], &last["type"], &last["action"]),
        (&json!("reeve.dev/website"), &json!("Normal"), &json!("Roll"))
    );
    assert_eq!(last["regarding"]["uid"], bench.site().meta().uid.as_str());
    assert_eq!(bench.metric("reeve_events_dropped_total", &[("plugin", "website"), ("reason", "limit")]), 74);
    bench.rig.api.take_calls();
    // The same again is a series.
    for _ in 0..50 {
        bench.commit(Plan { events: vec![event("step 99")], ..Plan::default() }).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let calls = bench.rig.api.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!((&*calls[0].method, &calls[0].body["series"]["count"]), ("PATCH", &json!(51)));
    // What waits at the end is still sent; the host's own have no plugin.
    bench.rig.api.take_calls();
    let regarding = Regarding {
        gvk: map_kind(),
        name: ObjectName::namespaced("host", "source"),
        uid: None,
        version: None,
    };
    bench.committer.events().emit(&bench.leading, None, regarding, event("rejected"));
    shutdown.cancel();
    tasks.join_all().await;
    let call = bench.rig.api.calls().pop().unwrap();
    assert_eq!(call.body["reportingController"], "reeve.dev");
    assert_eq!(call.path, "/apis/events.k8s.io/v1/namespaces/host/events");
}

#[tokio::test(start_paused = true)]
async fn events_that_nobody_sends_are_dropped_and_counted() {
    let bench = Bench::new().await;
    for index in 0..1_100 {
        let regarding = Regarding { gvk: site_kind(), name: bench.site.clone(), uid: None, version: None };
        bench.committer.events().emit(&bench.leading, None, regarding, event(&index.to_string()));
    }
    assert_eq!(bench.metric("reeve_events_dropped_total", &[("plugin", "reeve"), ("reason", "queue")]), 76);
}
