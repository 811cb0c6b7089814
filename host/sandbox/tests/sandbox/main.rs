//! The sandbox from outside: guests that are written here as WebAssembly text, so that each test
//! shows exactly what its guest does.

#![expect(
    clippy::panic,
    clippy::format_push_string,
    reason = "guests are put together as texts, and a bad one is a bug of the test"
)]

mod isolation;
mod limits;
mod load;
mod misbehaving;
mod reads;
mod runs;
mod support;
