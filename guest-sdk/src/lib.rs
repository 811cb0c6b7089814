//! reeve-sdk.
