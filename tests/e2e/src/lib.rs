//! What the scenarios are built from: a fault proxy in front of an API server and the harness
//! that starts control planes, hosts and plugins.

pub mod fault_proxy;
pub mod fleet;
pub mod harness;
