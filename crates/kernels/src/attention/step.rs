//! The steps both paths are made of, for one span and the rows of one unit.

use super::block::Block;
use super::kernel::{self, Head, Piece, Room, Rows};
use super::scratch::SCORE_STRIDE;

use super::{Attend, BLOCK_SLOTS, SPAN_BLOCKS, SPAN_SLOTS};
use crate::cpu::Table;
use crate::ops;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The rows of a unit: `queries` queries from `first` on, each with the heads of one group.
/// Row `r` is query `r / group`, head `r % group` of the group.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub kv_head: usize,
    pub first: usize,
    pub queries: usize,
    pub group: usize,
}

impl Unit {
    pub(super) fn rows(&self) -> usize {
        self.queries * self.group
    }

    /// The block of positions that all queries of the unit are in.
    fn query_block(&self, job: &Attend<'_>) -> u64 {
        self.position(job, 0) / BLOCK_SLOTS as u64
    }

    fn block<'a>(&self, job: &'a Attend<'_>, i: usize) -> Block<'a> {
        job.view.block(i, self.query_block(job))
    }

    fn position(&self, job: &Attend<'_>, query: usize) -> u64 {
        job.first_position
            .saturating_add((self.first + query) as u64)
    }

    /// Where row `r` lies in (row, head, dim).
    pub(super) fn offset(&self, job: &Attend<'_>, r: usize) -> usize {
        let head = self.kv_head * self.group + r % self.group;
        ((self.first + r / self.group) * job.heads + head) * job.head_dim
    }
}

/// The slots of a block that a query at `position` sees.
fn visible(job: &Attend<'_>, block: &Block<'_>, position: u64) -> Range<usize> {
    let upto = |p: u64| {
        p.saturating_sub(block.first_position)
            .min(block.rows as u64) as usize
    };
    let next = position.saturating_add(1);
    let lowest = job.window.map_or(0, |w| next.saturating_sub(w));
    upto(lowest)..upto(next).max(upto(lowest))
}

/// Any query of the unit sees any slot of the block: the last query sees furthest ahead, the first
/// furthest back.
fn sees(job: &Attend<'_>, unit: &Unit, block: &Block<'_>) -> bool {
    let first = visible(job, block, unit.position(job, 0));
    let last = visible(job, block, unit.position(job, unit.queries - 1));
    first.start < last.end
}

/// Every query of the unit sees every slot of the block.
fn sees_all(job: &Attend<'_>, unit: &Unit, block: &Block<'_>) -> bool {
    let first = visible(job, block, unit.position(job, 0));
    let last = visible(job, block, unit.position(job, unit.queries - 1));
    last.start == 0 && first.end == BLOCK_SLOTS
}

/// How many blocks later the one is that is asked for while a block of codes is read. Floats are
/// read for longer: the next one is far enough.
const CODES_AHEAD: usize = 2;

/// The blocks of a span as a unit sees them, and those after it that are asked for ahead of time.
/// Asking the view is a call each, so it is done once.
pub(super) struct Span<'a> {
    blocks: [Option<Block<'a>>; SPAN_BLOCKS + CODES_AHEAD],
    first: usize,
    count: usize,
}

impl<'a> Span<'a> {
    /// Nothing, if no query of the unit sees any of it.
    pub(super) fn open(job: &'a Attend<'_>, unit: &Unit, span: usize) -> Option<Span<'a>> {
        let range = job.view.span(span);
        let mut open = Span {
            blocks: [const { None }; SPAN_BLOCKS + CODES_AHEAD],
            first: range.start,
            count: range.len(),
        };
        let last = (range.end + CODES_AHEAD).min(job.view.blocks());
        let query_block = unit.query_block(job);
        for (to, i) in open.blocks.iter_mut().zip(range.start..last) {
            *to = Some(job.view.block(i, query_block));
        }
        let seen = open.seen(job, unit).next().is_some();
        seen.then_some(open)
    }

    /// The blocks that some query sees, with their index in the span.
    fn seen<'s>(
        &'s self,
        job: &Attend<'_>,
        unit: &Unit,
    ) -> impl Iterator<Item = (usize, &'s Block<'a>)> {
        let blocks = self.blocks[..self.count].iter().enumerate();
        blocks
            .filter_map(|(i, block)| Some((i, block.as_ref()?)))
            .filter(move |(_, block)| sees(job, unit, block))
    }

    /// One head of one side of block `i`, with what to ask for meanwhile.
    fn head(&self, i: usize, block: &Block<'a>, unit: &Unit, dim: usize, side: Side) -> Head<'a> {
        let mut head = part(block, unit.kv_head, dim, side);
        let ahead = if head.form.codec.is_float() {
            1
        } else {
            CODES_AHEAD
        };
        if let Some(later) = &self.blocks[i + ahead] {
            head.ahead = part(later, unit.kv_head, dim, side).bytes;
        }
        head
    }
}

