//! The merges of byte-level BPE: which pairs of tokens join, and in which order.

use super::pieces::{NO_ID, Pieces, Slots, TokenKind, VocabError, find_text};

/// More merges than tokens make no sense, but duplicates are harmless up to here.
const MERGES_MAX: usize = 1 << 23;

/// The rank of a pair that does not merge.
pub(super) const NO_RANK: u32 = u32::MAX;

/// Which pairs merge into what. The rank is the place in `list`.
#[derive(Default)]
pub struct Merges {
    /// `[left, right, joined]`
    pub(super) list: Vec<[u32; 3]>,
    slots: Option<Slots>,
}

impl Merges {
    /// From lines `left right`. A line that names no tokens, or whose result is none, can never
    /// apply to a text that ends in tokens: it is left out, and counted.
    pub fn new<'a>(
        lines: impl Iterator<Item = &'a [u8]>,
        pieces: &Pieces,
        kinds: &[TokenKind],
    ) -> Result<Merges, VocabError> {
        let mut list: Vec<[u32; 3]> = Vec::new();
        let mut joined = Vec::new();
        let mut left_out = 0usize;
        for (count, line) in lines.enumerate() {
            if count >= MERGES_MAX {
                let why = format!("more than {MERGES_MAX} merges");
                return Err(VocabError::bad("tokenizer.ggml.merges", why));
            }
            let merge = split_line(line).map(|(left, right)| {
                joined.clear();
                joined.extend_from_slice(left);
                joined.extend_from_slice(right);
                [left, right, &joined].map(|piece| find_text(pieces, kinds, piece))
            });
            match merge {
                Some(merge) if !merge.contains(&NO_ID) => list.push(merge),
                _ => left_out += 1,
            }
        }
        if left_out > 0 {
            log::warn!("tokenizer.ggml.merges: {left_out} merges name no tokens and are ignored");
        }
        list.shrink_to_fit();
        let mut slots = Slots::new(list.len());
        for (rank, &[left, right, _]) in list.iter().enumerate() {
            let is_it = |other: u32| list[other as usize][..2] == [left, right];
            // Of equal merges the first has the say.
            if let Err(slot) = slots.find(slots.hash((left, right)), is_it) {
                slots.fill(slot, rank as u32);
            }
        }
        Ok(Merges {
            list,
            slots: Some(slots),
        })
    }

    pub(super) fn rank(&self, left: u32, right: u32) -> u32 {
        let Some(slots) = &self.slots else {
            return NO_RANK;
        };
        let is_it = |rank: u32| self.list[rank as usize][..2] == [left, right];
        let found = slots.find(slots.hash((left, right)), is_it);
        found.unwrap_or(NO_RANK)
    }
}

/// The space that parts a merge is never the first byte: a piece has at least one.
fn split_line(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = 1 + line.get(1..)?.iter().position(|&b| b == b' ')?;
    Some((&line[..space], &line[space + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_lines_are_parted_at_the_first_space_after_a_byte() {
        assert_eq!(split_line(b"a b"), Some((&b"a"[..], &b"b"[..])));
        assert_eq!(split_line(b"  b"), Some((&b" "[..], &b"b"[..])));
        for bad in [&b""[..], b" ", b"ab"] {
            assert_eq!(split_line(bad), None);
        }
        assert_eq!(split_line(b"a "), Some((&b"a"[..], &b""[..])));
    }
}
