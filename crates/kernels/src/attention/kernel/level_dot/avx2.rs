//! `vpmaddwd` multiplies i16 and adds neighbours: levels are widened, rows are i16, wide and narrow
//! ones alike, and every lane's sum is in two halves until the end.

use super::{LevelDot, Limit, NARROW, Precision, WIDE};
use crate::simd::avx2::Avx2;
use crate::simd::{Pair, ops};
use std::arch::x86_64::*;

impl LevelDot for Pair<Avx2> {
    // 6 x 1 x 2 accumulator registers, 2 loaded and a broadcast, of 16.
    const ROWS: usize = 6;
    const COLS: usize = 1;
    const CHAINS: usize = 0;

    type Codebook = __m128i;
    /// Four lanes each.
    type Quads = [__m256i; 4];
    type Wide = Limit<WIDE>;
    type Narrow = Limit<NARROW>;

    ops! {
        fn codebook(self, levels: &[i8; 16]) -> __m128i = _mm_loadu_si128(levels.as_ptr().cast());
        fn load_quads(self, x: &[u8; 64]) -> [__m256i; 4] = {
            let p: *const __m128i = x.as_ptr().cast();
            [
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p)),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(1))),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(2))),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(3))),
            ]
        };
        fn look_up_nibbles(self, book: __m128i, x: &[u8; 64]) -> ([__m256i; 4], [__m256i; 4]) = {
            let p: *const __m128i = x.as_ptr().cast();
            let mask = _mm_set1_epi8(15);
            let (mut low, mut high) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
            for i in 0..4 {
                let x = _mm_loadu_si128(p.add(i));
                let a = _mm_shuffle_epi8(book, _mm_and_si128(x, mask));
                let b = _mm_shuffle_epi8(book, _mm_and_si128(_mm_srli_epi16::<4>(x), mask));
                (low[i], high[i]) = (_mm256_cvtepi8_epi16(a), _mm256_cvtepi8_epi16(b));
            }
            (low, high)
        };
        fn look_up(self, levels: &[i8; 32], codes: &mut [u8; 64]) = {
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
        };
    }
}

impl<const N: i32> Precision<Pair<Avx2>> for Limit<N> {
    const LIMIT: f32 = N as f32;
    // 2 x 4 accumulators, 4 vectors of levels and a broadcast, of 16 registers.
    const ROWS: usize = 2;
    // 1 x 4 or 1 x 2 x 4 accumulators, and twice the levels.
    const FUSED: usize = 1;
    type Quad = __m256i;
    type Acc = [__m256i; 4];

    ops! {
        unsafe fn put(_: Pair<Avx2>, x: [__m256i; 2], row: *mut u8, _: usize, at: usize) = {
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(x[0], x[1]));
            _mm256_storeu_si256(row.add(2 * at).cast(), packed);
        };
        unsafe fn quad(_: Pair<Avx2>, row: *const u8, _: usize, at: usize) -> __m256i =
            _mm256_set1_epi64x(row.add(8 * at).cast::<i64>().read_unaligned());
        fn zero(_: Pair<Avx2>) -> Self::Acc = [_mm256_setzero_si256(); 4];
        fn dot(_: Pair<Avx2>, mut acc: Self::Acc, levels: [__m256i; 4], by: __m256i) -> Self::Acc = {
            for i in 0..4 {
                acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(levels[i], by));
            }
            acc
        };
        fn add(_: Pair<Avx2>, mut a: Self::Acc, b: Self::Acc) -> Self::Acc = {
            for i in 0..4 {
                a[i] = _mm256_add_epi32(a[i], b[i]);
            }
            a
        };
        fn to_f32(_: Pair<Avx2>, acc: Self::Acc, _: i32) -> [__m256; 2] = {
            // Halves of a lane are neighbours; adding them leaves the quarters crossed.
            let a = _mm256_hadd_epi32(acc[0], acc[1]);
            let b = _mm256_hadd_epi32(acc[2], acc[3]);
            [
                _mm256_cvtepi32_ps(_mm256_permute4x64_epi64::<0b11_01_10_00>(a)),
                _mm256_cvtepi32_ps(_mm256_permute4x64_epi64::<0b11_01_10_00>(b)),
            ]
        };
    }
}
