//! Complaints about what breaks: a guest that traps, hangs or floods, a right or a kind that is
//! missing. Only the object or plugin concerned may notice.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::guests::{self, ProbeKind};
use reeve_e2e::harness::kube::find_condition;
use reeve_e2e::harness::wait::{eventually, soon, stays};
use reeve_e2e::scenarios;
use serde_json::{Value, json};

use crate::support::{A_WHILE, apply, committed, get, host, manifest, manifest_with, serving, touch};

scenarios! {
    complaint13_a_kind_that_comes_and_goes: "complaint 13";
    complaint20_a_right_that_comes_back: "complaint 20";
    complaint21_a_trap_stays_on_its_object: "complaint 21";
    complaint22_a_hung_run_is_ended_at_its_deadline: "complaint 22";
    complaint22_memory_and_host_calls_are_bounded: "complaint 22";
    complaint23_events_are_bounded_and_counted: "complaint 23";
}

fn crd(group: &str, kind: &str) -> Value {
    let singular = kind.to_lowercase();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{singular}s.{group}") },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {
                "kind": kind, "plural": format!("{singular}s"), "singular": singular,
                "listKind": format!("{kind}List"),
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                } },
            }],
        },
    })
}

async fn complaint13_a_kind_that_comes_and_goes(env: &Env) -> Result<()> {
    let primary = json!({ "apiVersion": "c13.reeve.dev/v1", "kind": "Late" });
    let late = manifest_with("c13-late", &json!({ "primary": primary, "watches": [] }));
    let other = manifest("c13-other");
    let builder = env
        .host()
        .plugin("late.wasm", &guests::probe(ProbeKind::Plain, &late)?)
        .plugin("other.wasm", &guests::probe(ProbeKind::Plain, &other)?);
    // A missing kind is no reason to be unready.
    let host = builder.start().await?;
    serving(&host, &other).await?;
    apply(env, "p", &json!({ "count": true })).await?;
    committed(env, "p", 1).await?;
    let plugins = host.plugins().await?.to_string();
    ensure!(plugins.contains("Late"), "/plugins does not name the missing kind: {plugins}");
    env.kube.install(&crd("c13.reeve.dev", "Late")).await?;
    eventually("it serves within 5 s of the kind's arrival", Duration::from_secs(8), async || {
        let serving = host.metrics().await?.int("reeve_plugin_info", &[("plugin", "c13-late")]);
        ensure!(serving == 1, "{}", host.plugins().await?);
        Ok(())
    })
    .await?;
    let object = json!({
        "apiVersion": "c13.reeve.dev/v1", "kind": "Late",
        "metadata": { "name": "l", "namespace": env.namespace }, "spec": { "count": true, "steps": [] },
    });
    env.kube.create(&object).await?;
    host.called("l", 1).await?;
    // The kind goes: its watch ends quietly, without a loop of log lines.
    env.kube.delete("apiextensions.k8s.io/v1/CustomResourceDefinition", "", "lates.c13.reeve.dev").await?;
    soon("the watch of the kind ends", async || {
        let filter = reeve_e2e::fault_proxy::Filter::watches("*/lates");
        let open = host.proxy()?.requests(&filter).iter().filter(|watch| watch.open).count();
        ensure!(open == 0, "{open} are open");
        Ok(())
    })
    .await?;
    let lines = host.log()?.len();
    stays("no log loop", A_WHILE * 2, async || {
        let more = host.log()?.len() - lines;
        ensure!(more <= 10, "{more} lines in a while");
        Ok(())
    })
    .await?;
    touch(env, "p", 1).await?;
    committed(env, "p", 2).await?;
    // And comes back.
    env.kube.install(&crd("c13.reeve.dev", "Late")).await?;
    let before = host.calls_of("l")?.len();
    env.kube.create(&object).await?;
    host.called("l", before + 1).await?;
    Ok(())
}

