//! The one runtime, the sessions over it, and who has entered: what may be promised to whom.
//!
//! ```text
//! budget = what is kept anyway + scratch of the largest step + what is held now + what was promised and is not held yet + free
//! ```
//!
//! Whoever enters is promised all that it may come to hold, so nobody's step fails for another's. A session between two
//! turns is promised nothing: what it holds is in its file too, and it leaves memory when somebody else needs the room,
//! the one that was used longest ago first.

use super::job::{Asked, Job, Turn, Work};
use super::memory_report::SuspendCounts;
use super::prefix_cache::{Begins, CachedPrefix, PrefixCache, PrefixKey};
use super::request::{Deliver, RequestEvent, RequestId, RequestReport, SubmitError};
use crate::session::{Embed, Opens, SessionError, SessionId, Sessions, TurnInProgress};
use haversack_engine::device::governor;
use haversack_engine::encoder::Embedding;
use haversack_engine::model::forward::{Span, Want};
use haversack_engine::runtime::options::Policy;
use haversack_engine::runtime::{Event, Finish, Keep, Runtime, SequenceId, StepError, Took};
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_memory::zoo::{Bug, planted};
use haversack_memory::{Reading, background};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;

pub(super) struct House {
    pub runtime: Runtime,
    pub sessions: Option<Sessions>,
    /// In the order they entered.
    pub active: Vec<Job>,
    /// Turns that have been answered and are being judged.
    pub ending: Vec<Ending>,
    /// What tables and lists take with nobody there; every promise has it.
    tables_bytes: usize,
    /// Open sessions, the one used longest ago first.
    used: Vec<SessionId>,
    /// How many have left so far.
    pub left: u64,
    /// What requests that are over have read.
    pub past: PrefixCache,
    /// Bytes that the device has room for beside all that is held; `None`: as many as the budget says.
    device_room: Option<usize>,
    pub put_away: SuspendCounts,
    /// Tokens that were read.
    pub read: u64,
}

/// A turn that has all its tokens.
pub(super) struct Ending {
    job: Job,
    judge: Judge,
}

/// Who says what a turn is about.
enum Judge {
    /// Has said it, or there is none.
    Done(Option<Box<Embedding>>),
    Thinks(JoinHandle<Option<Embedding>>),
}

impl Judge {
    /// Begins, on a thread of its own where it takes its time.
    fn of(said: String, encoder: Arc<dyn Embed>) -> Judge {
        if encoder.is_quick() {
            return Judge::Done(encoder.embed(&said).ok().map(Box::new));
        }
        Judge::Thinks(std::thread::spawn(move || {
            background::give_way();
            encoder.embed(&said).ok()
        }))
    }

    fn is_done(&self) -> bool {
        match self {
            Judge::Done(_) => true,
            Judge::Thinks(thread) => thread.is_finished(),
        }
    }

    /// Waits for it.
    fn end(self) -> Option<Embedding> {
        match self {
            Judge::Done(embedding) => embedding.map(|embedding| *embedding),
            // A thread that died judged nothing.
            Judge::Thinks(thread) => thread.join().ok().flatten(),
        }
    }
}

/// Whether somebody may enter, and what with.
pub(super) enum Enters {
    Sequence {
        sequence: SequenceId,
        /// Tokens of the prompt that it has.
        read: usize,
        /// Where the prompt parts from another.
        parts: Option<usize>,
    },
    Turn {
        saying: Box<TurnInProgress>,
        /// That its sequence holds at most.
        bytes: usize,
        /// That its sequence has at most.
        rows: usize,
    },
    /// Not before somebody leaves.
    NoRoom,
    /// It waits for something else than room.
    NotYet,
    Never(SessionError),
}

impl House {
    /// `reuse`: sequences of requests that are over that are kept at most.
    pub fn new(runtime: Runtime, reuse: usize) -> House {
        House {
            tables_bytes: runtime.ledger().tables,
            runtime,
            sessions: None,
            active: Vec::new(),
            ending: Vec::new(),
            used: Vec::new(),
            left: 0,
            past: PrefixCache::new(reuse),
            device_room: None,
            put_away: SuspendCounts::default(),
            read: 0,
        }
    }

    /// Bytes that were promised and are not held yet.
    pub fn outstanding(&self) -> usize {
        let ending = self.ending.iter().map(|ending| &ending.job);
        let all = self.active.iter().chain(ending);
        all.map(|job| job.outstanding(&self.runtime)).sum()
    }

