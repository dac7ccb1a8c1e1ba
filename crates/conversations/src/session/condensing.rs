//! The state of condensing a persistent stream: which text replaces it, and the second sequence that reads it.
//!
//! A [`Rebuild`] first judges sentences on a thread, then reads the shorter stream and the visible turns into a sequence
//! of its own, a few tokens at a time. `rebuild.rs` drives it and swaps the sequences at the end.

use super::condense::{CondenseError, CondenseSummary, Condensed};
use super::error::{SessionError, SharedError};
use super::layout::ChatLayout;
use super::slots::SessionId;
use super::transcript::{StoredTurn, Transcript};
use haversack_cache::CacheError;
use haversack_engine::runtime::{Runtime, SequenceId, StepError};
use haversack_engine::step::{LogitRows, StepSpan};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::thread::JoinHandle;

/// Most tokens of a rebuild that one step reads.
pub const STEP_TOKENS_MAX: usize = 32;

/// Most of them beside requests that decode, where another request waits for the shorter stream: a third of the gap between
/// their tokens that 32 make, and three quarters of the speed.
pub(crate) const AWAITED_TOKENS_MAX: usize = 8;

/// Tokens of a rebuild that one step reads beside other requests.
#[derive(Clone, Debug)]
pub(crate) struct RebuildShare {
    pub session: SessionId,
    pub sequence: SequenceId,
    pub position: u64,
    pub tokens: Vec<u32>,
}

/// Progress of condensing a session's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebuildProgress {
    /// The stream is within its limit, or could not be made shorter.
    Idle,
    /// A thread judges the sentences.
    Judging,
    /// The new stream and the visible turns are being read; tokens.
    Reading { done: usize, total: usize },
    /// The new stream is in place.
    Swapped(CondenseOutcome),
    /// The old stream stays.
    GivenUp(SharedError<RebuildError>),
}

/// Result of the last condensing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CondenseOutcome {
    /// The text that the session was created with.
    Opening(CondenseSummary),
    /// The stream of `before` tokens was replaced.
    Swapped {
        before: usize,
        after: CondenseSummary,
    },
    GivenUp(SharedError<RebuildError>),
}

impl fmt::Display for CondenseOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CondenseOutcome::Opening(summary) => write!(f, "{summary}"),
            CondenseOutcome::Swapped { before, after } => {
                write!(f, "{before} tokens of the persistent stream became {after}")
            }
            CondenseOutcome::GivenUp(error) => write!(f, "not condensed: {error}"),
        }
    }
}

/// Why the old stream stays.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    #[error("an answer needs the room")]
    Displaced,
    #[error("it was stopped")]
    Stopped,
    #[error("the budget has no room for {tokens} more tokens")]
    NoRoom { tokens: u64 },
    #[error(transparent)]
    Failed(Box<SessionError>),
}

impl<E: Into<SessionError>> From<E> for RebuildError {
    fn from(error: E) -> RebuildError {
        RebuildError::Failed(Box::new(error.into()))
    }
}

#[derive(Default)]
pub(super) struct Condensing {
    pub rebuild: Option<Rebuild>,
    /// The stream could not be condensed, and is not tried again until it changes.
    pub gave_up: bool,
    pub outcome: Option<CondenseOutcome>,
    /// No answer has reported the outcome yet.
    is_untold: bool,
}

pub(super) enum Rebuild {
    Judging {
        /// Facts that are judged.
        judged: Vec<u64>,
        thread: JoinHandle<Result<Condensed, CondenseError>>,
    },
    Reading(RebuildReading),
}

/// The sequence that will replace a session's own.
pub(crate) struct RebuildReading {
    /// `None` once an answer needed its memory.
    pub sequence: Option<SequenceId>,
    /// Tokens to read, of which `done` have been.
    pub tokens: Vec<u32>,
    pub done: usize,
    /// Facts that were judged; those not among `facts` are dropped.
    pub judged: Vec<u64>,
    pub facts: Vec<RebuiltFact>,
    pub turns: BTreeMap<u64, Range<u64>>,
    /// Start of the turn in progress, which is read as it is generated.
    pub mirror: Option<usize>,
    pub summary: CondenseSummary,
    pub failed: Option<RebuildError>,
}

