//! What the runtime counts: controller-runtime's own series, name for name, and ours beside them.
//!
//! Every series of a plugin is there at 0 before its first run, and goes when the plugin goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};
use reeve_core::failure::{Failure, Layer};
use reeve_core::ids::PluginName;
use reeve_core::manifest::Manifest;
use reeve_core::queue::LaneSnapshot;

/// controller-runtime's buckets of `controller_runtime_reconcile_time_seconds`.
pub const RECONCILE_BUCKETS: [f64; 38] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
];
/// Guests choose their codes; so many per plugin have a series of their own, the rest share `OTHER`.
const MAX_CODES: usize = 64;
/// controller-runtime's results.
const RESULTS: [&str; 4] = ["success", "error", "requeue", "requeue_after"];
/// How a version's way into the roster can end.
const SWAP_RESULTS: [&str; 3] = ["swapped", "rejected", "superseded"];

/// All of it. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Series>);

/// The series; label `controller` or `plugin` is the plugin's name.
pub struct Series {
    /// `controller_runtime_reconcile_total`
    pub reconcile_total: IntCounterVec,
    /// `controller_runtime_reconcile_errors_total`
    pub reconcile_errors: IntCounterVec,
    /// `controller_runtime_terminal_reconcile_errors_total`
    pub terminal_errors: IntCounterVec,
    /// `controller_runtime_reconcile_panics_total`
    pub panics: IntCounterVec,
    /// `controller_runtime_reconcile_timeouts_total`
    pub timeouts: IntCounterVec,
    /// `controller_runtime_reconcile_time_seconds`
    pub reconcile_time: HistogramVec,
    /// `controller_runtime_max_concurrent_reconciles`
    pub max_concurrent: IntGaugeVec,
    /// `controller_runtime_active_workers`
    pub active_workers: IntGaugeVec,
    /// Failures by code, category and layer.
    pub failures: IntCounterVec,
    /// 1 for the version that serves.
    pub plugin_info: IntGaugeVec,
    /// Versions whose runs have not all ended.
    pub versions_alive: IntGaugeVec,
    /// Objects held because their runs kept breaking.
    pub quarantined: IntGaugeVec,
    /// 1 while a plugin is held because most of its runs break.
    pub circuit_open: IntGaugeVec,
    /// Objects at or past their last attempt.
    pub stalled: IntGaugeVec,
    /// How long the oldest ready object has been waiting for its run.
    pub oldest_ready: GaugeVec,
    /// Hot loops found.
    pub hot_loops: IntCounterVec,
    /// Objects that are being slowed because of one.
    pub hot_loop_objects: IntGaugeVec,
    /// Cleanup runs of objects whose finalizer is held longer than its limit.
    pub finalizers_overdue: IntCounterVec,
    /// Finalizers that a removed plugin still holds.
    pub finalizers_held: IntGaugeVec,
    /// Versions by how their way into the roster ended.
    pub swaps: IntCounterVec,
    /// Bytes that were refused, by the plugin that was in service from the same place (empty: none).
    pub rejected: IntCounterVec,
    /// From the bytes to the roster.
    pub swap_seconds: HistogramVec,
    /// Compile time of versions, by plugin.
    pub compile_seconds: GaugeVec,
    /// 1 while a version waits for its kinds.
    pub swap_pending: IntGaugeVec,
    /// Bytes that were not even tried, or could not be fetched.
    pub source_errors: IntCounterVec,
    /// What is waited for.
    pub waits: IntGauge,
    /// Waits that ended by their timeout.
    pub wait_timeouts: IntCounterVec,
    /// `map` calls by result.
    pub maps: IntCounterVec,
    /// Times that a plugin's map queue overflowed, and all of its objects were queued instead.
    pub map_overflows: IntCounterVec,
    /// Changes that the router took.
    pub changes: IntCounter,
    /// Requests on the admin port by result.
    pub external: IntCounterVec,
    /// 1 while the API server answers.
    pub apiserver_up: IntGauge,
    codes: Mutex<BTreeMap<PluginName, BTreeSet<String>>>,
}

/// One version of a plugin that is alive; dropping it tells that its last run ended.
pub struct Alive {
    plugin: PluginName,
    number: u64,
    metrics: Metrics,
}

impl std::ops::Deref for Metrics {
    type Target = Series;

