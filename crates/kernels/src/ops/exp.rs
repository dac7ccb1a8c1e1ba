//! The exponential, as a polynomial of our own: libraries differ in the last bit, backends may not.
//!
//! ```text
//! n = round(x / ln 2)                  by adding and subtracting 1.5 * 2^23
//! r = x - n ln 2                       |r| <= ln 2 / 2, ln 2 in two parts
//! e^r = 1 + r (1 + r q(r))             q of degree 4, fitted to the relative error
//! e^x = 2^n e^r
//! ```
//!
//! The polynomial is within 3.1e-9 of `e^r`; with rounding the whole is within
//! [`ERROR_MAX_ULP`] units in the last place (measured over every f32 in range).
//!
//! - `x <` [`LOWEST`]: exactly 0. The results there would be subnormal.
//! - `x >` [`HIGHEST`]: infinity (the last factor of two before overflow is given up).
//! - Not a number in, not a number out.

use crate::LANES;
use crate::simd::{Simd, simd_fn};

/// Just above `ln(2^-126)`, the least normal number.
pub const LOWEST: f32 = -87.3365;
/// Just below `127.5 ln 2`, beyond which `n` would be 128.
pub const HIGHEST: f32 = 88.37;
/// The greatest error against the exact exponential, in units in the last place.
pub const ERROR_MAX_ULP: f64 = 1.0;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
const ROUND: f32 = 12_582_912.0;
/// ln 2 with 15 bits, so that `n` times it is exact, and the rest.
const LN2_HIGH: f32 = 0.693_145_75;
const LN2_LOW: f32 = 1.428_606_8e-6;
/// The coefficients of q, by iteratively reweighted least squares on 2001 points.
const Q: [f32; 5] = [
    0.499_999_94,
    0.166_665_21,
    0.041_668_39,
    0.008_368_721,
    0.001_381_461_3,
];

/// `e^x`.
pub fn exp(x: f32) -> f32 {
    if x < LOWEST {
        return 0.0;
    }
    if x > HIGHEST {
        return f32::INFINITY;
    }
    let t = x.mul_add(LOG2_E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-LN2_HIGH, x);
    let r = n.mul_add(-LN2_LOW, r);
    let mut q = Q[4];
    for c in [Q[3], Q[2], Q[1], Q[0], 1.0, 1.0] {
        q = q.mul_add(r, c);
    }
    q * f32::from_bits((t.to_bits() << 23).wrapping_add(127 << 23))
}

/// [`exp`] of sixteen lanes.
#[inline(always)]
pub(crate) fn exp_lanes<S: Simd>(s: S, x: S::F) -> S::F {
    let y = exp_lanes_low(s, x);
    s.if_less(s.splat(HIGHEST), x, s.splat(f32::INFINITY), y)
}

/// [`exp`] of lanes that are not above [`HIGHEST`].
#[inline(always)]
fn exp_lanes_low<S: Simd>(s: S, x: S::F) -> S::F {
    let round = s.splat(ROUND);
    let t = s.fma(x, s.splat(LOG2_E), round);
    let n = s.sub(t, round);
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let one = s.splat(1.0);
    let mut q = s.splat(Q[4]);
    q = s.fma(q, r, s.splat(Q[3]));
    q = s.fma(q, r, s.splat(Q[2]));
    q = s.fma(q, r, s.splat(Q[1]));
    q = s.fma(q, r, s.splat(Q[0]));
    q = s.fma(q, r, one);
    q = s.fma(q, r, one);
    let y = s.mul(q, s.power_of_two(t));
    s.if_less(x, s.splat(LOWEST), s.splat(0.0), y)
}

simd_fn! {
    /// `x = e^x`, element by element.
    pub fn exp_row(x: &mut [f32]) = scalar_exp_row, simd_exp_row;
}

fn scalar_exp_row(x: &mut [f32]) {
    for x in x {
        *x = exp(*x);
    }
}

#[inline(always)]
fn simd_exp_row<S: Simd>(s: S, x: &mut [f32]) {
    let (whole, tail) = x.as_chunks_mut::<LANES>();
    for x in whole {
        s.store(exp_lanes(s, s.load(x)), x);
    }
    let mut last = super::lanes::padded(tail, 0.0);
    s.store(exp_lanes(s, s.load(&last)), &mut last);
    tail.copy_from_slice(&last[..tail.len()]);
}

simd_fn! {
    /// `x = e^(x - shift)`; returns the sum over sixteen lanes. `shift` is not below the row's
    /// greatest value; minus infinity becomes 0.
    pub fn exp_sub_sum(x: &mut [f32], shift: f32) -> f32 = scalar_exp_sub_sum, simd_exp_sub_sum;
}

fn scalar_exp_sub_sum(x: &mut [f32], shift: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    for (i, x) in x.iter_mut().enumerate() {
        *x = exp(*x - shift);
        lanes[i % LANES] += *x;
    }
    super::lanes::fold(lanes)
}

#[inline(always)]
fn simd_exp_sub_sum<S: Simd>(s: S, x: &mut [f32], shift: f32) -> f32 {
    let shift = s.splat(shift);
    let mut acc = s.splat(0.0);
    let (whole, tail) = x.as_chunks_mut::<LANES>();
    for x in whole {
        let y = exp_lanes_low(s, s.sub(s.load(x), shift));
        s.store(y, x);
        acc = s.add(acc, y);
    }
    if !tail.is_empty() {
        // Minus infinity: what is missing adds exactly 0.
        let mut last = super::lanes::padded(tail, f32::NEG_INFINITY);
        let y = exp_lanes_low(s, s.sub(s.load(&last), shift));
        s.store(y, &mut last);
        tail.copy_from_slice(&last[..tail.len()]);
        acc = s.add(acc, y);
    }
    s.sum(acc)
}
