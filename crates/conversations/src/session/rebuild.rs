//! A persistent stream over its cap, made short while answers go on: judged on a thread of its own, read into a second
//! sequence a few tokens at a time, and put in the first one's place between two turns.
//!
//! ```text
//! sequence   opening ┬ fact 1 ┬ turn 0 ┬ turn 1 ┬ fact 2 ┬ turn 2 …          answers come from here
//! shadow     shorter opening ┬ fact 1 ┬ fact 2 ┬ turn 1 ┬ turn 2 …           read beside them, then swapped
//! ```
//!
//! The shadow has what is visible and nothing else. Turns that are in memory and hidden, or spilled, have rows that
//! belong to the old positions: after the swap the file has their ids alone, and they are read again if they matter.
//!
//! What this is not: it does not decide what stays ([`super::condense`] does), and starts nothing by itself but the
//! thread that judges: whoever owns the runtime calls [`Sessions::work`], and [`Sessions::say`] takes a few tokens along
//! with each of an answer.
//!
//! Invariants: the swap happens between turns, in memory and in the file at once, or not at all; until then, and
//! whatever fails, the old sequence is as it was; the shadow's bytes are the budget's, and it gives way where an answer
//! needs them.

use super::condense::{Asked, Condense, CondenseError, Condensed, Extractive, Piece};
use super::paged_vec::PagedVec;
use super::record::{Change, FACT, FactRecord};
use super::session::fits;
use super::turns::Place;
use super::{Fact, Held, Layout, Session, SessionError, SessionId, SessionOptions, Sessions};
use haversack_cache::CacheError;
use haversack_engine::model::Model;
use haversack_engine::model::forward::{Span, Want};
use haversack_engine::runtime::{Runtime, SequenceId, StepError};
use haversack_memory::background;
use haversack_memory::journal::RecordRef;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Tokens of the shadow that are read in one step at most.
pub const STEP_TOKENS_MAX: usize = 32;

/// How much longer than its cap a text may be at the start: what is longer is a document, not a persistent stream.
const TEXT_CAPS_MAX: usize = 8;

const NO_ROOM: &str = "an answer needs the room";

/// How far a condensing is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The stream is within its cap, or there was no way to make it shorter.
    Idle,
    /// Sentences are being judged.
    Judging,
    /// The new stream and the turns are being read; tokens.
    Reading { done: usize, total: usize },
    /// The new stream is in place. What was done, in words.
    Swapped(String),
    /// The old stream stays. Why, in words.
    GivenUp(String),
}

/// A condensing under way.
pub(super) enum Shadow {
    Judging {
        /// Facts that are judged.
        asked: Vec<u64>,
        thread: JoinHandle<Result<Condensed, CondenseError>>,
    },
    Reading(Reading),
}

/// A sequence that is to take another's place.
pub(super) struct Reading {
    /// `None` once its room was needed.
    sequence: Option<SequenceId>,
    /// What it will have read, of which `done` has been.
    tokens: Vec<u32>,
    done: usize,
    /// Facts that were judged; what of them is not among `facts` goes.
    asked: Vec<u64>,
    facts: Vec<Told>,
    turns: BTreeMap<u64, Range<u64>>,
    /// Where the turn under way begins.
    mirror: Option<usize>,
    words: String,
    failed: Option<String>,
}

struct Told {
    number: u64,
    span: Range<u64>,
    text: String,
    verbatim: usize,
}

/// What a swap changes, as it was.
struct Before {
    sequence: SequenceId,
    facts: Vec<Fact>,
    turns: PagedVec<Held>,
    forgotten: u64,
    columns: BTreeMap<u64, RecordRef>,
    state: Option<RecordRef>,
    pending: Vec<(u32, Vec<u8>)>,
    needed_bytes: u64,
}

impl Sessions {
    /// With it a stream over its cap is condensed another way than by leaving sentences out.
    pub fn with_condenser(self, condenser: Arc<dyn Condense>) -> Sessions {
        Sessions {
            condenser: Some(condenser),
            ..self
        }
    }