    /// The device has no room for everybody.
    pub fn is_short(&self) -> bool {
        self.device_room.is_some()
    }

    /// Nobody else has been promised anything.
    pub fn is_empty(&self) -> bool {
        self.active.is_empty() && self.ending.is_empty()
    }

    /// How many have entered, for how many of them attention is counted, and the rows of the longest.
    fn company(&self) -> (usize, usize, usize) {
        let counting = self.active.iter().filter(|job| job.counts).count();
        let longest = self.active.iter().map(|job| job.rows).max();
        (self.active.len(), counting, longest.unwrap_or(0))
    }

    /// Bytes that can be promised to one more, which has up to so many rows; `None` without a budget.
    fn free(&self, rows: usize, counts: bool) -> Option<usize> {
        let (count, counting, longest) = self.company();
        let (counting, longest) = (counting + usize::from(counts), longest.max(rows));
        let room = promisable(&self.runtime, count + 1, counting, longest).map(|room| {
            let ledger = self.runtime.ledger();
            let tables = ledger.tables.saturating_sub(self.tables_bytes);
            room.saturating_sub(ledger.kv_live + ledger.kv_ahead + tables)
        });
        let room = room.into_iter().chain(self.device_room).min()?;
        Some(room.saturating_sub(self.outstanding()))
    }

    /// What the device says of its memory, and what follows: first sessions that do nothing leave it, one for each
    /// reading; then nobody enters for whom there is no room. Who has entered goes on. Returns what changes, in words.
    pub fn observe(&mut self, reading: &Reading) -> Option<String> {
        let weights = self.runtime.model().weights().bytes_per_token() as u64;
        let (room, bound) = governor::headroom(reading, weights)?;
        let stalled = governor::is_stalled(reading);
        let spare = usize::try_from(room - governor::LOW_BYTES as i64).unwrap_or(0);
        let says = match stalled {
            true => "tasks stand still for memory".to_owned(),
            false => format!("{bound} leaves {} MiB", room >> 20),
        };
        let was_short = self.device_room.is_some();
        if stalled || spare == 0 {
            self.device_room = Some(0);
            if self.drop_past() {
                while self.drop_past() {}
                return Some(format!("{says}: what requests had read leaves memory"));
            }
            let is_one_less = self.suspend_one(&self.idle(None));
            self.put_away.for_device += u64::from(is_one_less);
            return match is_one_less {
                true => Some(format!("{says}: a session leaves memory")),
                false if was_short => None,
                false => Some(format!("{says}: nobody enters beside who is there")),
            };
        }
        if room > governor::HIGH_BYTES as i64 {
            self.device_room = None;
            // Who had no room may have some.
            self.left += u64::from(was_short);
            return was_short.then(|| format!("{says}: everybody may enter"));
        }
        if was_short {
            self.device_room = Some(spare);
            self.left += 1;
        }
        None
    }

    /// Makes so many bytes free that can be promised, or says that it cannot be done now. Who has nobody else in the way
    /// but sessions that do nothing gets what there is. `own` is a session that is to have them: what it holds already
    /// counts.
    fn make_free(
        &mut self,
        bytes: usize,
        rows: usize,
        counts: bool,
        own: Option<SessionId>,
    ) -> bool {
        self.make_free_but(bytes, rows, counts, own, own)
    }

    /// The same; `but` stays.
    fn make_free_but(
        &mut self,
        bytes: usize,
        rows: usize,
        counts: bool,
        own: Option<SessionId>,
        but: Option<SessionId>,
    ) -> bool {
        let held = |house: &House, id| {
            let sequence = house.sessions.as_ref().and_then(|s| s.sequence(id).ok());
            let stats = sequence.and_then(|id| house.runtime.stats(id).ok());
            stats.map_or(0, |stats| stats.bytes)
        };
        let wanted = bytes.saturating_sub(own.map_or(0, |id| held(self, id)));
        loop {
            let Some(free) = self.free(rows, counts) else {
                return true;
            };
            if free >= wanted {
                return true;
            }
            let freeable = self.idle(but).into_iter().map(|id| held(self, id));
            // Nobody is sent away for nothing.
            let in_vain = free.saturating_add(freeable.sum()) < wanted && !self.is_empty();
            let is_more = match in_vain {
                true => self.drop_past(),
                false => self.send_away(but),
            };
            if !is_more {
                return self.is_empty();
            }
        }
    }

