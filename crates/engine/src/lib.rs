#![forbid(unsafe_code)]
//! Haversack runs language models from GGUF files.

pub mod load;
pub mod sample;
pub mod text;
