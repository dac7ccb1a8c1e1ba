//! Segments of a sequence: the stretches between evicted or hidden positions, and how far back a query's position is
//! shifted for each.
//!
//! ```text
//! kept      0 … 63 |   gap    | 1024 … 1535      position 1536
//! segment      0                    1
//! shift       960                   0            for segment 0 the query's position is 576
//! ```
//!
//! Keys are never rewritten; the query is rotated once per segment. A block is in one segment, so a gap closes unless one
//! block has rows on both sides of it:
//!
//! ```text
//! blocks      |   A   |   B   |   C   |   D   |      · hidden or evicted, x visible
//!             |xxxx···|·······|··xx···|··xxxxx|      two gaps close; A is before both, C between, D after
//!             |xxx··xx|·······|xxxxxxx|xxxxxxx|      the gap in A stays open, the gap in B closes
//! ```
//!
//! A block comes after every gap that starts at or before its first position.

use crate::error::{CacheResult, reserve_exact};
use crate::policy::PositionMode;
use crate::size::SLOTS;
use std::ops::Range;

#[derive(Debug, Default)]
pub(crate) struct Segments {
    pub positions: PositionMode,
    /// Evicted positions, ordered and disjoint.
    pub gaps: Vec<Range<u64>>,
    /// Positions that no query sees, ordered and disjoint; they may touch. Some may be evicted too.
    pub hidden: Vec<Range<u64>>,
    /// Position of the sequence at the last eviction.
    pub evicted_at: u64,
    /// Start of the gap before each segment but the first.
    pub cuts: Vec<u64>,
    /// (segment)
    pub shifts: Vec<u64>,
}

impl Segments {
    /// Heap bytes for this capacity.
    pub fn bytes_for(gaps: usize, hidden: usize) -> usize {
        let ranges = gaps + hidden;
        ranges * size_of::<Range<u64>>() + (2 * ranges + 1) * size_of::<u64>()
    }

    pub fn with_capacity(gaps: usize, hidden: usize) -> CacheResult<Segments> {
        let mut segments = Segments::default();
        segments.reserve(gaps, hidden)?;
        segments.rebuild();
        Ok(segments)
    }

    pub fn copy(&self) -> CacheResult<Segments> {
        let (gaps, hidden) = self.capacity();
        let mut copy = Segments::with_capacity(gaps, hidden)?;
        copy.positions = self.positions;
        copy.evicted_at = self.evicted_at;
        copy.gaps.extend(self.gaps.iter().cloned());
        copy.hidden.extend(self.hidden.iter().cloned());
        copy.rebuild();
        Ok(copy)
    }

    /// Capacity for gaps and for hidden ranges.
    pub fn capacity(&self) -> (usize, usize) {
        (self.gaps.capacity(), self.hidden.capacity())
    }

    /// Raises the capacity to these numbers, if it is smaller.
    pub fn reserve(&mut self, gaps: usize, hidden: usize) -> CacheResult {
        fn grow<T>(list: &mut Vec<T>, to: usize) -> CacheResult {
            let more = to.saturating_sub(list.len());
            reserve_exact(list, more)
        }
        let gaps = gaps.max(self.gaps.capacity());
        let hidden = hidden.max(self.hidden.capacity());
        grow(&mut self.cuts, gaps + hidden)?;
        grow(&mut self.shifts, gaps + hidden + 1)?;
        grow(&mut self.gaps, gaps)?;
        grow(&mut self.hidden, hidden)
    }

    pub fn bytes(&self) -> usize {
        (self.gaps.capacity() + self.hidden.capacity()) * size_of::<Range<u64>>()
            + (self.cuts.capacity() + self.shifts.capacity()) * size_of::<u64>()
    }

    /// Adds a gap. There is room for one more.
    pub fn evict(&mut self, gap: Range<u64>) {
        let at = self.gaps.partition_point(|g| g.end < gap.start);
        let touching = self.gaps[at..].iter().take_while(|g| g.start <= gap.end);
        let until = at + touching.count();
        if at == until {
            self.gaps.insert(at, gap);
        } else {
            let first = self.gaps[at].start.min(gap.start);
            let last = self.gaps[until - 1].end.max(gap.end);
            self.gaps[at] = first..last;
            self.gaps.drain(at + 1..until);
        }
    }

    /// Removes positions from the gap they are in. There is room for one more gap.
    pub fn mount(&mut self, back: Range<u64>) {
        let overlaps = |g: &Range<u64>| g.start < back.end && back.start < g.end;
        let Some(at) = self.gaps.iter().position(overlaps) else {
            return;
        };
        let gap = self.gaps[at].clone();
        let pieces = [gap.start..back.start, back.end..gap.end];
        let left = pieces.into_iter().filter(|piece| piece.start < piece.end);
        self.gaps.splice(at..at + 1, left);
    }

    /// Sets the hidden ranges. There is room for them.
    pub fn hide(&mut self, hidden: &[Range<u64>]) {
        self.hidden.clear();
        self.hidden.extend_from_slice(hidden);
        self.rebuild();
    }

