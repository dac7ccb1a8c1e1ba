//! The split path: one query per sequence, at depth; a unit is one span with all its heads.
//!
//! ```text
//! before     queries of all segments
//! region 1   scores of the span, and their greatest
//! between    the greatest of all spans
//! region 2   exponentials, their sum, the weighted values
//! region 3   sums and values of all spans in order → output; mass of the span
//! ```

use super::job::AttentionJob;
use super::query::{QueryLayout, QuerySource, Unit};
use super::scratch::{
    Area, AttentionScratch, JobOutput, SCORE_STRIDE, queries_floats, record_floats,
};
use super::span::{Prefetch, Span};
use super::step;
use crate::cpu::Backend;
use crate::format::kv::Side;
use crate::ops::lanes::greater;
use crate::threads::Shareable;
use crate::{Exec, ops};
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// One unit of a region: a job and a span.
struct SpanUnit<'a> {
    backend: Backend,
    job: &'a AttentionJob<'a>,
    output: &'a JobOutput,
    span: usize,
    /// The job's queries, and behind them its records.
    floats: *mut f32,
}

impl<'a> SpanUnit<'a> {
    fn new(
        backend: Backend,
        jobs: &'a [AttentionJob<'a>],
        outputs: &'a [JobOutput],
        records: *mut f32,
        unit: usize,
    ) -> Self {
        let index = outputs.partition_point(|o| o.first_unit <= unit) - 1;
        let output = &outputs[index];
        SpanUnit {
            backend,
            job: &jobs[index],
            output,
            span: unit - output.first_unit,
            // SAFETY: inside the records, which hold all jobs.
            floats: unsafe { records.add(output.first_float) },
        }
    }

    /// The heads of the unit.
    fn heads(&self) -> impl Iterator<Item = Head<'a>> {
        let job = self.job;
        let records = job.spans() * record_floats(job.group(), job.head_dim);
        // SAFETY: inside the records; `fits_split` saw that queries and records of all heads fit.
        let first = unsafe { self.floats.add(queries_floats(job)) };
        let backend = self.backend;
        (0..job.kv_heads).map(move |kv_head| Head {
            unit: unit(backend, job, kv_head),
            // SAFETY: as above.
            records: unsafe { first.add(kv_head * records) },
        })
    }

    /// The positions of the job's only query.
    fn positions(&self) -> (u64, u64) {
        unit(self.backend, self.job, 0).positions()
    }

    /// Whether the query counts towards the mass.
    fn counts(&self) -> bool {
        step::counts(&unit(self.backend, self.job, 0))
    }
}

/// The only query of a job, one KV head.
fn unit<'a>(backend: Backend, job: &'a AttentionJob<'a>, kv_head: usize) -> Unit<'a> {
    Unit {
        backend,
        job,
        kv_head,
        first: 0,
        queries: 1,
        group: job.group(),
    }
}

/// One KV head of a unit, with the records of all its spans.
struct Head<'a> {
    unit: Unit<'a>,
    /// Record of span 0.
    records: *mut f32,
}

impl<'a> Head<'a> {
    /// A part of a span's record.
    fn part(&self, span: usize, offset: usize) -> *mut f32 {
        let floats = record_floats(self.unit.group, self.unit.job.head_dim);
        // SAFETY: inside the records; callers pass offsets below `floats`.
        unsafe { self.records.add(span * floats + offset) }
    }

