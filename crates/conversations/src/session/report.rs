//! What a session shows of itself: where its turns are, how relevant they were to the last question, and what was decided
//! for it. Nothing here holds a word that was said.

use super::turns::{Place, Turn};
use super::{Session, SessionError, SessionId, SessionStats, Sessions};
use haversack_engine::runtime::Runtime;
use std::ops::Range;

/// Tokens of turns that left memory or came back, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Left for the file: the stream was full, and others were newer or more relevant.
    pub left_for_stream: u64,
    /// Left for the file: the budget had no room.
    pub left_for_budget: u64,
    /// Nothing of them is left: there is no file, or it is full.
    pub forgotten: u64,
    /// Stayed in memory and are not seen: others were more relevant.
    pub hidden: u64,
    /// Came back from the file.
    pub mounted: u64,
    /// Were read again: the file had their ids alone.
    pub read_again: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.left_for_stream += other.left_for_stream;
        self.left_for_budget += other.left_for_budget;
        self.forgotten += other.forgotten;
        self.hidden += other.hidden;
        self.mounted += other.mounted;
        self.read_again += other.read_again;
    }
}

/// Why a turn leaves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Stream,
    Budget,
}

/// What was decided for the last question.
#[derive(Clone, Debug, Default)]
pub(super) struct Decided {
    /// In words; empty before the first.
    plan: String,
    /// Turns by number, and how similar each was.
    relevance: Vec<(u64, f32)>,
}

/// Turns of which the relevance is kept: half of them the last ones, half those that were most similar.
const JUDGED: usize = 256;

impl Decided {
    pub fn bytes(&self) -> usize {
        self.plan.capacity() + self.relevance.capacity() * size_of::<(u64, f32)>()
    }

    fn relevance_of(&self, number: u64) -> Option<f32> {
        let at = self.relevance.binary_search_by_key(&number, |r| r.0).ok()?;
        Some(self.relevance[at].1)
    }
}

/// Those worth remembering, by number.
fn noteworthy(judged: impl Iterator<Item = (u64, f32)>) -> Vec<(u64, f32)> {
    let mut judged: Vec<(u64, f32)> = judged.collect();
    let older = judged.len().saturating_sub(JUDGED / 2);
    judged[..older].sort_by(|a, b| b.1.total_cmp(&a.1));
    if older > JUDGED / 2 {
        judged.drain(JUDGED / 2..older);
        judged.shrink_to_fit();
    }
    judged.sort_unstable_by_key(|r| r.0);
    judged
}

/// A session in memory, without its words.
#[derive(Clone, Debug)]
pub struct SessionPicture {
    pub stats: SessionStats,
    pub is_answering: bool,
    /// Some of its turns, oldest first.
    pub turns: Vec<TurnPicture>,
    /// Others that are still somewhere.
    pub turns_left_off: usize,
    /// What was done to turns for the last question, in words; empty before the first.
    pub plan: String,
    /// Where tokens are that have left memory, in order.
    pub away: Vec<(Range<u64>, Away)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TurnPicture {
    pub turn: Turn,
    /// How similar it was to the last question, where somebody judged it.
    pub relevance: Option<f32>,
}

/// What is left of tokens that are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// Their rows, in the file.
    Disk,
    /// Their ids alone.
    Ids,
}

/// Turns of one session that are shown at most: those in memory first, then the newest.
const TURNS: usize = 64;

impl Sessions {
    /// The sessions in memory.
    pub fn open_ids(&self) -> impl Iterator<Item = SessionId> + '_ {
        let open = self.slots.iter().enumerate();
        open.filter(|(_, slot)| slot.session.is_some())
            .map(|(index, slot)| SessionId {
                index: index as u32,
                generation: slot.generation,
            })
    }

    pub fn picture(
        &self,
        runtime: &Runtime,
        id: SessionId,
    ) -> Result<SessionPicture, SessionError> {
        let stats = self.stats(runtime, id)?;
        let session = self.session(id)?;
        let all = || session.turns.iter().map(|held| &held.turn);
        let live = |turn: &&Turn| turn.place == Place::Live;
        let newest = all().rev().filter(live);
        let newest = newest.chain(all().rev().filter(|turn| !live(turn)));
        let mut turns: Vec<TurnPicture> = newest
            .take(TURNS)
            .map(|turn| TurnPicture {
                relevance: session.decided.relevance_of(turn.number),
                turn: turn.clone(),
            })
            .collect();
        turns.sort_by_key(|seen| seen.turn.number);
        let mut away: Vec<(Range<u64>, Away)> = all()
            .filter_map(|turn| match turn.place {
                Place::Live => None,
                Place::Spilled => Some((turn.span.clone(), Away::Disk)),
                Place::Ids => Some((turn.span.clone(), Away::Ids)),
            })
            .collect();
        away.sort_by_key(|(span, _)| span.start);
        Ok(SessionPicture {
            turns_left_off: session.turns.len() - turns.len(),
            is_answering: session.is_answering,
            plan: session.decided.plan.clone(),
            stats,
            turns,
            away,
        })
    }

    /// Sessions whose last turn is not on disk.
    pub fn unsaved(&self) -> usize {
        let open = self.slots.iter().filter_map(|slot| slot.session.as_ref());
        open.filter(|session| session.unsaved.is_some()).count()
    }

    /// Of all sessions since these were made, open or not.
    pub fn tally(&self) -> Tally {
        let mut tally = self.closed;
        let open = self.slots.iter().filter_map(|slot| slot.session.as_ref());
        open.for_each(|session| tally.add(&session.tally));
        tally
    }

    pub(super) fn keep_tally(&mut self, of: &Session) {
        self.closed.add(&of.tally);
    }
}

impl Session {
    /// (turn): how similar it is to the question that was just asked.
    pub(super) fn note_relevance(&mut self, similarities: &[Option<f32>]) {
        let judged = self.turns.iter().zip(similarities);
        let judged = judged.filter_map(|(held, s)| Some((held.turn.number, (*s)?)));
        self.decided.relevance = noteworthy(judged);
    }

    pub(super) fn note_plan(&mut self, plan: &str) {
        self.decided.plan = plan.to_owned();
    }

    pub(super) fn note_leaving(&mut self, tokens: u64, why: Why) {
        match why {
            Why::Stream => self.tally.left_for_stream += tokens,
            Why::Budget => self.tally.left_for_budget += tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_and_the_most_similar_are_remembered() {
        let few = [(3, 0.5), (9, -0.1)];
        assert_eq!(noteworthy(few.into_iter()), few);
        let many = (0..10_000u64).map(|n| (n, if n % 100 == 7 { 0.9 } else { 0.1 }));
        let kept = noteworthy(many);
        assert_eq!(kept.len(), JUDGED);
        assert!(kept.is_sorted_by_key(|r| r.0) && kept.capacity() < 2 * JUDGED);
        assert!((9_872..10_000).all(|n| kept.iter().any(|r| r.0 == n)));
        let similar = kept.iter().filter(|r| r.0 < 9_872 && r.1 > 0.5).count();
        assert_eq!(similar, 99);
        let decided = Decided {
            plan: String::new(),
            relevance: kept,
        };
        assert_eq!(decided.relevance_of(107), Some(0.9));
        assert_eq!(decided.relevance_of(9_871), None);
    }
}
