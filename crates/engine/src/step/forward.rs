//! One pass of the model over the tokens of a step.
//!
//! Rows of all spans go through the matrices together, so the weights are read once; attention is
//! per span, over its own tables. A row's result does not depend on its neighbours.

use super::canaries::{Canaries, Seen};
use super::config::{Activation, Config, HEAD_DIM_MAX, LayerConfig};
use super::counters::Counters;
use super::weights::{Weight, Weights};
use haversack_cache::{CacheError, SequenceId, Step, Store, TableView};
use haversack_kernels::Exec;
use haversack_kernels::attention::{self, Attend, BLOCK_SLOTS, KvView, Need, SPAN_SLOTS, Sum};
use haversack_kernels::matmul::{Input, Int8Rows, Product, matmul};
use haversack_kernels::ops::{self, rope};
use haversack_kernels::threads::chunks_mut;
use haversack_memory::zoo::{Bug, planted};
use std::sync::mpsc::SyncSender;

/// Which rows of a span get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    Nothing,
    Last,
    All,
}

/// New tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct StepSpan<'a> {
    pub sequence: SequenceId,
    /// Where the sequence stands: the position of `tokens[0]`.
    pub position: u64,
    pub tokens: &'a [u32],
    pub want: LogitRows,
}

impl StepSpan<'_> {
    pub(crate) fn wanted(&self) -> std::ops::Range<usize> {
        let n = self.tokens.len();
        match self.want {
            LogitRows::Nothing => n..n,
            LogitRows::Last => n.saturating_sub(1)..n,
            LogitRows::All => 0..n,
        }
    }
}

