//! A session's file: what a save appends, how the file is rewritten, and what happens while the disk fails.
//!
//! A save appends new records (turns, facts, changes, columns that have settled) and one state with the columns that have
//! not. Records that are no longer needed stay in the file until they outweigh the others; then the file is rewritten.
//! Either way a save is one commit.
//!
//! A failed save changes neither the file nor the conversation. Its records wait, and every later save tries again. What
//! waits is bounded by what is in memory and in the file: records of a turn that is gone are dropped, and of several
//! changes of one thing the last counts. While saves fail, a turn that leaves memory goes as far as the file can restore
//! it: to its rows, to its ids, or away.

use super::error::{SessionError, SessionResult, SharedError};
use super::options::{SessionOptions, journal_options};
use super::owner::{Owner, SessionName};
use super::paged_vec::PagedVec;
use super::record::{
    BadRecord, CHANGE, COLUMN, FACT, FactRecord, LIMITS, LimitsRecord, LogChange, STATE,
    StateRecord, TURN, TurnRecord, number,
};
use super::replay::Replay;
use super::residency::Residency;
use super::transcript::{Fact, StoredRecord, StoredTurn, Transcript};
use super::turns::{SLOTS, TurnPlace};
use haversack_cache::{CacheError, Store};
use haversack_engine::runtime::{Runtime, SequenceId, StepError};
use haversack_memory::journal::{
    self, Journal, JournalCommit, JournalCommitTask, JournalCommitted, JournalMap, JournalRewrite,
    RecordRef,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// Below this many unneeded bytes a file is not rewritten.
const GARBAGE_BYTES: u64 = 8 << 20;

/// Path and identity of a session's file, which may not exist yet.
#[derive(Clone, Debug)]
pub(super) struct LogHome {
    pub path: PathBuf,
    pub identity: Vec<u8>,
}

impl LogHome {
    /// A file that appears with the first save, in place of one that a process left which died before its first save.
    pub fn begin(
        &self,
        name: &str,
        options: &SessionOptions,
        quota_bytes: u64,
    ) -> SessionResult<Journal> {
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(|source| SessionError::Io {
                doing: "making",
                path: folder.to_owned(),
                source,
            })?;
        }
        let journal_options = || journal_options(options, quota_bytes);
        let begin = || Journal::begin(&self.path, &self.identity, journal_options());
        let begun = match begin() {
            Err(journal::JournalError::Exists)
                if Journal::is_blank(&self.path, &journal_options()) =>
            {
                // Unless another process is creating it just now.
                Journal::delete(&self.path, &journal_options()).and_then(|()| begin())
            }
            begun => begun,
        };
        begun.map_err(|source| SessionError::File {
            name: name.to_owned(),
            source,
        })
    }
}

type Appended = Result<RecordRef, journal::JournalError>;

/// A new file that also takes over records of an older one. It checks them on the way: damage is not copied.
trait RewriteTarget {
    /// Appends one record, given in consecutive pieces.
    fn append(&mut self, kind: u32, pieces: &[&[u8]]) -> Appended;
    fn keep(&mut self, record: RecordRef) -> Appended;
}

impl RewriteTarget for JournalRewrite<'_> {
    fn append(&mut self, kind: u32, pieces: &[&[u8]]) -> Appended {
        JournalRewrite::append(self, kind, pieces)
    }

    fn keep(&mut self, record: RecordRef) -> Appended {
        JournalRewrite::keep(self, record)
    }
}

/// Copies records from one journal to another.
struct JournalCopy<'a> {
    from: &'a Journal,
    to: &'a mut Journal,
    buffer: Vec<u8>,
}

impl RewriteTarget for JournalCopy<'_> {
    fn append(&mut self, kind: u32, pieces: &[&[u8]]) -> Appended {
        self.to.append(kind, pieces)
    }

    fn keep(&mut self, record: RecordRef) -> Appended {
        self.from.read(record, &mut self.buffer)?;
        self.to.append(record.kind, &[&self.buffer])
    }
}

/// What a save will write. Rows stay in the store until they are written, one column at a time.
pub(super) struct Draft<'a> {
    store: &'a Store,
    sequence: SequenceId,
    pending: Vec<(u32, Vec<u8>)>,
    /// Blocks that have settled since the last save.
    columns: Vec<u64>,
    /// Blocks in memory whose columns are records of their own.
    blocks: Vec<u64>,
    /// The state record, in pieces.
    state: Vec<Vec<u8>>,
}

