use reeve_core::change::Cause;
use reeve_core::plan::Propagation;
use reeve_core::reason::Reason;

use super::*;

fn write(action: WriteAction) -> Write {
    Write {
        id: None,
        action,
        gvk: map_kind(),
        name: ObjectName::namespaced("web", "m"),
        subresource: None,
        resource_version: None,
        uid: None,
        dry_run: false,
    }
}

fn plan(writes: Vec<Write>) -> Plan {
    Plan { writes, ..Plan::default() }
}

async fn with_object(bench: &mut Bench) -> Value {
    let stored = bench.rig.api.put(
        MAPS,
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": "1"}}),
    );
    let version = stored["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    bench.rig.seen(&map_kind(), &ObjectName::namespaced("web", "m"), Some(&version)).await;
    stored
}

#[tokio::test(start_paused = true)]
async fn writes_go_in_order_and_those_that_change_nothing_stay() {
    let bench = Bench::new().await;
    let body = json!({"data": {"k": "1"}});
    let create = write(WriteAction::Create { body: body.clone(), generate_name: false });
    let merge = write(WriteAction::MergePatch { body: json!({"data": {"k": "2"}}) });
    let json =
        write(WriteAction::JsonPatch { body: json!([{"op": "replace", "path": "/data/k", "value": "3"}]) });
    bench.commit(plan(vec![create, merge.clone(), json])).await.unwrap();
    assert_eq!(
        bench.rig.api.take_calls(),
        [format!("POST {MAPS}"), format!("PATCH {MAPS}/m"), format!("PATCH {MAPS}/m")]
    );
    assert_eq!(bench.rig.api.object(MAPS, "m").unwrap()["data"]["k"], "3");
    bench.commit(plan(vec![merge.clone()])).await.unwrap();
    bench.commit(plan(vec![merge])).await.unwrap();
    assert_eq!(bench.rig.api.take_calls().len(), 1);
    let apply = write(WriteAction::Apply { body: json!({"data": {"a": "1"}}), force: false });
    bench.commit(plan(vec![apply.clone()])).await.unwrap();
    let call = bench.rig.api.calls().pop().unwrap();
    assert_eq!(call.query, "fieldManager=reeve.dev%2Fwebsite");
    assert_eq!((&call.body["kind"], &call.body["metadata"]["name"]), (&json!("ConfigMap"), &json!("m")));
    bench.rig.api.take_calls();
    bench.commit(plan(vec![apply])).await.unwrap();
    assert!(bench.rig.api.take_calls().is_empty());
    let delete = write(WriteAction::Delete { propagation: Propagation::Orphan });
    bench.commit(plan(vec![delete.clone()])).await.unwrap();
    assert_eq!(bench.rig.api.calls().pop().unwrap().body, json!({"propagationPolicy": "Orphan"}));
    bench.rig.api.take_calls();
    bench.commit(plan(vec![delete])).await.unwrap();
    assert!(bench.rig.api.take_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stale_write_is_a_conflict_and_the_cache_is_fresh_after_it() {
    // Scenario K2.
    let mut bench = Bench::new().await;
    let stored = with_object(&mut bench).await;
    bench.rig.api.quiet(true);
    bench.rig.api.patch(MAPS, "m", &json!({"data": {"k": "2"}}));
    let version = ResourceVersion::parse(stored["metadata"]["resourceVersion"].as_str().unwrap());
    for action in [
        WriteAction::MergePatch { body: json!({"data": {"k": "3"}}) },
        WriteAction::JsonPatch { body: json!([{"op": "replace", "path": "/data/k", "value": "3"}]) },
        WriteAction::Apply { body: json!({"data": {"k": "3"}}), force: true },
    ] {
        let stale = Write { resource_version: version, ..write(action) };
        assert!(matches!(bench.commit(plan(vec![stale])).await, Err(CommitError::Conflict)));
    }
    assert_eq!(bench.rig.api.object(MAPS, "m").unwrap()["data"]["k"], "2");
    let cached = bench.rig.cluster.cache().get(&map_kind(), &ObjectName::namespaced("web", "m")).unwrap();
    assert_eq!(cached.pointer("/data/k"), Some("\"2\""));
    // What the refresh found is another's change, not the echo of this key.
    let mut told = None;
    while let Ok(change) = bench.rig.changes.try_recv() {
        told = Some(change);
    }
    let Cause::Write(origin) = told.unwrap().cause else { panic!("it came by the watch") };
    assert_ne!(origin.primary, bench.site);
}

#[tokio::test(start_paused = true)]
async fn answers_and_refusals_of_writes_with_an_id_are_offered() {
    let bench = Bench::new().await;
    let token = Write {
        id: Some("token".to_owned()),
        gvk: Gvk::new("", "v1", "ServiceAccount"),
        name: ObjectName::namespaced("web", "sa"),
        subresource: Some("token".to_owned()),
        ..write(WriteAction::Create { body: json!({"spec": {}}), generate_name: false })
    };
    let named = Write {
        id: Some("named".to_owned()),
        name: ObjectName::namespaced("web", "job-"),
        ..write(WriteAction::Create { body: json!({}), generate_name: true })
    };
    let refused =
        Write { id: Some("refused".to_owned()), ..write(WriteAction::MergePatch { body: json!({}) }) };
    let tried = Write {
        id: Some("tried".to_owned()),
        dry_run: true,
        ..write(WriteAction::Create { body: json!({}), generate_name: false })
    };
    let done = bench.commit(plan(vec![token, named, refused, tried])).await.unwrap();
    assert_eq!(done.again, Some(Reason::Answer));
    assert_eq!(done.answers["token"]["ok"]["status"]["token"], "t");
    let name = done.answers["named"]["ok"]["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("job-"), "{name}");
    assert!(bench.rig.cluster.cache().get(&map_kind(), &ObjectName::namespaced("web", name)).is_some());
    assert_eq!(done.answers["refused"]["failure"]["code"], "NOT_FOUND");
    assert!(done.answers["tried"]["ok"].is_object());
    assert!(bench.rig.api.object(MAPS, "m").is_none(), "scenario K3: a dry run changes nothing");
    let paths = bench.rig.api.take_calls();
    assert!(paths.contains(&"POST /api/v1/namespaces/web/serviceaccounts/sa/token".to_owned()), "{paths:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_to_the_primary_carries_its_uid() {
    let bench = Bench::new().await;
    let own = Write {
        gvk: site_kind(),
        name: bench.site.clone(),
        ..write(WriteAction::MergePatch { body: json!({"metadata": {"labels": {"a": "b"}}}) })
    };
    bench.commit(plan(vec![own])).await.unwrap();
    let call = bench.rig.api.calls().pop().unwrap();
    assert_eq!(call.body["metadata"]["uid"], bench.site().meta().uid.as_str());
}

#[tokio::test(start_paused = true)]
async fn names_that_leave_their_path_segment_are_refused() {
    let bench = Bench::new().await;
    let hostile = Write {
        name: ObjectName::namespaced("web", "../secrets/x"),
        ..write(WriteAction::MergePatch { body: json!({}) })
    };
    let failure = bench.commit(plan(vec![hostile])).await.unwrap_err().failure();
    assert_eq!(failure.code, code::INVALID_ARGUMENT);
    assert!(bench.rig.api.take_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn scenario_k9_warnings_are_no_failures() {
    let bench = Bench::new().await;
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "uid": "u", "resourceVersion": "9"}});
    bench.rig.api.fault(MAPS, Fault::Answer(201, vec![("warning", "299 - \"old field\"")], body));
    bench
        .commit(plan(vec![write(WriteAction::Create { body: json!({}), generate_name: false })]))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_echo_of_a_write_is_told_once_as_ours() {
    let mut bench = Bench::new().await;
    while bench.rig.changes.try_recv().is_ok() {}
    bench
        .commit(plan(vec![write(WriteAction::Create { body: json!({}), generate_name: false })]))
        .await
        .unwrap();
    let mut told = Vec::new();
    tokio::time::sleep(Duration::from_secs(1)).await;
    while let Ok(change) = bench.rig.changes.try_recv() {
        told.push(change.cause);
    }
    let plugin: PluginName = "website".parse().unwrap();
    assert!(
        matches!(&told[..], [Cause::Write(origin)] if origin.plugin == plugin && origin.primary == bench.site),
        "{told:?}"
    );
}

fn named() -> Write {
    Write {
        id: Some("named".to_owned()),
        name: ObjectName::namespaced("web", "job-"),
        ..write(WriteAction::Create { body: json!({}), generate_name: true })
    }
}

#[tokio::test(start_paused = true)]
async fn answers_outlive_what_ends_the_commit_after_them() {
    let bench = Bench::new().await;
    let kept = |bench: &Bench| {
        let answers = std::mem::take(&mut *bench.answers.lock());
        let name = answers.get("named").map(|answer| answer["ok"]["metadata"]["name"].clone());
        name.is_some_and(|name| name.as_str().is_some_and(|name| name.starts_with("job-")))
    };
    // A later write of the same commit is refused.
    let stale = write(WriteAction::MergePatch { body: json!({"data": {"k": "2"}}) });
    assert!(matches!(bench.commit(plan(vec![named(), stale])).await, Err(CommitError::Failed(_))));
    assert!(kept(&bench));
    // The status cannot be written.
    let status = serde_json::from_value(json!({"url": "u"})).unwrap();
    bench.rig.api.fault("/status", Fault::Answer(422, vec![], json!({})));
    let told = Plan { status, ..plan(vec![named()]) };
    assert!(matches!(bench.commit(told).await, Err(CommitError::Failed(_))));
    assert!(kept(&bench));
    // The server is so slow that the commit is over its time.
    let slow: Vec<Write> = (0..8)
        .map(|index| {
            bench.rig.api.fault(&format!("{MAPS}/s{index}"), Fault::Slow(Duration::from_secs(9)));
            let apply = WriteAction::Apply { body: json!({}), force: false };
            Write { name: ObjectName::namespaced("web", &format!("s{index}")), ..write(apply) }
        })
        .collect();
    let writes = std::iter::once(named()).chain(slow).collect();
    let Err(CommitError::Outage(failure)) = bench.commit(plan(writes)).await else { panic!("no outage") };
    assert!(failure.message.contains("within 60 s"), "{failure}");
    assert!(kept(&bench));
    // What is known of one life of an object is not told to the next.
    let status = serde_json::from_value(json!({"url": "v"})).unwrap();
    bench.rig.api.delete(SITES, "a");
    bench.rig.api.fault("/status", Fault::Answer(404, vec![], json!({})));
    let told = Plan { status, ..plan(vec![named()]) };
    assert!(matches!(bench.commit(told).await, Err(CommitError::Gone)));
    assert!(!kept(&bench));
}

#[test]
fn answers_stay_out_of_debug_texts() {
    let answers = [("token".to_owned(), json!({"ok": "hunter2"}))].into();
    let text = format!("{:?}", Unfinished { error: CommitError::Conflict, answers });
    assert!(text.contains("token") && !text.contains("hunter2"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn what_a_run_staged_for_a_living_primary_is_not_made_once_it_is_on_its_way_out() {
    let bench = Bench::of(
        "website",
        json!({"apiVersion": "demo.reeve.dev/v1", "kind": "Website",
        "metadata": {"name": "a", "finalizers": ["reeve.dev/website"]}, "spec": {}}),
    )
    .await;
    let own = || Write {
        gvk: site_kind(),
        name: bench.site.clone(),
        ..write(WriteAction::MergePatch { body: json!({"metadata": {"labels": {"a": "b"}}}) })
    };
    let apply = WriteAction::Apply { body: json!({"data": {}}), force: false };
    // The answer of the first write shows that the primary is being deleted.
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-12-01T00:00:00Z"}});
    bench.rig.api.fault(SITES, Fault::Before(deleted));
    let result = bench.commit(plan(vec![named(), own(), write(apply.clone())])).await;
    assert!(matches!(result, Err(CommitError::Gone)), "{result:?}");
    assert_eq!(bench.rig.api.take_calls(), [format!("POST {MAPS}"), format!("PATCH {SITES}/a")]);
    assert!(bench.answers.lock().contains_key("named"), "the cleanup may need it");
    // What the cleanup itself stages is sent.
    bench.commit(plan(vec![write(apply)])).await.unwrap();
    assert_eq!(bench.rig.api.take_calls(), [format!("PATCH {MAPS}/m")]);
}
