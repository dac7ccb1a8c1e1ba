//! The inner loops of attention, over one block and one KV head, each with its scalar twin.
//!
//! Both products are of one kind: rows of f32 times a matrix of f16 (or f32) that lies in memory in the
//! order it is used, each output lane a chain of fused multiply-adds along the inner index:
//!
//! ```text
//! score  (row, slot) = sum over dim   q (row, dim)  * k (dim, slot)     dim in order, from 0
//! weigh  (row, dim)  = sum over slot  p (row, slot) * v (slot, dim)     slot in order, from 0
//! ```
//!
//! f16 is widened on its way into the registers, again for every dozen rows. Widening a block or a
//! span into scratch once for all rows of a tile was tried and is slower: the products gain less
//! than the extra pass over memory costs.
//!
//! So a row's bits depend neither on the rows beside it nor on how many were computed at once.

use super::BLOCK_SLOTS;
use crate::format::kv::Codec;
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

/// A piece of the right-hand matrix: `inner` lines without gaps, which the values of the rows from
/// `at` on are multiplied with.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    pub lines: &'a [u8],
    /// Lines of the same shape that will be read after these, or nothing. A head's part of a
    /// block is about one page, where the hardware's prefetcher stops, and the next is elsewhere:
    /// so it is asked for while this one is multiplied.
    pub ahead: &'a [u8],
    pub at: usize,
    pub inner: usize,
}

impl<'a> Panel<'a> {
    pub(crate) const NONE: Panel<'a> = Panel {
        lines: &[],
        ahead: &[],
        at: 0,
        inner: 0,
    };

    /// For the dumb twin.
    fn value(&self, codec: Codec, index: usize) -> f32 {
        let at = &self.lines[index * width_of(codec)..];
        match codec {
            Codec::F32 => f32::from_le_bytes([at[0], at[1], at[2], at[3]]),
            _ => f16::from_le_bytes([at[0], at[1]]).to_f32_const(),
        }
    }
}

/// Bytes of one float.
fn width_of(codec: Codec) -> usize {
    codec.planes()[0] / 8
}

simd_fn! {
    /// Scores of one block: `out` is (row, slot) with `out_stride` between rows, 32 slots written
    /// in each; `q` is (row, dim); `k` is (dim, slot).
    pub(crate) fn score(
        codec: Codec,
        q: Rows<'_>,
        k: Panel<'_>,
        out: &mut [f32],
        out_stride: usize,
    ) = scalar_score, simd_score;
}

fn scalar_score(codec: Codec, q: Rows<'_>, k: Panel<'_>, out: &mut [f32], out_stride: usize) {
    for r in 0..q.count {
        let q = &q.values[r * q.stride..][..k.inner];
        let out = &mut out[r * out_stride..][..BLOCK_SLOTS];
        for (slot, out) in out.iter_mut().enumerate() {
            let mut sum = 0.0f32;
            for (d, q) in q.iter().enumerate() {
                sum = q.mul_add(k.value(codec, d * BLOCK_SLOTS + slot), sum);
            }
            *out = sum;
        }
    }
}

#[inline(always)]
fn simd_score<S: Simd>(
    s: S,
    codec: Codec,
    q: Rows<'_>,
    k: Panel<'_>,
    out: &mut [f32],
    out_stride: usize,
) {
    match codec {
        Codec::F32 => product::<S, true>(s, q, &[k], BLOCK_SLOTS, out, out_stride),
        _ => product::<S, false>(s, q, &[k], BLOCK_SLOTS, out, out_stride),
    }
}

simd_fn! {
    /// The values of some blocks, weighted: `out` is (row, dim) without gaps; `p` is (row, slot);
    /// each panel of `v` is (slot, dim).
    pub(crate) fn weigh(
        codec: Codec,
        p: Rows<'_>,
        v: &[Panel<'_>],
        dim: usize,
        out: &mut [f32],
    ) = scalar_weigh, simd_weigh;
}

fn scalar_weigh(codec: Codec, p: Rows<'_>, v: &[Panel<'_>], dim: usize, out: &mut [f32]) {
    for r in 0..p.count {
        let p = &p.values[r * p.stride..];
        let out = &mut out[r * dim..][..dim];
        for (d, out) in out.iter_mut().enumerate() {
            let mut sum = 0.0f32;
            for v in v {
                for slot in 0..v.inner {
                    sum = p[v.at + slot].mul_add(v.value(codec, slot * dim + d), sum);
                }
            }
            *out = sum;
        }
    }
}

