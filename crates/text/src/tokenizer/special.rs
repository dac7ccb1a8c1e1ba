//! Finding special tokens in a text before it is tokenized.
//!
//! Longer tokens are found first, everywhere in the text, and shorter ones only in what they
//! leave; among equals the leftmost. That is the reference's rule (it searches the text once per
//! token, by falling length), and it is not "leftmost first": with tokens `ab` and `bcd`, the text
//! `abcd` is `a`, `bcd`.
//!
//! Searching once per token would be 6,414 passes for Gemma. Here each position is asked once for
//! its longest token, by narrowing a range of the sorted tokens byte by byte; a position asks
//! again only when a longer neighbour has taken the end of its match.

use super::pieces::{Pieces, TokenKind};

/// Special tokens longer than this are not looked for (the longest known have 48 bytes). It
/// bounds the work per position against files with giant tokens.
pub const SPECIAL_BYTES_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span<'a> {
    Text(&'a str),
    Token(u32),
}

#[derive(Default)]
pub(super) struct Specials {
    /// Tokens found when special text is parsed, sorted by their bytes.
    all: Sorted,
    /// Those found always: user-defined ones.
    always: Sorted,
}

#[derive(Default)]
struct Sorted {
    ids: Vec<u32>,
    /// Range of `ids` by first byte.
    first: Vec<(u32, u32)>,
}

impl Specials {
    pub(super) fn new(pieces: &Pieces, kinds: &[TokenKind]) -> Specials {
        let collect = |wanted: fn(TokenKind) -> bool| {
            // A token that is not text would be cut out of the middle of characters.
            let is_text = |p: &[u8]| {
                (1..=SPECIAL_BYTES_MAX).contains(&p.len()) && std::str::from_utf8(p).is_ok()
            };
            let ids = (0..pieces.len() as u32).filter(|&id| {
                kinds.get(id as usize).is_some_and(|&kind| wanted(kind))
                    && pieces.get(id).is_some_and(is_text)
            });
            Sorted::new(pieces, ids.collect())
        };
        Specials {
            all: collect(TokenKind::is_special),
            always: collect(|kind| kind == TokenKind::UserDefined),
        }
    }

    pub(super) fn split<'a>(
        &self,
        pieces: &Pieces,
        text: &'a str,
        parse_special: bool,
    ) -> Vec<Span<'a>> {
        let sorted = if parse_special {
            &self.all
        } else {
            &self.always
        };
        let mut spans = Vec::new();
        let mut from = 0;
        for found in sorted.search(pieces, text.as_bytes()) {
            let start = found.start as usize;
            // Matches of whole UTF-8 strings start and end at character borders.
            if let Some(before) = text.get(from..start).filter(|t| !t.is_empty()) {
                spans.push(Span::Text(before));
            }
            spans.push(Span::Token(found.id));
            from = start + found.bytes as usize;
        }
        if let Some(rest) = text.get(from..).filter(|t| !t.is_empty()) {
            spans.push(Span::Text(rest));
        }
        spans
    }
}

#[derive(Clone, Copy)]
struct Found {
    start: u32,
    bytes: u32,
    id: u32,
}

impl Sorted {
    fn new(pieces: &Pieces, mut ids: Vec<u32>) -> Sorted {
        ids.sort_by(|&a, &b| pieces.get(a).cmp(&pieces.get(b)).then(a.cmp(&b)));
        ids.dedup_by(|b, a| pieces.get(*a) == pieces.get(*b));
        let mut first = vec![(0, 0); if ids.is_empty() { 0 } else { 256 }];
        for (at, &id) in ids.iter().enumerate() {
            if let Some(&byte) = pieces.get(id).and_then(|p| p.first()) {
                let range: &mut (u32, u32) = &mut first[byte as usize];
                if range.1 == 0 {
                    range.0 = at as u32;
                }
                range.1 = at as u32 + 1;
            }
        }
        ids.shrink_to_fit();
        Sorted { ids, first }
    }

    /// The longest token at the start of `text`, of at most `bytes_max` bytes.
    fn longest(&self, pieces: &Pieces, text: &[u8], bytes_max: usize) -> Option<(u32, usize)> {
        let &(start, end) = self.first.get(*text.first()? as usize)?;
        let mut range = self.ids.get(start as usize..end as usize)?;
        let mut best = None;
        // All of `range` agree with the text in the first `depth` bytes; the one that has no
        // more than those, if any, sorts first.
        for depth in 1.. {
            if let Some(&id) = range.first()
                && pieces.get(id).is_some_and(|piece| piece.len() == depth)
            {
                best = Some((id, depth));
            }
            if depth >= bytes_max {
                break;
            }
            let Some(&byte) = text.get(depth) else { break };
            let key = |&id: &u32| pieces.get(id).and_then(|p| p.get(depth)).copied();
            let from = range.partition_point(|id| key(id) < Some(byte));
            let to = range.partition_point(|id| key(id) <= Some(byte));
            range = &range[from..to];
            if range.is_empty() {
                break;
            }
        }
        best
    }

