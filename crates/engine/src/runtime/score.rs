//! Teacher-forced log-probabilities of the tokens of a given text.

use super::core::Runtime;
use super::error::{StepError, StepResult};
use crate::sample;
use std::ops::ControlFlow;

/// One token of the text. The first has nothing before it, hence no log-probability.
#[derive(Clone, Debug)]
pub struct ScoredToken {
    pub id: u32,
    pub logprob: Option<f64>,
    /// The likeliest tokens at this position.
    pub top: Vec<(u32, f64)>,
}

/// Logits held at once: a few rows of a large vocabulary, many of a small one.
const LOGITS_BYTES: usize = 16 << 20;

/// Scores `tokens` from an empty context. `progress` is given the number of tokens done and may stop.
pub fn score(
    runtime: &mut Runtime,
    tokens: &[u32],
    top: usize,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> StepResult<Vec<ScoredToken>> {
    let vocab = runtime.model().config().vocab;
    let chunk = (LOGITS_BYTES / (vocab * size_of::<f32>())).clamp(1, runtime.chunk());
    let sequence = runtime.open()?;
    let token = |&id: &u32| ScoredToken {
        id,
        logprob: None,
        top: Vec::new(),
    };
    let mut scored: Vec<ScoredToken> = tokens.iter().map(token).collect();
    let mut run = || -> StepResult {
        let mut position = 0;
        // The last token is not fed: nothing follows it.
        for part in tokens[..tokens.len().saturating_sub(1)].chunks(chunk) {
            let logits = runtime.all_logits(sequence, part)?;
            for (i, row) in logits.chunks_exact(vocab).enumerate() {
                let next = &mut scored[position + i + 1];
                let position = (position + i) as u64;
                let not_finite = |_| StepError::NotFinite { position };
                next.logprob = Some(sample::logprob_of(row, next.id).map_err(not_finite)?);
                next.top = sample::logprobs_top(row, top).map_err(not_finite)?;
            }
            position += part.len();
            if progress(position).is_break() {
                break;
            }
        }
        Ok(())
    };
    let result = run();
    runtime.close(sequence)?;
    result.map(|()| scored)
}
