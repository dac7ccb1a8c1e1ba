//! Conversations that last: a persistent stream that never leaves, turns that come and go, a file that survives.
//!
//! A session is one sequence of the cache whose positions only grow, and beside it what the cache does not know: which
//! positions are facts, which are turns, and where a turn's rows are when they are not in memory. Nothing is ever cut out
//! of the sequence: what should not be seen is hidden, what is hidden and has been saved may be dropped, what was dropped
//! can be put back to its place.
//!
//! ```text
//! positions   0 ─────────── opening ┬ turn 0 ┬ turn 1 ┬ fact ┬ turn 2 ┬ …
//! persistent  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│        │        │▓▓▓▓▓▓│        │    always visible, at most 512 tokens
//! ephemeral                         │spilled │ hidden │      │ visible│    in memory at most 1536 tokens
//! ```
//!
//! What this is not: it neither steps a model nor batches ([`haversack_engine::runtime`] does), and reads no clock; the caller says what
//! time it is. [`turns`] and [`relevance`] decide and are pure, [`session`] does what they say, [`log`] keeps it, and
//! [`prefix`] keeps what many sessions open with, once for all of them.
//!
//! Invariants: a turn is visible, hidden, spilled or forgotten as a whole; the opening, facts that hold, and the last
//! turns are visible at every step; what a caller was told is saved, is saved; a session that failed to save says so and
//! goes on; an error in the middle of a turn leaves the session as it was before it.
//!
//! ```no_run
//! use haversack_engine::runtime::GenerateOptions;
//! use haversack_engine::sample::{SampleOptions, Sampler};
//! use haversack_conversations::session::{SessionOptions, Sessions};
//! use haversack_engine::{LoadOptions, Model, Retention, Runtime, RuntimeOptions};
//! use std::ops::ControlFlow;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::load("model.gguf".as_ref(), &LoadOptions::default(), &mut |_, _| ())?;
//! let retention = Retention::managed();
//! let mut runtime = Runtime::new(model, &RuntimeOptions { retention, ..Default::default() })?;
//! let options = SessionOptions { dir: Some("sessions".into()), ..Default::default() };
//! let mut sessions = Sessions::new(&runtime, options)?;
//! let anna = sessions.create(&mut runtime, "anna", "You answer in one sentence.", 0)?;
//! let mut sampler = Sampler::new(SampleOptions::default())?;
//! let answer = sessions.say(
//!     &mut runtime, anna, "My cat is called Miso.", 0, &mut sampler, &GenerateOptions::default(),
//!     &mut |_| ControlFlow::Continue(()),
//! )?;
//! println!("{} ({})", answer.text, answer.context.plan);
//! sessions.suspend(&mut runtime, anna)?;
//! let anna = sessions.resume(&mut runtime, "anna")?;
//! # let _ = anna;
//! # Ok(())
//! # }
//! ```

pub mod condense;
mod error;
pub mod inspect;
pub mod layout;
mod log;
mod mend;
pub mod names;
pub mod paged_vec;
mod prefix;
mod rebuild;
pub mod record;
pub mod relevance;
pub mod report;
mod session;
mod state;
mod turn;
pub mod turns;

pub use error::SessionError;
pub use log::Identity;
pub use prefix::PrefixStats;
pub use rebuild::{Progress, STEP_TOKENS_MAX};
pub use report::{SessionPicture, Tally, TurnPicture};
pub use session::{Answer, Context};
pub use turn::TurnInProgress;

use haversack_engine::encoder::{Embedding, Encoder, EncoderError};
use haversack_engine::runtime::{Runtime, SequenceId};
use haversack_memory::journal::{self, Journal, RecordRef};
use haversack_memory::zoo::{Bug, planted};
use layout::Layout;
use paged_vec::PagedVec;
use relevance::Relevance;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use turns::{Place, Turn};

