//! H: which primaries a change concerns.

use anyhow::{Result, ensure};
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::guests::{self, ProbeKind};
use reeve_e2e::scenarios;
use serde_json::{Value, json};

use crate::support::{CONFIG_MAP, PROBE, apply, exactly, host, manifest_with, serving, touch, watch};

scenarios! {
    h1_a_controller_or_any_owner_triggers: "H1";
    h2_a_cluster_scoped_owner_triggers: "H2";
    h3_the_old_and_the_new_object_are_mapped: "H3";
    h4_predicates_decide_which_changes_trigger: "H4";
}

fn owned_by(env: &Env, name: &str, owner: &Value, api_version: &str, controller: bool) -> Value {
    let mut child = env.config_map(name, &json!({ "k": "v" }));
    child["metadata"]["ownerReferences"] = json!([{
        "apiVersion": api_version,
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": controller,
    }]);
    child
}

async fn h1_a_controller_or_any_owner_triggers(env: &Env) -> Result<()> {
    let controller = manifest_with("h1-controller", &json!({}));
    let any = manifest_with("h1-any", &json!({ "watches": [watch(CONFIG_MAP, &json!("ownedByAny"))] }));
    let builder = env
        .host()
        .plugin("controller.wasm", &guests::probe(ProbeKind::Plain, &controller)?)
        .plugin("any.wasm", &guests::probe(ProbeKind::Plain, &any)?);
    let host = builder.start().await?;
    serving(&host, &controller).await?;
    serving(&host, &any).await?;
    let owner = apply(env, "p", &json!({})).await?;
    exactly(&host, "p", 2).await?;
    let plugins = async |from: usize| -> Result<Vec<String>> {
        host.idle().await?;
        let mut plugins: Vec<_> =
            host.calls_of("p")?.into_iter().skip(from).map(|call| call.plugin).collect();
        plugins.sort();
        Ok(plugins)
    };
    // An owner that is no controller.
    env.kube.create(&owned_by(env, "any", &owner, "test.reeve.dev/v1", false)).await?;
    host.called("p", 3).await?;
    let ran = plugins(2).await?;
    ensure!(ran == ["h1-any"], "{ran:?}");
    // The controller, by another version of the same group.
    env.kube.create(&owned_by(env, "version", &owner, "test.reeve.dev/v9", true)).await?;
    host.called("p", 5).await?;
    let ran = plugins(3).await?;
    ensure!(ran == ["h1-any", "h1-controller"], "{ran:?}");
    // Another group, and another kind, of the same name.
    env.kube.create(&owned_by(env, "group", &owner, "other.example/v1", true)).await?;
    let mut kind = owned_by(env, "kind", &owner, "test.reeve.dev/v1", true);
    kind["metadata"]["ownerReferences"][0]["kind"] = "Other".into();
    env.kube.create(&kind).await?;
    exactly(&host, "p", 5).await?;
    Ok(())
}

async fn h2_a_cluster_scoped_owner_triggers(env: &Env) -> Result<()> {
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "wholes.h2.reeve.dev" },
        "spec": {
            "group": "h2.reeve.dev", "scope": "Cluster",
            "names": { "kind": "Whole", "plural": "wholes", "singular": "whole", "listKind": "WholeList" },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                } },
            }],
        },
    });
    env.kube.install(&crd).await?;
    let primary = json!({ "apiVersion": "h2.reeve.dev/v1", "kind": "Whole" });
    let host = host(env, &manifest_with("h2", &json!({ "primary": primary }))).await?;
    let child = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "of-whole", "namespace": env.namespace }, "data": { "k": "v" },
    });
    let whole = json!({
        "apiVersion": "h2.reeve.dev/v1", "kind": "Whole", "metadata": { "name": "h2-whole" },
        "spec": { "count": true, "steps": [{ "apply": { "object": child } }] },
    });
    env.kube.apply(&whole).await?;
    host.called("h2-whole", 1).await?;
    host.idle().await?;
    let live = env.kube.get(CONFIG_MAP, &env.namespace, "of-whole").await?;
    let owner = &live["metadata"]["ownerReferences"][0];
    ensure!(owner["kind"] == "Whole" && owner["controller"] == true, "{}", live["metadata"]);
    // The child finds its owner although it has a namespace and the owner none.
    let before = host.calls_of("h2-whole")?.len();
    env.kube.merge(CONFIG_MAP, &env.namespace, "of-whole", &json!({ "data": { "k": "drift" } })).await?;
    let calls = host.called("h2-whole", before + 1).await?;
    ensure!(calls[before].reasons == ["child"] && calls[before].object == "h2-whole", "{calls:#?}");
    env.kube.delete("h2.reeve.dev/v1/Whole", "", "h2-whole").await
}

