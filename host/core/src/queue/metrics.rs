//! The queue's metrics, with the names, labels and buckets of controller-runtime.
//!
//! Labels `name` and `controller` are both the plugin. All series of a lane are there, at 0, from
//! the moment it is opened until it is closed.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, exponential_buckets,
};

use super::{Priority, Shared};
use crate::ids::PluginName;

/// The most values of the label `priority` in one lane; what is over counts under
/// [`OVERFLOW_PRIORITY`]. As controller-runtime has it.
const MAX_PRIORITIES: usize = 25;

/// The label of priorities over [`MAX_PRIORITIES`].
const OVERFLOW_PRIORITY: &str = "exceeded_cardinality_limit";

const LABELS: [&str; 2] = ["name", "controller"];

/// The queue's metrics.
///
/// They are brought up to date when somebody looks, rather than every 500 ms: timers that came
/// due since the last operation count as ready, and the age of work is that of the moment.
#[derive(Debug)]
pub struct QueueMetrics(Series);

#[derive(Debug, Clone)]
struct Series {
    depth: IntGaugeVec,
    adds: IntCounterVec,
    queue_duration: HistogramVec,
    work_duration: HistogramVec,
    retries: IntCounterVec,
    unfinished: GaugeVec,
    longest: GaugeVec,
    queue: Arc<OnceLock<Weak<Shared>>>,
}

/// The metrics of one lane.
#[derive(Debug)]
pub(super) struct LaneMetrics {
    plugin: PluginName,
    depth: IntGaugeVec,
    depths: BTreeMap<Priority, IntGauge>,
    adds: IntCounter,
    pub(super) queue_duration: Histogram,
    pub(super) work_duration: Histogram,
    pub(super) retries: IntCounter,
    pub(super) unfinished: Gauge,
    pub(super) longest: Gauge,
}

// === impl QueueMetrics ===

impl QueueMetrics {
    /// Registers them; an error when they are registered already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let buckets = || exponential_buckets(1e-8, 10.0, 12);
        let series = Series {
            depth: IntGaugeVec::new(
                Opts::new("workqueue_depth", "Current depth of workqueue by workqueue and priority"),
                &["name", "controller", "priority"],
            )?,
            adds: IntCounterVec::new(
                Opts::new("workqueue_adds_total", "Total number of adds handled by workqueue"),
                &LABELS,
            )?,
            queue_duration: HistogramVec::new(
                HistogramOpts::new(
                    "workqueue_queue_duration_seconds",
                    "How long in seconds an item stays in workqueue before being requested",
                )
                .buckets(buckets()?),
                &LABELS,
            )?,
            work_duration: HistogramVec::new(
                HistogramOpts::new(
                    "workqueue_work_duration_seconds",
                    "How long in seconds processing an item from workqueue takes.",
                )
                .buckets(buckets()?),
                &LABELS,
            )?,
            retries: IntCounterVec::new(
                Opts::new("workqueue_retries_total", "Total number of retries handled by workqueue"),
                &LABELS,
            )?,
            unfinished: GaugeVec::new(
                Opts::new(
                    "workqueue_unfinished_work_seconds",
                    "How many seconds of work has been done that is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.",
                ),
                &LABELS,
            )?,
            longest: GaugeVec::new(
                Opts::new(
                    "workqueue_longest_running_processor_seconds",
                    "How many seconds has the longest running processor for workqueue been running.",
                ),
                &LABELS,
            )?,
            queue: Arc::default(),
        };
        registry.register(Box::new(series.clone()))?;
        Ok(Self(series))
    }

    /// Tells whose tickets to look at.
    pub(super) fn attach(&self, queue: &Weak<Shared>) {
        self.0.queue.get_or_init(|| Weak::clone(queue));
    }

    /// The series of a lane, at 0 where they are new.
    pub(super) fn open(&self, plugin: &PluginName) -> LaneMetrics {
        let labels = [plugin.as_str(); 2];
        let mut lane = LaneMetrics {
            plugin: plugin.clone(),
            depth: self.0.depth.clone(),
            depths: BTreeMap::new(),
            adds: self.0.adds.with_label_values(&labels),
            queue_duration: self.0.queue_duration.with_label_values(&labels),
            work_duration: self.0.work_duration.with_label_values(&labels),
            retries: self.0.retries.with_label_values(&labels),
            unfinished: self.0.unfinished.with_label_values(&labels),
            longest: self.0.longest.with_label_values(&labels),
        };
        for priority in [Priority::LOW, Priority::NORMAL, Priority::HIGH] {
            lane.depth(priority);
        }
        lane
    }

    /// Removes the series of a lane.
    pub(super) fn close(&self, lane: &LaneMetrics) {
        let labels = [lane.plugin.as_str(); 2];
        // An error here says that a series was not there, which is what is wanted.
        for priority in lane.depths.keys() {
            _ = self.0.depth.remove_label_values(&[labels[0], labels[1], &priority.0.to_string()]);
        }
        _ = self.0.depth.remove_label_values(&[labels[0], labels[1], OVERFLOW_PRIORITY]);
        _ = self.0.adds.remove_label_values(&labels);
        _ = self.0.queue_duration.remove_label_values(&labels);
        _ = self.0.work_duration.remove_label_values(&labels);
        _ = self.0.retries.remove_label_values(&labels);
        _ = self.0.unfinished.remove_label_values(&labels);
        _ = self.0.longest.remove_label_values(&labels);
    }
}

// === impl LaneMetrics ===

impl LaneMetrics {
    /// An entry became ready.
    pub(super) fn entered(&mut self, priority: Priority) {
        self.adds.inc();
        self.depth(priority).inc();
    }

    /// A ready entry was taken or dropped.
    pub(super) fn left(&mut self, priority: Priority) {
        self.depth(priority).dec();
    }

    /// A ready entry was raised.
    pub(super) fn moved(&mut self, from: Priority, to: Priority) {
        self.depth(from).dec();
        self.depth(to).inc();
    }

    fn depth(&mut self, priority: Priority) -> IntGauge {
        if let Some(known) = self.depths.get(&priority) {
            return known.clone();
        }
        let name = self.plugin.as_str();
        if self.depths.len() >= MAX_PRIORITIES {
            return self.depth.with_label_values(&[name, name, OVERFLOW_PRIORITY]);
        }
        let gauge = self.depth.with_label_values(&[name, name, &priority.0.to_string()]);
        self.depths.insert(priority, gauge.clone());
        gauge
    }
}

// === impl Series ===

impl Series {
    fn parts(&self) -> [&dyn Collector; 7] {
        [
            &self.depth,
            &self.adds,
            &self.queue_duration,
            &self.work_duration,
            &self.retries,
            &self.unfinished,
            &self.longest,
        ]
    }
}

impl Collector for Series {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Some(queue) = self.queue.get().and_then(Weak::upgrade) {
            queue.refresh();
        }
        self.parts().into_iter().flat_map(Collector::collect).collect()
    }
}
