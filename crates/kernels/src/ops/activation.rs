//! Activations: gated ones, `act(gate) * up` in place over the gate, and the gelu of encoders.
//!
//! The gated ones are a sigmoid: `silu(g) = g / (1 + e^-g)`, and the tanh form of gelu is
//! `g / (1 + e^(-2u))` with `u = sqrt(2/pi) (g + 0.044715 g^3)`, because
//! `(1 + tanh u) / 2 = 1 / (1 + e^(-2u))`. In this form nothing cancels for large negative gates.
//!
//! The exact gelu is `x` times the normal distribution at `x`. What lies beyond `|x|` is
//! `h = e^(-x^2 / 2) t q(t)` with `t = 1 / (1 + 0.375 |x| / sqrt 2)`: then gelu is `x h` on the left
//! and `x - x h` on the right, and nothing cancels here either.

use super::exp::{exp, exp_lanes};
use crate::LANES;
use crate::simd::{Simd, simd_fn};

/// `-2 sqrt(2 / pi)`, which is `-sqrt(2) * 2 / sqrt(pi)`.
const GELU_SLOPE: f32 = (-std::f64::consts::SQRT_2 * std::f64::consts::FRAC_2_SQRT_PI) as f32;
const GELU_CUBE: f32 = 0.044_715;

/// `0.375 / sqrt 2`.
const TAIL_SLOPE: f32 = (0.375 * std::f64::consts::FRAC_1_SQRT_2) as f32;
/// The coefficients of q, within 1.6e-8 of the tail, relatively: iteratively reweighted least
/// squares on 8000 points from 0 to where the exponential ends.
const TAIL: [f32; 9] = [
    0.105_807_21,
    0.105_316_75,
    0.102_715_22,
    0.060_519_464,
    0.137_422_1,
    -0.115_538_27,
    0.216_946_94,
    -0.144_037_72,
    0.030_848_313,
];

simd_fn! {
    /// `gate = silu(gate) * up`.
    pub fn silu_mul(gate: &mut [f32], up: &[f32]) = scalar_silu_mul, simd_silu_mul;
}

fn scalar_silu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    for (g, u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp(-*g)) * u;
    }
}

#[inline(always)]
fn simd_silu_mul<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    gated::<S, false>(s, gate, up);
}

simd_fn! {
    /// `gate = gelu(gate) * up`, gelu in its tanh form.
    pub fn gelu_mul(gate: &mut [f32], up: &[f32]) = scalar_gelu_mul, simd_gelu_mul;
}

fn scalar_gelu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    for (g, u) in gate.iter_mut().zip(up) {
        let square = *g * *g;
        let slope = (square * GELU_CUBE).mul_add(GELU_SLOPE, GELU_SLOPE);
        *g = *g / (1.0 + exp(*g * slope)) * u;
    }
}

#[inline(always)]
fn simd_gelu_mul<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    gated::<S, true>(s, gate, up);
}

#[inline(always)]
fn gated<S: Simd, const GELU: bool>(s: S, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    let (gates, gate_tail) = gate.as_chunks_mut::<LANES>();
    let (ups, up_tail) = up.as_chunks::<LANES>();
    for (g, u) in gates.iter_mut().zip(ups) {
        s.store(gated_lanes::<S, GELU>(s, s.load(g), s.load(u)), g);
    }
    if !gate_tail.is_empty() {
        let mut g = super::lanes::padded(gate_tail, 0.0);
        let u = s.load(&super::lanes::padded(up_tail, 0.0));
        s.store(gated_lanes::<S, GELU>(s, s.load(&g), u), &mut g);
        gate_tail.copy_from_slice(&g[..gate_tail.len()]);
    }
}

#[inline(always)]
fn gated_lanes<S: Simd, const GELU: bool>(s: S, g: S::F, u: S::F) -> S::F {
    let exponent = if GELU {
        let slope = s.splat(GELU_SLOPE);
        let cube = s.mul(s.mul(g, g), s.splat(GELU_CUBE));
        s.mul(g, s.fma(cube, slope, slope))
    } else {
        s.mul(g, s.splat(-1.0))
    };
    let below = s.add(s.splat(1.0), exp_lanes(s, exponent));
    s.mul(s.div(g, below), u)
}

simd_fn! {
    /// `x = gelu(x)`, by the normal distribution itself.
    pub fn gelu_exact(x: &mut [f32]) = scalar_gelu_exact, simd_gelu_exact;
}

fn scalar_gelu_exact(x: &mut [f32]) {
    for x in x {
        let size = if *x < 0.0 { -*x } else { *x };
        let t = 1.0 / size.mul_add(TAIL_SLOPE, 1.0);
        let mut q = TAIL[8];
        for c in TAIL[..8].iter().rev() {
            q = q.mul_add(t, *c);
        }
        let tail = exp(*x * *x * -0.5) * (q * t) * *x;
        *x = if *x < 0.0 { tail } else { *x - tail };
    }
}

#[inline(always)]
fn simd_gelu_exact<S: Simd>(s: S, x: &mut [f32]) {
    let (whole, rest) = x.as_chunks_mut::<LANES>();
    for x in whole {
        s.store(gelu_exact_lanes(s, s.load(x)), x);
    }
    if !rest.is_empty() {
        let mut last = super::lanes::padded(rest, 0.0);
        s.store(gelu_exact_lanes(s, s.load(&last)), &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[inline(always)]
fn gelu_exact_lanes<S: Simd>(s: S, x: S::F) -> S::F {
    let (zero, one) = (s.splat(0.0), s.splat(1.0));
    let size = s.if_less(x, zero, s.mul(x, s.splat(-1.0)), x);
    let t = s.div(one, s.fma(size, s.splat(TAIL_SLOPE), one));
    let mut q = s.splat(TAIL[8]);
    q = s.fma(q, t, s.splat(TAIL[7]));
    q = s.fma(q, t, s.splat(TAIL[6]));
    q = s.fma(q, t, s.splat(TAIL[5]));
    q = s.fma(q, t, s.splat(TAIL[4]));
    q = s.fma(q, t, s.splat(TAIL[3]));
    q = s.fma(q, t, s.splat(TAIL[2]));
    q = s.fma(q, t, s.splat(TAIL[1]));
    q = s.fma(q, t, s.splat(TAIL[0]));
    let bell = exp_lanes(s, s.mul(s.mul(x, x), s.splat(-0.5)));
    let tail = s.mul(s.mul(bell, s.mul(q, t)), x);
    s.if_less(x, zero, tail, s.sub(x, tail))
}