/// What sessions may be told. Plain data.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Where sessions are kept; `None` = nowhere, and what leaves memory is forgotten.
    pub dir: Option<PathBuf>,
    /// Where what sessions open with is kept for all who open with the same, in this process and others; `None` =
    /// nowhere, and each session computes its own.
    pub prefix_dir: Option<PathBuf>,
    /// Bytes of all files there at most: the one written longest ago leaves.
    pub prefix_quota_bytes: u64,
    /// Tokens of the persistent stream; beyond them it is condensed. Until that is done it may have half as many more.
    pub persistent_max: usize,
    /// Tokens that it is condensed to at most, where what is marked allows it.
    pub condensed_max: usize,
    /// Tokens of a new stream that are read along with each token of an answer, while it is condensed; 0 = none, and
    /// [`Sessions::work`] does it all.
    pub condense_beside: usize,
    /// Tokens of turns in memory at most, the one under way included; less where the budget has no room for so many.
    pub capacity: usize,
    /// Tokens of an answer at most.
    pub answer_max: usize,
    pub relevance: Relevance,
    /// Last turns that are visible whatever they say.
    pub last: usize,
    /// Tokens that are read again before an answer at most, for turns of which only tokens are left; one turn always may.
    pub reread_max: usize,
    /// Bytes of one session's file at most.
    pub quota_bytes: u64,
    /// Whose sessions these are: another tenant's are refused.
    pub tenant: String,
    /// Seals files, so that what was changed by somebody without it is refused.
    pub key: Option<[u8; 32]>,
    #[doc(hidden)]
    pub faults: Option<journal::Faults>,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            dir: None,
            prefix_dir: None,
            prefix_quota_bytes: 256 << 20,
            persistent_max: 512,
            condensed_max: 300,
            condense_beside: 2,
            capacity: 1536,
            answer_max: 256,
            relevance: Relevance::default(),
            last: 2,
            reread_max: 128,
            quota_bytes: 256 << 20,
            tenant: String::new(),
            key: None,
            faults: None,
        }
    }
}

/// Says what a text is about. [`Encoder`] does.
pub trait Embed: Send + Sync {
    fn embed(&self, text: &str) -> Result<Embedding, EncoderError>;

    /// Memory it takes while it is at work.
    fn bytes(&self) -> usize {
        0
    }

    /// It takes no time worth a thread.
    fn is_quick(&self) -> bool {
        false
    }
}

impl Embed for Encoder {
    fn embed(&self, text: &str) -> Result<Embedding, EncoderError> {
        Encoder::embed(self, text)
    }

    fn bytes(&self) -> usize {
        self.heap_bytes() + self.scratch_bytes()
    }
}

/// One open session, by slot and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId {
    index: u32,
    generation: u32,
}

/// Sessions of one model, one store and one folder.
pub struct Sessions {
    options: SessionOptions,
    identity: Identity,
    layout: Layout,
    encoder: Option<Arc<dyn Embed>>,
    condenser: Option<Arc<dyn condense::Condense>>,
    slots: Vec<Slot>,
    /// To sessions that were put away since.
    owed: BTreeMap<String, Deferred>,
    prefixes: prefix::Prefixes,
    /// Of sessions that were closed.
    closed: Tally,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    session: Option<Session>,
}

/// How much of a session comes back from its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opens {
    /// As it was put away, or not at all.
    Whole,
    AsFits,
}

/// What the next answer of a session owes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Deferred {
    /// Turns that somebody wants to see in it.
    wanted: Vec<u64>,
    /// What was done to turns for questions that have not become one, and is to be told.
    done: turns::Plan,
}

/// A turn, and where the file has it.
#[derive(Clone, Debug)]
struct Held {
    turn: Turn,
    record: Record,
}

/// A conversation has thousands.
const _: () = assert!(size_of::<Held>() <= 56);

/// The record of a turn, with its tokens and its embedding.
#[derive(Clone, Debug)]
enum Record {
    /// Its bytes, until they are in the file.
    Told(Box<[u8]>),
    Saved(RecordRef),
}

impl Held {
    fn saved(&self) -> Option<RecordRef> {
        match self.record {
            Record::Saved(record) => Some(record),
            Record::Told(_) => None,
        }
    }
}

impl Borrow<Turn> for Held {
    fn borrow(&self) -> &Turn {
        &self.turn
    }
}

/// A piece of the persistent stream that holds.
#[derive(Clone, Debug)]
struct Fact {
    number: u64,
    span: Range<u64>,
    text: String,
    /// Bytes at its beginning that stay word for word.
    verbatim: usize,
    record: Option<RecordRef>,
}

