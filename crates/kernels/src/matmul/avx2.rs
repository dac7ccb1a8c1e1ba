//! `x86-avx2`: a strip in two halves of 8 rows, one register each.
//!
//! There is no instruction that adds four byte products at once; two steps do, through i16. They
//! are exact: an unsigned code is at most 63 and an activation at most 127 in size, so a pair of
//! products stays below 16,003; a signed code is multiplied as its size with the activation
//! carrying the sign, at most 2 * 128 * 127 = 32,512.

use std::arch::x86_64::*;

use super::Task;
use super::isa::{Float, Isa, Quant, for_type};
use super::kernel;

/// Proof that the CPU has the features of [`crate::cpu::Kind::Avx2`].
#[derive(Clone, Copy)]
struct Avx2(());

/// All strips of a task.
///
/// # Safety
/// The CPU has the features of [`crate::cpu::Kind::Avx2`].
pub(super) unsafe fn strips(task: &Task<'_>) {
    // SAFETY: the caller's.
    unsafe { for_type!(task.ty, quant, float, (task)) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn quant<T: Quant>(task: &Task<'_>) {
    kernel::quant_strips::<Avx2, T>(Avx2(()), task);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn float<T: Float>(task: &Task<'_>) {
    kernel::float_strips::<Avx2, T>(Avx2(()), task);
}

// SAFETY of every block below: an `Avx2` exists only inside the two functions above, which run
// only where the features are; loads and stores pass on their caller's promise.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: see above the macro.
        unsafe { $e }
    };
}

impl Isa for Avx2 {
    const LANES: usize = 8;
    const BIASED: bool = false;
    // 16 registers: the codes of a group already spill, and are read back from L1.
    const INT8_ROWS_MAX: usize = 4;
    const F32_ROWS: usize = 2;

    type F = __m256;
    type I = __m256i;
    type B = __m256i;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        op!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn neg(self, a: __m256) -> __m256 {
        op!(_mm256_xor_ps(a, _mm256_set1_ps(-0.0)))
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        op!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> __m256i {
        op!(_mm256_set1_epi32(x))
    }
    #[inline(always)]
    fn add_i(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn and_i(self, a: __m256i, mask: i32) -> __m256i {
        op!(_mm256_and_si256(a, _mm256_set1_epi32(mask)))
    }
    #[inline(always)]
    fn shr4_i(self, a: __m256i) -> __m256i {
        op!(_mm256_srli_epi32::<4>(a))
    }
    #[inline(always)]
    fn to_f32(self, a: __m256i) -> __m256 {
        op!(_mm256_cvtepi32_ps(a))
    }

    #[inline(always)]
    fn splat_b(self, x: u8) -> __m256i {
        op!(_mm256_set1_epi8(x as i8))
    }
    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_xor_si256(a, b))
    }
    #[inline(always)]
    fn shl(self, a: __m256i, n: usize) -> __m256i {
        match n {
            1 => op!(_mm256_slli_epi16::<1>(a)),
            2 => op!(_mm256_slli_epi16::<2>(a)),
            3 => op!(_mm256_slli_epi16::<3>(a)),
            _ => op!(_mm256_slli_epi16::<4>(a)),
        }
    }
    #[inline(always)]
    fn shr(self, a: __m256i, n: usize) -> __m256i {
        match n {
            1 => op!(_mm256_srli_epi16::<1>(a)),
            2 => op!(_mm256_srli_epi16::<2>(a)),
            3 => op!(_mm256_srli_epi16::<3>(a)),
            4 => op!(_mm256_srli_epi16::<4>(a)),
            5 => op!(_mm256_srli_epi16::<5>(a)),
            _ => op!(_mm256_srli_epi16::<6>(a)),
        }
    }
    #[inline(always)]
    fn lookup(self, table: &[i8; 16], a: __m256i) -> __m256i {
        op!({
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, a)
        })
    }
    #[inline(always)]
    fn byte(self, a: __m256i, j: usize, signed: bool) -> __m256 {
        // To the top of the lane, then down with or without the sign.
        let top = match j {
            0 => op!(_mm256_slli_epi32::<24>(a)),
            1 => op!(_mm256_slli_epi32::<16>(a)),
            2 => op!(_mm256_slli_epi32::<8>(a)),
            _ => a,
        };
        op!(_mm256_cvtepi32_ps(if signed {
            _mm256_srai_epi32::<24>(top)
        } else {
            _mm256_srli_epi32::<24>(top)
        }))
    }
    #[inline(always)]
    fn dot(self, acc: __m256i, codes: __m256i, quad: i32, signed: bool) -> __m256i {
        op!({
            let quad = _mm256_set1_epi32(quad);
            let pairs = if signed {
                _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(quad, codes))
            } else {
                _mm256_maddubs_epi16(codes, quad)
            };
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }

    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> __m256i {
        op!(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_f32(self, p: *const u8) -> __m256 {
        op!(_mm256_loadu_ps(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> __m256 {
        op!(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> __m256 {
        op!({
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        })
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m256i {
        op!(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> __m256i {
        op!(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())))
    }
    #[inline(always)]
    unsafe fn store(self, a: __m256, p: *mut f32) {
        op!(_mm256_storeu_ps(p, a))
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
}
