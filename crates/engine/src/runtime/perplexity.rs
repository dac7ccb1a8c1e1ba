//! How much a bounded or coded cache changes what a model says: perplexity of a text, and KL divergence from a
//! reference that keeps everything.
//!
//! *Windows*: the text in pieces of one context each, every piece from an empty sequence, scored from
//! a fraction on. *Stream*: the text in one endless sequence under the runtime's own policy.

use super::core::Runtime;
use super::error::{StepError, StepResult};
use crate::sample;
use haversack_cache::SequenceId;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Sums over scored tokens. Tallies of pieces of a text can be added.
#[derive(Clone, Debug, Default)]
pub struct KlTally {
    pub tokens: usize,
    /// Sum of the negative log-probabilities of the tokens that came.
    pub nll: f64,
    /// Kullback-Leibler divergence from the reference, token by token; empty without one.
    pub kl: Vec<f32>,
    /// Tokens whose likeliest continuation is the reference's.
    pub top1: usize,
}

impl KlTally {
    pub fn nll_mean(&self) -> f64 {
        self.nll / self.tokens as f64
    }

    pub fn perplexity(&self) -> f64 {
        self.nll_mean().exp()
    }

    pub fn kl_mean(&self) -> Option<f64> {
        let sum: f64 = self.kl.iter().map(|&kl| f64::from(kl)).sum();
        (!self.kl.is_empty()).then(|| sum / self.kl.len() as f64)
    }

    /// The 99th percentile.
    pub fn kl_p99(&self) -> Option<f64> {
        let mut sorted = self.kl.clone();
        sorted.sort_by(f32::total_cmp);
        let at = (sorted.len() * 99).div_ceil(100).checked_sub(1)?;
        sorted.get(at).map(|&kl| f64::from(kl))
    }

    pub fn top1_agreement(&self) -> Option<f64> {
        (!self.kl.is_empty()).then(|| self.top1 as f64 / self.kl.len() as f64)
    }

    pub fn add(&mut self, other: &KlTally) {
        self.tokens += other.tokens;
        self.nll += other.nll;
        self.kl.extend_from_slice(&other.kl);
        self.top1 += other.top1;
    }

    /// Counts one position: `next` is the token that came, `reference` the logits to compare with.
    fn count(&mut self, logits: &[f32], reference: Option<&[f32]>, next: u32) -> Option<()> {
        self.tokens += 1;
        self.nll -= sample::logprob_of(logits, next).ok()?;
        if let Some(reference) = reference {
            let (kl, agree) = sample::kl_divergence(reference, logits);
            self.kl.push(kl as f32);
            self.top1 += usize::from(agree);
        }
        Some(())
    }
}

/// Bytes of logits that are held at once, of both runtimes.
const LOGITS_BYTES: usize = 24 << 20;

fn rows_at_once(runtime: &Runtime) -> usize {
    let row = runtime.model().config().vocab * size_of::<f32>();
    (LOGITS_BYTES / row).clamp(1, 64)
}

/// One of several readers of the same tokens, each with a sequence of its own at the same position.
pub struct TextReader<'a> {
    pub runtime: &'a mut Runtime,
    pub id: SequenceId,
    pub tally: KlTally,
    /// How long each of the last tokens took, fed one at a time.
    pub step_times: Vec<Duration>,
}

