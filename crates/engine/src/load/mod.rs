//! From a file on disk to a model ready to run.
pub mod gguf;