struct Session {
    name: String,
    sequence: SequenceId,
    /// Where it is kept; `None` where nothing is saved.
    home: Option<Home>,
    /// `None` while its file could not be made.
    journal: Option<Journal>,
    /// The opening is fact 0.
    facts: Vec<Fact>,
    facts_made: u64,
    turns: PagedVec<Held>,
    turns_made: u64,
    /// Tokens of turns that are nowhere any more.
    forgotten: u64,
    /// Columns in the file, by block.
    columns: BTreeMap<u64, RecordRef>,
    /// Blocks in memory that the last state has by their columns.
    blocks: Vec<u64>,
    /// The record of the last state.
    state: Option<RecordRef>,
    /// Not saved yet: records by kind, in order.
    pending: Vec<(u32, Vec<u8>)>,
    /// Bytes of records in the file that somebody still needs.
    needed_bytes: u64,
    /// Why the last save did not happen.
    unsaved: Option<String>,
    last_time_ms: u64,
    owed: Deferred,
    /// The persistent stream being condensed.
    shadow: Option<rebuild::Shadow>,
    /// It could not be, and will not be tried again before it changes.
    gave_up: bool,
    /// What became of the last condensing, in words.
    condensed: Option<String>,
    /// A turn is under way.
    is_answering: bool,
    /// For the last question, to be looked at.
    decided: report::Decided,
    tally: Tally,
}

/// A session's file, before it is made.
#[derive(Clone, Debug)]
struct Home {
    path: PathBuf,
    identity: Vec<u8>,
}

/// What a session holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    pub name: String,
    /// Tokens seen.
    pub position: u64,
    /// Tokens of the persistent stream.
    pub persistent: u64,
    /// Tokens of turns that attention sees.
    pub visible: u64,
    /// Tokens of turns in memory that it does not.
    pub hidden: u64,
    /// Tokens of turns whose rows are in the file.
    pub spilled: u64,
    /// Tokens of turns of which the file has the ids alone.
    pub ids: u64,
    /// Tokens of turns that are nowhere any more.
    pub forgotten: u64,
    pub turns: u64,
    pub file_bytes: u64,
    /// Bytes of records that wait to be saved; rows not counted.
    pub waiting_bytes: u64,
    /// Why the last turn is not on disk.
    pub unsaved: Option<String>,
    /// What became of the last condensing, in words.
    pub condensed: Option<String>,
}

/// A session in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    pub bytes: u64,
    pub is_open: bool,
}

/// One turn, for whoever wants to look.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnView {
    pub turn: Turn,
    pub tokens: Vec<u32>,
    /// Of the tokens, so many are the question.
    pub question: usize,
    /// The question, or the state, without its markers.
    pub text: String,
    /// The same of the answer.
    pub answer: String,
    pub time_ms: u64,
}

/// Ending of a session's file.
const ENDING: &str = "session";

/// What a turn adds to a session's lists, its tokens until they are saved included.
const TURN_BYTES: usize = 16 << 10;

/// A conversation below this is none.
const CAPACITY_MIN: usize = 128;

impl Sessions {
    /// Sessions over a runtime made with [`crate::Retention::managed`].
    pub fn new(runtime: &Runtime, options: SessionOptions) -> Result<Sessions, SessionError> {
        let mut options = options;
        let room = runtime.bounds().rows_max;
        let beside = options.persistent_max + session::slack(runtime);
        let capacity = room.saturating_sub(beside).min(options.capacity);
        if capacity < CAPACITY_MIN.min(options.capacity) {
            return Err(SessionError::Budget {
                room,
                least: beside + CAPACITY_MIN,
            });
        }
        options.capacity = capacity;
        options.answer_max = options.answer_max.min(capacity / 2);
        let identity = Identity::of(runtime, &options.tenant);
        Ok(Sessions {
            prefixes: prefix::Prefixes::new(runtime, &identity, &options),
            identity,
            layout: Layout::new(runtime.model().clone()),
            options,
            encoder: None,
            condenser: None,
            slots: Vec::new(),
            closed: Tally::default(),
            owed: BTreeMap::new(),
        })
    }

    /// With it turns are judged by what they say. Without one everything in memory stays visible.
    pub fn with_encoder(self, encoder: Arc<dyn Embed>) -> Sessions {
        Sessions {
            encoder: Some(encoder),
            ..self
        }
    }

    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    pub fn has_encoder(&self) -> bool {
        self.encoder.is_some()
    }