impl<'a> TextReader<'a> {
    pub fn new(runtime: &'a mut Runtime, id: SequenceId) -> TextReader<'a> {
        TextReader {
            runtime,
            id,
            tally: KlTally::default(),
            step_times: Vec::new(),
        }
    }

    /// Logits after each of these tokens.
    fn read(&mut self, part: &[u32], is_timed: bool) -> StepResult<Vec<f32>> {
        let started = Instant::now();
        let logits = self.runtime.all_logits(self.id, part)?;
        if is_timed {
            self.step_times.push(started.elapsed());
        }
        Ok(logits)
    }

    fn count(
        &mut self,
        logits: &[f32],
        truth: Option<&[f32]>,
        next: &[u32],
        done: usize,
    ) -> StepResult {
        let vocab = self.runtime.model().config().vocab;
        for (i, (logits, &next)) in logits.chunks_exact(vocab).zip(next).enumerate() {
            let truth = truth.map(|t| &t[i * vocab..(i + 1) * vocab]);
            let position = (done + i) as u64;
            let counted = self.tally.count(logits, truth, next);
            counted.ok_or(StepError::NotFinite { position })?;
        }
        Ok(())
    }
}

/// Feeds the same tokens to all readers, part by part, so that the logits of the reference are computed
/// once for all and held for one part only. Positions from `from` on count. The last `singles` of them are
/// fed one at a time, all readers in turn, to measure how long a token takes at the end of this text under equal
/// conditions. `progress` is given the number of tokens done and may stop; then `false` is returned.
pub fn side_by_side<'a>(
    readers: &mut [TextReader<'a>],
    mut reference: Option<&mut TextReader<'a>>,
    tokens: &[u32],
    from: usize,
    singles: usize,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> StepResult<bool> {
    // The last token is not fed: nothing follows it.
    let fed = &tokens[..tokens.len().saturating_sub(1)];
    // The position before `from` predicts the token at `from`.
    let quiet = from.saturating_sub(1).min(fed.len());
    if quiet > 0 {
        let mut on = |_: usize| ControlFlow::Continue(());
        for reader in readers.iter_mut().chain(reference.as_deref_mut()) {
            reader.runtime.feed(reader.id, &fed[..quiet], &mut on)?;
            if progress(0).is_break() {
                return Ok(false);
            }
        }
    }
    let mut runtimes = readers.iter().chain(reference.as_deref());
    let rows = runtimes.next().map_or(1, |r| rows_at_once(r.runtime));
    let alone_from = fed.len().saturating_sub(singles).max(quiet);
    let together = fed[quiet..alone_from].chunks(rows);
    let alone = fed[alone_from..].chunks(1);
    let parts = together.map(|part| (part, false));
    let parts = parts.chain(alone.map(|part| (part, true)));
    let mut done = quiet;
    for (part, is_timed) in parts {
        let next = &tokens[done + 1..];
        let truth = match &mut reference {
            Some(reference) => {
                let truth = reference.read(part, is_timed)?;
                reference.count(&truth, None, next, done)?;
                Some(truth)
            }
            None => None,
        };
        for reader in readers.iter_mut() {
            let found = reader.read(part, is_timed)?;
            reader.count(&found, truth.as_deref(), next, done)?;
        }
        done += part.len();
        if progress(done).is_break() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Scores one window from an empty sequence: positions from `from` on count. With a reference, both read the
/// same tokens side by side.
pub fn window(
    runtime: &mut Runtime,
    mut reference: Option<&mut Runtime>,
    tokens: &[u32],
    from: usize,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> StepResult<Option<KlTally>> {
    let id = runtime.open()?;
    let truth_id = reference.as_mut().map(|r| r.open()).transpose()?;
    let mut reader = TextReader::new(runtime, id);
    let truth = reference.as_deref_mut().zip(truth_id);
    let mut truth = truth.map(|(reference, id)| TextReader::new(reference, id));
    let readers = std::slice::from_mut(&mut reader);
    let whole = side_by_side(readers, truth.as_mut(), tokens, from, 0, progress);
    let tally = reader.tally;
    runtime.close(id)?;
    if let (Some(reference), Some(id)) = (reference, truth_id) {
        reference.close(id)?;
    }
    Ok(whole?.then_some(tally))
}

/// Scores a text in one endless sequence, with a tally for each run of `segment` tokens.
pub fn stream(
    runtime: &mut Runtime,
    id: SequenceId,
    tokens: &[u32],
    segment: usize,
    progress: &mut dyn FnMut(usize, &Runtime) -> ControlFlow<()>,
) -> StepResult<Option<Vec<KlTally>>> {
    let mut tallies: Vec<KlTally> = Vec::new();
    let rows = rows_at_once(runtime);
    let vocab = runtime.model().config().vocab;
    let fed = &tokens[..tokens.len().saturating_sub(1)];
    let mut done = 0;
    for part in fed.chunks(rows) {
        let found = runtime.all_logits(id, part)?;
        for (i, logits) in found.chunks_exact(vocab).enumerate() {
            count_in_segment(&mut tallies, segment, logits, tokens, done + i)?;
        }
        done += part.len();
        if progress(done, runtime).is_break() {
            return Ok(None);
        }
    }
    Ok(Some(tallies))
}

/// Counts the prediction made at `position` of the text in its segment's tally.
fn count_in_segment(
    tallies: &mut Vec<KlTally>,
    segment: usize,
    logits: &[f32],
    tokens: &[u32],
    position: usize,
) -> StepResult {
    let next = position + 1;
    if tallies.len() <= next / segment {
        tallies.push(KlTally::default());
    }
    let position = position as u64;
    let tally = tallies.last_mut();
    let counted = tally.and_then(|tally| tally.count(logits, None, tokens[next]));
    counted.ok_or(StepError::NotFinite { position })
}

/// The exact counterpart of [`stream`]: for each run of `stride` tokens the anchors and the window before it
/// are read again into an empty sequence. Slow.
pub fn recompute(
    runtime: &mut Runtime,
    tokens: &[u32],
    (anchors, window): (usize, usize),
    segment: usize,
    stride: usize,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> StepResult<Option<Vec<KlTally>>> {
    let mut tallies: Vec<KlTally> = Vec::new();
    let vocab = runtime.model().config().vocab;
    let mut at = 0;
    while at + 1 < tokens.len() {
        let end = (at + stride).min(tokens.len() - 1);
        let context = if at > anchors + window {
            [&tokens[..anchors], &tokens[at - window..at]].concat()
        } else {
            tokens[..at].to_vec()
        };
        let id = runtime.open()?;
        let mut run = || -> StepResult {
            if !context.is_empty() {
                runtime.feed(id, &context, &mut |_| ControlFlow::Continue(()))?;
            }
            let found = runtime.all_logits(id, &tokens[at..end])?;
            for (i, logits) in found.chunks_exact(vocab).enumerate() {
                count_in_segment(&mut tallies, segment, logits, tokens, at + i)?;
            }
            Ok(())
        };
        let result = run();
        runtime.close(id)?;
        result?;
        at = end;
        if progress(at).is_break() {
            return Ok(None);
        }
    }
    Ok(Some(tallies))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_tally() {
        let tally = KlTally {
            kl: (1..=200).map(|i| i as f32).collect(),
            ..KlTally::default()
        };
        assert_eq!(tally.kl_p99(), Some(198.0));
        assert_eq!(KlTally::default().kl_p99(), None);
    }
}
