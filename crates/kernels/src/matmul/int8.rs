//! Activations rounded to int8, 32 values to a scale.
//!
//! One group of 32 values and what a product needs to know about it fill one cache line:
//!
//! ```text
//! 0          32      36        40            48       52              60
//! | 32 codes | scale | -sum 32 | -sum 16 × 2 | offset | offset 16 × 2 | 0 |
//! ```
//!
//! `value ≈ scale * code`, codes in -127..=127; the sums are of codes, exact, negated so that a
//! weight's zero point (a power of two) is subtracted by a shift; an offset is `scale * sum`, what
//! a weight's minimum is multiplied with. A row is a run of lines, row after row: also what an AMX
//! A tile is loaded from, with the row as stride.
//!
//! Rounding: scale = absmax / 127, code = x * (127 / absmax) to the nearest even; zeros below
//! [`TINY`]. A group with a NaN or an infinity gets a NaN or infinite scale and unspecified codes,
//! so that a broken model shows in the output.

use crate::Exec;
use crate::cpu::BackendKind;
use crate::format::gguf::GROUP;
use crate::threads::chunks_mut;

/// One group of a row; see the module's drawing.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    pub codes: [i8; GROUP],
    pub scale: f32,
    pub neg_sum: i32,
    pub neg_sums: [i32; 2],
    pub offset: f32,
    pub offsets: [f32; 2],
    padding: u32,
}

/// Rows of int8 activations in memory that is kept from call to call.
#[derive(Clone, Debug, Default)]
pub struct Int8Rows {
    lines: Vec<Line>, // (rows, cols / 32)
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Int8Rows {
    /// Makes room for `rows` rows of `cols` values, keeping what there is, so that
    /// [`Int8Rows::quantise`] does not allocate.
    pub fn reserve(&mut self, rows: usize, cols: usize) {
        let count = rows * cols.div_ceil(GROUP);
        if let Some(more) = count.checked_sub(self.lines.len()) {
            self.lines.reserve_exact(more);
            self.lines.resize(count, Line::default());
        }
    }

    /// Bytes that room for `rows` rows of `cols` values takes.
    pub fn bytes_for(rows: usize, cols: usize) -> usize {
        rows * cols.div_ceil(GROUP) * size_of::<Line>()
    }

    /// Bytes held, for the ledger.
    pub fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    /// Rounds `x` (rows, cols) to int8. `cols` is a multiple of 32. Allocates only beyond the
    /// capacity.
    pub fn quantise(&mut self, exec: Exec<'_>, x: &[f32], rows: usize, cols: usize) {
        assert_eq!(x.len(), rows * cols);
        assert!(cols.is_multiple_of(GROUP), "{cols} columns");
        let count = x.len() / GROUP;
        if self.lines.len() < count {
            self.lines.resize(count, Line::default());
        }
        (self.rows, self.cols) = (rows, cols);
        let groups = x.as_chunks::<GROUP>().0;
        chunks_mut(
            exec.pool,
            &mut self.lines[..count],
            UNIT_LINES,
            &|i, lines: &mut [Line]| {
                let groups = &groups[i * UNIT_LINES..][..lines.len()];
                match exec.backend.kind() {
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the backend exists, so the CPU has the features.
                    BackendKind::Avx512 | BackendKind::Avx512Vbmi => unsafe {
                        x86::lines_avx512(groups, lines)
                    },
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: as above.
                    BackendKind::Avx2 => unsafe { x86::lines_avx2(groups, lines) },
                    #[cfg(target_arch = "aarch64")]
                    BackendKind::Neon | BackendKind::NeonDot => arm::lines_neon(groups, lines),
                    _ => lines_scalar(groups, lines),
                }
            },
        );
    }

    /// All lines, (rows, cols / 32).
    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines[..self.rows * self.cols / GROUP]
    }
}

/// Groups a thread rounds at a time. One row of a small model is less: too little to wake a worker for.
const UNIT_LINES: usize = 512;

/// Below it a group is all zeros: the inverse of its scale would be infinite.
const TINY: f32 = 1e-36;

/// Scale and inverse of a group whose largest magnitude has these bits. The maximum is taken over
/// bits because there NaN is above infinity, so neither is lost.
#[inline(always)]
fn scale_of(max_bits: u32) -> (f32, f32) {
    let absmax = f32::from_bits(max_bits);
    let inverse = if absmax < TINY { 0.0 } else { 127.0 / absmax };
    (absmax / 127.0, inverse)
}

impl Line {
    #[inline(always)]
    fn set_sums(&mut self, scale: f32, sums: [i32; 2]) {
        let sum = sums[0] + sums[1];
        self.scale = scale;
        self.neg_sum = -sum;
        self.neg_sums = [-sums[0], -sums[1]];
        self.offset = scale * sum as f32;
        self.offsets = [scale * sums[0] as f32, scale * sums[1] as f32];
    }
}

