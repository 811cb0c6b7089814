//! What a stream sends, and what a refusal means.

use std::fmt::Write as _;
use std::time::Duration;

use http::header::{ACCEPT, RETRY_AFTER};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use reeve_core::gvk::Kind;
use reeve_core::ids::ResourceVersion;
use serde::Deserialize;

use super::state::{Freshness, Trouble};
use super::text;
use crate::cache::Coverage;
use crate::path;

/// Objects per page: client-go's number; the server takes 500 of 2 KB from etcd at once.
pub(super) const PAGE: usize = 500;

/// The most of a refusal's body that is read; its message is one sentence.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// How long that may take.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The collection that a stream reads.
pub(super) struct Target<'a> {
    pub(super) kind: &'a Kind,
    pub(super) coverage: &'a Coverage,
    pub(super) metadata_only: bool,
}

/// A refusal as the server writes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    code: u16,
    message: String,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    causes: Vec<Cause>,
    retry_after_seconds: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
    message: String,
}

// === impl Target ===

impl Target<'_> {
    /// One page.
    pub(super) fn list(&self, from: Freshness, next: Option<&str>) -> Result<Request<Vec<u8>>, Trouble> {
        let mut query = format!("limit={PAGE}");
        match (next, from) {
            (Some(next), _) => {
                let _ = write!(query, "&continue={}", path::segment(next));
            }
            (None, Freshness::Any) => query.push_str("&resourceVersion=0"),
            (None, Freshness::NotOlderThan(version)) => {
                let _ = write!(query, "&resourceVersion={version}&resourceVersionMatch=NotOlderThan");
            }
            (None, Freshness::Latest) => {}
        }
        let form = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
        self.request(query, form)
    }

    /// A watch that begins with everything there is.
    pub(super) fn stream(&self, from: Freshness, limit: Duration) -> Result<Request<Vec<u8>>, Trouble> {
        let version = match from {
            Freshness::Any => "0".to_owned(),
            Freshness::NotOlderThan(version) => version.to_string(),
            Freshness::Latest => String::new(),
        };
        let how = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        self.watching(&format!("{how}&resourceVersion={version}"), limit)
    }

    /// A watch of what happens after a version.
    pub(super) fn watch(&self, at: ResourceVersion, limit: Duration) -> Result<Request<Vec<u8>>, Trouble> {
        self.watching(&format!("resourceVersion={at}"), limit)
    }

    fn watching(&self, how: &str, limit: Duration) -> Result<Request<Vec<u8>>, Trouble> {
        let query = format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={}&{how}", limit.as_secs());
        self.request(query, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json")
    }

    fn request(&self, mut query: String, metadata_form: &str) -> Result<Request<Vec<u8>>, Trouble> {
        if !self.coverage.labels.is_everything() {
            let _ = write!(query, "&labelSelector={}", path::segment(&self.coverage.labels.to_string()));
        }
        if let Some(fields) = &self.coverage.fields {
            let _ = write!(query, "&fieldSelector={}", path::segment(fields));
        }
        let collection = path::collection(self.kind, self.coverage.namespace.as_deref());
        Request::get(format!("{collection}?{query}"))
            .header(ACCEPT, if self.metadata_only { metadata_form } else { "application/json" })
            .body(Vec::new())
            .map_err(|error| Trouble::Bad(format!("no request can be made: {error}").into()))
    }

    /// What an answer other than 200 means. `verb`: `list` or `watch`.
    pub(super) async fn refusal(&self, verb: &str, response: Response<Body>) -> Trouble {
        let (parts, body) = response.into_parts();
        let read = Limited::new(body, MAX_REFUSAL_BYTES).collect();
        let body = match tokio::time::timeout(REFUSAL_TIMEOUT, read).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) | Err(_) => bytes::Bytes::new(),
        };
        // Proxies answer in other forms; the code says enough then.
        let mut status: Status = serde_json::from_slice(&body).unwrap_or_default();
        status.code = parts.status.as_u16();
        self.trouble(verb, &status, retry_after(&parts.headers))
    }

    /// What a refusal means, as an answer or within a watch.
    pub(super) fn trouble(&self, verb: &str, status: &Status, retry_after: Option<Duration>) -> Trouble {
        let details = status.details.as_ref();
        let asked = details.map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
        let retry_after = retry_after.or(asked.map(Duration::from_secs));
        let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        match code {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Trouble::Forbidden(text::forbidden(
                verb,
                self.kind,
                self.coverage.namespace.as_deref(),
                code == StatusCode::UNAUTHORIZED,
            )),
            StatusCode::NOT_FOUND => Trouble::Missing,
            StatusCode::GONE => Trouble::Expired,
            StatusCode::TOO_MANY_REQUESTS => Trouble::Busy(retry_after),
            StatusCode::SERVICE_UNAVAILABLE if retry_after.is_some() => Trouble::Busy(retry_after),
            _ if status.version_too_large() => Trouble::TooLarge,
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY
                if status.message.contains("sendInitialEvents") || status.names("sendInitialEvents") =>
            {
                Trouble::NoStreaming
            }
            _ => {
                let why = format!("the API server answered {code} to {verb}: {}", status.message);
                let why = why.trim_end_matches([':', ' ']).into();
                if code.is_server_error() { Trouble::Failed(why) } else { Trouble::Bad(why) }
            }
        }
    }
}

// === impl Status ===

impl Status {
    fn causes(&self) -> impl Iterator<Item = &Cause> {
        self.details.iter().flat_map(|details| &details.causes)
    }

    fn version_too_large(&self) -> bool {
        self.causes().any(|cause| cause.reason == "ResourceVersionTooLarge")
            || self.message.contains("Too large resource version")
    }

    fn names(&self, parameter: &str) -> bool {
        self.causes().any(|cause| cause.message.contains(parameter))
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
