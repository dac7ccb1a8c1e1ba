//! The sessions of one model, one store and one folder: opens, lists and closes them, and holds their memory in the
//! ledger. What happens inside a session is [`OpenSession`]'s; turns are in `turn.rs`.

use super::condense::{Condense, Extractive};
use super::condensing::{RebuildProgress, RebuildReading, RebuildShare, STEP_TOKENS_MAX};
use super::embed::Embed;
use super::error::{SessionError, SessionResult};
use super::files::{SessionFiles, replay};
use super::folder::{RemovalCause, RemovedSession, SessionFolder};
use super::grants::SessionGrants;
use super::identity::Identity;
use super::layout::ChatLayout;
use super::limits::{SessionLimits, SessionRoom, SessionSettings};
use super::log::{LogHome, SessionLog};
use super::names;
use super::open_session::{GrantedLimits, OpenSession, ResumeMode};
use super::options::{SessionOptions, journal_options};
use super::owner::{Owner, SessionName};
use super::prefix::{PrefixStats, Prefixes};
use super::report::{
    FactView, ListedSession, SessionCounters, SessionReport, SessionStats, TurnView,
};
use super::residency::{Residency, fits, promised_bytes, slack};
use super::slots::{SessionId, Slots};
use super::texts::{Opening, SessionTexts};
use super::transcript::{Deferred, Fact, Transcript};
use super::turns::Turn;
use super::undo::{DroppedTurns, Undo};
use haversack_engine::runtime::{Runtime, SequenceId};
use haversack_memory::journal::Journal;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that a turn adds to a session's lists, its tokens until they are saved included.
const TURN_BYTES: usize = 16 << 10;

/// One row in this many is left free of turns where a budget bounds them: lists are charged to it too.
const SPARE_SHARE: usize = 16;

/// Tokens of a first turn that there is room for when a session is opened, if its capacity has them.
const FIRST_TURN: usize = 512;

/// Sessions of one model, one store and one folder.
pub struct Sessions {
    options: Arc<SessionOptions>,
    grants: SessionGrants,
    identity: Identity,
    layout: Arc<ChatLayout>,
    encoder: Option<Arc<dyn Embed>>,
    condenser: Option<Arc<dyn Condense>>,
    slots: Slots<OpenSession>,
    /// Of sessions that were closed, by name.
    deferred: BTreeMap<(Owner, String), Deferred>,
    prefixes: Prefixes,
    /// Of sessions that were closed, together.
    closed: SessionCounters,
    dropped: DroppedTurns,
    /// Sequences of undone turns that wait for a runtime to close them.
    to_close: Vec<SequenceId>,
    files: SessionFiles,
}

impl Sessions {
    /// Sessions over a runtime made with [`haversack_engine::Retention::managed`].
    pub fn new(runtime: &Runtime, options: SessionOptions) -> SessionResult<Sessions> {
        let (rows, context) = (runtime.bounds().rows_max, runtime.model().config().context);
        let is_bounded = rows < context;
        let room = SessionRoom {
            rows,
            bound: if is_bounded {
                "the budget"
            } else {
                "the context"
            },
            slack: slack(runtime),
            spare: if is_bounded { rows / SPARE_SHARE } else { 0 },
            row_bytes: runtime.sequence_bytes(rows) / rows.max(1),
            context_bytes: runtime.sequence_bytes(context) as u64,
        };
        let usual = SessionLimits::of(&options.settings, &room)?;
        let identity = Identity::of(runtime, &options.tenant);
        let files = SessionFiles::new(&options);
        Ok(Sessions {
            prefixes: Prefixes::new(runtime, &identity, &options),
            identity,
            layout: Arc::new(ChatLayout::new(runtime.model().clone())),
            options: Arc::new(options),
            grants: SessionGrants {
                room,
                usual,
                device: (usize::MAX, String::new()),
            },
            encoder: None,
            condenser: None,
            slots: Slots::new(),
            deferred: BTreeMap::new(),
            closed: SessionCounters::default(),
            dropped: DroppedTurns::default(),
            to_close: Vec::new(),
            files,
        })
    }

    /// Ranks turns by their embeddings. Without an encoder they are ranked by their words, and every turn in memory stays
    /// visible.
    pub fn with_encoder(mut self, encoder: Arc<dyn Embed>) -> Sessions {
        self.grants.room = self.grants.room.beside(encoder.bytes());
        if let Ok(limits) = SessionLimits::of(&self.options.settings, &self.grants.room) {
            self.grants.usual = limits;
        }
        self.encoder = Some(encoder);
        self
    }

