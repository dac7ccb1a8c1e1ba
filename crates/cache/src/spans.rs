//! Pieces of a sequence that somebody gave a meaning: turns, and what must stay.
//!
//! In order and apart from each other; pieces that touch stay two. A new one takes its positions from those it
//! overlaps. Their number is bounded, so that whoever annotates cannot fill the memory.

use crate::error::CacheError;
use crate::pool::reserve_exact;
use std::ops::Range;

/// A piece of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: u64,
    pub end: u64,
    /// Its rows never leave one by one.
    pub protected: bool,
}

/// The piece that holds a position.
pub fn at(spans: &[Span], position: u64) -> Option<&Span> {
    let i = spans.partition_point(|span| span.end <= position);
    spans.get(i).filter(|span| span.start <= position)
}

#[derive(Debug, Default)]
pub(crate) struct Spans {
    list: Vec<Span>,
}

/// Turns of a very long conversation.
pub(crate) const SPANS_MAX: usize = 4096;

/// Pieces by which a full list grows.
const GROWTH: usize = 32;

impl Spans {
    pub fn list(&self) -> &[Span] {
        &self.list
    }

    pub fn bytes(&self) -> usize {
        self.list.capacity() * size_of::<Span>()
    }

    /// Bytes of a copy.
    pub fn copy_bytes(&self) -> usize {
        size_of_val(&self.list[..])
    }

    pub fn copy(&self) -> Result<Spans, CacheError> {
        let mut list = Vec::new();
        reserve_exact(&mut list, self.list.len())?;
        list.extend_from_slice(&self.list);
        Ok(Spans { list })
    }

    /// Pieces to make room for before one more is put in: it may split another.
    pub fn wanted(&self) -> usize {
        match self.list.capacity() - self.list.len() {
            0 | 1 => GROWTH,
            _ => 0,
        }
    }

    pub fn make_room(&mut self, more: usize) -> Result<(), CacheError> {
        let len = self.list.capacity() - self.list.len() + more;
        reserve_exact(&mut self.list, if more > 0 { len } else { 0 })
    }

    /// There is room for two more.
    pub fn put(&mut self, range: Range<u64>, protected: bool) {
        debug_assert!(range.start < range.end);
        self.clear(range.clone());
        let i = self.list.partition_point(|span| span.end <= range.start);
        let span = Span {
            start: range.start,
            end: range.end,
            protected,
        };
        self.list.insert(i, span);
    }

    /// No piece holds these positions any more. There is room for one more.
    fn clear(&mut self, range: Range<u64>) {
        let first = self.list.partition_point(|span| span.end <= range.start);
        let inside = |span: &&Span| span.start < range.end;
        let count = self.list[first..].iter().take_while(inside).count();
        let Some(overlapped) = self
            .list
            .get(first..first + count)
            .filter(|o| !o.is_empty())
        else {
            return;
        };
        let (head, tail) = (overlapped[0], overlapped[count - 1]);
        let before = (head.start < range.start).then_some(Span {
            end: range.start,
            ..head
        });
        let after = (tail.end > range.end).then_some(Span {
            start: range.end,
            ..tail
        });
        let left = before.into_iter().chain(after);
        self.list.splice(first..first + count, left);
    }

    /// Nothing is known of positions from here on.
    pub fn truncate(&mut self, position: u64) {
        self.list.retain(|span| span.start < position);
        if let Some(last) = self.list.last_mut() {
            last.end = last.end.min(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a flag for every position.
    #[test]
    fn a_new_piece_takes_what_it_overlaps() {
        let mut spans = Spans::default();
        let mut model = [(0u32, false); 100];
        let mut dice = 7u64;
        for number in 1..2000u32 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (a, b) = ((dice >> 40) % 100, (dice >> 50) % 100);
            let protected = dice >> 63 == 1;
            let (start, end) = (a.min(b), a.max(b) + 1);
            if number % 50 == 0 {
                spans.truncate(start);
                model[start as usize..].fill((0, false));
            } else {
                let more = spans.wanted();
                spans.make_room(more).unwrap();
                let room = spans.bytes();
                spans.put(start..end, protected);
                assert_eq!(room, spans.bytes());
                model[start as usize..end as usize].fill((number, protected));
            }
            let mut last = 0;
            for span in spans.list() {
                assert!(span.start >= last && span.start < span.end);
                last = span.end;
            }
            for (position, (owner, protected)) in model.iter().enumerate() {
                let found = at(spans.list(), position as u64);
                assert_eq!(
                    found.map(|s| s.protected),
                    (*owner > 0).then_some(*protected)
                );
                if position > 0 && *owner > 0 && *owner == model[position - 1].0 {
                    assert_eq!(found, at(spans.list(), position as u64 - 1));
                }
            }
            assert_eq!(spans.copy().unwrap().bytes(), spans.copy_bytes());
        }
    }
}
