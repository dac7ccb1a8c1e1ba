//! Blocks in a GGUF file, and the plain way to read them as f32.
//!
//! A quantised row is a run of blocks of 32 or 256 values. Whatever the type, a *group* of 32
//! values is: 32 unsigned codes, and for each 16 of them a scale and perhaps a minimum,
//!
//! ```text
//! value = scale * integer(code) + minimum
//! ```
//!
//! where `integer` subtracts a constant or looks the code up. [`codes`] and [`scales`] read one
//! group from a block, [`put_codes`] and [`put_scales`] write it back; unpacking a row, packing a strip and taking it
//! apart again ([`super::packed`]) are built on these, so only one place knows where a bit lies in the file.
//!
//! Tokens do not pass here: nothing is fast, and no contents of a block can make it panic. Scales may
//! be infinite or NaN and stay so.

use super::half::{from_bf16, from_f16};

use super::WeightType::{self, *};

/// Values per group: all types have their scales on 16 or 32 values.
pub const GROUP: usize = 32;

/// The 16 values of the non-linear 4-bit types.
pub const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// The scales of one group, in the exact small form of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scales {
    /// f16 bits of the block's scale.
    pub d: u16,
    /// f16 bits of the block's minimum (`_1`: added) or of the scale of its minima (K: subtracted).
    pub m: u16,
    /// K types: the small scales of the first and second 16 values.
    pub sub: [i8; 2],
    /// K types with minima: the small minima of the first and second 16 values.
    pub sub_min: [u8; 2],
}

/// What the integers of a type mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Integer {
    /// code - zero
    Minus(u8),
    /// the byte read as i8
    Signed,
    /// [`IQ4_VALUES`]
    Table,
}

impl WeightType {
    pub(crate) const fn integer(self) -> Integer {
        match self {
            Q4_0 => Integer::Minus(8),
            Q5_0 => Integer::Minus(16),
            Q6_K => Integer::Minus(32),
            Q3_K => Integer::Minus(4),
            Q8_0 => Integer::Signed,
            IQ4_NL | IQ4_XS => Integer::Table,
            _ => Integer::Minus(0),
        }
    }

    /// Superblocks of 256 with small integer scales per group.
    pub(crate) const fn has_sub_scales(self) -> bool {
        self.block_len() == 256
    }

    pub(crate) const fn has_min(self) -> bool {
        matches!(self, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K)
    }
}

impl Integer {
    pub(crate) fn of(self, code: u8) -> i32 {
        match self {
            Integer::Minus(zero) => i32::from(code) - i32::from(zero),
            Integer::Signed => i32::from(code as i8),
            Integer::Table => i32::from(IQ4_VALUES[usize::from(code & 15)]),
        }
    }
}

impl Scales {
    /// The f32 scale of the first or second half of the group. One rounding, as in the product
    /// `d * sub` of the reference.
    pub(crate) fn scale(self, ty: WeightType, half: usize) -> f32 {
        let d = from_f16(self.d.to_le_bytes());
        if ty.has_sub_scales() {
            d * f32::from(self.sub[half])
        } else {
            d
        }
    }

    /// What is added to `scale * integer`.
    pub(crate) fn min(self, ty: WeightType, half: usize) -> f32 {
        let m = from_f16(self.m.to_le_bytes());
        if ty.has_sub_scales() {
            -(m * f32::from(self.sub_min[half]))
        } else {
            m
        }
    }
}

/// Four neighbouring codes in a word, the first in the lowest byte.
pub(crate) type Quad = u32;

/// Every byte of a quad set to `b`.
const fn bytes(b: u8) -> Quad {
    b as u32 * 0x0101_0101
}

