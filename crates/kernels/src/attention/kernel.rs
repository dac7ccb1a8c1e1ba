//! The inner loops of attention, over one block and one KV head, each with its scalar twin.
//!
//! Both products are of one kind: rows of f32 times a matrix of f16 or f32 that lies in memory in the
//! order it is used, each output lane a chain of fused multiply-adds along the inner index:
//!
//! ```text
//! score  (row, slot) = sum over dim   q (row, dim)  * k (dim, slot)     dim in order, from 0
//! weigh  (row, dim) += sum over slot  p (row, slot) * v (slot, dim)     slot in order, going on
//! ```
//!
//! So a row's bits depend neither on the rows beside it nor on how many were computed at once.

use super::block::{BLOCK_SLOTS, Precision};
use crate::ops::exp::{exp, exp_lanes};
use crate::ops::lanes::to_fixed;
use crate::ops::simd::{Simd, simd_fn};
use half::f16;

/// Rows of f32 at a common distance: `row(r) = values[r * stride ..]`.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
    pub count: usize,
}

simd_fn! {
    /// Scores of one block: `out` is (row, slot) with `out_stride` between rows, 32 slots written
    /// in each; `q` is (row, dim); `k` is (dim, slot), and `ahead` what will be read next.
    pub(crate) fn score(
        precision: Precision,
        q: Rows<'_>,
        dim: usize,
        k: &[u8],
        ahead: &[u8],
        out: &mut [f32],
        out_stride: usize,
    ) = scalar_score, simd_score;
}

fn scalar_score(
    precision: Precision,
    q: Rows<'_>,
    dim: usize,
    k: &[u8],
    _: &[u8],
    out: &mut [f32],
    out_stride: usize,
) {
    for r in 0..q.count {
        let q = &q.values[r * q.stride..][..dim];
        let out = &mut out[r * out_stride..][..BLOCK_SLOTS];
        for (slot, out) in out.iter_mut().enumerate() {
            let mut sum = 0.0f32;
            for (d, q) in q.iter().enumerate() {
                sum = q.mul_add(value_at(precision, k, d * BLOCK_SLOTS + slot), sum);
            }
            *out = sum;
        }
    }
}

fn value_at(precision: Precision, bytes: &[u8], index: usize) -> f32 {
    let at = &bytes[index * precision.bytes()..];
    match precision {
        Precision::F16 => f16::from_le_bytes([at[0], at[1]]).to_f32_const(),
        Precision::F32 => f32::from_le_bytes([at[0], at[1], at[2], at[3]]),
    }
}

#[inline(always)]
fn simd_score<S: Simd>(
    s: S,
    precision: Precision,
    q: Rows<'_>,
    dim: usize,
    k: &[u8],
    ahead: &[u8],
    out: &mut [f32],
    out_stride: usize,
) {
    match precision {
        Precision::F16 => {
            product::<S, false, false>(s, q, dim, k, ahead, BLOCK_SLOTS, out, out_stride);
        }
        Precision::F32 => {
            product::<S, false, true>(s, q, dim, k, ahead, BLOCK_SLOTS, out, out_stride);
        }
    }
}

simd_fn! {
    /// Adds one block's values: `out` is (row, dim) without gaps; `p` is (row, slot), of which the
    /// first `slots` are used; `v` is (slot, dim), and `ahead` what will be read next.
    pub(crate) fn weigh(
        precision: Precision,
        p: Rows<'_>,
        slots: usize,
        v: &[u8],
        ahead: &[u8],
        dim: usize,
        out: &mut [f32],
    ) = scalar_weigh, simd_weigh;
}

fn scalar_weigh(
    precision: Precision,
    p: Rows<'_>,
    slots: usize,
    v: &[u8],
    _: &[u8],
    dim: usize,
    out: &mut [f32],
) {
    for r in 0..p.count {
        let p = &p.values[r * p.stride..][..slots];
        let out = &mut out[r * dim..][..dim];
        for (d, out) in out.iter_mut().enumerate() {
            for (slot, p) in p.iter().enumerate() {
                *out = p.mul_add(value_at(precision, v, slot * dim + d), *out);
            }
        }
    }
}

#[inline(always)]
fn simd_weigh<S: Simd>(
    s: S,
    precision: Precision,
    p: Rows<'_>,
    slots: usize,
    v: &[u8],
    ahead: &[u8],
    dim: usize,
    out: &mut [f32],
) {
    match precision {
        Precision::F16 => product::<S, true, false>(s, p, slots, v, ahead, dim, out, dim),
        Precision::F32 => product::<S, true, true>(s, p, slots, v, ahead, dim, out, dim),
    }
}