    /// What judges turns, for whoever asks it on another thread.
    pub fn encoder(&self) -> Option<Arc<dyn Embed>> {
        self.encoder.clone()
    }

    /// A new session that begins with a persistent text. Over the cap it is condensed first. Where a disk takes no file
    /// for it the session goes on without one and says so; a name that is taken is an error.
    pub fn create(
        &mut self,
        runtime: &mut Runtime,
        name: &str,
        persistent: &str,
        now_ms: u64,
    ) -> Result<SessionId, SessionError> {
        self.create_marked(runtime, name, "", persistent, now_ms)
    }

    /// A new session whose persistent text begins with a part that stays word for word, however often the rest is
    /// condensed: instructions, for one.
    pub fn create_marked(
        &mut self,
        runtime: &mut Runtime,
        name: &str,
        marked: &str,
        persistent: &str,
        now_ms: u64,
    ) -> Result<SessionId, SessionError> {
        names::check(name)?;
        self.check_not_open(name)?;
        let (piece, condensed) = self.condensed(now_ms, marked, persistent)?;
        let persistent = &piece.text[..];
        let opening = self.layout.opening(persistent, now_ms)?;
        self.check_tokens(opening.len(), self.options.persistent_max)?;
        let home = self.home(name);
        let mut journal = match home.as_ref().map(|home| home.make(&self.options)) {
            Some(Err(error)) if error.is_refusal() => return Err(error.of(name)),
            Some(made) => made.ok(),
            None => None,
        };
        let prefixes = &mut self.prefixes;
        let begun = prefixes.begin(runtime, &self.options, &opening);
        let sequence = match begun {
            Ok(sequence) => sequence,
            Err(error) => {
                // Nothing of it stays.
                if let Some(journal) = journal.take() {
                    let _ = journal.remove();
                }
                return Err(error);
            }
        };
        let mut session = Session::new(name, sequence, journal);
        session.home = home;
        session.last_time_ms = now_ms;
        session.note_fact(&opening, 0, now_ms, persistent, None);
        if piece.verbatim > 0 {
            session.mark(0, piece.verbatim);
        }
        session.condensed = condensed;
        session.save(runtime, &self.options);
        self.admit(runtime, session, None)
    }

    /// How openings were come by so far.
    pub fn prefixes(&self) -> &PrefixStats {
        self.prefixes.stats()
    }

    /// A session from its file, where the last acknowledged turn ended. Turns for which there is no room stay in the file.
    pub fn resume(&mut self, runtime: &mut Runtime, name: &str) -> Result<SessionId, SessionError> {
        self.resume_as(runtime, name, Opens::AsFits)
    }

    pub(crate) fn resume_as(
        &mut self,
        runtime: &mut Runtime,
        name: &str,
        room: Opens,
    ) -> Result<SessionId, SessionError> {
        names::check(name)?;
        self.check_not_open(name)?;
        let Some(dir) = &self.options.dir else {
            return Err(SessionError::NowhereToLook { name: name.into() });
        };
        let path = path_of(dir, name);
        let (identity, options) = (&self.identity, &self.options);
        let mut session = Session::open(runtime, name, &path, identity, options, room)?;
        session.home = self.home(name);
        session.owed = self.owed.get(name).cloned().unwrap_or_default();
        let id = self.admit(runtime, session, Some(room))?;
        self.owed.remove(name);
        Ok(id)
    }

    /// Puts a session away. What it holds in memory is free; its file says all. Where the file cannot be made to, the
    /// session stays open: [`Sessions::close`] is for those who can do without the rest.
    pub fn suspend(&mut self, runtime: &mut Runtime, id: SessionId) -> Result<(), SessionError> {
        let options = self.options.clone();
        let session = self.session_mut(id)?;
        if session.unsaved.is_some() {
            session.save(runtime, &options);
        }
        if let Some(why) = &session.unsaved {
            return Err(SessionError::Unsaved {
                name: session.name.clone(),
                why: why.clone(),
            });
        }
        self.close(runtime, id)
    }

