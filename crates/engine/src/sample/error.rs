//! Why no token was sampled.

use super::constraint::ConstraintError;

/// Entries of `logit_bias` at most.
pub const LOGIT_BIAS_MAX: usize = 4096;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    #[error("{option} is {value}; accepted: {range}")]
    Option {
        option: &'static str,
        value: f64,
        range: &'static str,
    },
    #[error("logit_bias has {0} entries; accepted: at most {LOGIT_BIAS_MAX}")]
    BiasCount(usize),
    #[error("logit_bias names token {id}; accepted: 0 to {}", vocabulary - 1)]
    BiasToken { id: u32, vocabulary: usize },
    #[error("the logit of token {0} is not a number")]
    Nan(usize),
    #[error("no token is possible: every logit is minus infinity")]
    Nothing,
    #[error("there are no logits")]
    Empty,
    #[error("token {id} is out of range; accepted: 0 to {}", vocabulary - 1)]
    Token { id: u32, vocabulary: usize },
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
}
