//! What was evicted from a sequence, and how far back its query stands for what is left.
//!
//! ```text
//! kept      0 … 63 |   gap    | 1024 … 1535      position 1536
//! segment      0                    1
//! shift       960                   0            the query counts as standing at 576 for segment 0
//! ```
//!
//! The keys stay as they are; the query is turned once for each segment.

use crate::error::CacheError;
use crate::policy::Positions;
use crate::pool::reserve_exact;
use std::ops::Range;

#[derive(Debug, Default)]
pub(crate) struct Segments {
    pub positions: Positions,
    /// Positions that left, in order and apart from each other.
    pub gaps: Vec<Range<u64>>,
    /// Where the sequence stood at the last eviction.
    pub evicted_at: u64,
    /// Where the gaps before the segments after the first start.
    pub cuts: Vec<u64>,
    /// (segment)
    pub shifts: Vec<u64>,
}

impl Segments {
    /// The heap bytes of room for so many gaps.
    pub fn bytes_for(gaps: usize) -> usize {
        gaps * size_of::<Range<u64>>() + (2 * gaps + 1) * size_of::<u64>()
    }

    pub fn with_room(gaps: usize) -> Result<Segments, CacheError> {
        let mut segments = Segments::default();
        segments.make_room(gaps)?;
        segments.cut();
        Ok(segments)
    }

    pub fn copy(&self) -> Result<Segments, CacheError> {
        let mut copy = Segments::with_room(self.gaps.capacity())?;
        copy.positions = self.positions;
        copy.evicted_at = self.evicted_at;
        copy.gaps.extend(self.gaps.iter().cloned());
        copy.cut();
        Ok(copy)
    }

    pub fn room(&self) -> usize {
        self.gaps.capacity()
    }

    pub fn make_room(&mut self, gaps: usize) -> Result<(), CacheError> {
        fn grow<T>(list: &mut Vec<T>, to: usize) -> Result<(), CacheError> {
            let more = to.saturating_sub(list.len());
            reserve_exact(list, more)
        }
        grow(&mut self.gaps, gaps)?;
        grow(&mut self.cuts, gaps)?;
        grow(&mut self.shifts, gaps + 1)
    }

    pub fn bytes(&self) -> usize {
        self.gaps.capacity() * size_of::<Range<u64>>()
            + (self.cuts.capacity() + self.shifts.capacity()) * size_of::<u64>()
    }

    /// Positions leave. There is room for one more gap.
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

    pub fn forget(&mut self) {
        self.gaps.clear();
        self.evicted_at = 0;
        self.cut();
    }

    /// Segments anew, from the gaps. A gap at the very start has nothing before it, and where
    /// positions stay as they were there is one segment.
    pub fn cut(&mut self) {
        self.cuts.clear();
        self.shifts.clear();
        let compact = self.positions == Positions::Compact;
        let inner = || self.gaps.iter().filter(|g| compact && g.start > 0);
        let mut shift: u64 = inner().map(|g| g.end - g.start).sum();
        for gap in inner() {
            // Rows that took the place of others may stand where a gap is.
            self.cuts.push(gap.start);
            self.shifts.push(shift);
            shift -= gap.end - gap.start;
        }
        self.shifts.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_merge_and_shifts_add_up() {
        let mut segments = Segments::with_room(3).unwrap();
        assert_eq!(segments.shifts, [0]);
        for gap in [64..128, 128..192, 320..352, 16..32] {
            segments.evict(gap);
        }
        segments.cut();
        assert_eq!(segments.gaps, [16..32, 64..192, 320..352]);
        assert_eq!(segments.cuts, [16, 64, 320]);
        assert_eq!(segments.shifts, [176, 160, 32, 0]);
        segments.evict(0..352);
        segments.cut();
        assert_eq!((segments.cuts.len(), &segments.shifts[..]), (0, &[0][..]));
        assert_eq!(segments.bytes(), Segments::bytes_for(3));
    }

    #[test]
    fn original_positions_are_one_segment() {
        let mut segments = Segments::with_room(1).unwrap();
        segments.positions = Positions::Original;
        segments.evict(64..128);
        segments.cut();
        assert_eq!((segments.cuts.len(), &segments.shifts[..]), (0, &[0][..]));
    }
}