    /// A little of what is to be done in the background, between two turns: begins to condense a stream over its cap,
    /// reads at most so many tokens, swaps. Costs nothing where nothing is to be done.
    pub fn work(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        tokens_max: usize,
    ) -> Result<Progress, SessionError> {
        let condenser = self.condenser();
        let options = self.options.clone();
        let session = self.session_mut(id)?;
        let (asked, thread) = match session.shadow.take() {
            None if session.persistent() <= options.persistent_max || session.gave_up => {
                return Ok(Progress::Idle);
            }
            None => {
                session.shadow = Some(session.judge(runtime.model(), condenser, &options));
                return Ok(Progress::Judging);
            }
            Some(Shadow::Reading(reading)) => {
                return Ok(session.read_on(runtime, reading, tokens_max, &options));
            }
            Some(Shadow::Judging { asked, thread }) => (asked, thread),
        };
        if !thread.is_finished() {
            session.shadow = Some(Shadow::Judging { asked, thread });
            return Ok(Progress::Judging);
        }
        let judged = thread.join().unwrap_or(Err(CondenseError::Died));
        let begun = judged
            .map_err(|e| e.to_string())
            .and_then(|condensed| session.begin(runtime, asked, condensed, &options));
        Ok(match begun {
            Ok(reading) => {
                let (done, total) = (0, reading.tokens.len());
                session.shadow = Some(Shadow::Reading(reading));
                Progress::Reading { done, total }
            }
            Err(why) => session.give_up(why),
        })
    }

    /// [`Sessions::work`] until nothing is left to do. Waits for the judging thread.
    pub fn settle(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
    ) -> Result<Progress, SessionError> {
        loop {
            match self.work(runtime, id, STEP_TOKENS_MAX)? {
                Progress::Judging => std::thread::sleep(std::time::Duration::from_millis(1)),
                Progress::Reading { .. } => {}
                ended => return Ok(ended),
            }
        }
    }

    /// Stops condensing. The old stream stays until the next fact comes.
    pub fn stop_condensing(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
    ) -> Result<(), SessionError> {
        let session = self.session_mut(id)?;
        if session.drop_shadow(runtime) {
            session.give_up("it was stopped".into());
        }
        Ok(())
    }

    /// A fact is never shortened nor left out, or may be again. Of the opening nothing can be marked later: see
    /// [`Sessions::create_marked`].
    pub fn mark_fact(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        number: u64,
        is_verbatim: bool,
    ) -> Result<(), SessionError> {
        let options = self.options.clone();
        let session = self.session_mut(id)?;
        session.check_fact(number)?;
        // What was judged before does not know of it.
        session.drop_shadow(runtime);
        session.gave_up = false;
        session.mark(number, if is_verbatim { usize::MAX } else { 0 });
        session.save(runtime, &options);
        Ok(())
    }

    fn condenser(&self) -> Arc<dyn Condense> {
        match &self.condenser {
            Some(condenser) => condenser.clone(),
            None => Arc::new(Extractive {
                encoder: self.encoder.clone(),
            }),
        }
    }

    /// An opening that is within the cap: the text, or what is left of it. And how many bytes of it are marked.
    pub(super) fn condensed(
        &self,
        now_ms: u64,
        marked: &str,
        text: &str,
    ) -> Result<(Piece, Option<String>), SessionError> {
        let between = match marked.is_empty() || text.is_empty() {
            true => "",
            false => "\n",
        };
        let piece = Piece {
            text: format!("{marked}{between}{text}"),
            verbatim: marked.len(),
        };
        let tokens = self.layout.opening(&piece.text, now_ms)?;
        if tokens.len() <= self.options.persistent_max {
            return Ok((piece, None));
        }
        self.check_tokens(
            tokens.len(),
            self.options.persistent_max.saturating_mul(TEXT_CAPS_MAX),
        )?;
        let pieces = [piece];
        let condenser = self.condenser();
        let condensed = run(&*condenser, &self.layout, now_ms, &pieces, &self.options)?;
        let words = condensed.to_string();
        log::info!("the persistent text has {} tokens: {words}", tokens.len());
        let [piece] = pieces;
        let verbatim = piece.verbatim_in(&condensed.pieces[0]);
        let text = condensed.pieces.into_iter().next().unwrap_or_default();
        Ok((Piece { text, verbatim }, Some(words)))
    }
}

