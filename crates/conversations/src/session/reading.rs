//! What a session reads without answering: the opening and the history of a new one, a fact, a state.
//!
//! ```text
//! the caller's thread                          the owner of the runtime
//! text ─► SessionTexts: limits, tokens ─► SessionRead ─► begin ─► ReadInProgress: tokens, portion by portion ─► advance
//! ```
//!
//! Tokens are read by what steps the runtime: the scheduler beside other requests, or [`ReadInProgress::finish`] alone.
//! A history is read in runs of as many turns as there is room for, without a border between turns; after each run the
//! turns are saved, and the oldest leave memory for the next run.
//!
//! Dropping a read undoes it: a session that existed is as it was before, a new one is gone with its file.

use super::error::{SessionError, SessionResult};
use super::limits::SessionSettings;
use super::log::{RunningSave, StartedSave};
use super::open_session::OpenSession;
use super::owner::SessionName;
use super::record::{FactRecord, TurnRecord};
use super::residency::feed;
use super::sessions::Sessions;
use super::slots::SessionId;
use super::texts::{Opening, ToldText, ToldTurn};
use super::undo::{Undo, UndoOnDrop};
use haversack_cache::PositionMode;
use haversack_engine::runtime::{Runtime, SequenceId};
use std::collections::VecDeque;
use std::time::Duration;

/// What a session is to read.
#[derive(Clone, Debug)]
pub enum SessionRead {
    /// A new session.
    Create {
        opening: Opening,
        history: VecDeque<ToldTurn>,
    },
    /// Replaces the fact `supersedes`, if given.
    Fact {
        fact: ToldText,
        supersedes: Option<u64>,
        /// The turn that says it, where it was not told as a fact.
        found_in: Option<u64>,
    },
    /// Replaces the state `instead`, if given.
    State {
        state: ToldText,
        instead: Option<u64>,
    },
}

impl SessionRead {
    /// Creates a session with nothing before its opening.
    pub fn create(opening: Opening) -> SessionRead {
        SessionRead::Create {
            opening,
            history: VecDeque::new(),
        }
    }

    /// Tokens to read, all together.
    pub fn tokens(&self) -> usize {
        match self {
            SessionRead::Create { opening, history } => {
                let turns = history.iter().map(|turn| turn.tokens.len());
                opening.tokens.len() + turns.sum::<usize>()
            }
            SessionRead::Fact { fact: told, .. } | SessionRead::State { state: told, .. } => {
                told.tokens.len()
            }
        }
    }

    /// Creates the session, or takes hold of it. Its tokens are not read yet.
    pub fn begin(
        &self,
        runtime: &mut Runtime,
        sessions: &mut Sessions,
        name: SessionName<'_>,
        now_ms: u64,
    ) -> SessionResult<BegunRead> {
        let SessionRead::Create { opening, .. } = self else {
            let id = sessions.opened(name);
            let missing = || SessionError::NoSuchSession {
                name: name.name.into(),
            };
            return self.begin_in(runtime, sessions, id.ok_or_else(missing)?);
        };
        let (session, is_computed) = sessions.begin_new(runtime, name, opening, now_ms)?;
        Ok(BegunRead {
            session,
            sequence: sessions.sequence(session)?,
            start: 0,
            is_computed,
            undo: sessions.dropped().guard(Undo::NewSession(session)),
        })
    }

    /// Takes hold of a session that is open.
    pub(super) fn begin_in(
        &self,
        runtime: &mut Runtime,
        sessions: &mut Sessions,
        id: SessionId,
    ) -> SessionResult<BegunRead> {
        let dropped = sessions.dropped();
        let session = sessions.session_mut(runtime, id)?;
        match self {
            SessionRead::Create { .. } => {}
            SessionRead::Fact {
                fact,
                supersedes,
                found_in,
            } => {
                if let Some(turn) = found_in {
                    session.transcript.check_turn(*turn)?;
                }
                session.check_fact(fact.tokens.len(), *supersedes)?;
            }
            SessionRead::State { state, instead } => {
                session.check_state(state.tokens.len(), *instead)?;
            }
        }
        session.make_room(runtime, self.tokens() as u64)?;
        let sequence = session.residency.sequence;
        let start = runtime.position(sequence)?;
        let undo = session.undo_to_here(runtime, id)?;
        let undo = dropped.guard(Undo::Turn(Box::new(undo)));
        // Rows of a text that is read behind the same words know little more than where to look for them, and are of no use
        // once those have left memory. So it is read without them.
        let says_again = matches!(self, SessionRead::Fact { found_in, .. } if found_in.is_some());
        if says_again {
            let residency = &session.residency;
            residency.mask_turns(runtime, &session.transcript)?;
        }
        session.is_answering = true;
        Ok(BegunRead {
            session: id,
            sequence,
            start,
            is_computed: false,
            undo,
        })
    }
}

