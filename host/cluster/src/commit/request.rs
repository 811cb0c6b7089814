//! The door: the one function through which every write leaves the host.
//!
//! Invariant: no request leaves without a [`Leading`] that holds at the moment of sending, and its
//! timeout ends before the Lease does; a plugin's write is checked against its [`Grant`] first.
//! What an answer says enters the cache at once (feature B4); a write of unknown outcome holds the
//! reads of its object.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, WARNING};
use http::{Method, Request, StatusCode};
use parking_lot::Mutex;
use reeve_core::change::Origin;
use reeve_core::failure::{Failure, code};
use reeve_core::grant::{Denied, Grant, Verb, WriteRequest};
use reeve_core::gvk::{Gvk, Kind};
use reeve_core::ids::{ObjectName, Uid};
use reeve_core::leading::{Leading, LostLease};
use reeve_core::object::SharedObject;
use serde_json::Value;

use super::answer::{Fate, fate, warning_text};
use super::metrics::CommitMetrics;
use super::refusal::{Refusal, Tried, cut};
use crate::cache::Writing;
use crate::cluster::Cluster;
use crate::connection::RequestError;
use crate::path;

/// How long one request may take (feature D3).
pub const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// The field manager of what the host writes of its own accord.
const HOST_MANAGER: &str = "reeve.dev";

/// How many warnings of the server are remembered as told. Beyond it the memory starts anew, so a
/// warning may be told twice.
const WARNINGS_TOLD: usize = 1_024;

/// Sends writes, and the rare read that resolves a conflict.
pub(crate) struct Door {
    pub(crate) cluster: Cluster,
    pub(crate) metrics: CommitMetrics,
    told: Mutex<HashSet<String>>,
}

/// Who writes, and on which right.
pub(crate) struct Pass<'a> {
    pub(crate) leading: &'a Leading,
    /// `None` for what the host does of its own accord.
    pub(crate) grant: Option<&'a Grant>,
    pub(crate) origin: &'a Origin,
    /// Write requests sent so far.
    pub(crate) sent: AtomicU32,
    /// Writes left out because nothing was to change.
    pub(crate) skipped: AtomicU32,
    /// The answers of writes with an id. Kept here and not in a result, so that they outlive what
    /// ends the commit after them.
    pub(crate) answers: Mutex<BTreeMap<String, Value>>,
}

/// On which right something is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// A child of the plugin, within its grant.
    Child,
    /// The primary's status.
    Status,
    /// The plugin's finalizer on the primary.
    Finalizer,
    /// A write that the plugin staged, within its grant.
    Write,
    /// The host's own: events, its memory of kinds, and leftovers of kinds that a plugin dropped.
    Host,
}

/// One write.
pub(crate) struct Send<'a> {
    pub(crate) right: Right,
    pub(crate) kind: &'a Kind,
    pub(crate) name: &'a ObjectName,
    pub(crate) subresource: Option<&'a str>,
    pub(crate) action: Action<'a>,
    pub(crate) dry_run: bool,
}