pub(crate) struct RebuiltFact {
    pub number: u64,
    pub span: Range<u64>,
    pub text: String,
    pub verbatim: usize,
}

impl Condensing {
    /// The stream is another one: the next answer reports it.
    pub fn condensed(&mut self, outcome: Option<CondenseOutcome>) {
        self.is_untold = outcome.is_some();
        self.outcome = outcome;
    }

    /// What the next answer has to report.
    pub fn untold(&self) -> Option<CondenseOutcome> {
        self.outcome.clone().filter(|_| self.is_untold)
    }

    /// An answer has reported it.
    pub fn told(&mut self) {
        self.is_untold = false;
    }

    /// Keeps the old stream until the next fact.
    pub fn give_up(&mut self, session: &str, why: RebuildError) -> RebuildProgress {
        log::warn!("session {session} is not condensed: {why}");
        let why = SharedError::from(why);
        self.gave_up = true;
        self.outcome = Some(CondenseOutcome::GivenUp(why.clone()));
        self.is_untold = false;
        RebuildProgress::GivenUp(why)
    }

    /// Whether there is something to do other than to read: the judges are done, or everything is read, or it failed.
    pub fn is_due(&self) -> bool {
        match &self.rebuild {
            None => false,
            Some(Rebuild::Judging { thread, .. }) => thread.is_finished(),
            Some(Rebuild::Reading(reading)) => reading.failed.is_some() || reading.left() == 0,
        }
    }

    /// The rebuild, while it reads.
    pub fn reading(&mut self) -> Option<&mut RebuildReading> {
        match &mut self.rebuild {
            Some(Rebuild::Reading(reading)) => Some(reading),
            _ => None,
        }
    }

    /// Ends a rebuild; `false` where there is none.
    pub fn stop(&mut self, runtime: &mut Runtime) -> bool {
        match self.rebuild.take() {
            None => return false,
            // The thread runs to its end; its result is dropped.
            Some(Rebuild::Judging { .. }) => {}
            Some(Rebuild::Reading(mut reading)) => reading.close(runtime),
        }
        true
    }

    /// Hands the rebuild to the turn that answers this question, to be read along with the answer.
    pub fn lend(&mut self, question: &[u32]) -> Option<RebuildReading> {
        let mut reading = match self.rebuild.take()? {
            Rebuild::Reading(reading) => reading,
            judging => {
                self.rebuild = Some(judging);
                return None;
            }
        };
        reading.mirror = Some(reading.tokens.len());
        reading.queue(question);
        Some(reading)
    }

    /// Takes the rebuild back from a turn that was committed.
    pub fn give_back(&mut self, reading: Option<RebuildReading>, turn: u64, tokens: &[u32]) {
        let Some(mut reading) = reading else {
            return;
        };
        if let Some(start) = reading.mirror.take()
            && let Some(rest) = tokens.strip_prefix(&reading.tokens[start..])
        {
            reading.tokens.extend_from_slice(rest);
            let span = start as u64..reading.tokens.len() as u64;
            reading.turns.insert(turn, span);
        }
        self.rebuild = Some(Rebuild::Reading(reading));
    }

    /// Takes the rebuild back from a turn that was undone: it skips what it has not read of it yet.
    pub fn take_back(&mut self, reading: Option<RebuildReading>) {
        let Some(mut reading) = reading else {
            return;
        };
        if let Some(start) = reading.mirror.take() {
            reading.tokens.truncate(start.max(reading.done));
        }
        self.rebuild = Some(Rebuild::Reading(reading));
    }
}

impl RebuildReading {
    pub fn new(judged: Vec<u64>, summary: CondenseSummary) -> RebuildReading {
        RebuildReading {
            sequence: None,
            tokens: Vec::new(),
            done: 0,
            judged,
            facts: Vec::new(),
            turns: BTreeMap::new(),
            mirror: None,
            summary,
            failed: None,
        }
    }

    pub fn queue(&mut self, tokens: &[u32]) -> Range<u64> {
        let start = self.tokens.len() as u64;
        self.tokens.extend_from_slice(tokens);
        start..self.tokens.len() as u64
    }

