//! The task of one stream: does what its state says, and repairs itself.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Request, Response, StatusCode};
use kube::client::Body;
use rand::RngExt as _;
use reeve_core::change::Cause;
use reeve_core::gvk::Kind;
use reeve_core::ids::ResourceVersion;
use reeve_core::object::Object;
use tokio::time::sleep;

use super::StreamState;
use super::backoff::Backoff;
use super::events::{Event, Events};
use super::registry::Stream;
use super::request::Target;
use super::state::{Found, Freshness, Method, Pause, State, Trouble};
use super::text;
use crate::cache::{Cache, Cell, Listed};
use crate::connection::Connection;
use crate::discovery::{Discovery, DiscoveryError};
use crate::metrics::WatchMetrics;

/// How long the head of an answer may take. A list that the server reads from etcd comes within
/// its own limit of 60 s, or not at all.
const HEAD_TIMEOUT: Duration = Duration::from_mins(1);

/// A missing kind is looked for this often: with the list that follows, a CRD is followed well
/// within 5 s of its arrival (feature B5).
const RECHECK: Duration = Duration::from_secs(2);

/// The longest that a server may ask to be left alone.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);

/// Watches are asked to end after 5 to 10 min, as client-go does, so that they spread over the
/// servers of a cluster.
const WATCH_LIMIT: std::ops::Range<u64> = 300..600;

/// What a stream works with.
pub(super) struct Follower {
    pub(super) stream: Arc<Stream>,
    pub(super) connection: Connection,
    pub(super) discovery: Discovery,
    pub(super) cache: Cache,
    pub(super) cell: Arc<Cell>,
    pub(super) metrics: WatchMetrics,
    pub(super) method: Method,
    backoff: Backoff,
    kind: Option<Arc<Kind>>,
    /// The newest version that was told; `None` before the first list.
    position: Option<ResourceVersion>,
    /// Whether a watch was opened before.
    watched: bool,
}

// === impl Follower ===

impl Follower {
    pub(super) fn new(
        stream: Arc<Stream>,
        connection: Connection,
        discovery: Discovery,
        cache: Cache,
        cell: Arc<Cell>,
        metrics: WatchMetrics,
        method: Method,
    ) -> Self {
        Self {
            stream,
            connection,
            discovery,
            cache,
            cell,
            metrics,
            method,
            backoff: Backoff::default(),
            kind: None,
            position: None,
            watched: false,
        }
    }

    /// Follows for ever; the stream's end drops it at one of its awaits.
    pub(super) async fn run(mut self) {
        let mut state = State::Resolving;
        loop {
            let (next, result) = self.step(state).await;
            state = match result {
                Ok(()) => next,
                Err(trouble) => self.recover(next, &trouble).await,
            };
        }
    }

    /// Does what the state says, and returns where it is then.
    async fn step(&mut self, state: State) -> (State, Result<(), Trouble>) {
        match state {
            State::Resolving => match self.resolve().await {
                Ok(()) => (State::first(self.method), Ok(())),
                Err(trouble) => (State::Resolving, Err(trouble)),
            },
            State::Listing { from, next, mut found } => {
                match self.page(from, next.as_deref(), &mut found).await {
                    Ok((_, Some(more))) => (State::Listing { from, next: Some(more), found }, Ok(())),
                    Ok((at, None)) => {
                        self.replace(from, found, at);
                        (State::Watching { at, refusals: 0, events: None }, Ok(()))
                    }
                    Err(trouble) => (State::Listing { from, next, found }, Err(trouble)),
                }
            }
            State::Streaming { from } => match self.initial(from).await {
                Ok((at, events)) => (State::Watching { at, refusals: 0, events: Some(events) }, Ok(())),
                Err(trouble) => (State::Streaming { from }, Err(trouble)),
            },
            State::Watching { at, refusals, events } => {
                let mut reached = at;
                let result = self.watch(&mut reached, events).await;
                let refusals = if reached == at { refusals } else { 0 };
                (State::Watching { at: reached, refusals, events: None }, result)
            }
        }
    }

    /// Shows the trouble, waits as it needs, and returns where to go on.
    async fn recover(&mut self, state: State, trouble: &Trouble) -> State {
        let gvk = &self.stream.key.gvk;
        self.metrics.errors.with_label_values(&[gvk.to_string().as_str(), trouble.reason()]).inc();
        self.show(trouble);
        if matches!(trouble, Trouble::Missing) {
            self.discovery.forget(gvk);
        }
        let (next, pause) = state.after(trouble, &mut self.method);
        let pause = match pause {
            Pause::None => return next,
            Pause::Recheck => RECHECK,
            Pause::Asked(Some(asked)) => asked.min(MAX_RETRY_AFTER),
            Pause::Backoff | Pause::Asked(None) => self.backoff.next(),
        };
        tracing::debug!(kind = %gvk, reason = trouble.reason(), ?pause, "watch stream pauses");
        sleep(pause).await;
        next
    }

    fn show(&self, trouble: &Trouble) {
        let state = match trouble {
            Trouble::NotServed(why) => {
                self.cell.suspend(self.stream.id, why);
                self.stream.set(StreamState::Pending { why: Arc::clone(why) }, Some(false));
                return;
            }
            Trouble::Forbidden(why)
            | Trouble::Failed(why)
            | Trouble::Unreachable(why)
            | Trouble::Bad(why) => StreamState::Broken { why: Arc::clone(why) },
            Trouble::Busy(_) => StreamState::Broken { why: "the API server asks to come back later".into() },
            Trouble::Endless => {
                let gvk = &self.stream.key.gvk;
                tracing::warn!(kind = %gvk, "the API server never ended the initial events of a watch; reading pages instead");
                return;
            }
            // The next list or watch repairs these, and says so if it cannot.
            Trouble::Missing
            | Trouble::Expired
            | Trouble::TooLarge
            | Trouble::NoStreaming
            | Trouble::TooShort
            | Trouble::Silent => return,
        };
        if let StreamState::Broken { why } = &state {
            self.cell.note(self.stream.id, why);
        }
        self.stream.set(state, None);
    }

