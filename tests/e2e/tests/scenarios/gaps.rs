//! W13, W14 and the complaints about them: what happened while no watch was looking.

use anyhow::{Result, ensure};
use reeve_e2e::fault_proxy::{Action, Filter, Rule, RuleId};
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::host::Host;
use reeve_e2e::harness::wait::soon;
use reeve_e2e::scenarios;
use serde_json::{Value, json};

use crate::support::{CONFIG_MAP, PROBE, apply, committed, exactly, host, manifest, manifest_with};

scenarios! {
    w13_a_child_deleted_in_a_gap_runs_its_owner: "W13", "complaint 17";
    w13_a_primary_deleted_in_a_gap_is_gone: "W13";
    w14_a_primary_made_again_in_a_gap_is_another: "W14", "complaint 18";
    w14_a_child_made_again_in_a_gap_runs_its_owner: "W14";
}

/// Holds a kind's events back until [`reopen`].
fn close(host: &Host, path: &str) -> Result<RuleId> {
    Ok(host.proxy()?.add(Rule::new(Filter::watches(path), Action::Pause)))
}

/// Ends the held watch with 410, so that what was held is lost and a list has to find it.
fn reopen(host: &Host, path: &str, pause: RuleId) -> Result<()> {
    let gone = Action::WatchError { after: 0, code: 410 };
    host.proxy()?.add(Rule::new(Filter::watches(path), gone).times(1));
    host.proxy()?.remove(pause);
    Ok(())
}

fn with_child(data: &str) -> Value {
    let child = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "$(name)-child" }, "data": { "k": data },
    });
    json!({ "count": true, "steps": [{ "apply": { "object": child } }] })
}

async fn w13_a_child_deleted_in_a_gap_runs_its_owner(env: &Env) -> Result<()> {
    let host = host(env, &manifest("w13")).await?;
    apply(env, "p", &with_child("v")).await?;
    committed(env, "p", 1).await?;
    host.idle().await?;
    let before = host.calls_of("p")?.len();
    let pause = close(&host, "*/configmaps")?;
    env.kube.delete(CONFIG_MAP, &env.namespace, "p-child").await?;
    reopen(&host, "*/configmaps", pause)?;
    let calls = host.called("p", before + 1).await?;
    ensure!(calls[before].reasons == ["child"], "{calls:#?}");
    soon("the child is there again", async || {
        env.kube.get(CONFIG_MAP, &env.namespace, "p-child").await.map(drop)
    })
    .await?;
    // Once for the deletion; the echo of making it again may run the owner once.
    host.idle().await?;
    let calls = host.calls_of("p")?;
    ensure!(calls.len() <= before + 2, "{calls:#?}");
    Ok(())
}

async fn w13_a_primary_deleted_in_a_gap_is_gone(env: &Env) -> Result<()> {
    let primary = json!({ "apiVersion": "test.reeve.dev/v1", "kind": "Probe", "whenGone": true });
    let host = host(env, &manifest_with("w13-gone", &json!({ "primary": primary }))).await?;
    apply(env, "p", &json!({ "count": true })).await?;
    exactly(&host, "p", 1).await?;
    let pause = close(&host, "*/probes")?;
    env.kube.delete(PROBE, &env.namespace, "p").await?;
    reopen(&host, "*/probes", pause)?;
    let calls = exactly(&host, "p", 2).await?;
    ensure!(calls[1].role == "gone" && calls[1].reasons == ["deleted"], "{calls:#?}");
    Ok(())
}

async fn w14_a_primary_made_again_in_a_gap_is_another(env: &Env) -> Result<()> {
    let host = host(env, &manifest("w14")).await?;
    // The first life fails twice; the second begins at the first attempt.
    let spec = json!({ "steps": [{ "fail": { "code": "FLAKY", "retryAfterMs": 60_000 } }] });
    apply(env, "p", &spec).await?;
    let first = exactly(&host, "p", 1).await?.remove(0);
    let pause = close(&host, "*/probes")?;
    env.kube.delete(PROBE, &env.namespace, "p").await?;
    soon("p is gone", async || {
        ensure!(env.kube.find(PROBE, &env.namespace, "p").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    apply(env, "p", &json!({ "count": true })).await?;
    reopen(&host, "*/probes", pause)?;
    let calls = exactly(&host, "p", 2).await?;
    ensure!(calls[1].uid != first.uid, "the same UID: {calls:#?}");
    ensure!(calls[1].attempt == 1, "the attempts of the first life count: {calls:#?}");
    ensure!(calls[1].reasons.contains(&"created".to_owned()), "{calls:#?}");
    let live = committed(env, "p", 1).await?;
    let conditions = live["status"]["conditions"].as_array().map_or(0, Vec::len);
    ensure!(live["status"]["runs"] == 1 && conditions == 0, "{}", live["status"]);
    Ok(())
}

async fn w14_a_child_made_again_in_a_gap_runs_its_owner(env: &Env) -> Result<()> {
    let host = host(env, &manifest("w14-child")).await?;
    apply(env, "p", &with_child("v")).await?;
    committed(env, "p", 1).await?;
    host.idle().await?;
    let before = host.calls_of("p")?.len();
    let pause = close(&host, "*/configmaps")?;
    env.kube.delete(CONFIG_MAP, &env.namespace, "p-child").await?;
    // Somebody else takes the name: it is no child of ours.
    env.kube.create(&env.config_map("p-child", &json!({ "k": "foreign" }))).await?;
    reopen(&host, "*/configmaps", pause)?;
    host.called("p", before + 1).await?;
    soon("the foreign object is refused, not overwritten", async || {
        let live = env.kube.get(PROBE, &env.namespace, "p").await?;
        ensure!(live["status"].to_string().contains("CHILD_NOT_OWNED"), "{}", live["status"]);
        Ok(())
    })
    .await?;
    let foreign = env.kube.get(CONFIG_MAP, &env.namespace, "p-child").await?;
    ensure!(foreign["data"]["k"] == "foreign", "{foreign}");
    Ok(())
}
