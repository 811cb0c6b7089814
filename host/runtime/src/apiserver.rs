//! Whether the API server answers: a named check, a metric and a log line, never unreadiness.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reeve_cluster::Cluster;
use reeve_cluster::watch::StreamState;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// How often the watches are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// The limit of the request that settles a doubt.
const ASK: Duration = Duration::from_secs(2);

/// What is known of the API server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ApiServer {
    cluster: Cluster,
    metrics: Metrics,
    state: Arc<Mutex<State>>,
}

enum State {
    Up,
    Down { since: Instant, why: String },
}

impl ApiServer {
    pub(crate) fn new(cluster: Cluster, metrics: Metrics) -> Self {
        let why = "not asked yet".to_owned();
        Self { cluster, metrics, state: Arc::new(Mutex::new(State::Down { since: Instant::now(), why })) }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.state.lock(), State::Up)
    }

    /// For people; empty when it is up.
    pub(crate) fn detail(&self) -> String {
        match &*self.state.lock() {
            State::Up => String::new(),
            State::Down { since, why } => format!("for {} s: {why}", since.elapsed().as_secs()),
        }
    }

    /// Looks until the shutdown.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let work = async {
            loop {
                let answer = self.ask().await;
                self.note(answer);
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = work => {}
        }
    }

    /// A watch that follows is proof enough while none is broken; else one small request settles it.
    async fn ask(&self) -> Result<(), String> {
        let streams = self.cluster.streams();
        let broken = streams.iter().any(|stream| matches!(stream.state, StreamState::Broken { .. }));
        let live = streams.iter().any(|stream| stream.state == StreamState::Live);
        if live && !broken {
            return Ok(());
        }
        let mut request = http::Request::new(Vec::new());
        *request.uri_mut() = http::Uri::from_static("/version");
        match self.cluster.connection().request(request, ASK).await {
            // Even a refusal is an answer; only the server's own trouble is not.
            Ok(answer) if !answer.status.is_server_error() => Ok(()),
            Ok(answer) => Err(format!("it answers {}", answer.status)),
            Err(error) => Err(error.to_string()),
        }
    }

    fn note(&self, answer: Result<(), String>) {
        self.metrics.apiserver_up.set(i64::from(answer.is_ok()));
        let mut state = self.state.lock();
        match (answer, &mut *state) {
            (Ok(()), State::Up) => {}
            (Ok(()), State::Down { since, .. }) => {
                tracing::info!(away_seconds = since.elapsed().as_secs(), "the API server answers");
                *state = State::Up;
            }
            (Err(why), State::Down { why: before, .. }) => *before = why,
            (Err(why), State::Up) => {
                tracing::error!(%why, "the API server does not answer: runs are tried again, watches reconnect by themselves");
                *state = State::Down { since: Instant::now(), why };
            }
        }
    }
}
