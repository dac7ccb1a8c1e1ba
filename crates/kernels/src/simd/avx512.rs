//! One AVX-512 register: sixteen lanes.

use super::avx2::{max_eight, sum_eight};
use super::isa::{FIXED_ONE, Isa, Simd, ops};
use std::arch::x86_64::*;

/// Proof of AVX-512 F, BW, DQ, VL and VNNI with AVX2, FMA and F16C; and of VBMI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const VBMI: bool>(());

impl<const VBMI: bool> Avx512<VBMI> {
    /// # Safety
    /// - The CPU has AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA and F16C.
    /// - With `VBMI` it has that too.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Avx512(())
    }
}

impl<const VBMI: bool> Isa for Avx512<VBMI> {
    const LANES: usize = 16;
    type F = __m512;
    type I = __m512i;

    ops! {
        fn splat(self, x: f32) -> __m512 = _mm512_set1_ps(x);
        fn neg(self, a: __m512) -> __m512 = _mm512_xor_ps(a, _mm512_set1_ps(-0.0));
        fn add(self, a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(self, a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(self, a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(self, a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn max(self, a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn if_less(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 =
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes);
        fn power_of_two(self, t: __m512) -> __m512 = _mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_slli_epi32::<23>(_mm512_castps_si512(t)),
            _mm512_set1_epi32(127 << 23),
        ));
        fn swap_lanes<const H: usize>(self, v: __m512) -> __m512 = match H {
            1 => _mm512_permute_ps::<0b10_11_00_01>(v),
            2 => _mm512_permute_ps::<0b01_00_11_10>(v),
            4 => _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v),
            _ => _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v),
        };
        fn sum(self, v: __m512) -> f32 =
            sum_eight(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)));
        fn max_lane(self, v: __m512) -> f32 =
            max_eight(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)));

        fn splat_i32(self, x: i32) -> __m512i = _mm512_set1_epi32(x);
        fn add_i32(self, a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn to_i32(self, v: __m512) -> __m512i = _mm512_cvtps_epi32(v);
        fn to_f32(self, a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);

        unsafe fn load_f32(self, p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        unsafe fn store_f32(self, v: __m512, p: *mut f32) = _mm512_storeu_ps(p, v);
        unsafe fn load_f16(self, p: *const u8) -> __m512 =
            _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        unsafe fn store_f16(self, v: __m512, p: *mut u8) =
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        unsafe fn store_i32(self, a: __m512i, p: *mut i32) = _mm512_storeu_si512(p.cast(), a);
        unsafe fn add_fixed(self, v: __m512, p: *mut u64) = {
            let v = _mm512_mul_ps(v, _mm512_set1_ps(FIXED_ONE));
            let low = _mm512_cvtps_epu64(_mm512_castps512_ps256(v));
            let high = _mm512_cvtps_epu64(_mm512_extractf32x8_ps::<1>(v));
            let p: *mut __m512i = p.cast();
            let a = _mm512_add_epi64(_mm512_loadu_si512(p), low);
            let b = _mm512_add_epi64(_mm512_loadu_si512(p.add(1)), high);
            _mm512_storeu_si512(p, a);
            _mm512_storeu_si512(p.add(1), b);
        };

        fn prefetch(self, p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
}

impl<const VBMI: bool> Simd for Avx512<VBMI> {}
