//! The steps both paths are made of, for one span and the rows of one unit.

use super::kernel::{self, NumbersMut, Piece, Query, Room, Rows};
use super::scratch::{SCORE_STRIDE, as_bytes, as_words};
use super::span::Span;
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

    pub(super) fn position(&self, job: &Attend<'_>, query: usize) -> u64 {
        job.first_position
            .saturating_add((self.first + query) as u64)
    }

    /// Where row `r` lies in (row, head, dim).
    pub(super) fn offset(&self, job: &Attend<'_>, r: usize) -> usize {
        let head = self.kv_head * self.group + r % self.group;
        ((self.first + r / self.group) * job.heads + head) * job.head_dim
    }
}

/// A unit's queries as blocks of one segment meet them.
pub(super) struct Queries<'a> {
    /// (row, dim), in the basis of the blocks and scaled
    q: &'a mut [f32],
    /// (row): what the mean adds to every score
    bias: &'a mut [f32],
    narrow: NumbersMut<'a>,
    wide: NumbersMut<'a>,
    segment: Option<usize>,
}

impl<'a> Queries<'a> {
    pub(super) fn floats(rows: usize, dim: usize) -> usize {
        let len = dim.next_multiple_of(16);
        // Queries, bias; two bytes a number, its eighth of a sum and a unit, twice.
        rows * (dim + 1 + 2 * (len / 2 + len / 8 + 1))
    }

    /// In [`Queries::floats`] floats.
    pub(super) fn new(floats: &'a mut [f32], rows: usize, dim: usize) -> Queries<'a> {
        let (q, floats) = floats.split_at_mut(rows * dim);
        let (bias, floats) = floats.split_at_mut(rows);
        let (narrow, wide) = floats.split_at_mut(floats.len() / 2);
        let numbers = |floats: &'a mut [f32]| {
            let len = dim.next_multiple_of(16);
            let (unit, floats) = floats.split_at_mut(rows);
            let (bytes, eights) = floats.split_at_mut(rows * len / 2);
            NumbersMut {
                bytes: as_bytes(bytes),
                len,
                unit,
                eights: as_words(&mut eights[..rows * len / 8]),
            }
        };
        Queries {
            q,
            bias,
            narrow: numbers(narrow),
            wide: numbers(wide),
            segment: None,
        }
    }

    /// Loads those of a segment, unless they are there already. Segments follow each other along
    /// the table, so each is loaded once.
    pub(super) fn load(&mut self, table: Table, job: &Attend<'_>, unit: &Unit, segment: usize) {
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
        let q = Rows {
            values: self.q,
            stride: dim,
            count: unit.rows(),
        };
        kernel::round_queries(table, q, &mut self.narrow, &mut self.wide);
    }

    /// What was loaded.
    pub(super) fn read(&self, dim: usize, rows: usize) -> Query<'_> {
        Query {
            q: Rows {
                values: self.q,
                stride: dim,
                count: rows,
            },
            bias: self.bias,
            narrow: self.narrow.read(),
            wide: self.wide.read(),
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
    let (mut pieces, mut count, mut segment) = ([Piece::NONE; SPAN_BLOCKS], 0, 0);
    for (i, look) in span.seen() {
        blind(scores, next..i);
        next = i + 1;
        // Blocks of a segment are scored together.
        if count > 0 && look.segment != segment {
            queries.load(table, job, unit, segment);
            let query = queries.read(job.head_dim, unit.rows());
            kernel::score(table, query, &pieces[..count], room, scores, SCORE_STRIDE);
            count = 0;
        }
        segment = look.segment;
        pieces[count] = look.piece(i);
        count += 1;
    }
    queries.load(table, job, unit, segment);
    let query = queries.read(job.head_dim, unit.rows());
    kernel::score(table, query, &pieces[..count], room, scores, SCORE_STRIDE);
    blind(scores, next..span.count);

    for (i, look) in span.seen() {
        if job.softcap.is_none() && look.is_clear {
            continue;
        }
        let scores = &mut scores[i * BLOCK_SLOTS..];
        for query in 0..unit.queries {
            let seen = look.extent.visible(job, unit.position(job, query));
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
    let mut pieces = [Piece::NONE; SPAN_BLOCKS];
    let mut count = 0;
    for (i, look) in span.seen() {
        pieces[count] = look.piece(i);
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
    for (i, look) in span.seen() {
        let mut counts = [[0u64; BLOCK_SLOTS]; 2];
        for query in 0..unit.queries {
            let position = unit.position(job, query);
            let own = position - position % BLOCK_SLOTS as u64;
            let others = own.saturating_sub(look.extent.first_position).min(32) as usize;
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
