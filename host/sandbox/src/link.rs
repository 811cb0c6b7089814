//! What a component is given: the contract, and a WASI with nothing in it.
//!
//! The linker is built for the grant, so that what was not granted is not there to be called. An
//! import that is not there is refused by name before anything is instantiated.

use reeve_core::grant::Grant;
use wasmtime::Engine;
use wasmtime::component::Linker;
use wasmtime_wasi::WasiView;
use wasmtime_wasi::cli::{WasiCli, WasiCliView};
use wasmtime_wasi::filesystem::{WasiFilesystem, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::{cli, filesystem, random, sockets};
use wasmtime_wasi::random::WasiRandom;
use wasmtime_wasi::sockets::{WasiSockets, WasiSocketsView};

use crate::abi;
use crate::abi::state::State;
use crate::inspect::Inspection;
use crate::reject::Reject;

/// The interfaces of WASI 0.2 that every plugin may import: what the standard libraries of
/// languages bring in whether a program uses it or not. Behind them are no files, no environment,
/// no arguments and no network.
const WASI: [&str; 20] = [
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:filesystem/preopens",
    "wasi:filesystem/types",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
];

/// Interfaces about sockets that nobody can open: what is left in a component when its standard
/// library was linked with the network but never uses it.
const WASI_SOCKETS: [&str; 4] =
    ["wasi:sockets/instance-network", "wasi:sockets/network", "wasi:sockets/tcp", "wasi:sockets/udp"];

/// Refuses the first import that the grant does not cover, by name.
pub(crate) fn check_imports(inspection: &Inspection, grant: &Grant) -> Result<(), Reject> {
    match inspection.imports.iter().find(|name| !is_given(name, grant)) {
        None => Ok(()),
        Some(name) => Err(Reject::Import { name: name.clone(), remedy: remedy(name) }),
    }
}

/// No grant gives more than another yet: `wasi:http` will be the first that does.
fn is_given(name: &str, _grant: &Grant) -> bool {
    let (interface, version) = name.split_once('@').unwrap_or((name, ""));
    let wasi =
        (WASI.contains(&interface) || WASI_SOCKETS.contains(&interface)) && version.starts_with("0.2.");
    // Of which version was checked when the component was inspected.
    wasi || interface == "reeve:plugin/host"
}

fn remedy(name: &str) -> &'static str {
    let interface = name.split_once('@').map_or(name, |(interface, _)| interface);
    match interface.split(['/', ':']).nth(1) {
        Some("http") if interface.starts_with("wasi:") => {
            "this host gives no plugin HTTP; stage writes and read from the cache instead"
        }
        Some("sockets") if interface.starts_with("wasi:") => {
            "plugins have no network; remove what uses std::net, or in Python build with --stub-wasi"
        }
        _ if WASI.contains(&interface) => {
            "this host gives WASI 0.2; build it for wasm32-wasip2 with a toolchain that uses it"
        }
        _ if interface.starts_with("reeve:plugin/") => "a newer host is needed",
        _ => "plugins import reeve:plugin/host and the empty WASI 0.2 only; remove what brings it in",
    }
}

/// Builds the linker of a grant.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    abi::add_to_linker(&mut linker)?;
    let l = &mut linker;
    // Clocks, io, random, stdin, stdout, stderr.
    wasmtime_wasi::p2::add_to_linker_proxy_interfaces_async(l)?;
    random::insecure::add_to_linker::<State, WasiRandom>(l, |state| state.ctx().ctx.random())?;
    random::insecure_seed::add_to_linker::<State, WasiRandom>(l, |state| state.ctx().ctx.random())?;
    cli::exit::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::environment::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_input::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_output::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stdin::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stdout::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stderr::add_to_linker::<State, WasiCli>(l, State::cli)?;
    filesystem::types::add_to_linker::<State, WasiFilesystem>(l, State::filesystem)?;
    filesystem::preopens::add_to_linker::<State, WasiFilesystem>(l, State::filesystem)?;
    let options = sockets::network::LinkOptions::default();
    sockets::network::add_to_linker::<State, WasiSockets>(l, &options, State::sockets)?;
    sockets::instance_network::add_to_linker::<State, WasiSockets>(l, State::sockets)?;
    sockets::tcp::add_to_linker::<State, WasiSockets>(l, State::sockets)?;
    sockets::udp::add_to_linker::<State, WasiSockets>(l, State::sockets)?;
    Ok(linker)
}
