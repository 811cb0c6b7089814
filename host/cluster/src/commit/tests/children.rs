use super::*;

#[tokio::test(start_paused = true)]
async fn a_new_website_costs_five_writes_and_then_none() {
    let mut bench = Bench::new().await;
    let site = bench
        .committer
        .add_finalizer(&bench.leading, &bench.ticket, &bench.grant, &bench.site())
        .await
        .unwrap();
    assert!(site.meta().has_finalizer("reeve.dev/website"));
    let done = bench.commit_from(&site, outcome(website(1), None)).await.unwrap();
    let mut calls = bench.rig.api.take_calls();
    // Once for the plugin, not for the object: the kinds of its children are remembered.
    assert_eq!(calls.remove(1), format!("GET {MEMORY}"));
    assert_eq!(calls.remove(1), format!("PATCH {MEMORY}"));
    assert_eq!(
        calls,
        [
            format!("PATCH {SITES}/a"),
            format!("PATCH {MAPS}/a"),
            format!("PATCH {DEPLOYMENTS}/a"),
            format!("PATCH {SERVICES}/a"),
            format!("PATCH {SITES}/a/status"),
        ]
    );
    assert_eq!((done.writes, done.skipped), (5, 0), "three children, a status, and the memory of kinds");
    for _ in 0..3 {
        let done = bench.commit(website(1)).await.unwrap();
        assert_eq!((done.writes, done.skipped), (0, 4));
    }
    assert!(bench.rig.api.take_calls().is_empty());
    // Scenario K6: one changed child is one request, without a read before it.
    bench.commit(website(2)).await.unwrap();
    assert_eq!(bench.rig.api.take_calls(), [format!("PATCH {DEPLOYMENTS}/a")]);
    // A spec change: the child that it changes, and the status for its generation.
    let changed = bench.rig.api.patch(SITES, "a", &json!({"spec": {"html": "y"}}));
    bench.seen_site(&changed).await;
    bench.commit(website(3)).await.unwrap();
    assert_eq!(
        bench.rig.api.take_calls(),
        [format!("PATCH {DEPLOYMENTS}/a"), format!("PATCH {SITES}/a/status")]
    );
    assert_eq!(bench.status()["observedGeneration"], 2);
    assert_eq!(bench.metric("reeve_commit_writes_total", &[("kind", "Deployment"), ("result", "ok")]), 3);
    assert!(bench.metric("reeve_commit_skipped_total", &[("plugin", "website")]) >= 12);
}

