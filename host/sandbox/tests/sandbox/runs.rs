//! A run from outside: what it stages, what it reads, how it fails.

use reeve_core::failure::{Layer, code};
use reeve_core::plan::Plan;
use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn what_a_run_stages_is_its_plan() {
    let (data, child) =
        text(1_024, r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"v"}}"#);
    let (more, status) = text(2_048, r#"{"ready":true}"#);
    let body = format!(
        "(call $apply (local.get $ctx) {child} (i32.const 0) (i32.const 0) (i32.const {RET}))
         (call $status (local.get $ctx) {status} (i32.const {RET}))
         (call $requeue (local.get $ctx) (i64.const 5000))
         (call $requeue (local.get $ctx) (i64.const 9000))
         (call $complete (local.get $ctx))"
    );
    let outcome = run(&Guest::reconcile(&body).with(&data).with(&more)).await;
    assert_eq!(outcome.failure, None);
    let plan = outcome.plan;
    assert_eq!(plan.children.len(), 1);
    let child = &plan.children[0];
    assert_eq!(
        (child.gvk.clone(), child.name.to_string(), child.adopt),
        (config_map(), "web/a".to_owned(), false)
    );
    assert_eq!(json!(child.body)["data"]["k"], "v");
    assert!(plan.complete);
    assert_eq!(plan.status.map(|status| json!(status)), Some(json!({"ready": true})));
    assert_eq!(plan.requeue_after, Some(std::time::Duration::from_secs(5)));
    assert_eq!(outcome.usage.host_calls, 5);
    assert!(outcome.usage.peak_memory >= 128 * 1024);
}

#[tokio::test]
async fn nothing_is_left_of_a_run_but_its_plan() {
    // A guest that counts its runs in memory always counts to one.
    let body = "(i32.store (i32.const 512) (i32.add (i32.load (i32.const 512)) (i32.const 1)))
                (call $requeue (local.get $ctx) (i64.extend_i32_u (i32.load (i32.const 512))))";
    let sandbox = sandbox();
    let plugin = Guest::reconcile(body).plugin(&sandbox).await;
    for _ in 0..20 {
        let outcome = reconcile(&plugin).await;
        assert_eq!(outcome.plan.requeue_after, Some(std::time::Duration::from_millis(1)));
    }
}

#[tokio::test]
async fn a_core_module_runs_as_the_component_does() {
    let guest = Guest::reconcile("(call $requeue (local.get $ctx) (i64.const 7))");
    let sandbox = sandbox();
    let loaded = sandbox.load(guest.module().into()).await.expect("it is made a component");
    assert!(loaded.inspection().core_module);
    let plugin = sandbox.link(&loaded, grant(&loaded)).expect("it links");
    plugin.probe().await.expect("it comes up");
    assert_eq!(reconcile(&plugin).await.plan.requeue_after, Some(std::time::Duration::from_millis(7)));
}

#[tokio::test]
async fn cleanup_is_a_role_of_its_own() {
    let sandbox = sandbox();
    let plugin = Guest::reconcile("").role("cleanup").plugin(&sandbox).await;
    assert!(plugin.inspection().roles.cleanup);
    let outcome = plugin.run(reeve_sandbox::Role::Cleanup, request(std::sync::Arc::default())).await;
    assert_eq!(outcome.plan.requeue_after, Some(std::time::Duration::from_millis(77)));

    let without = Guest::reconcile("").plugin(&sandbox).await;
    let outcome = without.run(reeve_sandbox::Role::Cleanup, request(std::sync::Arc::default())).await;
    assert!(
        matches!(&outcome.failure, Some((Layer::Host, f)) if f.message.contains("cleanup")),
        "{outcome:?}"
    );
}

