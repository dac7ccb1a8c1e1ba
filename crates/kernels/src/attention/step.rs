//! The steps of both paths, for one span and the rows of one unit.

use super::block::slots_of;
use super::job::{MassStatistic, SPAN_SLOTS};
use super::kernel::{self, Rows, Workspace};
use super::query::{QuerySource, Unit};
use super::scratch::{MassOutput, SCORE_STRIDE};
use super::span::{Span, VisibleBlock};
use crate::cpu::Backend;
use crate::format::kv::BLOCK_SLOTS;
use crate::ops;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A row's sum over all spans becomes its output: divided, and back in the model's basis.
pub(super) fn finish_row(unit: &Unit<'_>, total: &mut [f32], inverse: f32) {
    ops::scale(unit.backend, total, inverse);
    ops::rotation::unrotate_head(unit.backend, unit.job.basis.v, total);
}

/// Scores of a span, minus infinity for slots that a query does not see; `scores` is (row, 256 + pad).
pub(super) fn score_span(
    unit: &Unit<'_>,
    span: &mut Span<'_>,
    queries: &mut QuerySource<'_>,
    workspace: &mut Workspace<'_>,
    scores: &mut [f32],
) {
    // Blocks of a segment are scored together.
    let mut from = 0;
    while let Some(VisibleBlock { segment, .. }) = span.visible_blocks().get(from).copied() {
        let same_segment = |block: &&VisibleBlock| block.segment == segment;
        let end = from
            + span.visible_blocks()[from..]
                .iter()
                .take_while(same_segment)
                .count();
        let query = queries.of_segment(unit, segment);
        let pieces = &span.pieces(unit.kv_head)[from..end];
        kernel::score(unit.backend, query, pieces, workspace, scores, SCORE_STRIDE);
        from = end;
    }
    let mut next = 0;
    for block in span.visible_blocks() {
        mask_blocks(scores, next..block.index);
        next = block.index + 1;
        if block.is_clear {
            continue;
        }
        let scores = &mut scores[block.index * BLOCK_SLOTS..];
        for query in 0..unit.queries {
            let seen = block.extent.visible(unit.job, unit.position(query));
            for r in query * unit.group..(query + 1) * unit.group {
                let scores = &mut scores[r * SCORE_STRIDE..][..BLOCK_SLOTS];
                scores[..seen.start].fill(f32::NEG_INFINITY);
                scores[seen.end..].fill(f32::NEG_INFINITY);
                for slot in slots_of(block.hidden) {
                    scores[slot] = f32::NEG_INFINITY;
                }
            }
        }
    }
    mask_blocks(scores, next..span.count);
}

/// Sets the scores of blocks that no query sees.
fn mask_blocks(scores: &mut [f32], blocks: Range<usize>) {
    let slots = blocks.start * BLOCK_SLOTS..blocks.end * BLOCK_SLOTS;
    if !slots.is_empty() {
        for row in scores.chunks_exact_mut(SCORE_STRIDE) {
            row[slots.clone()].fill(f32::NEG_INFINITY);
        }
    }
}

/// Subtracted from a row's scores before the exponential.
pub(super) fn shift(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// The factor of a row's output; zero for a query that sees no slot.
pub(super) fn inverse(sum: f32) -> f32 {
    if sum == 0.0 { 0.0 } else { 1.0 / sum }
}

/// `partial (row, dim)` = the span's values weighted by `p` (row, 256 + pad).
pub(super) fn weigh_span(
    unit: &Unit<'_>,
    span: &mut Span<'_>,
    p: &[f32],
    workspace: &mut Workspace<'_>,
    partial: &mut [f32],
) {
    let p = Rows {
        values: p,
        stride: SCORE_STRIDE,
        count: unit.rows(),
    };
    let pieces = span.pieces(unit.kv_head);
    kernel::weigh(
        unit.backend,
        p,
        pieces,
        unit.job.head_dim,
        workspace,
        partial,
    );
}

/// Whether any query of the unit counts towards the mass.
pub(super) fn counts(unit: &Unit<'_>) -> bool {
    let every = unit.job.mass.as_ref().map_or(0, |mass| mass.every);
    let (first, last) = unit.positions();
    every > 0 && first / every < last.saturating_add(1) / every
}

/// Counts the unit's attention mass in one span. With `shared`, other units count in the same counters
/// meanwhile.
///
/// # Safety
/// - `to` are the job's counters, used by other threads only through this function.
/// - Unless `shared`, no other thread uses the counters of this KV head and span.
pub(super) unsafe fn mass_span(
    unit: &Unit<'_>,
    span: &Span<'_>,
    p: &[f32],
    inverse: &[f32],
    to: MassOutput,
    shared: bool,
) {
    let Some(mass) = &unit.job.mass else { return };
    let blocks = unit.job.view.blocks();
    let is_max = mass.count == MassStatistic::Max;
    for block in span.visible_blocks() {
        let i = block.index;
        let mut counts = [0u64; BLOCK_SLOTS];
        for query in 0..unit.queries {
            let position = unit.position(query);
            let own = position - position % BLOCK_SLOTS as u64;
            let others = own.saturating_sub(block.extent.first_position).min(32) as usize;
            let inverse = &inverse[query * unit.group..][..unit.group];
            let counts_at_all = others > 0 && (position + 1).is_multiple_of(mass.every);
            if !counts_at_all || is_bad(inverse) {
                continue;
            }
            let p = &p[query * unit.group * SCORE_STRIDE + i * BLOCK_SLOTS..];
            let counts = &mut counts[..others];
            add_mass(unit.backend, p, inverse, mass.count, position, counts);
        }
        let first = (unit.kv_head * blocks + span.first + i) * BLOCK_SLOTS;
        // SAFETY: `AttentionJob::check` saw that the counters have (kv_head, slot) of all blocks; the
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

/// Reports the first query of the unit whose probabilities are not finite. If one of them is not, their
/// sum is not either.
///
/// # Safety
/// - `to` is the job's, used by other threads only atomically.
pub(super) unsafe fn report_bad(unit: &Unit<'_>, inverse: &[f32], to: MassOutput) {
    let mut queries = inverse.chunks_exact(unit.group).take(unit.queries);
    if let Some(query) = queries.position(is_bad) {
        // SAFETY: borrowed for the whole call, and the caller promises that other threads use it only atomically.
        let bad = unsafe { AtomicU64::from_ptr(to.bad) };
        bad.fetch_min(unit.position(query), Ordering::Relaxed);
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

/// One query's mass in the first slots of one block.
fn add_mass(
    backend: Backend,
    p: &[f32],
    inverse: &[f32],
    count: MassStatistic,
    position: u64,
    counts: &mut [u64],
) {
    let (factor, is_squared) = (count.factor(position), count == MassStatistic::Squares);
    for (i, counts) in counts.chunks_mut(16).enumerate() {
        let p = Rows {
            values: &p[16 * i..],
            stride: SCORE_STRIDE,
            count: inverse.len(),
        };
        let mut more = [0; 16];
        kernel::mass_lanes(backend, p, inverse, factor, is_squared, &mut more);
        for (to, more) in counts.iter_mut().zip(more) {
            *to = join(count == MassStatistic::Max, *to, more);
        }
    }
}

/// The exponentials and the sum of one row of a span.
pub(super) fn exp_row(backend: Backend, row: &mut [f32], slots: usize, max: f32) -> f32 {
    debug_assert!(slots <= SPAN_SLOTS);
    ops::exp::exp_sub_sum(backend, &mut row[..slots], shift(max))
}
