//! What goes wrong, and how a stream repairs itself.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn w2_410_in_the_stream_lists_again_and_tells_only_differences() {
    let mut rig = Rig::new(false);
    let objects = [object("a", "ua", 2, "x"), object("b", "ub", 3, "x")];
    let (subscription, feed) = live(&mut rig, &objects).await;
    feed.event("ERROR", &status(410, "too old resource version: 10 (19)"));
    let relist = rig.asked().await;
    let relist = relist.expect("/api/v1/configmaps?resourceVersion=10&resourceVersionMatch=NotOlderThan");
    assert!(get(&rig, "a").unwrap().is_some(), "readers keep what there was");
    relist.page(20, "", &[object("a", "ua", 2, "x"), object("b", "ub", 15, "x"), object("c", "uc", 16, "x")]);
    assert_eq!(rig.change().await, "relist web/b@3→web/b@15");
    assert_eq!(rig.change().await, "relist -→web/c@16");
    rig.asked().await.expect(&watch_at(20)).open();
    rig.no_change().await;
    assert_eq!(subscription.state(), StreamState::Live);
}

#[tokio::test(start_paused = true)]
async fn w2_410_instead_of_a_watch_lists_again_too() {
    let mut rig = Rig::new(false);
    let (_subscription, feed) = live(&mut rig, &[]).await;
    tokio::time::sleep(2 * SECOND).await;
    drop(feed);
    rig.asked().await.expect(&watch_at(10)).refuse(410, "too old resource version");
    rig.asked().await.expect("/api/v1/configmaps?resourceVersion=10&resourceVersionMatch=NotOlderThan").page(
        11,
        "",
        &[],
    );
    rig.asked().await.expect(&watch_at(11)).open();
}

#[tokio::test(start_paused = true)]
async fn w3_410_on_a_list_or_page_reads_the_latest() {
    let mut rig = Rig::new(false);
    let _subscription = rig.cluster.watch(&everything(&configmap()));
    rig.asked().await.expect(LIST).refuse(410, "expired");
    rig.asked().await.expect("/api/v1/configmaps?").page(10, "p2", &[object("gone", "ug", 1, "x")]);
    rig.asked().await.expect("/api/v1/configmaps?continue=p2").refuse(410, "the continue token has expired");
    rig.asked().await.expect("/api/v1/configmaps?").page(12, "", &[object("a", "ua", 2, "x")]);
    assert_eq!(rig.change().await, "initial -→web/a@2", "an unfinished list leaves nothing behind");
    rig.asked().await.expect(&watch_at(12)).open();
    rig.no_change().await;
}

#[tokio::test(start_paused = true)]
async fn w4_a_version_from_the_future_reads_the_latest_and_a_server_set_back_is_believed() {
    let mut rig = Rig::new(false);
    let objects = [object("a", "ua", 8, "x"), object("b", "ub", 9, "x")];
    let (_subscription, feed) = live(&mut rig, &objects).await;
    tokio::time::sleep(2 * SECOND).await;
    drop(feed);
    rig.asked().await.refuse(504, "Too large resource version: 10, current: 5");
    // The restored backup has an older a, and no b.
    rig.asked().await.expect("/api/v1/configmaps?").page(5, "", &[object("a", "ua", 3, "x")]);
    assert_eq!(rig.change().await, "relist web/b@9→-");
    assert_eq!(rig.change().await, "relist web/a@8→web/a@3");
    let feed = rig.asked().await.expect(&watch_at(5)).open();
    feed.event("ADDED", &object("b", "ub2", 6, "x"));
    assert_eq!(rig.change().await, "watch -→web/b@6");
}

#[tokio::test(start_paused = true)]
async fn w5_429_waits_as_asked_and_does_not_list_again() {
    let mut rig = Rig::new(false);
    let (subscription, feed) = live(&mut rig, &[]).await;
    tokio::time::sleep(2 * SECOND).await;
    drop(feed);
    let refused = Instant::now();
    rig.asked().await.expect(&watch_at(10)).busy(7);
    let again = rig.asked().await.expect(&watch_at(10));
    assert_eq!(refused.elapsed(), 7 * SECOND);
    assert!(matches!(subscription.state(), StreamState::Broken { .. }));
    let feed = again.open();
    feed.bookmark(11, false);
    tokio::time::sleep(SECOND).await;
    assert_eq!(subscription.state(), StreamState::Live);
    assert_eq!(rig.metric("reeve_watch_errors_total", "too_many_requests"), 1);
}

#[tokio::test(start_paused = true)]
async fn w6_500s_retry_the_watch_and_then_list_again() {
    let mut rig = Rig::new(false);
    let (_subscription, feed) = live(&mut rig, &[]).await;
    tokio::time::sleep(2 * SECOND).await;
    drop(feed);
    for _ in 0..3 {
        rig.asked().await.expect(&watch_at(10)).refuse(500, "etcdserver: no leader");
    }
    let list = "/api/v1/configmaps?resourceVersion=10&resourceVersionMatch=NotOlderThan";
    rig.asked().await.expect(list).refuse(500, "etcdserver: no leader");
    rig.asked().await.expect(list).page(11, "", &[]);
    rig.asked().await.expect(&watch_at(11)).open();
}

