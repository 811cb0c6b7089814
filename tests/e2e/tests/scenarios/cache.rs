//! C: what a plugin reads.

use anyhow::{Context as _, Result, ensure};
use reeve_e2e::fault_proxy::Filter;
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::guests::{self, ProbeKind};
use reeve_e2e::scenarios;
use serde_json::{Value, json};

use crate::support::{apply, committed, host, manifest_with, result, serving, watch};

scenarios! {
    c1_lists_by_namespace_label_owner_and_index: "C1";
    c2_a_set_of_namespaces_is_all_that_is_seen: "C2";
    c3_each_kind_has_its_own_selector: "C3";
    c4_a_namespace_outside_is_an_error_not_empty: "C4";
    c5_an_undeclared_kind_is_an_error_and_no_request: "C5";
    c6_a_run_sees_one_version_of_each_thing: "C6";
    c7_a_cluster_scoped_key_has_no_namespace: "C7";
}

fn reads(kind: &str) -> Value {
    watch(kind, &json!("read"))
}

/// The names of a list in a probe's result, without their namespace.
fn names(result: &Value) -> Vec<&str> {
    let names = result["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
    names.map(|name| name.rsplit('/').next().unwrap_or(name)).collect()
}

async fn c1_lists_by_namespace_label_owner_and_index(env: &Env) -> Result<()> {
    let index = json!([
        { "name": "color", "apiVersion": "v1", "kind": "ConfigMap", "pointer": "/data/color" },
        { "name": "size", "apiVersion": "v1", "kind": "ConfigMap", "pointer": "/data/size" },
    ]);
    let manifest = manifest_with(
        "c1",
        &json!({ "watches": [watch("v1/ConfigMap", &json!("owned"))], "indexes": index }),
    );
    for (name, color, size, tier) in [
        ("a", "red", "1", "web"),
        ("b", "red", "2", "db"),
        ("c", "blue", "1", "web"),
        ("d", "blue", "2", "db"),
    ] {
        let mut object = env.config_map(name, &json!({ "color": color, "size": size }));
        object["metadata"]["labels"] = json!({ "tier": tier });
        env.kube.create(&object).await?;
    }
    let host = host(env, &manifest).await?;
    let list = |as_: &str, more: &Value| {
        let mut list = json!({ "apiVersion": "v1", "kind": "ConfigMap" });
        for (key, value) in more.as_object().into_iter().flatten() {
            list[key.as_str()] = value.clone();
        }
        json!({ "as": as_, "list": list })
    };
    let child = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "mine" } });
    let steps = json!([
        { "apply": { "object": child } },
        list("label", &json!({ "labels": "tier=web" })),
        list("set", &json!({ "labels": "tier in (web,db),tier!=web" })),
        list("index", &json!({ "index": { "name": "color", "value": "red" } })),
        list("both", &json!({ "index": { "name": "color", "value": "red" }, "labels": "tier=db" })),
        list("elsewhere", &json!({ "namespace": env.namespace, "index": { "name": "size", "value": "3" } })),
        list("owned", &json!({ "owner": "self" })),
        { "as": "children", "children": { "apiVersion": "v1", "kind": "ConfigMap" } },
        { "as": "value", "get": { "apiVersion": "v1", "kind": "ConfigMap", "name": "c", "pointer": "/data/color" } },
        { "as": "none", "get": { "apiVersion": "v1", "kind": "ConfigMap", "name": "nobody" } },
    ]);
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    // The second run sees the child of the first.
    let probe = committed(env, "p", 1).await?;
    host.idle().await?;
    let results = &probe["status"]["results"];
    for (of, expected) in [
        ("label", vec!["a", "c"]),
        ("set", vec!["b", "d"]),
        ("index", vec!["a", "b"]),
        ("both", vec!["b"]),
        ("elsewhere", vec![]),
    ] {
        ensure!(names(&results[of]) == expected, "{of}: {}", results[of]);
    }
    ensure!(results["value"] == "blue" && results["none"] == "null", "{results}");
    crate::support::touch(env, "p", 1).await?;
    let probe = committed(env, "p", 2).await?;
    for of in ["owned", "children"] {
        let found = &probe["status"]["results"][of];
        ensure!(names(found) == ["mine"], "{of}: {found}");
    }
    Ok(())
}

async fn c2_a_set_of_namespaces_is_all_that_is_seen(env: &Env) -> Result<()> {
    let manifest = manifest_with("c2", &json!({}));
    let second = format!("{}-b", env.namespace);
    let third = format!("{}-c", env.namespace);
    for namespace in [&second, &third] {
        env.new_namespace(namespace).await?;
    }
    let bytes = guests::probe(ProbeKind::Plain, &manifest)?;
    let builder = env.host().plugin("probe.wasm", &bytes).namespaces(&[&env.namespace, &second]);
    let host = builder.start().await?;
    serving(&host, &manifest).await?;
    for (namespace, name) in [(&env.namespace, "in-a"), (&second, "in-b"), (&third, "in-c")] {
        let mut probe = env.probe(name, &json!({}));
        probe["metadata"]["namespace"] = namespace.as_str().into();
        env.kube.create(&probe).await?;
    }
    host.called("in-a", 1).await?;
    host.called("in-b", 1).await?;
    host.idle().await?;
    ensure!(host.calls_of("in-c")?.is_empty(), "it saw a namespace outside of its set");
    Ok(())
}

