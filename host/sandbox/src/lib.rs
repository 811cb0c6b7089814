//! Runs plugins: the only user of wasmtime.
//!
//! A file goes the way inspect → compile → describe ([`Sandbox::load`]) → link ([`Sandbox::link`])
//! and is then a [`Plugin`], of which each [`Plugin::run`] makes a fresh instance.
//!
//! Invariants:
//! - A guest slows, breaks and exhausts only its own run. Whatever it does, its thread is free
//!   within 20 ms after its deadline.
//! - Nothing leaves a run but its [`Outcome`](reeve_core::plan::Outcome): staged data and log lines.
//!   A run that broke has an empty plan.
//! - Native code is executed only if this host compiled it: from its own memory, or from its own
//!   private directory after its checksum was compared.
//! - What a component imports beyond the contract and an empty WASI is refused by name at load.

mod abi;
mod cache;
mod classify;
mod compile;
mod config;
mod describe;
mod engine;
mod filters;
mod inspect;
mod limits;
mod link;
mod log;
mod metrics;
mod pins;
mod reject;
mod run;
mod sandbox;
mod stage;
mod text;
mod threads;
mod wasi;

pub use abi::Role;
pub use config::SandboxConfig;
pub use engine::Allocation;
pub use inspect::{Inspection, Roles, componentize};
pub use reject::Reject;
pub use run::{Plugin, Request};
pub use sandbox::{Loaded, Sandbox, SandboxError};