    /// Something leaves that nobody was promised: what was kept for requests to come, or a session that does nothing.
    /// `false`: there is nothing, except `but`.
    fn send_away(&mut self, but: Option<SessionId>) -> bool {
        if self.drop_past() {
            return true;
        }
        let is_one_less = self.suspend_one(&self.idle(but));
        self.put_away.for_others += u64::from(is_one_less);
        is_one_less
    }

    /// Something that was kept for requests to come leaves. `false`: there is nothing.
    pub fn drop_past(&mut self) -> bool {
        self.past
            .drop_one(&mut self.runtime)
            .unwrap_or_else(|error| {
                log::error!("{error}");
                false
            })
    }

    /// Whether others may go on from what a request reads.
    fn is_reusable(&self, asked: &Asked) -> bool {
        let keeps_all = matches!(
            self.runtime.retention().policy,
            Policy::Full | Policy::Streams
        );
        keeps_all && asked.again.is_none() && matches!(asked.keep, Keep::Usual | Keep::All { .. })
    }

    /// So many bytes are kept beside all sequences: of what was promised to nobody, if there is room for a conversation or a
    /// little text afterwards.
    pub fn keep_beside(&mut self, bytes: usize) -> Result<(), SubmitError> {
        let (least, rows) = match &self.sessions {
            Some(sessions) => sessions.turn_needs(&self.runtime, None, 0)?,
            None => (self.runtime.sequence_bytes(BLOCK_SLOTS), BLOCK_SLOTS),
        };
        if let Some(room) = promisable(&self.runtime, 1, 0, rows) {
            let max = room.saturating_sub(least);
            if bytes > max {
                return Err(SubmitError::TooManyBytes { bytes, max });
            }
        }
        if !self.make_free(bytes, rows, false, None) {
            return Err(SubmitError::MemoryPromised { bytes });
        }
        let kept = self.runtime.keep_beside(bytes).or_else(|_| {
            // What greater steps left behind was not promised to anybody.
            self.runtime.release_scratch();
            self.runtime.keep_beside(bytes)
        });
        kept.map_err(|_| SubmitError::MemoryPromised { bytes })
    }

    /// Sessions that could leave memory, the one used longest ago first.
    pub fn idle(&self, but: Option<SessionId>) -> Vec<SessionId> {
        let Some(sessions) = &self.sessions else {
            return Vec::new();
        };
        let is_idle = |&id: &SessionId| {
            Some(id) != but && sessions.is_answering(id).is_ok_and(|answers| !answers)
        };
        self.used.iter().copied().filter(is_idle).collect()
    }

    /// Puts the first of them away that can be. `false`: none can.
    fn suspend_one(&mut self, idle: &[SessionId]) -> bool {
        let Some(sessions) = &mut self.sessions else {
            return false;
        };
        for &id in idle {
            match sessions.suspend(&mut self.runtime, id) {
                Ok(()) => {
                    self.used.retain(|&used| used != id);
                    return true;
                }
                Err(error) => log::warn!("{error}"),
            }
        }
        false
    }

    /// A sequence for a request, where its bytes can be promised. It goes on from what others have read, if it begins with
    /// that.
    pub fn enter(&mut self, asked: &Asked, of: PrefixKey, bytes: usize) -> Enters {
        let prompt = asked.completion.history();
        let is_reusable = self.is_reusable(asked);
        let begins = match is_reusable {
            true => self.past.begins(of, prompt),
            false => Begins::default(),
        };
        let kept = match begins.from {
            0 => None,
            from => self.past.take(of, prompt, from),
        };
        let held = kept
            .as_ref()
            .and_then(|kept| self.runtime.stats(kept.sequence).ok());
        let held = held.map_or(0, |stats| stats.bytes);
        if !self.make_free(bytes.saturating_sub(held), asked.rows, asked.counts, None) {
            if let Some(kept) = kept {
                self.past.put_back(kept);
            }
            return Enters::NoRoom;
        }
        if is_reusable {
            self.past.count(begins);
        }
        let read = if kept.is_some() { begins.from } else { 0 };
        let opened = match kept {
            Some(kept) => Ok(self.past.go_on(&mut self.runtime, kept)),
            None => self.open_sequence(asked.keep),
        };
        match opened {
            Ok(sequence) => Enters::Sequence {
                sequence,
                read,
                parts: begins.parts,
            },
            Err(error) => Enters::Never(error.into()),
        }
    }

