//! `arm-neon` and `arm-neon-dot`: a strip in two parts of 8 rows, two registers each, so that a
//! group's codes (16 registers) stay where they are while activation rows pass.
//!
//! Without the dot product a quad is two widening multiplies, a pairwise addition in i16 (at most
//! 2 * 128 * 127 = 32,512: exact) and a pairwise accumulation in i32.

use std::arch::aarch64::*;

use super::isa::{CodeDot, Weight, for_type};
use super::kernel;
use super::task::Task;
use crate::simd::neon::{Neon, sdot};
use crate::simd::{Pair, op, ops};

/// All strips of a task, without dot product.
pub(super) fn strips(task: &Task<'_>) {
    for_type!(task.ty, plain, (task));
}

/// All strips of a task.
///
/// # Safety
/// The CPU has the features of [`crate::cpu::BackendKind::NeonDot`].
pub(super) unsafe fn strips_dot(task: &Task<'_>) {
    if task.lines.is_none() {
        return strips(task);
    }
    // SAFETY: the caller's promise.
    unsafe { for_type!(task.ty, dot, (task)) }
}

fn plain<T: Weight>(task: &Task<'_>) {
    // SAFETY: plain NEON is part of every aarch64 we compile for.
    let token = Pair(unsafe { Neon::<false>::assume() });
    kernel::strips::<_, T>(token, task);
}

#[target_feature(enable = "dotprod")]
fn dot<T: Weight>(task: &Task<'_>) {
    // SAFETY: this function runs only where the dot product is enabled.
    let token = Pair(unsafe { Neon::<true>::assume() });
    kernel::strips::<_, T>(token, task);
}

/// The expression for each of the two registers.
macro_rules! both {
    ($i:ident, $e:expr) => {
        [
            {
                let $i = 0;
                $e
            },
            {
                let $i = 1;
                $e
            },
        ]
    };
}

/// `acc + codes · quad` in each lane.
#[inline(always)]
fn dot4<const DOT: bool>(acc: int32x4_t, codes: uint8x16_t, quad: int8x16_t) -> int32x4_t {
    if DOT {
        return op!(sdot(acc, vreinterpretq_s8_u8(codes), quad));
    }
    op!({
        let codes = vreinterpretq_s8_u8(codes);
        let low = vmull_s8(vget_low_s8(codes), vget_low_s8(quad));
        let high = vmull_high_s8(codes, quad);
        vpadalq_s16(acc, vpaddq_s16(low, high))
    })
}

impl<const DOT: bool> CodeDot for Pair<Neon<DOT>> {
    const BIASED: bool = false;
    // 2 registers for each row's sum, 16 for the codes.
    const INT8_ROWS_MAX: usize = 4;
    // 8 registers for each row's four sums.
    const F32_ROWS: usize = 2;

    type B = [uint8x16_t; 2];

    ops! {
        fn and_i32(self, a: Self::I, mask: i32) -> Self::I =
            both!(i, vandq_s32(a[i], vdupq_n_s32(mask)));
        // Only asked of bytes, so the sign does not matter.
        fn shr4_i32(self, a: Self::I) -> Self::I = both!(i, vshrq_n_s32::<4>(a[i]));

        fn splat_u8(self, x: u8) -> Self::B = [vdupq_n_u8(x); 2];
        fn and(self, a: Self::B, b: Self::B) -> Self::B = both!(i, vandq_u8(a[i], b[i]));
        fn or(self, a: Self::B, b: Self::B) -> Self::B = both!(i, vorrq_u8(a[i], b[i]));
        fn xor(self, a: Self::B, b: Self::B) -> Self::B = both!(i, veorq_u8(a[i], b[i]));
        fn shl(self, a: Self::B, n: usize) -> Self::B = match n {
            1 => both!(i, vshlq_n_u8::<1>(a[i])),
            2 => both!(i, vshlq_n_u8::<2>(a[i])),
            3 => both!(i, vshlq_n_u8::<3>(a[i])),
            _ => both!(i, vshlq_n_u8::<4>(a[i])),
        };
        fn shr(self, a: Self::B, n: usize) -> Self::B = match n {
            1 => both!(i, vshrq_n_u8::<1>(a[i])),
            2 => both!(i, vshrq_n_u8::<2>(a[i])),
            3 => both!(i, vshrq_n_u8::<3>(a[i])),
            4 => both!(i, vshrq_n_u8::<4>(a[i])),
            5 => both!(i, vshrq_n_u8::<5>(a[i])),
            _ => both!(i, vshrq_n_u8::<6>(a[i])),
        };
        fn lookup(self, table: &[i8; 16], a: Self::B) -> Self::B = {
            let table = vld1q_u8(table.as_ptr().cast());
            both!(i, vqtbl1q_u8(table, a[i]))
        };
        fn byte(self, a: Self::B, j: usize, signed: bool) -> Self::F = both!(i, {
            // To the top of the lane, then down with or without the sign.
            let a = vreinterpretq_s32_u8(a[i]);
            let top = match j {
                0 => vshlq_n_s32::<24>(a),
                1 => vshlq_n_s32::<16>(a),
                2 => vshlq_n_s32::<8>(a),
                _ => a,
            };
            if signed {
                vcvtq_f32_s32(vshrq_n_s32::<24>(top))
            } else {
                vcvtq_f32_u32(vshrq_n_u32::<24>(vreinterpretq_u32_s32(top)))
            }
        });
        fn dot(self, acc: Self::I, codes: Self::B, quad: i32, _signed: bool) -> Self::I = {
            // Unsigned codes are below 64, so they are signed ones as well.
            let quad = vreinterpretq_s8_s32(vdupq_n_s32(quad));
            both!(i, dot4::<DOT>(acc[i], codes[i], quad))
        };

        unsafe fn load_bytes(self, p: *const u8) -> Self::B = both!(i, vld1q_u8(p.add(16 * i)));
        unsafe fn load_bf16(self, p: *const u8) -> Self::F = both!(i, {
            let half = vreinterpret_u16_u8(vld1_u8(p.add(8 * i)));
            vreinterpretq_f32_u32(vshll_n_u16::<16>(half))
        });
        unsafe fn load_u8(self, p: *const u8) -> Self::I = both!(i, {
            let four = p.add(4 * i).cast::<u32>().read_unaligned();
            let wide = vget_low_u16(vmovl_u8(vcreate_u8(u64::from(four))));
            vreinterpretq_s32_u32(vmovl_u16(wide))
        });
        unsafe fn load_i8(self, p: *const u8) -> Self::I = both!(i, {
            let four = p.add(4 * i).cast::<u32>().read_unaligned();
            let wide = vget_low_s16(vmovl_s8(vcreate_s8(u64::from(four))));
            vmovl_s16(wide)
        });
    }
}
