//! What a refusal of the API server means: its `Status` body mapped to a [`Failure`].
//!
//! The one place that knows the server's reasons. Texts name the write, the server's own words
//! (with field paths) and the remedy; values of a Secret never get into them.

use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, RETRY_AFTER};
use reeve_core::failure::{Failure, code};
use reeve_core::gvk::{Gvk, Kind};
use reeve_core::ids::ObjectName;
use serde::Deserialize;

/// The longest text of the server that is taken over, in bytes: an admission message or a list of
/// field errors is shorter, and a condition's message must stay below 32 KiB.
const MAX_SERVER_TEXT: usize = 2_048;

/// The longest `Retry-After` that is believed: the longest back-off of a key.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);

/// An answer of the API server that is no success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The HTTP status.
    pub(crate) status: StatusCode,
    /// The machine-readable reason, empty where the server gave none.
    pub(crate) reason: String,
    /// The server's sentence.
    pub(crate) message: String,
    /// (field path, type, sentence) of each cause.
    pub(crate) causes: Vec<Cause>,
    /// How long the server asks to wait.
    pub(crate) retry_after: Option<Duration>,
}

/// One cause within a `Status`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(default)]
pub(crate) struct Cause {
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) field: String,
}

/// What was tried, for texts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tried<'a> {
    /// `apply`, `create`, `patch`, `update`, `delete`, `get`.
    pub(crate) verb: &'static str,
    pub(crate) kind: &'a Kind,
    pub(crate) name: &'a ObjectName,
    pub(crate) subresource: Option<&'a str>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    kind: String,
    reason: String,
    message: String,
    details: Details,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    causes: Vec<Cause>,
    retry_after_seconds: u64,
}

// === impl Tried ===

impl std::fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.kind.gvk.group_kind())?;
        if let Some(subresource) = self.subresource {
            write!(f, "/{subresource}")?;
        }
        write!(f, " {}", self.name)
    }
}

// === impl Refusal ===

