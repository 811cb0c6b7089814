//! Waits for a state of another object (feature D5).

use std::time::Duration;

use reeve_core::failure::Failure;
use reeve_core::grant::Grant;
use reeve_core::ids::ObjectName;
use reeve_core::labels::Selector;
use reeve_core::plan::{Wait, WaitTarget, WaitUntil};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{MAX_WAITS, Staged, Staging, check_kind, check_name, invalid};
use crate::abi::denied;
use crate::limits::Ended;

/// Where the document gives none: ten minutes, the limit of most things that one waits for in a
/// cluster (image pulls, load balancers, volumes).
const DEFAULT_TIMEOUT_MS: u64 = 600_000;
/// A week: longer is no waiting any more.
const MAX_TIMEOUT_MS: u64 = 7 * 24 * 3_600_000;
/// Feature D5: polling where nothing can be watched begins at 2 s.
const DEFAULT_POLL_MS: u64 = 2_000;
/// Faster than this is load on the API server without use.
const MIN_POLL_MS: u64 = 100;
const MAX_POLL_MS: u64 = 3_600_000;

/// The document of the contract.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    namespace: Option<String>,
    name: Option<String>,
    labels: Option<String>,
    condition: Option<String>,
    pointer: Option<String>,
    #[serde(default, deserialize_with = "given")]
    equals: Option<Value>,
    exists: Option<bool>,
    timeout_ms: Option<u64>,
    poll_ms: Option<u64>,
}

/// `null` is a value that one can wait for, and differs from none given.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Staging {
    pub(crate) fn wait(&mut self, request: &str, primary: &ObjectName, grant: &Grant) -> Staged {
        let document = self.document("the wait", request)?;
        let wait = match document.and_then(|document| parse(document, primary, grant)) {
            Ok(wait) => wait,
            Err(failure) => return Ok(Err(failure)),
        };
        if self.plan.waits.len() >= MAX_WAITS {
            return Err(Ended::Limit { what: "waits", limit: MAX_WAITS as u64, place: "" });
        }
        self.plan.waits.push(wait);
        Ok(Ok(()))
    }
}

fn parse(document: Document, primary: &ObjectName, grant: &Grant) -> Result<Wait, Failure> {
    let gvk = check_kind(&document.api_version, &document.kind)?;
    let namespace = match document.namespace.as_deref() {
        Some("") => None,
        Some(namespace) => {
            check_name("namespace", namespace)?;
            Some(namespace.to_owned())
        }
        None => primary.namespace.as_deref().map(str::to_owned),
    };
    let target = match (document.name, document.labels) {
        (Some(name), None) => {
            check_name("name", &name)?;
            WaitTarget::Name(name)
        }
        (None, Some(labels)) => {
            labels
                .parse::<Selector>()
                .map_err(|error| invalid(format!("`labels` {labels:?} is no selector: {error}")))?;
            WaitTarget::Labels(labels)
        }
        _ => return Err(invalid("a wait needs either `name` or `labels`")),
    };
    let until = match (document.condition, document.pointer, document.equals, document.exists) {
        (Some(condition), None, None, None) => {
            let (kind, status) = condition.split_once('=').unwrap_or((&condition, "True"));
            if kind.is_empty() || status.is_empty() {
                return Err(invalid(format!("`condition` {condition:?}: write `Type` or `Type=Status`")));
            }
            WaitUntil::Condition(kind.to_owned(), status.to_owned())
        }
        (None, Some(pointer), Some(value), None) => {
            if !reeve_core::json::is_pointer(&pointer) {
                return Err(invalid(format!("`pointer` {pointer:?} is no JSON pointer (RFC 6901)")));
            }
            WaitUntil::Equals(pointer, value)
        }
        (None, None, None, Some(exists)) => WaitUntil::Exists(exists),
        _ => return Err(invalid("a wait needs one of `condition`, `pointer` with `equals`, or `exists`")),
    };
    let in_range =
        |field: &str, value: Option<u64>, default: u64, from: u64, to: u64| match value.unwrap_or(default) {
            value if (from..=to).contains(&value) => Ok(Duration::from_millis(value)),
            value => Err(invalid(format!("`{field}` is {value}, it must be between {from} and {to}"))),
        };
    let timeout = in_range("timeoutMs", document.timeout_ms, DEFAULT_TIMEOUT_MS, 1, MAX_TIMEOUT_MS)?;
    let poll = in_range("pollMs", document.poll_ms, DEFAULT_POLL_MS, MIN_POLL_MS, MAX_POLL_MS)?;
    grant.check_read(&gvk, namespace.as_deref()).map_err(|refusal| denied(&refusal))?;
    Ok(Wait { gvk, namespace, target, until, timeout, poll })
}
