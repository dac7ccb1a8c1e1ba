//! What leaves out tokens beside top-k, top-p and min-p. Pure functions over logits or candidates; each leaves at least one.
//!
//! - top-n-sigma: Tang et al., "Top-nσ: Not All Logits Are You Need" (2024).
//! - typical-p: Meister et al., "Locally Typical Sampling" (2023).
//! - XTC: "Exclude Top Choices", by the author of DRY (2024). As in llama.cpp, the likely tokens but the last leave.

use super::candidate::{Candidate, likelier};

/// Masks logits more than `n` standard deviations below the largest. Masked ones count for nothing.
pub fn sigma(logits: &mut [f32], n: f32) {
    let possible = || logits.iter().filter(|logit| logit.is_finite());
    let count = possible().count() as f64;
    let top = possible().fold(f32::NEG_INFINITY, |top, &logit| top.max(logit));
    let mean = possible().map(|&logit| f64::from(logit)).sum::<f64>() / count.max(1.0);
    let square = |logit: &f32| (f64::from(*logit) - mean) * (f64::from(*logit) - mean);
    let squares = possible().map(square);
    let deviation = (squares.sum::<f64>() / count.max(1.0)).sqrt();
    let least = f64::from(top) - f64::from(n) * deviation;
    for logit in logits.iter_mut().filter(|logit| f64::from(**logit) < least) {
        *logit = f32::NEG_INFINITY;
    }
}

/// Keeps the candidates whose surprise (minus the logarithm of their probability) is nearest to the expected surprise,
/// until they weigh more than `share` of all.
///
/// Surprises differ as logits do, so the distance of a logit from the expected logit gives the same order, and no
/// logarithm, which differs between systems in the last digit, is taken.
pub fn typical(candidates: &mut Vec<Candidate>, share: f32) {
    // What weighs nothing adds nothing, where 0 times infinity would not be a number.
    candidates.retain(|c| c.weight > 0.0);
    let total: f64 = candidates.iter().map(|c| f64::from(c.weight)).sum();
    let terms = candidates
        .iter()
        .map(|c| f64::from(c.weight) * f64::from(c.logit));
    let expected = terms.sum::<f64>() / total;
    let distance = |c: &Candidate| (f64::from(c.logit) - expected).abs();
    candidates.sort_unstable_by(|a, b| {
        let by_distance = distance(a).total_cmp(&distance(b));
        by_distance.then_with(|| likelier(a, b))
    });
    let mut mass = 0.0;
    let reached = candidates.iter().position(|candidate| {
        mass += f64::from(candidate.weight);
        mass > f64::from(share) * total
    });
    candidates.truncate(reached.map_or(candidates.len(), |at| at + 1));
}

/// Removes the candidates that are as probable as `threshold`, all but the least likely of them.
pub fn exclude_top(candidates: &mut Vec<Candidate>, threshold: f32) {
    let total: f64 = candidates.iter().map(|c| f64::from(c.weight)).sum();
    let is_likely = |c: &Candidate| f64::from(c.weight) >= f64::from(threshold) * total;
    let likely = candidates.iter().filter(|c| is_likely(c));
    let Some(last) = likely.max_by(|a, b| likelier(a, b)).copied() else {
        return;
    };
    candidates.retain(|c| !is_likely(c) || c.id == last.id);
}