    /// Non-overlapping matches in order of place.
    fn search(&self, pieces: &Pieces, text: &[u8]) -> Vec<Found> {
        if self.ids.is_empty() {
            return Vec::new();
        }
        // candidates[bytes] = starts whose longest possible match has that length
        let mut candidates: Vec<Vec<(u32, u32)>> = vec![Vec::new(); SPECIAL_BYTES_MAX + 1];
        for start in 0..text.len() {
            let (from, to) = self.first[text[start] as usize];
            if from == to {
                continue;
            }
            if let Some((id, bytes)) = self.longest(pieces, &text[start..], SPECIAL_BYTES_MAX) {
                candidates[bytes].push((start as u32, id));
            }
        }
        let mut taken = Taken::default();
        for bytes in (1..=SPECIAL_BYTES_MAX).rev() {
            let mut starts = std::mem::take(&mut candidates[bytes]);
            starts.sort_unstable();
            let mut now = Vec::new();
            let mut end_of_last = 0;
            for (start, id) in starts {
                let end = start + bytes as u32;
                if start < end_of_last {
                    continue;
                }
                let room = taken.room(start);
                if room >= bytes {
                    let bytes = bytes as u32;
                    now.push(Found { start, bytes, id });
                    end_of_last = end;
                } else if room > 0
                    && let Some((id, shorter)) = self.longest(pieces, &text[start as usize..], room)
                {
                    candidates[shorter].push((start, id));
                }
            }
            taken.add(now);
        }
        taken.found
    }
}

/// Accepted matches, sorted by place.
#[derive(Default)]
struct Taken {
    found: Vec<Found>,
}

impl Taken {
    /// Bytes free from `start` on: 0 inside a match.
    fn room(&self, start: u32) -> usize {
        let after = self.found.partition_point(|f| f.start <= start);
        if after > 0 && self.found[after - 1].start + self.found[after - 1].bytes > start {
            return 0;
        }
        let next = self.found.get(after);
        next.map_or(usize::MAX, |f| (f.start - start) as usize)
    }

    /// One merge per length, so at most [`SPECIAL_BYTES_MAX`] passes over the matches.
    fn add(&mut self, more: Vec<Found>) {
        if !more.is_empty() {
            self.found.extend(more);
            self.found.sort_by_key(|f| f.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rule as the reference states it: once through the text per token, by falling length.
    fn naive(tokens: &[&str], text: &str) -> Vec<String> {
        let mut order: Vec<usize> = (0..tokens.len()).collect();
        order.sort_by_key(|&t| std::cmp::Reverse(tokens[t].len()));
        let mut spans: Vec<(bool, String)> = vec![(false, text.to_string())];
        for t in order {
            let mut next = Vec::new();
            for (is_token, span) in spans {
                if is_token {
                    next.push((true, span));
                    continue;
                }
                let mut rest = span.as_str();
                while let Some(at) = rest.find(tokens[t]) {
                    next.push((false, rest[..at].to_string()));
                    next.push((true, tokens[t].to_string()));
                    rest = &rest[at + tokens[t].len()..];
                }
                next.push((false, rest.to_string()));
            }
            spans = next;
        }
        let spans = spans.into_iter().filter(|(_, s)| !s.is_empty());
        spans
            .map(|(is_token, s)| if is_token { format!("<{s}>") } else { s })
            .collect()
    }

    fn ours(tokens: &[&str], text: &str) -> Vec<String> {
        let pieces = Pieces::new(tokens.iter().map(|t| t.as_bytes())).unwrap();
        let kinds = vec![TokenKind::UserDefined; tokens.len()];
        let spans = Specials::new(&pieces, &kinds).split(&pieces, text, false);
        let name = |span: &Span| match *span {
            Span::Text(t) => t.to_string(),
            Span::Token(id) => format!("<{}>", tokens[id as usize]),
        };
        spans.iter().map(name).collect()
    }

    #[test]
    fn longer_tokens_win_over_earlier_ones() {
        assert_eq!(ours(&["ab", "bcd"], "abcd"), ["a", "<bcd>"]);
        assert_eq!(
            ours(&["a", "aa", "aaaa"], "aaaaaaa"),
            ["<aaaa>", "<aa>", "<a>"]
        );
        assert_eq!(ours(&["a"], ""), Vec::<String>::new());
    }

    proptest! {
        // Lengths are distinct: between overlapping tokens of one length the reference's order
        // is whatever its sort leaves.
        #[test]
        fn the_same_as_one_pass_per_token(text in "[abé]{0,40}", cut in 0usize..4) {
            let tokens = ["aabab", "bab", "é", "a", "ééabaa", "abaé"];
            let tokens = &tokens[cut..];
            prop_assert_eq!(ours(tokens, &text), naive(tokens, &text));
        }
    }
}
