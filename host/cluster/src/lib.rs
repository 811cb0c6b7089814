//! The only user of the Kubernetes client: it watches, caches and writes.
//!
//! In reading order: [`connection`] (one instrumented way to the API server) → [`discovery`]
//! (which kinds are served) → [`cache`] (one copy of each object, and what was written) →
//! [`watch`] (list-watch streams that feed it) → [`cluster`] (all of it under one handle).
//!
//! Invariants: reads never touch the network; only the `commit` module mutates the cluster; the
//! cache never goes back in version and never brings back what was deleted; each change of an
//! object is told once, after the cache holds it.

pub mod connection;
pub mod discovery;
pub mod path;
pub mod cache;
pub mod watch;
pub mod cluster;
pub mod commit;
pub mod events;
pub(crate) mod metrics;
#[cfg(test)]
mod testing;

pub use cluster::{Cluster, ClusterOptions};
pub use commit::{CommitError, Committed, Committer, Work};
pub use connection::{ConnectOptions, Connection};
pub use discovery::{Discovery, DiscoveryError};
