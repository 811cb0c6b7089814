//! The harness itself, on a server.

use anyhow::{Context as _, Result, ensure};
use reeve_e2e::fault_proxy::Filter;
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::kube::{Kube, code};
use reeve_e2e::scenarios;
use serde_json::{Value, json};

scenarios! {
    harness_proxy_in_front_of_a_server: "harness";
}

async fn harness_proxy_in_front_of_a_server(env: &Env) -> Result<()> {
    let proxy = env.proxy(env.plane().kubeconfig()).await?;
    let kube = Kube::new(proxy.kubeconfig(), env.plane().programs().kubectl()).await?;
    kube.create(&env.config_map("a", &json!({ "k": "v" }))).await?;
    let text = kube.kubectl(&["-n", &env.namespace, "get", "configmap", "a", "-o", "json"], "").await?;
    let read: Value = serde_json::from_str(&text)?;
    ensure!(read["data"]["k"] == "v", "{read}");
    let again = kube.create(&env.config_map("a", &json!({}))).await.err().context("created twice")?;
    ensure!(code(&again) == Some(409), "{again:#}");
    let writes = proxy.requests(&Filter::writes());
    ensure!(writes.iter().map(|write| write.status).eq([Some(201), Some(409)]), "{writes:#?}");
    ensure!(proxy.requests(&Filter::any()).iter().any(|read| read.line.user_agent.contains("kubectl")));
    Ok(())
}