    /// (row, 256 + pad)
    ///
    /// # Safety
    /// - No other reference to these scores is alive.
    unsafe fn scores(&self, span: usize) -> &'a mut [f32] {
        // SAFETY: in the record, and exclusive by the promise.
        unsafe { from_raw_parts_mut(self.part(span, 0), self.unit.group * SCORE_STRIDE) }
    }

    /// (row, dim)
    ///
    /// # Safety
    /// - No other reference to this partial is alive.
    unsafe fn partial(&self, span: usize) -> &'a mut [f32] {
        let (group, dim) = (self.unit.group, self.unit.job.head_dim);
        // SAFETY: in the record, and exclusive by the promise.
        unsafe { from_raw_parts_mut(self.part(span, group * SCORE_STRIDE), group * dim) }
    }

    /// The greatest score of row `r` in a span, written in region 1; for span 0 the greatest of all when
    /// region 2 reads it.
    fn max(&self, span: usize, r: usize) -> *mut f32 {
        let group = self.unit.group;
        self.part(span, group * (SCORE_STRIDE + self.unit.job.head_dim) + r)
    }

    /// The sum of row `r` in a span: written in region 2, read in region 3.
    fn sum(&self, span: usize, r: usize) -> *mut f32 {
        let group = self.unit.group;
        self.part(
            span,
            group * (SCORE_STRIDE + self.unit.job.head_dim + 1) + r,
        )
    }

    /// The sum of row `r` over all spans, in order.
    ///
    /// # Safety
    /// - Region 2 is over.
    unsafe fn whole_sum(&self, r: usize) -> f32 {
        let mut sum = 0.0;
        for span in 0..self.unit.job.spans() {
            // SAFETY: in the record; no thread writes sums after region 2.
            sum += unsafe { *self.sum(span, r) };
        }
        sum
    }
}

