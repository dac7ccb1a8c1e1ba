//! Norms of one row. The root-mean-square norm is for a hidden state, or one head for models that
//! norm their queries and keys; the layer norm takes the mean out first and is for encoders.

use super::lanes::{dot_self, simd_dot_self, simd_sum, sum};
use crate::cpu::Backend;
use crate::simd::{Simd, simd_fn};

simd_fn! {
    /// `out = x / sqrt(mean(x^2) + eps) * weight`, in this order: the row's factor first, then the
    /// weight.
    pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32])
        = scalar_rms_norm, simd_rms_norm;
}

/// The factor a row is multiplied with, from the sum of its squares.
#[inline(always)]
fn factor(squares: f32, len: usize, eps: f32) -> f32 {
    1.0 / (squares / len as f32 + eps).sqrt()
}

fn scalar_rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let by = factor(dot_self(Backend::SCALAR, x), x.len(), eps);
    apply(x, weight, by, out);
}

#[inline(always)]
fn apply(x: &[f32], weight: &[f32], by: f32, out: &mut [f32]) {
    assert_eq!(x.len(), weight.len());
    assert_eq!(x.len(), out.len());
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * by * weight;
    }
}

#[inline(always)]
fn simd_rms_norm<S: Simd>(s: S, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let by = factor(simd_dot_self(s, x), x.len(), eps);
    apply(x, weight, by, out);
}

simd_fn! {
    /// `x = (x - mean) / sqrt(variance + eps) * weight + bias`, in this order: the mean is taken out,
    /// then the squares of what is left are summed.
    pub fn layer_norm_assign(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32)
        = scalar_layer_norm_assign, simd_layer_norm_assign;
}

fn scalar_layer_norm_assign(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let mean = sum(Backend::SCALAR, x) / x.len() as f32;
    subtract(x, mean);
    let by = factor(dot_self(Backend::SCALAR, x), x.len(), eps);
    apply_biased(x, weight, bias, by);
}

#[inline(always)]
fn subtract(x: &mut [f32], mean: f32) {
    for x in x {
        *x -= mean;
    }
}

#[inline(always)]
fn apply_biased(x: &mut [f32], weight: &[f32], bias: &[f32], by: f32) {
    assert_eq!(x.len(), weight.len());
    assert_eq!(x.len(), bias.len());
    for ((x, weight), bias) in x.iter_mut().zip(weight).zip(bias) {
        *x = (*x * by).mul_add(*weight, *bias);
    }
}

#[inline(always)]
fn simd_layer_norm_assign<S: Simd>(s: S, x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let mean = simd_sum(s, x) / x.len() as f32;
    subtract(x, mean);
    let by = factor(simd_dot_self(s, x), x.len(), eps);
    apply_biased(x, weight, bias, by);
}
