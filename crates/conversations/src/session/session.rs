//! What a session tells and keeps beside its turns: facts come and go, turns leave memory and come back, room is made.

use super::log::holds;
use super::paged_vec::PagedVec;
use super::record::{CHANGE, Change, FACT, FactRecord, TURN, TurnRecord};
use super::report::Why;
use super::turns::{Place, Plan, Turn, hidden, last_from};
use super::{Fact, Held, Record, Session, SessionError, SessionId, Sessions, TurnInProgress, feed};
use haversack_cache::size::{Kept, fork_bytes, kv_bytes, reserve_bytes};
use haversack_engine::encoder::{Embedding, Stored};
use haversack_engine::runtime::{Finish, Generation, Runtime, SequenceId, StepError};
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_memory::zoo::{Bug, planted};

const SLOTS: u64 = BLOCK_SLOTS as u64;

/// What happened to the context of an answer. Tokens, unless it says turns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Seen by the answer, the persistent stream included.
    pub kept: u64,
    /// In memory and not seen.
    pub masked: u64,
    /// Not in memory; rows or ids are in the file.
    pub spilled: u64,
    /// Turns that came back for this answer.
    pub recalled: Vec<u64>,
    /// Forgotten since the conversation began.
    pub evicted: u64,
    /// Seen and not computed again.
    pub cached: u64,
    /// Read again, because only ids were left.
    pub recomputed: u64,
    /// What was decided before the answer, in words.
    pub plan: String,
    /// Everything in memory is visible: there is no encoder to judge it.
    pub unjudged: bool,
    /// Why the turn is not on disk; `None` where it is, or nothing is saved here.
    pub unsaved: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub text: String,
    pub tokens: Vec<u32>,
    pub finish: Finish,
    pub generation: Generation,
    /// `None` where the answer was cancelled before it began: the question is not part of the conversation then.
    pub turn: Option<u64>,
    pub context: Context,
}

/// Rows that are in memory beside the streams: hidden and not yet settled, blocks at the borders of what is
/// hidden, and the step.
pub(super) fn slack(runtime: &Runtime) -> usize {
    runtime.kv().recent.next_multiple_of(BLOCK_SLOTS) + 6 * BLOCK_SLOTS
}

impl Sessions {
    /// Adds to the persistent stream; returns the fact's number.
    pub fn add_fact(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        now_ms: u64,
    ) -> Result<u64, SessionError> {
        self.tell_fact(runtime, id, text, now_ms, None)
    }

    /// A fact takes the place of another, which is not seen from then on. What was said while it held may still reflect
    /// it.
    pub fn supersede(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        fact: u64,
        text: &str,
        now_ms: u64,
    ) -> Result<u64, SessionError> {
        self.tell_fact(runtime, id, text, now_ms, Some(fact))
    }

    /// A fact is not seen any more. The opening cannot be revoked.
    pub fn revoke(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        fact: u64,
    ) -> Result<(), SessionError> {
        let index = self.find(id)?;
        let options = &self.options;
        let Some(session) = &mut self.slots[index].session else {
            return Err(SessionError::Closed { index });
        };
        session.check_fact(fact)?;
        session.drop_fact(fact);
        session.mask(runtime)?;
        session.save(runtime, options);
        Ok(())
    }

    fn tell_fact(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        now_ms: u64,
        supersedes: Option<u64>,
    ) -> Result<u64, SessionError> {
        let tokens = self.layout.fact(text)?;
        let session = self.session(id)?;
        let old = match supersedes {
            Some(fact) => session.check_fact(fact)?,
            None => 0,
        };
        self.check_persistent(session.persistent() - old + tokens.len())?;
        let options = self.options.clone();
        let session = self.session_mut(id)?;
        let start = session.append(runtime, &tokens, options.last)?;
        let time_ms = session.at(now_ms);
        session.gave_up = false;
        let number = session.note_fact(&tokens, start, time_ms, text, supersedes);
        if let Some(fact) = supersedes {
            session.drop_fact(fact);
        }
        session.mask(runtime)?;
        session.save(runtime, &options);
        Ok(number)
    }

