//! How fast attention and the pool are here: decode at depth in microseconds and GB/s of keys and
//! values read, prefill in GFLOPS, an empty region in microseconds.
//!
//! `cargo run --release -p haversack-kernels --example attention_speed [-- TABLE]`

use haversack_kernels::attention::*;
use haversack_kernels::cpu::{Kind, Table};
use haversack_kernels::threads::Pool;
use haversack_kernels::{Exec, ops};
use std::time::Instant;

/// SmolLM2-135M.
const HEADS: usize = 9;
const SHAPE: KvShape = KvShape {
    kv_heads: 3,
    head_dim: 64,
    precision: Precision::F16,
};
/// Layers whose blocks are walked in turn, so that decode reads memory and not a cache.
const LAYERS: usize = 30;

struct Layer {
    bytes: Vec<u8>,
    slots: usize,
}

impl KvView for Layer {
    fn blocks(&self) -> usize {
        self.slots.div_ceil(BLOCK_SLOTS)
    }
    fn block(&self, i: usize) -> Block<'_> {
        let block = &self.bytes[i * SHAPE.block_bytes()..][..SHAPE.block_bytes()];
        Block {
            k: &block[..SHAPE.k_bytes()],
            v: &block[SHAPE.k_bytes()..],
            rows: (self.slots - i * BLOCK_SLOTS).min(BLOCK_SLOTS),
            first_position: (i * BLOCK_SLOTS) as u64,
        }
    }
}

fn layer(slots: usize) -> Layer {
    let blocks = slots.div_ceil(BLOCK_SLOTS);
    let mut bytes = vec![0; blocks * SHAPE.block_bytes()];
    let row: Vec<f32> = (0..SHAPE.row())
        .map(|i| (i % 17) as f32 / 17.0 - 0.5)
        .collect();
    let rows: Vec<f32> = row.repeat(BLOCK_SLOTS);
    for block in bytes.chunks_exact_mut(SHAPE.block_bytes()) {
        let (k, v) = block.split_at_mut(SHAPE.k_bytes());
        write_k_rows(Table::best(), SHAPE, k, 0, &rows);
        write_v_rows(Table::best(), SHAPE, v, 0, &rows);
    }
    Layer { bytes, slots }
}

/// The least of several runs: the machine may be shared.
fn best_seconds(runs: usize, mut f: impl FnMut()) -> f64 {
    (0..runs)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

/// Seconds of the attention of the last `rows` tokens in one layer: the second percentile over all
/// layers and runs, each layer's blocks out of the nearer caches since its last turn.
fn layer_seconds(
    exec: Exec<'_>,
    scratch: &mut Scratch,
    layers: &[Layer],
    rows: usize,
    mass: bool,
) -> f64 {
    let q = vec![0.1; rows * HEADS * SHAPE.head_dim];
    let mut out = vec![0.0; q.len()];
    let slots = layers[0].blocks() * BLOCK_SLOTS * SHAPE.kv_heads;
    let (mut sum, mut sum_sq) = (vec![0; slots], vec![0; slots]);
    let mut times = Vec::new();
    for layer in layers.iter().cycle().take(20 * layers.len()) {
        let mass = mass.then_some(Mass {
            sum: &mut sum,
            sum_sq: &mut sum_sq,
        });
        let mut jobs = [Attend {
            shape: SHAPE,
            heads: HEADS,
            scale: 0.125,
            softcap: None,
            window: None,
            q: &q,
            first_position: (layer.slots - rows) as u64,
            view: layer,
            out: &mut out,
            mass,
        }];
        let start = Instant::now();
        attend(exec, scratch, &mut jobs);
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 50]
}

fn main() {
    let wanted = std::env::args().nth(1);
    let table = Kind::ALL
        .into_iter()
        .find(|k| Some(k.name()) == wanted.as_deref())
        .and_then(Table::new)
        .unwrap_or(Table::best());
    println!("table {}", table.name());
    for threads in [1, 2] {
        let pool = Pool::new(threads);
        let exec = Exec { table, pool: &pool };
        let mut scratch = Scratch::new(Need {
            threads,
            jobs: 1,
            heads: HEADS,
            kv_heads: SHAPE.kv_heads,
            head_dim: SHAPE.head_dim,
            slots: 8192,
        });
        println!("threads {threads}, scratch {} bytes", scratch.bytes());

        let empty = best_seconds(20, || {
            for _ in 0..1000 {
                pool.run(threads, &|_| {});
            }
        });
        println!("  empty region            {:8.2} us", 1e6 * empty / 1000.0);

        for depth in [512, 2048, 8000] {
            let layers: Vec<Layer> = (0..LAYERS).map(|_| layer(depth)).collect();
            for mass in [false, true] {
                let took = layer_seconds(exec, &mut scratch, &layers, 1, mass);
                let bytes = layers[0].bytes.len();
                println!(
                    "  decode depth {depth:5}{}  {:8.1} us a layer  {:6.1} GB/s",
                    if mass { " mass" } else { "     " },
                    1e6 * took,
                    bytes as f64 / took / 1e9
                );
            }
        }

        for (depth, rows) in [(512, 512), (8000, 512)] {
            let layers = [layer(depth)];
            let took = layer_seconds(exec, &mut scratch, &layers, rows, false);
            // Each query sees what is before it and itself; two products of head_dim each.
            let seen = rows * (depth - rows) + rows * (rows + 1) / 2;
            let flops = 4.0 * (seen * HEADS * SHAPE.head_dim) as f64;
            println!(
                "  prefill {rows} at {depth:5}    {:8.1} us a layer  {:6.1} GFLOPS",
                1e6 * took,
                flops / took / 1e9
            );
        }

        let mut gate = vec![0.5; 1536];
        let up = vec![0.25; 1536];
        let took = best_seconds(20, || {
            for _ in 0..100 {
                ops::silu_mul(table, &mut gate, &up);
            }
        });
        println!("  silu_mul of 1536        {:8.2} us", 1e6 * took / 100.0);
        let (mut x, mut out) = (vec![0.5; 576], vec![0.5; 576]);
        let took = best_seconds(20, || {
            for _ in 0..100 {
                ops::rms_norm(table, &x, &out, 1e-5, &mut x.clone());
                std::mem::swap(&mut x, &mut out);
            }
        });
        println!("  rms_norm of 576         {:8.2} us", 1e6 * took / 100.0);
    }
}
