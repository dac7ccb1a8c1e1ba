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
//! A name is what a question shares with the turns about a person, whatever the other words: a turn that has it scores
//! [`NAME`] more, and so does one after it with a sentence that begins with "she". Among these the name says nothing any
//! more, and encoders hear little else: half of what their embeddings have in common is left out of the cosine. A turn
//! that goes on brings the one before it. Two people in one question take turns in the order, so that one has not all the
//! room. Where no name leads, what turns beside each other are about is often the same, and one lends to the other; and
//! "my dentist" is looked for apart from what is asked of them.
//!
//! Of turns that say the same the newest counts: what was said a thousand times leaves room for what was said once, and
//! takes no weight from its words.

use super::embed::QuestionEmbedding;
use super::relevance::Relevance;
use super::stems::split_by_person;
use super::words::{NameSet, WordRanking, goes_on, words_hash};
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
    pub embedding: Option<&'a QuestionEmbedding>,
}

/// What a name adds to a cosine: more than turns about one person differ by.
const NAME: f32 = 0.5;

/// The same as a share, for a turn after one that has the name: with a sentence that begins with a pronoun, which hardly
/// any turn has that is about something else, and without.
const AFTER_WITH_PRONOUN: f32 = 1.4;
const AFTER: f32 = 0.3;

/// Where no name leads to the turns, how much of what a neighbour has more a turn is lent.
const LENT: f32 = 0.4;

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
    /// Names that are in the question too.
    names: NameSet,
    /// It begins a sentence with a pronoun.
    goes_on: bool,
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
    let adds_words = relevance.adds_words();
    let asked = question.embedding.map(|asked| Asked::new(&asked.whole));
    if let Some(asked) = asked.as_ref().filter(|_| !adds_words) {
        add_cosines(asked, embedding, &mut all);
    }
    let has_names = add_words(question.text, relevance, words, &mut all);
    if !adds_words {
        let mut ranks = own_scores(&all, WORDS);
        add_neighbours(&all, &mut ranks);
        return ranks;
    }
    if !has_names && let Some(parts) = parts_of(question) {
        return ranks_by_parts(parts, relevance, &all, embedding, words);
    }
    if let Some(mut asked) = asked {
        asked.leave_out_names(embedding, &all);
        add_cosines(&asked, embedding, &mut all);
    }
    let weight = match has_names {
        true => WORDS_BESIDE_NAMES,
        false => WORDS,
    };
    let mut ranks = own_scores(&all, weight);
    put_repeats_last(&all, &mut ranks);
    match has_names {
        true => {
            add_neighbours(&all, &mut ranks);
            take_turns(&all, &mut ranks);
        }
        false => lend_to_neighbours(&all, &mut ranks),
    }
    ranks
}

/// Who is asked about, and what is asked of them, where a question says so in two parts.
fn parts_of<'a>(question: &RankedQuestion<'a>) -> Option<[(String, &'a Embedding); 2]> {
    let [who, what] = &**question.embedding?.parts.as_ref()?;
    let [asked_who, asked_what] = split_by_person(question.text)?;
    Some([(asked_who, who), (asked_what, what)])
}

/// The better of the ranks for one part and for the other. `all` knows which turns are said again.
fn ranks_by_parts<'a>(
    parts: [(String, &Embedding); 2],
    relevance: Relevance,
    all: &[Evidence],
    embedding: &dyn Fn(usize) -> Option<StoredEmbedding>,
    words: &dyn Fn(usize) -> Cow<'a, [u32]>,
) -> Vec<Option<Rank>> {
    let mut ranks: Vec<Option<Rank>> = vec![None; all.len()];
    for (text, asked) in parts {
        let mut all = vec![Evidence::default(); all.len()];
        add_words(&text, relevance, words, &mut all);
        add_cosines(&Asked::new(asked), embedding, &mut all);
        for (rank, own) in ranks.iter_mut().zip(own_scores(&all, WORDS)) {
            *rank = better(*rank, own);
        }
    }
    put_repeats_last(all, &mut ranks);
    ranks
}

