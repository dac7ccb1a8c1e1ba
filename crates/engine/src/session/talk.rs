//! A turn, from the question to the commit: what is seen is decided, memory is made, the answer is generated, the turn
//! is saved. Facts come and go here too.
//!
//! What a plan does to memory loses nothing, so it stays done when an answer fails; tokens are read behind a fork, which
//! takes the sequence's place again if they do not become a turn.

use super::file::holds;
use super::record::{CHANGE, Change, FACT, FactRecord, TURN, TurnRecord};
use super::relevance::Relevance;
use super::roll::Roll;
use super::turns::{Place, Plan, Room, Turn, hidden, last_from, plan};
use super::{
    Embed, Fact, Held, Record, STEP_TOKENS_MAX, Session, SessionError, SessionId, Sessions, feed,
};
use crate::encoder::{Embedding, EncoderError, Stored};
use crate::run::{
    Event, Finish, GenerateOptions, Generation, Runtime, SequenceId, StepError, generate_by,
};
use crate::sample::Sampler;
use crate::text::tokenizer::EncodeOptions;
use haversack_cache::Positions;
use haversack_cache::size::{Kept, fork_bytes, kv_bytes, reserve_bytes};
use haversack_kernels::attention::BLOCK_SLOTS;
use std::ops::{ControlFlow, Range};
use std::time::Duration;

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

/// A turn that is about to be read.
struct Ready {
    prompt: Vec<u32>,
    /// As it was before the first token of the prompt.
    backup: SequenceId,
    question: usize,
    question_start: u64,
    /// Turns that the prompt begins with, and where they will stand.
    reread: Vec<(u64, Range<u64>)>,
    context: Context,
}

/// Rows that are in memory beside the streams: hidden and not yet settled, blocks at the borders of what is
/// hidden, and the step.
pub(super) fn slack(runtime: &Runtime) -> usize {
    runtime.kv().recent.next_multiple_of(BLOCK_SLOTS) + 6 * BLOCK_SLOTS
}