    /// Takes the last turn back, as if it had not been said. What is asked next is answered without it.
    pub fn retract(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
    ) -> Result<Option<u64>, SessionError> {
        let options = self.options.clone();
        let session = self.session_mut(id)?;
        let Some(i) = session.turns.iter().rposition(|h| !h.turn.is_state) else {
            return Ok(None);
        };
        let turn = session.take_out(i).number;
        session.mask(runtime)?;
        session.save(runtime, &options);
        Ok(Some(turn))
    }

    /// A turn stays visible until it is let go again.
    pub fn pin(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        number: u64,
        is_pinned: bool,
    ) -> Result<(), SessionError> {
        let options = self.options.clone();
        let session = self.session_mut(id)?;
        let held = session.turns.iter_mut().find(|h| h.turn.number == number);
        let held = held.ok_or(SessionError::NoSuchTurn { number })?;
        held.turn.is_pinned = is_pinned && held.turn.place == Place::Live;
        held.turn.is_visible |= held.turn.is_pinned;
        let is_pinned = held.turn.is_pinned;
        session.change(Change::Pinned {
            turn: number,
            is_pinned,
        });
        session.mask(runtime)?;
        session.save(runtime, &options);
        Ok(())
    }

    /// Bytes and rows of the sequence at most until a turn is over that reads so many tokens: what it has come to hold,
    /// and what a conversation may. They do not depend on who else is there.
    pub(crate) fn turn_needs(
        &self,
        runtime: &Runtime,
        id: Option<SessionId>,
        coming: u64,
    ) -> Result<(usize, usize), SessionError> {
        let options = &self.options;
        let persistent = options.persistent_max + options.persistent_max / 2;
        let most = persistent + options.capacity + slack(runtime);
        let Some(id) = id else {
            return Ok((runtime.sequence_bytes(most), most));
        };
        let sequence = self.session(id)?.sequence;
        let behind = runtime.position(sequence)?.saturating_add(coming);
        let rows = usize::try_from(behind).unwrap_or(usize::MAX).min(most);
        let bytes = promised_bytes(runtime, sequence, coming)?;
        Ok((bytes.max(runtime.sequence_bytes(rows)), rows))
    }

    /// Whether the budget has what a turn that reads so many tokens adds, behind all lists as they are now.
    pub(crate) fn turn_fits(
        &self,
        runtime: &mut Runtime,
        id: SessionId,
        coming: u64,
    ) -> Result<bool, SessionError> {
        self.hold(runtime)?;
        Ok(fits(runtime, Some(self.session(id)?.sequence), coming)?)
    }

    /// Bytes of the sequence at most until this turn is over, and whether the budget has them.
    pub(crate) fn promise(
        &self,
        runtime: &Runtime,
        saying: &TurnInProgress,
    ) -> Result<(usize, bool), SessionError> {
        let ending = self.layout.ending()?.len() + 1;
        let coming = (saying.pending().len() + self.options.answer_max + ending) as u64;
        let bytes = promised_bytes(runtime, saying.sequence(), coming)?;
        Ok((bytes, fits(runtime, Some(saying.sequence()), coming)?))
    }

    /// Tokens that a turn reads at most: its question, its answer, and turns that are read again for it.
    pub(crate) fn turn_tokens(&self, text: &str) -> Result<u64, SessionError> {
        let options = &self.options;
        let question = self.layout.question(text)?.len();
        let ending = self.layout.ending()?.len() + 1;
        Ok((question + options.answer_max + ending + options.reread_max) as u64)
    }

    /// The next answer sees this turn, wherever it is.
    pub fn recall(&mut self, id: SessionId, number: u64) -> Result<(), SessionError> {
        let session = self.session_mut(id)?;
        if !session.turns.iter().any(|h| h.turn.number == number) {
            return Err(SessionError::NoSuchTurn { number });
        }
        session.owed.wanted.push(number);
        Ok(())
    }
}

impl Session {
    /// Reads tokens that nobody answers; returns where they begin. On an error all is as it was.
    pub(super) fn append(
        &mut self,
        runtime: &mut Runtime,
        tokens: &[u32],
        last: usize,
    ) -> Result<u64, SessionError> {
        self.make_room(runtime, tokens.len() as u64, last)?;
        let start = runtime.position(self.sequence)?;
        let backup = runtime.fork(self.sequence)?;
        if let Err(error) = feed(runtime, self.sequence, tokens) {
            runtime.close(std::mem::replace(&mut self.sequence, backup))?;
            return Err(error);
        }
        runtime.close(backup)?;
        Ok(start)
    }

