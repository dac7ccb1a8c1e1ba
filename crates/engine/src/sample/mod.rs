//! From logits to a token.
//!
//! The chain, always in this order (documented because the order changes the text):
//!
//! ```text
//! logits ─► constraint ─► bias ─► repetition, frequency, presence penalties ─► DRY ─► greedy if temperature = 0
//!        ─► top-n-sigma ─► top-k ─► temperature ─► softmax ─► typical-p ─► top-p ─► min-p ─► XTC ─► one draw
//! ```
//!
//! Dividing by a temperature does not change an order, so top-k before or after it is the same set; what follows the
//! softmax sees the tempered distribution of what is left, renormalised. Ties go to the lowest id everywhere.
//!
//! A sampler owns its generator and its scratch: one draw per sampled token and none when greedy, and one more before it
//! where XTC is on; so the same seed always gives the same text, and no allocation after the first token of a vocabulary
//! (DRY: after the first repetitions of a length). A NaN is an error, as is a distribution in which no token is possible.
//!
//! [`SampleOptions`] says how tokens are sampled; [`SamplingValues`] is the same with values left out, and [`effective`]
//! decides what they are then.

mod candidate;
mod constraint;
mod dry;
mod error;
mod exp;
mod options;
mod rng;
mod score;
mod truncate;
mod values;

pub use constraint::{Constraint, ConstraintError};
pub use error::{LOGIT_BIAS_MAX, SampleError};
pub use options::{DRY_LAST_N_MAX, DryOptions, PENALTY_LAST_N_MAX, SampleOptions, XtcOptions};
pub use score::{kl_divergence, logprob_of, logprobs_top};
pub use values::{DryValues, SamplingValues, effective};

use candidate::{Candidate, likelier};
use dry::Dry;
use exp::exp_nonpositive;
use haversack_text::tokenizer::Tokenizer;
use rng::Rng;

#[derive(Debug, Clone)]
pub struct Sampler {
    options: SampleOptions,
    rng: Rng,
    constraint: Option<Box<dyn Constraint>>,
    /// Logits after constraint, bias and penalties, where there are any.
    adjusted: Vec<f32>,
    /// The last tokens, sorted, so that equal ones are neighbours.
    recent: Vec<u32>,
    candidates: Vec<Candidate>,
    /// exp of every logit, relative to the largest, and their sums by block.
    weights: Vec<f32>,
    blocks: Vec<f64>,
    /// Mass by class of weight, and the class in which a nucleus ends.
    masses: Vec<f64>,
    edge: Vec<Candidate>,
    dry: Dry,
}

impl Sampler {
    pub fn new(options: SampleOptions) -> Result<Sampler, SampleError> {
        options.check()?;
        let rng = Rng::new(options.seed);
        Ok(Sampler {
            options,
            rng,
            constraint: None,
            adjusted: Vec::new(),
            recent: Vec::new(),
            candidates: Vec::new(),
            weights: Vec::new(),
            blocks: Vec::new(),
            masses: Vec::new(),
            edge: Vec::new(),
            dry: Dry::default(),
        })
    }

    /// The same for a constrained answer.
    pub fn constrained(self, constraint: Option<Box<dyn Constraint>>) -> Sampler {
        Sampler { constraint, ..self }
    }