/// A session that is about to read. Dropping it undoes it.
#[must_use]
pub struct BegunRead {
    session: SessionId,
    sequence: SequenceId,
    /// Position of the first token.
    start: u64,
    /// The opening was found computed.
    is_computed: bool,
    undo: UndoOnDrop,
}

impl BegunRead {
    /// Nothing is to be undone any more.
    fn read_all<'a>(
        &mut self,
        runtime: &mut Runtime,
        sessions: &'a mut Sessions,
    ) -> SessionResult<&'a mut OpenSession> {
        if let Some(undo) = self.undo.commit() {
            runtime.close(undo.backup)?;
        }
        let session = sessions.any_session_mut(self.session)?;
        session.is_answering = false;
        Ok(session)
    }
}

/// A read in progress. Its session does nothing else until it is over. Dropping it undoes it, from the next call of
/// [`Sessions`] on.
#[must_use]
pub struct ReadInProgress {
    begun: BegunRead,
    read: SessionRead,
    now_ms: u64,
    /// Tokens of this run, and how many of them have been read.
    run: Vec<u32>,
    done: usize,
    /// Turns of this run, of a history.
    turns: Vec<ToldTurn>,
    is_opened: bool,
    /// The tokens of this run are part of the session.
    is_taken_in: bool,
    /// Of this run.
    save: Option<RunningSave>,
}

impl ReadInProgress {
    pub fn new(begun: BegunRead, read: SessionRead, now_ms: u64) -> ReadInProgress {
        let run = match &read {
            SessionRead::Create { .. } if begun.is_computed => Vec::new(),
            SessionRead::Create { opening, .. } => opening.tokens.clone(),
            SessionRead::Fact { fact: told, .. } | SessionRead::State { state: told, .. } => {
                told.tokens.clone()
            }
        };
        ReadInProgress {
            begun,
            read,
            now_ms,
            run,
            done: 0,
            turns: Vec::new(),
            is_opened: false,
            is_taken_in: false,
            save: None,
        }
    }

    pub fn session(&self) -> SessionId {
        self.begun.session
    }

    /// The sequence that its tokens are read into.
    pub fn sequence(&self) -> SequenceId {
        self.begun.sequence
    }

    /// Tokens to be read next.
    pub fn pending(&self) -> &[u32] {
        &self.run[self.done..]
    }

    /// Notes that the first `count` of them are in the sequence.
    pub fn read(&mut self, count: usize) {
        self.done = (self.done + count).min(self.run.len());
    }

    /// Whether another thread waits for the disk.
    pub fn is_saving(&self) -> bool {
        self.save.as_ref().is_some_and(|save| !save.has_ended())
    }

    /// Waits until it is saved, at most this long.
    pub fn wait_for(&self, time: Duration) {
        if let Some(save) = &self.save {
            save.wait_for(time);
        }
    }

    /// Undoes it now, when no other thread writes to its file any more.
    pub fn abandon(mut self, runtime: &mut Runtime, sessions: &mut Sessions) -> SessionResult {
        self.end_save(sessions)?;
        drop(self);
        sessions.undo_dropped(runtime)
    }

    fn end_save(&mut self, sessions: &mut Sessions) -> SessionResult {
        if let Some(save) = self.save.take() {
            let session = sessions.any_session_mut(self.begun.session)?;
            session.end_save(save.wait());
        }
        Ok(())
    }

    /// With nothing pending: takes what was read into the session, and goes on to the next run. Returns the number of the
    /// fact or state, or 0 of a new session, once all is read; the read is over then.
    pub fn advance(
        &mut self,
        runtime: &mut Runtime,
        sessions: &mut Sessions,
    ) -> SessionResult<Option<u64>> {
        let (now_ms, start) = (self.now_ms, self.begun.start);
        let number = match &mut self.read {
            SessionRead::Create { .. } if !self.is_taken_in => {
                self.take_in(runtime, sessions)?;
                return Ok(None);
            }
            SessionRead::Create { .. } => {
                self.end_save(sessions)?;
                self.begin_run(runtime, sessions)?;
                if !self.run.is_empty() {
                    return Ok(None);
                }
                self.begun.read_all(runtime, sessions)?;
                0
            }
            SessionRead::Fact {
                fact,
                supersedes,
                found_in,
            } => {
                let session = self.begun.read_all(runtime, sessions)?;
                let record = FactRecord {
                    number: session.transcript.facts_made,
                    start,
                    time_ms: session.transcript.at(now_ms),
                    supersedes: *supersedes,
                    found_in: *found_in,
                    tokens: fact.tokens.clone(),
                    text: fact.text.clone(),
                };
                session.add_fact(runtime, record)?
            }
            SessionRead::State { state, instead } => {
                let session = self.begun.read_all(runtime, sessions)?;
                let said = (state.tokens.clone(), state.embedding.clone());
                session.add_state(runtime, said, start, now_ms, *instead)?
            }
        };
        Ok(Some(number))
    }