enum WriteError {
    File(journal::JournalError),
    Rows(CacheError),
}

impl From<journal::JournalError> for WriteError {
    fn from(error: journal::JournalError) -> WriteError {
        WriteError::File(error)
    }
}

/// Where a draft was written.
struct Written {
    /// Kind and number of each record, and its place.
    pending: Vec<(u32, Option<u64>, RecordRef)>,
    columns: Vec<(u64, RecordRef)>,
    /// As in the draft.
    blocks: Vec<u64>,
    state: RecordRef,
}

/// A save whose records are written and not durable yet. Its session does nothing else until [`SessionLog::end_save`].
#[must_use]
pub(super) struct StartedSave {
    commit: JournalCommit,
    records: SavedRecords,
}

impl StartedSave {
    /// Waits for the disk here.
    pub fn run(self) -> EndedSave {
        EndedSave {
            committed: self.commit.run(),
            records: self.records,
        }
    }

    /// Lets another thread wait for the disk.
    pub fn start(self) -> RunningSave {
        RunningSave {
            commit: self.commit.start(),
            records: self.records,
        }
    }
}

/// A [`StartedSave`] that runs beside the caller.
#[must_use]
pub(super) struct RunningSave {
    commit: JournalCommitTask,
    records: SavedRecords,
}

impl RunningSave {
    pub fn has_ended(&self) -> bool {
        self.commit.has_ended()
    }

    /// Waits for its end, at most this long.
    pub fn wait_for(&self, time: Duration) {
        self.commit.wait_for(time);
    }

    pub fn wait(self) -> EndedSave {
        EndedSave {
            committed: self.commit.wait(),
            records: self.records,
        }
    }
}

/// A save that the disk has taken, or not.
#[must_use]
pub(super) struct EndedSave {
    committed: JournalCommitted,
    records: SavedRecords,
}

struct SavedRecords {
    /// Of a file that was written anew.
    kept: Option<KeptRecords>,
    written: Written,
}

impl Draft<'_> {
    pub fn bytes(&self) -> u64 {
        let pending = self.pending.iter().map(|(_, bytes)| bytes.len());
        let columns = self.columns.len() * self.store.column_bytes();
        let state = self.state.iter().map(Vec::len);
        // A header and padding for each.
        let records = (self.pending.len() + self.columns.len() + 1) * 128;
        (pending.chain(state).sum::<usize>() + columns + records) as u64
    }

    fn write(
        &self,
        append: &mut dyn FnMut(u32, &[&[u8]]) -> Appended,
    ) -> Result<Written, WriteError> {
        let pending = self.pending.iter();
        let pending =
            pending.map(|(kind, bytes)| Ok((*kind, number(bytes), append(*kind, &[bytes])?)));
        let pending = pending.collect::<Result<_, journal::JournalError>>()?;
        let mut columns = Vec::new();
        let mut bytes = Vec::new();
        for &block in &self.columns {
            bytes.clear();
            let column = self.store.column(self.sequence, block, &mut bytes);
            column.map_err(WriteError::Rows)?;
            columns.push((block, append(COLUMN, &[&bytes])?));
        }
        let state: Vec<&[u8]> = self.state.iter().map(Vec::as_slice).collect();
        Ok(Written {
            pending,
            columns,
            blocks: self.blocks.clone(),
            state: append(STATE, &state)?,
        })
    }
}

/// New places of the records that a new file took over.
struct KeptRecords {
    facts: Vec<RecordRef>,
    turns: PagedVec<RecordRef>,
    columns: BTreeMap<u64, RecordRef>,
}

/// The records of a log: what a failed swap of the stream restores.
#[derive(Clone, Default)]
pub(super) struct LogRecords {
    /// Records that wait for the next save, with their kinds.
    pending: Vec<(u32, Vec<u8>)>,
    /// The record of the last state.
    state: Option<RecordRef>,
    /// Bytes of records in the file that are still needed.
    needed_bytes: u64,
}

