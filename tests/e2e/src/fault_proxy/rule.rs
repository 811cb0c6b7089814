//! Rules: which requests meet which fault, and how often. Counts decide, never chance, so that a
//! test that failed fails again.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::filter::Filter;

/// A fault and the requests that meet it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Which requests.
    #[serde(default, rename = "match")]
    pub filter: Filter,
    /// So many matching requests are spared first.
    #[serde(default)]
    pub skip: u64,
    /// So many are affected then; absent means all until the rule is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// What happens to them.
    pub action: Action,
}

/// What happens to a request, its answer, or the events of a watch. Of several rules that match,
/// all delays and watch actions hold; of those that end a request the oldest does.
///
/// Watch actions hold for streams that are open already, too; their `after` counts the events
/// that the stream delivers from then on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum Action {
    /// Waits before the request goes to the server.
    Delay {
        /// Milliseconds.
        ms: u64,
    },
    /// Waits between the server's answer and its delivery.
    DelayAnswer {
        /// Milliseconds.
        ms: u64,
    },
    /// Closes the connection; the server never saw the request.
    LoseRequest,
    /// Closes the connection after the server answered: for the client an unknown outcome.
    LoseAnswer,
    /// Answers in the server's place with a `Status`.
    Respond {
        /// The HTTP status, for example 410, 429, 500, 503, 504.
        status: u16,
        /// The `reason` of the Status; by default the one that a server gives with this code.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The `message` of the Status.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// The `Retry-After` header, in seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after: Option<u64>,
        /// The `reason` of a cause in the Status's details, for example `ResourceVersionTooLarge`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<String>,
    },
    /// Delivers the body in pieces with a pause before each.
    SlowBody {
        /// Bytes per piece.
        bytes: usize,
        /// Milliseconds before each piece.
        ms: u64,
    },
    /// Closes the connection in the middle of the body.
    CutBody {
        /// So many bytes are delivered first.
        after_bytes: usize,
    },
    /// Ends the watch cleanly, as a server does at its timeout.
    Cut {
        /// So many events are delivered first.
        #[serde(default)]
        after: u64,
    },
    /// Ends the watches that are open now, and none that begins later.
    CutOpen,
    /// Delivers an `ERROR` event with a Status, then ends the watch.
    WatchError {
        /// So many events are delivered first.
        #[serde(default)]
        after: u64,
        /// The code of the Status, for example 410.
        code: u16,
    },
    /// Delivers every event this much later than it came.
    Shift {
        /// Milliseconds.
        ms: u64,
    },
    /// Holds all events back until the rule is removed. A stream that the server ends meanwhile
    /// stays open and delivers what it has afterwards.
    Pause,
    /// Leaves bookmarks out, also the one that ends the initial events of a watch-list.
    StripBookmarks,
    /// Answers a watch with `sendInitialEvents` with 422, as a server without watch-list does.
    RefuseWatchList,
    /// Delivers a line of our own between the events.
    Inject {
        /// So many events are delivered first.
        #[serde(default)]
        after: u64,
        /// The line, without its newline; need not be JSON.
        line: String,
    },
}

/// The name of a rule in a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuleId(pub u64);

/// How often a rule matched and took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests and streams that matched.
    pub matched: u64,
    /// Those that were affected.
    pub affected: u64,
}

/// A rule in force.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) id: RuleId,
    pub(super) rule: Rule,
    /// Streams with a lower number were open when the rule came.
    pub(super) since: u64,
    matched: AtomicU64,
    affected: AtomicU64,
}

// === impl Rule ===

impl Rule {
    /// This action on every request that matches, until the rule is removed.
    pub fn new(filter: Filter, action: Action) -> Self {
        Self { filter, skip: 0, times: None, action }
    }

    /// Only the first `times` of them.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Only the `nth` of them, counted from 1.
    #[must_use]
    pub fn nth(mut self, nth: u64) -> Self {
        self.skip = nth.saturating_sub(1);
        self.times = Some(1);
        self
    }
}

// === impl Action ===

impl Action {
    /// Answers with this status, with the reason and message of a real server.
    pub fn respond(status: u16) -> Self {
        Self::Respond { status, reason: None, message: None, retry_after: None, cause: None }
    }

    /// 429 with a `Retry-After` of so many seconds.
    pub fn too_many_requests(retry_after: u64) -> Self {
        Self::Respond {
            status: 429,
            reason: None,
            message: None,
            retry_after: Some(retry_after),
            cause: None,
        }
    }