/// `out (row, column) = [out +] sum over i  a (row, i) * b (i, column)`, `b` of f16 (`WIDE`: f32) with
/// `width` columns and no gaps.
///
/// A head's part of a block is about one page, where the hardware's prefetcher stops, and the next
/// one is elsewhere: so while `b` is read, the same lines of `ahead` are asked for.
#[inline(always)]
fn product<S: Simd, const ADD: bool, const WIDE: bool>(
    s: S,
    a: Rows<'_>,
    inner: usize,
    b: &[u8],
    ahead: &[u8],
    width: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    if a.count == 0 {
        return;
    }
    // Every address below is within these: checked once here, not in the loop.
    assert!((a.count - 1) * a.stride + inner <= a.values.len());
    let precision = if WIDE { Precision::F32 } else { Precision::F16 };
    let size = precision.bytes();
    assert!(size * inner * width <= b.len());
    assert!((a.count - 1) * out_stride + width <= out.len());

    let whole = width / 16 * 16;
    let mut column = 0;
    while column < whole {
        let cols = if S::COLS == 2 && column + 32 <= whole {
            2
        } else {
            1
        };
        let mut row = 0;
        while row < a.count {
            let rows = (a.count - row).min(S::ROWS);
            // SAFETY: rows `row..row + rows` are below `a.count`, columns `column..column + 16
            // * cols` below `width`; with the assertions above every address of the tile is
            // inside its slice.
            unsafe {
                let a = (a.values.as_ptr().add(row * a.stride), a.stride);
                // Once for all rows; without anything ahead, what is being read anyway.
                let ahead = if row == 0 && ahead.len() == b.len() {
                    ahead.as_ptr().wrapping_add(size * column)
                } else {
                    b.as_ptr().add(size * column)
                };
                let b = (b.as_ptr().add(size * column), size * width);
                let out = (out.as_mut_ptr().add(row * out_stride + column), out_stride);
                tiles::<S, ADD, WIDE>(s, rows, cols, inner, a, b, ahead, out);
            }
            row += rows;
        }
        column += 16 * cols;
    }
    // Head sizes that are not whole vectors: the same chain, one column at a time.
    for r in 0..a.count {
        for column in whole..width {
            let mut sum = if ADD {
                out[r * out_stride + column]
            } else {
                0.0
            };
            for i in 0..inner {
                sum = a.values[r * a.stride + i]
                    .mul_add(value_at(precision, b, i * width + column), sum);
            }
            out[r * out_stride + column] = sum;
        }
    }
}

/// The register tile of the right size.
///
/// # Safety
/// - As for [`tile`], with `rows` and `cols` for `R` and `C`; `rows <= S::ROWS`, `cols <= S::COLS`.
#[inline(always)]
unsafe fn tiles<S: Simd, const ADD: bool, const WIDE: bool>(
    s: S,
    rows: usize,
    cols: usize,
    inner: usize,
    a: (*const f32, usize),
    b: (*const u8, usize),
    ahead: *const u8,
    out: (*mut f32, usize),
) {
    macro_rules! pick {
        ($($r:literal)*) => {
            match (rows, cols) {
                $(
                    ($r, 2) if S::COLS >= 2 && $r <= S::ROWS => {
                        // SAFETY: the caller's promise.
                        unsafe { tile::<S, $r, 2, ADD, WIDE>(s, inner, a, b, ahead, out) }
                    }
                    ($r, 1) if $r <= S::ROWS => {
                        // SAFETY: the caller's promise.
                        unsafe { tile::<S, $r, 1, ADD, WIDE>(s, inner, a, b, ahead, out) }
                    }
                )*
                _ => unreachable!("no tile of {rows} rows and {cols} columns"),
            }
        };
    }
    pick!(1 2 3 4 5 6 7 8 9 10 11 12);
}