pub(super) struct SessionLog {
    owner: Owner,
    name: String,
    /// `None` where sessions are not saved.
    home: Option<LogHome>,
    /// `None` while the file could not be created.
    journal: Option<Journal>,
    records: LogRecords,
    /// Why the last save failed.
    unsaved: Option<SharedError<SessionError>>,
}

impl SessionLog {
    pub fn new(
        SessionName { owner, name }: SessionName<'_>,
        home: Option<LogHome>,
        journal: Option<Journal>,
    ) -> SessionLog {
        SessionLog {
            owner,
            name: name.to_owned(),
            home,
            journal,
            records: LogRecords::default(),
            unsaved: None,
        }
    }

    /// Goes on after the last state of a file that was replayed.
    pub fn resume(&mut self, state: RecordRef, transcript: &Transcript, residency: &Residency) {
        self.records.state = Some(state);
        let turns = transcript.turns.iter().filter_map(StoredTurn::saved);
        let facts = transcript.facts.iter().filter_map(|f| f.record);
        let columns = residency.columns.values().copied();
        let needed = turns.chain(facts).chain(columns).chain([state]);
        self.records.needed_bytes = needed.map(|record| record.file_bytes()).sum();
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn full_name(&self) -> SessionName<'_> {
        self.owner.session(&self.name)
    }

    pub fn unsaved(&self) -> Option<&SharedError<SessionError>> {
        self.unsaved.as_ref()
    }

    pub fn has_file(&self) -> bool {
        self.journal.is_some()
    }

    pub fn file_bytes(&self) -> u64 {
        self.journal.as_ref().map_or(0, Journal::committed_bytes)
    }

    /// Bytes of records that wait to be saved; rows do not count.
    pub fn waiting_bytes(&self) -> u64 {
        self.records
            .pending
            .iter()
            .map(|(_, b)| b.len() as u64)
            .sum()
    }

    /// Number of records that wait to be saved.
    pub fn waiting(&self) -> usize {
        self.records.pending.len()
    }

    pub fn needed_bytes(&self) -> u64 {
        self.records.needed_bytes
    }

    pub fn heap_bytes(&self) -> usize {
        self.records
            .pending
            .iter()
            .map(|(_, bytes)| bytes.capacity())
            .sum()
    }

    pub fn note(&mut self, change: LogChange) {
        self.records.pending.push((CHANGE, change.to_bytes()));
    }

    pub fn note_limits(&mut self, record: &LimitsRecord) {
        self.records.pending.push((LIMITS, record.to_bytes()));
    }

    pub fn note_fact(&mut self, record: &FactRecord) {
        self.records.pending.push((FACT, record.to_bytes()));
    }

    pub fn note_turn(&mut self, bytes: Vec<u8>) {
        self.records.pending.push((TURN, bytes));
    }

    /// Facts that wait are about to be written anew.
    pub fn drop_waiting_facts(&mut self) {
        self.records.pending.retain(|(kind, _)| *kind != FACT);
    }

    /// Where a turn that leaves memory can be restored from; `None` = nowhere.
    pub fn place_after_leaving(
        &self,
        stored: &StoredTurn,
        residency: &Residency,
    ) -> Option<TurnPlace> {
        self.journal.as_ref()?;
        // Rows that are not in the file yet stay in memory until the save after this turn.
        if self.unsaved.is_none() {
            return Some(TurnPlace::Spilled);
        }
        stored.saved()?;
        match residency.is_saved(&stored.turn.span) {
            true => Some(TurnPlace::Spilled),
            false => Some(TurnPlace::Ids),
        }
    }

    /// A turn with its tokens, from the file or from what waits to be saved.
    pub fn turn_record(&self, stored: &StoredTurn) -> SessionResult<TurnRecord> {
        let read = |bytes: &[u8]| TurnRecord::read(bytes).map_err(|e| self.record_error(e));
        match &stored.record {
            StoredRecord::Unsaved(bytes) => read(bytes),
            StoredRecord::Saved(record) if self.has_file() => read(&self.read(*record)?),
            StoredRecord::Saved(_) => Err(SessionError::NoSuchTurn {
                number: stored.turn.number,
            }),
        }
    }

    /// The bytes of a record in the file.
    pub fn read(&self, record: RecordRef) -> SessionResult<Vec<u8>> {
        let mut bytes = Vec::new();
        if let Some(journal) = &self.journal {
            let read = journal.read(record, &mut bytes);
            read.map_err(|e| self.file_error(e))?;
        }
        Ok(bytes)
    }

