//! Sixteen lanes in one AVX-512 register.

use super::Simd;
use std::arch::x86_64::*;

/// Proof of AVX-512 F, BW, DQ, VL with AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// - The CPU has AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Avx512(())
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

impl Simd for Avx512 {
    type V = __m512;
    // 12 x 2 accumulators, 2 loaded vectors and a broadcast, of 32 registers.
    const ROWS: usize = 12;
    const COLS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        op!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> __m512 {
        op!(_mm512_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32; 16]) {
        op!(_mm512_storeu_ps(to.as_mut_ptr(), v))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn if_less(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        op!(_mm512_mask_blend_ps(
            _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b),
            no,
            yes
        ))
    }
    #[inline(always)]
    fn power_of_two(self, t: __m512) -> __m512 {
        op!(_mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_slli_epi32::<23>(_mm512_castps_si512(t)),
            _mm512_set1_epi32(127 << 23),
        )))
    }
    #[inline(always)]
    fn load_half(self, x: &[u8; 32]) -> __m512 {
        op!(_mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn store_half(self, v: __m512, to: &mut [u8; 32]) {
        op!(_mm256_storeu_si256(
            to.as_mut_ptr().cast(),
            _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)
        ))
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        op!({
            let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            super::avx2::sum_eight(eight)
        })
    }
    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        op!({
            let eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            super::avx2::max_eight(eight)
        })
    }
    #[inline(always)]
    fn add_fixed(self, v: __m512, to: &mut [u64; 16]) {
        op!({
            let unit = _mm512_set1_ps(super::super::lanes::FIXED_ONE);
            let v = _mm512_mul_ps(v, unit);
            let low = _mm512_cvtps_epu64(_mm512_castps512_ps256(v));
            let high = _mm512_cvtps_epu64(_mm512_extractf32x8_ps::<1>(v));
            let p: *mut __m512i = to.as_mut_ptr().cast();
            let a = _mm512_add_epi64(_mm512_loadu_si512(p), low);
            let b = _mm512_add_epi64(_mm512_loadu_si512(p.add(1)), high);
            _mm512_storeu_si512(p, a);
            _mm512_storeu_si512(p.add(1), b);
        })
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
    #[inline(always)]
    fn swap_lanes<const H: usize>(self, v: __m512) -> __m512 {
        op!(match H {
            1 => _mm512_permute_ps::<0b10_11_00_01>(v),
            2 => _mm512_permute_ps::<0b01_00_11_10>(v),
            4 => _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v),
            _ => _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v),
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

    type Levels = __m512;
    // 8 x 2 accumulators, 4 vectors of levels, the codes, their table and broadcasts. With 12 rows
    // the compiler keeps some of them in memory.
    const FUSED_ROWS: usize = 8;

    #[inline(always)]
    fn levels(self, levels: &[i8; 16]) -> __m512 {
        self.widen(op!(_mm_loadu_si128(levels.as_ptr().cast())))
    }
    #[inline(always)]
    fn nibbles(self, levels: __m512, x: &[u8; 16]) -> (__m512, __m512) {
        // An index counts by its low four bits.
        op!({
            let x = _mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            (
                _mm512_permutexvar_ps(x, levels),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(x), levels),
            )
        })
    }
    #[inline(always)]
    fn widen(self, x: __m128i) -> __m512 {
        op!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)))
    }
}
