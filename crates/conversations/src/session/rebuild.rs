//! Condenses a persistent stream over its limit while answers go on: sentences are judged on a thread, the shorter stream
//! is read into a second sequence a few tokens at a time, and the sequences are swapped between two turns.
//!
//! ```text
//! sequence   opening ┬ fact 1 ┬ turn 0 ┬ turn 1 ┬ fact 2 ┬ turn 2 …          answers use this one
//! rebuild    shorter opening ┬ fact 1 ┬ fact 2 ┬ turn 1 ┬ turn 2 …           read meanwhile, then swapped in
//! ```
//!
//! The rebuild has what is visible and nothing else. Rows of hidden and spilled turns belong to the old positions: after
//! the swap the file has their ids alone, and they are recomputed if they become relevant.
//!
//! What this is not: it does not choose sentences ([`super::condense`] does), and it starts nothing but the judging
//! thread: the scheduler gives it a share of each step, or the owner of the runtime calls [`super::Sessions::work`], and
//! [`super::Sessions::say`] reads a few tokens along with each token of an answer.
//!
//! Invariants: the swap happens between turns, in memory and in the file at once, or not at all; until then, and whatever
//! fails, the old sequence is as it was; the rebuild's bytes count in the budget, and an answer that needs them ends it.

use super::condense::{Condense, CondenseError, CondensePiece, CondenseRequest, Condensed};
use super::condensing::{
    CondenseOutcome, Rebuild, RebuildError, RebuildProgress, RebuildReading, RebuiltFact, close,
};
use super::error::{SessionError, SessionResult};
use super::layout::ChatLayout;
use super::limits::SessionLimits;
use super::open_session::{OpenSession, check_persistent};
use super::options::SessionOptions;
use super::record::{FactRecord, LogChange};
use super::residency::{Residency, fits};
use super::transcript::Fact;
use haversack_engine::model::Model;
use haversack_engine::runtime::{Runtime, SequenceId};
use haversack_memory::background;
use std::sync::Arc;

/// How many times its limit the first text of a session may be: a longer one is a document, not a persistent stream.
const TEXT_CAPS_MAX: usize = 8;

/// Tokens of a persistent stream at most, and those that condensing aims at.
#[derive(Clone, Copy)]
pub(super) struct CondenseAim {
    pub max: usize,
    pub aim: usize,
}

impl CondenseAim {
    pub fn of(options: &SessionOptions, limits: &SessionLimits) -> CondenseAim {
        let max = limits.persistent_max;
        // Three fifths, by which 512 tokens are made 300.
        let usual = max.saturating_mul(300) / 512;
        CondenseAim {
            max,
            aim: options.condensed_max.unwrap_or(usual).min(max),
        }
    }
}

/// Condenses the text of an opening to the limit, if it is longer.
pub(super) fn condense_opening(
    condenser: &dyn Condense,
    layout: &ChatLayout,
    now_ms: u64,
    piece: CondensePiece,
    aim: CondenseAim,
) -> SessionResult<(CondensePiece, Option<CondenseOutcome>)> {
    let tokens = layout.opening(&piece.text, now_ms)?.len();
    if tokens <= aim.max {
        return Ok((piece, None));
    }
    check_persistent(tokens, aim.max.saturating_mul(TEXT_CAPS_MAX))?;
    let pieces = [piece];
    let condensed = run(condenser, layout, now_ms, &pieces, aim)?;
    let summary = condensed.summary;
    log::info!("the persistent text has {tokens} tokens: {summary}");
    let text = condensed.pieces.into_iter().next().unwrap_or_default();
    // One sentence that is longer than the limit: nothing would be left.
    if text.trim().is_empty() {
        return Err(SessionError::PersistentFull {
            tokens,
            max: aim.max,
        });
    }
    let verbatim = pieces[0].verbatim_in(&text);
    let outcome = CondenseOutcome::Opening(summary);
    Ok((CondensePiece { text, verbatim }, Some(outcome)))
}

/// Condenses the opening, which is the first piece, and facts; to the whole limit if the verbatim text is longer than the
/// aim.
fn run(
    condenser: &dyn Condense,
    layout: &ChatLayout,
    now_ms: u64,
    pieces: &[CondensePiece],
    aim: CondenseAim,
) -> Result<Condensed, CondenseError> {
    let count = |i: usize, text: &str| {
        let tokens = match i {
            0 => layout.opening(text, now_ms),
            _ if text.is_empty() => return 0,
            _ => layout.fact(text),
        };
        tokens.map_or(usize::MAX, |tokens| tokens.len())
    };
    let request = |tokens_max| CondenseRequest {
        pieces,
        tokens_max,
        count: &count,
    };
    match condenser.condense(&request(aim.aim)) {
        Err(CondenseError::Verbatim { .. }) => condenser.condense(&request(aim.max)),
        condensed => condensed,
    }
}