    /// Condenses streams over their limit; by default [`Extractive`] does.
    pub fn with_condenser(mut self, condenser: Arc<dyn Condense>) -> Sessions {
        self.condenser = Some(condenser);
        self
    }

    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// What a session may hold for which nothing else is set.
    pub fn limits(&self) -> &SessionLimits {
        &self.grants.usual
    }

    pub fn has_encoder(&self) -> bool {
        self.encoder.is_some()
    }

    /// Before a turn: a change of the device that came while the session was answering, or one that is replayed.
    pub(super) fn follow_now(&mut self, runtime: &mut Runtime, id: SessionId) -> SessionResult {
        let device = self.grants.device.clone();
        let options = self.options.clone();
        let session = self.session_mut(runtime, id)?;
        let turn = session.transcript.turns_made;
        for change in options.replay.iter().filter(|change| change.turn == turn) {
            let capacity = usize::try_from(change.capacity).unwrap_or(usize::MAX);
            session.follow(runtime, (capacity, &change.reason))?;
        }
        match options.replay.is_empty() {
            true => session.follow(runtime, (device.0, &device.1)),
            false => Ok(()),
        }
    }

    /// After a turn: a change of the device that came meanwhile. Changes that are replayed wait for the next turn, which they
    /// are recorded for.
    pub(super) fn follow_after(&mut self, runtime: &mut Runtime, id: SessionId) {
        if !self.options.replay.is_empty() {
            return;
        }
        let (capacity, reason) = self.grants.device.clone();
        let Ok(session) = self.session_mut(runtime, id) else {
            return;
        };
        let before = session.limits.capacity;
        if let Err(error) = session.follow(runtime, (capacity, &reason)) {
            log::error!("session {}: {error}", session.name());
        }
        if session.limits.capacity < before {
            runtime.give_back();
        }
    }

    /// Lets the capacity of every session follow what the device has room for, at most what was granted. Turns of idle
    /// sessions leave memory now; an answering session follows when its turn has ended. Not sooner: until then the sequence
    /// of before the question shares every row, so that nothing would be freed, and a turn is recorded whole.
    pub fn follow_device(&mut self, runtime: &mut Runtime, capacity: usize, reason: &str) {
        self.grants.device = (capacity, reason.to_owned());
        for session in self.slots.values_mut().filter(|s| !s.is_answering) {
            if let Err(error) = session.follow(runtime, (capacity, reason)) {
                log::error!("session {}: {error}", session.name());
            }
        }
    }

    /// The encoder, for callers that embed on another thread.
    pub fn encoder(&self) -> Option<Arc<dyn Embed>> {
        self.encoder.clone()
    }

    pub(super) fn layout(&self) -> &ChatLayout {
        &self.layout
    }

    pub(super) fn shared_layout(&self) -> Arc<ChatLayout> {
        self.layout.clone()
    }

    pub(super) fn dropped(&self) -> DroppedTurns {
        self.dropped.clone()
    }

    /// Makes tokens of texts, on any thread.
    pub fn texts(&self) -> SessionTexts {
        SessionTexts {
            layout: self.layout.clone(),
            options: self.options.clone(),
            encoder: self.encoder.clone(),
            condenser: self.condenser(),
            room: self.grants.room,
            usual: self.grants.usual,
        }
    }

    /// Creates a session that has read nothing, or its whole opening, which is shared: `true`. It is busy until the rest
    /// of its opening is read.
    pub(super) fn begin_new(
        &mut self,
        runtime: &mut Runtime,
        name: SessionName<'_>,
        opening: &Opening,
        now_ms: u64,
    ) -> SessionResult<(SessionId, bool)> {
        self.check_new(runtime, name)?;
        let own = opening.own;
        let settings = own.or(self.options.settings);
        let granted = GrantedLimits {
            settings,
            limits: SessionLimits::of(&settings, &self.grants.room)?,
            bound: self.grants.room.bound,
            device: (self.grants.device.0, &self.grants.device.1),
        };
        let (home, quota) = (self.home(name), granted.limits.quota_bytes);
        let created = home.as_ref();
        let created = created.map(|home| home.begin(name.name, &self.options, quota));
        let journal = match created {
            Some(Err(error)) if !error.is_disk() => return Err(error),
            Some(created) => created.ok(),
            None => None,
        };
        let log = SessionLog::new(name, home, journal);
        let owner = name.owner.sharing(&opening.piece.text);
        let found = (self.prefixes).find(runtime, &self.options, owner, &opening.tokens);
        let is_shared = found.is_some();
        let sequence = match found.map_or_else(|| runtime.open(), Ok) {
            Ok(sequence) => sequence,
            Err(error) => {
                log.remove();
                return Err(error.into());
            }
        };
        let transcript = Transcript {
            last_time_ms: now_ms,
            ..Transcript::default()
        };
        let residency = Residency::new(sequence);
        let mut session = OpenSession::new(&self.options, granted, transcript, residency, log);
        session.note_limits(own);
        session.set_capacity(self.grants.device.0, &self.grants.device.1);
        let id = self.admit(runtime, session, None)?;
        self.any_session_mut(id)?.is_answering = true;
        self.keep_limits_now_and_then(now_ms);
        Ok((id, is_shared))
    }