    /// Puts a session away as it is. What was not saved is lost.
    pub fn close(&mut self, runtime: &mut Runtime, id: SessionId) -> Result<(), SessionError> {
        let index = self.find(id)?;
        let slot = &mut self.slots[index];
        if let Some(mut session) = slot.session.take() {
            slot.generation = slot.generation.wrapping_add(1);
            session.drop_shadow(runtime);
            self.keep_tally(&session);
            runtime.close(session.sequence)?;
            if session.owed != Deferred::default() {
                self.owed.insert(session.name, session.owed);
            }
            self.hold(runtime)?;
        }
        Ok(())
    }

    /// A second session that goes on from here and shares what is in memory. Its file has to be made first: what has
    /// left memory can only be copied.
    pub fn fork(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        name: &str,
    ) -> Result<SessionId, SessionError> {
        names::check(name)?;
        self.check_not_open(name)?;
        let index = self.find(id)?;
        let home = self.home(name);
        let made = home.as_ref().map(|home| home.make(&self.options));
        let journal = made.transpose().map_err(|error| error.of(name))?;
        let Some(session) = &self.slots[index].session else {
            return Err(SessionError::Closed { index });
        };
        let fork = session.fork(runtime, name, journal, home, &self.options)?;
        self.admit(runtime, fork, None)
    }

    /// Removes a session that is not open, and its file.
    pub fn delete(&mut self, name: &str) -> Result<(), SessionError> {
        names::check(name)?;
        self.check_not_open(name)?;
        let Some(dir) = &self.options.dir else {
            return Err(SessionError::NowhereToLook { name: name.into() });
        };
        let path = path_of(dir, name);
        self.owed.remove(name);
        let opened = Journal::open(&path, self.journal_options());
        let removed = opened.and_then(|opened| opened.journal.remove());
        removed.map_err(|source| SessionError::File {
            name: name.into(),
            source,
        })
    }

    /// The sessions of the folder, by name.
    pub fn list(&self) -> Result<Vec<Listed>, SessionError> {
        let Some(dir) = &self.options.dir else {
            return Ok(Vec::new());
        };
        let error = |source| SessionError::Io {
            doing: "reading",
            path: dir.clone(),
            source,
        };
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(error(e)),
        };
        let mut listed = Vec::new();
        for entry in entries {
            let entry = entry.map_err(error)?;
            let file = entry.file_name();
            let name = file
                .to_str()
                .and_then(|n| n.strip_suffix(ENDING)?.strip_suffix('.'));
            let Some(name) = name.filter(|name| names::check(name).is_ok()) else {
                continue;
            };
            let metadata = entry.metadata().map_err(error)?;
            if metadata.is_file() {
                listed.push(Listed {
                    name: name.to_owned(),
                    bytes: metadata.len(),
                    is_open: self.is_open(name),
                });
            }
        }
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    pub fn stats(&self, runtime: &Runtime, id: SessionId) -> Result<SessionStats, SessionError> {
        let session = self.session(id)?;
        let mut stats = SessionStats {
            name: session.name.clone(),
            position: runtime.position(session.sequence)?,
            persistent: session.persistent() as u64,
            forgotten: session.forgotten,
            turns: session.turns_made,
            file_bytes: session.journal.as_ref().map_or(0, Journal::committed_bytes),
            waiting_bytes: session.pending.iter().map(|(_, b)| b.len() as u64).sum(),
            unsaved: session.unsaved.clone(),
            condensed: session.condensed.clone(),
            ..SessionStats::default()
        };
        for Held { turn, .. } in session.turns.iter() {
            let level = match (turn.place, turn.is_visible) {
                (Place::Live, true) => &mut stats.visible,
                (Place::Live, false) => &mut stats.hidden,
                (Place::Spilled, _) => &mut stats.spilled,
                (Place::Ids, _) => &mut stats.ids,
            };
            *level += turn.tokens();
        }
        Ok(stats)
    }

    /// The facts that hold, with their numbers; the opening is 0.
    pub fn facts(&self, id: SessionId) -> Result<Vec<(u64, &str)>, SessionError> {
        let facts = self.session(id)?.facts.iter();
        Ok(facts.map(|fact| (fact.number, &fact.text[..])).collect())
    }

    /// The turns that are still somewhere, oldest first.
    pub fn turns(&self, id: SessionId) -> Result<Vec<&Turn>, SessionError> {
        let turns = self.session(id)?.turns.iter();
        Ok(turns.map(|held| &held.turn).collect())
    }

