//! Annotations of a sequence: ranges of positions that belong together (turns) or must stay (protected).
//!
//! Ordered and disjoint; ranges that touch stay separate. A new annotation takes its positions from those it overlaps.
//! Their number is bounded, so that a caller cannot fill the memory with them.

use crate::error::{CacheResult, copied, reserve_exact};
use std::ops::Range;

/// An annotated range of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    pub start: u64,
    pub end: u64,
    /// Policies that evict single rows keep its rows.
    pub protected: bool,
}

/// The annotation that covers a position.
pub fn at(annotations: &[Annotation], position: u64) -> Option<&Annotation> {
    let i = annotations.partition_point(|a| a.end <= position);
    annotations.get(i).filter(|a| a.start <= position)
}

/// Up to which position `max` protected positions are, counted from `from` on.
pub(crate) fn protected_until(annotations: &[Annotation], from: u64, max: u64) -> u64 {
    let mut left = max;
    for annotation in annotations.iter().filter(|a| a.protected && a.end > from) {
        let start = annotation.start.max(from);
        if annotation.end - start > left {
            return start + left;
        }
        left -= annotation.end - start;
    }
    u64::MAX
}

/// Bytes that the list of a sequence with this many annotations takes at most.
pub const fn annotation_bytes(count: usize) -> usize {
    match count {
        0 => 0,
        _ => (count + 2 * GROWTH) * size_of::<Annotation>(),
    }
}

#[derive(Debug, Default)]
pub(crate) struct Annotations {
    list: Vec<Annotation>,
}

/// More than the turns of a very long conversation.
pub(crate) const ANNOTATIONS_MAX: usize = 4096;

/// Annotations by which a full list grows.
const GROWTH: usize = 32;

impl Annotations {
    pub fn list(&self) -> &[Annotation] {
        &self.list
    }

    pub fn bytes(&self) -> usize {
        self.list.capacity() * size_of::<Annotation>()
    }

    /// Bytes of a copy.
    pub fn copy_bytes(&self) -> usize {
        size_of_val(&self.list[..])
    }

    pub fn copy(&self) -> CacheResult<Annotations> {
        let list = copied(&self.list)?;
        Ok(Annotations { list })
    }

    /// How much room to add before one more is inserted: it may split another.
    pub fn room_wanted(&self) -> usize {
        match self.list.capacity() - self.list.len() {
            0 | 1 => GROWTH,
            _ => 0,
        }
    }

    pub fn make_room(&mut self, more: usize) -> CacheResult {
        let len = self.list.capacity() - self.list.len() + more;
        reserve_exact(&mut self.list, if more > 0 { len } else { 0 })
    }

    /// Inserts an annotation. There is room for two more.
    pub fn insert(&mut self, range: Range<u64>, protected: bool) {
        debug_assert!(range.start < range.end);
        self.clear(range.clone());
        let i = self.list.partition_point(|span| span.end <= range.start);
        let span = Annotation {
            start: range.start,
            end: range.end,
            protected,
        };
        self.list.insert(i, span);
    }

    /// Removes these positions from all annotations. There is room for one more.
    fn clear(&mut self, range: Range<u64>) {
        let first = self.list.partition_point(|span| span.end <= range.start);
        let inside = |span: &&Annotation| span.start < range.end;
        let count = self.list[first..].iter().take_while(inside).count();
        let overlapped = &self.list[first..first + count];
        let (Some(&head), Some(&tail)) = (overlapped.first(), overlapped.last()) else {
            return;
        };
        let before = (head.start < range.start).then_some(Annotation {
            end: range.start,
            ..head
        });
        let after = (tail.end > range.end).then_some(Annotation {
            start: range.end,
            ..tail
        });
        let left = before.into_iter().chain(after);
        self.list.splice(first..first + count, left);
    }

    /// Removes everything from `position` on.
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

    #[test]
    fn protection_ends_where_it_is_used_up() {
        let list = [
            (0, 50, true),
            (60, 70, true),
            (70, 80, false),
            (90, 95, true),
        ];
        let list = list.map(|(start, end, protected)| Annotation {
            start,
            end,
            protected,
        });
        let until = |from, max| protected_until(&list, from, max);
        assert_eq!([until(0, 0), until(0, 49), until(0, 50)], [0, 49, 60]);
        assert_eq!([until(32, 18), until(32, 25), until(32, 28)], [60, 67, 90]);
        assert_eq!([until(32, 33), until(100, 0)], [u64::MAX; 2]);
    }

    /// Against a flag for every position.
    #[test]
    fn a_new_annotation_takes_what_it_overlaps() {
        let mut annotations = Annotations::default();
        let mut model = [(0u32, false); 100];
        let mut dice = 7u64;
        for number in 1..2000u32 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (a, b) = ((dice >> 40) % 100, (dice >> 50) % 100);
            let protected = dice >> 63 == 1;
            let (start, end) = (a.min(b), a.max(b) + 1);
            if number % 50 == 0 {
                annotations.truncate(start);
                model[start as usize..].fill((0, false));
            } else {
                let more = annotations.room_wanted();
                annotations.make_room(more).unwrap();
                let room = annotations.bytes();
                annotations.insert(start..end, protected);
                assert_eq!(room, annotations.bytes());
                model[start as usize..end as usize].fill((number, protected));
            }
            let mut last = 0;
            for span in annotations.list() {
                assert!(span.start >= last && span.start < span.end);
                last = span.end;
            }
            for (position, (owner, protected)) in model.iter().enumerate() {
                let found = at(annotations.list(), position as u64);
                assert_eq!(
                    found.map(|s| s.protected),
                    (*owner > 0).then_some(*protected)
                );
                if position > 0 && *owner > 0 && *owner == model[position - 1].0 {
                    assert_eq!(found, at(annotations.list(), position as u64 - 1));
                }
            }
            assert_eq!(
                annotations.copy().unwrap().bytes(),
                annotations.copy_bytes()
            );
        }
    }
}
