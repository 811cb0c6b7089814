//! `reeve_sandbox_*`: what running guests costs.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// How a call ended, as the label `result` says it.
pub(crate) const RESULTS: [&str; 8] =
    ["ok", "failure", "trap", "out-of-memory", "deadline", "limit", "aborted", "host"];

/// The metrics of one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub(crate) runs: IntCounterVec,
    pub(crate) run_seconds: HistogramVec,
    pub(crate) peak_memory: IntGaugeVec,
    pub(crate) host_calls: IntCounterVec,
    pub(crate) dropped_logs: IntCounterVec,
    pub(crate) dropped_events: IntCounterVec,
    pub(crate) compile_seconds: Histogram,
    pub(crate) cache_hits: IntCounter,
    pub(crate) live_instances: IntGauge,
}

/// The series of one plugin, looked up once.
#[derive(Debug)]
pub(crate) struct PluginMetrics {
    pub(crate) dropped_logs: IntCounter,
    pub(crate) dropped_events: IntCounter,
    pub(crate) host_calls: IntCounter,
    pub(crate) peak_memory: IntGauge,
    pub(crate) reconcile: RoleMetrics,
    pub(crate) cleanup: RoleMetrics,
    pub(crate) map: RoleMetrics,
}

/// The series of one role of one plugin.
#[derive(Debug)]
pub(crate) struct RoleMetrics {
    /// In the order of [`RESULTS`].
    results: Vec<IntCounter>,
    pub(crate) seconds: Histogram,
}

/// From 10 µs, a fresh instance that does nothing, to a minute, beyond the default deadline.
const RUN_BUCKETS: [f64; 17] = [
    0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5,
    1.0, 10.0, 60.0,
];

/// From a small plugin to a language runtime of tens of megabytes.
const COMPILE_BUCKETS: [f64; 9] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 20.0];

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let metrics = Self {
            runs: counter(
                "reeve_sandbox_runs_total",
                "Calls of guests by plugin, role and how they ended.",
                &["plugin", "role", "result"],
            )?,
            run_seconds: HistogramVec::new(
                HistogramOpts::new(
                    "reeve_sandbox_run_duration_seconds",
                    "Time from instantiation to the return of a call.",
                )
                .buckets(RUN_BUCKETS.to_vec()),
                &["plugin", "role"],
            )?,
            peak_memory: IntGaugeVec::new(
                Opts::new(
                    "reeve_sandbox_peak_memory_bytes",
                    "The most linear memory that a run of the plugin had since it was loaded.",
                ),
                &["plugin"],
            )?,
            host_calls: counter("reeve_sandbox_host_calls_total", "Host calls of guests.", &["plugin"])?,
            dropped_logs: counter(
                "reeve_sandbox_dropped_log_lines_total",
                "Log lines of guests that were dropped over the limit of their run.",
                &["plugin"],
            )?,
            dropped_events: counter(
                "reeve_sandbox_dropped_events_total",
                "Events of guests that were dropped over the limit of their run.",
                &["plugin"],
            )?,
            compile_seconds: Histogram::with_opts(
                HistogramOpts::new("reeve_sandbox_compile_duration_seconds", "Time to compile a component.")
                    .buckets(COMPILE_BUCKETS.to_vec()),
            )?,
            cache_hits: IntCounter::new(
                "reeve_sandbox_compile_cache_hits_total",
                "Components that were found compiled on disk.",
            )?,
            live_instances: IntGauge::new("reeve_sandbox_live_instances", "Instances that live now.")?,
        };
        registry.register(Box::new(metrics.run_seconds.clone()))?;
        registry.register(Box::new(metrics.peak_memory.clone()))?;
        registry.register(Box::new(metrics.compile_seconds.clone()))?;
        registry.register(Box::new(metrics.cache_hits.clone()))?;
        registry.register(Box::new(metrics.live_instances.clone()))?;
        Ok(metrics)
    }

    /// The series of a plugin, all at 0 before its first run.
    pub(crate) fn plugin(&self, name: &str) -> PluginMetrics {
        let role = |role: &str| RoleMetrics {
            results: RESULTS
                .iter()
                .map(|result| self.runs.with_label_values(&[name, role, result]))
                .collect(),
            seconds: self.run_seconds.with_label_values(&[name, role]),
        };
        PluginMetrics {
            dropped_logs: self.dropped_logs.with_label_values(&[name]),
            dropped_events: self.dropped_events.with_label_values(&[name]),
            host_calls: self.host_calls.with_label_values(&[name]),
            peak_memory: self.peak_memory.with_label_values(&[name]),
            reconcile: role("reconcile"),
            cleanup: role("cleanup"),
            map: role("map"),
        }
    }
}

impl RoleMetrics {
    /// Counts one end; `result` is one of [`RESULTS`].
    pub(crate) fn count(&self, result: &str) {
        let at = RESULTS.iter().position(|known| *known == result);
        if let Some(counter) = at.and_then(|at| self.results.get(at)) {
            counter.inc();
        }
    }
}