#[tokio::test(start_paused = true)]
async fn a_child_carries_owner_label_digest_and_manager() {
    let bench = Bench::new().await;
    bench.with_map(json!({"k": "v"})).await;
    let stored = bench.rig.api.object(MAPS, "a").unwrap();
    let uid = bench.site().meta().uid.to_string();
    assert_eq!(
        stored["metadata"]["ownerReferences"],
        json!([{"apiVersion": "demo.reeve.dev/v1", "kind": "Website", "name": "a", "uid": uid, "controller": true, "blockOwnerDeletion": true}])
    );
    assert_eq!(stored["metadata"]["labels"], json!({"reeve.dev/plugin": "website"}));
    assert_eq!(stored["metadata"]["annotations"]["reeve.dev/applied"].as_str().map(str::len), Some(32));
    let memory = bench.rig.api.object("/api/v1/namespaces/host/configmaps", "reeve-plugin-website").unwrap();
    assert_eq!(
        memory["data"].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["ConfigMap.v1", "Deployment.v1.apps", "Secret.v1", "Service.v1"]
    );
    bench.commit(Plan { children: vec![map(json!({"k": "w"}))], ..Plan::default() }).await.unwrap();
    let call = bench.rig.api.calls().pop().unwrap();
    assert_eq!(call.query, "fieldManager=reeve.dev%2Fwebsite&force=true");
    assert_eq!(call.content_type, "application/apply-patch+yaml");
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_the_annotation_is_enough_to_write_nothing() {
    let bench = Bench::new().await;
    bench.commit(website(1)).await.unwrap();
    bench.rig.api.take_calls();
    let again = Committer::new(bench.rig.cluster.clone(), &prometheus::Registry::new()).unwrap();
    again.recall(&bench.manifest.name).await.unwrap();
    bench.rig.api.take_calls();
    let outcome = outcome(website(1), None);
    let site = bench.site();
    let work = Work {
        manifest: &bench.manifest,
        primary: &bench.site,
        object: Some(&site),
        outcome: &outcome,
        attempts: 0,
        stalled: false,
    };
    again.commit(&bench.leading, &bench.ticket, &bench.grant, work).await.unwrap();
    assert!(bench.rig.api.take_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired_foreign_fields_are_left_and_dropped_fields_go() {
    let mut bench = Bench::new().await;
    bench.with_map(json!({"k": "v", "old": "1"})).await;
    let name = ObjectName::namespaced("web", "a");
    // Foreign: nothing to do.
    let stored = bench.rig.api.patch(MAPS, "a", &json!({"data": {"foreign": "1"}}));
    bench.rig.seen(&map_kind(), &name, stored["metadata"]["resourceVersion"].as_str()).await;
    let plan = |data: Value| Plan { children: vec![map(data)], ..Plan::default() };
    bench.commit(plan(json!({"k": "v", "old": "1"}))).await.unwrap();
    assert!(bench.rig.api.take_calls().is_empty());
    // Drift: repaired.
    let stored = bench.rig.api.patch(MAPS, "a", &json!({"data": {"k": "drifted"}}));
    bench.rig.seen(&map_kind(), &name, stored["metadata"]["resourceVersion"].as_str()).await;
    bench.commit(plan(json!({"k": "v", "old": "1"}))).await.unwrap();
    assert_eq!(bench.rig.api.take_calls(), [format!("PATCH {MAPS}/a")]);
    assert_eq!(
        bench.rig.api.object(MAPS, "a").unwrap()["data"],
        json!({"k": "v", "old": "1", "foreign": "1"})
    );
    // Dropped: removed.
    bench.commit(plan(json!({"k": "v"}))).await.unwrap();
    assert_eq!(bench.rig.api.object(MAPS, "a").unwrap()["data"], json!({"k": "v", "foreign": "1"}));
}

#[tokio::test(start_paused = true)]
async fn read_your_own_writes_before_the_watch_tells() {
    // Complaint 1: watch events are late, and the key runs again at once.
    let bench = Bench::new().await;
    bench.rig.api.quiet(true);
    bench.commit(website(1)).await.unwrap();
    bench.rig.api.take_calls();
    bench.commit(website(1)).await.unwrap();
    assert!(bench.rig.api.take_calls().is_empty());
    bench.rig.api.quiet(false);
    bench.commit(website(1)).await.unwrap();
    assert!(bench.rig.api.take_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ours_is_refused_by_name_unless_adopted() {
    let mut bench = Bench::new().await;
    let stored = bench.rig.api.put(
        MAPS,
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}),
    );
    bench
        .rig
        .seen(
            &map_kind(),
            &ObjectName::namespaced("web", "a"),
            stored["metadata"]["resourceVersion"].as_str(),
        )
        .await;
    let plan =
        |adopt: bool| Plan { children: vec![Child { adopt, ..map(json!({"k": "v"})) }], ..Plan::default() };
    let refused = bench.commit(plan(false)).await.unwrap_err().failure();
    assert_eq!((&*refused.code, refused.transient), (code::CHILD_NOT_OWNED, false));
    assert!(
        refused.message.contains("ConfigMap web/a exists and is not a child of Website.demo.reeve.dev web/a"),
        "{}",
        refused.message
    );
    bench.commit(plan(true)).await.unwrap();
    assert_eq!(bench.rig.api.object(MAPS, "a").unwrap()["data"], json!({"k": "v", "x": "1"}));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_appeared_unseen_is_not_taken_over() {
    let bench = Bench::new().await;
    bench.with_map(json!({"k": "v"})).await;
    bench.rig.api.quiet(true);
    bench.rig.api.put(SERVICES, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"type": "ExternalName"}}));
    let refused =
        bench.commit(Plan { children: vec![service()], ..Plan::default() }).await.unwrap_err().failure();
    assert_eq!(refused.code, code::CHILD_NOT_OWNED);
    assert_eq!(bench.rig.api.object(SERVICES, "a").unwrap()["spec"], json!({"type": "ExternalName"}));
    assert_eq!(bench.rig.api.take_calls(), [format!("PATCH {SERVICES}/a"), format!("GET {SERVICES}/a")]);
}

#[tokio::test(start_paused = true)]
async fn a_second_controller_and_another_namespace_are_refused() {
    // Scenario K7.
    let mut bench = Bench::new().await;
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "other", "controller": true});
    let stored = bench.rig.api.put(MAPS, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "ownerReferences": [owner]}}));
    bench
        .rig
        .seen(
            &map_kind(),
            &ObjectName::namespaced("web", "a"),
            stored["metadata"]["resourceVersion"].as_str(),
        )
        .await;
    let plan = |child: Child| Plan { children: vec![Child { adopt: true, ..child }], ..Plan::default() };
    let refused = bench.commit(plan(map(json!({})))).await.unwrap_err().failure();
    assert!(refused.message.contains("it is controlled by Pod p"), "{}", refused.message);
    let second = child(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "ownerReferences": [owner]}}),
    );
    assert_eq!(bench.commit(plan(second)).await.unwrap_err().failure().code, code::CHILD_NOT_OWNED);
    let abroad = child(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "namespace": "other"}}),
    );
    assert_eq!(bench.commit(plan(abroad)).await.unwrap_err().failure().code, code::CROSS_NAMESPACE_OWNER);
    assert!(bench.rig.api.calls().iter().all(|call| call.path == MEMORY));
}

