//! What lies in one place, and how far it has come.

use std::sync::Arc;
use std::time::Duration;

use reeve_core::ids::{Digest, PluginName};
use reeve_sandbox::{Loaded, Reject, Sandbox};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::source::SourceId;

/// The pauses between two tries of a load that failed for a reason of the host's.
const LOAD_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// One place where a plugin lies.
#[derive(Default)]
pub(super) struct Place {
    /// The name and bytes that are in service from here.
    pub(super) serving: Option<(PluginName, Digest)>,
    /// What is on its way to take over.
    pub(super) next: Next,
    /// Why the place cannot be read at the moment.
    pub(super) fetch_error: Option<String>,
}

/// What is on its way to take over.
#[derive(Default)]
pub(super) enum Next {
    #[default]
    Nothing,
    Loading(Way),
    Admitting {
        way: Way,
        plugin: PluginName,
        version: String,
        waits: Vec<String>,
    },
    Rejected {
        digest: Option<Digest>,
        reason: String,
        blocked_by: Option<PluginName>,
    },
}

/// One try to bring bytes into service.
pub(super) struct Way {
    pub(super) id: u64,
    pub(super) digest: Digest,
    pub(super) began: Instant,
    pub(super) task: AbortHandle,
}

impl Place {
    pub(super) fn is_settled(&self) -> bool {
        match &self.next {
            Next::Loading(_) => false,
            Next::Admitting { waits, .. } => !waits.is_empty(),
            Next::Nothing | Next::Rejected { .. } => true,
        }
    }

    /// Its step ended without telling.
    pub(super) fn is_lost(&self) -> bool {
        match &self.next {
            Next::Loading(way) | Next::Admitting { way, .. } => way.task.is_finished(),
            Next::Nothing | Next::Rejected { .. } => false,
        }
    }
}

/// Loads, and tries again where the host is to blame.
pub(super) async fn load(sandbox: &Sandbox, bytes: Arc<[u8]>, source: &SourceId) -> Result<Loaded, Reject> {
    let mut pause = LOAD_RETRY.0;
    loop {
        match sandbox.load(Arc::clone(&bytes)).await {
            Err(reject) if reject.is_transient() => {
                tracing::warn!(%source, reason = %reject, "failed to load a plugin, trying again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LOAD_RETRY.1);
            }
            other => return other,
        }
    }
}
