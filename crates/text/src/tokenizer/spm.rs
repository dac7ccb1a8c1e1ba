//! SentencePiece-style merging: characters are the first symbols, and the neighbouring pair that
//! joins to the piece with the best score is joined, the leftmost of equals first. There are no
//! words; a whole span of text is one problem.
//!
//! A space is written `▁` (U+2581) inside pieces. What has no piece becomes byte tokens `<0xNN>`,
//! and without those the unknown token. A `▁` in the text itself is a space from then on, as in
//! SentencePiece.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::pieces::{NO_ID, TokenKind, find_text};
use super::vocab::Vocab;

const SPACE: &str = "▁";

/// The byte a piece `<0xNN>` names.
pub(super) fn byte_of(piece: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = *piece else {
        return None;
    };
    let digit = |c: u8| char::from(c).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

pub(super) fn byte_ids(vocab: &Vocab) -> Box<[u32; 256]> {
    Box::new(std::array::from_fn(|byte| {
        let name = format!("<0x{byte:02X}>");
        // By name: files without kinds still have byte tokens.
        match vocab.pieces.find(name.as_bytes()) {
            Some(id) if vocab.kinds.get(id as usize) != Some(&TokenKind::Control) => id,
            _ => NO_ID,
        }
    }))
}

pub(super) fn unescape(piece: &[u8]) -> Cow<'_, [u8]> {
    let space = SPACE.as_bytes();
    if !piece.windows(space.len()).any(|w| w == space) {
        return Cow::Borrowed(piece);
    }
    let mut out = Vec::with_capacity(piece.len());
    let mut rest = piece;
    while let [first, after @ ..] = rest {
        let escaped = rest.strip_prefix(space);
        out.push(if escaped.is_some() { b' ' } else { *first });
        rest = escaped.unwrap_or(after);
    }
    Cow::Owned(out)
}

/// A stretch of the text. Swallowed ones have no bytes left and keep their place.
#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    bytes: u32,
    prev: u32,
    next: u32,
}

const END: u32 = u32::MAX;

/// A possible join of the symbol at `left` with its right neighbour. Outdated once the two no
/// longer have `bytes` bytes together.
#[derive(Clone, Copy, PartialEq)]
struct Join {
    score: f32,
    left: u32,
    bytes: u32,
}

impl Eq for Join {}

impl Ord for Join {
    fn cmp(&self, other: &Join) -> Ordering {
        // -0.0 and 0.0 are one score; NaN was refused while loading.
        let by_score = self.score.partial_cmp(&other.score);
        let by_score = by_score.unwrap_or(Ordering::Equal);
        by_score.then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Join {
    fn partial_cmp(&self, other: &Join) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Buffers kept from span to span.
#[derive(Default)]
pub(super) struct Scratch {
    text: String,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Join>,
}

pub(super) fn encode(
    vocab: &Vocab,
    byte_ids: &[u32; 256],
    space_first: bool,
    span: &str,
    scratch: &mut Scratch,
    ids: &mut Vec<u32>,
) {
    let Scratch {
        text,
        symbols,
        queue,
    } = scratch;
    text.clear();
    symbols.clear();
    queue.clear();
    if space_first {
        text.push_str(SPACE);
    }
    for part in span.split_inclusive(' ') {
        match part.strip_suffix(' ') {
            Some(word) => text.extend([word, SPACE]),
            None => text.push_str(part),
        }
    }
    for (start, c) in text.char_indices() {
        let at = symbols.len() as u32;
        symbols.push(Symbol {
            start: start as u32,
            bytes: c.len_utf8() as u32,
            prev: at.wrapping_sub(1),
            next: at + 1,
        });
    }
    if let Some(last) = symbols.last_mut() {
        last.next = END;
    }

    for at in 0..symbols.len() {
        rate(vocab, text, symbols, queue, at as u32);
    }
    while let Some(join) = queue.pop() {
        let at = join.left as usize;
        let left = symbols[at];
        if left.bytes == 0 || left.next == END {
            continue;
        }
        let gone = left.next as usize;
        let right = symbols[gone];
        if left.bytes + right.bytes != join.bytes {
            continue;
        }
        symbols[gone].bytes = 0;
        symbols[at].bytes = join.bytes;
        symbols[at].next = right.next;
        if right.next != END {
            symbols[right.next as usize].prev = join.left;
        }
        if left.prev != END {
            rate(vocab, text, symbols, queue, left.prev);
        }
        rate(vocab, text, symbols, queue, join.left);
    }

    for symbol in symbols.iter().filter(|s| s.bytes > 0) {
        let piece = bytes_of(text, symbol.start, symbol.bytes);
        let id = find_text(&vocab.pieces, &vocab.kinds, piece);
        if id != NO_ID {
            ids.push(id);
            continue;
        }
        // A character without a piece; a space is given back its byte.
        let is_space = piece == SPACE.as_bytes();
        let bytes = if is_space { b" " } else { piece };
        for &byte in bytes {
            match byte_ids[byte as usize] {
                NO_ID => ids.extend(vocab.unk),
                id => ids.push(id),
            }
        }
    }
}

fn bytes_of(text: &str, start: u32, bytes: u32) -> &[u8] {
    let start = start as usize;
    text.as_bytes()
        .get(start..start + bytes as usize)
        .unwrap_or_default()
}

/// Queues the join of a symbol with its right neighbour, if that is a piece.
fn rate(vocab: &Vocab, text: &str, symbols: &[Symbol], queue: &mut BinaryHeap<Join>, left: u32) {
    let symbol = symbols[left as usize];
    if symbol.next == END {
        return;
    }
    let bytes = symbol.bytes + symbols[symbol.next as usize].bytes;
    let piece = bytes_of(text, symbol.start, bytes);
    let id = find_text(&vocab.pieces, &vocab.kinds, piece);
    if let Some(&score) = vocab.scores.get(id as usize) {
        queue.push(Join { score, left, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_names() {
        assert_eq!(byte_of(b"<0x0A>"), Some(10));
        assert_eq!(byte_of(b"<0xff>"), Some(255));
        for bad in [
            &b"<0xZZ>"[..],
            b"<0x-1>",
            b"<0x+1>",
            b"<0x>",
            b"",
            b"<0x001>",
        ] {
            assert_eq!(byte_of(bad), None);
        }
    }

    #[test]
    fn marks_become_spaces() {
        assert_eq!(&*unescape("▁a▁▁b".as_bytes()), b" a  b");
        assert_eq!(&*unescape(b"ab"), b"ab");
        // Half a mark, and one cut by another: bytes that are not UTF-8 pass.
        assert_eq!(&*unescape(b"\xe2\x96\xe2\x96\x81"), b"\xe2\x96 ");
    }
}