#[tokio::test(start_paused = true)]
async fn pruning_takes_only_surplus_children_of_this_plugin_and_primary() {
    let mut bench = Bench::new().await;
    bench.commit(website(1)).await.unwrap();
    let uid = bench.site().meta().uid.to_string();
    let owner = |uid: &str| json!([{"apiVersion": "demo.reeve.dev/v1", "kind": "Website", "name": "a", "uid": uid, "controller": true}]);
    for (name, plugin, uid) in
        [("theirs", "other", &*uid), ("unlabelled", "", &*uid), ("elsewhere", "website", "another")]
    {
        let labels = if plugin.is_empty() { json!({}) } else { json!({"reeve.dev/plugin": plugin}) };
        let stored = bench.rig.api.put(MAPS, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels, "ownerReferences": owner(uid)}}));
        let version = stored["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        bench.rig.seen(&map_kind(), &ObjectName::namespaced("web", name), Some(&version)).await;
    }
    bench.rig.api.take_calls();
    let smaller = Plan { children: vec![map(json!({"html": "x"}))], ..website(1) };
    let incomplete = Plan { complete: false, ..smaller.clone() };
    bench.commit(incomplete).await.unwrap();
    assert!(bench.rig.api.take_calls().is_empty());
    bench.commit(smaller.clone()).await.unwrap();
    let calls = bench.rig.api.calls();
    let lines = bench.rig.api.take_calls();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines.contains(&format!("DELETE {DEPLOYMENTS}/a")) && lines.contains(&format!("DELETE {SERVICES}/a"))
    );
    assert!(calls.iter().all(|call| call.body["preconditions"]["uid"].is_string()
        && call.body["propagationPolicy"] == "Background"));
    // What was deleted is out of the cache before the watch says so.
    bench.commit(smaller).await.unwrap();
    assert!(bench.rig.api.take_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_a_new_version_dropped_is_still_pruned() {
    let mut bench = Bench::new().await;
    bench.commit(website(1)).await.unwrap();
    bench.manifest.watches.retain(|watch| watch.kind != "Service");
    bench.grant = grant(&bench.manifest);
    let again = Committer::new(bench.rig.cluster.clone(), &prometheus::Registry::new()).unwrap();
    let service = Gvk::new("", "v1", "Service");
    assert!(again.recall(&bench.manifest.name).await.unwrap().contains(&service));
    bench.committer = again;
    bench.rig.api.take_calls();
    let plan = Plan { children: vec![map(json!({"html": "x"})), deployment(1)], ..website(1) };
    bench.commit(plan).await.unwrap();
    assert_eq!(bench.rig.api.take_calls(), [format!("DELETE {SERVICES}/a")]);
    bench.committer.let_go(&bench.leading, &bench.manifest.name, &[service.clone()].into()).await.unwrap();
    assert!(!bench.committer.recall(&bench.manifest.name).await.unwrap().contains(&service));
}

#[tokio::test(start_paused = true)]
async fn a_memory_that_is_forbidden_does_not_stop_the_children() {
    let bench = Bench::new().await;
    bench.rig.api.fault(
        "PATCH /api/v1/namespaces/host",
        Fault::Answer(403, vec![], json!({"kind": "Status", "reason": "Forbidden", "message": "no"})),
    );
    for data in ["1", "2"] {
        bench.commit(Plan { children: vec![map(json!({"k": data}))], ..Plan::default() }).await.unwrap();
    }
    let tries =
        bench.rig.api.calls().iter().filter(|call| call.path == MEMORY && call.method == "PATCH").count();
    assert_eq!(tries, 1, "it is left alone for a while");
}

#[tokio::test(start_paused = true)]
async fn texts_of_a_secret_are_sent_as_data_so_that_dropped_keys_go() {
    let bench = Bench::new().await;
    let secret = |data: Value| Plan {
        children: vec![child(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "stringData": data}),
        )],
        ..Plan::default()
    };
    bench.commit(secret(json!({"a": "1", "b": "2"}))).await.unwrap();
    bench.commit(secret(json!({"a": "1"}))).await.unwrap();
    let stored = bench.rig.api.object("/api/v1/namespaces/web/secrets", "a").unwrap();
    assert_eq!((&stored["data"], &stored["stringData"]), (&json!({"a": "MQ=="}), &Value::Null));
}

