//! The levels of each codec: the value of a code before its scale.
//!
//! Levels are integers that fit a signed byte, so one table look-up of bytes makes sixteen or more
//! of them on every instruction set, and `level * scale` is exact: eight bits times eleven.
//!
//! The codebooks ascend, and a code is an index. They reach further above zero than below: a scale
//! has a sign, so that each group takes a codebook or its mirror image, and two different
//! codebooks leave less error than one. They are trained on groups of 64 normal values, each with its best
//! scale of either sign: every level is the mean of the values nearest to it, in units of
//! their scales and by the weight of those. The greatest is 127 and the others are rounded.

use super::Codec;
use StartScale::{Reach, Rms};

pub const INT5: [i8; 32] = [
    -108, -95, -83, -73, -64, -57, -50, -43, -37, -32, -26, -21, -16, -11, -6, -1, 4, 9, 14, 19,
    24, 29, 35, 41, 48, 55, 62, 70, 80, 91, 104, 127,
];
pub const INT4: [i8; 16] = [
    -104, -80, -63, -49, -36, -24, -13, -2, 9, 20, 32, 45, 59, 76, 97, 127,
];
pub const INT3: [i8; 8] = [-102, -62, -33, -7, 18, 45, 77, 127];
pub const INT2: [i8; 4] = [-97, -21, 44, 127];

/// Four bits in two's complement.
pub const INT4_PLAIN: [i8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1];

/// The levels of a codec by code; none for `int8`, whose code is its level, and for floats.
pub const fn of(codec: Codec) -> &'static [i8] {
    match codec {
        Codec::Int5 => &INT5,
        Codec::Int4 => &INT4,
        Codec::Int4Plain => &INT4_PLAIN,
        Codec::Int3 => &INT3,
        Codec::Int2 => &INT2,
        Codec::F32 | Codec::F16 | Codec::Int8 => &[],
    }
}

/// A polynomial, highest power first.
pub type Curve = &'static [f32];

/// A scale from which the encoder starts its search.
pub enum StartScale {
    /// Times the scale that reaches every value.
    Reach(f32),
    /// Times the root mean square.
    Rms(f32),
}

/// A codebook as the encoder reads it.
pub struct Codebook<const N: usize> {
    pub levels: [f32; N],
    /// From `bounds[i]` on, level `i` is nearer than level `i - 1`; the first is unused.
    pub bounds: [f32; N],
    /// How far the levels reach below and above zero.
    pub bottom: f32,
    pub top: f32,
    /// Rounded, about the index of the level nearest to a number between the ends, less `N / 2`.
    pub index: Curve,
    /// About the level of such an index.
    pub level: Curve,
    /// Start scales for the likely orientation, and for the mirror image.
    pub start_scales: [&'static [StartScale]; 2],
}

const fn book<const N: usize>(
    levels: &[i8; N],
    [index, level]: [Curve; 2],
    start_scales: [&'static [StartScale]; 2],
) -> Codebook<N> {
    let mut bounds = [0.0; N];
    let mut numbers = [levels[0] as f32; N];
    let mut i = 1;
    while i < N {
        bounds[i] = 0.5 * (levels[i] as f32 + levels[i - 1] as f32);
        numbers[i] = levels[i] as f32;
        i += 1;
    }
    Codebook {
        levels: numbers,
        bounds,
        bottom: -(levels[0] as f32),
        top: levels[N - 1] as f32,
        index,
        level,
        start_scales,
    }
}

// The curves are least squares, through `(bounds[i], i - 0.5)` and `(i, level)`; those of four levels
// go through all. The first scales are what leaves the least error together, of many
// (`docs/how-it-works/kv-blocks.md`). With many levels the greatest value of a group wants the greatest level; with
// four it is better cut off.
pub static BOOK5: Codebook<32> = book(
    &INT5,
    [
        &[
            -1.194_74e-14,
            -2.893_258e-13,
            4.573_513e-10,
            5.698_55e-9,
            -9.279_416e-6,
            -3.503_095e-5,
            0.204_323_1,
            -0.785_608_5,
        ],
        &[
            1.522_73e-9,
            2.783_383e-8,
            -5.063_94e-7,
            -1.023_456e-5,
            7.143_848e-5,
            1.252_992e-3,
            3.113_854e-3,
            -2.748_837e-2,
            4.925_279,
            4.096_896,
        ],
    ],
    [
        &[Reach(0.96), Reach(1.0), Reach(1.02), Reach(1.14)],
        &[Reach(0.96), Reach(1.0)],
    ],
);
pub static BOOK4: Codebook<16> = book(
    &INT4,
    [
        &[
            5.541_219e-11,
            1.318_981e-9,
            -2.711_844e-6,
            -1.893_562e-5,
            9.091_527e-2,
            -0.817_410_4,
        ],
        &[
            1.063_745e-3,
            4.333_869e-3,
            2.067_457e-2,
            7.349_22e-2,
            11.242_62,
            9.113_747,
        ],
    ],
    [
        &[Reach(0.88), Reach(0.94), Reach(0.98), Reach(1.04)],
        &[Reach(0.94), Reach(1.0)],
    ],
);
pub static BOOK3: Codebook<8> = book(
    &INT3,
    [
        &[-7.598_673e-7, 2.294_447e-6, 3.922_013e-2, -0.720_092_4],
        &[
            3.429_487e-2,
            0.126_456_9,
            0.348_921_9,
            0.445_221_4,
            25.575_99,
            18.250_58,
        ],
    ],
    [&[Reach(0.76), Reach(0.84), Reach(0.94)], &[Reach(0.78)]],
);
pub static BOOK2: Codebook<4> = book(
    &INT2,
    [
        &[-4.642_793e-6, 1.396_386e-2, -0.659_970_4],
        &[4.833_333, 9.0, 69.166_67, 44.0],
    ],
    [
        &[Reach(0.6), Rms(0.012_84), Rms(0.015_34)],
        &[Rms(0.013_68)],
    ],
);