pub(super) fn sees_span(job: &Attend<'_>, unit: &Unit, span: usize) -> bool {
    job.view
        .span(span)
        .any(|b| sees(job, unit, &unit.block(job, b)))
}

/// A unit's queries as blocks of one segment meet them.
pub(super) struct Queries<'a> {
    /// (row, dim), in the basis of the blocks and scaled
    q: &'a mut [f32],
    /// (row): what the mean adds to every score
    bias: &'a mut [f32],
    segment: Option<usize>,
}

impl<'a> Queries<'a> {
    pub(super) fn new(q: &'a mut [f32], bias: &'a mut [f32]) -> Queries<'a> {
        Queries {
            q,
            bias,
            segment: None,
        }
    }

    /// Loads those of a segment, unless they are there already. Segments follow each other along
    /// the table, so each is loaded once.
    fn load(&mut self, table: Table, job: &Attend<'_>, unit: &Unit, segment: usize) {
        if self.segment == Some(segment) {
            return;
        }
        self.segment = Some(segment);
        let dim = job.head_dim;
        let mean = job.mean.map(|mean| &mean[unit.kv_head * dim..][..dim]);
        let rows = self.q.chunks_exact_mut(dim).zip(&mut *self.bias);
        for (r, (q, bias)) in rows.enumerate().take(unit.rows()) {
            q.copy_from_slice(&job.q[segment][unit.offset(job, r)..][..dim]);
            ops::turn::turn(table, job.basis.k, q);
            ops::scale(table, q, job.scale);
            *bias = mean.map_or(0.0, |mean| kernel::dot(table, q, mean));
        }
    }
}

/// A row's sum over all spans becomes its output: divided, and back in the model's basis.
pub(super) fn finish_row(table: Table, job: &Attend<'_>, total: &mut [f32], inverse: f32) {
    ops::scale(table, total, inverse);
    ops::turn::turn_back(table, job.basis.v, total);
}

/// Scores of a span, minus infinity where a query must not look; `scores` is (row, 256 + pad).
pub(super) fn score_span(
    table: Table,
    job: &Attend<'_>,
    unit: &Unit,
    span: &Span<'_>,
    queries: &mut Queries<'_>,
    room: &mut Room<'_>,
    scores: &mut [f32],
) {
    let mut next = 0;
    for (i, block) in span.seen(job, unit) {
        blind(scores, next..i);
        next = i + 1;
        let scores = &mut scores[i * BLOCK_SLOTS..];
        queries.load(table, job, unit, block.segment);
        let q = Rows {
            values: queries.q,
            stride: job.head_dim,
            count: unit.rows(),
        };
        let k = span.head(i, block, unit, job.head_dim, Side::K);
        kernel::score(table, q, queries.bias, k, room, scores, SCORE_STRIDE);
        if job.softcap.is_none() && sees_all(job, unit, block) {
            continue;
        }
        for query in 0..unit.queries {
            let seen = visible(job, block, unit.position(job, query));
            for r in query * unit.group..(query + 1) * unit.group {
                let scores = &mut scores[r * SCORE_STRIDE..][..BLOCK_SLOTS];
                if let Some(cap) = job.softcap {
                    kernel::soft_cap(table, scores, cap);
                }
                scores[..seen.start].fill(f32::NEG_INFINITY);
                scores[seen.end..].fill(f32::NEG_INFINITY);
            }
        }
    }
    blind(scores, next..span.count);
}

/// Scores of blocks that nobody sees.
fn blind(scores: &mut [f32], blocks: Range<usize>) {
    let slots = blocks.start * BLOCK_SLOTS..blocks.end * BLOCK_SLOTS;
    if !slots.is_empty() {
        for row in scores.chunks_exact_mut(SCORE_STRIDE) {
            row[slots.clone()].fill(f32::NEG_INFINITY);
        }
    }
}

/// Which of a block's two halves.
#[derive(Clone, Copy)]
enum Side {
    K,
    V,
}

/// One head's part of the keys or values of a block.
fn part<'a>(block: &Block<'a>, kv_head: usize, dim: usize, side: Side) -> Head<'a> {
    let coded = match side {
        Side::K => block.k,
        Side::V => block.v,
    };
    let bytes = coded.form.head_bytes(dim);
    let sinks: &[u8] = block.sinks.map_or(&[], |sinks| {
        let rows = match side {
            Side::K => sinks.k,
            Side::V => sinks.v,
        };
        let bytes = 2 * dim * sinks.rows;
        &rows[kv_head * bytes..][..bytes]
    });
    Head {
        form: coded.form,
        dim,
        bytes: &coded.bytes[kv_head * bytes..][..bytes],
        ahead: &[],
        sinks,
    }
}

