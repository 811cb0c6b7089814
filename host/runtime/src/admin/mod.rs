//! The admin port: probes, metrics, what the host is doing, and a request for a run.
//!
//! It has no authentication: by default it listens on loopback, and a deployment guards it with a
//! `NetworkPolicy`. It shows names and states, never object bodies, and its one verb starts a run,
//! which is idempotent.

mod checks;
mod exposition;
mod state;

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{Path, Query, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use prometheus::Registry;
use reeve_core::ids::{ObjectName, PluginName};
use reeve_core::queue::Key;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::apiserver::ApiServer;
use crate::dispatch::Dispatch;
use crate::metrics::Metrics;
use crate::registry::Views;
use crate::roster::Slot;

pub(crate) use checks::Readiness;

/// So many failing objects are shown unless `?limit=` says otherwise.
const DEFAULT_FAILURES: usize = 100;

/// What the admin port looks at. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) registry: Registry,
    pub(crate) views: Views,
    pub(crate) readiness: Readiness,
    pub(crate) apiserver: ApiServer,
    pub(crate) dispatch: Dispatch,
    pub(crate) metrics: Metrics,
}

/// Why the admin port is not there.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Somebody else has it.
    #[error("admin address {0} is in use: stop the other process, or choose another with --admin-addr")]
    InUse(SocketAddr),
    /// Anything else.
    #[error("failed to listen on the admin address {addr}: {source}")]
    Bind {
        /// As configured.
        addr: SocketAddr,
        /// From the operating system.
        source: std::io::Error,
    },
}

/// Takes the port.
pub(crate) async fn bind(addr: SocketAddr) -> Result<TcpListener, AdminError> {
    TcpListener::bind(addr).await.map_err(|source| match source.kind() {
        std::io::ErrorKind::AddrInUse => AdminError::InUse(addr),
        _ => AdminError::Bind { addr, source },
    })
}

impl Admin {
    /// Serves until the shutdown.
    pub(crate) async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        let router = Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .route("/readyz/{check}", get(readyz_one))
            .route("/metrics", get(metrics))
            .route("/plugins", get(state::plugins))
            .route("/queue", get(state::queue))
            .route("/streams", get(state::streams))
            .route("/failures", get(failures))
            .route("/reconcile/{plugin}/{name}", post(reconcile_cluster))
            .route("/reconcile/{plugin}/{namespace}/{name}", post(reconcile))
            .with_state(self);
        let served = axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned());
        if let Err(error) = served.await {
            tracing::error!(%error, "the admin port ended");
        }
    }
}

async fn healthz() -> &'static str {
    "ok"
}

async fn readyz(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let parts = || query.split('&').map(|part| part.split_once('=').unwrap_or((part, "")));
    let verbose = parts().any(|(key, _)| key == "verbose");
    let excluded: Vec<&str> = parts().filter(|(key, _)| *key == "exclude").map(|(_, value)| value).collect();
    checks::answer(&admin.readiness.checks(&admin.views, &admin.apiserver), &excluded, verbose)
}

async fn readyz_one(State(admin): State<Admin>, Path(name): Path<String>) -> Response {
    let checks = admin.readiness.checks(&admin.views, &admin.apiserver);
    match checks.iter().find(|check| check.name == name) {
        Some(check) if check.ok => "ok".into_response(),
        Some(check) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", check.detail)).into_response(),
        None => {
            let names: Vec<_> = checks.iter().map(|check| check.name).collect();
            (StatusCode::NOT_FOUND, format!("no check {name:?}; there are {}\n", names.join(", ")))
                .into_response()
        }
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    for lane in admin.dispatch.queue().snapshot() {
        admin.metrics.lane(&lane);
    }
    match exposition::text(&admin.registry.gather()) {
        Ok(text) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[derive(Deserialize)]
struct Limit {
    limit: Option<usize>,
}

async fn failures(State(admin): State<Admin>, Query(limit): Query<Limit>) -> Response {
    state::failures(&admin, limit.limit.unwrap_or(DEFAULT_FAILURES))
}

async fn reconcile(
    State(admin): State<Admin>,
    headers: HeaderMap,
    Path((plugin, namespace, name)): Path<(String, String, String)>,
) -> Response {
    ask(&admin, &headers, &plugin, ObjectName::namespaced(&namespace, &name))
}

async fn reconcile_cluster(
    State(admin): State<Admin>,
    headers: HeaderMap,
    Path((plugin, name)): Path<(String, String)>,
) -> Response {
    ask(&admin, &headers, &plugin, ObjectName::cluster(&name))
}

/// Asks for a run: 202, or 404 without such a plugin or object, 409 while the plugin waits for its
/// kinds, 429 when too many requests wait.
fn ask(admin: &Admin, headers: &HeaderMap, plugin: &str, name: ObjectName) -> Response {
    // A browser sends an Origin with every cross-site POST, and has no business here.
    if headers.contains_key(header::ORIGIN) {
        return (StatusCode::FORBIDDEN, "not for browsers\n").into_response();
    }
    let (status, text) = requested(admin, plugin, name);
    admin.metrics.external.with_label_values(&[status.as_str()]).inc();
    let retry = [(header::RETRY_AFTER, "1")];
    if status == StatusCode::TOO_MANY_REQUESTS {
        (status, retry, text).into_response()
    } else {
        (status, text).into_response()
    }
}

fn requested(admin: &Admin, plugin: &str, name: ObjectName) -> (StatusCode, String) {
    let Ok(plugin) = plugin.parse::<PluginName>() else {
        return (StatusCode::NOT_FOUND, format!("{plugin:?} is no plugin name\n"));
    };
    let roster = admin.dispatch.roster();
    let registration = match roster.slot(&plugin) {
        Some(Slot::Serving(registration)) => registration,
        Some(Slot::Waiting { why }) => {
            return (StatusCode::CONFLICT, format!("plugin {plugin} waits: {why}\n"));
        }
        None => return (StatusCode::NOT_FOUND, format!("no plugin {plugin} is in service; see /plugins\n")),
    };
    if let Ok(None) = registration.reader.get(&registration.primary, &name) {
        return (StatusCode::NOT_FOUND, format!("plugin {plugin} sees no {} {name}\n", registration.primary));
    }
    match admin.dispatch.ask_external(Key { plugin, name }) {
        Ok(()) => (StatusCode::ACCEPTED, "queued\n".to_owned()),
        Err(error) => (StatusCode::TOO_MANY_REQUESTS, format!("{error}\n")),
    }
}
