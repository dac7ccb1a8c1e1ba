//! Sixteen lanes in four NEON registers. Needs nothing beyond Armv8.0.

use super::Simd;
use std::arch::aarch64::*;

/// Proof of NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// # Safety
    /// - The CPU has NEON.
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

impl Simd for Neon {
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

    // Codes of keys and values.

    type Bytes = uint8x16_t;

    #[inline(always)]
    fn bytes(self, x: &[u8; 16]) -> uint8x16_t {
        op!(vld1q_u8(x.as_ptr()))
    }
    #[inline(always)]
    fn field(self, x: uint8x16_t, shift: usize, mask: u8) -> uint8x16_t {
        op!(vandq_u8(
            vshlq_u8(x, vdupq_n_s8(-(shift as i8))),
            vdupq_n_u8(mask)
        ))
    }
    #[inline(always)]
    fn join(self, low: uint8x16_t, high: uint8x16_t, shift: usize) -> uint8x16_t {
        op!(vorrq_u8(low, vshlq_u8(high, vdupq_n_s8(shift as i8))))
    }
    #[inline(always)]
    fn level(self, levels: &[i8; 32], codes: uint8x16_t) -> uint8x16_t {
        op!({
            let p: *const u8 = levels.as_ptr().cast();
            vqtbl2q_u8(uint8x16x2_t(vld1q_u8(p), vld1q_u8(p.add(16))), codes)
        })
    }

    type Levels = uint8x16_t;
    // 4 x 1 x 4 accumulator registers, 8 of levels, their table, a mask and a broadcast.
    const FUSED_ROWS: usize = 4;

    #[inline(always)]
    fn levels(self, levels: &[i8; 16]) -> uint8x16_t {
        op!(vld1q_u8(levels.as_ptr().cast()))
    }
    #[inline(always)]
    fn nibbles(self, levels: uint8x16_t, x: &[u8; 16]) -> (Quad, Quad) {
        op!({
            let x = vld1q_u8(x.as_ptr());
            let low = vqtbl1q_u8(levels, vandq_u8(x, vdupq_n_u8(15)));
            let high = vqtbl1q_u8(levels, vshrq_n_u8::<4>(x));
            (self.widen(low), self.widen(high))
        })
    }
    #[inline(always)]
    fn widen(self, x: uint8x16_t) -> Quad {
        op!({
            let x = vreinterpretq_s8_u8(x);
            let (low, high) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
            Quad(
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            )
        })
    }
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
