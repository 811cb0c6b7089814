//! How a call ended that did not return: which layer, which code, and what to tell.

use reeve_core::failure::{Failure, Layer, code};
use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use crate::abi::state::State;
use crate::config::MAX_FRAMES;
use crate::limits::Ended;

/// Why a call did not return.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The guest, or a host function for it, gave up.
    Error(wasmtime::Error),
    /// The deadline came while it waited in a host call.
    Deadline,
    /// It was told to stop and did not in time.
    Aborted,
}

/// What wasmtime says when a guest hands over more data than one call may carry. The type of the
/// error is private to it; `tests` hold this text to it.
const HOST_CALL_TOO_LARGE: &str = "fuel allocated for hostcalls has been exhausted";

/// The same for handles, of the guest's own resources too.
const TOO_MANY_HANDLES: &str = "store handle limit exceeded";

/// Frames of these belong to the machinery of a panic, not to what went wrong.
const MACHINERY: [&str; 9] = [
    "rust_panic",
    "__rust",
    "std::panicking",
    "core::panicking",
    "panic_abort",
    "rust_begin_unwind",
    "std::sys::backtrace",
    "std::process::abort",
    "abort",
];

/// Sorts the end of a call.
pub(crate) fn classify(stop: Stop, state: &State) -> (Layer, Failure) {
    let broke = |code, category, text: String| (Layer::Broke, Failure::transient(code, category, text));
    let error = match stop {
        Stop::Error(error) => error,
        Stop::Deadline => return deadline(state, None),
        Stop::Aborted => {
            let text = "the run was ended because the host stops or may no longer write";
            return (Layer::Host, Failure::transient(code::ABORTED, "internal", text));
        }
    };
    let trace = trace(&error);
    let at = trace.as_deref().map(|trace| format!(" (in {trace})")).unwrap_or_default();
    match error.downcast_ref::<Ended>() {
        Some(Ended::Deadline) => return deadline(state, trace.as_deref()),
        Some(ended @ Ended::Memory { .. }) => {
            return broke(code::OUT_OF_MEMORY, "quota", format!("the plugin was ended: {ended}{at}"));
        }
        Some(ended @ Ended::Limit { .. }) => {
            return broke(code::LIMIT_EXCEEDED, "quota", format!("the plugin was ended: {ended}{at}"));
        }
        Some(ended @ Ended::OutOfPlace) => {
            return broke(code::TRAP, "internal", format!("the plugin was ended: {ended}{at}"));
        }
        Some(ended @ Ended::NoRole(_)) => {
            let text = format!("the plugin was called in a role that it does not have: {ended}");
            return (Layer::Host, Failure::permanent(code::HOST, "internal", text));
        }
        None => {}
    }
    if error.is::<PoolConcurrencyLimitError>() {
        let text = format!("no room for another instance: {}", error.root_cause());
        return (Layer::Host, Failure::transient(code::HOST, "quota", text));
    }
    let cause = error.root_cause().to_string();
    for (sign, what) in [
        (HOST_CALL_TOO_LARGE, "one host call carried more data than may be staged"),
        (TOO_MANY_HANDLES, "it held too many handles at once"),
    ] {
        if cause.contains(sign) {
            return broke(code::LIMIT_EXCEEDED, "quota", format!("the plugin was ended: {what}{at}"));
        }
    }
    let what = match (error.downcast_ref::<Trap>(), error.downcast_ref::<I32Exit>()) {
        (Some(Trap::StackOverflow), _) => "its call stack is exhausted (1 MiB)".to_owned(),
        // Compilers put a stack of their own at the bottom of linear memory.
        (Some(trap @ Trap::MemoryOutOfBounds), _) if at.contains(", recursive") => {
            format!("{trap}, likely because its stack is exhausted")
        }
        (Some(trap), _) => trap.to_string(),
        (None, Some(exit)) => format!("it called exit({})", exit.0),
        (None, None) => cause,
    };
    let words = state.log.lock().last_words().map(|words| format!(": {words}")).unwrap_or_default();
    let mut failure =
        Failure::transient(code::TRAP, "internal", format!("the plugin trapped: {what}{words}{at}"));
    if let Some(trace) = trace {
        failure = failure.detail("trace", trace);
    }
    (Layer::Broke, failure)
}

fn deadline(state: &State, trace: Option<&str>) -> (Layer, Failure) {
    let limit = state.time.deadline.duration_since(state.time.started).as_millis();
    let place = match trace {
        Some(trace) => format!("computing in {trace}"),
        None => "waiting in a host call".to_owned(),
    };
    let text = format!("the plugin was ended at its deadline of {limit} ms, {place}");
    (Layer::Broke, Failure::transient(code::DEADLINE_EXCEEDED, "timeout", text))
}

/// The innermost functions of the guest, `inner < caller < …`, as far as the component kept its
/// names.
fn trace(error: &wasmtime::Error) -> Option<String> {
    let backtrace = error.downcast_ref::<WasmBacktrace>()?.to_string();
    // `  0: 0x1a2b - module.wasm!function`, as wasmtime writes frames, names demangled.
    let names: Vec<&str> =
        backtrace.lines().filter_map(|line| Some(line.split_once('!')?.1.trim())).collect();
    let is_own = |name: &&&str| !MACHINERY.iter().any(|prefix| name.starts_with(prefix));
    let mut own: Vec<(&str, bool)> = Vec::new();
    for name in names.iter().filter(is_own).copied().map(without_hash) {
        let full = own.len() == MAX_FRAMES;
        match own.last_mut() {
            Some((last, recursive)) if *last == name => *recursive = true,
            _ if full => break,
            _ => own.push((name, false)),
        }
    }
    let shown: Vec<_> = own
        .iter()
        .map(|(name, recursive)| if *recursive { format!("{name}, recursive") } else { (*name).to_owned() })
        .collect();
    if shown.is_empty() { None } else { Some(shown.join(" < ")) }
}

/// Rust's legacy mangling ends names with `::h` and 16 hex digits, which nobody wants to read.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => path,
        _ => name,
    }
}
