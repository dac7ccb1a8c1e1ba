//! Runs one completion: reads the prompt, then samples a token, reports it and feeds it, until the end.

pub use super::completion::{Finish, GenerateError, GenerateOptions};

use super::completion::{Completed, Completion, Sampled};
use super::core::Runtime;
use super::error::StepResult;
use crate::sample::Sampler;
use haversack_cache::SequenceId;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What happens while a completion runs. The caller may stop it at each event.
#[derive(Clone, Copy, Debug)]
pub enum GenerateEvent<'a> {
    /// `done` of `total` tokens of the prompt have been read.
    Prompt { done: usize, total: usize },
    /// A token was sampled; `text` can be shown now (often more or less than the token's own text).
    Token { id: u32, text: &'a str },
}

#[derive(Clone, Debug)]
pub struct Generation {
    pub text: String,
    /// Everything sampled, the ending token included.
    pub tokens: Vec<u32>,
    pub finish: Finish,
    pub prefill: Duration,
    pub decode: Duration,
}

/// Feeds `prompt` to the sequence and generates from there. Every sampled token except the last is
/// in the sequence afterwards. Penalties look at the prompt and at every token since.
pub fn generate(
    runtime: &mut Runtime,
    sequence: SequenceId,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    tell: &mut dyn FnMut(GenerateEvent<'_>) -> ControlFlow<()>,
) -> Result<Generation, GenerateError> {
    let mut completion = Completion::new(runtime, sequence, prompt, options)?;
    let decode: Decode<'_> = &mut |runtime, id, token| runtime.decode(id, token).map(|_| ());
    let took = drive(runtime, sequence, &mut completion, sampler, tell, decode)?;
    Ok(conclude(completion, took, tell))
}

/// Computes one token of a sequence; afterwards its logits are the runtime's last ones.
pub type Decode<'a> = &'a mut dyn FnMut(&mut Runtime, SequenceId, u32) -> StepResult;

/// How long reading the prompt and decoding took.
#[derive(Clone, Copy, Debug, Default)]
pub struct GenerateTimes {
    pub prefill: Duration,
    pub decode: Duration,
}

/// Computes one completion to its end.
pub fn drive(
    runtime: &mut Runtime,
    sequence: SequenceId,
    completion: &mut Completion,
    sampler: &mut Sampler,
    tell: &mut dyn FnMut(GenerateEvent<'_>) -> ControlFlow<()>,
    decode: Decode<'_>,
) -> Result<GenerateTimes, GenerateError> {
    let model = runtime.model().clone();
    let tokenizer = model.tokenizer();
    let started = Instant::now();
    let prompt = completion.pending();
    let total = prompt.len();
    let fed = runtime.feed(sequence, prompt, &mut |done| {
        tell(GenerateEvent::Prompt { done, total })
    })?;
    match fed {
        Some(_) => completion.read(total),
        None => completion.cancel(),
    }
    let prefill = started.elapsed();

    let started = Instant::now();
    while completion.finish().is_none() {
        let Sampled { id, text } = completion.sample(sampler, tokenizer, runtime.logits())?;
        if tell(GenerateEvent::Token { id, text }).is_break() {
            completion.cancel();
        }
        if let &[token] = completion.pending() {
            decode(runtime, sequence, token)?;
            completion.read(1);
        }
    }
    let decode = started.elapsed();
    Ok(GenerateTimes { prefill, decode })
}

/// Ends a completion and reports the text that was held back.
pub fn conclude(
    completion: Completion,
    took: GenerateTimes,
    tell: &mut dyn FnMut(GenerateEvent<'_>) -> ControlFlow<()>,
) -> Generation {
    let Completed {
        text,
        tokens,
        finish,
        shown,
    } = completion.end();
    if let Some(&id) = tokens.last()
        && text.len() > shown
    {
        let _ = tell(GenerateEvent::Token {
            id,
            text: &text[shown..],
        });
    }
    Generation {
        text,
        tokens,
        finish,
        prefill: took.prefill,
        decode: took.decode,
    }
}
