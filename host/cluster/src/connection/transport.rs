//! The tower stack below [`Connection`](super::Connection).

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiAddrs, GaiFuture, GaiResolver, Name};
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt as _};
use tokio::time::Instant;
use tower::{BoxError, Service, ServiceBuilder};

use super::MAX_REQUESTS;
use crate::metrics::RestMetrics;

/// How long TCP may take to connect: longer than any round trip, shorter than a first back-off of
/// a user who waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A peer that vanished without a word is found after about a minute: 30 s of silence, then three
/// probes.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// Unused connections are closed before the API server's own 3 min do it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// What the host calls itself in requests and in the server's audit log.
const AGENT: &str = concat!("reeve/", env!("CARGO_PKG_VERSION"));

/// Measures DNS.
#[derive(Clone)]
struct TimedResolver {
    inner: GaiResolver,
    histogram: prometheus::Histogram,
}

/// Tells how many bytes came once the body is dropped, read to its end or not.
struct Received {
    bytes: u64,
    histogram: prometheus::Histogram,
}

/// As `kube` builds it, but with our time limits and without its retries: a write of unknown
/// outcome must not be sent twice behind our back.
pub(super) fn client(config: kube::Config, metrics: &RestMetrics) -> Result<kube::Client, kube::Error> {
    let resolver = TimedResolver { inner: GaiResolver::new(), histogram: metrics.dns().clone() };
    let mut connector = HttpConnector::new_with_resolver(resolver);
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEPALIVE.0));
    connector.set_keepalive_interval(Some(KEEPALIVE.1));
    connector.set_keepalive_retries(Some(KEEPALIVE.2));
    let https = config.rustls_https_connector_with_connector(connector)?;
    let transport = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_REQUESTS)
        .build::<_, Body>(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(transport);
    Ok(kube::Client::new(service, config.default_namespace))
}

/// Names the host in each request, and counts and times it.
pub(super) fn instrument(client: &kube::Client, metrics: &RestMetrics) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let (client, metrics) = (client.clone(), metrics.clone());
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (client, metrics) = (client.clone(), metrics.clone());
        async move {
            request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
            let method = request.method().clone();
            metrics.sent(method.as_str(), hyper::body::Body::size_hint(request.body()).lower());
            let begun = Instant::now();
            let result = client.send(request).await;
            let code = match &result {
                Ok(response) => response.status().as_str().to_owned(),
                Err(_) => "<error>".to_owned(),
            };
            metrics.answered(method.as_str(), &code, begun.elapsed().as_secs_f64());
            let mut received = Received { bytes: 0, histogram: metrics.response_size(method.as_str()) };
            result.map(|response: Response<Body>| {
                response.map(|body| {
                    body.map_frame(move |frame| {
                        received.add(frame.data_ref().map_or(0, bytes::Bytes::len));
                        frame
                    })
                })
            })
        }
    });
    kube::Client::new(service, namespace)
}

/// An error with its causes, each once, without what only names the layer that it passed.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    let text = text.replace("ServiceError: ", "");
    // rustls ends some of its texts with a link for programmers.
    text.split(": https://docs.rs").next().unwrap_or_default().to_owned()
}

/// Whether the request certainly did not leave this process: no connection, or no credentials.
pub(super) fn never_sent(error: &kube::Error) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
            return error.is_connect();
        }
        if matches!(
            error.downcast_ref::<kube::Error>(),
            Some(kube::Error::Auth(_) | kube::Error::BuildRequest(_))
        ) {
            return true;
        }
        next = error.source();
    }
    false
}

// === impl TimedResolver ===

impl Service<Name> for TimedResolver {
    type Response = GaiAddrs;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<GaiAddrs, std::io::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let histogram = self.histogram.clone();
        let begun = Instant::now();
        let lookup: GaiFuture = self.inner.call(name);
        Box::pin(async move {
            let addresses = lookup.await;
            histogram.observe(begun.elapsed().as_secs_f64());
            addresses
        })
    }
}

// === impl Received ===

impl Received {
    /// A method, so that a closure that calls it captures all of it and not only the number.
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
        self.histogram.observe(self.bytes as f64);
    }
}
