//! Attention over blocks of keys and values.
//!
//! What it computes, for each query row and head: scores against every slot the query may see,
//! their softmax, the weighted sum of the values; and, if asked, how much attention each slot got
//! ([`Mass`]). What it is not: it neither ropes nor projects, stores nothing, and knows no session;
//! it reads blocks through [`KvView`].
//!
//! # The order of every sum
//!
//! A *span* is the blocks of 256 positions, counted from position 0, so that it holds the same
//! whether or not blocks before it are still kept. A *group* is the dimensions that share a scale. For
//! one query row and head:
//!
//! ```text
//! q             the query of the block's segment, turned into the blocks' basis, times the scale
//! bias          q · mean: sixteen lanes of fused multiply-adds and their tree; 0 without a mean
//! score[slot]   codes    numbers of q times levels, exact, rounded to f32 for each group; groups in
//!                        order, the first times its scale, the others fused: sum * scale + score;
//!                        then fused: score * unit of q + bias
//!               floats   fused multiply-adds over dimensions, in order from 0; plus bias
//!               sinks    sixteen lanes of fused multiply-adds and their tree; plus bias
//!               softcap(score), if there is one
//! m             the greatest score
//! p[slot]       exp(score - m), 0 where the query must not look or the slot is hidden
//! sum           per span: sixteen lanes and their tree; spans added in order from 0
//! o[dim]        per span, from 0: sinks, fused multiply-adds in order; then forms in order,
//!               codes    numbers of p * scale[group of dim] times levels, exact over the blocks of
//!                        the form, rounded to f32; fused: sum * unit + o
//!               floats   fused multiply-adds over slots, in order
//!               spans added in order from 0
//! out           o * (1 / sum), turned back
//! ```
//!
//! *Numbers* of a row are whole, in a *unit* of their own: [`kernel`] says how they are rounded.
//!
//! Nothing in this depends on other rows, on how rows were grouped, on the thread count or on which
//! of the two paths ran. What form a block has for a query is a matter of the query's block of 32
//! positions alone, which no unit leaves. A slot that must not be seen, because of where it stands or
//! because it is hidden ([`Block::hidden`]), adds an exact zero, so leaving out a block or a span that
//! nobody sees changes nothing.
//!
//! # Two paths
//!
//! *Tiles*: a unit is some queries of one KV head from first to last step ([`tile`]). *Split*: one
//! query at depth: scores, values and the rest are three regions whose units are single spans with all
//! their heads, so that memory is read in the order it lies ([`split`]).

mod block;
mod kernel;
mod scratch;
mod span;
mod split;
mod step;
mod tile;

pub use crate::format::kv::BLOCK_SLOTS;
pub use block::{Block, Coded, KvView, Sinks};
pub use kernel::dot;
pub use scratch::{Need, Scratch};

use crate::Exec;
use crate::format::kv::Basis;

/// Blocks of a span: 256 slots.
pub const SPAN_BLOCKS: usize = 8;
/// Slots of a span.
pub const SPAN_SLOTS: usize = SPAN_BLOCKS * BLOCK_SLOTS;

/// KV heads per thread up to which queries at depth are split into spans: more occupy the threads as
/// they are, and records for them would take much memory.
const UNITS_PER_THREAD: usize = 4;
/// Spans from which splitting pays for its three regions.
const SPLIT_SPANS: usize = 3;

/// One sequence's part of a step: its new queries against its blocks, which hold the new keys
/// already.
pub struct Attend<'a> {
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// The basis the blocks are in. Queries and outputs are in the model's own.
    pub basis: Basis,
    /// (kv_head, dim), in the basis: what was taken from every key before it was stored. Its share
    /// of a score is added back.
    pub mean: Option<&'a [f32]>,
    /// Multiplied into the query: usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// A query at `p` sees positions above `p - window` only.
    pub window: Option<u64>,
    /// Per segment: (row, head, dim), roped to where the segment's keys count as standing.
    pub q: &'a [&'a [f32]],
    /// Position of row 0; the others follow by one. Row `i` sees positions up to its own.
    pub first_position: u64,
    pub view: &'a dyn KvView,
    /// (row, head, dim)
    pub out: &'a mut [f32],
    pub mass: Option<Mass<'a>>,
    /// (row, head)
    pub sums: Option<&'a mut [Sum]>,
}

/// What the softmax of one row and head was divided by: `p[slot] = exp(score - max) / sum`. With it the
/// share of any rows can be told afterwards from those rows alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Sum {
    /// The greatest score; minus infinity where nothing was seen.
    pub max: f32,
    pub sum: f32,
}

