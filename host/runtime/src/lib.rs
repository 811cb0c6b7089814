//! The host: it wires cluster and sandbox together.
//!
//! Two lines meet in the [`roster`]. The straight line: a change → [`router`] → queue →
//! dispatch → sandbox → commit. The swap line: [`source`] → [`registry`] → roster.
//!
//! In reading order: [`config`], [`logging`] → [`source`] → [`registry`] → [`roster`] → [`router`] → `mapper`,
//! `enqueue` (other ways to a run) → `dispatch` → [`wait`] → [`failures`], `apiserver`, `admin`
//! (what people see) → [`metrics`] → [`host`] (start and stop).

mod admin;
mod apiserver;
pub mod config;
mod dispatch;
mod enqueue;
pub mod failures;
mod fetch;
pub mod host;
pub mod logging;
mod mapper;
pub mod metrics;
pub mod registry;
pub mod roster;
pub mod router;
pub mod source;
pub mod wait;

pub use config::HostConfig;
pub use host::{Host, RunError, StartError};
