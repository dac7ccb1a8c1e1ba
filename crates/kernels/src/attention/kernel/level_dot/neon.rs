//! With `sdot` levels stay in quads, and a row is its high parts and then its low parts, a byte each.
//! Without it levels are taken apart into first, second, third and fourth ones, rows are i16, wide and
//! narrow alike, and `smlal` multiplies by one of them; the second sum is unused.

use super::{LevelDot, PART_BITS};
use crate::simd::neon::{Neon, sdot};
use crate::simd::{Pair, op};
use std::arch::aarch64::*;

type Sixteen<const DOT: bool> = Pair<Pair<Neon<DOT>>>;

impl<const DOT: bool> LevelDot for Sixteen<DOT> {
    // 6 x 1 x 4 accumulator registers, 4 loaded and a broadcast, of 32.
    const ROWS: usize = 6;
    const COLS: usize = 1;

    type Codebook = uint8x16_t;
    type Quads = [int8x16_t; 4];
    type WideQuad = (int8x16_t, int8x16_t);
    type NarrowQuad = int8x16_t;
    type Wide = ([int32x4_t; 4], [int32x4_t; 4]);
    type Narrow = [int32x4_t; 4];

    // 3 x 8 and 6 x 4 accumulators, 4 vectors of levels and broadcasts, of 32 registers.
    const WIDE_ROWS: usize = 3;
    const NARROW_ROWS: usize = if DOT { 6 } else { 3 };
    // 1 x 2 x 8 and 3 x 4 accumulators, twice the levels, and what makes them.
    const FUSED_WIDE: usize = 1;
    const FUSED_NARROW: usize = if DOT { 4 } else { 2 };
    const CHAINS: usize = 0;

    #[inline(always)]
    fn codebook(self, levels: &[i8; 16]) -> uint8x16_t {
        op!(vld1q_u8(levels.as_ptr().cast()))
    }
    #[inline(always)]
    fn load_quads(self, x: &[u8; 64]) -> [int8x16_t; 4] {
        bytes::<DOT>(x).map(|x| op!(vreinterpretq_s8_u8(x)))
    }
    #[inline(always)]
    fn look_up_nibbles(
        self,
        codebook: uint8x16_t,
        x: &[u8; 64],
    ) -> ([int8x16_t; 4], [int8x16_t; 4]) {
        let [a, b, c, d] = bytes::<DOT>(x);
        (
            [
                low(codebook, a),
                low(codebook, b),
                low(codebook, c),
                low(codebook, d),
            ],
            [
                high(codebook, a),
                high(codebook, b),
                high(codebook, c),
                high(codebook, d),
            ],
        )
    }
    #[inline(always)]
    fn look_up(self, levels: &[i8; 32], codes: &mut [u8; 64]) {
        op!({
            let p: *const u8 = levels.as_ptr().cast();
            let table = uint8x16x2_t(vld1q_u8(p), vld1q_u8(p.add(16)));
            for i in 0..4 {
                let p = codes.as_mut_ptr().add(16 * i);
                vst1q_u8(p, vqtbl2q_u8(table, vld1q_u8(p)));
            }
        })
    }

    #[inline(always)]
    unsafe fn put_wide(self, x: Self::I, row: *mut u8, len: usize, at: usize) {
        op!({
            let (low, high) = (shorts(x[0]), shorts(x[1]));
            if !DOT {
                let p = row.cast::<i16>().add(at);
                store_shorts(p, low);
                store_shorts(p.add(8), high);
                return;
            }
            let (a, b) = (
                vshrq_n_s16::<{ PART_BITS as i32 }>(low),
                vshrq_n_s16::<{ PART_BITS as i32 }>(high),
            );
            vst1q_s8(row.add(at).cast(), vcombine_s8(vmovn_s16(a), vmovn_s16(b)));
            let mask = vdupq_n_s16((1 << PART_BITS) - 1);
            let (a, b) = (vandq_s16(low, mask), vandq_s16(high, mask));
            vst1q_s8(
                row.add(len + at).cast(),
                vcombine_s8(vmovn_s16(a), vmovn_s16(b)),
            );
        })
    }
    #[inline(always)]
    unsafe fn put_narrow(self, x: Self::I, row: *mut u8, len: usize, at: usize) {
        op!({
            if !DOT {
                return self.put_wide(x, row, len, at);
            }
            let (low, high) = (shorts(x[0]), shorts(x[1]));
            vst1q_s8(
                row.add(at).cast(),
                vcombine_s8(vmovn_s16(low), vmovn_s16(high)),
            );
        })
    }
    #[inline(always)]
    unsafe fn wide_quad(self, row: *const u8, len: usize, at: usize) -> (int8x16_t, int8x16_t) {
        op!({
            let high = self.narrow_quad(row, len, at);
            if !DOT {
                return (high, high);
            }
            (high, self.narrow_quad(row.add(len), len, at))
        })
    }
    #[inline(always)]
    unsafe fn narrow_quad(self, row: *const u8, _: usize, at: usize) -> int8x16_t {
        op!(if DOT {
            let four = row.add(4 * at).cast::<i32>().read_unaligned();
            vreinterpretq_s8_s32(vdupq_n_s32(four))
        } else {
            let four = row.add(8 * at).cast::<i64>().read_unaligned();
            vreinterpretq_s8_s64(vdupq_n_s64(four))
        })
    }

