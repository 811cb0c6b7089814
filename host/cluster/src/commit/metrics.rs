//! The metrics of writing. Labels are bounded: plugins, their declared kinds, fixed words.

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// Seconds; from a commit without requests to its limit of 60 s.
const BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

/// What is counted of commits and events.
#[derive(Clone)]
pub(crate) struct CommitMetrics {
    pub(crate) writes: IntCounterVec,
    pub(crate) skipped: IntCounterVec,
    pub(crate) seconds: HistogramVec,
    pub(crate) events_sent: IntCounterVec,
    pub(crate) events_dropped: IntCounterVec,
    pub(crate) events_merged: IntCounterVec,
}

impl CommitMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let seconds = HistogramVec::new(
            HistogramOpts::new("reeve_commit_seconds", "How long commits take, from plan to answer")
                .buckets(BUCKETS.to_vec()),
            &["plugin"],
        )?;
        registry.register(Box::new(seconds.clone()))?;
        Ok(Self {
            writes: counter(
                "reeve_commit_writes_total",
                "Write requests by result; \"denied\" and \"lost\" never left the host",
                &["plugin", "verb", "kind", "result"],
            )?,
            skipped: counter(
                "reeve_commit_skipped_total",
                "Writes left out because nothing was to change",
                &["plugin", "kind"],
            )?,
            seconds,
            events_sent: counter(
                "reeve_events_sent_total",
                "Requests that created or updated an Event",
                &["plugin"],
            )?,
            events_dropped: counter(
                "reeve_events_dropped_total",
                "Events that were not sent, by reason: \"limit\" per object, \"queue\" full, \"refused\" by the server, \"lost\" Lease",
                &["plugin", "reason"],
            )?,
            events_merged: counter(
                "reeve_events_merged_total",
                "Events that only raised the count of a series",
                &["plugin"],
            )?,
        })
    }
}
