//! Scratch memory of attention, reserved before a step.
//!
//! ```text
//! per thread:  tile (256, dim) bytes  weights (row, 256) of two bytes  row scale, sum, max, inverse (row)
//!              queries  total (row, dim)  partial (row, dim)  scores (span, row, 256 + pad)
//! split:       per (job, segment, kv_head): queries
//!              per (job, kv_head, span): scores (row, 256 + pad)  partial (row, dim)  max, sum (row)
//! ```
//!
//! `row` is a query and a head of one group: at most [`TILE_ROWS`], or one query's group if that is
//! larger.

use super::cast::{bytes_mut, words_mut};
use super::job::{AttentionJob, SPAN_SLOTS, SoftmaxSum};
use super::kernel::{Weights, Workspace};
use super::query::{QueryLayout, QuerySource};

/// Most rows of a tile: two or three register tiles of the widest backend, so that a block is read
/// from L2 less often than from L1.
pub(super) const TILE_ROWS: usize = 32;

/// Most segments of a sequence that the split path takes: it loads the queries of all of them first.
const SEGMENTS_MAX: usize = 8;

/// KV heads per thread up to which the scratch has records for the split path: more heads occupy the
/// threads anyway, and their records would take much memory.
const UNITS_PER_THREAD: usize = 4;
/// Distance between rows of scores of one span. Not 256: at a power of two the rows would share
/// cache sets.
pub(super) const SCORE_STRIDE: usize = SPAN_SLOTS + 16;

/// The largest step [`AttentionScratch`] must serve. Layers that differ are reserved for one after another.
#[derive(Clone, Copy, Debug)]
pub struct AttentionLimits {
    /// Threads of the pool.
    pub threads: usize,
    /// Sequences of a batch. A larger batch runs in several rounds.
    pub jobs: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Slots of the longest table.
    pub slots: usize,
}

impl AttentionLimits {
    fn group(self) -> usize {
        self.heads.div_ceil(self.kv_heads.max(1)).max(1)
    }

    fn spans(self) -> usize {
        // The kept blocks may begin and end inside 256 positions, after the anchors.
        self.slots.div_ceil(SPAN_SLOTS) + 2
    }

    /// Floats of one thread's area.
    fn area(self) -> usize {
        let rows = queries_per_tile(self.group()) * self.group();
        area_floats(rows, self.head_dim, self.spans())
    }

    /// Floats of queries and of all spans' records of the split path: for as many sequences as would
    /// leave threads idle otherwise.
    fn records(self) -> usize {
        let jobs = (UNITS_PER_THREAD * self.threads)
            .div_ceil(self.kv_heads.max(1))
            .min(self.jobs);
        let queries = SEGMENTS_MAX * query_floats(self.group(), self.head_dim);
        let records = self.spans() * record_floats(self.group(), self.head_dim);
        jobs * self.kv_heads * (queries + records)
    }
}

/// Queries of one tile: a power of two, so that tiles end where query blocks do.
pub(super) fn queries_per_tile(group: usize) -> usize {
    match TILE_ROWS / group {
        0 => 1,
        queries => 1 << queries.ilog2(),
    }
}

fn area_floats(rows: usize, head_dim: usize, spans: usize) -> usize {
    tile_floats(head_dim)
        + rows * SPAN_SLOTS / 2
        + 4 * rows.next_multiple_of(16)
        + query_floats(rows, head_dim)
        + 2 * rows * head_dim
        + spans * rows * SCORE_STRIDE
}

/// Levels of a span's values, a byte each, and a vector behind them.
fn tile_floats(head_dim: usize) -> usize {
    (SPAN_SLOTS * head_dim + 64) / 4
}

/// A cache line, so that areas start on one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([f32; 16]);

/// Reserved memory. Grows in [`AttentionScratch::reserve`] only.
pub struct AttentionScratch {
    areas: Vec<CacheLine>,
    area_lines: usize,
    threads: usize,
    records: Vec<CacheLine>,
    outputs: Vec<JobOutput>,
    jobs: usize,
}

