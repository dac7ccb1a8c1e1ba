//! Blocks as attention reads them. [`crate::format::kv`] defines their bytes.

use crate::format::kv::Form;
use std::ops::Range;

/// One side of a block: all its heads.
#[derive(Clone, Copy)]
pub struct Coded<'a> {
    pub form: Form,
    pub bytes: &'a [u8],
}

/// Attention sinks: the first rows of a sequence, kept exact. They replace the same slots of the block.
///
/// Keys and values are f16, (kv_head, slot, dim), in the layer's basis.
#[derive(Clone, Copy)]
pub struct Sinks<'a> {
    pub rows: usize,
    pub k: &'a [u8],
    pub v: &'a [u8],
}

/// One block as queries of one query block see it.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    pub k: Coded<'a>,
    pub v: Coded<'a>,
    /// Only ever in the block of position 0.
    pub sinks: Option<Sinks<'a>>,
    /// Slots that may be seen, `1..=32`.
    pub rows: usize,
    /// Bit `i`: no query sees slot `i`. What is stored there does not matter as long as it is finite.
    pub hidden: u32,
    /// Position of slot 0, a multiple of 32; the others follow by one.
    pub first_position: u64,
    /// Which of [`super::AttentionJob::q`] meets these keys.
    pub segment: usize,
}

impl Block<'_> {
    /// Whether all of these slots are hidden. Called for every head and tile; most blocks hide none.
    #[inline(always)]
    pub(super) fn hides(&self, slots: Range<usize>) -> bool {
        if self.hidden == 0 {
            return false;
        }
        let before = |slot: usize| ((1u64 << slot) - 1) as u32;
        let asked = before(slots.end) & !before(slots.start);
        self.hidden & asked == asked
    }
}

/// The slots whose bits are set, in order.
pub(super) fn slots_of(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (slot < u32::BITS).then_some(slot as usize)
    })
}

/// A block table, as attention reads it. Positions grow along the table. Attention does not read blocks
/// that are in no span.
pub trait KvView: Sync {
    fn blocks(&self) -> usize;
    /// Block `i < blocks()` as the queries at positions `32 * query_block ..` see it.
    fn block(&self, i: usize, query_block: u64) -> Block<'_>;
    /// Runs of blocks whose positions are in the same 256, in order.
    fn spans(&self) -> usize;
    /// Blocks of span `i < spans()`, one to eight of them.
    fn span(&self, i: usize) -> Range<usize>;
}