async fn h3_the_old_and_the_new_object_are_mapped(env: &Env) -> Result<()> {
    let mut maps = watch(CONFIG_MAP, &json!("map"));
    maps["name"] = "maps".into();
    let manifest = manifest_with("h3", &json!({ "watches": [maps] }));
    let builder = env.host().plugin("probe.wasm", &guests::probe(ProbeKind::Mapping, &manifest)?);
    let host = builder.start().await?;
    serving(&host, &manifest).await?;
    for name in ["a", "b", "c"] {
        apply(env, name, &json!({})).await?;
        exactly(&host, name, 1).await?;
    }
    let to = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| format!("{}/{name}", env.namespace)).collect();
        json!({ "test.reeve.dev/maps-to": names.join(",") })
    };
    let mut changed = env.config_map("m", &json!({}));
    changed["metadata"]["annotations"] = to(&["a"]);
    env.kube.create(&changed).await?;
    // The root certificates' ConfigMap of the namespace is mapped, too, to nobody.
    let runs = async |name: &str| -> Result<usize> {
        let calls = host.calls_of(name)?;
        Ok(calls.iter().filter(|call| call.role == "reconcile").count())
    };
    host.called("a", 2).await?;
    host.idle().await?;
    ensure!(runs("a").await? == 2 && runs("b").await? == 1, "a {}, b {}", runs("a").await?, runs("b").await?);
    // From a (old) to a and b (new): each once.
    let patch = json!({ "metadata": { "annotations": to(&["a", "b"]) } });
    env.kube.merge(CONFIG_MAP, &env.namespace, "m", &patch).await?;
    host.called("b", 2).await?;
    let calls = exactly(&host, "a", 3).await?;
    ensure!(calls[2].reasons == ["mapped"], "{calls:#?}");
    // From a and b to c: all three.
    let patch = json!({ "metadata": { "annotations": to(&["c"]) } });
    env.kube.merge(CONFIG_MAP, &env.namespace, "m", &patch).await?;
    exactly(&host, "c", 2).await?;
    exactly(&host, "a", 4).await?;
    exactly(&host, "b", 3).await?;
    Ok(())
}

async fn h4_predicates_decide_which_changes_trigger(env: &Env) -> Result<()> {
    let with = |name: &str, predicate: Value| {
        let primary = json!({ "apiVersion": "test.reeve.dev/v1", "kind": "Probe", "predicate": predicate });
        manifest_with(name, &json!({ "primary": primary }))
    };
    let generation = with("h4-generation", json!("generationChanged"));
    let labels = with("h4-labels", json!({ "any": ["labelsChanged", "annotationsChanged"] }));
    let everything = manifest_with("h4-default", &json!({}));
    let mut builder = env.host();
    for (file, manifest) in [("g", &generation), ("l", &labels), ("d", &everything)] {
        builder = builder.plugin(&format!("{file}.wasm"), &guests::probe(ProbeKind::Plain, manifest)?);
    }
    let host = builder.start().await?;
    for manifest in [&generation, &labels, &everything] {
        serving(&host, manifest).await?;
    }
    apply(env, "p", &json!({})).await?;
    exactly(&host, "p", 3).await?;
    let since = async |from: usize, expected: &[&str]| -> Result<usize> {
        let calls = exactly(&host, "p", from + expected.len()).await?;
        let mut ran: Vec<_> = calls[from..].iter().map(|call| call.plugin.as_str()).collect();
        ran.sort_unstable();
        ensure!(ran == expected, "{ran:?} instead of {expected:?}");
        Ok(calls.len())
    };
    touch(env, "p", 1).await?;
    let count = since(3, &["h4-default", "h4-generation"]).await?;
    let patch = json!({ "metadata": { "labels": { "a": "b" } } });
    env.kube.merge(PROBE, &env.namespace, "p", &patch).await?;
    let count = since(count, &["h4-default", "h4-labels"]).await?;
    let patch = json!({ "metadata": { "annotations": { "a": "b" } } });
    env.kube.merge(PROBE, &env.namespace, "p", &patch).await?;
    let count = since(count, &["h4-default", "h4-labels"]).await?;
    // A foreign change of the status triggers nobody.
    env.kube.merge(PROBE, &env.namespace, "p/status", &json!({ "status": { "foreign": 1 } })).await?;
    since(count, &[]).await?;
    Ok(())
}
