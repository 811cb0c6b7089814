//! Asks a component what it is: `describe`, before any grant.

use std::sync::Arc;

use reeve_core::failure::Layer;
use reeve_core::manifest::MAX_MANIFEST_BYTES;
use tokio_util::sync::CancellationToken;
use wasmtime::component::Component;

use crate::abi::state::{State, Time};
use crate::abi::{Describe, Guest};
use crate::classify::classify;
use crate::config::{DESCRIBE_DEADLINE, DESCRIBE_MEMORY_MIB};
use crate::inspect::Roles;
use crate::link;
use crate::log::GuestLog;
use crate::reject::Reject;
use crate::run::call;
use crate::sandbox::Host;
use crate::wasi::Clocks;

/// Lines that `describe` may log; there is nothing to say in it.
const LOG_LINES: u32 = 16;
/// Host calls that `describe` may make, all of them log lines.
const HOST_CALLS: u64 = 64;

/// Calls `describe` in an instance of its own: an empty WASI whose time and randomness are fixed,
/// and no grant: every other import traps.
pub(crate) async fn describe(host: &Arc<Host>, component: &Component) -> Result<String, Reject> {
    let unlinked = |error: wasmtime::Error| Reject::Link(format!("{error:#}"));
    let mut linker = link::linker(&host.engine).map_err(unlinked)?;
    // Traps only where something is missing: they would hide the empty WASI from a guest that was
    // built for another patch version of it, since an exact name wins over a compatible one.
    let pre = match linker.instantiate_pre(component) {
        Ok(pre) => pre,
        Err(_missing) => {
            linker.define_unknown_imports_as_traps(component).map_err(unlinked)?;
            linker.instantiate_pre(component).map_err(unlinked)?
        }
    };
    // Only `plugin` is called: the other exports are found when the component is linked.
    let guest = Guest::new(pre, Roles::default()).map_err(unlinked)?;
    let state = State::new(
        DESCRIBE_MEMORY_MIB,
        HOST_CALLS,
        Time::new(DESCRIBE_DEADLINE, CancellationToken::new()),
        GuestLog::new(LOG_LINES),
        Clocks::Fixed,
        None,
    );
    let _slot = host.loading.acquire().await.map_err(|error| Reject::Host(error.to_string()))?;
    let work = {
        let host = Arc::clone(host);
        async move {
            // More than a manifest may have, so that too long a one is told as such.
            let fuel = MAX_MANIFEST_BYTES * 2;
            call(&host, &guest, state, fuel, Describe).await
        }
    };
    let (state, result) = host.threads.run(work).await.map_err(Reject::Host)?;
    result.map_err(|stop| match classify(stop, &state) {
        (Layer::Host, failure) => Reject::Host(failure.to_string()),
        (_, failure) => Reject::Describe(failure),
    })
}
