//! reeve-runtime.