    pub fn map(&self) -> SessionResult<Option<JournalMap>> {
        let map = self.journal.as_ref().map(Journal::map).transpose();
        map.map_err(|e| self.file_error(e))
    }

    /// Removes the file of a session that did not come to be.
    pub fn remove(self) {
        let _ = self.journal.map(Journal::remove);
    }

    pub fn records(&self) -> LogRecords {
        self.records.clone()
    }

    /// Back to earlier records, after a save that failed.
    pub fn restore(&mut self, records: LogRecords) {
        if let Some(journal) = &mut self.journal {
            journal.rollback();
        }
        self.records = records;
    }

    /// Before a save: creates a file that could not be created before, and recovers one whose last commit failed midway.
    /// `false` where sessions are not saved.
    pub fn prepare(
        &mut self,
        transcript: &mut Transcript,
        residency: &mut Residency,
        options: &SessionOptions,
        quota_bytes: u64,
    ) -> SessionResult<bool> {
        let Some(home) = &self.home else {
            self.records.pending.clear();
            return Ok(false);
        };
        match &self.journal {
            None => self.journal = Some(home.begin(&self.name, options, quota_bytes)?),
            Some(journal) if journal.is_lost() => self.recover(transcript, residency)?,
            Some(_) => {}
        }
        Ok(true)
    }

