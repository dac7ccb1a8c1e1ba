//! One AVX register: eight lanes, with FMA and F16C.

use super::isa::{FIXED_MAGIC, FIXED_ONE, Isa, Simd, op, ops};
use super::pair::Pair;
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

/// The last three steps of the tree, from eight lanes on.
///
/// # Safety
/// - The CPU has AVX.
#[inline(always)]
pub(super) unsafe fn sum_eight(v: __m256) -> f32 {
    op!({
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    })
}

/// # Safety
/// - The CPU has AVX.
#[inline(always)]
pub(super) unsafe fn max_eight(v: __m256) -> f32 {
    op!({
        let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    })
}

impl Isa for Avx2 {
    const LANES: usize = 8;
    type F = __m256;
    type I = __m256i;

    ops! {
        fn splat(self, x: f32) -> __m256 = _mm256_set1_ps(x);
        fn neg(self, a: __m256) -> __m256 = _mm256_xor_ps(a, _mm256_set1_ps(-0.0));
        fn add(self, a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        fn sub(self, a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        fn mul(self, a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fn div(self, a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        fn max(self, a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        fn if_less(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 =
            _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
        fn power_of_two(self, t: __m256) -> __m256 = _mm256_castsi256_ps(_mm256_add_epi32(
            _mm256_slli_epi32::<23>(_mm256_castps_si256(t)),
            _mm256_set1_epi32(127 << 23),
        ));
        fn swap_lanes<const H: usize>(self, v: __m256) -> __m256 = match H {
            1 => _mm256_permute_ps::<0b10_11_00_01>(v),
            2 => _mm256_permute_ps::<0b01_00_11_10>(v),
            _ => _mm256_permute2f128_ps::<1>(v, v),
        };
        fn sum(self, v: __m256) -> f32 = sum_eight(v);
        fn max_lane(self, v: __m256) -> f32 = max_eight(v);

        fn splat_i32(self, x: i32) -> __m256i = _mm256_set1_epi32(x);
        fn add_i32(self, a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        fn to_i32(self, v: __m256) -> __m256i = _mm256_cvtps_epi32(v);
        fn to_f32(self, a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);

        unsafe fn load_f32(self, p: *const f32) -> __m256 = _mm256_loadu_ps(p);
        unsafe fn store_f32(self, v: __m256, p: *mut f32) = _mm256_storeu_ps(p, v);
        unsafe fn load_f16(self, p: *const u8) -> __m256 =
            _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
        unsafe fn store_f16(self, v: __m256, p: *mut u8) =
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        unsafe fn store_i32(self, a: __m256i, p: *mut i32) = _mm256_storeu_si256(p.cast(), a);
        unsafe fn add_fixed(self, v: __m256, p: *mut u64) = {
            // AVX2 has no conversion to 64-bit integers: adding 2^52 leaves the rounded integer in
            // the low bits of a double.
            let magic = _mm256_set1_pd(FIXED_MAGIC);
            let v = _mm256_mul_ps(v, _mm256_set1_ps(FIXED_ONE));
            let halves = [_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)];
            let mut p: *mut __m256i = p.cast();
            for half in halves {
                let n = _mm256_add_pd(_mm256_cvtps_pd(half), magic);
                let n = _mm256_xor_si256(_mm256_castpd_si256(n), _mm256_castpd_si256(magic));
                _mm256_storeu_si256(p, _mm256_add_epi64(_mm256_loadu_si256(p), n));
                p = p.add(1);
            }
        };

        fn prefetch(self, p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
}

impl Simd for Pair<Avx2> {}
