//! Dot products of quantised keys and values with rows of integers, exact.
//!
//! Levels come in *quads*, four for each of sixteen lanes, and meet quads of a row. A row lies in
//! memory as the instruction set likes it, in two bytes per integer: *wide* integers are within
//! ±16256 = 127 * 128, *narrow* ones within ±127. At most 256 of them are added up.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use crate::simd::Simd;

/// A wide integer is `high << 7` and a low part within 0..128.
const PART_BITS: u32 = 7;

pub(super) trait LevelDot: Simd {
    /// Rows of a float product's register tile: the accumulators are `ROWS * COLS` vectors.
    const ROWS: usize;
    /// Vectors side by side in a register tile.
    const COLS: usize;
    /// Rows up to which low and high codes are summed apart: there are registers for it.
    const CHAINS: usize;

    /// Sixteen levels, where look-ups find them.
    type Codebook: Copy;
    /// Four levels for each lane.
    type Quads: Copy;
    type Wide: Precision<Self>;
    type Narrow: Precision<Self>;

    fn codebook(self, levels: &[i8; 16]) -> Self::Codebook;
    /// Signed bytes.
    fn load_quads(self, x: &[u8; 64]) -> Self::Quads;
    /// The levels of the low and of the high four bits of each byte.
    fn look_up_nibbles(self, codebook: Self::Codebook, x: &[u8; 64]) -> (Self::Quads, Self::Quads);
    /// Codes below 32 become their levels.
    fn look_up(self, levels: &[i8; 32], codes: &mut [u8; 64]);
}

/// How exact the integers of a row are, and the instructions for them.
pub(super) trait Precision<S: LevelDot>: Copy {
    /// The greatest integer.
    const LIMIT: f32;
    /// Rows of a register tile that reads bytes.
    const ROWS: usize;
    /// The same where four-bit codes are looked up in registers.
    const FUSED: usize;
    /// Four integers of a row, in every lane.
    type Quad: Copy;
    /// Sums.
    type Acc: Copy;

    /// Integers `at..at + 16` of a row of `len`.
    ///
    /// # Safety
    /// - `row` is `2 * len` bytes that nothing else refers to, and `at + 16 <= len`.
    unsafe fn put(s: S, x: S::I, row: *mut u8, len: usize, at: usize);
    /// Integers `4 * at..4 * at + 4` of a row of `len`.
    ///
    /// # Safety
    /// - `row` is `2 * len` bytes of [`Precision::put`], and `4 * at + 4 <= len`.
    unsafe fn quad(s: S, row: *const u8, len: usize, at: usize) -> Self::Quad;
    fn zero(s: S) -> Self::Acc;
    fn dot(s: S, acc: Self::Acc, levels: S::Quads, by: Self::Quad) -> Self::Acc;
    /// The sum of two sums.
    fn add(s: S, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// The sums, rounded to f32; `total` is the sum of the integers they were multiplied with.
    fn to_f32(s: S, acc: Self::Acc, total: i32) -> S::F;
}

/// Integers within ±`N`.
#[derive(Clone, Copy)]
pub(super) struct Limit<const N: i32>;

pub(super) const WIDE: i32 = 16256;
pub(super) const NARROW: i32 = 127;

/// Sums of wide integers.
pub(super) type WideAcc<S> = <<S as LevelDot>::Wide as Precision<S>>::Acc;
