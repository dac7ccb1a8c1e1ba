#![forbid(unsafe_code)]
//! The `haversack` command.

fn main() {}
