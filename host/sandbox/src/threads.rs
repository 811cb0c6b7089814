//! The threads that run guest code, apart from those of watches and IO.
//!
//! A guest yields its thread every [`TICK`](crate::config::TICK). That alone would make a short
//! run wait for a slice of every looping one before it, so runs that computed for a while become
//! *heavy*: they take turns on all threads but one. Invariant: however many guests loop, one
//! thread (of two or more) serves runs that do not.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

/// The runtime of guest code.
#[derive(Debug)]
pub(crate) struct GuestThreads {
    runtime: Option<Runtime>,
    handle: Handle,
    heavy: Arc<Semaphore>,
}

/// Blocking threads: one compiles at a time, others read the cache.
const MAX_BLOCKING_THREADS: usize = 4;

/// How many polls a thread makes before it looks at the shared queue and at the timers. Polls of
/// guests may take a whole slice, so this is often.
const POLLS_BETWEEN_QUEUES: u32 = 4;

impl GuestThreads {
    pub(crate) fn start(threads: usize) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .max_blocking_threads(MAX_BLOCKING_THREADS)
            .global_queue_interval(POLLS_BETWEEN_QUEUES)
            .event_interval(POLLS_BETWEEN_QUEUES)
            .thread_name("reeve-guest")
            .enable_time()
            .build()?;
        let handle = runtime.handle().clone();
        let heavy = Arc::new(Semaphore::new((threads - 1).max(1)));
        Ok(Self { runtime: Some(runtime), handle, heavy })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs `work` on these threads. Dropping the future that this returns ends the work. `Err`
    /// is a panic of the host in it, or the end of the threads.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, String> {
        // A caller that is on these threads already saves two hand-overs between threads.
        if Handle::try_current().is_ok_and(|current| current.id() == self.handle.id()) {
            return Ok(work.await);
        }
        let task = AbortOnDropHandle::new(self.handle.spawn(work));
        task.await.map_err(|error| error.to_string())
    }

    /// The turn of one run among the heavy ones.
    pub(crate) fn turn(&self) -> Turn {
        Turn { heavy: Arc::clone(&self.heavy), permit: Arc::default() }
    }
}

impl Drop for GuestThreads {
    fn drop(&mut self) {
        // The last owner may be a task of any runtime, of this one too, where waiting for the
        // threads is not allowed. They end by themselves: guests yield within a slice.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The right of a heavy run to compute, held during one poll of it only.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    heavy: Arc<Semaphore>,
    permit: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

impl Turn {
    /// Lets others go first, then waits for a turn.
    pub(crate) async fn wait(self) {
        tokio::task::yield_now().await;
        // Never closed; without a permit the run would only be a little less polite.
        if let Ok(permit) = Arc::clone(&self.heavy).acquire_owned().await {
            *self.permit.lock() = Some(permit);
        }
    }

    /// `work`, giving its turn back whenever it waits for something.
    pub(crate) async fn during<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|context| {
            let poll = work.as_mut().poll(context);
            if poll.is_pending() {
                self.permit.lock().take();
            }
            poll
        })
        .await
    }
}
