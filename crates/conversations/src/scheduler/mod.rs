//! Scheduler: requests wait until their worst-case bytes are available, then share every pass over the weights.
//!
//! ```text
//! submit ─► queue ─► admission (bytes promised) ─► batch ─► step ─► … ─► Completed | TurnSaved | Failed
//! ```
//!
//! [`queue`], [`plan`], [`row_limit`] and [`throttle`] decide and are pure. The tokens of a request do not depend on which other requests
//! run, when it was admitted, or how its prompt was cut into portions.

mod house;
mod job;
pub mod memory_report;
pub mod plan;
mod prefix_cache;
pub mod queue;
mod request;
pub mod row_limit;
pub mod throttle;
pub mod token_map;

pub use memory_report::{MemoryReport, SchedulerStats};
pub use plan::{Pace, Priority};
pub use prefix_cache::PrefixCacheStats;
pub use request::{
    Request, RequestError, RequestEvent, RequestId, RequestKind, RequestReport, SubmitError,
};
pub use row_limit::{LongPrompt, RowLimit};
pub use throttle::{StepLimits, Throttle, ThrottleChange};

use self::house::{Enters, House, promisable, reader};
use self::job::{Asked, Entry, Job, Turn, What, Work};
use self::plan::{Portion, Wish, plan};
use self::queue::{Admit, Queue, QueuedRequest};
use self::request::Deliver;
use crate::session::{SessionError, SessionId, Sessions};
use haversack_engine::device::Thermal;
use haversack_engine::runtime::completion::{Completed, Completion};
use haversack_engine::runtime::options::Policy;
use haversack_engine::runtime::{Finish, GenerateOptions, Keep, Runtime, StepError};
use haversack_engine::sample::Sampler;
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_memory::Reading;
use haversack_memory::zoo::{Bug, planted};
use std::cell::Cell;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct SchedulerOptions {
    /// Sequences of one step at most.
    pub batch: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// Sequences that are kept of requests that are over, for those who begin alike, while nobody needs their room.
    pub reuse: usize,
    /// Tokens of prompts that a step reads at most; fewer where that takes long, see [`Portion`].
    pub chunk: usize,
}

impl Default for SchedulerOptions {
    fn default() -> SchedulerOptions {
        SchedulerOptions {
            batch: 8,
            queue: 64,
            reuse: 0,
            // Reading 2,000 tokens takes SmolLM2 as long as in steps of 512, and a model of 1B 3 % longer.
            chunk: 64,
        }
    }
}

pub struct Scheduler {
    options: SchedulerOptions,
    pace: Pace,
    portion: Portion,
    queue: Queue<Entry>,
    house: House,
    ladder: Throttle,
    tickets: u64,
}

impl Scheduler {
    pub fn new(runtime: Runtime, options: SchedulerOptions) -> Scheduler {
        // A step of nobody would never end.
        let batch = options.batch.max(1);
        let options = SchedulerOptions { batch, ..options };
        let chunk = runtime.chunk().min(options.chunk.max(1));
        let pace = Pace { batch, chunk };
        Scheduler {
            options,
            pace,
            portion: Portion::new(chunk),
            queue: Queue::new(options.queue),
            ladder: Throttle::new(StepLimits {
                pace,
                threads: runtime.threads(),
            }),
            house: House::new(runtime, options.reuse),
            tickets: 0,
        }
    }

    /// With sessions over its runtime, none of which is open yet.
    pub fn with_sessions(mut self, sessions: Sessions) -> Scheduler {
        self.house.sessions = Some(sessions);
        self
    }

    /// How much a step may do from now on. Whoever has entered stays, and says the same.
    pub fn set_pace(&mut self, pace: Pace) {
        let batch = pace.batch.clamp(1, self.options.batch);
        self.pace = Pace { batch, ..pace };
    }