impl Sessions {
    /// One turn: the question is read, the answer generated, both saved. On an error the conversation is as it was.
    #[allow(clippy::too_many_arguments)]
    pub fn say(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        now_ms: u64,
        sampler: &mut Sampler,
        options: &GenerateOptions,
        tell: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Answer, SessionError> {
        self.work(runtime, id, STEP_TOKENS_MAX)?;
        let ready = self.prepare(runtime, id, text)?;
        let most = self.options.answer_max;
        let options = GenerateOptions {
            tokens_max: Some(options.tokens_max.map_or(most, |asked| asked.min(most))),
            ..options.clone()
        };
        let beside = self.options.condense_beside;
        let session = self.session_mut(id)?;
        let sequence = session.sequence;
        let question = &ready.prompt[ready.prompt.len() - ready.question..];
        let mut shadow = session.lend(question);
        let decode = &mut |runtime: &mut Runtime, id, token| match &mut shadow {
            Some(shadow) => shadow.decode_beside(runtime, id, token, beside),
            None => runtime.decode(id, token).map(|_| ()),
        };
        let prompt = &ready.prompt;
        let generated = generate_by(runtime, sequence, prompt, sampler, &options, tell, decode);
        session.give_back(shadow);
        let ended = generated
            .map_err(SessionError::from)
            .and_then(|generation| {
                if !generation.tokens.is_empty() {
                    feed(runtime, sequence, &self.closing(runtime, &generation)?)?;
                }
                Ok(generation)
            });
        match ended {
            Ok(generation) if !generation.tokens.is_empty() => {
                self.finish(runtime, id, text, now_ms, ready, generation)
            }
            Ok(generation) => {
                let context = ready.context.clone();
                self.undo(runtime, id, ready)?;
                Ok(Answer {
                    text: String::new(),
                    tokens: Vec::new(),
                    finish: generation.finish,
                    generation,
                    turn: None,
                    context,
                })
            }
            Err(error) => {
                self.undo(runtime, id, ready)?;
                Err(error)
            }
        }
    }

    /// A turn whose answer is known: a conversation that was had elsewhere.
    pub fn tell(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        answer: &str,
        now_ms: u64,
    ) -> Result<u64, SessionError> {
        let plain = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        let tokens = runtime.model().tokenizer().encode(answer, plain)?;
        let most = self.options.answer_max;
        if tokens.is_empty() || tokens.len() > most {
            let tokens = tokens.len();
            return Err(SessionError::AnswerLength { tokens, most });
        }
        let ready = self.prepare(runtime, id, text)?;
        let generation = Generation {
            text: answer.to_owned(),
            tokens,
            finish: Finish::Stop,
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
        };
        let sequence = self.session(id)?.sequence;
        let mut all = ready.prompt.clone();
        all.extend_from_slice(&generation.tokens[..generation.tokens.len() - 1]);
        all.extend(self.closing(runtime, &generation)?);
        if let Err(error) = feed(runtime, sequence, &all) {
            self.undo(runtime, id, ready)?;
            return Err(error);
        }
        let answer = self.finish(runtime, id, text, now_ms, ready, generation)?;
        Ok(answer.turn.unwrap_or_default())
    }

    /// Lets somebody look at the sequence as it would answer a question, right behind it. Nothing is said.
    pub fn peek<T>(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        look: &mut dyn FnMut(&mut Runtime, SequenceId) -> Result<T, StepError>,
    ) -> Result<(T, Context), SessionError> {
        let ready = self.prepare(runtime, id, text)?;
        let context = ready.context.clone();
        let sequence = self.session(id)?.sequence;
        let found = feed(runtime, sequence, &ready.prompt)
            .and_then(|()| look(runtime, sequence).map_err(SessionError::from));
        self.undo(runtime, id, ready)?;
        Ok((found?, context))
    }

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

    /// The next answer sees this turn, wherever it is.
    pub fn recall(&mut self, id: SessionId, number: u64) -> Result<(), SessionError> {
        let session = self.session_mut(id)?;
        if !session.turns.iter().any(|h| h.turn.number == number) {
            return Err(SessionError::NoSuchTurn { number });
        }
        session.wanted.push(number);
        Ok(())
    }

    /// Decides what the answer sees, and makes it so.
    fn prepare(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
    ) -> Result<Ready, SessionError> {
        let index = self.find(id)?;
        self.hold_for(runtime, index)?;
        let layout = &self.layout;
        let (question, embedding) = beside(self.encoder.as_deref(), text, || layout.question(text));
        let (question, embedding) = (question?, embedding?);
        let ending = layout.ending()?.len() as u64 + 1;
        let options = &self.options;
        let Some(session) = &mut self.slots[index].session else {
            return Err(SessionError::Closed { index });
        };
        let coming = question.len() as u64 + options.answer_max as u64 + ending;
        if session.unsaved.is_some() {
            // A disk that works again in time loses nothing: what leaves memory now has to be in the file.
            session.save(runtime, options);
        }
        let mut similarities = session.similarities(embedding.as_ref())?;
        for (held, similarity) in session.turns.iter().zip(&mut similarities) {
            if session.wanted.contains(&held.turn.number) {
                *similarity = Some(f32::MAX);
            }
        }
        let relevance = match embedding {
            Some(_) => options.relevance,
            None => Relevance::All,
        };
        let room = Room {
            capacity: options.capacity as u64,
            coming,
            last: options.last,
            reread: options.reread_max as u64,
        };
        let found = plan(&session.turns, &similarities, &relevance, &room)?;
        log::debug!("session {}: {found}", session.name);
        let mut reread = session.carry_out(runtime, &found)?;
        session.make_room(runtime, coming, options.last)?;
        session.give_way(runtime, coming);
        session.wanted.clear();

        let position = runtime.position(session.sequence)?;
        // A turn that comes back counts as standing where it would if nothing had been said between: small models
        // do not look far (`docs/conversations.md`).
        runtime.set_positions(session.sequence, Positions::Compact)?;

        let mut prompt = Vec::new();
        let mut read_again = Vec::new();
        reread.sort_unstable();
        for number in reread {
            let Some(i) = session.turns.iter().position(|h| h.turn.number == number) else {
                continue;
            };
            let Ok(TurnRecord { tokens, .. }) = session.turn_record(&session.turns[i]) else {
                session.forget(i);
                continue;
            };
            let start = position + prompt.len() as u64;
            read_again.push((number, start..start + tokens.len() as u64));
            prompt.extend(tokens);
        }
        let mut context = session.context(&found, self.encoder.is_none());
        context.recomputed = prompt.len() as u64;
        context.kept += (prompt.len() + question.len()) as u64;
        let question_start = position + prompt.len() as u64;
        prompt.extend_from_slice(&question);
        Ok(Ready {
            prompt,
            backup: runtime.fork(session.sequence)?,
            question: question.len(),
            question_start,
            reread: read_again,
            context,
        })
    }

    /// What is read behind an answer so that it ends as the template ends it: the last token sampled, which the
    /// sequence does not have yet, and what follows.
    fn closing(
        &self,
        runtime: &Runtime,
        generation: &Generation,
    ) -> Result<Vec<u32>, SessionError> {
        let ending = self.layout.ending()?;
        let Some(&last) = generation.tokens.last() else {
            return Ok(ending.to_vec());
        };
        // An answer that ended by itself has the first token of its ending already.
        let is_end = runtime.model().tokenizer().is_end(last) && ending.first() == Some(&last);
        let own = (!is_end).then_some(last);
        Ok(own.into_iter().chain(ending.iter().copied()).collect())
    }

    fn undo(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        ready: Ready,
    ) -> Result<(), SessionError> {
        let session = self.session_mut(id)?;
        session.unmirror();
        let failed = std::mem::replace(&mut session.sequence, ready.backup);
        runtime.close(failed)?;
        Ok(())
    }

    fn finish(
        &mut self,
        runtime: &mut Runtime,
        id: SessionId,
        text: &str,
        now_ms: u64,
        ready: Ready,
        generation: Generation,
    ) -> Result<Answer, SessionError> {
        runtime.close(ready.backup)?;
        let ending = self.closing(runtime, &generation)?;
        let index = self.find(id)?;
        let encoder = self.encoder.as_deref();
        let options = &self.options;
        let Some(session) = &mut self.slots[index].session else {
            return Err(SessionError::Closed { index });
        };
        for (number, span) in ready.reread {
            if let Some(held) = session.turns.iter_mut().find(|h| h.turn.number == number) {
                held.turn.place = Place::Live;
                held.turn.is_visible = true;
                held.turn.span = span.clone();
                session.change(Change::Moved {
                    turn: number,
                    place: Place::Live,
                    start: span.start,
                });
            }
        }
        // An embedding that cannot be had makes a turn unjudged, not unsaid.
        let said = format!("{text}\n{}", generation.text);
        let embedding = encoder.and_then(|encoder| encoder.embed(&said).ok());
        let end = runtime.position(session.sequence)?;
        let mut tokens = ready.prompt[ready.prompt.len() - ready.question..].to_vec();
        tokens.extend_from_slice(&generation.tokens);
        // What was read beyond the answer is the end marker and what belongs to it.
        let whole = (end - ready.question_start) as usize;
        tokens.truncate(whole.saturating_sub(ending.len()));
        tokens.extend(ending);
        debug_assert_eq!(tokens.len(), whole);
        let number = session.turns_made;
        session.turns_made += 1;
        let time_ms = session.at(now_ms);
        let record = TurnRecord {
            number,
            start: ready.question_start,
            time_ms,
            question: ready.question as u32,
            is_pinned: false,
            embedding: embedding.map_or(Vec::new(), |e| e.store().to_bytes().to_vec()),
            tokens,
        };
        session.add(&record);
        session.mirrored(number, &record.tokens);
        session.save(runtime, options);
        let mut context = ready.context;
        context.unsaved = session.unsaved.clone();
        Ok(Answer {
            text: generation.text.clone(),
            tokens: generation.tokens.clone(),
            finish: generation.finish,
            turn: Some(number),
            generation,
            context,
        })
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
    fn similarities(&self, question: Option<&Embedding>) -> Result<Vec<Option<f32>>, SessionError> {
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
    fn carry_out(&mut self, runtime: &mut Runtime, plan: &Plan) -> Result<Vec<u64>, SessionError> {
        for &number in &plan.spill {
            self.spill(number);
        }
        for held in self.turns.iter_mut() {
            let number = held.turn.number;
            if plan.hide.contains(&number) {
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
                Err(SessionError::Step(error)) if error.is_cannot_fit() => {
                    log::info!("session {}: no room for turn {number}", self.name);
                }
                Err(error) => return Err(error),
            }
        }
        self.mask(runtime)?;
        Ok(reread)
    }

    /// A turn's rows may leave memory, as far as the file has what is needed to bring it back.
    pub(super) fn spill(&mut self, number: u64) {
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
        self.forgotten += self.take_out(i).tokens();
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
            facts().chain(turns).collect::<Vec<_>>()
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
    fn make_room(
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
        victim.inspect(|&number| self.spill(number)).is_some()
    }

    fn context(&self, plan: &Plan, unjudged: bool) -> Context {
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

/// Runs `other` while the encoder is at work on the text, on a thread of its own.
fn beside<T>(
    encoder: Option<&dyn Embed>,
    text: &str,
    other: impl FnOnce() -> T,
) -> (T, Result<Option<Embedding>, EncoderError>) {
    let Some(encoder) = encoder else {
        return (other(), Ok(None));
    };
    std::thread::scope(|scope| {
        let embedding = scope.spawn(|| encoder.embed(text));
        let value = other();
        // A thread that died judged nothing.
        let embedding = embedding.join().map_or(Ok(None), |e| e.map(Some));
        (value, embedding)
    })
}

/// Turns in memory that may leave it, oldest first: neither pinned nor among the last.
pub(super) fn loose(turns: &Roll<Held>, last: usize) -> impl Iterator<Item = &Turn> {
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
    let store = runtime.store();
    let (layers, zones) = (store.layers(), store.zones());
    let position = id.map_or(Ok(0), |id| runtime.position(id))?;
    let bytes = |position| kv_bytes(layers, zones, Kept::All, position);
    let growth = bytes(position + coming).saturating_sub(bytes(position));
    let step = reserve_bytes(layers, zones, position, BLOCK_SLOTS);
    // The conversation as it was is kept until the turn is over.
    let fork = fork_bytes(layers, zones, position, coming as usize);
    let scratch = runtime.scratch_to_come(id, coming as usize)? as u64;
    let lists = growth / 16;
    let wanted = [growth, step, fork, scratch, lists];
    let wanted = wanted.into_iter().fold(0, u64::saturating_add);
    Ok((ledger.total() as u64).saturating_add(wanted) <= budget as u64)
}