impl OpenSession {
    /// One step of condensing: begins it where the stream is over its limit, reads at most `tokens_max` tokens, swaps.
    pub fn work(
        &mut self,
        runtime: &mut Runtime,
        condenser: Arc<dyn Condense>,
        tokens_max: usize,
    ) -> RebuildProgress {
        let (judged, thread) = match self.condensing.rebuild.take() {
            None => {
                if !self.is_too_long() {
                    return RebuildProgress::Idle;
                }
                let judging = self.judge(runtime.model(), condenser);
                self.condensing.rebuild = Some(judging);
                return RebuildProgress::Judging;
            }
            Some(Rebuild::Reading(reading)) => {
                return self.read_on(runtime, reading, tokens_max);
            }
            Some(Rebuild::Judging { judged, thread }) => (judged, thread),
        };
        if !thread.is_finished() {
            self.condensing.rebuild = Some(Rebuild::Judging { judged, thread });
            return RebuildProgress::Judging;
        }
        let condensed = thread.join().unwrap_or(Err(CondenseError::Died));
        let begun = condensed
            .map_err(RebuildError::from)
            .and_then(|condensed| self.begin_reading(runtime, judged, condensed));
        match begun {
            Ok(reading) => {
                let (done, total) = (0, reading.tokens.len());
                self.condensing.rebuild = Some(Rebuild::Reading(reading));
                RebuildProgress::Reading { done, total }
            }
            Err(why) => self.give_up(why),
        }
    }

    /// Whether the stream is over its limit, and it is not known that it cannot be condensed.
    pub fn is_too_long(&self) -> bool {
        !self.condensing.gave_up && self.transcript.persistent_tokens() > self.limits.persistent_max
    }

    pub fn stop_condensing(&mut self, runtime: &mut Runtime) {
        if self.condensing.stop(runtime) {
            self.give_up(RebuildError::Stopped);
        }
    }

    /// Marks a fact as verbatim, or not, and starts condensing anew: the judges did not know of it.
    pub fn mark_fact(
        &mut self,
        runtime: &mut Runtime,
        number: u64,
        is_verbatim: bool,
    ) -> SessionResult {
        self.transcript.check_fact(number)?;
        self.condensing.stop(runtime);
        self.condensing.gave_up = false;
        self.mark(number, if is_verbatim { usize::MAX } else { 0 });
        self.save(runtime);
        Ok(())
    }

    /// Ends a rebuild where an answer of `coming` tokens does not fit next to it.
    pub fn make_way(&mut self, runtime: &mut Runtime, coming: u64) {
        if matches!(self.condensing.rebuild, Some(Rebuild::Reading(_)))
            && !fits(runtime, Some(self.residency.sequence), coming).unwrap_or(false)
        {
            self.condensing.stop(runtime);
            self.give_up(RebuildError::Displaced);
        }
    }

    fn give_up(&mut self, why: RebuildError) -> RebuildProgress {
        self.condensing.give_up(self.log.name(), why)
    }

    /// Opens the second sequence and queues what it will read.
    fn begin_reading(
        &mut self,
        runtime: &mut Runtime,
        judged: Vec<u64>,
        condensed: Condensed,
    ) -> Result<RebuildReading, RebuildError> {
        let layout = ChatLayout::new(runtime.model().clone());
        let now_ms = self.transcript.last_time_ms;
        let mut reading = RebuildReading::new(judged.clone(), condensed.summary);
        for (&number, text) in judged.iter().zip(condensed.pieces) {
            let mut facts = self.transcript.facts.iter();
            let Some(fact) = facts.find(|f| f.number == number) else {
                continue;
            };
            if text.is_empty() && number > 0 {
                continue;
            }
            let verbatim = piece_of(fact).verbatim_in(&text);
            reading.add_fact(&layout, now_ms, number, text, verbatim)?;
        }
        // A turn that leaves memory need not be read twice.
        loop {
            let missing = reading.missing(&self.transcript);
            let missing: u64 = missing.map(|stored| stored.turn.tokens()).sum();
            let tokens = reading.tokens.len() as u64 + missing + self.limits.answer_usual as u64;
            if fits(runtime, None, tokens).unwrap_or(false) {
                break;
            }
            if !self.log.has_file() || !self.spill_one() {
                return Err(RebuildError::NoRoom { tokens });
            }
            self.mask(runtime)?;
        }
        self.extend(&layout, &mut reading)?;
        reading.sequence = Some(runtime.open()?);
        Ok(reading)
    }

    /// Queues facts and turns that became visible since.
    fn extend(
        &self,
        layout: &ChatLayout,
        reading: &mut RebuildReading,
    ) -> Result<(), RebuildError> {
        let transcript = &self.transcript;
        for fact in &transcript.facts {
            let is_known = reading.judged.contains(&fact.number)
                || reading.facts.iter().any(|f| f.number == fact.number);
            if !is_known {
                let (text, now_ms) = (fact.text.clone(), transcript.last_time_ms);
                reading.add_fact(layout, now_ms, fact.number, text, fact.verbatim)?;
            }
        }
        for stored in transcript.turns.iter().filter(|stored| stored.is_seen()) {
            let number = stored.turn.number;
            if !reading.turns.contains_key(&number) {
                let record = self.log.turn_record(stored)?;
                let span = reading.queue(&record.tokens);
                reading.turns.insert(number, span);
            }
        }
        Ok(())
    }

