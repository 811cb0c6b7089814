//! The manifests of `deploy/`, applied to a cluster: the host runs with exactly the rights that
//! they give to its `ServiceAccount`, and is never refused.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use reeve_e2e::fleet::{WEBSITE, is_ready};
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::guests;
use reeve_e2e::harness::host::program;
use reeve_e2e::harness::wait::soon;
use reeve_e2e::scenarios;
use serde_json::{Value, json};

scenarios! {
    deploy_runs_with_its_own_rights: "deploy";
    deploy_has_the_rules_that_inspect_prints: "deploy";
}

const NAMESPACE: &str = "reeve-system";
const USER: &str = "system:serviceaccount:reeve-system:reeve";

fn base() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/base")
}

async fn deploy_runs_with_its_own_rights(env: &Env) -> Result<()> {
    let base = base();
    env.kube.kubectl(&["apply", "-k", &base.to_string_lossy()], "").await?;
    let arguments = ["-n", NAMESPACE, "rollout", "status", "deployment/reeve", "--timeout=60s"];
    env.kube.kubectl(&arguments, "").await?;

    let kubeconfig = kubeconfig(env).await?;
    let builder = env.host().kubeconfig(&kubeconfig).direct();
    let builder = builder.arg("--configmaps").arg("--host-namespace").arg(NAMESPACE);
    let host = builder.plugin("website.wasm", &guests::plugin("website")?).start().await?;
    host.serves("website", "1.0.0").await?;
    plugin_config_map(env, &guests::plugin("hello-configmap")?).await?;
    host.serves("hello-configmap", "1.0.0").await?;

    let site = json!({
        "apiVersion": "example.reeve.dev/v1", "kind": "Website",
        "metadata": { "name": "site", "namespace": env.namespace }, "spec": { "html": "x", "replicas": 1 },
    });
    env.kube.apply(&site).await?;
    soon("the Website is Ready", async || {
        let site = env.kube.get(WEBSITE, &env.namespace, "site").await?;
        ensure!(is_ready(&site), "{}", site["status"]);
        Ok(())
    })
    .await?;
    let source = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": { "name": "Ada" },
        "metadata": { "name": "src", "namespace": env.namespace, "labels": { "example.reeve.dev/hello": "" } },
    });
    env.kube.apply(&source).await?;
    soon("the greeting is there", async || {
        let child = env.kube.get("v1/ConfigMap", &env.namespace, "src-hello").await?;
        ensure!(child["data"]["greeting"] == "Hello, Ada!", "{}", child["data"]);
        Ok(())
    })
    .await?;
    env.kube.delete(WEBSITE, &env.namespace, "site").await?;
    soon("the Website is gone, and its cleanup said so", async || {
        let left = env.kube.find(WEBSITE, &env.namespace, "site").await?;
        ensure!(left.is_none(), "it is there: {left:?}");
        let events = env.kube.list("events.k8s.io/v1/Event", &env.namespace, "").await?;
        ensure!(events.iter().any(|event| event["reason"] == "CleanedUp"), "{} events", events.len());
        Ok(())
    })
    .await?;
    host.idle().await?;
    host.stop(std::time::Duration::from_secs(40)).await?;

    let ours = |entry: &Value| entry["user"]["username"] == USER && entry["stage"] == "ResponseComplete";
    let asked = env.plane().audited(ours)?;
    ensure!(asked.len() > 10, "only {} requests of {USER} are in the audit log", asked.len());
    let refused = env.plane().audited(|entry| ours(entry) && entry["responseStatus"]["code"] == 403)?;
    ensure!(refused.is_empty(), "{} requests were refused, the first: {}", refused.len(), refused[0]);
    Ok(())
}

/// The checked-in rules are those that the plugins need, no more and no fewer.
async fn deploy_has_the_rules_that_inspect_prints(env: &Env) -> Result<()> {
    let text = std::fs::read_to_string(base().join("rbac-plugins.yaml"))?;
    let mut wanted = text.lines().next().context("rbac-plugins.yaml is empty")?.to_owned();
    for plugin in ["website", "hello-configmap"] {
        let file = env.dir().join(format!("{plugin}.wasm"));
        std::fs::write(&file, guests::plugin(plugin)?)?;
        let output = Command::new(program()?).arg("inspect").arg(&file).arg("--rbac").output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        wanted = format!("{wanted}\n{}", String::from_utf8(output.stdout)?.trim_end());
    }
    ensure!(text.trim_end() == wanted, "deploy/base/rbac-plugins.yaml is stale; it should be:\n{wanted}");
    Ok(())
}

/// A kubeconfig with the token of the host's `ServiceAccount`.
async fn kubeconfig(env: &Env) -> Result<PathBuf> {
    let token = env.kube.kubectl(&["-n", NAMESPACE, "create", "token", "reeve"], "").await?;
    let admin = env.kube.kubectl(&["config", "view", "--raw", "-o", "json"], "").await?;
    let mut config: Value = serde_json::from_str(&admin)?;
    for user in config["users"].as_array_mut().into_iter().flatten() {
        user["user"] = json!({ "token": token.trim() });
    }
    let path = env.dir().join("serviceaccount.kubeconfig");
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

/// Delivers a plugin as a ConfigMap, in the three commands of the README.
async fn plugin_config_map(env: &Env, bytes: &[u8]) -> Result<()> {
    let file = env.dir().join("hello.wasm");
    std::fs::write(&file, bytes)?;
    let output = Command::new(program()?).arg("inspect").arg(&file).arg("--digest").output()?;
    let digest = format!("reeve.dev/digest={}", String::from_utf8(output.stdout)?.trim());
    let from = format!("--from-file=plugin.wasm={}", file.display());
    env.kube.kubectl(&["-n", NAMESPACE, "create", "configmap", "hello", &from], "").await?;
    env.kube.kubectl(&["-n", NAMESPACE, "annotate", "configmap", "hello", &digest], "").await?;
    env.kube
        .kubectl(&["-n", NAMESPACE, "label", "configmap", "hello", "reeve.dev/plugin=hello-configmap"], "")
        .await?;
    Ok(())
}
