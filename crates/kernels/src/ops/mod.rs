//! Small vector operations: sums, norms, rope, activations, softmax, small products.
//!
//! Each takes one row (a product: a few); rows are independent, so a caller spreads them over threads as it likes and
//! gets the same bits. Every operation has a scalar twin that says what it computes in the plainest
//! way ([`Table::SCALAR`](crate::cpu::Table::SCALAR) runs it) and one body over the sixteen-lane
//! vectors of [`simd`], compiled for each instruction set. The twins share constants and nothing
//! else; tests ask for equal bits.
//!
//! Slices of one call have equal lengths: that is the caller's promise, and breaking it panics.

pub mod activation;
pub mod exp;
pub mod lanes;
pub mod norm;
pub mod product;
pub mod rope;
pub(crate) mod simd;
pub mod turn;

pub use activation::{gelu_exact, gelu_mul, silu_mul};
pub use lanes::{add_assign, dot, dot_self, max, scale, sum};
pub use norm::{layer_norm_assign, rms_norm};
pub use product::{Rows, product};
pub use rope::{Pairing, RopeSpec, rotate};
pub use turn::{turn, turn_back};

use crate::cpu::Table;

/// The max of a row, its exponentials and their sum: `x` becomes `exp(x - max)`, and the sum over
/// sixteen lanes is returned. A row of minus infinities becomes zeros with the sum 0.
///
/// Dividing is left to the caller: attention divides its output, a sampler may never divide.
pub fn softmax_exp(table: Table, x: &mut [f32]) -> f32 {
    let max = max(table, x);
    exp::exp_sub_sum(table, x, if max == f32::NEG_INFINITY { 0.0 } else { max })
}

/// `x` becomes its softmax.
pub fn softmax(table: Table, x: &mut [f32]) {
    let total = softmax_exp(table, x);
    scale(table, x, if total == 0.0 { 0.0 } else { 1.0 / total });
}