/// A kubeconfig of a `ServiceAccount` that may do everything with Probes, and what `rules` say.
async fn account(env: &Env, rules: &Value) -> Result<PathBuf> {
    let meta = json!({ "name": "host", "namespace": env.namespace });
    env.kube.apply(&json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta })).await?;
    let everything = json!(["*"]);
    let mut all = vec![
        json!({ "apiGroups": ["test.reeve.dev"], "resources": everything, "verbs": everything }),
        json!({ "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": everything }),
    ];
    all.extend(rules.as_array().into_iter().flatten().cloned());
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": all });
    env.kube.apply(&role).await?;
    env.kube
        .apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "host" },
            "subjects": [{ "kind": "ServiceAccount", "name": "host", "namespace": env.namespace }],
        }))
        .await?;
    let arguments = ["-n", &env.namespace, "create", "token", "host"];
    let token = env.kube.kubectl(&arguments, "").await?;
    let text = std::fs::read_to_string(env.plane().kubeconfig())?;
    let mut config: Value = serde_saphyr::from_str(&text)?;
    config["users"][0]["user"] = json!({ "token": token.trim() });
    let path = env.dir().join("account.kubeconfig");
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

async fn complaint20_a_right_that_comes_back(env: &Env) -> Result<()> {
    let maps = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"] }]);
    let kubeconfig = account(env, &maps).await?;
    let manifest = manifest("c20");
    let bytes = guests::probe(ProbeKind::Plain, &manifest)?;
    let host = env.host().plugin("probe.wasm", &bytes).kubeconfig(&kubeconfig).start().await?;
    serving(&host, &manifest).await?;
    let child =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c" }, "data": { "k": "v" } });
    apply(env, "p", &json!({ "count": true, "steps": [{ "apply": { "object": child } }] })).await?;
    committed(env, "p", 1).await?;
    // The right goes, and with it the watch.
    account(env, &json!([])).await?;
    let filter = reeve_e2e::fault_proxy::Filter::watches("*/configmaps");
    host.proxy()?.cut_open(filter);
    soon("what is missing is named", async || {
        let plugins = host.plugins().await?.to_string();
        let lines = host.log_lines("configmaps")?;
        let named = |text: &str| text.contains("watch") || text.contains("list");
        ensure!(
            plugins.contains("ConfigMap")
                || lines.iter().any(|line| named(line) && line.contains(&env.namespace)),
            "{plugins}\n{lines:#?}"
        );
        Ok(())
    })
    .await?;
    let (status, text) = host.admin("GET", "/readyz").await?;
    ensure!(status == 200, "{status} {text}");
    // It comes back: the host goes on by itself.
    account(env, &maps).await?;
    env.kube.delete("v1/ConfigMap", &env.namespace, "c").await?;
    eventually("the child is made again", Duration::from_mins(1), async || {
        env.kube.get("v1/ConfigMap", &env.namespace, "c").await.map(drop)
    })
    .await
}

async fn complaint21_a_trap_stays_on_its_object(env: &Env) -> Result<()> {
    let host = host(env, &manifest("c21")).await?;
    apply(env, "poison", &json!({ "count": true, "steps": [{ "panic": "poisoned on purpose" }] })).await?;
    for number in 0..10 {
        apply(env, &format!("p{number}"), &json!({ "count": true })).await?;
    }
    for number in 0..10 {
        committed(env, &format!("p{number}"), 1).await?;
    }
    let poison = soon("the trap is a condition on its object", async || {
        let probe = get(env, "poison").await?;
        let reconciled = find_condition(&probe, "Reconciled").context("no condition")?.clone();
        ensure!(reconciled["status"] == "False" && reconciled["reason"] == "TRAP", "{reconciled}");
        Ok(probe)
    })
    .await?;
    ensure!(poison["status"]["runs"].is_null(), "something of the broken run was committed");
    let metrics = host.metrics().await?;
    ensure!(metrics.int("controller_runtime_reconcile_panics_total", &[("controller", "c21")]) >= 1);
    soon("there is an event", async || {
        let events = env.kube.list("events.k8s.io/v1/Event", &env.namespace, "").await?;
        let found =
            events.iter().any(|event| event["regarding"]["name"] == "poison" && event["type"] == "Warning");
        ensure!(found, "{} events, none about poison", events.len());
        Ok(())
    })
    .await?;
    soon("the guest's panic is in the log", async || {
        ensure!(!host.log_lines("poisoned on purpose")?.is_empty(), "it is not");
        Ok(())
    })
    .await?;
    // It backs off, and a good change heals it.
    apply(env, "poison", &json!({ "count": true, "steps": [] })).await?;
    committed(env, "poison", 1).await?;
    soon("the condition is true again", async || {
        let probe = get(env, "poison").await?;
        let reconciled = find_condition(&probe, "Reconciled").context("no condition")?;
        ensure!(reconciled["status"] == "True", "{reconciled}");
        Ok(())
    })
    .await
}