    /// A time that never goes back, whatever the clock does.
    pub(super) fn at(&mut self, now_ms: u64) -> u64 {
        self.last_time_ms = self.last_time_ms.max(now_ms);
        self.last_time_ms
    }

    pub(super) fn change(&mut self, change: Change) {
        self.pending.push((CHANGE, change.to_bytes()));
    }

    /// (turn): how similar it is to the question.
    pub(super) fn similarities(
        &self,
        question: Option<&Embedding>,
    ) -> Result<Vec<Option<f32>>, SessionError> {
        let Some(question) = question.map(Embedding::store) else {
            return Ok(vec![None; self.turns.len()]);
        };
        let map = match &self.journal {
            Some(journal) if !self.turns.is_empty() => {
                Some(journal.map().map_err(|e| self.file_error(e))?)
            }
            _ => None,
        };
        let similarity = |held: &Held| {
            let bytes = match &held.record {
                Record::Told(bytes) => bytes,
                Record::Saved(record) => map.as_ref()?.payload(*record).ok()?,
            };
            let stored = Stored::from_bytes(TurnRecord::embedding(bytes)?).ok()?;
            Some(stored.similarity(&question))
        };
        Ok(self.turns.iter().map(similarity).collect())
    }

    /// Does what the plan says. Returns the turns that have to be read again. Room is made before it is taken, and a turn
    /// for which there is none stays where it is.
    pub(super) fn carry_out(
        &mut self,
        runtime: &mut Runtime,
        plan: &Plan,
    ) -> Result<Vec<u64>, SessionError> {
        for &number in &plan.spill {
            self.spill(number, Why::Stream);
        }
        for held in self.turns.iter_mut() {
            let number = held.turn.number;
            if plan.hide.contains(&number) {
                self.tally.hidden += held.turn.tokens();
                held.turn.is_visible = false;
            } else if plan.show.contains(&number) {
                held.turn.is_visible = true;
            }
        }
        self.mask(runtime)?;
        let mut reread = Vec::new();
        for &number in &plan.recall {
            let Some(i) = self.turns.iter().position(|h| h.turn.number == number) else {
                continue;
            };
            if self.turns[i].turn.place == Place::Ids {
                reread.push(number);
                continue;
            }
            match self.mount(runtime, i) {
                Ok(true) => {}
                // Its rows cannot be had: it is as if only its tokens were left.
                Ok(false) => reread.push(number),
                Err(error) if error.is_cannot_fit() => {
                    log::info!("session {}: no room for turn {number}", self.name);
                }
                Err(error) => return Err(error),
            }
        }
        self.mask(runtime)?;
        Ok(reread)
    }

    /// A turn's rows may leave memory, as far as the file has what is needed to bring it back.
    pub(super) fn spill(&mut self, number: u64, why: Why) {
        let Some(i) = self.turns.iter().position(|h| h.turn.number == number) else {
            return;
        };
        let Some(place) = self.leaves_to(i) else {
            self.forget(i);
            return;
        };
        let turn = &mut self.turns[i].turn;
        turn.place = place;
        turn.is_visible = false;
        let span = turn.span.clone();
        self.note_leaving(span.end - span.start, why);
        self.change(Change::Moved {
            turn: number,
            place,
            start: span.start,
        });
        if place == Place::Ids {
            self.release_columns(span);
        }
    }

    /// A turn is nowhere any more.
    pub(super) fn forget(&mut self, i: usize) {
        let tokens = self.take_out(i).tokens();
        self.forgotten += tokens;
        self.tally.forgotten += tokens;
    }

    /// A turn is none any more, with its record and its rows.
    pub(super) fn take_out(&mut self, i: usize) -> Turn {
        let held = self.turns.remove(i);
        let turn = held.turn.number;
        self.change(Change::Forgotten { turn });
        self.release(&held);
        held.turn
    }

    /// A turn that was just read.
    pub(super) fn add(&mut self, record: &TurnRecord) {
        self.turns.push(Held {
            turn: Turn {
                is_visible: true,
                ..record.turn()
            },
            record: Record::Told(record.to_bytes().into()),
        });
        self.pending.push((TURN, record.to_bytes()));
    }

