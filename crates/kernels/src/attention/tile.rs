//! The tile path: a unit is a few queries of one KV head, from scores to output.

use super::Attend;
use super::scratch::{Area, Outlet, SCORE_STRIDE, Scratch, queries_per_tile};
use super::span::{Ahead, Side, Span};
use super::step::{self, Unit};
use crate::cpu::Table;
use crate::ops::lanes::greater;
use crate::threads::Shareable;
use crate::{Exec, ops};

/// How far into its query block a job starts: tiles are counted from that block's border, so that
/// none crosses one.
fn lead(job: &Attend<'_>) -> usize {
    (job.first_position % queries_per_tile(job.group()) as u64) as usize
}

/// Tiles of one KV head.
fn tiles(job: &Attend<'_>) -> usize {
    (lead(job) + job.rows()).div_ceil(queries_per_tile(job.group()))
}

fn units(job: &Attend<'_>) -> usize {
    job.kv_heads * tiles(job)
}

pub(super) fn run(exec: Exec<'_>, scratch: &mut Scratch, jobs: &mut [Attend<'_>]) {
    let (parts, count) = scratch.parts(exec.pool.threads(), jobs, units);
    let (outlets, area_len) = (parts.outlets, parts.area_len);
    let areas = Shareable(parts.areas.as_mut_ptr());
    let jobs = &*jobs;
    exec.pool.run_in_order(count, &|worker, unit| {
        let index = outlets.partition_point(|o| o.first_unit <= unit) - 1;
        let (job, outlet) = (&jobs[index], &outlets[index]);
        let unit = unit_at(job, unit - outlet.first_unit);
        // SAFETY: `worker` is below the thread count the areas were made for, and no other thread
        // of the region has the same.
        let area =
            unsafe { std::slice::from_raw_parts_mut(areas.get().add(worker * area_len), area_len) };
        let area = Area::new(area, unit.rows(), job.head_dim);
        attend_tile(exec.table, job, outlet, &unit, area);
    });
}

/// Last tiles first: causal ones see most, and the longest units should not start last.
fn unit_at(job: &Attend<'_>, unit: usize) -> Unit {
    let queries = queries_per_tile(job.group());
    let tile = tiles(job) - 1 - unit / job.kv_heads;
    let first = (tile * queries).saturating_sub(lead(job));
    let end = ((tile + 1) * queries - lead(job)).min(job.rows());
    Unit {
        kv_head: unit % job.kv_heads,
        first,
        queries: end - first,
        group: job.group(),
    }
}

fn attend_tile(table: Table, job: &Attend<'_>, outlet: &Outlet, unit: &Unit, mut area: Area<'_>) {
    let dim = job.head_dim;
    let rows = unit.rows();
    let positions = unit.positions(job);
    let per_span = rows * SCORE_STRIDE;

    area.max.fill(f32::NEG_INFINITY);
    for span in 0..job.spans() {
        let Some(mut open) = Span::open(job, positions, span, Side::K, Ahead::Span(span + 1))
        else {
            continue;
        };
        let scores = &mut area.scores[span * per_span..][..per_span];
        step::score_span(
            table,
            job,
            unit,
            &mut open,
            &mut area.queries,
            &mut area.room,
            scores,
        );
        for (row, max) in scores.chunks_exact(SCORE_STRIDE).zip(&mut *area.max) {
            let row = &row[..job.span_slots(span)];
            *max = greater(*max, ops::max(table, row));
        }
    }

    let sum = area.inverse;
    sum.fill(0.0);
    area.total.fill(0.0);
    for span in 0..job.spans() {
        let Some(mut open) = Span::open(job, positions, span, Side::V, Ahead::Span(span + 1))
        else {
            continue;
        };
        let scores = &mut area.scores[span * per_span..][..per_span];
        for (r, row) in scores.chunks_exact_mut(SCORE_STRIDE).enumerate() {
            sum[r] += step::exp_row(table, row, job.span_slots(span), area.max[r]);
        }
        step::weigh_span(
            table,
            job,
            unit,
            &mut open,
            scores,
            &mut area.room,
            area.partial,
        );
        ops::add_assign(table, area.total, area.partial);
    }

    for (r, total) in area.total.chunks_exact_mut(dim).enumerate() {
        // SAFETY: the rows of a unit are its own.
        unsafe { outlet.put_sum(unit.offset(job, r) / dim, area.max[r], sum[r]) };
        sum[r] = step::inverse(sum[r]);
        step::finish_row(table, job, total, sum[r]);
        // SAFETY: the rows of a unit are its own, and `Attend::check` saw that `out` has them all.
        let out =
            unsafe { std::slice::from_raw_parts_mut(outlet.out.add(unit.offset(job, r)), dim) };
        out.copy_from_slice(total);
    }

    if let Some(mass) = outlet.mass {
        // SAFETY: `mass` is this job's, and every unit uses it only so.
        unsafe { step::name_bad(job, unit, sum, mass) };
        let spans = if step::counts(job, unit) {
            job.spans()
        } else {
            0
        };
        for span in 0..spans {
            let Some(open) = Span::open(job, positions, span, Side::V, Ahead::Nothing) else {
                continue;
            };
            let p = &area.scores[span * per_span..][..per_span];
            // SAFETY: `mass` is this job's, and every unit uses it only so. A single tile of a KV
            // head has its counters to itself.
            unsafe { step::mass_span(table, job, unit, &open, p, sum, mass, tiles(job) > 1) };
        }
    }
}
