//! The split path: one query per sequence, deep; a unit is one span of one KV head.
//!
//! ```text
//! region 1   scores of the span, and their greatest
//! region 2   the greatest of all spans; exponentials, their sum, the weighted values
//! region 3   sums and values of all spans in order → output; mass of the span
//! ```

use super::Attend;
use super::scratch::{Area, Outlet, SCORE_STRIDE, Scratch, record_floats};
use super::span::{Side, Span, sees_span};
use super::step::{self, Unit};
use crate::threads::Shareable;
use crate::{Exec, ops};
use std::slice::from_raw_parts_mut;

fn units(job: &Attend<'_>) -> usize {
    job.kv_heads * job.spans()
}

/// One unit of a region: a job, a KV head and a span, with the records of all spans of the head.
struct Place<'a> {
    job: &'a Attend<'a>,
    outlet: &'a Outlet,
    unit: Unit,
    span: usize,
    /// Record of span 0; `fits_split` saw that those of all spans fit.
    records: *mut f32,
}

impl<'a> Place<'a> {
    fn new(jobs: &'a [Attend<'a>], outlets: &'a [Outlet], records: *mut f32, unit: usize) -> Self {
        let index = outlets.partition_point(|o| o.first_unit <= unit) - 1;
        let (job, outlet) = (&jobs[index], &outlets[index]);
        let unit = unit - outlet.first_unit;
        let (kv_head, span) = (unit / job.spans(), unit % job.spans());
        let head_floats = job.spans() * record_floats(job.group(), job.head_dim);
        Place {
            job,
            outlet,
            unit: Unit {
                kv_head,
                first: 0,
                queries: 1,
                group: job.group(),
            },
            span,
            // SAFETY: inside the records, which hold all heads of all jobs.
            records: unsafe { records.add(outlet.first_float + kv_head * head_floats) },
        }
    }

    /// A part of a span's record.
    fn part(&self, span: usize, offset: usize) -> *mut f32 {
        let floats = record_floats(self.unit.group, self.job.head_dim);
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
        let (group, dim) = (self.unit.group, self.job.head_dim);
        // SAFETY: in the record, and exclusive by the promise.
        unsafe { from_raw_parts_mut(self.part(span, group * SCORE_STRIDE), group * dim) }
    }

    /// The greatest score of row `r` in a span: written in region 1, read in region 2.
    fn max(&self, span: usize, r: usize) -> *mut f32 {
        let group = self.unit.group;
        self.part(span, group * (SCORE_STRIDE + self.job.head_dim) + r)
    }

    /// The sum of row `r` in a span: written in region 2, read in region 3.
    fn sum(&self, span: usize, r: usize) -> *mut f32 {
        let group = self.unit.group;
        self.part(span, group * (SCORE_STRIDE + self.job.head_dim + 1) + r)
    }

    /// One over the sum of row `r` over all spans, in order.
    ///
    /// # Safety
    /// - Region 2 is over.
    unsafe fn inverse(&self, r: usize) -> f32 {
        let mut sum = 0.0;
        for span in 0..self.job.spans() {
            // SAFETY: in the record; nobody writes it any more.
            sum += unsafe { *self.sum(span, r) };
        }
        step::inverse(sum)
    }
}