    /// Puts a spilled turn's blocks back. `false` where the file does not have them all.
    fn mount(&mut self, runtime: &mut Runtime, i: usize) -> Result<bool, SessionError> {
        let span = self.turns[i].turn.span.clone();
        let number = self.turns[i].turn.number;
        let there = runtime
            .store()
            .blocks(self.sequence)
            .map_err(StepError::from)?;
        let mut columns = Vec::new();
        for block in span.start / SLOTS..span.end.div_ceil(SLOTS) {
            if there.binary_search(&block).is_ok() {
                continue;
            }
            let (Some(record), Some(journal)) = (self.columns.get(&block), &self.journal) else {
                return Ok(false);
            };
            let mut bytes = Vec::new();
            match journal.read(*record, &mut bytes) {
                Ok(()) => columns.push(bytes),
                Err(error) => {
                    log::warn!("session {}: block {block}: {error}", self.name);
                    return Ok(false);
                }
            }
        }
        let columns: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
        runtime.mount(self.sequence, &columns)?;
        let turn = &mut self.turns[i].turn;
        turn.place = Place::Live;
        turn.is_visible = true;
        self.tally.mounted += span.end - span.start;
        self.change(Change::Moved {
            turn: number,
            place: Place::Live,
            start: span.start,
        });
        Ok(true)
    }

    /// Hides all that is not visible, and drops the blocks of what is not in memory by right.
    pub(super) fn mask(&mut self, runtime: &mut Runtime) -> Result<(), SessionError> {
        let position = runtime.position(self.sequence)?;
        let facts = || self.facts.iter().map(|f| f.span.clone());
        let spans = |all: bool| {
            let live = |h: &&Held| h.turn.place == Place::Live && (all || h.turn.is_visible);
            let turns = self.turns.iter().filter(live).map(|h| h.turn.span.clone());
            let mut spans = facts().chain(turns).collect::<Vec<_>>();
            let spilled = || self.turns.iter().any(|h| h.turn.place != Place::Live);
            if planted(Bug::HalfTurn)
                && let Some(oldest) = spans.get_mut(self.facts.len()).filter(|_| spilled())
            {
                oldest.start = oldest.start.midpoint(oldest.end);
            }
            spans
        };
        runtime.hide(self.sequence, &hidden(spans(false), position))?;
        let gone = hidden(spans(true), position);
        for block in runtime
            .store()
            .blocks(self.sequence)
            .map_err(StepError::from)?
        {
            let rows = block * SLOTS..(block + 1) * SLOTS;
            let is_gone = gone
                .iter()
                .any(|g| g.start <= rows.start && rows.end <= g.end);
            if is_gone && self.may_drop(block) {
                runtime.drop_hidden(self.sequence, rows)?;
            }
        }
        Ok(())
    }

    /// Whether nobody needs the block, or the file has it.
    fn may_drop(&self, block: u64) -> bool {
        let spilled = |h: &Held| h.turn.place == Place::Spilled && holds(block, &h.turn.span);
        self.columns.contains_key(&block) || !self.turns.iter().any(spilled)
    }

    /// Lets turns leave until so many more tokens fit the budget: hidden ones first, then the oldest.
    pub(super) fn make_room(
        &mut self,
        runtime: &mut Runtime,
        coming: u64,
        last: usize,
    ) -> Result<(), SessionError> {
        while !fits(runtime, Some(self.sequence), coming)? {
            if !self.spill_one(last) {
                // Nothing more may leave: the step says by how much it is short.
                return Ok(());
            }
            self.mask(runtime)?;
        }
        Ok(())
    }

    /// One turn leaves, if any may.
    pub(super) fn spill_one(&mut self, last: usize) -> bool {
        let hidden = loose(&self.turns, last).find(|turn| !turn.is_visible);
        let victim = hidden.or_else(|| loose(&self.turns, last).next());
        let victim = victim.map(|turn| turn.number);
        victim
            .inspect(|&number| self.spill(number, Why::Budget))
            .is_some()
    }