    /// One turn with its tokens.
    pub fn turn(&self, id: SessionId, number: u64) -> Result<TurnView, SessionError> {
        let session = self.session(id)?;
        let held = session.turns.iter().find(|h| h.turn.number == number);
        let held = held.ok_or(SessionError::NoSuchTurn { number })?;
        let record = session.turn_record(held)?;
        let question = record.question as usize;
        let asked = &record.tokens[..question];
        Ok(TurnView {
            turn: held.turn.clone(),
            question,
            text: match held.turn.is_state {
                true => self.layout.fact_text(asked)?,
                false => self.layout.question_text(asked)?,
            },
            answer: self.layout.answer_text(&record.tokens[question..])?,
            time_ms: record.time_ms,
            tokens: record.tokens,
        })
    }

    /// Tokens that end an answer.
    pub fn ending_tokens(&self) -> Result<usize, SessionError> {
        Ok(self.layout.ending()?.len())
    }

    /// The sequence of a session, for whoever steps it beside others.
    pub fn sequence(&self, id: SessionId) -> Result<SequenceId, SessionError> {
        Ok(self.session(id)?.sequence)
    }

    /// Tokens of the persistent stream with a new fact. PrefixCache the cap there is room until it is condensed.
    fn check_persistent(&self, tokens: usize) -> Result<(), SessionError> {
        let most = self.options.persistent_max;
        self.check_tokens(tokens, most.saturating_add(most / 2))
    }

    fn check_tokens(&self, tokens: usize, most: usize) -> Result<(), SessionError> {
        match tokens > most {
            true => Err(SessionError::PersistentFull { tokens, most }),
            false => Ok(()),
        }
    }

    fn journal_options(&self) -> journal::Options {
        log::journal_options(&self.options)
    }

    fn home(&self, name: &str) -> Option<Home> {
        let dir = self.options.dir.as_deref()?;
        Some(Home {
            path: path_of(dir, name),
            identity: self.identity.to_bytes(name),
        })
    }

    /// Puts what sessions hold into the ledger, with room for one turn more.
    fn hold(&self, runtime: &mut Runtime) -> Result<(), SessionError> {
        let open = self.slots.iter().filter_map(|slot| slot.session.as_ref());
        let sessions: usize = open.map(|s| s.bytes() + TURN_BYTES).sum();
        let encoder = self.encoder.as_ref().map_or(0, |encoder| encoder.bytes());
        Ok(runtime.hold(sessions + encoder)?)
    }

    /// The same, with turns of one session leaving memory where they are in the way.
    fn hold_for(&mut self, runtime: &mut Runtime, index: usize) -> Result<(), SessionError> {
        let last = self.options.last;
        loop {
            let held = self.hold(runtime);
            let is_short = held.as_ref().is_err_and(SessionError::is_cannot_fit);
            match &mut self.slots[index].session {
                Some(session) if is_short => {
                    if !session.spill_one(last) {
                        return held;
                    }
                    session.mask(runtime)?;
                }
                _ => return held,
            }
        }
    }

    /// The session of this name, if it is open.
    pub fn opened(&self, name: &str) -> Option<SessionId> {
        let is_it = |slot: &Slot| slot.session.as_ref().is_some_and(|s| s.name == name);
        let index = self.slots.iter().position(is_it)?;
        Some(SessionId {
            index: index as u32,
            generation: self.slots[index].generation,
        })
    }

    /// Whether there is a session of this name, open or in its file.
    pub fn exists(&self, name: &str) -> bool {
        let is_kept = |dir: &Path| names::check(name).is_ok() && path_of(dir, name).is_file();
        self.is_open(name) || self.options.dir.as_deref().is_some_and(is_kept)
    }

    /// Whether a turn of it is under way.
    pub fn is_answering(&self, id: SessionId) -> Result<bool, SessionError> {
        Ok(self.session(id)?.is_answering)
    }

    fn is_open(&self, name: &str) -> bool {
        self.opened(name).is_some()
    }

    fn check_not_open(&self, name: &str) -> Result<(), SessionError> {
        match self.is_open(name) {
            true => Err(SessionError::Open { name: name.into() }),
            false => Ok(()),
        }
    }

