//! A session's file: who it belongs to, what a save writes, how it is read again, and what leaves it when the quota ends.
//!
//! A save appends what is new: turns, facts, changes, columns that have settled, and one state with the columns that have
//! not. What nobody needs any more stays in the file until it is more than what somebody does; then the file is written
//! anew. Either way a save is one commit.

use super::paged_vec::PagedVec;
use super::record::{
    BadRecord, CHANGE, COLUMN, Change, FACT, FactRecord, STATE, StateRecord, TURN, TurnRecord,
};
use super::report::Why;
use super::session::loose;
use super::turns::Place;
use super::{Fact, Held, Home, Opens, Record, Session, SessionError, SessionOptions};
use haversack_cache::{CacheError, Image, Store};
use haversack_engine::runtime::{Runtime, SequenceId, StepError};
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_memory::journal::{self, Journal, Map, RecordRef, Rewrite};
use haversack_memory::zoo::{Bug, planted};
use std::collections::BTreeMap;
use std::path::Path;

const SLOTS: u64 = BLOCK_SLOTS as u64;

/// Bytes that nobody needs and that are not worth writing a file anew.
const GARBAGE_BYTES: u64 = 8 << 20;

/// The first line of an identity.
pub(super) const VERSION: &str = "haversack session 1";

/// Who a file belongs to. A session is read again only by the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub model: String,
    pub kv: String,
    pub tokenizer: String,
    pub tenant: String,
}

impl Identity {
    pub(super) fn of(runtime: &Runtime, tenant: &str) -> Identity {
        let model = runtime.model();
        let mut pieces = blake3::Hasher::new_derive_key("haversack tokenizer v1");
        let tokenizer = model.tokenizer();
        for id in 0..tokenizer.len() as u32 {
            let piece = tokenizer.piece_raw(id).unwrap_or_default();
            pieces.update(&(piece.len() as u32).to_le_bytes());
            pieces.update(piece);
        }
        Identity {
            model: model.fingerprint().to_hex()[..32].to_owned(),
            kv: kv_format(runtime),
            tokenizer: pieces.finalize().to_hex()[..16].to_owned(),
            tenant: tenant.to_owned(),
        }
    }

    pub(super) fn fields(&self) -> [(&'static str, &str); 4] {
        [
            ("model", &self.model),
            ("kv", &self.kv),
            ("tokenizer", &self.tokenizer),
            ("tenant", &self.tenant),
        ]
    }

    /// Lines of a name and a value; the session's own name comes last.
    pub(super) fn to_bytes(&self, session: &str) -> Vec<u8> {
        let mut text = format!("{VERSION}\n");
        for (name, value) in self.fields() {
            text.push_str(&format!("{name} {}\n", value.escape_debug()));
        }
        text.push_str(&format!("session {session}\n"));
        text.into_bytes()
    }

    /// Whether a file is this one's, and who it is said to be if not.
    fn check(&self, session: &str, bytes: &[u8]) -> Result<(), SessionError> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.lines();
        let error = |what, saved: &str, here: &str| SessionError::Identity {
            name: session.to_owned(),
            what,
            saved: saved.chars().take(80).collect(),
            here: here.to_owned(),
        };
        let version = lines.next().unwrap_or_default();
        if version != VERSION {
            return Err(error("format", version, VERSION));
        }
        for (what, here) in self.fields().into_iter().chain([("session", session)]) {
            let saved = lines.next().unwrap_or_default();
            let saved = saved.strip_prefix(what).unwrap_or_default().trim_start();
            let here = here.escape_debug().to_string();
            let is_any = match what {
                "session" => planted(Bug::OtherConversation),
                "model" => planted(Bug::OtherModelAccepted),
                _ => false,
            };
            if saved != here && !is_any {
                return Err(error(what, saved, &here));
            }
        }
        Ok(())
    }
}

