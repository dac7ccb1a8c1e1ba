#![forbid(unsafe_code)]
//! Keys and values of a language model in small blocks.
