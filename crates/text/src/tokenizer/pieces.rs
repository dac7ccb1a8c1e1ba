//! The pieces of a vocabulary, in one arena with an index over them, and what kinds of tokens there are.
//!
//! ```text
//! arena    t h e ▁ c a t …          bytes of all pieces, in id order
//! offsets  0 3 6 …                  piece id = arena[offsets[id]..offsets[id + 1]]
//! slots    · 17 · · 4 …             open addressing, hash of a piece -> id
//! ```
//!
//! A `String` per token would cost three to four times as much (262,144 pieces in Gemma). The
//! hash is keyed at random, so that a file cannot choose pieces that collide.

use haversack_gguf::GgufError;
use std::hash::{BuildHasher, RandomState};

/// "No token": no vocabulary is that large ([`TOKENS_MAX`]).
pub(super) const NO_ID: u32 = u32::MAX;

/// Sixteen times the largest vocabulary known; keeps a hostile count from costing memory.
pub const TOKENS_MAX: usize = 1 << 22;

/// Longest text taken in one call. Encoding needs up to 40 bytes of scratch per byte of text, and
/// positions are 32 bits.
pub const TEXT_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    Normal,
    Unknown,
    Control,
    /// Matched before anything else, even when special text stays text.
    UserDefined,
    Unused,
    /// `<0xNN>`.
    Byte,
    /// Shown like user-defined text, but made from text only when special text is parsed.
    HiddenTag,
}

impl TokenKind {
    /// From `tokenizer.ggml.token_type`; values from outside the list are taken as normal.
    pub fn from_file(value: i32) -> TokenKind {
        match value {
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => TokenKind::Normal,
        }
    }

    /// Found in a text before it is tokenized, and shown as it is spelled.
    pub(crate) fn is_special(self) -> bool {
        use TokenKind::{Control, HiddenTag, Unknown, UserDefined};
        matches!(self, Control | Unknown | UserDefined | HiddenTag)
    }

    /// May merging end in such a token?
    pub(super) fn is_text(self) -> bool {
        use TokenKind::{Normal, Unused, UserDefined};
        matches!(self, Normal | UserDefined | Unused)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum VocabError {
    #[error("{key} is missing")]
    Missing { key: &'static str },
    #[error("{key}: {why}")]
    Bad { key: &'static str, why: String },
    /// The file's own complaint; it names file and key.
    #[error(transparent)]
    File(#[from] GgufError),
    #[error("{file}: {what}")]
    In { file: String, what: Box<VocabError> },
}

impl VocabError {
    pub(super) fn bad(key: &'static str, why: impl Into<String>) -> VocabError {
        VocabError::Bad {
            key,
            why: why.into(),
        }
    }
}

/// All pieces, findable by id and by bytes. See the module for the layout.
pub struct Pieces {
    arena: Vec<u8>,
    /// (token + 1)
    offsets: Vec<u32>,
    slots: Slots,
    bytes_max: usize,
    duplicates: usize,
}

impl Pieces {
    pub fn new<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Pieces, VocabError> {
        const KEY: &str = "tokenizer.ggml.tokens";
        let mut arena: Vec<u8> = Vec::new();
        let mut offsets = vec![0u32];
        let mut bytes_max = 0;
        for piece in pieces {
            if offsets.len() > TOKENS_MAX {
                let why = format!("more than {TOKENS_MAX} tokens");
                return Err(VocabError::bad(KEY, why));
            }
            arena.extend_from_slice(piece);
            bytes_max = bytes_max.max(piece.len());
            let Ok(end) = u32::try_from(arena.len()) else {
                let why = "the tokens have more than 4 GiB of text";
                return Err(VocabError::bad(KEY, why));
            };
            offsets.push(end);
        }
        arena.shrink_to_fit();
        offsets.shrink_to_fit();
        let len = offsets.len() - 1;
        let mut all = Pieces {
            arena,
            offsets,
            slots: Slots::new(len),
            bytes_max,
            duplicates: 0,
        };
        for id in 0..len as u32 {
            // Pieces of no bytes match nothing: they would make no progress.
            let Some(piece) = all.get(id).filter(|p| !p.is_empty()) else {
                continue;
            };
            let hash = all.slots.hash(piece);
            match all.slots.find(hash, |other| all.get(other) == Some(piece)) {
                // The first of several equal pieces is the one text becomes.
                Ok(_) => all.duplicates += 1,
                Err(slot) => all.slots.fill(slot, id),
            }
        }
        Ok(all)
    }

    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let at = id as usize;
        let (start, end) = (self.offsets.get(at)?, self.offsets.get(at + 1)?);
        self.arena.get(*start as usize..*end as usize)
    }

    pub fn find(&self, piece: &[u8]) -> Option<u32> {
        if piece.is_empty() || piece.len() > self.bytes_max {
            return None;
        }
        let hash = self.slots.hash(piece);
        let found = self.slots.find(hash, |id| self.get(id) == Some(piece));
        found.ok()
    }

    /// Length of the longest piece in bytes.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// How many pieces repeat an earlier one.
    pub fn duplicates(&self) -> usize {
        self.duplicates
    }

    pub fn heap_bytes(&self) -> usize {
        self.arena.capacity() + self.offsets.capacity() * 4 + self.slots.heap_bytes()
    }
}

/// Open addressing over numbers below [`NO_ID`]; the keys lie elsewhere.
pub(super) struct Slots {
    table: Vec<u32>,
    hasher: RandomState,
}

impl Slots {
    /// At most three quarters full, so a search ends after a few steps.
    pub(super) fn new(len: usize) -> Slots {
        let size = (len + len / 3 + 1).next_power_of_two();
        Slots {
            table: vec![NO_ID; size],
            hasher: RandomState::new(),
        }
    }

    pub(super) fn hash(&self, key: impl std::hash::Hash) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The entry for which `is_it` holds, or the free slot where it belongs.
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Result<u32, usize> {
        let mask = self.table.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            match self.table[at] {
                NO_ID => return Err(at),
                entry if is_it(entry) => return Ok(entry),
                _ => at = (at + 1) & mask,
            }
        }
    }

    pub(super) fn fill(&mut self, slot: usize, entry: u32) {
        self.table[slot] = entry;
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.table.capacity() * 4
    }
}

/// Pieces longer than this are not made from text (the longest of SmolLM2 has 162 bytes, of Gemma
/// 48). It bounds the hashing per merge against files with giant pieces.
const PIECE_BYTES_MAX: usize = 1024;

/// The id of a piece that plain text may become.
pub(super) fn find_text(pieces: &Pieces, kinds: &[TokenKind], piece: &[u8]) -> u32 {
    if piece.len() > PIECE_BYTES_MAX {
        return NO_ID;
    }
    match pieces.find(piece) {
        Some(id) if kinds.get(id as usize).is_some_and(|kind| kind.is_text()) => id,
        _ => NO_ID,
    }
}