    /// A session has read its opening and nothing else: other sessions share the rows from now on.
    pub(super) fn share_opening(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        opening: &Opening,
    ) -> SessionResult {
        let computed = self.sequence(id)?;
        let (owner, tokens) = (
            self.owner(id)?.sharing(&opening.piece.text),
            &opening.tokens,
        );
        let shared = self
            .prefixes
            .share(runtime, &self.options, owner, tokens, computed)?;
        self.any_session_mut(id)?.residency.sequence = shared;
        Ok(())
    }

    /// How openings were obtained so far.
    pub fn prefixes(&self) -> &PrefixStats {
        self.prefixes.stats()
    }

    /// Opens a session from its file, at the end of the last acknowledged turn. Turns that do not fit stay in the file.
    pub fn resume<'a>(
        &mut self,
        runtime: &mut Runtime,
        name: impl Into<SessionName<'a>>,
    ) -> SessionResult<SessionId> {
        self.resume_as(runtime, name.into(), ResumeMode::AsFits)
    }

    pub(crate) fn resume_as(
        &mut self,
        runtime: &mut Runtime,
        full_name: SessionName<'_>,
        mode: ResumeMode,
    ) -> SessionResult<SessionId> {
        self.check_new(runtime, full_name)?;
        let SessionName { owner, name } = full_name;
        let Some(home) = self.home(full_name) else {
            return Err(SessionError::NowhereToLook { name: name.into() });
        };
        let identity = &self.identity.of_owner(owner);
        // Limits are granted before the prefixes are borrowed.
        let (options, prefixes) = (&self.options, &mut self.prefixes);
        let (grants, all) = (&self.grants, self.options.settings);
        let grant = &|own| grants.grant(own, all);
        let mut file = Some(self.files.open(full_name, &home, options)?);
        let opened = OpenSession::open(
            runtime, full_name, home, &mut file, identity, options, prefixes, mode, grant,
        );
        if let Some(file) = file.filter(|_| opened.as_ref().is_err_and(SessionError::is_cannot_fit))
        {
            self.files.put_back(full_name, file);
        }
        let mut session = opened?;
        let key = (owner, name.to_owned());
        let changes = std::mem::take(&mut session.transcript.deferred.changes);
        session.transcript.deferred = self.deferred.get(&key).cloned().unwrap_or_default();
        session.transcript.deferred.changes.extend(changes);
        let id = self.admit(runtime, session, Some(mode))?;
        self.deferred.remove(&key);
        Ok(id)
    }

    /// Saves a session if need be and closes it. If it cannot be saved it stays open: [`Sessions::close`] gives up what
    /// is not saved.
    pub fn suspend(&mut self, runtime: &mut Runtime, id: SessionId) -> SessionResult {
        let session = self.session_mut(runtime, id)?;
        if session.log.unsaved().is_some() {
            session.save(runtime);
        }
        session.check_saved()?;
        self.close(runtime, id)
    }

    /// Closes a session as it is. What was not saved is lost.
    pub fn close(&mut self, runtime: &mut Runtime, id: SessionId) -> SessionResult {
        self.session_mut(runtime, id)?;
        if let Some(mut session) = self.slots.remove(id) {
            session.condensing.stop(runtime);
            self.closed.add(&session.counters);
            runtime.close(session.residency.sequence)?;
            let SessionName { owner, name } = session.log.full_name();
            let key = (owner, name.to_owned());
            let deferred = session.transcript.deferred;
            if deferred != Deferred::default() {
                self.deferred.insert(key, deferred);
            }
            self.hold(runtime)?;
        }
        Ok(())
    }

    /// Creates a second session of the same owner with the same past, which shares the rows in memory. Its file has to be created first:
    /// turns that left memory can only be copied.
    pub fn fork(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        name: &str,
    ) -> SessionResult<SessionId> {
        let full_name = self.session(id)?.log.full_name().owner.session(name);
        self.check_new(runtime, full_name)?;
        let home = self.home(full_name);
        let session = self.session_mut(runtime, id)?;
        let fork = session.fork(runtime, name, home)?;
        self.admit(runtime, fork, None)
    }

    /// Deletes a session that is not open, whatever its file holds: a damaged one too. The shared prefix file goes with
    /// the last session that opens with it.
    pub fn delete<'a>(&mut self, name: impl Into<SessionName<'a>>) -> SessionResult {
        let full_name @ SessionName { owner, name } = name.into();
        names::check(name)?;
        self.check_not_open(full_name)?;
        let Some(folder) = self.folder(owner) else {
            return Err(SessionError::NowhereToLook { name: name.into() });
        };
        drop(self.files.take(full_name));
        self.deferred.remove(&(owner, name.to_owned()));
        folder.delete(name)
    }

    /// The sessions in an owner's folder, by name.
    pub fn list(&self, owner: Owner) -> SessionResult<Vec<ListedSession>> {
        let Some(folder) = self.folder(owner) else {
            return Ok(Vec::new());
        };
        let mut listed = folder.list()?;
        for session in &mut listed {
            session.is_open = self.opened(owner.session(&session.name)).is_some();
        }
        Ok(listed)
    }

    /// Removes what [`SessionOptions::limits`] ask for, of each owner by itself, and returns it.
    pub fn keep_limits(&mut self, now_ms: u64) -> SessionResult<Vec<RemovedSession>> {
        let slots = &self.slots;
        let is_open = |name: SessionName<'_>| {
            let mut open = slots.iter();
            open.any(|(_, session)| session.log.full_name() == name)
        };
        let removed = self.files.keep_limits(now_ms, is_open)?;
        let forget = |(owner, gone): (Owner, RemovedSession)| {
            self.deferred.remove(&(owner, gone.name.clone()));
            gone
        };
        Ok(removed.into_iter().map(forget).collect())
    }

    /// The same between turns.
    pub(super) fn keep_limits_now_and_then(&mut self, now_ms: u64) {
        if self.files.is_look_due(now_ms)
            && let Err(error) = self.keep_limits(now_ms)
        {
            log::warn!("{error}");
        }
    }

    /// What limits removed from an owner's folder, the latest last; by this process or an earlier one.
    pub fn removed(&self, owner: Owner) -> Vec<RemovedSession> {
        let folder = self.folder(owner);
        folder.map_or(Vec::new(), |folder| folder.removed())
    }

    /// Number of sessions that limits removed since the start, as in [`RemovalCause::ALL`].
    pub fn removed_counts(&self) -> [u64; RemovalCause::ALL.len()] {
        self.files.removed_counts()
    }

    /// The session of this name, if it is open.
    pub fn opened<'a>(&self, name: impl Into<SessionName<'a>>) -> Option<SessionId> {
        let name = name.into();
        let mut open = self.slots.iter();
        let found = open.find(|(_, session)| session.log.full_name() == name);
        found.map(|(id, _)| id)
    }

    /// The sessions in memory.
    pub fn open_ids(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.slots.iter().map(|(id, _)| id)
    }

    /// Whether there is a session of this name, open or in a file.
    pub fn exists<'a>(&self, name: impl Into<SessionName<'a>>) -> bool {
        let name = name.into();
        let folder = self.folder(name.owner);
        self.opened(name).is_some() || folder.is_some_and(|folder| folder.has(name.name))
    }

    /// What is set for it, or for all.
    pub fn settings(&self, id: SessionId) -> SessionResult<SessionSettings> {
        Ok(self.session(id)?.settings())
    }

    /// Whose session it is.
    pub fn owner(&self, id: SessionId) -> SessionResult<Owner> {
        Ok(self.session(id)?.log.full_name().owner)
    }

    /// Whether a turn of it is in progress.
    pub fn is_answering(&self, id: SessionId) -> SessionResult<bool> {
        Ok(self.session(id)?.is_answering)
    }

    pub fn stats(&self, runtime: &Runtime, id: SessionId) -> SessionResult<SessionStats> {
        self.session(id)?.stats(runtime)
    }

    pub fn report(&self, runtime: &Runtime, id: SessionId) -> SessionResult<SessionReport> {
        self.session(id)?.report(runtime)
    }

    /// Number of sessions whose last turn is not on disk.
    pub fn unsaved(&self) -> usize {
        let open = self.slots.iter();
        open.filter(|(_, session)| session.log.unsaved().is_some())
            .count()
    }

    /// Counters of all sessions so far, open or closed.
    pub fn counters(&self) -> SessionCounters {
        let mut counters = self.closed;
        let open = self.slots.iter();
        open.for_each(|(_, session)| counters.add(&session.counters));
        counters
    }

    /// The facts that hold; the opening is 0.
    pub fn facts(&self, id: SessionId) -> SessionResult<Vec<FactView>> {
        let facts = self.session(id)?.transcript.facts.iter();
        let view = |fact: &Fact| FactView {
            number: fact.number,
            text: fact.text.clone(),
            found_in: fact.found_in,
        };
        Ok(facts.map(view).collect())
    }

    /// Whether a session was begun with this persistent text. One that is not open is looked up in its file.
    pub fn began_with<'a>(
        &self,
        name: impl Into<SessionName<'a>>,
        text: &str,
    ) -> SessionResult<bool> {
        let full_name @ SessionName { name, .. } = name.into();
        if let Some(id) = self.opened(full_name) {
            return Ok(self.session(id)?.transcript.began_with(text));
        }
        if let Some(file) = self.files.ended(full_name) {
            return Ok(file.replay.transcript.began_with(text));
        }
        let home = self.home(full_name);
        let home = home.ok_or_else(|| SessionError::NowhereToLook { name: name.into() })?;
        let view = Journal::view(&home.path, &journal_options(&self.options, u64::MAX));
        let view = view.map_err(|source| SessionError::File {
            name: name.into(),
            source,
        })?;
        let replay = replay(name, &view.map, &view.records)?;
        Ok(replay.transcript.began_with(text))
    }

    /// Whether a session is in memory or its file is ready. If it is neither, its file begins to be opened beside the caller.
    pub(crate) fn is_file_ready(&mut self, name: SessionName<'_>) -> bool {
        if self.opened(name).is_some() || !self.exists(name) {
            return true;
        }
        let home = self.home(name);
        home.is_none_or(|home| self.files.open_beside(name, home, &self.options))
    }

    /// The same for a command, which is executed at once if it is ready and keeps the file open until then.
    pub(crate) fn is_file_ready_for_command(&mut self, name: SessionName<'_>) -> bool {
        let is_ready = self.is_file_ready(name);
        self.files.set_has_command(name, !is_ready);
        is_ready
    }

    /// Whether a file is being opened.
    pub(crate) fn is_opening_file(&self) -> bool {
        self.files.is_opening()
    }

    /// Closes the files that no command and, as the caller says, no request waits for any more.
    pub(crate) fn keep_opening(&mut self, is_awaited: impl Fn(SessionName<'_>) -> bool) {
        self.files.keep(is_awaited);
    }

    /// The turns that are in memory or in the file, oldest first.
    pub fn turns(&self, id: SessionId) -> SessionResult<Vec<&Turn>> {
        Ok(self.session(id)?.transcript.turns().collect())
    }

    /// One turn with its tokens.
    pub fn turn(&self, id: SessionId, number: u64) -> SessionResult<TurnView> {
        let session = self.session(id)?;
        let stored = session.transcript.stored(number)?;
        let record = session.log.turn_record(stored)?;
        let (text, answer) = self.layout.turn_texts(&record)?;
        Ok(TurnView {
            turn: stored.turn.clone(),
            question: record.question as usize,
            text,
            answer,
            time_ms: record.time_ms,
            is_dated: record.is_dated,
            tokens: record.tokens,
        })
    }

    /// Number of tokens that end an answer.
    pub fn ending_tokens(&self) -> SessionResult<usize> {
        Ok(self.layout.ending()?.len())
    }

    /// The sequence of a session, for callers that step it in a batch.
    pub fn sequence(&self, id: SessionId) -> SessionResult<SequenceId> {
        Ok(self.session(id)?.residency.sequence)
    }

    /// Removes a fact from the persistent stream. The opening cannot be revoked.
    pub fn revoke(&mut self, runtime: &mut Runtime, id: SessionId, fact: u64) -> SessionResult {
        self.session_mut(runtime, id)?.revoke(runtime, fact)
    }

    /// Marks a fact as verbatim, so that condensing neither shortens nor drops it, or removes the mark. For the opening
    /// see [`Sessions::create_marked`].
    pub fn mark_fact(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        number: u64,
        is_verbatim: bool,
    ) -> SessionResult {
        self.session_mut(runtime, id)?
            .mark_fact(runtime, number, is_verbatim)
    }

    pub fn drop_state(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        number: u64,
    ) -> SessionResult {
        self.session_mut(runtime, id)?.drop_state(runtime, number)
    }

    /// Deletes the last turn, as if it had not been said.
    pub fn retract(&mut self, runtime: &mut Runtime, id: SessionId) -> SessionResult<Option<u64>> {
        self.session_mut(runtime, id)?.retract(runtime)
    }

    /// Pins a turn in memory, so that it stays there and visible, or unpins it. Pinned turns and states have a quarter of the
    /// capacity.
    pub fn pin(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        number: u64,
        is_pinned: bool,
    ) -> SessionResult {
        self.session_mut(runtime, id)?
            .pin(runtime, number, is_pinned)
    }

    /// Has no answer see a turn from now on, or lets answers see it again. Its rows stay where they are; what later turns
    /// have read of it stays in theirs.
    pub fn exclude(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        number: u64,
        is_excluded: bool,
    ) -> SessionResult {
        self.session_mut(runtime, id)?
            .exclude(runtime, number, is_excluded)
    }

    /// Makes a turn visible to the next answer, wherever it is, and even if it was excluded.
    pub fn recall(&mut self, id: SessionId, number: u64) -> SessionResult {
        self.restore_dropped();
        self.check_idle(id)?;
        let session = self.any_session_mut(id)?;
        let i = session.transcript.index_of(number);
        session.include(i.ok_or(SessionError::NoSuchTurn { number })?);
        session.transcript.deferred.recall.push(number);
        Ok(())
    }

    /// Background work between two turns: begins to condense a stream over its limit, reads at most `tokens_max` tokens,
    /// swaps. Does nothing where nothing is to be done.
    pub fn work(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        tokens_max: usize,
    ) -> SessionResult<RebuildProgress> {
        let condenser = self.condenser();
        let session = self.session_mut(runtime, id)?;
        Ok(session.work(runtime, condenser, tokens_max))
    }

    /// Sessions whose condensing has something to do other than to read.
    pub(crate) fn due_for_work(&self) -> Vec<SessionId> {
        let is_due = |session: &OpenSession| {
            let condensing = &session.condensing;
            let begins = condensing.rebuild.is_none() && session.is_too_long();
            !session.is_answering && (begins || condensing.is_due())
        };
        let open = self.slots.iter().filter(|(_, session)| is_due(session));
        open.map(|(id, _)| id).collect()
    }

    /// Whether any session condenses, or is about to.
    pub(crate) fn is_condensing(&self) -> bool {
        let mut open = self.slots.iter();
        open.any(|(_, s)| s.condensing.rebuild.is_some() || s.is_too_long())
    }

    /// Tokens that the rebuild of a session reads next, at most `tokens_max`: of `first`, if it has any, or of another.
    pub(crate) fn rebuild_share(
        &mut self,
        first: Option<SessionId>,
        tokens_max: usize,
    ) -> Option<RebuildShare> {
        let open: Vec<SessionId> = self.open_ids().collect();
        let ids = first.into_iter().chain(open);
        ids.into_iter()
            .find_map(|id| self.rebuild(id)?.share(id, tokens_max))
    }

    /// The rebuild of a session while it reads, unless a turn has it.
    pub(crate) fn rebuild(&mut self, id: SessionId) -> Option<&mut RebuildReading> {
        self.slots.get_mut(id)?.condensing.reading()
    }

    /// Whether one more step will end the condensing of a session.
    pub(crate) fn is_about_to_swap(&mut self, id: SessionId) -> bool {
        let rebuild = self.rebuild(id);
        rebuild.is_some_and(|r| r.failed.is_none() && r.left() <= STEP_TOKENS_MAX)
    }

    /// Whether a fact of `tokens` has no room before the stream is condensed, which is under way. A caller that begins to
    /// wait has it tried once more where it was given up.
    pub(crate) fn waits_for_condensing(
        &mut self,
        id: SessionId,
        tokens: usize,
        supersedes: Option<u64>,
        is_new: bool,
    ) -> SessionResult<bool> {
        let session = self.any_session_mut(id)?;
        match session.check_fact(tokens, supersedes) {
            Err(SessionError::PersistentFull { .. }) => {}
            checked => return checked.map(|()| false),
        }
        session.condensing.gave_up &= !is_new;
        Ok(session.condensing.rebuild.is_some() || session.is_too_long())
    }

    /// Calls [`Sessions::work`] until nothing is left to do. Waits for the judging thread.
    pub fn settle(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
    ) -> SessionResult<RebuildProgress> {
        loop {
            match self.work(runtime, id, STEP_TOKENS_MAX)? {
                RebuildProgress::Judging => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                RebuildProgress::Reading { .. } => {}
                ended => return Ok(ended),
            }
        }
    }

    /// Stops condensing. The old stream stays until the next fact.
    pub fn stop_condensing(&mut self, runtime: &mut Runtime, id: SessionId) -> SessionResult {
        self.session_mut(runtime, id)?.stop_condensing(runtime);
        Ok(())
    }

    /// Bytes and rows of a new session after a short first turn.
    pub(crate) fn first_needs(&self, runtime: &Runtime) -> SessionResult<(usize, usize)> {
        let rows = self.grants.usual.persistent_max + FIRST_TURN + slack(runtime);
        Ok(self.new_needs(runtime, rows))
    }

    /// Bytes and rows of a new session that has read `tokens` tokens.
    pub(crate) fn new_needs(&self, runtime: &Runtime, tokens: usize) -> (usize, usize) {
        let limits = &self.grants.usual;
        let rows_max = limits.persistent_room() + limits.capacity + slack(runtime);
        let rows = tokens.min(rows_max);
        (runtime.sequence_bytes(rows), rows)
    }

    /// Tokens that a session may be told between two turns, at most.
    pub(crate) fn told_tokens(&self, id: SessionId) -> SessionResult<u64> {
        let limits = &self.session(id)?.limits;
        Ok((limits.persistent_room() + limits.capacity.min(FIRST_TURN)) as u64)
    }

    /// Bytes and rows that the sequence of a session may reach until a turn of `coming` tokens is over. They do not
    /// depend on other requests.
    pub(crate) fn turn_needs(
        &self,
        runtime: &Runtime,
        id: SessionId,
        coming: u64,
    ) -> SessionResult<(usize, usize)> {
        let limits = &self.session(id)?.limits;
        let sequence = self.sequence(id)?;
        let end = runtime.position(sequence)?.saturating_add(coming);
        let rows = rows_at(end, limits, runtime);
        let bytes = promised_bytes(runtime, sequence, coming)?;
        Ok((bytes.max(runtime.sequence_bytes(rows)), rows))
    }

    /// The same of a session that is not in memory, before a turn that asks `question` tokens and answers at most `answer`, as
    /// far as its file says.
    pub(crate) fn resumed_turn_needs(
        &mut self,
        runtime: &Runtime,
        name: SessionName<'_>,
        question: usize,
        answer: Option<usize>,
    ) -> Option<(usize, usize)> {
        let replay = &self.files.ready(name)?.replay;
        let own = replay.transcript.limits.as_ref().map(|limits| limits.own);
        let (position, own) = (replay.state.position, own.unwrap_or_default());
        let granted = self.grants.grant(own, self.options.settings);
        let (limits, settings) = (granted.limits, granted.settings);
        let coming = self.coming_tokens(&limits, settings, question, answer);
        let coming = coming.ok()?;
        let rows = rows_at(position.saturating_add(coming), &limits, runtime);
        Some((runtime.sequence_bytes(rows), rows))
    }

    /// Whether the budget has room for a turn of `coming` tokens, with all lists as they are now.
    pub(crate) fn turn_fits(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        coming: u64,
    ) -> SessionResult<bool> {
        self.undo_dropped(runtime)?;
        self.hold(runtime)?;
        Ok(fits(runtime, Some(self.sequence(id)?), coming)?)
    }

    /// Refuses a question whose answer no session of this name can give.
    pub(crate) fn check_turn(&self, session: &str, answer: Option<usize>) -> SessionResult {
        let limits = match self.opened(session) {
            Some(id) => self.session(id)?.limits,
            None => self.grants.usual,
        };
        limits.answer(answer)?;
        Ok(())
    }

    /// Tokens of a turn in memory at most: the question, the answer, its ending, and turns that are recomputed.
    pub(crate) fn turn_tokens(
        &self,
        id: SessionId,
        question: usize,
        answer: Option<usize>,
    ) -> SessionResult<u64> {
        let session = self.session(id)?;
        self.coming_tokens(&session.limits, session.settings(), question, answer)
    }

    fn coming_tokens(
        &self,
        limits: &SessionLimits,
        settings: SessionSettings,
        question: usize,
        answer: Option<usize>,
    ) -> SessionResult<u64> {
        let ending = self.ending_tokens()? + 1;
        let date = settings.date_tokens();
        let whole = question.saturating_add(limits.answer(answer)? + ending + date);
        Ok((whole.min(limits.capacity) + self.options.reread_max) as u64)
    }

    fn condenser(&self) -> Arc<dyn Condense> {
        match &self.condenser {
            Some(condenser) => condenser.clone(),
            None => Arc::new(Extractive {
                encoder: self.encoder.clone(),
            }),
        }
    }

    fn folder(&self, owner: Owner) -> Option<SessionFolder> {
        self.files.folder(owner)
    }

    fn home(&self, name: SessionName<'_>) -> Option<LogHome> {
        Some(LogHome {
            path: self.folder(name.owner)?.path(name.name).ok()?,
            identity: self.identity.of_owner(name.owner).to_bytes(name.name),
        })
    }

    /// Enters the bytes of all sessions into the ledger, with room for one turn more each.
    pub(super) fn hold(&self, runtime: &mut Runtime) -> SessionResult {
        let open = self.slots.iter();
        let sessions: usize = open.map(|(_, s)| s.heap_bytes() + TURN_BYTES).sum();
        let encoder = self.encoder.as_ref().map_or(0, |encoder| encoder.bytes());
        Ok(runtime.set_session_bytes(sessions + encoder)?)
    }

    /// Like `hold`, and spills turns of one session until it fits.
    pub(super) fn hold_for(&mut self, runtime: &mut Runtime, id: SessionId) -> SessionResult {
        self.session_mut(runtime, id)?;
        self.hold_and_spill(runtime, id)
    }

    pub(super) fn hold_and_spill(&mut self, runtime: &mut Runtime, id: SessionId) -> SessionResult {
        loop {
            let held = self.hold(runtime);
            let is_short = held.as_ref().is_err_and(SessionError::is_cannot_fit);
            let Some(session) = self.slots.get_mut(id).filter(|_| is_short) else {
                return held;
            };
            if !session.spill_one() {
                return held;
            }
            session.mask(runtime)?;
        }
    }

    /// Takes a session in, if its lists fit the budget too. If not, the file of a new session is removed.
    fn admit(
        &mut self,
        runtime: &mut Runtime,
        session: OpenSession,
        resumed: Option<ResumeMode>,
    ) -> SessionResult<SessionId> {
        drop(self.files.take(session.log.full_name()));
        let id = self.slots.insert(session);
        let held = match resumed {
            Some(ResumeMode::Whole) => self.hold(runtime),
            Some(ResumeMode::AsFits) | None => self.hold_for(runtime, id),
        };
        if let Err(error) = held {
            if let Some(session) = self.slots.remove(id) {
                runtime.close(session.residency.sequence)?;
                if resumed.is_none() {
                    session.log.remove();
                }
            }
            return Err(error);
        }
        Ok(id)
    }

    /// Undoes turns that were dropped since the last call. Every call that changes a session begins with it.
    pub(crate) fn undo_dropped(&mut self, runtime: &mut Runtime) -> SessionResult {
        self.restore_dropped();
        while let Some(sequence) = self.to_close.pop() {
            runtime.close(sequence)?;
        }
        for session in self.slots.values_mut().filter(|session| session.is_stale) {
            session.mask_and_save(runtime)?;
            session.is_stale = false;
        }
        Ok(())
    }

    /// The part of undoing that needs no runtime.
    fn restore_dropped(&mut self) {
        for undo in self.dropped.take() {
            let failed = match undo {
                Undo::Turn(undo) => match self.slots.get_mut(undo.session) {
                    Some(session) => session.undo(*undo),
                    None => undo.backup,
                },
                Undo::NewSession(id) => match self.slots.remove(id) {
                    Some(session) => session.discard(),
                    None => continue,
                },
            };
            self.to_close.push(failed);
        }
    }

    /// The name is valid and not open.
    pub(super) fn check_new(
        &mut self,
        runtime: &mut Runtime,
        name: SessionName<'_>,
    ) -> SessionResult {
        self.undo_dropped(runtime)?;
        names::check(name.name)?;
        self.check_not_open(name)
    }

    fn check_not_open(&self, name: SessionName<'_>) -> SessionResult {
        match self.opened(name) {
            Some(_) => Err(SessionError::Open {
                name: name.name.into(),
            }),
            None => Ok(()),
        }
    }

    fn check_idle(&self, id: SessionId) -> SessionResult {
        let session = self.session(id)?;
        match session.is_answering {
            true => Err(SessionError::Answering {
                name: session.name().to_owned(),
            }),
            false => Ok(()),
        }
    }

    fn session(&self, id: SessionId) -> SessionResult<&OpenSession> {
        let session = self.slots.get(id);
        session.ok_or(SessionError::Closed { index: id.index() })
    }

    /// A session without a turn in progress.
    pub(super) fn session_mut(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
    ) -> SessionResult<&mut OpenSession> {
        self.undo_dropped(runtime)?;
        self.check_idle(id)?;
        self.any_session_mut(id)
    }

    pub(super) fn any_session(&self, id: SessionId) -> SessionResult<&OpenSession> {
        self.session(id)
    }

    /// A session that may have a turn in progress.
    pub(super) fn any_session_mut(&mut self, id: SessionId) -> SessionResult<&mut OpenSession> {
        let session = self.slots.get_mut(id);
        session.ok_or(SessionError::Closed { index: id.index() })
    }
}

/// Rows that a sequence may have when it ends there.
fn rows_at(end: u64, limits: &SessionLimits, runtime: &Runtime) -> usize {
    let max = limits.persistent_room() + limits.capacity + slack(runtime);
    usize::try_from(end).unwrap_or(usize::MAX).min(max)
}
