//! Reads that wait for a write of unknown outcome (feature B4).

use std::collections::HashMap;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use reeve_core::gvk::Gvk;
use reeve_core::ids::ObjectName;
use reeve_core::read::HOLD_LIMIT;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::CacheMetrics;

/// The most holds of one kind; each stands for a write whose connection broke within the last 5 s.
/// The oldest makes room.
pub(crate) const MAX_HOLDS: usize = 1_024;

pub(crate) struct Holds {
    by_kind: Mutex<HashMap<Gvk, Vec<Hold>>>,
    metrics: CacheMetrics,
}

struct Hold {
    name: ObjectName,
    until: Instant,
    /// Cancelled when the watch told of the object.
    told: CancellationToken,
}

// === impl Holds ===

impl Holds {
    pub(crate) fn new(metrics: CacheMetrics) -> Self {
        Self { by_kind: Mutex::default(), metrics }
    }

    pub(crate) fn hold(&self, gvk: &Gvk, name: &ObjectName) {
        let mut kinds = self.by_kind.lock();
        let holds = kinds.entry(gvk.clone()).or_default();
        self.expire(holds);
        if holds.len() == MAX_HOLDS {
            holds.remove(0).told.cancel();
        }
        holds.push(Hold {
            name: name.clone(),
            until: Instant::now() + HOLD_LIMIT,
            told: CancellationToken::new(),
        });
        self.metrics.holds.inc();
    }

    /// The watch told of the object.
    pub(crate) fn told(&self, gvk: &Gvk, name: &ObjectName) {
        let mut kinds = self.by_kind.lock();
        let Some(holds) = kinds.get_mut(gvk) else { return };
        self.expire(holds);
        holds.retain(|hold| {
            let other = hold.name != *name;
            if !other {
                hold.told.cancel();
            }
            other
        });
        if holds.is_empty() {
            kinds.remove(gvk);
        }
    }

    pub(crate) fn held(&self, gvk: &Gvk, name: Option<&ObjectName>) -> Option<BoxFuture<'static, ()>> {
        let mut kinds = self.by_kind.lock();
        let holds = kinds.get_mut(gvk)?;
        self.expire(holds);
        let held = holds.iter().filter(|hold| name.is_none_or(|name| hold.name == *name));
        let waits: Vec<_> = held
            .map(|hold| tokio::time::timeout_at(hold.until, hold.told.clone().cancelled_owned()))
            .collect();
        // A wait that timed out is over too.
        (!waits.is_empty()).then(|| futures::future::join_all(waits).map(drop).boxed())
    }

    fn expire(&self, holds: &mut Vec<Hold>) {
        let now = Instant::now();
        let before = holds.len();
        holds.retain(|hold| hold.until > now);
        self.metrics.holds_expired.inc_by((before - holds.len()) as u64);
    }
}
