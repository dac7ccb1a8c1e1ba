//! A completion on its way: which tokens it wants read next, and what comes of their logits.
//!
//! It computes nothing. Whoever does, one after another ([`generate`](super::generate::generate)) or many in one step
//! ([`many`](haversack_conversations::scheduler)), reads [`Completion::pending`] into the sequence, says how much of it was read, and hands over
//! the logits behind the last. What comes out depends on nothing but those logits.

use super::core::Runtime;
use super::generate::{Finish, GenerateError, GenerateOptions};
use crate::sample::{SampleError, Sampler};
use haversack_cache::SequenceId;
use haversack_memory::zoo::{Bug, planted};
use haversack_text::detokenize::{DetokenizeOptions, Detokenizer};
use haversack_text::stop::{StopError, Stops};
use haversack_text::tokenizer::Tokenizer;

pub struct Completion {
    /// The prompt, and everything sampled since: penalties look at both.
    history: Vec<u32>,
    prompt: usize,
    /// What the sequence is to read before a token is sampled, and how much of it was read.
    queue: Vec<u32>,
    read: usize,
    /// Most tokens to sample.
    limit: Option<usize>,
    ignores_end: bool,
    stops: Stops,
    detokenizer: Detokenizer,
    text: String,
    finish: Option<Finish>,
}

/// What was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled<'a> {
    pub id: u32,
    /// What may be shown now: often more or less than the token's piece.
    pub text: &'a str,
}

/// What became of a completion.
#[derive(Clone, Debug)]
pub struct Completed {
    pub text: String,
    /// Everything sampled, the ending token included.
    pub tokens: Vec<u32>,
    pub finish: Finish,
    /// From here on, text that was not shown: half a character, or the beginning of a stop string that never came.
    pub shown: usize,
}

impl Completion {
    /// Of this sequence, from where it stands.
    pub fn new(
        runtime: &Runtime,
        sequence: SequenceId,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<Completion, GenerateError> {
        let behind = runtime.position(sequence)? + prompt.len() as u64;
        // Bounded policies have no end; the others end where nothing more fits.
        let room = runtime.end(sequence);
        let room = room.map(|end| (end as u64).saturating_sub(behind));
        Ok(Completion::within(prompt, options, room)?)
    }

    /// Of a sequence that has room for so many tokens behind the prompt, if it ends.
    pub fn within(
        prompt: &[u32],
        options: &GenerateOptions,
        room: Option<u64>,
    ) -> Result<Completion, StopError> {
        // The last token sampled need not have a position.
        let room = room.map(|room| {
            usize::try_from(room)
                .unwrap_or(usize::MAX)
                .saturating_add(1)
        });
        let limit = match (options.tokens_max, room) {
            (Some(most), Some(room)) => Some(most.min(room)),
            (most, room) => most.or(room),
        };
        let stops = Stops::new(options.stop.iter().cloned())?;
        Ok(Completion {
            history: prompt.to_vec(),
            prompt: prompt.len(),
            queue: prompt.to_vec(),
            read: 0,
            limit,
            ignores_end: options.ignore_end,
            stops,
            detokenizer: Detokenizer::new(DetokenizeOptions::default()),
            text: String::new(),
            finish: (limit == Some(0)).then_some(Finish::Length),
        })
    }

    /// Tokens to be read before the next one can be sampled. A prompt is read even if nothing is to be sampled.
    pub fn pending(&self) -> &[u32] {
        &self.queue[self.read..]
    }

    /// Whether it samples from the logits behind so many of them.
    pub fn samples_after(&self, tokens: usize) -> bool {
        self.finish.is_none() && tokens == self.pending().len()
    }

    /// So many of them are in the sequence now.
    pub fn read(&mut self, tokens: usize) {
        self.read = (self.read + tokens).min(self.queue.len());
    }

    /// Tokens of the prompt that were read, and all of them, until the first token is sampled.
    pub fn progress(&self) -> Option<(usize, usize)> {
        let is_reading = self.sampled().is_empty();
        is_reading.then_some((self.read, self.queue.len()))
    }

    /// What the sequence had is lost: these are to be read in its place, and the last of them is the last of all.
    pub fn read_again(&mut self, tokens: Vec<u32>) {
        debug_assert_eq!(tokens.last(), self.history.last());
        (self.queue, self.read) = (tokens, 0);
    }

    /// The prompt, and everything sampled since.
    pub fn history(&self) -> &[u32] {
        &self.history
    }

    /// Nothing more is read or sampled.
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

    /// Whoever wanted it does so no longer.
    pub fn cancel(&mut self) {
        self.finish.get_or_insert(Finish::Cancelled);
        self.read = self.queue.len();
    }

    /// The next token, from the logits behind the last one that was read.
    pub fn sample(
        &mut self,
        sampler: &mut Sampler,
        tokenizer: &Tokenizer,
        logits: &[f32],
    ) -> Result<Sampled<'_>, SampleError> {
        debug_assert!(self.finish.is_none() && self.pending().is_empty());
        let id = sampler.sample(logits, &self.history)?;
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
        } else if self.limit.is_some_and(|most| self.sampled().len() >= most) {
            self.finish = Some(Finish::Length);
        }
        if self.finish.is_none() {
            if !planted(Bug::DoubleAccumulation) {
                self.queue.clear();
            }
            self.queue.push(id);
            self.read = 0;
        }
        Ok(Sampled {
            id,
            text: &self.text[shown..],
        })
    }

    /// One that nobody ended is cancelled.
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
