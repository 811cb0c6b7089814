//! Changes on their way from the stores to the router, in the order in which they happened.
//!
//! Stores are changed under a lock, where nobody may wait; so a change goes into the outbox there,
//! and a forwarder takes it to the bounded channel. Streams wait for room before they take their
//! next event, which carries the back-pressure to the API server.

use std::collections::VecDeque;
use std::pin::pin;

use parking_lot::Mutex;
use reeve_core::change::Change;
use tokio::sync::{Notify, mpsc};

/// Streams wait while this many changes are pending. More come only from one list that is taken as
/// a whole (its objects are in memory anyway), and from the answers of writes (one each).
pub(crate) const OUTBOX: usize = 1_024;

/// The channel to the router: enough to keep both sides busy.
pub(crate) const CHANNEL: usize = 256;

pub(crate) struct Outbox {
    pending: Mutex<Pending>,
    ready: Notify,
    room: Notify,
    gauge: prometheus::IntGauge,
}

enum Pending {
    Open(VecDeque<Change>),
    /// The router is gone: the host stops.
    Closed,
}

// === impl Outbox ===

impl Outbox {
    pub(crate) fn new(gauge: prometheus::IntGauge) -> Self {
        Self {
            pending: Mutex::new(Pending::Open(VecDeque::new())),
            ready: Notify::new(),
            room: Notify::new(),
            gauge,
        }
    }

    pub(crate) fn push(&self, change: Change) {
        if let Pending::Open(queue) = &mut *self.pending.lock() {
            queue.push_back(change);
            self.gauge.inc();
        }
        self.ready.notify_one();
    }

    /// Ends when there is room for more.
    pub(crate) async fn room(&self) {
        loop {
            let mut freed = pin!(self.room.notified());
            freed.as_mut().enable();
            match &*self.pending.lock() {
                Pending::Open(queue) if queue.len() >= OUTBOX => {}
                _ => return,
            }
            freed.await;
        }
    }

    /// Forwards until the router is gone.
    pub(crate) async fn run(&self, router: mpsc::Sender<Change>) {
        loop {
            let next = match &mut *self.pending.lock() {
                Pending::Open(queue) => {
                    let change = queue.pop_front();
                    if change.is_some() {
                        self.gauge.dec();
                    }
                    if queue.len() + 1 == OUTBOX {
                        self.room.notify_waiters();
                    }
                    change
                }
                Pending::Closed => return,
            };
            let Some(change) = next else {
                self.ready.notified().await;
                continue;
            };
            if router.send(change).await.is_err() {
                *self.pending.lock() = Pending::Closed;
                self.gauge.set(0);
                self.room.notify_waiters();
                return;
            }
        }
    }
}