pub(super) fn run(exec: Exec<'_>, scratch: &mut Scratch, jobs: &mut [Attend<'_>]) {
    let table = exec.table;
    let (parts, count) = scratch.parts(exec.pool.threads(), jobs, units);
    let (outlets, area_len) = (parts.outlets, parts.area_len);
    let areas = Shareable(parts.areas.as_mut_ptr());
    let records = Shareable(parts.records.as_mut_ptr());
    let jobs = &*jobs;
    let area = |worker: usize, place: &Place<'_>| {
        // SAFETY: `worker` is below the thread count the areas were made for, and no other thread
        // of the region has the same.
        let area = unsafe { from_raw_parts_mut(areas.get().add(worker * area_len), area_len) };
        Area::new(area, place.unit.group, place.job.head_dim)
    };

    exec.pool.run_indexed(count, &|worker, unit| {
        let place = Place::new(jobs, outlets, records.get(), unit);
        let (job, unit, span) = (place.job, &place.unit, place.span);
        // SAFETY: in region 1 a record belongs to its unit.
        let scores = unsafe { place.scores(span) };
        let open = Span::open(job, unit, span, Side::K);
        if let Some(open) = &open {
            let Area {
                mut queries,
                mut room,
                ..
            } = area(worker, &place);
            step::score_span(table, job, unit, open, &mut queries, &mut room, scores);
        }
        for (r, row) in scores.chunks_exact(SCORE_STRIDE).enumerate() {
            let row = &row[..job.span_slots(span)];
            let max = match open {
                Some(_) => ops::max(table, row),
                None => f32::NEG_INFINITY,
            };
            // SAFETY: in region 1 a record belongs to its unit.
            unsafe { *place.max(span, r) = max };
        }
    });

    exec.pool.run_indexed(count, &|worker, unit| {
        let place = Place::new(jobs, outlets, records.get(), unit);
        let (job, unit, span) = (place.job, &place.unit, place.span);
        // SAFETY: in region 2 a record belongs to its unit, but for the maxima, which all read.
        let (scores, partial) = unsafe { (place.scores(span), place.partial(span)) };
        let open = Span::open(job, unit, span, Side::V);
        for (r, row) in scores.chunks_exact_mut(SCORE_STRIDE).enumerate() {
            let mut sum = 0.0;
            if open.is_some() {
                let max = (0..job.spans()).fold(f32::NEG_INFINITY, |max, other| {
                    // SAFETY: in the record; nobody writes it any more.
                    step::greater(max, unsafe { *place.max(other, r) })
                });
                sum = step::exp_row(table, row, job.span_slots(span), max);
            }
            // SAFETY: in region 2 a record's sums belong to its unit.
            unsafe { *place.sum(span, r) = sum };
        }
        if let Some(open) = &open {
            let room = &mut area(worker, &place).room;
            step::weigh_span(table, job, unit, open, scores, room, partial);
        }
    });

    // Without mass only the outputs are left, which the units of span 0 write.
    exec.pool.run_indexed(count, &|worker, unit| {
        let place = Place::new(jobs, outlets, records.get(), unit);
        let (job, unit, span) = (place.job, &place.unit, place.span);
        if span != 0 && place.outlet.mass.is_none() {
            return;
        }
        let Area { total, inverse, .. } = area(worker, &place);
        for (r, inverse) in inverse.iter_mut().enumerate() {
            // SAFETY: region 2 is over.
            *inverse = unsafe { place.inverse(r) };
        }
        if let Some(mass) = place.outlet.mass
            && let Some(open) = Span::open(job, unit, span, Side::V)
        {
            // SAFETY: in region 3 scores belong to their unit, and so does the part of `mass`.
            unsafe {
                let p = place.scores(span);
                step::mass_span(table, job, unit, &open, p, inverse, mass, false);
            }
        }
        if span == 0 {
            total.fill(0.0);
            for span in (0..job.spans()).filter(|s| sees_span(job, unit, *s)) {
                // SAFETY: in region 3 the partials of a head belong to its unit of span 0.
                ops::add_assign(table, total, unsafe { place.partial(span) });
            }
            let dim = job.head_dim;
            for (r, total) in total.chunks_exact_mut(dim).enumerate() {
                step::finish_row(table, job, total, inverse[r]);
                // SAFETY: the rows of a head are written by its unit of span 0 alone, and
                // `Attend::check` saw that `out` has them all.
                let out =
                    unsafe { from_raw_parts_mut(place.outlet.out.add(unit.offset(job, r)), dim) };
                out.copy_from_slice(total);
            }
        }
    });
}
