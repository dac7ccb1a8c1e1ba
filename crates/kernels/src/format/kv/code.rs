//! Numbers to codes and back, by the row and by the block.
//!
//! Rows are what the model computed, centred and turned by the caller. What a row becomes depends on
//! that row alone.

use super::{BLOCK_SLOTS, Codec, KvShape};
use crate::cpu::Table;
use crate::ops::simd::{Simd, simd_fn};
use half::f16;

/// Bytes of one f16.
const HALF: usize = 2;

/// The greatest finite f16.
const HALF_MAX: f32 = 65504.0;

/// Writes the keys of consecutive slots from `first_slot` on; `rows` is (slot, kv_head, dim), `k` the
/// keys of a whole block.
pub fn write_k_rows(table: Table, shape: KvShape, k: &mut [u8], first_slot: usize, rows: &[f32]) {
    let k = &mut k[..shape.k_bytes()];
    check(shape, first_slot, rows.len());
    match shape.form.k.codec {
        Codec::F16 => store_k(table, shape, k, first_slot, rows),
        Codec::F32 => store_k_exact(shape, k, first_slot, rows),
        codec => unreachable!("{codec} keys"),
    }
}

/// Writes the values of consecutive slots from `first_slot` on; `rows` is (slot, kv_head, dim), `v` the
/// values of a whole block.
pub fn write_v_rows(table: Table, shape: KvShape, v: &mut [u8], first_slot: usize, rows: &[f32]) {
    let v = &mut v[..shape.v_bytes()];
    check(shape, first_slot, rows.len());
    match shape.form.v.codec {
        Codec::F16 => store_v(table, shape, v, first_slot, rows),
        Codec::F32 => store_v_exact(shape, v, first_slot, rows),
        codec => unreachable!("{codec} values"),
    }
}

fn check(shape: KvShape, first_slot: usize, values: usize) {
    let slots = values / shape.row().max(1);
    assert_eq!(slots * shape.row(), values, "whole rows");
    assert!(
        first_slot + slots <= BLOCK_SLOTS,
        "the rows leave the block"
    );
}

/// Copies need no table: there is nothing to round.
fn store_k_exact(shape: KvShape, k: &mut [u8], first_slot: usize, rows: &[f32]) {
    let (lines, _) = k.as_chunks_mut::<{ BLOCK_SLOTS * 4 }>();
    for (i, row) in rows.chunks_exact(shape.row()).enumerate() {
        let at = (first_slot + i) * 4;
        for (line, x) in lines.iter_mut().zip(row) {
            line[at..at + 4].copy_from_slice(&x.to_le_bytes());
        }
    }
}

fn store_v_exact(shape: KvShape, v: &mut [u8], first_slot: usize, rows: &[f32]) {
    let line = shape.head_dim * 4;
    let bytes = BLOCK_SLOTS * line;
    for (i, row) in rows.chunks_exact(shape.row()).enumerate() {
        for (head, x) in row.chunks_exact(shape.head_dim).enumerate() {
            let at = head * bytes + (first_slot + i) * line;
            let (to, _) = v[at..at + line].as_chunks_mut::<4>();
            to.iter_mut()
                .zip(x)
                .for_each(|(to, x)| *to = x.to_le_bytes());
        }
    }
}

simd_fn! {
    fn store_k(shape: KvShape, k: &mut [u8], first_slot: usize, rows: &[f32])
        = scalar_store_k, simd_store_k;
}

/// To f16: nearest, ties to even, within the finite range.
fn to_half(x: f32) -> [u8; 2] {
    let x = if x > HALF_MAX { HALF_MAX } else { x };
    let x = if x < -HALF_MAX { -HALF_MAX } else { x };
    f16::from_f32_const(x).to_le_bytes()
}

fn scalar_store_k(shape: KvShape, k: &mut [u8], first_slot: usize, rows: &[f32]) {
    for (i, row) in rows.chunks_exact(shape.row()).enumerate() {
        // (kv_head, dim) is the order of both, so the row's index is the line's.
        for (line, x) in k.chunks_exact_mut(BLOCK_SLOTS * HALF).zip(row) {
            let at = (first_slot + i) * HALF;
            line[at..at + HALF].copy_from_slice(&to_half(*x));
        }
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
/// line of the block is written while it is in the nearest cache.
#[inline(always)]
fn simd_store_k<S: Simd>(s: S, shape: KvShape, k: &mut [u8], first_slot: usize, rows: &[f32]) {
    let row = shape.row();
    let slots = rows.len() / row;
    let mut tile = [[0u8; 32]; BLOCK_SLOTS];
    for dim in (0..row).step_by(16) {
        let dims = (row - dim).min(16);
        for slot in 0..slots {
            let from = &rows[slot * row + dim..slot * row + dim + dims];
            tile[slot] = half_lanes(s, &crate::ops::lanes::padded(from, 0.0));
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

simd_fn! {
    fn store_v(shape: KvShape, v: &mut [u8], first_slot: usize, rows: &[f32])
        = scalar_store_v, simd_store_v;
}

fn scalar_store_v(shape: KvShape, v: &mut [u8], first_slot: usize, rows: &[f32]) {
    let line = shape.head_dim * HALF;
    let bytes = BLOCK_SLOTS * line;
    for (i, row) in rows.chunks_exact(shape.row()).enumerate() {
        for (head, x) in row.chunks_exact(shape.head_dim).enumerate() {
            let at = head * bytes + (first_slot + i) * line;
            for (to, x) in v[at..at + line].chunks_exact_mut(HALF).zip(x) {
                to.copy_from_slice(&to_half(*x));
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
            let (to, to_tail) = v[at..at + line].as_chunks_mut::<32>();
            let (x, x_tail) = x.as_chunks::<16>();
            for (to, x) in to.iter_mut().zip(x) {
                *to = half_lanes(s, x);
            }
            let last = half_lanes(s, &crate::ops::lanes::padded(x_tail, 0.0));
            to_tail.copy_from_slice(&last[..to_tail.len()]);
        }
    }
}
