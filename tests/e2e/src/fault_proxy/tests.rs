//! The proxy against a small server of our own.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::*;

/// Answers every request with its own head; a watch gets what `events` says, line by line.
struct Server {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
    events: broadcast::Sender<String>,
    _tasks: JoinSet<()>,
}

impl Server {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let events = broadcast::Sender::<String>::new(64);
        let mut tasks = JoinSet::new();
        let (seen_too, events_too) = (Arc::clone(&seen), events.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (seen, events) = (Arc::clone(&seen_too), events_too.clone());
                connections.spawn(async move {
                    let service = service_fn(|request| {
                        std::future::ready(Ok::<_, std::convert::Infallible>(serve(&seen, &events, &request)))
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    // A cut connection is what some tests are about.
                    let _ended = http.serve_connection(TokioIo::new(tcp), service).await;
                });
            }
        });
        Self { url, seen, events, _tasks: tasks }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().clone()
    }

    async fn event(&self, kind: &str, name: &str) {
        until("a watch reaches the server", || self.events.receiver_count() > 0).await;
        let event = serde_json::json!({ "type": kind, "object": { "metadata": { "name": name } } });
        self.events.send(format!("{event}\n")).unwrap();
    }
}

fn serve(
    seen: &Mutex<Vec<String>>,
    events: &broadcast::Sender<String>,
    request: &http::Request<Incoming>,
) -> http::Response<stream::Body> {
    let target = request.uri().to_string();
    let auth = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
    seen.lock().push(format!("{} {target} {}", request.method(), auth.unwrap_or_default()));
    let body = if target.contains("watch=true") {
        let receiver = events.subscribe();
        let lines = futures::stream::unfold(receiver, |mut receiver| async move {
            let line = receiver.recv().await.ok()?;
            (!line.starts_with("{\"object\":{\"metadata\":{\"name\":\"end\""))
                .then(|| (Ok(Frame::data(line.into())), receiver))
        });
        StreamBody::new(lines).boxed_unsync()
    } else {
        let text = format!("{} {target}", request.method());
        Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
    };
    http::Response::builder().header("content-type", "application/json").body(body).unwrap()
}

struct Fixture {
    server: Server,
    proxy: FaultProxy,
    client: kube::Client,
    _dir: tempfile::TempDir,
}

async fn fixture_with(transport: Transport) -> Fixture {
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("upstream");
    std::fs::write(
        &source,
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{ "name": "a", "cluster": { "server": server.url } }],
            "users": [{ "name": "a", "user": { "token": "abc" } }],
            "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a", "namespace": "ns" } }],
        })
        .to_string(),
    )
    .unwrap();
    let proxy = FaultProxy::start(Options {
        upstream: Upstream::from_kubeconfig(&source).await.unwrap(),
        transport,
        port: 0,
        control_port: Some(0),
        kubeconfig: dir.path().join("proxy"),
    })
    .unwrap();
    let client = client(proxy.kubeconfig()).await;
    Fixture { server, proxy, client, _dir: dir }
}

async fn fixture() -> Fixture {
    fixture_with(Transport::Plain).await
}

async fn client(kubeconfig: &Path) -> kube::Client {
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

impl Fixture {
    /// The status, or the error that the client met, and the body.
    async fn send(&self, method: &str, target: &str) -> (Option<u16>, String) {
        let request = http::Request::builder().method(method).uri(target).body(Vec::new().into()).unwrap();
        match self.client.send(request).await {
            Err(_) => (None, String::new()),
            Ok(response) => {
                let status = response.status().as_u16();
                match response.into_body().collect().await {
                    Ok(body) => (Some(status), String::from_utf8(body.to_bytes().to_vec()).unwrap()),
                    Err(_) => (None, String::new()),
                }
            }
        }
    }

    /// Opens a watch and returns its body.
    async fn watch(&self, target: &str) -> Lines {
        let request = http::Request::get(target).body(Vec::new().into()).unwrap();
        Lines { body: self.client.send(request).await.unwrap().into_body(), rest: String::new() }
    }
}

struct Lines {
    body: kube::client::Body,
    rest: String,
}

impl Lines {
    /// The next line; `None` at the end or a cut.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some((line, rest)) = self.rest.split_once('\n') {
                let line = line.to_owned();
                self.rest = rest.to_owned();
                return Some(line);
            }
            let frame = self.body.frame().await?.ok()?;
            self.rest.push_str(std::str::from_utf8(&frame.into_data().ok()?).unwrap());
        }
    }

    /// The name of the next event's object.
    async fn name(&mut self) -> Option<String> {
        let event: serde_json::Value = serde_json::from_str(&self.next().await?).unwrap();
        Some(event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned())
    }
}

