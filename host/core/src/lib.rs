//! The vocabulary of Reeve and its work queue.
//!
//! Everything that the other crates of the host talk about has its type here. This crate does no
//! IO, and knows neither the Kubernetes client nor wasmtime: `reeve-cluster` and `reeve-sandbox`
//! meet only in its types and in [`read::Reader`].
//!
//! In reading order:
//! names ([`ids`], [`gvk`]) → objects ([`object`], [`json`], [`labels`]) → what a plugin says of
//! itself and may do ([`manifest`], [`predicate`], [`grant`]) → one run ([`change`], [`reason`],
//! [`read`], [`plan`], [`failure`], [`leading`]) → [`queue`].

pub mod ids;
pub mod gvk;
pub mod object;
pub mod json;
pub mod labels;
pub mod manifest;
pub mod predicate;
pub mod grant;
pub mod change;
pub mod reason;
pub mod read;
pub mod plan;
pub mod failure;
pub mod leading;
pub mod queue;
