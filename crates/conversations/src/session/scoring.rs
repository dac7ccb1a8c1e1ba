//! Scores of turns for a question: what embeddings, words and names say of each. Pure.
//!
//! ```text
//!                                                          cosine    names Nora       score
//! 12  Nora rang, we talked about nothing in particular.     0.31        yes           as 13: it says who "she" is
//! 13  She finally got taken on at the sawmill.              0.42    the one before    0.42 + 0.9 NAME
//! 14  What kind of job will exist in a hundred years?       0.55        no            0.55
//!     Who employs Nora?
//! ```
//!
//! A name is what a question shares with the turns about a person, whatever the other words: a turn that has it, or goes
//! on from one that has, scores [`NAME`] more. Among these the name says nothing any more, and encoders hear little else:
//! half of what their embeddings have in common is left out of the cosine. A turn that goes on brings the one before it.
//! Of turns that say the same the newest counts: what was said a thousand times leaves room for what was said once, and
//! takes no weight from its words.

use super::relevance::Relevance;
use super::words::{WordRanking, words_hash};
use haversack_engine::encoder::{DIMENSIONS, Embedding, StoredEmbedding};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

/// What a turn was ranked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranking {
    /// The words that it shares with the question.
    Words,
    /// The sentence encoder.
    Encoder,
    /// The turn after it, which goes on from it.
    Neighbour,
}

impl Ranking {
    pub fn name(self) -> &'static str {
        match self {
            Ranking::Words => "words",
            Ranking::Encoder => "encoder",
            Ranking::Neighbour => "neighbour",
        }
    }
}

impl fmt::Display for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How similar a turn is to the question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rank {
    pub similarity: f32,
    pub by: Ranking,
}

impl Rank {
    /// For a reader: three decimals.
    pub fn score(&self) -> f64 {
        (f64::from(self.similarity) * 1000.0).round() / 1000.0
    }
}

/// A question as turns are compared with it.
pub struct RankedQuestion<'a> {
    pub text: &'a str,
    /// `None` without an encoder.
    pub embedding: Option<&'a Embedding>,
}

/// What a name adds to a cosine: more than turns about one person differ by.
const NAME: f32 = 0.5;

/// The same for a turn after one that has the name, as a share.
const AFTER: f32 = 0.9;

/// How much of what turns with a name have in common is left out of their cosines.
const SHARED: f32 = 0.5;

/// How much words add to a cosine, of what is missing to 1: this many times their share of the best possible score; half
/// as much where a name leads to the turns.
const WORDS: f32 = 2.0;
const WORDS_BESIDE_NAMES: f32 = 1.0;

/// What a turn loses whose words were said again later: more than any score.
const REPEATED: f32 = 4.0;

/// What is known of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Evidence {
    /// Of its embedding and the question's; `None` without one.
    cosine: Option<f32>,
    /// Share of the best possible score of words; `None` where too little speaks for the turn.
    words: Option<f32>,
    /// It has a name that is in the question.
    is_naming: bool,
    /// A later turn has the same words, in any order.
    is_repeated: bool,
}

/// (turn): its rank; `None` where nothing speaks for or against it. `embedding` and `words` (their hashes, in ascending
/// order) are of a turn; turns come oldest first.
pub fn ranks<'a>(
    question: &RankedQuestion<'_>,
    relevance: Relevance,
    turns: usize,
    embedding: &dyn Fn(usize) -> Option<StoredEmbedding>,
    words: &dyn Fn(usize) -> Cow<'a, [u32]>,
) -> Vec<Option<Rank>> {
    let mut all = vec![Evidence::default(); turns];
    let mut asked = question.embedding.map(Asked::new);
    let adds_words = relevance.adds_words();
    if let Some(asked) = asked.as_ref().filter(|_| !adds_words) {
        add_cosines(asked, embedding, &mut all);
    }
    let has_names = add_words(question.text, relevance, words, &mut all);
    if let Some(asked) = asked.as_mut().filter(|_| adds_words) {
        asked.leave_out_names(embedding, &all);
        add_cosines(asked, embedding, &mut all);
    }
    let weight = match has_names {
        true => WORDS_BESIDE_NAMES,
        false => WORDS,
    };
    let mut ranks: Vec<Option<Rank>> = all.iter().map(|turn| own_score(turn, weight)).collect();
    if adds_words {
        put_repeats_last(&all, &mut ranks);
    }
    add_neighbours(&all, &mut ranks);
    ranks
}

/// Lowers the ranks of turns whose words are said again later.
fn put_repeats_last(turns: &[Evidence], ranks: &mut [Option<Rank>]) {
    for (turn, rank) in turns.iter().zip(ranks) {
        if let Some(rank) = rank.as_mut().filter(|_| turn.is_repeated) {
            rank.similarity -= REPEATED;
        }
    }
}

