//! Q: one key, one run; when it comes back, and what overtakes what.

use std::time::Duration;

use anyhow::{Result, ensure};
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::wait::{soon, stays};
use reeve_e2e::scenarios;
use serde_json::json;

use crate::support::{
    A_WHILE, PROBE, apply, between, committed, exactly, get, host, manifest, manifest_with, touch,
};

scenarios! {
    q1_create_gives_one_run: "Q1";
    q2_changes_while_waiting_give_one_run: "Q2";
    q3_changes_while_running_give_one_run_more: "Q3";
    q4_failures_come_back_later_and_later: "Q4";
    q5_success_and_requeue_after_reset_the_back_off: "Q5";
    q6_a_permanent_failure_waits_for_a_change: "Q6";
    q7_requeue_after_comes_once_and_not_early: "Q7", "complaint 30";
    q9_the_sooner_of_two_requeues_wins: "Q9";
    q10_a_failure_wins_over_requeue_after: "Q10", "complaint 30";
    q11_a_manual_run_overtakes_the_backlog: "Q11";
    q12_what_waits_for_its_time_is_not_in_the_depth: "Q12";
    q13_stopping_waits_for_runs_and_begins_none: "Q13";
    q14_the_concurrency_is_reached_and_never_exceeded: "Q14";
}

async fn q1_create_gives_one_run(env: &Env) -> Result<()> {
    let host = host(env, &manifest("q1")).await?;
    let probe = apply(env, "p", &json!({ "count": true })).await?;
    let calls = exactly(&host, "p", 1).await?;
    ensure!(calls[0].object == format!("{}/p", env.namespace), "{calls:#?}");
    ensure!(calls[0].uid == probe["metadata"]["uid"].as_str().unwrap_or_default(), "{calls:#?}");
    ensure!(calls[0].attempt == 1 && calls[0].reasons == ["created"], "{calls:#?}");
    let live = committed(env, "p", 1).await?;
    ensure!(live["status"]["runs"] == 1, "{}", live["status"]);
    Ok(())
}

async fn q2_changes_while_waiting_give_one_run(env: &Env) -> Result<()> {
    let host = host(env, &manifest_with("q2", &json!({ "limits": { "concurrency": 1 } }))).await?;
    apply(env, "p", &json!({})).await?;
    exactly(&host, "p", 1).await?;
    // The only worker is busy while p changes.
    apply(env, "busy", &json!({ "steps": [{ "sleepMs": 1500 }] })).await?;
    host.called("busy", 1).await?;
    for value in 1..=5 {
        touch(env, "p", value).await?;
    }
    ensure!(host.calls_of("p")?.len() == 1, "p ran beside the busy object");
    let calls = exactly(&host, "p", 2).await?;
    ensure!(calls[1].reasons == ["updated"], "{calls:#?}");
    Ok(())
}

async fn q3_changes_while_running_give_one_run_more(env: &Env) -> Result<()> {
    let host = host(env, &manifest("q3")).await?;
    let steps = json!([{ "when": { "reason": "created" }, "sleepMs": 1500 }]);
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    host.called("p", 1).await?;
    for value in 1..=3 {
        touch(env, "p", value).await?;
    }
    let calls = exactly(&host, "p", 2).await?;
    let gap = between(&calls[0], &calls[1])?;
    ensure!(gap >= 1500, "the second run began {gap} ms after the first, which took 1500 ms");
    Ok(())
}

async fn q4_failures_come_back_later_and_later(env: &Env) -> Result<()> {
    let host = host(env, &manifest("q4")).await?;
    let steps = json!([{ "when": { "attemptBelow": 4 }, "fail": { "code": "FLAKY" } }]);
    apply(env, "p", &json!({ "steps": steps })).await?;
    host.called("p", 2).await?;
    // A neighbour does not notice.
    apply(env, "other", &json!({ "count": true })).await?;
    committed(env, "other", 1).await?;
    let calls = host.called("p", 4).await?;
    let attempts: Vec<u32> = calls.iter().map(|call| call.attempt).collect();
    ensure!(attempts == [1, 2, 3, 4], "{calls:#?}");
    for (at, least) in [180, 360, 720].into_iter().enumerate() {
        let gap = between(&calls[at], &calls[at + 1])?;
        ensure!(gap >= least, "retry {at} came after {gap} ms, before {least}");
    }
    exactly(&host, "p", 4).await?;
    Ok(())
}

