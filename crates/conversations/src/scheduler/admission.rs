//! Admission: which bytes a request may be promised, and what leaves memory for it.
//!
//! ```text
//! budget = fixed + heap + scratch of the largest step + held + promised and not held yet + free
//! ```
//!
//! A request is admitted when all it may come to hold can be promised, so no running request ever fails because of
//! another. [`decide`] is pure; [`Admission::make_room`] applies it until the request fits or cannot.

use super::plan::Priority;
use super::prefix_cache::{CachedPrefix, PrefixMatch, PromptBeingRead};
use super::queue::{Admit, QueuedRequest};
use super::request::{RequestError, RequestId, SubmitError};
use super::resources::{Resources, promisable};
use super::running::{
    CompletionWork, PreparedRead, PreparedRequest, PreparedTurn, PreparedWork, Started,
};
use crate::session::{
    AskedQuestion, ResumeMode, SessionError, SessionId, SessionName, SessionRead, SessionResult,
    Sessions,
};
use haversack_engine::runtime::{Runtime, SequenceId, SequenceRetention, StepError};
use haversack_kernels::attention::BLOCK_SLOTS;
use std::cell::Cell;

/// Memory as a request finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryState {
    /// Bytes that can be promised; `None`: there is no limit.
    pub free_bytes: Option<usize>,
    /// Bytes of the sessions that can be suspended.
    pub idle_session_bytes: usize,
    pub has_idle_session: bool,
    pub has_cached_prefix: bool,
    /// No other request was promised anything.
    pub is_batch_empty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Admit(Admit),
    /// Evict the least recently used cached prefix, then decide again.
    EvictPrefix,
    /// Suspend the least recently used idle session, then decide again.
    SuspendSession,
}

/// The next thing to do for a request that needs `bytes`. Sessions are only suspended if that will be enough. With no
/// other request running, the request gets what there is.
pub fn decide(bytes: usize, memory: MemoryState) -> Decision {
    let Some(free) = memory.free_bytes.filter(|&free| free < bytes) else {
        return Decision::Admit(Admit::Now);
    };
    if memory.has_cached_prefix {
        return Decision::EvictPrefix;
    }
    let is_enough = free.saturating_add(memory.idle_session_bytes) >= bytes;
    if memory.has_idle_session && (is_enough || memory.is_batch_empty) {
        return Decision::SuspendSession;
    }
    Decision::Admit(when_nothing_leaves(memory.is_batch_empty))
}

fn when_nothing_leaves(is_batch_empty: bool) -> Admit {
    if is_batch_empty {
        Admit::Now
    } else {
        Admit::NoMemory
    }
}

/// What running requests were promised.
#[derive(Debug, Default)]
pub(super) struct Promises<'a> {
    /// (sequence, its worst-case bytes), of the batch and of turns that are being saved.
    pub sequences: Vec<(SequenceId, usize)>,
    /// Requests in the batch.
    pub requests: usize,
    /// Of how many of them attention is counted.
    pub counting: usize,
    /// Of the longest of them.
    pub max_rows: usize,
    /// Prompts that they read.
    pub reading: Vec<PromptBeingRead<'a>>,
}

impl Promises<'_> {
    /// Bytes that were promised and are not held yet.
    pub fn outstanding_bytes(&self, resources: &Resources) -> usize {
        let outstanding =
            |&(id, bytes): &(_, usize)| bytes.saturating_sub(resources.held_bytes(id));
        self.sequences.iter().map(outstanding).sum()
    }

    /// Of a step in which each request reads a block.
    pub fn scratch_bytes(&self, runtime: &Runtime) -> usize {
        let tokens = self.requests * BLOCK_SLOTS;
        runtime.scratch_bytes_counting(self.requests, self.counting, tokens, self.max_rows)
    }
}

/// What became of an attempt to start a queued request.
pub(super) enum Outcome {
    Started(Started),
    /// `NoMemory` or `Blocked`.
    Waits(Admit),
    Failed(RequestError),
}