/// The guest stages, asks for something that is refused, and returns the refusal as its own.
#[tokio::test]
async fn a_failure_keeps_only_what_tells_about_it() {
    let (data, child) = text(1_024, r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#);
    let (more, status) = text(2_048, r#"{"phase":"Failed"}"#);
    let (bad, no_object) = text(3_072, "[]");
    let body = format!(
        "(call $apply (local.get $ctx) {child} (i32.const 0) (i32.const 0) (i32.const {RET}))
         (call $status (local.get $ctx) {status} (i32.const {RET}))
         (call $complete (local.get $ctx))
         (call $requeue (local.get $ctx) (i64.const 1))
         (call $apply (local.get $ctx) {no_object} (i32.const 0) (i32.const 0) (i32.const {RET}))"
    );
    let outcome = run(&Guest::reconcile(&body).with(&data).with(&more).with(&bad)).await;
    let (layer, failure) = outcome.failure.expect("a failure");
    assert_eq!(
        (layer, failure.code.as_str(), failure.transient),
        (Layer::Guest, code::INVALID_ARGUMENT, false)
    );
    let expected = json!({"phase": "Failed"}).as_object().cloned();
    assert_eq!(outcome.plan, Plan { status: expected, ..Plan::default() });
}

/// A child that was refused must not be pruned because the guest went on regardless.
#[tokio::test]
async fn a_refused_child_makes_the_set_incomplete() {
    let (data, bad) = text(1_024, r#"{"apiVersion":"v1","kind":"ConfigMap"}"#);
    let body = format!(
        "(call $apply (local.get $ctx) {bad} (i32.const 0) (i32.const 0) (i32.const 256))
         (call $complete (local.get $ctx))"
    );
    let outcome = run(&Guest::reconcile(&body).with(&data)).await;
    assert_eq!(outcome.failure, None);
    assert!(!outcome.plan.complete && outcome.plan.children.is_empty());
}

#[tokio::test]
async fn a_trap_says_where_and_leaves_no_plan() {
    let (data, status) = text(1_024, "{}");
    let (more, words) = text(2_048, "panicked at src/lib.rs:7:9: no such site");
    let body = format!(
        "(call $status (local.get $ctx) {status} (i32.const {RET}))
         (call $log (i32.const 4) {words} (i32.const 0) (i32.const 0))
         (call $boom)"
    );
    let guest = Guest::reconcile(&body).with(&data).with(&more).with("(func $boom unreachable)");
    let outcome = run(&guest).await;
    let (layer, failure) = outcome.failure.as_ref().expect("a failure");
    assert_eq!((*layer, failure.code.as_str(), failure.transient), (Layer::Broke, code::TRAP, true));
    for part in ["unreachable", "no such site", "boom < "] {
        assert!(failure.message.contains(part), "{part:?} is not in {:?}", failure.message);
    }
    assert_eq!(outcome.plan, Plan::default());
}

#[tokio::test]
async fn a_map_is_answered_or_fails_by_itself() {
    let watch = json!([{"apiVersion": "v1", "kind": "Secret", "relation": "map"}]);
    let changed = object(&reeve_core::gvk::Gvk::new("", "v1", "Secret"), "s", 4);
    let sandbox = sandbox();
    // ok, one name at 1024: no namespace, text "x" at 2048.
    let (data, _) = text(2_048, "x");
    let body = format!(
        "(i32.store (i32.const {}) (i32.const 1024)) (i32.store (i32.const {}) (i32.const 1))
         (i32.store (i32.const 1036) (i32.const 2048)) (i32.store (i32.const 1040) (i32.const 1))",
        RET + 8,
        RET + 12
    );
    let guest = Guest::reconcile("").manifest("watches", watch.clone()).map(&body).with(&data);
    let plugin = guest.plugin(&sandbox).await;
    let names = plugin.map("Secret", changed.clone()).await.expect("names");
    assert_eq!(names, [reeve_core::ids::ObjectName::cluster("x")]);

    let broken = Guest::reconcile("").manifest("watches", watch).map("unreachable").plugin(&sandbox).await;
    assert_eq!(broken.map("Secret", changed).await.expect_err("a trap").code, code::TRAP);
}

#[tokio::test]
async fn a_cancelled_run_sees_it_and_is_ended_if_it_does_not_return() {
    let sandbox = sandbox();
    let polite = "(loop $again (br_if $again (i32.eqz (call $cancelled (local.get $ctx)))))
                  (call $requeue (local.get $ctx) (i64.const 42))";
    let rude = "(loop $again (br $again))";
    let limits = json!({"deadlineMs": 600_000, "hostCalls": 100_000_000});
    for (body, polite) in [(polite, true), (rude, false)] {
        let plugin = Guest::reconcile(body).limits(limits.clone()).plugin(&sandbox).await;
        let request = request(std::sync::Arc::default());
        let cancel = request.cancel.clone();
        let mut run = tokio::task::JoinSet::new();
        run.spawn(async move { plugin.run(reeve_sandbox::Role::Reconcile, request).await });
        cancel.cancel();
        let outcome = tokio::time::timeout(LONG, run.join_next())
            .await
            .expect("it ends")
            .expect("a task")
            .expect("no panic");
        if polite && outcome.failure.is_none() {
            assert_eq!(outcome.plan.requeue_after, Some(std::time::Duration::from_millis(42)));
        } else {
            // Also what a polite one gets that had not begun.
            assert_eq!((failure(&outcome).0, &outcome.plan), (code::ABORTED, &Plan::default()));
        }
    }
}
