//! Small vector operations: sums, norms, rope, activations, softmax, small products.
//!
//! Each takes one row (a product: a few); rows are independent, so a caller may spread them over threads
//! and gets the same bits. Every operation has a scalar reference that says what it computes in the
//! plainest way ([`Backend::SCALAR`](crate::cpu::Backend::SCALAR) runs it) and one body over the sixteen-lane
//! vectors of [`crate::simd`], compiled for each instruction set. The two share constants and nothing
//! else; tests compare their bits.
//!
//! Slices of one call must have equal lengths, or it panics.

pub mod activation;
pub mod exp;
pub mod lanes;
pub mod norm;
pub mod product;
pub mod rope;
pub mod rotation;

pub use activation::{gelu_exact, gelu_mul, silu_mul};
pub use lanes::{add_assign, dot, dot_self, max, scale, sum};
pub use norm::{layer_norm_assign, rms_norm};
pub use product::{StridedRows, product};
pub use rope::{Pairing, RopeSpec, rotate};
pub use rotation::{rotate_head, unrotate_head};

use crate::cpu::Backend;

/// The max of a row, its exponentials and their sum: `x` becomes `exp(x - max)`, and the sum over
/// sixteen lanes is returned. A row of minus infinities becomes zeros with the sum 0.
///
/// The caller divides: attention divides its output, a sampler may never divide.
pub fn softmax_exp(backend: Backend, x: &mut [f32]) -> f32 {
    let max = max(backend, x);
    exp::exp_sub_sum(backend, x, if max == f32::NEG_INFINITY { 0.0 } else { max })
}

/// `x` becomes its softmax.
pub fn softmax(backend: Backend, x: &mut [f32]) {
    let total = softmax_exp(backend, x);
    scale(backend, x, if total == 0.0 { 0.0 } else { 1.0 / total });
}