/// Condenses the opening, which is the first piece, and facts, to what is aimed at; where what is marked has no room in
/// that, to the cap.
fn run(
    condenser: &dyn Condense,
    layout: &Layout,
    now_ms: u64,
    pieces: &[Piece],
    options: &SessionOptions,
) -> Result<Condensed, CondenseError> {
    let count = |i: usize, text: &str| {
        let tokens = match i {
            0 => layout.opening(text, now_ms),
            _ if text.is_empty() => return 0,
            _ => layout.fact(text),
        };
        tokens.map_or(usize::MAX, |tokens| tokens.len())
    };
    let asked = |tokens_max| Asked {
        pieces,
        tokens_max,
        count: &count,
    };
    let most = options.persistent_max;
    match condenser.condense(&asked(options.condensed_max.min(most))) {
        Err(CondenseError::Verbatim { .. }) => condenser.condense(&asked(most)),
        condensed => condensed,
    }
}

impl Session {
    /// Begins to judge, on a thread.
    fn judge(
        &self,
        model: &Arc<Model>,
        condenser: Arc<dyn Condense>,
        options: &SessionOptions,
    ) -> Shadow {
        let (model, options) = (model.clone(), options.clone());
        let now_ms = self.last_time_ms;
        let piece = |fact: &Fact| Piece {
            text: fact.text.clone(),
            verbatim: fact.verbatim,
        };
        let pieces: Vec<Piece> = self.facts.iter().map(piece).collect();
        Shadow::Judging {
            asked: self.facts.iter().map(|f| f.number).collect(),
            thread: std::thread::spawn(move || {
                background::give_way();
                run(&*condenser, &Layout::new(model), now_ms, &pieces, &options)
            }),
        }
    }

    /// Opens the shadow and says what it will read.
    fn begin(
        &mut self,
        runtime: &mut Runtime,
        asked: Vec<u64>,
        condensed: Condensed,
        options: &SessionOptions,
    ) -> Result<Reading, String> {
        let model = runtime.model().clone();
        let layout = Layout::new(model);
        let mut reading = Reading {
            sequence: None,
            tokens: Vec::new(),
            done: 0,
            asked,
            facts: Vec::new(),
            turns: BTreeMap::new(),
            mirror: None,
            words: condensed.to_string(),
            failed: None,
        };
        let asked = reading.asked.clone();
        for (&number, text) in asked.iter().zip(condensed.pieces) {
            let Some(fact) = self.facts.iter().find(|f| f.number == number) else {
                continue;
            };
            if text.is_empty() && number > 0 {
                continue;
            }
            let verbatim = Piece {
                text: fact.text.clone(),
                verbatim: fact.verbatim,
            };
            let verbatim = verbatim.verbatim_in(&text);
            reading.tell(&layout, self.last_time_ms, number, text, verbatim)?;
        }
        // What leaves memory need not be read twice.
        loop {
            let mut trial = reading.turns_missing(self);
            trial.push(options.answer_max as u64);
            let coming = reading.tokens.len() as u64 + trial.iter().sum::<u64>();
            if fits(runtime, None, coming).unwrap_or(false) {
                break;
            }
            if self.journal.is_none() || !self.spill_one(options.last) {
                return Err(format!("the budget has no room for {coming} more tokens"));
            }
            self.mask(runtime).map_err(|e| e.to_string())?;
        }
        self.extend(&layout, &mut reading)?;
        reading.sequence = Some(runtime.open().map_err(|e| e.to_string())?);
        Ok(reading)
    }