    /// What the next save would write.
    pub fn draft<'a>(
        &self,
        runtime: &'a Runtime,
        transcript: &Transcript,
        residency: &Residency,
    ) -> SessionResult<Draft<'a>> {
        let store = runtime.store();
        let sequence = residency.sequence;
        let settled = store
            .first_mutable_block(sequence)
            .map_err(StepError::from)?;
        let mut columns = Vec::new();
        let visible = transcript.turns().filter(|turn| turn.is_visible);
        let mut state = StateRecord {
            position: runtime.position(sequence)?,
            turns_made: transcript.turns_made,
            facts_made: transcript.facts_made,
            forgotten: transcript.forgotten,
            time_ms: transcript.last_time_ms,
            visible: visible.map(|turn| turn.number).collect(),
            ..StateRecord::default()
        };
        store
            .outline(sequence, &mut state.outline)
            .map_err(StepError::from)?;
        for block in store.blocks(sequence).map_err(StepError::from)? {
            if block >= settled {
                let mut bytes = Vec::new();
                let column = store.column(sequence, block, &mut bytes);
                column.map_err(StepError::from)?;
                state.tail.push(bytes);
                continue;
            }
            state.blocks.push(block);
            if !residency.columns.contains_key(&block) {
                columns.push(block);
            }
        }
        Ok(Draft {
            store,
            sequence,
            pending: self.records.pending.clone(),
            columns,
            blocks: state.blocks.clone(),
            state: state.into_pieces(),
        })
    }

    /// Writes a draft, behind the records of the file or into a new file. `None` where there is no file.
    pub fn begin_save(
        &mut self,
        draft: Draft<'_>,
        transcript: &Transcript,
        residency: &Residency,
        quota_bytes: u64,
    ) -> SessionResult<Option<StartedSave>> {
        let wanted = self.records.needed_bytes + draft.bytes();
        let Some(journal) = &mut self.journal else {
            return Ok(None);
        };
        let garbage = journal.bytes().saturating_sub(self.records.needed_bytes);
        let is_full = journal.bytes() + draft.bytes() > quota_bytes;
        if is_full || garbage > GARBAGE_BYTES.max(wanted) {
            let rewritten = journal.begin_rewrite(|to| {
                let kept = take_over(to, transcript, residency)?;
                let written = draft.write(&mut |kind, pieces| to.append(kind, pieces))?;
                let kept = Some(kept);
                Ok(SavedRecords { kept, written })
            });
            let (records, commit) = rewritten.map_err(|e| self.write_error(e))?;
            return Ok(Some(StartedSave { commit, records }));
        }
        let written = draft.write(&mut |kind, pieces| journal.append(kind, pieces));
        let begun = written.and_then(|written| Ok((written, journal.begin_commit()?)));
        let (written, commit) = begun.map_err(|e| self.write_error(e))?;
        let kept = None;
        let records = SavedRecords { kept, written };
        Ok(commit.map(|commit| StartedSave { commit, records }))
    }

    /// Takes up what became of a save.
    pub fn end_save(
        &mut self,
        save: EndedSave,
        transcript: &mut Transcript,
        residency: &mut Residency,
    ) -> SessionResult {
        if let Some(journal) = &mut self.journal {
            let ended = journal.end_commit(save.committed);
            ended.map_err(|e| self.write_error(e.into()))?;
        }
        let SavedRecords { kept, written } = save.records;
        if let Some(kept) = kept {
            self.relocate(kept, transcript, residency);
        }
        self.written(written, transcript, residency);
        self.unsaved = None;
        Ok(())
    }

    /// A save failed: its records wait for the next.
    pub fn save_failed(&mut self, error: SessionError, transcript: &Transcript) {
        if let Some(journal) = &mut self.journal {
            journal.rollback();
        }
        self.drop_obsolete(transcript);
        log::warn!("session {} is not saved: {error}", self.name);
        self.unsaved = Some(error.into());
    }

    /// Appends everything that another session has in its file.
    pub fn copy_from(
        &mut self,
        from: &SessionLog,
        transcript: &mut Transcript,
        residency: &mut Residency,
    ) -> SessionResult {
        self.records.pending = from.records.pending.clone();
        let (Some(to), Some(old)) = (&mut self.journal, &from.journal) else {
            return Ok(());
        };
        let mut to = JournalCopy {
            from: old,
            to,
            buffer: Vec::new(),
        };
        let kept = take_over(&mut to, transcript, residency);
        let kept = kept.map_err(|e| from.file_error(e))?;
        self.relocate(kept, transcript, residency);
        Ok(())
    }

    /// The record of a turn is no longer needed, nor are its columns.
    pub fn release(
        &mut self,
        stored: &StoredTurn,
        transcript: &Transcript,
        residency: &mut Residency,
    ) {
        self.release_record(stored.saved());
        self.release_columns(&stored.turn.span, transcript, residency);
    }

    pub fn release_record(&mut self, record: Option<RecordRef>) {
        self.release_bytes(record.map_or(0, |r| r.file_bytes()));
    }

    pub fn release_columns(
        &mut self,
        span: &Range<u64>,
        transcript: &Transcript,
        residency: &mut Residency,
    ) {
        self.release_bytes(residency.release(span, transcript));
    }

    fn release_bytes(&mut self, bytes: u64) {
        self.records.needed_bytes = self.records.needed_bytes.saturating_sub(bytes);
    }

    /// Records have new places.
    fn relocate(
        &mut self,
        kept: KeptRecords,
        transcript: &mut Transcript,
        residency: &mut Residency,
    ) {
        let bytes = |records: &mut dyn Iterator<Item = &RecordRef>| -> u64 {
            records.map(RecordRef::file_bytes).sum()
        };
        self.records.needed_bytes = bytes(&mut kept.facts.iter())
            + bytes(&mut kept.turns.iter())
            + bytes(&mut kept.columns.values());
        let facts = transcript.facts.iter_mut().filter(|f| f.record.is_some());
        facts.zip(kept.facts).for_each(|(f, r)| f.record = Some(r));
        let turns = transcript.turns.iter_mut().filter(|h| h.saved().is_some());
        turns
            .zip(kept.turns)
            .for_each(|(h, r)| h.record = StoredRecord::Saved(r));
        residency.columns = kept.columns;
        self.records.state = None;
    }

    fn written(
        &mut self,
        written: Written,
        transcript: &mut Transcript,
        residency: &mut Residency,
    ) {
        let old = self.records.state.replace(written.state);
        self.release_record(old);
        self.records.needed_bytes += written.state.file_bytes();
        for (block, record) in written.columns {
            self.records.needed_bytes += record.file_bytes();
            residency.columns.insert(block, record);
        }
        // Columns of blocks that left memory are read again only for spilled turns.
        let left = std::mem::replace(&mut residency.blocks, written.blocks);
        for block in left {
            if residency.blocks.binary_search(&block).is_err() {
                self.release_columns(&(block * SLOTS..(block + 1) * SLOTS), transcript, residency);
            }
        }
        for (kind, number, record) in written.pending {
            match kind {
                TURN => {
                    let mut turns = transcript.turns.iter_mut();
                    if let Some(stored) = turns.find(|h| Some(h.turn.number) == number) {
                        stored.record = StoredRecord::Saved(record);
                        self.records.needed_bytes += record.file_bytes();
                    }
                }
                FACT => {
                    let mut facts = transcript.facts.iter_mut();
                    if let Some(fact) = facts.find(|f| Some(f.number) == number) {
                        fact.record = Some(record);
                        self.records.needed_bytes += record.file_bytes();
                    }
                }
                _ => {}
            }
        }
        self.records.pending.clear();
    }

    /// Drops waiting records that no longer say anything.
    fn drop_obsolete(&mut self, transcript: &Transcript) {
        let numbers = |kind: u32| -> BTreeSet<u64> {
            let of_kind = self.records.pending.iter().filter(|(k, _)| *k == kind);
            of_kind.filter_map(|(_, bytes)| number(bytes)).collect()
        };
        let (waiting_turns, waiting_facts) = (numbers(TURN), numbers(FACT));
        let turns: BTreeSet<u64> = transcript.turns().map(|turn| turn.number).collect();
        let facts: BTreeSet<u64> = transcript.facts.iter().map(|f| f.number).collect();
        let mut last = BTreeSet::new();
        let mut kept = Vec::new();
        for (kind, bytes) in std::mem::take(&mut self.records.pending).into_iter().rev() {
            let is_needed = match kind {
                TURN => number(&bytes).is_some_and(|n| turns.contains(&n)),
                FACT => number(&bytes).is_some_and(|n| facts.contains(&n)),
                CHANGE => match LogChange::read(&bytes) {
                    Ok(LogChange::Moved { turn, .. }) => {
                        turns.contains(&turn) && last.insert((0, turn))
                    }
                    Ok(LogChange::Pinned { turn, .. }) => {
                        turns.contains(&turn) && last.insert((1, turn))
                    }
                    Ok(LogChange::Forgotten { turn }) => {
                        !waiting_turns.contains(&turn) && last.insert((2, turn))
                    }
                    Ok(LogChange::Revoked { fact }) => {
                        !waiting_facts.contains(&fact) && last.insert((3, fact))
                    }
                    Ok(LogChange::Verbatim { fact, .. }) => {
                        facts.contains(&fact) && last.insert((4, fact))
                    }
                    Ok(LogChange::Renewed) => last.insert((5, 0)),
                    Ok(LogChange::Told { .. }) => last.insert((7, 0)),
                    Ok(LogChange::Excluded { turn, .. }) => {
                        turns.contains(&turn) && last.insert((8, turn))
                    }
                    Err(_) => false,
                },
                LIMITS => last.insert((6, 0)),
                _ => true,
            };
            if is_needed {
                kept.push((kind, bytes));
            }
        }
        kept.reverse();
        self.records.pending = kept;
    }

    /// After a commit that failed midway the file has either the state before it or after it. Finds out which, and notes
    /// the changes that the file lacks.
    fn recover(&mut self, transcript: &mut Transcript, residency: &mut Residency) -> SessionResult {
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        let recovered = journal.recover();
        let recovered = recovered.and_then(|records| Ok((journal.map()?, records)));
        let (map, records) = recovered.map_err(|e| self.file_error(e))?;
        // Nothing was ever saved: everything waits.
        if records.is_empty() {
            return Ok(());
        }
        let replay = Replay::of(&map, &records).map_err(|e| self.record_error(e))?;
        let found = &replay.transcript;
        let saved_fact = |number: u64| found.facts.iter().find(|f| f.number == number);
        // The file has a condensed stream whose swap was undone when its save failed: it belongs to other positions.
        let is_other = |fact: &Fact| saved_fact(fact.number).is_some_and(|f| f.span != fact.span);
        if transcript.facts.iter().any(is_other) {
            return Err(self.record_error(BadRecord {
                kind: STATE,
                what: "another persistent stream than the session",
            }));
        }
        let there: BTreeMap<u64, &StoredTurn> = (found.turns.iter())
            .map(|stored| (stored.turn.number, stored))
            .collect();
        let mut changes = Vec::new();
        let ours: BTreeSet<u64> = transcript.turns().map(|turn| turn.number).collect();
        for &turn in there.keys().filter(|turn| !ours.contains(turn)) {
            changes.push(LogChange::Forgotten { turn });
        }
        for stored in transcript.turns.iter_mut() {
            match (there.get(&stored.turn.number), &stored.record) {
                (Some(saved), _) => {
                    stored.record = saved.record.clone();
                    changes.extend(placement(stored));
                    if saved.turn.is_excluded && !stored.turn.is_excluded {
                        changes.push(LogChange::Excluded {
                            turn: stored.turn.number,
                            is_excluded: false,
                        });
                    }
                }
                (None, StoredRecord::Unsaved(_)) => {}
                // The tokens are lost.
                (None, StoredRecord::Saved(_)) => {
                    stored.record = StoredRecord::Unsaved(Box::default())
                }
            }
        }
        for fact in &mut transcript.facts {
            fact.record = saved_fact(fact.number).and_then(|saved| saved.record);
        }
        for fact in &found.facts {
            if transcript.facts.iter().all(|f| f.number != fact.number) {
                changes.push(LogChange::Revoked { fact: fact.number });
            }
        }
        self.records.pending.retain(|(kind, bytes)| match *kind {
            TURN => number(bytes).is_none_or(|n| !there.contains_key(&n)),
            FACT => number(bytes).is_none_or(|n| saved_fact(n).is_none()),
            _ => true,
        });
        changes.into_iter().for_each(|change| self.note(change));
        self.drop_obsolete(transcript);
        residency.columns = replay.columns;
        residency.blocks = replay.state.blocks;
        let blocks = &residency.blocks;
        residency
            .columns
            .retain(|&block, _| transcript.needs_block(block) || blocks.contains(&block));
        self.resume(replay.state_record, transcript, residency);
        Ok(())
    }

    fn file_error(&self, source: journal::JournalError) -> SessionError {
        SessionError::File {
            name: self.name.clone(),
            source,
        }
    }

    fn record_error(&self, source: BadRecord) -> SessionError {
        SessionError::Record {
            name: self.name.clone(),
            source,
        }
    }

    fn write_error(&self, error: WriteError) -> SessionError {
        match error {
            WriteError::File(source) => self.file_error(source),
            WriteError::Rows(error) => StepError::from(error).into(),
        }
    }
}

