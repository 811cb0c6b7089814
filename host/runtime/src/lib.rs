//! The host: it wires cluster and sandbox together.
//!
//! Two lines meet in the [`roster`]. The straight line: a change → [`router`] → queue →
//! dispatch → sandbox → commit. The swap line: [`source`] → [`registry`] → roster.
//!
//! In reading order: [`config`], [`logging`] → [`source`] → [`registry`] → [`roster`] → [`router`] → `mapper`,
//! `enqueue` (other ways to a run) → `dispatch` → [`wait`] → [`failures`], `apiserver`, `admin`
//! (what people see) → [`metrics`] → [`host`] (start and stop).

pub mod config;
pub mod logging;
mod fetch;
pub mod source;
pub mod registry;
pub mod roster;
pub mod router;
mod mapper;
mod enqueue;
mod dispatch;
pub mod wait;
pub mod failures;
mod apiserver;
mod admin;
pub mod metrics;
pub mod host;

pub use config::HostConfig;
pub use host::{Host, RunError, StartError};
