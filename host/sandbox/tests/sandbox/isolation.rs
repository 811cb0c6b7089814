//! A guest can slow only itself.

use std::time::Duration;

use reeve_core::failure::code;
use serde_json::json;
use tokio::time::Instant;

use crate::support::*;

async fn p99(plugin: &reeve_sandbox::Plugin, runs: usize) -> Duration {
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let began = Instant::now();
        assert_eq!(reconcile(plugin).await.failure, None);
        times.push(began.elapsed());
    }
    times.sort();
    times[runs * 99 / 100]
}

/// Eight runs of one plugin loop for ever on two threads. Without the rule for heavy runs, each
/// run of another plugin would wait for a slice of several of them, 10 ms each: some thousand
/// times what a run takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_looping_plugin_does_not_slow_another() {
    let (sandbox, registry) = sandbox_with(|config| config.threads = 2);
    let looping = Guest::reconcile("(loop $again (br $again))").limits(json!({"deadlineMs": 600_000}));
    let looping = looping.named("looping").plugin(&sandbox).await;
    let quick = Guest::reconcile("").named("quick").plugin(&sandbox).await;
    let alone = p99(&quick, 2_000).await;
    let mut loops = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let looping = looping.clone();
        loops.spawn(async move { reconcile(&looping).await });
    }
    while metric(&registry, "reeve_sandbox_live_instances", &[]) < 8 {
        tokio::task::yield_now().await;
    }
    // Until all of them have become heavy, they are still light.
    p99(&quick, 500).await;
    let beside = p99(&quick, 2_000).await;
    loops.abort_all();
    println!("p99 alone {alone:?}, beside eight loops {beside:?}");
    assert!(
        beside < alone.max(Duration::from_micros(100)) * 100,
        "p99 was {alone:?} alone and {beside:?} beside looping runs"
    );
}

/// Heavy runs take turns: each gets its share, and each is ended at its own deadline.
#[tokio::test]
async fn looping_runs_share_and_end() {
    let sandbox = sandbox();
    let looping = Guest::reconcile("(loop $again (br $again))").limits(json!({"deadlineMs": 400}));
    let looping = looping.plugin(&sandbox).await;
    let mut loops = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let looping = looping.clone();
        loops.spawn(async move { reconcile(&looping).await });
    }
    while let Some(outcome) = tokio::time::timeout(LONG, loops.join_next()).await.expect("they end") {
        assert_eq!(failure(&outcome.expect("no panic")).0, code::DEADLINE_EXCEEDED);
    }
}

/// More runs than instances wait their turn; nothing fails.
#[tokio::test]
async fn runs_wait_for_an_instance() {
    let (sandbox, _) = sandbox_with(|config| config.max_instances = 2);
    let plugin = Guest::reconcile("").limits(json!({"deadlineMs": 10_000})).plugin(&sandbox).await;
    let mut runs = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let plugin = plugin.clone();
        runs.spawn(async move { reconcile(&plugin).await });
    }
    while let Some(outcome) = runs.join_next().await {
        assert_eq!(outcome.expect("no panic").failure, None);
    }
}

/// The threads of a sandbox end with it, also when that happens in an async context.
#[tokio::test]
async fn threads_end_with_the_sandbox() {
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("this is Linux");
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        };
        tasks.filter_map(name).filter(|name| name.starts_with("reeve-")).count()
    };
    // No other sandbox may come or go meanwhile, so this looks at a process of its own.
    #[expect(clippy::disallowed_methods, reason = "a test tells its own child process that it is one")]
    let alone = std::env::var_os("REEVE_TEST_ALONE").is_some();
    if !alone {
        let program = std::env::current_exe().expect("this program");
        let status = std::process::Command::new(program)
            .args(["--exact", "isolation::threads_end_with_the_sandbox"])
            .env("REEVE_TEST_ALONE", "1")
            .status();
        assert!(status.expect("it runs").success());
        return;
    }
    // The compiler's threads are the process's own and stay; here they are begun before, so that
    // they do not bear the name of the thread that compiles first.
    wasmtime::Engine::default().precompile_component(&Guest::reconcile("").component()).expect("it compiles");
    let sandbox = sandbox();
    let plugin = Guest::reconcile("").plugin(&sandbox).await;
    reconcile(&plugin).await;
    assert!(threads() >= 3);
    drop(sandbox);
    assert!(threads() >= 3, "a plugin keeps what it runs on");
    drop(plugin);
    let began = Instant::now();
    while threads() > 0 {
        assert!(began.elapsed() < LONG, "threads are left");
        std::thread::yield_now();
    }
}
