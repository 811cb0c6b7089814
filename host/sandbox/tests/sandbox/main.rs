//! The sandbox from outside: guests that are written here as WebAssembly text, so that each test
//! shows exactly what its guest does.

mod isolation;
mod limits;
mod load;
mod reads;
mod runs;
mod support;
