//! How tokens are sampled: every option with its range. Data; what it does is in the chain of [`super`].

use super::error::{LOGIT_BIAS_MAX, SampleError};
use std::ops::RangeInclusive;

/// Tokens of the penalties' window at most.
pub const PENALTY_LAST_N_MAX: usize = 1 << 20;

/// Tokens that DRY looks back at most: its work is linear in them, and this many take about a millisecond.
pub const DRY_LAST_N_MAX: usize = 1 << 16;

/// Sequence breakers of a request at most, and bytes of each.
pub const DRY_BREAKERS_MAX: usize = 64;
pub const DRY_BREAKER_BYTES: usize = 64;

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
    /// Keep the tokens whose surprise is nearest to the expected one, up to this probability; 1 keeps all; above 0 to 1.
    pub typical_p: f32,
    /// Keep tokens whose logit is within this many standard deviations of the largest; 0 keeps all; 0 to 100.
    pub top_n_sigma: f32,
    pub xtc: XtcOptions,
    /// A positive logit of a seen token is divided by it, a negative one multiplied; 1 is off; above 0 to 100.
    pub repetition_penalty: f32,
    /// Subtracted once from a seen token; -100 to 100.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence; -100 to 100.
    pub frequency_penalty: f32,
    /// How many of the last tokens count as seen; 0 is off.
    pub penalty_last_n: usize,
    pub dry: DryOptions,
    /// Added to single logits, entries of one token add up; -100 forbids a token in practice, minus infinity strictly.
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: u64,
}

/// Exclude top choices: now and then all likely tokens but the least likely of them are left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct XtcOptions {
    /// How often; 0 is off; 0 to 1.
    pub probability: f32,
    /// From which probability on a token is a likely one; 0 to 1. Above 0.5 there is never a second one: off.
    pub threshold: f32,
}

/// "Don't repeat yourself": a token that would continue a repetition is penalised, more the longer the repetition.
///
/// ```text
/// penalty = multiplier * base ^ (tokens that repeat - allowed_length)
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct DryOptions {
    /// 0 is off; 0 to 100.
    pub multiplier: f32,
    /// 1 to 100.
    pub base: f32,
    /// Repetitions of fewer tokens are not penalised; at least 1.
    pub allowed_length: usize,
    /// Tokens that are looked back at; 0 is off, 65536 at most.
    pub last_n: usize,
    /// No repetition reaches across one of these texts; at most 64 of 1 to 64 bytes.
    pub breakers: Vec<String>,
}

impl Default for SampleOptions {
    fn default() -> Self {
        SampleOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc: XtcOptions::default(),
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            dry: DryOptions::default(),
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// Off. The threshold is the one its author and llama.cpp use.
impl Default for XtcOptions {
    fn default() -> Self {
        XtcOptions {
            probability: 0.0,
            threshold: 0.1,
        }
    }
}

/// Off. Base, length and breakers are the ones its author and llama.cpp use; llama.cpp looks back at the whole context,
/// which is not bounded here.
impl Default for DryOptions {
    fn default() -> Self {
        DryOptions {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            last_n: 4096,
            breakers: ["\n", ":", "\"", "*"].map(String::from).into(),
        }
    }
}

impl XtcOptions {
    pub(super) fn is_on(self) -> bool {
        self.probability > 0.0 && self.threshold <= 0.5
    }
}

impl DryOptions {
    pub(super) fn is_on(&self) -> bool {
        self.multiplier > 0.0 && self.last_n > 0
    }

    fn check(&self) -> Result<(), SampleError> {
        check("dry_multiplier", self.multiplier, 0.0..=100.0, "0 to 100")?;
        check("dry_base", self.base, 1.0..=100.0, "1 to 100")?;
        let (option, length) = ("dry_allowed_length", self.allowed_length);
        let good = (1..=DRY_LAST_N_MAX).contains(&length);
        within(option, length as f64, good, "1 to 65536")?;
        let (option, last_n) = ("dry_penalty_last_n", self.last_n);
        let good = last_n <= DRY_LAST_N_MAX;
        within(option, last_n as f64, good, "0 to 65536")?;
        let (option, number) = ("dry_sequence_breakers", self.breakers.len());
        let good = number <= DRY_BREAKERS_MAX;
        within(option, number as f64, good, "at most 64 texts")?;
        for breaker in &self.breakers {
            let good = (1..=DRY_BREAKER_BYTES).contains(&breaker.len());
            let range = "texts of 1 to 64 bytes";
            within(option, breaker.len() as f64, good, range)?;
        }
        Ok(())
    }
}

impl SampleOptions {
    pub fn check(&self) -> Result<(), SampleError> {
        // The smallest number above 0.
        let above_0 = f32::from_bits(1);
        let signed = -100.0..=100.0;
        check("temperature", self.temperature, 0.0..=100.0, "0 to 100")?;
        check("top_p", self.top_p, above_0..=1.0, "above 0, up to 1")?;
        check("min_p", self.min_p, 0.0..=1.0, "0 to 1")?;
        let (typical_p, range) = (self.typical_p, "above 0, up to 1");
        check("typical_p", typical_p, above_0..=1.0, range)?;
        check("top_n_sigma", self.top_n_sigma, 0.0..=100.0, "0 to 100")?;
        let XtcOptions {
            probability,
            threshold,
        } = self.xtc;
        check("xtc_probability", probability, 0.0..=1.0, "0 to 1")?;
        check("xtc_threshold", threshold, 0.0..=1.0, "0 to 1")?;
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
        self.dry.check()?;
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
    pub(super) fn adjusts(&self) -> bool {
        let cuts = self.top_n_sigma > 0.0 && self.temperature > 0.0;
        !self.logit_bias.is_empty() || self.penalises() || self.dry.is_on() || cuts
    }

    pub(super) fn penalises(&self) -> bool {
        self.penalty_last_n > 0
            && (self.repetition_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }
}

/// NaN is in no range.
fn check(
    option: &'static str,
    value: f32,
    accepted: RangeInclusive<f32>,
    range: &'static str,
) -> Result<(), SampleError> {
    within(option, f64::from(value), accepted.contains(&value), range)
}

fn within(
    option: &'static str,
    value: f64,
    good: bool,
    range: &'static str,
) -> Result<(), SampleError> {
    match good {
        true => Ok(()),
        false => Err(SampleError::Option {
            option,
            value,
            range,
        }),
    }
}
