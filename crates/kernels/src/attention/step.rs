//! The steps both paths are made of, for one span and the rows of one unit.

use super::block::slots_of;
use super::kernel::{self, Numbers, NumbersMut, Query, Room, Rows};
use super::scratch::{MassOutlet, SCORE_STRIDE, bytes_mut, bytes_of, words_mut, words_of};
use super::span::{Look, Span};
use super::{Attend, BLOCK_SLOTS, Count, SPAN_SLOTS};
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

    /// Of the first and the last query.
    pub(super) fn positions(&self, job: &Attend<'_>) -> (u64, u64) {
        (self.position(job, 0), self.position(job, self.queries - 1))
    }

    /// Where row `r` lies in (row, head, dim).
    pub(super) fn offset(&self, job: &Attend<'_>, r: usize) -> usize {
        let head = self.kv_head * self.group + r % self.group;
        ((self.first + r / self.group) * job.heads + head) * job.head_dim
    }
}

/// A unit's queries as blocks of one segment meet them, in some floats:
///
/// ```text
/// q (row, dim)  bias (row)  narrow, wide: unit (row) numbers (row, 2 len bytes) eights (row, len / 8)
/// ```
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub rows: usize,
    pub dim: usize,
}

impl Layout {
    fn len(self) -> usize {
        self.dim.next_multiple_of(16)
    }

    fn numbers(self) -> usize {
        self.rows * (1 + self.len() / 2 + self.len() / 8)
    }

    /// Floats that queries take: whole cache lines.
    pub(super) fn floats(self) -> usize {
        (self.rows * (self.dim + 1) + 2 * self.numbers()).next_multiple_of(16)
    }

    /// Writes the queries of a unit as a segment meets them: in the basis of the blocks, scaled, with
    /// what the mean adds to every score, and rounded.
    pub(super) fn load(
        self,
        table: Table,
        job: &Attend<'_>,
        unit: &Unit,
        segment: usize,
        floats: &mut [f32],
    ) {
        let (rows, dim) = (self.rows, self.dim);
        let (q, floats) = floats.split_at_mut(rows * dim);
        let (bias, floats) = floats.split_at_mut(rows);
        let mean = job.mean.map(|mean| &mean[unit.kv_head * dim..][..dim]);
        for (r, (q, bias)) in q.chunks_exact_mut(dim).zip(bias).enumerate() {
            q.copy_from_slice(&job.q[segment][unit.offset(job, r)..][..dim]);
            ops::turn::turn(table, job.basis.k, q);
            ops::scale(table, q, job.scale);
            *bias = mean.map_or(0.0, |mean| kernel::dot(table, q, mean));
        }
        let q = Rows {
            values: q,
            stride: dim,
            count: rows,
        };
        let (narrow, wide) = floats.split_at_mut(self.numbers());
        let (mut narrow, mut wide) = (self.numbers_mut(narrow), self.numbers_mut(wide));
        kernel::round_queries(table, q, &mut narrow, &mut wide);
    }

    fn numbers_mut(self, floats: &mut [f32]) -> NumbersMut<'_> {
        let (rows, len) = (self.rows, self.len());
        let (unit, floats) = floats.split_at_mut(rows);
        let (bytes, eights) = floats.split_at_mut(rows * len / 2);
        NumbersMut {
            bytes: bytes_mut(bytes),
            len,
            unit,
            eights: words_mut(&mut eights[..rows * len / 8]),
        }
    }

    /// What was loaded.
    pub(super) fn read(self, floats: &[f32]) -> Query<'_> {
        let (q, floats) = floats.split_at(self.rows * self.dim);
        let (bias, floats) = floats.split_at(self.rows);
        let (narrow, wide) = floats.split_at(self.numbers());
        Query {
            q: Rows {
                values: q,
                stride: self.dim,
                count: self.rows,
            },
            bias,
            narrow: self.numbers_of(narrow),
            wide: self.numbers_of(wide),
        }
    }

    fn numbers_of(self, floats: &[f32]) -> Numbers<'_> {
        let (rows, len) = (self.rows, self.len());
        let (unit, floats) = floats.split_at(rows);
        let (bytes, eights) = floats.split_at(rows * len / 2);
        Numbers {
            bytes: bytes_of(bytes),
            len,
            unit,
            eights: words_of(&eights[..rows * len / 8]),
        }
    }
}

