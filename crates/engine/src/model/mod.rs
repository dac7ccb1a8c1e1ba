//! The model: what its metadata says ([`config`]), where its weights lie ([`weights`]), and one
//! pass over them ([`forward`]), of which some queries are remembered ([`canaries`]).

pub mod canaries;
pub mod config;
mod counters;
mod error;
pub mod fingerprint;
pub mod forward;
mod keys;
pub mod load;
pub mod pack;
pub mod residence;
pub mod rope;
pub mod weights;

pub use config::{Activation, Arch, Config, LayerConfig};
pub use error::LoadError;
pub use load::Model;