async fn until(what: &str, mut check: impl FnMut() -> bool) {
    let wait = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

const WATCH: &str = "/api/v1/configmaps?watch=true";

#[tokio::test]
async fn passes_requests_on_with_credentials_and_logs_them() {
    for transport in [Transport::Plain, Transport::Tls] {
        let fixture = fixture_with(transport).await;
        let answer = fixture.send("PATCH", "/api/v1/a?fieldManager=x%2Fy").await;
        assert_eq!(answer, (Some(200), "PATCH /api/v1/a?fieldManager=x%2Fy".to_owned()), "{transport:?}");
        assert_eq!(fixture.server.seen(), ["PATCH /api/v1/a?fieldManager=x%2Fy Bearer abc"]);
        let logged = fixture.proxy.requests(&Filter::writes());
        assert_eq!(logged.len(), 1);
        assert_eq!((logged[0].status, logged[0].response_bytes, logged[0].lost), (Some(200), 34, false));
        assert_eq!(logged[0].line.query["fieldManager"], "x/y");
        assert!(fixture.proxy.requests(&Filter::reads("*")).is_empty());
    }
}

#[tokio::test]
async fn a_lost_request_is_not_seen_by_the_server_a_lost_answer_is() {
    let fixture = fixture().await;
    let lost = fixture.proxy.add(Rule::new(Filter::any().on("/a"), Action::LoseRequest).times(1));
    fixture.proxy.add(Rule::new(Filter::any().on("/b"), Action::LoseAnswer));
    assert_eq!(fixture.send("POST", "/a").await.0, None);
    assert!(fixture.server.seen().is_empty());
    assert_eq!(fixture.send("POST", "/b").await.0, None);
    assert_eq!(fixture.server.seen().len(), 1);
    assert_eq!(fixture.send("POST", "/a").await.0, Some(200));
    assert_eq!(fixture.proxy.counts(lost), Some(Counts { matched: 2, affected: 1 }));
    let logged = fixture.proxy.requests(&Filter::any());
    let facts: Vec<_> = logged.iter().map(|request| (request.status, request.lost)).collect();
    assert_eq!(facts, [(None, true), (Some(200), true), (Some(200), false)]);
}

#[tokio::test]
async fn answers_in_the_servers_place() {
    let fixture = fixture().await;
    fixture.proxy.add(Rule::new(Filter::any(), Action::too_many_requests(7)).nth(2));
    let last = fixture.proxy.add(Rule::new(Filter::any(), Action::respond(410)).nth(3));
    assert_eq!(fixture.send("GET", "/a").await.0, Some(200));
    let (status, body) = fixture.send("GET", "/a").await;
    let object: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &object["details"]["retryAfterSeconds"]), (Some(429), &7.into()));
    let (status, body) = fixture.send("GET", "/a").await;
    let object: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, object["reason"].as_str()), (Some(410), Some("Expired")));
    assert!(fixture.proxy.requests(&Filter::any())[2].by_rule);
    fixture.proxy.add(Rule::new(Filter::any(), Action::respond(500)));
    assert_eq!(fixture.send("GET", "/a").await.0, Some(500));
    assert_eq!(fixture.proxy.remove(last).map(|counts| counts.affected), Some(1));
    fixture.proxy.clear();
    assert_eq!(fixture.send("GET", "/a").await.0, Some(200));
    assert_eq!(fixture.server.seen().len(), 2);
}