/// Adds what words say about all turns, or about those that have no embedding; returns whether names do.
fn add_words<'a>(
    question: &str,
    relevance: Relevance,
    words: &dyn Fn(usize) -> Cow<'a, [u32]>,
    all: &mut [Evidence],
) -> bool {
    let (max, least) = match relevance {
        // Nothing is chosen.
        Relevance::All => return false,
        Relevance::Threshold(least) => (usize::MAX, least),
        Relevance::Top { turns, least, .. } => (turns, least),
    };
    let has_all = relevance.adds_words();
    let judged = (0..all.len()).filter(|&i| has_all || all[i].cosine.is_none());
    let judged: Vec<usize> = judged.collect();
    let mut ranking = WordRanking::new(question, has_all);
    // One look at the words of all, which may come from the file. What is said a thousand times makes no word common.
    let mut said = HashSet::with_capacity(judged.len());
    for &i in judged.iter().rev() {
        let words = words(i);
        all[i].is_repeated = !said.insert(words_hash(&words));
        if !all[i].is_repeated {
            ranking.count(&words);
        }
    }
    if ranking.is_empty() || judged.is_empty() {
        return false;
    }
    let mut scores = Vec::with_capacity(judged.len());
    for &i in &judged {
        let words = words(i);
        scores.push(ranking.score(&words));
        all[i].is_naming = ranking.has_name(&words);
    }
    for (i, share) in judged.into_iter().zip(ranking.ranks(&scores, max)) {
        all[i].words = share.filter(|&share| share >= least);
    }
    ranking.has_names()
}

/// The question's embedding: a direction and its length.
struct Asked {
    direction: StoredEmbedding,
    length: f32,
}

impl Asked {
    fn new(embedding: &Embedding) -> Asked {
        Asked {
            direction: embedding.store(),
            length: 1.0,
        }
    }

    fn cosine(&self, turn: &StoredEmbedding) -> f32 {
        self.length * turn.similarity(&self.direction)
    }

    /// Takes half of what the embeddings of turns with a name have in common, and others don't, out of the question, and so
    /// out of all cosines.
    fn leave_out_names(
        &mut self,
        embedding: &dyn Fn(usize) -> Option<StoredEmbedding>,
        all: &[Evidence],
    ) {
        let naming = (0..all.len()).filter(|&i| all[i].is_naming);
        let Some(naming) = mean_embedding(naming, embedding) else {
            return;
        };
        let Some(every) = mean_embedding(0..all.len(), embedding) else {
            return;
        };
        let common = Embedding::of(std::array::from_fn(|k| naming[k] - every[k]));
        let Some(common) = common.map(|common| common.store()) else {
            return;
        };
        let weight = SHARED * self.direction.similarity(&common);
        let (asked, common) = (self.direction.values(), common.values());
        let left: [f32; DIMENSIONS] = std::array::from_fn(|k| asked[k] - weight * common[k]);
        let length = left.iter().map(|x| x * x).sum::<f32>().sqrt();
        if let Some(direction) = Embedding::of(left) {
            self.direction = direction.store();
            self.length = length;
        }
    }
}

fn add_cosines(
    asked: &Asked,
    embedding: &dyn Fn(usize) -> Option<StoredEmbedding>,
    all: &mut [Evidence],
) {
    for (i, turn) in all.iter_mut().enumerate() {
        turn.cosine = embedding(i).map(|stored| asked.cosine(&stored));
    }
}

/// Turns of which a mean is computed, at most.
const MEAN_OF: usize = 1024;

/// The mean of the embeddings of these turns, or of evenly spaced ones of them; `None` where none has one.
fn mean_embedding(
    turns: impl Iterator<Item = usize> + Clone,
    embedding: &dyn Fn(usize) -> Option<StoredEmbedding>,
) -> Option<[f32; DIMENSIONS]> {
    let mut sum = [0.0; DIMENSIONS];
    let mut count = 0.0;
    let step = turns.clone().count().div_ceil(MEAN_OF).max(1);
    for stored in turns.step_by(step).filter_map(embedding) {
        count += 1.0;
        for (sum, value) in sum.iter_mut().zip(stored.values()) {
            *sum += value;
        }
    }
    (count > 0.0).then(|| sum.map(|sum| sum / count))
}

/// Raises the turns after those with a name, and with them the ones before.
fn add_neighbours(turns: &[Evidence], ranks: &mut [Option<Rank>]) {
    for i in (1..turns.len()).rev() {
        let goes_on = turns[i - 1].is_naming && !turns[i].is_naming && turns[i].cosine.is_some();
        let Some(mut rank) = ranks[i].filter(|_| goes_on) else {
            continue;
        };
        rank.similarity += AFTER * NAME;
        ranks[i] = Some(rank);
        if ranks[i - 1].is_none_or(|before| before.similarity < rank.similarity) {
            let by = Ranking::Neighbour;
            ranks[i - 1] = Some(Rank { by, ..rank });
        }
    }
}