async fn q5_success_and_requeue_after_reset_the_back_off(env: &Env) -> Result<()> {
    let host = host(env, &manifest("q5")).await?;
    // Fails twice, then asks to come back, and fails again: from the first attempt on. The count is
    // status, which is committed with a failure as well.
    let steps = json!([
        { "when": { "runsBelow": 2 }, "fail": { "code": "FLAKY" } },
        { "when": { "runsBelow": 3 }, "requeueAfterMs": 100 },
        { "when": { "runsBelow": 3 }, "done": true },
        { "when": { "runsBelow": 4 }, "fail": { "code": "FLAKY" } },
    ]);
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    let calls = exactly(&host, "p", 5).await?;
    let attempts: Vec<u32> = calls.iter().map(|call| call.attempt).collect();
    ensure!(attempts == [1, 2, 3, 1, 2], "{calls:#?}");
    // Success resets as well.
    touch(env, "p", 1).await?;
    let calls = host.called("p", 6).await?;
    ensure!(calls[5].attempt == 1, "{calls:#?}");
    Ok(())
}

async fn q6_a_permanent_failure_waits_for_a_change(env: &Env) -> Result<()> {
    let host = host(env, &manifest("q6")).await?;
    let steps = json!([{ "when": { "generationIs": 1 }, "fail": { "code": "NO_WAY", "transient": false } }]);
    apply(env, "p", &json!({ "count": true, "steps": steps })).await?;
    exactly(&host, "p", 1).await?;
    touch(env, "p", 1).await?;
    committed(env, "p", 1).await?;
    let calls = exactly(&host, "p", 2).await?;
    ensure!(calls[1].reasons == ["updated"], "{calls:#?}");
    let metrics = host.metrics().await?;
    let terminal = metrics.int("controller_runtime_terminal_reconcile_errors_total", &[("controller", "q6")]);
    ensure!(terminal == 1, "terminal errors: {terminal}");
    Ok(())
}

async fn q7_requeue_after_comes_once_and_not_early(env: &Env) -> Result<()> {
    let host = host(env, &manifest("q7")).await?;
    let steps = json!([{ "when": { "notReason": "timer" }, "requeueAfterMs": 300 }]);
    apply(env, "p", &json!({ "steps": steps })).await?;
    let calls = exactly(&host, "p", 2).await?;
    let gap = between(&calls[0], &calls[1])?;
    ensure!(gap >= 300, "it came after {gap} ms");
    ensure!(calls[1].reasons == ["timer"] && calls[1].attempt == 1, "{calls:#?}");
    // An event absorbs a waiting timer: one run at once, none later.
    apply(
        env,
        "absorbed",
        &json!({ "steps": [{ "when": { "reason": "created" }, "requeueAfterMs": 1500 }] }),
    )
    .await?;
    host.called("absorbed", 1).await?;
    touch(env, "absorbed", 1).await?;
    host.called("absorbed", 2).await?;
    stays("the timer is gone", Duration::from_secs(2), async || {
        let calls = host.calls_of("absorbed")?;
        ensure!(calls.len() == 2, "{calls:#?}");
        Ok(())
    })
    .await
}

async fn q9_the_sooner_of_two_requeues_wins(env: &Env) -> Result<()> {
    let host = host(env, &manifest("q9")).await?;
    let steps = json!([
        { "when": { "notReason": "timer" }, "requeueAfterMs": 60_000 },
        { "when": { "notReason": "timer" }, "requeueAfterMs": 300 },
        { "when": { "notReason": "timer" }, "requeueAfterMs": 90_000 },
    ]);
    apply(env, "p", &json!({ "steps": steps })).await?;
    let calls = exactly(&host, "p", 2).await?;
    ensure!(between(&calls[0], &calls[1])? >= 300, "{calls:#?}");
    Ok(())
}

async fn q10_a_failure_wins_over_requeue_after(env: &Env) -> Result<()> {
    let host = host(env, &manifest("q10")).await?;
    let steps = json!([
        { "when": { "attemptIs": 1 }, "requeueAfterMs": 20 },
        { "when": { "attemptIs": 1 }, "fail": { "code": "LATER", "retryAfterMs": 900 } },
    ]);
    apply(env, "p", &json!({ "steps": steps })).await?;
    let calls = exactly(&host, "p", 2).await?;
    let gap = between(&calls[0], &calls[1])?;
    ensure!(gap >= 900, "it came after {gap} ms");
    ensure!(calls[1].attempt == 2 && calls[1].reasons == ["retry"], "{calls:#?}");
    let metrics = host.metrics().await?;
    ensure!(metrics.int("controller_runtime_reconcile_errors_total", &[("controller", "q10")]) == 1);
    Ok(())
}

