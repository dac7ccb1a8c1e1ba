//! Tables of blocks for tests: any forms, near and far, sinks, segments, gaps, hidden slots.
//!
//! Codes are drawn, not encoded: what attention must do with a block depends on its bytes alone.
//! Whatever was not written yet, and whatever a sink stands in for, is poison: bytes that are not
//! numbers.

use haversack_kernels::attention::*;
use haversack_kernels::cpu::{Backend, BackendKind};
use haversack_kernels::format::kv::code::{write_k_rows, write_v_rows};
use haversack_kernels::format::kv::*;
use haversack_kernels::threads::ThreadPool;
use haversack_kernels::{Exec, attention};
use std::ops::Range;
use std::sync::Arc;

/// A small generator of its own, so that a test's numbers never change under it.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    pub fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

/// Consecutive positions of one segment.
#[derive(Clone, Copy)]
pub struct Run {
    /// A multiple of 32.
    pub first_position: u64,
    pub len: usize,
}

/// One sequence: its shape, what is kept of it, and queries for the tokens of the last run.
#[derive(Clone)]
pub struct Sequence {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub basis: Basis,
    /// (kv_head, dim)
    pub mean: Option<Vec<f32>>,
    pub near: KvForm,
    pub far: KvForm,
    /// Blocks further than this from a query's are seen in the far form.
    pub near_blocks: u64,
    /// Exact rows in the block of position 0.
    pub sinks: usize,
    pub window: Option<u64>,
    /// Positions that no query sees, in any order.
    pub hidden: Vec<Range<u64>>,
    /// Their slots hold other numbers, large ones.
    pub spoiled: bool,
    /// First positions of blocks that the table does not have.
    pub gone: Vec<u64>,
    /// One segment each; the last one holds the tokens that ask.
    pub runs: Vec<Run>,
    /// Tokens of the last run.
    pub len: usize,
    /// Per segment: (token, head, dim)
    pub q: Vec<Vec<f32>>,
    /// (token, kv_head, dim) of all runs
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub seed: u64,
}