/// What a write does, with its body.
#[derive(Clone, Copy)]
pub(crate) enum Action<'a> {
    /// POST; the server completes the name if `generate`.
    Create { body: &'a Value, generate: bool },
    /// Server-side apply.
    Apply { body: &'a Value, force: bool },
    /// RFC 7386.
    Merge(&'a Value),
    /// RFC 6902.
    Json(&'a Value),
    /// PUT.
    Replace(&'a Value),
    /// DELETE with options and, where known, the UID of what is deleted.
    Delete { options: &'a Value, uid: Option<&'a Uid> },
}

/// The server's consent.
pub(crate) struct Accepted {
    /// The object as it is now; `None` for a delete that is done and for other answers than the
    /// object itself (scale, token, a dry run).
    pub(crate) object: Option<SharedObject>,
    /// The answer as it came.
    pub(crate) body: Bytes,
}

/// Why a write did not happen, or may not have.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// Nothing left: the Lease is lost.
    Lost(LostLease),
    /// Nothing left: not granted.
    Denied(Denied),
    /// Nothing left: the host cannot make a request of it.
    Unusable(Failure),
    /// The server said no.
    Refused(Refusal, Failure),
    /// The server was not reached, or its answer is unknown.
    Outage(Failure),
}

// === impl Action ===

impl Action<'_> {
    fn verb(self) -> (&'static str, Verb) {
        match self {
            Self::Create { .. } => ("create", Verb::Create),
            Self::Apply { .. } => ("apply", Verb::Apply),
            Self::Merge(_) | Self::Json(_) => ("patch", Verb::Patch),
            Self::Replace(_) => ("update", Verb::Patch),
            Self::Delete { .. } => ("delete", Verb::Delete),
        }
    }

    fn method(self) -> Method {
        match self {
            Self::Create { .. } => Method::POST,
            Self::Apply { .. } | Self::Merge(_) | Self::Json(_) => Method::PATCH,
            Self::Replace(_) => Method::PUT,
            Self::Delete { .. } => Method::DELETE,
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            // The server takes JSON as the YAML that it is.
            Self::Apply { .. } => "application/apply-patch+yaml",
            Self::Merge(_) => "application/merge-patch+json",
            Self::Json(_) => "application/json-patch+json",
            Self::Create { .. } | Self::Replace(_) | Self::Delete { .. } => "application/json",
        }
    }

    fn body(&self) -> &Value {
        match self {
            Self::Create { body, .. }
            | Self::Apply { body, .. }
            | Self::Merge(body)
            | Self::Json(body)
            | Self::Replace(body) => body,
            Self::Delete { options, .. } => options,
        }
    }
}

// === impl Pass ===

impl<'a> Pass<'a> {
    pub(crate) fn new(leading: &'a Leading, grant: Option<&'a Grant>, origin: &'a Origin) -> Self {
        Self {
            leading,
            grant,
            origin,
            sent: AtomicU32::new(0),
            skipped: AtomicU32::new(0),
            answers: Mutex::new(BTreeMap::new()),
        }
    }
}

// === impl Door ===

impl Door {
    pub(crate) fn new(cluster: Cluster, metrics: CommitMetrics) -> Self {
        Self { cluster, metrics, told: Mutex::new(HashSet::new()) }
    }

    /// Sends one write.
    pub(crate) async fn write(&self, pass: &Pass<'_>, send: &Send<'_>) -> Result<Accepted, WriteError> {
        let (verb, granted) = send.action.verb();
        let plugin = pass.origin.plugin.as_str();
        let count = |result: &str| {
            self.metrics.writes.with_label_values(&[plugin, verb, &send.kind.gvk.kind, result]).inc();
        };
        if let Err(denied) = check(pass.grant, send, granted) {
            count("denied");
            return Err(WriteError::Denied(denied));
        }
        let request = build(pass, send).map_err(WriteError::Unusable)?;
        // The timeout counts from here and covers the wait for a connection, so whenever the
        // request leaves, it is within the Lease.
        let timeout = pass.leading.check(REQUEST_LIMIT).map_err(|lost| {
            count("lost");
            WriteError::Lost(lost)
        })?;
        let cache = self.cluster.cache();
        let writing = send.absorbs().then(|| cache.writing(&send.kind.gvk, send.name, pass.origin.clone()));
        pass.sent.fetch_add(1, Ordering::Relaxed);
        let answer = self.cluster.connection().request(request, timeout).await;
        let tried = Tried { verb, kind: send.kind, name: send.name, subresource: send.subresource };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let sure = matches!(error, RequestError::NotSent { .. });
                count(if sure { "unreachable" } else { "unknown" });
                settle(writing, sure);
                let text = format!("failed to {tried}: {error}");
                return Err(WriteError::Outage(Failure::transient(code::API_UNAVAILABLE, "network", text)));
            }
        };
        self.warn(plugin, tried, &answer.headers);
        if !answer.status.is_success() {
            let refusal = Refusal::read(answer.status, &answer.headers, &answer.body);
            count(refusal.result());
            let failure = refusal.failure(tried);
            // A server that breaks or gives up half-way may have carried the write out.
            settle(writing, !answer.status.is_server_error() || !failure.transient);
            if refusal.is_unserved() {
                self.cluster.discovery().forget(&send.kind.gvk);
            }
            return Err(WriteError::Refused(refusal, failure));
        }
        count("ok");
        let object = self.absorb(pass, send, writing, &answer.body).map_err(|text| {
            WriteError::Outage(Failure::transient(
                code::API_UNAVAILABLE,
                "network",
                format!("failed to {tried}: {text}"),
            ))
        })?;
        Ok(Accepted { object, body: answer.body })
    }

    /// Reads one object from the server; for the host's own objects, which are not watched.
    /// `Ok(None)`: it is not there.
    pub(crate) async fn get(&self, kind: &Kind, name: &ObjectName) -> Result<Option<Bytes>, WriteError> {
        let tried = Tried { verb: "get", kind, name, subresource: None };
        let request = Request::get(path::object(kind, name, None))
            .body(Vec::new())
            .map_err(|error| unusable(tried, &error))?;
        let answer = self.cluster.connection().request(request, REQUEST_LIMIT).await.map_err(|error| {
            WriteError::Outage(Failure::transient(
                code::API_UNAVAILABLE,
                "network",
                format!("failed to {tried}: {error}"),
            ))
        })?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        if !answer.status.is_success() {
            let refusal = Refusal::read(answer.status, &answer.headers, &answer.body);
            let failure = refusal.failure(tried);
            return Err(WriteError::Refused(refusal, failure));
        }
        Ok(Some(answer.body))
    }

    /// Brings one object of the cache up to date, to resolve a conflict that the cache cannot:
    /// what changed was another's doing, and everybody is told so. `Ok(None)`: it is not there.
    pub(crate) async fn refresh(
        &self,
        pass: &Pass<'_>,
        kind: &Kind,
        name: &ObjectName,
    ) -> Result<Option<SharedObject>, WriteError> {
        let cache = self.cluster.cache();
        // No key has an empty name: nobody takes this for the echo of an own write.
        let others = Origin { plugin: pass.origin.plugin.clone(), primary: ObjectName::cluster("") };
        let Some(body) = self.get(kind, name).await? else {
            if let Some(cached) = cache.get(&kind.gvk, name) {
                cache.absorb_delete(&kind.gvk, name, &cached.meta().uid, &others);
            }
            return Ok(None);
        };
        cache.absorb(&kind.gvk, &body, &others).map(Some).map_err(|error| {
            let text = format!("failed to get {} {name}: {error}", kind.gvk.group_kind());
            WriteError::Outage(Failure::transient(code::API_UNAVAILABLE, "network", text))
        })
    }

    /// What the cluster serves of a kind.
    pub(crate) async fn resolve(&self, gvk: &Gvk) -> Result<std::sync::Arc<Kind>, WriteError> {
        use crate::discovery::DiscoveryError;
        self.cluster.discovery().resolve(gvk).await.map_err(|error| match &error {
            DiscoveryError::NotServed(_) => WriteError::Unusable(super::refusal::not_served(gvk, &error)),
            DiscoveryError::Forbidden { .. } => {
                WriteError::Unusable(Failure::transient(code::FORBIDDEN, "permission", error.to_string()))
            }
            DiscoveryError::Unreachable { .. } | DiscoveryError::Bad { .. } => {
                WriteError::Outage(Failure::transient(code::API_UNAVAILABLE, "network", error.to_string()))
            }
        })
    }

    fn absorb(
        &self,
        pass: &Pass<'_>,
        send: &Send<'_>,
        writing: Option<Writing>,
        body: &[u8],
    ) -> Result<Option<SharedObject>, String> {
        let Some(writing) = writing else {
            let made =
                matches!(send.action, Action::Create { .. }) && send.subresource.is_none() && !send.dry_run;
            let object = made.then(|| self.cluster.cache().absorb(&send.kind.gvk, body, pass.origin));
            return Ok(object.and_then(Result::ok));
        };
        match fate(send.action, body) {
            Fate::Alive => writing.answered(body).map(Some).map_err(|error| error.to_string()),
            Fate::Gone(Some(uid)) => {
                writing.deleted(&uid);
                Ok(None)
            }
            Fate::Gone(None) => {
                writing.unknown();
                Ok(None)
            }
            Fate::NeverStored => {
                writing.refused();
                Ok(None)
            }
        }
    }

    /// Tells each warning of the server once (scenario K9).
    fn warn(&self, plugin: &str, tried: Tried<'_>, headers: &HeaderMap) {
        for value in headers.get_all(WARNING) {
            let Some(text) = value.to_str().ok().and_then(warning_text) else { continue };
            let mut told = self.told.lock();
            if told.len() >= WARNINGS_TOLD {
                told.clear();
            }
            if told.insert(format!("{plugin} {} {text}", tried.kind.gvk)) {
                drop(told);
                tracing::warn!(plugin, kind = %tried.kind.gvk, object = %tried.name, warning = %text, "the API server warns of a write");
            }
        }
    }
}

