//! How fast attention and the pool are here: decode at depth in microseconds and in GB/s of keys and
//! values, beside a plain read of the same bytes; prefill in GFLOPS; an empty region in microseconds.
//!
//! Forms are measured in turn, layer by layer, so that what else the machine does hits all alike.
//!
//! `cargo run --release -p haversack-kernels --example attention_speed [-- WORD …]`, where words choose
//! among backends, models, codecs, `decode` and `prefill`, and thread counts. `hidden` hides the first three
//! quarters of the rows, `holes` every other row.

use haversack_kernels::attention::*;
use haversack_kernels::cpu::Backend;
use haversack_kernels::format::kv::{Basis, Codec, Form, KvForm, KvShape};
use haversack_kernels::threads::ThreadPool;
use haversack_kernels::{Exec, ops};
use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

/// A model's attention.
#[derive(Clone, Copy)]
struct Model {
    name: &'static str,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    layers: usize,
}

const MODELS: [Model; 3] = [
    Model {
        name: "SmolLM2-135M",
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        layers: 30,
    },
    Model {
        name: "1B",
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        layers: 16,
    },
    Model {
        name: "7B",
        heads: 32,
        kv_heads: 32,
        head_dim: 128,
        layers: 32,
    },
];

/// Bytes of f16 that the layers of a measurement may take together: more than a cache holds, less
/// than a small machine has.
const BYTES_MAX: usize = 512 << 20;

/// Blocks behind a query's own that it sees in int8, where the rest is narrower.
const NEAR_BLOCKS: u64 = 2;

/// Turns that every form gets.
const ROUNDS: usize = 15;

/// Queries that are timed at once in a prefill: short pieces, of which a busy machine leaves some
/// undisturbed.
const PIECE: usize = 32;

/// One layer's blocks, in two forms.
struct Layer {
    far: KvShape,
    near: KvShape,
    /// Per block: keys and values.
    blocks: Vec<Vec<u8>>,
    near_blocks: Vec<Vec<u8>>,
    slots: usize,
    hiding: Hiding,
}

/// Which rows are hidden.
#[derive(Clone, Copy, PartialEq)]
enum Hiding {
    None,
    Blocks,
    Holes,
}

impl Layer {
    fn new(model: Model, codec: Codec, slots: usize, hiding: Hiding) -> Layer {
        let shape = |codec: Codec| KvShape {
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
            form: KvForm::both(codec.form()),
        };
        let near = if codec.is_float() { codec } else { Codec::Int8 };
        let (far, near) = (shape(codec), shape(near));
        let count = slots.div_ceil(BLOCK_SLOTS);
        let blocks = |shape: KvShape| (0..count).map(|i| block(shape, i)).collect();
        Layer {
            blocks: blocks(far),
            // The near ones are only seen at the end, but which those are depends on the query.
            near_blocks: if near == far {
                Vec::new()
            } else {
                blocks(near)
            },
            far,
            near,
            slots,
            hiding,
        }
    }

    fn hidden(&self, i: usize) -> u32 {
        match self.hiding {
            Hiding::Blocks if 4 * i < 3 * self.blocks.len() => u32::MAX,
            Hiding::Holes => 0x5555_5555,
            _ => 0,
        }
    }

    /// What a query at the end reads.
    fn bytes(&self) -> usize {
        let near = match self.near_blocks.len() {
            0 => 0,
            n => n.min(NEAR_BLOCKS as usize + 1),
        };
        (self.blocks.len() - near) * self.far.block_bytes() + near * self.near.block_bytes()
    }
}

/// Codes of all kinds and scales of about 1/100; floats of small numbers.
fn block(shape: KvShape, seed: usize) -> Vec<u8> {
    let mut x = seed as u32 | 1;
    let mut bytes = Vec::with_capacity(shape.block_bytes());
    for form in [shape.form.k, shape.form.v] {
        for _ in 0..shape.kv_heads {
            let scales = 2 * BLOCK_SLOTS * form.groups(shape.head_dim);
            let planes = form.head_bytes(shape.head_dim) - scales;
            bytes.extend((0..planes).map(|i| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                match form.codec {
                    // An exponent that is small.
                    Codec::F16 if i % 2 == 1 => 0x30 | (x >> 24) as u8 & 0x83,
                    Codec::F32 if i % 4 == 3 => 0x3e,
                    _ => (x >> 24) as u8,
                }
            }));
            bytes.extend([0x00, 0x21].iter().cycle().take(scales));
        }
    }
    bytes
}

