//! Who shares which stream, and when it ends.

use super::*;

fn in_namespaces(namespaces: &[&str]) -> StreamSpec {
    let these: BTreeSet<Arc<str>> = namespaces.iter().map(|namespace| (*namespace).into()).collect();
    StreamSpec { namespaces: Namespaces::Only(these), ..everything(&configmap()) }
}

#[tokio::test(start_paused = true)]
async fn complaint_25_many_users_share_one_watch_and_one_copy() {
    let mut rig = Rig::new(false);
    let (first, feed) = live(&mut rig, &[object("a", "ua", 2, "x")]).await;
    let narrow = StreamSpec { labels: "app=x".parse().unwrap(), ..in_namespaces(&["web"]) };
    let other = StreamSpec { labels: "app=y".parse().unwrap(), ..everything(&configmap()) };
    let others: Vec<_> =
        (0..9).map(|_| rig.cluster.watch(&narrow)).chain([rig.cluster.watch(&other)]).collect();
    for subscription in &others {
        subscription.synced().await;
    }
    rig.quiet(LINGER * 2).await;
    assert_eq!(rig.cluster.streams().len(), 1);
    assert_eq!(rig.cluster.streams()[0].users, 11);
    assert_eq!(rig.metric("reeve_cache_objects", ""), 1);
    // Each sees what its own spec is for.
    let name = ObjectName::namespaced("web", "a");
    assert!(reader(&rig, &[narrow]).get(&configmap(), &name).unwrap().is_some());
    assert!(reader(&rig, &[other]).get(&configmap(), &name).unwrap().is_none());
    drop(first);
    rig.quiet(LINGER * 2).await;
    assert!(!feed.closed(), "others still use it");
}

#[tokio::test(start_paused = true)]
async fn the_last_user_ends_a_stream_and_a_new_one_in_time_keeps_it() {
    let mut rig = Rig::new(false);
    let (subscription, feed) = live(&mut rig, &[object("a", "ua", 2, "x")]).await;
    assert_eq!(rig.cluster.tasks(), 2, "the stream and the forwarder");
    drop(subscription);
    tokio::time::sleep(LINGER / 2).await;
    let subscription = rig.cluster.watch(&everything(&configmap()));
    assert!(subscription.is_synced());
    rig.quiet(LINGER * 2).await;
    assert!(!feed.closed());
    drop(subscription);
    rig.quiet(LINGER * 2).await;
    assert!(feed.closed());
    assert_eq!((rig.cluster.streams().len(), rig.cluster.tasks()), (0, 1), "nothing is left behind");
    assert_eq!(rig.metric("reeve_watch_streams", ""), 0);
    assert_eq!(rig.metric("reeve_cache_objects", ""), 0);
    rig.no_change().await;
    assert!(matches!(get(&rig, "a"), Err(ReadError::NotSynced(..))));
    // S5: a later one starts afresh.
    let _again = live(&mut rig, &[object("a", "ua", 2, "x")]).await;
}

#[tokio::test(start_paused = true)]
async fn everything_ends_with_the_last_clone_of_the_cluster() {
    let mut rig = Rig::new(false);
    let (_subscription, feed) = live(&mut rig, &[]).await;
    let Rig { cluster, mut changes, .. } = rig;
    drop(cluster);
    assert!(changes.recv().await.is_none());
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(feed.closed());
}