pub(super) fn run(exec: Exec<'_>, scratch: &mut AttentionScratch, jobs: &mut [AttentionJob<'_>]) {
    let backend = exec.backend;
    let (parts, count) = scratch.parts(exec.pool.threads(), jobs, |job| job.spans());
    let (outputs, area_len) = (parts.outputs, parts.area_len);
    let areas = Shareable(parts.areas.as_mut_ptr());
    let records = Shareable(parts.records.as_mut_ptr());
    let jobs = &*jobs;
    let area = |worker: usize, job: &AttentionJob<'_>| {
        // SAFETY: `worker` is below the thread count the areas were made for, and no other thread
        // of the region has the same.
        let area = unsafe { from_raw_parts_mut(areas.get().add(worker * area_len), area_len) };
        Area::new(area, job.group(), job.head_dim)
    };

    for (job, output) in jobs.iter().zip(outputs) {
        let layout = QueryLayout {
            rows: job.group(),
            dim: job.head_dim,
        };
        // SAFETY: the queries of the job are inside the records, and no region runs yet.
        let floats = unsafe {
            from_raw_parts_mut(records.get().add(output.first_float), queries_floats(job))
        };
        for (i, floats) in floats.chunks_exact_mut(layout.floats()).enumerate() {
            let (segment, kv_head) = (i / job.kv_heads, i % job.kv_heads);
            layout.load(&unit(backend, job, kv_head), segment, floats);
        }
    }

    exec.pool.run_in_order(count, &|worker, unit| {
        let work = SpanUnit::new(backend, jobs, outputs, records.get(), unit);
        let (job, span) = (work.job, work.span);
        let prefetch = Prefetch::Heads(span + 1);
        let mut open = Span::open(job, work.positions(), span, Side::K, prefetch);
        // SAFETY: the queries of the job, which no region writes.
        let floats = unsafe { from_raw_parts(work.floats, queries_floats(job)) };
        let mut queries = QuerySource::Loaded(floats);
        let workspace = &mut area(worker, job).workspace;
        for head in work.heads() {
            // SAFETY: in region 1 a record belongs to its unit.
            let scores = unsafe { head.scores(span) };
            if let Some(open) = &mut open {
                step::score_span(&head.unit, open, &mut queries, workspace, scores);
            }
            for (r, row) in scores.chunks_exact(SCORE_STRIDE).enumerate() {
                let row = &row[..job.span_slots(span)];
                let max = match open {
                    Some(_) => ops::max(backend, row),
                    None => f32::NEG_INFINITY,
                };
                // SAFETY: in region 1 a record belongs to its unit.
                unsafe { *head.max(span, r) = max };
            }
        }
    });

    // The greatest of all spans takes the work of the first one's.
    for first in outputs.iter().map(|output| output.first_unit) {
        let work = SpanUnit::new(backend, jobs, outputs, records.get(), first);
        for head in work.heads() {
            for r in 0..head.unit.group {
                // SAFETY: in the records, and no region runs.
                unsafe {
                    for span in 1..work.job.spans() {
                        *head.max(0, r) = greater(*head.max(0, r), *head.max(span, r));
                    }
                }
            }
        }
    }

    exec.pool.run_in_order(count, &|worker, unit| {
        let work = SpanUnit::new(backend, jobs, outputs, records.get(), unit);
        let (job, span) = (work.job, work.span);
        let prefetch = Prefetch::Heads(span + 1);
        let mut open = Span::open(job, work.positions(), span, Side::V, prefetch);
        let workspace = &mut area(worker, job).workspace;
        for head in work.heads() {
            // SAFETY: in region 2 a record belongs to its unit, but for the maxima, which all read.
            let (scores, partial) = unsafe { (head.scores(span), head.partial(span)) };
            for (r, row) in scores.chunks_exact_mut(SCORE_STRIDE).enumerate() {
                let mut sum = 0.0;
                if open.is_some() {
                    // SAFETY: in the record; no thread writes maxima in region 2.
                    let max = unsafe { *head.max(0, r) };
                    sum = step::exp_row(backend, row, job.span_slots(span), max);
                }
                // SAFETY: in region 2 a record's sums belong to its unit.
                unsafe { *head.sum(span, r) = sum };
            }
            match &mut open {
                Some(open) => step::weigh_span(&head.unit, open, scores, workspace, partial),
                // Adding nothing.
                None => partial.fill(0.0),
            }
        }
    });

    // Without anything to count only the outputs are left, which the units of span 0 write.
    exec.pool.run_indexed(count, &|worker, unit| {
        let work = SpanUnit::new(backend, jobs, outputs, records.get(), unit);
        let (job, span) = (work.job, work.span);
        if span != 0 && !work.counts() {
            return;
        }
        let open = work.output.mass.filter(|_| work.counts()).and_then(|mass| {
            let open = Span::open(job, work.positions(), span, Side::V, Prefetch::None)?;
            Some((open, mass))
        });
        for head in work.heads() {
            let Area { total, inverse, .. } = area(worker, job);
            for (r, inverse) in inverse.iter_mut().enumerate() {
                // SAFETY: region 2 is over.
                let sum = unsafe { head.whole_sum(r) };
                if span == 0 {
                    let at = head.unit.offset(r) / job.head_dim;
                    // SAFETY: sums of a job are written by its unit of span 0 alone; maxima stay as
                    // they are since region 2.
                    unsafe { work.output.put_sum(at, *head.max(0, r), sum) };
                }
                *inverse = step::inverse(sum);
            }
            if let Some((open, mass)) = &open {
                // SAFETY: in region 3 scores belong to their unit, and so does the part of `mass`.
                unsafe {
                    let p = head.scores(span);
                    step::mass_span(&head.unit, open, p, inverse, *mass, false);
                }
            }
            if let Some(mass) = work.output.mass.filter(|_| span == 0) {
                // SAFETY: `mass` is this job's, and every unit uses it only so.
                unsafe { step::report_bad(&head.unit, inverse, mass) };
            }
            if span == 0 {
                total.fill(0.0);
                for span in 0..job.spans() {
                    // SAFETY: in region 3 partials belong to the unit of span 0.
                    ops::add_assign(backend, total, unsafe { head.partial(span) });
                }
                let dim = job.head_dim;
                for (r, total) in total.chunks_exact_mut(dim).enumerate() {
                    step::finish_row(&head.unit, total, inverse[r]);
                    // SAFETY: the rows of a job are written by its unit of span 0 alone, and
                    // `AttentionJob::check` saw that `out` has them all.
                    let out = unsafe {
                        from_raw_parts_mut(work.output.out.add(head.unit.offset(r)), dim)
                    };
                    out.copy_from_slice(total);
                }
            }
        }
    });
}