/// The 32 codes of group `group` of a block, unsigned and unshifted, in quads: picking bits out of
/// four codes at a time makes packing five times as fast as one by one.
///
/// `block` is one whole block of a quantised type (the caller cuts the row), `group` is below
/// `block_len / 32`.
#[inline(always)]
pub(crate) fn codes(ty: WeightType, block: &[u8], group: usize) -> [Quad; GROUP / 4] {
    assert!(block.len() == ty.block_bytes() && group < ty.block_len() / GROUP);
    // K types: groups 0..4 live in the first half of the quants, 4..8 in the second.
    let (half, quarter) = (group / 4, group % 4);
    let word = |at: usize, q: usize| {
        let b = &block[at + 4 * q..][..4];
        Quad::from_le_bytes([b[0], b[1], b[2], b[3]])
    };
    // 16 bytes: the low nibbles are values 0..16, the high ones 16..32.
    let halves = |at: usize, q: usize| word(at, q % 4) >> (4 * (q / 4)) & bytes(15);
    let mut out = [0; GROUP / 4];
    for (q, out) in out.iter_mut().enumerate() {
        *out = match ty {
            Q4_0 | IQ4_NL => halves(2, q),
            Q4_1 => halves(4, q),
            IQ4_XS => halves(8 + 16 * group, q),
            Q5_0 | Q5_1 => {
                let at = if matches!(ty, Q5_0) { 2 } else { 4 };
                // Bit 4 q + b to the lowest bit of byte b.
                let four = word(at, 0) >> (4 * q) & 15;
                let high = four.wrapping_mul(0x0020_4081) & bytes(1);
                halves(at + 4, q) | high << 4
            }
            Q8_0 => word(2, q),
            Q4_K => word(16 + 32 * (group / 2), q) >> (4 * (group % 2)) & bytes(15),
            Q5_K => {
                let low = word(48 + 32 * (group / 2), q) >> (4 * (group % 2)) & bytes(15);
                low | (word(16, q) >> group & bytes(1)) << 4
            }
            Q6_K => {
                let low = word(64 * half + 32 * (quarter % 2), q) >> (4 * (quarter / 2));
                let high = word(128 + 32 * half, q) >> (2 * quarter);
                low & bytes(15) | (high & bytes(3)) << 4
            }
            Q2_K => word(16 + 32 * half, q) >> (2 * quarter) & bytes(3),
            Q3_K => {
                let low = word(32 + 32 * half, q) >> (2 * quarter) & bytes(3);
                low | (word(0, q) >> group & bytes(1)) << 2
            }
            F32 | F16 | BF16 => unreachable!("{ty} has no codes"),
        };
    }
    out
}

/// The scales of group `group` of a block; same conditions as [`codes`].
#[inline(always)]
pub(crate) fn scales(ty: WeightType, block: &[u8], group: usize) -> Scales {
    assert!(block.len() == ty.block_bytes() && group < ty.block_len() / GROUP);
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let plain = Scales {
        d: half(0),
        ..Scales::default()
    };
    match ty {
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL => plain,
        Q4_1 | Q5_1 => Scales {
            m: half(2),
            ..plain
        },
        Q4_K | Q5_K => {
            // 8 scales and 8 minima of 6 bits in 12 bytes: the first four of each whole, of the
            // last four the low nibbles together and the high pairs on top of the first four.
            let s = &block[4..16];
            let (scale, min) = if group < 4 {
                (s[group] & 63, s[group + 4] & 63)
            } else {
                (
                    s[group + 4] & 15 | s[group - 4] >> 6 << 4,
                    s[group + 4] >> 4 | s[group] >> 6 << 4,
                )
            };
            Scales {
                m: half(2),
                sub: [scale as i8; 2],
                sub_min: [min; 2],
                ..plain
            }
        }
        Q6_K => Scales {
            d: half(208),
            sub: [block[192 + 2 * group] as i8, block[193 + 2 * group] as i8],
            ..plain
        },
        Q2_K => {
            let s = [block[2 * group], block[2 * group + 1]];
            Scales {
                d: half(80),
                m: half(82),
                sub: s.map(|b| (b & 15) as i8),
                sub_min: s.map(|b| b >> 4),
            }
        }
        Q3_K => {
            // 16 scales of 6 bits in 12 bytes: nibbles in the first 8, bit pairs in the last 4.
            let s = &block[96..108];
            let one = |i: usize| {
                let low = s[i % 8] >> (4 * (i / 8)) & 15;
                let high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
                (low | high << 4) as i8 - 32
            };
            Scales {
                d: half(108),
                sub: [one(2 * group), one(2 * group + 1)],
                ..plain
            }
        }
        IQ4_XS => {
            let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
            let high = (half(2) >> (2 * group) & 3) as u8;
            Scales {
                sub: [(low | high << 4) as i8 - 32; 2],
                ..plain
            }
        }
        F32 | F16 | BF16 => unreachable!("{ty} has no scales"),
    }
}

/// Puts the 32 codes of a group into a block: the inverse of [`codes`]. The block's codes are zero before.
pub(crate) fn put_codes(ty: WeightType, codes: &[u8; GROUP], group: usize, block: &mut [u8]) {
    assert!(block.len() == ty.block_bytes() && group < ty.block_len() / GROUP);
    let (half, quarter) = (group / 4, group % 4);
    for (k, &code) in codes.iter().enumerate() {
        let (low, high) = (code & 15, code >> 4);
        // 16 bytes: the low nibbles are values 0..16, the high ones 16..32.
        let nibble = low << (4 * (k / 16));
        match ty {
            Q4_0 | IQ4_NL => block[2 + k % 16] |= nibble,
            Q4_1 => block[4 + k % 16] |= nibble,
            IQ4_XS => block[8 + 16 * group + k % 16] |= nibble,
            Q5_0 | Q5_1 => {
                let at = if matches!(ty, Q5_0) { 2 } else { 4 };
                block[at + k / 8] |= (high & 1) << (k % 8);
                block[at + 4 + k % 16] |= nibble;
            }
            Q8_0 => block[2 + k] = code,
            Q4_K => block[16 + 32 * (group / 2) + k] |= low << (4 * (group % 2)),
            Q5_K => {
                block[48 + 32 * (group / 2) + k] |= low << (4 * (group % 2));
                block[16 + k] |= (high & 1) << group;
            }
            Q6_K => {
                block[64 * half + 32 * (quarter % 2) + k] |= low << (4 * (quarter / 2));
                block[128 + 32 * half + k] |= (high & 3) << (2 * quarter);
            }
            Q2_K => block[16 + 32 * half + k] |= (code & 3) << (2 * quarter),
            Q3_K => {
                block[32 + 32 * half + k] |= (code & 3) << (2 * quarter);
                block[k] |= (code >> 2 & 1) << group;
            }
            F32 | F16 | BF16 => unreachable!("{ty} has no codes"),
        }
    }
}