async fn c3_each_kind_has_its_own_selector(env: &Env) -> Result<()> {
    let mut maps = reads("v1/ConfigMap");
    maps["labels"] = "tier=web".into();
    let primary = json!({ "apiVersion": "test.reeve.dev/v1", "kind": "Probe", "labels": "run=yes" });
    let manifest =
        manifest_with("c3", &json!({ "primary": primary, "watches": [maps, reads("v1/Service")] }));
    for (name, tier) in [("in", "web"), ("out", "db")] {
        let mut object = env.config_map(name, &json!({}));
        object["metadata"]["labels"] = json!({ "tier": tier });
        env.kube.create(&object).await?;
    }
    let host = host(env, &manifest).await?;
    let list = json!({ "apiVersion": "v1", "kind": "ConfigMap" });
    let get = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "out" });
    let steps = json!([{ "as": "seen", "list": list }, { "as": "out", "get": get }]);
    for (name, run) in [("yes", "yes"), ("no", "no")] {
        let mut probe = env.probe(name, &json!({ "count": true, "steps": steps }));
        probe["metadata"]["labels"] = json!({ "run": run });
        env.kube.create(&probe).await?;
    }
    let probe = committed(env, "yes", 1).await?;
    let results = &probe["status"]["results"];
    ensure!(names(&results["seen"]) == ["in"] && results["out"] == "null", "{results}");
    host.idle().await?;
    ensure!(host.calls_of("no")?.is_empty(), "a Probe outside of the selector ran");
    // A label that comes later brings it in.
    let labels = json!({ "metadata": { "labels": { "run": "yes" } } });
    env.kube.merge("test.reeve.dev/v1/Probe", &env.namespace, "no", &labels).await?;
    host.called("no", 1).await?;
    Ok(())
}

async fn c4_a_namespace_outside_is_an_error_not_empty(env: &Env) -> Result<()> {
    let host = host(env, &manifest_with("c4", &json!({}))).await?;
    let get = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "namespace": "kube-system" });
    let list = json!({ "apiVersion": "v1", "kind": "ConfigMap", "namespace": "kube-system" });
    apply(
        env,
        "p",
        &json!({ "count": true, "steps": [{ "as": "get", "get": get }, { "as": "list", "list": list }] }),
    )
    .await?;
    for of in ["get", "list"] {
        let answer = result(env, "p", of).await?;
        let message = answer["failure"]["message"].as_str().with_context(|| format!("{of}: {answer}"))?;
        ensure!(message.contains("kube-system"), "{of}: {message}");
    }
    drop(host);
    Ok(())
}

async fn c5_an_undeclared_kind_is_an_error_and_no_request(env: &Env) -> Result<()> {
    let host = host(env, &manifest_with("c5", &json!({}))).await?;
    let get = json!({ "apiVersion": "v1", "kind": "Service", "name": "x" });
    apply(env, "p", &json!({ "count": true, "steps": [{ "as": "get", "get": get }] })).await?;
    let answer = result(env, "p", "get").await?;
    ensure!(answer["failure"]["code"] == "NOT_DECLARED", "{answer}");
    ensure!(answer["failure"]["message"].to_string().contains("Service"), "{answer}");
    let asked = host.proxy()?.requests(&Filter::any().on("*/services*"));
    ensure!(asked.is_empty(), "{asked:#?}");
    Ok(())
}

async fn c6_a_run_sees_one_version_of_each_thing(env: &Env) -> Result<()> {
    let manifest = manifest_with("c6", &json!({ "watches": [reads("v1/ConfigMap")] }));
    env.kube.create(&env.config_map("shared", &json!({ "k": "old" }))).await?;
    let host = host(env, &manifest).await?;
    let get = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "shared", "pointer": "/data/k" });
    let list = json!({ "apiVersion": "v1", "kind": "ConfigMap", "pointer": "/data/k" });
    let steps = json!([
        { "as": "before", "get": get },
        { "as": "list-before", "list": list },
        { "sleepMs": 1500 },
        { "as": "after", "get": get },
        { "as": "list-after", "list": list },
    ]);
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    host.called("p", 1).await?;
    env.kube.merge("v1/ConfigMap", &env.namespace, "shared", &json!({ "data": { "k": "new" } })).await?;
    let probe = committed(env, "p", 1).await?;
    let results = &probe["status"]["results"];
    ensure!(results["before"] == "old" && results["after"] == "old", "{results}");
    ensure!(results["list-before"] == results["list-after"], "{results}");
    // The next run sees the new one.
    crate::support::touch(env, "p", 1).await?;
    let probe = committed(env, "p", 2).await?;
    ensure!(probe["status"]["results"]["before"] == "new", "{}", probe["status"]);
    Ok(())
}

async fn c7_a_cluster_scoped_key_has_no_namespace(env: &Env) -> Result<()> {
    let manifest = manifest_with("c7", &json!({ "watches": [reads("v1/Namespace")] }));
    let host = host(env, &manifest).await?;
    let get = |namespace: &str| {
        json!({ "apiVersion": "v1", "kind": "Namespace", "name": "kube-system", "namespace": namespace,
                "pointer": "/metadata/name" })
    };
    let steps = json!([{ "as": "without", "get": get("") }, { "as": "with", "get": get("somewhere") }]);
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    let probe = committed(env, "p", 1).await?;
    let results = &probe["status"]["results"];
    ensure!(results["without"] == "kube-system" && results["with"] == "kube-system", "{results}");
    drop(host);
    Ok(())
}
