//! Reports on a session: where its turns are, how relevant they were to the last question, and what was decided for it.
//! Only [`TurnView`] and [`TurnAnswer`] contain text of the conversation.

use super::condensing::CondenseOutcome;
use super::error::{SessionError, SharedError};
use super::limits::CapacityChange;
use super::owner::Owner;
use super::scoring::Rank;
use super::turns::Turn;
use haversack_engine::runtime::{Finish, Generation};
use std::ops::Range;

/// What happened to the context of an answer. Counts are tokens, except for `recalled`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContextReport {
    /// Visible to the answer, the persistent stream included.
    pub kept: u64,
    /// In memory and hidden.
    pub masked: u64,
    /// Not in memory; the file has rows or ids.
    pub spilled: u64,
    /// Turns that came back for this answer.
    pub recalled: Vec<u64>,
    /// (turn of `recalled`): its rank; `None` where it came back unranked: it was asked for, or is recent.
    pub recalled_by: Vec<Option<Rank>>,
    /// Forgotten since the session began.
    pub evicted: u64,
    /// Visible and not recomputed.
    pub cached: u64,
    /// Keys and values of the conversation in memory, the answer included; shared blocks count whole.
    pub bytes: u64,
    /// Recomputed, because the ids alone were left.
    pub recomputed: u64,
    /// Parts that the message was read in, because it does not fit as a whole; 0 where it does.
    pub parts: u64,
    /// Changes of the capacity since the last answer.
    pub changes: Vec<CapacityChange>,
    /// What condensing made of the persistent stream since the last answer.
    pub condensed: Option<CondenseOutcome>,
    /// What was decided before the answer, in words.
    pub plan: String,
    /// There is no encoder: turns come back by their words, and every turn in memory is visible.
    pub unjudged: bool,
    /// Why the turn is not on disk; `None` where it is, or sessions are not saved.
    pub unsaved: Option<SharedError<SessionError>>,
}

#[derive(Clone, Debug)]
pub struct TurnAnswer {
    pub text: String,
    pub tokens: Vec<u32>,
    pub finish: Finish,
    pub generation: Generation,
    /// `None` where the answer was cancelled before its first token: the question is not part of the conversation then.
    pub turn: Option<u64>,
    pub context: ContextReport,
}

/// Sizes of a session, in tokens where nothing else is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    pub owner: Owner,
    pub name: String,
    /// Tokens read so far.
    pub position: u64,
    /// The persistent stream.
    pub persistent: u64,
    /// Tokens of turns that may be in memory.
    pub capacity: u64,
    /// Turns that attention sees.
    pub visible: u64,
    /// Turns in memory that are hidden.
    pub hidden: u64,
    /// Turns whose rows are in the file.
    pub spilled: u64,
    /// Turns of which the file has the ids alone.
    pub ids: u64,
    /// Turns that are neither in memory nor in the file.
    pub forgotten: u64,
    /// Number of turns so far.
    pub turns: u64,
    pub file_bytes: u64,
    /// Bytes of records that wait to be saved, without rows.
    pub waiting_bytes: u64,
    /// Why the last turn is not on disk.
    pub unsaved: Option<SharedError<SessionError>>,
    pub condensed: Option<CondenseOutcome>,
}

/// A session file in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSession {
    pub name: String,
    pub bytes: u64,
    pub is_open: bool,
    /// When it was saved last; milliseconds since 1970.
    pub saved_ms: u64,
}

/// A fact that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactView {
    /// 0 is what the session began with.
    pub number: u64,
    pub text: String,
    /// The turn in which it was found; `None`: it was told as a fact.
    pub found_in: Option<u64>,
}

/// One turn with its text.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnView {
    pub turn: Turn,
    pub tokens: Vec<u32>,
    /// Number of tokens that belong to the question.
    pub question: usize,
    /// The question, or the state, without markers.
    pub text: String,
    /// The answer, without markers.
    pub answer: String,
    pub time_ms: u64,
    /// What was read of the question begins with the date of that time.
    pub is_dated: bool,
}