    async fn resolve(&mut self) -> Result<(), Trouble> {
        let gvk = &self.stream.key.gvk;
        let kind = self.discovery.resolve(gvk).await.map_err(|error| {
            let why: Arc<str> = error.to_string().into();
            match error {
                DiscoveryError::NotServed(_) => Trouble::NotServed(why),
                DiscoveryError::Forbidden { .. } => Trouble::Forbidden(why),
                DiscoveryError::Unreachable { .. } => Trouble::Unreachable(why),
                DiscoveryError::Bad { .. } => Trouble::Bad(why),
            }
        })?;
        if !["list", "watch"].iter().all(|verb| kind.verbs.iter().any(|known| **known == **verb)) {
            return Err(Trouble::Bad(text::unwatchable(&kind)));
        }
        self.cell.set_scope(kind.scope);
        self.kind = Some(kind);
        self.stream.set(StreamState::Listing, None);
        Ok(())
    }

    /// Follows from `at`, which it moves on, until the watch ends.
    async fn watch(&mut self, at: &mut ResourceVersion, events: Option<Events>) -> Result<(), Trouble> {
        let mut events = if let Some(events) = events {
            events
        } else {
            let limit = watch_limit();
            let request = self.target()?.watch(*at, limit)?;
            self.open(request, limit).await?
        };
        self.stream.set(StreamState::Live, Some(true));
        let id = self.stream.id;
        loop {
            self.cache.room().await;
            let Some(line) = events.next().await? else {
                return if events.too_short() { Err(Trouble::TooShort) } else { Ok(()) };
            };
            match self.event(&line) {
                Event::Upsert(object) => {
                    *at = object.meta().resource_version.max(*at);
                    self.cache.observed(&self.cell, id, self.shared(object));
                }
                Event::Deleted(object) => {
                    *at = object.meta().resource_version.max(*at);
                    self.cache.removed(&self.cell, id, &object);
                }
                Event::Bookmark { version, .. } => {
                    *at = version.max(*at);
                    self.cell.advance(id, *at);
                    events.expect_bookmarks();
                }
                Event::Error(status) => return Err(self.target()?.trouble("watch", &status, None)),
                Event::Unreadable(error) => self.skip(&error),
            }
            self.position = Some(*at);
        }
    }

    /// Puts a whole list in the place of what was known.
    pub(super) fn replace(&mut self, from: Freshness, objects: Found, version: ResourceVersion) {
        let cause = if self.position.is_none() { Cause::Initial } else { Cause::Relist };
        // A quorum read cannot be older than what was told, unless the server was set back.
        let rewound = from == Freshness::Latest && self.position.is_some_and(|position| version < position);
        let gvk = &self.stream.key.gvk;
        if rewound {
            tracing::warn!(kind = %gvk, %version, "the API server's history went back (a restored backup?); taking its state as it is");
        }
        let outcome = if cause == Cause::Initial { "initial" } else { "relist" };
        self.metrics.lists.with_label_values(&[gvk.to_string().as_str(), outcome]).inc();
        self.cache.replaced(&self.cell, self.stream.id, Listed { objects, version, rewound }, &cause);
        self.position = Some(version);
        self.stream.set(StreamState::Live, Some(true));
    }

    pub(super) async fn open(
        &mut self,
        request: Request<Vec<u8>>,
        limit: Duration,
    ) -> Result<Events, Trouble> {
        if std::mem::replace(&mut self.watched, true) {
            self.metrics.reconnects.with_label_values(&[self.stream.key.gvk.to_string().as_str()]).inc();
        }
        Ok(Events::new(self.send("watch", request).await?.into_body(), limit))
    }

    pub(super) async fn send(
        &self,
        verb: &str,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Body>, Trouble> {
        let response = self.connection.open_stream(request, HEAD_TIMEOUT).await;
        let response = response.map_err(|error| text::unreachable(&error))?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        Err(self.target()?.refusal(verb, response).await)
    }

    pub(super) fn target(&self) -> Result<Target<'_>, Trouble> {
        let kind = self.kind.as_deref().ok_or(Trouble::Missing)?;
        let key = &self.stream.key;
        Ok(Target { kind, coverage: &key.coverage, metadata_only: key.flavour.metadata_only })
    }

    pub(super) fn event(&self, line: &[u8]) -> Event {
        let key = &self.stream.key;
        let event = Event::parse(line, &key.gvk, key.flavour);
        let kind = key.gvk.to_string();
        self.metrics.events.with_label_values(&[kind.as_str(), event.label()]).inc();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let gauge = self.metrics.last_event.with_label_values(&[kind.as_str()]);
        gauge.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        event
    }

    /// A list's object goes into the temporary store; a version that the cache holds is shared.
    pub(super) fn find(&self, found: &mut Found, object: Object) {
        let object = self.shared(object);
        found.insert(object.meta().name.clone(), object);
    }

    fn shared(&self, object: Object) -> Arc<Object> {
        self.cell.same(object.meta()).unwrap_or_else(|| Arc::new(object))
    }

    pub(super) fn skip(&self, error: &str) {
        let gvk = &self.stream.key.gvk;
        self.metrics.skipped.with_label_values(&[gvk.to_string().as_str()]).inc();
        tracing::debug!(kind = %gvk, error, "skipped what is no object of the kind");
    }
}

pub(super) fn watch_limit() -> Duration {
    Duration::from_secs(rand::rng().random_range(WATCH_LIMIT))
}
