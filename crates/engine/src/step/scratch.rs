//! The memory that a step computes in.

use super::attention_counts::AttentionCounts;
use super::span::StepSpan;
use crate::model::config::{Config, LayerConfig};
use haversack_cache::{Store, TableView};
use haversack_kernels::Exec;
use haversack_kernels::attention::{self, AttentionJob, AttentionLimits, SPAN_SLOTS, SoftmaxSum};
use haversack_kernels::matmul::Int8Rows;
use haversack_kernels::ops::rope::{self, RopeSpec};
use haversack_kernels::threads::chunks_mut;

/// How large a step is: what scratch memory is reserved for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSize {
    pub rows: usize,
    /// Rows that get logits.
    pub wanted: usize,
    /// Spans.
    pub jobs: usize,
    /// Slots at the end of the step that attention has room for: see [`StepSize::slots_for`].
    pub slots: usize,
    /// Segments of moved keys, of the sequence with most.
    pub moved: usize,
    /// Segments of all spans.
    pub segments: usize,
    /// Slots of all spans whose attention is counted.
    pub counted: usize,
    /// Rows among which queries are sampled.
    pub sampled: usize,
}

impl StepSize {
    /// Slots are reserved in large steps, so that a long answer does not move scratch often.
    const SLOTS_STEP: usize = 1024;

    /// Spans that [`AttentionLimits`] has beyond those of its slots, for what is kept behind a gap.
    const SPANS_BEYOND: usize = 2;

    /// What to reserve for a table of `rows` rows in `spans` spans. Rows in few pieces need what their
    /// number says; scattered blocks have a span each.
    pub fn slots_for(rows: usize, spans: usize) -> usize {
        rows.max(spans.saturating_sub(StepSize::SPANS_BEYOND) * SPAN_SLOTS)
    }

    /// The smallest size that covers both.
    fn max(self, other: StepSize) -> StepSize {
        StepSize {
            rows: self.rows.max(other.rows),
            wanted: self.wanted.max(other.wanted),
            jobs: self.jobs.max(other.jobs),
            slots: self.slots.max(other.slots),
            moved: self.moved.max(other.moved),
            segments: self.segments.max(other.segments),
            counted: self.counted.max(other.counted),
            sampled: self.sampled.max(other.sampled),
        }
    }
}

/// The greatest widths of a model's layers.
struct Widths {
    q: usize,
    kv: usize,
    ffn: usize,
    /// (row, 2 × pair) of all rotations
    angles: usize,
}

impl Widths {
    fn of(config: &Config) -> Widths {
        let widest =
            |f: &dyn Fn(&LayerConfig) -> usize| config.layers.iter().map(f).max().unwrap_or(0);
        Widths {
            q: widest(&|c| c.heads * c.head_dim),
            kv: widest(&|c| c.kv_heads * c.head_dim),
            ffn: widest(&|c| c.ffn),
            angles: config.ropes.iter().map(|spec| spec.dims).sum(),
        }
    }

    /// The widest input of a product.
    fn input(&self, config: &Config) -> usize {
        self.ffn.max(self.q).max(config.dim)
    }
}

/// How far each span's queries and keys are rotated.
#[derive(Default)]
pub(super) struct Rotations {
    /// (span, segment): how far back queries stand for each segment of their keys.
    shifts: Vec<u64>,
    /// (span): where its own end in `shifts`.
    ends: Vec<usize>,
    /// (rope)(row, 2 × pair)
    angles: Vec<Vec<f32>>,
    /// (segment)(rope)(row, 2 × pair)
    moved_angles: Vec<Vec<Vec<f32>>>,
    /// (segment)(row, head, dim): queries roped to where a row stands for a segment that was moved.
    pub moved: Vec<Vec<f32>>,
}

impl Rotations {
    fn new(config: &Config) -> Rotations {
        Rotations {
            angles: vec![Vec::new(); config.ropes.len()],
            ..Rotations::default()
        }
    }

