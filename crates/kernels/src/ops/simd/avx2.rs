//! Sixteen lanes in two AVX registers, with FMA and F16C.

use super::Simd;
use std::arch::x86_64::*;

/// Proof of AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// - The CPU has AVX2, FMA and F16C.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Avx2(())
    }
}

/// An intrinsic that needs nothing but its instruction.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: a token is proof of the instructions; loads and stores are of whole arrays
        // behind references.
        unsafe { $e }
    };
}

/// The last three steps of the tree, from eight lanes on.
///
/// # Safety
/// - The CPU has AVX.
#[inline(always)]
pub(crate) unsafe fn sum_eight(v: __m256) -> f32 {
    op!({
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    })
}

/// # Safety
/// - The CPU has AVX.
#[inline(always)]
pub(crate) unsafe fn max_eight(v: __m256) -> f32 {
    op!({
        let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    })
}

type Pair = (__m256, __m256);

impl Simd for Avx2 {
    type V = Pair;
    // 6 x 1 x 2 accumulator registers, 2 loaded and a broadcast, of 16.
    const ROWS: usize = 6;
    const COLS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        op!((_mm256_set1_ps(x), _mm256_set1_ps(x)))
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Pair {
        op!((
            _mm256_loadu_ps(x.as_ptr()),
            _mm256_loadu_ps(x.as_ptr().add(8))
        ))
    }
    #[inline(always)]
    fn store(self, v: Pair, to: &mut [f32; 16]) {
        op!({
            _mm256_storeu_ps(to.as_mut_ptr(), v.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), v.1);
        })
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        op!((_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        op!((_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        op!((_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        op!((_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        op!((
            _mm256_fmadd_ps(a.0, b.0, c.0),
            _mm256_fmadd_ps(a.1, b.1, c.1)
        ))
    }
    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        op!((_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)))
    }
    #[inline(always)]
    fn if_less(self, a: Pair, b: Pair, yes: Pair, no: Pair) -> Pair {
        op!((
            _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
            _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
        ))
    }
    #[inline(always)]
    fn power_of_two(self, t: Pair) -> Pair {
        op!({
            let bias = _mm256_set1_epi32(127 << 23);
            let a = _mm256_slli_epi32::<23>(_mm256_castps_si256(t.0));
            let b = _mm256_slli_epi32::<23>(_mm256_castps_si256(t.1));
            (
                _mm256_castsi256_ps(_mm256_add_epi32(a, bias)),
                _mm256_castsi256_ps(_mm256_add_epi32(b, bias)),
            )
        })
    }
    #[inline(always)]
    fn load_half(self, x: &[u8; 32]) -> Pair {
        op!((
            _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(16).cast())),
        ))
    }
    #[inline(always)]
    fn store_half(self, v: Pair, to: &mut [u8; 32]) {
        op!({
            let p: *mut __m128i = to.as_mut_ptr().cast();
            _mm_storeu_si128(p, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
            _mm_storeu_si128(p.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1));
        })
    }
    #[inline(always)]
    fn sum(self, v: Pair) -> f32 {
        op!(sum_eight(_mm256_add_ps(v.0, v.1)))
    }
    #[inline(always)]
    fn max_lane(self, v: Pair) -> f32 {
        op!(max_eight(_mm256_max_ps(v.0, v.1)))
    }
    #[inline(always)]
    fn add_fixed(self, v: Pair, to: &mut [u64; 16]) {
        op!({
            // No conversion to 64-bit integers here: adding 2^52 leaves the rounded integer in the
            // low bits of a double.
            let unit = _mm256_set1_ps(super::super::lanes::FIXED_ONE);
            let magic = _mm256_set1_pd(super::super::lanes::FIXED_MAGIC);
            let (a, b) = (_mm256_mul_ps(v.0, unit), _mm256_mul_ps(v.1, unit));
            let quarters = [
                _mm256_castps256_ps128(a),
                _mm256_extractf128_ps::<1>(a),
                _mm256_castps256_ps128(b),
                _mm256_extractf128_ps::<1>(b),
            ];
            let mut p: *mut __m256i = to.as_mut_ptr().cast();
            for quarter in quarters {
                let n = _mm256_add_pd(_mm256_cvtps_pd(quarter), magic);
                let n = _mm256_xor_si256(_mm256_castpd_si256(n), _mm256_castpd_si256(magic));
                _mm256_storeu_si256(p, _mm256_add_epi64(_mm256_loadu_si256(p), n));
                p = p.add(1);
            }
        })
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
    #[inline(always)]
    fn swap_lanes<const H: usize>(self, v: Pair) -> Pair {
        op!(match H {
            1 => (
                _mm256_permute_ps::<0b10_11_00_01>(v.0),
                _mm256_permute_ps::<0b10_11_00_01>(v.1),
            ),
            2 => (
                _mm256_permute_ps::<0b01_00_11_10>(v.0),
                _mm256_permute_ps::<0b01_00_11_10>(v.1),
            ),
            4 => (
                _mm256_permute2f128_ps::<1>(v.0, v.0),
                _mm256_permute2f128_ps::<1>(v.1, v.1),
            ),
            _ => (v.1, v.0),
        })
    }

    // Codes of keys and values.

    type Bytes = __m128i;

    #[inline(always)]
    fn bytes(self, x: &[u8; 16]) -> __m128i {
        op!(_mm_loadu_si128(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn field(self, x: __m128i, shift: usize, mask: u8) -> __m128i {
        // Shifted by pairs of bytes: what comes over from the neighbour is masked away.
        op!(_mm_and_si128(
            _mm_srl_epi16(x, _mm_cvtsi32_si128(shift as i32)),
            _mm_set1_epi8(mask as i8)
        ))
    }
    #[inline(always)]
    fn join(self, low: __m128i, high: __m128i, shift: usize) -> __m128i {
        op!(_mm_or_si128(
            low,
            _mm_sll_epi16(high, _mm_cvtsi32_si128(shift as i32))
        ))
    }
    #[inline(always)]
    fn level(self, levels: &[i8; 32], codes: __m128i) -> __m128i {
        op!({
            let low = _mm_loadu_si128(levels.as_ptr().cast());
            let high = _mm_loadu_si128(levels.as_ptr().add(16).cast());
            // Bit 4 of a code becomes the top bit, which chooses.
            let which = _mm_slli_epi16::<3>(codes);
            _mm_blendv_epi8(
                _mm_shuffle_epi8(low, codes),
                _mm_shuffle_epi8(high, codes),
                which,
            )
        })
    }

    type Levels = __m128i;
    // 4 x 1 x 2 accumulator registers, 4 of levels, their table, a mask and a broadcast.
    const FUSED_ROWS: usize = 4;

    #[inline(always)]
    fn levels(self, levels: &[i8; 16]) -> __m128i {
        op!(_mm_loadu_si128(levels.as_ptr().cast()))
    }
    #[inline(always)]
    fn nibbles(self, levels: __m128i, x: &[u8; 16]) -> (Pair, Pair) {
        op!({
            let x = _mm_loadu_si128(x.as_ptr().cast());
            let mask = _mm_set1_epi8(15);
            let low = _mm_shuffle_epi8(levels, _mm_and_si128(x, mask));
            let high = _mm_shuffle_epi8(levels, _mm_and_si128(_mm_srli_epi16::<4>(x), mask));
            (self.widen(low), self.widen(high))
        })
    }
    #[inline(always)]
    fn widen(self, x: __m128i) -> Pair {
        op!((
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x))),
        ))
    }
}