/// `R` rows by `C` vectors of [`product`], accumulated in registers. `a`, `b` and `out` are a
/// pointer and the distance of rows: in values, for `b` in bytes.
///
/// # Safety
/// - `a` has `R` rows of `inner` values; `b` has `inner` rows of `32 * C` bytes (`WIDE`: `64 * C`); `out` has `R` rows
///   of `16 * C` values that nothing else refers to.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const C: usize, const ADD: bool, const WIDE: bool>(
    s: S,
    inner: usize,
    a: (*const f32, usize),
    b: (*const u8, usize),
    ahead: *const u8,
    out: (*mut f32, usize),
) {
    let mut acc = [[s.splat(0.0); C]; R];
    if ADD {
        for r in 0..R {
            for c in 0..C {
                // SAFETY: row `r` of `out` has vector `c`.
                acc[r][c] = s.load(unsafe { &*out.0.add(r * out.1 + 16 * c).cast() });
            }
        }
    }
    for i in 0..inner {
        s.prefetch(ahead.wrapping_add(i * b.1));
        let mut line = [s.splat(0.0); C];
        for c in 0..C {
            // SAFETY: row `i` of `b` has vector `c`.
            line[c] = unsafe {
                if WIDE {
                    s.load(
                        &b.0.add(i * b.1 + 64 * c)
                            .cast::<[f32; 16]>()
                            .read_unaligned(),
                    )
                } else {
                    s.load_half(&*b.0.add(i * b.1 + 32 * c).cast())
                }
            };
        }
        for r in 0..R {
            // SAFETY: row `r` of `a` has value `i`.
            let x = s.splat(unsafe { *a.0.add(r * a.1 + i) });
            for c in 0..C {
                acc[r][c] = s.fma(x, line[c], acc[r][c]);
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            // SAFETY: row `r` of `out` has vector `c`.
            s.store(acc[r][c], unsafe {
                &mut *out.0.add(r * out.1 + 16 * c).cast()
            });
        }
    }
}

simd_fn! {
    /// Soft cap of scores: `cap * tanh(x / cap)`, with `tanh y = 1 - 2 / (1 + e^2y)`. Its absolute
    /// error is within `cap * 2^-22`.
    pub(crate) fn soft_cap(x: &mut [f32], cap: f32) = scalar_soft_cap, simd_soft_cap;
}

fn scalar_soft_cap(x: &mut [f32], cap: f32) {
    let by = 2.0 / cap;
    for x in x {
        *x = (-2.0 / (1.0 + exp(*x * by))).mul_add(cap, cap);
    }
}

#[inline(always)]
fn simd_soft_cap<S: Simd>(s: S, x: &mut [f32], cap: f32) {
    let (by, cap) = (s.splat(2.0 / cap), s.splat(cap));
    let (whole, tail) = x.as_chunks_mut::<16>();
    assert!(tail.is_empty(), "scores come by the block");
    for x in whole {
        let e = exp_lanes(s, s.mul(s.load(x), by));
        let t = s.div(s.splat(-2.0), s.add(s.splat(1.0), e));
        s.store(s.fma(t, cap, cap), x);
    }
}

simd_fn! {
    /// Attention mass of one query and sixteen slots: `a` is the mean over the rows of
    /// `p (row, slot) * inverse (row)`; `a` and `a^2` are added to the counters in fixed point.
    /// Rows of `p` are at least sixteen slots.
    pub(crate) fn mass_lanes(
        p: Rows<'_>,
        inverse: &[f32],
        sum: &mut [u64; 16],
        sum_sq: &mut [u64; 16],
    ) = scalar_mass_lanes, simd_mass_lanes;
}

fn scalar_mass_lanes(p: Rows<'_>, inverse: &[f32], sum: &mut [u64; 16], sum_sq: &mut [u64; 16]) {
    for slot in 0..16 {
        let mut a = 0.0f32;
        for r in 0..p.count {
            a = p.values[r * p.stride + slot].mul_add(inverse[r], a);
        }
        a *= 1.0 / p.count as f32;
        sum[slot] = sum[slot].wrapping_add(to_fixed(a));
        sum_sq[slot] = sum_sq[slot].wrapping_add(to_fixed(a * a));
    }
}

#[inline(always)]
fn simd_mass_lanes<S: Simd>(
    s: S,
    p: Rows<'_>,
    inverse: &[f32],
    sum: &mut [u64; 16],
    sum_sq: &mut [u64; 16],
) {
    let mut a = s.splat(0.0);
    for r in 0..p.count {
        if let Some(p) = p.values[r * p.stride..].first_chunk::<16>() {
            a = s.fma(s.load(p), s.splat(inverse[r]), a);
        }
    }
    let a = s.mul(a, s.splat(1.0 / p.count as f32));
    s.add_fixed(a, sum);
    s.add_fixed(s.mul(a, a), sum_sq);
}
