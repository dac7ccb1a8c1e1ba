//! Products of small f32 matrices that are computed on the way: the scores and sums of an encoder's heads.
//!
//! Products with packed weights are in [`crate::matmul`]. Here one column is a lane, so a sum runs along
//! `k` in order, fused, from zero: a row of many equals the same row alone.

use crate::LANES;
use crate::simd::{Simd, simd_fn};

/// Rows that share a loaded vector: twelve registers of AVX2's sixteen are accumulators.
const TILE: usize = 6;

/// Rows of a matrix, `stride` apart; what lies between two rows is not touched.
#[derive(Clone, Copy, Debug)]
pub struct StridedRows<'a> {
    pub data: &'a [f32],
    pub stride: usize,
}

simd_fn! {
    /// `out = x m`, with `x` of (rows, k), `m` of (k, cols) and `out` of (rows, cols) in rows
    /// `out_stride` apart. `cols` is a multiple of sixteen.
    pub fn product(
        x: StridedRows<'_>, m: StridedRows<'_>, rows: usize, k: usize, cols: usize,
        out: &mut [f32], out_stride: usize,
    ) = scalar_product, simd_product;
}

fn scalar_product(
    x: StridedRows<'_>,
    m: StridedRows<'_>,
    rows: usize,
    k: usize,
    cols: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    assert_eq!(cols % LANES, 0);
    for row in 0..rows {
        for col in 0..cols {
            let mut sum = 0.0f32;
            for i in 0..k {
                sum = x.data[row * x.stride + i].mul_add(m.data[i * m.stride + col], sum);
            }
            out[row * out_stride + col] = sum;
        }
    }
}

#[inline(always)]
fn simd_product<S: Simd>(
    s: S,
    x: StridedRows<'_>,
    m: StridedRows<'_>,
    rows: usize,
    k: usize,
    cols: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    assert_eq!(cols % LANES, 0);
    let mut row = 0;
    while row < rows {
        let x = StridedRows {
            data: &x.data[row * x.stride..],
            stride: x.stride,
        };
        let out = &mut out[row * out_stride..];
        if row + TILE <= rows {
            tile::<S, TILE>(s, x, m, k, cols, out, out_stride);
            row += TILE;
        } else {
            tile::<S, 1>(s, x, m, k, cols, out, out_stride);
            row += 1;
        }
    }
}

#[inline(always)]
fn tile<S: Simd, const R: usize>(
    s: S,
    x: StridedRows<'_>,
    m: StridedRows<'_>,
    k: usize,
    cols: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    for col in (0..cols).step_by(LANES) {
        let mut acc = [s.splat(0.0); R];
        for i in 0..k {
            let from = &m.data[i * m.stride + col..];
            let Some(lanes) = from.first_chunk::<LANES>() else {
                panic!("row {i} of the matrix ends before column {col} + {LANES}");
            };
            let lanes = s.load(lanes);
            for r in 0..R {
                acc[r] = s.fma(s.splat(x.data[r * x.stride + i]), lanes, acc[r]);
            }
        }
        for r in 0..R {
            let to = &mut out[r * out_stride + col..];
            let Some(to) = to.first_chunk_mut::<LANES>() else {
                panic!("row {r} of the output ends before column {col} + {LANES}");
            };
            s.store(acc[r], to);
        }
    }
}
