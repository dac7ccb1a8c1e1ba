//! Takes requests, and computes those that have entered, one step after another.

use super::long::{BadRows, Rows};
use super::plan::{Pace, Priority, Wish, plan};
use super::queue::{Full, Queue};
use crate::model::forward::{Span, Want};
use crate::run::completion::{Completed, Completion, Sampled};
use crate::run::{GenerateOptions, Keep, Runtime, SequenceId, StepError};
use crate::sample::{Constraint, SampleError, SampleOptions, Sampler};
use crate::text::stop::StopError;
use haversack_kernels::attention::BLOCK_SLOTS;
use std::ops::ControlFlow;
use std::time::Duration;

/// A request as it was given.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub sample: SampleOptions,
    /// What its answer may be; anything if there is none.
    pub constraint: Option<Box<dyn Constraint>>,
    pub options: GenerateOptions,
    /// That its sequence may have; `None`: what the runtime's options say.
    pub rows: Option<Rows>,
    pub priority: Priority,
    /// Whose it is: owners take turns.
    pub owner: u64,
    /// When it is of no use any more, on the clock of [`Desk::step`].
    pub deadline: Option<Duration>,
}

/// Names a request while it waits or runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Why a request was not taken. Nothing has happened then.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("the prompt is empty")]
    Empty,
    #[error("token {token} is outside of the vocabulary of {vocabulary}")]
    Token { token: u32, vocabulary: usize },
    #[error("the prompt has {tokens} tokens; accepted: at most {most}")]
    Length { tokens: usize, most: usize },
    #[error("it may come to hold {bytes} bytes; accepted: at most {most}")]
    Bytes { bytes: usize, most: usize },
    #[error(transparent)]
    Keep(#[from] StepError),
    #[error(transparent)]
    Rows(#[from] BadRows),
    #[error(transparent)]
    Full(#[from] Full),
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error(transparent)]
    Stop(#[from] StopError),
}

/// What happens to a request.
#[derive(Debug)]
pub enum News<'a> {
    /// Its bytes are promised.
    Entered,
    /// So many tokens of the prompt have been read.
    Prompt { done: usize, total: usize },
    Token {
        sampled: Sampled<'a>,
        logits: &'a [f32],
    },
    /// The last that is heard of it.
    Done(Completed, Held),
    /// The last that is heard of it: something is wrong with it, or with all of this.
    Failed(String),
}

/// What a request had when it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Tokens seen.
    pub seen: u64,
    /// Rows kept of them.
    pub rows: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct DeskOptions {
    /// Sequences of one step at most.
    pub batch: usize,
    /// Requests that may wait.
    pub queue: usize,
}

impl Default for DeskOptions {
    fn default() -> DeskOptions {
        DeskOptions {
            batch: 8,
            queue: 64,
        }
    }
}

/// A request that waits.
struct Entry {
    ticket: Ticket,
    completion: Completion,
    sampler: Sampler,
    keep: Keep,
    /// Where its rows are read again.
    again: Option<Rows>,
    /// That it has at most.
    rows: usize,
}

/// One that has entered.
struct Job {
    entry: Entry,
    sequence: SequenceId,
    priority: Priority,
    deadline: Option<Duration>,
    bytes: usize,
    waited: u64,
}

pub struct Desk {
    options: DeskOptions,
    pace: Pace,
    queue: Queue<Entry>,
    /// In the order they entered.
    active: Vec<Job>,
    tickets: u64,
}

type Tell<'a> = &'a mut dyn FnMut(Ticket, News<'_>) -> ControlFlow<()>;

impl Desk {
    pub fn new(runtime: &Runtime, options: DeskOptions) -> Desk {
        // A step of nobody would never end.
        let batch = options.batch.max(1);
        let options = DeskOptions { batch, ..options };
        let chunk = runtime.chunk();
        let pace = Pace { batch, chunk };
        Desk {
            options,
            pace,
            queue: Queue::new(options.queue),
            active: Vec::new(),
            tickets: 0,
        }
    }

    /// How much a step may do from now on. Whoever has entered stays, and says the same.
    pub fn set_pace(&mut self, pace: Pace) {
        let batch = pace.batch.clamp(1, self.options.batch);
        self.pace = Pace { batch, ..pace };
    }

    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub fn active(&self) -> usize {
        self.active.len()
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.active.is_empty()
    }

    /// Takes a request, or says at once why it never could be served.
    pub fn submit(&mut self, runtime: &Runtime, request: Request) -> Result<Ticket, Refused> {
        let tokens = request.prompt.len();
        if tokens == 0 {
            return Err(Refused::Empty);
        }
        let vocabulary = runtime.model().config().vocab;
        let is_unknown = |&&token: &&u32| token as usize >= vocabulary;
        if let Some(&token) = request.prompt.iter().find(is_unknown) {
            return Err(Refused::Token { token, vocabulary });
        }
        let answer = request.options.tokens_max.unwrap_or(usize::MAX);
        let keep = match &request.rows {
            Some(rows) => {
                rows.check()?;
                rows.keep()
            }
            None => Keep::Usual,
        };
        let end = runtime.end_of(keep)?;
        let most = end.unwrap_or(usize::MAX);
        let read = match &request.rows {
            Some(rows) => rows.of_prompt(&request.prompt, answer),
            None => (tokens <= most).then(|| request.prompt.clone()),
        };
        let read = read.ok_or(Refused::Length { tokens, most })?;
        let tokens = read.len().saturating_add(answer).min(most);
        let again = request.rows.filter(|rows| rows.is_read_again());
        let completion = match again {
            // Where rows are read again depends on all that came.
            Some(_) => {
                let mut whole = Completion::within(&request.prompt, &request.options, None)?;
                whole.read_again(read);
                whole
            }
            None => {
                let room = end.map(|end| end.saturating_sub(read.len()) as u64);
                Completion::within(&read, &request.options, room)?
            }
        };
        let rows = runtime.rows_of(keep, tokens);
        let bytes = runtime.sequence_bytes(rows);
        if let Some(most) = promisable(runtime, 1, rows)
            && bytes > most
        {
            return Err(Refused::Bytes { bytes, most });
        }
        let ticket = Ticket(self.tickets);
        let entry = Entry {
            ticket,
            completion,
            sampler: Sampler::new(request.sample)?.constrained(request.constraint),
            keep,
            again,
            rows,
        };
        let (priority, owner) = (request.priority, request.owner);
        self.queue
            .push(entry, priority, owner, bytes as u64, request.deadline)?;
        self.tickets += 1;
        Ok(ticket)
    }

    /// Nobody wants it any more: what it holds is free at once. Unknown tickets are of requests that are done.
    pub fn cancel(&mut self, runtime: &mut Runtime, ticket: Ticket) -> Result<(), StepError> {
        self.queue.take(|w| w.what.ticket == ticket);
        if let Some(i) = self.active.iter().position(|j| j.entry.ticket == ticket) {
            runtime.close(self.active.remove(i).sequence)?;
        }
        Ok(())
    }

    /// One step of all that can take part. `false`: there was nothing to do.
    pub fn step(
        &mut self,
        runtime: &mut Runtime,
        now: Duration,
        tell: Tell<'_>,
    ) -> Result<bool, StepError> {
        self.expire(runtime, now, tell)?;
        self.admit(runtime, tell)?;
        self.renew(runtime)?;
        if self.active.is_empty() {
            return Ok(false);
        }
        let wishes: Vec<Wish> = self.active.iter().map(Job::wish).collect();
        let mut takes = plan(&wishes, self.pace);
        loop {
            match self.compute(runtime, &mut takes) {
                Ok(()) => break,
                // Its promise covers a block of each, and decoding at least.
                Err(error) if error.is_cannot_fit() && shrink(&wishes, &mut takes) => {}
                Err(error) if error.is_cannot_fit() && self.step_back(runtime, &mut takes)? => {}
                Err(error) => return self.fail(runtime, &error, tell).map(|()| true),
            }
        }
        self.deliver(runtime, &takes, tell)?;
        Ok(true)
    }

    /// Ends those whose time is over.
    fn expire(
        &mut self,
        runtime: &mut Runtime,
        now: Duration,
        tell: Tell<'_>,
    ) -> Result<(), StepError> {
        for late in self.queue.expired(now) {
            let completed = late.what.completion.end();
            let _ = tell(late.what.ticket, News::Done(completed, Held::default()));
        }
        let is_late = |job: &mut Job| job.deadline.is_some_and(|deadline| deadline <= now);
        for job in self.active.extract_if(.., is_late) {
            let held = leave(runtime, job.sequence)?;
            let completed = job.entry.completion.end();
            let _ = tell(job.entry.ticket, News::Done(completed, held));
        }
        Ok(())
    }

    fn admit(&mut self, runtime: &mut Runtime, tell: Tell<'_>) -> Result<(), StepError> {
        while self.active.len() < self.options.batch {
            let promised: usize = self.active.iter().map(|job| job.bytes).sum();
            let longest = self.active.iter().map(|job| job.entry.rows).max();
            let sequences = self.active.len() + 1;
            let next = self.queue.pop(|w| {
                let wanted = promised.saturating_add(w.bytes as usize);
                let longest = longest.unwrap_or(0).max(w.what.rows);
                promisable(runtime, sequences, longest).is_none_or(|room| wanted <= room)
            });
            let Some(next) = next else {
                break;
            };
            let ticket = next.what.ticket;
            self.active.push(Job {
                sequence: runtime.open_keeping(next.what.keep)?,
                priority: next.priority,
                deadline: next.deadline,
                bytes: next.bytes as usize,
                waited: 0,
                entry: next.what,
            });
            if tell(ticket, News::Entered).is_break() {
                self.cancel(runtime, ticket)?;
            }
        }
        Ok(())
    }

    /// Has the rows read again of those who are at the end of theirs.
    fn renew(&mut self, runtime: &mut Runtime) -> Result<(), StepError> {
        for job in &mut self.active {
            let Some(rows) = job.entry.again else {
                continue;
            };
            let pending = job.entry.completion.pending().len();
            let held = runtime.position(job.sequence)? as usize + pending;
            if held >= rows.most {
                job.begin_again(runtime)?;
            }
        }
        Ok(())
    }

    /// One pass over the weights. Portions become smaller where a policy wants to be asked between.
    fn compute(&self, runtime: &mut Runtime, takes: &mut [usize]) -> Result<(), StepError> {
        let mut spans = Vec::with_capacity(takes.len());
        for (job, take) in self.active.iter().zip(takes) {
            let pending = job.entry.completion.pending();
            if *take == 0 {
                continue;
            }
            let position = runtime.position(job.sequence)?;
            *take = runtime.portion_of(job.sequence, position, *take);
            let want = match job.entry.completion.samples_after(*take) {
                true => Want::Last,
                false => Want::Nothing,
            };
            spans.push(Span {
                sequence: job.sequence,
                position,
                tokens: &pending[..*take],
                want,
            });
        }
        runtime.step(&spans).map(|_| ())
    }

    /// The youngest that takes part goes back to where it began, so that the others can go on. It says the same in the
    /// end. `false`: there are no others.
    fn step_back(&mut self, runtime: &mut Runtime, takes: &mut [usize]) -> Result<bool, StepError> {
        let mut taking = (0..takes.len()).rev().filter(|&i| takes[i] > 0);
        let (Some(last), Some(_)) = (taking.next(), taking.next()) else {
            return Ok(false);
        };
        let job = &mut self.active[last];
        log::warn!(
            "a promise was too small: {:?} begins anew",
            job.entry.ticket
        );
        job.begin_again(runtime)?;
        takes[last] = 0;
        Ok(true)
    }

    /// Something is wrong that no room would mend: whoever took part is told.
    fn fail(
        &mut self,
        runtime: &mut Runtime,
        error: &StepError,
        tell: Tell<'_>,
    ) -> Result<(), StepError> {
        for job in std::mem::take(&mut self.active) {
            runtime.close(job.sequence)?;
            let _ = tell(job.entry.ticket, News::Failed(error.to_string()));
        }
        Ok(())
    }

    /// Hands everybody what the step gave.
    fn deliver(
        &mut self,
        runtime: &mut Runtime,
        takes: &[usize],
        tell: Tell<'_>,
    ) -> Result<(), StepError> {
        let model = runtime.model().clone();
        let tokenizer = model.tokenizer();
        let mut rows = runtime.logits().chunks_exact(model.config().vocab);
        let mut ended: Vec<(SequenceId, Ticket)> = Vec::new();
        for (job, &take) in self.active.iter_mut().zip(takes) {
            if take == 0 {
                job.waited += 1;
                continue;
            }
            job.waited = 0;
            let Job {
                entry, sequence, ..
            } = job;
            let Entry {
                ticket,
                completion,
                sampler,
                ..
            } = entry;
            let samples = completion.samples_after(take);
            completion.read(take);
            let mut flow = ControlFlow::Continue(());
            if let Some((done, total)) = completion.progress() {
                flow = tell(*ticket, News::Prompt { done, total });
            }
            if samples {
                let logits = rows.next().unwrap_or_default();
                match completion.sample(sampler, tokenizer, logits) {
                    Ok(sampled) => {
                        if flow.is_continue() {
                            flow = tell(*ticket, News::Token { sampled, logits });
                        }
                    }
                    Err(error) => {
                        let _ = tell(*ticket, News::Failed(error.to_string()));
                        ended.push((*sequence, *ticket));
                        continue;
                    }
                }
            }
            if flow.is_break() {
                completion.cancel();
            }
            if completion.is_over() {
                ended.push((*sequence, *ticket));
            }
        }
        for (sequence, ticket) in ended {
            let held = leave(runtime, sequence)?;
            let i = self.active.iter().position(|j| j.sequence == sequence);
            let Some(job) = i.map(|i| self.active.remove(i)) else {
                continue;
            };
            if job.entry.completion.is_over() {
                let _ = tell(ticket, News::Done(job.entry.completion.end(), held));
            }
        }
        Ok(())
    }
}

impl Job {
    /// A sequence that has nothing yet, and what belongs into its rows to read.
    fn begin_again(&mut self, runtime: &mut Runtime) -> Result<(), StepError> {
        // What it holds is free before it is taken again.
        runtime.close(self.sequence)?;
        self.sequence = runtime.open_keeping(self.entry.keep)?;
        let history = self.entry.completion.history();
        let read = match &self.entry.again {
            Some(rows) => rows.at(history),
            None => history.to_vec(),
        };
        self.entry.completion.read_again(read);
        Ok(())
    }

    fn wish(&self) -> Wish {
        Wish {
            priority: self.priority,
            pending: self.entry.completion.pending().len(),
            waited: self.waited,
        }
    }
}

/// Closes a sequence.
fn leave(runtime: &mut Runtime, sequence: SequenceId) -> Result<Held, StepError> {
    let stats = runtime.stats(sequence)?;
    runtime.close(sequence)?;
    Ok(Held {
        seen: stats.position,
        rows: stats.rows,
    })
}

/// Bytes that may be promised to sequences in all, where there is a budget, so many of up to so many rows being active.
fn promisable(runtime: &Runtime, sequences: usize, rows: usize) -> Option<usize> {
    let scratch = runtime.scratch_bytes(sequences, sequences * BLOCK_SLOTS, rows);
    runtime.room_bytes(scratch)
}

/// Smaller portions of prompts; then none beside those who decode. `false`: it is as small as it gets.
fn shrink(wishes: &[Wish], takes: &mut [usize]) -> bool {
    let widest = takes.iter().copied().max().unwrap_or(0);
    if widest > BLOCK_SLOTS {
        takes
            .iter_mut()
            .for_each(|take| *take = (*take).min(BLOCK_SLOTS));
        return true;
    }
    let reads = |(wish, take): &(&Wish, &mut usize)| wish.pending > 1 && **take > 0;
    let readers: Vec<_> = wishes.iter().zip(takes.iter_mut()).filter(reads).collect();
    let decoders = wishes.iter().filter(|wish| wish.pending == 1).count();
    // One reader alone is the least there can be without a decoder.
    let kept = usize::from(decoders == 0);
    let spare = readers.len() > kept;
    readers
        .into_iter()
        .skip(kept)
        .for_each(|(_, take)| *take = 0);
    spare
}