#[tokio::test(start_paused = true)]
async fn a_failed_child_stops_the_rest_and_names_the_field() {
    let bench = Bench::new().await;
    bench.with_map(json!({})).await;
    let causes = json!([{"field": "spec.replicas", "reason": "FieldValueInvalid", "message": "m"}]);
    let body = json!({"kind": "Status", "reason": "Invalid", "message": "Deployment.apps \"a\" is invalid: spec.replicas: Invalid value: -1", "details": {"causes": causes}});
    bench.rig.api.fault(DEPLOYMENTS, Fault::Answer(422, vec![], body));
    let mut plan = website(1);
    plan.children = vec![deployment(1)];
    plan.children.extend((0..20).map(|index| {
        child(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{index}")}}))
    }));
    let failure = bench.commit(plan).await.unwrap_err().failure();
    assert_eq!((&*failure.code, failure.transient), (code::INVALID_WRITE, false));
    assert!(failure.message.contains("spec.replicas: Invalid value: -1"), "{}", failure.message);
    let calls = bench.rig.api.take_calls();
    assert!(calls.len() < 10 && !calls.iter().any(|call| call.contains("status")), "{calls:?}");
    bench.report(&failure, false).await.unwrap();
    let condition = &bench.status()["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&json!("Reconciled"), &json!("False"), &json!("INVALID_WRITE"))
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_not_granted_is_refused_before_anything_leaves() {
    let bench = Bench::new().await;
    let pod = child(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}));
    let plan = Plan { children: vec![map(json!({})), pod], ..Plan::default() };
    let Err(CommitError::Denied(denied)) = bench.commit(plan).await else { panic!("it was allowed") };
    assert!(denied.to_string().contains("Pod"), "{denied}");
    assert!(bench.rig.api.take_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_replaced_child_is_a_conflict_and_then_seen() {
    let bench = Bench::new().await;
    bench.with_map(json!({"k": "1"})).await;
    bench.rig.api.quiet(true);
    bench.rig.api.delete(MAPS, "a");
    let plan = || Plan { children: vec![map(json!({"k": "2"}))], ..Plan::default() };
    assert!(matches!(bench.commit(plan()).await, Err(CommitError::Conflict)));
    bench.commit(plan()).await.unwrap();
    assert_eq!(bench.rig.api.object(MAPS, "a").unwrap()["data"]["k"], "2");
}
