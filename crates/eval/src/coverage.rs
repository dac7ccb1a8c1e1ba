//! Coverage: whether the turns without which a question cannot be answered were shown. Needs no language model. Pure.
//!
//! ```text
//! a retriever's order   17 203 4 51 …           turns of the talk, best first
//! shown                 the latest two, then by that order, whole turns while they fit the room
//! covered               every evidence turn of the question is shown
//! ```

use crate::long_talk::{Hardness, LongQuestion, LongTalk};

/// Tokens of the question and of the longest answer to it: the room for turns is the capacity without these.
pub const ANSWER_TOKENS: u64 = 146;

/// Latest turns, which a session shows whatever the question.
pub const LAST: usize = 2;

/// Markers of a chat template around a question and its answer.
const MARKER_TOKENS: u64 = 10;

/// Tokens of the turns of a talk, near enough without a tokenizer: those of large models make one of 3.9 bytes of English.
pub fn estimated_tokens(talk: &LongTalk) -> Vec<u64> {
    let tokens = |bytes: usize| MARKER_TOKENS + (bytes as u64 * 10).div_ceil(39);
    let turns = talk.turns.iter();
    turns
        .map(|(said, answered)| tokens(said.len() + answered.len()))
        .collect()
}

/// What a question was shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownTurns {
    /// (turn)
    pub is_shown: Vec<bool>,
    pub tokens: u64,
}

impl ShownTurns {
    /// Fills a room of tokens with whole turns: the latest, then those of the order. `tokens` is (turn).
    pub fn fill(order: impl IntoIterator<Item = usize>, tokens: &[u64], room: u64) -> ShownTurns {
        let mut shown = ShownTurns {
            is_shown: vec![false; tokens.len()],
            tokens: 0,
        };
        let latest = (tokens.len().saturating_sub(LAST)..tokens.len()).rev();
        for turn in latest.chain(order) {
            if !shown.is_shown[turn] && shown.tokens + tokens[turn] <= room {
                shown.is_shown[turn] = true;
                shown.tokens += tokens[turn];
            }
        }
        shown
    }

    fn covers(&self, asked: &LongQuestion) -> bool {
        asked.evidence.iter().all(|&turn| self.is_shown[turn])
    }
}

/// How many of some questions had all their evidence shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoveredCount {
    pub asked: u64,
    pub covered: u64,
}

impl CoveredCount {
    fn add(&mut self, is_covered: bool) {
        self.asked += 1;
        self.covered += u64::from(is_covered);
    }

    pub fn percent(self) -> f64 {
        100.0 * self.covered as f64 / self.asked.max(1) as f64
    }
}

/// Coverage of questions. Those about things that were never said have no evidence and do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    pub all: CoveredCount,
    /// Questions that one turn answers.
    pub single: CoveredCount,
    by_hardness: [CoveredCount; Hardness::ALL.len()],
    tokens: u64,
}

impl Coverage {
    pub fn add(&mut self, asked: &LongQuestion, shown: &ShownTurns) {
        if asked.evidence.is_empty() {
            return;
        }
        let is_covered = shown.covers(asked);
        self.all.add(is_covered);
        if asked.evidence.len() == 1 {
            self.single.add(is_covered);
        }
        self.by_hardness[asked.hardness as usize].add(is_covered);
        self.tokens += shown.tokens;
    }

    pub fn of(&self, hardness: Hardness) -> CoveredCount {
        self.by_hardness[hardness as usize]
    }

    /// Tokens of turns shown to a question, in the mean.
    pub fn mean_tokens(&self) -> u64 {
        self.tokens / self.all.asked.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(hardness: Hardness, evidence: &[usize]) -> LongQuestion {
        LongQuestion {
            question: String::new(),
            hardness,
            evidence: evidence.to_vec(),
            answer: String::new(),
        }
    }

    #[test]
    fn the_latest_turns_then_the_best_that_fit() {
        let tokens = [10, 10, 50, 10, 10, 10];
        let shown = ShownTurns::fill([2, 1, 1, 0, 3], &tokens, 45);
        assert_eq!(shown.is_shown, [true, true, false, false, true, true]);
        assert_eq!(shown.tokens, 40);
    }

    #[test]
    fn a_question_is_covered_by_all_its_turns() {
        let shown = ShownTurns::fill([0, 1], &[10; 6], 40);
        let mut coverage = Coverage::default();
        for (hardness, evidence) in [
            (Hardness::Date, &[1][..]),
            (Hardness::Date, &[2]),
            (Hardness::Two, &[0, 1]),
            (Hardness::Two, &[1, 2]),
            (Hardness::Never, &[]),
        ] {
            coverage.add(&asked(hardness, evidence), &shown);
        }
        let count = |asked, covered| CoveredCount { asked, covered };
        assert_eq!(coverage.all, count(4, 2));
        assert_eq!(coverage.single, count(2, 1));
        assert_eq!(coverage.of(Hardness::Two), count(2, 1));
        assert_eq!(coverage.of(Hardness::Never), count(0, 0));
        assert_eq!((coverage.mean_tokens(), coverage.all.percent()), (40, 50.0));
    }
}
