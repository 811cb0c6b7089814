//! reeve
fn main() {}
