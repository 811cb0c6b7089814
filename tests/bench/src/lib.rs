//! reeve-bench.
