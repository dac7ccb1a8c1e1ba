//! Needles: facts planted in a long text, asked for at its end.
//!
//! ```text
//! … filler … The secret code of Alder is 4182. … filler … (four facts) … filler …
//! The secret code of Alder is ▮
//! ```
//!
//! Ten answers are judged: the right code, the three other planted ones, six that appear nowhere.
//! The figure is the log-probability of the right one among the ten; perplexity hardly sees what this
//! sees, because a forgotten number costs one token in a thousand.

use crate::dice::Dice;
use haversack::run::runtime::{Runtime, StepError};
use haversack::sample;
use haversack::text::tokenizer::{EncodeOptions, Tokenizer};
use std::ops::ControlFlow;

/// One text with facts, and a question about one of them.
#[derive(Clone, Debug)]
pub struct Case {
    /// Filler with the facts in it, and the question up to the answer.
    pub prompt: Vec<u32>,
    /// The right one first.
    pub answers: Vec<Vec<u32>>,
}

/// What came of a case.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Log-probability of the right answer among all.
    pub logprob: f64,
    /// It is the likeliest.
    pub right: bool,
}

const NAMES: [&str; 12] = [
    "Alder", "Birch", "Cedar", "Dogwood", "Elder", "Fern", "Gorse", "Hazel", "Iris", "Juniper",
    "Larch", "Maple",
];
const FACTS: usize = 4;
const STRANGERS: usize = 6;

/// `count` cases of about `tokens` tokens over a filler text. Fewer if the text is too short.
pub fn cases(tokenizer: &Tokenizer, filler: &[u32], tokens: usize, count: usize) -> Vec<Case> {
    let encode = |text: &str| {
        let plain = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        tokenizer.encode(text, plain).unwrap_or_default()
    };
    let fits = filler.len().checked_div(tokens).unwrap_or(0);
    let mut cases = Vec::new();
    for (number, text) in filler.chunks_exact(tokens.max(1)).take(count).enumerate() {
        debug_assert!(number < fits);
        let mut dice = Dice::new(number as u64 * 7919 + 17);
        let mut codes: Vec<String> = Vec::new();
        while codes.len() < FACTS + STRANGERS {
            let code = format!("{}", 1000 + dice.below(9000));
            if !codes.contains(&code) {
                codes.push(code);
            }
        }
        let first_name = dice.below(NAMES.len());
        let name = |fact: usize| NAMES[(first_name + fact) % NAMES.len()];
        let asked = dice.below(FACTS);
        // Facts lie in the fifths of the text, the last fifth has none.
        let mut prompt = Vec::new();
        let fifth = text.len() / (FACTS + 1);
        for fact in 0..FACTS {
            let at = dice.below(fifth.max(2) / 2) + fifth / 4;
            let piece = &text[fact * fifth..(fact + 1) * fifth];
            prompt.extend_from_slice(&piece[..at]);
            prompt.extend(encode(&format!(
                " The secret code of {} is {}.",
                name(fact),
                codes[fact]
            )));
            prompt.extend_from_slice(&piece[at..]);
        }
        prompt.extend_from_slice(&text[FACTS * fifth..]);
        prompt.extend(encode(&format!(" The secret code of {} is", name(asked))));
        codes.swap(0, asked);
        let answers = codes
            .iter()
            .map(|code| encode(&format!(" {code}")))
            .collect();
        cases.push(Case { prompt, answers });
    }
    cases
}

/// Reads the case once and tries every answer on a fork.
pub fn judge(runtime: &mut Runtime, case: &Case) -> Result<Verdict, StepError> {
    let base = runtime.open()?;
    let result = judge_on(runtime, base, case);
    runtime.close(base)?;
    result
}

fn judge_on(
    runtime: &mut Runtime,
    base: haversack::run::SequenceId,
    case: &Case,
) -> Result<Verdict, StepError> {
    let first = runtime
        .feed(base, &case.prompt, &mut |_| ControlFlow::Continue(()))?
        .map(<[f32]>::to_vec)
        .unwrap_or_default();
    let vocab = runtime.model().config().vocab;
    let mut scores = Vec::new();
    for answer in &case.answers {
        let position = case.prompt.len() as u64;
        let not_finite = StepError::NotFinite { position };
        let Some((&head, fed)) = answer.split_first() else {
            return Err(StepError::Empty);
        };
        let mut score = sample::logprob_of(&first, head).map_err(|_| not_finite.clone())?;
        if answer.len() > 1 {
            let fork = runtime.fork(base)?;
            let logits = runtime.all_logits(fork, &answer[..answer.len() - 1]);
            runtime.close(fork)?;
            for (logits, &next) in logits?.chunks_exact(vocab).zip(fed) {
                score += sample::logprob_of(logits, next).map_err(|_| not_finite.clone())?;
            }
        }
        scores.push(score);
    }
    let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - best).exp()).sum();
    Ok(Verdict {
        logprob: scores[0] - best - sum.ln(),
        right: scores[0] == best,
    })
}
