//! Sixteen f32 lanes on any instruction set.
//!
//! [`Simd`] is a proof and a vocabulary: a value of an implementing type exists only where its
//! instructions do, and its methods are the few operations the kernels are written in. One vector
//! is sixteen lanes everywhere: one AVX-512 register, two of AVX2, four of NEON. So a kernel has
//! one body, and the lanes it sums over are the same on each machine.
//!
//! The bodies are `#[inline(always)]` and hold no closures: they must melt into the function that
//! enables the instructions ([`simd_fn`] writes it), or every operation becomes a call.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

/// Sixteen lanes of f32 and what kernels do with them. Every operation rounds once per lane as
/// IEEE 754 says, so that lanes agree with the scalar twins.
pub(crate) trait Simd: Copy {
    /// Sixteen lanes.
    type V: Copy;

    /// Rows of a product's register tile: the accumulators are `ROWS * COLS` vectors.
    const ROWS: usize;
    /// Vectors side by side in a register tile.
    const COLS: usize;

    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; 16]) -> Self::V;
    fn store(self, v: Self::V, to: &mut [f32; 16]);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The greater of each pair; which, where one is not a number, is not defined.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `yes` where `a < b`, else `no` (also where either is not a number).
    fn if_less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// `2^n` for `t = 1.5 * 2^23 + n` with `-126 <= n <= 127`: see [`super::exp`].
    fn power_of_two(self, t: Self::V) -> Self::V;
    /// Sixteen f16 as they lie in memory.
    fn load_half(self, x: &[u8; 32]) -> Self::V;
    /// To f16, nearest, ties to even. Lanes are within f16's range or not numbers.
    fn store_half(self, v: Self::V, to: &mut [u8; 32]);
    /// The tree of [`super::lanes`].
    fn sum(self, v: Self::V) -> f32;
    fn max_lane(self, v: Self::V) -> f32;
    /// Adds each lane to its counter in units of 2^-40, rounded to nearest, ties to even. Lanes
    /// are in `0.0..=2.0`.
    fn add_fixed(self, v: Self::V, to: &mut [u64; 16]);
    /// Asks for the cache line at `p`, which need not be a valid address.
    fn prefetch(self, p: *const u8);
    /// Lane `i` gets lane `i ^ H`, for `H` of 1, 2, 4 and 8.
    fn swap_lanes<const H: usize>(self, v: Self::V) -> Self::V;

    // Whole numbers.

    /// Sixteen i32.
    type I: Copy;

    /// The nearest whole number, ties to even. Lanes are within i32.
    fn whole(self, v: Self::V) -> Self::I;
    fn add_whole(self, a: Self::I, b: Self::I) -> Self::I;
    fn store_whole(self, a: Self::I, to: &mut [i32; 16]);

    // Levels of keys and values times rows of whole numbers (`crate::attention`). Levels come in
    // fours, one four for each of sixteen lanes, and meet fours of a row; sums are exact. A row lies
    // in memory as the instruction set likes it, in two bytes a number: *wide* numbers are within
    // ±16256 = 127 * 128, *narrow* ones within ±127. At most 256 of them are added up.

    /// Sixteen levels, where look-ups find them.
    type Book: Copy;
    /// Four levels for each lane.
    type Fours: Copy;
    /// Four numbers of a row, in every lane.
    type WideFour: Copy;
    type NarrowFour: Copy;
    /// Sums.
    type Wide: Copy;
    type Narrow: Copy;

    /// Rows of a register tile that reads bytes, of wide and of narrow numbers.
    const WIDE_ROWS: usize;
    const NARROW_ROWS: usize;
    /// The same where four-bit codes are looked up in registers.
    const FUSED_WIDE: usize;
    const FUSED_NARROW: usize;
    /// Rows up to which low and high codes are summed apart: there are registers for it.
    const CHAINS: usize;

    fn book(self, levels: &[i8; 16]) -> Self::Book;
    /// Signed bytes.
    fn fours(self, x: &[u8; 64]) -> Self::Fours;
    /// The levels of the low and of the high four bits of each byte.
    fn nibbles(self, book: Self::Book, x: &[u8; 64]) -> (Self::Fours, Self::Fours);
    /// Codes below 32 become their levels.
    fn look_up(self, levels: &[i8; 32], codes: &mut [u8; 64]);

    /// Numbers `at..at + 16` of a row of `len`.
    ///
    /// # Safety
    /// - `row` is `2 * len` bytes that nothing else refers to, and `at + 16 <= len`.
    unsafe fn put_wide(self, x: Self::I, row: *mut u8, len: usize, at: usize);
    /// # Safety
    /// - As for [`Simd::put_wide`].
    unsafe fn put_narrow(self, x: Self::I, row: *mut u8, len: usize, at: usize);
    /// Numbers `4 * at..4 * at + 4` of a row of `len`.
    ///
    /// # Safety
    /// - `row` is `2 * len` bytes of [`Simd::put_wide`], and `4 * at + 4 <= len`.
    unsafe fn wide_four(self, row: *const u8, len: usize, at: usize) -> Self::WideFour;
    /// # Safety
    /// - As for [`Simd::wide_four`], with [`Simd::put_narrow`].
    unsafe fn narrow_four(self, row: *const u8, len: usize, at: usize) -> Self::NarrowFour;

    fn wide_zero(self) -> Self::Wide;
    fn narrow_zero(self) -> Self::Narrow;
    fn wide_dot(self, acc: Self::Wide, levels: Self::Fours, by: Self::WideFour) -> Self::Wide;
    fn narrow_dot(
        self,
        acc: Self::Narrow,
        levels: Self::Fours,
        by: Self::NarrowFour,
    ) -> Self::Narrow;
    fn wide_join(self, a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn narrow_join(self, a: Self::Narrow, b: Self::Narrow) -> Self::Narrow;
    /// The sums, rounded to f32; `total` is the sum of the numbers that were multiplied with.
    fn wide_end(self, acc: Self::Wide, total: i32) -> Self::V;
    fn narrow_end(self, acc: Self::Narrow, total: i32) -> Self::V;
}

