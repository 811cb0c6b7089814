//! Who shares which stream.
//!
//! Invariant: a stream is in the registry exactly as long as its task may still be joined; a share
//! is taken, and the last one given up, under the registry's lock.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};

use futures::FutureExt as _;
use parking_lot::Mutex;
use reeve_core::gvk::Gvk;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::backoff::Backoff;
use super::follow::Follower;
use super::state::Method;
use super::{LINGER, StreamSpec, StreamState, StreamStatus};
use crate::cache::{Cache, Cell, Coverage, Flavour, StreamId};
use crate::connection::Connection;
use crate::discovery::Discovery;
use crate::metrics::WatchMetrics;

/// All streams. Dropping it ends them.
pub(crate) struct Watches {
    parts: Parts,
    runtime: Handle,
    tasks: Mutex<JoinSet<()>>,
}

/// What streams are made of.
#[derive(Clone)]
struct Parts {
    connection: Connection,
    discovery: Discovery,
    cache: Cache,
    metrics: WatchMetrics,
    method: Method,
    registry: Arc<Mutex<Registry>>,
}

#[derive(Default)]
struct Registry {
    streams: HashMap<StreamKey, Arc<Stream>>,
    /// How many there ever were: the next one's id.
    opened: u32,
}

/// What a stream is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct StreamKey {
    pub(super) gvk: Gvk,
    pub(super) flavour: Flavour,
    pub(super) coverage: Coverage,
}

/// One open stream.
pub(super) struct Stream {
    pub(super) id: StreamId,
    pub(super) key: StreamKey,
    /// Shares in it.
    users: watch::Sender<usize>,
    status: Mutex<Status>,
    listeners: Mutex<Vec<Weak<Shares>>>,
    metrics: WatchMetrics,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Status {
    state: StreamState,
    /// It has delivered its first list.
    synced: bool,
}

/// A share in the streams of a spec. Dropping it gives the share up; a stream ends
/// [`LINGER`] after its last one.
pub struct Subscription {
    shares: Arc<Shares>,
}

struct Shares {
    streams: Vec<Arc<Stream>>,
    state: watch::Sender<StreamState>,
}

// === impl Watches ===

impl Watches {
    /// `watch_list`: try watch-list before pages. Must be called within a tokio runtime, on which
    /// the streams then run.
    pub(crate) fn new(
        connection: Connection,
        discovery: Discovery,
        cache: Cache,
        watch_list: bool,
        registry: &prometheus::Registry,
    ) -> Result<Self, prometheus::Error> {
        let method = if watch_list { Method::Stream } else { Method::List };
        let metrics = WatchMetrics::new(registry)?;
        let parts = Parts { connection, discovery, cache, metrics, method, registry: Arc::default() };
        Ok(Self { parts, runtime: Handle::current(), tasks: Mutex::default() })
    }

    /// Takes a task that lives as long as the streams.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        // Ended streams leave their handles behind.
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &self.runtime);
    }

    /// Opens, or joins, the streams of a spec.
    pub(crate) fn subscribe(&self, spec: &StreamSpec) -> Subscription {
        let streams: Vec<_> = spec
            .coverages()
            .into_iter()
            .map(|namespace| {
                let coverage =
                    Coverage { namespace, labels: spec.labels.clone(), fields: spec.fields.clone() };
                self.join(StreamKey { gvk: spec.gvk.clone(), flavour: spec.flavour(), coverage })
            })
            .collect();
        let shares = Arc::new(Shares { streams, state: watch::Sender::new(StreamState::Live) });
        for stream in &shares.streams {
            let mut listeners = stream.listeners.lock();
            listeners.retain(|listener| listener.strong_count() > 0);
            listeners.push(Arc::downgrade(&shares));
        }
        shares.refresh();
        Subscription { shares }
    }

    /// Every open stream, by kind and coverage.
    pub(crate) fn status(&self) -> Vec<StreamStatus> {
        let mut streams: Vec<_> =
            self.parts.registry.lock().streams.values().map(|stream| stream.describe()).collect();
        streams.sort_by(|a, b| (&a.gvk, &a.namespace, &a.labels).cmp(&(&b.gvk, &b.namespace, &b.labels)));
        streams
    }

    /// How many tasks there are, ended ones aside.
    #[cfg(test)]
    pub(crate) fn tasks(&self) -> usize {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.len()
    }

    fn join(&self, key: StreamKey) -> Arc<Stream> {
        let mut registry = self.parts.registry.lock();
        if let Some(stream) = registry.covering(&key) {
            stream.users.send_modify(|users| *users += 1);
            return stream;
        }
        registry.opened += 1;
        let stream = Arc::new(Stream {
            id: StreamId(registry.opened),
            key: key.clone(),
            users: watch::Sender::new(1),
            status: Mutex::new(Status { state: StreamState::Listing, synced: false }),
            listeners: Mutex::default(),
            metrics: self.parts.metrics.clone(),
        });
        stream.gauge(&StreamState::Listing).inc();
        let cell = self.parts.cache.open(&key.gvk, key.flavour, stream.id, key.coverage.clone());
        registry.streams.insert(key, Arc::clone(&stream));
        self.spawn(self.parts.clone().live(Arc::clone(&stream), cell));
        stream
    }
}

impl Parts {
    /// The life of a stream: it follows until it has no share left.
    async fn live(self, stream: Arc<Stream>, cell: Arc<Cell>) {
        tokio::select! {
            () = self.retire(&stream) => {}
            () = self.follow(&stream, &cell) => {}
        }
        self.cache.close(&cell, stream.id);
        stream.gauge(&stream.status.lock().state).dec();
    }