impl Sequence {
    /// One run of f16 from position 0 on.
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize, len: usize, seed: u64) -> Sequence {
        let mut noise = Noise(seed);
        let row = kv_heads * head_dim;
        Sequence {
            heads,
            kv_heads,
            head_dim,
            basis: Basis::default(),
            mean: None,
            near: KvForm::F16,
            far: KvForm::F16,
            near_blocks: 0,
            sinks: 0,
            window: None,
            hidden: Vec::new(),
            spoiled: false,
            gone: Vec::new(),
            runs: vec![Run {
                first_position: 0,
                len,
            }],
            len,
            // Six times: scores spread over several units, so that the softmax is not flat.
            q: vec![
                noise
                    .values(len * heads * head_dim)
                    .iter()
                    .map(|x| 6.0 * x)
                    .collect(),
            ],
            k: noise.values(len * row),
            v: noise.values(len * row),
            seed,
        }
    }

    /// The same with runs before its own, which moves to `position`. Each run is a segment.
    pub fn behind(mut self, before: &[Run], position: u64) -> Sequence {
        let mut noise = Noise(self.seed ^ 0x5eed);
        let tokens: usize = before.iter().map(|run| run.len).sum();
        for side in [&mut self.k, &mut self.v] {
            let mut all = noise.values(tokens * self.kv_heads * self.head_dim);
            all.append(side);
            *side = all;
        }
        for _ in before {
            let q = noise.values(self.len * self.heads * self.head_dim);
            self.q.push(q.iter().map(|x| 6.0 * x).collect());
        }
        self.runs[0].first_position = position;
        self.runs.splice(0..0, before.iter().copied());
        self
    }

    pub fn forms(mut self, near: KvForm, far: KvForm, near_blocks: u64) -> Sequence {
        (self.near, self.far, self.near_blocks) = (near, far, near_blocks);
        self
    }

    /// A mean as large as the keys themselves.
    pub fn with_mean(mut self) -> Sequence {
        let mut noise = Noise(self.seed ^ 0x3ea7);
        self.mean = Some(noise.values(self.kv_heads * self.head_dim));
        self
    }

    /// Hides pieces of every run, of one slot up to several blocks, and the first of its positions or not.
    pub fn with_hidden(mut self) -> Sequence {
        let mut noise = Noise(self.seed ^ 0x41de);
        for run in &self.runs {
            let mut at = run.first_position + noise.next() % 3;
            while at < run.first_position + run.len as u64 {
                let most = [1, 5, 40, 200][noise.next() as usize % 4];
                let end = at + 1 + noise.next() % most;
                self.hidden.push(at..end);
                at = end + 1 + noise.next() % most;
            }
        }
        self
    }

    /// First positions of the blocks of which this is true, the last one aside.
    pub fn blocks_where(&self, is: impl Fn(u64) -> bool) -> Vec<u64> {
        let table = self.table(self.len);
        let firsts = table.blocks.iter().map(|block| block.first_position);
        let mut firsts: Vec<u64> = firsts.collect();
        firsts.pop();
        firsts.retain(|first| is(*first));
        firsts
    }

    pub fn is_hidden(&self, position: u64) -> bool {
        self.hidden.iter().any(|range| range.contains(&position))
    }

    /// Of a block's slots.
    fn hidden_slots(&self, first_position: u64) -> u32 {
        let hidden = |slot: &u32| self.is_hidden(first_position + u64::from(*slot));
        (0..32)
            .filter(hidden)
            .fold(0, |bits, slot| bits | 1 << slot)
    }

    pub fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    pub fn shape(&self, form: KvForm) -> KvShape {
        KvShape {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            form,
        }
    }

    /// Position of token 0 of the last run.
    pub fn first_position(&self) -> u64 {
        self.runs[self.runs.len() - 1].first_position
    }

    /// Blocks holding all runs, the last with its first `len` tokens.
    pub fn table(&self, len: usize) -> Blocks<'_> {
        self.table_after(&[], len)
    }

    /// The same, taking blocks that are already as they should be from an earlier table.
    fn table_after(&self, earlier: &[Arc<OneBlock>], len: usize) -> Blocks<'_> {
        let mut blocks: Vec<Arc<OneBlock>> = Vec::new();
        let mut token = 0;
        for (segment, run) in self.runs.iter().enumerate() {
            let last = segment + 1 == self.runs.len();
            let here = if last { len } else { run.len };
            for first in (0..here).step_by(BLOCK_SLOTS) {
                let rows = (here - first).min(BLOCK_SLOTS);
                let first_position = run.first_position + first as u64;
                let sinks = if first_position == 0 { self.sinks } else { 0 };
                if self.gone.contains(&first_position) {
                    continue;
                }
                if let Some(block) = earlier.get(blocks.len())
                    && block.rows == rows
                {
                    blocks.push(Arc::clone(block));
                    continue;
                }
                let spoiled = match self.spoiled {
                    true => self.hidden_slots(first_position),
                    false => 0,
                };
                blocks.push(Arc::new(OneBlock {
                    near: self.bytes(self.near, token + first, rows, sinks, spoiled, 1),
                    far: self.bytes(self.far, token + first, rows, sinks, spoiled, 2),
                    sinks: (
                        self.sink_rows(&self.k, rows, sinks, spoiled),
                        self.sink_rows(&self.v, rows, sinks, spoiled),
                    ),
                    rows,
                    first_position,
                    segment,
                }));
            }
            token += run.len;
        }
        let mut spans: Vec<Range<usize>> = Vec::new();
        for (i, block) in blocks.iter().enumerate() {
            match spans.last_mut() {
                Some(span)
                    if blocks[span.start].first_position / 256 == block.first_position / 256 =>
                {
                    span.end = i + 1;
                }
                _ => spans.push(i..i + 1),
            }
        }
        Blocks {
            sequence: self,
            blocks,
            spans,
        }
    }

    /// Keys and values of one block. The bytes of a slot are the same whatever `rows` is.
    fn bytes(
        &self,
        form: KvForm,
        token: usize,
        rows: usize,
        sinks: usize,
        spoiled: u32,
        salt: u64,
    ) -> (Vec<u8>, Vec<u8>) {
        let shape = self.shape(form);
        let mut k = vec![0; shape.k_bytes()];
        let mut v = vec![0; shape.v_bytes()];
        let values = token * shape.row()..(token + rows) * shape.row();
        let seed = self.seed + 1000 * token as u64 + salt;
        if form.k.codec.is_float() {
            write_k_rows(Backend::SCALAR, shape, &mut k, 0, &self.k[values.clone()]);
        } else {
            draw(&mut Noise(seed), form.k, self.head_dim, &mut k);
        }
        if form.v.codec.is_float() {
            write_v_rows(Backend::SCALAR, shape, &mut v, 0, &self.v[values]);
        } else {
            draw(&mut Noise(seed ^ 0x7a1), form.v, self.head_dim, &mut v);
        }
        let mut all = |slot: usize, with: u8| {
            overwrite(Side::K, form.k, self.head_dim, slot, with, &mut k);
            overwrite(Side::V, form.v, self.head_dim, slot, with, &mut v);
        };
        for slot in (sinks..rows).filter(|slot| spoiled >> slot & 1 == 1) {
            all(slot, LARGE);
        }
        for slot in (0..sinks).chain(rows..BLOCK_SLOTS) {
            all(slot, POISON);
        }
        (k, v)
    }

    /// (kv_head, slot, dim) in f16.
    fn sink_rows(&self, rows: &[f32], written: usize, sinks: usize, spoiled: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for head in 0..self.kv_heads {
            for slot in 0..sinks {
                for d in 0..self.head_dim {
                    let half = if spoiled >> slot & 1 == 1 {
                        [LARGE; 2]
                    } else if slot < written {
                        let x = rows[(slot * self.kv_heads + head) * self.head_dim + d];
                        half::f16::from_f32(x).to_le_bytes()
                    } else {
                        [POISON; 2]
                    };
                    bytes.extend(half);
                }
            }
        }
        bytes
    }
}

