//! Complaints about other controller hosts that must not be made about this one: writes, watches,
//! caches, finalizers.

use std::time::Duration;

use anyhow::{Result, ensure};
use reeve_e2e::fault_proxy::{Action, Filter, Rule};
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::guests::{self, ProbeKind};
use reeve_e2e::harness::wait::{eventually, soon, stays};
use reeve_e2e::scenarios;
use serde_json::{Value, json};

use crate::support::{
    A_WHILE, CONFIG_MAP, PROBE, apply, committed, get, host, manifest, manifest_with, result, serving, watch,
};

scenarios! {
    complaint1_a_run_reads_its_own_writes: "complaint 1";
    complaint1_a_write_of_unknown_outcome_is_not_repeated: "complaint 1";
    complaint3_a_plugin_that_runs_itself_is_slowed_and_named: "complaint 3";
    complaint5_finalizers_of_others_are_never_lost: "complaint 5";
    complaint24_deleting_a_parent_is_quiet: "complaint 24";
    complaint25_ten_plugins_share_one_watch: "complaint 25";
    complaint27_managed_fields_are_not_cached: "complaint 27";
}

fn generated(env: &Env) -> Value {
    json!({ "write": { "request": {
        "verb": "create", "apiVersion": "v1", "kind": "ConfigMap", "namespace": env.namespace,
        "name": "made-$(runs)", "body": {
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "made-$(runs)", "namespace": env.namespace, "labels": { "made": "yes" } },
        },
    } } })
}

/// A manifest that creates ConfigMaps by plain writes and reads them.
fn creator(name: &str) -> Value {
    manifest_with(
        name,
        &json!({
            "watches": [watch(CONFIG_MAP, &json!("read"))],
            "writes": [{ "apiVersion": "v1", "kind": "ConfigMap", "verbs": ["create"] }],
        }),
    )
}

async fn complaint1_a_run_reads_its_own_writes(env: &Env) -> Result<()> {
    let host = host(env, &creator("c1-own")).await?;
    // No event arrives in time; the next run comes at once and has to see the first one's object.
    host.proxy()?.add(Rule::new(Filter::watches("*/configmaps"), Action::Shift { ms: 4000 }));
    let list = json!({ "apiVersion": "v1", "kind": "ConfigMap", "labels": "made=yes" });
    let steps = json!([
        { "as": "seen", "list": list },
        { "when": { "runsBelow": 1 }, "requeueAfterMs": 0 },
        { "when": { "runsBelow": 1 }, "write": generated(env)["write"] },
    ]);
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    let probe = committed(env, "p", 2).await?;
    let seen = &probe["status"]["results"]["seen"];
    ensure!(seen["count"] == 1, "the second run saw {seen}");
    let live = env.kube.list(CONFIG_MAP, &env.namespace, "made=yes").await?;
    ensure!(live.len() == 1, "{} objects were created", live.len());
    drop(host);
    Ok(())
}

async fn complaint1_a_write_of_unknown_outcome_is_not_repeated(env: &Env) -> Result<()> {
    let host = host(env, &manifest("c1-unknown")).await?;
    let proxy = host.proxy()?;
    let children = format!("*/{}/configmaps*", env.namespace);
    // The server creates the child, its answer is lost, and the event comes late.
    let lost = proxy.add(Rule::new(Filter::writes().on(&children), Action::LoseAnswer).times(1));
    proxy.add(Rule::new(Filter::watches("*/configmaps"), Action::Shift { ms: 1000 }));
    let object =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c" }, "data": { "k": "v" } });
    let steps = json!([
        { "as": "seen", "children": { "apiVersion": "v1", "kind": "ConfigMap" } },
        { "apply": { "object": object } },
    ]);
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    let probe = committed(env, "p", 1).await?;
    ensure!(proxy.counts(lost).is_some_and(|counts| counts.affected == 1), "no answer was lost");
    // The run after it was held until the cache had passed the write.
    let seen = &probe["status"]["results"]["seen"];
    ensure!(seen["count"] == 1, "the run after the lost answer saw {seen}");
    let metrics = host.metrics().await?;
    ensure!(metrics.int("reeve_cache_holds_total", &[]) >= 1, "no hold was counted");
    let live = env.kube.list(CONFIG_MAP, &env.namespace, "reeve.dev/plugin=c1-unknown").await?;
    ensure!(live.len() == 1, "{live:#?}");
    Ok(())
}

