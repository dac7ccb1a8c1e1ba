//! Shared by the tests: where real models are, small ones, and sessions of them.
#![allow(dead_code, unused_imports)]

pub mod session;

#[path = "../../../engine/tests/common/mod.rs"]
mod models;

pub use models::*;