    /// Removes hidden ranges from `position` on.
    pub fn truncate(&mut self, position: u64) {
        if self.hidden.last().is_some_and(|last| last.end > position) {
            self.hidden.retain(|range| range.start < position);
            if let Some(last) = self.hidden.last_mut() {
                last.end = last.end.min(position);
            }
            self.rebuild();
        }
    }

    pub fn clear_gaps(&mut self) {
        self.gaps.clear();
        self.evicted_at = 0;
        self.rebuild();
    }

    /// Recomputes the segments. A gap at the very start has nothing before it, and with original positions there is one
    /// segment.
    pub fn rebuild(&mut self) {
        self.cuts.clear();
        self.shifts.clear();
        if self.positions == PositionMode::Compact {
            let closes = |g: &Range<u64>| g.start > 0 && (self.hidden.is_empty() || !is_within(g));
            let inner = || union(&self.gaps, &self.hidden).filter(closes);
            let mut shift: u64 = inner().map(|g| g.end - g.start).sum();
            for gap in inner() {
                self.cuts.push(gap.start);
                self.shifts.push(shift);
                shift -= gap.end - gap.start;
            }
        }
        self.shifts.push(0);
    }
}

/// Whether one block has rows on both sides of the gap.
fn is_within(gap: &Range<u64>) -> bool {
    !gap.start.is_multiple_of(SLOTS) && gap.end < gap.start.next_multiple_of(SLOTS)
}

/// The union of two ordered lists; ranges that touch are merged.
fn union<'a>(
    mut a: &'a [Range<u64>],
    mut b: &'a [Range<u64>],
) -> impl Iterator<Item = Range<u64>> + 'a {
    // Takes the first range of the list that starts first.
    let mut next = move |until: u64| {
        let first = |list: &[Range<u64>]| list.first().map_or(u64::MAX, |range| range.start);
        let list = if first(a) <= first(b) { &mut a } else { &mut b };
        let (range, rest) = list.split_first()?;
        (range.start <= until).then(|| {
            *list = rest;
            range.clone()
        })
    };
    std::iter::from_fn(move || {
        let mut gap = next(u64::MAX)?;
        while let Some(more) = next(gap.end) {
            gap.end = gap.end.max(more.end);
        }
        Some(gap)
    })
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one range")]
mod tests {
    use super::*;

    #[test]
    fn gaps_merge_and_shifts_add_up() {
        let mut segments = Segments::with_capacity(3, 0).unwrap();
        assert_eq!(segments.shifts, [0]);
        for gap in [64..128, 128..192, 320..352, 16..32] {
            segments.evict(gap);
        }
        segments.rebuild();
        assert_eq!(segments.gaps, [16..32, 64..192, 320..352]);
        assert_eq!(segments.cuts, [16, 64, 320]);
        assert_eq!(segments.shifts, [176, 160, 32, 0]);
        segments.evict(0..352);
        segments.rebuild();
        assert_eq!((segments.cuts.len(), &segments.shifts[..]), (0, &[0][..]));
        assert_eq!(segments.bytes(), Segments::bytes_for(3, 0));
    }

    #[test]
    fn original_positions_are_one_segment() {
        let mut segments = Segments::with_capacity(1, 0).unwrap();
        segments.positions = PositionMode::Original;
        segments.evict(64..128);
        segments.rebuild();
        assert_eq!((segments.cuts.len(), &segments.shifts[..]), (0, &[0][..]));
    }

    /// Hidden gaps that start and end inside blocks: cuts, shifts.
    #[test]
    fn hidden_gaps_close_where_no_block_is_on_both_sides() {
        let mut segments = Segments::with_capacity(2, 3).unwrap();
        let mut cut = |hidden: &[Range<u64>]| {
            segments.hide(hidden);
            (segments.cuts.clone(), segments.shifts.clone())
        };
        // From the middle of a block to the middle of another one.
        assert_eq!(cut(&[40..130]), (vec![40], vec![90, 0]));
        // Two gaps touch the block of 128 from both sides, and a third is within it.
        let three = [40..130, 135..140, 150..200];
        assert_eq!(cut(&three), (vec![40, 150], vec![140, 50, 0]));
        // Within one block, up to its end, from its start.
        assert_eq!(cut(&[70..95]), (vec![], vec![0]));
        assert_eq!(cut(&[70..96]), (vec![70], vec![26, 0]));
        assert_eq!(cut(&[64..95]), (vec![64], vec![31, 0]));
        // Touching ones are one.
        assert_eq!(cut(&[70..95, 95..100]), (vec![70], vec![30, 0]));
        assert_eq!(cut(&[0..95]), (vec![], vec![0]));
        segments.evict(64..96);
        segments.evict(256..288);
        let mut cut = |hidden: &[Range<u64>]| {
            segments.hide(hidden);
            (segments.cuts.clone(), segments.shifts.clone())
        };
        let three = [10..20, 60..70, 90..100];
        assert_eq!(cut(&three), (vec![60, 256], vec![72, 32, 0]));
        assert_eq!(cut(&[50..60, 64..300]), (vec![64], vec![236, 0]));
        segments.truncate(290);
        assert_eq!(segments.hidden, [50..60, 64..290]);
        segments.truncate(55);
        assert_eq!(segments.hidden, vec![50..55]);
        assert_eq!(segments.bytes(), Segments::bytes_for(2, 3));
    }
}
