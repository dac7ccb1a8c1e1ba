//! Running a model: one step ([`runtime`]), a completion ([`generate`]), a judgement ([`score`],
//! [`perplexity`]); what leaving rows would cost ([`guard`]); what may be asked for ([`options`]) and what follows from it ([`bounds`]).

pub mod bounds;
pub mod completion;
pub mod generate;
pub mod options;
pub mod perplexity;
pub mod plan;
pub mod score;
pub mod step;

pub use generate::{Finish, GenerateEvent, GenerateOptions, GenerateTimes, Generation, generate};
pub use haversack_cache::SequenceId;
pub use options::RuntimeOptions;
pub use score::{ScoredToken, score};
pub use step::{Runtime, RuntimeError, SequenceRetention, StepError};
