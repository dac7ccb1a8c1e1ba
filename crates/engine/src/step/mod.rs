//! One step: new tokens of several sequences go through the model together ([`forward`]) and are appended to the cache,
//! all of them or none ([`runner`]).
//!
//! The arithmetic of a row does not depend on the other rows of the step. Beside the logits a step leaves what later
//! evictions ask for: how much attention each row got ([`attention_counts`]) and a few of the last queries
//! ([`query_samples`]). Which rows leave is not decided here.

mod attention_counts;
mod forward;
pub mod query_samples;
pub mod runner;
pub mod scratch;
pub mod sequence;
mod span;

pub use span::{LogitRows, StepSpan};