fn better(one: Option<Rank>, other: Option<Rank>) -> Option<Rank> {
    match one.zip(other) {
        Some((one, other)) if one.similarity < other.similarity => Some(other),
        Some((one, _)) => Some(one),
        None => one.or(other),
    }
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
        all[i].names = ranking.names_in(&words);
        all[i].goes_on = goes_on(&words);
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
        let naming = (0..all.len()).filter(|&i| all[i].names != 0);
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

/// The names of the turn before this one, which has an embedding and no name itself.
fn names_before(turns: &[Evidence], i: usize) -> NameSet {
    let is_open = turns[i].names == 0 && turns[i].cosine.is_some();
    let before = i.checked_sub(1).filter(|_| is_open);
    before.map_or(0, |before| turns[before].names)
}

/// Raises the turns after those with a name, and with them the ones before.
fn add_neighbours(turns: &[Evidence], ranks: &mut [Option<Rank>]) {
    for i in (1..turns.len()).rev() {
        let Some(mut rank) = ranks[i].filter(|_| names_before(turns, i) != 0) else {
            continue;
        };
        rank.similarity += NAME
            * match turns[i].goes_on {
                true => AFTER_WITH_PRONOUN,
                false => AFTER,
            };
        ranks[i] = Some(rank);
        if ranks[i - 1].is_none_or(|before| before.similarity < rank.similarity) {
            let by = Ranking::Neighbour;
            ranks[i - 1] = Some(Rank { by, ..rank });
        }
    }
}

/// Puts turns about several people in an order in which each person has every second, or third, place. Their scores stay,
/// and go to other turns.
fn take_turns(turns: &[Evidence], ranks: &mut [Option<Rank>]) {
    let names = |i: usize| turns[i].names | names_before(turns, i);
    let every = (0..turns.len()).fold(0, |every, i| every | names(i));
    if every.count_ones() < 2 {
        return;
    }
    let about = (0..turns.len()).filter(|&i| names(i) != 0);
    let mut about: Vec<(f32, usize)> = about
        .filter_map(|i| Some((ranks[i]?.similarity, i)))
        .collect();
    about.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    let people = (0..NameSet::BITS).map(|name| 1 << name);
    let mut people: Vec<_> = (people.filter(|name| every & name != 0))
        .map(|name| about.iter().filter(move |turn| names(turn.1) & name != 0))
        .collect();
    let mut is_placed = vec![false; turns.len()];
    let mut order = Vec::with_capacity(about.len());
    while order.len() < about.len() {
        for turns in &mut people {
            if let Some(&(_, i)) = turns.find(|turn| !is_placed[turn.1]) {
                is_placed[i] = true;
                order.push(i);
            }
        }
    }
    for (i, (score, _)) in order.into_iter().zip(about.iter().copied()) {
        ranks[i] = ranks[i].map(|rank| Rank {
            similarity: score,
            ..rank
        });
    }
}

/// Raises turns beside better ones.
fn lend_to_neighbours(turns: &[Evidence], ranks: &mut [Option<Rank>]) {
    let own: Vec<f32> = (ranks.iter())
        .map(|rank| rank.map_or(f32::NEG_INFINITY, |rank| rank.similarity))
        .collect();
    for (i, rank) in ranks.iter_mut().enumerate() {
        let Some(rank) = rank.as_mut().filter(|_| turns[i].cosine.is_some()) else {
            continue;
        };
        let before = i.checked_sub(1).map_or(f32::NEG_INFINITY, |i| own[i]);
        let after = own.get(i + 1).copied().unwrap_or(f32::NEG_INFINITY);
        let lent = LENT * (before.max(after) - rank.similarity).max(0.0);
        // What is said again later is lent nothing: a thousand of them would lend it to each other.
        if !turns[i].is_repeated {
            rank.similarity += lent;
        }
    }
}

fn own_scores(turns: &[Evidence], weight: f32) -> Vec<Option<Rank>> {
    turns.iter().map(|turn| own_score(turn, weight)).collect()
}

/// The score of a turn by itself. `weight` is that of words.
fn own_score(turn: &Evidence, weight: f32) -> Option<Rank> {
    let name = if turn.names != 0 { NAME } else { 0.0 };
    let share = turn.words.unwrap_or(0.0);
    let Some(cosine) = turn.cosine else {
        let is_found = turn.words.is_some() || turn.names != 0;
        return is_found.then_some(Rank {
            similarity: share + name,
            by: Ranking::Words,
        });
    };
    let by = match weight * share > cosine || turn.names != 0 {
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
    use super::super::words::{WordHashes, words_of_turn};
    use super::*;

    /// A direction with these values in its first places.
    fn embedding(values: &[f32]) -> Embedding {
        let mut all = [0.0; DIMENSIONS];
        all[..values.len()].copy_from_slice(values);
        Embedding::of(all).unwrap()
    }

    /// Turns with their ranks, the best first.
    fn ranked(question: (&str, &[f32]), turns: &[(&str, &[f32])]) -> Vec<(usize, Ranking)> {
        ranked_with_parts(question, None, turns)
    }

    fn ranked_with_parts(
        question: (&str, &[f32]),
        parts: Option<[&[f32]; 2]>,
        turns: &[(&str, &[f32])],
    ) -> Vec<(usize, Ranking)> {
        let words = turns.iter().map(|(text, _)| words_of_turn(text, ""));
        let words: Vec<WordHashes> = words.collect();
        let asked = QuestionEmbedding {
            whole: embedding(question.1),
            parts: parts.map(|parts| Box::new(parts.map(embedding))),
        };
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
    fn a_pronoun_says_that_a_turn_goes_on() {
        let mut turns = TURNS.to_vec();
        turns.push(("Nora again. Oh.", &[0.0, 0.8, 0.6]));
        // The same for the encoder as "She got taken on", and nearer to the question.
        turns.push(("Someone got taken on. I see.", &[0.6, 0.0, 0.8]));
        let place = |turns: &[(&str, &[f32])], turn: usize| {
            let found = ranked(("Who employs Nora?", &[0.8, 0.6]), turns);
            found.iter().position(|f| f.0 == turn).unwrap()
        };
        assert!(place(&turns, 2) < place(&turns, 9));
        turns[9].0 = "He got taken on. I see.";
        assert!(place(&turns, 2) > place(&turns, 9));
    }

    #[test]
    fn two_people_share_the_room() {
        let mut turns = TURNS.to_vec();
        for text in ["One.", "Two.", "Three.", "Four.", "Five.", "Six."] {
            turns.push((text, &[0.0, 0.0, 1.0]));
        }
        // Five turns about Leon that are nearer to the question than both about Nora.
        for text in [
            "Leon one",
            "Leon two",
            "Leon three",
            "Leon four",
            "Leon five",
        ] {
            turns.push((text, &[0.9, 0.0, 0.3]));
            turns.push(("No. I see.", &[0.0, 0.0, 1.0]));
        }
        turns.push(("Is Nora here? Maybe.", &[0.5, 0.0, 0.8]));
        let found = ranked(("Where do Nora and Leon work?", &[0.8, 0.1]), &turns);
        let is_leon = |place: usize| turns[found[place].0].0.starts_with("Leon");
        let order: Vec<bool> = (0..5).map(is_leon).collect();
        assert_eq!(
            order.iter().filter(|&&is_leon| is_leon).count(),
            3,
            "{found:?}"
        );
        let found = ranked(("Where does Leon work?", &[0.8, 0.1]), &turns);
        assert!((0..5).all(|place| turns[found[place].0].0.starts_with("Leon")));
    }

    #[test]
    fn without_names_a_turn_beside_a_good_one_is_better() {
        let turns: Vec<(String, &[f32])> = (0..9)
            .map(|turn| match turn {
                6 => ("we painted the fence".to_owned(), &[1.0][..]),
                _ => (format!("nothing {turn}"), &[0.2, 1.0][..]),
            })
            .collect();
        let turns: Vec<(&str, &[f32])> = turns.iter().map(|(t, e)| (&t[..], *e)).collect();
        let found = ranked(("what was painted?", &[1.0]), &turns);
        let mut best: Vec<usize> = found[..3].iter().map(|f| f.0).collect();
        best.sort_unstable();
        assert_eq!(best, [5, 6, 7]);
    }

    #[test]
    fn who_somebody_is_and_what_is_asked_of_them_are_looked_for_apart() {
        let mut turns = TURNS.to_vec();
        turns.push(("Piotr had the pliers in my mouth.", &[0.0, 0.0, 0.5, 1.0]));
        turns.push(("Piotr settled down in Ghent.", &[0.0, 0.0, 0.5, 0.0, 1.0]));
        // Half about both.
        turns.push(("I eat sweets. Bad for teeth.", &[0.0, 0.0, 0.6, 0.5, 0.5]));
        let asked = (
            "Where does my dentist live?",
            &[0.0, 0.0, 0.0, 0.7, 0.7][..],
        );
        assert_eq!(ranked(asked, &turns)[0].0, 10);
        let parts: [&[f32]; 2] = [&[0.0, 0.0, 0.0, 1.0], &[0.0, 0.0, 0.0, 0.0, 1.0]];
        let found = ranked_with_parts(asked, Some(parts), &turns);
        let mut best = [found[0].0, found[1].0];
        best.sort_unstable();
        assert_eq!(best, [8, 9], "{found:?}");
        // A name says who it is.
        let named = ("What did my friend Nora get?", asked.1);
        let found = ranked_with_parts(named, Some(parts), &turns);
        let place = |turn: usize| found.iter().position(|f| f.0 == turn).unwrap();
        assert!(place(2) < place(8).min(place(9)), "{found:?}");
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
