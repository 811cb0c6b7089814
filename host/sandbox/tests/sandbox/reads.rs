//! What a guest reads: one version of each thing, and nothing that was not granted.

use std::sync::Arc;
use std::time::Duration;

use reeve_core::failure::code;
use reeve_sandbox::Role;
use serde_json::json;

use crate::support::*;

/// `(call $get …)` of `v1` kind `web/name`, into 256; its error would be returned.
struct Texts {
    data: String,
    version: String,
    config_map: String,
    node: String,
    namespace: String,
    name: String,
}

fn texts() -> Texts {
    let mut data = String::new();
    let mut add = |at, value: &str| {
        let (definition, pointer) = text(at, value);
        data.push_str(&definition);
        pointer
    };
    let version = add(1_024, "v1");
    let config_map = add(1_040, "ConfigMap");
    let node = add(1_060, "Node");
    let namespace = add(1_080, "web");
    let name = add(1_100, "a");
    Texts { data, version, config_map, node, namespace, name }
}

fn get(texts: &Texts, kind: &str, ret: u32) -> String {
    format!(
        "(call $get (local.get $ctx) (i32.const 0) (i32.const 0) {} {kind} (i32.const 1) {} {} (i32.const {ret}))",
        texts.version, texts.namespace, texts.name
    )
}

fn list(texts: &Texts, ret: u32) -> String {
    format!(
        "(call $list (local.get $ctx) (i32.const 0) (i32.const 0) {} {} (i32.const 0) (i32.const 0) (i32.const {ret}))",
        texts.version, texts.config_map
    )
}

/// The guest reads, spins until the cache has moved on, and reads again.
#[tokio::test]
async fn the_first_read_pins_objects_and_lists_for_the_run() {
    let texts = texts();
    let wait = "(loop $again (br_if $again (i64.gt_u (call $remaining (local.get $ctx)) (i64.const 59000))))";
    let add = |of: &str| format!("(local.set $n (i64.add (i64.mul (local.get $n) (i64.const 10)) {of}))");
    // result<option<object>>: handle at +12; result<list>: handle at +8.
    let generation = |ret: u32| add(&format!("(call $generation (i32.load (i32.const {})))", ret + 12));
    let length =
        |ret: u32| add(&format!("(i64.extend_i32_u (call $len (i32.load (i32.const {}))))", ret + 8));
    let body = [
        get(&texts, &texts.config_map, 256),
        generation(256),
        list(&texts, 256),
        length(256),
        wait.to_owned(),
        get(&texts, &texts.config_map, 256),
        generation(256),
        list(&texts, 256),
        length(256),
        "(call $requeue (local.get $ctx) (local.get $n))".to_owned(),
    ]
    .join("\n");
    let sandbox = sandbox();
    let guest = Guest::reconcile(&body)
        .with(&texts.data)
        .limits(json!({"deadlineMs": 60_000, "hostCalls": 100_000_000}));
    let plugin = guest.plugin(&sandbox).await;
    let cache = Arc::new(Cache::default());
    cache.put(&config_map(), object(&config_map(), "a", 1));
    let request = request(Arc::clone(&cache));
    let mut run = tokio::task::JoinSet::new();
    run.spawn(async move { plugin.run(Role::Reconcile, request).await });
    while *cache.reads.lock() < 2 {
        tokio::task::yield_now().await;
    }
    cache.put(&config_map(), object(&config_map(), "a", 2));
    cache.put(&config_map(), object(&config_map(), "b", 1));
    let outcome = tokio::time::timeout(LONG, run.join_next())
        .await
        .expect("it ends")
        .expect("a task")
        .expect("no panic");
    assert_eq!(outcome.failure, None);
    assert_eq!(outcome.plan.requeue_after, Some(Duration::from_millis(1111)), "generation, length, twice");
    assert_eq!(*cache.reads.lock(), 2, "the second reads did not ask the cache");
}

/// The primary is what the run began with, by whatever way it is read.
#[tokio::test]
async fn the_primary_is_pinned_from_the_start() {
    let (data, group) = text(1_024, "test.reeve.dev");
    let (more, rest) = (texts(), text(1_060, "Thing"));
    let name = text(1_100, "x");
    let body = format!(
        "(call $get (local.get $ctx) {group} (i32.const 1080) (i32.const 2) (i32.const 1060) (i32.const 5)
            (i32.const 1) {} (i32.const 1100) (i32.const 1) (i32.const 256))
         (call $requeue (local.get $ctx) (call $generation (i32.load (i32.const 268))))",
        text(1_120, "web").1
    );
    drop(more);
    let guest = Guest::reconcile(&body)
        .with(&data)
        .with(&rest.0)
        .with(&name.0)
        .with(&text(1_080, "v1").0)
        .with(&text(1_120, "web").0);
    let sandbox = sandbox();
    let plugin = guest.plugin(&sandbox).await;
    let cache = Arc::new(Cache::default());
    cache.put(&thing(), object(&thing(), "x", 9));
    let outcome = plugin.run(Role::Reconcile, request(cache)).await;
    assert_eq!(outcome.plan.requeue_after, Some(Duration::from_millis(3)));
}

#[tokio::test]
async fn a_kind_that_is_not_declared_is_refused_by_name() {
    let texts = texts();
    let guest = Guest::reconcile(&get(&texts, &texts.node, RET)).with(&texts.data);
    let outcome = run(&guest).await;
    let (code, message) = failure(&outcome);
    assert_eq!(code, code::NOT_DECLARED);
    assert!(message.contains("Node.v1"), "{message}");
}

#[tokio::test]
async fn a_filter_that_the_host_does_not_know_is_refused_by_name() {
    let texts = texts();
    let (data, _) = text(1_200, "fields");
    // One pair at 1300: key at 1200 (6 bytes), empty value.
    let body = format!(
        "(i32.store (i32.const 1300) (i32.const 1200)) (i32.store (i32.const 1304) (i32.const 6))
         (call $list (local.get $ctx) (i32.const 0) (i32.const 0) {} {}
            (i32.const 1300) (i32.const 1) (i32.const {RET}))",
        texts.version, texts.config_map
    );
    let outcome = run(&Guest::reconcile(&body).with(&texts.data).with(&data)).await;
    let (code, message) = failure(&outcome);
    assert_eq!(code, code::INVALID_ARGUMENT);
    assert!(message.contains("`fields`"), "{message}");
}