/// How keys and values are stored, in a word that is equal where the bytes mean the same.
fn kv_format(runtime: &Runtime) -> String {
    let store = runtime.store();
    let mut hasher = blake3::Hasher::new_derive_key("haversack kv format v1");
    for (i, layer) in store.layers().iter().enumerate() {
        hasher.update(format!("{layer:?}").as_bytes());
        for x in store.mean(i).unwrap_or_default() {
            hasher.update(&x.to_bits().to_le_bytes());
        }
    }
    let zones = store.zones();
    hasher.update(format!("{zones:?} {:?}", runtime.model().config().ropes).as_bytes());
    format!(
        "{}-{}",
        runtime.kv().name(),
        &hasher.finalize().to_hex()[..16]
    )
}

pub(super) fn journal_options(options: &SessionOptions) -> journal::Options {
    journal::Options {
        quota_bytes: Some(options.quota_bytes),
        key: options.key,
        faults: options.faults.clone(),
    }
}

/// Where records go: behind the others, or into a new file.
trait Sink {
    /// One record, of pieces that lie behind each other.
    fn append(&mut self, kind: u32, pieces: &[&[u8]]) -> Result<RecordRef, journal::Error>;
}

/// Where records of an older file go. They are checked on the way: damage is not copied.
trait Heir: Sink {
    fn keep(&mut self, record: RecordRef) -> Result<RecordRef, journal::Error>;
}

impl Sink for Journal {
    fn append(&mut self, kind: u32, pieces: &[&[u8]]) -> Result<RecordRef, journal::Error> {
        Journal::append(self, kind, pieces)
    }
}

impl Sink for Rewrite<'_> {
    fn append(&mut self, kind: u32, pieces: &[&[u8]]) -> Result<RecordRef, journal::Error> {
        Rewrite::append(self, kind, pieces)
    }
}

impl Heir for Rewrite<'_> {
    fn keep(&mut self, record: RecordRef) -> Result<RecordRef, journal::Error> {
        Rewrite::keep(self, record)
    }
}

/// From one journal to another.
struct Copy<'a> {
    old: &'a Journal,
    to: &'a mut Journal,
    buffer: Vec<u8>,
}

impl Sink for Copy<'_> {
    fn append(&mut self, kind: u32, pieces: &[&[u8]]) -> Result<RecordRef, journal::Error> {
        self.to.append(kind, pieces)
    }
}

impl Heir for Copy<'_> {
    fn keep(&mut self, record: RecordRef) -> Result<RecordRef, journal::Error> {
        self.old.read(record, &mut self.buffer)?;
        self.to.append(record.kind, &[&self.buffer])
    }
}

/// What a save adds to a file. Rows stay where they are until they are written, one column at a time.
struct Addition<'a> {
    store: &'a Store,
    sequence: SequenceId,
    pending: Vec<(u32, Vec<u8>)>,
    /// Blocks that have settled since the last one.
    columns: Vec<u64>,
    /// Blocks in memory whose columns are records of their own.
    blocks: Vec<u64>,
    /// In pieces.
    state: Vec<Vec<u8>>,
}

/// Why something was not written.
enum Unwritten {
    File(journal::Error),
    Rows(CacheError),
}

impl From<journal::Error> for Unwritten {
    fn from(error: journal::Error) -> Unwritten {
        Unwritten::File(error)
    }
}

/// Where it went.
struct Added {
    pending: Vec<RecordRef>,
    columns: Vec<(u64, RecordRef)>,
    state: RecordRef,
}

impl Addition<'_> {
    fn bytes(&self) -> u64 {
        let pending = self.pending.iter().map(|(_, bytes)| bytes.len());
        let columns = self.columns.len() * self.store.column_bytes();
        let state = self.state.iter().map(Vec::len);
        // A header and padding for each.
        let records = (self.pending.len() + self.columns.len() + 1) * 128;
        (pending.chain(state).sum::<usize>() + columns + records) as u64
    }

    fn write(&self, to: &mut dyn Sink) -> Result<Added, Unwritten> {
        let pending = self.pending.iter();
        let pending = pending.map(|(kind, bytes)| to.append(*kind, &[bytes]));
        let pending = pending.collect::<Result<_, _>>()?;
        let mut columns = Vec::new();
        let mut bytes = Vec::new();
        for &block in &self.columns {
            bytes.clear();
            let column = self.store.column(self.sequence, block, &mut bytes);
            column.map_err(Unwritten::Rows)?;
            columns.push((block, to.append(COLUMN, &[&bytes])?));
        }
        let state: Vec<&[u8]> = self.state.iter().map(Vec::as_slice).collect();
        Ok(Added {
            pending,
            columns,
            state: to.append(STATE, &state)?,
        })
    }
}

