//! Failures of a run, in the three layers that the contract keeps apart.
//!
//! [`Failure`] is what everything is reported as in the end (log, condition, metric). The layer it
//! came from is [`Layer`]: the guest said no, the guest broke, or the host could not.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a run did not end well (feature D1).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{code}: {message}")]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// A stable word, `UPPER_SNAKE_CASE`.
    pub code: String,
    /// A word of the contract's list, or the guest's own.
    pub category: String,
    /// 1 to 5.
    pub severity: u8,
    /// Worth a retry with back-off.
    pub transient: bool,
    /// A sentence for people.
    pub message: String,
    /// The delay before the next attempt; wins over the back-off.
    pub retry_after: Option<Duration>,
    /// Further facts.
    pub details: Vec<(String, String)>,
}

/// Which layer failed. It decides what is committed and what a circuit breaker counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layer {
    /// The guest returned a failure: its status, conditions and events are committed.
    Guest,
    /// The guest broke (trap, memory, deadline, limit): nothing is committed.
    Broke,
    /// The host failed (cache, commit, API server, abort): nothing more is committed.
    Host,
}

/// The codes that the host itself gives. Guests may use any other word.
pub mod code {
    /// The guest trapped.
    pub const TRAP: &str = "TRAP";
    /// The guest wanted more memory than its limit.
    pub const OUT_OF_MEMORY: &str = "OUT_OF_MEMORY";
    /// The guest was ended at its deadline.
    pub const DEADLINE_EXCEEDED: &str = "DEADLINE_EXCEEDED";
    /// The guest staged or asked for more than a limit allows.
    pub const LIMIT_EXCEEDED: &str = "LIMIT_EXCEEDED";
    /// The plugin asked for a kind or verb that it was not granted.
    pub const NOT_GRANTED: &str = "NOT_GRANTED";
    /// The plugin asked for a kind that its manifest does not declare.
    pub const NOT_DECLARED: &str = "NOT_DECLARED";
    /// An argument of a host call is not usable.
    pub const INVALID_ARGUMENT: &str = "INVALID_ARGUMENT";
    /// The object does not have the shape that the plugin's type expects.
    pub const INVALID_OBJECT: &str = "INVALID_OBJECT";
    /// A live object of a child's name is not ours.
    pub const CHILD_NOT_OWNED: &str = "CHILD_NOT_OWNED";
    /// A child's owner would be in another namespace.
    pub const CROSS_NAMESPACE_OWNER: &str = "CROSS_NAMESPACE_OWNER";
    /// The API server refused a write as invalid.
    pub const INVALID_WRITE: &str = "INVALID_WRITE";
    /// The API server forbade it.
    pub const FORBIDDEN: &str = "FORBIDDEN";
    /// A conditional write was stale, three times in a row.
    pub const CONFLICT: &str = "CONFLICT";
    /// The API server cannot be reached or does not answer properly.
    pub const API_UNAVAILABLE: &str = "API_UNAVAILABLE";
    /// The API server asked to slow down.
    pub const TOO_MANY_REQUESTS: &str = "TOO_MANY_REQUESTS";
    /// The awaited object did not come to its state in time.
    pub const WAIT_TIMEOUT: &str = "WAIT_TIMEOUT";
    /// The kind is not served (its CRD is missing).
    pub const KIND_NOT_SERVED: &str = "KIND_NOT_SERVED";
    /// The kind has no status subresource.
    pub const NO_STATUS_SUBRESOURCE: &str = "NO_STATUS_SUBRESOURCE";
    /// The host is stopping or lost the right to write.
    pub const ABORTED: &str = "ABORTED";
    /// The host could not do its part.
    pub const HOST: &str = "HOST";
}

impl Failure {
    /// A transient failure of the host's own making.
    pub fn transient(code: &str, category: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            category: category.to_owned(),
            severity: 3,
            transient: true,
            message: message.into(),
            retry_after: None,
            details: Vec::new(),
        }
    }

    /// A permanent failure of the host's own making.
    pub fn permanent(code: &str, category: &str, message: impl Into<String>) -> Self {
        Self { transient: false, ..Self::transient(code, category, message) }
    }

    /// With one more fact.
    #[must_use]
    pub fn detail(mut self, key: &str, value: impl Into<String>) -> Self {
        self.details.push((key.to_owned(), value.into()));
        self
    }
}
