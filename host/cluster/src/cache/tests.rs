use std::collections::BTreeSet;
use std::time::Duration;

use reeve_core::gvk::Scope;
use reeve_core::ids::ResourceVersion;
use reeve_core::read::{HOLD_LIMIT, Query, ReadError, Reader};
use tokio::time::{Instant, timeout};

use super::outbox::OUTBOX;
use super::*;
use crate::testing::show;
use crate::watch::Namespaces;

/// A cache without streams' tasks: the test is the stream.
struct Fixture {
    cache: Cache,
    changes: mpsc::Receiver<Change>,
    metrics: prometheus::Registry,
    opened: u32,
}

/// One stream of a fixture.
struct Stream {
    cell: Arc<Cell>,
    id: StreamId,
}

fn pod() -> Gvk {
    Gvk::new("", "v1", "Pod")
}

/// `namespace/name@version`, with labels `app=LABEL`, on node `node`, owned by `owner`.
fn json(namespace: &str, name: &str, version: u64, label: &str, node: &str, owner: &str) -> String {
    let namespace =
        if namespace.is_empty() { String::new() } else { format!(r#""namespace":"{namespace}","#) };
    format!(
        r#"{{"metadata":{{{namespace}"name":"{name}","uid":"u-{name}","resourceVersion":"{version}","labels":{{"app":"{label}"}},
        "ownerReferences":[{{"apiVersion":"v1","kind":"Set","name":"s","uid":"{owner}","controller":true}}]}},
        "spec":{{"nodeName":"{node}","ports":[{{"port":80}},{{"port":443}}]}}}}"#
    )
}

fn simple(name: &str, version: u64, label: &str) -> String {
    json("web", name, version, label, "n1", "o1")
}

fn parsed(json: &str) -> SharedObject {
    Arc::new(Object::parse(&pod(), json, ManagedFields::Strip).unwrap())
}

fn spec() -> StreamSpec {
    StreamSpec {
        gvk: pod(),
        namespaces: Namespaces::All,
        labels: Selector::everything(),
        fields: None,
        metadata_only: false,
        managed_fields: false,
    }
}

fn origin() -> Origin {
    Origin { plugin: "p".parse().unwrap(), primary: ObjectName::namespaced("web", "primary") }
}

fn web(name: &str) -> ObjectName {
    ObjectName::namespaced("web", name)
}

impl Fixture {
    fn new() -> Self {
        let metrics = prometheus::Registry::new();
        let cache = Cache::new(&metrics).unwrap();
        let (router, changes) = mpsc::channel(CHANNEL);
        #[expect(clippy::disallowed_methods, reason = "the test's runtime ends with it")]
        tokio::spawn(cache.clone().forward(router));
        Self { cache, changes, metrics, opened: 0 }
    }

    fn open(&mut self, spec: &StreamSpec) -> Stream {
        self.opened += 1;
        let id = StreamId(self.opened);
        let namespace = spec.coverages().pop_first().unwrap();
        let coverage = Coverage { namespace, labels: spec.labels.clone(), fields: spec.fields.clone() };
        Stream { cell: self.cache.open(&spec.gvk, spec.flavour(), id, coverage), id }
    }

    fn list(&self, stream: &Stream, version: u64, objects: &[String]) {
        let objects =
            objects.iter().map(|json| parsed(json)).map(|object| (object.meta().name.clone(), object));
        let listed = Listed { objects: objects.collect(), version: ResourceVersion(version), rewound: false };
        self.cache.replaced(&stream.cell, stream.id, listed, &Cause::Initial);
    }

    fn observe(&self, stream: &Stream, json: &str) {
        self.cache.observed(&stream.cell, stream.id, parsed(json));
    }

    /// A synced stream of a spec with these objects, whose changes are taken already.
    async fn live(&mut self, spec: &StreamSpec, objects: &[String]) -> Stream {
        let stream = self.open(spec);
        self.list(&stream, 100, objects);
        self.told().await;
        stream
    }

