//! How a row is summed: sixteen lanes, one tree.
//!
//! Element `i` belongs to lane `i % 16`. A lane adds its elements in index order, starting from
//! zero; elements missing at the end count as zero. Then the lanes are folded in halves:
//!
//! ```text
//! lane  0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15
//!       + 8 apart: 8 lanes    i + (i + 8)
//!       + 4 apart: 4 lanes    i + (i + 4)
//!       + 2 apart, + 1 apart
//! ```

use crate::LANES;
use crate::simd::{FIXED_MAGIC, FIXED_ONE, Simd, simd_fn};

/// `x` in units of 2^-40, rounded to nearest, ties to even, for `x` in `0.0..=2.0`.
pub fn to_fixed(x: f32) -> u64 {
    let n = f64::from(x * FIXED_ONE) + FIXED_MAGIC;
    n.to_bits() ^ FIXED_MAGIC.to_bits()
}

/// The greater one; `a` where either is NaN.
#[inline(always)]
pub(crate) fn greater(a: f32, b: f32) -> f32 {
    if a < b { b } else { a }
}

/// The tree at the end of every sum.
pub fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

simd_fn! {
    /// The sum of a row.
    pub fn sum(x: &[f32]) -> f32 = scalar_sum, simd_sum;
}

fn scalar_sum(x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for (i, x) in x.iter().enumerate() {
        lanes[i % LANES] += x;
    }
    fold(lanes)
}

#[inline(always)]
pub(crate) fn simd_sum<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (whole, tail) = x.as_chunks::<LANES>();
    let mut acc = s.splat(0.0);
    for x in whole {
        acc = s.add(acc, s.load(x));
    }
    s.sum(s.add(acc, s.load(&padded(tail, 0.0))))
}

/// The last, partial vector of a row.
#[inline(always)]
pub(crate) fn padded(tail: &[f32], with: f32) -> [f32; LANES] {
    let mut last = [with; LANES];
    last[..tail.len()].copy_from_slice(tail);
    last
}

simd_fn! {
    /// The sum of the squares of a row, each added with a fused multiply-add.
    pub fn dot_self(x: &[f32]) -> f32 = scalar_dot_self, simd_dot_self;
}

fn scalar_dot_self(x: &[f32]) -> f32 {
    scalar_dot(x, x)
}

#[inline(always)]
pub(crate) fn simd_dot_self<S: Simd>(s: S, x: &[f32]) -> f32 {
    simd_dot(s, x, x)
}

simd_fn! {
    /// The sum of the products of two rows, each added with a fused multiply-add.
    pub fn dot(x: &[f32], y: &[f32]) -> f32 = scalar_dot, simd_dot;
}

fn scalar_dot(x: &[f32], y: &[f32]) -> f32 {
    assert_eq!(x.len(), y.len());
    let mut lanes = [0.0f32; LANES];
    for (i, (x, y)) in x.iter().zip(y).enumerate() {
        lanes[i % LANES] = x.mul_add(*y, lanes[i % LANES]);
    }
    fold(lanes)
}

#[inline(always)]
fn simd_dot<S: Simd>(s: S, x: &[f32], y: &[f32]) -> f32 {
    assert_eq!(x.len(), y.len());
    let (xs, x_tail) = x.as_chunks::<LANES>();
    let (ys, y_tail) = y.as_chunks::<LANES>();
    let mut acc = s.splat(0.0);
    for (x, y) in xs.iter().zip(ys) {
        acc = s.fma(s.load(x), s.load(y), acc);
    }
    let (x, y) = (padded(x_tail, 0.0), padded(y_tail, 0.0));
    s.sum(s.fma(s.load(&x), s.load(&y), acc))
}

simd_fn! {
    /// The greatest of a row, minus infinity for an empty one. Undefined where a value is NaN.
    pub fn max(x: &[f32]) -> f32 = scalar_max, simd_max;
}

fn scalar_max(x: &[f32]) -> f32 {
    x.iter().fold(f32::NEG_INFINITY, |m, x| greater(m, *x))
}

#[inline(always)]
fn simd_max<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (whole, tail) = x.as_chunks::<LANES>();
    let mut acc = s.splat(f32::NEG_INFINITY);
    for x in whole {
        acc = s.max(acc, s.load(x));
    }
    s.max_lane(s.max(acc, s.load(&padded(tail, f32::NEG_INFINITY))))
}

simd_fn! {
    /// `x += y`.
    pub fn add_assign(x: &mut [f32], y: &[f32]) = each_add, simd_add;
}

#[inline(always)]
fn each_add(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

// Element by element with nothing to reorder: the compiler vectorises the scalar loop itself.
#[inline(always)]
fn simd_add<S: Simd>(_: S, x: &mut [f32], y: &[f32]) {
    each_add(x, y);
}

simd_fn! {
    /// `x *= by`.
    pub fn scale(x: &mut [f32], by: f32) = each_scale, simd_scale;
}

#[inline(always)]
fn each_scale(x: &mut [f32], by: f32) {
    for x in x {
        *x *= by;
    }
}

#[inline(always)]
fn simd_scale<S: Simd>(_: S, x: &mut [f32], by: f32) {
    each_scale(x, by);
}
