//! A model file: what its metadata says ([`config`]), where its weights lie ([`weights`]) and stay ([`residence`],
//! [`pack`], [`packing`]), and how each layer's keys and values are stored ([`kv`]).

pub mod config;
pub mod content;
mod error;
pub mod fingerprint;
mod keys;
pub mod kv;
pub mod load;
pub mod pack;
pub mod packing;
pub mod residence;
pub mod rope;
mod sampling;
pub mod weights;

pub use config::{Activation, Arch, Config, LayerConfig};
pub use error::LoadError;
pub use load::Model;
