//! Changes that only the plugin can map to primaries, one bounded queue per plugin.
//!
//! `map` is guest code, so it never runs in the router. Invariant: no trigger is lost. Where a
//! queue is full, or a `map` fails, all objects of the plugin are queued instead.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reeve_core::ids::{ObjectName, PluginName};
use reeve_core::object::SharedObject;
use reeve_core::queue::{Key, Priority, Push, Queue};
use reeve_core::reason::Reason;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::roster::SharedRoster;

/// Changes of one plugin that wait to be mapped. A burst of a thousand is a rollout; more is a
/// reason to look at everything.
pub(crate) const MAX_WAITING: usize = 1_024;
/// After a failed `map` all objects are queued, at most this often.
const RESYNC_PAUSE: Duration = Duration::from_secs(30);

/// The map queues. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Mapper(Arc<Inner>);

struct Inner {
    queue: Queue,
    roster: SharedRoster,
    metrics: Metrics,
    lanes: Mutex<HashMap<PluginName, Lane>>,
    notify: Notify,
}

#[derive(Default)]
struct Lane {
    waiting: VecDeque<Request>,
    working: bool,
    resync: Resync,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Resync {
    #[default]
    None,
    Wanted,
    /// Not again before this.
    Done(tokio::time::Instant),
}

/// One change to be mapped: both states of an update.
pub(crate) struct Request {
    pub(crate) watch: Arc<str>,
    pub(crate) objects: Vec<SharedObject>,
    pub(crate) priority: Priority,
}

impl Mapper {
    pub(crate) fn new(queue: Queue, roster: SharedRoster, metrics: Metrics) -> Self {
        Self(Arc::new(Inner { queue, roster, metrics, lanes: Mutex::default(), notify: Notify::new() }))
    }

    /// Leaves a change to be mapped; never waits.
    pub(crate) fn ask(&self, plugin: &PluginName, request: Request) {
        let mut lanes = self.0.lanes.lock();
        let lane = lanes.entry(plugin.clone()).or_default();
        if lane.waiting.len() >= MAX_WAITING {
            // What waits is among "all objects" too.
            lane.waiting.clear();
            lane.resync = Resync::Wanted;
            self.0.metrics.map_overflows.with_label_values(&[plugin.as_str()]).inc();
        } else {
            lane.waiting.push_back(request);
        }
        drop(lanes);
        self.0.notify.notify_one();
    }

    /// The plugin went.
    pub(crate) fn forget_plugin(&self, plugin: &PluginName) {
        self.0.lanes.lock().remove(plugin);
    }

    /// Maps until the shutdown, one call per plugin at a time.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut calls = JoinSet::new();
        loop {
            let idle: Vec<_> = {
                let mut lanes = self.0.lanes.lock();
                let idle = lanes.iter_mut().filter(|(_, lane)| !lane.working && lane.has_work());
                idle.map(|(plugin, lane)| {
                    lane.working = true;
                    plugin.clone()
                })
                .collect()
            };
            for plugin in idle {
                let mapper = self.clone();
                calls.spawn(async move { mapper.work(&plugin).await });
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.0.notify.notified() => {}
                Some(_) = calls.join_next(), if !calls.is_empty() => {}
            }
        }
    }

    /// Works off one plugin's lane.
    async fn work(&self, plugin: &PluginName) {
        loop {
            let request = {
                let mut lanes = self.0.lanes.lock();
                let Some(lane) = lanes.get_mut(plugin) else { return };
                if lane.resync == Resync::Wanted {
                    lane.resync = Resync::Done(tokio::time::Instant::now());
                    None
                } else if let Some(request) = lane.waiting.pop_front() {
                    Some(request)
                } else {
                    lane.working = false;
                    return;
                }
            };
            match request {
                Some(request) => self.map(plugin, request).await,
                None => self.resync(plugin),
            }
        }
    }

    async fn map(&self, plugin: &PluginName, request: Request) {
        let Some(registration) = self.0.roster.load().serving(plugin).cloned() else { return };
        let mut names: Vec<ObjectName> = Vec::new();
        for object in request.objects {
            match registration.code.map(&request.watch, object).await {
                Ok(mapped) => names.extend(mapped),
                Err(failure) => {
                    self.0.metrics.maps.with_label_values(&[plugin.as_str(), "error"]).inc();
                    tracing::warn!(%plugin, watch = %request.watch, code = failure.code, error = failure.message, "failed to map a change: all objects of the plugin are queued instead");
                    self.want_resync(plugin);
                    return;
                }
            }
        }
        self.0.metrics.maps.with_label_values(&[plugin.as_str(), "success"]).inc();
        names.sort();
        names.dedup();
        for name in names {
            let key = Key { plugin: plugin.clone(), name };
            self.0.queue.push(key, Push::now(Reason::Mapped).priority(request.priority));
        }
    }

    fn want_resync(&self, plugin: &PluginName) {
        let mut lanes = self.0.lanes.lock();
        let Some(lane) = lanes.get_mut(plugin) else { return };
        match lane.resync {
            Resync::Done(at) if at.elapsed() < RESYNC_PAUSE => {}
            _ => lane.resync = Resync::Wanted,
        }
    }

    fn resync(&self, plugin: &PluginName) {
        let Some(registration) = self.0.roster.load().serving(plugin).cloned() else { return };
        crate::enqueue::all(&self.0.queue, &registration, Reason::Mapped, None);
    }
}

impl Lane {
    fn has_work(&self) -> bool {
        !self.waiting.is_empty() || self.resync == Resync::Wanted
    }
}
