//! What a row of `bench` measures, and the median of its rounds.

/// Tokens decoded in one measurement.
pub const DECODE_TOKENS: usize = 64;
/// Tokens of each sequence before batched decoding begins, and decoded then.
pub const BATCH_PROMPT: usize = 128;
pub const BATCH_TOKENS: usize = 64;

/// What a row measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reading a prompt of this many tokens.
    Prefill(usize),
    /// Decoding, with this many tokens in the cache.
    Decode { depth: usize },
    /// One token for each of this many sequences per step.
    Batch(usize),
}

impl Work {
    pub fn sequences(self) -> usize {
        match self {
            Work::Batch(count) => count,
            Work::Prefill(_) | Work::Decode { .. } => 1,
        }
    }

    /// Tokens of each sequence in one measurement.
    pub fn measured(self) -> usize {
        match self {
            Work::Prefill(tokens) => tokens,
            Work::Decode { .. } => DECODE_TOKENS,
            Work::Batch(_) => BATCH_TOKENS,
        }
    }

    /// Positions a sequence reaches.
    pub fn context(self) -> usize {
        match self {
            Work::Prefill(tokens) => tokens,
            Work::Decode { depth } => depth.max(1) + DECODE_TOKENS,
            Work::Batch(_) => BATCH_PROMPT + BATCH_TOKENS,
        }
    }
}

pub fn median(values: &[f64]) -> f64 {
    haversack_eval::stats::median(values).unwrap_or(0.0)
}
