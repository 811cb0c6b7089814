//! W: lists, watches, and everything that can happen to them.

use anyhow::{Context as _, Result, ensure};
use reeve_e2e::fault_proxy::{Action, Filter, Logged, Rule};
use reeve_e2e::harness::env::Env;
use reeve_e2e::harness::host::Host;
use reeve_e2e::harness::wait::{soon, stays};
use reeve_e2e::scenarios;
use serde_json::{Value, json};

use crate::support::{A_WHILE, PROBE, apply, committed, exactly, host, manifest, touch};

scenarios! {
    w1_list_and_watch_come_to_rest: "W1";
    w2_gone_in_the_stream_relists_and_tells_differences: "W2";
    w3_gone_on_the_list_asks_for_the_newest: "W3";
    w4_a_too_large_version_asks_for_the_newest: "W4";
    w5_too_many_requests_waits_and_does_not_relist: "W5";
    w6_server_errors_are_tried_again: "W6";
    w7_an_outage_is_backed_off_and_survived: "W7";
    w8_a_bookmark_moves_the_version: "W8";
    w15_events_that_cannot_be_read_are_skipped: "W15";
}

/// Everything the host asks about Probes.
pub(crate) fn probes(host: &Host, mark: u64) -> Result<Vec<Logged>> {
    Ok(host.proxy()?.requests_since(mark, &Filter::any().on("*/probes")))
}

/// A stream that begins with everything there is: a list, or a watch with its initial events.
pub(crate) fn is_list(request: &Logged) -> bool {
    !request.line.is_watch() || request.line.query.contains_key("sendInitialEvents")
}

/// The watches of Probes, without the lists that are asked for as watches.
fn rewatches() -> Filter {
    Filter::watches("*/probes").without_query("sendInitialEvents")
}

/// A host with three Probes that ran once.
async fn three(env: &Env, name: &str) -> Result<Host> {
    let host = host(env, &manifest(name)).await?;
    for name in ["a", "b", "c"] {
        apply(env, name, &json!({ "count": true })).await?;
    }
    for name in ["a", "b", "c"] {
        exactly(&host, name, 1).await?;
    }
    host.idle().await?;
    Ok(host)
}

/// Changes `a` and waits for its run; `b` and `c` have had none beside their first.
async fn only_a_runs(env: &Env, host: &Host, value: u64) -> Result<()> {
    let before = host.calls_of("a")?.len();
    touch(env, "a", value).await?;
    host.called("a", before + 1).await?;
    exactly(host, "b", 1).await?;
    exactly(host, "c", 1).await?;
    Ok(())
}

async fn w1_list_and_watch_come_to_rest(env: &Env) -> Result<()> {
    let host = three(env, "w1").await?;
    let mark = host.proxy()?.mark();
    stays("nothing is asked", A_WHILE, async || {
        let asked = host.proxy()?.requests_since(mark, &Filter::any());
        ensure!(asked.is_empty(), "{asked:#?}");
        Ok(())
    })
    .await?;
    for path in ["*/probes", "*/configmaps"] {
        let open: Vec<_> = host.proxy()?.requests(&Filter::watches(path));
        let open = open.iter().filter(|watch| watch.open).count();
        ensure!(open == 1, "{open} open watches of {path}");
    }
    only_a_runs(env, &host, 1).await
}

async fn w2_gone_in_the_stream_relists_and_tells_differences(env: &Env) -> Result<()> {
    let host = three(env, "w2").await?;
    let proxy = host.proxy()?;
    let pause = proxy.add(Rule::new(Filter::watches("*/probes"), Action::Pause));
    touch(env, "a", 1).await?;
    let mark = proxy.mark();
    let gone = Action::WatchError { after: 0, code: 410 };
    proxy.add(Rule::new(Filter::watches("*/probes"), gone).times(1));
    proxy.remove(pause);
    host.called("a", 2).await?;
    let asked = probes(&host, mark)?;
    ensure!(asked.first().is_some_and(is_list), "after 410 the first request was no list: {asked:#?}");
    exactly(&host, "a", 2).await?;
    exactly(&host, "b", 1).await?;
    exactly(&host, "c", 1).await?;
    only_a_runs(env, &host, 2).await
}