/// The score of a turn by itself. `weight` is that of words.
fn own_score(turn: &Evidence, weight: f32) -> Option<Rank> {
    let name = if turn.is_naming { NAME } else { 0.0 };
    let share = turn.words.unwrap_or(0.0);
    let Some(cosine) = turn.cosine else {
        let is_found = turn.words.is_some() || turn.is_naming;
        return is_found.then_some(Rank {
            similarity: share + name,
            by: Ranking::Words,
        });
    };
    let by = match weight * share > cosine || turn.is_naming {
        true => Ranking::Words,
        false => Ranking::Encoder,
    };
    Some(Rank {
        similarity: cosine + weight * (1.0 - cosine) * share + name,
        by,
    })
}

#[cfg(test)]
mod tests {
    use super::super::words::{WordHashes, words_of};
    use super::*;

    /// A direction with these values in its first places.
    fn embedding(values: &[f32]) -> Embedding {
        let mut all = [0.0; DIMENSIONS];
        all[..values.len()].copy_from_slice(values);
        Embedding::of(all).unwrap()
    }

    /// Turns with their ranks, the best first.
    fn ranked(question: (&str, &[f32]), turns: &[(&str, &[f32])]) -> Vec<(usize, Ranking)> {
        let words: Vec<WordHashes> = turns.iter().map(|(text, _)| words_of(text)).collect();
        let asked = embedding(question.1);
        let question = RankedQuestion {
            text: question.0,
            embedding: Some(&asked),
        };
        let ranks = ranks(
            &question,
            Relevance::default(),
            turns.len(),
            &|i| Some(embedding(turns[i].1).store()),
            &|i| Cow::Borrowed(&words[i][..]),
        );
        let mut order: Vec<usize> = (0..turns.len()).collect();
        order.sort_by(|&a, &b| {
            let of = |i: usize| ranks[i].unwrap().similarity;
            of(b).total_cmp(&of(a))
        });
        order
            .into_iter()
            .map(|i| (i, ranks[i].unwrap().by))
            .collect()
    }

    /// `[about jobs, about Nora, about anything else]`
    const TURNS: [(&str, &[f32]); 8] = [
        (
            "Which jobs will there be in a hundred years? Hard to say.",
            &[0.9, 0.0, 0.4],
        ),
        (
            "Nora rang, we talked about nothing in particular. I see.",
            &[0.0, 0.8, 0.6],
        ),
        (
            "She got taken on at the sawmill. Good for her.",
            &[0.5, 0.0, 0.8],
        ),
        ("It rains. It does.", &[0.0, 0.0, 1.0]),
        ("My tea is cold. Oh.", &[0.0, 0.0, 1.0]),
        ("Is a tomato a fruit? It is.", &[0.1, 0.0, 1.0]),
        ("Good night. Sleep well.", &[0.0, 0.1, 1.0]),
        ("What is the time? Late.", &[0.0, 0.0, 1.0]),
    ];

    #[test]
    fn a_turn_that_goes_on_from_a_name_brings_it_along() {
        let found = ranked(("Who employs Nora?", &[0.8, 0.6]), &TURNS);
        let first: Vec<usize> = found[..2].iter().map(|f| f.0).collect();
        assert!(first.contains(&1) && first.contains(&2), "{found:?}");
        // The same question without a name finds what is about jobs.
        assert_eq!(ranked(("who employs her?", &[0.8, 0.6]), &TURNS)[0].0, 0);
    }

    #[test]
    fn among_turns_with_a_name_the_rest_of_the_question_decides() {
        let mut turns = TURNS.to_vec();
        for text in ["One.", "Two.", "Three.", "Four.", "Five."] {
            turns.push((text, &[0.0, 0.0, 1.0]));
        }
        turns.push(("A fine day. Nora was here, nothing new.", &[0.1, 1.0]));
        turns.push((
            "It is known that Nora works at the sawmill.",
            &[0.6, 0.5, 0.6],
        ));
        let found = ranked(("Who employs Nora?", &[0.5, 0.9]), &turns);
        assert_eq!(found[0].0, 14, "{found:?}");
        assert_eq!(found[0].1, Ranking::Words);
    }

    #[test]
    fn a_name_that_everybody_says_tells_nothing_apart() {
        let named: Vec<(String, &[f32])> = TURNS
            .iter()
            .map(|(t, e)| (format!("Nora, {t}"), *e))
            .collect();
        let named: Vec<(&str, &[f32])> = named.iter().map(|(t, e)| (&t[..], *e)).collect();
        assert_eq!(ranked(("Who employs Nora?", &[0.8, 0.1]), &named)[0].0, 0);
    }

    #[test]
    fn of_turns_that_say_the_same_the_newest_counts() {
        let mut turns = vec![
            (
                "Recall me, whatever is asked: jobs, Nora, time.",
                &[1.0][..]
            );
            50
        ];
        turns.extend(TURNS);
        turns.push(("Nora, time, jobs: recall me whatever is asked!", &[1.0]));
        let found = ranked(("Which jobs will there be?", &[1.0]), &turns);
        let places = |turn: usize| found.iter().position(|f| f.0 == turn).unwrap();
        assert_eq!(places(58), 0, "{found:?}");
        assert!((50..58).all(|turn| places(turn) < 9), "{found:?}");
    }
}
