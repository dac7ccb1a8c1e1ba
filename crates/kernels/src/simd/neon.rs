//! One NEON register: four lanes.

use super::isa::{FIXED_MAGIC, FIXED_ONE, Isa, Simd, ops};
use super::pair::Pair;
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

/// Adds to each lane the dot product of its four bytes of `a` and of `b`.
///
/// # Safety
/// - The CPU has the dot products.
#[inline(always)]
pub(crate) unsafe fn sdot(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: the caller's promise; it touches only these registers.
    unsafe {
        std::arch::asm!(
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b",
            acc = inout(vreg) acc,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

impl<const DOT: bool> Isa for Neon<DOT> {
    const LANES: usize = 4;
    type F = float32x4_t;
    type I = int32x4_t;

    ops! {
        fn splat(self, x: f32) -> float32x4_t = vdupq_n_f32(x);
        fn neg(self, a: float32x4_t) -> float32x4_t = vnegq_f32(a);
        fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32(a, b);
        fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t = vsubq_f32(a, b);
        fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32(a, b);
        fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t = vdivq_f32(a, b);
        fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t =
            vfmaq_f32(c, a, b);
        fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t = vmaxq_f32(a, b);
        fn if_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F =
            vbslq_f32(vcltq_f32(a, b), yes, no);
        fn power_of_two(self, t: float32x4_t) -> float32x4_t = vreinterpretq_f32_s32(vaddq_s32(
            vshlq_n_s32::<23>(vreinterpretq_s32_f32(t)),
            vdupq_n_s32(127 << 23)
        ));
        fn swap_lanes<const H: usize>(self, v: float32x4_t) -> float32x4_t = match H {
            1 => vrev64q_f32(v),
            _ => vextq_f32::<2>(v, v),
        };
        fn sum(self, v: float32x4_t) -> f32 = {
            let two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        };
        fn max_lane(self, v: float32x4_t) -> f32 = vmaxvq_f32(v);

        fn splat_i32(self, x: i32) -> int32x4_t = vdupq_n_s32(x);
        fn add_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t = vaddq_s32(a, b);
        fn to_i32(self, v: float32x4_t) -> int32x4_t = vcvtnq_s32_f32(v);
        fn to_f32(self, a: int32x4_t) -> float32x4_t = vcvtq_f32_s32(a);

        unsafe fn load_f32(self, p: *const f32) -> float32x4_t =
            vreinterpretq_f32_u8(vld1q_u8(p.cast()));
        unsafe fn store_f32(self, v: float32x4_t, p: *mut f32) =
            vst1q_u8(p.cast(), vreinterpretq_u8_f32(v));
        unsafe fn load_f16(self, p: *const u8) -> float32x4_t =
            vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
        unsafe fn store_f16(self, v: float32x4_t, p: *mut u8) = {
            let bits = vget_lane_u64::<0>(vreinterpret_u64_f16(vcvt_f16_f32(v)));
            p.cast::<u64>().write_unaligned(bits);
        };
        unsafe fn store_i32(self, a: int32x4_t, p: *mut i32) =
            vst1q_u8(p.cast(), vreinterpretq_u8_s32(a));
        unsafe fn add_fixed(self, v: float32x4_t, p: *mut u64) = {
            // Adding 2^52 rounds to an integer, found in the low bits.
            let v = vmulq_n_f32(v, FIXED_ONE);
            let magic = vdupq_n_f64(FIXED_MAGIC);
            let low = vaddq_f64(vcvt_f64_f32(vget_low_f32(v)), magic);
            let high = vaddq_f64(vcvt_high_f64_f32(v), magic);
            let bits = vreinterpretq_u64_f64(magic);
            let low = veorq_u64(vreinterpretq_u64_f64(low), bits);
            let high = veorq_u64(vreinterpretq_u64_f64(high), bits);
            vst1q_u64(p, vaddq_u64(vld1q_u64(p), low));
            vst1q_u64(p.add(2), vaddq_u64(vld1q_u64(p.add(2)), high));
        };
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a hint: it reads nothing a program can see and faults on no address.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly));
        }
    }
}

impl<const DOT: bool> Simd for Pair<Pair<Neon<DOT>>> {}
