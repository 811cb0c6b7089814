//! The plugin `misbehaving`, written with the SDK: what a host must survive, as an author's code
//! would do it.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use reeve_core::failure::{Failure, Layer, code};
use reeve_core::gvk::Gvk;
use reeve_core::ids::ObjectName;
use reeve_core::object::{ManagedFields, Object};
use reeve_core::plan::{Outcome, Plan};
use reeve_sandbox::{Plugin, Request, Role, Sandbox};
use serde_json::json;

use crate::support::*;

/// Builds the plugin as `reeve build` does.
fn built() -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = root.join("target/plugins");
    let output = Command::new("cargo")
        .args(["build", "--quiet", "--profile", "plugin", "--target", "wasm32-wasip2", "-p", "misbehaving"])
        .arg("--manifest-path")
        .arg(root.join("plugins/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(target.join("wasm32-wasip2/plugin/misbehaving.wasm")).expect("the plugin")
}

async fn plugin(sandbox: &Sandbox) -> Plugin {
    let loaded = sandbox.load(built().into()).await.expect("it loads");
    sandbox.link(&loaded, grant(&loaded)).expect("it links")
}

fn mishap(mode: &str, amount: u64) -> Request {
    let json = json!({
        "apiVersion": "test.reeve.dev/v1", "kind": "Mishap",
        "metadata": {"name": "x", "namespace": "web", "uid": "u", "resourceVersion": "5", "generation": 1},
        "spec": {"mode": mode, "amount": amount},
    });
    let gvk = Gvk::new("test.reeve.dev", "v1", "Mishap");
    let primary = Object::parse(&gvk, &json.to_string(), ManagedFields::Strip).expect("an object");
    Request {
        primary: Some(Arc::new(primary)),
        name: ObjectName::namespaced("web", "x"),
        ..request(Arc::default())
    }
}

/// What a mode comes to.
enum Ends {
    /// Ok, with such a plan.
    Ok(fn(&Outcome) -> bool),
    /// The guest returned this code; the text holds this.
    Failed(&'static str, &'static str),
    /// It broke with this code, and left no plan.
    Broke(&'static str, &'static str),
}

#[track_caller]
fn check(mode: &str, outcome: &Outcome, ends: &Ends) {
    let shown = || format!("{mode}: {outcome:?}");
    let text = |failure: &Failure| format!("{}: {}", failure.code, failure.message);
    match (ends, &outcome.failure) {
        (Ends::Ok(plan), None) => assert!(plan(outcome), "{}", shown()),
        (Ends::Failed(code, part), Some((Layer::Guest, failure))) => {
            assert!(failure.code == *code && failure.message.contains(part), "{mode}: {}", text(failure));
            let Plan { children, complete, writes, waits, requeue_after, .. } = &outcome.plan;
            assert!(children.is_empty() && writes.is_empty() && waits.is_empty(), "{}", shown());
            assert!(!complete && requeue_after.is_none(), "{}", shown());
        }
        (Ends::Broke(code, part), Some((Layer::Broke, failure))) => {
            assert!(failure.code == *code && failure.message.contains(part), "{mode}: {}", text(failure));
            assert_eq!(outcome.plan, Plan::default(), "{mode}");
        }
        _ => panic!("{}", shown()),
    }
}

fn anything(_: &Outcome) -> bool {
    true
}

const MODES: &[(&str, u64, Ends)] = &[
    ("ok", 0, Ends::Ok(|o| o.plan.children.is_empty())),
    ("requeue", 5, Ends::Ok(|o| o.plan.requeue_after.is_some_and(|after| after.as_millis() == 5))),
    ("requeue-many", 5, Ends::Ok(|o| o.plan.requeue_after.is_some_and(|after| after.is_zero()))),
    ("wait-never", 50, Ends::Ok(|o| o.plan.waits.len() == 1 && !o.plan.complete)),
    ("fail-transient", 0, Ends::Failed("ASKED", "asked to fail")),
    ("fail-permanent", 0, Ends::Failed("ASKED", "asked to fail")),
    ("fail-after-staging", 0, Ends::Failed("ASKED", "asked to fail")),
    ("trap-after-staging", 0, Ends::Broke(code::TRAP, "")),
    ("leak", 0, Ends::Broke(code::OUT_OF_MEMORY, "67108864")),
    ("alloc", 100, Ends::Broke(code::OUT_OF_MEMORY, "limits.memoryMib")),
    ("alloc", 8, Ends::Ok(|o| o.usage.peak_memory > 8 << 20)),
    ("panic", 0, Ends::Broke(code::TRAP, "asked to panic")),
    ("panic-huge", 2, Ends::Broke(code::TRAP, "xxxx")),
    ("abort", 0, Ends::Broke(code::TRAP, "")),
    ("exit", 3, Ends::Broke(code::TRAP, "exit")),
    ("exit", 0, Ends::Broke(code::TRAP, "exit")),
    ("index", 9, Ends::Broke(code::TRAP, "out of bounds")),
    ("stack", 0, Ends::Broke(code::TRAP, "stack is exhausted")),
    ("logs", 1_000, Ends::Ok(|o| o.usage.log_lines == 256 && o.usage.dropped_logs == 744)),
    ("stdout", 1_000, Ends::Ok(|o| o.usage.log_lines == 256 && o.usage.dropped_logs == 744)),
    ("stderr", 1_000, Ends::Ok(|o| o.usage.log_lines == 256 && o.usage.dropped_logs == 744)),
    ("log-huge", 2, Ends::Ok(|o| o.usage.log_lines == 1)),
    ("log-huge", 32, Ends::Broke(code::LIMIT_EXCEEDED, "one host call")),
    ("host-calls", 1_000, Ends::Ok(|o| o.usage.host_calls >= 1_000)),
    ("host-calls", 1_000_000, Ends::Broke(code::LIMIT_EXCEEDED, "100000 host calls")),
    ("handles", 1_000, Ends::Ok(anything)),
    ("handles", 50_000, Ends::Broke(code::LIMIT_EXCEEDED, "handles")),
    (
        "everything",
        0,
        Ends::Ok(|Outcome { plan, .. }| {
            plan.children.len() == 1
                && plan.complete
                && plan.status.is_some()
                && plan.conditions.len() == 1
                && plan.events.len() == 1
                && plan.writes.len() == 1
        }),
    ),
    ("events", 100, Ends::Ok(|o| o.plan.events.len() == 16 && o.usage.dropped_events == 84)),
    ("children", 1_000, Ends::Ok(|o| o.plan.children.len() == 1_000)),
    ("children", 1_001, Ends::Broke(code::LIMIT_EXCEEDED, "limits.children")),
    ("conditions", 65, Ends::Broke(code::LIMIT_EXCEEDED, "64 conditions")),
    ("event-huge", 64, Ends::Ok(|o| o.plan.events.iter().all(|event| event.note.len() <= 1_024))),
    ("child-huge", 9_000, Ends::Broke(code::LIMIT_EXCEEDED, "limits.stagedKib")),
    ("status-huge", 9_000, Ends::Broke(code::LIMIT_EXCEEDED, "limits.stagedKib")),
    ("undeclared-read", 0, Ends::Failed(code::NOT_DECLARED, "watches")),
    ("undeclared-list", 0, Ends::Failed(code::NOT_DECLARED, "watches")),
    ("undeclared-children", 0, Ends::Failed(code::NOT_DECLARED, "watches")),
    ("undeclared-index", 0, Ends::Failed(code::NOT_DECLARED, "indexes")),
    ("undeclared-child", 0, Ends::Failed(code::NOT_DECLARED, "owned")),
    ("undeclared-write", 0, Ends::Failed(code::NOT_DECLARED, "writes")),
    ("undeclared-verb", 0, Ends::Failed(code::NOT_DECLARED, "writes")),
    ("write-primary", 0, Ends::Failed(code::NOT_DECLARED, "Mishap")),
    ("selector-bad", 0, Ends::Failed(code::INVALID_ARGUMENT, "selector")),
    ("condition-bad", 0, Ends::Failed(code::INVALID_ARGUMENT, "condition")),
    ("json-bad", 0, Ends::Failed(code::INVALID_ARGUMENT, "is not readable")),
    ("json-deep", 1, Ends::Failed(code::INVALID_ARGUMENT, "recursion limit")),
    ("child-list", 0, Ends::Failed(code::INVALID_ARGUMENT, "is not readable")),
    ("child-without-kind", 0, Ends::Failed(code::INVALID_ARGUMENT, "`kind`")),
    ("child-without-name", 0, Ends::Failed(code::INVALID_ARGUMENT, "`metadata.name`")),
    ("child-elsewhere", 0, Ends::Failed(code::CROSS_NAMESPACE_OWNER, "namespace")),
    ("status-bad", 0, Ends::Failed(code::INVALID_ARGUMENT, "is not readable")),
    ("status-list", 0, Ends::Failed(code::INVALID_ARGUMENT, "is not readable")),
    ("status-conditions", 0, Ends::Failed(code::INVALID_ARGUMENT, "set-condition")),
    ("status-generation", 0, Ends::Failed(code::INVALID_ARGUMENT, "observedGeneration")),
    ("write-bad", 0, Ends::Failed(code::INVALID_ARGUMENT, "not readable")),
    ("write-verb", 0, Ends::Failed(code::INVALID_ARGUMENT, "unknown variant")),
    ("write-key", 0, Ends::Failed(code::INVALID_ARGUMENT, "unknown field")),
    ("wait-bad", 0, Ends::Failed(code::INVALID_ARGUMENT, "a wait needs")),
    ("wait-key", 0, Ends::Failed(code::INVALID_ARGUMENT, "unknown field")),
];

/// Each in turn in one sandbox: what one run does is nothing to the next.
#[tokio::test]
async fn each_mishap_ends_as_it_should() {
    let sandbox = sandbox();
    let plugin = plugin(&sandbox).await;
    for (mode, amount, ends) in MODES {
        let outcome = plugin.run(Role::Reconcile, mishap(mode, *amount)).await;
        check(mode, &outcome, ends);
    }
    // These do not end by themselves, or only after long.
    for (mode, polite) in [("loop", false), ("sleep", false), ("spin-until-cancelled", true)] {
        let request = mishap(mode, 3_600_000);
        let (cancel, plugin) = (request.cancel.clone(), plugin.clone());
        let mut run = tokio::task::JoinSet::new();
        run.spawn(async move { plugin.run(Role::Reconcile, request).await });
        while sandbox.live_instances() == 0 {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
        let outcome = run.join_next().await.expect("a task").expect("no panic");
        let code = outcome.failure.as_ref().map(|(_, failure)| failure.code.as_str());
        assert_eq!(code, if polite { None } else { Some(code::ABORTED) }, "{mode}");
    }
}

#[tokio::test]
async fn a_failure_keeps_its_fields_within_bounds() {
    let sandbox = sandbox();
    let plugin = plugin(&sandbox).await;
    let outcome = plugin.run(Role::Reconcile, mishap("fail-full", 1_500)).await;
    let expected = Failure {
        code: "DB_CONN_TIMEOUT".to_owned(),
        category: "network".to_owned(),
        severity: 5,
        transient: true,
        message: "the database did not answer".to_owned(),
        retry_after: Some(std::time::Duration::from_millis(1_500)),
        details: [("host", "db-0"), ("port", "5432")].map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
    };
    assert_eq!(outcome.failure, Some((Layer::Guest, expected)));

    let outcome = plugin.run(Role::Reconcile, mishap("fail-huge", 10_000)).await;
    let (_, failure) = outcome.failure.expect("a failure");
    assert_eq!((failure.code.len(), failure.category.len(), failure.message.len()), (64, 64, 4_096));
    assert_eq!(failure.details.len(), 16);
    assert!(failure.details.iter().all(|(key, value)| key.len() <= 256 && value.len() <= 256));
}

/// A trap names the functions of the author, innermost first.
#[tokio::test]
async fn a_trap_of_rust_code_names_its_functions() {
    let sandbox = sandbox();
    let plugin = plugin(&sandbox).await;
    let outcome = plugin.run(Role::Reconcile, mishap("stack", 0)).await;
    let (_, failure) = outcome.failure.expect("a failure");
    assert!(failure.message.contains("misbehaving::body::deeper, recursive"), "{}", failure.message);
}
