//! One object from the API server, past the cache: for what the host itself reads once (a plugin's
//! ConfigMap) or may not watch (an awaited object of a kind without `watch`).
//!
//! Plugins never read this way.

use std::time::Duration;

use reeve_cluster::{Cluster, DiscoveryError, path};
use reeve_core::gvk::Gvk;
use reeve_core::ids::ObjectName;
use serde_json::Value;

/// The limit of one such request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no object. All of these are worth another try later.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The kind is not known.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// There is no answer.
    #[error(transparent)]
    Request(#[from] reeve_cluster::connection::RequestError),
    /// The server refused.
    #[error("failed to read {gvk} {name}: the API server answered {status}: {message}")]
    Refused { gvk: Gvk, name: String, status: u16, message: String },
    /// The answer is no JSON.
    #[error("failed to read {gvk} {name}: {source}")]
    Answer { gvk: Gvk, name: String, source: serde_json::Error },
}

/// The object; `None` when the server has none.
pub(crate) async fn object(
    cluster: &Cluster,
    gvk: &Gvk,
    name: &ObjectName,
) -> Result<Option<Value>, FetchError> {
    let kind = cluster.discovery().resolve(gvk).await?;
    get(cluster, gvk, name.to_string(), path::object(&kind, name, None)).await
}

/// The objects of a namespace (`None`: cluster-scoped, or all) that a label selector matches.
pub(crate) async fn list(
    cluster: &Cluster,
    gvk: &Gvk,
    namespace: Option<&str>,
    labels: &str,
) -> Result<Vec<Value>, FetchError> {
    let kind = cluster.discovery().resolve(gvk).await?;
    let uri = format!("{}?labelSelector={}", path::collection(&kind, namespace), path::segment(labels));
    let list = get(cluster, gvk, labels.to_owned(), uri).await?;
    Ok(match list.map(|mut list| list["items"].take()) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    })
}

async fn get(cluster: &Cluster, gvk: &Gvk, name: String, uri: String) -> Result<Option<Value>, FetchError> {
    let mut request = http::Request::new(Vec::new());
    let refused = |status: u16, message: String| FetchError::Refused {
        gvk: gvk.clone(),
        name: name.clone(),
        status,
        message,
    };
    *request.uri_mut() = uri.parse().map_err(|error: http::uri::InvalidUri| refused(0, error.to_string()))?;
    let answer = cluster.connection().request(request, TIMEOUT).await?;
    match answer.status.as_u16() {
        200 => serde_json::from_slice(&answer.body).map(Some).map_err(|source| FetchError::Answer {
            gvk: gvk.clone(),
            name,
            source,
        }),
        404 => Ok(None),
        status => {
            let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            Err(refused(status, body["message"].as_str().unwrap_or("without a message").to_owned()))
        }
    }
}
