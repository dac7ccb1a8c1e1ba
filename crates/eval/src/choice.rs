//! A long prompt, read once, and questions about it, each with a list of answers to judge.
//!
//! The figure is the log-probability of the right answer among all that are offered. It moves long
//! before the likeliest answer changes, so that a small model gives a signal too.

use haversack_engine::runtime::{Runtime, SequenceId, StepError};
use haversack_engine::sample;
use haversack_engine::step::{LogitRows, StepSpan};
use haversack_text::tokenizer::{EncodeOptions, Tokenizer};
use std::ops::ControlFlow;

/// One prompt, and what is asked at its end. What leaves the cache while the prompt is read cannot know the
/// questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub prompt: Vec<u32>,
    pub questions: Vec<Question>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Up to the answer.
    pub ask: Vec<u32>,
    /// The right one first.
    pub answers: Vec<Vec<u32>>,
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Log-probability of the right answer among all.
    pub logprob: f64,
    /// It is the likeliest.
    pub right: bool,
}

/// Tokens left free behind a prompt for question and answer.
pub const QUESTION_TOKENS: usize = 48;

/// Text as it stands inside a prompt.
pub(crate) fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let plain = EncodeOptions::default();
    tokenizer.encode(text, plain).unwrap_or_default()
}

/// What a prompt begins with: the token that the model wants there, if any.
pub fn opening(tokenizer: &Tokenizer) -> Vec<u32> {
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    bos.into_iter().collect()
}

/// `tokens` tokens of a filler text for the case of this number; from its start again where it ends.
pub(crate) fn filler(text: &[u32], tokens: usize, number: usize) -> Vec<u32> {
    let from = number.wrapping_mul(tokens) % text.len().max(1);
    let text = text.iter().copied().cycle();
    text.skip(from).take(tokens).collect()
}

/// Reads the case once and tries every answer on a fork.
pub fn judge(runtime: &mut Runtime, case: &Case) -> Result<Vec<Verdict>, StepError> {
    let base = runtime.open()?;
    let result = judge_on(runtime, base, case);
    runtime.close(base)?;
    result
}

fn judge_on(
    runtime: &mut Runtime,
    base: SequenceId,
    case: &Case,
) -> Result<Vec<Verdict>, StepError> {
    runtime.feed(base, &case.prompt, &mut |_| ControlFlow::Continue(()))?;
    let mut verdicts = Vec::new();
    for question in &case.questions {
        let fork = runtime.fork(base)?;
        let verdict = ask(runtime, fork, question);
        runtime.close(fork)?;
        verdicts.push(verdict?);
    }
    Ok(verdicts)
}

/// Asks at the end of a sequence. What is fed stays in it.
pub fn ask(
    runtime: &mut Runtime,
    id: SequenceId,
    question: &Question,
) -> Result<Verdict, StepError> {
    let first = runtime
        .feed(id, &question.ask, &mut |_| ControlFlow::Continue(()))?
        .map(<[f32]>::to_vec)
        .unwrap_or_default();
    let position = runtime.position(id)?;
    let not_finite = |_| StepError::NotFinite { position };
    let mut scores = Vec::new();
    for answer in &question.answers {
        let head = *answer.first().ok_or(StepError::Empty)?;
        scores.push(sample::logprob_of(&first, head).map_err(not_finite)?);
    }
    // What is fed of each answer that has more than a token: all but its last.
    let fed: Vec<(usize, &[u32])> = question
        .answers
        .iter()
        .map(|answer| &answer[..answer.len() - 1])
        .enumerate()
        .filter(|(_, fed)| !fed.is_empty())
        .collect();
    let logits = on_forks(runtime, id, &fed)?;
    let mut rows = logits.chunks_exact(runtime.model().config().vocab);
    for (i, fed) in fed {
        let after = &question.answers[i][1..];
        for (&next, logits) in after.iter().zip(rows.by_ref().take(fed.len())) {
            scores[i] += sample::logprob_of(logits, next).map_err(not_finite)?;
        }
    }
    verdict(&scores).ok_or(StepError::Empty)
}

/// Logits after each token of each continuation, (continuation, token, vocab), each on a fork of its own.
/// All in one step where no rows may leave on the way; the bits are the same.
fn on_forks(
    runtime: &mut Runtime,
    id: SequenceId,
    continuations: &[(usize, &[u32])],
) -> Result<Vec<f32>, StepError> {
    let position = runtime.position(id)?;
    let mut spans = Vec::new();
    for (_, tokens) in continuations {
        spans.push(StepSpan {
            sequence: runtime.fork(id)?,
            position,
            tokens,
            want: LogitRows::All,
        });
    }
    let mut logits = match spans.is_empty() {
        true => Ok(Vec::new()),
        false => runtime.step(&spans).map(<[f32]>::to_vec),
    };
    if let Err(StepError::CrossesEviction { .. }) = logits {
        let each = spans.iter();
        let each = each.map(|s| runtime.all_logits(s.sequence, s.tokens));
        logits = each.collect::<Result<Vec<_>, _>>().map(|all| all.concat());
    }
    for span in &spans {
        runtime.close(span.sequence)?;
    }
    logits
}

/// Of the log-probabilities of all answers, the right one's first.
fn verdict(scores: &[f64]) -> Option<Verdict> {
    let right = *scores.first()?;
    let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - best).exp()).sum();
    Some(Verdict {
        logprob: right - best - sum.ln(),
        right: right == best,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_a_share_among_answers() {
        let found = verdict(&[-5.0, -5.0, -5.0, -5.0]).unwrap();
        assert!((found.logprob - 0.25f64.ln()).abs() < 1e-12 && found.right);
        let found = verdict(&[-9.0, -9.0 + 3f64.ln()]).unwrap();
        assert!((found.logprob - 0.25f64.ln()).abs() < 1e-12 && !found.right);
        assert_eq!(verdict(&[]), None);
    }

    #[test]
    fn filler_goes_round() {
        assert_eq!(filler(&[1, 2, 3], 5, 0), [1, 2, 3, 1, 2]);
        assert_eq!(filler(&[1, 2, 3], 2, 1), [3, 1]);
        assert_eq!(filler(&[], 2, 1), [0u32; 0]);
    }
}