    /// A sequence that has nothing yet. What nobody was promised leaves for it: what was kept for requests to come, and what
    /// greater steps left behind.
    fn open_sequence(&mut self, keep: Keep) -> Result<SequenceId, StepError> {
        let mut has_scratch = true;
        loop {
            match self.runtime.open_keeping(keep) {
                Err(error) if error.is_cannot_fit() && self.drop_past() => {}
                Err(error) if error.is_cannot_fit() && has_scratch => {
                    self.runtime.release_scratch();
                    has_scratch = false;
                }
                opened => return opened,
            }
        }
    }

    /// Keeps what was read up to where a prompt ends, or parts from another, for those who begin alike.
    pub fn remember(&mut self, takes: &[usize]) -> Result<(), StepError> {
        for (job, &take) in self.active.iter().zip(takes) {
            let Work::Request { asked, sequence } = &job.work else {
                continue;
            };
            let position = self.runtime.position(*sequence)?;
            let prompt = asked.completion.prompt();
            let is_fork = asked.parts.is_some_and(|at| at as u64 == position);
            let is_place = is_fork || prompt.len() as u64 == position;
            if take == 0
                || !is_place
                || !self.past.is_worth(position as usize)
                || !self.is_reusable(asked)
            {
                continue;
            }
            // Where there is no room for what nobody was promised, nothing is kept.
            let Ok(sequence) = self.runtime.fork(*sequence) else {
                continue;
            };
            let kept = CachedPrefix {
                of: reader(job.ticket, asked),
                tokens: prompt[..position as usize].to_vec(),
                sequence,
                is_fork,
            };
            self.past.keep(&mut self.runtime, kept)?;
        }
        Ok(())
    }

    /// Begins a turn, where its bytes can be promised: what it holds, and what it may come to hold.
    pub fn enter_turn(&mut self, turn: &Turn) -> Enters {
        // As long as nobody has left, there is no more room than there was.
        if turn.tried.get() == Some(self.left) {
            return Enters::NoRoom;
        }
        let is_empty = self.is_empty();
        let entered = match self.begin(turn, is_empty) {
            Ok(entered) => entered,
            Err(error) if error.is_cannot_fit() && !is_empty => Enters::NoRoom,
            Err(error) => Enters::Never(error),
        };
        if matches!(entered, Enters::NoRoom) {
            turn.tried.set(Some(self.left));
        }
        entered
    }

    fn begin(&mut self, turn: &Turn, is_empty: bool) -> Result<Enters, SessionError> {
        let id = self.open(&turn.session)?;
        let sessions = self.sessions.as_ref().ok_or(SessionError::NoSessions)?;
        if sessions.is_answering(id)? {
            return Ok(Enters::NotYet);
        }
        let (bytes, rows) = sessions.turn_needs(&self.runtime, Some(id), turn.coming)?;
        if !self.make_free(bytes, rows, false, Some(id)) {
            return Ok(Enters::NoRoom);
        }
        self.touch(id);
        // Asked before anything is done for it. Before turns of its own leave, sessions do that nobody waits for.
        while !self.has_room(id, turn.coming)? {
            if !is_empty {
                return Ok(Enters::NoRoom);
            }
            if !self.send_away(Some(id)) {
                break;
            }
        }
        self.aside(|runtime, sessions| {
            let Turn {
                text,
                embedding,
                now_ms,
                options,
                ..
            } = turn;
            let saying = sessions.begin(runtime, id, text, *embedding, *now_ms, options)?;
            match sessions.promise(runtime, &saying) {
                Ok((bytes, fits)) if fits || is_empty => Ok(Enters::Turn {
                    saying: Box::new(saying),
                    bytes,
                    rows,
                }),
                Ok(_) => sessions.abandon(runtime, saying).map(|()| Enters::NoRoom),
                Err(error) => sessions.abandon(runtime, saying).and(Err(error)),
            }
        })
    }

    /// Whether a turn that reads so many tokens has room beside what was promised to others.
    fn has_room(&mut self, id: SessionId, coming: u64) -> Result<bool, SessionError> {
        match self.aside(|runtime, sessions| sessions.turn_fits(runtime, id, coming)) {
            Err(error) if error.is_cannot_fit() => Ok(false),
            fits => fits,
        }
    }

