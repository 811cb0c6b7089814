//! What a plugin may use, and how its failures and its status are treated.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::set;
use crate::outcome::milliseconds;

/// What one run may use. The host's own ceiling applies beside it.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "pass it to `Manifest::limits`"]
pub struct Limits {
    pub(super) fields: Map<String, Value>,
}

/// How failures are retried: exponentially with ±10 % jitter.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "pass it to `Manifest::retry`"]
pub struct Retry {
    pub(super) fields: Map<String, Value>,
}

/// What happens to an object after its last attempt, when it is marked `Stalled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExhausted {
    /// Its delays go on doubling to the cap; the default.
    Slow,
    /// It is left until it changes.
    Stop,
}

/// How the status is written; each writes only the difference, and nothing when there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusStrategy {
    /// A merge patch; the default.
    Merge,
    /// Server-side apply with the plugin's field manager: several plugins can share a status.
    Apply,
    /// A replace with the resourceVersion that the run read.
    Update,
}

// === impl Limits and Retry ===

impl Limits {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Linear memory in MiB, 1 to 512; default 64.
    pub fn memory_mib(self, mib: u32) -> Self {
        self.with("memoryMib", json!(mib))
    }

    /// From start to end of a run, 10 ms to 10 min; default 30 s.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with("deadlineMs", json!(milliseconds(deadline)))
    }

    /// Objects in work at once, 1 to 256; default 4.
    pub fn concurrency(self, objects: u32) -> Self {
        self.with("concurrency", json!(objects))
    }

    /// Log lines of one run; default 256.
    pub fn log_lines(self, lines: u32) -> Self {
        self.with("logLines", json!(lines))
    }

    /// Events of one run; default 16.
    pub fn events(self, events: u32) -> Self {
        self.with("events", json!(events))
    }

    /// Host calls of one run; default 100,000.
    pub fn host_calls(self, calls: u64) -> Self {
        self.with("hostCalls", json!(calls))
    }

    /// KiB staged in one run; default 8,192.
    pub fn staged_kib(self, kib: u32) -> Self {
        self.with("stagedKib", json!(kib))
    }

    /// Children of one run; default 1,000.
    pub fn children(self, children: u32) -> Self {
        self.with("children", json!(children))
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        set(&mut self.fields, key, value);
        self
    }
}

impl Retry {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The first delay, doubled with each failure; default 1 s.
    pub fn base(self, delay: Duration) -> Self {
        self.with("baseMs", json!(milliseconds(delay)))
    }

    /// The longest delay; default 5 min.
    pub fn cap(self, delay: Duration) -> Self {
        self.with("capMs", json!(milliseconds(delay)))
    }

    /// Failures until the object is `Stalled`; default 5.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with("maxAttempts", json!(attempts))
    }

    /// What happens then.
    pub fn on_exhausted(self, what: OnExhausted) -> Self {
        self.with(
            "onExhausted",
            json!(match what {
                OnExhausted::Slow => "slow",
                OnExhausted::Stop => "stop",
            }),
        )
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        set(&mut self.fields, key, value);
        self
    }
}