/// Where a job's results go: its mutable slices as pointers, because units of several threads write into
/// them.
#[derive(Clone, Copy)]
pub(super) struct JobOutput {
    pub out: *mut f32,
    pub mass: Option<MassOutput>,
    pub sums: Option<*mut SoftmaxSum>,
    /// First unit of the job in a region.
    pub first_unit: usize,
    /// First float of the job's records.
    pub first_float: usize,
}

impl JobOutput {
    /// Writes the softmax denominator of a row, if the job asks for it. `at` is (row, head).
    ///
    /// # Safety
    /// - `at` is a row and head of the job, and no other thread writes the same.
    pub(super) unsafe fn put_sum(&self, at: usize, max: f32, sum: f32) {
        if let Some(sums) = self.sums {
            // SAFETY: `AttentionJob::check` saw that there is one for each row and head.
            unsafe { *sums.add(at) = SoftmaxSum { max, sum } };
        }
    }
}

/// Where a job's [`Mass`](super::Mass) goes.
#[derive(Clone, Copy)]
pub(super) struct MassOutput {
    pub counters: *mut u64,
    pub bad: *mut u64,
}

// SAFETY: the pointers come from slices that are borrowed for the whole call of `attend`; units
// write disjoint rows of `out` and `sums` and touch the masses atomically.
unsafe impl Send for JobOutput {}
// SAFETY: as above.
unsafe impl Sync for JobOutput {}

/// The memory of a region: the outputs, the areas and the records.
pub(super) struct Parts<'a> {
    pub outputs: &'a [JobOutput],
    /// (thread, area)
    pub areas: &'a mut [f32],
    pub area_len: usize,
    pub records: &'a mut [f32],
}

impl AttentionScratch {
    pub fn new(need: AttentionLimits) -> AttentionScratch {
        let mut scratch = AttentionScratch {
            areas: Vec::new(),
            area_lines: 0,
            threads: 1,
            records: Vec::new(),
            outputs: Vec::new(),
            jobs: 1,
        };
        scratch.reserve(need);
        scratch
    }

    /// Makes room for `need`, keeping what was reserved before.
    pub fn reserve(&mut self, need: AttentionLimits) {
        self.threads = self.threads.max(need.threads);
        self.jobs = self.jobs.max(need.jobs);
        self.area_lines = self.area_lines.max(need.area().div_ceil(16));
        let lines = self.area_lines * self.threads;
        grow(&mut self.areas, lines);
        grow(&mut self.records, need.records().div_ceil(16));
        self.outputs.clear();
        self.outputs.reserve_exact(self.jobs);
    }

    /// Bytes held after reserving for all of these and nothing else: of a layer
    /// `threads * tile_rows * (slots rounded up to 256) * 4.25` and a little, and with more than
    /// one thread up to `heads * slots * 4.25` for each split sequence.
    pub fn bytes_for(needs: impl Iterator<Item = AttentionLimits>) -> usize {
        let (mut area, mut records, mut threads, mut jobs) = (0, 0, 1, 1);
        for need in needs {
            area = area.max(need.area().div_ceil(16));
            records = records.max(need.records().div_ceil(16));
            threads = threads.max(need.threads);
            jobs = jobs.max(need.jobs);
        }
        64 * (area * threads + records) + jobs * size_of::<JobOutput>()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        64 * (self.areas.capacity() + self.records.capacity())
            + self.outputs.capacity() * size_of::<JobOutput>()
    }

    pub(super) fn jobs_max(&self) -> usize {
        self.jobs
    }