async fn complaint3_a_plugin_that_runs_itself_is_slowed_and_named(env: &Env) -> Result<()> {
    let host = host(env, &manifest("c3-loop")).await?;
    // Its own status is no trigger, however often it changes.
    let steps = json!([{ "status": { "lastRun": "$(runs)" } }]);
    apply(env, "status", &json!({ "count": true, "steps": steps })).await?;
    committed(env, "status", 1).await?;
    stays("one run", A_WHILE, async || {
        let calls = host.calls_of("status")?;
        ensure!(calls.len() == 1, "{calls:#?}");
        Ok(())
    })
    .await?;
    // A child that differs in every run does make it run again: that is a loop of its own making.
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c" }, "data": { "run": "$(runs)" },
    });
    apply(env, "loop", &json!({ "count": true, "steps": [{ "apply": { "object": object } }] })).await?;
    eventually("the loop is named", Duration::from_mins(1), async || {
        let loops = host.metrics().await?.int("reeve_plugin_hot_loops_total", &[("plugin", "c3-loop")]);
        ensure!(loops >= 1, "runs so far: {}", host.calls_of("loop")?.len());
        Ok(())
    })
    .await?;
    let warnings = host.log_lines("loop")?;
    ensure!(warnings.iter().any(|line| line.contains("WARN") && line.contains("own writes")), "no warning");
    soon("the loop is a condition", async || {
        let live = get(env, "loop").await?;
        ensure!(live["status"]["conditions"].to_string().contains("own writes"), "{}", live["status"]);
        Ok(())
    })
    .await?;
    // Slowed: not even a handful of runs in a while.
    let before = host.calls_of("loop")?.len();
    stays("it is slow", A_WHILE * 2, async || {
        let more = host.calls_of("loop")?.len() - before;
        ensure!(more <= 5, "{more} runs");
        Ok(())
    })
    .await
}