pub fn forward(
    config: &Config,
    weights: &Weights,
    exec: Exec<'_>,
    store: &mut Store,
    step: &mut Step,
    s: &mut Scratch,
    spans: &[StepSpan<'_>],
) -> Result<(), CacheError> {
    let rows: usize = spans.iter().map(|span| span.tokens.len()).sum();
    s.begin(config, rows);
    embed(config, weights, exec, spans, &mut s.x);
    s.shifts.clear();
    for span in spans {
        s.shifts.push(store.shifts(span.sequence));
    }
    s.turn(config, spans);

    let resume = s.resume.take();
    let first = resume.as_ref().map_or(0, |resume| resume.layer);
    let layers = config.layers.iter().zip(&weights.layers).enumerate();
    for (layer, (c, w)) in layers.skip(first) {
        weights.prefetch_after(layer);
        // Attention.
        match &resume {
            Some(resume) if resume.layer == layer => {
                s.x.copy_from_slice(&resume.stream);
                s.att.clear();
                s.att.extend_from_slice(&resume.output);
            }
            _ => look_back(config, weights, exec, store, step, s, spans, layer)?,
        }
        multiply(exec, weights, &mut s.int8, &s.att, [(&w.o, &mut s.y)]);
        bias(&mut s.y, &w.o_bias);
        remember(exec, layer, s, spans, w.post_attn_norm.as_deref());
        residual(exec, config, s, &w.post_attn_norm);

        // Feed-forward.
        norm(exec, &s.x, &w.ffn_norm, config, &mut s.normed);
        let gate_up = [(&w.gate, &mut s.gate), (&w.up, &mut s.up)];
        multiply(exec, weights, &mut s.int8, &s.normed, gate_up);
        activate(exec, config, c, &mut s.gate, &s.up);
        multiply(exec, weights, &mut s.int8, &s.gate, [(&w.down, &mut s.y)]);
        residual(exec, config, s, &w.post_ffn_norm);
    }

    // Logits of the rows that were asked for.
    s.gather(config, spans);
    norm(exec, &s.y, &weights.output_norm, config, &mut s.normed);
    let logits = [(&weights.output, &mut s.logits)];
    multiply(exec, weights, &mut s.int8, &s.normed, logits);
    if let Some(cap) = config.logit_cap {
        s.logits
            .iter_mut()
            .for_each(|l| *l = cap * (*l / cap).tanh());
    }
    Ok(())
}

/// What the rows of one layer find in the cache, their own keys and values included: `s.att`.
#[expect(clippy::too_many_arguments, reason = "the state of a step")]
fn look_back(
    config: &Config,
    weights: &Weights,
    exec: Exec<'_>,
    store: &mut Store,
    step: &mut Step,
    s: &mut Scratch,
    spans: &[StepSpan<'_>],
    layer: usize,
) -> Result<(), CacheError> {
    let (c, w) = (&config.layers[layer], &weights.layers[layer]);
    norm(exec, &s.x, &w.attn_norm, config, &mut s.normed);
    let qkv = [(&w.q, &mut s.q), (&w.k, &mut s.k), (&w.v, &mut s.v)];
    multiply(exec, weights, &mut s.int8, &s.normed, qkv);
    bias(&mut s.q, &w.q_bias);
    bias(&mut s.k, &w.k_bias);
    bias(&mut s.v, &w.v_bias);
    head_norm(exec, config, c, &mut s.q, &w.q_norm);
    head_norm(exec, config, c, &mut s.k, &w.k_norm);
    if let Some(to) = &mut s.captured {
        to.take(Captured {
            keys: s.k.clone(),
            values: s.v.clone(),
            queries: s.q.clone(),
            stream: s.x.clone(),
        });
    }
    s.rotate(exec, config, c);
    let kv = c.kv_heads * c.head_dim;
    let mut row = 0;
    for span in spans {
        let range = row * kv..(row + span.tokens.len()) * kv;
        let (k, v) = (&s.k[range.clone()], &s.v[range]);
        store.write(exec, step, span.sequence, layer, k, v)?;
        row += span.tokens.len();
    }
    attend(c, exec, store, layer, s, spans)?;
    if c.window.is_none() && s.mass.watches(spans) {
        s.mass.note(c, store, layer, spans)?;
    }
    store.settle(step, layer);
    Ok(())
}

fn embed(
    config: &Config,
    weights: &Weights,
    exec: Exec<'_>,
    spans: &[StepSpan<'_>],
    x: &mut [f32],
) {
    let tokens = spans.iter().flat_map(|span| span.tokens);
    for (row, &token) in x.chunks_exact_mut(config.dim).zip(tokens) {
        weights.embed(token as usize, row);
        if config.embed_scale != 1.0 {
            ops::scale(exec.table, row, config.embed_scale);
        }
    }
}

fn norm(exec: Exec<'_>, x: &[f32], weight: &[f32], config: &Config, out: &mut [f32]) {
    let dim = config.dim;
    chunks_mut(exec.pool, out, dim, &|row, out: &mut [f32]| {
        ops::rms_norm(
            exec.table,
            &x[row * dim..(row + 1) * dim],
            weight,
            config.norm_eps,
            out,
        );
    });
}

fn bias(x: &mut [f32], bias: &Option<Vec<f32>>) {
    if let Some(bias) = bias {
        for row in x.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
    }
}

/// The norm of every head, where the model has one. `x` is (row, head, dim).
fn head_norm(
    exec: Exec<'_>,
    config: &Config,
    c: &LayerConfig,
    x: &mut [f32],
    weight: &Option<Vec<f32>>,
) {
    let Some(weight) = weight else {
        return;
    };
    chunks_mut(exec.pool, x, c.head_dim, &|_, head: &mut [f32]| {
        let mut copy = [0.0; HEAD_DIM_MAX];
        let copy = &mut copy[..c.head_dim];
        copy.copy_from_slice(head);
        ops::rms_norm(exec.table, copy, weight, config.norm_eps, head);
    });
}

/// Rotates every head. `x` is (row, head, dim), `angles` (row, 2 × pair).
fn rotate(exec: Exec<'_>, spec: &rope::RopeSpec, head_dim: usize, x: &mut [f32], angles: &[f32]) {
    let rows = angles.len() / spec.dims;
    let width = x.len() / rows;
    chunks_mut(exec.pool, x, width, &|row, x: &mut [f32]| {
        let angles = &angles[row * spec.dims..(row + 1) * spec.dims];
        for head in x.chunks_exact_mut(head_dim) {
            rope::rotate(exec.table, head, angles, spec);
        }
    });
}

/// Some of the queries, and what they were answered, are kept for the guard.
fn remember(
    exec: Exec<'_>,
    layer: usize,
    s: &mut Scratch,
    spans: &[StepSpan<'_>],
    post_norm: Option<&[f32]>,
) {
    if let Some(canaries) = &mut s.canaries {
        let seen = Seen {
            q: &s.q,
            o: &s.att,
            sums: &s.sums,
            x: &s.x,
            y: &s.y,
            post_norm,
        };
        canaries.keep(exec.table, layer, spans, &seen);
    }
}

fn attend(
    c: &LayerConfig,
    exec: Exec<'_>,
    store: &Store,
    layer: usize,
    s: &mut Scratch,
    spans: &[StepSpan<'_>],
) -> Result<(), CacheError> {
    let width = c.heads * c.head_dim;
    let lists = std::mem::take(&mut s.lists);
    let (mut views, mut queries, mut jobs) =
        (reuse(lists.views), reuse(lists.queries), reuse(lists.jobs));
    for span in spans {
        views.push(store.view(span.sequence, layer)?);
    }
    s.att.resize(s.q.len(), 0.0);
    let mut row = 0;
    for (i, span) in spans.iter().enumerate() {
        let range = row * width..(row + span.tokens.len()) * width;
        for (segment, &shift) in s.shifts.of(i).iter().enumerate() {
            queries.push(match s.moved.get(segment) {
                Some(moved) if shift != 0 => &moved[range.clone()],
                _ => &s.q[range.clone()],
            });
        }
        row += span.tokens.len();
    }
    let shape = store.layers()[layer];
    let (mut out, mut left) = (&mut s.att[..], &queries[..]);
    let watches = c.window.is_none() && s.mass.watches(spans);
    let mut counters = watches.then(|| s.mass.begin(c.kv_heads, spans, &views));
    let mut sums = s
        .canaries
        .as_ref()
        .filter(|canaries| canaries.has(layer))
        .map(|_| {
            s.sums.resize(s.q.len() / c.head_dim, Sum::default());
            &mut s.sums[..]
        });
    for (i, (span, view)) in spans.iter().zip(&views).enumerate() {
        let (q, others) = left.split_at(s.shifts.of(i).len());
        left = others;
        let (out_here, out_rest) = out.split_at_mut(span.tokens.len() * width);
        out = out_rest;
        let mass = counters.as_mut().and_then(|counters| {
            let slots = view.blocks() * BLOCK_SLOTS * c.kv_heads;
            counters.take(span.sequence, slots)
        });
        jobs.push(Attend {
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            heads: c.heads,
            basis: shape.basis(),
            mean: store.mean(layer),
            scale: c.score_scale,
            softcap: None,
            window: c.window,
            q,
            first_position: span.position,
            view,
            out: out_here,
            mass,
            sums: sums.take().map(|all| {
                let (own, others) = all.split_at_mut(span.tokens.len() * c.heads);
                sums = Some(others);
                own
            }),
        });
    }
    attention::attend(exec, &mut s.attention, &mut jobs);
    s.lists = Lists {
        jobs: reuse(jobs),
        queries: reuse(queries),
        views: reuse(views),
    };
    Ok(())
}

/// Rows of the stream that one thread adds to at a time.
const RESIDUAL_ROWS: usize = 16;

/// x += y, through the model's norm after the block where it has one.
fn residual(exec: Exec<'_>, config: &Config, s: &mut Scratch, post_norm: &Option<Vec<f32>>) {
    let y = match post_norm {
        Some(weight) => {
            norm(exec, &s.y, weight, config, &mut s.normed);
            &s.normed
        }
        None => &s.y,
    };
    let dim = config.dim;
    chunks_mut(
        exec.pool,
        &mut s.x,
        RESIDUAL_ROWS * dim,
        &|i, x: &mut [f32]| {
            ops::add_assign(exec.table, x, &y[i * RESIDUAL_ROWS * dim..][..x.len()]);
        },
    );
}

fn activate(exec: Exec<'_>, config: &Config, c: &LayerConfig, gate: &mut [f32], up: &[f32]) {
    let ffn = c.ffn;
    chunks_mut(exec.pool, gate, ffn, &|row, gate: &mut [f32]| {
        let up = &up[row * ffn..(row + 1) * ffn];
        match config.activation {
            Activation::Silu => ops::silu_mul(exec.table, gate, up),
            Activation::Gelu => ops::gelu_mul(exec.table, gate, up),
        }
    });
}

/// All products of one input, in one pass over the threads; each output is (row, w.rows).
fn multiply<const N: usize>(
    exec: Exec<'_>,
    weights: &Weights,
    int8: &mut Option<Int8Rows>,
    x: &[f32],
    outputs: [(&Weight, &mut Vec<f32>); N],
) {
    let cols = outputs[0].0.cols;
    let rows = x.len() / cols;
    // Only whole groups of 32 have an int8 form; products of other widths have float weights anyway.
    let int8 = int8.as_mut().filter(|_| cols.is_multiple_of(32));
    let int8 = int8.map(|int8| {
        int8.quantise(exec, x, rows, cols);
        &*int8
    });
    let mut products = outputs.map(|(w, out)| {
        out.resize(rows * w.rows, 0.0);
        let w = weights.matrix(w);
        Product { w, out }
    });
    let input = Input {
        rows,
        cols,
        x,
        int8,
    };
    matmul(exec, input, &mut products);
}

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
    /// Segments of keys that have moved, of the sequence with most.
    pub moved: usize,
    /// Segments of all spans.
    pub segments: usize,
    /// Slots of all spans whose attention is counted.
    pub counted: usize,
    /// Rows among which canaries are chosen.
    pub watched: usize,
}

impl StepSize {
    /// Slots are reserved in large steps, so that a long answer does not move scratch often.
    const SLOTS_STEP: usize = 1024;

    /// Spans that [`Need`] has beyond those of its slots, for what is kept behind a gap.
    const SPANS_BEYOND: usize = 2;

    /// What to reserve for a table of `rows` rows in `spans` spans. Rows in few pieces need what their
    /// number says; blocks that are scattered have a span each.
    pub fn slots_for(rows: usize, spans: usize) -> usize {
        rows.max(spans.saturating_sub(StepSize::SPANS_BEYOND) * SPAN_SLOTS)
    }

    /// Both fit.
    fn max(self, other: StepSize) -> StepSize {
        StepSize {
            rows: self.rows.max(other.rows),
            wanted: self.wanted.max(other.wanted),
            jobs: self.jobs.max(other.jobs),
            slots: self.slots.max(other.slots),
            moved: self.moved.max(other.moved),
            segments: self.segments.max(other.segments),
            counted: self.counted.max(other.counted),
            watched: self.watched.max(other.watched),
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

/// (span): how far back its queries stand for each segment of its keys.
#[derive(Default)]
struct Shifts {
    all: Vec<u64>,
    /// (span): where its own end in `all`.
    ends: Vec<usize>,
}

impl Shifts {
    fn clear(&mut self) {
        self.all.clear();
        self.ends.clear();
    }

    fn push(&mut self, shifts: &[u64]) {
        self.all.extend_from_slice(shifts);
        self.ends.push(self.all.len());
    }

    fn of(&self, span: usize) -> &[u64] {
        let start = if span == 0 { 0 } else { self.ends[span - 1] };
        &self.all[start..self.ends[span]]
    }
}

/// What attention is told in each layer: empty between layers, kept for its room.
#[derive(Default)]
struct Lists {
    views: Vec<TableView<'static>>,
    /// (span, segment)
    queries: Vec<&'static [f32]>,
    jobs: Vec<Attend<'static>>,
}

/// The room of a list for elements that live shorter, or longer: the list is emptied. An iterator that
/// is collected into elements of the same size keeps its memory, which `tests/allocations.rs` watches.
fn reuse<T, U>(mut list: Vec<T>) -> Vec<U> {
    const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
    list.clear();
    list.into_iter().filter_map(|_| None).collect()
}

/// What one layer computed in a step, for those who measure.
pub(crate) struct Captured {
    /// (row, kv_head, dim), before RoPE.
    pub keys: Vec<f32>,
    /// (row, kv_head, dim)
    pub values: Vec<f32>,
    /// (row, head, dim), before RoPE.
    pub queries: Vec<f32>,
    /// (row, dim): what came into the layer.
    pub stream: Vec<f32>,
}

/// Who gets what layers compute.
pub(crate) enum Capture {
    /// A list, layer after layer.
    Keep(Vec<Captured>),
    /// Somebody who works on one layer while the next is computed. If nobody listens any more, nothing is sent.
    Send(SyncSender<Captured>),
}

impl Capture {
    fn take(&mut self, captured: Captured) {
        match self {
            Capture::Keep(list) => list.push(captured),
            Capture::Send(to) => drop(to.send(captured)),
        }
    }
}

/// A step that begins in the middle: with what came into a layer, and what its attention found there.
pub(crate) struct Resume {
    pub layer: usize,
    /// (row, dim)
    pub stream: Vec<f32>,
    /// (row, head, dim)
    pub output: Vec<f32>,
}

/// Everything a step computes in. Grows in [`Scratch::reserve`] only, before a step.
pub struct Scratch {
    /// What is reserved.
    size: StepSize,
    /// Present on the fast path.
    int8: Option<Int8Rows>,
    attention: attention::Scratch,
    /// (row, dim): the residual stream, and what a block adds to it.
    x: Vec<f32>,
    y: Vec<f32>,
    normed: Vec<f32>,
    /// (row, head, dim), roped to where each row stands.
    q: Vec<f32>,
    /// (segment)(row, head, dim): roped to where a row stands for a segment that was moved.
    moved: Vec<Vec<f32>>,
    k: Vec<f32>,
    v: Vec<f32>,
    att: Vec<f32>,
    /// (row, ffn)
    gate: Vec<f32>,
    up: Vec<f32>,
    /// (rope)(row, 2 × pair)
    angles: Vec<Vec<f32>>,
    /// (segment)(rope)(row, 2 × pair)
    moved_angles: Vec<Vec<Vec<f32>>>,
    /// (wanted row, vocab)
    logits: Vec<f32>,
    shifts: Shifts,
    lists: Lists,
    /// Attention of a layer's rows, where somebody decides on them.
    pub(crate) mass: Counters,
    /// (row, head): what each softmax was divided by, where canaries are kept.
    sums: Vec<Sum>,
    pub(crate) canaries: Option<Canaries>,
    /// (layer): the step's keys and queries before RoPE, (row, head, dim), if someone asked for them.
    pub(crate) captured: Option<Capture>,
    /// Where the next step begins, if not at its tokens.
    pub(crate) resume: Option<Resume>,
}

impl Scratch {
    /// What a guard works with, if canaries are kept: attention over few rows, and the canaries.
    pub(crate) fn guarded(
        &mut self,
        config: &Config,
        threads: usize,
    ) -> Option<(&mut attention::Scratch, &Canaries)> {
        self.canaries.as_ref()?;
        // Room that any step has made before.
        let size = StepSize {
            jobs: 1,
            slots: SPAN_SLOTS,
            ..StepSize::default()
        };
        self.reserve(config, threads, size);
        Some((&mut self.attention, self.canaries.as_ref()?))
    }

    pub fn new(config: &Config, int8: bool) -> Scratch {
        Scratch {
            size: StepSize::default(),
            int8: int8.then(|| Int8Rows::with_capacity(0, 0)),
            attention: attention::Scratch::new(Need {
                threads: 1,
                jobs: 1,
                heads: 1,
                kv_heads: 1,
                head_dim: 1,
                slots: 0,
            }),
            x: Vec::new(),
            y: Vec::new(),
            normed: Vec::new(),
            q: Vec::new(),
            moved: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
            att: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
            angles: vec![Vec::new(); config.ropes.len()],
            moved_angles: Vec::new(),
            logits: Vec::new(),
            shifts: Shifts::default(),
            lists: Lists::default(),
            mass: Counters::default(),
            sums: Vec::new(),
            canaries: None,
            captured: None,
            resume: None,
        }
    }

    /// Logits of the last step, (wanted row, vocab).
    pub fn last_logits(&self) -> &[f32] {
        &self.logits
    }

    /// What one more row costs, attention apart.
    pub fn bytes_per_row(config: &Config) -> usize {
        let one = |rows| StepSize {
            rows,
            ..StepSize::default()
        };
        Scratch::floats(config, one(1)) * size_of::<f32>() + Scratch::int8_bytes(config, 1)
    }

    fn floats(config: &Config, size: StepSize) -> usize {
        let w = Widths::of(config);
        let row = 3 * config.dim + (2 + size.moved) * w.q + 2 * w.kv + 2 * w.ffn;
        let angles = (1 + size.moved) * w.angles;
        size.rows * (row + angles) + size.wanted * config.vocab
    }

    /// Of the lists that say what attends to what.
    fn list_bytes(size: StepSize) -> usize {
        let job = size_of::<Attend>() + size_of::<TableView>() + 2 * size_of::<usize>();
        size.jobs * job + size.segments * (size_of::<&[f32]>() + size_of::<u64>())
    }

    /// Of the list of attention mass.
    fn counters(config: &Config, size: StepSize) -> usize {
        let heads = config.layers.iter().map(|c| c.kv_heads).max().unwrap_or(0);
        let counted = size.counted.next_multiple_of(StepSize::SLOTS_STEP);
        counted * heads
    }

    /// Softmaxes of the rows among which canaries are chosen.
    fn softmaxes(config: &Config, size: StepSize) -> usize {
        let heads = config.layers.iter().map(|c| c.heads).max().unwrap_or(0);
        size.watched * heads
    }

    fn int8_bytes(config: &Config, rows: usize) -> usize {
        Int8Rows::bytes_for(rows, Widths::of(config).input(config))
    }

    fn needs(config: &Config, threads: usize, size: StepSize) -> impl Iterator<Item = Need> {
        config.layers.iter().map(move |c| Need {
            threads,
            jobs: size.jobs,
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            slots: size.slots.next_multiple_of(StepSize::SLOTS_STEP),
        })
    }

    /// Bytes that a scratch holds which was reserved for this and nothing greater.
    pub fn bytes_for(config: &Config, threads: usize, int8: bool, size: StepSize) -> usize {
        let int8 = if int8 {
            Scratch::int8_bytes(config, size.rows)
        } else {
            0
        };
        Scratch::floats(config, size) * size_of::<f32>()
            + int8
            + Scratch::list_bytes(size)
            + Scratch::counters(config, size) * size_of::<u64>()
            + Scratch::softmaxes(config, size) * size_of::<Sum>()
            + attention::Scratch::bytes_for(Scratch::needs(config, threads, size))
    }

    /// Bytes it will hold once it serves `size` too.
    pub fn bytes_with(&self, config: &Config, threads: usize, size: StepSize) -> usize {
        Scratch::bytes_for(config, threads, self.int8.is_some(), self.size.max(size))
    }

    /// Whether it holds more than such a step needs.
    pub fn exceeds(&self, size: StepSize) -> bool {
        self.size.max(size) != size
    }

    /// Gives back all that was reserved; what is remembered from step to step stays.
    pub fn release(&mut self, config: &Config) {
        let new = Scratch::new(config, self.int8.is_some());
        let old = std::mem::replace(self, new);
        self.mass = old.mass.released();
        self.canaries = old.canaries;
        self.captured = old.captured;
        self.resume = old.resume;
    }

    /// Makes room for a step of that size, keeping what was reserved before.
    pub fn reserve(&mut self, config: &Config, threads: usize, size: StepSize) {
        let size = self.size.max(size);
        if size == self.size {
            return;
        }
        let w = Widths::of(config);
        for need in Scratch::needs(config, threads, size) {
            self.attention.reserve(need);
        }
        let rows = size.rows;
        for v in [&mut self.x, &mut self.y, &mut self.normed] {
            grow(v, rows * config.dim);
        }
        self.moved.resize_with(size.moved, Vec::new);
        let none = || vec![Vec::new(); config.ropes.len()];
        self.moved_angles.resize_with(size.moved, none);
        for q in [&mut self.q, &mut self.att]
            .into_iter()
            .chain(&mut self.moved)
        {
            grow(q, rows * w.q);
        }
        for v in [&mut self.k, &mut self.v] {
            grow(v, rows * w.kv);
        }
        for v in [&mut self.gate, &mut self.up] {
            grow(v, rows * w.ffn);
        }
        for angles in [&mut self.angles].into_iter().chain(&mut self.moved_angles) {
            for (spec, v) in config.ropes.iter().zip(angles) {
                grow(v, rows * spec.dims);
            }
        }
        grow(&mut self.logits, size.wanted * config.vocab);
        self.mass
            .reserve(Scratch::counters(config, size), size.jobs);
        grow(&mut self.sums, Scratch::softmaxes(config, size));
        grow(&mut self.shifts.all, size.segments);
        grow(&mut self.shifts.ends, size.jobs);
        grow(&mut self.lists.queries, size.segments);
        grow(&mut self.lists.views, size.jobs);
        grow(&mut self.lists.jobs, size.jobs);
        if let Some(int8) = &mut self.int8 {
            int8.reserve(rows, w.input(config));
        }
        self.size = size;
    }

    fn begin(&mut self, config: &Config, rows: usize) {
        for v in [&mut self.x, &mut self.y, &mut self.normed] {
            v.resize(rows * config.dim, 0.0);
        }
    }

    /// The angles of every row: one rotation for all layers and heads, and one more for each segment
    /// of keys that has moved.
    fn turn(&mut self, config: &Config, spans: &[StepSpan<'_>]) {
        let moved = |span: usize| match planted(Bug::RowsForPositions) {
            true => self.shifts.of(span)[0],
            false => 0,
        };
        fill_angles(config, spans, moved, &mut self.angles);
        for (segment, angles) in self.moved_angles.iter_mut().enumerate() {
            let shift = |span: usize| self.shifts.of(span).get(segment).copied().unwrap_or(0);
            fill_angles(config, spans, shift, angles);
        }
    }

    /// Rotates queries and keys of one layer.
    fn rotate(&mut self, exec: Exec<'_>, config: &Config, c: &LayerConfig) {
        let spec = &config.ropes[c.rope];
        for (q, angles) in self.moved.iter_mut().zip(&self.moved_angles) {
            q.clear();
            q.extend_from_slice(&self.q);
            rotate(exec, spec, c.head_dim, q, &angles[c.rope]);
        }
        let angles = &self.angles[c.rope];
        rotate(exec, spec, c.head_dim, &mut self.q, angles);
        rotate(exec, spec, c.head_dim, &mut self.k, angles);
    }

    /// Moves the rows that want logits to the front of `y`.
    fn gather(&mut self, config: &Config, spans: &[StepSpan<'_>]) {
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
            let restarts = span.tokens.len() == 1 && planted(Bug::PositionsRestart);
            let position = if restarts { 0 } else { span.position };
            let first = position.saturating_sub(shift(i));
            (0..span.tokens.len() as u64).map(move |row| first + row)
        });
        for (row, position) in out.chunks_exact_mut(spec.dims).zip(positions) {
            spec.angles(position, row);
        }
    }
}
