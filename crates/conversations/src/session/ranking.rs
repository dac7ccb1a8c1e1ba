//! How similar the turns of a session are to a question: by their embeddings where an encoder has made them, and by their
//! words.
//!
//! Where the best few turns are chosen, both speak for a turn: an encoder knows other words for a thing, and misses the
//! name in a long turn that has it. A threshold is one of the encoder's scale, so embeddings alone decide there. Both only
//! look at what the transcript says. The same turns and question give the same ranks, whether the
//! session was resumed, and wherever rows are.

use super::error::SessionResult;
use super::layout::ChatLayout;
use super::log::SessionLog;
use super::record::TurnRecord;
use super::relevance::Relevance;
use super::transcript::{StoredRecord, StoredTurn, Transcript};
use super::words::{WordIndex, WordRanking, words_of};
use haversack_engine::encoder::{Embedding, StoredEmbedding};
use haversack_memory::journal::JournalMap;
use std::borrow::Cow;
use std::fmt;

/// What a turn was ranked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranking {
    /// The words that it shares with the question.
    Words,
    /// The sentence encoder.
    Encoder,
}

impl Ranking {
    pub fn name(self) -> &'static str {
        match self {
            Ranking::Words => "words",
            Ranking::Encoder => "encoder",
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
pub(super) struct RankedQuestion<'a> {
    pub text: &'a str,
    /// `None` without an encoder.
    pub embedding: Option<&'a Embedding>,
}

/// The turns of a session, and where their records are.
pub(super) struct Ranker<'a> {
    transcript: &'a Transcript,
    layout: &'a ChatLayout,
    map: Option<JournalMap>,
}

impl Ranker<'_> {
    pub fn new<'a>(
        transcript: &'a Transcript,
        log: &SessionLog,
        layout: &'a ChatLayout,
    ) -> SessionResult<Ranker<'a>> {
        let map = match transcript.turns.is_empty() {
            true => None,
            false => log.map()?,
        };
        Ok(Ranker {
            transcript,
            layout,
            map,
        })
    }

    fn record<'s>(&'s self, stored: &'s StoredTurn) -> Option<&'s [u8]> {
        match &stored.record {
            StoredRecord::Unsaved(bytes) => Some(bytes),
            StoredRecord::Saved(record) => self.map.as_ref()?.payload(*record).ok(),
        }
    }

    /// The words of a turn; none if its record cannot be read.
    fn words<'s>(&self, stored: &StoredTurn, index: &'s WordIndex) -> Cow<'s, [u32]> {
        if let Some(words) = index.get(stored.turn.number) {
            return Cow::Borrowed(words);
        }
        let text = || {
            let record = TurnRecord::read(self.record(stored)?).ok()?;
            let (question, answer) = self.layout.turn_texts(&record).ok()?;
            Some(format!("{question}\n{answer}"))
        };
        Cow::Owned(text().map_or(Vec::new(), |text| words_of(&text).into_vec()))
    }

    /// Brings the index up to date, as far as it may grow: with all turns, or with those that embeddings don't rank.
    pub fn update(&self, index: &mut WordIndex, has_all: bool, bytes_max: usize) {
        for stored in self.transcript.turns.iter() {
            let number = stored.turn.number;
            let has_embedding = || {
                let bytes = self.record(stored).and_then(TurnRecord::embedding);
                bytes.is_some_and(|bytes| !bytes.is_empty())
            };
            if index.get(number).is_none() && (has_all || !has_embedding()) {
                let words = self.words(stored, index).into_owned();
                index.add(number, words.into(), bytes_max);
            }
        }
    }

    /// (turn): its rank, if it has one.
    pub fn ranks(
        &self,
        question: &RankedQuestion<'_>,
        relevance: Relevance,
        index: &WordIndex,
    ) -> Vec<Option<Rank>> {
        let mut ranks = self.by_embedding(question.embedding);
        self.by_words(question.text, relevance, index, &mut ranks);
        ranks
    }

    fn by_embedding(&self, question: Option<&Embedding>) -> Vec<Option<Rank>> {
        let turns = &self.transcript.turns;
        let Some(question) = question.map(Embedding::store) else {
            return vec![None; turns.len()];
        };
        let rank = |stored: &StoredTurn| {
            let bytes = self.record(stored)?;
            let stored = StoredEmbedding::from_bytes(TurnRecord::embedding(bytes)?).ok()?;
            Some(Rank {
                similarity: stored.similarity(&question),
                by: Ranking::Encoder,
            })
        };
        turns.iter().map(rank).collect()
    }

    /// Adds what words say about all turns, or about those that have no rank yet.
    fn by_words(
        &self,
        question: &str,
        relevance: Relevance,
        index: &WordIndex,
        ranks: &mut [Option<Rank>],
    ) {
        let (max, least) = match relevance {
            // Nothing is chosen.
            Relevance::All => return,
            Relevance::Threshold(least) => (usize::MAX, least),
            Relevance::Top { turns, least, .. } => (turns, least),
        };
        let mut ranking = WordRanking::new(question);
        let turns = &self.transcript.turns;
        let all = adds_words(relevance);
        let judged: Vec<usize> = (0..turns.len())
            .filter(|&i| all || ranks[i].is_none())
            .collect();
        if ranking.is_empty() || judged.is_empty() {
            return;
        }
        let words = |&i: &usize| self.words(&turns[i], index);
        judged.iter().map(words).for_each(|w| ranking.count(&w));
        let scores = judged.iter().map(words).map(|w| ranking.score(&w));
        let scores: Vec<f64> = scores.collect();
        for (i, share) in judged.into_iter().zip(ranking.ranks(&scores, max)) {
            if let Some(share) = share.filter(|&share| share >= least) {
                ranks[i] = Some(with_words(ranks[i], share));
            }
        }
    }
}

/// Whether words speak for turns that have an embedding too.
pub(super) fn adds_words(relevance: Relevance) -> bool {
    matches!(relevance, Relevance::Top { .. })
}

/// The rank of a turn for which words speak too: nearer to 1 by this share.
fn with_words(rank: Option<Rank>, share: f32) -> Rank {
    match rank {
        Some(Rank { similarity, by }) => Rank {
            similarity: similarity + (1.0 - similarity) * share,
            by: if share > similarity {
                Ranking::Words
            } else {
                by
            },
        },
        None => Rank {
            similarity: share,
            by: Ranking::Words,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_move_a_rank_nearer_to_one() {
        let cosine = |similarity| Rank {
            similarity,
            by: Ranking::Encoder,
        };
        let both = with_words(Some(cosine(0.25)), 0.5);
        assert_eq!((both.similarity, both.by), (0.625, Ranking::Words));
        let both = with_words(Some(cosine(0.75)), 0.5);
        assert_eq!((both.similarity, both.by), (0.875, Ranking::Encoder));
        let opposite = with_words(Some(cosine(-1.0)), 1.0);
        assert_eq!(opposite.similarity, 1.0);
        assert_eq!(with_words(None, 0.3).similarity, 0.3);
        // More words, and a greater cosine, never rank lower.
        for c in [-1.0, -0.2, 0.0, 0.5, 1.0] {
            for share in [0.0, 0.1, 0.9] {
                let more = with_words(Some(cosine(c)), share + 0.1).similarity;
                assert!(more >= with_words(Some(cosine(c)), share).similarity);
                assert!(with_words(Some(cosine(c)), share).similarity >= c);
            }
        }
    }
}
