//! Arithmetic and byte formats: matrix products over quantised weights, attention over blocks,
//! norms, rope, activations, and the worker threads that run them.
//!
//! The crate never allocates on the path of a token and knows no file, no session and no model:
//! callers hand it slices and shapes.
//!
//! **Every backend computes the same bits.** A *backend* is one implementation of all kernels for one
//! instruction set ([`cpu`]). The order of every floating-point reduction is part of a kernel's
//! definition, not of its implementation:
//!
//! - sums run over [`LANES`] = 16 lanes, each lane in index order with fused multiply-add, and end
//!   in one fixed tree ([`ops::lanes`]);
//! - a matrix product keeps one output row per lane, so its sum runs along `k` in order;
//! - attention keeps one slot per lane for scores and one dimension per lane for the output;
//! - transcendental functions are our own polynomials, the same in each backend.
//!
//! Hence one row of a batch equals the same row alone, any thread count equals any other, and a
//! phone equals the scalar reference. Tests compare bits.

pub mod attention;
pub mod cpu;
pub mod format;
pub mod matmul;
pub mod ops;
mod simd;
mod sync;
pub mod threads;

/// Lanes of every reduction: one AVX-512 register of f32, two of AVX2, four of NEON.
pub const LANES: usize = 16;

/// What every kernel call needs: the backend and the worker threads.
#[derive(Clone, Copy)]
pub struct Exec<'a> {
    pub backend: cpu::Backend,
    pub pool: &'a threads::ThreadPool,
}
