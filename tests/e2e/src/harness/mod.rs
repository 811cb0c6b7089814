//! What scenarios stand on: a control plane, hosts, plugins, a client, and patience.

pub mod controlplane;
pub mod env;
pub mod guests;
pub mod host;
pub mod kube;
pub mod metrics;
pub mod process;
pub mod runner;
pub mod wait;