/// After a 410 the list itself fails with this answer, once; the host has to ask without a version.
async fn asks_for_the_newest(env: &Env, host: &Host, answer: Action) -> Result<()> {
    let proxy = host.proxy()?;
    let list = Filter::any().on("*/probes");
    proxy.add(Rule::new(list, answer).times(1));
    let mark = proxy.mark();
    let gone = Action::WatchError { after: 0, code: 410 };
    proxy.add(Rule::new(Filter::watches("*/probes"), gone).times(1));
    only_a_runs(env, host, 1).await?;
    let asked = probes(host, mark)?;
    ensure!(asked.len() >= 2 && asked[0].by_rule && is_list(&asked[0]), "no list was refused: {asked:#?}");
    let version = asked[1].line.query.get("resourceVersion").map_or("", String::as_str);
    ensure!(is_list(&asked[1]) && version.is_empty(), "it asked for version {version:?}: {asked:#?}");
    Ok(())
}

async fn w3_gone_on_the_list_asks_for_the_newest(env: &Env) -> Result<()> {
    let host = three(env, "w3").await?;
    asks_for_the_newest(env, &host, Action::respond(410)).await
}

async fn w4_a_too_large_version_asks_for_the_newest(env: &Env) -> Result<()> {
    let host = three(env, "w4").await?;
    asks_for_the_newest(env, &host, Action::too_large_resource_version()).await
}

async fn w5_too_many_requests_waits_and_does_not_relist(env: &Env) -> Result<()> {
    let host = three(env, "w5").await?;
    let proxy = host.proxy()?;
    let rule = proxy.add(Rule::new(rewatches(), Action::too_many_requests(2)).times(1));
    let mark = proxy.mark();
    proxy.cut_open(Filter::watches("*/probes"));
    soon("the refused watch is asked for again", async || {
        ensure!(proxy.counts(rule).is_some_and(|counts| counts.matched >= 2), "{:?}", proxy.counts(rule));
        Ok(())
    })
    .await?;
    let asked = probes(&host, mark)?;
    ensure!(!asked.iter().any(is_list), "it relisted: {asked:#?}");
    let refused = asked.iter().find(|request| request.status == Some(429)).context("no 429")?;
    let next = asked.iter().find(|request| request.number > refused.number).context("no next")?;
    ensure!(next.at_ms - refused.at_ms >= 2000, "it waited {} ms", next.at_ms - refused.at_ms);
    let version = |request: &Logged| request.line.query.get("resourceVersion").cloned();
    ensure!(version(next) == version(refused), "another version: {refused:#?} {next:#?}");
    only_a_runs(env, &host, 1).await
}

async fn w6_server_errors_are_tried_again(env: &Env) -> Result<()> {
    let host = three(env, "w6").await?;
    let proxy = host.proxy()?;
    let rule = proxy.add(Rule::new(Filter::any().on("*/probes"), Action::respond(500)).times(3));
    proxy.cut_open(Filter::watches("*/probes"));
    // Changed while nothing is watched.
    only_a_runs(env, &host, 1).await?;
    ensure!(proxy.counts(rule).is_some_and(|counts| counts.affected == 3), "{:?}", proxy.counts(rule));
    Ok(())
}