    /// Adds to what the shadow will read whatever became visible since.
    fn extend(&self, layout: &Layout, reading: &mut Reading) -> Result<(), String> {
        for fact in &self.facts {
            let known = reading.asked.contains(&fact.number)
                || reading.facts.iter().any(|f| f.number == fact.number);
            if !known {
                reading.tell(
                    layout,
                    self.last_time_ms,
                    fact.number,
                    fact.text.clone(),
                    fact.verbatim,
                )?;
            }
        }
        for held in self.turns.iter().filter(|h| is_seen(h)) {
            let number = held.turn.number;
            if !reading.turns.contains_key(&number) {
                let record = self.turn_record(held).map_err(|e| e.to_string())?;
                let span = reading.queue(&record.tokens);
                reading.turns.insert(number, span);
            }
        }
        Ok(())
    }

    /// Reads on, and swaps at the end.
    fn read_on(
        &mut self,
        runtime: &mut Runtime,
        mut reading: Reading,
        tokens_max: usize,
        options: &SessionOptions,
    ) -> Progress {
        let model = runtime.model().clone();
        let layout = Layout::new(model);
        let mut done = self.extend(&layout, &mut reading);
        if let Some(why) = reading.failed.take() {
            done = Err(why);
        }
        let read = done.and_then(|()| reading.read(runtime, tokens_max));
        if let Err(why) = read {
            self.shadow = Some(Shadow::Reading(reading));
            self.drop_shadow(runtime);
            return self.give_up(why);
        }
        let (done, total) = (reading.done, reading.tokens.len());
        if done < total {
            self.shadow = Some(Shadow::Reading(reading));
            return Progress::Reading { done, total };
        }
        let Some(sequence) = reading.sequence else {
            return self.give_up(NO_ROOM.into());
        };
        let words = reading.words.clone();
        let old = self.persistent();
        match self.swap(runtime, reading, sequence, options) {
            Ok(()) => {
                let words = format!("{old} tokens of the persistent stream became {words}");
                log::info!("session {}: {words}", self.name);
                self.condensed = Some(words.clone());
                Progress::Swapped(words)
            }
            Err(why) => {
                close(runtime, sequence);
                self.give_up(why)
            }
        }
    }

    /// The shadow takes the sequence's place, in memory and in the file, or nothing changes.
    fn swap(
        &mut self,
        runtime: &mut Runtime,
        reading: Reading,
        sequence: SequenceId,
        options: &SessionOptions,
    ) -> Result<(), String> {
        let before = Before {
            sequence: std::mem::replace(&mut self.sequence, sequence),
            facts: std::mem::take(&mut self.facts),
            turns: self.turns.clone(),
            forgotten: self.forgotten,
            columns: std::mem::take(&mut self.columns),
            state: self.state,
            pending: self.pending.clone(),
            needed_bytes: self.needed_bytes,
        };
        let records = before.facts.iter().filter_map(|f| f.record);
        for record in records.chain(before.columns.values().copied()) {
            self.release_record(Some(record));
        }
        self.pending.retain(|(kind, _)| *kind != FACT);
        self.change(Change::Renewed);
        for fact in &before.facts {
            self.change(Change::Revoked { fact: fact.number });
        }
        let holds = |told: &Told| before.facts.iter().any(|f| f.number == told.number);
        for told in reading.facts.into_iter().filter(holds) {
            let (start, end) = (told.span.start as usize, told.span.end as usize);
            let record = FactRecord {
                number: told.number,
                start: told.span.start,
                time_ms: self.last_time_ms,
                supersedes: None,
                tokens: reading.tokens[start..end].to_vec(),
                text: told.text,
            };
            self.pending.push((FACT, record.to_bytes()));
            self.facts.push(Fact {
                number: told.number,
                span: told.span,
                text: record.text,
                verbatim: 0,
                record: None,
            });
            if told.verbatim > 0 {
                self.mark(told.number, told.verbatim);
            }
        }
        for number in before.turns.iter().map(|h| h.turn.number) {
            self.carry_over(number, reading.turns.get(&number));
        }
        let saved = self.mask(runtime).and_then(|()| match self.journal {
            Some(_) => self.try_save(runtime, options),
            None => {
                self.save(runtime, options);
                Ok(())
            }
        });
        if let Err(error) = saved {
            if let Some(journal) = &mut self.journal {
                journal.abandon();
            }
            self.restore(before);
            return Err(error.to_string());
        }
        self.unsaved = None;
        close(runtime, before.sequence);
        Ok(())
    }

