//! Bad input: files that are no plugins, objects and children of the wrong shape, a server that is
//! away. Each is refused with a sentence that helps, and the rest goes on.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use reeve_e2e::fault_proxy::{Action, Filter, Rule};
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::guests::{self, ProbeKind};
use reeve_e2e::harness::host::program;
use reeve_e2e::harness::kube::find_condition;
use reeve_e2e::harness::wait::soon;
use reeve_e2e::scenarios;
use serde_json::{Value, json};
use sha2::Digest as _;

use crate::support::{apply, committed, get, host, manifest, manifest_with, serving, touch};

scenarios! {
    bad_input_a_file_that_is_no_plugin_is_refused: "bad input: file";
    bad_input_a_config_map_that_is_no_plugin_is_refused: "bad input: file";
    bad_input_an_object_of_the_wrong_shape: "bad input: object";
    bad_input_an_invalid_child: "bad input: child";
    bad_input_a_server_that_is_away: "bad input: server";
    bad_input_wrong_flags: "bad input: flags";
}

async fn bad_input_a_file_that_is_no_plugin_is_refused(env: &Env) -> Result<()> {
    let good = manifest("bad-file");
    let host = host(env, &good).await?;
    apply(env, "p", &json!({ "count": true, "echo": true })).await?;
    committed(env, "p", 1).await?;
    let bytes = guests::probe(ProbeKind::Plain, &good)?;
    let next = |more: &Value| {
        let mut manifest = manifest_with("bad-file", more);
        manifest["version"] = "2.0.0".into();
        guests::probe(ProbeKind::Plain, &manifest)
    };
    let mut core = b"\0asm\x01\0\0\0".to_vec();
    core.extend([0, 0]);
    let secrets = json!([{ "apiVersion": "v1", "kind": "Secret", "relation": "read" }]);
    let cases: Vec<(&str, Vec<u8>, Vec<&str>)> = vec![
        ("text", b"no component".to_vec(), vec!["component"]),
        ("core", b"\0asm\x01\0\0\0".to_vec(), vec!["core module", "wasm32-wasip2"]),
        ("torn", bytes[..bytes.len() / 2].to_vec(), vec![]),
        ("version", guests::replaced(&bytes, "@0.1.0", "@0.9.0")?, vec!["0.9", "newer host"]),
        (
            "import",
            guests::replaced(&bytes, "wasi:cli/environment@", "evil:cli/environment@")?,
            vec!["evil:cli/environment"],
        ),
        ("field", next(&json!({ "colour": "red" }))?, vec!["colour", "newer host"]),
        ("trap", guests::probe_text(ProbeKind::Plain, "!panic")?, vec!["asked to panic in describe"]),
        ("loop", guests::probe_text(ProbeKind::Plain, "!loop")?, vec!["describe"]),
        ("json", guests::probe_text(ProbeKind::Plain, "no json")?, vec!["manifest"]),
        (
            "grant",
            next(&json!({ "primary": { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role" } }))?,
            vec![],
        ),
        (
            "index",
            next(
                &json!({ "watches": secrets, "indexes": [{ "name": "i", "apiVersion": "v1", "kind": "Pod", "pointer": "/a" }] }),
            )?,
            vec!["index"],
        ),
    ];
    let count = cases.len();
    for (number, (name, bytes, words)) in cases.into_iter().enumerate() {
        host.put("probe.wasm", &bytes)?;
        soon(&format!("{name} is refused with a sentence"), async || {
            let lines = host.log_lines("plugin refused; the version in service goes on")?;
            ensure!(lines.len() > number, "{} lines before it", lines.len());
            let line = lines.last().context("no line")?;
            for word in words.iter().chain(&["probe.wasm"]) {
                ensure!(line.contains(word), "{word:?} is not in {line}");
            }
            Ok(())
        })
        .await?;
    }
    let plugins = host.plugins().await?.to_string();
    ensure!(plugins.contains("\"state\":\"rejected\""), "{plugins}");
    let refused = host.metrics().await?.int("reeve_swap_rejected_total", &[("plugin", "bad-file")]);
    ensure!(refused == count as u64, "{refused} refusals were counted, of {count}");
    // The old version went on all the time.
    touch(env, "p", 1).await?;
    let probe = committed(env, "p", 2).await?;
    ensure!(probe["status"]["run"]["version"] == "1.0.0", "{}", probe["status"]);
    // And a good file is taken afterwards.
    host.put("probe.wasm", &next(&json!({}))?)?;
    host.serves("bad-file", "2.0.0").await
}

async fn bad_input_a_config_map_that_is_no_plugin_is_refused(env: &Env) -> Result<()> {
    let config_map = |bytes: &[u8], digest: &str| {
        let mut object = env.config_map("plugin", &Value::Null);
        object["metadata"]["labels"] = json!({ "reeve.dev/plugin": "yes" });
        object["metadata"]["annotations"] = json!({ "reeve.dev/digest": digest });
        let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
        object["binaryData"] = json!({ "plugin.wasm": encoded });
        object
    };
    let digest = |bytes: &[u8]| format!("sha256:{:x}", sha2::Sha256::digest(bytes));
    let first = guests::probe(ProbeKind::Plain, &manifest("bad-map"))?;
    let second = guests::probe(ProbeKind::Plain, &manifest_with("bad-map", &json!({ "version": "2.0.0" })))?;
    env.kube.apply(&config_map(&first, &digest(&first))).await?;
    let host = env.host().arg("--configmaps").arg("--host-namespace").arg(&env.namespace).start().await?;
    host.serves("bad-map", "1.0.0").await?;
    // Bytes that are not those of the digest are not even tried: a write may be half done.
    env.kube.apply(&config_map(&second, &digest(&first))).await?;
    soon("the torn update is named", async || {
        let plugins = host.plugins().await?.to_string();
        let lines = host.log_lines("reeve.dev/digest")?;
        ensure!(plugins.contains("digest") || !lines.is_empty(), "{plugins}");
        Ok(())
    })
    .await?;
    // Bytes that are no plugin are refused, with an event on the ConfigMap.
    let bad = guests::probe_text(ProbeKind::Plain, "no json")?;
    env.kube.apply(&config_map(&bad, &digest(&bad))).await?;
    soon("an event on the ConfigMap has the reason", async || {
        let events = env.kube.list("events.k8s.io/v1/Event", &env.namespace, "").await?;
        let ours =
            |event: &&Value| event["reason"] == "PluginRejected" && event["regarding"]["name"] == "plugin";
        let notes: Vec<_> = events.iter().filter(ours).map(|event| event["note"].to_string()).collect();
        ensure!(notes.iter().any(|note| note.contains("manifest")), "{notes:#?}");
        Ok(())
    })
    .await?;
    apply(env, "p", &json!({ "count": true, "echo": true })).await?;
    let probe = committed(env, "p", 1).await?;
    ensure!(probe["status"]["run"]["version"] == "1.0.0", "{}", probe["status"]);
    // And a good update is taken.
    env.kube.apply(&config_map(&second, &digest(&second))).await?;
    host.serves("bad-map", "2.0.0").await
}

async fn bad_input_an_object_of_the_wrong_shape(env: &Env) -> Result<()> {
    // A CRD that lets through what the plugin's own type does not.
    let mut crd = guests::crds()?
        .into_iter()
        .find(|crd| crd["metadata"]["name"] == "mishaps.test.reeve.dev")
        .context("plugins/misbehaving has no CRD")?;
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = anything;
    env.kube.install(&crd).await?;
    let host = env.host().plugin("mishap.wasm", &guests::plugin("misbehaving")?).start().await?;
    let mishap = |name: &str, spec: Value| {
        json!({
            "apiVersion": "test.reeve.dev/v1", "kind": "Mishap",
            "metadata": { "name": name, "namespace": env.namespace }, "spec": spec,
        })
    };
    env.kube.create(&mishap("bad", json!({ "mode": "ok", "amount": "password-123" }))).await?;
    env.kube.create(&mishap("good", json!({ "mode": "conditions", "amount": 1 }))).await?;
    let failed = soon("the wrong shape is a permanent failure with its path", async || {
        let bad = env.kube.get("test.reeve.dev/v1/Mishap", &env.namespace, "bad").await?;
        let reconciled = find_condition(&bad, "Reconciled").context("no condition")?.clone();
        ensure!(reconciled["reason"] == "INVALID_OBJECT", "{reconciled}");
        Ok(reconciled)
    })
    .await?;
    let message = failed["message"].as_str().unwrap_or_default();
    ensure!(message.contains("spec.amount") && message.contains("misbehaving"), "{message}");
    ensure!(!message.contains("password-123"), "the object's value is in the message: {message}");
    ensure!(host.log_lines("password-123")?.is_empty(), "the object's value is in the log");
    soon("the good one goes on", async || {
        let good = env.kube.get("test.reeve.dev/v1/Mishap", &env.namespace, "good").await?;
        ensure!(good["status"].is_object(), "it has no status");
        Ok(())
    })
    .await?;
    let labels = [("controller", "misbehaving")];
    ensure!(host.metrics().await?.int("controller_runtime_terminal_reconcile_errors_total", &labels) == 1);
    Ok(())
}

async fn bad_input_an_invalid_child(env: &Env) -> Result<()> {
    let watches = json!([{ "apiVersion": "v1", "kind": "Service", "relation": "owned" }]);
    let host = host(env, &manifest_with("bad-child", &json!({ "watches": watches }))).await?;
    let object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
        "spec": { "ports": [{ "port": 99999 }] },
    });
    apply(env, "p", &json!({ "steps": [{ "apply": { "object": object } }] })).await?;
    soon("the server's message with its field path is the condition", async || {
        let probe = get(env, "p").await?;
        let reconciled = find_condition(&probe, "Reconciled").context("no condition")?;
        ensure!(reconciled["reason"] == "INVALID_WRITE", "{reconciled}");
        ensure!(reconciled["message"].to_string().contains("spec.ports[0].port"), "{reconciled}");
        Ok(())
    })
    .await?;
    drop(host);
    Ok(())
}

async fn bad_input_a_server_that_is_away(env: &Env) -> Result<()> {
    // Away from the start: the host waits, and goes on by itself when the server is there.
    let proxy = env.proxy(env.plane().kubeconfig()).await?;
    let away = proxy.add(Rule::new(Filter::any(), Action::LoseRequest));
    let manifest = manifest("bad-server");
    let bytes = guests::probe(ProbeKind::Plain, &manifest)?;
    let host = env.host().plugin("probe.wasm", &bytes).at_once().start_behind(proxy).await?;
    soon("it is healthy without a server, and tries", async || {
        host.process().alive()?;
        let (status, text) = host.admin("GET", "/healthz").await?;
        ensure!(status == 200, "{status} {text}");
        ensure!(
            host.proxy()?.counts(away).is_some_and(|counts| counts.affected >= 2),
            "it did not try again"
        );
        Ok(())
    })
    .await?;
    host.proxy()?.remove(away);
    host.ready().await?;
    serving(&host, &manifest).await?;
    // Away in the middle of writes: no attempt is counted, nothing is lost.
    let object =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c" }, "data": { "k": "v" } });
    let away = host.proxy()?.add(Rule::new(Filter::writes(), Action::LoseRequest));
    let steps = json!([{ "apply": { "object": object } }]);
    apply(env, "p", &json!({ "count": true, "echo": true, "steps": steps })).await?;
    host.called("p", 2).await?;
    host.proxy()?.remove(away);
    let probe = committed(env, "p", 1).await?;
    ensure!(probe["status"]["run"]["attempt"] == 1, "an outage counted as an attempt: {}", probe["status"]);
    Ok(())
}

async fn bad_input_wrong_flags(env: &Env) -> Result<()> {
    for (arguments, words) in [
        (vec!["run", "--plugin", "x"], vec!["--plugins"]),
        (vec!["rum"], vec!["run"]),
        (vec!["run", "--plugins", "x", "--grace", "soon"], vec!["grace", "unlimited"]),
        (vec!["run", "--plugins", "/no/such/folder"], vec!["/no/such/folder", "does not exist"]),
    ] {
        let output = Command::new(program()?)
            .args(&arguments)
            .arg("--kubeconfig")
            .arg(env.kube.kubeconfig())
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}: {:?}", output.status);
        for word in words {
            ensure!(errors.contains(word), "{arguments:?}: {word:?} is not in {errors}");
        }
    }
    Ok(())
}
