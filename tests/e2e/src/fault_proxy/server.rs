//! One request through the proxy: log, faults before, server, faults after.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::Shared;
use super::filter::RequestLine;
use super::log::Writer;
use super::rule::{Action, Active, status_object};
use super::stream::{Body, Faults, Watch, pass};
use super::upstream::Link;

/// The most bytes of a request body; an API server takes 3 MiB.
const MAX_REQUEST_BYTES: usize = 8 * 1024 * 1024;

/// The pause after a failed accept: short against any test's patience, long against a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Takes connections until the task is dropped with its runtime.
pub(super) async fn serve(shared: Arc<Shared>, listener: TcpListener, tls: Option<TlsAcceptor>) {
    let mut connections = JoinSet::new();
    loop {
        let tcp = accept(&listener, &mut connections).await;
        let (shared, tls) = (Arc::clone(&shared), tls.clone());
        connections.spawn(async move {
            let served = match tls {
                None => converse(shared, tcp).await,
                Some(tls) => match tls.accept(tcp).await {
                    Ok(stream) => converse(shared, stream).await,
                    Err(error) => {
                        tracing::debug!(%error, "a client's TLS handshake failed");
                        return;
                    }
                },
            };
            if let Err(error) = served {
                tracing::trace!(%error, "a client's connection ended");
            }
        });
    }
}

/// The next connection; what ended of the earlier ones is let go meanwhile.
pub(super) async fn accept(listener: &TcpListener, connections: &mut JoinSet<()>) -> TcpStream {
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((tcp, _)) => return tcp,
                Err(error) => {
                    // Out of file descriptors, for example: what waits in the backlog can wait on.
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = connections.join_next() => if let Err(error) = ended {
                tracing::error!(%error, "a connection's task ended badly");
            }
        }
    }
}

async fn converse(
    shared: Arc<Shared>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> hyper::Result<()> {
    let link = Link::new(shared.upstream.clone());
    let service = service_fn(|request| handle(&shared, &link, request));
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await
}

/// The answer to a request. An error closes the connection without one.
async fn handle(shared: &Shared, server: &Link, request: Request<Incoming>) -> io::Result<Response<Body>> {
    let line = RequestLine::of(&request);
    let number = shared.streams.fetch_add(1, Ordering::SeqCst);
    let log = shared.log.begin(line.clone());
    let faults = admitted(shared, &line, &log);
    for fault in &faults {
        if let Action::Delay { ms } = fault.rule.action {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }
    for fault in &faults {
        match &fault.rule.action {
            Action::LoseRequest => {
                log.lost();
                return Err(io::Error::other("lost by a fault rule"));
            }
            Action::Respond { status, reason, message, retry_after, cause } => {
                let (reason, message) = (reason.as_deref(), message.as_deref());
                let object = status_object(*status, reason, message, *retry_after, cause.as_deref());
                return respond(&log, *status, *retry_after, &object);
            }
            Action::RefuseWatchList => {
                return respond(&log, 422, None, &status_object(422, None, None, None, None));
            }
            _ => {}
        }
    }
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_REQUEST_BYTES).collect().await.map_err(io::Error::other)?.to_bytes();
    log.request_bytes(body.len());
    let response =
        server.send(Request::from_parts(head, Full::new(body))).await.inspect_err(|_| log.lost())?;
    log.status(response.status().as_u16());
    for fault in &faults {
        match fault.rule.action {
            Action::DelayAnswer { ms } => tokio::time::sleep(Duration::from_millis(ms)).await,
            Action::LoseAnswer => {
                log.lost();
                return Err(io::Error::other("answer lost by a fault rule"));
            }
            _ => {}
        }
    }
    Ok(deliver(shared, &faults, line, number, log, response))
}

/// The rules that take effect on a request, oldest first.
fn admitted(shared: &Shared, line: &RequestLine, log: &Writer) -> Vec<Arc<Active>> {
    let rules = Arc::clone(&shared.rules.borrow());
    let meant = |active: &&Arc<Active>| {
        let action = &active.rule.action;
        let streaming = line.query.get("sendInitialEvents").is_some_and(|value| value == "true");
        !action.is_on_stream()
            && active.rule.filter.matches(line)
            && (*action != Action::RefuseWatchList || streaming)
            && active.admit()
    };
    let faults: Vec<_> = rules.iter().filter(meant).cloned().collect();
    for fault in &faults {
        log.rule(fault.id);
    }
    faults
}

fn respond(
    log: &Writer,
    status: u16,
    retry_after: Option<u64>,
    object: &serde_json::Value,
) -> io::Result<Response<Body>> {
    let bytes = Bytes::from(object.to_string());
    log.by_rule();
    log.status(status);
    log.delivered(bytes.len());
    let mut response =
        Response::builder().status(status).header(http::header::CONTENT_TYPE, "application/json");
    if let Some(seconds) = retry_after {
        response = response.header(http::header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    let body = Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
    response.body(body).map_err(io::Error::other)
}

fn deliver(
    shared: &Shared,
    faults: &[Arc<Active>],
    line: RequestLine,
    number: u64,
    log: Writer,
    response: Response<Incoming>,
) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    for name in [http::header::CONNECTION, http::header::TRANSFER_ENCODING] {
        head.headers.remove(name);
    }
    let body = if line.is_watch() && head.status.is_success() {
        let json = head
            .headers
            .get(http::header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|kind| kind.starts_with("application/json"));
        Watch::new(body, json, line, number, log, shared.rules.subscribe()).into_body()
    } else {
        let mut on_body = Faults::default();
        for fault in faults {
            match fault.rule.action {
                Action::SlowBody { bytes, ms } => on_body.slow = Some((bytes, Duration::from_millis(ms))),
                Action::CutBody { after_bytes } => on_body.cut_after = Some(after_bytes),
                _ => {}
            }
        }
        pass(body, on_body, log)
    };
    Response::from_parts(head, body)
}