    /// Tells what the device says: how hot it is, if anybody knows, and what memory it has. Returns what changes, in
    /// words. Heat changes the pace; a shortage of memory sends sessions that do nothing to their files, then holds up
    /// who has not entered, and at last makes windows smaller where sequences have one. Nothing but that last changes a
    /// token, and nobody who has entered is sent away.
    pub fn observe(
        &mut self,
        thermal: Option<Thermal>,
        reading: &Reading,
        now: Duration,
    ) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(rung) = thermal.and_then(|thermal| self.ladder.decide(thermal, now)) {
            self.set_pace(rung.limits.pace);
            if planted(Bug::HeatDropsRequest) {
                self.house.active.truncate(self.pace.batch);
            }
            self.house.runtime.set_threads(rung.limits.threads);
            words.push(rung.to_string());
        }
        words.extend(self.house.observe(reading));
        self.house.runtime.observe(reading, now);
        words
    }

    /// How far down the ladder of heat it is; 0 is the top.
    pub fn throttle_level(&self) -> u8 {
        self.ladder.rung()
    }

    /// What became of prompts that begin like others.
    pub fn prefix_cache_stats(&self) -> PrefixCacheStats {
        self.house.past.reuse()
    }

    pub fn pace(&self) -> Pace {
        Pace {
            chunk: self.pace.chunk.min(self.portion.tokens()),
            ..self.pace
        }
    }

    pub fn runtime(&self) -> &Runtime {
        &self.house.runtime
    }

    /// For what does not concern sequences: threads, readings of the device.
    pub fn runtime_mut(&mut self) -> &mut Runtime {
        &mut self.house.runtime
    }

    pub(super) fn house(&self) -> &House {
        &self.house
    }

    pub fn sessions(&self) -> Option<&Sessions> {
        self.house.sessions.as_ref()
    }

    /// Does something with the sessions, between two steps. It cannot take what was promised to others.
    pub fn with_session<T>(
        &mut self,
        name: &str,
        go: impl FnOnce(&mut Runtime, &mut Sessions, SessionId) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        let id = self.house.open(name)?;
        self.house
            .aside(|runtime, sessions| go(runtime, sessions, id))
    }

    /// A new session: see [`Sessions::create_marked`]. Others that do nothing may leave memory for it.
    pub fn create_session(
        &mut self,
        name: &str,
        marked: &str,
        persistent: &str,
        now_ms: u64,
    ) -> Result<SessionId, SessionError> {
        self.house.add(None, |runtime, sessions| {
            sessions.create_marked(runtime, name, marked, persistent, now_ms)
        })
    }

    /// A second session that goes on from where one is: see [`Sessions::fork`].
    pub fn fork_session(&mut self, from: &str, name: &str) -> Result<SessionId, SessionError> {
        let id = self.house.open(from)?;
        self.house.add(Some(id), |runtime, sessions| {
            sessions.fork(runtime, id, name)
        })
    }

    /// Removes a session and its file, open or not. One that is answering is not removed.
    pub fn delete_session(&mut self, name: &str) -> Result<(), SessionError> {
        self.house.delete(name)
    }

    /// Puts away every session that does nothing, so that its file says all, and lets go of what was kept for requests to
    /// come.
    pub fn suspend_all(&mut self) {
        self.house.suspend_all();
    }

    /// So many bytes are kept beside all sequences from now on, in the ledger like everything else: what nobody was
    /// promised, and only where there is still room for somebody.
    pub fn reserve_bytes(&mut self, bytes: usize) -> Result<(), SubmitError> {
        self.house.keep_beside(bytes)
    }

    /// So many of them are kept no longer.
    pub fn release_bytes(&mut self, bytes: usize) {
        self.house.runtime.drop_beside(bytes);
        self.house.left += 1;
    }

    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub fn active(&self) -> usize {
        self.house.active.len()
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.house.is_empty()
    }

    /// Queues a request, or says at once why the scheduler could never serve it. A turn waits for the turn before it of
    /// the same session.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, SubmitError> {
        let (what, bytes) = match request.kind {
            RequestKind::Completion { prompt, rows } => {
                let (asked, bytes) =
                    self.prepare_completion(prompt, rows, request.owner, &request.options)?;
                (What::Request(Box::new(asked)), bytes)
            }
            RequestKind::Turn {
                session,
                text,
                embedding,
                now_ms,
            } => {
                let sessions = self.sessions().ok_or(SessionError::NoSessions)?;
                if !sessions.exists(&session) {
                    return Err(SessionError::NoSuchSession { name: session }.into());
                }
                let coming = sessions.turn_tokens(&text)?;
                // Reports bad stop strings now, not when the turn begins.
                Completion::within(&[], &request.options, None)?;
                let turn = Turn {
                    session,
                    text,
                    embedding,
                    now_ms,
                    options: request.options,
                    coming,
                    tried: Cell::new(None),
                };
                // What it needs depends on the state of its session when it begins.
                (What::Turn(Box::new(turn)), 0)
            }
        };
        let entry = Entry {
            ticket: RequestId(self.tickets),
            sampler: Sampler::new(request.sample)?.constrained(request.constraint),
            what,
        };
        let (priority, owner) = (request.priority, request.owner);
        self.queue
            .push(entry, priority, owner, bytes, request.deadline)?;
        self.tickets += 1;
        Ok(RequestId(self.tickets - 1))
    }

    /// Checks a completion. Returns its worst-case bytes with it.
    fn prepare_completion(
        &self,
        prompt: Vec<u32>,
        rows: Option<RowLimit>,
        owner: u64,
        options: &GenerateOptions,
    ) -> Result<(Asked, u64), SubmitError> {
        let runtime = &self.house.runtime;
        if prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        let vocabulary = runtime.model().config().vocab;
        let is_unknown = |&&token: &&u32| token as usize >= vocabulary;
        if let Some(&token) = prompt.iter().find(is_unknown) {
            return Err(SubmitError::UnknownToken { token, vocabulary });
        }
        let tokens = prompt.len();
        let answer = options.tokens_max.unwrap_or(usize::MAX);
        let keep = match &rows {
            Some(rows) => {
                if !planted(Bug::NegativeCount) {
                    rows.check()?;
                }
                rows.keep(tokens.saturating_add(answer))
            }
            None => usual(runtime),
        };
        let end = runtime.end_of(keep)?;
        let max = end.unwrap_or(usize::MAX);
        let read = match &rows {
            Some(rows) => rows.prompt_to_read(&prompt, answer),
            None => (tokens <= max).then(|| prompt.clone()),
        };
        let read = read.ok_or(SubmitError::PromptTooLong { tokens, max })?;
        let tokens = read.len().saturating_add(answer).min(max);
        let again = rows.filter(|rows| rows.rereads());
        let completion = match again {
            // Which rows it reads again depends on all tokens before.
            Some(_) => {
                let mut whole = Completion::within(&prompt, options, None)?;
                whole.read_again(read);
                whole
            }
            None => {
                let room = end.map(|end| end.saturating_sub(read.len()) as u64);
                Completion::within(&read, options, room)?
            }
        };
        let rows = runtime.rows_keeping(keep, tokens)?;
        let bytes = runtime.bytes_keeping(keep, rows)?;
        let counts = runtime.is_counting(keep)?;
        if let Some(max) = promisable(runtime, 1, usize::from(counts), rows)
            && bytes > max
        {
            return Err(SubmitError::TooManyBytes { bytes, max });
        }
        let asked = Asked {
            completion,
            keep,
            again,
            rows,
            owner,
            reused: 0,
            parts: None,
            counts,
        };
        Ok((asked, bytes as u64))
    }

    /// Nobody wants it any more: what it holds is free at once. What was said of a turn is part of its conversation, and
    /// ends there. Unknown tickets are of requests that are done.
    pub fn cancel(&mut self, ticket: RequestId) -> Result<(), StepError> {
        let is_out = |w: &QueuedRequest<Entry>| w.what.ticket == ticket && !planted(Bug::QueueLeak);
        let waited = !self.queue.take(is_out).is_empty();
        let hits_another = waited && planted(Bug::CancelHitsAnother);
        let House {
            active,
            runtime,
            left,
            past,
            ..
        } = &mut self.house;
        let is_it = |job: &Job| job.ticket == ticket || hits_another;
        let Some(i) = active.iter().position(is_it) else {
            return Ok(());
        };
        match active[i].work {
            Work::Request { sequence, .. } => {
                active.remove(i);
                *left += 1;
                past.forget(runtime, ticket)?;
                runtime.close(sequence)
            }
            Work::Turn(_) => {
                active[i].cancel();
                Ok(())
            }
        }
    }

    /// One step of all that can take part. `false`: there was nothing to do.
    pub fn step(&mut self, now: Duration, tell: Deliver<'_>) -> Result<bool, StepError> {
        self.portion.begin(now);
        self.expire(now, tell)?;
        self.admit(tell)?;
        self.house.renew()?;
        self.house.conclude(tell);
        self.house.end_judged(tell);
        if self.house.active.is_empty() {
            return Ok(!self.house.ending.is_empty());
        }
        let wishes: Vec<Wish> = self.house.active.iter().map(Job::wish).collect();
        let mut takes = plan(&wishes, self.pace());
        self.portion.reads(now, read_of(&wishes, &takes));
        loop {
            match self.house.compute(&mut takes) {
                Ok(()) => break,
                // What nobody was promised goes first.
                Err(error) if error.is_cannot_fit() && self.house.drop_past() => {}
                // Its promise covers a block of each, and decoding at least.
                Err(error) if error.is_cannot_fit() && shrink(&wishes, &mut takes) => {}
                Err(error) if error.is_cannot_fit() && self.house.step_back(&mut takes)? => {}
                Err(error) => return self.house.fail(&error, tell).map(|()| true),
            }
        }
        self.house.remember(&takes)?;
        self.house.deliver(&takes, tell)?;
        self.house.conclude(tell);
        Ok(true)
    }

    /// Ends those whose time is over.
    fn expire(&mut self, now: Duration, tell: Deliver<'_>) -> Result<(), StepError> {
        for late in self.queue.expired(now) {
            let completed = match late.what.what {
                What::Request(asked) => asked.completion.end(),
                What::Turn(_) => Completed {
                    text: String::new(),
                    tokens: Vec::new(),
                    finish: Finish::Cancelled,
                    shown: 0,
                },
            };
            let _ = tell(
                late.what.ticket,
                RequestEvent::Completed(completed, RequestReport::default()),
            );
        }
        let is_late = |job: &Job| job.deadline.is_some_and(|deadline| deadline <= now);
        for job in self.house.active.iter_mut().filter(|job| is_late(job)) {
            job.cancel();
        }
        self.house.leave_over(tell)
    }

    fn admit(&mut self, tell: Deliver<'_>) -> Result<(), StepError> {
        while self.house.active.len() < self.options.batch {
            let mut entered = Enters::NotYet;
            let first = first_turns(&self.queue);
            let house = &mut self.house;
            let next = self.queue.pop(|waiting| {
                entered = match &waiting.what.what {
                    What::Request(asked) => {
                        let of = reader(waiting.what.ticket, asked);
                        house.enter(asked, of, waiting.bytes as usize)
                    }
                    What::Turn(_) if !first.contains(&waiting.what.ticket) => Enters::NotYet,
                    What::Turn(turn) => house.enter_turn(turn),
                };
                match &entered {
                    Enters::NoRoom => Admit::NoMemory,
                    Enters::NotYet => Admit::Blocked,
                    _ => Admit::Now,
                }
            });
            let Some(next) = next else {
                break;
            };
            let Entry {
                ticket,
                sampler,
                what,
            } = next.what;
            let (work, bytes, rows, counts) = match (entered, what) {
                (
                    Enters::Sequence {
                        sequence,
                        read,
                        parts,
                    },
                    What::Request(mut asked),
                ) => {
                    asked.completion.read(read);
                    (asked.reused, asked.parts) = (read, parts);
                    let (rows, counts) = (asked.rows, asked.counts);
                    let work = Work::Request { asked, sequence };
                    (work, next.bytes as usize, rows, counts)
                }
                (
                    Enters::Turn {
                        saying,
                        bytes,
                        rows,
                    },
                    _,
                ) => (Work::Turn(saying), bytes, rows, false),
                (Enters::Never(error), _) => {
                    let _ = tell(ticket, RequestEvent::Failed(error.into()));
                    continue;
                }
                _ => continue,
            };
            self.house.active.push(Job {
                ticket,
                sampler,
                priority: next.priority,
                deadline: next.deadline,
                bytes,
                rows,
                counts,
                waited: 0,
                work,
            });
            if tell(ticket, RequestEvent::Admitted).is_break() {
                self.cancel(ticket)?;
            }
        }
        Ok(())
    }
}

