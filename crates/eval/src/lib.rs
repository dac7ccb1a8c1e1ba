#![forbid(unsafe_code)]
//! Judging what a cache keeps. Not part of the library that ships.

mod dice;
pub mod guard;
pub mod needles;