impl Refusal {
    /// Reads an answer that is no success. A body that is no `Status` (a proxy's page) is kept out.
    pub(crate) fn read(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let parsed = serde_json::from_slice::<Status>(body).ok().filter(|parsed| parsed.kind == "Status");
        let header = headers
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| text.trim().parse::<u64>().ok());
        let parsed = parsed.unwrap_or_default();
        let seconds =
            header.or((parsed.details.retry_after_seconds > 0).then_some(parsed.details.retry_after_seconds));
        Self {
            status,
            reason: parsed.reason,
            message: cut(&parsed.message, MAX_SERVER_TEXT).to_owned(),
            causes: parsed.details.causes,
            retry_after: seconds.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER)),
        }
    }

    /// A conditional write was stale: another try on the fresh object may do. Not: the object
    /// exists already, or an apply without force met fields of another manager.
    pub(crate) fn is_conflict(&self) -> bool {
        let of_managers = self.causes.iter().any(|cause| cause.reason == "FieldManagerConflict");
        self.status == StatusCode::CONFLICT && self.reason != "AlreadyExists" && !of_managers
    }

    /// A create met an object of that name.
    pub(crate) fn is_already_exists(&self) -> bool {
        self.status == StatusCode::CONFLICT && self.reason == "AlreadyExists"
    }

    /// The object (or its namespace, or its kind) is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self.status, StatusCode::NOT_FOUND | StatusCode::GONE)
    }

    /// The path itself is unknown: the kind is not served any more.
    pub(crate) fn is_unserved(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
            && (self.reason.is_empty() || self.message.contains("could not find the requested resource"))
    }

    /// Refused because the object is of another life than the write said: a wrong UID in an apply
    /// or merge patch shows as an attempt to change an immutable field.
    pub(crate) fn is_other_life(&self) -> bool {
        self.status == StatusCode::UNPROCESSABLE_ENTITY
            && self.causes.iter().any(|cause| cause.field == "metadata.uid")
    }

    /// A JSON patch was refused before validation: a `test` did not hold (the server does not say
    /// which operation failed).
    pub(crate) fn is_failed_test(&self) -> bool {
        self.status == StatusCode::UNPROCESSABLE_ENTITY
            && self.causes.iter().all(|cause| cause.field.is_empty())
            && (self.message.contains("testing value")
                || self.message.contains("due to an error in our request")
                || self.message.contains("test failed")
                || self.message.contains("jsonpatch"))
    }

    /// Worth counting as an outage of the server rather than as a failure of the object.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(
            self.status,
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
        ) && self.retry_after.is_none()
    }

    /// The label of the metric `reeve_commit_writes_total`.
    pub(crate) fn result(&self) -> &'static str {
        match self.status.as_u16() {
            409 if self.reason == "AlreadyExists" => "exists",
            409 => "conflict",
            404 | 410 => "not_found",
            401 | 403 => "forbidden",
            400 | 413 | 422 => "invalid",
            429 => "throttled",
            _ => "error",
        }
    }

    /// As it is reported.
    pub(crate) fn failure(&self, tried: Tried<'_>) -> Failure {
        let said = self.said(tried.kind);
        let text = |remedy: &str| {
            let said = said.trim_end_matches('.');
            if remedy.is_empty() {
                format!("failed to {tried}: {said}")
            } else {
                format!("failed to {tried}: {said}; {remedy}")
            }
        };
        let mut failure = match self.status.as_u16() {
            404 if self.is_unserved() => Failure::transient(
                code::KIND_NOT_SERVED,
                "dependency",
                text(&format!(
                    "the cluster does not serve {}, apply its CustomResourceDefinition",
                    tried.kind.gvk
                )),
            ),
            404 | 410 => Failure::transient("NOT_FOUND", "not-found", text("")),
            409 if self.is_already_exists() => Failure::permanent("ALREADY_EXISTS", "conflict", text("")),
            409 => Failure::transient(code::CONFLICT, "conflict", text("")),
            401 => Failure::transient(
                code::FORBIDDEN,
                "auth",
                text("the API server does not accept the host's credentials"),
            ),
            403 => self.forbidden(tried, &text),
            400 | 405 | 406 | 413 | 415 | 422 => {
                Failure::permanent(code::INVALID_WRITE, "validation", text(""))
            }
            429 => Failure::transient(code::TOO_MANY_REQUESTS, "quota", text("")),
            500 if self.is_schema_error() => Failure::permanent(code::INVALID_WRITE, "validation", text("")),
            _ => Failure::transient(code::API_UNAVAILABLE, "network", text("")),
        };
        failure.retry_after = self.retry_after;
        for cause in self.causes.iter().filter(|cause| !cause.field.is_empty()).take(8) {
            failure = failure.detail("field", cut(&cause.field, 256));
        }
        failure
    }

    /// 403 has four senses: RBAC, quota, a namespace on its way out, and admission.
    fn forbidden(&self, tried: Tried<'_>, text: &dyn Fn(&str) -> String) -> Failure {
        if self.message.contains("exceeded quota") {
            return Failure::transient(
                "QUOTA_EXCEEDED",
                "quota",
                text("raise the ResourceQuota or free some of it"),
            );
        }
        if self.causes.iter().any(|cause| cause.reason == "NamespaceTerminating") {
            return Failure::transient("NAMESPACE_TERMINATING", "dependency", text(""));
        }
        if self.message.contains("cannot ") && self.message.contains(" resource ") {
            let mut failure = Failure::transient(code::FORBIDDEN, "permission", text(&rule(tried)));
            failure.severity = 4;
            return failure;
        }
        Failure::permanent(code::FORBIDDEN, "permission", text(""))
    }

    /// Server-side apply answers a field that the schema does not have with a plain 500.
    fn is_schema_error(&self) -> bool {
        self.message.contains("failed to create typed patch object")
            || self.message.contains("field not declared in schema")
    }

    /// The server's words; of a Secret only fields and reasons, as the words may quote values.
    fn said(&self, kind: &Kind) -> String {
        if &*kind.gvk.kind == "Secret"
            && kind.gvk.group.is_empty()
            && !self.causes.is_empty()
            && self.status == StatusCode::UNPROCESSABLE_ENTITY
        {
            let causes: Vec<String> =
                self.causes.iter().map(|cause| format!("{}: {}", cause.field, cause.reason)).collect();
            return cut(&causes.join(", "), MAX_SERVER_TEXT).to_owned();
        }
        if self.message.is_empty() {
            return format!("the API server answered {}", self.status);
        }
        self.message.clone()
    }
}

/// The RBAC rule that would allow it.
fn rule(tried: Tried<'_>) -> String {
    let verbs = match tried.verb {
        // An apply that creates needs both, and whoever may only patch cannot begin.
        "apply" => "\"create\", \"patch\"",
        "create" => "\"create\"",
        "update" => "\"update\"",
        "delete" => "\"delete\"",
        "get" => "\"get\"",
        _ => "\"patch\"",
    };
    let resource = match tried.subresource {
        Some(subresource) => format!("{}/{subresource}", tried.kind.plural),
        None => tried.kind.plural.to_string(),
    };
    format!(
        "the rule to add: apiGroups [{:?}], resources [{resource:?}], verbs [{verbs}]",
        tried.kind.gvk.group
    )
}

/// The first bytes of a text, cut at a character.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let mut end = max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A failure for a kind that discovery does not know.
pub(crate) fn not_served(gvk: &Gvk, error: &impl std::fmt::Display) -> Failure {
    Failure::transient(code::KIND_NOT_SERVED, "dependency", error.to_string()).detail("kind", gvk.to_string())
}

#[cfg(test)]
#[path = "refusal_tests.rs"]
mod tests;