/// The definition.
fn lines_scalar(groups: &[[f32; GROUP]], lines: &mut [Line]) {
    for (x, line) in groups.iter().zip(lines) {
        let bits = x.iter().map(|x| x.to_bits() & 0x7FFF_FFFF);
        let (scale, inverse) = scale_of(bits.fold(0, u32::max));
        let mut sums = [0; 2];
        for k in 0..GROUP {
            // At most 127 and a few ulp, which rounds to 127.
            line.codes[k] = (x[k] * inverse).round_ties_even() as i32 as i8;
            sums[k / 16] += i32::from(line.codes[k]);
        }
        line.set_sums(scale, sums);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{GROUP, Line, scale_of};

    /// Sums of the first and second 16 of 32 signed bytes.
    #[target_feature(enable = "avx2")]
    fn sums(codes: __m256i) -> [i32; 2] {
        let up = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
        let eights = _mm256_sad_epu8(up, _mm256_setzero_si256());
        let (a, b) = (
            _mm256_castsi256_si128(eights),
            _mm256_extracti128_si256::<1>(eights),
        );
        let sum = |v: __m128i| _mm_cvtsi128_si32(v) + _mm_extract_epi32::<2>(v) - 16 * 128;
        [sum(a), sum(b)]
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) fn lines_avx512(groups: &[[f32; GROUP]], lines: &mut [Line]) {
        let magnitude = _mm512_set1_epi32(0x7FFF_FFFF);
        for (x, line) in groups.iter().zip(lines) {
            // SAFETY: a group is 32 values, a line has 32 codes.
            let (a, b) = unsafe {
                (
                    _mm512_loadu_ps(x.as_ptr()),
                    _mm512_loadu_ps(x.as_ptr().add(16)),
                )
            };
            let max = _mm512_max_epu32(
                _mm512_and_si512(_mm512_castps_si512(a), magnitude),
                _mm512_and_si512(_mm512_castps_si512(b), magnitude),
            );
            let (scale, inverse) = scale_of(_mm512_reduce_max_epu32(max));
            let inverse = _mm512_set1_ps(inverse);
            let low = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)));
            let high = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(b, inverse)));
            let codes = _mm256_set_m128i(high, low);
            // SAFETY: as above.
            unsafe { _mm256_storeu_si256(line.codes.as_mut_ptr().cast(), codes) };
            line.set_sums(scale, sums(codes));
        }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn lines_avx2(groups: &[[f32; GROUP]], lines: &mut [Line]) {
        let magnitude = _mm256_set1_epi32(0x7FFF_FFFF);
        for (x, line) in groups.iter().zip(lines) {
            let mut v = [_mm256_setzero_ps(); 4];
            let mut max = _mm256_setzero_si256();
            for i in 0..4 {
                // SAFETY: a group is 32 values.
                v[i] = unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * i)) };
                let bits = _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude);
                max = _mm256_max_epu32(max, bits);
            }
            let max = _mm_max_epu32(
                _mm256_castsi256_si128(max),
                _mm256_extracti128_si256::<1>(max),
            );
            let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
            let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
            let (scale, inverse) = scale_of(_mm_cvtsi128_si32(max) as u32);
            let inverse = _mm256_set1_ps(inverse);
            let mut i32s = [_mm256_setzero_si256(); 4];
            for i in 0..4 {
                i32s[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
            }
            // Packing works within 128-bit halves; the permutation restores the order.
            let packed = _mm256_packs_epi16(
                _mm256_packs_epi32(i32s[0], i32s[1]),
                _mm256_packs_epi32(i32s[2], i32s[3]),
            );
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let codes = _mm256_permutevar8x32_epi32(packed, order);
            // SAFETY: a line has 32 codes.
            unsafe { _mm256_storeu_si256(line.codes.as_mut_ptr().cast(), codes) };
            line.set_sums(scale, sums(codes));
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::{GROUP, Line, scale_of};

    pub(super) fn lines_neon(groups: &[[f32; GROUP]], lines: &mut [Line]) {
        for (x, line) in groups.iter().zip(lines) {
            // SAFETY: NEON is part of every aarch64 we compile for; a group is 32 values, a line
            // has 32 codes.
            unsafe {
                let mut max = vdupq_n_u32(0);
                for i in 0..8 {
                    let bits = vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x.as_ptr().add(4 * i))));
                    max = vmaxq_u32(max, bits);
                }
                let (scale, inverse) = scale_of(vmaxvq_u32(max));
                let mut sums = [0; 2];
                for half in 0..2 {
                    let mut i16s = [vdupq_n_s16(0); 2];
                    for (i, i16s) in i16s.iter_mut().enumerate() {
                        let at = x.as_ptr().add(16 * half + 8 * i);
                        let low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(at), inverse));
                        let high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(at.add(4)), inverse));
                        *i16s = vcombine_s16(vmovn_s32(low), vmovn_s32(high));
                    }
                    let codes = vcombine_s8(vmovn_s16(i16s[0]), vmovn_s16(i16s[1]));
                    vst1q_s8(line.codes.as_mut_ptr().add(16 * half), codes);
                    sums[half] = i32::from(vaddlvq_s8(codes));
                }
                line.set_sums(scale, sums);
            }
        }
    }
}
