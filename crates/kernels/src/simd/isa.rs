//! The base vocabulary of vectors, and its sixteen-lane form.

use crate::LANES;

/// One in fixed point: attention mass is counted in units of 2^-40, where additions commute.
/// A 24-bit probability above 2^-16 is exact in them, and 2^24 tokens' worth of mass fits.
pub(crate) const FIXED_ONE: f32 = (1u64 << 40) as f32;

/// Adding 2^52 to a double below it rounds it to an integer, found in the low bits of the sum.
pub(crate) const FIXED_MAGIC: f64 = (1u64 << 52) as f64;

/// Intrinsics that need nothing but their instruction and, for loads and stores, their caller's
/// promise.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: the token is proof of the instructions; a function that reads or writes through a
        // pointer is unsafe and passes its caller's promise on.
        unsafe { $e }
    };
}
pub(crate) use op;

/// The operations of an instruction set as a table: `fn name(self, …) -> type = intrinsics;`, each inlined
/// and under the promise of [`op`].
macro_rules! ops {
    ($($($name:ident)+ $(<const $n:ident: usize>)? ($($args:tt)*) $(-> $out:ty)? = $e:expr;)*) => { $(
        #[inline(always)]
        $($name)+ $(<const $n: usize>)? ($($args)*) $(-> $out)? {
            $crate::simd::op!($e)
        }
    )* };
}
pub(crate) use ops;

/// `LANES` lanes of f32 and of i32. Every operation rounds once per lane as IEEE 754 says, so that
/// lanes agree with the scalar references.
pub(crate) trait Isa: Copy {
    const LANES: usize;
    /// `LANES` f32.
    type F: Copy;
    /// `LANES` i32.
    type I: Copy;

    fn splat(self, x: f32) -> Self::F;
    fn neg(self, a: Self::F) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The greater of each pair; undefined where one is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `yes` where `a < b`, else `no` (also where either is NaN).
    fn if_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// `2^n` for `t = 1.5 * 2^23 + n` with `-126 <= n <= 127`: see [`crate::ops::exp`].
    fn power_of_two(self, t: Self::F) -> Self::F;
    /// Lane `i` gets lane `i ^ H`, for `H` a power of two below `LANES`.
    fn swap_lanes<const H: usize>(self, v: Self::F) -> Self::F;
    /// Folds the lanes in halves: the tree of [`crate::ops::lanes`].
    fn sum(self, v: Self::F) -> f32;
    fn max_lane(self, v: Self::F) -> f32;

    fn splat_i32(self, x: i32) -> Self::I;
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// To the nearest integer, ties to even. Lanes are within i32.
    fn to_i32(self, v: Self::F) -> Self::I;
    fn to_f32(self, a: Self::I) -> Self::F;

    /// # Safety
    /// - `p` is `LANES` readable f32, aligned or not.
    unsafe fn load_f32(self, p: *const f32) -> Self::F;
    /// # Safety
    /// - `p` is room for `LANES` f32, aligned or not, that nothing else refers to.
    unsafe fn store_f32(self, v: Self::F, p: *mut f32);
    /// # Safety
    /// - `p` is `LANES` readable f16, aligned or not.
    unsafe fn load_f16(self, p: *const u8) -> Self::F;
    /// To the nearest f16, ties to even. Lanes are within f16's range or NaN.
    ///
    /// # Safety
    /// - `p` is room for `LANES` f16, aligned or not, that nothing else refers to.
    unsafe fn store_f16(self, v: Self::F, p: *mut u8);
    /// # Safety
    /// - `p` is room for `LANES` i32, aligned or not, that nothing else refers to.
    unsafe fn store_i32(self, a: Self::I, p: *mut i32);
    /// Adds each lane to its counter in units of 2^-40, rounded to nearest, ties to even. Lanes are
    /// in `0.0..=2.0`.
    ///
    /// # Safety
    /// - `p` is `LANES` counters that nothing else refers to.
    unsafe fn add_fixed(self, v: Self::F, p: *mut u64);

    /// Asks for the cache line at `p`, which need not be a valid address.
    fn prefetch(self, p: *const u8);
}

/// Sixteen lanes, the width of every sum, behind references.
pub(crate) trait Simd: Isa {
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        const { assert!(Self::LANES == LANES) };
        op!(self.load_f32(x.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; LANES]) {
        const { assert!(Self::LANES == LANES) };
        op!(self.store_f32(v, to.as_mut_ptr()))
    }
    /// Sixteen f16 as they lie in memory.
    #[inline(always)]
    fn load_half(self, x: &[u8; 2 * LANES]) -> Self::F {
        const { assert!(Self::LANES == LANES) };
        op!(self.load_f16(x.as_ptr()))
    }
    /// As [`Isa::store_f16`].
    #[inline(always)]
    fn store_half(self, v: Self::F, to: &mut [u8; 2 * LANES]) {
        const { assert!(Self::LANES == LANES) };
        op!(self.store_f16(v, to.as_mut_ptr()))
    }
    #[inline(always)]
    fn store_int(self, a: Self::I, to: &mut [i32; LANES]) {
        const { assert!(Self::LANES == LANES) };
        op!(self.store_i32(a, to.as_mut_ptr()))
    }
    /// As [`Isa::add_fixed`].
    #[inline(always)]
    fn count_fixed(self, v: Self::F, to: &mut [u64; LANES]) {
        const { assert!(Self::LANES == LANES) };
        op!(self.add_fixed(v, to.as_mut_ptr()))
    }
}
