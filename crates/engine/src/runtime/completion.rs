//! The state of a completion: which tokens to feed next, and what follows from their logits.
//!
//! It computes nothing itself. A driver (one completion at a time in `generate`, many in one step in the scheduler) feeds [`Completion::pending`] to the sequence, reports how much of it was read, and passes the
//! logits after the last token on. The result depends on nothing but those logits.

use super::core::Runtime;
use super::error::StepError;
use super::repetition::RepetitionDetector;
use crate::sample::{SampleError, Sampler};
use haversack_cache::SequenceId;
use haversack_text::detokenize::{DetokenizeOptions, Detokenizer};
use haversack_text::stop::{StopError, Stops};
use haversack_text::tokenizer::Tokenizer;

#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Tokens to generate at most; `None` = until the model ends or the context is full.
    pub tokens_max: Option<usize>,
    /// Text that ends the answer and is not part of it.
    pub stop: Vec<String>,
    /// Go on when the model ends its answer.
    pub ignore_end: bool,
    /// End an answer that has fallen into a loop ([`Finish::Repetition`]); never with `ignore_end`.
    pub stop_repetition: bool,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its answer, or a stop string appeared.
    Stop,
    /// The answer repeated itself and was ended: a stop that neither the model nor the caller asked for.
    Repetition,
    /// The token limit or the context ended it.
    Length,
    Cancelled,
}

impl Finish {
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop | Finish::Repetition => "stop",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
        }
    }

    /// What stopped the answer, where it was neither the model nor a stop string.
    pub fn stopped_by(self) -> Option<&'static str> {
        (self == Finish::Repetition).then_some("repetition")
    }
}

/// Why a completion failed.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error(transparent)]
    Stop(#[from] StopError),
}

pub struct Completion {
    /// The prompt, and everything sampled since: penalties look at both.
    history: Vec<u32>,
    prompt: usize,
    /// Tokens to feed before the next one is sampled, and how many of them were read.
    queue: Vec<u32>,
    read: usize,
    /// Tokens to sample at most.
    limit: Option<usize>,
    ignores_end: bool,
    /// Where a loop ends the answer.
    repetition: Option<Box<RepetitionDetector>>,
    stops: Stops,
    detokenizer: Detokenizer,
    text: String,
    finish: Option<Finish>,
}

/// What was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled<'a> {
    pub id: u32,
    /// Text that can be shown now: often more or less than the token's own.
    pub text: &'a str,
}

/// The result of a completion.
#[derive(Clone, Debug)]
pub struct Completed {
    pub text: String,
    /// Everything sampled, the ending token included.
    pub tokens: Vec<u32>,
    pub finish: Finish,
    /// Text from this byte on was not shown: half a character, or the beginning of a stop string that never came.
    pub shown: usize,
}

