//! Sampling values that may be left out, and what they are then: the one place where that is decided. Pure.
//!
//! ```text
//! what the request sets ─► what the model is loaded with: its file's metadata ─► its entry in a catalogue ─► built in
//! ```
//!
//! Each value by itself comes from the first of these that has it. A request with a temperature of 0 stays greedy: what
//! it leaves out is off, so that a model's usual penalties do not change its tokens.

use super::options::{DryOptions, SampleOptions, XtcOptions};

/// Sampling values, each of which may be left out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingValues {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub typical_p: Option<f32>,
    pub top_n_sigma: Option<f32>,
    pub xtc_probability: Option<f32>,
    pub xtc_threshold: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub penalty_last_n: Option<usize>,
    pub dry: DryValues,
}

/// The same of DRY.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DryValues {
    pub multiplier: Option<f32>,
    pub base: Option<f32>,
    pub allowed_length: Option<usize>,
    pub last_n: Option<usize>,
    pub breakers: Option<Vec<String>>,
}

/// What is used where neither a request nor the model says anything: warm enough to talk, cool enough for a small model,
/// and without the tail of unlikely tokens that a full distribution has. Top-k, top-p and min-p are those of llama.cpp.
const BUILT_IN: SamplingValues = SamplingValues {
    temperature: Some(0.7),
    top_k: Some(40),
    top_p: Some(0.95),
    min_p: Some(0.05),
    typical_p: None,
    top_n_sigma: None,
    xtc_probability: None,
    xtc_threshold: None,
    repetition_penalty: None,
    presence_penalty: None,
    frequency_penalty: None,
    penalty_last_n: None,
    dry: DryValues {
        multiplier: None,
        base: None,
        allowed_length: None,
        last_n: None,
        breakers: None,
    },
};

/// How an answer is sampled: what is requested, then what the model is loaded with
/// ([`Model::sampling`](crate::Model::sampling)), then what is built in. Seed and biases are the caller's.
pub fn effective(requested: &SamplingValues, model: &SamplingValues) -> SampleOptions {
    if requested.temperature == Some(0.0) {
        return requested.options();
    }
    requested.or(model).or(&BUILT_IN).options()
}

impl SamplingValues {
    /// These values, and those of `other` where one is left out.
    pub fn or(&self, other: &SamplingValues) -> SamplingValues {
        SamplingValues {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            typical_p: self.typical_p.or(other.typical_p),
            top_n_sigma: self.top_n_sigma.or(other.top_n_sigma),
            xtc_probability: self.xtc_probability.or(other.xtc_probability),
            xtc_threshold: self.xtc_threshold.or(other.xtc_threshold),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
            presence_penalty: self.presence_penalty.or(other.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(other.frequency_penalty),
            penalty_last_n: self.penalty_last_n.or(other.penalty_last_n),
            dry: self.dry.or(&other.dry),
        }
    }

    /// What is left out is off, and greedy.
    pub fn options(&self) -> SampleOptions {
        let off = SampleOptions::default();
        SampleOptions {
            temperature: self.temperature.unwrap_or(off.temperature),
            top_k: self.top_k.unwrap_or(off.top_k),
            top_p: self.top_p.unwrap_or(off.top_p),
            min_p: self.min_p.unwrap_or(off.min_p),
            typical_p: self.typical_p.unwrap_or(off.typical_p),
            top_n_sigma: self.top_n_sigma.unwrap_or(off.top_n_sigma),
            xtc: XtcOptions {
                probability: self.xtc_probability.unwrap_or(off.xtc.probability),
                threshold: self.xtc_threshold.unwrap_or(off.xtc.threshold),
            },
            repetition_penalty: self.repetition_penalty.unwrap_or(off.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(off.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(off.frequency_penalty),
            penalty_last_n: self.penalty_last_n.unwrap_or(off.penalty_last_n),
            dry: self.dry.options(),
            logit_bias: off.logit_bias,
            seed: off.seed,
        }
    }
}

impl DryValues {
    fn or(&self, other: &DryValues) -> DryValues {
        DryValues {
            multiplier: self.multiplier.or(other.multiplier),
            base: self.base.or(other.base),
            allowed_length: self.allowed_length.or(other.allowed_length),
            last_n: self.last_n.or(other.last_n),
            breakers: self.breakers.clone().or_else(|| other.breakers.clone()),
        }
    }

    fn options(&self) -> DryOptions {
        let off = DryOptions::default();
        DryOptions {
            multiplier: self.multiplier.unwrap_or(off.multiplier),
            base: self.base.unwrap_or(off.base),
            allowed_length: self.allowed_length.unwrap_or(off.allowed_length),
            last_n: self.last_n.unwrap_or(off.last_n),
            breakers: self.breakers.clone().unwrap_or(off.breakers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(temperature: Option<f32>, top_k: Option<usize>) -> SamplingValues {
        SamplingValues {
            temperature,
            top_k,
            ..SamplingValues::default()
        }
    }

    #[test]
    fn each_value_comes_from_the_first_that_has_it() {
        let none = SamplingValues::default();
        let found = effective(&none, &none);
        let cuts = (found.temperature, found.top_k, found.top_p, found.min_p);
        assert_eq!(cuts, (0.7, 40, 0.95, 0.05));
        let model = values(Some(0.2), Some(20));
        let found = effective(&none, &model);
        assert_eq!(
            (found.temperature, found.top_k, found.top_p),
            (0.2, 20, 0.95)
        );
        let found = effective(&values(Some(1.5), None), &model);
        assert_eq!((found.temperature, found.top_k), (1.5, 20));
        let found = effective(&values(None, Some(0)), &model);
        assert_eq!((found.temperature, found.top_k), (0.2, 0));
    }

    #[test]
    fn a_request_without_temperature_stays_greedy() {
        let model = SamplingValues {
            repetition_penalty: Some(1.3),
            ..values(Some(0.2), Some(20))
        };
        let found = effective(&values(Some(0.0), None), &model);
        assert_eq!(found, SampleOptions::default());
    }

    #[test]
    fn what_is_left_out_is_off() {
        let options = SamplingValues::default().options();
        assert_eq!(options, SampleOptions::default());
    }
}
