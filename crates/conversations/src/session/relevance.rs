//! Which turns are relevant to a question.
//!
//! Pure: similarities go in, the turns that attention should see come out. The similarity of a turn is the dot product
//! of its embedding and the question's. `Threshold` is the usual rule. What counts as similar depends on the encoder, so
//! `Top` takes the best few on any scale, and keeps those it had unless others are clearly better: a mask that flickers
//! costs page-ins. A turn that would have to be recomputed must be better still.

use super::turns::TurnPlace;
use std::str::FromStr;

/// How turns are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Relevance {
    /// Every turn stays visible.
    All,
    /// Turns at least this similar.
    Threshold(f32),
    /// The most similar turns.
    Top {
        turns: usize,
        /// Added to the similarity of a visible turn; half of it is subtracted for a turn that has to be recomputed.
        hysteresis: f32,
        /// Turns less similar than this are not chosen. -1 = all turns of a short conversation are visible.
        least: f32,
    },
}

/// The most similar turns, as many as the capacity has room for.
impl Default for Relevance {
    fn default() -> Relevance {
        Relevance::Top {
            turns: usize::MAX,
            hysteresis: 0.05,
            least: -1.0,
        }
    }
}

/// One turn to judge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JudgedTurn {
    /// `None` = unknown, which counts as relevant: rather see too much than forget silently.
    pub similarity: Option<f32>,
    pub place: TurnPlace,
    pub is_visible: bool,
}

/// `all`, `threshold=F` or `top-k=N`.
impl FromStr for Relevance {
    type Err = String;

    fn from_str(text: &str) -> Result<Relevance, String> {
        let found = match text.split_once('=') {
            None if text == "all" => Some(Relevance::All),
            None if text == "top-k" => Some(Relevance::default()),
            Some(("threshold", least)) => {
                let least = least.parse().ok().filter(|f| (-1.0..=1.0).contains(f));
                least.map(Relevance::Threshold)
            }
            Some(("top-k", turns)) => {
                let turns = turns.parse().ok().filter(|n| (1..=1024).contains(n));
                turns.map(|turns| Relevance::Top {
                    turns,
                    hysteresis: 0.05,
                    least: -1.0,
                })
            }
            _ => None,
        };
        let accepted =
            "accepted: all, threshold=F with F from -1 to 1, top-k=N with N from 1 to 1024";
        found.ok_or_else(|| accepted.to_owned())
    }
}

impl Relevance {
    /// Whether words speak for turns that have an embedding too.
    pub(super) fn adds_words(&self) -> bool {
        matches!(self, Relevance::Top { .. })
    }

    /// (turn): whether it is relevant. Ties go to the newer turn; turns come oldest first.
    pub fn choose(&self, turns: impl Iterator<Item = JudgedTurn>) -> Vec<bool> {
        match *self {
            Relevance::All => turns.map(|_| true).collect(),
            Relevance::Threshold(least) => turns
                .map(|turn| turn.similarity.is_none_or(|s| s >= least))
                .collect(),
            Relevance::Top {
                turns: count,
                hysteresis,
                least,
            } => {
                let score = |turn: &JudgedTurn| {
                    let bonus = match (turn.place, turn.is_visible) {
                        (_, true) => hysteresis,
                        (TurnPlace::Live | TurnPlace::Spilled, false) => 0.0,
                        (TurnPlace::Ids, false) => -hysteresis / 2.0,
                    };
                    turn.similarity.map(|s| s + bonus)
                };
                let all = turns.size_hint().0;
                let mut chosen = Vec::with_capacity(all);
                let mut ranked: Vec<(f32, u32)> = Vec::with_capacity(all);
                for (i, turn) in (0..).zip(turns) {
                    let score = score(&turn);
                    chosen.push(score.is_none());
                    ranked.extend(score.filter(|&s| s >= least).map(|s| (s, i)));
                }
                ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
                for &(_, i) in ranked.iter().take(count) {
                    chosen[i as usize] = true;
                }
                chosen
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(similarities: &[f32], visible: usize) -> std::vec::IntoIter<JudgedTurn> {
        let turns = similarities.iter().enumerate();
        turns
            .map(|(i, &s)| JudgedTurn {
                similarity: Some(s),
                place: TurnPlace::Live,
                is_visible: i == visible,
            })
            .collect::<Vec<_>>()
            .into_iter()
    }

    #[test]
    fn a_threshold_is_a_threshold() {
        let turns = judged(&[0.59, 0.6, 0.9], 9);
        assert_eq!(
            Relevance::Threshold(0.6).choose(turns.clone()),
            [false, true, true]
        );
        assert_eq!(Relevance::All.choose(turns.clone()), [true; 3]);
    }

    #[test]
    fn the_best_few_and_those_already_visible() {
        let top = Relevance::Top {
            turns: 1,
            hysteresis: 0.1,
            least: 0.2,
        };
        assert_eq!(top.choose(judged(&[0.5, 0.55], 0)), [true, false]);
        assert_eq!(top.choose(judged(&[0.5, 0.65], 0)), [false, true]);
        assert_eq!(top.choose(judged(&[0.5, 0.5], 9)), [false, true]);
        assert_eq!(top.choose(judged(&[0.1, 0.05], 9)), [false, false]);
        // Recomputing costs half of what being visible is worth.
        for (similarity, chosen) in [(0.54, [true, false]), (0.56, [false, true])] {
            let mut read_again = judged(&[0.5, similarity], 9);
            read_again.as_mut_slice()[0].place = TurnPlace::Spilled;
            read_again.as_mut_slice()[1].place = TurnPlace::Ids;
            assert_eq!(top.choose(read_again), chosen, "{similarity}");
        }
        let mut unknown = judged(&[0.5, 0.5], 9);
        unknown.as_mut_slice()[0].similarity = None;
        assert_eq!(top.choose(unknown), [true, true]);
    }
}
