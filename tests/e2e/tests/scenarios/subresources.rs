//! K5: writes to subresources.

use anyhow::{Context as _, Result, ensure};
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::wait::soon;
use reeve_e2e::scenarios;
use serde_json::{Value, json};

use crate::support::{apply, host, manifest_with, result, watch};

scenarios! {
    k5_scale_token_eviction_and_approval: "K5";
}

async fn k5_scale_token_eviction_and_approval(env: &Env) -> Result<()> {
    let write = |version: &str, kind: &str, verb: &str, subresource: &str| json!({ "apiVersion": version, "kind": kind, "verbs": [verb], "subresources": [subresource] });
    let more = json!({
        "watches": [watch("v1/Pod", &json!("read"))],
        "writes": [
            write("apps/v1", "Deployment", "patch", "scale"),
            write("v1", "ServiceAccount", "create", "token"),
            write("v1", "Pod", "create", "eviction"),
            write("certificates.k8s.io/v1", "CertificateSigningRequest", "patch", "approval"),
        ],
    });
    let host = host(env, &manifest_with("k5", &more)).await?;
    let labels = json!({ "app": "k5" });
    let pod = json!({ "containers": [{ "name": "c", "image": "none" }] });
    env.kube
        .create(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "d", "namespace": env.namespace },
            "spec": {
                "replicas": 0, "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": pod },
            },
        }))
        .await?;
    env.kube
        .create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "evicted", "namespace": env.namespace }, "spec": pod,
        }))
        .await?;
    env.kube
        .apply(&json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": "robot", "namespace": env.namespace },
        }))
        .await?;
    let request = |id: &str, request: Value| {
        let write = json!({ "write": { "id": id, "request": request } });
        [write, json!({ "as": id, "answer": { "id": id } })]
    };
    let namespace = &env.namespace;
    let steps: Vec<Value> = [
        request("scale", json!({
            "verb": "merge-patch", "apiVersion": "apps/v1", "kind": "Deployment", "namespace": namespace,
            "name": "d", "subresource": "scale", "body": { "spec": { "replicas": 2 } },
        })),
        request("token", json!({
            "verb": "create", "apiVersion": "v1", "kind": "ServiceAccount", "namespace": namespace,
            "name": "robot", "subresource": "token", "body": {
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "audiences": [] },
            },
        })),
        request("eviction", json!({
            "verb": "create", "apiVersion": "v1", "kind": "Pod", "namespace": namespace,
            "name": "evicted", "subresource": "eviction", "body": {
                "apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": { "name": "evicted", "namespace": namespace },
            },
        })),
    ]
    .into_iter()
    .flatten()
    .map(|mut step| {
        if step.get("write").is_some() {
            step["when"] = json!({ "runsBelow": 1 });
        }
        step
    })
    .collect();
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    for id in ["scale", "token", "eviction"] {
        soon(&format!("{id} is answered"), async || {
            let answer = result(env, "p", id).await?;
            ensure!(answer.get("ok").is_some(), "{id}: {}", answer["failure"]);
            Ok(())
        })
        .await?;
    }
    let deployment = env.kube.get("apps/v1/Deployment", namespace, "d").await?;
    ensure!(deployment["spec"]["replicas"] == 2, "{}", deployment["spec"]);
    soon("the pod is evicted", async || {
        let pod = env.kube.find("v1/Pod", namespace, "evicted").await?;
        ensure!(pod.is_none_or(|pod| pod["metadata"]["deletionTimestamp"].is_string()), "it is there");
        Ok(())
    })
    .await?;
    // The token never reaches a log.
    let token = result(env, "p", "token").await?;
    let token = token["ok"]["status"]["token"].as_str().context("no token")?.to_owned();
    ensure!(host.log_lines(&token)?.is_empty(), "the token is in the log");
    Ok(())
}