/// The greater; for rows in which nothing is seen it stays minus infinity.
pub(super) fn greater(a: f32, b: f32) -> f32 {
    if a < b { b } else { a }
}

/// What is subtracted from a row's scores before the exponential.
pub(super) fn shift(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// The factor of a row's output; a query that sees nothing gets zeros.
pub(super) fn inverse(sum: f32) -> f32 {
    if sum == 0.0 { 0.0 } else { 1.0 / sum }
}

/// `partial (row, dim)` = the span's values weighted by `p` (row, 256 + pad).
pub(super) fn weigh_span(
    table: Table,
    job: &Attend<'_>,
    unit: &Unit,
    span: &Span<'_>,
    p: &[f32],
    room: &mut Room<'_>,
    partial: &mut [f32],
) {
    let last = unit.position(job, unit.queries - 1);
    let mut pieces = [Piece::NONE; SPAN_BLOCKS];
    let mut count = 0;
    for (i, block) in span.seen(job, unit) {
        pieces[count] = Piece {
            head: span.head(i, block, unit, job.head_dim, Side::V),
            at: i * BLOCK_SLOTS,
            // Slots that no query of the unit sees yet may not have been written.
            slots: visible(job, block, last).end,
        };
        count += 1;
    }
    let p = Rows {
        values: p,
        stride: SCORE_STRIDE,
        count: unit.rows(),
    };
    kernel::weigh(table, p, &pieces[..count], job.head_dim, room, partial);
}

/// Adds the unit's attention mass in one span to the job's counters. With `shared`, other units add
/// to the same counters meanwhile.
///
/// # Safety
/// - `mass` are the job's mass slices, used by other threads only through this function.
/// - Unless `shared`, no other thread uses the counters of this KV head and span.
pub(super) unsafe fn mass_span(
    table: Table,
    job: &Attend<'_>,
    unit: &Unit,
    span: &Span<'_>,
    p: &[f32],
    inverse: &[f32],
    mass: (*mut u64, *mut u64),
    shared: bool,
) {
    let blocks = job.view.blocks();
    for (i, block) in span.seen(job, unit) {
        let mut counts = [[0u64; BLOCK_SLOTS]; 2];
        for query in 0..unit.queries {
            let position = unit.position(job, query);
            let own = position - position % BLOCK_SLOTS as u64;
            let others = own.saturating_sub(block.first_position).min(32) as usize;
            if others == 0 {
                continue;
            }
            let at = query * unit.group;
            let p = &p[at * SCORE_STRIDE + i * BLOCK_SLOTS..];
            add_mass(table, p, &inverse[at..at + unit.group], others, &mut counts);
        }
        let first = (unit.kv_head * blocks + span.first + i) * BLOCK_SLOTS;
        for (to, counts) in [mass.0, mass.1].into_iter().zip(&counts) {
            // SAFETY: `Attend::check` saw that the slices have (kv_head, slot) of all blocks; the
            // caller promises that every access is through here, and that there is no other one
            // unless `shared`.
            unsafe {
                let to = to.add(first);
                if shared {
                    for (slot, count) in counts.iter().enumerate().filter(|(_, c)| **c != 0) {
                        AtomicU64::from_ptr(to.add(slot)).fetch_add(*count, Ordering::Relaxed);
                    }
                } else {
                    let to = std::slice::from_raw_parts_mut(to, BLOCK_SLOTS);
                    for (to, count) in to.iter_mut().zip(counts) {
                        *to = to.wrapping_add(*count);
                    }
                }
            }
        }
    }
}

/// One query's mass in one block, in its first `others` slots.
fn add_mass(
    table: Table,
    p: &[f32],
    inverse: &[f32],
    others: usize,
    counts: &mut [[u64; BLOCK_SLOTS]; 2],
) {
    let [sums, squares] = counts;
    for lane in (0..others).step_by(16) {
        let p = Rows {
            values: &p[lane..],
            stride: SCORE_STRIDE,
            count: inverse.len(),
        };
        let mut sum = [0; 16];
        let mut sum_sq = [0; 16];
        kernel::mass_lanes(table, p, inverse, &mut sum, &mut sum_sq);
        for (i, slot) in (lane..others.min(lane + 16)).enumerate() {
            sums[slot] = sums[slot].wrapping_add(sum[i]);
            squares[slot] = squares[slot].wrapping_add(sum_sq[i]);
        }
    }
}

/// The exponentials and the sum of one row of a span.
pub(super) fn exp_row(table: Table, row: &mut [f32], slots: usize, max: f32) -> f32 {
    debug_assert!(slots <= SPAN_SLOTS);
    ops::exp::exp_sub_sum(table, &mut row[..slots], shift(max))
}
