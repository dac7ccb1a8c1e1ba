//! What ranking needs of a session's turns, in memory: their words and their embeddings.
//!
//! It is made from the turns' records, so it is never saved, and dropped where memory is short. What has no room is read
//! from the record for each question: the ranks are the same.

use super::words::WordHashes;
use haversack_engine::encoder::StoredEmbedding;
use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;

/// Most bytes of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexLimits {
    pub words: usize,
    pub embeddings: usize,
}

#[derive(Clone, Debug)]
pub(super) struct IndexedTurn {
    /// `None` where embeddings alone rank it.
    pub words: Option<WordHashes>,
    pub embedding: Option<Box<StoredEmbedding>>,
}

/// Of turns, by turn number.
#[derive(Clone, Debug, Default)]
pub(super) struct TurnIndex {
    turns: BTreeMap<u64, IndexedTurn>,
    /// Words of all turns.
    words: usize,
    embeddings: usize,
    /// Number of the first turn that was not offered yet.
    next: u64,
}

impl TurnIndex {
    /// Number of the first turn that is not known to be here, or not to be needed.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The turns before this number need not be looked at again.
    pub fn set_next(&mut self, turn: u64) {
        self.next = turn;
    }

    /// For turns that are asked for in ascending order.
    pub fn in_order(&self) -> IndexCursor<'_> {
        IndexCursor {
            turns: self.turns.iter().peekable(),
        }
    }

    /// Keeps the words of a turn if they have room, and if they have, its embedding if that has; returns whether the words
    /// have.
    pub fn add(
        &mut self,
        turn: u64,
        words: Option<WordHashes>,
        embedding: Option<StoredEmbedding>,
        limits: IndexLimits,
    ) -> bool {
        let count = words.as_ref().map_or(0, |words| words.len());
        if words_bytes(self.turns.len() + 1, self.words + count) > limits.words {
            return false;
        }
        let has_room = embeddings_bytes(self.embeddings + 1) <= limits.embeddings;
        let embedding = embedding.filter(|_| has_room).map(Box::new);
        if words.is_some() || embedding.is_some() {
            self.words += count;
            self.embeddings += usize::from(embedding.is_some());
            self.turns.insert(turn, IndexedTurn { words, embedding });
        }
        true
    }

    pub fn remove(&mut self, turn: u64) {
        if let Some(removed) = self.turns.remove(&turn) {
            self.words -= removed.words.map_or(0, |words| words.len());
            self.embeddings -= usize::from(removed.embedding.is_some());
        }
    }

    pub fn clear(&mut self) {
        *self = TurnIndex::default();
    }

    pub fn heap_bytes(&self) -> usize {
        words_bytes(self.turns.len(), self.words) + embeddings_bytes(self.embeddings)
    }
}

/// A tree's nodes are half empty at worst, and each list is an allocation.
fn words_bytes(turns: usize, words: usize) -> usize {
    turns * (2 * size_of::<(u64, IndexedTurn)>() + 16) + words * size_of::<u32>()
}

fn embeddings_bytes(embeddings: usize) -> usize {
    embeddings * (size_of::<StoredEmbedding>() + 16)
}

/// Finds turns, each with a higher number than the one before.
pub(super) struct IndexCursor<'a> {
    turns: Peekable<btree_map::Iter<'a, u64, IndexedTurn>>,
}

impl<'a> IndexCursor<'a> {
    pub fn find(&mut self, turn: u64) -> Option<&'a IndexedTurn> {
        while self.turns.next_if(|(number, _)| **number < turn).is_some() {}
        let found = self.turns.next_if(|(number, _)| **number == turn);
        found.map(|(_, indexed)| indexed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::words_of;
    use super::*;
    use haversack_engine::encoder::{DIMENSIONS, Embedding};

    #[test]
    fn the_index_has_limits() {
        let mut index = TurnIndex::default();
        let words = words_of(&"word ".repeat(100));
        let embedding = Embedding::of([1.0; DIMENSIONS]).unwrap().store();
        let limits = IndexLimits {
            words: 10_000,
            embeddings: 2_000,
        };
        let has = |index: &TurnIndex, turn: u64| {
            let mut turns = index.in_order();
            let found = turns.find(turn);
            found.map(|found| (found.words.is_some(), found.embedding.is_some()))
        };
        for turn in 0..100 {
            index.add(turn, Some(words.clone()), Some(embedding), limits);
        }
        assert!(index.heap_bytes() <= 12_000);
        assert_eq!(has(&index, 0), Some((true, true)));
        assert_eq!(has(&index, 10), Some((true, false)));
        assert_eq!(has(&index, 99), None);
        for turn in 0..100 {
            index.remove(turn);
        }
        assert_eq!(index.heap_bytes(), 0);
        assert!(index.add(99, None, Some(embedding), limits));
        assert_eq!(has(&index, 99), Some((false, true)));
    }

    #[test]
    fn turns_are_found_in_order() {
        let mut index = TurnIndex::default();
        let limits = IndexLimits {
            words: usize::MAX,
            embeddings: 0,
        };
        for turn in [2, 3, 7] {
            index.add(turn, Some(words_of("a")), None, limits);
        }
        let mut turns = index.in_order();
        let found: Vec<bool> = (0..9).map(|turn| turns.find(turn).is_some()).collect();
        let expected: Vec<bool> = (0..9).map(|turn| [2, 3, 7].contains(&turn)).collect();
        assert_eq!(found, expected);
    }
}
