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
use super::scoring::{self, Rank, RankedQuestion};
use super::transcript::{StoredRecord, StoredTurn, Transcript};
use super::words::{WordIndex, words_of};
use haversack_engine::encoder::StoredEmbedding;
use haversack_memory::journal::JournalMap;
use std::borrow::Cow;

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
        let turns = &self.transcript.turns;
        let is_new = |stored: &&StoredTurn| stored.turn.number >= index.next();
        let known = turns.len() - turns.iter().rev().take_while(is_new).count();
        for i in known..turns.len() {
            let stored = &turns[i];
            let number = stored.turn.number;
            let has_embedding = || {
                let bytes = self.record(stored).and_then(TurnRecord::embedding);
                bytes.is_some_and(|bytes| !bytes.is_empty())
            };
            if has_all || !has_embedding() {
                let words = self.words(stored, index).into_owned();
                // What has no room is read for each question; to look for more would read it once more.
                if !index.add(number, words.into(), bytes_max) {
                    return;
                }
            }
            index.set_next(number + 1);
        }
    }

    /// (turn): its rank, if it has one.
    pub fn ranks(
        &self,
        question: &RankedQuestion<'_>,
        relevance: Relevance,
        index: &WordIndex,
    ) -> Vec<Option<Rank>> {
        let turns = &self.transcript.turns;
        let embedding = |i: usize| {
            let bytes = self.record(&turns[i])?;
            StoredEmbedding::from_bytes(TurnRecord::embedding(bytes)?).ok()
        };
        let words = |i: usize| self.words(&turns[i], index);
        scoring::ranks(question, relevance, turns.len(), &embedding, &words)
    }
}
