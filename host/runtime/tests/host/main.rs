//! The host as a whole: a real sandbox and real plugins over a scripted API server.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    clippy::similar_names,
    reason = "outside of test functions too, a surprise ends the test; and tables take values"
)]

mod api;
mod fixture;

mod dispatch;
mod lifecycle;
mod property;
mod swap;
