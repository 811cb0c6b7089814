//! reeve-sandbox.
