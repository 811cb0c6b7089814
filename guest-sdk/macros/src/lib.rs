//! reeve-sdk-macros.
