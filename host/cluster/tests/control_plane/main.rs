//! The commit flows on a real kube-apiserver.
//!
//! Runs where `REEVE_TEST_KUBECONFIG` names a kubeconfig (the end-to-end suite sets it); elsewhere
//! each test says that it was skipped. Each works in a namespace and with a kind of its own.

mod host;

use host::*;
use reeve_cluster::CommitError;
use reeve_core::failure::{Failure, Layer, code};
use reeve_core::gvk::Gvk;
use reeve_core::ids::ObjectName;
use reeve_core::leading::Leading;
use reeve_core::manifest::StatusStrategy;
use reeve_core::plan::{Child, ConditionStatus, Event, Outcome, Plan, Usage, Write, WriteAction};
use serde_json::{Value, json};

#[tokio::test]
async fn website_flow_writes_five_times_and_then_not_at_all() {
    let Some(mut host) = Host::new("commit-flow", open_status()).await else { return };
    let read = host.create("a").await;
    let ticket = host.ticket("a").await;
    let site = host.committer.add_finalizer(&Leading::solo(), &ticket, &host.grant, &read).await.unwrap();
    assert!(site.meta().has_finalizer(&host.manifest.name.field_manager()));
    let ns = host.namespace.clone();
    let done = host.commit(&site, website(&ns, 0)).await.unwrap();
    assert_eq!(done.writes, 5, "three children, a status, and once for the plugin the memory of kinds");
    let site = host.cached("a", |site| site.pointer("/status/url").is_some()).await;
    assert_eq!(site.pointer("/status/observedGeneration"), Some("1"));
    // At once, and after the controllers have written to the Deployment.
    assert_eq!(host.commit(&site, website(&ns, 0)).await.unwrap().writes, 0);
    let gvk = Gvk::new("apps", "v1", "Deployment");
    host.cached_of(&gvk, "a", |object| object.pointer("/status/observedGeneration").is_some()).await;
    assert_eq!(host.commit(&site, website(&ns, 0)).await.unwrap().writes, 0);
    // After a restart, from the annotations alone.
    let mut again = host.restarted().await;
    assert_eq!(again.committer.recall(&again.manifest.name).await.unwrap().len(), 3);
    let site = again.cached("a", |_| true).await;
    assert_eq!(again.commit(&site, website(&ns, 0)).await.unwrap().writes, 0);
    // One changed child.
    let mut changed = website(&ns, 0);
    changed.children[0] = map(&ns, json!({"html": "y"}));
    assert_eq!(host.commit(&site, changed).await.unwrap().writes, 1);
    // Pruned, and the answers of the deletes believed: Services answer with an object.
    let smaller = Plan { children: vec![map(&ns, json!({"html": "y"}))], ..website(&ns, 0) };
    assert_eq!(host.commit(&site, smaller.clone()).await.unwrap().writes, 2);
    assert_eq!(host.commit(&site, smaller).await.unwrap().writes, 0);
    assert!(host.read(&host.path("api/v1", "services", "a")).await.is_none());
    assert!(host.read(&host.path("apis/apps/v1", "deployments", "a")).await.is_none());
    // Deleted, with the finalizer last.
    let path = format!("{}/a", host.primaries());
    host.send("DELETE", &path, "application/json", &json!({})).await;
    let going = host.cached("a", |site| site.meta().deleting).await;
    assert!(matches!(host.commit(&site, website(&ns, 0)).await, Err(CommitError::Gone)));
    let ticket = host.ticket("a").await;
    host.committer.remove_finalizer(&Leading::solo(), &ticket, &host.grant, &going).await.unwrap();
    assert!(host.read(&path).await.is_none());
    assert!(host.reader.get(&host.manifest.primary.gvk(), &host.name("a")).unwrap().is_none());
    host.committer.remove_finalizer(&Leading::solo(), &ticket, &host.grant, &going).await.unwrap();
}

