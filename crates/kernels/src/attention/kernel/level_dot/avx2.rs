//! `vpmaddwd` multiplies i16 and adds neighbours: levels are widened, rows are i16, wide and narrow
//! ones alike, and every lane's sum is in two halves until the end.

use super::LevelDot;
use crate::simd::avx2::Avx2;
use crate::simd::{Pair, op};
use std::arch::x86_64::*;

impl LevelDot for Pair<Avx2> {
    // 6 x 1 x 2 accumulator registers, 2 loaded and a broadcast, of 16.
    const ROWS: usize = 6;
    const COLS: usize = 1;

    type Codebook = __m128i;
    /// Four lanes each.
    type Quads = [__m256i; 4];
    type WideQuad = __m256i;
    type NarrowQuad = __m256i;
    type Wide = [__m256i; 4];
    type Narrow = [__m256i; 4];

    // 2 x 4 accumulators, 4 vectors of levels and a broadcast, of 16 registers.
    const WIDE_ROWS: usize = 2;
    const NARROW_ROWS: usize = 2;
    // 1 x 4 or 1 x 2 x 4 accumulators, and twice the levels.
    const FUSED_WIDE: usize = 1;
    const FUSED_NARROW: usize = 1;
    const CHAINS: usize = 0;

    #[inline(always)]
    fn codebook(self, levels: &[i8; 16]) -> __m128i {
        op!(_mm_loadu_si128(levels.as_ptr().cast()))
    }
    #[inline(always)]
    fn load_quads(self, x: &[u8; 64]) -> [__m256i; 4] {
        op!({
            let p: *const __m128i = x.as_ptr().cast();
            [
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p)),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(1))),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(2))),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(3))),
            ]
        })
    }
    #[inline(always)]
    fn look_up_nibbles(self, codebook: __m128i, x: &[u8; 64]) -> ([__m256i; 4], [__m256i; 4]) {
        op!({
            let p: *const __m128i = x.as_ptr().cast();
            let mask = _mm_set1_epi8(15);
            let (mut low, mut high) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
            for i in 0..4 {
                let x = _mm_loadu_si128(p.add(i));
                let a = _mm_shuffle_epi8(codebook, _mm_and_si128(x, mask));
                let b = _mm_shuffle_epi8(codebook, _mm_and_si128(_mm_srli_epi16::<4>(x), mask));
                (low[i], high[i]) = (_mm256_cvtepi8_epi16(a), _mm256_cvtepi8_epi16(b));
            }
            (low, high)
        })
    }
    #[inline(always)]
    fn look_up(self, levels: &[i8; 32], codes: &mut [u8; 64]) {
        op!({
            let table: *const __m128i = levels.as_ptr().cast();
            let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(table));
            let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(1)));
            let p: *mut __m256i = codes.as_mut_ptr().cast();
            for i in 0..2 {
                let x = _mm256_loadu_si256(p.add(i));
                // Bit 4 of a code becomes the top bit, which chooses.
                let which = _mm256_slli_epi16::<3>(x);
                let (a, b) = (_mm256_shuffle_epi8(low, x), _mm256_shuffle_epi8(high, x));
                _mm256_storeu_si256(p.add(i), _mm256_blendv_epi8(a, b, which));
            }
        })
    }

    #[inline(always)]
    unsafe fn put_wide(self, x: Self::I, row: *mut u8, _: usize, at: usize) {
        op!({
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(x[0], x[1]));
            _mm256_storeu_si256(row.add(2 * at).cast(), packed);
        })
    }
    #[inline(always)]
    unsafe fn put_narrow(self, x: Self::I, row: *mut u8, len: usize, at: usize) {
        // SAFETY: the caller's promise is the same.
        unsafe { self.put_wide(x, row, len, at) }
    }
    #[inline(always)]
    unsafe fn wide_quad(self, row: *const u8, _: usize, at: usize) -> __m256i {
        op!(_mm256_set1_epi64x(
            row.add(8 * at).cast::<i64>().read_unaligned()
        ))
    }
    #[inline(always)]
    unsafe fn narrow_quad(self, row: *const u8, len: usize, at: usize) -> __m256i {
        // SAFETY: the caller's promise is the same.
        unsafe { self.wide_quad(row, len, at) }
    }

    #[inline(always)]
    fn wide_zero(self) -> [__m256i; 4] {
        op!([_mm256_setzero_si256(); 4])
    }
    #[inline(always)]
    fn narrow_zero(self) -> [__m256i; 4] {
        self.wide_zero()
    }
    #[inline(always)]
    fn wide_dot(self, mut acc: [__m256i; 4], levels: [__m256i; 4], by: __m256i) -> [__m256i; 4] {
        for i in 0..4 {
            acc[i] = op!(_mm256_add_epi32(acc[i], _mm256_madd_epi16(levels[i], by)));
        }
        acc
    }
    #[inline(always)]
    fn narrow_dot(self, acc: [__m256i; 4], levels: [__m256i; 4], by: __m256i) -> [__m256i; 4] {
        self.wide_dot(acc, levels, by)
    }
    #[inline(always)]
    fn wide_add(self, mut a: [__m256i; 4], b: [__m256i; 4]) -> [__m256i; 4] {
        for i in 0..4 {
            a[i] = op!(_mm256_add_epi32(a[i], b[i]));
        }
        a
    }
    #[inline(always)]
    fn narrow_add(self, a: [__m256i; 4], b: [__m256i; 4]) -> [__m256i; 4] {
        self.wide_add(a, b)
    }
    #[inline(always)]
    fn wide_to_f32(self, acc: [__m256i; 4], _: i32) -> Self::F {
        op!({
            // Halves of a lane are neighbours; adding them leaves the quarters crossed.
            let a = _mm256_hadd_epi32(acc[0], acc[1]);
            let b = _mm256_hadd_epi32(acc[2], acc[3]);
            [
                _mm256_cvtepi32_ps(_mm256_permute4x64_epi64::<0b11_01_10_00>(a)),
                _mm256_cvtepi32_ps(_mm256_permute4x64_epi64::<0b11_01_10_00>(b)),
            ]
        })
    }
    #[inline(always)]
    fn narrow_to_f32(self, acc: [__m256i; 4], total: i32) -> Self::F {
        self.wide_to_f32(acc, total)
    }
}
