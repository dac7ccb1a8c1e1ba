//! Vectors of f32 and i32 on any instruction set.
//!
//! ```text
//! Isa         one vector of an instruction set: arithmetic, conversions, loads and stores
//! Pair<S>     two vectors of S as one of twice the lanes
//! Simd        a vector of sixteen lanes: AVX-512's own, a pair of AVX2's, a pair of pairs of NEON's
//!
//! crate::matmul      extends Isa with dot products of weight codes
//! crate::attention   extends Simd with dot products of quantised keys and values
//! ```
//!
//! A value of an implementing type proves that the CPU has the instructions: only the dispatch makes
//! one, from a [`crate::cpu::Backend`]. A kernel that sums over [`Simd`] has one body, and the lanes
//! it sums over are the same on each machine.
//!
//! The bodies are `#[inline(always)]` and hold no closures: the compiler must inline them into the
//! function that enables the instructions ([`simd_fn`] writes it), or every operation becomes a call.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

mod dispatch;
mod isa;
mod pair;

pub(crate) use dispatch::simd_fn;
pub(crate) use isa::{FIXED_MAGIC, FIXED_ONE, Isa, Simd, op, ops};
pub(crate) use pair::Pair;
