use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reeve_core::gvk::Gvk;
use reeve_core::ids::ObjectName;
use reeve_core::object::SharedObject;
use reeve_core::read::{Query, ReadError, Reader};
use tokio::time::Instant;

use super::*;
use crate::cache::{View, ViewKind};
use crate::testing::{Feed, Rig, configmap, everything, object, status};

mod sharing;
mod trouble;

const LIST: &str = "/api/v1/configmaps?resourceVersion=0";

fn watch_at(version: u64) -> String {
    format!("/api/v1/configmaps?resourceVersion={version}&watch=true")
}

/// What a plugin with these specs sees.
fn reader(rig: &Rig, specs: &[StreamSpec]) -> Arc<dyn Reader> {
    let kinds: BTreeMap<Gvk, ViewKind> = specs
        .iter()
        .map(|spec| (spec.gvk.clone(), ViewKind { specs: vec![spec.clone()], indexes: BTreeMap::new() }))
        .collect();
    rig.cluster.reader(View { plugin: "p".parse().unwrap(), kinds })
}

fn get(rig: &Rig, name: &str) -> Result<Option<SharedObject>, ReadError> {
    let spec = everything(&configmap());
    reader(rig, &[spec]).get(&configmap(), &ObjectName::namespaced("web", name))
}

/// A stream that has read `objects` at version 10 and follows.
async fn live(rig: &mut Rig, objects: &[String]) -> (Subscription, Feed) {
    let subscription = rig.cluster.watch(&everything(&configmap()));
    rig.asked().await.expect(LIST).page(10, "", objects);
    for _ in objects {
        assert!(rig.change().await.starts_with("initial "));
    }
    let feed = rig.asked().await.expect(&watch_at(10)).open();
    subscription.synced().await;
    (subscription, feed)
}

#[tokio::test(start_paused = true)]
async fn w1_pages_then_a_watch_come_to_steady() {
    let mut rig = Rig::new(false);
    let subscription = rig.cluster.watch(&everything(&configmap()));
    assert_eq!(subscription.state(), StreamState::Listing);
    let first = rig.asked().await.expect(LIST);
    assert_eq!(first.query["limit"], "500");
    assert!(matches!(get(&rig, "a"), Err(ReadError::NotSynced(..))), "not synced is an error, not empty");
    first.page(10, "p2", &[object("b", "ub", 3, "x")]);
    rig.asked().await.expect("/api/v1/configmaps?continue=p2").page(10, "", &[object("a", "ua", 2, "x")]);
    assert_eq!(rig.change().await, "initial -→web/a@2", "a list is told as a whole, in order");
    assert_eq!(rig.change().await, "initial -→web/b@3");
    subscription.synced().await;
    let feed = rig.asked().await.expect(&watch_at(10)).open();
    feed.event("ADDED", &object("c", "uc", 11, "x"));
    feed.event("MODIFIED", &object("a", "ua", 12, "x"));
    feed.event("DELETED", &object("b", "ub", 13, "x"));
    assert_eq!(rig.change().await, "watch -→web/c@11");
    assert_eq!(rig.change().await, "watch web/a@2→web/a@12");
    assert_eq!(rig.change().await, "watch web/b@3→-");
    assert_eq!(subscription.state(), StreamState::Live);
    assert_eq!(get(&rig, "a").unwrap().unwrap().meta().resource_version.0, 12);
    assert!(get(&rig, "b").unwrap().is_none());
    let list = reader(&rig, &[everything(&configmap())]).list(&configmap(), &Query::default()).unwrap();
    assert_eq!(list.len(), 2);
    assert_eq!(rig.metric("reeve_cache_objects", "ConfigMap.v1"), 2);
    assert_eq!(rig.metric("reeve_watch_events_total", "upsert"), 2);
}

#[tokio::test(start_paused = true)]
async fn w1_watch_list_is_told_as_a_whole_and_goes_on_as_the_watch() {
    let mut rig = Rig::new(true);
    let subscription = rig.cluster.watch(&everything(&configmap()));
    let asked = rig.asked().await;
    let feed = asked
        .expect("/api/v1/configmaps?resourceVersion=&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&watch=true")
        .open();
    feed.event("ADDED", &object("b", "ub", 9, "x"));
    feed.event("ADDED", &object("a", "ua", 2, "x"));
    feed.event("DELETED", &object("b", "ub", 11, "x"));
    rig.no_change().await;
    assert!(!subscription.is_synced());
    feed.bookmark(12, true);
    assert_eq!(rig.change().await, "initial -→web/a@2");
    subscription.synced().await;
    feed.event("ADDED", &object("c", "uc", 13, "x"));
    assert_eq!(rig.change().await, "watch -→web/c@13");
    drop(feed);
    rig.asked().await.expect(&watch_at(13)).open();
}

