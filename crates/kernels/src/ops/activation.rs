//! Gated activations: `act(gate) * up`, in place over the gate.
//!
//! Both are a sigmoid: `silu(g) = g / (1 + e^-g)`, and the tanh form of gelu is
//! `g / (1 + e^(-2u))` with `u = sqrt(2/pi) (g + 0.044715 g^3)`, because
//! `(1 + tanh u) / 2 = 1 / (1 + e^(-2u))`. Written so, nothing cancels for large negative gates.

use super::exp::{exp, exp_lanes};
use super::simd::{Simd, simd_fn};
use crate::LANES;

/// `-2 sqrt(2 / pi)`, which is `-sqrt(2) * 2 / sqrt(pi)`.
const GELU_SLOPE: f32 = (-std::f64::consts::SQRT_2 * std::f64::consts::FRAC_2_SQRT_PI) as f32;
const GELU_CUBE: f32 = 0.044_715;

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
fn gated_lanes<S: Simd, const GELU: bool>(s: S, g: S::V, u: S::V) -> S::V {
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
