//! How fast the matrix product is here: one row in GB/s of packed weights (what decoding needs),
//! many rows in GOPS (what prefill needs). Each number is the best of several repetitions, because
//! machines are shared; every type and shape is timed in turn, round after round.
//!
//! `cargo run --release -p haversack-kernels --example matmul_speed [-- TABLE [ROWS]]`

use std::time::Instant;

use haversack_kernels::Exec;
use haversack_kernels::cpu::{Backend, BackendKind};
use haversack_kernels::format::WeightType::{self, *};
use haversack_kernels::format::packed::{packed_bytes, strip_bytes};
use haversack_kernels::matmul::{
    Int8Rows, MatmulInput, Matrix, MatrixLayout, MatrixProduct, matmul,
};
use haversack_kernels::threads::ThreadPool;

const TYPES: [WeightType; 5] = [Q4_1, Q4_0, Q4_K, Q6_K, Q8_0];
/// (rows, cols): SmolLM2's feed-forward and output, and a 1B model's feed-forward. 576 columns are
/// no whole superblocks: K types take 512 instead.
const SHAPES: [(usize, usize); 4] = [(1536, 576), (576, 1536), (49152, 576), (8192, 2048)];
const ROUNDS: usize = 7;
/// A matrix is repeated in memory up to this size, so that one row reads what is not in L2.
const FOOTPRINT: usize = 64 << 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let backend = match args.first().map(String::as_str) {
        None | Some("best") => Backend::best(),
        Some(name) => BackendKind::ALL
            .into_iter()
            .find(|kind| kind.name().contains(name))
            .and_then(Backend::new)
            .expect("no such backend on this CPU"),
    };
    let many: usize = args
        .get(1)
        .map_or(128, |n| n.parse().expect("ROWS is a number"));
    println!(
        "backend {}; plain: a sum over the same bytes on 1 thread",
        backend.name()
    );
    println!("                      | 1 row, GB/s                | {many} rows, GOPS");
    println!("type      rows   cols |    plain  1 thread         2 |  1 thread         2");
    for ty in TYPES {
        for (rows, cols) in SHAPES {
            let cols = cols / ty.block_len() * ty.block_len();
            let speed = measure(backend, ty, rows, cols, many);
            println!(
                "{:8} {rows:5} {cols:6} | {:8.1} {:9.1} {:9.1} | {:9.0} {:9.0}",
                ty.name(),
                speed[4],
                speed[0],
                speed[1],
                speed[2],
                speed[3]
            );
        }
    }
}

/// What one row is measured against: seconds of a plain sum over the same bytes, on 1 thread.
fn read_seconds(bytes: &[u8]) -> f64 {
    let start = Instant::now();
    let mut sums = [0u64; 8];
    for line in bytes.as_chunks::<64>().0 {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    std::hint::black_box(sums);
    start.elapsed().as_secs_f64()
}

/// `[one row on 1 thread, on 2 (GB/s), many rows on 1 thread, on 2 (GOPS), plain sum (GB/s)]`
fn measure(backend: Backend, ty: WeightType, rows: usize, cols: usize, many: usize) -> [f64; 5] {
    let bytes = packed_bytes(ty, rows, cols);
    let copies = (FOOTPRINT / bytes).clamp(1, 100);
    let mut weights: Vec<u8> = (0..copies * bytes).map(|i| ((i * 31) >> 3) as u8).collect();
    // Scales of a packed strip are f16 here and there: keep every byte pair below infinity.
    for pair in weights.chunks_exact_mut(2) {
        pair[1] &= 0xBB;
    }
    let pools = [ThreadPool::new(1), ThreadPool::new(2)];
    let mut best = [0f64; 5];
    for n in [1, many] {
        let x: Vec<f32> = (0..n * cols).map(|i| (i % 17) as f32 - 8.0).collect();
        let mut int8 = Int8Rows::default();
        let pool = &pools[0];
        int8.quantise(Exec { backend, pool }, &x, n, cols);
        let mut out = vec![0.0; n * rows];
        for _ in 0..ROUNDS {
            if n == 1 {
                let speed = weights.len() as f64 / read_seconds(&weights) / 1e9;
                best[4] = best[4].max(speed);
            }
            for (p, pool) in pools.iter().enumerate() {
                let exec = Exec { backend, pool };
                let input = MatmulInput {
                    rows: n,
                    cols,
                    x: &x,
                    int8: Some(&int8),
                };
                let calls = if n == 1 { copies } else { copies.min(2) };
                let start = Instant::now();
                for copy in 0..calls {
                    let w = Matrix {
                        ty,
                        rows,
                        cols,
                        layout: MatrixLayout::Packed,
                        bytes: &weights[copy * bytes..][..bytes],
                    };
                    matmul(exec, input, &mut [MatrixProduct { w, out: &mut out }]);
                }
                let seconds = start.elapsed().as_secs_f64();
                let (slot, work) = match n {
                    1 => (p, (calls * bytes) as f64),
                    _ => (2 + p, (calls * 2 * n * rows * cols) as f64),
                };
                best[slot] = best[slot].max(work / seconds / 1e9);
            }
        }
        assert!(strip_bytes(ty, cols) > 0 && out.iter().all(|v| !v.is_nan()));
    }
    best
}
