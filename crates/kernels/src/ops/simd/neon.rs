//! Sixteen lanes in four NEON registers. Needs nothing beyond Armv8.0, but for the dot products of
//! whole numbers.

use super::{PART_BITS, Simd};
use std::arch::aarch64::*;

/// Proof of NEON; with `DOT`, of its dot products.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOT: bool>(());

impl<const DOT: bool> Neon<DOT> {
    /// # Safety
    /// - The CPU has NEON, and the dot products if `DOT`.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Self {
        Neon(())
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

/// The same intrinsic on each quarter.
macro_rules! quarters {
    ($f:ident, $($v:expr),*) => {
        op!(Quad(
            $f($($v.0),*),
            $f($($v.1),*),
            $f($($v.2),*),
            $f($($v.3),*),
        ))
    };
}

#[derive(Clone, Copy)]
pub(crate) struct Quad(float32x4_t, float32x4_t, float32x4_t, float32x4_t);

impl<const DOT: bool> Simd for Neon<DOT> {
    type V = Quad;
    // 6 x 1 x 4 accumulator registers, 4 loaded and a broadcast, of 32.
    const ROWS: usize = 6;
    const COLS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> Quad {
        let v = op!(vdupq_n_f32(x));
        Quad(v, v, v, v)
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Quad {
        let p = x.as_ptr();
        op!(Quad(
            vld1q_f32(p),
            vld1q_f32(p.add(4)),
            vld1q_f32(p.add(8)),
            vld1q_f32(p.add(12))
        ))
    }
    #[inline(always)]
    fn store(self, v: Quad, to: &mut [f32; 16]) {
        let p = to.as_mut_ptr();
        op!({
            vst1q_f32(p, v.0);
            vst1q_f32(p.add(4), v.1);
            vst1q_f32(p.add(8), v.2);
            vst1q_f32(p.add(12), v.3);
        })
    }
    #[inline(always)]
    fn add(self, a: Quad, b: Quad) -> Quad {
        quarters!(vaddq_f32, a, b)
    }
    #[inline(always)]
    fn sub(self, a: Quad, b: Quad) -> Quad {
        quarters!(vsubq_f32, a, b)
    }
    #[inline(always)]
    fn mul(self, a: Quad, b: Quad) -> Quad {
        quarters!(vmulq_f32, a, b)
    }
    #[inline(always)]
    fn div(self, a: Quad, b: Quad) -> Quad {
        quarters!(vdivq_f32, a, b)
    }
    #[inline(always)]
    fn fma(self, a: Quad, b: Quad, c: Quad) -> Quad {
        quarters!(vfmaq_f32, c, a, b)
    }
    #[inline(always)]
    fn max(self, a: Quad, b: Quad) -> Quad {
        quarters!(vmaxq_f32, a, b)
    }
    #[inline(always)]
    fn if_less(self, a: Quad, b: Quad, yes: Quad, no: Quad) -> Quad {
        op!(Quad(
            vbslq_f32(vcltq_f32(a.0, b.0), yes.0, no.0),
            vbslq_f32(vcltq_f32(a.1, b.1), yes.1, no.1),
            vbslq_f32(vcltq_f32(a.2, b.2), yes.2, no.2),
            vbslq_f32(vcltq_f32(a.3, b.3), yes.3, no.3),
        ))
    }
    #[inline(always)]
    fn power_of_two(self, t: Quad) -> Quad {
        quarters!(power_of_two, t)
    }
    #[inline(always)]
    fn load_half(self, x: &[u8; 32]) -> Quad {
        let p: *const u16 = x.as_ptr().cast();
        op!(Quad(
            widen(p),
            widen(p.add(4)),
            widen(p.add(8)),
            widen(p.add(12))
        ))
    }
    #[inline(always)]
    fn store_half(self, v: Quad, to: &mut [u8; 32]) {
        let p: *mut u16 = to.as_mut_ptr().cast();
        op!({
            narrow(v.0, p);
            narrow(v.1, p.add(4));
            narrow(v.2, p.add(8));
            narrow(v.3, p.add(12));
        })
    }
    #[inline(always)]
    fn sum(self, v: Quad) -> f32 {
        op!({
            let four = vaddq_f32(vaddq_f32(v.0, v.2), vaddq_f32(v.1, v.3));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        })
    }
    #[inline(always)]
    fn max_lane(self, v: Quad) -> f32 {
        op!(vmaxvq_f32(vmaxq_f32(
            vmaxq_f32(v.0, v.2),
            vmaxq_f32(v.1, v.3)
        )))
    }
    #[inline(always)]
    fn add_fixed(self, v: Quad, to: &mut [u64; 16]) {
        let p = to.as_mut_ptr();
        op!({
            add_fixed(v.0, p);
            add_fixed(v.1, p.add(4));
            add_fixed(v.2, p.add(8));
            add_fixed(v.3, p.add(12));
        })
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a hint: it reads nothing a program can see and never faults.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, readonly));
        }
    }
    #[inline(always)]
    fn swap_lanes<const H: usize>(self, v: Quad) -> Quad {
        match H {
            1 => quarters!(vrev64q_f32, v),
            2 => quarters!(swap_pairs, v),
            4 => Quad(v.1, v.0, v.3, v.2),
            _ => Quad(v.2, v.3, v.0, v.1),
        }
    }

    // Whole numbers.

    type I = [int32x4_t; 4];

    #[inline(always)]
    fn whole(self, v: Quad) -> [int32x4_t; 4] {
        op!([
            vcvtnq_s32_f32(v.0),
            vcvtnq_s32_f32(v.1),
            vcvtnq_s32_f32(v.2),
            vcvtnq_s32_f32(v.3),
        ])
    }
    #[inline(always)]
    fn add_whole(self, a: [int32x4_t; 4], b: [int32x4_t; 4]) -> [int32x4_t; 4] {
        op!([
            vaddq_s32(a[0], b[0]),
            vaddq_s32(a[1], b[1]),
            vaddq_s32(a[2], b[2]),
            vaddq_s32(a[3], b[3]),
        ])
    }
    #[inline(always)]
    fn store_whole(self, a: [int32x4_t; 4], to: &mut [i32; 16]) {
        let p = to.as_mut_ptr();
        op!({
            vst1q_s32(p, a[0]);
            vst1q_s32(p.add(4), a[1]);
            vst1q_s32(p.add(8), a[2]);
            vst1q_s32(p.add(12), a[3]);
        })
    }

    // With `sdot` levels stay in fours, and a row is its high parts and then its low parts, a byte
    // each. Without it levels are taken apart into first, second, third and fourth ones, rows are
    // i16, wide and narrow alike, and `smlal` multiplies by one of them; the second sum is unused.

    type Book = uint8x16_t;
    type Fours = [int8x16_t; 4];
    type WideFour = (int8x16_t, int8x16_t);
    type NarrowFour = int8x16_t;
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
    fn book(self, levels: &[i8; 16]) -> uint8x16_t {
        op!(vld1q_u8(levels.as_ptr().cast()))
    }
    #[inline(always)]
    fn fours(self, x: &[u8; 64]) -> [int8x16_t; 4] {
        Self::bytes(x).map(|x| op!(vreinterpretq_s8_u8(x)))
    }
    #[inline(always)]
    fn nibbles(self, book: uint8x16_t, x: &[u8; 64]) -> ([int8x16_t; 4], [int8x16_t; 4]) {
        let [a, b, c, d] = Self::bytes(x);
        (
            [low(book, a), low(book, b), low(book, c), low(book, d)],
            [high(book, a), high(book, b), high(book, c), high(book, d)],
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
    unsafe fn put_wide(self, x: [int32x4_t; 4], row: *mut u8, len: usize, at: usize) {
        op!({
            let (low, high) = (shorts(x[0], x[1]), shorts(x[2], x[3]));
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
    unsafe fn put_narrow(self, x: [int32x4_t; 4], row: *mut u8, len: usize, at: usize) {
        op!({
            if !DOT {
                return self.put_wide(x, row, len, at);
            }
            let (low, high) = (shorts(x[0], x[1]), shorts(x[2], x[3]));
            vst1q_s8(
                row.add(at).cast(),
                vcombine_s8(vmovn_s16(low), vmovn_s16(high)),
            );
        })
    }
    #[inline(always)]
    unsafe fn wide_four(self, row: *const u8, len: usize, at: usize) -> (int8x16_t, int8x16_t) {
        op!({
            let high = self.narrow_four(row, len, at);
            if !DOT {
                return (high, high);
            }
            (high, self.narrow_four(row.add(len), len, at))
        })
    }
    #[inline(always)]
    unsafe fn narrow_four(self, row: *const u8, _: usize, at: usize) -> int8x16_t {
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
    fn wide_join(self, a: Self::Wide, b: Self::Wide) -> Self::Wide {
        (self.add_whole(a.0, b.0), self.add_whole(a.1, b.1))
    }
    #[inline(always)]
    fn narrow_join(self, a: [int32x4_t; 4], b: [int32x4_t; 4]) -> [int32x4_t; 4] {
        self.add_whole(a, b)
    }
    #[inline(always)]
    fn wide_end(self, acc: ([int32x4_t; 4], [int32x4_t; 4]), total: i32) -> Quad {
        if !DOT {
            return self.narrow_end(acc.0, total);
        }
        let mut sum = acc.1;
        for i in 0..4 {
            sum[i] = op!(vaddq_s32(
                sum[i],
                vshlq_n_s32::<{ PART_BITS as i32 }>(acc.0[i])
            ));
        }
        self.narrow_end(sum, total)
    }
    #[inline(always)]
    fn narrow_end(self, acc: [int32x4_t; 4], _: i32) -> Quad {
        op!(Quad(
            vcvtq_f32_s32(acc[0]),
            vcvtq_f32_s32(acc[1]),
            vcvtq_f32_s32(acc[2]),
            vcvtq_f32_s32(acc[3]),
        ))
    }
}

impl<const DOT: bool> Neon<DOT> {
    /// Fours, or their first, second, third and fourth bytes.
    #[inline(always)]
    fn bytes(x: &[u8; 64]) -> [uint8x16_t; 4] {
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
}

/// The levels of the low four bits.
#[inline(always)]
fn low(book: uint8x16_t, x: uint8x16_t) -> int8x16_t {
    op!(vreinterpretq_s8_u8(vqtbl1q_u8(
        book,
        vandq_u8(x, vdupq_n_u8(15))
    )))
}

/// The levels of the high four bits.
#[inline(always)]
fn high(book: uint8x16_t, x: uint8x16_t) -> int8x16_t {
    op!(vreinterpretq_s8_u8(vqtbl1q_u8(book, vshrq_n_u8::<4>(x))))
}

/// Fours of levels times fours of bytes, added up.
///
/// # Safety
/// - The CPU has the dot products.
#[inline(always)]
unsafe fn sdot(acc: int32x4_t, levels: int8x16_t, by: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: the caller's promise; it touches only these registers.
    unsafe {
        std::arch::asm!(
            "sdot {acc:v}.4s, {levels:v}.16b, {by:v}.16b",
            acc = inout(vreg) acc,
            levels = in(vreg) levels,
            by = in(vreg) by,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
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

/// Eight numbers that fit i16.
#[inline(always)]
fn shorts(a: int32x4_t, b: int32x4_t) -> int16x8_t {
    op!(vcombine_s16(vmovn_s32(a), vmovn_s32(b)))
}

/// # Safety
/// - `p` is room for eight, aligned or not, that nothing else refers to.
#[inline(always)]
unsafe fn store_shorts(p: *mut i16, x: int16x8_t) {
    op!(vst1q_u8(p.cast(), vreinterpretq_u8_s16(x)))
}

/// # Safety
/// - The CPU has NEON.
#[inline(always)]
unsafe fn swap_pairs(v: float32x4_t) -> float32x4_t {
    op!(vextq_f32::<2>(v, v))
}

/// # Safety
/// - The CPU has NEON.
#[inline(always)]
unsafe fn power_of_two(t: float32x4_t) -> float32x4_t {
    op!(vreinterpretq_f32_s32(vaddq_s32(
        vshlq_n_s32::<23>(vreinterpretq_s32_f32(t)),
        vdupq_n_s32(127 << 23)
    )))
}

/// # Safety
/// - The CPU has NEON; `p` is four f16, aligned or not.
#[inline(always)]
unsafe fn widen(p: *const u16) -> float32x4_t {
    op!({
        let bits = p.cast::<u64>().read_unaligned();
        vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(bits)))
    })
}

/// # Safety
/// - The CPU has NEON; `p` is room for four f16, aligned or not.
#[inline(always)]
unsafe fn narrow(v: float32x4_t, p: *mut u16) {
    op!({
        let bits = vget_lane_u64::<0>(vreinterpret_u64_f16(vcvt_f16_f32(v)));
        p.cast::<u64>().write_unaligned(bits);
    })
}

/// Adding 2^52 rounds to an integer, found in the low bits.
///
/// # Safety
/// - The CPU has NEON; `p` is four counters.
#[inline(always)]
unsafe fn add_fixed(v: float32x4_t, p: *mut u64) {
    op!({
        let v = vmulq_n_f32(v, super::super::lanes::FIXED_ONE);
        let magic = vdupq_n_f64(super::super::lanes::FIXED_MAGIC);
        let low = vaddq_f64(vcvt_f64_f32(vget_low_f32(v)), magic);
        let high = vaddq_f64(vcvt_high_f64_f32(v), magic);
        let bits = vreinterpretq_u64_f64(magic);
        let low = veorq_u64(vreinterpretq_u64_f64(low), bits);
        let high = veorq_u64(vreinterpretq_u64_f64(high), bits);
        vst1q_u64(p, vaddq_u64(vld1q_u64(p), low));
        vst1q_u64(p.add(2), vaddq_u64(vld1q_u64(p.add(2)), high));
    })
}