impl KvView for Layer {
    fn blocks(&self) -> usize {
        self.blocks.len()
    }
    fn block(&self, i: usize, query_block: u64) -> Block<'_> {
        let is_near = query_block.saturating_sub(i as u64) <= NEAR_BLOCKS;
        let (shape, bytes) = if is_near && !self.near_blocks.is_empty() {
            (self.near, &self.near_blocks[i])
        } else {
            (self.far, &self.blocks[i])
        };
        let (k, v) = bytes.split_at(shape.k_bytes());
        let coded = |form: Form, bytes| Coded { form, bytes };
        Block {
            k: coded(shape.form.k, k),
            v: coded(shape.form.v, v),
            sinks: None,
            rows: (self.slots - i * BLOCK_SLOTS).min(BLOCK_SLOTS),
            first_position: (i * BLOCK_SLOTS) as u64,
            hidden: self.hidden(i),
            segment: 0,
        }
    }
    fn spans(&self) -> usize {
        self.blocks.len().div_ceil(SPAN_BLOCKS)
    }
    fn span(&self, i: usize) -> Range<usize> {
        i * SPAN_BLOCKS..((i + 1) * SPAN_BLOCKS).min(self.blocks.len())
    }
}

/// The second percentile: the machine may be shared.
fn low(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 50]
}

/// The least of several runs.
fn best_seconds(runs: usize, mut f: impl FnMut()) -> f64 {
    let timed = |_| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    };
    (0..runs).map(timed).fold(f64::INFINITY, f64::min)
}

/// Seconds of the attention of `rows` tokens from position `first` on in one layer.
fn attend_seconds(
    exec: Exec<'_>,
    scratch: &mut AttentionScratch,
    model: Model,
    layer: &Layer,
    first: usize,
    rows: usize,
) -> f64 {
    let q: Vec<f32> = (0..rows * model.heads * model.head_dim)
        .map(|i| (i % 23) as f32 / 23.0 - 0.5)
        .collect();
    let mut out = vec![0.0; q.len()];
    let mut jobs = [AttentionJob {
        kv_heads: model.kv_heads,
        head_dim: model.head_dim,
        heads: model.heads,
        basis: Basis::of(layer.far.form),
        mean: None,
        scale: 0.125,
        window: None,
        q: &[&q],
        first_position: first as u64,
        view: layer,
        out: &mut out,
        mass: None,
        sums: None,
    }];
    let start = Instant::now();
    attend(exec, scratch, &mut jobs);
    start.elapsed().as_secs_f64()
}

/// Seconds of reading what a query at the end reads, by all threads.
fn read_seconds(pool: &ThreadPool, layer: &Layer) -> f64 {
    let query_block = (layer.slots as u64 - 1) / BLOCK_SLOTS as u64;
    let start = Instant::now();
    pool.run(layer.spans(), &|span| {
        for i in layer.span(span) {
            let block = layer.block(i, query_block);
            for bytes in [block.k.bytes, block.v.bytes] {
                let mut sums = [0u64; 16];
                for line in bytes.as_chunks::<8>().0.as_chunks::<16>().0 {
                    for (sum, word) in sums.iter_mut().zip(line) {
                        *sum = sum.wrapping_add(u64::from_le_bytes(*word));
                    }
                }
                black_box(sums);
            }
        }
    });
    start.elapsed().as_secs_f64()
}

fn decode(
    exec: Exec<'_>,
    scratch: &mut AttentionScratch,
    model: Model,
    codecs: &[Codec],
    depth: usize,
    hiding: Hiding,
) {
    let f16 = depth * model.kv_heads * model.head_dim * 4;
    let count = (BYTES_MAX / f16).clamp(1, model.layers);
    let forms: Vec<(Codec, Vec<Layer>)> = codecs
        .iter()
        .map(|codec| {
            let layers = (0..count).map(|_| Layer::new(model, *codec, depth, hiding));
            (*codec, layers.collect())
        })
        .collect();
    let mut times = vec![(Vec::new(), Vec::new()); forms.len()];
    for _ in 0..ROUNDS.max(60 / count) {
        for ((_, layers), (attend, read)) in forms.iter().zip(&mut times) {
            for layer in layers {
                read.push(read_seconds(exec.pool, layer));
            }
            for layer in layers {
                attend.push(attend_seconds(exec, scratch, model, layer, depth - 1, 1));
            }
        }
    }
    for ((codec, layers), (attend, read)) in forms.iter().zip(&mut times) {
        let bytes = layers[0].bytes() as f64;
        let (attend, read) = (low(attend), low(read));
        println!(
            "  decode {depth:5} {:10} {:8.1} us a layer {:7.2} ms in all  {:6.1} GB/s (read {:5.1})",
            codec.name(),
            1e6 * attend,
            1e3 * attend * model.layers as f64,
            bytes / attend / 1e9,
            bytes / read / 1e9,
        );
    }
}