async fn q11_a_manual_run_overtakes_the_backlog(env: &Env) -> Result<()> {
    const BACKLOG: usize = 30;
    let manifest = manifest_with("q11", &json!({ "limits": { "concurrency": 1 } }));
    for number in 0..BACKLOG {
        apply(env, &format!("old-{number:02}"), &json!({ "steps": [{ "sleepMs": 150 }] })).await?;
    }
    let host = host(env, &manifest).await?;
    // What is new overtakes what was there before the start, and a person overtakes both.
    apply(env, "new", &json!({})).await?;
    let asked = json!({ "metadata": { "annotations": { "reeve.dev/reconcile-at": "now" } } });
    env.kube.merge(PROBE, &env.namespace, "old-29", &asked).await?;
    let target = format!("/reconcile/q11/{}/old-28", env.namespace);
    let (status, text) = host.admin("POST", &target).await?;
    ensure!((200..300).contains(&status), "POST {target}: {status} {text}");
    for name in ["new", "old-29", "old-28"] {
        host.called(name, 1).await?;
    }
    let calls = host.calls()?;
    let done = calls.len();
    ensure!(done < BACKLOG, "all {done} old objects ran before the new one and those asked for");
    for (name, reason) in [("old-29", "manual"), ("old-28", "external")] {
        let call = calls.iter().find(|call| call.object.ends_with(name));
        ensure!(call.is_some_and(|call| call.reasons.contains(&reason.to_owned())), "{calls:#?}");
    }
    Ok(())
}

async fn q12_what_waits_for_its_time_is_not_in_the_depth(env: &Env) -> Result<()> {
    let host = host(env, &manifest("q12")).await?;
    apply(env, "p", &json!({ "steps": [{ "requeueAfterMs": 60_000 }] })).await?;
    exactly(&host, "p", 1).await?;
    let metrics = host.metrics().await?;
    ensure!(metrics.count("workqueue_depth", &[("controller", "q12")]) > 0, "there is no workqueue_depth");
    ensure!(metrics.int("workqueue_depth", &[("controller", "q12")]) == 0);
    ensure!(metrics.int("workqueue_retries_total", &[("controller", "q12")]) == 1);
    Ok(())
}

async fn q13_stopping_waits_for_runs_and_begins_none(env: &Env) -> Result<()> {
    let host = host(env, &manifest("q13")).await?;
    apply(env, "p", &json!({ "count": true, "steps": [{ "sleepMs": 2000 }] })).await?;
    host.called("p", 1).await?;
    host.process().signal("TERM")?;
    let log = host.process().log().to_owned();
    soon("the host says that it stops", async || {
        let text = std::fs::read_to_string(&log)?;
        ensure!(text.contains("stopping: no new runs"), "it does not");
        Ok(())
    })
    .await?;
    apply(env, "late", &json!({ "count": true })).await?;
    let code = host.wait(Duration::from_secs(20)).await?;
    ensure!(code == Some(0), "exit code {code:?}");
    ensure!(get(env, "p").await?["status"]["runs"] == 1, "the run in work was not committed");
    ensure!(host.calls_of("late")?.is_empty(), "a run began after the stop signal");
    Ok(())
}

async fn q14_the_concurrency_is_reached_and_never_exceeded(env: &Env) -> Result<()> {
    let host = host(env, &manifest_with("q14", &json!({ "limits": { "concurrency": 3 } }))).await?;
    for number in 0..12 {
        apply(env, &format!("p{number}"), &json!({ "count": true, "steps": [{ "sleepMs": 400 }] })).await?;
    }
    let mut most = 0;
    soon("all twelve ran", async || {
        let metrics = host.metrics().await?;
        let active = metrics.int("controller_runtime_active_workers", &[("controller", "q14")]);
        most = most.max(active);
        let done = env.kube.list(PROBE, &env.namespace, "").await?;
        let done = done.iter().filter(|probe| probe["status"]["runs"] == 1).count();
        ensure!(done == 12, "{done} ran");
        Ok(())
    })
    .await?;
    ensure!(most == 3, "at most {most} ran at once");
    let metrics = host.metrics().await?;
    ensure!(metrics.int("controller_runtime_max_concurrent_reconciles", &[("controller", "q14")]) == 3);
    stays("nothing runs any more", A_WHILE, async || {
        ensure!(host.calls()?.len() == 12, "{:#?}", host.calls()?);
        Ok(())
    })
    .await
}