/// What a new file took over.
struct Kept {
    facts: Vec<RecordRef>,
    turns: PagedVec<RecordRef>,
    columns: BTreeMap<u64, RecordRef>,
}

impl Session {
    /// Writes what is new. Where that fails the conversation goes on, and the next save tries again.
    pub(super) fn save(&mut self, runtime: &Runtime, options: &SessionOptions) {
        if self.home.is_none() {
            self.pending.clear();
            return;
        }
        let saved = self.ready(options);
        let saved = saved.and_then(|()| self.try_save(runtime, options));
        self.unsaved = saved.err().map(|error| {
            if let Some(journal) = &mut self.journal {
                journal.abandon();
            }
            self.tidy();
            log::warn!("session {} is not saved: {error}", self.name);
            error.to_string()
        });
    }

    pub(super) fn try_save(
        &mut self,
        runtime: &Runtime,
        options: &SessionOptions,
    ) -> Result<(), SessionError> {
        let mut addition = self.addition(runtime)?;
        let waiting = self.pending.len();
        self.keep_quota(addition.bytes(), options.quota_bytes);
        if self.pending.len() > waiting {
            // What left the file to make room is told with the rest.
            drop(addition);
            addition = self.addition(runtime)?;
        }
        let wanted = self.needed_bytes + addition.bytes();
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        let garbage = journal.bytes().saturating_sub(self.needed_bytes);
        let full = journal.bytes() + addition.bytes() > options.quota_bytes;
        let mut kept = None;
        let added = if full || garbage > GARBAGE_BYTES.max(wanted) {
            let turns = &self.turns;
            let facts = &self.facts;
            let columns = &self.columns;
            let rewritten = journal.rewrite(|to| {
                let taken = take_over(to, facts, turns, columns)?;
                Ok((taken, addition.write(to)?))
            });
            let (taken, added) = rewritten.map_err(|e| self.unwritten(e))?;
            kept = Some(taken);
            added
        } else {
            let added = addition.write(journal);
            let added = added.and_then(|added| Ok(journal.commit().map(|()| added)?));
            added.map_err(|e| self.unwritten(e))?
        };
        if let Some(kept) = kept {
            self.moved(kept);
        }
        let Addition {
            pending, blocks, ..
        } = addition;
        self.added(&pending, blocks, added);
        Ok(())
    }

    fn unwritten(&self, error: Unwritten) -> SessionError {
        match error {
            Unwritten::File(source) => self.file_error(source),
            Unwritten::Rows(error) => StepError::from(error).into(),
        }
    }

