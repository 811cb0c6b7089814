//! The request log: what a test looks at to say how many requests a host made.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use super::filter::{Filter, RequestLine};
use super::rule::RuleId;

/// Requests kept; older ones are forgotten and counted. A thousand Websites make ten thousand.
pub const MAX_LOGGED: usize = 200_000;

/// One request as the log knows it now. Bodies and headers are not in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Logged {
    /// Rising by one from 0.
    pub number: u64,
    /// When its head had come, in milliseconds since the proxy's start.
    pub at_ms: u64,
    /// Method, path, query and user agent.
    #[serde(flatten)]
    pub line: RequestLine,
    /// The status of the server's answer or of ours; absent while there is none.
    pub status: Option<u16>,
    /// Whether it was answered by a rule instead of the server.
    pub by_rule: bool,
    /// Whether its connection was closed without a complete answer.
    pub lost: bool,
    /// Bytes of the request's body.
    pub request_bytes: u64,
    /// Bytes of the answer's body that were delivered so far.
    pub response_bytes: u64,
    /// Watch events that were delivered so far.
    pub events: u64,
    /// Whether the answer is still going on.
    pub open: bool,
    /// The rules that took effect on the request (not those on a watch's events).
    pub rules: Vec<RuleId>,
}

/// The log of one proxy.
#[derive(Debug)]
pub(super) struct Log {
    started: Instant,
    next: AtomicU64,
    forgotten: AtomicU64,
    entries: Mutex<VecDeque<Arc<Entry>>>,
}

/// A request being written to the log; closed when dropped.
#[derive(Debug)]
pub(super) struct Writer(Arc<Entry>);

#[derive(Debug)]
struct Entry {
    number: u64,
    at_ms: u64,
    line: RequestLine,
    /// 0 while there is none.
    status: AtomicU16,
    by_rule: AtomicBool,
    lost: AtomicBool,
    request_bytes: AtomicU64,
    response_bytes: AtomicU64,
    events: AtomicU64,
    open: AtomicBool,
    rules: Mutex<Vec<RuleId>>,
}

// === impl Log ===

impl Log {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            next: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            entries: Mutex::default(),
        }
    }

    pub(super) fn begin(&self, line: RequestLine) -> Writer {
        let mut entries = self.entries.lock();
        let entry = Arc::new(Entry {
            number: self.next.fetch_add(1, Ordering::SeqCst),
            at_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            line,
            status: AtomicU16::new(0),
            by_rule: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            request_bytes: AtomicU64::new(0),
            response_bytes: AtomicU64::new(0),
            events: AtomicU64::new(0),
            open: AtomicBool::new(true),
            rules: Mutex::default(),
        });
        if entries.len() == MAX_LOGGED {
            entries.pop_front();
            self.forgotten.fetch_add(1, Ordering::SeqCst);
        }
        entries.push_back(Arc::clone(&entry));
        Writer(entry)
    }

    pub(super) fn select(&self, filter: &Filter, from: u64) -> Vec<Logged> {
        let entries = self.entries.lock();
        entries
            .iter()
            .filter(|entry| entry.number >= from && filter.matches(&entry.line))
            .map(|entry| entry.snapshot())
            .collect()
    }

    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::SeqCst)
    }
}

// === impl Writer ===

impl Writer {
    pub(super) fn status(&self, status: u16) {
        self.0.status.store(status, Ordering::SeqCst);
    }

    pub(super) fn by_rule(&self) {
        self.0.by_rule.store(true, Ordering::SeqCst);
    }

    pub(super) fn lost(&self) {
        self.0.lost.store(true, Ordering::SeqCst);
    }

    pub(super) fn request_bytes(&self, bytes: usize) {
        self.0.request_bytes.store(bytes as u64, Ordering::SeqCst);
    }

    pub(super) fn delivered(&self, bytes: usize) {
        self.0.response_bytes.fetch_add(bytes as u64, Ordering::SeqCst);
    }

    pub(super) fn event(&self) {
        self.0.events.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn rule(&self, rule: RuleId) {
        self.0.rules.lock().push(rule);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.open.store(false, Ordering::SeqCst);
    }
}

// === impl Entry ===

impl Entry {
    fn snapshot(&self) -> Logged {
        let status = self.status.load(Ordering::SeqCst);
        Logged {
            number: self.number,
            at_ms: self.at_ms,
            line: self.line.clone(),
            status: (status != 0).then_some(status),
            by_rule: self.by_rule.load(Ordering::SeqCst),
            lost: self.lost.load(Ordering::SeqCst),
            request_bytes: self.request_bytes.load(Ordering::SeqCst),
            response_bytes: self.response_bytes.load(Ordering::SeqCst),
            events: self.events.load(Ordering::SeqCst),
            open: self.open.load(Ordering::SeqCst),
            rules: self.rules.lock().clone(),
        }
    }
}