#[derive(Clone, Copy)]
pub enum Side {
    K,
    V,
}

/// Random codes, and scales that make values of up to about one.
fn draw(noise: &mut Noise, form: Form, dim: usize, bytes: &mut [u8]) {
    let planes = form.head_bytes(dim) - 2 * BLOCK_SLOTS * form.groups(dim);
    let top = match form.codec {
        Codec::Int4Plain => 7.0,
        _ => 127.0,
    };
    for head in bytes.chunks_exact_mut(form.head_bytes(dim)) {
        let (planes, scales) = head.split_at_mut(planes);
        planes.fill_with(|| (noise.next() >> 32) as u8);
        for scale in scales.chunks_exact_mut(2) {
            let x = (1.0 + 0.5 * noise.value()) / top;
            scale.copy_from_slice(&half::f16::from_f32(x).to_le_bytes());
        }
    }
}

/// Where the parts of a value lie in its head: per plane the byte and the bit, then the scale.
fn places(
    side: Side,
    form: Form,
    dim: usize,
    slot: usize,
    d: usize,
) -> ([(usize, usize); 2], usize) {
    let mut parts = [(0, 0); 2];
    let mut first = 0;
    for (i, bits) in form.codec.planes().iter().enumerate() {
        let bytes = form.plane_bytes(i, dim);
        let per = (8 / bits).max(1);
        let width = bits.div_ceil(8);
        let (at, nth) = match (side, form.codec.is_float()) {
            (Side::K, true) => (d * BLOCK_SLOTS + slot, 0),
            (Side::V, true) => (slot * dim + d, 0),
            (Side::K, false) => ((d / 4 / per * BLOCK_SLOTS + slot) * 4 + d % 4, d / 4 % per),
            (Side::V, false) => ((slot / 4 * bytes + d % bytes) * 4 + slot % 4, d / bytes),
        };
        parts[i] = (first + at * width, bits * nth);
        first += BLOCK_SLOTS * bytes;
    }
    (parts, first + 2 * (d / form.group * BLOCK_SLOTS + slot))
}

/// Bytes of no number, whatever the form.
const POISON: u8 = 0xff;
/// Bytes of numbers far from all others.
const LARGE: u8 = 0x55;

/// Makes a slot's bytes all the same, in all heads.
fn overwrite(side: Side, form: Form, dim: usize, slot: usize, with: u8, bytes: &mut [u8]) {
    for head in bytes.chunks_exact_mut(form.head_bytes(dim)) {
        for d in 0..dim {
            let (parts, scale) = places(side, form, dim, slot, d);
            let width = form.codec.planes()[0].div_ceil(8);
            for (at, _) in parts.into_iter().take(form.codec.planes().len()) {
                head[at..at + width].fill(with);
            }
            if !form.codec.is_float() {
                head[scale..scale + 2].fill(with);
            }
        }
    }
}