async fn complaint5_finalizers_of_others_are_never_lost(env: &Env) -> Result<()> {
    const OBJECTS: usize = 40;
    let first = manifest("c5-first");
    let second = manifest("c5-second");
    let builder = env
        .host()
        .plugin("first.wasm", &guests::probe(ProbeKind::Cleanup, &first)?)
        .plugin("second.wasm", &guests::probe(ProbeKind::Cleanup, &second)?);
    let host = builder.start().await?;
    serving(&host, &first).await?;
    serving(&host, &second).await?;
    for number in 0..OBJECTS {
        let mut probe = env.probe(&format!("p{number}"), &json!({ "count": true }));
        probe["metadata"]["finalizers"] = json!(["example.com/foreign"]);
        env.kube.create(&probe).await?;
    }
    let both = ["reeve.dev/c5-first", "reeve.dev/c5-second", "example.com/foreign"];
    let finalizers = |probe: &Value| -> Vec<String> {
        let list = probe["metadata"]["finalizers"].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    soon("all have all three", async || {
        for probe in env.kube.list(PROBE, &env.namespace, "").await? {
            let found = finalizers(&probe);
            ensure!(both.iter().all(|wanted| found.iter().any(|have| have == wanted)), "{found:?}");
            ensure!(found.len() == 3, "{found:?}");
        }
        Ok(())
    })
    .await?;
    // Foreground deletion adds one more, while both plugins take theirs off.
    for number in 0..OBJECTS {
        let options = json!({ "propagationPolicy": "Foreground" });
        env.kube.delete_with(PROBE, &env.namespace, &format!("p{number}"), &options).await?;
    }
    soon("only the foreign one is left", async || {
        let probes = env.kube.list(PROBE, &env.namespace, "").await?;
        ensure!(probes.len() == OBJECTS, "{} objects are left: a foreign finalizer was lost", probes.len());
        for probe in probes {
            let found = finalizers(&probe);
            ensure!(found == ["example.com/foreign"], "{found:?}");
        }
        Ok(())
    })
    .await?;
    host.idle().await?;
    // No 409 and no 422 reached anybody, and nothing was added to what is being deleted.
    let errors = host.metrics().await?.int("controller_runtime_reconcile_errors_total", &[]);
    ensure!(errors == 0, "{errors} failed runs");
    let cleanups = host.calls()?.iter().filter(|call| call.role == "cleanup").count();
    ensure!(cleanups >= 2 * OBJECTS, "{cleanups} cleanups");
    for number in 0..OBJECTS {
        let patch = json!({ "metadata": { "finalizers": null } });
        env.kube.merge(PROBE, &env.namespace, &format!("p{number}"), &patch).await?;
    }
    soon("all are gone", async || {
        let left = env.kube.list(PROBE, &env.namespace, "").await?.len();
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await
}

async fn complaint24_deleting_a_parent_is_quiet(env: &Env) -> Result<()> {
    let host = host(env, &manifest("c24")).await?;
    let object =
        |name: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } });
    let steps = json!([{ "apply": { "object": object("$(name)-$(i)"), "count": 5 } }]);
    for name in ["a", "b", "c"] {
        apply(env, name, &json!({ "count": true, "steps": steps })).await?;
        committed(env, name, 1).await?;
    }
    host.idle().await?;
    let calls = host.calls()?.len();
    for name in ["a", "b", "c"] {
        env.kube.delete(PROBE, &env.namespace, name).await?;
    }
    soon("the children are collected", async || {
        let left = env.kube.list(CONFIG_MAP, &env.namespace, "reeve.dev/plugin=c24").await?.len();
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await?;
    host.idle().await?;
    let loud: Vec<_> =
        host.log()?.into_iter().filter(|line| line["level"] == "ERROR" || line["level"] == "WARN").collect();
    ensure!(loud.is_empty(), "{loud:#?}");
    // Nobody asked for a call when the object is gone.
    let now = host.calls()?;
    ensure!(now.len() == calls, "{:#?}", &now[calls..]);
    let left = env.kube.list(CONFIG_MAP, &env.namespace, "reeve.dev/plugin=c24").await?.len();
    ensure!(left == 0, "a child was made again for a parent that is gone");
    Ok(())
}

async fn complaint25_ten_plugins_share_one_watch(env: &Env) -> Result<()> {
    let mut builder = env.host();
    let manifests: Vec<Value> = (0..10).map(|number| manifest(&format!("c25-{number}"))).collect();
    for (number, manifest) in manifests.iter().enumerate() {
        builder = builder.plugin(&format!("{number}.wasm"), &guests::probe(ProbeKind::Plain, manifest)?);
    }
    for number in 0..5 {
        env.kube.create(&env.config_map(&format!("m{number}"), &json!({ "k": "v" }))).await?;
    }
    let host = builder.start().await?;
    for manifest in &manifests {
        serving(&host, manifest).await?;
    }
    for path in ["*/probes", "*/configmaps"] {
        let open = host.proxy()?.requests(&Filter::watches(path));
        let open = open.iter().filter(|watch| watch.open).count();
        ensure!(open == 1, "{open} open watches of {path}");
    }
    let live = env.kube.list(CONFIG_MAP, &env.namespace, "").await?.len();
    let metrics = host.metrics().await?;
    let cached: f64 = metrics
        .find("reeve_cache_objects", &[])
        .filter(|sample| sample.labels.get("kind").is_some_and(|kind| kind.starts_with("ConfigMap")))
        .map(|sample| sample.value)
        .sum();
    ensure!(format!("{cached}") == live.to_string(), "{cached} cached ConfigMaps of {live}");
    // When all are gone the watches close.
    for number in 0..10 {
        std::fs::remove_file(host.plugins_dir().join(format!("{number}.wasm")))?;
    }
    soon("the watches close", async || {
        let open = host.proxy()?.requests(&Filter::watches("*/probes"));
        let open = open.iter().filter(|watch| watch.open).count();
        ensure!(open == 0, "{open} open watches of Probes");
        Ok(())
    })
    .await
}

async fn complaint27_managed_fields_are_not_cached(env: &Env) -> Result<()> {
    env.kube.apply(&env.config_map("m", &json!({ "k": "v" }))).await?;
    let first = manifest_with("c27", &json!({ "watches": [watch(CONFIG_MAP, &json!("read"))] }));
    let host = host(env, &first).await?;
    let pointer = "/metadata/managedFields/0/manager";
    let get = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "m", "pointer": pointer });
    apply(env, "p", &json!({ "count": true, "steps": [{ "as": "seen", "get": get }] })).await?;
    let seen = result(env, "p", "seen").await?;
    ensure!(seen == "null", "without asking it saw {seen}");
    let bytes = host.metrics().await?.int("reeve_cache_bytes", &[]);
    // The next version asks for them.
    let mut second = first;
    second["version"] = "2.0.0".into();
    second["managedFields"] = true.into();
    host.put("probe.wasm", &guests::probe(ProbeKind::Plain, &second)?)?;
    serving(&host, &second).await?;
    soon("the second version sees the manager", async || {
        let seen = result(env, "p", "seen").await?;
        ensure!(seen == "e2e", "{seen}");
        Ok(())
    })
    .await?;
    let with = host.metrics().await?.int("reeve_cache_bytes", &[]);
    ensure!(with > bytes, "{bytes} bytes without managedFields, {with} with them");
    Ok(())
}
