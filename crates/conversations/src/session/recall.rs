//! What an answer sees is made so: turns are ranked, planned, hidden, spilled and brought back, within the budget.
//!
//! The plan counts tokens, the budget bytes. Where other sessions hold memory, not all that the plan recalls fits: the
//! best turns come back first, displace turns that the plan did not ask for, and those for which there is no room stay
//! where they are. The question and its answer always have precedence.

use super::error::{SessionError, SessionResult};
use super::layout::ChatLayout;
use super::open_session::{OpenSession, SpillCause};
use super::plan::{TurnPlan, TurnRoom, plan};
use super::ranking::Ranker;
use super::relevance::Relevance;
use super::residency::fits;
use super::scoring::{Rank, RankedQuestion};
use super::turn_index::IndexLimits;
use super::turns::TurnPlace;
use haversack_engine::runtime::{Runtime, SequenceId};

/// Bytes that the index of a session's turns takes at most, and one part in how many of the budget: enough for twenty
/// thousand turns. Words are dearer to read again: the model's tokens have to be made text.
const WORDS_BYTES_MAX: usize = 4 << 20;
const WORDS_SHARE: usize = 64;
const EMBEDDINGS_BYTES_MAX: usize = 8 << 20;
const EMBEDDINGS_SHARE: usize = 32;
/// In a smaller budget embeddings are read from the file: the rows of turns need the memory more, and there are few turns.
const EMBEDDINGS_BUDGET_MIN: usize = 16 << 20;

/// Turns that are about to be seen again.
#[derive(Debug, Default)]
pub(super) struct RecalledTurns {
    /// Numbers of turns that have to be recomputed.
    pub recompute: Vec<u64>,
    /// Their tokens.
    tokens: u64,
    /// Recalled by the plan, without room in memory.
    pub left_out: Vec<u64>,
}

impl OpenSession {
    /// Brings the index of the turns up to date, as far as it may be kept in memory and turns are chosen at all.
    pub fn index_turns(
        &mut self,
        runtime: &Runtime,
        layout: &ChatLayout,
        has_encoder: bool,
    ) -> SessionResult {
        if self.limits.relevance == Relevance::All {
            return Ok(());
        }
        let budget = runtime.ledger().budget.unwrap_or(usize::MAX);
        let limits = IndexLimits {
            words: WORDS_BYTES_MAX.min(budget / WORDS_SHARE),
            embeddings: match budget >= EMBEDDINGS_BUDGET_MIN {
                true => EMBEDDINGS_BYTES_MAX.min(budget / EMBEDDINGS_SHARE),
                false => 0,
            },
        };
        let ranker = Ranker::new(&self.transcript, &self.log, layout)?;
        let has_all = !has_encoder || self.limits.relevance.adds_words();
        ranker.update(&mut self.index, has_all, limits);
        Ok(())
    }

    /// (turn): its rank for a question, if it has one.
    pub fn ranks(
        &self,
        layout: &ChatLayout,
        question: &RankedQuestion<'_>,
    ) -> SessionResult<Vec<Option<Rank>>> {
        let ranker = Ranker::new(&self.transcript, &self.log, layout)?;
        Ok(ranker.ranks(question, self.limits.relevance, &self.index))
    }

    /// Decides what the answer to a question sees, and makes it so, with room for the `coming` tokens of both.
    pub fn recall_for(
        &mut self,
        runtime: &mut Runtime,
        layout: &ChatLayout,
        question: &RankedQuestion<'_>,
        coming: u64,
    ) -> SessionResult<RecalledTurns> {
        let ranks = self.ranks(layout, question)?;
        let turns = || self.transcript.turns();
        let ranked = turns().zip(&ranks);
        let ranked = ranked.filter_map(|(turn, rank)| Some((turn.number, (*rank)?)));
        let wanted = &self.transcript.deferred.recall;
        let similarity = turns().zip(&ranks).map(|(turn, rank)| match rank {
            _ if wanted.contains(&turn.number) => Some(f32::MAX),
            rank => rank.map(|rank| rank.similarity),
        });
        let similarities: Vec<Option<f32>> = similarity.collect();
        self.decision.set_ranks(ranked);
        let relevance = match question.embedding {
            Some(_) => self.limits.relevance,
            // Words speak for turns, never against them.
            None => Relevance::All,
        };
        let room = TurnRoom {
            capacity: self.limits.capacity as u64,
            coming,
            last: self.options.last,
            reread: self.options.reread_max as u64,
        };
        let found = plan(&self.transcript.turns, &similarities, &relevance, &room)?;
        log::debug!("session {}: {found}", self.name());
        // If the rest fails for want of memory, the next answer reports what was done.
        let earlier = std::mem::take(&mut self.transcript.deferred.done);
        let earlier = earlier.still_true(&self.transcript.turns);
        self.transcript.deferred.done = found.clone().after(&earlier);
        let mut order: Vec<(f32, u64)> = (self.transcript.turns().zip(similarities))
            .map(|(turn, similarity)| (similarity.unwrap_or(f32::NEG_INFINITY), turn.number))
            .filter(|(_, number)| found.recall.contains(number))
            .collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
        let order: Vec<u64> = order.into_iter().map(|(_, number)| number).collect();
        let recalled = self.carry_out(runtime, &found, &order, coming)?;
        let done = &mut self.transcript.deferred.done.recall;
        done.retain(|number| !recalled.left_out.contains(number));
        let coming = coming + recalled.tokens;
        self.make_room(runtime, coming)?;
        self.make_way(runtime, coming);
        Ok(recalled)
    }