#[tokio::test(start_paused = true)]
async fn w7_a_refused_connection_backs_off_and_goes_on_where_it_was() {
    let mut rig = Rig::new(false);
    let (subscription, feed) = live(&mut rig, &[]).await;
    let mut before = Instant::now();
    feed.broken();
    for least in [800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000] {
        let asked = rig.asked().await.expect(&watch_at(10));
        let pause = before.elapsed();
        let least = Duration::from_millis(least);
        assert!(pause >= least && pause <= (least * 2).min(30 * SECOND), "{pause:?} for {least:?}");
        let StreamState::Broken { why } = subscription.state() else { panic!("{:?}", subscription.state()) };
        assert!(why.contains("connection re"), "{why}");
        before = Instant::now();
        asked.unreachable();
    }
    let feed = rig.asked().await.open();
    feed.event("ADDED", &object("a", "ua", 11, "x"));
    assert_eq!(rig.change().await, "watch -→web/a@11");
    assert_eq!(subscription.state(), StreamState::Live);
}

#[tokio::test(start_paused = true)]
async fn w9_a_watch_list_without_its_end_is_not_ready_and_gives_way_to_pages() {
    for other_bookmark in [false, true] {
        let mut rig = Rig::new(true);
        let subscription = rig.cluster.watch(&everything(&configmap()));
        let feed = rig.asked().await.open();
        feed.event("ADDED", &object("a", "ua", 2, "x"));
        if other_bookmark {
            feed.bookmark(5, false);
        } else {
            tokio::time::sleep(20 * SECOND).await;
            rig.no_change().await;
            assert!(!subscription.is_synced());
        }
        rig.asked().await.expect(LIST).page(10, "", &[object("a", "ua", 2, "x")]);
        assert_eq!(rig.change().await, "initial -→web/a@2");
        subscription.synced().await;
        assert!(feed.closed());
        assert_eq!(rig.metric("reeve_watch_errors_total", "no_initial_events_end"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn w9_an_unfinished_watch_list_leaves_nothing_behind() {
    let mut rig = Rig::new(true);
    let subscription = rig.cluster.watch(&everything(&configmap()));
    let feed = rig.asked().await.open();
    feed.event("ADDED", &object("gone", "ug", 1, "x"));
    feed.broken();
    let feed = rig.asked().await.open();
    feed.event("ADDED", &object("a", "ua", 2, "x"));
    feed.bookmark(10, true);
    assert_eq!(rig.change().await, "initial -→web/a@2");
    subscription.synced().await;
    rig.no_change().await;
}

#[tokio::test(start_paused = true)]
async fn w11_a_server_without_watch_list_is_read_in_pages() {
    let mut rig = Rig::new(true);
    let subscription = rig.cluster.watch(&everything(&configmap()));
    rig.asked().await.refuse(422, "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled");
    rig.asked().await.expect(LIST).page(10, "", &[]);
    subscription.synced().await;
    let feed = rig.asked().await.expect(&watch_at(10)).open();
    feed.event("ERROR", &status(410, "too old"));
    rig.asked().await.expect("/api/v1/configmaps?resourceVersion=10&resourceVersionMatch=NotOlderThan").page(
        11,
        "",
        &[],
    );
}

#[tokio::test(start_paused = true)]
async fn w20_a_silent_connection_is_given_up() {
    let mut rig = Rig::new(false);
    let (_subscription, feed) = live(&mut rig, &[]).await;
    feed.bookmark(20, false);
    let silent = Instant::now();
    let asked = rig.asked().await.expect(&watch_at(20));
    assert_eq!(silent.elapsed(), 90 * SECOND, "a server that sends bookmarks is known to be alive by them");
    assert!(feed.closed());
    let limit: u64 = asked.query["timeoutSeconds"].parse().unwrap();
    assert!((300..600).contains(&limit), "{limit}");
    let _feed = asked.open();
    let silent = Instant::now();
    rig.asked().await.expect(&watch_at(20)).open();
    assert_eq!(silent.elapsed().as_secs(), limit + 10, "else it must end as it was asked to");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_and_tells_nothing_backs_off() {
    let mut rig = Rig::new(false);
    let (_subscription, feed) = live(&mut rig, &[]).await;
    drop(feed);
    let ended = Instant::now();
    rig.asked().await.expect(&watch_at(10));
    assert!(ended.elapsed() >= Duration::from_millis(800));
    assert_eq!(rig.metric("reeve_watch_errors_total", "short_watch"), 1);
}

#[tokio::test(start_paused = true)]
async fn complaint_13_a_missing_kind_is_pending_and_followed_within_5_s_of_its_arrival() {
    let mut rig = Rig::new(false);
    rig.served.store(false, Ordering::Relaxed);
    let subscription = rig.cluster.watch(&everything(&configmap()));
    rig.quiet(60 * SECOND).await;
    let StreamState::Pending { why } = subscription.state() else { panic!("{:?}", subscription.state()) };
    assert!(why.contains("does not serve ConfigMap.v1"), "{why}");
    let Err(ReadError::NotSynced(_, why)) = get(&rig, "a") else { panic!("a read of a missing kind") };
    assert!(why.contains("CustomResourceDefinition"), "{why}");
    rig.served.store(true, Ordering::Relaxed);
    let arrived = Instant::now();
    rig.asked().await.page(10, "", &[object("a", "ua", 2, "x")]);
    assert!(arrived.elapsed() <= 5 * SECOND, "{:?}", arrived.elapsed());
    subscription.synced().await;
    assert_eq!(rig.change().await, "initial -→web/a@2");
    // The CRD goes: the stream stops quietly, and comes back with it.
    let feed = rig.asked().await.open();
    feed.event("DELETED", &object("a", "ua", 12, "x"));
    assert_eq!(rig.change().await, "watch web/a@2→-");
    tokio::time::sleep(SECOND).await;
    rig.served.store(false, Ordering::Relaxed);
    drop(feed);
    rig.asked().await.expect(&watch_at(12)).refuse(404, "the server could not find the requested resource");
    rig.quiet(60 * SECOND).await;
    assert!(matches!(subscription.state(), StreamState::Pending { .. }) && !subscription.is_synced());
    rig.served.store(true, Ordering::Relaxed);
    rig.asked().await.expect(LIST).page(30, "", &[object("a", "other", 25, "x")]);
    assert_eq!(rig.change().await, "relist -→web/a@25");
    subscription.synced().await;
}

#[tokio::test(start_paused = true)]
async fn complaint_20_a_revoked_permission_is_named_and_its_return_is_found() {
    let mut rig = Rig::new(false);
    let (subscription, feed) = live(&mut rig, &[object("a", "ua", 2, "x")]).await;
    tokio::time::sleep(2 * SECOND).await;
    drop(feed);
    let revoked = Instant::now();
    let again = loop {
        let asked = rig.asked().await.expect(&watch_at(10));
        if revoked.elapsed() > 180 * SECOND {
            break asked;
        }
        asked.refuse(403, "configmaps is forbidden");
    };
    assert!(revoked.elapsed() <= 211 * SECOND, "never more than 30 s apart");
    let StreamState::Broken { why } = subscription.state() else { panic!("{:?}", subscription.state()) };
    assert_eq!(
        &*why,
        "this host may not watch ConfigMap.v1 in the whole cluster: bind its account to a ClusterRole with the rule {apiGroups: [\"\"], resources: [\"configmaps\"], verbs: [\"get\", \"list\", \"watch\"]}"
    );
    assert!(get(&rig, "a").unwrap().is_some(), "what was known can still be read");
    let feed = again.open();
    feed.event("MODIFIED", &object("a", "ua", 11, "x"));
    assert_eq!(rig.change().await, "watch web/a@2→web/a@11");
    assert_eq!(subscription.state(), StreamState::Live);
}

#[tokio::test(start_paused = true)]
async fn complaint_14_a_broken_kind_does_not_delay_another() {
    let mut rig = Rig::new(false);
    let node = Gvk::new("", "v1", "Node");
    let broken = rig.cluster.watch(&everything(&configmap()));
    rig.asked().await.expect(LIST).refuse(500, "conversion webhook for ConfigMap failed");
    let healthy = rig.cluster.watch(&everything(&node));
    let started = Instant::now();
    rig.asked().await.expect("/api/v1/nodes?resourceVersion=0").page(5, "", &[]);
    healthy.synced().await;
    assert_eq!(started.elapsed(), Duration::ZERO);
    let StreamState::Broken { why } = broken.state() else { panic!("{:?}", broken.state()) };
    assert!(why.contains("conversion webhook for ConfigMap failed"), "{why}");
    let Err(ReadError::NotSynced(_, why)) = get(&rig, "a") else { panic!("a read of a broken kind") };
    assert!(why.contains("conversion webhook"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_cannot_be_watched_says_so() {
    let rig = Rig::new(false);
    let subscription = rig.cluster.watch(&everything(&Gvk::new("", "v1", "Binding")));
    tokio::time::sleep(SECOND).await;
    let StreamState::Broken { why } = subscription.state() else { panic!("{:?}", subscription.state()) };
    assert_eq!(&*why, "Binding.v1 cannot be watched: the API server offers no list and watch for it");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_none_is_bad_and_tried_again() {
    let mut rig = Rig::new(false);
    let subscription = rig.cluster.watch(&everything(&configmap()));
    let asked = rig.asked().await;
    let feed = asked.open();
    feed.line(r#"{"kind":"Table","rows":[]}"#);
    rig.asked().await.expect(LIST).page(10, "", &[]);
    subscription.synced().await;
    assert_eq!(rig.metric("reeve_watch_errors_total", "bad_answer"), 1);
}
