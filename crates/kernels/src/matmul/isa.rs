//! What the product needs from an instruction set beyond [`crate::simd::Isa`], and the weight types as
//! types.
//!
//! Everything here is `inline(always)` and ends up inside one function per weight type that has the
//! target features switched on; a closure or a call that is not inlined would compute in plain scalar
//! code, so there are none.

use crate::format::WeightType;
use crate::format::packed::Shape;
use crate::simd::Isa;

/// A weight type as a type, so that the kernels are compiled once for each.
pub(super) trait Weight {
    const TY: WeightType;
    /// Of a quantised type.
    const SHAPE: Shape = Shape::of(Self::TY);
}

/// Calls `$f::<T>($args)` for the run-time type `$ty`.
macro_rules! for_type {
    ($ty:expr, $f:ident, $args:tt) => {
        for_type!(@ $ty, $f, $args,
            F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS)
    };
    (@ $ty:expr, $f:ident, $args:tt, $($name:ident)*) => {{
        use crate::format::WeightType;
        $(
            #[allow(non_camel_case_types)]
            struct $name;
            impl crate::matmul::isa::Weight for $name {
                const TY: WeightType = WeightType::$name;
            }
        )*
        match $ty {
            $( WeightType::$name => $f::<$name> $args, )*
        }
    }};
}
pub(super) use for_type;

/// Weight codes: unpacking them and multiplying them with activations, over `LANES` rows of a strip
/// (16, or 8 and a strip is done in two parts).
pub(super) trait CodeDot: Isa {
    /// The dot product wants unsigned codes: signed ones are shifted up by 128, which is taken
    /// out again through the sum of the activations.
    const BIASED: bool;
    /// Activation rows that share an unpacked group, 4 or 8: more would spill.
    const INT8_ROWS_MAX: usize;
    /// The same for f32, 2 or 4.
    const F32_ROWS: usize;

    /// `LANES` times four bytes.
    type B: Copy;

    fn and_i32(self, a: Self::I, mask: i32) -> Self::I;
    /// Logical shift right by 4.
    fn shr4_i32(self, a: Self::I) -> Self::I;

    fn splat_u8(self, x: u8) -> Self::B;
    fn and(self, a: Self::B, b: Self::B) -> Self::B;
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    fn xor(self, a: Self::B, b: Self::B) -> Self::B;
    /// Shift left by 1 to 4; what crosses into a byte from its neighbour is masked by the caller.
    fn shl(self, a: Self::B, n: usize) -> Self::B;
    /// Shift right by 1 to 6, likewise.
    fn shr(self, a: Self::B, n: usize) -> Self::B;
    /// `table[a]` for bytes below 16.
    fn lookup(self, table: &[i8; 16], a: Self::B) -> Self::B;
    /// Byte `j` of each lane as a number, unsigned or signed.
    fn byte(self, a: Self::B, j: usize, signed: bool) -> Self::F;
    /// Adds the dot product of four codes of each lane with the four i8 activations in `quad`
    /// (little-endian).
    /// `signed`: the codes are i8; only asked for when `BIASED` is false. Unsigned codes are at
    /// most 63, or anything when `BIASED` is true. Exact.
    fn dot(self, acc: Self::I, codes: Self::B, quad: i32, signed: bool) -> Self::I;

    /// # Safety
    /// `4 * LANES` bytes at `p` are readable.
    unsafe fn load_bytes(self, p: *const u8) -> Self::B;
    /// # Safety
    /// `2 * LANES` bytes at `p` are readable.
    unsafe fn load_bf16(self, p: *const u8) -> Self::F;
    /// # Safety
    /// `LANES` bytes at `p` are readable.
    unsafe fn load_u8(self, p: *const u8) -> Self::I;
    /// # Safety
    /// `LANES` bytes at `p` are readable.
    unsafe fn load_i8(self, p: *const u8) -> Self::I;
}
