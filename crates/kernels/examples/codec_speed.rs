//! How fast keys and values are coded here, on one thread: a row written, a block recoded, heads
//! turned.
//!
//! `cargo run --release -p haversack-kernels --example codec_speed [-- TABLE]`

use haversack_kernels::cpu::{Backend, BackendKind};
use haversack_kernels::format::kv::code::*;
use haversack_kernels::format::kv::{BLOCK_SLOTS, Codec, Form, KvForm, KvShape, Rotation};
use haversack_kernels::ops;
use std::hint::black_box;
use std::time::Instant;

/// SmolLM2-135M.
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;

fn shape(form: Form) -> KvShape {
    KvShape {
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        form: KvForm::both(form),
    }
}

/// Microseconds of one call: the least of many bunches, because the machine may be shared.
fn best_us(mut f: impl FnMut()) -> f64 {
    const BUNCH: u32 = 64;
    (0..200)
        .map(|_| {
            let start = Instant::now();
            (0..BUNCH).for_each(|_| f());
            start.elapsed().as_secs_f64() * 1e6 / f64::from(BUNCH)
        })
        .fold(f64::INFINITY, f64::min)
}

/// Sums of uniform numbers: near enough to a bell.
fn rows(slots: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..slots * KV_HEADS * HEAD_DIM)
        .map(|_| next() + next() + next() + next())
        .collect()
}

fn main() {
    let backend = match std::env::args().nth(1) {
        None => Backend::best(),
        Some(name) => BackendKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .and_then(Backend::new)
            .unwrap_or_else(|| {
                eprintln!("no backend {name} here");
                std::process::exit(2)
            }),
    };
    println!(
        "backend {}, {KV_HEADS} heads x {HEAD_DIM}, keys and values, µs",
        backend.name()
    );
    let rows = rows(BLOCK_SLOTS);
    let near = shape(Codec::Int8.form());
    let (mut k, mut v) = (vec![0; near.k_bytes()], vec![0; near.v_bytes()]);
    write_k_rows(backend, near, &mut k, 0, &rows);
    write_v_rows(backend, near, &mut v, 0, &rows);

    println!("codec        row written   block written   block from int8      k      v");
    for codec in Codec::ALL {
        let shape = shape(codec.form());
        let (mut to_k, mut to_v) = (vec![0; shape.k_bytes()], vec![0; shape.v_bytes()]);
        let row = best_us(|| {
            let row = black_box(&rows[..shape.row()]);
            write_k_rows(backend, shape, &mut to_k, 5, row);
            write_v_rows(backend, shape, &mut to_v, 5, row);
        });
        let block = best_us(|| {
            write_k_rows(backend, shape, &mut to_k, 0, black_box(&rows));
            write_v_rows(backend, shape, &mut to_v, 0, black_box(&rows));
        });
        let (from, to) = (near.form.k, shape.form.k);
        let (from_bytes, to_bytes) = (from.head_bytes(HEAD_DIM), to.head_bytes(HEAD_DIM));
        let recode_k = best_us(|| {
            let heads = to_k.chunks_exact_mut(to_bytes);
            for (src, dst) in black_box(&k).chunks_exact(from_bytes).zip(heads) {
                recode_k_head(backend, HEAD_DIM, from, src, to, dst);
            }
        });
        let recode_v = best_us(|| {
            let heads = to_v.chunks_exact_mut(to_bytes);
            for (src, dst) in black_box(&v).chunks_exact(from_bytes).zip(heads) {
                recode_v_head(backend, HEAD_DIM, from, src, to, dst);
            }
        });
        println!(
            "{:<12} {row:>11.2} {block:>15.1} {:>17.1} {recode_k:>6.1} {recode_v:>6.1}",
            codec.name(),
            recode_k + recode_v
        );
    }
    for dim in [64, 80, 128, 256] {
        let head = vec![0.5; dim];
        let us = |by| {
            let mut head = head.clone();
            best_us(|| ops::rotate_head(backend, by, black_box(&mut head)))
        };
        let (hadamard, pairs) = (us(Rotation::Hadamard), us(Rotation::Pairs));
        println!("a head of {dim:>3} turned: hadamard {hadamard:.3}, pairs {pairs:.3}");
    }
}
