//! WASI preview 2 with nothing in it: no files, no environment, no arguments, no network. Standard
//! output and error become log lines.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};
use wasmtime_wasi::{Deterministic, HostMonotonicClock, HostWallClock, WasiCtx};

use crate::config::{MAX_LOG_LINE, MAX_RANDOM_BYTES};
use crate::log::{GuestLog, Stream};

/// Where time and randomness come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// The machine.
    Live,
    /// Always the same: `describe` must not depend on when and where it runs.
    Fixed,
}

/// What [`Clocks::Fixed`] gives as time: 2026-01-01T00:00:00Z.
const FIXED_TIME: Duration = Duration::from_hours(490_896);

/// Makes the WASI side of one call.
pub(crate) fn context(clocks: Clocks, log: &Arc<Mutex<GuestLog>>) -> WasiCtx {
    let mut builder = WasiCtx::builder();
    builder
        .stdout(GuestStream { log: Arc::clone(log), stream: Stream::Out })
        .stderr(GuestStream { log: Arc::clone(log), stream: Stream::Err })
        .max_random_size(MAX_RANDOM_BYTES)
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false);
    if clocks == Clocks::Fixed {
        builder
            .wall_clock(FixedClock)
            .monotonic_clock(FixedClock)
            .secure_random(Deterministic::new(b"reeve".to_vec()))
            .insecure_random(Deterministic::new(b"reeve".to_vec()))
            .insecure_random_seed(0);
    }
    builder.build()
}

struct FixedClock;

impl HostWallClock for FixedClock {
    fn resolution(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> Duration {
        FIXED_TIME
    }
}

impl HostMonotonicClock for FixedClock {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        0
    }
}

/// Standard output or error of one call.
#[derive(Clone)]
struct GuestStream {
    log: Arc<Mutex<GuestLog>>,
    stream: Stream,
}

impl IsTerminal for GuestStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestStream {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        // Preview 3 only, which is not linked; preview 2 comes by the function above.
        Box::new(tokio::io::sink())
    }
}

impl OutputStream for GuestStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.log.lock().bytes(self.stream, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(MAX_LOG_LINE)
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for GuestStream {
    async fn ready(&mut self) {}
}