    /// Makes what was read part of a new session, and begins to save it.
    fn take_in(&mut self, runtime: &mut Runtime, sessions: &mut Sessions) -> SessionResult {
        let (id, now_ms) = (self.begun.session, self.now_ms);
        let SessionRead::Create { opening, .. } = &self.read else {
            return Ok(());
        };
        if !self.is_opened {
            if !self.begun.is_computed {
                sessions.share_opening(runtime, id, opening)?;
            }
            let session = sessions.any_session_mut(id)?;
            self.begun.sequence = session.residency.sequence;
            open_with(session, opening, now_ms);
            runtime.set_positions(self.begun.sequence, PositionMode::Compact)?;
            self.is_opened = true;
        }
        let session = sessions.any_session_mut(id)?;
        let turns = std::mem::take(&mut self.turns);
        add_told(session, turns, self.begun.start, now_ms);
        self.save = session.begin_save(runtime).map(StartedSave::start);
        self.is_taken_in = true;
        Ok(())
    }

    /// The next turns of a history, once those before are saved; none if it has no more.
    fn begin_run(&mut self, runtime: &mut Runtime, sessions: &mut Sessions) -> SessionResult {
        let id = self.begun.session;
        let SessionRead::Create { history, .. } = &mut self.read else {
            return Ok(());
        };
        self.begun.start = runtime.position(self.begun.sequence)?;
        (self.run, self.done) = (Vec::new(), 0);
        let session = sessions.any_session_mut(id)?;
        for turn in next_run(runtime, session, history)? {
            self.run.extend_from_slice(&turn.tokens);
            self.turns.push(turn);
        }
        self.is_taken_in = false;
        sessions.hold_and_spill(runtime, id)
    }

    /// Reads everything now, beside nothing else.
    pub fn finish(mut self, runtime: &mut Runtime, sessions: &mut Sessions) -> SessionResult<u64> {
        loop {
            if !self.pending().is_empty() {
                feed(runtime, self.begun.sequence, self.pending())?;
                self.done = self.run.len();
            }
            if let Some(number) = self.advance(runtime, sessions)? {
                return Ok(number);
            }
        }
    }
}

impl Sessions {
    /// Creates a session that begins with a persistent text. A text over the limit is condensed first. If the disk takes
    /// no file, the session goes on without one and reports it; a name that is taken is an error.
    pub fn create<'a>(
        &mut self,
        runtime: &mut Runtime,
        name: impl Into<SessionName<'a>>,
        persistent: &str,
        now_ms: u64,
    ) -> SessionResult<SessionId> {
        self.create_marked(runtime, name, "", persistent, now_ms)
    }

    /// Creates a session whose persistent text begins with a part that condensing never changes: instructions, for
    /// example.
    pub fn create_marked<'a>(
        &mut self,
        runtime: &mut Runtime,
        name: impl Into<SessionName<'a>>,
        marked: &str,
        persistent: &str,
        now_ms: u64,
    ) -> SessionResult<SessionId> {
        let own = SessionSettings::default();
        self.create_with(runtime, name, (marked, persistent), now_ms, own)
    }

    /// The same with settings of its own, which hold in every process that opens it and has room for them.
    pub fn create_with<'a>(
        &mut self,
        runtime: &mut Runtime,
        name: impl Into<SessionName<'a>>,
        (marked, persistent): (&str, &str),
        now_ms: u64,
        own: SessionSettings,
    ) -> SessionResult<SessionId> {
        let name = name.into();
        self.check_new(runtime, name)?;
        let texts = self.texts();
        let opening = texts.opening_with(marked, persistent, now_ms, own)?;
        self.create_told(runtime, name, SessionRead::create(opening), now_ms)
    }

    /// Creates a session of a [`SessionRead::Create`].
    pub fn create_told<'a>(
        &mut self,
        runtime: &mut Runtime,
        name: impl Into<SessionName<'a>>,
        read: SessionRead,
        now_ms: u64,
    ) -> SessionResult<SessionId> {
        let begun = read.begin(runtime, self, name.into(), now_ms)?;
        let id = begun.session;
        self.read_now(runtime, begun, read, now_ms)?;
        Ok(id)
    }

    /// Adds to the persistent stream; returns the fact's number.
    pub fn add_fact(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        now_ms: u64,
    ) -> SessionResult<u64> {
        self.tell_fact(runtime, id, text, now_ms, None, None)
    }

    /// Adds to the persistent stream what a turn says; returns the fact's number.
    pub fn add_fact_of(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        turn: u64,
        now_ms: u64,
    ) -> SessionResult<u64> {
        self.tell_fact(runtime, id, text, now_ms, None, Some(turn))
    }

    /// Replaces a fact: the old one is not visible any more. Answers given while it held may still reflect it.
    pub fn supersede(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        fact: u64,
        text: &str,
        now_ms: u64,
    ) -> SessionResult<u64> {
        self.tell_fact(runtime, id, text, now_ms, Some(fact), None)
    }

    fn tell_fact(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        now_ms: u64,
        supersedes: Option<u64>,
        found_in: Option<u64>,
    ) -> SessionResult<u64> {
        let fact = self.texts().fact(text)?;
        let read = SessionRead::Fact {
            fact,
            supersedes,
            found_in,
        };
        let begun = read.begin_in(runtime, self, id)?;
        self.read_now(runtime, begun, read, now_ms)
    }

    /// Tells a state: what holds now and will change soon, such as the level of a game or the page that is open. It
    /// replaces `instead` if given; returns its number, which is a turn's.
    ///
    /// Every answer sees a state, and it does not leave memory. When it changes, the old one is deleted at once, in memory
    /// and in the file, so a state that changes with every turn takes no more room than one that never does. States and
    /// other pinned turns have a quarter of the capacity. [`Sessions::pin`] turns a state into a turn like others,
    /// [`Sessions::drop_state`] deletes it.
    pub fn tell_state(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        now_ms: u64,
        instead: Option<u64>,
    ) -> SessionResult<u64> {
        let state = self.texts().state(text)?;
        let read = SessionRead::State { state, instead };
        let begun = read.begin_in(runtime, self, id)?;
        self.read_now(runtime, begun, read, now_ms)
    }

    fn read_now(
        &mut self,
        runtime: &mut Runtime,
        begun: BegunRead,
        read: SessionRead,
        now_ms: u64,
    ) -> SessionResult<u64> {
        let read = ReadInProgress::new(begun, read, now_ms).finish(runtime, self);
        if read.is_err() {
            self.undo_dropped(runtime)?;
        }
        read
    }
}

