//! One session in memory: its transcript, its rows, its file and its condensing, kept in step.

use super::condensing::Condensing;
use super::error::{SessionError, SessionResult};
use super::files::SessionFile;
use super::identity::Identity;
use super::limits::{CapacityChange, SessionLimits, SessionSettings};
use super::log::{EndedSave, LogHome, SessionLog, StartedSave};
use super::options::SessionOptions;
use super::owner::SessionName;
use super::plan::TurnPlan;
use super::prefix::Prefixes;
use super::record::{BadRecord, FactRecord, LimitsRecord, LogChange, STATE, TurnRecord};
use super::replay::Replay;
use super::report::{
    ContextReport, LastDecision, RowsAway, SessionCounters, SessionReport, SessionStats, TURNS_MAX,
    TurnReport,
};
use super::residency::Residency;
use super::slots::SessionId;
use super::transcript::{Deferred, Fact, Transcript};
use super::turn_index::TurnIndex;
use super::turns::{Turn, TurnPlace, is_in_block};
use super::undo::TurnUndo;
use haversack_cache::Image;
use haversack_engine::encoder::Embedding;
use haversack_engine::runtime::{Runtime, SequenceId, StepError};
use std::ops::Range;
use std::sync::Arc;

/// Capacity of sessions whose file records none.
const CAPACITY_UNRECORDED: u64 = 1536;

/// One token in this many of the ephemeral stream may belong to pinned turns, states among them.
const PINNED_SHARE: usize = 4;

/// How much of a session is brought back into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumeMode {
    /// All that was in memory, or an error.
    Whole,
    /// Turns that do not fit stay in the file.
    AsFits,
}

/// What a session may hold, and why not more.
#[derive(Clone, Copy)]
pub(super) struct GrantedLimits<'a> {
    pub settings: SessionSettings,
    pub limits: SessionLimits,
    pub bound: &'static str,
    /// Capacity that the device has room for, and why it changed last.
    pub device: (usize, &'a str),
}

/// Why a turn leaves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpillCause {
    Stream,
    Budget,
}

pub(super) struct OpenSession {
    pub options: Arc<SessionOptions>,
    /// What was set, for this session or for all.
    settings: SessionSettings,
    /// What budget and context allow.
    granted: SessionLimits,
    /// What is in force: less than was granted while the device is short of memory.
    pub limits: SessionLimits,
    pub transcript: Transcript,
    pub residency: Residency,
    pub log: SessionLog,
    pub condensing: Condensing,
    /// Of the turns.
    pub index: TurnIndex,
    /// For the last question; reports show it.
    pub decision: LastDecision,
    pub counters: SessionCounters,
    /// A turn is in progress.
    pub is_answering: bool,
    /// Rows of a message that was taken back are still visible.
    pub is_stale: bool,
}

impl OpenSession {
    pub fn new(
        options: &Arc<SessionOptions>,
        granted: GrantedLimits<'_>,
        transcript: Transcript,
        residency: Residency,
        log: SessionLog,
    ) -> OpenSession {
        OpenSession {
            options: options.clone(),
            settings: granted.settings,
            granted: granted.limits,
            limits: granted.limits,
            transcript,
            residency,
            log,
            condensing: Condensing::default(),
            index: TurnIndex::default(),
            decision: LastDecision::default(),
            counters: SessionCounters::default(),
            is_answering: false,
            is_stale: false,
        }
    }