    /// The answer to a resourceVersion that the server has not reached yet.
    pub fn too_large_resource_version() -> Self {
        Self::Respond {
            status: 504,
            reason: Some("Timeout".to_owned()),
            message: Some("Too large resource version: 9999999999, current: 1".to_owned()),
            retry_after: Some(1),
            cause: Some("ResourceVersionTooLarge".to_owned()),
        }
    }

    /// Whether it acts on the events of a watch, not on the request.
    pub(super) fn is_on_stream(&self) -> bool {
        matches!(
            self,
            Self::Cut { .. }
                | Self::CutOpen
                | Self::WatchError { .. }
                | Self::Shift { .. }
                | Self::Pause
                | Self::StripBookmarks
                | Self::Inject { .. }
        )
    }
}

// === impl Active ===

impl Active {
    pub(super) fn new(id: RuleId, rule: Rule, since: u64) -> Self {
        Self { id, rule, since, matched: AtomicU64::new(0), affected: AtomicU64::new(0) }
    }

    /// Counts a match; true when the request is one of those to affect.
    pub(super) fn admit(&self) -> bool {
        let nth = self.matched.fetch_add(1, Ordering::SeqCst);
        let admitted = nth >= self.rule.skip
            && self.rule.times.is_none_or(|times| nth < self.rule.skip.saturating_add(times));
        if admitted {
            self.affected.fetch_add(1, Ordering::SeqCst);
        }
        admitted
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            matched: self.matched.load(Ordering::SeqCst),
            affected: self.affected.load(Ordering::SeqCst),
        }
    }
}

/// A `Status` object as an API server sends it.
pub(super) fn status_object(
    code: u16,
    reason: Option<&str>,
    message: Option<&str>,
    retry_after: Option<u64>,
    cause: Option<&str>,
) -> serde_json::Value {
    let (default_reason, default_message) = match code {
        403 => ("Forbidden", "forbidden by a fault rule"),
        404 => ("NotFound", "the server could not find the requested resource"),
        409 => ("Conflict", "the object has been modified; please apply your changes to the latest version"),
        410 => ("Expired", "too old resource version: 1 (2)"),
        422 => (
            "Invalid",
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
        ),
        429 => (
            "TooManyRequests",
            "the server has received too many requests and has asked us to try again later",
        ),
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => ("Timeout", "the server was unable to return a response in time"),
        _ => ("InternalError", "an error on the server has prevented the request from succeeding"),
    };
    let mut status = serde_json::json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message.unwrap_or(default_message),
        "reason": reason.unwrap_or(default_reason),
        "code": code,
    });
    if retry_after.is_some() || cause.is_some() {
        let mut details = serde_json::Map::new();
        if let Some(seconds) = retry_after {
            details.insert("retryAfterSeconds".to_owned(), seconds.into());
        }
        if let Some(cause) = cause {
            details.insert("causes".to_owned(), serde_json::json!([{ "reason": cause, "message": cause }]));
        }
        status["details"] = details.into();
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_decide() {
        let rule = |rule| Active::new(RuleId(1), rule, 0);
        let base = || Rule::new(Filter::any(), Action::LoseRequest);
        let admitted = |active: &Active| (0..5).map(|_| active.admit()).collect::<Vec<_>>();
        assert_eq!(admitted(&rule(base())), [true; 5]);
        assert_eq!(admitted(&rule(base().times(2))), [true, true, false, false, false]);
        let third = rule(base().nth(3));
        assert_eq!(admitted(&third), [false, false, true, false, false]);
        assert_eq!(third.counts(), Counts { matched: 5, affected: 1 });
    }

    #[test]
    fn rules_are_json() {
        let text =
            r#"{"match":{"path":"/api/*","watch":true},"times":1,"action":{"do":"watch-error","code":410}}"#;
        let rule: Rule = serde_json::from_str(text).unwrap();
        assert_eq!(rule.action, Action::WatchError { after: 0, code: 410 });
        let again: Rule = serde_json::from_str(&serde_json::to_string(&rule).unwrap()).unwrap();
        assert_eq!(again, rule);
        assert!(serde_json::from_str::<Rule>(r#"{"action":{"do":"explode"}}"#).is_err());
        let slow: Rule = serde_json::from_str(r#"{"action":{"do":"cut-body","after-bytes":3}}"#).unwrap();
        assert_eq!(slow.action, Action::CutBody { after_bytes: 3 });
    }
}
