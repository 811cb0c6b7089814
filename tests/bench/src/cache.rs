//! 50,000 objects of 2 KB in the cache, from an API server in this process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use kube::client::Body;
use reeve_cluster::cache::{View, ViewKind};
use reeve_cluster::watch::{Namespaces, StreamSpec};
use reeve_cluster::{Cluster, ClusterOptions, Connection};
use reeve_core::gvk::Gvk;
use reeve_core::ids::ObjectName;
use reeve_core::labels::Selector;
use reeve_core::read::Query;

use crate::memory;
use crate::table::Table;

/// How many objects.
const OBJECTS: usize = 50_000;
/// The mean of their bytes as the server sends them, without managedFields; they
/// range over 1 KiB around it, so that no size class of the allocator decides the figure.
const BYTES: usize = 2_048;

pub(crate) fn measure(table: &mut Table) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let client = kube::Client::new(tower::service_fn(answer), "default");
        let registry = prometheus::Registry::new();
        let connection = Connection::from_client(&client, "in-process", &registry)?;
        let (cluster, mut changes) = Cluster::new(connection, &ClusterOptions::default(), &registry)?;
        // The router's place: changes are taken and forgotten.
        let drain = tokio::task::LocalSet::new();
        drain.spawn_local(async move { while changes.recv().await.is_some() {} });
        let gvk = Gvk::new("", "v1", "ConfigMap");
        let empty = memory::resident()?;
        memory::forget_peak()?;
        let spec = StreamSpec {
            gvk: gvk.clone(),
            namespaces: Namespaces::All,
            labels: Selector::default(),
            fields: None,
            metadata_only: false,
            managed_fields: false,
        };
        let subscription = cluster.watch(&spec);
        drain.run_until(subscription.synced()).await;
        let kind = ViewKind { specs: vec![spec], indexes: BTreeMap::new() };
        let view = View { plugin: "bench".parse()?, kinds: BTreeMap::from([(gvk.clone(), kind)]) };
        let reader = cluster.reader(view);
        let last = ObjectName::namespaced("bench", &name(OBJECTS - 1));
        reader.get(&gvk, &last)?.context("the last object is not in the cache")?;
        let all = reader.list(&gvk, &Query::default())?;
        ensure!(all.len() == OBJECTS, "{} objects are in the cache", all.len());
        let bytes: usize = all.iter().map(|object| object.json().len()).sum();
        drop(all);
        #[expect(clippy::cast_precision_loss, reason = "a hundred MiB")]
        let bytes = bytes as f64 / 1024.0 / 1024.0;
        let steady = memory::resident()? - empty;
        let peak = memory::peak()? - empty;
        table.figure("cache: bytes of the objects", format!("{bytes:.0} MiB"));
        table.at_most("cache / bytes of the objects", steady / bytes, 1.5, "×");
        table.at_most("peak of the first sync / steady", peak / steady, 1.5, "×");
        Ok(())
    })
}

fn name(number: usize) -> String {
    format!("object-{number:05}")
}

/// What the in-process server answers.
type Answer = UnsyncBoxBody<bytes::Bytes, Infallible>;

fn full(bytes: Vec<u8>) -> Answer {
    http_body_util::Full::from(bytes).boxed_unsync()
}

/// Discovery, pages of a list, and a watch that stays silent. It has no watch-list.
async fn answer(request: Request<Body>) -> Result<Response<Answer>, Infallible> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let parameter = |name: &str| {
        query
            .split('&')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
            .unwrap_or_default()
            .to_owned()
    };
    let path = request.uri().path();
    let (status, body) = if path == "/api/v1" {
        let resource = r#"{"name":"configmaps","singularName":"","namespaced":true,"kind":"ConfigMap","verbs":["get","list","watch"]}"#;
        let list = format!(r#"{{"kind":"APIResourceList","groupVersion":"v1","resources":[{resource}]}}"#);
        (200, full(list.into_bytes()))
    } else if query.contains("sendInitialEvents=true") {
        let refusal = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,"message":"sendInitialEvents is forbidden"}"#;
        (422, full(refusal.as_bytes().to_vec()))
    } else if query.contains("watch=") {
        let silent = futures::stream::pending::<Result<hyper::body::Frame<bytes::Bytes>, Infallible>>();
        (200, http_body_util::StreamBody::new(silent).boxed_unsync())
    } else {
        let from = parameter("continue").parse().unwrap_or(0);
        let limit = parameter("limit").parse().unwrap_or(OBJECTS);
        (200, full(page(from, limit).into_bytes()))
    };
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    Ok(response)
}

fn page(from: usize, limit: usize) -> String {
    let to = (from + limit).min(OBJECTS);
    let next = if to < OBJECTS { to.to_string() } else { String::new() };
    let mut text = format!(
        r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{{"resourceVersion":"60000","continue":"{next}"}},"items":["#
    );
    for number in from..to {
        let head = format!(
            r#"{{"metadata":{{"name":"{}","namespace":"bench","uid":"5a5b9c3e-3b3b-4b3b-8b3b-{number:012}","resourceVersion":"{}","labels":{{"app":"bench"}},"#,
            name(number),
            number + 1
        );
        let fields = r#""managedFields":[{"manager":"bench","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:value":{}}}}]"#;
        let size = BYTES - 512 + number * 7_919 % 1_025;
        let filler = "x".repeat(size.saturating_sub(head.len() + 60));
        let comma = if number > from { "," } else { "" };
        // Writing to a String cannot fail.
        _ = write!(text, r#"{comma}{head}{fields}}},"data":{{"value":"{filler}"}}}}"#);
    }
    text.push_str("]}");
    text
}
