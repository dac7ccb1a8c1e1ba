//! `vpdpbusd` wants one side unsigned: levels are biased by 128. A row is its high parts and then its
//! low parts, a byte each.

use super::{LevelDot, Limit, NARROW, PART_BITS, Precision, WIDE};
use crate::simd::avx512::Avx512;
use crate::simd::{op, ops};
use std::arch::x86_64::*;

/// Levels are biased by two to this power.
const BIAS_BITS: u32 = 7;

impl<const VBMI: bool> LevelDot for Avx512<VBMI> {
    // 12 x 2 accumulators, 2 loaded vectors and a broadcast, of 32 registers.
    const ROWS: usize = 12;
    const COLS: usize = 2;
    const CHAINS: usize = 4;

    type Codebook = __m512i;
    type Quads = __m512i;
    type Wide = Limit<WIDE>;
    type Narrow = Limit<NARROW>;

    ops! {
        fn codebook(self, levels: &[i8; 16]) -> __m512i =
            biased(_mm512_broadcast_i32x4(_mm_loadu_si128(levels.as_ptr().cast())));
        fn load_quads(self, x: &[u8; 64]) -> __m512i =
            biased(_mm512_loadu_si512(x.as_ptr().cast()));
        fn look_up_nibbles(self, codebook: __m512i, x: &[u8; 64]) -> (__m512i, __m512i) = {
            let low = _mm512_loadu_si512(x.as_ptr().cast());
            let high = _mm512_srli_epi16::<4>(low);
            if VBMI {
                // The codebook is there four times, so the two bits above a code make no difference, and the
                // look-up does not see the others: nothing has to be masked.
                let found = |codes| _mm512_permutexvar_epi8(codes, codebook);
                (found(low), found(high))
            } else {
                let code = _mm512_set1_epi8(0x0f);
                let found = |codes| _mm512_shuffle_epi8(codebook, _mm512_and_si512(codes, code));
                (found(low), found(high))
            }
        };
        fn look_up(self, levels: &[i8; 32], codes: &mut [u8; 64]) = {
            let table = _mm256_loadu_si256(levels.as_ptr().cast());
            let p: *mut __m512i = codes.as_mut_ptr().cast();
            let codes = _mm512_loadu_si512(p);
            let found = if VBMI {
                _mm512_permutexvar_epi8(codes, _mm512_castsi256_si512(table))
            } else {
                // Sixteen levels at a time; the fifth bit says which.
                let low = _mm512_broadcast_i32x4(_mm256_castsi256_si128(table));
                let high = _mm512_broadcast_i32x4(_mm256_extracti128_si256::<1>(table));
                _mm512_mask_blend_epi8(
                    _mm512_test_epi8_mask(codes, _mm512_set1_epi8(16)),
                    _mm512_shuffle_epi8(low, codes),
                    _mm512_shuffle_epi8(high, codes),
                )
            };
            _mm512_storeu_si512(p, found);
        };
    }
}

impl<const VBMI: bool> Precision<Avx512<VBMI>> for Limit<WIDE> {
    const LIMIT: f32 = WIDE as f32;
    // 6 x 2 x 2 accumulators, 2 vectors of levels and broadcasts, of 32 registers.
    const ROWS: usize = 6;
    // 5 x 2 x 2 accumulators, 2 vectors of levels, and what makes them.
    const FUSED: usize = 5;
    type Quad = (__m512i, __m512i);
    type Acc = (__m512i, __m512i);

