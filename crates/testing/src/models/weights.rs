//! Random weights of every type, the same on every platform.
//!
//! Values come from an integer hash of (seed, tensor name, index) and from single IEEE operations,
//! never from a library's generator. Quantised tensors are random *blocks*: every bit pattern a
//! quantiser could write may occur, with scales chosen so that values have a wanted spread.

use half::{bf16, f16};
use haversack_kernels::format::WeightType::{self, *};
use std::io::{self, Write};

/// 2^64 divided by the golden ratio: steps that visit all of 64 bits evenly.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The number a tensor's stream starts from.
pub fn stream(seed: u64, name: &str) -> u64 {
    name.bytes()
        .fold(mix(seed ^ STEP), |h, b| mix(h ^ u64::from(b)))
}

/// A stream of random numbers.
pub struct Random(u64);

impl Random {
    pub fn new(start: u64) -> Random {
        Random(start)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Uniform in -1..1, with 24 bits: exact in f32.
    pub fn signed(&mut self) -> f32 {
        ((self.bits() >> 40) as i32 - (1 << 23)) as f32 / (1 << 23) as f32
    }

    /// Uniform in 0..1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    fn bytes(&mut self, out: &mut Vec<u8>, mut count: usize) {
        while count > 0 {
            let n = count.min(8);
            out.extend_from_slice(&self.bits().to_le_bytes()[..n]);
            count -= n;
        }
    }
}

/// What a tensor's values look like.
#[derive(Clone, Copy, Debug)]
pub enum Look {
    /// Mean 0, with this standard deviation.
    Spread(f32),
    /// Uniform between the two; only for float types.
    Between(f32, f32),
}

/// Writes `values` values of `ty`, whole blocks, a mebibyte at a time.
pub fn fill(
    ty: WeightType,
    values: u64,
    look: Look,
    start: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut random = Random::new(start);
    let mut buffer = Vec::with_capacity((1 << 20) + 256);
    for _ in 0..values / ty.block_len() as u64 {
        block(ty, look, &mut random, &mut buffer);
        if buffer.len() >= 1 << 20 {
            out.write_all(&buffer)?;
            buffer.clear();
        }
    }
    out.write_all(&buffer)
}

fn block(ty: WeightType, look: Look, random: &mut Random, out: &mut Vec<u8>) {
    let spread = match look {
        Look::Spread(s) => s,
        Look::Between(lo, hi) => (hi - lo) / 12f32.sqrt(),
    };
    if ty.is_float() {
        let v = match look {
            // A uniform of half-width w has the deviation w / √3.
            Look::Spread(s) => random.signed() * (s * 3f32.sqrt()),
            Look::Between(lo, hi) => lo + (hi - lo) * random.unit(),
        };
        match ty {
            F16 => out.extend(f16::from_f32(v).to_le_bytes()),
            BF16 => out.extend(bf16::from_f32(v).to_le_bytes()),
            _ => out.extend(v.to_le_bytes()),
        }
        return;
    }
    // One scale per block, half to one and a half times what gives the spread.
    let d = spread / deviation(ty) * (0.5 + random.unit());
    let flip = if random.bits() & 1 == 0 { 1.0 } else { -1.0 };
    let half = |v: f32, out: &mut Vec<u8>| out.extend(f16::from_f32(v).to_le_bytes());
    match ty {
        // Levels run from -8 to 7: a random sign of the scale keeps the mean at 0.
        Q4_0 | IQ4_NL => {
            half(d * flip, out);
            random.bytes(out, 16);
        }
        Q4_1 => {
            half(d, out);
            half(d * -7.5, out);
            random.bytes(out, 16);
        }
        Q5_0 => {
            half(d * flip, out);
            random.bytes(out, 4 + 16);
        }
        Q5_1 => {
            half(d, out);
            half(d * -15.5, out);
            random.bytes(out, 4 + 16);
        }
        Q8_0 => {
            half(d, out);
            let from = out.len();
            random.bytes(out, 32);
            // Quantisers are symmetric: -128 is not written.
            out[from..]
                .iter_mut()
                .filter(|b| **b == 0x80)
                .for_each(|b| *b = 0x81);
        }
        Q2_K => {
            random.bytes(out, 16 + 64);
            half(d, out);
            half(d * 1.5, out);
        }
        Q3_K => {
            random.bytes(out, 32 + 64 + 12);
            half(d * flip, out);
        }
        Q4_K => {
            half(d, out);
            half(d * 7.5, out);
            random.bytes(out, 12 + 128);
        }
        Q5_K => {
            half(d, out);
            half(d * 15.5, out);
            random.bytes(out, 12 + 32 + 128);
        }
        Q6_K => {
            random.bytes(out, 128 + 64 + 16);
            half(d * flip, out);
        }
        IQ4_XS => {
            half(d * flip, out);
            random.bytes(out, 2 + 4 + 128);
        }
        F32 | F16 | BF16 => {}
    }
}

/// The standard deviation of a value with `d = 1` and random bits: products of uniform levels and
/// uniform sub-block scales, with the minimum that makes the mean 0.
fn deviation(ty: WeightType) -> f32 {
    match ty {
        F32 | F16 | BF16 => 1.0,
        Q4_0 | Q4_1 => 4.6,
        Q5_0 | Q5_1 => 9.2,
        Q8_0 => 73.6,
        Q2_K => 13.9,
        Q3_K => 43.4,
        Q4_K => 258.0,
        Q5_K => 527.0,
        Q6_K => 1370.0,
        IQ4_NL => 70.0,
        IQ4_XS => 1290.0,
    }
}