/// Tokens of turns that left memory or came back, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Spilled: the stream was full, and other turns were newer or more relevant.
    pub left_for_stream: u64,
    /// Spilled: the budget had no room.
    pub left_for_budget: u64,
    /// Deleted: there is no file, or it is full.
    pub forgotten: u64,
    /// Hidden: other turns were more relevant.
    pub hidden: u64,
    /// Mounted from the file.
    pub mounted: u64,
    /// Recomputed: the file had the ids alone.
    pub read_again: u64,
    /// Number of times that a persistent stream was condensed.
    pub condensed: u64,
}

impl SessionCounters {
    pub(super) fn add(&mut self, other: &SessionCounters) {
        self.left_for_stream += other.left_for_stream;
        self.left_for_budget += other.left_for_budget;
        self.forgotten += other.forgotten;
        self.hidden += other.hidden;
        self.mounted += other.mounted;
        self.read_again += other.read_again;
        self.condensed += other.condensed;
    }
}

/// What was decided for the last question.
#[derive(Clone, Debug, Default)]
pub(super) struct LastDecision {
    /// In words; empty before the first question.
    pub plan: String,
    /// Turns by number, with their rank.
    ranks: Vec<(u64, Rank)>,
}

/// Number of turns whose rank is kept: half of them the latest, half the most similar.
const RANKED: usize = 256;

impl LastDecision {
    pub fn heap_bytes(&self) -> usize {
        self.plan.capacity() + self.ranks.capacity() * size_of::<(u64, Rank)>()
    }

    pub fn set_ranks(&mut self, ranked: impl Iterator<Item = (u64, Rank)>) {
        let mut ranked: Vec<(u64, Rank)> = ranked.collect();
        let older = ranked.len().saturating_sub(RANKED / 2);
        ranked[..older].sort_by(|a, b| b.1.similarity.total_cmp(&a.1.similarity));
        if older > RANKED / 2 {
            ranked.drain(RANKED / 2..older);
            ranked.shrink_to_fit();
        }
        ranked.sort_unstable_by_key(|r| r.0);
        self.ranks = ranked;
    }

    pub fn rank_of(&self, number: u64) -> Option<Rank> {
        let at = self.ranks.binary_search_by_key(&number, |r| r.0).ok()?;
        Some(self.ranks[at].1)
    }
}

/// A session in memory, without its text.
#[derive(Clone, Debug)]
pub struct SessionReport {
    pub stats: SessionStats,
    pub is_answering: bool,
    /// Some of its turns, oldest first.
    pub turns: Vec<TurnReport>,
    /// Number of further turns that are in memory or in the file.
    pub turns_left_off: usize,
    /// The plan for the last question, in words; empty before the first.
    pub plan: String,
    /// Positions of tokens that have left memory, in order.
    pub away: Vec<(Range<u64>, RowsAway)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TurnReport {
    pub turn: Turn,
    /// How similar it is to the last question, if known.
    pub rank: Option<Rank>,
}

/// What is left of tokens that are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsAway {
    /// Their rows, in the file.
    Disk,
    /// Their ids alone.
    Ids,
}

/// Most turns of one report: those in memory first, then the newest.
pub(super) const TURNS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::scoring::Ranking;
    use super::*;

    #[test]
    fn the_latest_and_the_most_similar_turns_are_remembered() {
        let mut decision = LastDecision::default();
        let rank = |similarity| Rank {
            similarity,
            by: Ranking::Words,
        };
        let few = [(3, rank(0.5)), (9, rank(-0.1))];
        decision.set_ranks(few.into_iter());
        assert_eq!(decision.ranks, few);
        let many = (0..10_000u64).map(|n| (n, rank(if n % 100 == 7 { 0.9 } else { 0.1 })));
        decision.set_ranks(many);
        let kept = &decision.ranks;
        assert_eq!(kept.len(), RANKED);
        assert!(kept.is_sorted_by_key(|r| r.0) && kept.capacity() < 2 * RANKED);
        assert!((9_872..10_000).all(|n| kept.iter().any(|r| r.0 == n)));
        let similar = |r: &&(u64, Rank)| r.0 < 9_872 && r.1.similarity > 0.5;
        let similar = kept.iter().filter(similar).count();
        assert_eq!(similar, 99);
        assert_eq!(decision.rank_of(107), Some(rank(0.9)));
        assert_eq!(decision.rank_of(9_871), None);
    }
}
