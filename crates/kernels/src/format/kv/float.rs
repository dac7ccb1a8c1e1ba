//! Float codecs: `f16` and `f32` keys and values in blocks, and the sinks.
//!
//! To f16 means nearest, ties to even, within the finite range; NaN stays NaN. To
//! f32 is a copy.

use super::encode::{Coder, HALF_MAX, to_half};
use super::{BLOCK_SLOTS, KvShape, Side};
use crate::cpu::Backend;
use crate::ops::lanes::padded;
use crate::simd::{Simd, simd_fn};

/// Bytes of one f16.
const HALF: usize = 2;
/// Bytes of one f32.
const WORD: usize = 4;

/// Rows of f16 or f32, number by number. Needs no backend.
pub(super) fn store_each(
    side: Side,
    half: bool,
    shape: KvShape,
    block: &mut [u8],
    first_slot: usize,
    rows: &[f32],
) {
    let (dim, width) = (shape.head_dim, if half { HALF } else { WORD });
    for (slot, row) in (first_slot..).zip(rows.chunks_exact(shape.row())) {
        let heads = block.chunks_exact_mut(BLOCK_SLOTS * dim * width);
        for (head, x) in heads.zip(row.chunks_exact(dim)) {
            put(side, half, dim, head, slot, 0, x);
        }
    }
}

simd_fn! {
    /// Rows of f16.
    pub(super) fn store(side: Side, shape: KvShape, block: &mut [u8], first_slot: usize, rows: &[f32])
        = scalar_store, simd_store;
}

fn scalar_store(side: Side, shape: KvShape, block: &mut [u8], first_slot: usize, rows: &[f32]) {
    store_each(side, true, shape, block, first_slot, rows);
}

#[inline(always)]
fn simd_store<S: Simd>(
    s: S,
    side: Side,
    shape: KvShape,
    block: &mut [u8],
    first_slot: usize,
    rows: &[f32],
) {
    match side {
        Side::K => simd_store_k(s, shape, block, first_slot, rows),
        Side::V => simd_store_v(s, shape, block, first_slot, rows),
    }
}

/// Sixteen values clamped and converted.
#[inline(always)]
fn half_lanes<S: Simd>(s: S, x: &[f32; 16]) -> [u8; 32] {
    let (low, high) = (s.splat(-HALF_MAX), s.splat(HALF_MAX));
    let x = s.load(x);
    let x = s.if_less(high, x, high, x);
    let x = s.if_less(x, low, low, x);
    let mut out = [0; 32];
    s.store_half(x, &mut out);
    out
}

/// Sixteen dimensions of up to 32 slots at a time: the source is read once and in order, and a
/// line of the block is written while it is in L1.
#[inline(always)]
fn simd_store_k<S: Simd>(s: S, shape: KvShape, k: &mut [u8], first_slot: usize, rows: &[f32]) {
    let row = shape.row();
    let slots = rows.len() / row;
    let mut tile = [[0u8; 32]; BLOCK_SLOTS];
    for dim in (0..row).step_by(16) {
        let dims = (row - dim).min(16);
        for slot in 0..slots {
            let from = &rows[slot * row + dim..slot * row + dim + dims];
            tile[slot] = half_lanes(s, &padded(from, 0.0));
        }
        for d in 0..dims {
            let at = ((dim + d) * BLOCK_SLOTS + first_slot) * HALF;
            let line = &mut k[at..at + slots * HALF];
            let (line, _) = line.as_chunks_mut::<HALF>();
            for (to, from) in line.iter_mut().zip(&tile) {
                *to = [from[2 * d], from[2 * d + 1]];
            }
        }
    }
}

#[inline(always)]
fn simd_store_v<S: Simd>(s: S, shape: KvShape, v: &mut [u8], first_slot: usize, rows: &[f32]) {
    let line = shape.head_dim * HALF;
    let bytes = BLOCK_SLOTS * line;
    for (i, row) in rows.chunks_exact(shape.row()).enumerate() {
        for (head, x) in row.chunks_exact(shape.head_dim).enumerate() {
            let at = head * bytes + (first_slot + i) * line;
            simd_narrow(s, x, &mut v[at..at + line]);
        }
    }
}