impl Outcome {
    /// Requests that fail leave the queue too.
    pub fn admit(&self) -> Admit {
        match self {
            Outcome::Waits(admit) => *admit,
            Outcome::Started(_) | Outcome::Failed(_) => Admit::Now,
        }
    }
}

/// Takes memory from resources within what was promised to running requests.
pub(super) struct Admission<'a> {
    resources: &'a mut Resources,
    promises: Promises<'a>,
}

impl<'a> Admission<'a> {
    pub fn new(resources: &'a mut Resources, promises: Promises<'a>) -> Admission<'a> {
        Admission {
            resources,
            promises,
        }
    }

    /// Tries to start a request.
    pub fn start(&mut self, queued: &QueuedRequest<PreparedRequest>) -> Outcome {
        match &queued.request.work {
            PreparedWork::Completion(work) => {
                let bytes = queued.worst_case_bytes as usize;
                self.start_completion(work, queued.request.id, queued.priority, bytes)
            }
            PreparedWork::Turn(turn) => {
                self.start_in_session(&turn.no_memory_at, |admission| admission.begin_turn(turn))
            }
            PreparedWork::Read(read) => {
                self.start_in_session(&read.no_memory_at, |admission| admission.begin_read(read))
            }
        }
    }

    /// From a cached prefix if there is one. Where a running request reads the same prompt, it waits for that.
    fn start_completion(
        &mut self,
        work: &CompletionWork,
        id: RequestId,
        priority: Priority,
        bytes: usize,
    ) -> Outcome {
        let prompt = work.completion.history();
        let key = work.prefix_key(id);
        let is_cacheable = work.continues || work.is_cacheable(&self.resources.runtime);
        let mut found = PrefixMatch::default();
        if is_cacheable {
            found = self.resources.prefix_cache.find(key, prompt);
            let mut reading = self.promises.reading.iter();
            if reading.any(|reader| reader.will_serve(key, priority, prompt, found)) {
                return Outcome::Waits(Admit::Blocked);
            }
        }
        let cached = self.resources.prefix_cache.take(key, prompt, found);
        if cached.is_none()
            && let Err(error) = self.resources.close_continued(key)
        {
            return Outcome::Failed(error.into());
        }
        let held = cached.as_ref().map_or(0, |cached| {
            let bytes = self.resources.held_bytes(cached.sequence());
            // Of the part that is used.
            (bytes as u128 * found.tokens as u128 / cached.tokens().max(1) as u128) as usize
        });
        let bytes = bytes.saturating_sub(held);
        if self.make_room(bytes, work.max_rows, work.counts_attention, None) != Admit::Now {
            if let Some(cached) = cached {
                self.resources.prefix_cache.put_back(cached);
            }
            return Outcome::Waits(Admit::NoMemory);
        }
        if is_cacheable {
            self.resources.prefix_cache.count(found);
        }
        let opened = self.open_from(cached, found.tokens, work.keep);
        if let Ok((sequence, _)) = opened
            && let Err(error) = self.resources.runtime.annotate(sequence, &work.annotations)
        {
            // They were promised, but for a request that is alone and gets what there is.
            log::warn!("messages of a request are not protected: {error}");
        }
        match opened {
            Ok((sequence, reused)) => Outcome::Started(Started::Completion {
                sequence,
                reused,
                checkpoints: match self.resources.prefix_cache.is_off() {
                    true => Vec::new(),
                    false => work.checkpoints(&self.resources.runtime, found),
                },
            }),
            Err(error) => Outcome::Failed(error.into()),
        }
    }

    /// A sequence for a completion, and how many tokens of its prompt it has read.
    fn open_from(
        &mut self,
        cached: Option<CachedPrefix>,
        tokens: usize,
        keep: SequenceRetention,
    ) -> Result<(SequenceId, usize), StepError> {
        if let Some(cached) = cached {
            let (runtime, cache) = (
                &mut self.resources.runtime,
                &mut self.resources.prefix_cache,
            );
            return Ok((cache.continue_from(runtime, cached, tokens)?, tokens));
        }
        Ok((self.resources.open_sequence(keep)?, 0))
    }

    fn start_in_session(
        &mut self,
        no_memory_at: &Cell<Option<u64>>,
        begin: impl FnOnce(&mut Self) -> SessionResult<Outcome>,
    ) -> Outcome {
        // There is no more memory than at the last attempt until some is released.
        let releases = self.resources.releases;
        if no_memory_at.get() == Some(releases) {
            return Outcome::Waits(Admit::NoMemory);
        }
        let outcome = match begin(self) {
            Ok(outcome) => outcome,
            Err(error) if error.is_cannot_fit() && !self.is_batch_empty() => {
                Outcome::Waits(Admit::NoMemory)
            }
            Err(error) => Outcome::Failed(error.into()),
        };
        if outcome.admit() == Admit::NoMemory {
            no_memory_at.set(Some(self.resources.releases));
        }
        outcome
    }

    fn begin_read(&mut self, prepared: &PreparedRead) -> SessionResult<Outcome> {
        let (session, read) = (prepared.session(), &prepared.read);
        let is_new = matches!(read, SessionRead::Create { .. });
        let id = match is_new {
            true => None,
            false => match self.look_at_file(session, read.tokens(), Some(0))? {
                Some(waits) => return Ok(Outcome::Waits(waits)),
                None => Some(self.open_session(session)?),
            },
        };
        let sessions = self.resources.sessions()?;
        let open = id.or_else(|| sessions.opened(session));
        if open.is_some_and(|id| sessions.is_answering(id).unwrap_or(false)) {
            return Ok(Outcome::Waits(Admit::Blocked));
        }
        if let (Some(id), SessionRead::Fact { supersedes, .. }) = (id, read) {
            let is_new = !prepared.has_waited.replace(true);
            let (tokens, sessions) = (read.tokens(), self.resources.sessions_mut()?);
            if sessions.waits_for_condensing(id, tokens, *supersedes, is_new)? {
                self.resources.awaited = Some(id);
                return Ok(Outcome::Waits(Admit::Blocked));
            }
        }
        let sessions = self.resources.sessions()?;
        let runtime = &self.resources.runtime;
        let coming = read.tokens() as u64;
        let (bytes, max_rows) = match id {
            Some(id) => sessions.turn_needs(runtime, id, coming)?,
            None => sessions.new_needs(runtime, read.tokens() + 2 * BLOCK_SLOTS),
        };
        let held = id.map_or(0, |id| self.resources.session_bytes(id));
        if self.make_room(bytes.saturating_sub(held), max_rows, false, id) != Admit::Now {
            return Ok(Outcome::Waits(Admit::NoMemory));
        }
        let now_ms = prepared.now_ms;
        let begun =
            self.with_sessions(|runtime, sessions| read.begin(runtime, sessions, session, now_ms))?;
        Ok(Outcome::Started(Started::Read {
            begun,
            promised_bytes: bytes,
            max_rows,
        }))
    }

    /// Whether a request waits until the file of its session is ready, or until there is memory for what it holds: while others
    /// run, nothing is restored that would not fit.
    fn look_at_file(
        &mut self,
        session: SessionName<'_>,
        question: usize,
        answer: Option<usize>,
    ) -> SessionResult<Option<Admit>> {
        let is_batch_empty = self.is_batch_empty();
        let Resources {
            runtime, sessions, ..
        } = &mut *self.resources;
        let sessions = sessions.as_mut().ok_or(SessionError::NoSessions)?;
        if !sessions.is_file_ready(session) {
            return Ok(Some(Admit::Blocked));
        }
        if is_batch_empty {
            return Ok(None);
        }
        let needs = sessions.resumed_turn_needs(runtime, session, question, answer);
        let admit = needs.map(|(bytes, rows)| self.make_room(bytes, rows, false, None));
        Ok(admit.filter(|admit| *admit != Admit::Now))
    }

    fn begin_turn(&mut self, turn: &PreparedTurn) -> SessionResult<Outcome> {
        let is_batch_empty = self.is_batch_empty();
        let answer = turn.options.tokens_max;
        if let Some(waits) = self.look_at_file(turn.session(), turn.question.len(), answer)? {
            return Ok(Outcome::Waits(waits));
        }
        let id = self.open_session(turn.session())?;
        let sessions = self.resources.sessions()?;
        if sessions.is_answering(id)? {
            return Ok(Outcome::Waits(Admit::Blocked));
        }
        // The stream is replaced between two turns, and turns may follow each other without a pause.
        if self.resources.sessions_mut()?.is_about_to_swap(id) {
            self.resources.awaited = Some(id);
            return Ok(Outcome::Waits(Admit::Blocked));
        }
        let sessions = self.resources.sessions()?;
        let runtime = &self.resources.runtime;
        let coming = sessions.turn_tokens(id, turn.question.len(), turn.options.tokens_max)?;
        let needs = sessions.turn_needs(runtime, id, coming)?;
        let (bytes, max_rows) = needs;
        let more = bytes.saturating_sub(self.resources.session_bytes(id));
        if self.make_room(more, max_rows, false, Some(id)) != Admit::Now {
            return Ok(Outcome::Waits(Admit::NoMemory));
        }
        self.resources.mark_used(id);
        // Other sessions are suspended before turns of this one leave memory.
        while !self.turn_fits(id, coming)? {
            if !is_batch_empty {
                return Ok(Outcome::Waits(Admit::NoMemory));
            }
            if !self.evict_or_suspend(Some(id)) {
                break;
            }
        }
        self.with_sessions_beside(needs, |runtime, sessions| {
            let asked = AskedQuestion {
                text: &turn.text,
                tokens: Some(&turn.question),
                embedding: turn.embedding.as_ref(),
                now_ms: turn.now_ms,
            };
            let begun = sessions.begin(runtime, id, asked, &turn.options)?;
            match sessions.promise(runtime, &begun) {
                Ok((promised_bytes, fits)) if is_batch_empty || fits && !begun.recalls_fewer() => {
                    Ok(Outcome::Started(Started::Turn {
                        turn: Box::new(begun),
                        promised_bytes,
                        max_rows,
                    }))
                }
                Ok(_) => sessions
                    .abandon(runtime, begun)
                    .map(|()| Outcome::Waits(Admit::NoMemory)),
                Err(error) => sessions.abandon(runtime, begun).and(Err(error)),
            }
        })
    }

    /// What condensing has to do other than to read: it begins, or replaces a stream that was read.
    pub fn work_on_sessions(&mut self) -> SessionResult {
        let due = match &self.resources.sessions {
            Some(sessions) => sessions.due_for_work(),
            None => Vec::new(),
        };
        for id in due {
            self.with_sessions(|runtime, sessions| sessions.work(runtime, id, 0))?;
        }
        Ok(())
    }

    /// Whether a turn fits beside what other requests were promised.
    fn turn_fits(&mut self, id: SessionId, coming: u64) -> SessionResult<bool> {
        let needs = self.turn_needs(id, coming)?;
        let fits = |runtime: &mut Runtime, sessions: &mut Sessions| {
            sessions.turn_fits(runtime, id, coming)
        };
        match self.with_sessions_beside(needs, fits) {
            Err(error) if error.is_cannot_fit() => Ok(false),
            fits => fits,
        }
    }

    fn turn_needs(&self, id: SessionId, coming: u64) -> SessionResult<(usize, usize)> {
        let sessions = self.resources.sessions()?;
        sessions.turn_needs(&self.resources.runtime, id, coming)
    }

    /// The session of this name. Opens it whole if it is not in memory: rows that stay in the file would be missing in its
    /// answers. Only with no request running and every other session suspended, turns that do not fit stay in the file.
    pub fn open_session(&mut self, name: SessionName<'_>) -> SessionResult<SessionId> {
        let sessions = self.resources.sessions()?;
        if let Some(id) = sessions.opened(name) {
            return Ok(id);
        }
        if !sessions.exists(name) {
            let name = name.name.to_owned();
            return Err(SessionError::NoSuchSession { name });
        }
        let mut opens = ResumeMode::Whole;
        loop {
            let opened = self.add_session(None, |runtime, sessions| {
                sessions.resume_as(runtime, name, opens)
            });
            let no_memory = opened.as_ref().is_err_and(SessionError::is_cannot_fit);
            if !no_memory || opens == ResumeMode::AsFits {
                return opened;
            }
            if self.evict_or_suspend(None) {
                continue;
            }
            if !self.is_batch_empty() {
                return opened;
            }
            opens = ResumeMode::AsFits;
        }
    }

    /// Opens a session with as much room as a short turn needs, if there is that much. `source`, which it is made from, stays
    /// in memory.
    pub fn add_session(
        &mut self,
        source: Option<SessionId>,
        open: impl FnOnce(&mut Runtime, &mut Sessions) -> SessionResult<SessionId>,
    ) -> SessionResult<SessionId> {
        let (bytes, rows) = self.resources.new_session_needs()?;
        self.make_room(bytes, rows, false, source);
        let id = self.with_sessions(open)?;
        self.resources.mark_used(id);
        Ok(id)
    }

    /// Runs `go` with everything set aside that was promised to running requests.
    pub fn with_sessions<T>(
        &mut self,
        go: impl FnOnce(&mut Runtime, &mut Sessions) -> SessionResult<T>,
    ) -> SessionResult<T> {
        let needs = self.resources.new_session_needs()?;
        self.with_sessions_beside(needs, go)
    }

    /// The same of a session that may be told facts.
    pub fn with_session<T>(
        &mut self,
        id: SessionId,
        go: impl FnOnce(&mut Runtime, &mut Sessions) -> SessionResult<T>,
    ) -> SessionResult<T> {
        let coming = self.resources.sessions()?.told_tokens(id)?;
        let needs = self.turn_needs(id, coming)?;
        self.with_sessions_beside(needs, go)
    }

    /// The same with cached prefixes evicted as long as there is no room for these bytes and rows.
    fn with_sessions_beside<T>(
        &mut self,
        needs: (usize, usize),
        go: impl FnOnce(&mut Runtime, &mut Sessions) -> SessionResult<T>,
    ) -> SessionResult<T> {
        self.evict_prefixes_for(needs);
        let (runtime, promises) = (&mut self.resources.runtime, &self.promises);
        let scratch = promises.scratch_bytes(runtime);
        // Scratch that larger steps left behind was promised to no request.
        if runtime.ledger().scratch > scratch {
            runtime.release_scratch();
        }
        let scratch = scratch.saturating_sub(runtime.ledger().scratch);
        let mut promised = promises
            .outstanding_bytes(self.resources)
            .saturating_add(scratch);
        // Alone, a turn gets what there is: it never fails for what others have on the heap.
        if !self.is_batch_empty() {
            let heap = self.resources.runtime.ledger().heap;
            promised = promised.saturating_add(heap);
        }
        let runtime = &mut self.resources.runtime;
        let sessions = self.resources.sessions.as_mut();
        let sessions = sessions.ok_or(SessionError::NoSessions)?;
        let mut runtime = runtime.reserve(promised)?;
        go(&mut runtime, sessions)
    }

    fn evict_prefixes_for(&mut self, (bytes, rows): (usize, usize)) {
        while !self.resources.prefix_cache.is_empty()
            && (self.free_bytes(rows, false)).is_some_and(|free| free < bytes)
            && self.resources.evict_prefix()
        {}
    }

    /// Charges bytes that no sequence holds to the budget, if a session's turn or a block of text has room beside them.
    pub fn reserve_bytes(&mut self, bytes: usize) -> Result<(), SubmitError> {
        let runtime = &self.resources.runtime;
        let (min_bytes, rows) = match &self.resources.sessions {
            Some(_) => self.resources.new_session_needs()?,
            None => (runtime.sequence_bytes(BLOCK_SLOTS), BLOCK_SLOTS),
        };
        if let Some(room) = promisable(runtime, 1, 0, rows) {
            let max = room.saturating_sub(min_bytes);
            if bytes > max {
                return Err(SubmitError::TooManyBytes { bytes, max });
            }
        }
        if self.make_room(bytes, rows, false, None) != Admit::Now {
            return Err(SubmitError::MemoryPromised { bytes });
        }
        self.resources.reserve_bytes(bytes)
    }

    /// Makes `bytes` free for a sequence of up to `rows` rows, by what may leave memory, except the session `spare`.
    fn make_room(
        &mut self,
        bytes: usize,
        rows: usize,
        counts_attention: bool,
        spare: Option<SessionId>,
    ) -> Admit {
        loop {
            let left = match decide(bytes, self.memory_state(rows, counts_attention, spare)) {
                Decision::Admit(admit) => return admit,
                Decision::EvictPrefix => self.resources.evict_prefix(),
                Decision::SuspendSession => self.suspend_for_others(spare),
            };
            if !left {
                return when_nothing_leaves(self.is_batch_empty());
            }
        }
    }

    fn memory_state(
        &self,
        rows: usize,
        counts_attention: bool,
        spare: Option<SessionId>,
    ) -> MemoryState {
        let idle = self.resources.idle_sessions(spare);
        MemoryState {
            free_bytes: self.free_bytes(rows, counts_attention),
            has_idle_session: !idle.is_empty(),
            idle_session_bytes: idle
                .iter()
                .map(|&id| self.resources.session_bytes(id))
                .sum(),
            has_cached_prefix: !self.resources.prefix_cache.is_empty(),
            is_batch_empty: self.is_batch_empty(),
        }
    }

    /// Bytes that can be promised to one more request of up to `rows` rows; `None`: there is no limit.
    fn free_bytes(&self, rows: usize, counts_attention: bool) -> Option<usize> {
        let promises = &self.promises;
        let counting = promises.counting + usize::from(counts_attention);
        let rows = promises.max_rows.max(rows);
        let free = (self.resources).free_bytes(promises.requests + 1, counting, rows)?;
        Some(free.saturating_sub(promises.outstanding_bytes(self.resources)))
    }

    /// Evicts a cached prefix or suspends an idle session but `spare`. `false`: there is neither.
    fn evict_or_suspend(&mut self, spare: Option<SessionId>) -> bool {
        self.resources.evict_prefix() || self.suspend_for_others(spare)
    }

    fn suspend_for_others(&mut self, spare: Option<SessionId>) -> bool {
        let is_suspended = self.resources.suspend_one(spare);
        self.resources.suspensions.for_others += u64::from(is_suspended);
        is_suspended
    }

    fn is_batch_empty(&self) -> bool {
        self.promises.sequences.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: MemoryState = MemoryState {
        free_bytes: Some(10),
        idle_session_bytes: 50,
        has_idle_session: true,
        has_cached_prefix: true,
        is_batch_empty: false,
    };

    #[test]
    fn what_fits_is_admitted_and_nothing_leaves() {
        assert_eq!(decide(10, FULL), Decision::Admit(Admit::Now));
        let unlimited = MemoryState {
            free_bytes: None,
            ..FULL
        };
        assert_eq!(decide(usize::MAX, unlimited), Decision::Admit(Admit::Now));
    }

    #[test]
    fn prefixes_leave_before_sessions_and_sessions_only_if_that_is_enough() {
        assert_eq!(decide(11, FULL), Decision::EvictPrefix);
        let no_prefix = MemoryState {
            has_cached_prefix: false,
            ..FULL
        };
        assert_eq!(decide(60, no_prefix), Decision::SuspendSession);
        assert_eq!(decide(61, no_prefix), Decision::Admit(Admit::NoMemory));
    }

    #[test]
    fn the_only_request_gets_what_there_is() {
        let alone = MemoryState {
            has_cached_prefix: false,
            is_batch_empty: true,
            ..FULL
        };
        assert_eq!(decide(61, alone), Decision::SuspendSession);
        let empty = MemoryState {
            has_idle_session: false,
            idle_session_bytes: 0,
            ..alone
        };
        assert_eq!(decide(61, empty), Decision::Admit(Admit::Now));
    }
}
