//! Constraint on an answer: says before each token which ones are allowed, and is given the one that was sampled.
//!
//! The engine knows no grammar. `haversack-grammar` (JSON schemas and regular expressions) passes a [`Constraint`] to the
//! [`Sampler`](super::Sampler), which masks all other tokens before biases, penalties and the draw, so that they are never
//! sampled.

use std::fmt::Debug;

/// The state of one constrained answer.
pub trait Constraint: Debug + Send {
    /// A bit for each token that is allowed next: token `i` is bit `i % 32` of word `i / 32`. Tokens past the end are not
    /// allowed. Once the answer is complete these are the tokens that end it.
    fn allowed(&mut self) -> Result<&[u32], ConstraintError>;

    /// Advances by the token that was sampled.
    fn take(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// A constraint in the same state.
    fn copy(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Box<dyn Constraint> {
        (**self).copy()
    }
}

/// Why an answer cannot go on. A fixed sentence: the generated text is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub &'static str);

/// Masks every token that is not allowed.
pub(super) fn apply(allowed: &[u32], logits: &mut [f32]) {
    let (words, rest) = logits.split_at_mut(logits.len().min(allowed.len() * 32));
    for (&word, logits) in allowed.iter().zip(words.chunks_mut(32)) {
        match word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            _ => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word & (1 << bit) == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
    rest.fill(f32::NEG_INFINITY);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_a_bit_is_left() {
        for len in [0, 1, 31, 32, 33, 64, 70, 100] {
            let allowed = [u32::MAX, 0b1010];
            let mut logits = vec![1.0; len];
            apply(&allowed, &mut logits);
            let left: Vec<usize> = (0..len).filter(|&i| logits[i] == 1.0).collect();
            let want: Vec<usize> = (0..len).filter(|&i| i < 32 || i == 33 || i == 35).collect();
            assert_eq!(left, want);
            assert!(logits.iter().all(|&l| l == 1.0 || l == f32::NEG_INFINITY));
        }
    }
}