    /// Takes a session in, if its lists fit the budget too. A new one, which was not opened, leaves no file if not.
    fn admit(
        &mut self,
        runtime: &mut Runtime,
        session: Session,
        opened: Option<Opens>,
    ) -> Result<SessionId, SessionError> {
        let free = self.slots.iter().position(|slot| slot.session.is_none());
        let index = free.unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.slots[index].session = Some(session);
        let held = match opened {
            Some(Opens::Whole) => self.hold(runtime),
            Some(Opens::AsFits) | None => self.hold_for(runtime, index),
        };
        if let Err(error) = held {
            if let Some(session) = self.slots[index].session.take() {
                runtime.close(session.sequence)?;
                if let Some(journal) = session.journal.filter(|_| opened.is_none()) {
                    let _ = journal.remove();
                }
            }
            return Err(error);
        }
        Ok(SessionId {
            index: index as u32,
            generation: self.slots[index].generation,
        })
    }

    /// Whatever it does now.
    fn find_any(&self, id: SessionId) -> Result<usize, SessionError> {
        let index = id.index as usize;
        match self.slots.get(index) {
            Some(slot) if slot.generation == id.generation && slot.session.is_some() => Ok(index),
            _ => Err(SessionError::Closed { index }),
        }
    }

    /// One that something can be done to: no turn of it is under way.
    fn find(&self, id: SessionId) -> Result<usize, SessionError> {
        let index = self.find_any(id)?;
        match &self.slots[index].session {
            Some(session) if session.is_answering => Err(SessionError::Answering {
                name: session.name.clone(),
            }),
            _ => Ok(index),
        }
    }

    fn session_mut(&mut self, id: SessionId) -> Result<&mut Session, SessionError> {
        let index = self.find(id)?;
        let session = self.slots[index].session.as_mut();
        session.ok_or(SessionError::Closed { index })
    }

    fn session(&self, id: SessionId) -> Result<&Session, SessionError> {
        let index = self.find_any(id)?;
        let session = self.slots[index].session.as_ref();
        session.ok_or(SessionError::Closed { index })
    }
}

impl Session {
    fn new(name: &str, sequence: SequenceId, journal: Option<Journal>) -> Session {
        Session {
            name: name.to_owned(),
            sequence,
            home: None,
            journal,
            facts: Vec::new(),
            facts_made: 0,
            turns: PagedVec::default(),
            turns_made: 0,
            forgotten: 0,
            columns: BTreeMap::new(),
            blocks: Vec::new(),
            state: None,
            pending: Vec::new(),
            needed_bytes: 0,
            unsaved: None,
            last_time_ms: 0,
            owed: Deferred::default(),
            shadow: None,
            gave_up: false,
            condensed: None,
            is_answering: false,
            decided: report::Decided::default(),
            tally: Tally::default(),
        }
    }

    /// Memory of the lists.
    fn bytes(&self) -> usize {
        let told = self.turns.iter().map(|held| match &held.record {
            Record::Told(bytes) => bytes.len(),
            Record::Saved(_) => 0,
        });
        let facts = self
            .facts
            .iter()
            .map(|f| f.text.capacity() + size_of::<Fact>());
        let pending = self.pending.iter().map(|(_, bytes)| bytes.capacity());
        // A tree's nodes are half empty at worst.
        let columns = 2 * self.columns.len() * (size_of::<u64>() + size_of::<RecordRef>());
        let lists = facts.chain(pending).sum::<usize>() + columns + self.decided.bytes();
        self.turns.bytes() + told.sum::<usize>() + lists
    }

    /// Tokens of the persistent stream.
    fn persistent(&self) -> usize {
        let tokens = self.facts.iter().map(|f| f.span.end - f.span.start);
        tokens.sum::<u64>() as usize
    }
}

fn path_of(dir: &Path, name: &str) -> PathBuf {
    let name = match planted(Bug::SpillFileShared) {
        true => &name[..name.len().min(2)],
        false => name,
    };
    dir.join(format!("{name}.{ENDING}"))
}

/// Reads tokens to the end.
fn feed(runtime: &mut Runtime, id: SequenceId, tokens: &[u32]) -> Result<(), SessionError> {
    runtime.feed(id, tokens, &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}
