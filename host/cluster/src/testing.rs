//! A scripted API server within the process: a test sees each request and says what is answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use reeve_core::change::Change;
use reeve_core::gvk::Gvk;
use reeve_core::labels::Selector;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::watch::{Namespaces, StreamSpec};
use crate::{Cluster, ClusterOptions, Connection};

type AnyBody = UnsyncBoxBody<Bytes, std::io::Error>;
type Reply = Result<Response<AnyBody>, std::io::Error>;

/// Longer than anything that a stream does by itself.
const PATIENCE: Duration = Duration::from_hours(1);

/// A cluster over a scripted API server. Discovery is answered by itself: `ConfigMap` and `Node`.
pub(crate) struct Rig {
    pub(crate) cluster: Cluster,
    pub(crate) changes: mpsc::Receiver<Change>,
    pub(crate) registry: prometheus::Registry,
    /// Whether discovery knows the kinds.
    pub(crate) served: Arc<AtomicBool>,
    requests: mpsc::UnboundedReceiver<Asked>,
}

/// One request, to be answered.
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) accept: String,
    reply: oneshot::Sender<Reply>,
}

/// An open watch. Dropped, it ends as the server ends it.
pub(crate) struct Feed(mpsc::UnboundedSender<Result<Frame<Bytes>, std::io::Error>>);

impl Rig {
    pub(crate) fn new(watch_list: bool) -> Self {
        let (sender, requests) = mpsc::unbounded_channel();
        let served = Arc::new(AtomicBool::new(true));
        let knows = Arc::clone(&served);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (sender, served) = (sender.clone(), knows.load(Ordering::Relaxed));
            async move {
                if request.uri().path() == "/api/v1" {
                    let (code, body) = if served { (200, DISCOVERY) } else { (404, "{}") };
                    return Ok(whole(code, body.to_owned()));
                }
                let (reply, answer) = oneshot::channel();
                // A test that is over leaves the rest unanswered.
                let _ = sender.send(Asked::new(&request, reply));
                answer.await.unwrap_or_else(|_| Err(std::io::Error::other("no answer")))
            }
        });
        let registry = prometheus::Registry::new();
        let client = kube::Client::new(service, "default");
        let connection = Connection::from_client(&client, "https://api", &registry).unwrap();
        let (cluster, changes) = Cluster::new(connection, &ClusterOptions { watch_list }, &registry).unwrap();
        Self { cluster, changes, registry, served, requests }
    }

    /// The next request.
    pub(crate) async fn asked(&mut self) -> Asked {
        timeout(PATIENCE, self.requests.recv()).await.expect("no request came").unwrap()
    }

    /// That no request comes for so long.
    pub(crate) async fn quiet(&mut self, time: Duration) {
        if let Ok(asked) = timeout(time, self.requests.recv()).await {
            panic!("unexpected request: {}", asked.unwrap().line());
        }
    }

    /// The next change, as `cause old→new` with `name@version` on either side.
    pub(crate) async fn change(&mut self) -> String {
        let change = timeout(PATIENCE, self.changes.recv()).await.expect("no change came").unwrap();
        show(&change)
    }

    /// That no change is told.
    pub(crate) async fn no_change(&mut self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        if let Ok(change) = self.changes.try_recv() {
            panic!("unexpected change: {}", show(&change));
        }
    }

    /// The sum of all series of a metric whose labels contain a text.
    pub(crate) fn metric(&self, name: &str, label: &str) -> u64 {
        let text = prometheus::TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        let series =
            text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
        series.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }
}