async fn w7_an_outage_is_backed_off_and_survived(env: &Env) -> Result<()> {
    let host = three(env, "w7").await?;
    let proxy = host.proxy()?;
    let rule = proxy.add(Rule::new(Filter::any(), Action::LoseRequest));
    proxy.cut_open(Filter::any());
    let mark = proxy.mark();
    soon("the loss shows in the check, the metric and the log", async || {
        let (_, text) = host.admin("GET", "/readyz?verbose").await?;
        let up = host.metrics().await?.int("reeve_apiserver_up", &[]);
        ensure!(up == 0, "reeve_apiserver_up is {up}; /readyz: {text}");
        Ok(())
    })
    .await?;
    let (status, text) = host.admin("GET", "/readyz").await?;
    ensure!(status == 200, "the loss of the API server is no unreadiness: {status} {text}");
    touch(env, "a", 1).await?;
    stays("the host does not hammer", A_WHILE * 2, async || {
        let asked = probes(&host, mark)?.len();
        ensure!(asked <= 8, "{asked} requests for one stream");
        Ok(())
    })
    .await?;
    proxy.remove(rule);
    host.called("a", 2).await?;
    committed(env, "a", 2).await?;
    exactly(&host, "a", 2).await?;
    exactly(&host, "b", 1).await?;
    let up = host.metrics().await?.int("reeve_apiserver_up", &[]);
    ensure!(up == 1, "reeve_apiserver_up is {up}");
    Ok(())
}

async fn w8_a_bookmark_moves_the_version(env: &Env) -> Result<()> {
    let host = three(env, "w8").await?;
    let proxy = host.proxy()?;
    // A Probe that the host does not see moves the collection's version on.
    env.new_namespace("w8-other").await?;
    let mut other = env.probe("other", &json!({}));
    other["metadata"]["namespace"] = "w8-other".into();
    let version = env.kube.create(&other).await?["metadata"]["resourceVersion"].clone();
    let bookmark = json!({
        "type": "BOOKMARK",
        "object": {
            "kind": "Probe", "apiVersion": "test.reeve.dev/v1",
            "metadata": { "resourceVersion": version, "creationTimestamp": null },
        },
    });
    let inject = Action::Inject { after: 0, line: bookmark.to_string() };
    let rule = proxy.add(Rule::new(Filter::watches("*/probes"), inject).times(1));
    soon("the bookmark is injected", async || {
        ensure!(proxy.counts(rule).is_some_and(|counts| counts.affected == 1));
        Ok(())
    })
    .await?;
    let mark = proxy.mark();
    proxy.cut_open(Filter::watches("*/probes"));
    soon("the next watch begins at the bookmark", async || {
        let asked = probes(&host, mark)?;
        let next = asked.first().context("no request")?;
        let from = next.line.query.get("resourceVersion").map(String::as_str);
        ensure!(!is_list(next) && from == version.as_str(), "bookmark {version}, but {next:#?}");
        Ok(())
    })
    .await?;
    only_a_runs(env, &host, 1).await
}

async fn w15_events_that_cannot_be_read_are_skipped(env: &Env) -> Result<()> {
    let host = three(env, "w15").await?;
    let proxy = host.proxy()?;
    let skipped = async || -> Result<u64> { Ok(host.metrics().await?.int("reeve_watch_skipped_total", &[])) };
    let before = skipped().await?;
    let table: Value =
        json!({ "type": "ADDED", "object": { "kind": "Table", "apiVersion": "meta.k8s.io/v1" } });
    let other = json!({
        "type": "MODIFIED",
        "object": {
            "kind": "Secret", "apiVersion": "v1",
            "metadata": { "name": "a", "namespace": env.namespace, "resourceVersion": "99999999", "uid": "x" },
        },
    });
    let lines =
        ["{\"type\":\"MODIFIED\",\"object\":{\"kind\"".to_owned(), table.to_string(), other.to_string()];
    for line in lines {
        proxy.add(Rule::new(Filter::watches("*/probes"), Action::Inject { after: 0, line }).times(1));
    }
    soon("three events are skipped", async || {
        let count = skipped().await? - before;
        ensure!(count == 3, "{count} are");
        Ok(())
    })
    .await?;
    // The stream goes on, with the object as it really is.
    only_a_runs(env, &host, 1).await?;
    let live = env.kube.get(PROBE, &env.namespace, "a").await?;
    ensure!(live["status"]["runs"] == 2, "{}", live["status"]);
    Ok(())
}