    /// Where a turn is after a swap: where the shadow has it, or nowhere but in the file.
    fn carry_over(&mut self, number: u64, span: Option<&Range<u64>>) {
        let Some(i) = self.turns.iter().position(|h| h.turn.number == number) else {
            return;
        };
        let turn = &mut self.turns[i].turn;
        match (turn.place, span) {
            (Place::Ids, _) => return,
            (Place::Live, Some(span)) => turn.span = span.clone(),
            // Its rows belong to positions that are no more.
            _ if self.journal.is_some() => {
                turn.place = Place::Ids;
                turn.is_visible = false;
                turn.is_pinned = false;
            }
            _ => {
                self.forget(i);
                return;
            }
        }
        let (place, start) = (turn.place, turn.span.start);
        self.change(Change::Moved {
            turn: number,
            place,
            start,
        });
    }

    fn restore(&mut self, before: Before) {
        self.sequence = before.sequence;
        self.facts = before.facts;
        self.turns = before.turns;
        self.forgotten = before.forgotten;
        self.columns = before.columns;
        self.state = before.state;
        self.pending = before.pending;
        self.needed_bytes = before.needed_bytes;
    }

    fn give_up(&mut self, why: String) -> Progress {
        log::warn!("session {} is not condensed: {why}", self.name);
        self.gave_up = true;
        self.condensed = Some(format!("not condensed: {why}"));
        Progress::GivenUp(why)
    }

    /// Ends a condensing; `false` where there is none.
    pub(super) fn drop_shadow(&mut self, runtime: &mut Runtime) -> bool {
        match self.shadow.take() {
            None => return false,
            // The thread ends by itself, and nobody hears of it.
            Some(Shadow::Judging { .. }) => {}
            Some(Shadow::Reading(mut reading)) => reading.close(runtime),
        }
        true
    }

    /// The shadow gives way to an answer that has no room beside it.
    pub(super) fn give_way(&mut self, runtime: &mut Runtime, coming: u64) {
        if matches!(self.shadow, Some(Shadow::Reading(_)))
            && !fits(runtime, Some(self.sequence), coming).unwrap_or(false)
        {
            self.drop_shadow(runtime);
            self.give_up(NO_ROOM.into());
        }
    }

    /// So many bytes of a fact stay word for word.
    pub(super) fn mark(&mut self, number: u64, bytes: usize) {
        let Some(fact) = self.facts.iter_mut().find(|f| f.number == number) else {
            return;
        };
        fact.verbatim = bytes.min(fact.text.len());
        let bytes = fact.verbatim as u64;
        self.change(Change::Verbatim {
            fact: number,
            bytes,
        });
    }

    /// The shadow, to be read beside an answer to this question.
    pub(super) fn lend(&mut self, question: &[u32]) -> Option<Reading> {
        let mut reading = match self.shadow.take()? {
            Shadow::Reading(reading) => reading,
            judging => {
                self.shadow = Some(judging);
                return None;
            }
        };
        reading.mirror = Some(reading.tokens.len());
        reading.queue(question);
        Some(reading)
    }

    pub(super) fn give_back(&mut self, reading: Option<Reading>) {
        if let Some(reading) = reading {
            self.shadow = Some(Shadow::Reading(reading));
        }
    }

    /// The turn under way has become none. What the shadow has not read of it, it need not.
    pub(super) fn unmirror(&mut self) {
        if let Some(Shadow::Reading(reading)) = &mut self.shadow
            && let Some(start) = reading.mirror.take()
        {
            reading.tokens.truncate(start.max(reading.done));
        }
    }

    /// The turn under way has become one. What the shadow read of it is the beginning of it, or nobody's.
    pub(super) fn mirrored(&mut self, number: u64, tokens: &[u32]) {
        let Some(Shadow::Reading(reading)) = &mut self.shadow else {
            return;
        };
        let Some(start) = reading.mirror.take() else {
            return;
        };
        if let Some(rest) = tokens.strip_prefix(&reading.tokens[start..]) {
            reading.tokens.extend_from_slice(rest);
            let span = start as u64..reading.tokens.len() as u64;
            reading.turns.insert(number, span);
        }
    }
}

