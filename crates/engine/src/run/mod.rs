//! Running a model: one step ([`runtime`]), a completion ([`generate`]), a judgement ([`score`]).

pub mod generate;
pub mod runtime;
pub mod score;

pub use generate::{Event, Finish, GenerateOptions, Generation, generate};
pub use haversack_cache::SequenceId;
pub use runtime::{Runtime, RuntimeOptions, StepError};
pub use score::{ScoredToken, score};
