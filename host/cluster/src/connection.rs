//! The way to the API server: configuration, transport, and how it is measured.
//!
//! `kube` gives configuration, TLS and authentication; everything above it (paths, retries,
//! parsing) is ours. Nothing here retries: what a failed request means differs between a watch and
//! a write, so its sender decides.
//!
//! HTTP/1.1: each open watch has a connection of its own; everything else shares at most
//! [`MAX_REQUESTS`] of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::metrics::RestMetrics;

mod config;
mod transport;

pub use config::ConnectError;
pub(crate) use transport::chain;

/// The most requests in flight, watches aside. The measured API server gives at most 1,400 writes
/// a second at 1-5 ms each, so more in flight would only queue there.
pub const MAX_REQUESTS: usize = 64;

/// The most bytes of an answer that is read as a whole. The API server takes no object over
/// 3 MiB; discovery documents are below 1 MiB.
pub const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;

/// Where to find the API server.
#[derive(Debug, Clone, Default)]
pub struct ConnectOptions {
    /// A kubeconfig file. `None`: the files of `$KUBECONFIG`, else `~/.kube/config` if it exists,
    /// else the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; `None`: its current one.
    pub context: Option<String>,
}

/// One instrumented way to the API server. Cheap to clone.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    client: kube::Client,
    server: String,
    metrics: RestMetrics,
    permits: Semaphore,
}

/// A whole answer of the API server, of whatever status.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The HTTP headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request never reached the server: it certainly was not carried out.
    #[error("failed to reach the API server {server}: {reason}")]
    NotSent {
        /// The server's URL.
        server: String,
        /// What the transport said.
        reason: String,
    },
    /// No complete answer came, or not in time: the request may have been carried out.
    #[error("failed to get an answer from the API server {server}: {reason}")]
    Unknown {
        /// The server's URL.
        server: String,
        /// What the transport said.
        reason: String,
    },
}

// === impl Connection ===

impl Connection {
    /// Loads the configuration and builds the client. It sends nothing: the server may come later.
    pub async fn open(
        options: &ConnectOptions,
        registry: &prometheus::Registry,
    ) -> Result<Self, ConnectError> {
        let config = config::load(options).await?;
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let metrics = RestMetrics::new(&host_of(&server), registry)?;
        let client = transport::client(config, &metrics)
            .map_err(|error| ConnectError::Client { server: server.clone(), reason: chain(&error) })?;
        Ok(Self::over(&client, server, metrics))
    }

    /// Over a client that exists; tests plug a tower service into `kube::Client::new`. `server` is
    /// its URL, for messages and the label `host`.
    pub fn from_client(
        client: &kube::Client,
        server: &str,
        registry: &prometheus::Registry,
    ) -> Result<Self, prometheus::Error> {
        let metrics = RestMetrics::new(&host_of(server), registry)?;
        Ok(Self::over(client, server.to_owned(), metrics))
    }

    fn over(client: &kube::Client, server: String, metrics: RestMetrics) -> Self {
        let client = transport::instrument(client, &metrics);
        Self { inner: Arc::new(Inner { client, server, metrics, permits: Semaphore::new(MAX_REQUESTS) }) }
    }

    /// The instrumented client.
    pub fn client(&self) -> kube::Client {
        self.inner.client.clone()
    }

    /// The namespace of the kubeconfig's context, or that of the host's own pod.
    pub fn default_namespace(&self) -> &str {
        self.inner.client.default_namespace()
    }

    /// The server's URL, for messages.
    pub fn server(&self) -> &str {
        &self.inner.server
    }

    /// Sends one request and reads the whole answer, whatever its status. Its URI is a path such
    /// as [`crate::path::object`] gives. Nothing is retried.
    ///
    /// `timeout` counts from the call, so it covers the wait for one of [`MAX_REQUESTS`] places;
    /// running out there is [`RequestError::NotSent`].
    pub async fn request(
        &self,
        request: Request<Vec<u8>>,
        timeout: Duration,
    ) -> Result<Answer, RequestError> {
        let begun = Instant::now();
        let deadline = begun + timeout;
        let method = request.method().clone();
        let permit = timeout_at(deadline, self.inner.permits.acquire()).await;
        self.inner.metrics.waited(method.as_str(), begun.elapsed().as_secs_f64());
        let Ok(Ok(_permit)) = permit else {
            return Err(
                self.not_sent(format!("{MAX_REQUESTS} requests in flight took longer than {timeout:?}"))
            );
        };
        let exchange = async {
            let response = self.send(request).await?;
            let (parts, body) = response.into_parts();
            let body = http_body_util::Limited::new(body, MAX_ANSWER_BYTES)
                .collect()
                .await
                .map_err(|error| self.unknown(chain(&*error)))?
                .to_bytes();
            Ok(Answer { status: parts.status, headers: parts.headers, body })
        };
        match timeout_at(deadline, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(self.unknown(format!("nothing came within {timeout:?}"))),
        }
    }

    /// Sends one request and hands over the answer's body as it comes; for lists and watches,
    /// which take no place of the [`MAX_REQUESTS`]. `timeout` is for the answer's head.
    pub(crate) async fn open_stream(
        &self,
        request: Request<Vec<u8>>,
        timeout: Duration,
    ) -> Result<Response<Body>, RequestError> {
        match tokio::time::timeout(timeout, self.send(request)).await {
            Ok(response) => response,
            Err(_) => Err(self.unknown(format!("nothing came within {timeout:?}"))),
        }
    }

    /// Counts in `rest_client_request_retries_total` that a request is sent again because of
    /// `code`.
    pub fn count_retry(&self, code: StatusCode, method: &http::Method) {
        self.inner.metrics.retried(code.as_str(), method.as_str());
    }

    pub(crate) fn unknown(&self, reason: String) -> RequestError {
        RequestError::Unknown { server: self.inner.server.clone(), reason }
    }

    fn not_sent(&self, reason: String) -> RequestError {
        RequestError::NotSent { server: self.inner.server.clone(), reason }
    }

    async fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Body>, RequestError> {
        self.inner.client.send(request.map(Body::from)).await.map_err(|error| {
            let reason = chain(&error);
            if transport::never_sent(&error) { self.not_sent(reason) } else { self.unknown(reason) }
        })
    }
}

/// `host:port` of a URL, as client-go labels it.
fn host_of(server: &str) -> String {
    server
        .parse::<http::Uri>()
        .ok()
        .and_then(|uri| uri.authority().map(ToString::to_string))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
