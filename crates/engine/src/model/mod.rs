//! The model: what its metadata says ([`config`]), where its weights lie ([`weights`]), and one
//! pass over them ([`forward`]).

pub mod config;
pub mod forward;
mod keys;
pub mod rope;
pub mod weights;

pub use config::{Activation, Arch, Config, LayerConfig};