    /// Carries a plan out. Memory is freed before it is taken. Turns are recalled in this order.
    fn carry_out(
        &mut self,
        runtime: &mut Runtime,
        plan: &TurnPlan,
        order: &[u64],
        coming: u64,
    ) -> SessionResult<RecalledTurns> {
        for &number in &plan.spill {
            self.spill(number, SpillCause::Stream);
        }
        for stored in self.transcript.turns.iter_mut() {
            let turn = &mut stored.turn;
            if plan.hide.contains(&turn.number) {
                self.counters.hidden += turn.tokens();
                turn.is_visible = false;
            } else if plan.show.contains(&turn.number) {
                turn.is_visible = true;
            }
        }
        self.mask(runtime)?;
        let mut recalled = RecalledTurns::default();
        for &number in order {
            let Some(i) = self.transcript.index_of(number) else {
                continue;
            };
            let turn = &self.transcript.turns[i].turn;
            let (place, tokens) = (turn.place, turn.tokens());
            let coming = coming + recalled.tokens;
            let is_mounted = place == TurnPlace::Spilled
                && match self.mount_displacing(runtime, number, order) {
                    Err(error) if error.is_cannot_fit() => {
                        recalled.left_out.push(number);
                        continue;
                    }
                    mounted => mounted?,
                };
            // Without its rows it is recomputed from its ids.
            let coming = coming + if is_mounted { 0 } else { tokens };
            match self.displace(runtime, order, coming)? {
                true if is_mounted => {}
                true => {
                    recalled.recompute.push(number);
                    recalled.tokens += tokens;
                }
                false => {
                    log::info!("session {}: no room for turn {number}", self.name());
                    recalled.left_out.push(number);
                    if is_mounted {
                        self.spill(number, SpillCause::Budget);
                        self.mask(runtime)?;
                    }
                }
            }
        }
        recalled.recompute.sort_unstable();
        self.mask(runtime)?;
        Ok(recalled)
    }

    /// Mounts a spilled turn, in place of others where it must. `false` where the file does not have its rows.
    fn mount_displacing(
        &mut self,
        runtime: &mut Runtime,
        number: u64,
        recalled: &[u64],
    ) -> SessionResult<bool> {
        loop {
            let i = self.transcript.index_of(number);
            let i = i.ok_or(SessionError::NoSuchTurn { number })?;
            match self.mount(runtime, i) {
                Err(error) if error.is_cannot_fit() && self.spill_but(recalled) => {
                    self.mask(runtime)?;
                }
                done => return done,
            }
        }
    }

    /// Spills turns that were not recalled until `coming` more tokens fit the budget; returns whether they do.
    fn displace(
        &mut self,
        runtime: &mut Runtime,
        recalled: &[u64],
        coming: u64,
    ) -> SessionResult<bool> {
        while !fits(runtime, Some(self.residency.sequence), coming)? {
            if !self.spill_but(recalled) {
                return Ok(false);
            }
            self.mask(runtime)?;
        }
        Ok(true)
    }

    /// Spills turns until `coming` more tokens fit the budget, hidden ones first, then the oldest. Where nothing more may
    /// leave it returns all the same: the step reports by how much it is short.
    pub fn make_room(&mut self, runtime: &mut Runtime, coming: u64) -> SessionResult {
        self.displace(runtime, &[], coming).map(|_| ())
    }

    /// A fork of the sequence to go back to, with room for `coming` more tokens beside it: what recalled turns add to its tables
    /// is known once it is made.
    pub fn back_up(&mut self, runtime: &mut Runtime, coming: u64) -> SessionResult<SequenceId> {
        let sequence = self.residency.sequence;
        loop {
            let backup = runtime.fork(sequence).map_err(SessionError::from);
            match backup {
                Ok(backup) if fits(runtime, Some(sequence), coming)? => return Ok(backup),
                Ok(backup) => runtime.close(backup)?,
                Err(error) if error.is_cannot_fit() => {}
                Err(error) => return Err(error),
            }
            if !self.spill_one() {
                // The step reports by how much it is short.
                return Ok(runtime.fork(sequence)?);
            }
            self.mask(runtime)?;
        }
    }

    /// Spills one turn, if any may leave.
    pub fn spill_one(&mut self) -> bool {
        self.spill_but(&[])
    }

    fn spill_but(&mut self, kept: &[u64]) -> bool {
        let victim = self.transcript.victim(self.options.last, kept);
        victim
            .inspect(|&number| self.spill(number, SpillCause::Budget))
            .is_some()
    }
}