    #[inline(always)]
    fn wide_zero(self) -> ([int32x4_t; 4], [int32x4_t; 4]) {
        (self.narrow_zero(), self.narrow_zero())
    }
    #[inline(always)]
    fn narrow_zero(self) -> [int32x4_t; 4] {
        [op!(vdupq_n_s32(0)); 4]
    }
    #[inline(always)]
    fn wide_dot(
        self,
        acc: ([int32x4_t; 4], [int32x4_t; 4]),
        levels: [int8x16_t; 4],
        by: (int8x16_t, int8x16_t),
    ) -> ([int32x4_t; 4], [int32x4_t; 4]) {
        let high = self.narrow_dot(acc.0, levels, by.0);
        if !DOT {
            return (high, acc.1);
        }
        (high, self.narrow_dot(acc.1, levels, by.1))
    }
    #[inline(always)]
    fn narrow_dot(
        self,
        mut acc: [int32x4_t; 4],
        levels: [int8x16_t; 4],
        by: int8x16_t,
    ) -> [int32x4_t; 4] {
        if DOT {
            for i in 0..4 {
                acc[i] = op!(sdot(acc[i], levels[i], by));
            }
            return acc;
        }
        let by = op!(vget_low_s16(vreinterpretq_s16_s8(by)));
        acc = add_times::<0>(acc, levels[0], by);
        acc = add_times::<1>(acc, levels[1], by);
        acc = add_times::<2>(acc, levels[2], by);
        add_times::<3>(acc, levels[3], by)
    }
    #[inline(always)]
    fn wide_add(self, a: Self::Wide, b: Self::Wide) -> Self::Wide {
        (self.narrow_add(a.0, b.0), self.narrow_add(a.1, b.1))
    }
    #[inline(always)]
    fn narrow_add(self, mut a: [int32x4_t; 4], b: [int32x4_t; 4]) -> [int32x4_t; 4] {
        for i in 0..4 {
            a[i] = op!(vaddq_s32(a[i], b[i]));
        }
        a
    }
    #[inline(always)]
    fn wide_to_f32(self, acc: ([int32x4_t; 4], [int32x4_t; 4]), total: i32) -> Self::F {
        if !DOT {
            return self.narrow_to_f32(acc.0, total);
        }
        let mut sum = acc.1;
        for i in 0..4 {
            sum[i] = op!(vaddq_s32(
                sum[i],
                vshlq_n_s32::<{ PART_BITS as i32 }>(acc.0[i])
            ));
        }
        self.narrow_to_f32(sum, total)
    }
    #[inline(always)]
    fn narrow_to_f32(self, acc: [int32x4_t; 4], _: i32) -> Self::F {
        op!([
            [vcvtq_f32_s32(acc[0]), vcvtq_f32_s32(acc[1])],
            [vcvtq_f32_s32(acc[2]), vcvtq_f32_s32(acc[3])],
        ])
    }
}

/// Quads, or their first, second, third and fourth bytes.
#[inline(always)]
fn bytes<const DOT: bool>(x: &[u8; 64]) -> [uint8x16_t; 4] {
    let p = x.as_ptr();
    op!(if DOT {
        [
            vld1q_u8(p),
            vld1q_u8(p.add(16)),
            vld1q_u8(p.add(32)),
            vld1q_u8(p.add(48)),
        ]
    } else {
        let uint8x16x4_t(a, b, c, d) = vld4q_u8(p);
        [a, b, c, d]
    })
}

/// The levels of the low four bits.
#[inline(always)]
fn low(codebook: uint8x16_t, x: uint8x16_t) -> int8x16_t {
    op!(vreinterpretq_s8_u8(vqtbl1q_u8(
        codebook,
        vandq_u8(x, vdupq_n_u8(15))
    )))
}

/// The levels of the high four bits.
#[inline(always)]
fn high(codebook: uint8x16_t, x: uint8x16_t) -> int8x16_t {
    op!(vreinterpretq_s8_u8(vqtbl1q_u8(
        codebook,
        vshrq_n_u8::<4>(x)
    )))
}

/// Sixteen levels times one number.
#[inline(always)]
fn add_times<const I: i32>(acc: [int32x4_t; 4], x: int8x16_t, by: int16x4_t) -> [int32x4_t; 4] {
    op!({
        let (low, high) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
        [
            vmlal_lane_s16::<I>(acc[0], vget_low_s16(low), by),
            vmlal_lane_s16::<I>(acc[1], vget_high_s16(low), by),
            vmlal_lane_s16::<I>(acc[2], vget_low_s16(high), by),
            vmlal_lane_s16::<I>(acc[3], vget_high_s16(high), by),
        ]
    })
}

/// Eight integers that fit i16.
#[inline(always)]
fn shorts(x: [int32x4_t; 2]) -> int16x8_t {
    op!(vcombine_s16(vmovn_s32(x[0]), vmovn_s32(x[1])))
}

/// # Safety
/// - `p` is room for eight, aligned or not, that nothing else refers to.
#[inline(always)]
unsafe fn store_shorts(p: *mut i16, x: int16x8_t) {
    op!(vst1q_u8(p.cast(), vreinterpretq_u8_s16(x)))
}
