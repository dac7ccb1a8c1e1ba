//! One completion: read the prompt, then sample, tell and feed, one token at a time.

use super::runtime::{Runtime, StepError};
use crate::sample::{SampleError, Sampler};
use crate::text::detokenize::{DetokenizeOptions, Detokenizer};
use crate::text::stop::{StopError, Stops};
use haversack_cache::SequenceId;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Most tokens to generate; `None` = until the model ends or the context is full.
    pub tokens_max: Option<usize>,
    /// Text that ends the answer and is not part of it.
    pub stop: Vec<String>,
    /// Go on when the model says it is done.
    pub ignore_end: bool,
}

/// What happens while a completion runs. The caller may stop it at each.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// So many tokens of the prompt have been read.
    Prompt { done: usize, total: usize },
    /// A token was sampled; `text` is what may be shown now (often more or less than its piece).
    Token { id: u32, text: &'a str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended, or a stop string appeared.
    Stop,
    /// The token limit or the context ended it.
    Length,
    Cancelled,
}

impl Finish {
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
        }
    }
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

#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error(transparent)]
    Stop(#[from] StopError),
}

/// Feeds `prompt` to the sequence and generates from there. Every sampled token except the last is
/// in the sequence afterwards. Penalties look at the prompt and at every token since.
pub fn generate(
    runtime: &mut Runtime,
    sequence: SequenceId,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    tell: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Generation, GenerateError> {
    let decode: Decode<'_> = &mut |runtime, id, token| runtime.decode(id, token).map(|_| ());
    generate_by(runtime, sequence, prompt, sampler, options, tell, decode)
}

/// One token of a sequence, computed; its logits are the runtime's last ones then.
pub type Decode<'a> = &'a mut dyn FnMut(&mut Runtime, SequenceId, u32) -> Result<(), StepError>;

/// [`generate`], for whoever has something else to compute in the same steps.
pub fn generate_by(
    runtime: &mut Runtime,
    sequence: SequenceId,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    tell: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    decode: Decode<'_>,
) -> Result<Generation, GenerateError> {
    let model = runtime.model().clone();
    let tokenizer = model.tokenizer();
    let mut stops = Stops::new(options.stop.iter().cloned())?;
    let mut detokenizer = Detokenizer::new(DetokenizeOptions::default());
    // One list, also for what was sampled: an endless answer should not be kept twice.
    let mut history = prompt.to_vec();
    let sampled = |history: &Vec<u32>| history.len() - prompt.len();
    let mut text = String::new();
    // Bounded policies have no end; the others end where nothing more fits.
    let room = runtime.bounds().end().map(|end| end as u64);

    let started = Instant::now();
    let total = prompt.len();
    let fed = runtime
        .feed(sequence, prompt, &mut |done| {
            tell(Event::Prompt { done, total })
        })?
        .is_some();
    let prefill = started.elapsed();

    let started = Instant::now();
    let finish = loop {
        if !fed {
            break Finish::Cancelled;
        }
        if options
            .tokens_max
            .is_some_and(|max| sampled(&history) >= max)
        {
            break Finish::Length;
        }
        let id = sampler.sample(runtime.logits(), &history)?;
        history.push(id);
        let ended = tokenizer.is_end(id) && !options.ignore_end;
        let mut piece = String::new();
        if !ended {
            detokenizer.push(tokenizer, id, &mut piece);
        }
        let shown = text.len();
        let stopped = stops.push(&piece, &mut text);
        let flow = tell(Event::Token {
            id,
            text: &text[shown..],
        });
        if ended || stopped {
            break Finish::Stop;
        }
        if flow.is_break() {
            break Finish::Cancelled;
        }
        let position = runtime.position(sequence)?;
        if room.is_some_and(|room| position >= room) {
            break Finish::Length;
        }
        // The last token of a limited answer need not be computed further.
        if options
            .tokens_max
            .is_some_and(|max| sampled(&history) >= max)
        {
            break Finish::Length;
        }
        decode(runtime, sequence, id)?;
    };
    let decode = started.elapsed();

    // What was held back: half a character, or the beginning of a stop string that never came.
    let shown = text.len();
    let mut rest = String::new();
    detokenizer.finish(&mut rest);
    if stops.stopped().is_none() && !stops.push(&rest, &mut text) {
        stops.finish(&mut text);
    }
    let tokens = history.split_off(prompt.len());
    if let Some(&id) = tokens.last()
        && text.len() > shown
    {
        let _ = tell(Event::Token {
            id,
            text: &text[shown..],
        });
    }
    Ok(Generation {
        text,
        tokens,
        finish,
        prefill,
        decode,
    })
}
