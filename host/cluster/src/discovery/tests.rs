use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use kube::client::Body;

use super::*;

const APPS: &str = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apps/v1","resources":[
    {"name":"deployments","singularName":"deployment","namespaced":true,"kind":"Deployment","verbs":["get","list"]},
    {"name":"deployments/scale","namespaced":true,"group":"autoscaling","kind":"Scale","verbs":["get"]},
    {"name":"deployments/status","namespaced":true,"kind":"Deployment","verbs":["get","patch"]}]}"#;

/// A server that gives one answer, which the test changes; and how often it was asked.
struct Server {
    discovery: Discovery,
    answer: Arc<Mutex<(u16, &'static str)>>,
    asked: Arc<AtomicUsize>,
}

fn server(status: u16, body: &'static str) -> Server {
    let answer = Arc::new(Mutex::new((status, body)));
    let asked = Arc::new(AtomicUsize::new(0));
    let (answers, count) = (Arc::clone(&answer), Arc::clone(&asked));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (status, body) = *answers.lock();
        count.fetch_add(1, Ordering::Relaxed);
        assert_eq!(request.uri().path(), "/apis/apps/v1");
        async move {
            tokio::task::yield_now().await;
            let response =
                Response::builder().status(status).body(Full::new(Bytes::from_static(body.as_bytes())));
            Ok::<_, std::io::Error>(response.unwrap())
        }
    });
    let client = kube::Client::new(service, "default");
    let connection = Connection::from_client(&client, "https://api", &prometheus::Registry::new()).unwrap();
    Server { discovery: Discovery::new(connection), answer, asked }
}

fn deployment() -> Gvk {
    Gvk::new("apps", "v1", "Deployment")
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_read_once_with_its_subresources() {
    let server = server(200, APPS);
    let gvk = deployment();
    let (first, second) = tokio::join!(server.discovery.resolve(&gvk), server.discovery.resolve(&gvk));
    let kind = first.unwrap();
    assert_eq!((&*kind.plural, kind.scope), ("deployments", Scope::Namespaced));
    assert!(kind.has_subresource("status") && kind.has_subresource("scale") && !kind.has_subresource("log"));
    assert_eq!(second.unwrap(), kind);
    assert_eq!(server.asked.load(Ordering::Relaxed), 1, "two who ask at once share a request");
    server.discovery.forget(&gvk);
    server.discovery.resolve(&gvk).await.unwrap();
    assert_eq!(server.asked.load(Ordering::Relaxed), 2);
    tokio::time::advance(KNOWN_FOR).await;
    server.discovery.resolve(&gvk).await.unwrap();
    assert_eq!(server.asked.load(Ordering::Relaxed), 3, "a known kind is looked up again some day");
}

#[tokio::test(start_paused = true)]
async fn complaint_13_a_missing_kind_is_found_within_a_second_of_its_arrival() {
    let server = server(404, "404 page not found");
    let gvk = deployment();
    let missing = Err(DiscoveryError::NotServed(gvk.clone()));
    assert_eq!(server.discovery.resolve(&gvk).await, missing);
    *server.answer.lock() = (200, APPS);
    assert_eq!(server.discovery.resolve(&gvk).await, missing, "not asked again at once");
    assert_eq!(server.asked.load(Ordering::Relaxed), 1);
    tokio::time::advance(MISSING_FOR).await;
    assert!(server.discovery.resolve(&gvk).await.is_ok());
    let other = Gvk::new("apps", "v1", "Daemonset");
    assert_eq!(server.discovery.resolve(&other).await, Err(DiscoveryError::NotServed(other.clone())));
}

#[tokio::test(start_paused = true)]
async fn refusals_are_told_apart_and_not_kept() {
    let server = server(403, "{}");
    let gvk = deployment();
    let forbidden = server.discovery.resolve(&gvk).await.unwrap_err();
    assert!(forbidden.to_string().contains("get /apis/apps/v1"), "{forbidden}");
    assert!(forbidden.to_string().contains("system:discovery"), "{forbidden}");
    *server.answer.lock() = (503, "");
    let unreachable = server.discovery.resolve(&gvk).await.unwrap_err();
    assert!(matches!(unreachable, DiscoveryError::Unreachable { .. }), "{unreachable}");
    *server.answer.lock() = (200, "<html>");
    let bad = server.discovery.resolve(&gvk).await.unwrap_err();
    assert!(matches!(bad, DiscoveryError::Bad { .. }), "{bad}");
    *server.answer.lock() = (200, APPS);
    assert!(server.discovery.resolve(&gvk).await.is_ok());
}
