//! Why a step did not happen, and why there is no runtime.

use super::bounds::BoundsError;
use haversack_cache::policy::rows::ParamsError;
use haversack_cache::{CacheError, CannotFit};

/// Why a step did not happen. The sequences are as they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error("token {token} is out of range; accepted: 0 to {}", vocab - 1)]
    Token { token: u32, vocab: usize },
    #[error("position {end} is past the context of {context} tokens")]
    Context { end: u64, context: usize },
    #[error("a sequence that keeps {tokens} tokens does not fit; accepted: at most {max} tokens")]
    TooManyTokens { tokens: usize, max: usize },
    #[error(
        "anchors {anchors} and window {window} do not fit; accepted: a window of at least 1, together at most {max} tokens"
    )]
    Window {
        anchors: usize,
        window: usize,
        max: usize,
    },
    #[error(
        "a window of {window} tokens leaves no rows to choose from; accepted: at least {min} tokens"
    )]
    NarrowWindow { window: usize, min: usize },
    #[error("policy {policy} cannot be set per request; use heavy, snap or adaptive")]
    PolicyPerSequence { policy: &'static str },
    #[error(
        "policy adaptive needs a probe of this model and there is none; run once with --policy adaptive to measure it"
    )]
    NotProbed,
    #[error("a step needs at least one token")]
    Empty,
    #[error("the model computed a number that is not finite at position {position}")]
    NotFinite { position: u64 },
    #[error(
        "tokens {from} to {to} cross a position where rows may be evicted; accepted: spans that end there"
    )]
    CrossesEviction { from: u64, to: u64 },
}

pub type StepResult<T = ()> = Result<T, StepError>;

impl StepError {
    /// Whether the budget is too small.
    pub fn is_cannot_fit(&self) -> bool {
        matches!(self, StepError::Cache(CacheError::CannotFit(_)))
    }
}

impl From<CannotFit> for StepError {
    fn from(error: CannotFit) -> StepError {
        StepError::Cache(CacheError::CannotFit(error))
    }
}

/// Why there is no runtime.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RuntimeError {
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    #[error(transparent)]
    Params(#[from] ParamsError),
    #[error("measuring the model: {0}")]
    Measurement(CacheError),
    #[error(
        "measuring how sensitive each layer is, which is done once, takes {needed} bytes; the budget is {budget}, accepted: at least {needed}, or a measurement that was saved"
    )]
    Probe { needed: usize, budget: usize },
    #[error(transparent)]
    Cache(#[from] CacheError),
}
