//! The metrics of this crate.
//!
//! `rest_client_*` have the names, labels and buckets of controller-runtime, so that dashboards
//! made for it work unchanged; `reeve_watch_*` and `reeve_cache_*` are ours, because there nothing
//! tells how watches and caches are.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// client-go's buckets for request, rate limiter and (without the last) DNS latency, in seconds.
const LATENCY: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// client-go's buckets for request and response size, in bytes: 64 B to 16 MiB.
const SIZE: [f64; 11] =
    [64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];

/// The methods that the host sends; their series exist before the first request.
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// What every request is measured by.
#[derive(Clone)]
pub(crate) struct RestMetrics {
    host: String,
    requests: IntCounterVec,
    duration: HistogramVec,
    rate_limiter: HistogramVec,
    dns: Histogram,
    request_size: HistogramVec,
    response_size: HistogramVec,
    retries: IntCounterVec,
}

/// What the watch streams are measured by.
#[derive(Clone)]
pub(crate) struct WatchMetrics {
    /// By kind and outcome: `initial`, `relist`, or a `page` of either.
    pub(crate) lists: IntCounterVec,
    /// By kind and type (`upsert`, `deleted`, `bookmark`, `error`, `unreadable`).
    pub(crate) events: IntCounterVec,
    /// By kind and reason.
    pub(crate) errors: IntCounterVec,
    /// Events and list items that are no object of the kind, by kind.
    pub(crate) skipped: IntCounterVec,
    /// Watch requests after the first of each stream, by kind.
    pub(crate) reconnects: IntCounterVec,
    /// By kind and state.
    pub(crate) streams: IntGaugeVec,
    /// Unix time of the last event or bookmark, in seconds, by kind.
    pub(crate) last_event: IntGaugeVec,
}

/// What the cache is measured by.
#[derive(Clone)]
pub(crate) struct CacheMetrics {
    /// By kind and flavour.
    pub(crate) objects: IntGaugeVec,
    /// JSON text of the objects, by kind and flavour.
    pub(crate) bytes: IntGaugeVec,
    /// Older versions that came late and were dropped.
    pub(crate) stale: IntCounter,
    /// Writes of unknown outcome that hold reads (feature B4).
    pub(crate) holds: IntCounter,
    /// Of these, those that the watch did not pass within the limit.
    pub(crate) holds_expired: IntCounter,
    /// Changes that wait for the router.
    pub(crate) outbox: IntGauge,
}

// === impl RestMetrics ===

