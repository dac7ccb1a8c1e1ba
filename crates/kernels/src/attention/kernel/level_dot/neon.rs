//! With `sdot` levels stay in quads, and a row is its high parts and then its low parts, a byte each.
//! Without it levels are taken apart into first, second, third and fourth ones, rows are i16, wide and
//! narrow alike, and `smlal` multiplies by one of them; the second sum is unused.

use super::{LevelDot, Limit, NARROW, PART_BITS, Precision, WIDE};
use crate::simd::neon::{Neon, sdot};
use crate::simd::{Pair, op, ops};
use std::arch::aarch64::*;

type Sixteen<const DOT: bool> = Pair<Pair<Neon<DOT>>>;
/// Sixteen integers, and sixteen floats.
type Eights = [[int32x4_t; 2]; 2];
type Sums = [[float32x4_t; 2]; 2];

impl<const DOT: bool> LevelDot for Sixteen<DOT> {
    // 6 x 1 x 4 accumulator registers, 4 loaded and a broadcast, of 32.
    const ROWS: usize = 6;
    const COLS: usize = 1;
    const CHAINS: usize = 0;

    type Codebook = uint8x16_t;
    type Quads = [int8x16_t; 4];
    type Wide = Limit<WIDE>;
    type Narrow = Limit<NARROW>;

    ops! {
        fn codebook(self, levels: &[i8; 16]) -> uint8x16_t = vld1q_u8(levels.as_ptr().cast());
        fn look_up(self, levels: &[i8; 32], codes: &mut [u8; 64]) = {
            let p: *const u8 = levels.as_ptr().cast();
            let table = uint8x16x2_t(vld1q_u8(p), vld1q_u8(p.add(16)));
            for i in 0..4 {
                let p = codes.as_mut_ptr().add(16 * i);
                vst1q_u8(p, vqtbl2q_u8(table, vld1q_u8(p)));
            }
        };
    }
    #[inline(always)]
    fn load_quads(self, x: &[u8; 64]) -> [int8x16_t; 4] {
        bytes::<DOT>(x).map(|x| op!(vreinterpretq_s8_u8(x)))
    }
    #[inline(always)]
    fn look_up_nibbles(self, book: uint8x16_t, x: &[u8; 64]) -> (Self::Quads, Self::Quads) {
        let [a, b, c, d] = bytes::<DOT>(x);
        (
            [low(book, a), low(book, b), low(book, c), low(book, d)],
            [high(book, a), high(book, b), high(book, c), high(book, d)],
        )
    }
}

impl<const DOT: bool> Precision<Sixteen<DOT>> for Limit<WIDE> {
    const LIMIT: f32 = WIDE as f32;
    // 3 x 8 accumulators, 4 vectors of levels and broadcasts, of 32 registers.
    const ROWS: usize = 3;
    // 1 x 2 x 8 accumulators, twice the levels, and what makes them.
    const FUSED: usize = 1;
    type Quad = (int8x16_t, int8x16_t);
    type Acc = ([int32x4_t; 4], [int32x4_t; 4]);

