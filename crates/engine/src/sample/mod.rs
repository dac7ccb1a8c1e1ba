//! From logits to a token.
//!
//! The chain, always in this order (documented because the order changes the text):
//!
//! ```text
//! logits ─► constraint ─► bias ─► repetition, frequency, presence penalties ─► greedy if temperature = 0
//!        ─► top-k ─► temperature ─► softmax ─► top-p ─► min-p ─► one draw
//! ```
//!
//! Dividing by a temperature does not change an order, so top-k before or after it is the same set; top-p and
//! min-p see the tempered distribution of the top-k set, renormalised. Ties go to the lowest id everywhere.
//!
//! A sampler owns its generator and its scratch: one draw per sampled token and none when greedy, so the
//! same seed always gives the same text, and no allocation after the first token of a vocabulary. A NaN is an error, as
//! is a distribution in which no token is possible.

mod constraint;
mod error;
mod exp;
mod rng;
mod score;

pub use constraint::{Constraint, ConstraintError};
pub use error::{LOGIT_BIAS_MAX, SampleError};
pub use score::{kl_divergence, logprob_of, logprobs_top};

use exp::exp_nonpositive;
use rng::Rng;
use std::cmp::Ordering;
use std::ops::RangeInclusive;

/// Tokens of the penalties' window at most.
pub const PENALTY_LAST_N_MAX: usize = 1 << 20;

/// How tokens are sampled; the default is greedy without penalties.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleOptions {
    /// 0 takes the likeliest token; accepted 0 to 100.
    pub temperature: f32,
    /// Keep the `k` likeliest; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of likeliest tokens with at least this probability; 1 keeps all; above 0 to 1.
    pub top_p: f32,
    /// Keep tokens at least this times as likely as the likeliest; 0 keeps all; 0 to 1.
    pub min_p: f32,
    /// A positive logit of a seen token is divided by it, a negative one multiplied; 1 is off; above 0 to 100.
    pub repetition_penalty: f32,
    /// Subtracted once from a seen token; -100 to 100.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence; -100 to 100.
    pub frequency_penalty: f32,
    /// How many of the last tokens count as seen; 0 is off.
    pub penalty_last_n: usize,
    /// Added to single logits, entries of one token add up; -100 forbids a token in practice, minus infinity strictly.
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: u64,
}

impl Default for SampleOptions {
    fn default() -> Self {
        SampleOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SampleOptions {
    pub fn check(&self) -> Result<(), SampleError> {
        let within = |option, value: f64, good: bool, range| match good {
            true => Ok(()),
            false => Err(SampleError::Option {
                option,
                value,
                range,
            }),
        };
        // NaN is in no range.
        let check = |option, value: f32, accepted: RangeInclusive<f32>, range| {
            within(option, f64::from(value), accepted.contains(&value), range)
        };
        // The smallest number above 0.
        let above_0 = f32::from_bits(1);
        let signed = -100.0..=100.0;
        check("temperature", self.temperature, 0.0..=100.0, "0 to 100")?;
        check("top_p", self.top_p, above_0..=1.0, "above 0, up to 1")?;
        check("min_p", self.min_p, 0.0..=1.0, "0 to 1")?;
        let (penalty, range) = (self.repetition_penalty, "above 0, up to 100");
        check("repetition_penalty", penalty, above_0..=100.0, range)?;
        for (option, value) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            check(option, value, signed.clone(), "-100 to 100")?;
        }
        let last_n = self.penalty_last_n;
        let good = last_n <= PENALTY_LAST_N_MAX;
        within("penalty_last_n", last_n as f64, good, "0 to 1048576")?;
        if self.logit_bias.len() > LOGIT_BIAS_MAX {
            return Err(SampleError::BiasCount(self.logit_bias.len()));
        }
        for &(_, bias) in &self.logit_bias {
            let good = signed.contains(&bias) || bias == f32::NEG_INFINITY;
            let range = "-100 to 100, or minus infinity";
            within("logit_bias", f64::from(bias), good, range)?;
        }
        Ok(())
    }

    /// Whether logits change before a token is chosen.
    fn adjusts(&self) -> bool {
        !self.logit_bias.is_empty() || self.penalises()
    }

    fn penalises(&self) -> bool {
        self.penalty_last_n > 0
            && (self.repetition_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }
}

/// A token that may still be drawn; its probability is not normalised.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
    weight: f32,
}

/// Likeliest first, ties by id. Logits are never NaN here.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    let by_logit = b.logit.partial_cmp(&a.logit);
    by_logit.unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

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
        })
    }

    /// The same for a constrained answer.
    pub fn constrained(self, constraint: Option<Box<dyn Constraint>>) -> Sampler {
        Sampler { constraint, ..self }
    }

    /// The next token, given the logits of the vocabulary and the tokens before it, oldest first.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, SampleError> {
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
        let result = self.within_constraint(&mut adjusted, history);
        self.adjusted = adjusted;
        result
    }

    fn within_constraint(
        &mut self,
        logits: &mut [f32],
        history: &[u32],
    ) -> Result<u32, SampleError> {
        let Some(mut constraint) = self.constraint.take() else {
            return self.choose_adjusted(logits, history);
        };
        let mut within = || -> Result<u32, SampleError> {
            constraint::apply(constraint.allowed()?, logits);
            let chosen = self.choose_adjusted(logits, history)?;
            constraint.take(chosen)?;
            Ok(chosen)
        };
        let chosen = within();
        self.constraint = Some(constraint);
        chosen
    }

    /// After bias and penalties.
    fn choose_adjusted(&mut self, logits: &mut [f32], history: &[u32]) -> Result<u32, SampleError> {
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
        if top_p == 1.0 && min_p == 0.0 {
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
        if self.options.top_p < 1.0 {
            let total: f64 = candidates.iter().map(|c| f64::from(c.weight)).sum();
            nucleus(candidates, f64::from(self.options.top_p) * total);
        }
        if self.options.min_p > 0.0 {
            // The likeliest weighs exactly 1.
            candidates.retain(|c| c.weight >= self.options.min_p);
        }
        self.draw_candidate()
    }

    fn draw_candidate(&mut self) -> Option<u32> {
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
