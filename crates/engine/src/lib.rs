#![forbid(unsafe_code)]
//! One model, one step at a time: loading, the forward pass, sampling, the quality of caches, the sentence encoder.
//!
//! ```no_run
//! use haversack_engine::{LoadOptions, Model, Runtime, RuntimeOptions};
//! use haversack_engine::runtime::{GenerateEvent, GenerateOptions, generate};
//! use haversack_engine::sample::{SampleOptions, Sampler};
//! use haversack_text::tokenizer::EncodeOptions;
//! use std::ops::ControlFlow;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::load("model.gguf".as_ref(), &LoadOptions::default(), &mut |_, _| ())?;
//! let mut runtime = Runtime::new(model.clone(), &RuntimeOptions::default())?;
//! let prompt = model.tokenizer().encode("Once upon a time", EncodeOptions { add_special: true, parse_special: false })?;
//! let chat = runtime.open()?;
//! let mut sampler = Sampler::new(SampleOptions::default())?;
//! let options = GenerateOptions { tokens_max: Some(64), ..Default::default() };
//! generate(&mut runtime, chat, &prompt, &mut sampler, &options, &mut |event| {
//!     if let GenerateEvent::Token { text, .. } = event {
//!         print!("{text}");
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! # Ok(())
//! # }
//! ```

pub mod device;
pub mod encoder;
pub mod kv_quality;
pub mod model;
pub mod runtime;
pub mod sample;
pub mod step;

pub use haversack_cache::{Ledger, Zones, policy};
pub use haversack_kernels::format::kv::{Codec, Form, KvForm};
pub use haversack_kernels::{cpu, format};
pub use haversack_memory as memory;
pub use kv_quality::guard::GuardParams;
pub use model::LoadError;
pub use model::kv::KvOptions;
pub use model::load::{LoadOptions, Model, Repack};
pub use model::residence::Residence;
pub use runtime::options::{Activations, Guarding, Policy, Positions, Retention, RuntimeOptions};
pub use runtime::{Runtime, RuntimeError, StepError};
