//! Running a model: sequences under a retention policy ([`Runtime`]), what that takes in memory ([`plan`], [`bounds`]),
//! a completion ([`generate`]), and what a model makes of a given text ([`score`], [`perplexity`]).

pub mod adaptive;
pub mod bounds;
pub mod completion;
mod core;
mod error;
mod eviction;
mod forecast;
pub mod generate;
#[cfg(test)]
mod guard_tests;
pub mod options;
pub mod perplexity;
pub mod plan;
mod repetition;
mod report;
mod retention;
pub mod score;
pub mod trial;

pub use self::core::{ReservedBudget, Runtime};
pub use error::{RuntimeError, StepError};
pub use generate::{Finish, GenerateEvent, GenerateOptions, GenerateTimes, Generation, generate};
pub use haversack_cache::SequenceId;
pub use options::RuntimeOptions;
pub use report::{KvLayout, KvMemory, SequenceUsage};
pub use retention::SequenceRetention;
pub use score::{ScoredToken, score};