#[inline(always)]
fn simd_weigh<S: Simd>(
    s: S,
    codec: Codec,
    p: Rows<'_>,
    v: &[Panel<'_>],
    dim: usize,
    out: &mut [f32],
) {
    match codec {
        Codec::F32 => product::<S, true>(s, p, v, dim, out, dim),
        _ => product::<S, false>(s, p, v, dim, out, dim),
    }
}

/// `out (row, column) = sum over panels and i  a (row, at + i) * panel (i, column)`, panels of
/// `width` columns of f16 (`WIDE`: f32).
#[inline(always)]
fn product<S: Simd, const WIDE: bool>(
    s: S,
    a: Rows<'_>,
    panels: &[Panel<'_>],
    width: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    if a.count == 0 {
        return;
    }
    let codec = if WIDE { Codec::F32 } else { Codec::F16 };
    // Every address of a tile is within these: checked once here, not in the loop.
    assert!((a.count - 1) * out_stride + width <= out.len());
    for panel in panels {
        assert!((a.count - 1) * a.stride + panel.at + panel.inner <= a.values.len());
        assert!(width_of(codec) * panel.inner * width <= panel.lines.len());
    }

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
            // * cols` below `width`, and the sizes were asserted above.
            unsafe {
                let a = (a.values.as_ptr().add(row * a.stride), a.stride);
                let out = (out.as_mut_ptr().add(row * out_stride + column), out_stride);
                tiles::<S, WIDE>(s, rows, cols, a, panels, width, column, row == 0, out);
            }
            row += rows;
        }
        column += 16 * cols;
    }
    // Head sizes that are not whole vectors: the same chain, one column at a time.
    for r in 0..a.count {
        for column in whole..width {
            let mut sum = 0.0f32;
            for panel in panels {
                for i in 0..panel.inner {
                    let a = a.values[r * a.stride + panel.at + i];
                    sum = a.mul_add(panel.value(codec, i * width + column), sum);
                }
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
unsafe fn tiles<S: Simd, const WIDE: bool>(
    s: S,
    rows: usize,
    cols: usize,
    a: (*const f32, usize),
    panels: &[Panel<'_>],
    width: usize,
    column: usize,
    first: bool,
    out: (*mut f32, usize),
) {
    macro_rules! pick {
        ($($r:literal)*) => {
            match (rows, cols) {
                $(
                    // SAFETY: the caller's promise.
                    ($r, 2) if S::COLS >= 2 && $r <= S::ROWS => unsafe {
                        tile::<S, $r, 2, WIDE>(s, a, panels, width, column, first, out)
                    },
                    // SAFETY: the caller's promise.
                    ($r, 1) if $r <= S::ROWS => unsafe {
                        tile::<S, $r, 1, WIDE>(s, a, panels, width, column, first, out)
                    },
                )*
                _ => unreachable!("no tile of {rows} rows and {cols} columns"),
            }
        };
    }
    pick!(1 2 3 4 5 6 7 8 9 10 11 12);
}

/// `R` rows by `C` vectors of [`product`], accumulated in registers over all panels. `a` and `out`
/// are a pointer and the distance of rows. The `first` tile of some columns asks for what is ahead.
///
/// # Safety
/// - `a` has `R` rows as long as the panels ask; panels have lines of `width` values, of which the
///   tile takes `16 * C` from `column` on; `out` has `R` rows of `16 * C` values that nothing else
///   refers to.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const C: usize, const WIDE: bool>(
    s: S,
    a: (*const f32, usize),
    panels: &[Panel<'_>],
    width: usize,
    column: usize,
    first: bool,
    out: (*mut f32, usize),
) {
    let size = if WIDE { 4 } else { 2 };
    let mut acc = [[s.splat(0.0); C]; R];
    for panel in panels {
        let b = panel.lines.as_ptr().wrapping_add(size * column);
        // With nothing ahead, what is being read anyway.
        let ahead = if first && !panel.ahead.is_empty() {
            panel.ahead.as_ptr().wrapping_add(size * column)
        } else {
            b
        };
        // SAFETY: the rows of `a` reach to the panel's end.
        let a = (unsafe { a.0.add(panel.at) }, a.1);
        for i in 0..panel.inner {
            s.prefetch(ahead.wrapping_add(i * size * width));
            let mut line = [s.splat(0.0); C];
            for c in 0..C {
                // SAFETY: line `i` of the panel has vector `c`.
                line[c] = unsafe {
                    let at = b.add(size * (i * width + 16 * c));
                    if WIDE {
                        s.load(&at.cast::<[f32; 16]>().read_unaligned())
                    } else {
                        s.load_half(&*at.cast())
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
