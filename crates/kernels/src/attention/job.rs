//! One sequence's part of a step, as the caller hands it over.

use super::block::KvView;
use crate::format::kv::{BLOCK_SLOTS, Basis};

/// Blocks of a span: 256 slots.
pub const SPAN_BLOCKS: usize = 8;
/// Slots of a span.
pub const SPAN_SLOTS: usize = SPAN_BLOCKS * BLOCK_SLOTS;

/// One sequence's part of a step: its new queries against its blocks, which hold the new keys
/// already.
pub struct AttentionJob<'a> {
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// The basis the blocks are in. Queries and outputs are in the model's own.
    pub basis: Basis,
    /// (kv_head, dim), in the basis: subtracted from every key before it was stored. Attention adds its
    /// share of each score back.
    pub mean: Option<&'a [f32]>,
    /// Multiplied into the query: usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// A query at `p` sees positions above `p - window` only.
    pub window: Option<u64>,
    /// Per segment: (row, head, dim), roped to the position at which the segment's keys count.
    pub q: &'a [&'a [f32]],
    /// Position of row 0; the others follow by one. Row `i` sees positions up to its own.
    pub first_position: u64,
    pub view: &'a dyn KvView,
    /// (row, head, dim)
    pub out: &'a mut [f32],
    pub mass: Option<Mass<'a>>,
    /// (row, head)
    pub sums: Option<&'a mut [SoftmaxSum]>,
}

/// The softmax denominator of one row and head: `p[slot] = exp(score - max) / sum`. With it a caller can
/// compute the share of any rows afterwards from those rows alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct SoftmaxSum {
    /// The greatest score; minus infinity where the query saw no slot.
    pub max: f32,
    pub sum: f32,
}

/// Counters of attention mass: how much attention each slot got.
///
/// For each query and KV head, `a` is the attention probability of a slot averaged over the query
/// heads of the group. Slots whose `position / 32` differs from the query's add it as [`MassStatistic`] says.
/// A query whose probabilities are not finite adds nothing; `bad` names it.
pub struct Mass<'a> {
    /// (kv_head, slot) with all slots of the table, 32 per block. Counting goes on from what is there.
    pub counters: &'a mut [u64],
    pub count: MassStatistic,
    /// Only one query in `every` counts: those at positions `every - 1`, `2 * every - 1`, … At least 1.
    pub every: u64,
    /// Lowered to the position of the first query whose probabilities are not finite, counted or not.
    pub bad: &'a mut u64,
}

/// What a slot accumulates of each query's `a`, in fixed point, so that the order of queries changes
/// nothing. The resolution is as fine as thirty-two bits of a long conversation allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MassStatistic {
    /// The sum of `a`.
    Sum,
    /// The sum of `a^2`.
    Squares,
    /// The greatest `a`.
    Max,
    /// The sum of `a` times the weight of the query's place in its block of 32, in units of
    /// 1 / [`MassStatistic::WEIGHT_ONE`].
    Weighted([u16; BLOCK_SLOTS]),
}

impl MassStatistic {
    pub const WEIGHT_ONE: u16 = 1 << 15;

    /// Counters are in units of 2^-bits.
    pub const fn bits(self) -> u32 {
        match self {
            MassStatistic::Sum => 20,
            MassStatistic::Squares => 24,
            MassStatistic::Max => 30,
            MassStatistic::Weighted(_) => 22,
        }
    }

    /// The counter of a slot of one KV head that gets all attention of `queries` queries from
    /// `first_position` on.
    pub fn whole(self, first_position: u64, queries: u64, every: u64) -> u64 {
        let end = first_position.saturating_add(queries);
        let every = every.max(1);
        let counted = end / every - first_position / every;
        let one = 1u64 << self.bits();
        match self {
            MassStatistic::Sum | MassStatistic::Squares => counted.saturating_mul(one),
            MassStatistic::Max => one.min(counted.saturating_mul(one)),
            MassStatistic::Weighted(weights) => {
                let place = |position: u64| (position % BLOCK_SLOTS as u64) as usize;
                let first = (first_position / every + 1).saturating_mul(every) - 1;
                let positions = (0..counted).map(|i| place(first.wrapping_add(i * every)));
                let unit = one / u64::from(MassStatistic::WEIGHT_ONE);
                positions
                    .map(|place| u64::from(weights[place]) * unit)
                    .sum()
            }
        }
    }

    /// The factor of `a` (or its square) of a query at `position` that turns units of 2^-40 into the
    /// statistic's own. A power of two, or an integer times one.
    pub(super) fn factor(self, position: u64) -> f32 {
        let unit = 1.0 / (1u64 << (40 - self.bits())) as f32;
        match self {
            MassStatistic::Weighted(weights) => {
                let weight = weights[(position % BLOCK_SLOTS as u64) as usize];
                f32::from(weight) * (unit / f32::from(MassStatistic::WEIGHT_ONE))
            }
            _ => unit,
        }
    }
}

impl AttentionJob<'_> {
    /// Query heads of one KV head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    pub(super) fn rows(&self) -> usize {
        self.out.len() / (self.heads * self.head_dim)
    }

    pub(super) fn spans(&self) -> usize {
        self.view.spans()
    }

    /// Scores of a span that are in use: whole blocks.
    pub(super) fn span_slots(&self, span: usize) -> usize {
        self.view.span(span).len() * BLOCK_SLOTS
    }

    pub(super) fn check(&self) {
        let heads = self.heads;
        assert!(heads > 0 && self.kv_heads > 0 && self.head_dim > 0);
        assert_eq!(heads % self.kv_heads, 0, "whole groups of heads");
        assert!(!self.q.is_empty(), "a segment at least");
        for q in self.q {
            assert_eq!(q.len(), self.out.len(), "an output for each query");
        }
        assert_eq!(self.out.len() % (heads * self.head_dim), 0, "whole rows");
        if let Some(mean) = self.mean {
            assert_eq!(mean.len(), self.kv_heads * self.head_dim);
        }
        if let Some(mass) = &self.mass {
            let slots = self.kv_heads * self.view.blocks() * BLOCK_SLOTS;
            assert!(mass.counters.len() >= slots);
            assert!(mass.every > 0);
        }
        if let Some(sums) = &self.sums {
            assert_eq!(
                sums.len(),
                self.rows() * heads,
                "a sum for each row and head"
            );
        }
    }
}