/// One value as stored.
pub fn value(side: Side, form: Form, dim: usize, head: &[u8], slot: usize, d: usize) -> f64 {
    let (parts, scale) = places(side, form, dim, slot, d);
    let at = parts[0].0;
    let half = |at: usize| half::f16::from_le_bytes([head[at], head[at + 1]]).to_f64();
    let level = match form.codec {
        Codec::F32 => {
            return f64::from(f32::from_le_bytes([
                head[at],
                head[at + 1],
                head[at + 2],
                head[at + 3],
            ]));
        }
        Codec::F16 => return half(at),
        Codec::Int8 => head[at] as i8,
        codec => {
            let mut code = 0;
            let mut above = 0;
            for ((at, shift), bits) in parts.iter().zip(codec.planes()) {
                code |= (usize::from(head[*at]) >> shift & ((1 << bits) - 1)) << above;
                above += bits;
            }
            levels::of(codec)[code]
        }
    };
    f64::from(level) * half(scale)
}

pub struct OneBlock {
    pub near: (Vec<u8>, Vec<u8>),
    pub far: (Vec<u8>, Vec<u8>),
    pub sinks: (Vec<u8>, Vec<u8>),
    pub rows: usize,
    pub first_position: u64,
    pub segment: usize,
}

pub struct Blocks<'a> {
    pub sequence: &'a Sequence,
    pub blocks: Vec<Arc<OneBlock>>,
    pub spans: Vec<Range<usize>>,
}

impl KvView for Blocks<'_> {
    fn blocks(&self) -> usize {
        self.blocks.len()
    }
    fn block(&self, i: usize, query_block: u64) -> Block<'_> {
        let (s, block) = (self.sequence, &self.blocks[i]);
        let distance = query_block.saturating_sub(block.first_position / 32);
        let ((k, v), form) = if distance <= s.near_blocks {
            (&block.near, s.near)
        } else {
            (&block.far, s.far)
        };
        let sinks = (block.first_position == 0 && s.sinks > 0).then_some(Sinks {
            rows: s.sinks,
            k: &block.sinks.0,
            v: &block.sinks.1,
        });
        Block {
            k: Coded {
                form: form.k,
                bytes: k,
            },
            v: Coded {
                form: form.v,
                bytes: v,
            },
            sinks,
            rows: block.rows,
            hidden: s.hidden_slots(block.first_position),
            first_position: block.first_position,
            segment: block.segment,
        }
    }
    fn spans(&self) -> usize {
        self.spans.len()
    }
    fn span(&self, i: usize) -> Range<usize> {
        self.spans[i].clone()
    }
}

/// What a run leaves: outputs of the asking tokens, and the mass as (kv_head, slot) of the whole
/// table.
#[derive(Clone, PartialEq)]
pub struct Outcome {
    pub out: Vec<f32>,
    pub mass: Vec<u64>,
    /// The first position that was not a number.
    pub bad: u64,
    /// (row, head)
    pub sums: Vec<SoftmaxSum>,
}

impl Outcome {
    pub fn bits(&self) -> (Vec<u32>, &[u64], u64) {
        let sums = self.sums.iter().flat_map(|s| [s.max, s.sum]);
        let out = self.out.iter().copied().chain(sums);
        (out.map(f32::to_bits).collect(), &self.mass, self.bad)
    }
}

/// What is counted, of one query in how many.
pub type Counted = (MassStatistic, u64);

/// One way of counting for each turn: everything that can be counted, of all queries or of some.
pub fn counted(turn: usize) -> Counted {
    (COUNTS[turn % 4], [1, 4, 3][turn % 3])
}

/// Everything that can be counted.
pub const COUNTS: [MassStatistic; 4] = [
    MassStatistic::Sum,
    MassStatistic::Squares,
    MassStatistic::Max,
    MassStatistic::Weighted(WEIGHTS),
];

/// Up to one, no two alike.
const WEIGHTS: [u16; 32] = {
    let mut weights = [0; 32];
    let mut i = 0;
    while i < 32 {
        weights[i] = 32768 - 1000 * (31 - i as u16);
        i += 1;
    }
    weights
};