    fn addition<'a>(&self, runtime: &'a Runtime) -> Result<Addition<'a>, SessionError> {
        let store = runtime.store();
        let settled = store.settled(self.sequence).map_err(StepError::from)?;
        let mut columns = Vec::new();
        let mut state = StateRecord {
            position: runtime.position(self.sequence)?,
            turns_made: self.turns_made,
            facts_made: self.facts_made,
            forgotten: self.forgotten,
            time_ms: self.last_time_ms,
            visible: (self.turns.iter())
                .filter(|h| h.turn.is_visible)
                .map(|h| h.turn.number)
                .collect(),
            ..StateRecord::default()
        };
        store
            .outline(self.sequence, &mut state.outline)
            .map_err(StepError::from)?;
        for block in store.blocks(self.sequence).map_err(StepError::from)? {
            if block >= settled {
                let mut bytes = Vec::new();
                let column = store.column(self.sequence, block, &mut bytes);
                column.map_err(StepError::from)?;
                state.tail.push(bytes);
                continue;
            }
            state.blocks.push(block);
            if !self.columns.contains_key(&block) {
                columns.push(block);
            }
        }
        Ok(Addition {
            store,
            sequence: self.sequence,
            pending: self.pending.clone(),
            columns,
            blocks: state.blocks.clone(),
            state: state.into_pieces(),
        })
    }

    /// Lets rows of turns leave the file, those read longest ago first, until so many more bytes are within half of the
    /// quota: what is kept is written anew each time the rest is full of what nobody needs. Where not even three
    /// quarters are enough without rows, turns are forgotten, the oldest first.
    fn keep_quota(&mut self, more: u64, quota: u64) {
        while self.needed_bytes.saturating_add(more) > quota / 2 {
            // A turn that was read again stands behind those that were not.
            let spilled = (0..self.turns.len())
                .filter(|&i| self.turns[i].turn.place == Place::Spilled)
                .min_by_key(|&i| self.turns[i].turn.span.start);
            let Some(i) = spilled else { break };
            let turn = &mut self.turns[i].turn;
            turn.place = Place::Ids;
            let (number, span) = (turn.number, turn.span.clone());
            self.change(Change::Moved {
                turn: number,
                place: Place::Ids,
                start: span.start,
            });
            self.release_columns(span);
        }
        while self.needed_bytes.saturating_add(more) > quota / 4 * 3 {
            let Some(i) = self.turns.iter().position(|h| h.turn.place == Place::Ids) else {
                return;
            };
            self.forget(i);
        }
    }

    /// Records have new places.
    fn moved(&mut self, kept: Kept) {
        let bytes = |records: &mut dyn Iterator<Item = &RecordRef>| -> u64 {
            records.map(RecordRef::file_bytes).sum()
        };
        self.needed_bytes = bytes(&mut kept.facts.iter())
            + bytes(&mut kept.turns.iter())
            + bytes(&mut kept.columns.values());
        let facts = self.facts.iter_mut().filter(|f| f.record.is_some());
        facts.zip(kept.facts).for_each(|(f, r)| f.record = Some(r));
        let turns = self.turns.iter_mut().filter(|h| h.saved().is_some());
        turns
            .zip(kept.turns)
            .for_each(|(h, r)| h.record = Record::Saved(r));
        self.columns = kept.columns;
        self.state = None;
    }

    fn added(&mut self, pending: &[(u32, Vec<u8>)], blocks: Vec<u64>, added: Added) {
        let old = self.state.take();
        self.release_record(old);
        self.needed_bytes += added.state.file_bytes();
        self.state = Some(added.state);
        for (block, record) in added.columns {
            self.needed_bytes += record.file_bytes();
            self.columns.insert(block, record);
        }
        // What has left memory and holds nothing that anybody needs is read again by nobody.
        let left = std::mem::replace(&mut self.blocks, blocks);
        for block in left {
            if self.blocks.binary_search(&block).is_err() {
                self.release_columns(block * SLOTS..(block + 1) * SLOTS);
            }
        }
        for ((kind, bytes), record) in pending.iter().zip(added.pending) {
            // Every record begins with its number.
            let number = bytes.first_chunk().map(|n| u64::from_le_bytes(*n));
            match *kind {
                TURN => {
                    let turns = &mut self.turns;
                    if let Some(held) = turns.iter_mut().find(|h| Some(h.turn.number) == number) {
                        held.record = Record::Saved(record);
                        self.needed_bytes += record.file_bytes();
                    }
                }
                FACT => {
                    if let Some(fact) = self.facts.iter_mut().find(|f| Some(f.number) == number) {
                        fact.record = Some(record);
                        self.needed_bytes += record.file_bytes();
                    }
                }
                _ => {}
            }
        }
        self.pending.clear();
    }

    /// Nobody needs the record of a turn any more, nor its columns.
    pub(super) fn release(&mut self, held: &Held) {
        self.release_record(held.saved());
        self.release_columns(held.turn.span.clone());
    }

    pub(super) fn release_record(&mut self, record: Option<RecordRef>) {
        let bytes = record.map_or(0, |r| r.file_bytes());
        self.needed_bytes = self.needed_bytes.saturating_sub(bytes);
    }

    pub(super) fn release_columns(&mut self, span: std::ops::Range<u64>) {
        for block in span.start / SLOTS..span.end.div_ceil(SLOTS) {
            if !needed(block, &self.facts, &self.turns) {
                let record = self.columns.remove(&block);
                self.release_record(record);
            }
        }
    }

    /// Counts what somebody needs of the file, from the beginning.
    pub(super) fn count_needed(&mut self) {
        let turns = self.turns.iter().filter_map(Held::saved);
        let facts = self.facts.iter().filter_map(|f| f.record);
        let columns = self.columns.values().copied();
        let all = turns.chain(facts).chain(columns).chain(self.state);
        self.needed_bytes = all.map(|record| record.file_bytes()).sum();
    }

    /// A turn with its tokens, from the file or from what waits to be saved.
    pub(super) fn turn_record(&self, held: &Held) -> Result<TurnRecord, SessionError> {
        let read = |bytes: &[u8]| TurnRecord::read(bytes).map_err(|e| self.record_error(e));
        match (&held.record, &self.journal) {
            (Record::Told(bytes), _) => read(bytes),
            (Record::Saved(record), Some(journal)) => {
                let mut bytes = Vec::new();
                let found = journal.read(*record, &mut bytes);
                found.map_err(|e| self.file_error(e))?;
                read(&bytes)
            }
            (Record::Saved(_), None) => Err(SessionError::NoSuchTurn {
                number: held.turn.number,
            }),
        }
    }

    pub(super) fn open(
        runtime: &mut Runtime,
        name: &str,
        path: &Path,
        identity: &super::Identity,
        options: &SessionOptions,
        room: Opens,
    ) -> Result<Session, SessionError> {
        let error = |source| SessionError::File {
            name: name.to_owned(),
            source,
        };
        let opened = Journal::open(path, journal_options(options)).map_err(error)?;
        identity.check(name, opened.journal.identity())?;
        let map = opened.journal.map().map_err(error)?;
        let replayed = Replay::of(&map, &opened.records);
        let replayed = replayed.map_err(|source| SessionError::Record {
            name: name.to_owned(),
            source,
        })?;
        let Replay {
            state,
            facts,
            turns,
            columns,
            state_record,
        } = replayed;
        let saved = |block: &u64| columns.get(block).and_then(|&r| map.payload(r).ok());
        let mut found: Vec<&[u8]> = Vec::new();
        for block in &state.blocks {
            let column = saved(block).ok_or(SessionError::Record {
                name: name.to_owned(),
                source: bad(STATE, "a block without its column"),
            })?;
            found.push(column);
        }
        let tail = || state.tail.iter().map(Vec::as_slice);
        let mut blocks = state.blocks.clone();
        let mut left = Vec::new();
        let mut restore = |columns: &[&[u8]]| {
            runtime.restore(Image {
                outline: &state.outline,
                columns,
            })
        };
        let mut restored = restore(&found.iter().copied().chain(tail()).collect::<Vec<_>>());
        if room == Opens::AsFits && restored.as_ref().is_err_and(StepError::is_cannot_fit) {
            // A budget smaller than the one it was put away in: what may leave stays in the file.
            left.extend(loose(&turns, options.last).map(|t| t.number));
            let stays = |h: &Held| h.turn.place == Place::Live && !left.contains(&h.turn.number);
            let live = turns.iter().filter(|h| stays(h)).map(|h| &h.turn.span);
            let spans: Vec<_> = live.chain(facts.iter().map(|f| &f.span)).collect();
            blocks.retain(|&block| spans.iter().any(|span| holds(block, span)));
            let columns = blocks.iter().filter_map(&saved).chain(tail());
            restored = restore(&columns.collect::<Vec<_>>());
        }
        let sequence = restored?;
        let mut session = Session::new(name, sequence, Some(opened.journal));
        session.state = Some(state_record);
        session.facts = facts;
        session.turns = turns;
        session.columns = columns;
        session.blocks = blocks;
        session.count_needed();
        session.facts_made = state.facts_made;
        session.turns_made = state.turns_made;
        session.forgotten = state.forgotten;
        session.last_time_ms = state.time_ms;
        for number in left {
            session.spill(number, Why::Budget);
        }
        if let Err(error) = session.mask(runtime) {
            runtime.close(session.sequence)?;
            return Err(error);
        }
        Ok(session)
    }

    pub(super) fn fork(
        &self,
        runtime: &mut Runtime,
        name: &str,
        journal: Option<Journal>,
        home: Option<Home>,
        options: &SessionOptions,
    ) -> Result<Session, SessionError> {
        let sequence = match runtime.fork(self.sequence) {
            Ok(sequence) => sequence,
            Err(error) => {
                // Nothing of it stays.
                let _ = journal.map(Journal::remove);
                return Err(error.into());
            }
        };
        let mut fork = Session::new(name, sequence, journal);
        fork.home = home;
        fork.facts = self.facts.clone();
        fork.turns = self.turns.clone();
        fork.columns = self.columns.clone();
        fork.blocks = self.blocks.clone();
        fork.facts_made = self.facts_made;
        fork.turns_made = self.turns_made;
        fork.forgotten = self.forgotten;
        fork.last_time_ms = self.last_time_ms;
        fork.pending = self.pending.clone();
        let copied = fork.copy_records(self).and_then(|()| {
            fork.save(runtime, options);
            match fork.unsaved.take() {
                None => Ok(()),
                Some(why) => Err(SessionError::Unsaved {
                    name: name.to_owned(),
                    why,
                }),
            }
        });
        if copied.is_err() {
            // Nothing of it stays.
            runtime.close(fork.sequence)?;
            if let Some(journal) = fork.journal.take() {
                let _ = journal.remove();
            }
        }
        copied.map(|()| fork)
    }

    /// Everything that `from` has in its file, appended to this one's.
    fn copy_records(&mut self, from: &Session) -> Result<(), SessionError> {
        let (Some(to), Some(old)) = (&mut self.journal, &from.journal) else {
            return Ok(());
        };
        let mut to = Copy {
            old,
            to,
            buffer: Vec::new(),
        };
        let kept = take_over(&mut to, &self.facts, &self.turns, &self.columns);
        let kept = kept.map_err(|e| from.file_error(e))?;
        if !planted(Bug::OtherRecords) {
            self.moved(kept);
        }
        Ok(())
    }

    pub(super) fn file_error(&self, source: journal::Error) -> SessionError {
        SessionError::File {
            name: self.name.clone(),
            source,
        }
    }

    pub(super) fn record_error(&self, source: BadRecord) -> SessionError {
        SessionError::Record {
            name: self.name.clone(),
            source,
        }
    }
}