#[tokio::test]
async fn fields_of_children_are_owned_repaired_and_given_up() {
    let Some(mut host) = Host::new("commit-fields", open_status()).await else { return };
    let site = host.create("a").await;
    let ns = host.namespace.clone();
    let plan = |data: Value| Plan { children: vec![map(&ns, data)], ..Plan::default() };
    host.commit(&site, plan(json!({"k": "v", "old": "1"}))).await.unwrap();
    let path = host.path("api/v1", "configmaps", "a");
    let stored = host.merge(&path, &json!({"data": {"k": "drifted", "foreign": "1"}})).await;
    let maps = Gvk::new("", "v1", "ConfigMap");
    host.seen(&maps, &stored).await;
    assert_eq!(host.commit(&site, plan(json!({"k": "v", "old": "1"}))).await.unwrap().writes, 1);
    host.commit(&site, plan(json!({"k": "v"}))).await.unwrap();
    let stored = host.read(&path).await.unwrap();
    assert_eq!(stored["data"], json!({"k": "v", "foreign": "1"}));
    let managers: Vec<(&Value, &Value)> = stored["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (&entry["manager"], &entry["operation"]))
        .collect();
    assert!(
        managers.contains(&(&json!(host.manifest.name.field_manager()), &json!("Apply"))),
        "{managers:?}"
    );
    // A value of an unknown spelling is applied once for each version of the object, not in a loop.
    let odd = || {
        let mut odd = deployment(&ns, 0);
        odd.body["spec"]["strategy"] = json!({"type": "RollingUpdate", "rollingUpdate": null});
        Plan { children: vec![odd], ..Plan::default() }
    };
    host.commit(&site, odd()).await.unwrap();
    assert_eq!(host.commit(&site, odd()).await.unwrap().writes, 0);
}

#[tokio::test]
async fn foreign_objects_are_not_taken_over() {
    let Some(mut host) = Host::new("commit-foreign", open_status()).await else { return };
    let site = host.create("a").await;
    let ns = host.namespace.clone();
    // Unseen: there is no time for the watch.
    host.post(
        &format!("/api/v1/namespaces/{ns}/configmaps"),
        &json!({"metadata": {"name": "a"}, "data": {"x": "1"}}),
    )
    .await;
    let plan = |adopt: bool| Plan {
        children: vec![Child { adopt, ..map(&ns, json!({"k": "v"})) }],
        ..Plan::default()
    };
    let failure = host.commit(&site, plan(false)).await.unwrap_err().failure();
    assert_eq!(failure.code, code::CHILD_NOT_OWNED, "{failure}");
    let path = host.path("api/v1", "configmaps", "a");
    assert_eq!(host.read(&path).await.unwrap()["data"], json!({"x": "1"}));
    host.commit(&site, plan(true)).await.unwrap();
    assert_eq!(host.read(&path).await.unwrap()["data"], json!({"k": "v", "x": "1"}));
    // Replaced unseen: a conflict, and then it is somebody else's.
    host.send("DELETE", &path, "application/json", &json!({})).await;
    host.post(
        &format!("/api/v1/namespaces/{ns}/configmaps"),
        &json!({"metadata": {"name": "a"}, "data": {"x": "2"}}),
    )
    .await;
    let changed = Plan { children: vec![map(&ns, json!({"k": "w"}))], ..Plan::default() };
    let mut last = host.commit(&site, changed.clone()).await;
    if matches!(last, Err(CommitError::Conflict)) {
        last = host.commit(&site, changed).await;
    }
    assert_eq!(last.unwrap_err().failure().code, code::CHILD_NOT_OWNED);
    assert_eq!(host.read(&path).await.unwrap()["data"], json!({"x": "2"}));
}

#[tokio::test]
async fn refusals_name_the_field_and_reach_the_condition() {
    let Some(mut host) = Host::new("commit-refusals", open_status()).await else { return };
    let site = host.create("a").await;
    let ns = host.namespace.clone();
    let failure = host
        .commit(&site, Plan { children: vec![deployment(&ns, -1)], ..Plan::default() })
        .await
        .unwrap_err()
        .failure();
    assert_eq!((&*failure.code, failure.transient), (code::INVALID_WRITE, false));
    assert!(failure.message.contains("spec.replicas: Invalid value"), "{failure}");
    let mut unknown = deployment(&ns, 0);
    unknown.body["spec"]["replica"] = json!(1);
    let unknown =
        host.commit(&site, Plan { children: vec![unknown], ..Plan::default() }).await.unwrap_err().failure();
    assert_eq!(unknown.code, code::INVALID_WRITE);
    assert!(unknown.message.contains(".spec.replica: field not declared in schema"), "{unknown}");
    let ticket = host.ticket("a").await;
    let report = async |stalled: bool| {
        let site = host.reader.get(&host.manifest.primary.gvk(), &host.name("a")).unwrap().unwrap();
        host.committer
            .report(&Leading::solo(), &ticket, &host.grant, &host.manifest, &site, &failure, 5, stalled)
            .await
            .unwrap()
            .writes
    };
    assert_eq!(report(false).await, 1);
    assert_eq!(report(false).await, 0);
    assert_eq!(report(true).await, 1);
    let path = format!("{}/a", host.primaries());
    let conditions = host.read(&path).await.unwrap()["status"]["conditions"].clone();
    assert_eq!(
        (&conditions[0]["type"], &conditions[0]["status"], &conditions[1]["type"]),
        (&json!("Reconciled"), &json!("False"), &json!("Stalled"))
    );
    let site = host.reader.get(&host.manifest.primary.gvk(), &host.name("a")).unwrap().unwrap();
    assert_eq!(host.commit(&site, Plan::default()).await.unwrap().writes, 1);
    let conditions = host.read(&path).await.unwrap()["status"]["conditions"].clone();
    assert_eq!((conditions.as_array().unwrap().len(), &conditions[0]["status"]), (1, &json!("True")));
}

#[tokio::test]
async fn a_status_of_two_writers_keeps_both_and_a_schema_without_conditions_is_learnt() {
    let Some(mut host) =
        Host::new("commit-status", json!({"type": "object", "properties": {"url": {"type": "string"}}}))
            .await
    else {
        return;
    };
    let site = host.create("a").await;
    let plan = |url: &str| Plan {
        status: serde_json::from_value(json!({"url": url})).unwrap(),
        conditions: vec![ready(ConditionStatus::True)],
        ..Plan::default()
    };
    assert_eq!(host.commit(&site, plan("u")).await.unwrap().writes, 1);
    assert_eq!(host.commit(&site, plan("u")).await.unwrap().writes, 0);
    assert_eq!(host.commit(&site, plan("v")).await.unwrap().writes, 1);
    let path = format!("{}/a", host.primaries());
    assert_eq!(host.read(&path).await.unwrap()["status"], json!({"url": "v"}));
    // Stale on purpose: another wrote, and the cache may not know yet.
    host.merge(&path, &json!({"metadata": {"labels": {"x": "y"}}})).await;
    host.commit(&site, plan("w")).await.unwrap();
    let stored = host.read(&path).await.unwrap();
    assert_eq!((&stored["status"]["url"], &stored["metadata"]["labels"]["x"]), (&json!("w"), &json!("y")));
}

#[tokio::test]
async fn each_status_strategy_writes_once_and_keeps_what_others_wrote() {
    for (name, strategy) in
        [("commit-update", StatusStrategy::Update), ("commit-apply", StatusStrategy::Apply)]
    {
        let Some(mut host) = Host::new(name, open_status()).await else { return };
        host.manifest.status = strategy;
        let site = host.create("a").await;
        let path = format!("{}/a", host.primaries());
        let plan = |url: &str| Plan {
            status: serde_json::from_value(json!({"url": url})).unwrap(),
            conditions: vec![ready(ConditionStatus::True)],
            ..Plan::default()
        };
        assert_eq!(host.commit(&site, plan("u")).await.unwrap().writes, 1);
        assert_eq!(host.commit(&site, plan("u")).await.unwrap().writes, 0);
        // Another writes, and the cache may not know yet: done again on the fresh object.
        host.merge(&format!("{path}/status"), &json!({"status": {"x": 1}})).await;
        host.commit(&site, plan("v")).await.unwrap();
        let status = host.read(&path).await.unwrap()["status"].clone();
        assert_eq!(
            (&status["url"], &status["x"], &status["conditions"][0]["type"]),
            (&json!("v"), &json!(1), &json!("Ready"))
        );
    }
}

#[tokio::test]
async fn k1_an_apply_without_force_names_the_other_manager() {
    let Some(mut host) = Host::new("commit-force", open_status()).await else { return };
    let site = host.create("a").await;
    let path = format!("/api/v1/namespaces/{}/configmaps", host.namespace);
    host.post(&path, &json!({"metadata": {"name": "m"}, "data": {"k": "theirs"}})).await;
    let apply = |force: bool| Plan {
        writes: vec![Write {
            id: None,
            action: WriteAction::Apply { body: json!({"data": {"k": "ours"}}), force },
            gvk: Gvk::new("", "v1", "ConfigMap"),
            name: host.name("m"),
            subresource: None,
            resource_version: None,
            uid: None,
            dry_run: false,
        }],
        ..Plan::default()
    };
    let failure = host.commit(&site, apply(false)).await.unwrap_err().failure();
    assert_eq!(failure.code, code::CONFLICT);
    assert!(failure.message.contains(".data.k"), "{failure}");
    host.commit(&site, apply(true)).await.unwrap();
    assert_eq!(host.read(&format!("{path}/m")).await.unwrap()["data"]["k"], "ours");
}

#[tokio::test]
async fn finalizers_of_two_plugins_are_never_lost() {
    let Some(mut one) = Host::new("commit-finalizers", open_status()).await else { return };
    let mut two = one.restarted().await;
    two.manifest = manifest("commit-second", &one.manifest.primary.kind);
    two.grant = grant(&two.manifest);
    for round in 0..20 {
        let name = format!("o{round}");
        let object = one.create(&name).await;
        two.cached(&name, |_| true).await;
        let (first, second) = (one.ticket(&name).await, two.ticket(&name).await);
        let leading = Leading::solo();
        let (left, right) = tokio::join!(
            one.committer.add_finalizer(&leading, &first, &one.grant, &object),
            two.committer.add_finalizer(&leading, &second, &two.grant, &object),
        );
        let (left, right) = (left.unwrap(), right.unwrap());
        let path = format!("{}/{name}", one.primaries());
        let stored = one.read(&path).await.unwrap();
        assert_eq!(stored["metadata"]["finalizers"].as_array().unwrap().len(), 2, "{stored}");
        let (gone, gone_too) = tokio::join!(
            one.committer.remove_finalizer(&leading, &first, &one.grant, &left),
            two.committer.remove_finalizer(&leading, &second, &two.grant, &right),
        );
        gone.unwrap();
        gone_too.unwrap();
        let stored = one.read(&path).await.unwrap();
        assert_eq!(
            stored["metadata"]["finalizers"],
            Value::Null,
            "each removed its own, whatever it had seen"
        );
    }
}

#[tokio::test]
async fn other_writes_subresources_and_events_reach_the_server() {
    let Some(mut host) = Host::new("commit-writes", open_status()).await else { return };
    let site = host.create("a").await;
    let ns = host.namespace.clone();
    host.commit(&site, Plan { children: vec![deployment(&ns, 0)], ..Plan::default() }).await.unwrap();
    host.post(&format!("/api/v1/namespaces/{ns}/serviceaccounts"), &json!({"metadata": {"name": "sa"}}))
        .await;
    let write = |id: &str, gvk: Gvk, name: &str, subresource: Option<&str>, action: WriteAction| Write {
        id: Some(id.to_owned()),
        action,
        gvk,
        name: ObjectName::namespaced(&ns, name),
        subresource: subresource.map(str::to_owned),
        resource_version: None,
        uid: None,
        dry_run: false,
    };
    let create = |body: Value, generate_name: bool| WriteAction::Create { body, generate_name };
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let mut access = write(
        "access",
        Gvk::new("authorization.k8s.io", "v1", "SelfSubjectAccessReview"),
        "",
        None,
        create(review, false),
    );
    access.name = ObjectName::cluster("");
    let maps = Gvk::new("", "v1", "ConfigMap");
    let writes = vec![
        write(
            "token",
            Gvk::new("", "v1", "ServiceAccount"),
            "sa",
            Some("token"),
            create(json!({"spec": {}}), false),
        ),
        write(
            "scale",
            Gvk::new("apps", "v1", "Deployment"),
            "a",
            Some("scale"),
            WriteAction::MergePatch { body: json!({"spec": {"replicas": 0}}) },
        ),
        write("named", maps.clone(), "job-", None, create(json!({"data": {"a": "b"}}), true)),
        Write { dry_run: true, ..write("tried", maps.clone(), "dry", None, create(json!({}), false)) },
        access,
    ];
    let event =
        Event { warning: true, reason: "Tested".to_owned(), action: "Test".to_owned(), note: "n".to_owned() };
    let events = vec![event.clone(), event];
    let done = host.commit(&site, Plan { writes, events, ..Plan::default() }).await.unwrap();
    let answers = &done.answers;
    assert!(answers["token"]["ok"]["status"]["token"].is_string(), "{}", answers["token"]["failure"]);
    assert_eq!(answers["scale"]["ok"]["kind"], "Scale", "{answers:?}");
    assert!(answers["named"]["ok"]["metadata"]["name"].as_str().unwrap().starts_with("job-"));
    assert!(answers["tried"]["ok"].is_object(), "{answers:?}");
    assert_eq!(answers["access"]["ok"]["status"]["allowed"], true, "{answers:?}");
    assert!(host.read(&host.path("api/v1", "configmaps", "dry")).await.is_none());
    // Events: sent until the shutdown, and the repeated one as a series.
    let shutdown = tokio_util::sync::CancellationToken::new();
    shutdown.cancel();
    host.committer.events().run(shutdown).await;
    let list = host.read(&format!("/apis/events.k8s.io/v1/namespaces/{ns}/events")).await.unwrap();
    let ours: Vec<&Value> =
        list["items"].as_array().unwrap().iter().filter(|event| event["reason"] == "Tested").collect();
    assert_eq!(ours.len(), 1);
    assert_eq!((&ours[0]["series"]["count"], &ours[0]["type"]), (&json!(2), &json!("Warning")));
    // A guest's failure leaves its status, and no other write.
    let failure = Failure::transient("DOWN", "network", "no");
    let plan = Plan { children: vec![map(&ns, json!({}))], ..website(&ns, 0) };
    let outcome = Outcome { plan, failure: Some((Layer::Guest, failure)), usage: Usage::default() };
    assert_eq!(host.commit_outcome(&site, outcome).await.unwrap().writes, 1);
    assert!(host.read(&host.path("api/v1", "configmaps", "a")).await.is_none());
}