    /// The session of this name, opened if it is not, as it was put away: what somebody leaves no room for now would be
    /// missing in answers. Only where nobody is left to make room, turns for which there is none stay in the file.
    pub fn open(&mut self, name: &str) -> Result<SessionId, SessionError> {
        let sessions = self.sessions.as_ref().ok_or(SessionError::NoSessions)?;
        if let Some(id) = sessions.opened(name) {
            return Ok(id);
        }
        if !sessions.exists(name) {
            let name = name.to_owned();
            return Err(SessionError::NoSuchSession { name });
        }
        let mut room = Opens::Whole;
        loop {
            let opened = self.add(None, |runtime, sessions| {
                sessions.resume_as(runtime, name, room)
            });
            let is_in_the_way =
                opened.as_ref().is_err_and(SessionError::is_cannot_fit) && self.is_empty();
            if !is_in_the_way || room == Opens::AsFits {
                return opened;
            }
            if !self.send_away(None) {
                room = Opens::AsFits;
            }
        }
    }

    /// Opens a session that was not, with as much room as one may need, if that can be had. `from` is another that it is
    /// made of, and stays.
    pub fn add(
        &mut self,
        from: Option<SessionId>,
        open: impl FnOnce(&mut Runtime, &mut Sessions) -> Result<SessionId, SessionError>,
    ) -> Result<SessionId, SessionError> {
        let sessions = self.sessions.as_ref().ok_or(SessionError::NoSessions)?;
        let (bytes, rows) = sessions.turn_needs(&self.runtime, None, 0)?;
        self.make_free_but(bytes, rows, false, None, from);
        let id = self.aside(open)?;
        self.touch(id);
        Ok(id)
    }

    /// Removes a session and its file, open or not.
    pub fn delete(&mut self, name: &str) -> Result<(), SessionError> {
        let sessions = self.sessions.as_mut().ok_or(SessionError::NoSessions)?;
        if let Some(id) = sessions.opened(name) {
            sessions.close(&mut self.runtime, id)?;
            self.used.retain(|&used| used != id);
        }
        match sessions.exists(name) {
            true => sessions.delete(name),
            false => {
                let name = name.to_owned();
                Err(SessionError::NoSuchSession { name })
            }
        }
    }

    /// Puts away every session that does nothing, and lets go of what was kept for requests to come.
    pub fn suspend_all(&mut self) {
        while self.drop_past() {}
        while self.suspend_one(&self.idle(None)) {}
    }

    /// Does something with the sessions that takes nothing of what was promised to others.
    pub fn aside<T>(
        &mut self,
        go: impl FnOnce(&mut Runtime, &mut Sessions) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        self.make_way()?;
        let (count, counting, longest) = self.company();
        let scratch = self
            .runtime
            .scratch_counting(count, counting, count * BLOCK_SLOTS, longest);
        // What greater steps left behind was not promised to anybody.
        if self.runtime.ledger().scratch > scratch {
            self.runtime.release_scratch();
        }
        let scratch = scratch.saturating_sub(self.runtime.ledger().scratch);
        let outstanding = self.outstanding().saturating_add(scratch);
        let Some(sessions) = &mut self.sessions else {
            return Err(SessionError::NoSessions);
        };
        let kept = self.runtime.set_aside(outstanding)?;
        let done = go(&mut self.runtime, sessions);
        self.runtime.give_back(kept);
        done
    }

    /// A session gets room before what was kept for requests to come.
    fn make_way(&mut self) -> Result<(), SessionError> {
        let Some(sessions) = self.sessions.as_ref().filter(|_| !self.past.is_empty()) else {
            return Ok(());
        };
        let (bytes, rows) = sessions.turn_needs(&self.runtime, None, 0)?;
        while self.free(rows, false).is_some_and(|free| free < bytes) && self.drop_past() {}
        Ok(())
    }

    /// A session was just used.
    fn touch(&mut self, id: SessionId) {
        self.used.retain(|&used| used != id);
        self.used.push(id);
    }

    /// Has the rows read again of those who are at the end of theirs.
    pub fn renew(&mut self) -> Result<(), StepError> {
        for job in &mut self.active {
            if job.is_full(&self.runtime)? {
                job.begin_again(&mut self.runtime)?;
            }
        }
        Ok(())
    }

