//! reeve-cluster.
