use std::io::Write as _;

use http_body_util::Full;

use super::*;

fn client(status: u16, body: &'static str) -> kube::Client {
    let service = tower::service_fn(move |request: Request<Body>| async move {
        assert_eq!(request.headers()[http::header::USER_AGENT], concat!("reeve/", env!("CARGO_PKG_VERSION")));
        if request.uri().path() == "/hang" {
            std::future::pending::<()>().await;
        }
        let response =
            Response::builder().status(status).body(Full::new(Bytes::from_static(body.as_bytes())));
        Ok::<_, std::io::Error>(response.unwrap())
    });
    kube::Client::new(service, "web")
}

fn get(path: &str) -> Request<Vec<u8>> {
    Request::get(path).body(Vec::new()).unwrap()
}

fn value(registry: &prometheus::Registry, series: &str) -> Option<String> {
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    text.lines().find_map(|line| line.strip_prefix(series)).map(|value| value.trim().to_owned())
}

#[tokio::test]
async fn requests_are_measured_under_the_names_of_controller_runtime() {
    let registry = prometheus::Registry::new();
    let connection =
        Connection::from_client(&client(404, "gone"), "https://10.0.0.1:6443", &registry).unwrap();
    let requests = |code: &str| {
        format!(r#"rest_client_requests_total{{code="{code}",host="10.0.0.1:6443",method="GET"}}"#)
    };
    assert_eq!(
        value(&registry, &requests("200")).as_deref(),
        Some("0"),
        "series exist before the first request"
    );
    let answer = connection.request(get("/x"), Duration::from_secs(1)).await.unwrap();
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (404, &b"gone"[..]));
    assert_eq!(value(&registry, &requests("404")).as_deref(), Some("1"));
    let sum = r#"rest_client_response_size_bytes_sum{host="10.0.0.1:6443",verb="GET"}"#;
    assert_eq!(value(&registry, sum).as_deref(), Some("4"));
    let count = r#"rest_client_request_duration_seconds_count{host="10.0.0.1:6443",verb="GET"}"#;
    assert_eq!(value(&registry, count).as_deref(), Some("1"));
    connection.count_retry(StatusCode::TOO_MANY_REQUESTS, &http::Method::PATCH);
    let retries = r#"rest_client_request_retries_total{code="429",host="10.0.0.1:6443",verb="PATCH"}"#;
    assert_eq!(value(&registry, retries).as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_has_an_unknown_outcome() {
    let connection =
        Connection::from_client(&client(200, ""), "https://api", &prometheus::Registry::new()).unwrap();
    let error = connection.request(get("/hang"), Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to get an answer from the API server https://api: nothing came within 3s"
    );
    assert!(matches!(error, RequestError::Unknown { .. }));
}

#[tokio::test]
async fn a_server_that_is_not_there_was_certainly_not_reached() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    // Port 1 of this machine: nothing listens there.
    file.write_all(kubeconfig("http://127.0.0.1:1").as_bytes()).unwrap();
    let options = ConnectOptions { kubeconfig: Some(file.path().to_owned()), context: None };
    let connection = Connection::open(&options, &prometheus::Registry::new()).await.unwrap();
    assert_eq!(connection.default_namespace(), "web");
    let error = connection.request(get("/api"), Duration::from_secs(5)).await.unwrap_err();
    assert!(matches!(&error, RequestError::NotSent { .. }), "{error}");
}

#[tokio::test]
async fn configuration_errors_name_the_file_and_the_remedy() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(kubeconfig("http://127.0.0.1:1").as_bytes()).unwrap();
    let path = file.path().display().to_string();
    let open = async |path: &str, context: Option<&str>| {
        let options =
            ConnectOptions { kubeconfig: Some(path.into()), context: context.map(ToOwned::to_owned) };
        Connection::open(&options, &prometheus::Registry::new()).await.err().map(|error| error.to_string())
    };
    assert_eq!(
        open(&path, Some("prod")).await,
        Some(format!("failed to use the kubeconfig {path}: it has no context \"prod\"; it has dev"))
    );
    let missing = open("/nowhere/kubeconfig", None).await.unwrap();
    assert!(missing.starts_with("failed to read the kubeconfig /nowhere/kubeconfig: "), "{missing}");
    assert!(missing.ends_with("name another one with --kubeconfig or KUBECONFIG"), "{missing}");
    file.write_all(b"\n\t: [").unwrap();
    let broken = open(&path, None).await.unwrap();
    assert!(broken.starts_with(&format!("failed to read the kubeconfig {path}: ")), "{broken}");
}

fn kubeconfig(server: &str) -> String {
    format!(
        "apiVersion: v1
kind: Config
current-context: dev
clusters: [{{name: c, cluster: {{server: '{server}'}}}}]
contexts: [{{name: dev, context: {{cluster: c, user: u, namespace: web}}}}]
users: [{{name: u, user: {{token: secret}}}}]
"
    )
}
