//! Attention sinks: the first tokens of a sequence, exact, as rows of f16 in f32 products.
//!
//! They replace the first slots of their block, whatever its form: their scores overwrite those of the
//! block's own keys, and the block's own values of these slots have no weight.

use super::piece::{Head, Rows, half_at};
use crate::LANES;
use crate::ops::lanes::fold;
use crate::simd::{Simd, simd_fn};

simd_fn! {
    /// Scores of the sinks of a block: `bias (row)` plus sixteen lanes of fused multiply-adds and their
    /// tree. `out` is (row, slot) with `stride` between rows.
    pub(super) fn score(q: Rows<'_>, bias: &[f32], k: &Head<'_>, out: &mut [f32], stride: usize)
        = scalar_score, simd_score;
}

fn scalar_score(q: Rows<'_>, bias: &[f32], k: &Head<'_>, out: &mut [f32], stride: usize) {
    for (r, slot) in (0..q.count).flat_map(|r| (0..k.sink_rows()).map(move |slot| (r, slot))) {
        let mut lanes = [0.0f32; LANES];
        for d in 0..k.dim.next_multiple_of(LANES) {
            let (q, k) = match d < k.dim {
                true => (q.values[r * q.stride + d], half_at(k.sink(slot), d)),
                false => (0.0, 0.0),
            };
            lanes[d % LANES] = q.mul_add(k, lanes[d % LANES]);
        }
        out[r * stride + slot] = bias[r] + fold(lanes);
    }
}

#[inline(always)]
fn simd_score<S: Simd>(
    s: S,
    q: Rows<'_>,
    bias: &[f32],
    k: &Head<'_>,
    out: &mut [f32],
    stride: usize,
) {
    for slot in 0..k.sink_rows() {
        for r in 0..q.count {
            let q = &q.values[r * q.stride..][..k.dim];
            let mut acc = s.splat(0.0);
            for (q, k) in q.chunks(LANES).zip(k.sink(slot).chunks(2 * LANES)) {
                acc = s.fma(load_padded(s, q), load_half_padded(s, k), acc);
            }
            out[r * stride + slot] = bias[r] + s.sum(acc);
        }
    }
}

simd_fn! {
    /// Adds the values of the first `slots` sinks, weighted by `p` (row, slot), to `out` (row, dim): a
    /// chain of fused multiply-adds over slots, in order.
    pub(super) fn weigh(p: Rows<'_>, v: &Head<'_>, slots: usize, out: &mut [f32])
        = scalar_weigh, simd_weigh;
}

fn scalar_weigh(p: Rows<'_>, v: &Head<'_>, slots: usize, out: &mut [f32]) {
    for r in 0..p.count {
        for d in 0..v.dim {
            let out = &mut out[r * v.dim + d];
            for slot in 0..slots.min(v.sink_rows()) {
                *out = p.values[r * p.stride + slot].mul_add(half_at(v.sink(slot), d), *out);
            }
        }
    }
}

#[inline(always)]
fn simd_weigh<S: Simd>(s: S, p: Rows<'_>, v: &Head<'_>, slots: usize, out: &mut [f32]) {
    for slot in 0..slots.min(v.sink_rows()) {
        for (r, out) in out.chunks_exact_mut(v.dim).enumerate().take(p.count) {
            let p = s.splat(p.values[r * p.stride + slot]);
            for (out, v) in out.chunks_mut(LANES).zip(v.sink(slot).chunks(2 * LANES)) {
                let mut sum = [0.0; LANES];
                s.store(
                    s.fma(p, load_half_padded(s, v), load_padded(s, out)),
                    &mut sum,
                );
                out.copy_from_slice(&sum[..out.len()]);
            }
        }
    }
}

/// Sixteen numbers, or as many as there are and zeros.
#[inline(always)]
fn load_padded<S: Simd>(s: S, x: &[f32]) -> S::F {
    match x.first_chunk() {
        Some(x) => s.load(x),
        None => s.load(&crate::ops::lanes::padded(x, 0.0)),
    }
}

/// Sixteen f16, or as many as there are and zeros.
#[inline(always)]
fn load_half_padded<S: Simd>(s: S, x: &[u8]) -> S::F {
    match x.first_chunk() {
        Some(x) => s.load_half(x),
        None => {
            let mut padded = [0; 2 * LANES];
            padded[..x.len()].copy_from_slice(x);
            s.load_half(&padded)
        }
    }
}
