//! S: what has to be there before the first run, and what comes and goes while the host runs.

use std::time::Duration;

use anyhow::{Result, ensure};
use reeve_e2e::fault_proxy::{Action, Filter, Rule};
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::guests::{self, ProbeKind};
use reeve_e2e::harness::wait::{soon, stays};
use reeve_e2e::scenarios;
use serde_json::json;

use crate::support::{
    A_WHILE, apply, committed, host, manifest, manifest_with, result, serving, touch, watch,
};

scenarios! {
    s1_no_run_before_every_source_is_listed: "S1";
    s2_a_source_that_never_syncs_is_named: "S2";
    s3_stopping_while_syncing_is_clean: "S3";
    s4_a_second_plugin_of_a_name_is_refused: "S4";
    s5_a_watch_that_comes_later_has_what_was_there: "S5";
    s6_a_plugin_that_comes_later_starts: "S6";
}

/// No list and no watch of ConfigMaps gets through.
fn no_config_maps() -> Rule {
    Rule::new(Filter::any().on("*/configmaps"), Action::LoseRequest)
}

async fn s1_no_run_before_every_source_is_listed(env: &Env) -> Result<()> {
    let manifest = manifest("s1");
    env.kube.create(&env.config_map("there", &json!({ "k": "v" }))).await?;
    let list = json!({ "as": "seen", "list": { "apiVersion": "v1", "kind": "ConfigMap" } });
    apply(env, "p", &json!({ "count": true, "steps": [list] })).await?;
    let proxy = env.proxy(env.plane().kubeconfig()).await?;
    let rule = proxy.add(no_config_maps());
    let bytes = guests::probe(ProbeKind::Plain, &manifest)?;
    let host = env.host().plugin("probe.wasm", &bytes).at_once().start_behind(proxy).await?;
    soon("the host lists Probes and tries ConfigMaps", async || {
        host.process().alive()?;
        ensure!(!host.proxy()?.requests(&Filter::any().on("*/probes")).is_empty(), "no Probes");
        ensure!(host.proxy()?.counts(rule).is_some_and(|counts| counts.affected > 0), "no ConfigMaps");
        Ok(())
    })
    .await?;
    stays("no run", A_WHILE, async || {
        ensure!(host.calls()?.is_empty(), "{:#?}", host.calls()?);
        Ok(())
    })
    .await?;
    host.proxy()?.remove(rule);
    let seen = result(env, "p", "seen").await?;
    ensure!(seen["names"].to_string().contains("/there"), "the first run saw {seen}");
    Ok(())
}

async fn s2_a_source_that_never_syncs_is_named(env: &Env) -> Result<()> {
    let proxy = env.proxy(env.plane().kubeconfig()).await?;
    proxy.add(no_config_maps());
    let bytes = guests::probe(ProbeKind::Plain, &manifest("s2"))?;
    let host = env.host().plugin("probe.wasm", &bytes).at_once().start_behind(proxy).await?;
    soon("/plugins says what is missing", async || {
        host.process().alive()?;
        let plugins = host.plugins().await?.to_string();
        ensure!(plugins.contains("ConfigMap") && plugins.contains("s2"), "{plugins}");
        let lower = plugins.to_lowercase();
        ensure!(lower.contains("pending") || lower.contains("waiting"), "{plugins}");
        Ok(())
    })
    .await?;
    let metrics = host.metrics().await?;
    ensure!(metrics.int("reeve_swap_pending", &[("plugin", "s2")]) == 1, "reeve_swap_pending is not 1");
    Ok(())
}

async fn s3_stopping_while_syncing_is_clean(env: &Env) -> Result<()> {
    let proxy = env.proxy(env.plane().kubeconfig()).await?;
    let rule = proxy.add(no_config_maps());
    let bytes = guests::probe(ProbeKind::Plain, &manifest("s3"))?;
    let host = env.host().plugin("probe.wasm", &bytes).at_once().start_behind(proxy).await?;
    soon("the host tries ConfigMaps", async || {
        host.process().alive()?;
        ensure!(host.proxy()?.counts(rule).is_some_and(|counts| counts.affected > 0), "not yet");
        Ok(())
    })
    .await?;
    let code = host.stop(Duration::from_secs(10)).await?;
    ensure!(code == Some(0), "exit code {code:?}");
    ensure!(host.calls()?.is_empty(), "{:#?}", host.calls()?);
    Ok(())
}