#[tokio::test]
async fn delays_slows_and_cuts_bodies() {
    let fixture = fixture().await;
    let delay = fixture.proxy.add(Rule::new(Filter::any(), Action::Delay { ms: 100 }));
    let before = Instant::now();
    assert_eq!(fixture.send("GET", "/a").await.0, Some(200));
    assert!(before.elapsed() >= Duration::from_millis(100));
    fixture.proxy.remove(delay);
    // 6 bytes in pieces of 2: three pauses.
    let slow = fixture.proxy.add(Rule::new(Filter::any(), Action::SlowBody { bytes: 2, ms: 40 }));
    let before = Instant::now();
    assert_eq!(fixture.send("GET", "/a").await, (Some(200), "GET /a".to_owned()));
    assert!(before.elapsed() >= Duration::from_millis(120));
    fixture.proxy.remove(slow);
    fixture.proxy.add(Rule::new(Filter::any(), Action::CutBody { after_bytes: 3 }));
    assert_eq!(fixture.send("GET", "/a").await.0, None);
    assert_eq!(fixture.proxy.requests(&Filter::any()).last().unwrap().response_bytes, 3);
}

#[tokio::test]
async fn watches_are_cut_after_events_or_at_once() {
    let fixture = fixture().await;
    fixture.proxy.add(Rule::new(Filter::watches("*"), Action::Cut { after: 2 }).times(1));
    let mut first = fixture.watch(WATCH).await;
    for name in ["a", "b", "c"] {
        fixture.server.event("ADDED", name).await;
    }
    assert_eq!(first.name().await.as_deref(), Some("a"));
    assert_eq!(first.name().await.as_deref(), Some("b"));
    assert_eq!(first.next().await, None);
    let mut second = fixture.watch(WATCH).await;
    fixture.proxy.cut_open(Filter::watches("*"));
    assert_eq!(second.next().await, None);
    let mut third = fixture.watch(WATCH).await;
    // The cut watches leave the server only now and then; the last one subscribed is the third.
    until("only the third is open", || fixture.server.events.receiver_count() == 1).await;
    fixture.server.event("ADDED", "d").await;
    assert_eq!(third.name().await.as_deref(), Some("d"));
    let open = fixture.proxy.requests(&Filter::watches("*"));
    assert_eq!(
        open.iter().map(|watch| (watch.open, watch.events)).collect::<Vec<_>>(),
        [(false, 2), (false, 0), (true, 1)]
    );
}

