#![forbid(unsafe_code)]
//! Haversack runs language models from GGUF files inside a byte budget.
//!
//! ```no_run
//! use haversack::{LoadOptions, Model, Runtime, RuntimeOptions};
//! use haversack::run::{Event, GenerateOptions, generate};
//! use haversack::sample::{SampleOptions, Sampler};
//! use haversack::text::tokenizer::EncodeOptions;
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
//!     if let Event::Token { text, .. } = event {
//!         print!("{text}");
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! # Ok(())
//! # }
//! ```

pub mod device;
pub mod encoder;
pub mod load;
pub mod many;
pub mod model;
pub mod plan;
pub mod run;
pub mod sample;
pub mod session;
pub mod text;

pub use haversack_cache::{Ledger, Zones, policy};
pub use haversack_kernels::format::kv::{Codec, Form, KvForm};
pub use haversack_kernels::{cpu, format};
pub use haversack_memory as memory;
pub use load::LoadError;
pub use load::model::{LoadOptions, Model, Repack};
pub use load::residence::Residence;
pub use run::guard::GuardParams;
pub use run::options::{
    Activations, Guarding, KvOptions, Policy, Positions, Retention, RuntimeOptions,
};
pub use run::runtime::{Runtime, RuntimeError, StepError};
