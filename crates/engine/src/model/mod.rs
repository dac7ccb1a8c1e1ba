//! The model: what its metadata says ([`config`]), where its weights lie ([`weights`]), and one
//! pass over them ([`forward`]), of which some queries are remembered ([`canaries`]).

pub mod canaries;
pub mod config;
mod counters;
pub mod forward;
mod keys;
pub mod rope;
pub mod weights;

pub use config::{Activation, Arch, Config, LayerConfig};