impl Asked {
    fn new(request: &Request<Body>, reply: oneshot::Sender<Reply>) -> Self {
        let query = request.uri().query().unwrap_or_default().split('&').filter_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            Some((key.to_owned(), value.to_owned()))
        });
        let accept =
            request.headers().get(http::header::ACCEPT).map(|accept| accept.to_str().unwrap().to_owned());
        Self {
            path: request.uri().path().to_owned(),
            query: query.collect(),
            accept: accept.unwrap_or_default(),
            reply,
        }
    }

    /// What is asked for, without what is random or always the same.
    pub(crate) fn line(&self) -> String {
        let shown = self
            .query
            .iter()
            .filter(|(key, _)| !["limit", "timeoutSeconds", "allowWatchBookmarks"].contains(&key.as_str()));
        let query: Vec<_> = shown.map(|(key, value)| format!("{key}={value}")).collect();
        format!("{}?{}", self.path, query.join("&"))
    }

    /// Checks [`Self::line`].
    #[track_caller]
    pub(crate) fn expect(self, line: &str) -> Self {
        assert_eq!(self.line(), line);
        self
    }

    /// A page of a list.
    pub(crate) fn page(self, version: u64, next: &str, items: &[String]) {
        let metadata = format!(r#"{{"resourceVersion":"{version}","continue":"{next}"}}"#);
        let body = format!(
            r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{metadata},"items":[{}]}}"#,
            items.join(",")
        );
        let _ = self.reply.send(Ok(whole(200, body)));
    }

    /// A refusal.
    pub(crate) fn refuse(self, code: u16, message: &str) {
        let _ = self.reply.send(Ok(whole(code, status(code, message))));
    }

    /// 429 with `Retry-After`.
    pub(crate) fn busy(self, seconds: u64) {
        let mut response = whole(429, status(429, "too many requests"));
        response.headers_mut().insert(http::header::RETRY_AFTER, seconds.into());
        let _ = self.reply.send(Ok(response));
    }

    /// No connection.
    pub(crate) fn unreachable(self) {
        let _ = self.reply.send(Err(std::io::Error::other("connection refused")));
    }

    /// An open watch.
    pub(crate) fn open(self) -> Feed {
        let (sender, receiver) = mpsc::unbounded_channel();
        let frames = futures::stream::unfold(receiver, async |mut receiver: mpsc::UnboundedReceiver<_>| {
            receiver.recv().await.map(|frame| (frame, receiver))
        });
        let body = StreamBody::new(StreamExt::boxed(frames)).boxed_unsync();
        let _ = self.reply.send(Ok(Response::new(body)));
        Feed(sender)
    }
}

impl Feed {
    pub(crate) fn line(&self, line: &str) {
        let _ = self.0.send(Ok(Frame::data(Bytes::from(format!("{line}\n")))));
    }

    pub(crate) fn event(&self, what: &str, object: &str) {
        self.line(&format!(r#"{{"type":"{what}","object":{object}}}"#));
    }

    pub(crate) fn bookmark(&self, version: u64, initial_end: bool) {
        let annotations =
            if initial_end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
        self.event(
            "BOOKMARK",
            &format!(
                r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"{annotations}}}}}"#
            ),
        );
    }

    /// The connection breaks.
    pub(crate) fn broken(self) {
        let _ = self.0.send(Err(std::io::Error::other("connection reset")));
    }

    /// Whether the host has closed the watch.
    pub(crate) fn closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// The kind that most tests are about.
pub(crate) fn configmap() -> Gvk {
    Gvk::new("", "v1", "ConfigMap")
}

/// All objects of a kind, in all namespaces.
pub(crate) fn everything(gvk: &Gvk) -> StreamSpec {
    StreamSpec {
        gvk: gvk.clone(),
        namespaces: Namespaces::All,
        labels: Selector::everything(),
        fields: None,
        metadata_only: false,
        managed_fields: false,
    }
}

/// `web/NAME@VERSION` with a UID of its own life and one label.
pub(crate) fn object(name: &str, uid: &str, version: u64, label: &str) -> String {
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"namespace":"web","name":"{name}","uid":"{uid}","resourceVersion":"{version}","labels":{{"app":"{label}"}},"managedFields":[{{"manager":"kubectl"}}]}},"data":{{"k":"{name}"}}}}"#
    )
}

pub(crate) fn status(code: u16, message: &str) -> String {
    format!(r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","message":"{message}","code":{code}}}"#)
}

pub(crate) fn show(change: &Change) -> String {
    let side = |object: &Option<reeve_core::object::SharedObject>| match object {
        Some(object) => format!("{}@{}", object.meta().name, object.meta().resource_version),
        None => "-".to_owned(),
    };
    let cause = format!("{:?}", change.cause);
    let cause = cause.split(['(', ' ']).next().unwrap_or_default().to_lowercase();
    format!("{cause} {}→{}", side(&change.old), side(&change.new))
}

fn whole(code: u16, body: String) -> Response<AnyBody> {
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

const DISCOVERY: &str = r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[
    {"name":"configmaps","namespaced":true,"kind":"ConfigMap","verbs":["get","list","watch"]},
    {"name":"bindings","namespaced":true,"kind":"Binding","verbs":["create"]},
    {"name":"nodes","namespaced":false,"kind":"Node","verbs":["get","list","watch"]}]}"#;
