use super::*;

fn status_plan(url: &str, status: ConditionStatus) -> Plan {
    Plan {
        status: serde_json::from_value(json!({"url": url})).unwrap(),
        conditions: vec![ready(status)],
        ..Plan::default()
    }
}

#[tokio::test(start_paused = true)]
async fn complaint_4_an_unchanged_status_costs_nothing() {
    let bench = Bench::new().await;
    bench.commit(status_plan("u", ConditionStatus::True)).await.unwrap();
    bench.rig.api.take_calls();
    for _ in 0..1_000 {
        bench.commit(status_plan("u", ConditionStatus::True)).await.unwrap();
    }
    assert!(bench.rig.api.take_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_status_patch_holds_the_difference_and_the_version_it_was_made_for() {
    let bench = Bench::new().await;
    bench.commit(status_plan("u", ConditionStatus::True)).await.unwrap();
    let before = bench.site();
    bench.commit(status_plan("v", ConditionStatus::True)).await.unwrap();
    let call = bench.rig.api.calls().pop().unwrap();
    assert_eq!(
        (&*call.path, &*call.content_type),
        (&*format!("{SITES}/a/status"), "application/merge-patch+json")
    );
    let version = before.meta().resource_version.to_string();
    assert_eq!(
        call.body,
        json!({"metadata": {"uid": before.meta().uid.as_str(), "resourceVersion": version}, "status": {"url": "v"}})
    );
}

#[tokio::test(start_paused = true)]
async fn another_writers_condition_survives_a_conflict() {
    let bench = Bench::new().await;
    let foreign = json!({"status": {"conditions": [{"type": "Foreign", "status": "True"}]}});
    bench.rig.api.quiet(true);
    bench.rig.api.fault("/status", Fault::Before(foreign));
    bench.commit(status_plan("u", ConditionStatus::True)).await.unwrap();
    let calls = bench.rig.api.take_calls();
    assert_eq!(
        calls,
        [format!("PATCH {SITES}/a/status"), format!("GET {SITES}/a"), format!("PATCH {SITES}/a/status")]
    );
    let status = bench.status();
    let types: Vec<&Value> =
        status["conditions"].as_array().unwrap().iter().map(|condition| &condition["type"]).collect();
    assert_eq!(types, ["Foreign", "Ready"]);
    assert_eq!(status["observedGeneration"], 1, "the generation that the run read");
}

#[tokio::test(start_paused = true)]
async fn endless_conflicts_end() {
    let bench = Bench::new().await;
    for index in 0..10 {
        bench.rig.api.fault("PATCH", Fault::Before(json!({"status": {"n": index}})));
    }
    assert!(matches!(
        bench.commit(status_plan("u", ConditionStatus::True)).await,
        Err(CommitError::Conflict)
    ));
}

#[tokio::test(start_paused = true)]
async fn a_primary_of_another_life_gets_nothing() {
    let mut bench = Bench::new().await;
    let old = bench.site();
    bench.rig.api.delete(SITES, "a");
    let stored = bench.rig.api.put(
        SITES,
        json!({"apiVersion": "demo.reeve.dev/v1", "kind": "Website", "metadata": {"name": "a"}, "spec": {}}),
    );
    bench.seen_site(&stored).await;
    assert!(matches!(bench.commit_from(&old, outcome(website(1), None)).await, Err(CommitError::Gone)));
    assert!(bench.rig.api.take_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_primary_that_was_replaced_unseen_gets_no_status() {
    let bench = Bench::new().await;
    bench.rig.api.quiet(true);
    bench.rig.api.delete(SITES, "a");
    bench.rig.api.put(
        SITES,
        json!({"apiVersion": "demo.reeve.dev/v1", "kind": "Website", "metadata": {"name": "a"}, "spec": {}}),
    );
    assert!(matches!(bench.commit(status_plan("u", ConditionStatus::True)).await, Err(CommitError::Gone)));
    assert_eq!(bench.status(), Value::Null);
    assert!(
        bench.commit(status_plan("u", ConditionStatus::True)).await.is_ok(),
        "the refreshed object is a new one"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_for_a_primary_that_is_gone_or_going() {
    let mut bench = Bench::of(
        "website",
        json!({"apiVersion": "demo.reeve.dev/v1", "kind": "Website",
        "metadata": {"name": "a", "finalizers": ["reeve.dev/website"]}, "spec": {}}),
    )
    .await;
    let before = bench.site();
    let going =
        bench.rig.api.patch(SITES, "a", &json!({"metadata": {"deletionTimestamp": "2026-12-01T00:00:00Z"}}));
    bench.seen_site(&going).await;
    assert!(matches!(bench.commit_from(&before, outcome(website(1), None)).await, Err(CommitError::Gone)));
    assert!(bench.rig.api.take_calls().is_empty());
    // A cleanup sees it go, and may say so.
    bench.commit(website(1)).await.unwrap();
    let calls = bench.rig.api.take_calls();
    assert!(!calls.iter().any(|call| call.contains(MAPS) || call.contains(DEPLOYMENTS)), "{calls:?}");
    let outcome = outcome(website(1), None);
    let work = Work {
        manifest: &bench.manifest,
        primary: &bench.site,
        object: None,
        outcome: &outcome,
        attempts: 0,
        stalled: false,
    };
    bench.committer.commit(&bench.leading, &bench.ticket, &bench.grant, work).await.unwrap();
    assert!(bench.rig.api.take_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn complaint_5_finalizers_of_others_are_never_lost() {
    let bench = Bench::new().await;
    bench.rig.api.quiet(true);
    let foreign = json!({"metadata": {"finalizers": ["foregroundDeletion", "reeve.dev/other"]}});
    bench.rig.api.fault("PATCH", Fault::Before(foreign));
    let site = bench
        .committer
        .add_finalizer(&bench.leading, &bench.ticket, &bench.grant, &bench.site())
        .await
        .unwrap();
    let all = json!(["foregroundDeletion", "reeve.dev/other", "reeve.dev/website"]);
    assert_eq!(bench.rig.api.object(SITES, "a").unwrap()["metadata"]["finalizers"], all);
    bench.rig.api.take_calls();
    bench.committer.add_finalizer(&bench.leading, &bench.ticket, &bench.grant, &site).await.unwrap();
    assert!(bench.rig.api.take_calls().is_empty(), "it is there");
    // Another's goes meanwhile, so the index is wrong: tested, refreshed, done.
    bench.rig.api.fault(
        "PATCH",
        Fault::Before(json!({"metadata": {"finalizers": ["reeve.dev/other", "reeve.dev/website"]}})),
    );
    bench.committer.remove_finalizer(&bench.leading, &bench.ticket, &bench.grant, &site).await.unwrap();
    assert_eq!(
        bench.rig.api.object(SITES, "a").unwrap()["metadata"]["finalizers"],
        json!(["reeve.dev/other"])
    );
}

#[tokio::test(start_paused = true)]
async fn the_last_finalizer_lets_the_object_go_at_once() {
    let mut bench = Bench::of(
        "website",
        json!({"apiVersion": "demo.reeve.dev/v1", "kind": "Website",
        "metadata": {"name": "a", "finalizers": ["reeve.dev/website"]}, "spec": {}}),
    )
    .await;
    let going =
        bench.rig.api.patch(SITES, "a", &json!({"metadata": {"deletionTimestamp": "2026-12-01T00:00:00Z"}}));
    bench.seen_site(&going).await;
    bench.rig.api.quiet(true);
    let site = bench.site();
    bench.committer.remove_finalizer(&bench.leading, &bench.ticket, &bench.grant, &site).await.unwrap();
    assert!(bench.rig.api.object(SITES, "a").is_none());
    assert!(
        bench.rig.cluster.cache().get(&site_kind(), &bench.site).is_none(),
        "no second cleanup before the watch tells"
    );
    bench.committer.remove_finalizer(&bench.leading, &bench.ticket, &bench.grant, &site).await.unwrap();
    assert!(matches!(
        bench.committer.add_finalizer(&bench.leading, &bench.ticket, &bench.grant, &site).await,
        Err(CommitError::Gone)
    ));
}

#[tokio::test(start_paused = true)]
async fn a_schema_without_conditions_is_learnt_once_and_not_chased() {
    let bench = Bench::new().await;
    bench.rig.api.prune(&["conditions", "observedGeneration"]);
    bench.commit(status_plan("u", ConditionStatus::True)).await.unwrap();
    assert_eq!(bench.status(), json!({"url": "u"}));
    bench.rig.api.take_calls();
    for url in ["u", "u", "v"] {
        bench.commit(status_plan(url, ConditionStatus::False)).await.unwrap();
    }
    assert_eq!(bench.rig.api.take_calls(), [format!("PATCH {SITES}/a/status")]);
    let failure = Failure::transient("DOWN", "network", "no");
    bench.report(&failure, false).await.unwrap();
    assert!(bench.rig.api.take_calls().is_empty(), "it becomes an event");
}

#[tokio::test(start_paused = true)]
async fn the_same_failure_again_costs_nothing_and_a_success_heals() {
    let bench = Bench::new().await;
    let failure = Failure::transient("DOWN", "network", "the database does not answer");
    bench.report(&failure, false).await.unwrap();
    assert_eq!(bench.rig.api.take_calls(), [format!("PATCH {SITES}/a/status")]);
    for _ in 0..3 {
        bench.report(&failure, false).await.unwrap();
    }
    assert!(bench.rig.api.take_calls().is_empty());
    bench.report(&failure, true).await.unwrap();
    let stalled = &bench.status()["conditions"][1];
    assert_eq!((&stalled["type"], &stalled["status"]), (&json!("Stalled"), &json!("True")));
    bench.rig.api.take_calls();
    bench.commit(Plan::default()).await.unwrap();
    assert_eq!(bench.rig.api.take_calls(), [format!("PATCH {SITES}/a/status")]);
    let conditions = bench.status()["conditions"].clone();
    assert_eq!(conditions.as_array().unwrap().len(), 1);
    assert_eq!((&conditions[0]["type"], &conditions[0]["status"]), (&json!("Reconciled"), &json!("True")));
    bench.commit(Plan::default()).await.unwrap();
    assert!(bench.rig.api.take_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_guests_failure_keeps_its_status_and_drops_the_rest() {
    let bench = Bench::new().await;
    let plan = Plan {
        writes: vec![],
        events: vec![Event {
            warning: true,
            reason: "R".to_owned(),
            action: "A".to_owned(),
            note: "n".to_owned(),
        }],
        ..Plan { conditions: vec![ready(ConditionStatus::False)], ..website(1) }
    };
    let failure = Failure::transient("DOWN", "network", "no");
    bench
        .commit_from(&bench.site(), outcome(plan.clone(), Some((Layer::Guest, failure.clone()))))
        .await
        .unwrap();
    assert_eq!(bench.rig.api.take_calls(), [format!("PATCH {SITES}/a/status")]);
    let types: Vec<Value> =
        bench.status()["conditions"].as_array().unwrap().iter().map(|found| found["type"].clone()).collect();
    assert_eq!(types, ["Ready", "Reconciled"]);
    // A guest that broke: the host's word only.
    let bench = Bench::new().await;
    bench.commit_from(&bench.site(), outcome(plan, Some((Layer::Broke, failure)))).await.unwrap();
    let types: Vec<Value> =
        bench.status()["conditions"].as_array().unwrap().iter().map(|found| found["type"].clone()).collect();
    assert_eq!(types, ["Reconciled"]);
    assert_eq!(bench.status()["url"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_kind_without_a_status_is_refused_by_name() {
    let manifest = Manifest::parse(&json!({"name": "bare", "version": "1", "primary": {"apiVersion": "demo.reeve.dev/v1", "kind": "Bare"}}).to_string()).unwrap();
    let gvk = manifest.primary.gvk();
    let mut rig = Rig::new(std::slice::from_ref(&gvk)).await;
    let name = ObjectName::namespaced("web", "b");
    let stored = rig.api.put(
        "/apis/demo.reeve.dev/v1/namespaces/web/bares",
        json!({"apiVersion": "demo.reeve.dev/v1", "kind": "Bare", "metadata": {"name": "b"}}),
    );
    rig.seen(&gvk, &name, stored["metadata"]["resourceVersion"].as_str()).await;
    let committer = Committer::new(rig.cluster.clone(), &rig.registry).unwrap();
    let (ticket, grant) = (ticket(&manifest.name, &name).await, grant(&manifest));
    let object = rig.cluster.cache().get(&gvk, &name).unwrap();
    let outcome = outcome(status_plan("u", ConditionStatus::True), None);
    let work = Work {
        manifest: &manifest,
        primary: &name,
        object: Some(&object),
        outcome: &outcome,
        attempts: 0,
        stalled: false,
    };
    let failure =
        committer.commit(&Leading::solo(), &ticket, &grant, work).await.unwrap_err().error.failure();
    assert_eq!(failure.code, code::NO_STATUS_SUBRESOURCE);
    assert!(failure.message.contains("Bare.demo.reeve.dev has no status subresource"), "{}", failure.message);
    assert!(rig.api.take_calls().is_empty());
    // What the host itself has to say becomes an event, once.
    let looping = Condition { kind: "HotLoop".to_owned(), ..ready(ConditionStatus::True) };
    let outcome = super::outcome(Plan { conditions: vec![looping], ..Plan::default() }, None);
    for _ in 0..3 {
        let work = Work { outcome: &outcome, ..work };
        committer.commit(&Leading::solo(), &ticket, &grant, work).await.unwrap();
    }
    let shutdown = tokio_util::sync::CancellationToken::new();
    shutdown.cancel();
    committer.events().run(shutdown).await;
    assert_eq!(rig.api.take_calls(), ["POST /apis/events.k8s.io/v1/namespaces/web/events"]);
}

#[tokio::test(start_paused = true)]
async fn the_other_strategies_say_the_same_in_their_own_way() {
    use reeve_core::manifest::StatusStrategy;
    for (strategy, method, content) in [
        (StatusStrategy::Apply, "PATCH", "application/apply-patch+yaml"),
        (StatusStrategy::Update, "PUT", "application/json"),
    ] {
        let mut bench = Bench::new().await;
        bench.manifest.status = strategy;
        bench.commit(status_plan("u", ConditionStatus::True)).await.unwrap();
        let call = bench.rig.api.calls().pop().unwrap();
        assert_eq!((&*call.method, &*call.content_type), (method, content));
        assert_eq!(bench.status()["url"], "u");
        assert_eq!(bench.status()["conditions"][0]["type"], "Ready");
        bench.rig.api.take_calls();
        bench.commit(status_plan("u", ConditionStatus::True)).await.unwrap();
        assert!(bench.rig.api.take_calls().is_empty());
        // Stale: done again on the fresh object.
        bench.rig.api.fault("/status", Fault::Before(json!({"status": {"x": 1}})));
        bench.commit(status_plan("v", ConditionStatus::True)).await.unwrap();
        assert_eq!((&bench.status()["url"], &bench.status()["x"]), (&json!("v"), &json!(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_runs_conditions_are_of_the_generation_that_it_read() {
    let mut bench = Bench::new().await;
    let read = bench.site();
    let stored = bench.rig.api.patch(SITES, "a", &json!({"spec": {"html": "newer"}}));
    bench.seen_site(&stored).await;
    let failure = Failure::transient("DOWN", "network", "no");
    let plan = Plan { conditions: vec![ready(ConditionStatus::False)], ..Plan::default() };
    bench.commit_from(&read, outcome(plan, Some((Layer::Guest, failure)))).await.unwrap();
    let status = bench.status();
    assert_eq!(status["observedGeneration"], 1);
    for condition in status["conditions"].as_array().unwrap() {
        assert_eq!(condition["observedGeneration"], 1, "{condition}");
    }
    assert_eq!(stored["metadata"]["generation"], 2);
}
