//! f16 and bf16, little-endian, as f32 and back: what every backend's instructions compute, for code that has none.
//!
//! Conversions to f32 are exact; the one to f16 rounds to the nearest, ties to even. A NaN stays one, and is quiet.

/// The smallest f32 that is a normal f16; below it an f16 has steps of 2^-24.
const NORMAL_MIN: u32 = 0x3880_0000;
/// 2^16: from here on all is infinite, as is what rounds to it.
const INFINITE: u32 = 0x4780_0000;
/// An infinite f32; what is greater is a NaN.
const F32_INFINITE: u32 = 0x7f80_0000;
/// Difference of the two exponents' biases, where an f32 has its exponent.
const BIAS: u32 = (127 - 15) << 23;

/// The value of an f16.
#[inline]
pub fn from_f16(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    let sign = (bits & 0x8000) << 16;
    let (exponent, mantissa) = (bits >> 10 & 0x1f, bits & 0x3ff);
    f32::from_bits(match exponent {
        0 => sign | (mantissa as f32 / 16_777_216.0).to_bits(),
        0x1f if mantissa > 0 => sign | F32_INFINITE | 0x40_0000 | mantissa << 13,
        0x1f => sign | F32_INFINITE,
        _ => sign | (((bits & 0x7fff) << 13) + BIAS),
    })
}

/// The value of a bf16.
#[inline]
pub fn from_bf16(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes)) << 16;
    let is_nan = bits & 0x7fff_ffff > F32_INFINITE;
    f32::from_bits(bits | if is_nan { 0x40_0000 } else { 0 })
}

/// The nearest f16.
#[inline]
pub fn to_f16(x: f32) -> [u8; 2] {
    let bits = x.to_bits();
    let size = bits & 0x7fff_ffff;
    let half = if size > F32_INFINITE {
        0x7e00 | size >> 13 & 0x3ff
    } else if size >= INFINITE {
        0x7c00
    } else if size >= NORMAL_MIN {
        nearest(size - BIAS, 13)
    } else {
        // The mantissa with its leading one, in steps of 2^-24; below 2^-25 nothing of it is left.
        let mantissa = size & 0x7f_ffff | 0x80_0000;
        nearest(mantissa, (126 - (size >> 23)).min(31))
    };
    ((bits >> 16 & 0x8000 | half) as u16).to_le_bytes()
}

/// `x` without its last bits, rounded; ties to even.
#[inline]
fn nearest(x: u32, bits: u32) -> u32 {
    let odd = x >> bits & 1;
    (x + (1 << (bits - 1)) - 1 + odd) >> bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn every_half_has_its_value() {
        for bits in 0..=u16::MAX {
            let bytes = bits.to_le_bytes();
            let value = f16::from_bits(bits).to_f32_const().to_bits();
            assert_eq!(from_f16(bytes).to_bits(), value, "{bits:#x}");
            let value = bf16::from_bits(bits).to_f32().to_bits();
            assert_eq!(from_bf16(bytes).to_bits(), value, "{bits:#x}");
        }
    }

    /// Every half, the middle between it and the next, and what is beside these; and floats of all sizes.
    #[test]
    fn the_nearest_half() {
        let check = |bits: u32| {
            let x = f32::from_bits(bits);
            let expected = f16::from_f32_const(x).to_le_bytes();
            assert_eq!(to_f16(x), expected, "{bits:#x} = {x}");
        };
        for half in 0..=u16::MAX {
            let bits = f16::from_bits(half).to_f32_const().to_bits();
            let middle = bits.wrapping_add(0x1000);
            // Below the normal ones a step is 2^-24.
            let next = f16::from_bits(half).to_f32_const() + 0.5f32.powi(25);
            for bits in [bits, middle, next.to_bits()] {
                (0..5).for_each(|i| check(bits.wrapping_add(i).wrapping_sub(2)));
            }
        }
        (0..=u32::MAX).step_by(1009).for_each(check);
    }
}
