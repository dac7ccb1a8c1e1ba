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

/// `x` becomes its softmax; a row of minus infinities becomes zeros.
pub fn softmax(backend: Backend, x: &mut [f32]) {
    let max = max(backend, x);
    let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
    let total = exp::exp_sub_sum(backend, x, shift);
    scale(backend, x, if total == 0.0 { 0.0 } else { 1.0 / total });
}