fn prefill(
    exec: Exec<'_>,
    scratch: &mut AttentionScratch,
    model: Model,
    codecs: &[Codec],
    depth: usize,
    rows: usize,
    hiding: Hiding,
) {
    let forms: Vec<(Codec, Layer)> = codecs
        .iter()
        .map(|codec| (*codec, Layer::new(model, *codec, depth, hiding)))
        .collect();
    let mut times = vec![0.0; forms.len()];
    for first in (depth - rows..depth).step_by(PIECE) {
        let mut best = vec![f64::INFINITY; forms.len()];
        for _ in 0..ROUNDS {
            for ((_, layer), best) in forms.iter().zip(&mut best) {
                let took = attend_seconds(exec, scratch, model, layer, first, PIECE);
                *best = best.min(took);
            }
        }
        times.iter_mut().zip(&best).for_each(|(t, best)| *t += best);
    }
    // Each query sees what is before it and itself; two products of head_dim each.
    let seen = rows * (depth - rows) + rows * (rows + 1) / 2;
    let flops = 4.0 * (seen * model.heads * model.head_dim) as f64;
    for ((codec, _), took) in forms.iter().zip(&times) {
        println!(
            "  prefill {rows} at {depth:5} {:10} {:9.1} us a layer  {:6.1} GFLOPS",
            codec.name(),
            1e6 * took,
            flops / took / 1e9
        );
    }
}

fn small(backend: Backend, pool: &ThreadPool) {
    let threads = pool.threads();
    let empty = best_seconds(20, || {
        for _ in 0..1000 {
            pool.run(threads, &|_| {});
        }
    });
    println!("  empty region            {:8.2} us", 1e6 * empty / 1000.0);
    let mut gate = vec![0.5; 1536];
    let up = vec![0.25; 1536];
    let took = best_seconds(20, || {
        for _ in 0..100 {
            ops::silu_mul(backend, &mut gate, &up);
        }
    });
    println!("  silu_mul of 1536        {:8.2} us", 1e6 * took / 100.0);
    let (mut x, mut out) = (vec![0.5; 576], vec![0.5; 576]);
    let took = best_seconds(20, || {
        for _ in 0..100 {
            ops::rms_norm(backend, &x, &out, 1e-5, &mut x.clone());
            std::mem::swap(&mut x, &mut out);
        }
    });
    println!("  rms_norm of 576         {:8.2} us", 1e6 * took / 100.0);
}

/// What the words say about one kind of thing: `all`, if none is said.
fn chosen<T: Copy>(words: &[String], all: &[T], name: impl Fn(&T) -> String) -> Vec<T> {
    let said = |x: &&T| words.contains(&name(x));
    let some: Vec<T> = all.iter().filter(said).copied().collect();
    if some.is_empty() { all.to_vec() } else { some }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let asked = |codec: &Codec| words.iter().any(|word| word == codec.name());
    let codecs: Vec<Codec> = match Codec::ALL.iter().any(asked) {
        true => Codec::ALL.into_iter().filter(asked).collect(),
        false => vec![Codec::F16, Codec::Int8, Codec::Int4],
    };
    let backends: Vec<Backend> = Backend::available().collect();
    let backend = match chosen(&words, &backends, |backend| backend.name().into())[..] {
        [one] => one,
        _ => Backend::best(),
    };
    let modes = chosen(&words, &["decode", "prefill"], |mode| mode.to_string());
    let hiding = match words
        .iter()
        .find(|word| ["hidden", "holes"].contains(&&word[..]))
    {
        Some(word) if word == "hidden" => Hiding::Blocks,
        Some(_) => Hiding::Holes,
        None => Hiding::None,
    };
    println!("backend {}", backend.name());
    for threads in chosen(&words, &[1, 2], usize::to_string) {
        let pool = ThreadPool::new(threads);
        let exec = Exec {
            backend,
            pool: &pool,
        };
        println!("threads {threads}");
        small(backend, &pool);
        for model in chosen(&words, &MODELS, |model| model.name.into()) {
            let mut scratch = AttentionScratch::new(AttentionLimits {
                threads,
                jobs: 1,
                heads: model.heads,
                kv_heads: model.kv_heads,
                head_dim: model.head_dim,
                slots: 8704,
            });
            println!(" {}, scratch {} bytes", model.name, scratch.bytes());
            for depth in [1024, 2048, 8192] {
                if modes.contains(&"decode") {
                    decode(exec, &mut scratch, model, &codecs, depth, hiding);
                }
            }
            for depth in [512, 2048, 8192] {
                if modes.contains(&"prefill") {
                    prefill(exec, &mut scratch, model, &codecs, depth, 512, hiding);
                }
            }
        }
    }
}