/// The changes that say where a turn is, and what was asked of it, after the record of the turn.
fn placement(stored: &StoredTurn) -> impl Iterator<Item = LogChange> {
    let turn = &stored.turn;
    let excluded = LogChange::Excluded {
        turn: turn.number,
        is_excluded: true,
    };
    let always = [
        LogChange::Moved {
            turn: turn.number,
            place: turn.place,
            start: turn.span.start,
        },
        LogChange::Pinned {
            turn: turn.number,
            is_pinned: turn.is_pinned,
        },
    ];
    always
        .into_iter()
        .chain(turn.is_excluded.then_some(excluded))
}

/// Writes the needed records of an old file, and the changes that lead to the present.
fn take_over(
    to: &mut dyn RewriteTarget,
    transcript: &Transcript,
    residency: &Residency,
) -> Result<KeptRecords, journal::JournalError> {
    let mut kept = KeptRecords {
        facts: Vec::new(),
        turns: PagedVec::default(),
        columns: BTreeMap::new(),
    };
    for fact in &transcript.facts {
        let Some(record) = fact.record else { continue };
        kept.facts.push(to.keep(record)?);
        if let Some(change) = fact.verbatim_change() {
            to.append(CHANGE, &[&change.to_bytes()])?;
        }
    }
    if let Some(hash) = transcript.told {
        to.append(CHANGE, &[&LogChange::Told { hash }.to_bytes()])?;
    }
    for stored in transcript.turns.iter() {
        let Some(record) = stored.saved() else {
            continue;
        };
        kept.turns.push(to.keep(record)?);
        for change in placement(stored) {
            to.append(CHANGE, &[&change.to_bytes()])?;
        }
    }
    for (&block, &record) in &residency.columns {
        kept.columns.insert(block, to.keep(record)?);
    }
    if let Some(limits) = &transcript.limits {
        to.append(LIMITS, &[&limits.to_bytes()])?;
    }
    Ok(kept)
}