impl Completion {
    /// A completion of this sequence, from where it stands.
    pub fn new(
        runtime: &Runtime,
        sequence: SequenceId,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<Completion, GenerateError> {
        let behind = runtime.position(sequence)? + prompt.len() as u64;
        // Sequences under a bounded policy have no end; the others end where nothing more fits.
        let room = runtime.end(sequence);
        let room = room.map(|end| (end as u64).saturating_sub(behind));
        Ok(Completion::within(prompt, options, room)?)
    }

    /// A completion of a sequence that ends `room` tokens after the prompt; `None`: it has no end.
    pub fn within(
        prompt: &[u32],
        options: &GenerateOptions,
        room: Option<u64>,
    ) -> Result<Completion, StopError> {
        // The last token sampled need not have a position.
        let room = room.map(|room| usize::try_from(room).unwrap_or(usize::MAX));
        let room = room.map(|room| room.saturating_add(1));
        let limit = match (options.tokens_max, room) {
            (Some(max), Some(room)) => Some(max.min(room)),
            (max, room) => max.or(room),
        };
        let stops = Stops::new(options.stop.iter().cloned())?;
        Ok(Completion {
            history: prompt.to_vec(),
            prompt: prompt.len(),
            queue: prompt.to_vec(),
            read: 0,
            limit,
            ignores_end: options.ignore_end,
            repetition: (options.stop_repetition && !options.ignore_end).then(Box::default),
            stops,
            detokenizer: Detokenizer::new(DetokenizeOptions::default()),
            text: String::new(),
            finish: (limit == Some(0)).then_some(Finish::Length),
        })
    }

    /// Tokens to feed before the next one can be sampled. A prompt is read even if nothing is to be sampled.
    pub fn pending(&self) -> &[u32] {
        &self.queue[self.read..]
    }

    /// Whether it samples from the logits after this many pending tokens.
    pub fn samples_after(&self, tokens: usize) -> bool {
        self.finish.is_none() && tokens == self.pending().len()
    }

    /// Records that this many pending tokens were read.
    pub fn read(&mut self, tokens: usize) {
        self.read = (self.read + tokens).min(self.queue.len());
    }

    /// Tokens of the prompt that were read, and their total, until the first token is sampled.
    pub fn progress(&self) -> Option<(usize, usize)> {
        let is_reading = self.sampled().is_empty();
        is_reading.then_some((self.read, self.queue.len()))
    }

    /// Starts over with an empty sequence: these tokens are to be read, the last of which is the last sampled one.
    pub fn read_again(&mut self, tokens: Vec<u32>) {
        debug_assert_eq!(tokens.last(), self.history.last());
        (self.queue, self.read) = (tokens, 0);
    }

    /// The prompt, and everything sampled since.
    pub fn history(&self) -> &[u32] {
        &self.history
    }

    /// Whether nothing more is to be read or sampled.
    pub fn is_over(&self) -> bool {
        self.finish.is_some() && self.pending().is_empty()
    }

    pub fn prompt(&self) -> &[u32] {
        &self.history[..self.prompt]
    }

    pub fn sampled(&self) -> &[u32] {
        &self.history[self.prompt..]
    }

    /// `None` while it goes on.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Stops the completion: nothing more is read or sampled.
    pub fn cancel(&mut self) {
        self.finish.get_or_insert(Finish::Cancelled);
        self.read = self.queue.len();
    }

    /// Samples the next token from the logits after the last one that was read.
    pub fn sample(
        &mut self,
        sampler: &mut Sampler,
        tokenizer: &Tokenizer,
        logits: &[f32],
    ) -> Result<Sampled<'_>, SampleError> {
        debug_assert!(self.finish.is_none() && self.pending().is_empty());
        let id = sampler.sample_text(logits, &self.history, Some(tokenizer))?;
        self.history.push(id);
        let ended = tokenizer.is_end(id) && !self.ignores_end;
        let mut piece = String::new();
        if !ended {
            self.detokenizer.push(tokenizer, id, &mut piece);
        }
        let shown = self.text.len();
        let stopped = self.stops.push(&piece, &mut self.text);
        if ended || stopped {
            self.finish = Some(Finish::Stop);
        } else if self.repetition.as_mut().is_some_and(|r| r.push(id)) {
            self.finish = Some(Finish::Repetition);
        } else if self.limit.is_some_and(|max| self.sampled().len() >= max) {
            self.finish = Some(Finish::Length);
        }
        if self.finish.is_none() {
            self.queue.clear();
            self.queue.push(id);
            self.read = 0;
        }
        Ok(Sampled {
            id,
            text: &self.text[shown..],
        })
    }

    /// Ends the completion; one that has not finished counts as cancelled.
    pub fn end(mut self) -> Completed {
        let shown = self.text.len();
        let mut rest = String::new();
        self.detokenizer.finish(&mut rest);
        if self.stops.stopped().is_none() && !self.stops.push(&rest, &mut self.text) {
            self.stops.finish(&mut self.text);
        }
        Completed {
            text: self.text,
            tokens: self.history.split_off(self.prompt),
            finish: self.finish.unwrap_or(Finish::Cancelled),
            shown,
        }
    }
}
