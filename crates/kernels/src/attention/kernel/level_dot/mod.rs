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

    /// Sixteen levels, where look-ups find them.
    type Codebook: Copy;
    /// Four levels for each lane.
    type Quads: Copy;
    /// Four integers of a row, in every lane.
    type WideQuad: Copy;
    type NarrowQuad: Copy;
    /// Sums.
    type Wide: Copy;
    type Narrow: Copy;

    /// Rows of a register tile that reads bytes, of wide and of narrow integers.
    const WIDE_ROWS: usize;
    const NARROW_ROWS: usize;
    /// The same where four-bit codes are looked up in registers.
    const FUSED_WIDE: usize;
    const FUSED_NARROW: usize;
    /// Rows up to which low and high codes are summed apart: there are registers for it.
    const CHAINS: usize;

    fn codebook(self, levels: &[i8; 16]) -> Self::Codebook;
    /// Signed bytes.
    fn load_quads(self, x: &[u8; 64]) -> Self::Quads;
    /// The levels of the low and of the high four bits of each byte.
    fn look_up_nibbles(self, codebook: Self::Codebook, x: &[u8; 64]) -> (Self::Quads, Self::Quads);
    /// Codes below 32 become their levels.
    fn look_up(self, levels: &[i8; 32], codes: &mut [u8; 64]);

    /// Integers `at..at + 16` of a row of `len`.
    ///
    /// # Safety
    /// - `row` is `2 * len` bytes that nothing else refers to, and `at + 16 <= len`.
    unsafe fn put_wide(self, x: Self::I, row: *mut u8, len: usize, at: usize);
    /// # Safety
    /// - As for [`LevelDot::put_wide`].
    unsafe fn put_narrow(self, x: Self::I, row: *mut u8, len: usize, at: usize);
    /// Integers `4 * at..4 * at + 4` of a row of `len`.
    ///
    /// # Safety
    /// - `row` is `2 * len` bytes of [`LevelDot::put_wide`], and `4 * at + 4 <= len`.
    unsafe fn wide_quad(self, row: *const u8, len: usize, at: usize) -> Self::WideQuad;
    /// # Safety
    /// - As for [`LevelDot::wide_quad`], with [`LevelDot::put_narrow`].
    unsafe fn narrow_quad(self, row: *const u8, len: usize, at: usize) -> Self::NarrowQuad;

    fn wide_zero(self) -> Self::Wide;
    fn narrow_zero(self) -> Self::Narrow;
    fn wide_dot(self, acc: Self::Wide, levels: Self::Quads, by: Self::WideQuad) -> Self::Wide;
    fn narrow_dot(
        self,
        acc: Self::Narrow,
        levels: Self::Quads,
        by: Self::NarrowQuad,
    ) -> Self::Narrow;
    fn wide_add(self, a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn narrow_add(self, a: Self::Narrow, b: Self::Narrow) -> Self::Narrow;
    /// The sums, rounded to f32; `total` is the sum of the integers they were multiplied with.
    fn wide_to_f32(self, acc: Self::Wide, total: i32) -> Self::F;
    fn narrow_to_f32(self, acc: Self::Narrow, total: i32) -> Self::F;
}
