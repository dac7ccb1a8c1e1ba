//! One head of the keys or values of a block, in memory.

use crate::format::half::from_f16;
use crate::format::kv::{BLOCK_SLOTS, Form};
use std::ops::Range;

/// The planes and scales of one head, and the sinks that replace its first slots.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub form: Form,
    pub dim: usize,
    /// Scales of a slot: none for floats.
    pub groups: usize,
    /// All of the head and nothing else.
    pub bytes: &'a [u8],
    /// What will be read after this, or nothing. Only prefetched, never read.
    pub upcoming: &'a [u8],
    /// f16, (slot, dim): the first slots, exact.
    pub sinks: &'a [u8],
}

impl<'a> Head<'a> {
    /// Slots that sinks replace.
    pub(super) fn sink_rows(&self) -> usize {
        (self.sinks.len() / (2 * self.dim)).min(BLOCK_SLOTS)
    }

    /// f16 values of a sink.
    pub(super) fn sink(&self, slot: usize) -> &'a [u8] {
        &self.sinks[2 * slot * self.dim..][..2 * self.dim]
    }

    /// Plane `i`, all slots.
    pub(super) fn plane(&self, i: usize) -> &'a [u8] {
        let before: usize = (0..i).map(|i| self.form.plane_bytes(i, self.dim)).sum();
        let bytes = self.form.plane_bytes(i, self.dim);
        &self.bytes[BLOCK_SLOTS * before..][..BLOCK_SLOTS * bytes]
    }

    /// Dimensions of a coded group.
    #[inline(always)]
    pub(super) fn group(&self, group: usize) -> Range<usize> {
        let first = group * self.form.group;
        first..(first + self.form.group).min(self.dim)
    }

    /// f16 scales of a coded group: (slot).
    #[inline(always)]
    pub(super) fn scales(&self, group: usize) -> &'a [u8; 2 * BLOCK_SLOTS] {
        let first = self.bytes.len() - (self.groups - group) * 2 * BLOCK_SLOTS;
        match self.bytes[first..].first_chunk() {
            Some(scales) => scales,
            None => unreachable!("groups are counted from the end"),
        }
    }

    /// The scale of one slot of a coded group, for the scalar reference.
    pub(super) fn code_scale(&self, group: usize, slot: usize) -> f32 {
        half_at(self.scales(group), slot)
    }
}

/// One f16 of many.
pub(super) fn half_at(halves: &[u8], i: usize) -> f32 {
    from_f16([halves[2 * i], halves[2 * i + 1]])
}

/// Rows of f32 at a common distance: `row(r) = values[r * stride ..]`.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
    pub count: usize,
}

/// One block's keys or values: slot 0 has the scores or weights at `at`; the first `slots` are read.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub head: Head<'a>,
    pub at: usize,
    pub slots: usize,
}

impl<'a> Piece<'a> {
    pub(crate) const NONE: Piece<'a> = Piece {
        head: Head {
            form: Form::F16,
            dim: 0,
            groups: 0,
            bytes: &[],
            upcoming: &[],
            sinks: &[],
        },
        at: 0,
        slots: 0,
    };

    /// Every slot is read, and read from the planes.
    #[inline(always)]
    pub(super) fn is_whole(&self) -> bool {
        self.slots == BLOCK_SLOTS && self.head.sinks.is_empty()
    }

    /// Slots that are read from the planes.
    pub(super) fn own_slots(&self) -> usize {
        self.slots.saturating_sub(self.head.sink_rows())
    }
}

/// A piece of the right-hand matrix of a product: `inner` lines without gaps, which the values of the
/// rows from `at` on are multiplied with. A line is a float of each column, or four levels of each: then
/// `at` and `inner` count fours, and there are at least sixty readable bytes behind the last line.
#[derive(Clone, Copy, Default)]
pub(crate) struct Panel<'a> {
    pub lines: &'a [u8],
    /// Lines of the same shape that will be read after these, or nothing. A head's part of a
    /// block is about one page, where the hardware's prefetcher stops, and the next is elsewhere:
    /// the kernel prefetches it while it multiplies this one.
    pub upcoming: &'a [u8],
    pub at: usize,
    pub inner: usize,
}
