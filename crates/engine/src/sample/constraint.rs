//! What an answer may be: asked before each token which ones may come, and told which one came.
//!
//! The engine knows no grammar. Whoever does (`haversack-grammar`: JSON schemas and regular expressions) hands a
//! [`Constraint`] to the [`Sampler`](super::Sampler), which forbids everything else before biases, penalties and chance
//! have their say. What is forbidden cannot be drawn, whatever they do.

use std::fmt::Debug;

/// Where an answer stands in what it may be. One for each answer.
pub trait Constraint: Debug + Send {
    /// A bit for each token that may come next: token `i` is bit `i % 32` of word `i / 32`. Tokens behind the end may not.
    /// Once nothing else may come these are the tokens that end an answer.
    fn allowed(&mut self) -> Result<&[u32], ConstraintError>;

    /// This one came.
    fn take(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// Another one that stands where this one does.
    fn copy(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Box<dyn Constraint> {
        (**self).copy()
    }
}

/// Why an answer cannot go on. A sentence of ours: what was generated is not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub &'static str);

/// Forbids what is not allowed.
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