    ops! {
        unsafe fn put(_: Sixteen<DOT>, x: Eights, row: *mut u8, len: usize, at: usize) = {
            let (low, high) = (shorts(x[0]), shorts(x[1]));
            if !DOT {
                return store_shorts(row.cast::<i16>().add(at), low, high);
            }
            let (a, b) = (
                vshrq_n_s16::<{ PART_BITS as i32 }>(low),
                vshrq_n_s16::<{ PART_BITS as i32 }>(high),
            );
            vst1q_s8(row.add(at).cast(), vcombine_s8(vmovn_s16(a), vmovn_s16(b)));
            let mask = vdupq_n_s16((1 << PART_BITS) - 1);
            let (a, b) = (vandq_s16(low, mask), vandq_s16(high, mask));
            vst1q_s8(row.add(len + at).cast(), vcombine_s8(vmovn_s16(a), vmovn_s16(b)));
        };
        unsafe fn quad(s: Sixteen<DOT>, row: *const u8, len: usize, at: usize) -> Self::Quad = {
            let high = Limit::<NARROW>::quad(s, row, len, at);
            if !DOT {
                return (high, high);
            }
            (high, Limit::<NARROW>::quad(s, row.add(len), len, at))
        };
        fn zero(_: Sixteen<DOT>) -> Self::Acc = ([vdupq_n_s32(0); 4], [vdupq_n_s32(0); 4]);
    }
    #[inline(always)]
    fn dot(s: Sixteen<DOT>, acc: Self::Acc, levels: [int8x16_t; 4], by: Self::Quad) -> Self::Acc {
        let high = Limit::<NARROW>::dot(s, acc.0, levels, by.0);
        if !DOT {
            return (high, acc.1);
        }
        (high, Limit::<NARROW>::dot(s, acc.1, levels, by.1))
    }
    #[inline(always)]
    fn add(s: Sixteen<DOT>, a: Self::Acc, b: Self::Acc) -> Self::Acc {
        (
            Limit::<NARROW>::add(s, a.0, b.0),
            Limit::<NARROW>::add(s, a.1, b.1),
        )
    }
    #[inline(always)]
    fn to_f32(s: Sixteen<DOT>, acc: Self::Acc, total: i32) -> Sums {
        if !DOT {
            return Limit::<NARROW>::to_f32(s, acc.0, total);
        }
        let mut sum = acc.1;
        for i in 0..4 {
            sum[i] = op!(vaddq_s32(
                sum[i],
                vshlq_n_s32::<{ PART_BITS as i32 }>(acc.0[i])
            ));
        }
        Limit::<NARROW>::to_f32(s, sum, total)
    }
}

impl<const DOT: bool> Precision<Sixteen<DOT>> for Limit<NARROW> {
    const LIMIT: f32 = NARROW as f32;
    // 6 x 4 accumulators, 4 vectors of levels and broadcasts, of 32 registers.
    const ROWS: usize = if DOT { 6 } else { 3 };
    // 3 x 4 accumulators, twice the levels, and what makes them.
    const FUSED: usize = if DOT { 4 } else { 2 };
    type Quad = int8x16_t;
    type Acc = [int32x4_t; 4];

    ops! {
        unsafe fn put(_: Sixteen<DOT>, x: Eights, row: *mut u8, _: usize, at: usize) = {
            let (low, high) = (shorts(x[0]), shorts(x[1]));
            if !DOT {
                return store_shorts(row.cast::<i16>().add(at), low, high);
            }
            vst1q_s8(row.add(at).cast(), vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        };
        unsafe fn quad(_: Sixteen<DOT>, row: *const u8, _: usize, at: usize) -> int8x16_t = if DOT {
            let four = row.add(4 * at).cast::<i32>().read_unaligned();
            vreinterpretq_s8_s32(vdupq_n_s32(four))
        } else {
            let four = row.add(8 * at).cast::<i64>().read_unaligned();
            vreinterpretq_s8_s64(vdupq_n_s64(four))
        };
        fn zero(_: Sixteen<DOT>) -> Self::Acc = [vdupq_n_s32(0); 4];
        fn dot(_: Sixteen<DOT>, mut acc: Self::Acc, levels: [int8x16_t; 4], by: int8x16_t) -> Self::Acc = {
            if DOT {
                for i in 0..4 {
                    acc[i] = sdot(acc[i], levels[i], by);
                }
                return acc;
            }
            let by = vget_low_s16(vreinterpretq_s16_s8(by));
            acc = add_times::<0>(acc, levels[0], by);
            acc = add_times::<1>(acc, levels[1], by);
            acc = add_times::<2>(acc, levels[2], by);
            add_times::<3>(acc, levels[3], by)
        };
        fn add(_: Sixteen<DOT>, mut a: Self::Acc, b: Self::Acc) -> Self::Acc = {
            for i in 0..4 {
                a[i] = vaddq_s32(a[i], b[i]);
            }
            a
        };
        fn to_f32(_: Sixteen<DOT>, acc: Self::Acc, _: i32) -> Sums = [
            [vcvtq_f32_s32(acc[0]), vcvtq_f32_s32(acc[1])],
            [vcvtq_f32_s32(acc[2]), vcvtq_f32_s32(acc[3])],
        ];
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
/// - `p` is room for sixteen, aligned or not, that nothing else refers to.
#[inline(always)]
unsafe fn store_shorts(p: *mut i16, low: int16x8_t, high: int16x8_t) {
    op!({
        vst1q_u8(p.cast(), vreinterpretq_u8_s16(low));
        vst1q_u8(p.add(8).cast(), vreinterpretq_u8_s16(high));
    })
}