/// Where a unit finds its queries.
pub(super) enum Queries<'a> {
    /// Loaded for one segment at a time. Segments follow each other along the table, so each is loaded
    /// once.
    Here {
        floats: &'a mut [f32],
        segment: Option<usize>,
    },
    /// Loaded for all segments: (segment, kv_head, layout).
    Ready(&'a [f32]),
}

impl Queries<'_> {
    fn of_segment(
        &mut self,
        table: Table,
        job: &Attend<'_>,
        unit: &Unit,
        wanted: usize,
    ) -> Query<'_> {
        let layout = Layout {
            rows: unit.rows(),
            dim: job.head_dim,
        };
        match self {
            Queries::Here { floats, segment } => {
                if *segment != Some(wanted) {
                    layout.load(table, job, unit, wanted, floats);
                    *segment = Some(wanted);
                }
                layout.read(floats)
            }
            Queries::Ready(floats) => {
                let nth = wanted * job.kv_heads + unit.kv_head;
                layout.read(&floats[nth * layout.floats()..])
            }
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
    span: &mut Span<'_>,
    queries: &mut Queries<'_>,
    room: &mut Room<'_>,
    scores: &mut [f32],
) {
    // Blocks of a segment are scored together.
    let mut from = 0;
    while let Some(Look { segment, .. }) = span.looks().get(from).copied() {
        let alike = |look: &&Look| look.segment == segment;
        let end = from + span.looks()[from..].iter().take_while(alike).count();
        let query = queries.of_segment(table, job, unit, segment);
        let pieces = &span.pieces(unit.kv_head)[from..end];
        kernel::score(table, query, pieces, room, scores, SCORE_STRIDE);
        from = end;
    }
    let mut next = 0;
    for look in span.looks() {
        blind(scores, next..look.index);
        next = look.index + 1;
        if job.softcap.is_none() && look.is_clear {
            continue;
        }
        let scores = &mut scores[look.index * BLOCK_SLOTS..];
        for query in 0..unit.queries {
            let seen = look.extent.visible(job, unit.position(job, query));
            for r in query * unit.group..(query + 1) * unit.group {
                let scores = &mut scores[r * SCORE_STRIDE..][..BLOCK_SLOTS];
                if let Some(cap) = job.softcap {
                    kernel::soft_cap(table, scores, cap);
                }
                scores[..seen.start].fill(f32::NEG_INFINITY);
                scores[seen.end..].fill(f32::NEG_INFINITY);
                for slot in slots_of(look.hidden) {
                    scores[slot] = f32::NEG_INFINITY;
                }
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
    span: &mut Span<'_>,
    p: &[f32],
    room: &mut Room<'_>,
    partial: &mut [f32],
) {
    let p = Rows {
        values: p,
        stride: SCORE_STRIDE,
        count: unit.rows(),
    };
    let pieces = span.pieces(unit.kv_head);
    kernel::weigh(table, p, pieces, job.head_dim, room, partial);
}

/// Whether any query of the unit counts.
pub(super) fn counts(job: &Attend<'_>, unit: &Unit) -> bool {
    let every = job.mass.as_ref().map_or(0, |mass| mass.every);
    let (first, last) = unit.positions(job);
    every > 0 && first / every < last.saturating_add(1) / every
}

/// Counts the unit's attention mass in one span. With `shared`, other units count in the same counters
/// meanwhile.
///
/// # Safety
/// - `to` are the job's counters, used by other threads only through this function.
/// - Unless `shared`, no other thread uses the counters of this KV head and span.
pub(super) unsafe fn mass_span(
    table: Table,
    job: &Attend<'_>,
    unit: &Unit,
    span: &Span<'_>,
    p: &[f32],
    inverse: &[f32],
    to: MassOutlet,
    shared: bool,
) {
    let Some(mass) = &job.mass else { return };
    let blocks = job.view.blocks();
    let is_max = mass.count == Count::Max;
    for look in span.looks() {
        let i = look.index;
        let mut counts = [0u64; BLOCK_SLOTS];
        for query in 0..unit.queries {
            let position = unit.position(job, query);
            let own = position - position % BLOCK_SLOTS as u64;
            let others = own.saturating_sub(look.extent.first_position).min(32) as usize;
            let inverse = &inverse[query * unit.group..][..unit.group];
            let counts_at_all = others > 0 && (position + 1).is_multiple_of(mass.every);
            if !counts_at_all || is_bad(inverse) {
                continue;
            }
            let p = &p[query * unit.group * SCORE_STRIDE + i * BLOCK_SLOTS..];
            add_mass(table, p, inverse, mass.count, position, others, &mut counts);
        }
        let first = (unit.kv_head * blocks + span.first + i) * BLOCK_SLOTS;
        // SAFETY: `Attend::check` saw that the counters have (kv_head, slot) of all blocks; the
        // caller promises that every access is through here, and that there is no other one
        // unless `shared`.
        unsafe {
            let to = to.counters.add(first);
            if shared {
                for (slot, count) in counts.iter().enumerate().filter(|(_, c)| **c != 0) {
                    let to = AtomicU64::from_ptr(to.add(slot));
                    match is_max {
                        true => to.fetch_max(*count, Ordering::Relaxed),
                        false => to.fetch_add(*count, Ordering::Relaxed),
                    };
                }
            } else {
                let to = std::slice::from_raw_parts_mut(to, BLOCK_SLOTS);
                for (to, count) in to.iter_mut().zip(&counts) {
                    *to = join(is_max, *to, *count);
                }
            }
        }
    }
}

/// Names the first query of the unit whose probabilities are not numbers. Where one is not, neither is
/// their sum.
///
/// # Safety
/// - `to` is the job's, used by other threads only atomically.
pub(super) unsafe fn name_bad(job: &Attend<'_>, unit: &Unit, inverse: &[f32], to: MassOutlet) {
    let mut queries = inverse.chunks_exact(unit.group).take(unit.queries);
    if let Some(query) = queries.position(is_bad) {
        // SAFETY: borrowed for the whole call, and the caller promises that nobody else uses it otherwise.
        let bad = unsafe { AtomicU64::from_ptr(to.bad) };
        bad.fetch_min(unit.position(job, query), Ordering::Relaxed);
    }
}

/// Of one query, `inverse` (row).
fn is_bad(inverse: &[f32]) -> bool {
    !inverse.iter().all(|x| x.is_finite())
}

fn join(is_max: bool, a: u64, b: u64) -> u64 {
    match is_max {
        true => a.max(b),
        false => a.wrapping_add(b),
    }
}

/// One query's mass in one block, in its first `others` slots.
fn add_mass(
    table: Table,
    p: &[f32],
    inverse: &[f32],
    count: Count,
    position: u64,
    others: usize,
    counts: &mut [u64; BLOCK_SLOTS],
) {
    let (factor, is_squared) = (count.factor(position), count == Count::Squares);
    for lane in (0..others).step_by(16) {
        let p = Rows {
            values: &p[lane..],
            stride: SCORE_STRIDE,
            count: inverse.len(),
        };
        let mut more = [0; 16];
        kernel::mass_lanes(table, p, inverse, factor, is_squared, &mut more);
        for (to, more) in counts[lane..others].iter_mut().zip(more) {
            *to = join(count == Count::Max, *to, more);
        }
    }
}

/// The exponentials and the sum of one row of a span.
pub(super) fn exp_row(table: Table, row: &mut [f32], slots: usize, max: f32) -> f32 {
    debug_assert!(slots <= SPAN_SLOTS);
    ops::exp::exp_sub_sum(table, &mut row[..slots], shift(max))
}