/// Takes the opening, which was just read, into a new session.
fn open_with(session: &mut OpenSession, opening: &Opening, now_ms: u64) {
    let Opening { piece, tokens, .. } = opening;
    session.note_fact(FactRecord {
        number: 0,
        start: 0,
        time_ms: now_ms,
        supersedes: None,
        found_in: None,
        tokens: tokens.clone(),
        text: piece.text.clone(),
    });
    if piece.verbatim > 0 {
        session.mark(0, piece.verbatim);
    }
    if let Some(told) = &opening.told {
        let change = session.transcript.remember_told(told);
        change
            .into_iter()
            .for_each(|change| session.log.note(change));
    }
    session.condensing.condensed(opening.outcome.clone());
}

/// Adds turns that were just read, from position `start` on.
fn add_told(session: &mut OpenSession, turns: Vec<ToldTurn>, start: u64, now_ms: u64) {
    let mut start = start;
    for told in turns {
        let record = TurnRecord {
            number: session.transcript.next_turn(),
            start,
            time_ms: session.transcript.at(told.time_ms.unwrap_or(now_ms)),
            question: told.question as u32,
            is_pinned: false,
            is_part: told.is_part,
            is_dated: told.is_dated,
            embedding: told.embedding,
            tokens: told.tokens,
        };
        start += record.tokens.len() as u64;
        session.add_turn(&record);
    }
}

/// The next turns of a history that are read in one run: as many as there is room for. Turns leave memory for them once it
/// is full, half of the capacity at a time, so that runs stay long.
fn next_run(
    runtime: &mut Runtime,
    session: &mut OpenSession,
    history: &mut VecDeque<ToldTurn>,
) -> SessionResult<Vec<ToldTurn>> {
    let Some(first) = history.front() else {
        return Ok(Vec::new());
    };
    let (first, capacity) = (first.tokens.len() as u64, session.limits.capacity as u64);
    let mut held = session.live_tokens();
    if held + first > capacity {
        session.spill_oldest(capacity.saturating_sub(first).min(capacity / 2));
        session.mask(runtime)?;
        held = session.live_tokens();
    }
    let mut run = Vec::new();
    while let Some(turn) = history.front() {
        let tokens = turn.tokens.len() as u64;
        if !run.is_empty() && held + tokens > capacity {
            break;
        }
        held += tokens;
        run.extend(history.pop_front());
    }
    let tokens = run.iter().map(|turn| turn.tokens.len() as u64).sum();
    session.make_room(runtime, tokens)?;
    Ok(run)
}