    /// Ends once the stream had no share for [`LINGER`] and is out of the registry.
    async fn retire(&self, stream: &Stream) {
        let mut users = stream.users.subscribe();
        loop {
            // The sender is the stream's own, so it is never gone.
            let _ = users.wait_for(|users| *users == 0).await;
            tokio::select! {
                () = sleep(LINGER) => {}
                _ = users.wait_for(|users| *users > 0) => continue,
            };
            let mut registry = self.registry.lock();
            if *stream.users.borrow() == 0 {
                registry.streams.remove(&stream.key);
                return;
            }
        }
    }

    /// Follows; a panic, which is a defect, costs a pause and not the stream.
    async fn follow(&self, stream: &Arc<Stream>, cell: &Arc<Cell>) {
        let mut backoff = Backoff::default();
        loop {
            let follower = Follower::new(
                Arc::clone(stream),
                self.connection.clone(),
                self.discovery.clone(),
                self.cache.clone(),
                Arc::clone(cell),
                self.metrics.clone(),
                self.method,
            );
            if AssertUnwindSafe(follower.run()).catch_unwind().await.is_err() {
                tracing::error!(kind = %stream.key.gvk, "a watch stream panicked and starts again; please report this");
                stream.set(StreamState::Broken { why: "the stream panicked and starts again".into() }, None);
            }
            sleep(backoff.next()).await;
        }
    }
}

// === impl Registry ===

impl Registry {
    /// The stream of this key, or one that has all of it and more and is on its way.
    fn covering(&self, key: &StreamKey) -> Option<Arc<Stream>> {
        let exact = self.streams.get(key);
        let wider = || {
            self.streams.values().find(|stream| {
                stream.key.gvk == key.gvk
                    && stream.key.flavour.serves(key.flavour)
                    && stream.key.coverage.covers(&key.coverage)
                    // What is forbidden in the whole cluster may be allowed in one namespace.
                    && matches!(stream.status.lock().state, StreamState::Live | StreamState::Listing)
            })
        };
        exact.or_else(wider).cloned()
    }
}

// === impl Stream ===

impl Stream {
    /// Shows a state, and whether the first list was delivered (`None`: as before).
    pub(super) fn set(&self, state: StreamState, synced: Option<bool>) {
        {
            let mut status = self.status.lock();
            let next = Status { state, synced: synced.unwrap_or(status.synced) };
            if *status == next {
                return;
            }
            self.log(&status.state, &next.state);
            self.gauge(&status.state).dec();
            self.gauge(&next.state).inc();
            *status = next;
        }
        let listeners = self.listeners.lock().clone();
        for shares in listeners.iter().filter_map(Weak::upgrade) {
            shares.refresh();
        }
    }

    fn log(&self, before: &StreamState, now: &StreamState) {
        let kind = &self.key.gvk;
        let namespace = self.key.coverage.namespace.as_deref().unwrap_or("*");
        match now {
            // An outage has several texts on its way; the first one is the news.
            StreamState::Broken { why } if matches!(before, StreamState::Broken { .. }) => {
                tracing::debug!(%kind, namespace, "watch stream is still broken: {why}");
            }
            StreamState::Broken { why } => tracing::warn!(%kind, namespace, "watch stream is broken: {why}"),
            StreamState::Pending { why } => {
                tracing::info!(%kind, namespace, "watch stream is pending: {why}");
            }
            StreamState::Live if matches!(before, StreamState::Broken { .. }) => {
                tracing::info!(%kind, namespace, "watch stream has recovered");
            }
            StreamState::Live | StreamState::Listing => {
                tracing::debug!(%kind, namespace, state = now.label(), "watch stream");
            }
        }
    }

    fn gauge(&self, state: &StreamState) -> prometheus::IntGauge {
        self.metrics.streams.with_label_values(&[self.key.gvk.to_string().as_str(), state.label()])
    }

    fn synced(&self) -> bool {
        self.status.lock().synced
    }

    fn describe(&self) -> StreamStatus {
        let status = self.status.lock().clone();
        StreamStatus {
            gvk: self.key.gvk.clone(),
            namespace: self.key.coverage.namespace.clone(),
            labels: self.key.coverage.labels.clone(),
            fields: self.key.coverage.fields.clone(),
            metadata_only: self.key.flavour.metadata_only,
            state: status.state,
            synced: status.synced,
            users: *self.users.borrow(),
        }
    }
}

// === impl Subscription ===

impl Subscription {
    /// Ends when every stream has delivered its first list.
    pub async fn synced(&self) {
        let mut state = self.shares.state.subscribe();
        while !self.is_synced() {
            // The sender lives in `self`.
            let _ = state.changed().await;
        }
    }

    /// Whether every stream has delivered its first list, and its kind is still served.
    pub fn is_synced(&self) -> bool {
        self.shares.streams.iter().all(|stream| stream.synced())
    }

    /// The worst state of its streams.
    pub fn state(&self) -> StreamState {
        self.shares.state.borrow().clone()
    }

    /// Tells when [`Self::state`] changes.
    pub fn changed(&self) -> watch::Receiver<StreamState> {
        self.shares.state.subscribe()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        for stream in &self.shares.streams {
            stream.users.send_modify(|users| *users -= 1);
        }
    }
}

impl Shares {
    fn refresh(&self) {
        // Computed under the channel's lock, so that the last one to write has seen everything. Told
        // even if the worst state is the same: another stream may have delivered its first list.
        self.state.send_modify(|state| {
            let streams = self.streams.iter().map(|stream| stream.status.lock().state.clone());
            *state = streams.reduce(StreamState::worse).unwrap_or(StreamState::Live);
        });
    }
}