    pub fn add_fact(
        &mut self,
        layout: &ChatLayout,
        now_ms: u64,
        number: u64,
        text: String,
        verbatim: usize,
    ) -> Result<(), RebuildError> {
        let tokens = match number {
            0 => layout.opening(&text, now_ms),
            _ => layout.fact(&text),
        };
        let span = self.queue(&tokens?);
        self.facts.push(RebuiltFact {
            number,
            span,
            text,
            verbatim,
        });
        Ok(())
    }

    /// Visible turns that it does not have yet.
    pub(super) fn missing<'a>(
        &'a self,
        transcript: &'a Transcript,
    ) -> impl Iterator<Item = &'a StoredTurn> {
        let turns = transcript.turns.iter().filter(|h| h.is_seen());
        turns.filter(|h| !self.turns.contains_key(&h.turn.number))
    }

    /// The next tokens, at most `tokens_max`.
    fn next(&self, tokens_max: usize) -> &[u32] {
        let left = &self.tokens[self.done..];
        &left[..left.len().min(tokens_max).min(STEP_TOKENS_MAX)]
    }

    /// Tokens that are queued and not read.
    pub fn left(&self) -> usize {
        self.tokens.len() - self.done
    }

    /// The next tokens, at most `tokens_max`; `None` where there are none, or it failed.
    pub fn share(&self, session: SessionId, tokens_max: usize) -> Option<RebuildShare> {
        let tokens = self.next(tokens_max);
        let sequence = self.sequence.filter(|_| self.failed.is_none())?;
        (!tokens.is_empty()).then(|| RebuildShare {
            session,
            sequence,
            position: self.done as u64,
            tokens: tokens.to_vec(),
        })
    }

    /// Notes what became of a share: it was read, or why it was not.
    pub fn note(&mut self, tokens: usize, read: Result<(), StepError>) {
        match read {
            Ok(()) => self.done += tokens,
            Err(error) => self.failed = Some(error.into()),
        }
    }

    /// The turn in progress goes on with these tokens.
    pub fn mirror(&mut self, tokens: &[u32]) {
        if self.mirror.is_some() {
            self.tokens.extend_from_slice(tokens);
        }
    }

    fn span(&self, sequence: SequenceId, tokens_max: usize) -> StepSpan<'_> {
        StepSpan {
            sequence,
            position: self.done as u64,
            tokens: self.next(tokens_max),
            want: LogitRows::Nothing,
        }
    }

    pub fn read(&mut self, runtime: &mut Runtime, tokens_max: usize) -> Result<(), RebuildError> {
        let count = self.next(tokens_max).len();
        if count > 0 {
            let sequence = self.sequence.ok_or(RebuildError::Displaced)?;
            runtime.step(&[self.span(sequence, count)])?;
            self.done += count;
        }
        Ok(())
    }

    /// Decodes one token of an answer and reads a few tokens of the rebuild in the same step, so that weights are fetched
    /// once for both. The answer has priority: where both do not fit the rebuild ends, and where the answer alone does
    /// not fit it gets the memory of the rebuild.
    pub fn decode_with(
        &mut self,
        runtime: &mut Runtime,
        id: SequenceId,
        token: u32,
        tokens_max: usize,
    ) -> Result<(), StepError> {
        let count = self.next(tokens_max).len();
        self.mirror(&[token]);
        if let (1.., None, Some(sequence)) = (count, &self.failed, self.sequence) {
            let answer = StepSpan {
                sequence: id,
                position: runtime.position(id)?,
                tokens: &[token],
                want: LogitRows::Last,
            };
            match runtime.step(&[answer, self.span(sequence, count)]) {
                Ok(_) => {
                    self.done += count;
                    return Ok(());
                }
                Err(error) => self.failed = Some(error.into()),
            }
        }
        match runtime.decode(id, token).map(|_| ()) {
            Err(StepError::Cache(CacheError::CannotFit(_))) if self.sequence.is_some() => {
                self.failed = Some(RebuildError::Displaced);
                self.close(runtime);
                runtime.decode(id, token).map(|_| ())
            }
            done => done,
        }
    }

    fn close(&mut self, runtime: &mut Runtime) {
        if let Some(sequence) = self.sequence.take() {
            close(runtime, sequence);
        }
    }
}

/// Closes a sequence that the rebuild owns.
pub(super) fn close(runtime: &mut Runtime, id: SequenceId) {
    if let Err(error) = runtime.close(id) {
        log::warn!("cannot close a sequence of a rebuild: {error}");
    }
}