    /// Reads on, and swaps at the end.
    fn read_on(
        &mut self,
        runtime: &mut Runtime,
        mut reading: RebuildReading,
        tokens_max: usize,
    ) -> RebuildProgress {
        let layout = ChatLayout::new(runtime.model().clone());
        let extended = self.extend(&layout, &mut reading);
        let read = match reading.failed.take() {
            Some(why) => Err(why),
            None => extended.and_then(|()| reading.read(runtime, tokens_max)),
        };
        if let Err(why) = read {
            self.condensing.rebuild = Some(Rebuild::Reading(reading));
            self.condensing.stop(runtime);
            return self.give_up(why);
        }
        let (done, total) = (reading.done, reading.tokens.len());
        if done < total {
            self.condensing.rebuild = Some(Rebuild::Reading(reading));
            return RebuildProgress::Reading { done, total };
        }
        let Some(sequence) = reading.sequence else {
            return self.give_up(RebuildError::Displaced);
        };
        let outcome = CondenseOutcome::Swapped {
            before: self.transcript.persistent_tokens(),
            after: reading.summary,
        };
        match self.swap(runtime, reading, sequence) {
            Ok(()) => {
                log::info!("session {}: {outcome}", self.name());
                self.counters.condensed += 1;
                self.condensing.condensed(Some(outcome.clone()));
                RebuildProgress::Swapped(outcome)
            }
            Err(why) => {
                close(runtime, sequence);
                self.give_up(why.into())
            }
        }
    }

    /// Replaces the sequence by the rebuilt one, in memory and in the file, or changes nothing.
    fn swap(
        &mut self,
        runtime: &mut Runtime,
        reading: RebuildReading,
        sequence: SequenceId,
    ) -> SessionResult {
        let records = self.log.records();
        let transcript = self.transcript.clone();
        let blocks = self.residency.blocks.clone();
        let new = Residency {
            blocks,
            ..Residency::new(sequence)
        };
        let old = std::mem::replace(&mut self.residency, new);
        self.transcript.facts.clear();
        let facts = transcript.facts.iter().filter_map(|f| f.record);
        for record in facts.chain(old.columns.values().copied()) {
            self.log.release_record(Some(record));
        }
        self.log.drop_waiting_facts();
        self.log.note(LogChange::Renewed);
        for fact in &transcript.facts {
            self.log.note(LogChange::Revoked { fact: fact.number });
        }
        let holds = |fact: &RebuiltFact| transcript.facts.iter().any(|f| f.number == fact.number);
        for fact in reading.facts.into_iter().filter(holds) {
            let opening = transcript.facts.first().filter(|opening| {
                fact.number == 0 && opening.number == 0 && opening.text != fact.text
            });
            let told = opening.and_then(|opening| self.transcript.remember_told(&opening.text));
            told.into_iter().for_each(|change| self.log.note(change));
            let (start, end) = (fact.span.start as usize, fact.span.end as usize);
            let record = FactRecord {
                number: fact.number,
                start: fact.span.start,
                time_ms: transcript.last_time_ms,
                supersedes: None,
                found_in: transcript.found_in(fact.number),
                tokens: reading.tokens[start..end].to_vec(),
                text: fact.text,
            };
            self.log.note_fact(&record);
            self.transcript.facts.push(Fact::new(record, None));
            if fact.verbatim > 0 {
                self.mark(fact.number, fact.verbatim);
            }
        }
        for turn in transcript.turns() {
            self.carry_over(turn.number, reading.turns.get(&turn.number));
        }
        let saved = self.mask(runtime).and_then(|()| {
            if self.log.has_file() {
                return self.try_save(runtime);
            }
            self.save(runtime);
            Ok(())
        });
        if let Err(error) = saved {
            self.log.restore(records);
            self.transcript = transcript;
            self.residency = old;
            return Err(error);
        }
        close(runtime, old.sequence);
        Ok(())
    }

    /// Judges the sentences of all facts, on a thread.
    fn judge(&self, model: &Arc<Model>, condenser: Arc<dyn Condense>) -> Rebuild {
        let model = model.clone();
        let aim = CondenseAim::of(&self.options, &self.limits);
        let (facts, now_ms) = (&self.transcript.facts, self.transcript.last_time_ms);
        let pieces: Vec<CondensePiece> = facts.iter().map(piece_of).collect();
        Rebuild::Judging {
            judged: facts.iter().map(|f| f.number).collect(),
            thread: std::thread::spawn(move || {
                background::lower_priority();
                let layout = ChatLayout::new(model);
                run(&*condenser, &layout, now_ms, &pieces, aim)
            }),
        }
    }
}

fn piece_of(fact: &Fact) -> CondensePiece {
    CondensePiece {
        text: fact.text.clone(),
        verbatim: fact.verbatim,
    }
}