#[tokio::test]
async fn a_pause_holds_events_and_lets_them_go_in_order() {
    let fixture = fixture().await;
    let mut watch = fixture.watch(WATCH).await;
    fixture.server.event("ADDED", "a").await;
    assert_eq!(watch.name().await.as_deref(), Some("a"));
    let pause = fixture.proxy.add(Rule::new(Filter::watches("*"), Action::Pause));
    until("the stream saw the rule", || fixture.proxy.counts(pause).unwrap().affected == 1).await;
    fixture.server.event("MODIFIED", "b").await;
    fixture.server.event("DELETED", "c").await;
    // A server that ends the watch meanwhile loses nothing.
    fixture.server.event("MODIFIED", "end").await;
    until("the server's side is over", || fixture.server.events.receiver_count() == 0).await;
    assert!(tokio::time::timeout(Duration::from_millis(50), watch.next()).await.is_err());
    fixture.proxy.remove(pause);
    assert_eq!(watch.name().await.as_deref(), Some("b"));
    assert_eq!(watch.name().await.as_deref(), Some("c"));
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_shift_delays_each_event_by_the_same_time() {
    let fixture = fixture().await;
    fixture.proxy.add(Rule::new(Filter::watches("*"), Action::Shift { ms: 200 }));
    let mut watch = fixture.watch(WATCH).await;
    let before = Instant::now();
    for name in ["a", "b", "c", "d"] {
        fixture.server.event("ADDED", name).await;
    }
    for name in ["a", "b", "c", "d"] {
        assert_eq!(watch.name().await.as_deref(), Some(name));
    }
    let took = before.elapsed();
    assert!(took >= Duration::from_millis(200) && took < Duration::from_millis(600), "{took:?}");
}

#[tokio::test]
async fn events_are_stripped_injected_and_ended_with_an_error() {
    let fixture = fixture().await;
    fixture.proxy.add(Rule::new(Filter::watches("*"), Action::StripBookmarks));
    let line = "{\"type\":\"ADDED\",".to_owned();
    fixture.proxy.add(Rule::new(Filter::watches("*"), Action::Inject { after: 1, line: line.clone() }));
    fixture.proxy.add(Rule::new(Filter::watches("*"), Action::WatchError { after: 2, code: 410 }));
    let mut watch = fixture.watch(WATCH).await;
    fixture.server.event("BOOKMARK", "mark").await;
    fixture.server.event("ADDED", "a").await;
    fixture.server.event("ADDED", "b").await;
    assert_eq!(watch.name().await.as_deref(), Some("a"));
    assert_eq!(watch.next().await, Some(line));
    assert_eq!(watch.name().await.as_deref(), Some("b"));
    let error: serde_json::Value = serde_json::from_str(&watch.next().await.unwrap()).unwrap();
    assert_eq!((&error["type"], &error["object"]["code"]), (&"ERROR".into(), &410.into()));
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn refuses_watch_lists_only() {
    let fixture = fixture().await;
    fixture.proxy.add(Rule::new(Filter::any(), Action::RefuseWatchList));
    let (status, _) = fixture.send("GET", &format!("{WATCH}&sendInitialEvents=true")).await;
    assert_eq!(status, Some(422));
    assert_eq!(fixture.send("GET", "/api/v1/configmaps").await.0, Some(200));
}

#[tokio::test]
async fn the_control_endpoint_does_what_the_library_does() {
    let fixture = fixture().await;
    let control = fixture.proxy.control().unwrap();
    let config = kube::Config::new(format!("http://{control}").parse().unwrap());
    let control = kube::Client::try_from(config).unwrap();
    let ask = async |method: &str, target: &str, body: &str| -> (u16, serde_json::Value) {
        let body = body.as_bytes().to_vec().into();
        let request = http::Request::builder().method(method).uri(target).body(body).unwrap();
        let response = control.send(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap())
    };
    let rule = r#"{"match":{"path":"/a"},"times":1,"action":{"do":"respond","status":503}}"#;
    assert_eq!(ask("POST", "/rules", rule).await, (200, serde_json::json!({ "id": 1 })));
    assert_eq!(fixture.send("GET", "/a").await.0, Some(503));
    let (_, rules) = ask("GET", "/rules", "").await;
    assert_eq!(rules[0]["counts"], serde_json::json!({ "matched": 1, "affected": 1 }));
    let (_, requests) = ask("POST", "/requests", r#"{"path":"/a"}"#).await;
    assert_eq!((&requests[0]["status"], &requests[0]["byRule"]), (&503.into(), &true.into()));
    assert_eq!(ask("DELETE", "/rules/1", "").await.0, 200);
    assert_eq!(ask("DELETE", "/rules/1", "").await.0, 404);
    assert_eq!(ask("POST", "/rules", "{}").await.0, 400);
    assert_eq!(ask("GET", "/nothing", "").await.0, 404);
}

#[tokio::test]
async fn a_server_that_is_away_closes_the_clients_connection() {
    let fixture = fixture().await;
    assert_eq!(fixture.send("GET", "/a").await.0, Some(200));
    let Fixture { server, proxy, client, _dir } = fixture;
    drop(server);
    let request = http::Request::get("/a").body(Vec::new().into()).unwrap();
    until("the server is gone", || std::net::TcpStream::connect(proxy.address()).is_ok()).await;
    assert!(client.send(request).await.is_err());
    assert!(proxy.requests(&Filter::any()).last().unwrap().lost);
}

#[tokio::test]
async fn dropping_it_frees_its_ports_and_ends_its_streams() {
    let fixture = fixture().await;
    let mut watch = fixture.watch(WATCH).await;
    let addresses = [fixture.proxy.address(), fixture.proxy.control().unwrap()];
    let Fixture { server, proxy, .. } = fixture;
    drop(proxy);
    assert_eq!(watch.next().await, None);
    for address in addresses {
        drop(std::net::TcpListener::bind(address).unwrap());
    }
    until("the server's side is over", || server.events.receiver_count() == 0).await;
}