    /// The next token, given the logits of the vocabulary and the tokens before it, oldest first.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, SampleError> {
        self.sample_text(logits, history, None)
    }

    /// The same where the tokens' text is known: the sequence breakers of DRY are text.
    pub fn sample_text(
        &mut self,
        logits: &[f32],
        history: &[u32],
        tokenizer: Option<&Tokenizer>,
    ) -> Result<u32, SampleError> {
        if logits.is_empty() {
            return Err(SampleError::Empty);
        }
        let best = greedy(logits)?;
        if self.constraint.is_none() && !self.options.adjusts() {
            return self.choose(logits, best);
        }
        let mut adjusted = std::mem::take(&mut self.adjusted);
        adjusted.clear();
        adjusted.extend_from_slice(logits);
        let result = self.within_constraint(&mut adjusted, history, tokenizer);
        self.adjusted = adjusted;
        result
    }

    fn within_constraint(
        &mut self,
        logits: &mut [f32],
        history: &[u32],
        tokenizer: Option<&Tokenizer>,
    ) -> Result<u32, SampleError> {
        let Some(mut constraint) = self.constraint.take() else {
            return self.choose_adjusted(logits, history, tokenizer);
        };
        let mut within = || -> Result<u32, SampleError> {
            constraint::apply(constraint.allowed()?, logits);
            let chosen = self.choose_adjusted(logits, history, tokenizer)?;
            constraint.take(chosen)?;
            Ok(chosen)
        };
        let chosen = within();
        self.constraint = Some(constraint);
        chosen
    }

    /// After bias, penalties and what is cut off before top-k.
    fn choose_adjusted(
        &mut self,
        logits: &mut [f32],
        history: &[u32],
        tokenizer: Option<&Tokenizer>,
    ) -> Result<u32, SampleError> {
        let vocabulary = logits.len();
        for &(id, bias) in &self.options.logit_bias {
            let Some(logit) = logits.get_mut(id as usize) else {
                return Err(SampleError::BiasToken { id, vocabulary });
            };
            *logit = finite_sum(*logit, bias);
        }
        if self.options.penalises() {
            self.penalise(logits, history);
        }
        if self.options.dry.is_on() {
            self.dry
                .penalise(&self.options.dry, logits, history, tokenizer);
        }
        if self.options.top_n_sigma > 0.0 && self.options.temperature > 0.0 {
            truncate::sigma(logits, self.options.top_n_sigma);
        }
        self.choose(logits, greedy(logits)?)
    }

    /// `best` is [`greedy`]'s.
    fn choose(&mut self, logits: &[f32], best: usize) -> Result<u32, SampleError> {
        let top = logits.get(best).copied().unwrap_or(f32::NEG_INFINITY);
        if top == f32::NEG_INFINITY {
            return Err(SampleError::Nothing);
        }
        // An infinite logit or a temperature of zero is greedy.
        if self.options.temperature == 0.0 || top == f32::INFINITY {
            return Ok(best as u32);
        }
        let k = self.options.top_k;
        let drawn = if k > 0 && k < logits.len() {
            self.draw_from_top(logits, top, k)
        } else {
            self.draw_from_all(logits, top)
        };
        Ok(drawn.unwrap_or(best as u32))
    }

    /// Tokens outside of the vocabulary are skipped: a history may come from another tokenizer.
    fn penalise(&mut self, logits: &mut [f32], history: &[u32]) {
        let from = history.len().saturating_sub(self.options.penalty_last_n);
        self.recent.clear();
        self.recent
            .extend_from_slice(history.get(from..).unwrap_or(&[]));
        self.recent.sort_unstable();
        for same in self.recent.chunk_by(|a, b| a == b) {
            let Some(logit) = same.first().and_then(|&id| logits.get_mut(id as usize)) else {
                continue;
            };
            let penalty = self.options.repetition_penalty;
            let repeated = if *logit > 0.0 {
                *logit / penalty
            } else {
                *logit * penalty
            };
            let down =
                self.options.frequency_penalty * same.len() as f32 + self.options.presence_penalty;
            *logit = finite_sum(repeated, -down);
        }
    }

    /// Draws from the whole vocabulary, or from what top-p and min-p leave of it.
    fn draw_from_all(&mut self, logits: &[f32], top: f32) -> Option<u32> {
        let inverse = 1.0 / self.options.temperature;
        self.weights.clear();
        self.weights
            .extend(logits.iter().map(|&l| exp_nonpositive((l - top) * inverse)));
        self.blocks.clear();
        self.blocks
            .extend(self.weights.chunks(BLOCK).map(block_sum));
        let total: f64 = self.blocks.iter().sum();
        let (top_p, min_p) = (f64::from(self.options.top_p), self.options.min_p);
        if self.options.typical_p < 1.0 {
            // Its order is not that of the weights: the whole vocabulary is sorted.
            self.gather_nucleus(logits, f64::INFINITY, f32::MIN_POSITIVE);
            self.cut_candidates();
            return self.draw_candidate();
        }
        if top_p == 1.0 && min_p == 0.0 && !self.options.xtc.is_on() {
            return self.draw_by_blocks(total);
        }
        let all = top_p == 1.0;
        let enough = if all { f64::INFINITY } else { top_p * total };
        self.gather_nucleus(logits, enough, min_p.max(f32::MIN_POSITIVE));
        self.draw_candidate()
    }

    /// The nucleus without sorting a vocabulary: the mass by class of weight tells in which class it ends;
    /// what is above belongs to it, and only that class is sorted. What weighs less than `weight_min` is left out:
    /// min-p keeps a prefix of the same order, so both cuts may be made at once.
    fn gather_nucleus(&mut self, logits: &[f32], enough: f64, weight_min: f32) {
        self.masses.clear();
        self.masses.resize(CLASSES, 0.0);
        for &weight in &self.weights {
            if let Some(mass) = self.masses.get_mut(class_of(weight)) {
                *mass += f64::from(weight);
            }
        }
        let mut mass = 0.0;
        let mut edge_class = 0;
        for (class, in_class) in self.masses.iter().enumerate().rev() {
            if mass + in_class >= enough {
                edge_class = class;
                break;
            }
            mass += in_class;
        }
        self.candidates.clear();
        self.edge.clear();
        for (id, (&weight, &logit)) in self.weights.iter().zip(logits).enumerate() {
            let class = class_of(weight);
            if weight >= weight_min && class >= edge_class {
                let id = id as u32;
                let side = match class > edge_class {
                    true => &mut self.candidates,
                    false => &mut self.edge,
                };
                side.push(Candidate { id, logit, weight });
            }
        }
        self.edge.sort_unstable_by(likelier);
        for candidate in &self.edge {
            if mass >= enough {
                break;
            }
            mass += f64::from(candidate.weight);
            self.candidates.push(*candidate);
        }
    }

    /// Draws from the `k` likeliest, or from what top-p and min-p leave of them.
    fn draw_from_top(&mut self, logits: &[f32], top: f32, k: usize) -> Option<u32> {
        let candidates = &mut self.candidates;
        select_top(candidates, logits, k);
        // In the order of ids, so that a draw does not depend on how the selection went.
        candidates.sort_unstable_by_key(|c| c.id);
        let inverse = 1.0 / self.options.temperature;
        for candidate in candidates.iter_mut() {
            candidate.weight = exp_nonpositive((candidate.logit - top) * inverse);
        }
        self.cut_candidates();
        self.draw_candidate()
    }

    /// Typical-p, top-p and min-p of candidates that are weighed.
    fn cut_candidates(&mut self) {
        let (options, candidates) = (&self.options, &mut self.candidates);
        if options.typical_p < 1.0 {
            truncate::typical(candidates, options.typical_p);
        }
        if options.top_p < 1.0 {
            let total: f64 = candidates.iter().map(|c| f64::from(c.weight)).sum();
            nucleus(candidates, f64::from(options.top_p) * total);
        }
        if options.min_p > 0.0 {
            // The likeliest weighs exactly 1, unless it was not typical.
            let top = candidates.iter().fold(0.0, |top: f32, c| top.max(c.weight));
            candidates.retain(|c| c.weight >= options.min_p * top);
        }
    }

    fn draw_candidate(&mut self) -> Option<u32> {
        let xtc = self.options.xtc;
        if xtc.is_on() && self.rng.uniform() < f64::from(xtc.probability) {
            truncate::exclude_top(&mut self.candidates, xtc.threshold);
        }
        let total: f64 = self.candidates.iter().map(|c| f64::from(c.weight)).sum();
        let aim = self.rng.uniform() * total;
        let at = walk(aim, self.candidates.iter().map(|c| f64::from(c.weight)));
        at.and_then(|(at, _)| self.candidates.get(at)).map(|c| c.id)
    }

    fn draw_by_blocks(&mut self, total: f64) -> Option<u32> {
        let aim = self.rng.uniform() * total;
        let (block, before) = walk(aim, self.blocks.iter().copied())?;
        let start = block * BLOCK;
        let end = (start + BLOCK).min(self.weights.len());
        let weights = self.weights.get(start..end)?;
        let (at, _) = walk(aim - before, weights.iter().map(|&w| f64::from(w)))?;
        Some((start + at) as u32)
    }
}