async fn s4_a_second_plugin_of_a_name_is_refused(env: &Env) -> Result<()> {
    let host = host(env, &manifest("s4")).await?;
    let second = guests::probe(ProbeKind::Plain, &manifest_with("s4", &json!({ "version": "9.0.0" })))?;
    host.put("second.wasm", &second)?;
    soon("the refusal names both files", async || {
        let lines = host.log_lines("second.wasm")?;
        ensure!(lines.iter().any(|line| line.contains("probe.wasm") && line.contains("s4")), "{lines:#?}");
        let plugins = host.plugins().await?.to_string();
        ensure!(plugins.contains("second.wasm"), "{plugins}");
        Ok(())
    })
    .await?;
    apply(env, "p", &json!({ "count": true, "echo": true })).await?;
    let probe = committed(env, "p", 1).await?;
    ensure!(probe["status"]["run"]["version"] == "1.0.0", "{}", probe["status"]);
    // When the first goes, the second is offered again.
    std::fs::remove_file(host.plugins_dir().join("probe.wasm"))?;
    host.serves("s4", "9.0.0").await
}

async fn s5_a_watch_that_comes_later_has_what_was_there(env: &Env) -> Result<()> {
    let host = host(env, &manifest("s5")).await?;
    let service = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "namespace": env.namespace, "labels": { "probe": "p" } },
            "spec": { "ports": [{ "port": 80 }] },
        })
    };
    env.kube.create(&service("early")).await?;
    let list = json!({ "as": "seen", "list": { "apiVersion": "v1", "kind": "Service" } });
    apply(env, "p", &json!({ "count": true, "steps": [list] })).await?;
    committed(env, "p", 1).await?;
    let refused = result(env, "p", "seen").await?;
    ensure!(refused["failure"]["code"] == "NOT_DECLARED", "{refused}");
    // The second version watches Services.
    let watches =
        json!([watch("v1/ConfigMap", &json!("owned")), watch("v1/Service", &json!({ "label": "probe" }))]);
    let second = manifest_with("s5", &json!({ "version": "2.0.0", "watches": watches }));
    host.put("probe.wasm", &guests::probe(ProbeKind::Plain, &second)?)?;
    serving(&host, &second).await?;
    soon("the run after the swap sees the early Service", async || {
        let seen = result(env, "p", "seen").await?;
        ensure!(seen["names"] == json!([format!("{}/early", env.namespace)]), "{seen}");
        Ok(())
    })
    .await?;
    let before = host.calls_of("p")?.len();
    env.kube.create(&service("late")).await?;
    let calls = host.called("p", before + 1).await?;
    ensure!(calls[before].reasons == ["mapped"], "{calls:#?}");
    Ok(())
}

async fn s6_a_plugin_that_comes_later_starts(env: &Env) -> Result<()> {
    let host = host(env, &manifest("s6")).await?;
    apply(env, "p", &json!({ "count": true })).await?;
    committed(env, "p", 1).await?;
    let second = manifest("s6-second");
    host.put("second.wasm", &guests::probe(ProbeKind::Plain, &second)?)?;
    serving(&host, &second).await?;
    soon("the second plugin runs for what was there", async || {
        let calls = host.calls_of("p")?;
        ensure!(calls.iter().any(|call| call.plugin == "s6-second"), "{calls:#?}");
        Ok(())
    })
    .await?;
    host.idle().await?;
    let before = host.calls_of("p")?.len();
    touch(env, "p", 1).await?;
    host.called("p", before + 2).await?;
    // And one that goes stops, while the other goes on.
    std::fs::remove_file(host.plugins_dir().join("second.wasm"))?;
    soon("the second plugin is gone", async || {
        let metrics = host.metrics().await?;
        ensure!(metrics.int("reeve_plugin_info", &[("plugin", "s6-second")]) == 0, "it serves");
        Ok(())
    })
    .await?;
    host.idle().await?;
    let before = host.calls_of("p")?.len();
    touch(env, "p", 2).await?;
    let calls = host.called("p", before + 1).await?;
    ensure!(calls[before].plugin == "s6", "{calls:#?}");
    Ok(())
}
