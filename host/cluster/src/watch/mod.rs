//! List-watch streams: how the cache learns what is in the cluster.
//!
//! A [`Subscription`] is a share in the streams of a [`StreamSpec`], one per namespace. Streams are
//! shared and counted: whoever asks for what an open stream already covers gets a share in that.
//! Each stream is one task and one connection, and repairs itself; it ends a moment after its last
//! share.
//!
//! In reading order: `state` (the state machine, pure) → `request` (what is sent, and what an
//! answer means) → `list` and `events` (reading answers as they come) → `follow` and `read` (the task) →
//! `registry` (who shares what).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use reeve_core::gvk::Gvk;
use reeve_core::labels::Selector;

mod backoff;
mod events;
mod follow;
mod list;
mod read;
mod registry;
mod request;
mod state;
mod text;

pub use registry::Subscription;
pub(crate) use registry::Watches;

/// How long a stream outlives its last share: a new version of a plugin, or a retry, often asks for
/// the same again, and a list costs more than a few idle seconds.
pub const LINGER: Duration = Duration::from_secs(5);

/// What to watch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StreamSpec {
    /// The kind.
    pub gvk: Gvk,
    /// Where. For cluster-scoped kinds it has no meaning, and `All` is cheapest.
    pub namespaces: Namespaces,
    /// Only objects with these labels; [`Selector::everything`] for all.
    pub labels: Selector,
    /// Only objects with these fields, as the server's `fieldSelector` has it.
    pub fields: Option<Arc<str>>,
    /// Only `metadata` is watched and kept.
    pub metadata_only: bool,
    /// Keeps `metadata.managedFields`.
    pub managed_fields: bool,
}

/// Namespaces of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Namespaces {
    /// All of them.
    All,
    /// These.
    Only(BTreeSet<Arc<str>>),
}

/// How a stream, or the worst one of a subscription, is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamState {
    /// It cannot start yet, because the cluster does not serve the kind.
    Pending {
        /// A sentence for people.
        why: Arc<str>,
    },
    /// Its first list is on its way.
    Listing,
    /// It is up to date and follows.
    Live,
    /// It does not get on, and retries by itself.
    Broken {
        /// A sentence for people: what is wrong, and the remedy.
        why: Arc<str>,
    },
}

/// One open stream, for the admin page.
#[derive(Debug, Clone)]
pub struct StreamStatus {
    /// The kind.
    pub gvk: Gvk,
    /// `None`: all namespaces.
    pub namespace: Option<Arc<str>>,
    /// The label selector.
    pub labels: Selector,
    /// The field selector.
    pub fields: Option<Arc<str>>,
    /// Only metadata.
    pub metadata_only: bool,
    /// How it is.
    pub state: StreamState,
    /// Whether it has delivered its first list.
    pub synced: bool,
    /// Shares in it.
    pub users: usize,
}

// === impl StreamState ===

impl StreamState {
    /// The metric label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Pending { .. } => "pending",
            Self::Listing => "listing",
            Self::Live => "live",
            Self::Broken { .. } => "broken",
        }
    }

    /// The worse of two; of equals the first.
    fn worse(self, other: Self) -> Self {
        let rank = |state: &Self| match state {
            Self::Live => 0,
            Self::Listing => 1,
            Self::Pending { .. } => 2,
            Self::Broken { .. } => 3,
        };
        if rank(&other) > rank(&self) { other } else { self }
    }
}

#[cfg(test)]
mod tests;