// === impl Send ===

impl Send<'_> {
    /// Whether the answer is the object itself, and its name is known before.
    fn absorbs(&self) -> bool {
        let object = matches!(
            self.subresource,
            None | Some("status" | "approval" | "finalize" | "resize" | "ephemeralcontainers")
        );
        let named = match self.action {
            Action::Create { generate, .. } => {
                !generate && self.subresource.is_none() && !self.name.name.is_empty()
            }
            _ => true,
        };
        object && named && !self.dry_run
    }
}

/// Makes a request of a write.
fn build(pass: &Pass<'_>, send: &Send<'_>) -> Result<Request<Vec<u8>>, Failure> {
    let (verb, _) = send.action.verb();
    let tried = Tried { verb, kind: send.kind, name: send.name, subresource: send.subresource };
    // A create may leave its name to the server, or have none (an access review).
    let to_collection = matches!(send.action, Action::Create { .. }) && send.subresource.is_none();
    let name = Some(&*send.name.name).filter(|name| !(to_collection && name.is_empty()));
    let parts = [name, send.name.namespace.as_deref(), send.subresource];
    if let Some(bad) = parts.into_iter().flatten().find(|part| !is_segment(part)) {
        let text = format!(
            "failed to {tried}: {bad:?} cannot be part of a path; a name may not be empty, \".\" or \"..\", nor hold '/' or '%'"
        );
        return Err(Failure::permanent(code::INVALID_ARGUMENT, "validation", cut(&text, 512)));
    }
    let mut uri = if to_collection {
        path::collection(send.kind, send.name.namespace.as_deref())
    } else {
        path::object(send.kind, send.name, send.subresource)
    };
    if !matches!(send.action, Action::Delete { .. }) {
        let manager = match send.right {
            Right::Host => HOST_MANAGER.to_owned(),
            _ => pass.origin.plugin.field_manager(),
        };
        uri.push_str("?fieldManager=");
        uri.push_str(&path::segment(&manager));
        if let Action::Apply { force: true, .. } = send.action {
            uri.push_str("&force=true");
        }
        if send.dry_run {
            uri.push_str("&dryRun=All");
        }
    } else if send.dry_run {
        uri.push_str("?dryRun=All");
    }
    let body = serde_json::to_vec(send.action.body()).map_err(|error| {
        Failure::permanent(code::INVALID_ARGUMENT, "validation", format!("failed to {tried}: {error}"))
    })?;
    Request::builder()
        .method(send.action.method())
        .uri(uri)
        .header(CONTENT_TYPE, send.action.content_type())
        .body(body)
        .map_err(|error| {
            Failure::permanent(code::INVALID_ARGUMENT, "validation", format!("failed to {tried}: {error}"))
        })
}