/// Puts the scales of a group into a block: the inverse of [`scales`]. The block's scales are zero before.
pub(crate) fn put_scales(ty: WeightType, scales: &Scales, group: usize, block: &mut [u8]) {
    assert!(block.len() == ty.block_bytes() && group < ty.block_len() / GROUP);
    let (d_at, m_at) = match ty {
        Q6_K => (208, None),
        Q2_K => (80, Some(82)),
        Q3_K => (108, None),
        Q4_1 | Q5_1 | Q4_K | Q5_K => (0, Some(2)),
        _ => (0, None),
    };
    block[d_at..d_at + 2].copy_from_slice(&scales.d.to_le_bytes());
    if let Some(at) = m_at {
        block[at..at + 2].copy_from_slice(&scales.m.to_le_bytes());
    }
    match ty {
        Q4_K | Q5_K => {
            let (scale, min) = (scales.sub[0] as u8 & 63, scales.sub_min[0] & 63);
            let s = &mut block[4..16];
            if group < 4 {
                s[group] |= scale;
                s[group + 4] |= min;
            } else {
                s[group + 4] |= scale & 15 | (min & 15) << 4;
                s[group - 4] |= scale >> 4 << 6;
                s[group] |= min >> 4 << 6;
            }
        }
        Q6_K => {
            for half in 0..2 {
                block[192 + 2 * group + half] = scales.sub[half] as u8;
            }
        }
        Q2_K => {
            for half in 0..2 {
                block[2 * group + half] = scales.sub[half] as u8 & 15 | scales.sub_min[half] << 4;
            }
        }
        Q3_K => {
            let s = &mut block[96..108];
            for half in 0..2 {
                let (i, scale) = (2 * group + half, biased(scales.sub[half]));
                s[i % 8] |= (scale & 15) << (4 * (i / 8));
                s[8 + i % 4] |= scale >> 4 << (2 * (i / 4));
            }
        }
        IQ4_XS => {
            let scale = biased(scales.sub[0]);
            block[4 + group / 2] |= (scale & 15) << (4 * (group % 2));
            block[2 + group / 4] |= scale >> 4 << (2 * (group % 4));
        }
        _ => {}
    }
}

/// A small scale of 6 bits as the file has it: 32 more than it is.
fn biased(scale: i8) -> u8 {
    scale.wrapping_add(32) as u8 & 63
}

/// One row back as f32: the values the file means, with the roundings of the format's reference
/// (`scale` rounded once, the product once, the sum once).
///
/// `bytes` is exactly the row's bytes: `ty.row_bytes(out.len())`.
pub fn unpack_row(ty: WeightType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        ty.row_bytes(out.len()),
        "{ty} row of {} values",
        out.len()
    );
    if ty.is_float() {
        for (i, out) in out.iter_mut().enumerate() {
            *out = float_at(ty, bytes, i);
        }
        return;
    }
    let blocks = bytes.chunks_exact(ty.block_bytes());
    for (block, out) in blocks.zip(out.chunks_exact_mut(ty.block_len())) {
        for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
            unpack_group(ty, block, group, out);
        }
    }
}

/// Number `i` of a float type.
pub(crate) fn float_at(ty: WeightType, bytes: &[u8], i: usize) -> f32 {
    match ty {
        F32 => f32::from_le_bytes(bytes.as_chunks().0[i]),
        F16 => from_f16(bytes.as_chunks().0[i]),
        _ => from_bf16(bytes.as_chunks().0[i]),
    }
}

fn unpack_group(ty: WeightType, block: &[u8], group: usize, out: &mut [f32]) {
    let codes = codes(ty, block, group);
    let scales = scales(ty, block, group);
    for (k, o) in out.iter_mut().enumerate() {
        let value =
            scales.scale(ty, k / 16) * ty.integer().of(codes[k / 4].to_le_bytes()[k % 4]) as f32;
        *o = if ty.has_min() {
            value + scales.min(ty, k / 16)
        } else {
            value
        };
    }
}