    fn reader(&self, specs: Vec<StreamSpec>, indexes: &[(&str, &str)]) -> Arc<dyn Reader> {
        let indexes = indexes.iter().map(|(name, pointer)| ((*name).into(), (*pointer).into())).collect();
        let kinds = BTreeMap::from([(pod(), ViewKind { specs, indexes })]);
        Arc::new(ViewReader::new(self.cache.clone(), View { plugin: "p".parse().unwrap(), kinds }))
    }

    /// All changes that are told by now.
    async fn told(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        while let Ok(Some(change)) = timeout(Duration::from_millis(1), self.changes.recv()).await {
            told.push(show(&change));
        }
        told
    }

    fn metric(&self, name: &str) -> u64 {
        let families = self.metrics.gather();
        let family = families.iter().find(|family| family.name() == name).unwrap();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
        let value = family.get_metric()[0].get_counter().get_value() as u64;
        value
    }
}

#[track_caller]
fn names(reader: &Arc<dyn Reader>, query: &Query) -> String {
    let list = reader.list(&pod(), query).unwrap();
    list.iter().map(|object| object.meta().name.to_string()).collect::<Vec<_>>().join(" ")
}

fn query() -> Query {
    Query::default()
}

#[tokio::test(start_paused = true)]
async fn c1_filters_all_hold() {
    let mut fixture = Fixture::new();
    let _holds = [
        fixture.cache.add_index(&pod(), "/spec/nodeName"),
        fixture.cache.add_index(&pod(), "/spec/ports/*/port"),
    ];
    let objects = [
        json("db", "c", 1, "x", "n1", "o1"),
        json("web", "b", 2, "x", "n1", "o2"),
        json("web", "a", 3, "y", "n2", "o1"),
        json("web", "d", 4, "x", "n2", "o1"),
    ];
    fixture.live(&spec(), &objects).await;
    let reader = fixture.reader(vec![spec()], &[("node", "/spec/nodeName"), ("port", "/spec/ports/*/port")]);
    let in_web = || Query { namespace: Some("web".into()), ..query() };
    let labels = |text: &str| Some(text.parse().unwrap());
    let index = |name: &str, value: &str| Some((name.into(), value.into()));
    assert_eq!(names(&reader, &query()), "db/c web/a web/b web/d", "in order of namespace and name");
    assert_eq!(names(&reader, &in_web()), "web/a web/b web/d");
    assert_eq!(names(&reader, &Query { namespace: Some("none".into()), ..query() }), "");
    assert_eq!(names(&reader, &Query { labels: labels("app=x"), ..in_web() }), "web/b web/d");
    assert_eq!(names(&reader, &Query { owner: Some(Uid::new("o1")), ..query() }), "db/c web/a web/d");
    assert_eq!(
        names(&reader, &Query { owner: Some(Uid::new("o1")), labels: labels("app=x"), ..in_web() }),
        "web/d"
    );
    assert_eq!(names(&reader, &Query { index: index("node", "n1"), ..query() }), "db/c web/b");
    assert_eq!(names(&reader, &Query { index: index("node", "n1"), ..in_web() }), "web/b");
    let all = Query {
        index: index("node", "n2"),
        owner: Some(Uid::new("o1")),
        labels: labels("app=x"),
        ..in_web()
    };
    assert_eq!(names(&reader, &all), "web/d");
    assert_eq!(names(&reader, &Query { index: index("port", "443"), ..in_web() }), "web/a web/b web/d");
    assert_eq!(names(&reader, &Query { index: index("port", "44"), ..query() }), "");
    let wrong = reader.list(&pod(), &Query { index: index("zone", "a"), ..query() }).err();
    assert_eq!(wrong, Some(ReadError::NoIndex(pod(), "zone".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn c2_c4_a_namespace_set_shows_its_namespaces_and_refuses_others() {
    let mut fixture = Fixture::new();
    let objects = [
        json("a", "x", 1, "x", "n", "o"),
        json("b", "x", 2, "x", "n", "o"),
        json("c", "x", 3, "x", "n", "o"),
    ];
    fixture.live(&spec(), &objects).await;
    let two = BTreeSet::from(["a".into(), "c".into()]);
    let reader = fixture.reader(vec![StreamSpec { namespaces: Namespaces::Only(two), ..spec() }], &[]);
    assert_eq!(names(&reader, &query()), "a/x c/x");
    assert_eq!(names(&reader, &Query { owner: Some(Uid::new("o")), ..query() }), "a/x c/x");
    assert!(reader.get(&pod(), &ObjectName::namespaced("c", "x")).unwrap().is_some());
    let outside = Some(ReadError::OutOfScope(pod(), "b".to_owned()));
    assert_eq!(reader.get(&pod(), &ObjectName::namespaced("b", "x")).err(), outside);
    assert_eq!(reader.list(&pod(), &Query { namespace: Some("b".into()), ..query() }).err(), outside);
}

#[tokio::test(start_paused = true)]
async fn c3_a_plugin_sees_what_any_of_its_own_watches_of_a_kind_is_for() {
    let mut fixture = Fixture::new();
    let objects = [
        json("web", "a", 1, "x", "n1", "o"),
        json("web", "b", 2, "y", "n1", "o"),
        json("web", "c", 3, "z", "n2", "o"),
    ];
    fixture.live(&spec(), &objects).await;
    let with = |labels: &str| StreamSpec { labels: labels.parse().unwrap(), ..spec() };
    assert_eq!(names(&fixture.reader(vec![with("app=x")], &[]), &query()), "web/a");
    assert_eq!(names(&fixture.reader(vec![with("app=z"), with("app=x")], &[]), &query()), "web/a web/c");
    let reader = fixture.reader(vec![with("app=x")], &[]);
    assert!(reader.get(&pod(), &web("b")).unwrap().is_none(), "cached for another plugin, not for this one");
    // By fields: what the server said is in them.
    let on_n2 = StreamSpec { fields: Some("spec.nodeName=n2".into()), ..spec() };
    let stream = fixture.open(&on_n2);
    fixture.list(&stream, 100, &objects[2..]);
    assert_eq!(names(&fixture.reader(vec![on_n2], &[]), &query()), "web/c");
}

#[tokio::test(start_paused = true)]
async fn c5_a_kind_that_is_not_declared_is_refused_and_one_that_is_not_synced_says_why() {
    let mut fixture = Fixture::new();
    let reader = fixture.reader(vec![spec()], &[]);
    let node = Gvk::new("", "v1", "Node");
    assert_eq!(
        reader.get(&node, &ObjectName::cluster("n")).err(),
        Some(ReadError::NotDeclared(node.clone()))
    );
    assert_eq!(reader.list(&node, &query()).err(), Some(ReadError::NotDeclared(node)));
    let not_synced = |why: &str| Some(ReadError::NotSynced(pod(), why.to_owned()));
    assert_eq!(reader.get(&pod(), &web("a")).err(), not_synced("its first list is on its way"));
    let stream = fixture.open(&spec());
    assert_eq!(reader.get(&pod(), &web("a")).err(), not_synced("its first list is on its way"));
    stream.cell.note(stream.id, "it is forbidden");
    assert_eq!(reader.list(&pod(), &query()).err(), not_synced("it is forbidden"));
    fixture.list(&stream, 1, &[]);
    assert!(reader.get(&pod(), &web("a")).unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn c6_a_list_is_a_snapshot() {
    let mut fixture = Fixture::new();
    let stream = fixture.live(&spec(), &[simple("a", 1, "x"), simple("b", 2, "x")]).await;
    let reader = fixture.reader(vec![spec()], &[]);
    let before = reader.list(&pod(), &query()).unwrap();
    fixture.observe(&stream, &simple("a", 101, "y"));
    fixture.cache.removed(&stream.cell, stream.id, &parsed(&simple("b", 102, "x")));
    assert_eq!(before.len(), 2);
    assert_eq!(before[0].meta().label("app"), Some("x"));
    assert_eq!(names(&reader, &query()), "web/a");
}

#[tokio::test(start_paused = true)]
async fn c7_a_cluster_scoped_kind_ignores_namespaces() {
    let mut fixture = Fixture::new();
    let only = BTreeSet::from(["web".into()]);
    let spec = StreamSpec { namespaces: Namespaces::Only(only), ..spec() };
    let stream = fixture.open(&spec);
    stream.cell.set_scope(Scope::Cluster);
    fixture.list(&stream, 1, &[json("", "a", 1, "x", "n", "o")]);
    let reader = fixture.reader(vec![spec], &[]);
    for name in [ObjectName::cluster("a"), web("a"), ObjectName::namespaced("other", "a")] {
        assert!(reader.get(&pod(), &name).unwrap().is_some(), "{name}");
    }
    assert_eq!(names(&reader, &Query { namespace: Some("other".into()), ..query() }), "a");
}

#[tokio::test(start_paused = true)]
async fn c8_an_index_may_come_late_and_goes_with_its_last_hold() {
    let mut fixture = Fixture::new();
    let stream = fixture.live(&spec(), &[json("web", "a", 1, "x", "n1", "o")]).await;
    let first = fixture.cache.add_index(&pod(), "/spec/nodeName");
    let second = fixture.cache.add_index(&pod(), "/spec/nodeName");
    let reader = fixture.reader(vec![spec()], &[("node", "/spec/nodeName")]);
    let on = |node: &str| Query { index: Some(("node".into(), node.into())), ..query() };
    assert_eq!(names(&reader, &on("n1")), "web/a");
    fixture.observe(&stream, &json("web", "a", 101, "x", "n2", "o"));
    drop(first);
    assert_eq!((names(&reader, &on("n1")), names(&reader, &on("n2"))), (String::new(), "web/a".to_owned()));
    drop(second);
    assert_eq!(names(&reader, &on("n2")), "web/a", "slower, but the same");
}

#[tokio::test(start_paused = true)]
async fn an_answer_enters_at_once_and_its_event_tells_nothing_again() {
    let mut fixture = Fixture::new();
    let stream = fixture.live(&spec(), &[simple("a", 1, "x")]).await;
    let writing = fixture.cache.writing(&pod(), &web("a"), origin());
    writing.answered(simple("a", 101, "y").as_bytes()).unwrap();
    assert_eq!(fixture.cache.get(&pod(), &web("a")).unwrap().meta().resource_version.0, 101);
    assert_eq!(fixture.told().await, ["write web/a@1→web/a@101"]);
    fixture.observe(&stream, &simple("a", 101, "y"));
    assert!(fixture.told().await.is_empty());
    // A late answer of an older write changes nothing.
    fixture.observe(&stream, &simple("a", 105, "z"));
    fixture.cache.writing(&pod(), &web("a"), origin()).answered(simple("a", 103, "y").as_bytes()).unwrap();
    assert_eq!(fixture.told().await, ["watch web/a@101→web/a@105"]);
    assert_eq!(fixture.metric("reeve_cache_stale_total"), 1);
}

#[tokio::test(start_paused = true)]
async fn c9_an_event_that_is_faster_than_its_answer_is_known_as_the_echo() {
    let mut fixture = Fixture::new();
    let stream = fixture.live(&spec(), &[simple("a", 1, "x")]).await;
    let first = fixture.cache.writing(&pod(), &web("a"), origin());
    let second = fixture.cache.writing(&pod(), &web("a"), origin());
    fixture.observe(&stream, &simple("a", 101, "x"));
    fixture.observe(&stream, &simple("a", 102, "x"));
    fixture.observe(&stream, &simple("b", 103, "x"));
    fixture.observe(&stream, &simple("a", 104, "x"));
    assert_eq!(
        fixture.cache.get(&pod(), &web("a")).unwrap().meta().resource_version.0,
        104,
        "the cache has them at once"
    );
    assert_eq!(fixture.told().await, ["watch -→web/b@103"], "others are told at once");
    second.answered(simple("a", 104, "x").as_bytes()).unwrap();
    assert!(fixture.told().await.is_empty());
    first.answered(simple("a", 101, "x").as_bytes()).unwrap();
    let told = ["write web/a@1→web/a@101", "watch web/a@101→web/a@102", "write web/a@102→web/a@104"];
    assert_eq!(fixture.told().await, told, "each in its order, with who made it");
    // A delete too.
    let delete = fixture.cache.writing(&pod(), &web("a"), origin());
    fixture.cache.removed(&stream.cell, stream.id, &parsed(&simple("a", 110, "x")));
    delete.deleted(&Uid::new("u-a"));
    assert_eq!(fixture.told().await, ["write web/a@104→-"]);
    // Refused writes claim nothing.
    let refused = fixture.cache.writing(&pod(), &web("b"), origin());
    fixture.observe(&stream, &simple("b", 111, "x"));
    refused.refused();
    assert_eq!(fixture.told().await, ["watch web/b@103→web/b@111"]);
}

#[tokio::test(start_paused = true)]
async fn a_delete_by_a_write_is_final() {
    let mut fixture = Fixture::new();
    let stream = fixture.live(&spec(), &[simple("a", 1, "x")]).await;
    fixture.cache.writing(&pod(), &web("a"), origin()).deleted(&Uid::new("u-a"));
    assert_eq!(fixture.told().await, ["write web/a@1→-"]);
    fixture.observe(&stream, &simple("a", 101, "x"));
    fixture.list(&stream, 102, &[simple("a", 101, "x")]);
    fixture.cache.absorb(&pod(), simple("a", 103, "x").as_bytes(), &origin()).unwrap();
    assert!(fixture.told().await.is_empty());
    assert!(fixture.cache.get(&pod(), &web("a")).is_none());
    let reborn = simple("a", 110, "x").replace("u-a", "u-new");
    fixture.observe(&stream, &reborn);
    assert_eq!(fixture.told().await, ["watch -→web/a@110"]);
}

#[tokio::test(start_paused = true)]
async fn answers_are_held_against_the_selectors_again() {
    let mut fixture = Fixture::new();
    let x = StreamSpec { labels: "app=x".parse().unwrap(), ..spec() };
    let stream = fixture.live(&x, &[simple("a", 1, "x")]).await;
    let answer = |fixture: &Fixture, name: &str, version: u64, label: &str| {
        let writing = fixture.cache.writing(&pod(), &web(name), origin());
        writing.answered(simple(name, version, label).as_bytes()).unwrap();
    };
    answer(&fixture, "b", 101, "y");
    assert!(fixture.told().await.is_empty(), "nobody watches it");
    answer(&fixture, "c", 102, "x");
    answer(&fixture, "a", 103, "y");
    assert_eq!(fixture.told().await, ["write -→web/c@102", "write web/a@1→-"]);
    // The stream says that it left too, and later that it is back.
    fixture.cache.removed(&stream.cell, stream.id, &parsed(&simple("a", 103, "x")));
    assert!(fixture.told().await.is_empty());
    fixture.observe(&stream, &simple("a", 104, "x"));
    assert_eq!(fixture.told().await, ["watch -→web/a@104"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_older_than_a_write_does_not_undo_it() {
    let mut fixture = Fixture::new();
    let stream = fixture.live(&spec(), &[simple("a", 1, "x"), simple("b", 2, "x")]).await;
    for (name, version) in [("a", 120), ("c", 121)] {
        let writing = fixture.cache.writing(&pod(), &web(name), origin());
        writing.answered(simple(name, version, "x").as_bytes()).unwrap();
    }
    assert_eq!(fixture.told().await.len(), 2);
    fixture.list(&stream, 110, &[simple("a", 1, "x")]);
    assert_eq!(fixture.told().await, ["initial web/b@2→-"], "only what the list is newer than");
    assert_eq!(fixture.cache.get(&pod(), &web("a")).unwrap().meta().resource_version.0, 120);
    assert!(fixture.cache.get(&pod(), &web("c")).is_some());
}

#[tokio::test(start_paused = true)]
async fn b4_a_write_of_unknown_outcome_holds_reads_until_the_watch_tells_or_5_s() {
    let mut fixture = Fixture::new();
    let stream = fixture.live(&spec(), &[simple("a", 1, "x")]).await;
    let reader = fixture.reader(vec![spec()], &[]);
    assert!(reader.held(&pod(), None).is_none());
    fixture.cache.writing(&pod(), &web("a"), origin()).unknown();
    assert!(reader.held(&pod(), Some(&web("b"))).is_none(), "others are not held");
    let held = reader.held(&pod(), Some(&web("a"))).unwrap();
    let begun = Instant::now();
    let told = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        fixture.observe(&stream, &simple("a", 101, "x"));
    };
    tokio::join!(held, told);
    assert_eq!(begun.elapsed().as_secs(), 2);
    assert!(reader.held(&pod(), Some(&web("a"))).is_none());
    // Without an event the limit ends it.
    drop(fixture.cache.writing(&pod(), &web("a"), origin()));
    let begun = Instant::now();
    reader.held(&pod(), None).unwrap().await;
    assert_eq!(begun.elapsed().as_secs(), HOLD_LIMIT.as_secs());
    assert!(reader.held(&pod(), None).is_none());
    assert_eq!(fixture.metric("reeve_cache_holds_total"), 2);
    assert_eq!(fixture.metric("reeve_cache_holds_expired_total"), 1);
}

#[tokio::test(start_paused = true)]
async fn streams_wait_for_the_router_and_no_change_is_lost() {
    let mut fixture = Fixture::new();
    let stream = fixture.live(&spec(), &[]).await;
    let mut version = 200;
    loop {
        if timeout(Duration::from_millis(10), fixture.cache.room()).await.is_err() {
            break;
        }
        version += 1;
        fixture.observe(&stream, &simple("a", version, "x"));
        tokio::task::yield_now().await;
    }
    let sent = usize::try_from(version - 200).unwrap();
    assert!((OUTBOX..=OUTBOX + CHANNEL + 1).contains(&sent), "{sent}");
    for _ in 0..sent {
        fixture.changes.recv().await.unwrap();
    }
    timeout(Duration::from_millis(10), fixture.cache.room()).await.unwrap();
    assert!(fixture.told().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn without_a_router_nobody_waits() {
    let mut fixture = Fixture::new();
    let stream = fixture.open(&spec());
    fixture.changes.close();
    let objects: Vec<_> = (0..OUTBOX * 2).map(|index| simple(&format!("o{index}"), 1, "x")).collect();
    fixture.list(&stream, 100, &objects);
    timeout(Duration::from_secs(1), fixture.cache.room()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn overlapping_streams_keep_one_copy_which_goes_with_the_last_that_vouches() {
    let mut fixture = Fixture::new();
    let x = StreamSpec { labels: "app=x".parse().unwrap(), ..spec() };
    let narrow = fixture.live(&x, &[simple("a", 1, "x")]).await;
    let wide = fixture.open(&spec());
    fixture.list(&wide, 100, &[simple("a", 1, "x"), simple("b", 2, "y")]);
    assert_eq!(fixture.told().await, ["initial -→web/b@2"], "what is known is not told again");
    fixture.observe(&wide, &simple("a", 101, "x"));
    fixture.observe(&narrow, &simple("a", 101, "x"));
    assert_eq!(fixture.told().await, ["watch web/a@1→web/a@101"]);
    fixture.cache.close(&wide.cell, wide.id);
    assert!(fixture.cache.get(&pod(), &web("a")).is_some(), "the narrow stream vouches for it");
    assert!(fixture.cache.get(&pod(), &web("b")).is_none());
    fixture.cache.close(&narrow.cell, narrow.id);
    assert!(fixture.cache.get(&pod(), &web("a")).is_none());
    assert!(fixture.told().await.is_empty(), "nobody is told of what nobody watches");
}