/// One number of a head.
#[inline(always)]
fn at(side: Side, head_dim: usize, slot: usize, dim: usize) -> usize {
    match side {
        Side::K => dim * BLOCK_SLOTS + slot,
        Side::V => slot * head_dim + dim,
    }
}

/// Some dimensions of one slot of one head.
#[inline(always)]
pub(super) fn put(
    side: Side,
    half: bool,
    head_dim: usize,
    head: &mut [u8],
    slot: usize,
    first: usize,
    x: &[f32],
) {
    for (i, x) in x.iter().enumerate() {
        let at = at(side, head_dim, slot, first + i);
        if half {
            head[at * HALF..][..HALF].copy_from_slice(&to_half(*x));
        } else {
            head[at * WORD..][..WORD].copy_from_slice(&x.to_le_bytes());
        }
    }
}

/// Some dimensions of one slot of one head, read.
#[inline(always)]
pub(super) fn get<C: Coder>(
    c: C,
    side: Side,
    half: bool,
    head_dim: usize,
    head: &[u8],
    slot: usize,
    first: usize,
    out: &mut [f32],
) {
    if half && side == Side::V {
        // They lie side by side.
        let x = &head[at(side, head_dim, slot, first) * HALF..][..out.len() * HALF];
        for (out, x) in out.chunks_mut(32).zip(x.chunks(32 * HALF)) {
            let mut bytes = [0; 32 * HALF];
            bytes[..x.len()].copy_from_slice(x);
            out.copy_from_slice(&c.widen(&bytes)[..out.len()]);
        }
        return;
    }
    let (words, _) = head.as_chunks::<WORD>();
    for (dim, out) in (first..).zip(out) {
        let at = at(side, head_dim, slot, dim);
        *out = match half {
            true => c.half_at(head, at),
            false => f32::from_le_bytes(words[at]),
        };
    }
}

/// Bytes of one side of a layer's sinks.
pub const fn sink_bytes(kv_heads: usize, head_dim: usize, slots: usize) -> usize {
    kv_heads * head_dim * slots * HALF
}

/// Writes one row of one side of the sinks. `row` is (kv_head, dim); `sinks` is f16, (kv_head, slot,
/// dim) with `slots` slots.
pub fn write_sink_row(
    backend: Backend,
    head_dim: usize,
    slots: usize,
    slot: usize,
    row: &[f32],
    sinks: &mut [u8],
) {
    assert!(slot < slots, "no such sink");
    let heads = row.len() / head_dim;
    assert_eq!(heads * head_dim, row.len(), "whole heads");
    let sinks = &mut sinks[..sink_bytes(heads, head_dim, slots)];
    let line = head_dim * HALF;
    for (head, x) in sinks
        .chunks_exact_mut(slots * line)
        .zip(row.chunks_exact(head_dim))
    {
        narrow(backend, x, &mut head[slot * line..][..line]);
    }
}

simd_fn! {
    fn narrow(x: &[f32], to: &mut [u8]) = scalar_narrow, simd_narrow;
}

fn scalar_narrow(x: &[f32], to: &mut [u8]) {
    let (to, _) = to.as_chunks_mut::<HALF>();
    for (to, x) in to.iter_mut().zip(x) {
        *to = to_half(*x);
    }
}

/// A row to f16, in order.
#[inline(always)]
fn simd_narrow<S: Simd>(s: S, x: &[f32], to: &mut [u8]) {
    let (to, to_tail) = to.as_chunks_mut::<32>();
    let (x, x_tail) = x.as_chunks::<16>();
    for (to, x) in to.iter_mut().zip(x) {
        *to = half_lanes(s, x);
    }
    let last = half_lanes(s, &padded(x_tail, 0.0));
    to_tail.copy_from_slice(&last[..to_tail.len()]);
}