impl RestMetrics {
    pub(crate) fn new(host: &str, registry: &Registry) -> Result<Self, prometheus::Error> {
        let histogram = |name: &str, help: &str, buckets: &[f64], labels: &[&str]| {
            let histogram =
                HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let metrics = Self {
            host: host.to_owned(),
            requests: counter(
                registry,
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
                &["code", "method", "host"],
            )?,
            duration: histogram(
                "rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, and host.",
                &LATENCY,
                &["verb", "host"],
            )?,
            rate_limiter: histogram(
                "rest_client_rate_limiter_duration_seconds",
                "Client side rate limiter latency in seconds. Broken down by verb, and host.",
                &LATENCY,
                &["verb", "host"],
            )?,
            dns: histogram(
                "rest_client_dns_resolution_duration_seconds",
                "DNS resolver latency in seconds. Broken down by host.",
                &LATENCY[..11],
                &["host"],
            )?
            .with_label_values(&[host]),
            request_size: histogram(
                "rest_client_request_size_bytes",
                "Request size in bytes. Broken down by verb and host.",
                &SIZE,
                &["verb", "host"],
            )?,
            response_size: histogram(
                "rest_client_response_size_bytes",
                "Response size in bytes. Broken down by verb and host.",
                &SIZE,
                &["verb", "host"],
            )?,
            retries: counter(
                registry,
                "rest_client_request_retries_total",
                "Number of request retries, partitioned by status code, verb, and host.",
                &["code", "verb", "host"],
            )?,
        };
        for method in METHODS {
            metrics.requests.with_label_values(&["200", method, host]);
            metrics.retries.with_label_values(&["429", method, host]);
            for histogram in
                [&metrics.duration, &metrics.rate_limiter, &metrics.request_size, &metrics.response_size]
            {
                histogram.with_label_values(&[method, host]);
            }
        }
        Ok(metrics)
    }

    /// `code`: the status, or `<error>` where none came, as client-go writes it.
    pub(crate) fn answered(&self, method: &str, code: &str, seconds: f64) {
        self.requests.with_label_values(&[code, method, &self.host]).inc();
        self.duration.with_label_values(&[method, &self.host]).observe(seconds);
    }

    pub(crate) fn sent(&self, method: &str, bytes: u64) {
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
        self.request_size.with_label_values(&[method, &self.host]).observe(bytes as f64);
    }

    pub(crate) fn response_size(&self, method: &str) -> Histogram {
        self.response_size.with_label_values(&[method, &self.host])
    }

    pub(crate) fn waited(&self, method: &str, seconds: f64) {
        self.rate_limiter.with_label_values(&[method, &self.host]).observe(seconds);
    }

    pub(crate) fn retried(&self, code: &str, method: &str) {
        self.retries.with_label_values(&[code, method, &self.host]).inc();
    }

    pub(crate) fn dns(&self) -> &Histogram {
        &self.dns
    }
}

// === impl WatchMetrics ===

impl WatchMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            lists: counter(
                registry,
                "reeve_watch_lists_total",
                "Lists and initial event streams that were read to their end, and pages of lists, by kind and outcome.",
                &["kind", "outcome"],
            )?,
            events: counter(
                registry,
                "reeve_watch_events_total",
                "Watch events by kind and type.",
                &["kind", "type"],
            )?,
            errors: counter(
                registry,
                "reeve_watch_errors_total",
                "Failed lists and watches by kind and reason.",
                &["kind", "reason"],
            )?,
            skipped: counter(
                registry,
                "reeve_watch_skipped_total",
                "Events and list items that were no readable object of the kind.",
                &["kind"],
            )?,
            reconnects: counter(
                registry,
                "reeve_watch_reconnects_total",
                "Watch requests after the first one of a stream, by kind.",
                &["kind"],
            )?,
            streams: gauge(
                registry,
                "reeve_watch_streams",
                "Open streams by kind and state.",
                &["kind", "state"],
            )?,
            last_event: gauge(
                registry,
                "reeve_watch_last_event_timestamp_seconds",
                "When the last event or bookmark of a kind came, as Unix time.",
                &["kind"],
            )?,
        })
    }
}

// === impl CacheMetrics ===

impl CacheMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            objects: gauge(
                registry,
                "reeve_cache_objects",
                "Cached objects by kind and flavour.",
                &["kind", "flavour"],
            )?,
            bytes: gauge(
                registry,
                "reeve_cache_bytes",
                "JSON text of the cached objects by kind and flavour.",
                &["kind", "flavour"],
            )?,
            stale: single(
                registry,
                "reeve_cache_stale_total",
                "Versions that came after a newer one, or after their object was deleted, and were dropped.",
            )?,
            holds: single(
                registry,
                "reeve_cache_holds_total",
                "Writes of unknown outcome that hold the reads of their object.",
            )?,
            holds_expired: single(
                registry,
                "reeve_cache_holds_expired_total",
                "Holds that ended at their limit before the watch told of the object.",
            )?,
            outbox: {
                let gauge = IntGauge::new(
                    "reeve_cache_changes_pending",
                    "Changes that the router has not taken yet.",
                )?;
                registry.register(Box::new(gauge.clone()))?;
                gauge
            },
        })
    }
}

fn counter(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntCounterVec, prometheus::Error> {
    let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

fn gauge(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntGaugeVec, prometheus::Error> {
    let gauge = IntGaugeVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

fn single(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    let counter = IntCounter::new(name, help)?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}
