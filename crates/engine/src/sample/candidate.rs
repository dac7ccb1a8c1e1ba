//! A token that may still be drawn, and the order of such tokens.

use std::cmp::Ordering;

/// A token that may still be drawn; its probability is not normalised.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    pub id: u32,
    pub logit: f32,
    pub weight: f32,
}

/// Likeliest first, ties by id. Logits are never NaN here.
pub fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    let by_logit = b.logit.partial_cmp(&a.logit);
    by_logit.unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}