/// Whether the grant allows it.
fn check(grant: Option<&Grant>, send: &Send<'_>, verb: Verb) -> Result<(), Denied> {
    let Some(grant) = grant else { return Ok(()) };
    let asked = WriteRequest { verb, gvk: &send.kind.gvk, subresource: send.subresource, name: send.name };
    match send.right {
        Right::Child => grant.check_child(&asked),
        Right::Status => grant.check_status(send.name),
        Right::Finalizer => grant.check_finalizer(send.name),
        Right::Write => grant.check_write(&asked),
        Right::Host => Ok(()),
    }
}

/// Ends a write that brought no object.
fn settle(writing: Option<Writing>, surely_not_done: bool) {
    if let Some(writing) = writing {
        if surely_not_done { writing.refused() } else { writing.unknown() }
    }
}

fn unusable(tried: Tried<'_>, error: &dyn std::fmt::Display) -> WriteError {
    WriteError::Unusable(Failure::permanent(
        code::INVALID_ARGUMENT,
        "validation",
        format!("failed to {tried}: {error}"),
    ))
}

/// What can stand between two slashes: the server splits the decoded path, so an encoded slash
/// would reach another object than the grant was checked for.
fn is_segment(part: &str) -> bool {
    !part.is_empty() && part != "." && part != ".." && !part.contains(['/', '%'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_segments_cannot_leave_their_place() {
        for good in ["a", "system:node", "a.b", "..a"] {
            assert!(is_segment(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "../secrets/x", "a%2Fb"] {
            assert!(!is_segment(bad), "{bad}");
        }
    }
}