async fn complaint22_a_hung_run_is_ended_at_its_deadline(env: &Env) -> Result<()> {
    let limits = json!({ "limits": { "deadlineMs": 500, "concurrency": 1 } });
    let host = host(env, &manifest_with("c22", &limits)).await?;
    for (name, step) in [("loop", json!({ "spinMs": -1 })), ("sleep", json!({ "sleepMs": 600_000 }))] {
        apply(env, name, &json!({ "count": true, "steps": [step] })).await?;
    }
    for name in ["loop", "sleep"] {
        let probe = soon(&format!("{name} is ended"), async || {
            let probe = get(env, name).await?;
            let reconciled = find_condition(&probe, "Reconciled").context("no condition")?;
            ensure!(reconciled["reason"] == "DEADLINE_EXCEEDED", "{reconciled}");
            Ok(probe)
        })
        .await?;
        ensure!(probe["status"]["runs"].is_null(), "something of {name} was committed");
        // It is tried again, and the only worker is free for others.
        host.called(name, 2).await?;
    }
    apply(env, "p", &json!({ "count": true })).await?;
    committed(env, "p", 1).await?;
    let metrics = host.metrics().await?;
    ensure!(metrics.int("controller_runtime_reconcile_timeouts_total", &[("controller", "c22")]) >= 2);
    ensure!(metrics.int("controller_runtime_max_concurrent_reconciles", &[("controller", "c22")]) == 1);
    Ok(())
}

async fn complaint22_memory_and_host_calls_are_bounded(env: &Env) -> Result<()> {
    let limits = json!({ "limits": { "memoryMib": 16, "hostCalls": 1000, "children": 10 } });
    let host = host(env, &manifest_with("c22-limits", &limits)).await?;
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c-$(i)" } });
    for (name, step, code) in [
        ("memory", json!({ "allocMib": 64 }), "OUT_OF_MEMORY"),
        ("calls", json!({ "poll": { "hostCalls": 5000 } }), "LIMIT_EXCEEDED"),
        ("children", json!({ "apply": { "object": object, "count": 20 } }), "LIMIT_EXCEEDED"),
    ] {
        apply(env, name, &json!({ "count": true, "steps": [step] })).await?;
        soon(&format!("{name} is refused with {code}"), async || {
            let probe = get(env, name).await?;
            let reconciled = find_condition(&probe, "Reconciled").context("no condition")?;
            ensure!(reconciled["reason"] == code, "{reconciled}");
            Ok(())
        })
        .await?;
    }
    let made = env.kube.list("v1/ConfigMap", &env.namespace, "reeve.dev/plugin=c22-limits").await?;
    ensure!(made.is_empty(), "a run over its limit made {} children", made.len());
    apply(env, "p", &json!({ "count": true })).await?;
    committed(env, "p", 1).await?;
    drop(host);
    Ok(())
}

async fn complaint23_events_are_bounded_and_counted(env: &Env) -> Result<()> {
    let host = host(env, &manifest_with("c23", &json!({ "limits": { "events": 200 } }))).await?;
    let events = async |name: &str| -> Result<Vec<Value>> {
        let mut events = env.kube.list("events.k8s.io/v1/Event", &env.namespace, "").await?;
        events.retain(|event| event["regarding"]["name"] == name);
        Ok(events)
    };
    // A hundred different ones for one object: the first come through, a counter has the rest.
    let steps = json!([{ "event": { "reason": "Flood", "note": "number $(i)", "count": 100 } }]);
    apply(env, "flood", &json!({ "count": true, "steps": steps })).await?;
    committed(env, "flood", 1).await?;
    soon("some are dropped and counted", async || {
        let dropped = host.metrics().await?.int("reeve_events_dropped_total", &[]);
        let sent = events("flood").await?.len();
        ensure!(sent >= 10 && dropped > 0, "{sent} sent, {dropped} dropped");
        Ok(())
    })
    .await?;
    let sent = events("flood").await?.len();
    ensure!(sent < 100, "all {sent} were sent");
    // The same one again and again is one series.
    let steps = json!([{ "event": { "reason": "Same", "note": "always", "count": 100 } }]);
    apply(env, "same", &json!({ "count": true, "steps": steps })).await?;
    committed(env, "same", 1).await?;
    host.idle().await?;
    soon("there is one", async || {
        let sent = events("same").await?.len();
        ensure!(sent == 1, "{sent} events");
        Ok(())
    })
    .await
}