#[tokio::test(start_paused = true)]
async fn w8_a_bookmark_moves_the_version_of_the_next_watch() {
    let mut rig = Rig::new(false);
    let (_subscription, feed) = live(&mut rig, &[]).await;
    feed.bookmark(90, false);
    tokio::time::sleep(Duration::from_secs(2)).await;
    rig.no_change().await;
    let ended = Instant::now();
    drop(feed);
    rig.asked().await.expect(&watch_at(90)).open();
    assert_eq!(ended.elapsed(), Duration::ZERO, "an ended watch is opened again at once");
    assert_eq!(rig.metric("reeve_watch_reconnects_total", ""), 1);
}

#[tokio::test(start_paused = true)]
async fn w13_w17_a_delete_in_a_gap_comes_as_a_tombstone() {
    let mut rig = Rig::new(false);
    let objects = [object("a", "ua", 2, "x"), object("b", "ub", 3, "x")];
    let (_subscription, feed) = live(&mut rig, &objects).await;
    feed.event("ERROR", &status(410, "too old resource version"));
    rig.asked().await.expect("/api/v1/configmaps?resourceVersion=10&resourceVersionMatch=NotOlderThan").page(
        20,
        "",
        &objects[..1],
    );
    assert_eq!(rig.change().await, "relist web/b@3→-");
    rig.asked().await.expect(&watch_at(20)).open();
    rig.no_change().await;
}

#[tokio::test(start_paused = true)]
async fn w14_a_recreate_in_a_gap_shows_as_another_uid() {
    let mut rig = Rig::new(false);
    let (_subscription, feed) = live(&mut rig, &[object("a", "ua", 2, "x")]).await;
    feed.event("ERROR", &status(410, "too old resource version"));
    rig.asked().await.page(20, "", &[object("a", "new", 15, "x")]);
    let change = rig.changes.recv().await.unwrap();
    assert!(change.replaced());
    assert_eq!(crate::testing::show(&change), "relist web/a@2→web/a@15");
}

#[tokio::test(start_paused = true)]
async fn w15_what_is_no_object_of_the_kind_is_skipped_and_counted() {
    let mut rig = Rig::new(false);
    let subscription = rig.cluster.watch(&everything(&configmap()));
    let pod = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","uid":"u","resourceVersion":"1"}}"#;
    rig.asked().await.page(10, "", &[pod.to_owned(), object("a", "ua", 2, "x"), "[]".to_owned()]);
    assert_eq!(rig.change().await, "initial -→web/a@2");
    subscription.synced().await;
    let feed = rig.asked().await.open();
    feed.event("ADDED", pod);
    feed.event("ADDED", r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[]}"#);
    feed.line("not even JSON");
    feed.event("SURPRISE", pod);
    feed.event("BOOKMARK", "{}");
    feed.event("MODIFIED", &object("a", "ua", 11, "x"));
    assert_eq!(rig.change().await, "watch web/a@2→web/a@11");
    assert_eq!(rig.metric("reeve_watch_skipped_total", "ConfigMap.v1"), 7);
    rig.no_change().await;
}

#[tokio::test(start_paused = true)]
async fn w16_complaint_27_managed_fields_are_cut_in_every_way_an_object_comes() {
    for watch_list in [false, true] {
        let mut rig = Rig::new(watch_list);
        let _subscription = rig.cluster.watch(&everything(&configmap()));
        let asked = rig.asked().await;
        let feed = if watch_list {
            let feed = asked.open();
            feed.event("ADDED", &object("a", "ua", 2, "x"));
            feed.bookmark(10, true);
            feed
        } else {
            asked.page(10, "", &[object("a", "ua", 2, "x")]);
            rig.asked().await.open()
        };
        feed.event("ADDED", &object("b", "ub", 11, "x"));
        for _ in 0..2 {
            let new = rig.changes.recv().await.unwrap().new.unwrap();
            assert!(
                !new.json().contains("managedFields") && new.json().contains("\"data\""),
                "{}",
                new.json()
            );
        }
    }
}