impl Reading {
    fn queue(&mut self, tokens: &[u32]) -> Range<u64> {
        let start = self.tokens.len() as u64;
        self.tokens.extend_from_slice(tokens);
        start..self.tokens.len() as u64
    }

    fn tell(
        &mut self,
        layout: &Layout,
        now_ms: u64,
        number: u64,
        text: String,
        verbatim: usize,
    ) -> Result<(), String> {
        let tokens = match number {
            0 => layout.opening(&text, now_ms),
            _ => layout.fact(&text),
        };
        let span = self.queue(&tokens.map_err(|e| e.to_string())?);
        self.facts.push(Told {
            number,
            span,
            text,
            verbatim,
        });
        Ok(())
    }

    /// Tokens of turns that it would have to read.
    fn turns_missing(&self, session: &Session) -> Vec<u64> {
        let missing = |h: &&Held| is_seen(h) && !self.turns.contains_key(&h.turn.number);
        let turns = session.turns.iter().filter(missing);
        turns.map(|h| h.turn.tokens()).collect()
    }

    /// The next tokens, at most so many.
    fn next(&self, tokens_max: usize) -> &[u32] {
        let left = &self.tokens[self.done..];
        &left[..left.len().min(tokens_max).min(STEP_TOKENS_MAX)]
    }

    fn span(&self, sequence: SequenceId, tokens_max: usize) -> Span<'_> {
        Span {
            sequence,
            position: self.done as u64,
            tokens: self.next(tokens_max),
            want: Want::Nothing,
        }
    }

    fn read(&mut self, runtime: &mut Runtime, tokens_max: usize) -> Result<(), String> {
        let count = self.next(tokens_max).len();
        if count > 0 {
            let sequence = self.sequence.ok_or(NO_ROOM)?;
            let read = runtime.step(&[self.span(sequence, count)]);
            read.map_err(|e| e.to_string())?;
            self.done += count;
        }
        Ok(())
    }

    /// One token of an answer, and a few of the shadow in the same step: weights are fetched once for both. The answer
    /// comes first in everything: where both cannot be had the shadow ends, and where the answer alone has no room it
    /// gets the shadow's.
    pub(super) fn decode_beside(
        &mut self,
        runtime: &mut Runtime,
        id: SequenceId,
        token: u32,
        tokens_max: usize,
    ) -> Result<(), StepError> {
        let count = self.next(tokens_max).len();
        if self.mirror.is_some() {
            self.tokens.push(token);
        }
        if let (1.., None, Some(sequence)) = (count, &self.failed, self.sequence) {
            let answer = Span {
                sequence: id,
                position: runtime.position(id)?,
                tokens: &[token],
                want: Want::Last,
            };
            match runtime.step(&[answer, self.span(sequence, count)]) {
                Ok(_) => {
                    self.done += count;
                    return Ok(());
                }
                Err(error) => self.failed = Some(error.to_string()),
            }
        }
        match runtime.decode(id, token).map(|_| ()) {
            Err(StepError::Cache(CacheError::CannotFit(_))) if self.sequence.is_some() => {
                self.failed = Some(NO_ROOM.into());
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

impl Piece {
    /// How much of what is left of this is marked: all of what was, without the space around it.
    fn verbatim_in(&self, left: &str) -> usize {
        match left == self.text {
            true => self.verbatim.min(left.len()),
            false => self.marked().len().min(left.len()),
        }
    }
}

impl Fact {
    /// What the file says of it beside the fact itself.
    pub(super) fn marked(&self) -> Option<Change> {
        let (fact, bytes) = (self.number, self.verbatim as u64);
        (bytes > 0).then_some(Change::Verbatim { fact, bytes })
    }
}

fn is_seen(held: &Held) -> bool {
    held.turn.place == Place::Live && held.turn.is_visible
}

/// A sequence that is this module's own cannot be closed twice.
fn close(runtime: &mut Runtime, id: SequenceId) {
    if let Err(error) = runtime.close(id) {
        log::warn!("a sequence that should be open is not: {error}");
    }
}
