//! K: what reaches the API server, and how.

use anyhow::{Context as _, Result, ensure};
use reeve_e2e::fault_proxy::Filter;
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::kube::find_condition;
use reeve_e2e::harness::wait::{soon, stays};
use reeve_e2e::scenarios;
use serde_json::{Value, json};

use crate::support::{
    A_WHILE, CONFIG_MAP, PROBE, apply, committed, exactly, get, host, manifest, manifest_with, result, touch,
    watch, writes,
};

scenarios! {
    k1_children_are_applied_repaired_and_let_go_of: "K1";
    k1_without_force_a_conflict_is_a_failure: "K1";
    k2_a_stale_conditional_write_is_refused: "K2";
    k3_a_dry_run_changes_nothing: "K3";
    k4_status_and_spec_are_apart: "K4";
    k6_what_is_equal_is_not_sent: "K6", "complaint 4";
    k7_owners_are_one_and_of_the_same_namespace: "K7";
}

fn child(name: &str, data: &Value) -> Value {
    json!({ "apply": { "object": {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data,
    } } })
}

/// A manifest that may write ConfigMaps outside of its children.
fn writer(name: &str) -> Value {
    let verbs = json!(["create", "apply", "patch", "delete"]);
    let declared = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "verbs": verbs }]);
    manifest_with(name, &json!({ "watches": [watch(CONFIG_MAP, &json!("read"))], "writes": declared }))
}

async fn data(env: &Env, name: &str) -> Result<Value> {
    Ok(env.kube.get(CONFIG_MAP, &env.namespace, name).await?["data"].clone())
}

