//! What 50,000 objects of 2 KB cost that come over a watch-list: at most 1.5 times their bytes over
//! the empty process, and a peak of at most 1.5 times that. (Of pages one item is in memory twice,
//! as of a watch-list.)
//!
//! A process of its own, so that its resident memory is the cache's.
#![expect(clippy::cast_precision_loss, clippy::unwrap_used, reason = "a measurement")]

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::stream;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use reeve_cluster::cache::{View, ViewKind};
use reeve_cluster::watch::{Namespaces, StreamSpec};
use reeve_cluster::{Cluster, ClusterOptions, Connection};
use reeve_core::gvk::Gvk;
use reeve_core::labels::Selector;
use reeve_core::read::Query;

const OBJECTS: usize = 50_000;

const DISCOVERY: &str =
    r#"{"resources":[{"name":"configmaps","namespaced":true,"kind":"ConfigMap","verbs":["list","watch"]}]}"#;

/// One event of 2 KB after managedFields, which are a quarter more.
fn event(index: usize) -> Bytes {
    let data = "x".repeat(1_700);
    let fields = "f".repeat(500);
    Bytes::from(format!(
        r#"{{"type":"ADDED","object":{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"object-{index:05}","namespace":"ns-{:02}","uid":"0c1bd1c0-8b6a-4a54-9c4f-0000000{index:05}","resourceVersion":"{}","creationTimestamp":"2026-12-01T00:00:00Z","labels":{{"app":"website","reeve.dev/plugin":"website"}},"managedFields":[{{"fieldsV1":"{fields}"}}]}},"data":{{"k":"{data}"}}}}}}
"#,
        index % 20,
        index + 10
    ))
}

fn bookmark() -> Bytes {
    Bytes::from_static(
        br#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"60000","annotations":{"k8s.io/initial-events-end":"true"}}}}
"#,
    )
}

fn answer(request: &Request<Body>) -> Response<UnsyncBoxBody<Bytes, std::io::Error>> {
    if request.uri().path() == "/api/v1" {
        let body = Full::new(Bytes::from_static(DISCOVERY.as_bytes()));
        return Response::new(body.map_err(|never| match never {}).boxed_unsync());
    }
    // Made as it is read, so that the server's side takes no memory.
    let events = (0..OBJECTS).map(event).chain([bookmark()]).map(|line| Ok(Frame::data(line)));
    let events = stream::iter(events);
    let open = futures::StreamExt::chain(events, stream::pending());
    Response::new(StreamBody::new(open).boxed_unsync())
}

/// `VmRSS` or `VmHWM` of this process in bytes.
fn memory(what: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

#[tokio::test]
async fn fifty_thousand_objects_cost_less_than_half_as_much_again() {
    let service =
        tower::service_fn(|request: Request<Body>| async move { Ok::<_, std::io::Error>(answer(&request)) });
    let client = kube::Client::new(service, "default");
    let registry = prometheus::Registry::new();
    let connection = Connection::from_client(&client, "https://api", &registry).unwrap();
    let (cluster, mut changes) = Cluster::new(connection, &ClusterOptions::default(), &registry).unwrap();
    let gvk = Gvk::new("", "v1", "ConfigMap");
    let spec = StreamSpec {
        gvk: gvk.clone(),
        namespaces: Namespaces::All,
        labels: Selector::everything(),
        fields: None,
        metadata_only: false,
        managed_fields: false,
    };
    let empty = memory("VmRSS");
    let begun = tokio::time::Instant::now();
    let subscription = cluster.watch(&spec);
    subscription.synced().await;
    let synced = begun.elapsed();
    for _ in 0..OBJECTS {
        changes.recv().await.unwrap();
    }
    let (steady, peak) = (memory("VmRSS") - empty, memory("VmHWM") - empty);
    let kinds = BTreeMap::from([(gvk.clone(), ViewKind { specs: vec![spec], indexes: BTreeMap::new() })]);
    let reader = cluster.reader(View { plugin: "p".parse().unwrap(), kinds });
    let begun = tokio::time::Instant::now();
    let all = reader.list(&gvk, &Query::default()).unwrap();
    let listed = begun.elapsed();
    let bytes: usize = all.iter().map(|object| object.json().len()).sum();
    assert_eq!(all.len(), OBJECTS);
    let ratio = steady / bytes as f64;
    eprintln!(
        "{OBJECTS} objects of {} B: {:.0} MiB = {ratio:.2} x their bytes, peak {:.2} x that, synced in {synced:?}, listed in {listed:?}",
        bytes / OBJECTS,
        steady / 1_048_576.0,
        peak / steady
    );
    assert!(ratio <= 1.5, "{ratio}");
    assert!(peak <= steady * 1.5, "{peak} {steady}");
}
