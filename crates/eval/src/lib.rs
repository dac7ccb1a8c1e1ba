#![forbid(unsafe_code)]
//! Judging what a cache keeps. Not part of the library that ships.

pub mod needles;