/// Levels are biased by this where an instruction wants them unsigned.
#[cfg(target_arch = "x86_64")]
const BIAS_BITS: u32 = 7;
/// A wide number is `high << 7` and a low part within 0..128.
const PART_BITS: u32 = 7;

/// The public face of a kernel: picks the table. `$scalar` and `$body` are the twins; `$body` is
/// generic over [`Simd`] and takes the token first.
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?
        = $scalar:path, $body:path;) => {
        $(#[$meta])*
        $vis fn $name(table: $crate::cpu::Table, $($arg: $ty),*) $(-> $ret)? {
            match table.kind() {
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::Kind::Avx512Vbmi => {
                    #[target_feature(
                        enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni"
                    )]
                    fn enabled($($arg: $ty),*) $(-> $ret)? {
                        // SAFETY: this function runs only where the features are enabled.
                        let token = unsafe { $crate::ops::simd::avx512::Avx512::<true>::assume() };
                        $body(token, $($arg),*)
                    }
                    // SAFETY: a table of this kind exists only where the features were found.
                    unsafe { enabled($($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::Kind::Avx512 => {
                    #[target_feature(
                        enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
                    )]
                    fn enabled($($arg: $ty),*) $(-> $ret)? {
                        // SAFETY: this function runs only where the features are enabled.
                        let token = unsafe { $crate::ops::simd::avx512::Avx512::<false>::assume() };
                        $body(token, $($arg),*)
                    }
                    // SAFETY: a table of this kind exists only where the features were found.
                    unsafe { enabled($($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::Kind::Avx2 => {
                    #[target_feature(enable = "avx2,fma,f16c")]
                    fn enabled($($arg: $ty),*) $(-> $ret)? {
                        // SAFETY: this function runs only where the features are enabled.
                        let token = unsafe { $crate::ops::simd::avx2::Avx2::assume() };
                        $body(token, $($arg),*)
                    }
                    // SAFETY: a table of this kind exists only where the features were found.
                    unsafe { enabled($($arg),*) }
                }
                #[cfg(target_arch = "aarch64")]
                $crate::cpu::Kind::Neon => {
                    #[target_feature(enable = "neon")]
                    fn enabled($($arg: $ty),*) $(-> $ret)? {
                        // SAFETY: this function runs only where the features are enabled.
                        let token = unsafe { $crate::ops::simd::neon::Neon::<false>::assume() };
                        $body(token, $($arg),*)
                    }
                    // SAFETY: a table of this kind exists only where the features were found.
                    unsafe { enabled($($arg),*) }
                }
                #[cfg(target_arch = "aarch64")]
                $crate::cpu::Kind::NeonDot => {
                    #[target_feature(enable = "neon,dotprod")]
                    fn enabled($($arg: $ty),*) $(-> $ret)? {
                        // SAFETY: this function runs only where the features are enabled.
                        let token = unsafe { $crate::ops::simd::neon::Neon::<true>::assume() };
                        $body(token, $($arg),*)
                    }
                    // SAFETY: a table of this kind exists only where the features were found.
                    unsafe { enabled($($arg),*) }
                }
                _ => $scalar($($arg),*),
            }
        }
    };
}
pub(crate) use simd_fn;