    /// The records of these jobs fit.
    pub(super) fn fits_split(&self, jobs: &[AttentionJob<'_>]) -> bool {
        let floats: usize = jobs.iter().map(split_floats).sum();
        floats <= 16 * self.records.len() && jobs.iter().all(|job| job.q.len() <= SEGMENTS_MAX)
    }

    /// Prepares a region on `threads` threads, with `units` units in each job. Returns the number of
    /// units, too.
    pub(super) fn parts(
        &mut self,
        threads: usize,
        jobs: &mut [AttentionJob<'_>],
        units: fn(&AttentionJob<'_>) -> usize,
    ) -> (Parts<'_>, usize) {
        assert!(
            threads <= self.threads,
            "scratch was reserved for fewer threads"
        );
        assert!(
            jobs.len() <= self.jobs,
            "scratch was reserved for fewer jobs"
        );
        self.outputs.clear();
        let (mut first_unit, mut first_float) = (0, 0);
        for job in jobs {
            let rows = queries_per_tile(job.group()) * job.group();
            let area = area_floats(rows, job.head_dim, job.spans());
            assert!(
                area <= 16 * self.area_lines,
                "scratch was reserved for less"
            );
            let mass = job.mass.as_mut().map(|mass| MassOutput {
                counters: mass.counters.as_mut_ptr(),
                bad: mass.bad,
            });
            self.outputs.push(JobOutput {
                out: job.out.as_mut_ptr(),
                mass,
                sums: job.sums.as_mut().map(|sums| sums.as_mut_ptr()),
                first_unit,
                first_float,
            });
            first_unit += units(job);
            first_float += split_floats(job);
        }
        let parts = Parts {
            outputs: &self.outputs,
            areas: floats(&mut self.areas),
            area_len: 16 * self.area_lines,
            records: floats(&mut self.records),
        };
        (parts, first_unit)
    }
}

fn grow(list: &mut Vec<CacheLine>, lines: usize) {
    if let Some(more) = lines.checked_sub(list.len()) {
        list.reserve_exact(more);
        list.resize(lines, CacheLine([0.0; 16]));
    }
}

fn floats(lines: &mut [CacheLine]) -> &mut [f32] {
    // SAFETY: a `CacheLine` is sixteen floats and nothing else.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), 16 * lines.len()) }
}

/// The records of a job, behind its queries.
fn split_floats(job: &AttentionJob<'_>) -> usize {
    let records = job.spans() * record_floats(job.group(), job.head_dim);
    job.kv_heads * records + queries_floats(job)
}

/// The queries of a job, as all its segments meet them.
pub(super) fn queries_floats(job: &AttentionJob<'_>) -> usize {
    job.q.len() * job.kv_heads * query_floats(job.group(), job.head_dim)
}

fn query_floats(rows: usize, dim: usize) -> usize {
    QueryLayout { rows, dim }.floats()
}

/// One thread's area, divided for a unit of `rows` rows.
pub(super) struct Area<'a> {
    pub queries: QuerySource<'a>,
    pub workspace: Workspace<'a>,
    /// (row, dim)
    pub total: &'a mut [f32],
    /// (row, dim)
    pub partial: &'a mut [f32],
    /// (row)
    pub max: &'a mut [f32],
    /// (row)
    pub inverse: &'a mut [f32],
    /// (span, row, 256 + pad)
    pub scores: &'a mut [f32],
}

impl<'a> Area<'a> {
    pub(super) fn new(floats: &'a mut [f32], rows: usize, head_dim: usize) -> Area<'a> {
        let padded = rows.next_multiple_of(16);
        let (tile, floats) = floats.split_at_mut(tile_floats(head_dim));
        let (bytes, floats) = floats.split_at_mut(rows * SPAN_SLOTS / 2);
        let (row_scale, floats) = floats.split_at_mut(padded);
        let (totals, floats) = floats.split_at_mut(padded);
        let (max, floats) = floats.split_at_mut(padded);
        let (inverse, floats) = floats.split_at_mut(padded);
        let (queries, floats) = floats.split_at_mut(query_floats(rows, head_dim));
        let (total, floats) = floats.split_at_mut(rows * head_dim);
        let (partial, scores) = floats.split_at_mut(rows * head_dim);
        Area {
            queries: QuerySource::PerSegment {
                floats: queries,
                segment: None,
            },
            workspace: Workspace {
                tile: bytes_mut(tile),
                weights: Weights {
                    bytes: bytes_mut(bytes),
                    row_scale,
                    totals: words_mut(totals),
                },
            },
            total,
            partial,
            max: &mut max[..rows],
            inverse: &mut inverse[..rows],
            scores,
        }
    }
}

/// The record that one span of one KV head leaves for the next region of the split path, in this order:
/// scores (row, 256 + pad), partial (row, dim), max (row), sum (row). Whole cache lines, so that
/// records of two threads share none.
pub(super) fn record_floats(rows: usize, head_dim: usize) -> usize {
    (rows * (SCORE_STRIDE + head_dim + 2)).next_multiple_of(16)
}