    fn deref(&self) -> &Series {
        &self.0
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// Registers everything.
    #[expect(clippy::too_many_lines, reason = "a table of series, one line each")]
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let vec = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let vec = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let histograms = |name: &str, help: &str, label: &str, buckets: Vec<f64>| {
            let vec = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), &[label])?;
            registry.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let mut buckets = RECONCILE_BUCKETS.to_vec();
        buckets.extend([50.0, 60.0]);
        let compile_seconds = GaugeVec::new(
            Opts::new(
                "reeve_plugin_compile_seconds",
                "How long the serving version took to compile, 0.0x when it came from the compile cache.",
            ),
            &["plugin"],
        )?;
        registry.register(Box::new(compile_seconds.clone()))?;
        let oldest_ready = GaugeVec::new(
            Opts::new(
                "reeve_plugin_oldest_ready_seconds",
                "How long the oldest object that is ready has been waiting for its run.",
            ),
            &["plugin"],
        )?;
        registry.register(Box::new(oldest_ready.clone()))?;
        let changes =
            IntCounter::new("reeve_router_changes_total", "Changes of objects that the router took.")?;
        registry.register(Box::new(changes.clone()))?;
        let c = &["controller"][..];
        let p = &["plugin"][..];
        Ok(Self(Arc::new(Series {
            reconcile_total: counters(
                "controller_runtime_reconcile_total",
                "Total number of reconciliations per controller",
                &["controller", "result"],
            )?,
            reconcile_errors: counters(
                "controller_runtime_reconcile_errors_total",
                "Total number of reconciliation errors per controller",
                c,
            )?,
            terminal_errors: counters(
                "controller_runtime_terminal_reconcile_errors_total",
                "Total number of terminal reconciliation errors per controller",
                c,
            )?,
            panics: counters(
                "controller_runtime_reconcile_panics_total",
                "Total number of reconciliation panics per controller",
                c,
            )?,
            timeouts: counters(
                "controller_runtime_reconcile_timeouts_total",
                "Total number of reconciliation timeouts per controller",
                c,
            )?,
            reconcile_time: histograms(
                "controller_runtime_reconcile_time_seconds",
                "Length of time per reconciliation per controller",
                "controller",
                buckets,
            )?,
            max_concurrent: gauges(
                "controller_runtime_max_concurrent_reconciles",
                "Maximum number of concurrent reconciles per controller",
                c,
            )?,
            active_workers: gauges(
                "controller_runtime_active_workers",
                "Number of currently used workers per controller",
                c,
            )?,
            failures: counters(
                "reeve_plugin_failures_total",
                "Failed runs by code, category and layer (guest, broke, host).",
                &["plugin", "code", "category", "layer"],
            )?,
            plugin_info: gauges(
                "reeve_plugin_info",
                "1 for the version of a plugin that serves.",
                &["plugin", "version", "digest"],
            )?,
            versions_alive: gauges(
                "reeve_plugin_versions_alive",
                "Versions of a plugin whose runs have not all ended.",
                p,
            )?,
            quarantined: gauges(
                "reeve_plugin_quarantined_objects",
                "Objects held back because their runs kept breaking.",
                p,
            )?,
            circuit_open: gauges(
                "reeve_plugin_circuit_open",
                "1 while a plugin is held back because most of its runs break.",
                p,
            )?,
            stalled: gauges(
                "reeve_plugin_stalled_objects",
                "Objects that have failed as often as they are retried quickly.",
                p,
            )?,
            oldest_ready,
            hot_loops: counters(
                "reeve_plugin_hot_loops_total",
                "Times that a plugin was found to make itself run again by its own writes.",
                p,
            )?,
            hot_loop_objects: gauges(
                "reeve_plugin_hot_loop_objects",
                "Objects that are slowed because of a hot loop.",
                p,
            )?,
            finalizers_overdue: counters(
                "reeve_plugin_finalizer_overdue_total",
                "Cleanup runs on objects whose finalizer is held longer than its limit.",
                p,
            )?,
            finalizers_held: gauges(
                "reeve_plugin_finalizers_held",
                "Finalizers that a removed plugin still holds.",
                p,
            )?,
            swaps: counters(
                "reeve_swap_total",
                "Versions of a plugin by how their way into service ended.",
                &["plugin", "result"],
            )?,
            rejected: counters(
                "reeve_swap_rejected_total",
                "Bytes that were refused, by the plugin in service from the same place (empty: none was).",
                p,
            )?,
            swap_seconds: histograms(
                "reeve_swap_duration_seconds",
                "From a version's bytes to its first possible run.",
                "plugin",
                vec![0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0],
            )?,
            compile_seconds,
            swap_pending: gauges(
                "reeve_swap_pending",
                "1 while a version waits for its kinds or their first list.",
                p,
            )?,
            source_errors: counters(
                "reeve_source_errors_total",
                "Things in a source that were refused, or could not be fetched.",
                &["source", "kind"],
            )?,
            waits: gauge("reeve_waits", "States of other objects that are waited for.")?,
            wait_timeouts: counters("reeve_wait_timeouts_total", "Waits that ended by their timeout.", p)?,
            maps: counters(
                "reeve_map_total",
                "Calls of a plugin's map export by result.",
                &["plugin", "result"],
            )?,
            map_overflows: counters(
                "reeve_map_overflows_total",
                "Times that a plugin's map queue was full, so that all of its objects were queued instead.",
                p,
            )?,
            changes,
            external: counters(
                "reeve_external_requests_total",
                "Requests for a run on the admin port by result.",
                &["result"],
            )?,
            apiserver_up: gauge("reeve_apiserver_up", "1 while at least one watch reaches the API server.")?,
            codes: Mutex::default(),
        })))
    }

    /// Puts every series of a plugin at 0, and its bounds in place.
    pub fn open(&self, manifest: &Manifest) {
        let name = manifest.name.as_str();
        for result in RESULTS {
            self.reconcile_total.with_label_values(&[name, result]);
        }
        for result in SWAP_RESULTS {
            self.swaps.with_label_values(&[name, result]);
        }
        for counter in [
            &self.reconcile_errors,
            &self.terminal_errors,
            &self.panics,
            &self.timeouts,
            &self.hot_loops,
            &self.finalizers_overdue,
            &self.wait_timeouts,
            &self.map_overflows,
        ] {
            counter.with_label_values(&[name]);
        }
        for gauge in [
            &self.active_workers,
            &self.quarantined,
            &self.circuit_open,
            &self.hot_loop_objects,
            &self.stalled,
            &self.swap_pending,
        ] {
            gauge.with_label_values(&[name]);
        }
        self.reconcile_time.with_label_values(&[name]);
        self.max_concurrent.with_label_values(&[name]).set(manifest.limits.concurrency.into());
        self.finalizers_held.with_label_values(&[name]).set(0);
    }

    /// The plugin serves in this version now.
    pub fn serving(&self, plugin: &PluginName, before: Option<(&str, &str)>, version: &str, digest: &str) {
        if let Some((version, digest)) = before {
            self.remove_info(plugin, version, digest);
        }
        self.plugin_info.with_label_values(&[plugin.as_str(), version, digest]).set(1);
    }

    /// The version no longer serves.
    pub fn remove_info(&self, plugin: &PluginName, version: &str, digest: &str) {
        // An error means that there was no such series.
        let _ = self.plugin_info.remove_label_values(&[plugin.as_str(), version, digest]);
    }

    /// Takes a plugin's gauges away; its counters stay, so that rates over its end are right.
    pub fn close(&self, plugin: &PluginName) {
        for gauge in [
            &self.max_concurrent,
            &self.quarantined,
            &self.circuit_open,
            &self.hot_loop_objects,
            &self.swap_pending,
            &self.stalled,
        ] {
            // An error means that there was no such series.
            let _ = gauge.remove_label_values(&[plugin.as_str()]);
        }
        // As above.
        let _ = self.oldest_ready.remove_label_values(&[plugin.as_str()]);
        self.codes.lock().remove(plugin);
    }

    /// Counts a failure.
    pub fn failure(&self, plugin: &PluginName, layer: Layer, failure: &Failure) {
        let known = {
            let mut codes = self.codes.lock();
            let codes = codes.entry(plugin.clone()).or_default();
            codes.contains(&failure.code) || (codes.len() < MAX_CODES && codes.insert(failure.code.clone()))
        };
        let (code, category) = if known { (&*failure.code, &*failure.category) } else { ("OTHER", "other") };
        let layer = match layer {
            Layer::Guest => "guest",
            Layer::Broke => "broke",
            Layer::Host => "host",
        };
        self.failures.with_label_values(&[plugin.as_str(), code, category, layer]).inc();
    }

    /// Brings what is only looked up up to date, when somebody asks for the metrics.
    pub(crate) fn lane(&self, lane: &LaneSnapshot) {
        let plugin = [lane.plugin.as_str()];
        self.stalled.with_label_values(&plugin).set(i64::try_from(lane.stalled).unwrap_or(i64::MAX));
        let oldest = lane.oldest.unwrap_or_default();
        self.oldest_ready.with_label_values(&plugin).set(oldest.as_secs_f64());
    }

    /// A version came alive.
    pub fn alive(&self, plugin: &PluginName, number: u64) -> Alive {
        self.versions_alive.with_label_values(&[plugin.as_str()]).inc();
        Alive { plugin: plugin.clone(), number, metrics: self.clone() }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.metrics.versions_alive.with_label_values(&[self.plugin.as_str()]).dec();
        tracing::debug!(plugin = %self.plugin, version = self.number, "the last run of this version has ended");
    }
}