async fn k1_children_are_applied_repaired_and_let_go_of(env: &Env) -> Result<()> {
    let host = host(env, &manifest("k1")).await?;
    apply(env, "p", &json!({ "count": true, "steps": [child("c", &json!({ "a": "1", "b": "2" }))] })).await?;
    committed(env, "p", 1).await?;
    let live = env.kube.get(CONFIG_MAP, &env.namespace, "c").await?;
    let meta = &live["metadata"];
    ensure!(meta["labels"]["reeve.dev/plugin"] == "k1", "{meta}");
    ensure!(meta["ownerReferences"][0]["name"] == "p" && meta["ownerReferences"][0]["controller"] == true);
    let managers: Vec<_> = meta["managedFields"].as_array().into_iter().flatten().collect();
    ensure!(managers.iter().any(|m| m["manager"] == "reeve.dev/k1" && m["operation"] == "Apply"), "{meta}");
    // Foreign drift is repaired, with force; what somebody else added stays.
    env.kube
        .merge(CONFIG_MAP, &env.namespace, "c", &json!({ "data": { "a": "drift", "theirs": "x" } }))
        .await?;
    soon("the drift is repaired", async || {
        let data = data(env, "c").await?;
        ensure!(data == json!({ "a": "1", "b": "2", "theirs": "x" }), "{data}");
        Ok(())
    })
    .await?;
    // A field that is no longer stated goes.
    apply(env, "p", &json!({ "count": true, "steps": [child("c", &json!({ "a": "1" }))] })).await?;
    soon("the field is let go of", async || {
        let data = data(env, "c").await?;
        ensure!(data == json!({ "a": "1", "theirs": "x" }), "{data}");
        Ok(())
    })
    .await?;
    // And a child that is no longer stated, too.
    apply(env, "p", &json!({ "count": true, "steps": [] })).await?;
    soon("the child is pruned", async || {
        ensure!(env.kube.find(CONFIG_MAP, &env.namespace, "c").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    drop(host);
    Ok(())
}

async fn k1_without_force_a_conflict_is_a_failure(env: &Env) -> Result<()> {
    let host = host(env, &writer("k1-conflict")).await?;
    let mut foreign = env.config_map("shared", &json!({ "k": "theirs" }));
    env.kube.apply(&foreign).await?;
    foreign["data"]["k"] = "ours".into();
    let request = |force: bool| {
        json!({ "verb": "apply", "apiVersion": "v1", "kind": "ConfigMap", "name": "shared",
                "namespace": env.namespace, "force": force, "body": foreign })
    };
    let steps = json!([{ "write": { "id": "w", "request": request(false) } }, { "as": "answer", "answer": { "id": "w" } }]);
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    soon("the answer is a failure", async || {
        let answer = result(env, "p", "answer").await?;
        ensure!(answer["failure"]["message"].to_string().contains("conflict"), "{answer}");
        Ok(())
    })
    .await?;
    ensure!(data(env, "shared").await?["k"] == "theirs");
    let steps = json!([{ "write": { "request": request(true) } }]);
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    soon("with force it is ours", async || {
        let data = data(env, "shared").await?;
        ensure!(data["k"] == "ours", "{data}");
        Ok(())
    })
    .await?;
    drop(host);
    Ok(())
}

async fn k2_a_stale_conditional_write_is_refused(env: &Env) -> Result<()> {
    let host = host(env, &writer("k2")).await?;
    let created = env.kube.create(&env.config_map("shared", &json!({ "k": "old" }))).await?;
    let stale = created["metadata"]["resourceVersion"].clone();
    env.kube.merge(CONFIG_MAP, &env.namespace, "shared", &json!({ "data": { "k": "new" } })).await?;
    let request = json!({
        "verb": "merge-patch", "apiVersion": "v1", "kind": "ConfigMap", "name": "shared",
        "namespace": env.namespace, "resourceVersion": stale, "body": { "data": { "k": "ours" } },
    });
    let mark = host.proxy()?.mark();
    apply(env, "p", &json!({ "count": true, "steps": [{ "write": { "request": request } }] })).await?;
    let probe = soon("the conflict is reported", async || {
        let probe = get(env, "p").await?;
        let reconciled = find_condition(&probe, "Reconciled").context("no condition")?;
        ensure!(reconciled["status"] == "False" && reconciled["reason"] == "CONFLICT", "{reconciled}");
        Ok(probe)
    })
    .await?;
    ensure!(
        probe["status"]["runs"].is_null(),
        "the status of a refused plan was written: {}",
        probe["status"]
    );
    ensure!(data(env, "shared").await?["k"] == "new", "it was overwritten");
    let conflicts = host.proxy()?.requests_since(mark, &Filter::writes().on("*/configmaps/shared"));
    // Refreshed and run again at most three times at once; then it backs off.
    ensure!(conflicts.iter().all(|write| write.status == Some(409)), "{conflicts:#?}");
    ensure!((3..=8).contains(&conflicts.len()), "{} conditional writes", conflicts.len());
    Ok(())
}

async fn k3_a_dry_run_changes_nothing(env: &Env) -> Result<()> {
    let host = host(env, &writer("k3")).await?;
    let request = json!({
        "verb": "create", "dryRun": true, "apiVersion": "v1", "kind": "ConfigMap", "namespace": env.namespace,
        "name": "dry", "body": env.config_map("dry", &json!({ "k": "v" })),
    });
    let steps = json!([{ "write": { "id": "dry", "request": request } }, { "as": "answer", "answer": { "id": "dry" } }]);
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    soon("the answer is there", async || {
        let answer = result(env, "p", "answer").await?;
        ensure!(answer["ok"]["metadata"]["uid"].is_string(), "{answer}");
        Ok(())
    })
    .await?;
    ensure!(env.kube.find(CONFIG_MAP, &env.namespace, "dry").await?.is_none(), "it was created");
    let sent = host.proxy()?.requests(&Filter::writes().on("*/configmaps*"));
    ensure!(sent.iter().all(|write| write.line.query.get("dryRun").is_some_and(|v| v == "All")), "{sent:#?}");
    // The answer brought the key back at once, as `answer`, not as a change.
    let calls = host.calls_of("p")?;
    ensure!(calls.len() >= 2 && calls[1].reasons == ["answer"], "{calls:#?}");
    Ok(())
}

async fn k4_status_and_spec_are_apart(env: &Env) -> Result<()> {
    let host = host(env, &manifest("k4")).await?;
    let condition = json!({ "type": "Ready", "status": "True", "reason": "Fine" });
    let steps = json!([{ "status": { "phase": "Done" } }, { "condition": condition }]);
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    let probe = committed(env, "p", 1).await?;
    let ready = find_condition(&probe, "Ready").context("no condition")?.clone();
    ensure!(probe["status"]["phase"] == "Done" && ready["observedGeneration"] == 1, "{}", probe["status"]);
    ensure!(probe["metadata"]["generation"] == 1, "the status moved the generation");
    let sent = host.proxy()?.requests(&Filter::writes().on("*/probes/*"));
    ensure!(sent.iter().all(|write| write.line.path.ends_with("/status")), "{sent:#?}");
    ensure!(sent.len() == 1, "status and condition took {} requests", sent.len());
    // The observed generation follows, the transition time does not.
    touch(env, "p", 1).await?;
    let probe = committed(env, "p", 2).await?;
    let again = find_condition(&probe, "Ready").context("no condition")?;
    ensure!(again["observedGeneration"] == 2, "{again}");
    ensure!(again["lastTransitionTime"] == ready["lastTransitionTime"], "{again}");
    exactly(&host, "p", 2).await?;
    Ok(())
}

async fn k6_what_is_equal_is_not_sent(env: &Env) -> Result<()> {
    let host = host(env, &manifest("k6")).await?;
    let condition = json!({ "type": "Ready", "status": "True", "reason": "Fine" });
    let steps = json!([
        child("c", &json!({ "k": "v" })),
        { "status": { "phase": "Done", "nested": { "list": [1, 2], "null": null } } },
        { "condition": condition },
    ]);
    let mark = host.proxy()?.mark();
    apply(env, "p", &json!({ "steps": steps })).await?;
    host.called("p", 1).await?;
    soon("the status is written", async || {
        let probe = get(env, "p").await?;
        ensure!(probe["status"]["phase"] == "Done", "{}", probe["status"]);
        Ok(())
    })
    .await?;
    host.idle().await?;
    let first = writes(&host, mark)?;
    ensure!(first.len() == 2, "a child and a status took {} writes: {first:#?}", first.len());
    // A hundred runs that find everything as it should be.
    let mark = host.proxy()?.mark();
    let before = host.calls_of("p")?.len();
    for _ in 0..100 {
        let (status, text) = host.admin("POST", &format!("/reconcile/k6/{}/p", env.namespace)).await?;
        ensure!(status == 429 || (200..300).contains(&status), "{status} {text}");
    }
    host.called("p", before + 1).await?;
    host.idle().await?;
    let asked = host.proxy()?.requests_since(mark, &Filter::any());
    ensure!(asked.is_empty(), "runs that change nothing asked for: {asked:#?}");
    // One changed child: one request, and no GET before it.
    let steps = json!([
        child("c", &json!({ "k": "w" })),
        { "status": { "phase": "Done", "nested": { "list": [1, 2], "null": null } } },
    ]);
    let mark = host.proxy()?.mark();
    apply(env, "p", &json!({ "steps": steps })).await?;
    soon("the child is changed", async || {
        let data = data(env, "c").await?;
        ensure!(data["k"] == "w", "{data}");
        Ok(())
    })
    .await?;
    host.idle().await?;
    let asked = host.proxy()?.requests_since(mark, &Filter::any().on("*/configmaps*"));
    ensure!(asked.len() == 1 && asked[0].line.method == "PATCH", "{asked:#?}");
    Ok(())
}

async fn k7_owners_are_one_and_of_the_same_namespace(env: &Env) -> Result<()> {
    let _host = host(env, &manifest("k7")).await?;
    let refused = async |name: &str, code: &str| -> Result<()> {
        soon(&format!("{name} is refused with {code}"), async || {
            let probe = get(env, name).await?;
            let reconciled = find_condition(&probe, "Reconciled").context("no condition")?;
            ensure!(reconciled["reason"] == code, "{reconciled}");
            Ok(())
        })
        .await
    };
    // Another namespace: Kubernetes would collect the child as garbage.
    let mut elsewhere = child("c", &json!({}));
    elsewhere["apply"]["object"]["metadata"]["namespace"] = "default".into();
    apply(env, "cross", &json!({ "count": true, "steps": [elsewhere] })).await?;
    refused("cross", "CROSS_NAMESPACE_OWNER").await?;
    // A second controller.
    apply(env, "first", &json!({ "count": true, "steps": [child("c", &json!({ "of": "first" }))] })).await?;
    committed(env, "first", 1).await?;
    let second = |adopt: bool| {
        let mut step = child("c", &json!({ "of": "second" }));
        step["apply"]["adopt"] = adopt.into();
        json!({ "count": true, "steps": [step] })
    };
    apply(env, "second", &second(false)).await?;
    refused("second", "CHILD_NOT_OWNED").await?;
    apply(env, "second", &second(true)).await?;
    stays("the first keeps it, also against adopt", A_WHILE, async || {
        let data = data(env, "c").await?;
        ensure!(data["of"] == "first", "{data}");
        Ok(())
    })
    .await?;
    // One without a controller can be adopted.
    env.kube.create(&env.config_map("free", &json!({}))).await?;
    apply(env, "third", &json!({ "count": true, "steps": [child("free", &json!({}))] })).await?;
    refused("third", "CHILD_NOT_OWNED").await?;
    let mut step = child("free", &json!({ "of": "third" }));
    step["apply"]["adopt"] = true.into();
    apply(env, "third", &json!({ "count": true, "steps": [step] })).await?;
    let probe = committed(env, "third", 1).await?;
    let live = env.kube.get(CONFIG_MAP, &env.namespace, "free").await?;
    ensure!(
        live["metadata"]["ownerReferences"][0]["uid"] == probe["metadata"]["uid"],
        "{}",
        live["metadata"]
    );
    soon("the condition of the failure goes", async || {
        let probe = env.kube.get(PROBE, &env.namespace, "third").await?;
        let reconciled = find_condition(&probe, "Reconciled").context("no condition")?;
        ensure!(reconciled["status"] == "True", "{reconciled}");
        Ok(())
    })
    .await
}
