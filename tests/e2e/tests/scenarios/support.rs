//! What many scenarios say in the same words.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use reeve_e2e::fault_proxy::{Filter, Logged};
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::guests::{self, ProbeKind};
use reeve_e2e::harness::host::{Call, Host};
use reeve_e2e::harness::wait::{soon, stays};
use serde_json::{Value, json};

/// The kind that probes reconcile.
pub(crate) const PROBE: &str = "test.reeve.dev/v1/Probe";
/// The child that most scenarios use.
pub(crate) const CONFIG_MAP: &str = "v1/ConfigMap";
/// Long enough for a wrong run to show, short enough to be waited for in every scenario.
pub(crate) const A_WHILE: Duration = Duration::from_millis(1200);

/// A manifest over Probes that own ConfigMaps, with a first retry after 200 ms.
pub(crate) fn manifest(name: &str) -> Value {
    let mut manifest = guests::manifest(name, "1.0.0");
    manifest["retry"] = json!({ "baseMs": 200 });
    manifest
}

/// The same with these fields on top.
pub(crate) fn manifest_with(name: &str, more: &Value) -> Value {
    let mut manifest = manifest(name);
    for (key, value) in more.as_object().into_iter().flatten() {
        manifest[key.as_str()] = value.clone();
    }
    manifest
}

/// A watch for a manifest.
pub(crate) fn watch(kind: &str, relation: &Value) -> Value {
    let (version, kind) = kind.rsplit_once('/').unwrap_or(("v1", kind));
    json!({ "apiVersion": version, "kind": kind, "relation": relation })
}

/// A host with one plain probe, serving.
pub(crate) async fn host(env: &Env, manifest: &Value) -> Result<Host> {
    host_of(env, ProbeKind::Plain, manifest).await
}

/// A host with one probe of this build, serving.
pub(crate) async fn host_of(env: &Env, kind: ProbeKind, manifest: &Value) -> Result<Host> {
    let host = env.host().plugin("probe.wasm", &guests::probe(kind, manifest)?).start().await?;
    serving(&host, manifest).await?;
    Ok(host)
}

/// Waits until the plugin of this manifest serves.
pub(crate) async fn serving(host: &Host, manifest: &Value) -> Result<()> {
    let text = |name: &str| manifest[name].as_str().unwrap_or_default().to_owned();
    host.serves(&text("name"), &text("version")).await
}

/// Applies a Probe with this program.
pub(crate) async fn apply(env: &Env, name: &str, spec: &Value) -> Result<Value> {
    env.kube.apply(&env.probe(name, spec)).await
}

/// Changes a Probe's generation, so that it has to run.
pub(crate) async fn touch(env: &Env, name: &str, value: u64) -> Result<()> {
    env.kube.merge(PROBE, &env.namespace, name, &json!({ "spec": { "touch": value } })).await?;
    Ok(())
}

/// The Probe now.
pub(crate) async fn get(env: &Env, name: &str) -> Result<Value> {
    env.kube.get(PROBE, &env.namespace, name).await
}

/// Waits until this result stands in a Probe's status, and returns it.
pub(crate) async fn result(env: &Env, name: &str, of: &str) -> Result<Value> {
    soon(&format!("{name} has the result {of}"), async || {
        let probe = get(env, name).await?;
        let results = &probe["status"]["results"];
        results.get(of).cloned().with_context(|| format!("status: {}", probe["status"]))
    })
    .await
}

/// Waits until so many runs of a Probe were committed (its program counts).
pub(crate) async fn committed(env: &Env, name: &str, runs: u64) -> Result<Value> {
    soon(&format!("{runs} runs of {name} are committed"), async || {
        let probe = get(env, name).await?;
        ensure!(probe["status"]["runs"].as_u64() >= Some(runs), "status: {}", probe["status"]);
        Ok(probe)
    })
    .await
}

/// Waits until the host is idle, then makes sure that the Probe had exactly so many runs, and has
/// no more for a while.
pub(crate) async fn exactly(host: &Host, name: &str, runs: usize) -> Result<Vec<Call>> {
    host.called(name, runs).await?;
    stays(&format!("{runs} runs of {name}"), A_WHILE, async || {
        let calls = host.calls_of(name)?;
        ensure!(calls.len() == runs, "it has {}: {calls:#?}", calls.len());
        Ok(())
    })
    .await?;
    host.calls_of(name)
}

/// Milliseconds between two runs, by the host's own clock.
pub(crate) fn between(first: &Call, second: &Call) -> Result<i64> {
    let at = |call: &Call| -> Result<i64> {
        let time: k8s_openapi::jiff::Timestamp = call.at.parse()?;
        Ok(time.as_millisecond())
    };
    Ok(at(second)? - at(first)?)
}

/// The writes to objects since a mark: no events, which are told beside, and not the record of a
/// plugin's kinds, which is written once per plugin.
pub(crate) fn writes(host: &Host, mark: u64) -> Result<Vec<Logged>> {
    let filter =
        Filter::writes().not_on("*/events").not_on("*/events/*").not_on("*/configmaps/reeve-plugin-*");
    Ok(host.proxy()?.requests_since(mark, &filter))
}
