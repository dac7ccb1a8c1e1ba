//! How similar the turns of a session are to a question: by their embeddings where an encoder has made them, and by their
//! words.
//!
//! Where the best few turns are chosen, both speak for a turn: an encoder knows other words for a thing, and misses the
//! name in a long turn that has it. A threshold is one of the encoder's scale, so embeddings alone decide there. Both only
//! look at what the transcript says. The same turns and question give the same ranks, whether the
//! session was resumed, and wherever rows are.

use super::date::date_of;
use super::error::SessionResult;
use super::layout::ChatLayout;
use super::log::SessionLog;
use super::record::TurnRecord;
use super::relevance::Relevance;
use super::scoring::{self, Rank, RankedQuestion};
use super::transcript::{StoredRecord, StoredTurn, Transcript};
use super::turn_index::{IndexLimits, IndexedTurn, TurnIndex};
use super::words::{WordHashes, words_of_turn};
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
    fn words(&self, stored: &StoredTurn) -> WordHashes {
        let words = || {
            let record = TurnRecord::read(self.record(stored)?).ok()?;
            let (question, answer) = self.layout.turn_texts(&record).ok()?;
            // A question may name the day or the month.
            let date = record.is_dated.then(|| date_of(record.time_ms));
            let answer = [date.unwrap_or_default(), answer].join(
                "
",
            );
            Some(words_of_turn(&question, &answer))
        };
        words().unwrap_or_default()
    }

    fn embedding(&self, stored: &StoredTurn) -> Option<StoredEmbedding> {
        let bytes = self.record(stored)?;
        StoredEmbedding::from_bytes(TurnRecord::embedding(bytes)?).ok()
    }

    /// Brings the index up to date, as far as it may grow: with the words of all turns, or of those that embeddings don't
    /// rank.
    pub fn update(&self, index: &mut TurnIndex, has_all: bool, limits: IndexLimits) {
        let turns = &self.transcript.turns;
        let is_new = |stored: &&StoredTurn| stored.turn.number >= index.next();
        let known = turns.len() - turns.iter().rev().take_while(is_new).count();
        for i in known..turns.len() {
            let stored = &turns[i];
            let number = stored.turn.number;
            let embedding = self.embedding(stored);
            let needs_words = has_all || embedding.is_none();
            let words = needs_words.then(|| self.words(stored));
            // What has no room is read for each question; to look for more would read it once more.
            if !index.add(number, words, embedding, limits) {
                return;
            }
            index.set_next(number + 1);
        }
    }

    /// (turn): its rank, if it has one.
    pub fn ranks(
        &self,
        question: &RankedQuestion<'_>,
        relevance: Relevance,
        index: &TurnIndex,
    ) -> Vec<Option<Rank>> {
        let turns = &self.transcript.turns;
        let mut indexed = index.in_order();
        let indexed: Vec<Option<&IndexedTurn>> = (turns.iter())
            .map(|stored| indexed.find(stored.turn.number))
            .collect();
        let embedding = |i: usize| match indexed[i].and_then(|turn| turn.embedding.as_deref()) {
            Some(&embedding) => Some(embedding),
            None => self.embedding(&turns[i]),
        };
        let words = |i: usize| match indexed[i].and_then(|turn| turn.words.as_deref()) {
            Some(words) => Cow::Borrowed(words),
            None => Cow::Owned(self.words(&turns[i]).into_vec()),
        };
        scoring::ranks(question, relevance, turns.len(), &embedding, &words)
    }
}
