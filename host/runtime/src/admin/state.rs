//! What the host is doing, as JSON.

use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use reeve_cluster::watch::StreamState;
use serde_json::{Value, json};

use super::Admin;

/// Every place where a plugin lies: state, version, digest, grant, what is on its way, the error.
pub(super) async fn plugins(State(admin): State<Admin>) -> Json<Value> {
    let published = admin.views.load();
    let lanes = admin.dispatch.queue().snapshot();
    let plugins: Vec<_> = published
        .places
        .iter()
        .map(|place| {
            let mut view = json!(place);
            if let Some(lane) = lanes.iter().find(|lane| Some(&lane.plugin) == place.plugin.as_ref()) {
                view["queue"] = lane_json(lane);
                view["failing"] = json!(admin.dispatch.failures().count(&lane.plugin));
            }
            view
        })
        .collect();
    Json(json!({ "plugins": plugins, "listed": published.listed, "settled": published.settled }))
}

/// Every lane of the queue.
pub(super) async fn queue(State(admin): State<Admin>) -> Json<Value> {
    let lanes: Vec<_> = admin.dispatch.queue().snapshot().iter().map(lane_json).collect();
    Json(json!({ "lanes": lanes }))
}

fn lane_json(lane: &reeve_core::queue::LaneSnapshot) -> Value {
    json!({
        "plugin": lane.plugin,
        "ready": lane.ready,
        "waiting": lane.waiting,
        "inWork": lane.in_work,
        "oldestSeconds": lane.oldest.map(|age| age.as_secs_f64()),
        "stalled": lane.stalled,
    })
}

/// Every open watch.
pub(super) async fn streams(State(admin): State<Admin>) -> Json<Value> {
    let streams: Vec<_> = admin
        .dispatch
        .cluster()
        .streams()
        .into_iter()
        .map(|stream| {
            let (state, why) = match stream.state {
                StreamState::Pending { why } => ("pending", Some(why)),
                StreamState::Listing => ("listing", None),
                StreamState::Live => ("live", None),
                StreamState::Broken { why } => ("broken", Some(why)),
            };
            json!({
                "kind": stream.gvk.to_string(),
                "namespace": stream.namespace,
                "labels": stream.labels,
                "fields": stream.fields,
                "metadataOnly": stream.metadata_only,
                "users": stream.users,
                "state": state,
                "why": why,
            })
        })
        .collect();
    Json(json!({ "streams": streams }))
}

/// So many of the commonest causes are shown.
const CAUSES: usize = 10;

/// The objects that failed last, and the commonest causes.
pub(super) fn failures(admin: &Admin, limit: usize) -> Response {
    let seconds = |time: std::time::SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let failing: Vec<_> = admin
        .dispatch
        .failures()
        .latest(limit)
        .into_iter()
        .map(|(key, failing)| {
            json!({
                "plugin": key.plugin,
                "object": key.name.to_string(),
                "code": failing.failure.code,
                "category": failing.failure.category,
                "severity": failing.failure.severity,
                "transient": failing.failure.transient,
                "message": failing.failure.message,
                "errorId": failing.error_id,
                "attempts": failing.attempts,
                "stalled": failing.stalled,
                "firstUnixSeconds": seconds(failing.first),
                "lastUnixSeconds": seconds(failing.last),
            })
        })
        .collect();
    let causes: Vec<_> = admin
        .dispatch
        .failures()
        .commonest(CAUSES)
        .iter()
        .map(|cause| {
            json!({
                "code": cause.code,
                "message": cause.template,
                "count": cause.count,
                "firstUnixSeconds": seconds(cause.first),
                "lastUnixSeconds": seconds(cause.last),
                "plugins": cause.plugins,
            })
        })
        .collect();
    Json(json!({ "failures": failing, "causes": causes })).into_response()
}
