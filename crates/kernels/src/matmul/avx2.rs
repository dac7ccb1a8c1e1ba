//! `x86-avx2`: a strip in two halves of 8 rows, one register each.
//!
//! There is no instruction that adds four byte products at once; two steps do, through i16. They
//! are exact: an unsigned code is at most 63 and an activation at most 127 in size, so a pair of
//! products stays below 16,003; a signed code is multiplied as its size with the activation
//! carrying the sign, at most 2 * 128 * 127 = 32,512.

use std::arch::x86_64::*;

use super::isa::{CodeDot, Weight, for_type};
use super::kernel;
use super::task::Task;
use crate::simd::avx2::Avx2;
use crate::simd::ops;

/// All strips of a task.
///
/// # Safety
/// The CPU has the features of [`crate::cpu::BackendKind::Avx2`].
pub(super) unsafe fn strips(task: &Task<'_>) {
    // SAFETY: the caller's promise.
    unsafe { for_type!(task.ty, enabled, (task)) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn enabled<T: Weight>(task: &Task<'_>) {
    // SAFETY: this function runs only where the features are enabled.
    let token = unsafe { Avx2::assume() };
    kernel::strips::<_, T>(token, task);
}

impl CodeDot for Avx2 {
    const BIASED: bool = false;
    // 16 registers: the codes of a group already spill, and are read back from L1.
    const INT8_ROWS_MAX: usize = 4;
    const F32_ROWS: usize = 2;

    type B = __m256i;

    ops! {
        fn and_i32(self, a: __m256i, mask: i32) -> __m256i =
            _mm256_and_si256(a, _mm256_set1_epi32(mask));
        fn shr4_i32(self, a: __m256i) -> __m256i = _mm256_srli_epi32::<4>(a);

        fn splat_u8(self, x: u8) -> __m256i = _mm256_set1_epi8(x as i8);
        fn and(self, a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        fn or(self, a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        fn xor(self, a: __m256i, b: __m256i) -> __m256i = _mm256_xor_si256(a, b);
        fn shl(self, a: __m256i, n: usize) -> __m256i = match n {
            1 => _mm256_slli_epi16::<1>(a),
            2 => _mm256_slli_epi16::<2>(a),
            3 => _mm256_slli_epi16::<3>(a),
            _ => _mm256_slli_epi16::<4>(a),
        };
        fn shr(self, a: __m256i, n: usize) -> __m256i = match n {
            1 => _mm256_srli_epi16::<1>(a),
            2 => _mm256_srli_epi16::<2>(a),
            3 => _mm256_srli_epi16::<3>(a),
            4 => _mm256_srli_epi16::<4>(a),
            5 => _mm256_srli_epi16::<5>(a),
            _ => _mm256_srli_epi16::<6>(a),
        };
        fn lookup(self, table: &[i8; 16], a: __m256i) -> __m256i = {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, a)
        };
        fn byte(self, a: __m256i, j: usize, signed: bool) -> __m256 = {
            // To the top of the lane, then down with or without the sign.
            let top = match j {
                0 => _mm256_slli_epi32::<24>(a),
                1 => _mm256_slli_epi32::<16>(a),
                2 => _mm256_slli_epi32::<8>(a),
                _ => a,
            };
            _mm256_cvtepi32_ps(if signed {
                _mm256_srai_epi32::<24>(top)
            } else {
                _mm256_srli_epi32::<24>(top)
            })
        };
        fn dot(self, acc: __m256i, codes: __m256i, quad: i32, signed: bool) -> __m256i = {
            let quad = _mm256_set1_epi32(quad);
            let pairs = if signed {
                _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(quad, codes))
            } else {
                _mm256_maddubs_epi16(codes, quad)
            };
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        };

        unsafe fn load_bytes(self, p: *const u8) -> __m256i = _mm256_loadu_si256(p.cast());
        unsafe fn load_bf16(self, p: *const u8) -> __m256 = {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        };
        unsafe fn load_u8(self, p: *const u8) -> __m256i =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
        unsafe fn load_i8(self, p: *const u8) -> __m256i =
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()));
    }
}