/// Writes what is needed of an old file: the history as it would be told now.
fn take_over(
    to: &mut dyn Heir,
    facts: &[Fact],
    turns: &PagedVec<Held>,
    columns: &BTreeMap<u64, RecordRef>,
) -> Result<Kept, journal::Error> {
    let mut kept = Kept {
        facts: Vec::new(),
        turns: PagedVec::default(),
        columns: BTreeMap::new(),
    };
    for fact in facts {
        let Some(record) = fact.record else { continue };
        kept.facts.push(to.keep(record)?);
        if let Some(change) = fact.marked() {
            to.append(CHANGE, &[&change.to_bytes()])?;
        }
    }
    for held in turns.iter() {
        let Some(record) = held.saved() else { continue };
        let turn = &held.turn;
        kept.turns.push(to.keep(record)?);
        let number = turn.number;
        let changes = [
            Change::Moved {
                turn: number,
                place: turn.place,
                start: turn.span.start,
            },
            Change::Pinned {
                turn: number,
                is_pinned: turn.is_pinned,
            },
        ];
        for change in changes {
            to.append(CHANGE, &[&change.to_bytes()])?;
        }
    }
    for (&block, &record) in columns {
        kept.columns.insert(block, to.keep(record)?);
    }
    Ok(kept)
}

