//! Running a model: one step ([`runtime`]), a completion ([`generate`]), a judgement ([`score`],
//! [`perplexity`]); what leaving rows would cost ([`guard`]); what may be asked for ([`options`]) and what follows from it ([`bounds`]).

pub mod adaptive;
pub mod bounds;
pub mod calibrate;
pub mod completion;
mod figures;
pub mod generate;
pub mod guard;
pub mod options;
pub mod perplexity;
pub mod probe;
pub mod runtime;
pub mod score;

pub use generate::{Event, Finish, GenerateOptions, Generation, Took, generate};
pub use haversack_cache::SequenceId;
pub use options::RuntimeOptions;
pub use runtime::{Keep, Runtime, RuntimeError, StepError};
pub use score::{ScoredToken, score};
