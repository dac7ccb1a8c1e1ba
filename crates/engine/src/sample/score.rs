//! Log-probabilities of tokens and the distance of two distributions, for scoring. Sums in f64: a vocabulary of small terms loses digits in f32.

use super::error::SampleError;
use std::cmp::Ordering;

/// Largest logit and the logarithm of the sum of exp(logit - largest).
fn normaliser(logits: &[f32]) -> Result<(f64, f64), SampleError> {
    let mut top = f32::NEG_INFINITY;
    for (at, &logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return Err(SampleError::Nan(at));
        }
        top = top.max(logit);
    }
    if logits.is_empty() {
        return Err(SampleError::Empty);
    }
    if top == f32::NEG_INFINITY {
        return Err(SampleError::Nothing);
    }
    if top == f32::INFINITY {
        // Certain tokens share the probability.
        let certain = logits.iter().filter(|l| **l == f32::INFINITY).count();
        return Ok((f64::INFINITY, (certain as f64).ln()));
    }
    let top = f64::from(top);
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - top).exp()).sum();
    Ok((top, sum.ln()))
}

fn logprob(logit: f32, (top, log_sum): (f64, f64)) -> f64 {
    let logit = f64::from(logit);
    if logit == top {
        -log_sum
    } else {
        logit - top - log_sum
    }
}

/// The log-probability of one token; minus infinity when it is impossible.
pub fn logprob_of(logits: &[f32], id: u32) -> Result<f64, SampleError> {
    let normaliser = normaliser(logits)?;
    match logits.get(id as usize) {
        Some(&logit) => Ok(logprob(logit, normaliser)),
        None => Err(SampleError::Token {
            id,
            vocabulary: logits.len(),
        }),
    }
}

/// The `k` likeliest tokens with their log-probabilities, likeliest first, ties by id.
pub fn logprobs_top(logits: &[f32], k: usize) -> Result<Vec<(u32, f64)>, SampleError> {
    let normaliser = normaliser(logits)?;
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let at = |id: u32| logits[id as usize];
    // total_cmp would part -0.0 from 0.0; there is no NaN left.
    let order = |a: &u32, b: &u32| {
        let by_logit = at(*b).partial_cmp(&at(*a));
        by_logit.unwrap_or(Ordering::Equal).then(a.cmp(b))
    };
    if k < ids.len() {
        ids.select_nth_unstable_by(k, order);
        ids.truncate(k);
    }
    ids.sort_unstable_by(order);
    let scored = ids.into_iter().map(|id| (id, logprob(at(id), normaliser)));
    Ok(scored.collect())
}

/// Kullback-Leibler divergence of `found` from `truth` in nats, and whether both have the same
/// likeliest token. In f64: the terms are small differences of large numbers.
pub fn kl_divergence(truth: &[f32], found: &[f32]) -> (f64, bool) {
    let top = |logits: &[f32]| {
        let mut best = 0;
        for (i, logit) in logits.iter().enumerate() {
            if *logit > logits[best] {
                best = i;
            }
        }
        best
    };
    let (t, f) = (top(truth), top(found));
    let (t_max, f_max) = (f64::from(truth[t]), f64::from(found[f]));
    let (mut t_sum, mut f_sum, mut cross) = (0.0, 0.0, 0.0);
    for (a, b) in truth.iter().zip(found) {
        let (a, b) = (f64::from(*a) - t_max, f64::from(*b) - f_max);
        let p = a.exp();
        t_sum += p;
        f_sum += b.exp();
        cross += p * (a - b);
    }
    let kl = cross / t_sum - t_sum.ln() + f_sum.ln();
    (kl.max(0.0), t == f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_of_known_distributions() {
        // p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 ln 3/2 + 1/4 ln 1/2.
        let (kl, agree) = kl_divergence(&[3f32.ln(), 0.0], &[5.0, 5.0]);
        assert!((kl - (0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln())).abs() < 1e-7);
        assert!(agree, "ties go to the lower id");
        assert_eq!(
            kl_divergence(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]),
            (0.0, true)
        );
    }
}