/// Whether a block holds rows of a fact, or of a turn whose rows are kept.
pub(super) fn needed(block: u64, facts: &[Fact], turns: &PagedVec<Held>) -> bool {
    let turns = turns.iter().filter(|h| h.turn.place != Place::Ids);
    let mut spans = turns
        .map(|h| &h.turn.span)
        .chain(facts.iter().map(|f| &f.span));
    spans.any(|span| holds(block, span))
}

/// Whether rows of the span are in the block.
pub(super) fn holds(block: u64, span: &std::ops::Range<u64>) -> bool {
    span.start < (block + 1) * SLOTS && block * SLOTS < span.end
}

/// A file's records, read in order.
pub(super) struct Replay {
    pub state: StateRecord,
    pub state_record: RecordRef,
    pub facts: Vec<Fact>,
    pub turns: PagedVec<Held>,
    pub columns: BTreeMap<u64, RecordRef>,
}

pub(super) fn bad(kind: u32, what: &'static str) -> BadRecord {
    BadRecord { kind, what }
}

impl Replay {
    pub fn of(map: &Map, records: &[RecordRef]) -> Result<Replay, BadRecord> {
        let mut facts: Vec<Fact> = Vec::new();
        let mut turns = PagedVec::default();
        let mut columns = BTreeMap::new();
        let mut last = None;
        for &record in records {
            let kind = record.kind;
            let bytes = map
                .payload(record)
                .map_err(|_| bad(kind, "bytes missing"))?;
            match kind {
                TURN => {
                    let told = TurnRecord::read(bytes)?;
                    turns.push(Held {
                        turn: told.turn(),
                        record: Record::Saved(record),
                    });
                }
                FACT => {
                    let told = FactRecord::read(bytes)?;
                    // Told anew where the stream was condensed.
                    facts.retain(|f| f.number != told.number);
                    facts.push(Fact {
                        number: told.number,
                        span: told.span(),
                        text: told.text,
                        verbatim: 0,
                        record: Some(record),
                    });
                }
                CHANGE => match Change::read(bytes)? {
                    Change::Renewed => columns.clear(),
                    change => apply(change, &mut facts, &mut turns),
                },
                COLUMN => {
                    let block = bytes.first_chunk().map(|n| u64::from_le_bytes(*n));
                    let block = block.ok_or(bad(COLUMN, "bytes missing"))?;
                    columns.insert(block, record);
                }
                STATE => last = Some(record),
                _ => return Err(bad(kind, "no meaning here")),
            }
        }
        let state_record = last.ok_or(bad(STATE, "no record"))?;
        let bytes = map.payload(state_record);
        let state = StateRecord::read(bytes.map_err(|_| bad(STATE, "bytes missing"))?)?;
        for held in turns.iter_mut() {
            held.turn.is_visible = state.visible.contains(&held.turn.number);
        }
        let spans = turns.iter().filter(|h| h.turn.place == Place::Live);
        let mut spans = spans
            .map(|h| &h.turn.span)
            .chain(facts.iter().map(|f| &f.span));
        if spans.any(|span| span.end > state.position) {
            return Err(bad(STATE, "a position before its turns"));
        }
        columns.retain(|block, _| {
            let held = *block < u64::MAX / SLOTS - 1 && needed(*block, &facts, &turns);
            held || state.blocks.contains(block)
        });
        Ok(Replay {
            state,
            state_record,
            facts,
            turns,
            columns,
        })
    }
}

fn apply(change: Change, facts: &mut Vec<Fact>, turns: &mut PagedVec<Held>) {
    let find = |turns: &PagedVec<Held>, number| turns.iter().position(|h| h.turn.number == number);
    match change {
        Change::Moved { turn, place, start } => {
            if let Some(i) = find(turns, turn) {
                let turn = &mut turns[i].turn;
                turn.place = place;
                turn.span = start..start.saturating_add(turn.tokens());
            }
        }
        Change::Pinned { turn, is_pinned } => {
            if let Some(i) = find(turns, turn) {
                turns[i].turn.is_pinned = is_pinned;
            }
        }
        Change::Forgotten { .. } if planted(Bug::TombstoneIgnored) => {}
        Change::Forgotten { turn } => turns.retain(|h| h.turn.number != turn),
        Change::Revoked { fact } => facts.retain(|f| f.number != fact),
        Change::Verbatim { fact, bytes } => {
            if let Some(fact) = facts.iter_mut().find(|f| f.number == fact) {
                fact.verbatim = usize::try_from(bytes).unwrap_or(usize::MAX);
            }
        }
        // Columns are not known here.
        Change::Renewed => {}
    }
}
