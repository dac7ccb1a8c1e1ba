//! `x86-avx512-vnni`: a strip's 16 rows in one register, `vpdpbusd` for the dot products.

use std::arch::x86_64::*;

use super::isa::{CodeDot, Weight, for_type};
use super::kernel;
use super::task::Task;
use crate::simd::avx512::Avx512;
use crate::simd::ops;

/// All strips of a task.
///
/// # Safety
/// The CPU has the features of [`crate::cpu::BackendKind::Avx512`].
pub(super) unsafe fn strips(task: &Task<'_>) {
    // SAFETY: the caller's promise.
    unsafe { for_type!(task.ty, enabled, (task)) }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn enabled<T: Weight>(task: &Task<'_>) {
    // SAFETY: this function runs only where the features are enabled.
    let token = unsafe { Avx512::<false>::assume() };
    kernel::strips::<_, T>(token, task);
}

impl CodeDot for Avx512<false> {
    const BIASED: bool = true;
    // 8 vectors of codes, scale, minimum, and per row a sum and a dot: 26 of 32 registers.
    const INT8_ROWS_MAX: usize = 8;
    // 4 sums per row: 16 registers, the rest for unpacking.
    const F32_ROWS: usize = 4;

    type B = __m512i;

    ops! {
        fn and_i32(self, a: __m512i, mask: i32) -> __m512i =
            _mm512_and_si512(a, _mm512_set1_epi32(mask));
        fn shr4_i32(self, a: __m512i) -> __m512i = _mm512_srli_epi32::<4>(a);

        fn splat_u8(self, x: u8) -> __m512i = _mm512_set1_epi8(x as i8);
        fn and(self, a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        fn or(self, a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        fn xor(self, a: __m512i, b: __m512i) -> __m512i = _mm512_xor_si512(a, b);
        fn shl(self, a: __m512i, n: usize) -> __m512i = match n {
            1 => _mm512_slli_epi16::<1>(a),
            2 => _mm512_slli_epi16::<2>(a),
            3 => _mm512_slli_epi16::<3>(a),
            _ => _mm512_slli_epi16::<4>(a),
        };
        fn shr(self, a: __m512i, n: usize) -> __m512i = match n {
            1 => _mm512_srli_epi16::<1>(a),
            2 => _mm512_srli_epi16::<2>(a),
            3 => _mm512_srli_epi16::<3>(a),
            4 => _mm512_srli_epi16::<4>(a),
            5 => _mm512_srli_epi16::<5>(a),
            _ => _mm512_srli_epi16::<6>(a),
        };
        fn lookup(self, table: &[i8; 16], a: __m512i) -> __m512i = {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, a)
        };
        fn byte(self, a: __m512i, j: usize, _signed: bool) -> __m512 = {
            // Codes are always unsigned here.
            let low = match j {
                0 => a,
                1 => _mm512_srli_epi32::<8>(a),
                2 => _mm512_srli_epi32::<16>(a),
                _ => _mm512_srli_epi32::<24>(a),
            };
            _mm512_cvtepi32_ps(_mm512_and_si512(low, _mm512_set1_epi32(255)))
        };
        fn dot(self, acc: __m512i, codes: __m512i, quad: i32, _signed: bool) -> __m512i =
            _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(quad));

        unsafe fn load_bytes(self, p: *const u8) -> __m512i = _mm512_loadu_si512(p.cast());
        unsafe fn load_bf16(self, p: *const u8) -> __m512 = {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        };
        unsafe fn load_u8(self, p: *const u8) -> __m512i =
            _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
        unsafe fn load_i8(self, p: *const u8) -> __m512i =
            _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()));
    }
}