    /// Opens a session from its file, which stays where it is if there is no memory for it.
    pub fn open<'a>(
        runtime: &mut Runtime,
        full_name: SessionName<'_>,
        home: LogHome,
        file: &mut Option<SessionFile>,
        identity: &Identity,
        options: &Arc<SessionOptions>,
        prefixes: &mut Prefixes,
        mode: ResumeMode,
        grant: &dyn Fn(SessionSettings) -> GrantedLimits<'a>,
    ) -> SessionResult<OpenSession> {
        let name = full_name.name;
        let bad_record = |source| SessionError::Record {
            name: name.to_owned(),
            source,
        };
        let Some(mut opened) = file.take() else {
            return Err(SessionError::NoSuchSession { name: name.into() });
        };
        identity.check(name, opened.journal.identity())?;
        let (map, replay) = (&opened.map, &opened.replay);
        let (transcript, columns, state) = (&replay.transcript, &replay.columns, &replay.state);
        let own = transcript.limits.as_ref().map(|limits| limits.own);
        let granted = grant(own.unwrap_or_default());
        let saved = |block: &u64| columns.get(block).and_then(|&r| map.payload(r).ok());
        if state.blocks.iter().any(|block| saved(block).is_none()) {
            return Err(bad_record(BadRecord {
                kind: STATE,
                what: "a block without its column",
            }));
        }
        let tail = || state.tail.iter().map(Vec::as_slice);
        let recorded = transcript.limits.as_ref();
        let recorded = recorded.map_or(CAPACITY_UNRECORDED, |limits| limits.capacity);
        let recorded = usize::try_from(recorded).unwrap_or(usize::MAX);
        // Turns that the capacity has no room for any more stay in the file.
        let all = || transcript.evictable(options.last).map(|turn| turn.number);
        let capacity = granted.limits.capacity.min(granted.device.0);
        let mut left = match capacity < recorded {
            true => transcript.beyond(capacity, options.last),
            false => Vec::new(),
        };
        if mode == ResumeMode::AsFits && !left.is_empty() {
            // The questions that come fetch what they need.
            left = all().collect();
        }
        let kept = |left: &[u64]| -> Vec<u64> {
            let stays = |t: &&Turn| t.place == TurnPlace::Live && !left.contains(&t.number);
            let live = transcript.turns().filter(stays).map(|turn| &turn.span);
            let facts = transcript.facts.iter().map(|f| &f.span);
            let spans: Vec<_> = live.chain(facts).collect();
            let is_kept = |block: &u64| spans.iter().any(|span| is_in_block(*block, span));
            match left {
                [] => state.blocks.clone(),
                _ => state.blocks.iter().copied().filter(is_kept).collect(),
            }
        };
        let mut blocks = kept(&left);
        // Rows of the opening are shared with other sessions again.
        let first = transcript.facts.first().filter(|fact| fact.number == 0);
        let opening = first.and_then(|fact| map.payload(fact.record?).ok());
        let opening = opening.and_then(|bytes| FactRecord::read(bytes).ok());
        let opening = opening.map_or(Vec::new(), |fact| fact.tokens);
        let owner = full_name.owner.sharing(first.map_or("", |fact| &fact.text));
        let shared = prefixes.verified(options, owner, &opening);
        let mut restore = |columns: &[&[u8]]| {
            let image = Image {
                outline: &state.outline,
                columns,
            };
            match &shared {
                Some(shared) => shared.restore_session(runtime, &opening, image),
                None => runtime.restore(image),
            }
        };
        let of = |blocks: &[u64]| -> Vec<&[u8]> {
            blocks.iter().filter_map(&saved).chain(tail()).collect()
        };
        let mut restored = restore(&of(&blocks));
        if mode == ResumeMode::AsFits && restored.as_ref().is_err_and(StepError::is_cannot_fit) {
            // The budget is smaller than the one it was saved in: evictable turns stay in the file.
            left = all().collect();
            blocks = kept(&left);
            restored = restore(&of(&blocks));
        }
        let sequence = match restored {
            Ok(sequence) => sequence,
            Err(error) => {
                *file = Some(opened);
                return Err(error.into());
            }
        };
        let quota = Some(granted.limits.quota_bytes);
        opened.journal.set_quota(quota);
        let Replay {
            transcript,
            columns,
            state_record,
            ..
        } = opened.replay;
        let residency = Residency {
            sequence,
            columns,
            blocks,
        };
        let mut log = SessionLog::new(full_name, Some(home), Some(opened.journal));
        log.resume(state_record, &transcript, &residency);
        let mut session = OpenSession::new(options, granted, transcript, residency, log);
        session.limits.capacity = recorded;
        let verb = match recorded < granted.limits.capacity {
            true => "grown",
            false => "shrunk",
        };
        match granted.device {
            (capacity, reason) if capacity < granted.limits.capacity => {
                session.set_capacity(capacity, reason);
            }
            _ => session.set_capacity(
                granted.limits.capacity,
                &format!("{verb}: {}", granted.bound),
            ),
        }
        for number in left {
            session.spill(number, SpillCause::Budget);
        }
        if let Err(error) = session.mask(runtime) {
            runtime.close(session.residency.sequence)?;
            return Err(error);
        }
        Ok(session)
    }

    /// A second session with the same past, in a file of its own.
    pub fn fork(
        &self,
        runtime: &mut Runtime,
        name: &str,
        home: Option<LogHome>,
    ) -> SessionResult<OpenSession> {
        let options = &self.options;
        let quota = self.limits.quota_bytes;
        let journal = home.as_ref().map(|home| home.begin(name, options, quota));
        let name = self.log.full_name().owner.session(name);
        let log = SessionLog::new(name, home, journal.transpose()?);
        let sequence = match runtime.fork(self.residency.sequence) {
            Ok(sequence) => sequence,
            Err(error) => {
                log.remove();
                return Err(error.into());
            }
        };
        let transcript = Transcript {
            deferred: Deferred::default(),
            ..self.transcript.clone()
        };
        let residency = Residency {
            sequence,
            ..self.residency.clone()
        };
        let granted = GrantedLimits {
            settings: self.settings,
            limits: self.granted,
            bound: "",
            device: (usize::MAX, ""),
        };
        let mut fork = OpenSession::new(options, granted, transcript, residency, log);
        fork.limits = self.limits;
        let copied = fork
            .log
            .copy_from(&self.log, &mut fork.transcript, &mut fork.residency);
        let copied = copied.and_then(|()| {
            fork.save(runtime);
            fork.check_saved()
        });
        if let Err(error) = copied {
            runtime.close(fork.residency.sequence)?;
            fork.log.remove();
            return Err(error);
        }
        Ok(fork)
    }

    /// Notes what a new session may hold, and what was set for it.
    pub fn note_limits(&mut self, own: SessionSettings) {
        let record = LimitsRecord {
            turn: 0,
            capacity: self.limits.capacity as u64,
            own,
            reason: String::new(),
        };
        self.log.note_limits(&record);
        self.transcript.limits = Some(record);
    }

    /// Has room for this many tokens of turns from the next turn on, at most what was granted. The file and the next
    /// answer say so.
    pub fn set_capacity(&mut self, capacity: usize, reason: &str) {
        let (before, capacity) = (self.limits.capacity, capacity.min(self.granted.capacity));
        if capacity == before {
            return;
        }
        self.limits = self.granted.with_capacity(capacity, &self.settings);
        log::info!(
            "session {}: capacity {before} -> {capacity}, {reason}",
            self.name()
        );
        let own = self.transcript.limits.as_ref().map(|limits| limits.own);
        let record = LimitsRecord {
            turn: self.transcript.turns_made,
            capacity: capacity as u64,
            own: own.unwrap_or_default(),
            reason: reason.to_owned(),
        };
        self.log.note_limits(&record);
        self.transcript.deferred.changes.push(CapacityChange {
            turn: record.turn,
            capacity: record.capacity,
            reason: record.reason.clone(),
        });
        self.transcript.limits = Some(record);
    }

    /// Follows what the device has room for: turns beyond it leave memory now. Only between two turns.
    pub fn follow(
        &mut self,
        runtime: &mut Runtime,
        (capacity, reason): (usize, &str),
    ) -> SessionResult {
        let before = self.limits.capacity;
        self.set_capacity(capacity, reason);
        if self.limits.capacity == before {
            return Ok(());
        }
        for number in (self.transcript).beyond(self.limits.capacity, self.options.last) {
            self.spill(number, SpillCause::Budget);
        }
        // Blocks that the file did not have yet leave once it has them.
        self.mask_and_save(runtime)?;
        self.mask(runtime)
    }

    pub fn name(&self) -> &str {
        self.log.name()
    }

    pub fn settings(&self) -> SessionSettings {
        self.settings
    }

    /// The time whose date goes before what is said now; `None`: no date does.
    pub fn date_ms(&self, now_ms: u64) -> Option<u64> {
        (self.settings.dates == Some(true)).then(|| self.transcript.time_of(now_ms))
    }

    pub fn check_saved(&self) -> SessionResult {
        match self.log.unsaved() {
            None => Ok(()),
            Some(why) => Err(SessionError::Unsaved {
                name: self.name().to_owned(),
                why: why.clone(),
            }),
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.transcript.heap_bytes()
            + self.residency.heap_bytes()
            + self.log.heap_bytes()
            + self.index.heap_bytes()
            + self.decision.heap_bytes()
    }

    /// Saves what is new. On failure the conversation goes on, and the next save tries again.
    pub fn save(&mut self, runtime: &Runtime) {
        if let Some(save) = self.begin_save(runtime) {
            self.end_save(save.run());
        }
    }

    /// Begins a save: what is new is written, and not durable yet. `None` if there is no file, or if it failed. Until it
    /// has ended, the session may not change.
    pub fn begin_save(&mut self, runtime: &Runtime) -> Option<StartedSave> {
        let (transcript, residency) = (&mut self.transcript, &mut self.residency);
        let quota = self.limits.quota_bytes;
        let begun = match (self.log).prepare(transcript, residency, &self.options, quota) {
            Ok(false) => return None,
            Ok(true) => self.try_begin_save(runtime),
            Err(error) => Err(error),
        };
        begun.unwrap_or_else(|error| {
            self.log.save_failed(error, &self.transcript);
            None
        })
    }

    /// Takes up what became of a save. On failure the conversation goes on, and the next save tries again.
    pub fn end_save(&mut self, save: EndedSave) {
        let (transcript, residency) = (&mut self.transcript, &mut self.residency);
        if let Err(error) = self.log.end_save(save, transcript, residency) {
            self.log.save_failed(error, &self.transcript);
        }
    }

    fn try_begin_save(&mut self, runtime: &Runtime) -> SessionResult<Option<StartedSave>> {
        let quota = self.limits.quota_bytes;
        let mut draft = self.log.draft(runtime, &self.transcript, &self.residency)?;
        let waiting = self.log.waiting();
        self.keep_quota(draft.bytes(), quota);
        if self.log.waiting() > waiting {
            // Deletions that keep the quota are saved with the rest.
            drop(draft);
            draft = self.log.draft(runtime, &self.transcript, &self.residency)?;
        }
        let (transcript, residency) = (&self.transcript, &self.residency);
        self.log.begin_save(draft, transcript, residency, quota)
    }

    /// Saves what is new, or says why not.
    pub fn try_save(&mut self, runtime: &Runtime) -> SessionResult {
        let Some(save) = self.try_begin_save(runtime)? else {
            return Ok(());
        };
        let (transcript, residency) = (&mut self.transcript, &mut self.residency);
        self.log.end_save(save.run(), transcript, residency)
    }

    /// Deletes rows of spilled turns from the file, oldest positions first, until the needed bytes and `more` are within
    /// half of the quota: the other half is for garbage between two rewrites. If even without rows more than three
    /// quarters are needed, turns are forgotten, oldest first.
    fn keep_quota(&mut self, more: u64, quota: u64) {
        while self.log.needed_bytes().saturating_add(more) > quota / 2 {
            let turns = &self.transcript.turns;
            let spilled = (0..turns.len())
                .filter(|&i| turns[i].turn.place == TurnPlace::Spilled)
                .min_by_key(|&i| turns[i].turn.span.start);
            let Some(i) = spilled else { break };
            let span = self.move_turn(i, TurnPlace::Ids);
            self.release_columns(&span);
        }
        while self.log.needed_bytes().saturating_add(more) > quota / 4 * 3 {
            let ids = |turn: &Turn| turn.place == TurnPlace::Ids;
            let Some(i) = self.transcript.turns().position(ids) else {
                return;
            };
            self.forget(i);
        }
    }

    pub fn mask(&self, runtime: &mut Runtime) -> SessionResult {
        self.residency.mask(runtime, &self.transcript)
    }

    pub fn mask_and_save(&mut self, runtime: &mut Runtime) -> SessionResult {
        self.mask(runtime)?;
        self.save(runtime);
        Ok(())
    }

    /// Marks a turn as out of memory, as far as the file can restore it.
    pub fn spill(&mut self, number: u64, cause: SpillCause) {
        let Some(i) = self.transcript.index_of(number) else {
            return;
        };
        let stored = &self.transcript.turns[i];
        let Some(place) = self.log.place_after_leaving(stored, &self.residency) else {
            self.forget(i);
            return;
        };
        self.transcript.turns[i].turn.is_visible = false;
        let span = self.move_turn(i, place);
        *match cause {
            SpillCause::Stream => &mut self.counters.left_for_stream,
            SpillCause::Budget => &mut self.counters.left_for_budget,
        } += span.end - span.start;
        if place == TurnPlace::Ids {
            self.release_columns(&span);
        }
    }

    /// Gives a turn a new place and notes it; returns its span.
    fn move_turn(&mut self, i: usize, place: TurnPlace) -> Range<u64> {
        let turn = &mut self.transcript.turns[i].turn;
        turn.place = place;
        self.log.note(LogChange::Moved {
            turn: turn.number,
            place,
            start: turn.span.start,
        });
        turn.span.clone()
    }

    /// Brings a recomputed turn back, at its new positions.
    pub fn relocate(&mut self, number: u64, span: Range<u64>) {
        let Some(i) = self.transcript.index_of(number) else {
            return;
        };
        let turn = &mut self.transcript.turns[i].turn;
        turn.is_visible = true;
        turn.span = span;
        self.counters.read_again += turn.tokens();
        self.move_turn(i, TurnPlace::Live);
    }

    /// After a swap of the stream: the new positions of a turn, or that its rows are gone.
    pub fn carry_over(&mut self, number: u64, span: Option<&Range<u64>>) {
        let Some(i) = self.transcript.index_of(number) else {
            return;
        };
        let turn = &mut self.transcript.turns[i].turn;
        match (turn.place, span) {
            (TurnPlace::Ids, _) => {}
            (TurnPlace::Live, Some(span)) => {
                turn.span = span.clone();
                self.move_turn(i, TurnPlace::Live);
            }
            // Its rows belong to positions that no longer exist.
            _ if self.log.has_file() => {
                turn.is_visible = false;
                turn.is_pinned = false;
                self.move_turn(i, TurnPlace::Ids);
            }
            _ => self.forget(i),
        }
    }

    /// Deletes a turn for want of room.
    pub fn forget(&mut self, i: usize) {
        let tokens = self.take_out(i).tokens();
        self.transcript.forgotten += tokens;
        self.counters.forgotten += tokens;
    }

    /// Deletes a turn, its record and its rows.
    fn take_out(&mut self, i: usize) -> Turn {
        let stored = self.transcript.turns.remove(i);
        let turn = stored.turn.number;
        self.index.remove(turn);
        self.log.note(LogChange::Forgotten { turn });
        self.log
            .release(&stored, &self.transcript, &mut self.residency);
        stored.turn
    }

    fn release_columns(&mut self, span: &Range<u64>) {
        self.log
            .release_columns(span, &self.transcript, &mut self.residency);
    }

    /// Adds a turn that was just read.
    pub fn add_turn(&mut self, record: &TurnRecord) {
        let bytes = record.to_bytes();
        self.transcript.add_turn(record, &bytes);
        self.log.note_turn(bytes);
    }

    /// Mounts the blocks of a spilled turn. `false` where the file does not have them all.
    pub fn mount(&mut self, runtime: &mut Runtime, i: usize) -> SessionResult<bool> {
        let span = self.transcript.turns[i].turn.span.clone();
        let Some(missing) = self.residency.missing(runtime, &span)? else {
            return Ok(false);
        };
        let mut columns = Vec::new();
        for (block, record) in missing {
            match self.log.read(record) {
                Ok(bytes) => columns.push(bytes),
                Err(error) => {
                    log::warn!("block {block}: {error}");
                    return Ok(false);
                }
            }
        }
        let columns: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
        runtime.mount(self.residency.sequence, &columns)?;
        self.transcript.turns[i].turn.is_visible = true;
        self.move_turn(i, TurnPlace::Live);
        self.counters.mounted += span.end - span.start;
        Ok(true)
    }

    /// Spills turns, the oldest first, until at most `tokens` of turns are in memory.
    pub fn spill_oldest(&mut self, tokens: u64) {
        while self.live_tokens() > tokens {
            let live = |turn: &&Turn| turn.place == TurnPlace::Live && !turn.is_pinned;
            let Some(number) = self.transcript.turns().find(live).map(|turn| turn.number) else {
                return;
            };
            self.spill(number, SpillCause::Stream);
        }
    }

    /// Tokens of turns in memory.
    pub fn live_tokens(&self) -> u64 {
        let live = |turn: &&Turn| turn.place == TurnPlace::Live;
        self.transcript.turns().filter(live).map(Turn::tokens).sum()
    }

    /// What undoes whatever is read into the sequence from now on.
    pub fn undo_to_here(&self, runtime: &mut Runtime, id: SessionId) -> SessionResult<TurnUndo> {
        Ok(TurnUndo {
            session: id,
            backup: runtime.fork(self.residency.sequence)?,
            deferred: self.transcript.deferred.clone(),
            told: Vec::new(),
            rebuild: None,
        })
    }

    /// Takes a session that did not come to be away, with its file; returns the sequence to be closed.
    pub fn discard(self) -> SequenceId {
        self.log.remove();
        self.residency.sequence
    }

    /// Whether the persistent stream has room for a fact of `tokens`.
    pub fn check_fact(&self, tokens: usize, supersedes: Option<u64>) -> SessionResult {
        let old = supersedes.map_or(Ok(0), |fact| self.transcript.check_fact(fact))?;
        let persistent = self.transcript.persistent_tokens() - old + tokens;
        check_persistent(persistent, self.limits.persistent_room())
    }

    /// Adds a fact that was just read; returns its number.
    pub fn add_fact(&mut self, runtime: &mut Runtime, fact: FactRecord) -> SessionResult<u64> {
        let (number, supersedes) = (fact.number, fact.supersedes);
        self.condensing.gave_up = false;
        self.note_fact(fact);
        if let Some(fact) = supersedes {
            self.drop_fact(fact);
        }
        self.mask_and_save(runtime)?;
        Ok(number)
    }

    /// Notes a fact that was just read.
    pub fn note_fact(&mut self, fact: FactRecord) {
        self.transcript.facts_made = fact.number + 1;
        self.log.note_fact(&fact);
        self.transcript.facts.push(Fact::new(fact, None));
    }

    pub fn revoke(&mut self, runtime: &mut Runtime, fact: u64) -> SessionResult {
        self.transcript.check_fact(fact)?;
        self.drop_fact(fact);
        self.mask_and_save(runtime)
    }

    fn drop_fact(&mut self, number: u64) {
        let facts = &mut self.transcript.facts;
        if let Some(i) = facts.iter().position(|f| f.number == number) {
            let fact = facts.remove(i);
            self.log.release_record(fact.record);
            self.log.note(LogChange::Revoked { fact: number });
        }
    }

    /// Marks the first bytes of a fact as verbatim.
    pub fn mark(&mut self, number: u64, bytes: usize) {
        if let Some(change) = self.transcript.mark(number, bytes) {
            self.log.note(change);
        }
    }

    /// Takes the last turn back, with the facts that were found in it.
    pub fn retract(&mut self, runtime: &mut Runtime) -> SessionResult<Option<u64>> {
        let is_asked = |turn: &Turn| !turn.is_state && !turn.is_part;
        let Some(i) = self.transcript.turns().rposition(is_asked) else {
            return Ok(None);
        };
        let parts = self.transcript.parts_before(i);
        let turn = self.take_out(i).number;
        self.take_out_parts(&parts);
        let facts = self.transcript.facts.iter();
        let of_turn = facts.filter(|fact| {
            let found_in = |number: &u64| *number == turn || parts.contains(number);
            fact.found_in.as_ref().is_some_and(found_in)
        });
        let of_turn: Vec<u64> = of_turn.map(|fact| fact.number).collect();
        of_turn.into_iter().for_each(|fact| self.drop_fact(fact));
        self.mask_and_save(runtime)?;
        Ok(Some(turn))
    }

    /// Takes back parts of a message whose last part could not be read.
    pub fn take_back(&mut self, runtime: &mut Runtime, parts: &[u64]) -> SessionResult {
        if parts.is_empty() {
            return Ok(());
        }
        self.take_out_parts(parts);
        self.mask_and_save(runtime)
    }

    /// Deletes parts of a message whose turn did not come to be, or was retracted.
    fn take_out_parts(&mut self, parts: &[u64]) {
        for &number in parts {
            if let Some(i) = self.transcript.index_of(number) {
                self.take_out(i);
            }
        }
    }

    /// Pins a turn in memory, so that it stays there and visible, or unpins it.
    pub fn pin(&mut self, runtime: &mut Runtime, number: u64, is_pinned: bool) -> SessionResult {
        let i = self.transcript.index_of(number);
        let i = i.ok_or(SessionError::NoSuchTurn { number })?;
        let turn = &self.transcript.turns[i].turn;
        if is_pinned && turn.place != TurnPlace::Live {
            return Err(SessionError::NotInMemory { number });
        }
        if is_pinned && !turn.is_pinned {
            let pinned = self.transcript.turns().filter(|turn| turn.is_pinned);
            let tokens = pinned.map(Turn::tokens).sum::<u64>() + turn.tokens();
            let max = (self.limits.capacity / PINNED_SHARE) as u64;
            if tokens > max {
                return Err(SessionError::TooMuchPinned { tokens, max });
            }
            self.include(i);
        }
        let turn = &mut self.transcript.turns[i].turn;
        turn.is_pinned = is_pinned;
        turn.is_visible |= is_pinned;
        self.log.note(LogChange::Pinned {
            turn: number,
            is_pinned,
        });
        self.mask_and_save(runtime)
    }

    /// Has no answer see a turn from now on, or lets answers see it again.
    pub fn exclude(
        &mut self,
        runtime: &mut Runtime,
        number: u64,
        is_excluded: bool,
    ) -> SessionResult {
        let i = self.transcript.index_of(number);
        let i = i.ok_or(SessionError::NoSuchTurn { number })?;
        let turn = &mut self.transcript.turns[i].turn;
        if turn.is_state {
            return Err(SessionError::IsState { number });
        }
        if !is_excluded {
            self.include(i);
            self.save(runtime);
            return Ok(());
        }
        turn.is_visible = false;
        turn.is_excluded = true;
        let unpinned = std::mem::take(&mut turn.is_pinned).then_some(LogChange::Pinned {
            turn: number,
            is_pinned: false,
        });
        let excluded = LogChange::Excluded {
            turn: number,
            is_excluded,
        };
        let changes = unpinned.into_iter().chain([excluded]);
        changes.for_each(|change| self.log.note(change));
        self.transcript
            .deferred
            .recall
            .retain(|&turn| turn != number);
        self.mask_and_save(runtime)
    }

    /// Lets answers see a turn that was excluded; it is saved with the next change.
    pub fn include(&mut self, i: usize) {
        let turn = &mut self.transcript.turns[i].turn;
        if std::mem::take(&mut turn.is_excluded) {
            self.log.note(LogChange::Excluded {
                turn: turn.number,
                is_excluded: false,
            });
        }
    }

    /// Whether pinned turns have room for a state of `tokens`, in place of `instead` if given.
    pub fn check_state(&self, tokens: usize, instead: Option<u64>) -> SessionResult {
        if let Some(number) = instead {
            self.transcript.check_state(number)?;
        }
        let pinned = self.transcript.turns().filter(|turn| turn.is_pinned);
        let others = pinned.filter(|turn| Some(turn.number) != instead);
        let tokens = others.map(Turn::tokens).sum::<u64>() as usize + tokens;
        let max = self.limits.capacity / PINNED_SHARE;
        match tokens > max {
            true => Err(SessionError::TooMuchState { tokens, max }),
            false => Ok(()),
        }
    }

    /// Adds a state that was just read, from `start` on, with its embedding as records have it; returns its turn number.
    pub fn add_state(
        &mut self,
        runtime: &mut Runtime,
        (tokens, embedding): (Vec<u32>, Vec<u8>),
        start: u64,
        now_ms: u64,
        instead: Option<u64>,
    ) -> SessionResult<u64> {
        if let Some(i) = instead.and_then(|number| self.transcript.index_of(number)) {
            self.take_out(i);
        }
        let number = self.transcript.next_turn();
        let record = TurnRecord {
            number,
            start,
            time_ms: self.transcript.at(now_ms),
            question: tokens.len() as u32,
            is_pinned: true,
            is_part: false,
            is_dated: false,
            embedding,
            tokens,
        };
        self.add_turn(&record);
        self.mask_and_save(runtime)?;
        Ok(number)
    }

    pub fn drop_state(&mut self, runtime: &mut Runtime, number: u64) -> SessionResult {
        self.transcript.check_state(number)?;
        if let Some(i) = self.transcript.index_of(number) {
            self.take_out(i);
        }
        self.mask_and_save(runtime)
    }

    /// Undoes a turn that was dropped; returns the sequence to be closed.
    pub fn undo(&mut self, undo: TurnUndo) -> SequenceId {
        self.is_answering = false;
        self.condensing.take_back(undo.rebuild);
        self.transcript.deferred = undo.deferred;
        self.is_stale |= !undo.told.is_empty();
        self.take_out_parts(&undo.told);
        std::mem::replace(&mut self.residency.sequence, undo.backup)
    }

    /// The context of an answer, before its own tokens. `asked` are turns that the caller asked for.
    pub fn context(&self, plan: &TurnPlan, asked: &[u64], unjudged: bool) -> ContextReport {
        // A turn that did not fit is still spilled.
        let is_spilled = |number: &u64| {
            let mut turns = self.transcript.turns();
            turns.any(|t| t.number == *number && t.place == TurnPlace::Spilled)
        };
        let mut recalled = plan.recall.clone();
        recalled.retain(|number| !is_spilled(number));
        let rank = |&number: &u64| match asked.contains(&number) {
            true => None,
            false => self.decision.rank_of(number),
        };
        let mut context = ContextReport {
            kept: self.transcript.persistent_tokens() as u64,
            evicted: self.transcript.forgotten,
            recalled_by: recalled.iter().map(rank).collect(),
            recalled,
            plan: plan.to_string(),
            unjudged,
            ..ContextReport::default()
        };
        for turn in self.transcript.turns() {
            *match (turn.place, turn.is_visible) {
                (TurnPlace::Live, true) => &mut context.kept,
                (TurnPlace::Live, false) => &mut context.masked,
                _ => &mut context.spilled,
            } += turn.tokens();
        }
        context.cached = context.kept;
        context
    }

    pub fn stats(&self, runtime: &Runtime) -> SessionResult<SessionStats> {
        let mut stats = SessionStats {
            owner: self.log.full_name().owner,
            name: self.name().to_owned(),
            position: runtime.position(self.residency.sequence)?,
            persistent: self.transcript.persistent_tokens() as u64,
            capacity: self.limits.capacity as u64,
            forgotten: self.transcript.forgotten,
            turns: self.transcript.turns_made,
            file_bytes: self.log.file_bytes(),
            waiting_bytes: self.log.waiting_bytes(),
            unsaved: self.log.unsaved().cloned(),
            condensed: self.condensing.outcome.clone(),
            ..SessionStats::default()
        };
        for turn in self.transcript.turns() {
            *match (turn.place, turn.is_visible) {
                (TurnPlace::Live, true) => &mut stats.visible,
                (TurnPlace::Live, false) => &mut stats.hidden,
                (TurnPlace::Spilled, _) => &mut stats.spilled,
                (TurnPlace::Ids, _) => &mut stats.ids,
            } += turn.tokens();
        }
        Ok(stats)
    }

    pub fn report(&self, runtime: &Runtime) -> SessionResult<SessionReport> {
        let all = || self.transcript.turns();
        let live = |turn: &&Turn| turn.place == TurnPlace::Live;
        let newest = all().rev().filter(live);
        let newest = newest.chain(all().rev().filter(|turn| !live(turn)));
        let mut turns: Vec<TurnReport> = newest
            .take(TURNS_MAX)
            .map(|turn| TurnReport {
                rank: self.decision.rank_of(turn.number),
                turn: turn.clone(),
            })
            .collect();
        turns.sort_by_key(|report| report.turn.number);
        let mut away: Vec<(Range<u64>, RowsAway)> = all()
            .filter_map(|turn| match turn.place {
                TurnPlace::Live => None,
                TurnPlace::Spilled => Some((turn.span.clone(), RowsAway::Disk)),
                TurnPlace::Ids => Some((turn.span.clone(), RowsAway::Ids)),
            })
            .collect();
        away.sort_by_key(|(span, _)| span.start);
        Ok(SessionReport {
            turns_left_off: all().len() - turns.len(),
            is_answering: self.is_answering,
            plan: self.decision.plan.clone(),
            stats: self.stats(runtime)?,
            turns,
            away,
        })
    }
}

/// An embedding as records have it; empty without one: the turn is then not judged.
pub(super) fn stored_bytes(embedding: Option<Embedding>) -> Vec<u8> {
    embedding.map_or(Vec::new(), |e| e.store().to_bytes().to_vec())
}

pub(super) fn check_persistent(tokens: usize, max: usize) -> SessionResult {
    match tokens > max {
        true => Err(SessionError::PersistentFull { tokens, max }),
        false => Ok(()),
    }
}