#[tokio::test(start_paused = true)]
async fn namespaces_are_streams_of_their_own_under_one_subscription() {
    let mut rig = Rig::new(false);
    let spec = in_namespaces(&["db", "web"]);
    let subscription = rig.cluster.watch(&spec);
    let mut asked = [rig.asked().await, rig.asked().await];
    asked.sort_by(|a, b| a.path.cmp(&b.path));
    let [db, web] = asked;
    let web = web.expect("/api/v1/namespaces/web/configmaps?resourceVersion=0");
    db.refuse(403, "forbidden");
    web.page(10, "", &[object("a", "ua", 2, "x")]);
    assert_eq!(rig.change().await, "initial -→web/a@2");
    assert!(!subscription.is_synced());
    let StreamState::Broken { why } = subscription.state() else { panic!("{:?}", subscription.state()) };
    assert!(why.contains("in namespace db: bind its account to a Role in that namespace"), "{why}");
    // C4: what is synced can be read, what is not says so, what is not watched is refused.
    let reader = reader(&rig, std::slice::from_ref(&spec));
    let read = |namespace: &str| reader.get(&configmap(), &ObjectName::namespaced(namespace, "a"));
    assert!(read("web").unwrap().is_some());
    assert!(matches!(read("db"), Err(ReadError::NotSynced(..))));
    assert_eq!(read("other").err(), Some(ReadError::OutOfScope(configmap(), "other".to_owned())));
    assert!(matches!(reader.list(&configmap(), &Query::default()), Err(ReadError::NotSynced(..))));
    let mut asked = [rig.asked().await, rig.asked().await];
    asked.sort_by(|a, b| a.path.cmp(&b.path));
    let [db, web] = asked;
    db.expect("/api/v1/namespaces/db/configmaps?resourceVersion=0").page(11, "", &[]);
    let feed = web.open();
    subscription.synced().await;
    assert_eq!(reader.list(&configmap(), &Query::default()).unwrap().len(), 1);
    drop(subscription);
    tokio::time::sleep(LINGER * 2).await;
    assert!(feed.closed());
    assert_eq!(rig.cluster.tasks(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_wider_stream_does_not_stand_in_the_way_of_a_narrower_one() {
    let mut rig = Rig::new(false);
    let wide = rig.cluster.watch(&everything(&configmap()));
    rig.asked().await.expect(LIST).refuse(403, "forbidden");
    tokio::time::sleep(Duration::from_millis(1)).await;
    let narrow = rig.cluster.watch(&in_namespaces(&["web"]));
    rig.asked().await.expect("/api/v1/namespaces/web/configmaps?resourceVersion=0").page(10, "", &[]);
    narrow.synced().await;
    assert!(!wide.is_synced());
}

#[tokio::test(start_paused = true)]
async fn c10_metadata_only_and_full_live_side_by_side() {
    let mut rig = Rig::new(false);
    let metadata = StreamSpec { metadata_only: true, ..everything(&configmap()) };
    let _metadata = rig.cluster.watch(&metadata);
    let asked = rig.asked().await.expect(LIST);
    assert!(asked.accept.starts_with("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,"));
    let partial = object("a", "ua", 2, "x")
        .replace("\"ConfigMap\"", "\"PartialObjectMetadata\"")
        .replace("\"v1\"", "\"meta.k8s.io/v1\"");
    asked.page(10, "", &[partial]);
    let seen = rig.changes.recv().await.unwrap().new.unwrap();
    assert!(
        seen.json().contains(r#""kind":"ConfigMap""#) && !seen.json().contains("\"data\""),
        "{}",
        seen.json()
    );
    let feed = rig.asked().await.open();
    // The full one does not come from the metadata; the metadata may come from the full one.
    let (full, _feed) = live(&mut rig, &[object("a", "ua", 2, "x")]).await;
    let name = ObjectName::namespaced("web", "a");
    let read = |rig: &Rig, spec: &StreamSpec| {
        reader(rig, std::slice::from_ref(spec)).get(&configmap(), &name).unwrap().unwrap().json().to_owned()
    };
    assert!(!read(&rig, &metadata).contains("\"data\""));
    assert!(read(&rig, &everything(&configmap())).contains("\"data\""));
    drop(feed);
    drop(full);
}

#[tokio::test(start_paused = true)]
async fn a_metadata_watch_joins_a_full_one() {
    let mut rig = Rig::new(false);
    let (_full, _feed) = live(&mut rig, &[object("a", "ua", 2, "x")]).await;
    let metadata = StreamSpec { metadata_only: true, ..everything(&configmap()) };
    let subscription = rig.cluster.watch(&metadata);
    assert!(subscription.is_synced());
    rig.quiet(Duration::from_mins(1)).await;
    let name = ObjectName::namespaced("web", "a");
    assert!(reader(&rig, &[metadata]).get(&configmap(), &name).unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn selectors_are_the_servers_work() {
    let mut rig = Rig::new(false);
    let spec = StreamSpec {
        labels: "app in (x,y)".parse().unwrap(),
        fields: Some("metadata.name=a".into()),
        ..everything(&configmap())
    };
    let _subscription = rig.cluster.watch(&spec);
    let asked = rig.asked().await;
    assert_eq!(asked.query["labelSelector"], "app%20in%20%28x%2Cy%29");
    assert_eq!(asked.query["fieldSelector"], "metadata.name%3Da");
}