    ops! {
        unsafe fn put(_: Avx512<VBMI>, x: __m512i, row: *mut u8, len: usize, at: usize) = {
            // The high part is the second byte of twice the number. Both parts are looked up at once.
            let twice = _mm512_slli_epi32::<{ 8 - PART_BITS }>(x);
            let parts = _mm512_mask_blend_epi8(0x1111_1111_1111_1111, twice, x);
            let both = nth_bytes::<VBMI, 1, 0>(parts);
            let low = _mm_and_si128(_mm256_extracti128_si256::<1>(both), _mm_set1_epi8(127));
            _mm_storeu_si128(row.add(at).cast(), _mm256_castsi256_si128(both));
            _mm_storeu_si128(row.add(len + at).cast(), low);
        };
        unsafe fn quad(_: Avx512<VBMI>, row: *const u8, len: usize, at: usize) -> Self::Quad = (
            _mm512_set1_epi32(row.add(4 * at).cast::<i32>().read_unaligned()),
            _mm512_set1_epi32(row.add(len + 4 * at).cast::<i32>().read_unaligned()),
        );
        fn zero(_: Avx512<VBMI>) -> Self::Acc = (_mm512_setzero_si512(), _mm512_setzero_si512());
        fn dot(_: Avx512<VBMI>, acc: Self::Acc, levels: __m512i, by: Self::Quad) -> Self::Acc = (
            _mm512_dpbusd_epi32(acc.0, levels, by.0),
            _mm512_dpbusd_epi32(acc.1, levels, by.1),
        );
        fn add(_: Avx512<VBMI>, a: Self::Acc, b: Self::Acc) -> Self::Acc =
            (_mm512_add_epi32(a.0, b.0), _mm512_add_epi32(a.1, b.1));
        fn to_f32(s: Avx512<VBMI>, acc: Self::Acc, total: i32) -> __m512 = {
            let sum = _mm512_add_epi32(_mm512_slli_epi32::<PART_BITS>(acc.0), acc.1);
            Limit::<NARROW>::to_f32(s, sum, total)
        };
    }
}

impl<const VBMI: bool> Precision<Avx512<VBMI>> for Limit<NARROW> {
    const LIMIT: f32 = NARROW as f32;
    // 12 x 2 accumulators, 2 vectors of levels and a broadcast, of 32 registers.
    const ROWS: usize = 12;
    // 8 x 2 accumulators, 4 vectors of levels, and what makes them.
    const FUSED: usize = 8;
    type Quad = __m512i;
    type Acc = __m512i;

    ops! {
        unsafe fn put(_: Avx512<VBMI>, x: __m512i, row: *mut u8, _: usize, at: usize) = {
            let low = _mm256_castsi256_si128(nth_bytes::<VBMI, 0, 0>(x));
            _mm_storeu_si128(row.add(at).cast(), low)
        };
        unsafe fn quad(_: Avx512<VBMI>, row: *const u8, _: usize, at: usize) -> __m512i =
            _mm512_set1_epi32(row.add(4 * at).cast::<i32>().read_unaligned());
        fn zero(_: Avx512<VBMI>) -> __m512i = _mm512_setzero_si512();
        fn dot(_: Avx512<VBMI>, acc: __m512i, levels: __m512i, by: __m512i) -> __m512i =
            _mm512_dpbusd_epi32(acc, levels, by);
        fn add(_: Avx512<VBMI>, a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn to_f32(_: Avx512<VBMI>, acc: __m512i, total: i32) -> __m512 = {
            let bias = _mm512_set1_epi32(total << BIAS_BITS);
            _mm512_cvtepi32_ps(_mm512_sub_epi32(acc, bias))
        };
    }
}

/// Signed bytes, biased.
#[inline(always)]
fn biased(x: __m512i) -> __m512i {
    op!(_mm512_xor_si512(x, _mm512_set1_epi8(i8::MIN)))
}

/// Byte `N` of each lane and then byte `M`: one look-up with VBMI, where a conversion takes two steps.
#[inline(always)]
fn nth_bytes<const VBMI: bool, const N: u8, const M: u8>(x: __m512i) -> __m256i {
    const fn places(n: u8, m: u8) -> [u8; 64] {
        let mut places = [0; 64];
        let mut i = 0;
        while i < 16 {
            places[i] = 4 * i as u8 + n;
            places[16 + i] = 4 * i as u8 + m;
            i += 1;
        }
        places
    }
    /// In each quarter four bytes `n` and four bytes `m`.
    const fn quarters(n: u8, m: u8) -> [u8; 64] {
        let mut places = [0; 64];
        let mut i = 0;
        while i < 64 {
            let from = if i % 8 < 4 { n } else { m };
            places[i] = 4 * (i as u8 % 4) + from;
            i += 1;
        }
        places
    }
    op!(if VBMI {
        let places = const { places(N, M) };
        let places = _mm512_loadu_si512(places.as_ptr().cast());
        _mm512_castsi512_si256(_mm512_permutexvar_epi8(places, x))
    } else {
        let places = const { quarters(N, M) };
        let quads = _mm512_shuffle_epi8(x, _mm512_loadu_si512(places.as_ptr().cast()));
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, quads))
    })
}