    fn reserve(&mut self, config: &Config, q_width: usize, size: StepSize) {
        self.moved.resize_with(size.moved, Vec::new);
        let none = || vec![Vec::new(); config.ropes.len()];
        self.moved_angles.resize_with(size.moved, none);
        for q in &mut self.moved {
            grow(q, size.rows * q_width);
        }
        for angles in [&mut self.angles].into_iter().chain(&mut self.moved_angles) {
            for (spec, v) in config.ropes.iter().zip(angles) {
                grow(v, size.rows * spec.dims);
            }
        }
        grow(&mut self.shifts, size.segments);
        grow(&mut self.ends, size.jobs);
    }

    /// The shifts of one span.
    pub fn shifts(&self, span: usize) -> &[u64] {
        let start = if span == 0 { 0 } else { self.ends[span - 1] };
        &self.shifts[start..self.ends[span]]
    }

    /// Computes the angles of every row: one rotation for all layers and heads, and one more for each segment of keys
    /// that has moved.
    pub fn begin(&mut self, config: &Config, store: &Store, spans: &[StepSpan<'_>]) {
        self.shifts.clear();
        self.ends.clear();
        for span in spans {
            self.shifts.extend_from_slice(store.shifts(span.sequence));
            self.ends.push(self.shifts.len());
        }
        let mut angles = std::mem::take(&mut self.angles);
        fill_angles(config, spans, |_| 0, &mut angles);
        self.angles = angles;
        let mut moved_angles = std::mem::take(&mut self.moved_angles);
        for (segment, angles) in moved_angles.iter_mut().enumerate() {
            let shift = |span: usize| self.shifts(span).get(segment).copied().unwrap_or(0);
            fill_angles(config, spans, shift, angles);
        }
        self.moved_angles = moved_angles;
    }

    /// Rotates queries and keys of one layer.
    pub fn rotate(
        &mut self,
        exec: Exec<'_>,
        config: &Config,
        c: &LayerConfig,
        q: &mut [f32],
        k: &mut [f32],
    ) {
        let spec = &config.ropes[c.rope];
        for (moved, angles) in self.moved.iter_mut().zip(&self.moved_angles) {
            moved.clear();
            moved.extend_from_slice(q);
            rotate(exec, spec, c.head_dim, moved, &angles[c.rope]);
        }
        let angles = &self.angles[c.rope];
        rotate(exec, spec, c.head_dim, q, angles);
        rotate(exec, spec, c.head_dim, k, angles);
    }
}

/// Rotates every head. `x` is (row, head, dim), `angles` (row, 2 × pair).
fn rotate(exec: Exec<'_>, spec: &RopeSpec, head_dim: usize, x: &mut [f32], angles: &[f32]) {
    let rows = angles.len() / spec.dims;
    let width = x.len() / rows;
    chunks_mut(exec.pool, x, width, &|row, x: &mut [f32]| {
        let angles = &angles[row * spec.dims..(row + 1) * spec.dims];
        for head in x.chunks_exact_mut(head_dim) {
            rope::rotate(exec.backend, head, angles, spec);
        }
    });
}

/// `out` is (rope)(row, 2 × pair). The rows of a span stand `shift` before their positions.
fn fill_angles(
    config: &Config,
    spans: &[StepSpan<'_>],
    shift: impl Fn(usize) -> u64,
    out: &mut [Vec<f32>],
) {
    let rows: usize = spans.iter().map(|span| span.tokens.len()).sum();
    for (spec, out) in config.ropes.iter().zip(out) {
        out.resize(rows * spec.dims, 0.0);
        let positions = spans.iter().enumerate().flat_map(|(i, span)| {
            let first = span.position.saturating_sub(shift(i));
            (0..span.tokens.len() as u64).map(move |row| first + row)
        });
        for (row, position) in out.chunks_exact_mut(spec.dims).zip(positions) {
            spec.angles(position, row);
        }
    }
}

/// What attention is given in each layer: empty between layers, kept for its memory.
#[derive(Default)]
pub(super) struct JobLists {
    pub views: Vec<TableView<'static>>,
    /// (span, segment)
    pub queries: Vec<&'static [f32]>,
    pub jobs: Vec<AttentionJob<'static>>,
}

/// The memory of a list for elements of another lifetime: the list is emptied. An iterator that
/// is collected into elements of the same size keeps its memory, which `tests/allocations.rs` watches.
pub(super) fn reuse<T, U>(mut list: Vec<T>) -> Vec<U> {
    const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
    list.clear();
    list.into_iter().filter_map(|_| None).collect()
}

/// What attention computes in, and its output.
pub(super) struct AttentionState {
    pub kernel: attention::AttentionScratch,
    pub lists: JobLists,
    pub counts: AttentionCounts,
    /// (row, head): what each softmax was divided by, where queries are sampled.
    pub sums: Vec<SoftmaxSum>,
    /// (row, head, dim)
    pub out: Vec<f32>,
}

/// Everything a step computes in. Grows in [`StepScratch::reserve`] only, before a step.
pub struct StepScratch {
    /// What is reserved.
    size: StepSize,
    /// Present on the fast path.
    pub(super) int8: Option<Int8Rows>,
    pub(super) attention: AttentionState,
    pub(super) rotations: Rotations,
    /// (row, dim): the residual stream, and what a block adds to it.
    pub(super) x: Vec<f32>,
    pub(super) y: Vec<f32>,
    pub(super) normed: Vec<f32>,
    /// (row, head, dim), roped to where each row stands.
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    /// (row, ffn)
    pub(super) gate: Vec<f32>,
    pub(super) up: Vec<f32>,
    /// Of the last step, (wanted row, vocab).
    pub(crate) logits: Vec<f32>,
}

impl StepScratch {
    pub fn new(config: &Config, int8: bool) -> StepScratch {
        let kernel = attention::AttentionScratch::new(AttentionLimits {
            threads: 1,
            jobs: 1,
            heads: 1,
            kv_heads: 1,
            head_dim: 1,
            slots: 0,
        });
        StepScratch {
            size: StepSize::default(),
            int8: int8.then(Int8Rows::default),
            attention: AttentionState {
                kernel,
                lists: JobLists::default(),
                counts: AttentionCounts::default(),
                sums: Vec::new(),
                out: Vec::new(),
            },
            rotations: Rotations::new(config),
            x: Vec::new(),
            y: Vec::new(),
            normed: Vec::new(),
            q: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// What attention over the few rows that a guard looks at computes in: room that any step has made before.
    pub(crate) fn small_attention(
        &mut self,
        config: &Config,
        threads: usize,
    ) -> &mut attention::AttentionScratch {
        let size = StepSize {
            jobs: 1,
            slots: SPAN_SLOTS,
            ..StepSize::default()
        };
        self.reserve(config, threads, size);
        &mut self.attention.kernel
    }

    /// What one more row costs, attention apart.
    pub fn bytes_per_row(config: &Config) -> usize {
        let one = StepSize {
            rows: 1,
            ..StepSize::default()
        };
        StepScratch::floats(config, one) * size_of::<f32>() + StepScratch::int8_bytes(config, 1)
    }

    fn floats(config: &Config, size: StepSize) -> usize {
        let w = Widths::of(config);
        let row = 3 * config.dim + (2 + size.moved) * w.q + 2 * w.kv + 2 * w.ffn;
        let angles = (1 + size.moved) * w.angles;
        size.rows * (row + angles) + size.wanted * config.vocab
    }

    /// Bytes of [`JobLists`] and of the shifts.
    fn list_bytes(size: StepSize) -> usize {
        let job = size_of::<AttentionJob>() + size_of::<TableView>() + 2 * size_of::<usize>();
        size.jobs * job + size.segments * (size_of::<&[f32]>() + size_of::<u64>())
    }

    /// Counters of attention mass.
    fn counters(config: &Config, size: StepSize) -> usize {
        let heads = config.layers.iter().map(|c| c.kv_heads).max().unwrap_or(0);
        let counted = size.counted.next_multiple_of(StepSize::SLOTS_STEP);
        counted * heads
    }

    /// Softmaxes of the rows among which queries are sampled.
    fn softmaxes(config: &Config, size: StepSize) -> usize {
        let heads = config.layers.iter().map(|c| c.heads).max().unwrap_or(0);
        size.sampled * heads
    }

    fn int8_bytes(config: &Config, rows: usize) -> usize {
        Int8Rows::bytes_for(rows, Widths::of(config).input(config))
    }

    fn needs(
        config: &Config,
        threads: usize,
        size: StepSize,
    ) -> impl Iterator<Item = AttentionLimits> {
        config.layers.iter().map(move |c| AttentionLimits {
            threads,
            jobs: size.jobs,
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            slots: size.slots.next_multiple_of(StepSize::SLOTS_STEP),
        })
    }

    /// Bytes of a scratch that was reserved for this size and nothing greater.
    pub fn bytes_for(config: &Config, threads: usize, int8: bool, size: StepSize) -> usize {
        StepScratch::floats(config, size) * size_of::<f32>()
            + usize::from(int8) * StepScratch::int8_bytes(config, size.rows)
            + StepScratch::list_bytes(size)
            + StepScratch::counters(config, size) * size_of::<u64>()
            + StepScratch::softmaxes(config, size) * size_of::<SoftmaxSum>()
            + attention::AttentionScratch::bytes_for(StepScratch::needs(config, threads, size))
    }

    /// Bytes it will hold once it serves `size` too.
    pub fn bytes_with(&self, config: &Config, threads: usize, size: StepSize) -> usize {
        StepScratch::bytes_for(config, threads, self.int8.is_some(), self.size.max(size))
    }

    /// Whether it holds more than such a step needs.
    pub fn exceeds(&self, size: StepSize) -> bool {
        self.size.max(size) != size
    }

    /// Gives back all that was reserved.
    pub fn release(&mut self, config: &Config) {
        *self = StepScratch::new(config, self.int8.is_some());
    }

    /// Makes room for a step of that size, keeping what was reserved before.
    pub fn reserve(&mut self, config: &Config, threads: usize, size: StepSize) {
        let size = self.size.max(size);
        if size == self.size {
            return;
        }
        let w = Widths::of(config);
        let rows = size.rows;
        for v in [&mut self.x, &mut self.y, &mut self.normed] {
            grow(v, rows * config.dim);
        }
        for v in [&mut self.q, &mut self.attention.out] {
            grow(v, rows * w.q);
        }
        for v in [&mut self.k, &mut self.v] {
            grow(v, rows * w.kv);
        }
        for v in [&mut self.gate, &mut self.up] {
            grow(v, rows * w.ffn);
        }
        grow(&mut self.logits, size.wanted * config.vocab);
        self.rotations.reserve(config, w.q, size);
        let attention = &mut self.attention;
        for need in StepScratch::needs(config, threads, size) {
            attention.kernel.reserve(need);
        }
        let counters = StepScratch::counters(config, size);
        attention.counts.reserve(counters, size.jobs);
        grow(&mut attention.sums, StepScratch::softmaxes(config, size));
        grow(&mut attention.lists.queries, size.segments);
        grow(&mut attention.lists.views, size.jobs);
        grow(&mut attention.lists.jobs, size.jobs);
        if let Some(int8) = &mut self.int8 {
            int8.reserve(rows, w.input(config));
        }
        self.size = size;
    }

    pub(super) fn begin(&mut self, config: &Config, rows: usize) {
        for v in [&mut self.x, &mut self.y, &mut self.normed] {
            v.resize(rows * config.dim, 0.0);
        }
    }

    /// Moves the rows that get logits to the front of `y`.
    pub(super) fn gather(&mut self, config: &Config, spans: &[StepSpan<'_>]) {
        let dim = config.dim;
        let (mut first, mut kept) = (0, 0);
        for span in spans {
            let wanted = span.wanted();
            let from = (first + wanted.start) * dim..(first + wanted.end) * dim;
            self.y[kept * dim..(kept + wanted.len()) * dim].copy_from_slice(&self.x[from]);
            kept += wanted.len();
            first += span.tokens.len();
        }
        self.y.truncate(kept * dim);
        self.normed.truncate(kept * dim);
    }
}

/// Room for `len` elements, no more than that.
fn grow<T>(v: &mut Vec<T>, len: usize) {
    v.reserve_exact(len.saturating_sub(v.len()));
}
