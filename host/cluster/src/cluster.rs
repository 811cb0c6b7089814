//! All of the crate under one handle.

use std::sync::Arc;

use reeve_core::change::Change;
use reeve_core::gvk::Gvk;
use reeve_core::read::Reader;
use tokio::sync::mpsc;

use crate::cache::{CHANNEL, Cache, IndexHold, View, ViewReader};
use crate::connection::Connection;
use crate::discovery::Discovery;
use crate::watch::{StreamSpec, StreamStatus, Subscription, Watches};

/// How streams behave.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Try watch-list (a watch that begins with everything there is) before pages. A server that
    /// does not have it costs one refused request per stream.
    pub watch_list: bool,
}

/// Connection, discovery, cache and watches. Cheap to clone; its streams end with the last clone.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    connection: Connection,
    discovery: Discovery,
    cache: Cache,
    watches: Watches,
}

// === impl ClusterOptions ===

impl Default for ClusterOptions {
    fn default() -> Self {
        Self { watch_list: true }
    }
}

// === impl Cluster ===

impl Cluster {
    /// Sends nothing by itself. The streams run on the tokio runtime that this is called in; the
    /// changes of all of them come out of the receiver, which must be read: they wait for it.
    pub fn new(
        connection: Connection,
        options: &ClusterOptions,
        registry: &prometheus::Registry,
    ) -> Result<(Self, mpsc::Receiver<Change>), prometheus::Error> {
        let discovery = Discovery::new(connection.clone());
        let cache = Cache::new(registry)?;
        let watches =
            Watches::new(connection.clone(), discovery.clone(), cache.clone(), options.watch_list, registry)?;
        let (router, changes) = mpsc::channel(CHANNEL);
        watches.spawn(cache.clone().forward(router));
        Ok((Self { inner: Arc::new(Inner { connection, discovery, cache, watches }) }, changes))
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.inner.connection
    }

    /// Which kinds are served.
    pub fn discovery(&self) -> &Discovery {
        &self.inner.discovery
    }

    /// What `commit` reads, and tells of its writes.
    pub(crate) fn cache(&self) -> &Cache {
        &self.inner.cache
    }

    /// Opens, or joins, the streams of a spec.
    ///
    /// Of a stream that is live already nothing is told again: who joins it reads the cache.
    pub fn watch(&self, spec: &StreamSpec) -> Subscription {
        self.inner.watches.subscribe(spec)
    }

    /// Keeps an index over a kind until the hold is dropped, also over what is cached already. An
    /// index goes by its pointer; how a plugin calls it stands in its [`View`].
    pub fn add_index(&self, gvk: &Gvk, pointer: &str) -> IndexHold {
        self.inner.cache.add_index(gvk, pointer)
    }

    /// The cache as one plugin may see it.
    pub fn reader(&self, view: View) -> Arc<dyn Reader> {
        Arc::new(ViewReader::new(self.inner.cache.clone(), view))
    }

    /// Every open stream, for the admin page.
    pub fn streams(&self) -> Vec<StreamStatus> {
        self.inner.watches.status()
    }

    /// How many tasks the crate runs.
    #[cfg(test)]
    pub(crate) fn tasks(&self) -> usize {
        self.inner.watches.tasks()
    }
}
