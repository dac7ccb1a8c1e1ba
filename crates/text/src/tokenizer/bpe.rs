//! Byte-level BPE. A word's bytes are the first symbols; the neighbouring pair whose merge has the
//! lowest rank is joined, the leftmost of equals first, until no pair has a merge.
//!
//! Vocabularies spell bytes as printable characters (a space is `Ġ`), GPT-2's way of keeping
//! pieces readable. The spelling is undone in [`unmap`] and otherwise only matters while loading:
//! merging runs on ids.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::merges::{Merges, NO_RANK};
use super::pieces::{NO_ID, TEXT_BYTES_MAX, find_text};
use super::vocab::Vocab;

/// The character that spells a byte: itself where it is printable Latin-1, else the next one
/// from U+0100 on.
fn spelled(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        0..=0x20 => shifted(u32::from(byte)),
        0x7F..=0xA0 => shifted(u32::from(byte) - 0x7F + 0x21),
        0xAD => shifted(0x43),
    }
}

/// The `n`-th character of those that stand for unprintable bytes.
fn shifted(n: u32) -> char {
    char::from_u32(0x100 + n).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn unspelled(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// A piece's bytes. What is not in the spelling (broken files) stands for itself.
pub(super) fn unmap(piece: &[u8]) -> Cow<'_, [u8]> {
    let Ok(text) = std::str::from_utf8(piece) else {
        return Cow::Borrowed(piece);
    };
    let mut bytes = Vec::with_capacity(piece.len());
    for c in text.chars() {
        match unspelled(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
}

/// The token of each byte. SmolLM2 lacks 21 of them.
pub(super) fn byte_ids(vocab: &Vocab) -> Box<[u32; 256]> {
    Box::new(std::array::from_fn(|byte| {
        let piece = spelled(byte as u8).to_string();
        find_text(&vocab.pieces, &vocab.kinds, piece.as_bytes())
    }))
}

/// One symbol of the word in work. Dead ones keep their place and are stepped over.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    prev: u32,
    next: u32,
    /// Rank of the merge with the next symbol. An entry of the queue counts only while it says
    /// the same, which is how outdated ones are told.
    rank: u32,
}

const END: u32 = u32::MAX;
const _: () = assert!(TEXT_BYTES_MAX < END as usize);

/// Buffers kept from word to word.
#[derive(Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    /// `rank << 32 | index of the left symbol`, lowest first.
    queue: BinaryHeap<Reverse<u64>>,
    spelled: String,
}

pub(super) fn encode_word(
    vocab: &Vocab,
    byte_ids: &[u32; 256],
    word: &str,
    scratch: &mut Scratch,
    ids: &mut Vec<u32>,
) {
    if vocab.ignore_merges {
        scratch.spelled.clear();
        // One byte is spelled with two at most: longer words need no look.
        if word.len() <= vocab.pieces.bytes_max() {
            scratch.spelled.extend(word.bytes().map(spelled));
            let id = find_text(&vocab.pieces, &vocab.kinds, scratch.spelled.as_bytes());
            if id != NO_ID {
                ids.push(id);
                return;
            }
        }
    }
    let Scratch { symbols, queue, .. } = scratch;
    symbols.clear();
    queue.clear();
    for &byte in word.as_bytes() {
        // A byte without a token is dropped at the end, and no merge crosses it.
        let at = symbols.len() as u32;
        symbols.push(Symbol {
            id: byte_ids[byte as usize],
            prev: at.wrapping_sub(1),
            next: at + 1,
            rank: NO_RANK,
        });
    }
    if let Some(last) = symbols.last_mut() {
        last.next = END;
    }
    for at in 0..symbols.len() {
        rate(&vocab.merges, symbols, queue, at as u32);
    }
    while let Some(Reverse(entry)) = queue.pop() {
        let (rank, at) = ((entry >> 32) as u32, entry as u32);
        let left = symbols[at as usize];
        if left.rank != rank {
            continue;
        }
        let gone = left.next as usize;
        let next = symbols[gone].next;
        symbols[gone].rank = NO_RANK;
        symbols[gone].id = NO_ID;
        symbols[at as usize].next = next;
        symbols[at as usize].id = vocab.merges.list[rank as usize][2];
        if next != END {
            symbols[next as usize].prev = at;
        }
        rate(&vocab.merges, symbols, queue, at);
        if left.prev != END {
            rate(&vocab.merges, symbols, queue, left.prev);
        }
    }
    ids.extend(symbols.iter().map(|s| s.id).filter(|&id| id != NO_ID));
}

/// Looks up the merge of a symbol with its right neighbour and queues it.
fn rate(merges: &Merges, symbols: &mut [Symbol], queue: &mut BinaryHeap<Reverse<u64>>, at: u32) {
    let left = symbols[at as usize];
    let rank = match left.next {
        END => NO_RANK,
        next => merges.rank(left.id, symbols[next as usize].id),
    };
    symbols[at as usize].rank = rank;
    if rank != NO_RANK {
        queue.push(Reverse(u64::from(rank) << 32 | u64::from(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_spelled_once_and_back() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255u8 {
            let c = spelled(byte);
            assert!(seen.insert(c), "{byte} and another byte are both {c}");
            assert_eq!(unspelled(c), Some(byte));
        }
        assert_eq!(spelled(b' '), 'Ġ');
        assert_eq!(spelled(b'\n'), 'Ċ');
        assert_eq!(spelled(0xAD), '\u{143}');
    }
}
