//! The `tailpost` binary.
fn main() {}