/// Where attention mass is counted.
///
/// For each query and KV head, `a` is the attention probability of a slot averaged over the query
/// heads of the group. Slots whose `position / 32` differs from the query's count it as [`Count`] says.
/// A query whose probabilities are not numbers counts nothing; `bad` names it.
pub struct Mass<'a> {
    /// (kv_head, slot) with all slots of the table, 32 per block. Counting goes on from what is there.
    pub counters: &'a mut [u64],
    pub count: Count,
    /// One query of so many counts: those at positions `every - 1`, `2 * every - 1`, … At least 1.
    pub every: u64,
    /// Becomes the position of the first query whose probabilities are not numbers, counted or not, if
    /// that is less than what is there.
    pub bad: &'a mut u64,
}

/// What a slot counts of each query's `a`: whole numbers of a unit, so that the order of queries changes
/// nothing. Units are as small as thirty-two bits of a long conversation allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The sum of `a`.
    Sum,
    /// The sum of `a^2`.
    Squares,
    /// The greatest `a`.
    Max,
    /// The sum of `a` times the weight of the query's place in its block of 32, in units of
    /// 1 / [`Count::WEIGHT_ONE`].
    Weighted([u16; BLOCK_SLOTS]),
}

impl Count {
    pub const WEIGHT_ONE: u16 = 1 << 15;

    /// Counters are in units of 2^-bits.
    pub const fn bits(self) -> u32 {
        match self {
            Count::Sum => 20,
            Count::Squares => 24,
            Count::Max => 30,
            Count::Weighted(_) => 22,
        }
    }

    /// What a slot of one KV head counts that gets all attention of `queries` queries from
    /// `first_position` on.
    pub fn whole(self, first_position: u64, queries: u64, every: u64) -> u64 {
        let end = first_position.saturating_add(queries);
        let every = every.max(1);
        let counted = end / every - first_position / every;
        let one = 1u64 << self.bits();
        match self {
            Count::Sum | Count::Squares => counted.saturating_mul(one),
            Count::Max => one.min(counted.saturating_mul(one)),
            Count::Weighted(weights) => {
                let place = |position: u64| (position % BLOCK_SLOTS as u64) as usize;
                let first = (first_position / every + 1).saturating_mul(every) - 1;
                let positions = (0..counted).map(|i| place(first.wrapping_add(i * every)));
                let unit = one / u64::from(Count::WEIGHT_ONE);
                positions
                    .map(|place| u64::from(weights[place]) * unit)
                    .sum()
            }
        }
    }

    /// The factor of `a` (or its square) of a query at `position`, to a number that counts in the unit when
    /// it is counted in 2^-40. A power of two, or a whole number times one.
    fn factor(self, position: u64) -> f32 {
        let unit = 1.0 / (1u64 << (40 - self.bits())) as f32;
        match self {
            Count::Weighted(weights) => {
                let weight = weights[(position % BLOCK_SLOTS as u64) as usize];
                f32::from(weight) * (unit / f32::from(Count::WEIGHT_ONE))
            }
            _ => unit,
        }
    }
}

impl Attend<'_> {
    /// Query heads of one KV head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn rows(&self) -> usize {
        self.out.len() / (self.heads * self.head_dim)
    }

    fn spans(&self) -> usize {
        self.view.spans()
    }

    /// Scores of a span that are in use: whole blocks.
    fn span_slots(&self, span: usize) -> usize {
        self.view.span(span).len() * BLOCK_SLOTS
    }

    fn check(&self) {
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

/// Attention of all sequences of a batch. Never allocates: `scratch` was reserved for these jobs.
pub fn attend(exec: Exec<'_>, scratch: &mut Scratch, jobs: &mut [Attend<'_>]) {
    for job in jobs.iter() {
        job.check();
    }
    let at_once = scratch.jobs_max();
    for jobs in jobs.chunks_mut(at_once) {
        if prefers_split(jobs) && scratch.fits_split(jobs) {
            split::run(exec, scratch, jobs);
        } else {
            tile::run(exec, scratch, jobs);
        }
    }
}

/// Single queries, deep. Decides the time a step takes, never its bits.
fn prefers_split(jobs: &[Attend<'_>]) -> bool {
    let spans = jobs.iter().map(Attend::spans).max().unwrap_or(0);
    spans >= SPLIT_SPANS && jobs.iter().all(|job| job.rows() == 1)
}