/// Of each session, the turn that came first of those that wait: whoever asks, a conversation has an order.
fn first_turns(queue: &Queue<Entry>) -> Vec<RequestId> {
    let mut sessions: Vec<&str> = Vec::new();
    let mut first = Vec::new();
    for waiting in queue.iter() {
        if let What::Turn(turn) = &waiting.what.what
            && !sessions.contains(&&turn.session[..])
        {
            sessions.push(&turn.session);
            first.push(waiting.what.ticket);
        }
    }
    first
}

/// What a request keeps that says nothing: where sessions manage their rows, everything there is room for.
fn usual(runtime: &Runtime) -> Keep {
    let context = runtime.model().config().context;
    match runtime.retention().policy {
        Policy::Streams => Keep::All {
            tokens: runtime.bounds().rows_max.min(context),
        },
        _ => Keep::Usual,
    }
}

/// Tokens of prompts among those.
fn read_of(wishes: &[Wish], takes: &[usize]) -> usize {
    let readers = wishes.iter().zip(takes).filter(|(w, _)| !w.is_decode());
    readers.map(|(_, take)| take).sum()
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
    let decoders = wishes.iter().filter(|wish| wish.is_decode()).count();
    // One reader alone is the least there can be without a decoder.
    let kept = usize::from(decoders == 0);
    let spare = readers.len() > kept;
    readers
        .into_iter()
        .skip(kept)
        .for_each(|(_, take)| *take = 0);
    spare
}
