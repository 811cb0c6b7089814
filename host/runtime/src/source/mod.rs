//! Where plugins come from: a closed set of sources that find bytes and hand them on.
//!
//! A source decides only that bytes are whole (a digest, a quiet folder). Whether they are a
//! plugin is the registry's matter. Invariant: a source tells the same bytes once, until it is
//! asked to offer them [`Again`].

pub mod configmap;
pub mod dir;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use reeve_core::ids::{Digest, ObjectName};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Artifacts on their way to the registry. Each may be tens of MiB, and the registry takes them at
/// once, so that a few are plenty.
pub const EVENTS: usize = 4;

/// The identity of one place where a plugin lies.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SourceId {
    /// A file.
    File(PathBuf),
    /// A ConfigMap.
    ConfigMap(ObjectName),
}

/// Bytes that lie in one place.
#[derive(Debug, Clone)]
pub struct Artifact {
    /// Where.
    pub source: SourceId,
    /// All of them.
    pub bytes: Arc<[u8]>,
    /// Of the bytes.
    pub digest: Digest,
}

/// What a source tells the registry.
#[derive(Debug)]
pub enum SourceEvent {
    /// New bytes.
    Found(Artifact),
    /// Something lies there that is not even tried.
    Refused {
        /// Where.
        source: SourceId,
        /// A sentence for people: the thing, the reason, the remedy.
        reason: String,
    },
    /// It could not be fetched; the source tries again by itself.
    FetchFailed {
        /// Where.
        source: SourceId,
        /// A sentence for people.
        reason: String,
    },
    /// Nothing has been there for the configured time.
    Gone(SourceId),
    /// One source has looked at everything that was there when it began.
    Listed,
}

/// A source of plugins.
#[derive(Debug)]
pub enum Source {
    /// A folder.
    Dir(dir::DirSource),
    /// Labelled ConfigMaps.
    ConfigMaps(configmap::ConfigMapSource),
}

/// Places whose bytes are to be offered once more although they did not change: what kept them out
/// (another plugin of the same name) is gone.
#[derive(Debug, Clone, Default)]
pub struct Again(Arc<AgainState>);

#[derive(Debug, Default)]
struct AgainState {
    places: Mutex<BTreeSet<SourceId>>,
    asked: watch::Sender<u64>,
}

// === impl Source ===

impl Source {
    /// What is watched, for logs.
    pub fn name(&self) -> String {
        match self {
            Self::Dir(source) => format!("folder {}", source.path().display()),
            Self::ConfigMaps(_) => "ConfigMaps".to_owned(),
        }
    }

    /// Runs until the shutdown; ends early only when the registry went.
    pub async fn run(self, events: mpsc::Sender<SourceEvent>, shutdown: CancellationToken) {
        let work = async {
            match self {
                Self::Dir(source) => source.run(events).await,
                Self::ConfigMaps(source) => source.run(events).await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = work => {}
        }
    }
}

// === impl SourceId ===

/// `plugins/website.wasm`, `ConfigMap reeve-system/website`.
impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::ConfigMap(name) => write!(f, "ConfigMap {name}"),
        }
    }
}

// === impl Again ===

impl Again {
    /// Asks for these bytes once more.
    pub fn ask(&self, source: SourceId) {
        self.0.places.lock().insert(source);
        self.0.asked.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Takes those that `mine` accepts.
    pub(crate) fn take(&self, mine: impl Fn(&SourceId) -> bool) -> Vec<SourceId> {
        self.0.places.lock().extract_if(.., mine).collect()
    }

    /// Changes with every question.
    pub(crate) fn asked(&self) -> watch::Receiver<u64> {
        self.0.asked.subscribe()
    }
}