    /// One pass over the weights. Portions become smaller where a policy wants to be asked between.
    pub fn compute(&mut self, takes: &mut [usize]) -> Result<(), StepError> {
        let House {
            active, runtime, ..
        } = self;
        let mut spans = Vec::with_capacity(takes.len());
        for (job, take) in active.iter().zip(takes) {
            if *take == 0 {
                continue;
            }
            let sequence = job.sequence();
            let position = runtime.position(sequence)?;
            *take = runtime.portion_of(sequence, position, *take);
            *take = job.up_to_part(position, *take);
            let want = match job.samples_after(*take) {
                true => Want::Last,
                false => Want::Nothing,
            };
            spans.push(Span {
                sequence,
                position,
                tokens: &job.pending()[..*take],
                want,
            });
        }
        match spans.is_empty() {
            true => Ok(()),
            false => runtime.step(&spans).map(|_| ()),
        }
    }

    /// The youngest request that takes part goes back to where it began, so that the others can go on. It says the same
    /// in the end. `false`: there are no others.
    pub fn step_back(&mut self, takes: &mut [usize]) -> Result<bool, StepError> {
        let taking: Vec<usize> = (0..takes.len()).filter(|&i| takes[i] > 0).collect();
        if taking.len() < 2 {
            return Ok(false);
        }
        for i in taking.into_iter().rev() {
            let job = &mut self.active[i];
            if job.begin_again(&mut self.runtime)? {
                log::warn!("a promise was too small: {:?} begins anew", job.ticket);
                takes[i] = 0;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Something is wrong that no room would mend: whoever took part is told.
    pub fn fail(&mut self, error: &StepError, tell: Deliver<'_>) -> Result<(), StepError> {
        for job in std::mem::take(&mut self.active) {
            let ticket = job.ticket;
            self.give_up(job)?;
            let _ = tell(ticket, RequestEvent::Failed(error.clone().into()));
        }
        Ok(())
    }

    /// Frees what a job has; a conversation is as it was before the question.
    fn give_up(&mut self, job: Job) -> Result<(), StepError> {
        self.left += 1;
        match (job.work, &mut self.sessions) {
            (Work::Request { sequence, .. }, _) => self.runtime.close(sequence),
            (Work::Turn(saying), Some(sessions)) => {
                if let Err(error) = sessions.abandon(&mut self.runtime, *saying) {
                    log::error!("{error}");
                }
                Ok(())
            }
            (Work::Turn(_), None) => Ok(()),
        }
    }

    /// Hands everybody what the step gave.
    pub fn deliver(&mut self, takes: &[usize], tell: Deliver<'_>) -> Result<(), StepError> {
        let House {
            active,
            runtime,
            read,
            ..
        } = self;
        let model = runtime.model().clone();
        let tokenizer = model.tokenizer();
        let mut rows = runtime.logits().chunks_exact(model.config().vocab);
        let mut failed = Vec::new();
        for (i, (job, &take)) in active.iter_mut().zip(takes).enumerate() {
            if take == 0 {
                job.waited += 1;
                if planted(Bug::BatchLosesToken) {
                    job.read(1);
                }
                continue;
            }
            job.waited = 0;
            *read += take as u64;
            let samples = job.samples_after(take);
            job.read(take);
            let Job {
                ticket,
                sampler,
                work,
                ..
            } = job;
            let Some(completion) = work.completion() else {
                continue;
            };
            let mut flow = ControlFlow::Continue(());
            if let Some((done, total)) = completion.progress() {
                flow = tell(*ticket, RequestEvent::PromptRead { done, total });
            }
            if samples {
                let logits = rows.next().unwrap_or_default();
                match completion.sample(sampler, tokenizer, logits) {
                    Ok(sampled) => {
                        if flow.is_continue() {
                            flow = tell(*ticket, RequestEvent::Token { sampled, logits });
                        }
                    }
                    Err(error) => {
                        let _ = tell(*ticket, RequestEvent::Failed(error.into()));
                        failed.push(i);
                        continue;
                    }
                }
            }
            if flow.is_break() {
                completion.cancel();
            }
        }
        for i in failed.into_iter().rev() {
            let job = self.active.remove(i);
            self.give_up(job)?;
        }
        self.leave_over(tell)
    }

    /// Requests that are over leave.
    pub fn leave_over(&mut self, tell: Deliver<'_>) -> Result<(), StepError> {
        let is_over = |job: &mut Job| match &job.work {
            Work::Request { asked, .. } => asked.completion.is_over(),
            Work::Turn(_) => false,
        };
        let over: Vec<Job> = self.active.extract_if(.., is_over).collect();
        for job in over {
            let Work::Request { asked, sequence } = job.work else {
                continue;
            };
            let stats = self.runtime.stats(sequence)?;
            let held = RequestReport {
                seen: stats.position,
                rows: stats.rows,
                reused: asked.reused,
                changes: self.runtime.changes(sequence).to_vec(),
            };
            if asked.completion.finish() == Some(Finish::Cancelled) {
                self.runtime.close(sequence)?;
                self.past.forget(&mut self.runtime, job.ticket)?;
            } else if self.is_reusable(&asked) {
                let seen = usize::try_from(stats.position).unwrap_or(usize::MAX);
                let tokens = asked.completion.history();
                let kept = CachedPrefix {
                    of: reader(job.ticket, &asked),
                    tokens: tokens[..seen.min(tokens.len())].to_vec(),
                    sequence,
                    is_fork: false,
                };
                self.past.keep(&mut self.runtime, kept)?;
            } else {
                self.runtime.close(sequence)?;
            }
            self.left += 1;
            let _ = tell(
                job.ticket,
                RequestEvent::Completed(asked.completion.end(), held),
            );
        }
        Ok(())
    }

    /// Turns whose answer is over read what ends it; those that have read it are judged, and leave the batch.
    pub fn conclude(&mut self, tell: Deliver<'_>) {
        let House {
            runtime,
            sessions: Some(sessions),
            active,
            ending,
            left,
            ..
        } = self
        else {
            return;
        };
        let is_over = |job: &mut Job| match &mut job.work {
            Work::Request { .. } => false,
            Work::Turn(saying) => match saying.completion() {
                Some(completion) => completion.is_over(),
                None => saying.pending().is_empty(),
            },
        };
        let mut reading = Vec::new();
        for job in active.extract_if(.., is_over) {
            let Job { ticket, work, .. } = job;
            let Work::Turn(saying) = work else {
                continue;
            };
            let nobody = &mut |_: Event<'_>| ControlFlow::Continue(());
            // What was held back of the text is part of the whole, which is told at the end.
            let saying = match sessions.conclude(runtime, *saying, Took::default(), nobody) {
                Ok(saying) => saying,
                Err(error) => {
                    *left += 1;
                    let _ = tell(ticket, RequestEvent::Failed(error.into()));
                    continue;
                }
            };
            let (is_read, said) = (saying.pending().is_empty(), saying.said());
            let job = Job {
                ticket,
                work: Work::Turn(Box::new(saying)),
                ..job
            };
            if !is_read {
                reading.push(job);
                continue;
            }
            let judge = match said.zip(sessions.encoder()) {
                Some((said, encoder)) => Judge::of(said, encoder),
                None => Judge::Done(None),
            };
            ending.push(Ending { job, judge });
        }
        active.append(&mut reading);
    }

    /// Turns that have been judged become part of their conversations. With nobody else there, they are waited for.
    pub fn end_judged(&mut self, tell: Deliver<'_>) {
        let House {
            runtime,
            sessions: Some(sessions),
            active,
            ending,
            left,
            ..
        } = self
        else {
            return;
        };
        let waits = active.is_empty();
        let is_judged = |e: &mut Ending| waits || e.judge.is_done();
        for Ending { job, judge } in ending.extract_if(.., is_judged) {
            let Work::Turn(saying) = job.work else {
                continue;
            };
            let news = match sessions.end(runtime, *saying, judge.end()) {
                Ok(answer) => RequestEvent::TurnSaved(Box::new(answer)),
                Err(error) => RequestEvent::Failed(error.into()),
            };
            *left += 1;
            let _ = tell(job.ticket, news);
        }
    }
}

/// Bytes that may be promised to sequences in all, where there is a budget, so many of up to so many rows being active,
/// for some of which attention is counted.
pub(super) fn promisable(
    runtime: &Runtime,
    sequences: usize,
    counting: usize,
    rows: usize,
) -> Option<usize> {
    let tokens = sequences * BLOCK_SLOTS;
    let scratch = runtime.scratch_counting(sequences, counting, tokens, rows);
    runtime.room_bytes(scratch)
}

pub(super) fn reader(ticket: RequestId, asked: &Asked) -> PrefixKey {
    PrefixKey {
        ticket,
        owner: asked.owner,
        keep: asked.keep,
    }
}
