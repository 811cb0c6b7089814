//! The control endpoint, for use by hand: rules and the request log as JSON over plain HTTP.
//!
//! `GET /rules`, `POST /rules` (a rule, answers its id), `DELETE /rules/ID`, `DELETE /rules`,
//! `POST /requests` (a filter, answers what was logged) and `GET /requests`.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::filter::Filter;
use super::rule::{Rule, RuleId};
use super::server::accept;
use super::{Listed, Shared};

/// The most bytes of a rule or filter.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// Takes connections until the task is dropped with its runtime.
pub(super) async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let tcp = accept(&listener, &mut connections).await;
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(|request| answer(&shared, request));
            let connection = hyper::server::conn::http1::Builder::new();
            if let Err(error) = connection.serve_connection(TokioIo::new(tcp), service).await {
                tracing::trace!(%error, "a control connection ended");
            }
        });
    }
}

async fn answer(shared: &Shared, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, value) = match act(shared, request).await {
        Ok(value) => (StatusCode::OK, value),
        Err((status, text)) => (status, json!({ "error": text })),
    };
    let mut response = Response::new(Full::new(Bytes::from(format!("{value}\n"))));
    *response.status_mut() = status;
    Ok(response)
}

async fn act(shared: &Shared, request: Request<Incoming>) -> Result<Value, (StatusCode, String)> {
    let bad = |error: String| (StatusCode::BAD_REQUEST, error);
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_BODY_BYTES)
        .collect()
        .await
        .map_err(|error| bad(error.to_string()))?
        .to_bytes();
    let listed = |listed: Vec<Listed>| serde_json::to_value(listed).map_err(|error| bad(error.to_string()));
    let logged = |filter: &Filter| {
        serde_json::to_value(shared.log.select(filter, 0)).map_err(|error| bad(error.to_string()))
    };
    match (&head.method, head.uri.path()) {
        (&Method::GET, "/rules") => listed(shared.list()),
        (&Method::POST, "/rules") => {
            let rule: Rule =
                serde_json::from_slice(&body).map_err(|error| bad(format!("no rule: {error}")))?;
            Ok(json!({ "id": shared.add(rule) }))
        }
        (&Method::DELETE, "/rules") => {
            shared.clear();
            Ok(json!({}))
        }
        (&Method::DELETE, path) if path.starts_with("/rules/") => {
            let id = path.trim_start_matches("/rules/");
            let id: u64 = id.parse().map_err(|_| bad(format!("{id:?} is no rule id")))?;
            match shared.remove(RuleId(id)) {
                Some(counts) => Ok(json!({ "counts": counts })),
                None => Err((StatusCode::NOT_FOUND, format!("there is no rule {id}"))),
            }
        }
        (&Method::GET, "/requests") => logged(&Filter::any()),
        (&Method::POST, "/requests") => {
            logged(&serde_json::from_slice(&body).map_err(|error| bad(format!("no filter: {error}")))?)
        }
        (method, path) => Err((
            StatusCode::NOT_FOUND,
            format!(
                "{method} {path} is nothing here: GET/POST/DELETE /rules, DELETE /rules/ID, GET/POST /requests"
            ),
        )),
    }
}
