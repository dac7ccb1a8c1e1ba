#![forbid(unsafe_code)]
//! What tests need and products do not: random models.
//!
//! Only `[dev-dependencies]` may name this crate.

pub mod models;