    pub(super) fn context(&self, plan: &Plan, unjudged: bool) -> Context {
        // One for which there was no room is where it was.
        let is_spilled = |number: &u64| {
            let mut turns = self.turns.iter().map(|h| &h.turn);
            turns.any(|t| t.number == *number && t.place == Place::Spilled)
        };
        let mut recalled = plan.recall.clone();
        recalled.retain(|number| !is_spilled(number));
        let mut context = Context {
            kept: self.persistent() as u64,
            evicted: self.forgotten,
            recalled,
            plan: plan.to_string(),
            unjudged,
            ..Context::default()
        };
        for Held { turn, .. } in self.turns.iter() {
            let level = match (turn.place, turn.is_visible) {
                (Place::Live, true) => &mut context.kept,
                (Place::Live, false) => &mut context.masked,
                _ => &mut context.spilled,
            };
            *level += turn.tokens();
        }
        context.cached = context.kept;
        context
    }

    /// A fact at the end of what was read.
    pub(super) fn note_fact(
        &mut self,
        tokens: &[u32],
        start: u64,
        time_ms: u64,
        text: &str,
        supersedes: Option<u64>,
    ) -> u64 {
        let number = self.facts_made;
        self.facts_made += 1;
        let record = FactRecord {
            number,
            start,
            time_ms,
            supersedes,
            tokens: tokens.to_vec(),
            text: text.to_owned(),
        };
        self.pending.push((FACT, record.to_bytes()));
        self.facts.push(Fact {
            number,
            span: record.span(),
            text: record.text,
            verbatim: 0,
            record: None,
        });
        number
    }

    /// Tokens of a fact that holds and may be revoked.
    pub(super) fn check_fact(&self, number: u64) -> Result<usize, SessionError> {
        let fact = self.facts.iter().find(|f| f.number == number && number > 0);
        let fact = fact.ok_or(SessionError::NoSuchFact { number })?;
        Ok((fact.span.end - fact.span.start) as usize)
    }

    fn drop_fact(&mut self, number: u64) {
        if let Some(i) = self.facts.iter().position(|f| f.number == number) {
            let fact = self.facts.remove(i);
            self.release_record(fact.record);
            self.change(Change::Revoked { fact: number });
        }
    }
}

/// Turns in memory that may leave it, oldest first: neither pinned nor among the last.
pub(super) fn loose(turns: &PagedVec<Held>, last: usize) -> impl Iterator<Item = &Turn> {
    let newest = last_from(turns.iter().map(|h| &h.turn), last);
    let turns = turns.iter().take(newest).map(|h| &h.turn);
    turns.filter(|turn| turn.place == Place::Live && !turn.is_pinned)
}

/// Whether so many more tokens of a sequence, or of one that is opened for them, fit the budget, whatever they are.
pub(super) fn fits(
    runtime: &Runtime,
    id: Option<SequenceId>,
    coming: u64,
) -> Result<bool, StepError> {
    let ledger = runtime.ledger();
    let Some(budget) = ledger.budget else {
        return Ok(true);
    };
    let scratch = runtime.scratch_to_come(id, coming as usize)? as u64;
    let wanted = growth_bytes(runtime, id, coming)?.saturating_add(scratch);
    Ok((ledger.total() as u64).saturating_add(wanted) <= budget as u64)
}

/// What a sequence holds, and what so many more tokens make it hold.
fn promised_bytes(
    runtime: &Runtime,
    sequence: SequenceId,
    coming: u64,
) -> Result<usize, StepError> {
    let held = runtime.stats(sequence)?.bytes;
    let growth = growth_bytes(runtime, Some(sequence), coming)?;
    Ok(held.saturating_add(usize::try_from(growth).unwrap_or(usize::MAX)))
}

/// What so many more tokens of a sequence, or of one that is opened for them, make it hold, the step that reads them
/// included.
fn growth_bytes(runtime: &Runtime, id: Option<SequenceId>, coming: u64) -> Result<u64, StepError> {
    let store = runtime.store();
    let (layers, zones) = (store.layers(), store.zones());
    let position = id.map_or(Ok(0), |id| runtime.position(id))?;
    let bytes = |position| kv_bytes(layers, zones, Kept::All, position);
    let growth = bytes(position + coming).saturating_sub(bytes(position));
    let step = reserve_bytes(layers, zones, position, BLOCK_SLOTS);
    // The conversation as it was is kept until the turn is over.
    let fork = fork_bytes(layers, zones, position, coming as usize);
    let lists = growth / 16;
    let wanted = [growth, step, fork, lists];
    Ok(wanted.into_iter().fold(0, u64::saturating_add))
}
