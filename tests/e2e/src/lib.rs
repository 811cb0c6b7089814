//! reeve-e2e.