/// Runs the last `len - from` tokens of each sequence in chunks, all sequences of a chunk in one
/// call.
pub fn run(
    backend: Backend,
    pool: &ThreadPool,
    sequences: &[&Sequence],
    from: usize,
    chunk: usize,
    counted: Option<Counted>,
) -> Vec<Outcome> {
    let mut scratch = AttentionScratch::new(AttentionLimits {
        threads: pool.threads(),
        jobs: sequences.len(),
        heads: 1,
        kv_heads: 1,
        head_dim: 1,
        slots: 1,
    });
    let mut outcomes = Vec::new();
    let mut tables = Vec::new();
    for s in sequences {
        let table = s.table(s.len).blocks;
        let blocks = table.len();
        tables.push(table);
        scratch.reserve(AttentionLimits {
            threads: pool.threads(),
            jobs: sequences.len(),
            heads: s.heads,
            kv_heads: s.kv_heads,
            head_dim: s.head_dim,
            // Every run may begin and end inside a span.
            slots: (blocks + SPAN_BLOCKS * s.runs.len()) * BLOCK_SLOTS,
        });
        let slots = s.kv_heads * blocks * BLOCK_SLOTS;
        outcomes.push(Outcome {
            out: vec![f32::NAN; s.q[0].len()],
            mass: vec![0; slots],
            bad: u64::MAX,
            sums: vec![SoftmaxSum::default(); s.q[0].len() / s.head_dim],
        });
    }
    let bytes = scratch.bytes();
    let longest = sequences.iter().map(|s| s.len).max().unwrap_or(0);
    for start in (from..longest).step_by(chunk) {
        let mut parts = Vec::new();
        for ((s, table), outcome) in sequences.iter().zip(&tables).zip(&mut outcomes) {
            if start < s.len {
                let end = (start + chunk).min(s.len);
                let row = s.heads * s.head_dim;
                let blocks = s.table_after(table, end);
                let slots = s.kv_heads * blocks.blocks.len() * BLOCK_SLOTS;
                let q: Vec<&[f32]> = s.q.iter().map(|q| &q[start * row..end * row]).collect();
                parts.push((
                    *s,
                    start * row..end * row,
                    start,
                    q,
                    blocks,
                    (vec![0; slots], u64::MAX),
                    outcome,
                ));
            }
        }
        let mut jobs = Vec::new();
        for (s, range, start, q, blocks, (counters, bad), outcome) in &mut parts {
            jobs.push(AttentionJob {
                kv_heads: s.kv_heads,
                head_dim: s.head_dim,
                heads: s.heads,
                basis: s.basis,
                mean: s.mean.as_deref(),
                scale: s.scale(),
                window: s.window,
                q,
                first_position: s.first_position() + *start as u64,
                view: blocks,
                out: &mut outcome.out[range.clone()],
                mass: counted.map(|(count, every)| Mass {
                    counters,
                    count,
                    every,
                    bad,
                }),
                sums: Some(&mut outcome.sums[range.start / s.head_dim..range.end / s.head_dim]),
            });
        }
        attention::attend(Exec { backend, pool }, &mut scratch, &mut jobs);
        drop(jobs);
        for (s, _, _, _, blocks, (counters, bad), outcome) in parts {
            outcome.bad = outcome.bad.min(bad);
            let here = blocks.blocks.len() * BLOCK_SLOTS;
            let all = outcome.mass.len() / s.kv_heads;
            for head in 0..s.kv_heads {
                for slot in 0..here {
                    let to = &mut outcome.mass[head * all + slot];
                    let more = counters[head * here + slot];
                    *to = match counted {
                        Some((MassStatistic::Max, _)) => more.max(*to),
                        _ => *to + more,
                    };
                }
            }
        }
    }
    assert_eq!(bytes, scratch.bytes(), "attend allocates nothing");
    outcomes
}

/// The backends of this CPU; prints once what it cannot run.
pub fn backends() -> Vec<Backend> {
    static PRINTED: std::sync::Once = std::sync::Once::new();
    PRINTED.call_once(|| {
        for kind in BackendKind::ALL
            .into_iter()
            .filter(|k| Backend::new(*k).is_none())
        {
            println!("not run here: backend {}", kind.name());
        }
    });
    Backend::available().collect()
}