/// The first place where the running sum passes `aim`, else the last that weighs anything; and the sum before it.
fn walk(aim: f64, weights: impl Iterator<Item = f64>) -> Option<(usize, f64)> {
    let mut last = None;
    let mut sum = 0.0;
    for (at, weight) in weights.enumerate() {
        if weight > 0.0 {
            last = Some((at, sum));
            sum += weight;
            if sum > aim {
                break;
            }
        }
    }
    last
}

/// Classes of weights from 0 to 1: the exponent and three bits more, so a class spans an eighth of an octave.
const CLASSES: usize = (1f32.to_bits() >> CLASS_SHIFT) as usize + 1;
const CLASS_SHIFT: u32 = 20;

fn class_of(weight: f32) -> usize {
    (weight.to_bits() >> CLASS_SHIFT) as usize
}

/// Weights per partial sum: a draw walks the sums first, then one block.
const BLOCK: usize = 1024;

/// Eight running sums, always in the same order: fast, and the same on every machine.
fn block_sum(weights: &[f32]) -> f64 {
    let mut lanes = [0f32; 8];
    let (whole, rest) = weights.as_chunks::<8>();
    for chunk in whole {
        for (lane, weight) in lanes.iter_mut().zip(chunk) {
            *lane += weight;
        }
    }
    lanes.iter().chain(rest).map(|&w| f64::from(w)).sum()
}

