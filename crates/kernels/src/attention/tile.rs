//! The tile path: a unit is a few queries of one KV head, from scores to output.

use super::job::AttentionJob;
use super::query::Unit;
use super::scratch::{Area, AttentionScratch, JobOutput, SCORE_STRIDE, queries_per_tile};
use super::span::{Prefetch, Span};
use super::step;
use crate::cpu::Backend;
use crate::format::kv::Side;
use crate::ops::lanes::greater;
use crate::threads::Shareable;
use crate::{Exec, ops};

/// How far into its query block a job starts: tiles are counted from that block's border, so that
/// none crosses one.
fn lead(job: &AttentionJob<'_>) -> usize {
    (job.first_position % queries_per_tile(job.group()) as u64) as usize
}

/// Tiles of one KV head.
fn tiles(job: &AttentionJob<'_>) -> usize {
    (lead(job) + job.rows()).div_ceil(queries_per_tile(job.group()))
}

fn units(job: &AttentionJob<'_>) -> usize {
    job.kv_heads * tiles(job)
}

pub(super) fn run(exec: Exec<'_>, scratch: &mut AttentionScratch, jobs: &mut [AttentionJob<'_>]) {
    let (parts, count) = scratch.parts(exec.pool.threads(), jobs, units);
    let (outputs, area_len) = (parts.outputs, parts.area_len);
    let areas = Shareable(parts.areas.as_mut_ptr());
    let jobs = &*jobs;
    exec.pool.run_in_order(count, &|worker, unit| {
        let index = outputs.partition_point(|o| o.first_unit <= unit) - 1;
        let (job, output) = (&jobs[index], &outputs[index]);
        let unit = unit_at(exec.backend, job, unit - output.first_unit);
        // SAFETY: `worker` is below the thread count the areas were made for, and no other thread
        // of the region has the same.
        let area =
            unsafe { std::slice::from_raw_parts_mut(areas.get().add(worker * area_len), area_len) };
        attend_tile(&unit, output, Area::new(area, unit.rows(), job.head_dim));
    });
}

/// Last tiles first: causal ones see most, and the longest units should not start last.
fn unit_at<'a>(backend: Backend, job: &'a AttentionJob<'a>, unit: usize) -> Unit<'a> {
    let queries = queries_per_tile(job.group());
    let tile = tiles(job) - 1 - unit / job.kv_heads;
    let first = (tile * queries).saturating_sub(lead(job));
    let end = ((tile + 1) * queries - lead(job)).min(job.rows());
    Unit {
        backend,
        job,
        kv_head: unit % job.kv_heads,
        first,
        queries: end - first,
        group: job.group(),
    }
}

fn attend_tile(unit: &Unit<'_>, output: &JobOutput, mut area: Area<'_>) {
    let Unit { backend, job, .. } = *unit;
    let dim = job.head_dim;
    let positions = unit.positions();
    let per_span = unit.rows() * SCORE_STRIDE;

    area.max.fill(f32::NEG_INFINITY);
    for span in 0..job.spans() {
        let Some(mut open) = Span::open(job, positions, span, Side::K, Prefetch::Span(span + 1))
        else {
            continue;
        };
        let scores = &mut area.scores[span * per_span..][..per_span];
        let (queries, workspace) = (&mut area.queries, &mut area.workspace);
        step::score_span(unit, &mut open, queries, workspace, scores);
        for (row, max) in scores.chunks_exact(SCORE_STRIDE).zip(&mut *area.max) {
            let row = &row[..job.span_slots(span)];
            *max = greater(*max, ops::max(backend, row));
        }
    }

    let sum = area.inverse;
    sum.fill(0.0);
    area.total.fill(0.0);
    for span in 0..job.spans() {
        let Some(mut open) = Span::open(job, positions, span, Side::V, Prefetch::Span(span + 1))
        else {
            continue;
        };
        let scores = &mut area.scores[span * per_span..][..per_span];
        for (r, row) in scores.chunks_exact_mut(SCORE_STRIDE).enumerate() {
            sum[r] += step::exp_row(backend, row, job.span_slots(span), area.max[r]);
        }
        let workspace = &mut area.workspace;
        step::weigh_span(unit, &mut open, scores, workspace, area.partial);
        ops::add_assign(backend, area.total, area.partial);
    }

    for (r, total) in area.total.chunks_exact_mut(dim).enumerate() {
        // SAFETY: the rows of a unit are its own.
        unsafe { output.put_sum(unit.offset(r) / dim, area.max[r], sum[r]) };
        sum[r] = step::inverse(sum[r]);
        step::finish_row(unit, total, sum[r]);
        // SAFETY: the rows of a unit are its own, and `AttentionJob::check` saw that `out` has them all.
        let out = unsafe { std::slice::from_raw_parts_mut(output.out.add(unit.offset(r)), dim) };
        out.copy_from_slice(total);
    }

    if let Some(mass) = output.mass {
        // SAFETY: `mass` is this job's, and every unit uses it only so.
        unsafe { step::report_bad(unit, sum, mass) };
        let spans = if step::counts(unit) { job.spans() } else { 0 };
        for span in 0..spans {
            let Some(open) = Span::open(job, positions, span, Side::V, Prefetch::None) else {
                continue;
            };
            let p = &area.scores[span * per_span..][..per_span];
            // SAFETY: `mass` is this job's, and every unit uses it only so. A single tile of a KV
            // head has its counters to itself.
            unsafe { step::mass_span(unit, &open, p, sum, mass, tiles(job) > 1) };
        }
    }
}
