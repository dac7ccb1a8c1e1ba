//! Free-running answers: what a cache makes of an instruction at the end of a long conversation.
//!
//! The conversation is the same for all instructions, so it is read once and each answer begins on a fork:
//!
//! ```text
//! [ shared: the text as a first turn, up to the instruction ][ instruction ][ answer, at most 64 tokens )
//! ```
//!
//! Greedy. Two greedy texts part at the first near-tie and never meet again, so that a text alone says
//! little about quality; what the full cache thinks of the other's answer says more.

use haversack_engine::model::Model;
use haversack_engine::runtime::generate::{GenerateError, Generation};
use haversack_engine::runtime::{GenerateOptions, SequenceId, generate};
use haversack_engine::runtime::{Runtime, StepError};
use haversack_engine::sample::{self, SampleOptions, Sampler};
use haversack_text::chat::{ChatError, encode_chat};
use haversack_text::template::{Message, RenderOptions};
use std::ops::ControlFlow;

/// Tokens of an answer at most.
pub const ANSWER_TOKENS: usize = 64;
/// Letters by which the shared conversation grows.
const TURN_LETTERS: usize = 200;

/// A shared conversation and what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub shared: Vec<u32>,
    /// (instruction): the rest of the prompt.
    pub rests: Vec<Vec<u32>>,
}

/// Why there is no script.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error(
        "instruction {number} takes {tokens} tokens with its answer; accepted: at most {most}, what the context has"
    )]
    TooLong {
        number: usize,
        tokens: usize,
        most: usize,
    },
}

/// Everything fits `context` tokens, with as much of `text` before as there is room for.
pub fn script(
    model: &Model,
    text: &str,
    instructions: &[String],
    context: usize,
) -> Result<Script, ScriptError> {
    // The same conversation whatever day it is.
    let options = RenderOptions {
        add_generation_prompt: true,
        ..RenderOptions::default()
    };
    let encode = |turns: &[Message], instruction: &str| {
        let mut messages = turns.to_vec();
        messages.push(Message::new("user", instruction));
        encode_chat(model.template(), model.tokenizer(), &messages, &options)
    };
    let room = context.saturating_sub(ANSWER_TOKENS);
    let mut longest = (0, 0);
    for (i, instruction) in instructions.iter().enumerate() {
        longest = longest.max((encode(&[], instruction)?.len(), i));
    }
    let (tokens, i) = longest;
    if tokens > room {
        return Err(ScriptError::TooLong {
            number: i + 1,
            tokens: tokens + ANSWER_TOKENS,
            most: context,
        });
    }
    let mut turns: Vec<Message> = Vec::new();
    let passages = passages(text).into_iter().cycle();
    if let Some(longest) = instructions.get(i) {
        // One long turn and one short answer: small models copy what they see an assistant say often.
        let mut told = String::from("Here is a text to read first.\n\n");
        let mut before = 0;
        for passage in passages {
            told.push_str(&passage);
            told.push(' ');
            let longer = [
                Message::new("user", told.trim_end()),
                Message::new("assistant", "I have read it. What shall I do next?"),
            ];
            let length = encode(&longer, longest)?.len();
            // A template may also show no turns but the last.
            if length > room || length <= before {
                break;
            }
            before = length;
            turns = longer.to_vec();
        }
    }
    let prompts = instructions.iter().map(|told| encode(&turns, told));
    let prompts = prompts.collect::<Result<Vec<Vec<u32>>, ChatError>>()?;
    // What all begin with; each keeps a token at least, for its logits.
    let mut shared = prompts.first().map_or(0, |p| p.len().saturating_sub(1));
    for prompt in &prompts {
        let same = prompt.iter().zip(&prompts[0]).take_while(|(a, b)| a == b);
        shared = shared.min(same.count()).min(prompt.len().saturating_sub(1));
    }
    Ok(Script {
        shared: prompts.first().map_or(Vec::new(), |p| p[..shared].to_vec()),
        rests: prompts.iter().map(|p| p[shared..].to_vec()).collect(),
    })
}

/// Pieces of a text between words.
fn passages(text: &str) -> Vec<String> {
    let mut passages = Vec::new();
    let mut passage = String::new();
    for word in text.split_whitespace() {
        if !passage.is_empty() {
            passage.push(' ');
        }
        passage.push_str(word);
        if passage.len() >= TURN_LETTERS {
            passages.push(std::mem::take(&mut passage));
        }
    }
    if passages.is_empty() && !passage.is_empty() {
        passages.push(passage);
    }
    passages
}

/// A sequence that has read the shared part.
pub fn begin(runtime: &mut Runtime, script: &Script) -> Result<SequenceId, StepError> {
    let id = runtime.open()?;
    if !script.shared.is_empty() {
        runtime.feed(id, &script.shared, &mut |_| ControlFlow::Continue(()))?;
    }
    Ok(id)
}

/// The likeliest answer behind the shared part that `base` has read.
pub fn answer(
    runtime: &mut Runtime,
    base: SequenceId,
    rest: &[u32],
) -> Result<Generation, GenerateError> {
    let mut sampler = Sampler::new(SampleOptions {
        temperature: 0.0,
        ..SampleOptions::default()
    })?;
    let options = GenerateOptions {
        tokens_max: Some(ANSWER_TOKENS),
        ..GenerateOptions::default()
    };
    let fork = runtime.fork(base)?;
    let made = generate(runtime, fork, rest, &mut sampler, &options, &mut |_| {
        ControlFlow::Continue(())
    });
    runtime.close(fork)?;
    made
}

/// Minus the log-probability of an answer, summed over its tokens.
pub fn nll(
    runtime: &mut Runtime,
    base: SequenceId,
    rest: &[u32],
    answer: &[u32],
) -> Result<f64, StepError> {
    let Some(fed) = answer.len().checked_sub(1) else {
        return Ok(0.0);
    };
    let fork = runtime.fork(base)?;
    let logits = runtime.all_logits(fork, &[rest, &answer[..fed]].concat());
    runtime.close(fork)?;
    let vocab = runtime.model().config().vocab;
    let position = runtime.position(base)?;
    let logits = logits?;
    let rows = logits.chunks_exact(vocab);
    let rows = rows.skip(rest.len().saturating_sub(1));
    let mut sum = 0.0;
    for (logits, &next) in rows.zip(answer) {
        sum -= sample::logprob_of(logits, next).map_err(|_| StepError::NotFinite { position })?;
    }
    Ok(sum)
}

/// Tokens that two answers begin with alike.
pub fn divergence(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