/// The `k` likeliest in one pass: a buffer a few times as long as `k`, cut back to `k` whenever it is full,
/// after which only logits above the smallest of them are looked at. Ids rise, so a later equal never wins.
fn select_top(candidates: &mut Vec<Candidate>, logits: &[f32], k: usize) {
    let room = k.saturating_mul(4).max(256);
    let mut smallest = f32::NEG_INFINITY;
    let cut = |candidates: &mut Vec<Candidate>| {
        if k < candidates.len() {
            candidates.select_nth_unstable_by(k - 1, likelier);
            candidates.truncate(k);
        }
    };
    candidates.clear();
    for (id, &logit) in logits.iter().enumerate() {
        if logit > smallest {
            candidates.push(Candidate {
                id: id as u32,
                logit,
                weight: 0.0,
            });
            if candidates.len() >= room {
                cut(candidates);
                // The selection left the k-th last.
                smallest = candidates.last().map_or(smallest, |c| c.logit);
            }
        }
    }
    cut(candidates);
}

/// A sum that stays ordered: infinities of opposite sign would make a NaN, the forbidding one wins.
fn finite_sum(a: f32, b: f32) -> f32 {
    let sum = a + b;
    if sum.is_nan() { f32::NEG_INFINITY } else { sum }
}

/// The first of the largest, in one pass: the largest of each block in lanes, then where it is in the best one.
fn greedy(logits: &[f32]) -> Result<usize, SampleError> {
    let mut top = f32::NEG_INFINITY;
    let mut start = 0;
    let mut nans = [0u32; LANES];
    for (n, block) in logits.chunks(BLOCK).enumerate() {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let (whole, rest) = block.as_chunks::<LANES>();
        for chunk in whole {
            for ((lane, nan), &logit) in lanes.iter_mut().zip(&mut nans).zip(chunk) {
                *lane = if logit > *lane { logit } else { *lane };
                *nan |= u32::from(logit.is_nan());
            }
        }
        nans[0] |= u32::from(rest.iter().any(|l| l.is_nan()));
        let here = lanes.iter().chain(rest);
        let here = here.fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        if here > top {
            (top, start) = (here, n * BLOCK);
        }
    }
    if nans.iter().any(|&nan| nan > 0) {
        let at = logits.iter().position(|l| l.is_nan());
        return Err(SampleError::Nan(at.unwrap_or(0)));
    }
    let place = logits[start..].iter().position(|&l| l == top);
    Ok(start + place.unwrap_or(0))
}

/// Running maxima of [`greedy`].
const LANES: usize = 8;

/// Keeps the smallest prefix, likeliest first, that weighs `enough`.
fn nucleus(candidates: &mut Vec<Candidate>, enough: f64) {
    candidates.sort_unstable_by(likelier);
    let mut mass = 0.0;
    let reached = candidates.iter().position(|candidate| {
        mass += f64::from(candidate.weight);
        mass >= enough
    });
    candidates.truncate(reached.map_or(candidates.len(), |at| at + 1));
}
