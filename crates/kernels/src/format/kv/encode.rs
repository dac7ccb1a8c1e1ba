//! Encodes one group of one slot: its scale and its codes.
//!
//! Lanes are dimensions, as in every sum over a row ([`crate::ops::lanes`]): a group is at most
//! [`GROUP_MAX`] values, padded with zeros to whole vectors. So a slot written alone and a block
//! recoded run the same body, and neither looks at another slot.
//!
//! *Uniform* codecs: `scale = f16(absmax / top)`, `code = x / scale`, rounded to nearest with ties to
//! even and clamped. A scale that rounds to zero gives zeros.
//!
//! *Codebooks*: for a scale `s` the nearest levels `l` are known, and for given levels the best
//! scale is `Σ l·x / Σ l²`, which reduces the squared error by `(Σ l·x)² / Σ l²`. So each of
//! a few start scales ([`Codebook::start_scales`]) costs one pass that yields both a better scale and its
//! gain. The best is rounded to f16 and the codes are the levels nearest under that. Midpoints of
//! levels times an f16 are exact in f32: no rounding decides a code.
//!
//! A codebook reaches further above zero than below, and a negative scale mirrors it: each group takes
//! the orientation that suits it. The likely one reaches all its values with the smaller scale.
//!
//! The passes only have to find a good scale. They take levels from two curves
//! ([`Codebook::index`], [`Codebook::level`]), which cost the same for any count of levels; comparing with
//! every midpoint is left to the codes.
//!
//! Any input is valid. NaN counts as zero, and magnitudes are clamped to [`VALUE_MAX`], the greatest that
//! a level of 127 and a finite f16 can represent.

use super::GROUP_MAX;
use super::levels::{Codebook, Curve, StartScale};
use crate::LANES;
use crate::format::half::{from_f16, to_f16};
use crate::ops::lanes::{self, greater};
use crate::simd::Simd;
use std::hint::select_unpredictable;

/// The greatest finite f16.
pub(super) const HALF_MAX: f32 = 65504.0;
/// 127 times that, exact.
pub(super) const VALUE_MAX: f32 = 127.0 * HALF_MAX;

/// Adding 1.5 * 2^23 rounds a small f32 to an integer, ties to even, found in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// Vectors of the greatest group.
const VECTORS: usize = GROUP_MAX / LANES;

type Lanes = [f32; LANES];
type Bytes = [u8; LANES];

/// A cleaned group: `len` values in whole vectors, zeros up to the end of the last.
pub(super) struct Group {
    x: [Lanes; VECTORS],
    len: usize,
}

impl Group {
    pub(super) const EMPTY: Group = Group {
        x: [[0.0; LANES]; VECTORS],
        len: 0,
    };

    /// The values alone.
    pub(super) fn values(&self) -> &[f32] {
        &self.x.as_flattened()[..self.len]
    }

    #[inline(always)]
    fn vectors(&self) -> &[Lanes] {
        &self.x[..self.len.div_ceil(LANES)]
    }
}

/// Codes of a group, one per byte; what lies behind the group is arbitrary.
pub(super) type Codes = [Bytes; VECTORS];
pub(super) const NO_CODES: Codes = [[0; LANES]; VECTORS];

/// The operations of the encoder: a scalar implementation and one over lanes, with equal bits.
pub(super) trait Coder: Copy {
    /// NaN to 0, within [`VALUE_MAX`].
    fn clean(self, x: &[f32], group: &mut Group);
    /// The greatest of `-x` and of `x`, zero at least.
    fn extremes(self, group: &Group) -> (f32, f32);
    fn squares(self, group: &Group) -> f32;
    /// `Σ l·x` and `Σ l²` with the levels of the curves near `by * x`.
    fn products<const N: usize>(self, group: &Group, book: &Codebook<N>, by: f32) -> (f32, f32);
    /// The nearest f16 of a number in `0..=65504`, as a number and as bytes.
    fn half(self, x: f32) -> (f32, [u8; 2]);
    /// `x / by`, rounded and clamped; the low byte of the integer.
    fn uniform(self, x: &Lanes, by: f32, low: f32, high: f32) -> Bytes;
    /// Codes of the levels nearest to `sign * x / scale`, where `sign` is 1 or -1.
    fn nearest<const N: usize>(self, x: &Lanes, book: &Codebook<N>, sign: f32, scale: f32)
    -> Bytes;
    /// Lanes are slots, each with its scale. The codes of the nearest levels, and how far off those are.
    fn round<const N: usize>(self, x: &Lanes, book: &Codebook<N>, scale: &Lanes) -> (Bytes, Lanes);
    /// Subtracts shares of an error, in units, from the dimensions after it.
    fn feed_back(self, error: &Lanes, unit: f32, parts: &[i8], after: &mut [Lanes]);
    /// Thirty-two f16.
    fn widen(self, x: &[u8; 64]) -> [f32; 32];
    /// Number `i` of some f16.
    fn half_at(self, x: &[u8], i: usize) -> f32;
}

/// `scale` as a divisor: a scale of zero makes every code zero.
#[inline(always)]
fn divisor(scale: f32) -> f32 {
    if scale > 0.0 { scale } else { f32::INFINITY }
}

/// `low..=high` in steps of one; returns the bytes of the scale.
#[inline(always)]
pub(super) fn uniform<C: Coder>(
    c: C,
    x: &[f32],
    (low, high): (f32, f32),
    group: &mut Group,
    codes: &mut Codes,
) -> [u8; 2] {
    c.clean(x, group);
    let (below, above) = c.extremes(group);
    let scale = greater(below, above) / high;
    let (scale, bytes) = c.half(if scale > HALF_MAX { HALF_MAX } else { scale });
    for (codes, x) in codes.iter_mut().zip(group.vectors()) {
        *codes = c.uniform(x, divisor(scale), low, high);
    }
    bytes
}

/// Codes of a codebook; returns the bytes of the scale.
#[inline(always)]
pub(super) fn codebook<C: Coder, const N: usize>(
    c: C,
    x: &[f32],
    book: &Codebook<N>,
    group: &mut Group,
    codes: &mut Codes,
) -> [u8; 2] {
    let (scale, bytes) = scale(c, x, book, group);
    let sign = if scale < 0.0 { -1.0 } else { 1.0 };
    for (codes, x) in codes.iter_mut().zip(group.vectors()) {
        *codes = c.nearest(x, book, sign, divisor(scale.abs()));
    }
    bytes
}

/// The best scale found for a group, as an f16 is.
#[inline(always)]
pub(super) fn scale<C: Coder, const N: usize>(
    c: C,
    x: &[f32],
    book: &Codebook<N>,
    group: &mut Group,
) -> (f32, [u8; 2]) {
    c.clean(x, group);
    let (below, above) = c.extremes(group);
    // The scales that reach every value, for the codebook and for its mirror image.
    let upright = greater(above / book.top, below / book.bottom);
    let mirrored = greater(below / book.top, above / book.bottom);
    let orientations = if mirrored < upright {
        [(-1.0, mirrored), (1.0, upright)]
    } else {
        [(1.0, upright), (-1.0, mirrored)]
    };
    let asks = |start_scales: &[StartScale]| {
        start_scales
            .iter()
            .any(|first| matches!(first, StartScale::Rms(_)))
    };
    let rms = if asks(book.start_scales[0]) || asks(book.start_scales[1]) {
        (c.squares(group) / group.len as f32).sqrt()
    } else {
        0.0
    };
    let (mut best_gain, mut scale) = (-1.0, 0.0);
    for ((sign, reach), start_scales) in orientations.into_iter().zip(book.start_scales) {
        for first in start_scales {
            let first = match first {
                StartScale::Reach(by) => by * reach,
                StartScale::Rms(by) => by * rms,
            };
            // Below that the reciprocal overflows, and any scale is zero in f16.
            let by = if first < f32::MIN_POSITIVE {
                0.0
            } else {
                sign / first
            };
            let (lx, ll) = c.products(group, book, by);
            // The scale must fit f16.
            let fit = lx / ll;
            let fit = if fit > HALF_MAX { HALF_MAX } else { fit };
            let fit = if fit < -HALF_MAX { -HALF_MAX } else { fit };
            let gain = fit * (2.0 * lx - fit * ll);
            // Which is best is unpredictable: selected without a branch, the passes overlap.
            scale = select_unpredictable(gain > best_gain, fit, scale);
            best_gain = select_unpredictable(gain > best_gain, gain, best_gain);
        }
    }
    let (size, mut bytes) = c.half(scale.abs());
    // A scale of zero has no sign.
    let sign = if scale < 0.0 && size > 0.0 { -1.0 } else { 1.0 };
    bytes[1] |= u8::from(sign < 0.0) << 7;
    (sign * size, bytes)
}

/// To f16: nearest, ties to even, within the finite range.
pub(super) fn to_half(x: f32) -> [u8; 2] {
    let x = if x > HALF_MAX { HALF_MAX } else { x };
    let x = if x < -HALF_MAX { -HALF_MAX } else { x };
    to_f16(x)
}

/// The scalar reference.
#[derive(Clone, Copy)]
pub(super) struct ScalarCoder;

impl ScalarCoder {
    fn curve(curve: Curve, x: f32) -> f32 {
        let (last, rest) = (curve[0], &curve[1..]);
        rest.iter().fold(last, |sum, c| sum.mul_add(x, *c))
    }
}

impl Coder for ScalarCoder {
    fn clean(self, x: &[f32], group: &mut Group) {
        *group = Group::EMPTY;
        group.len = x.len();
        for (to, x) in group.x.as_flattened_mut().iter_mut().zip(x) {
            if !x.is_nan() {
                *to = x.clamp(-VALUE_MAX, VALUE_MAX);
            }
        }
    }

    fn extremes(self, group: &Group) -> (f32, f32) {
        let values = group.values().iter();
        values.fold((0.0, 0.0), |(below, above), x| {
            (greater(below, -x), greater(above, *x))
        })
    }

    fn squares(self, group: &Group) -> f32 {
        let mut lanes = [0.0f32; LANES];
        for (i, x) in group.values().iter().enumerate() {
            lanes[i % LANES] = x.mul_add(*x, lanes[i % LANES]);
        }
        lanes::fold(lanes)
    }

    fn products<const N: usize>(self, group: &Group, book: &Codebook<N>, by: f32) -> (f32, f32) {
        let (mut lx, mut ll) = ([0.0f32; LANES], [0.0f32; LANES]);
        for (i, x) in group.values().iter().enumerate() {
            let near = (x * by).clamp(-book.bottom, book.top);
            let index = (ScalarCoder::curve(book.index, near) + MAGIC) - MAGIC;
            let level = ScalarCoder::curve(book.level, index);
            let lane = i % LANES;
            lx[lane] = x.mul_add(level, lx[lane]);
            ll[lane] = level.mul_add(level, ll[lane]);
        }
        (lanes::fold(lx), lanes::fold(ll))
    }

    fn half(self, x: f32) -> (f32, [u8; 2]) {
        let half = to_f16(x);
        (from_f16(half), half)
    }

    fn uniform(self, x: &Lanes, by: f32, low: f32, high: f32) -> Bytes {
        x.map(|x| (x / by).round_ties_even().clamp(low, high) as i8 as u8)
    }

    fn nearest<const N: usize>(
        self,
        x: &Lanes,
        book: &Codebook<N>,
        sign: f32,
        scale: f32,
    ) -> Bytes {
        x.map(|x| {
            let bounds = book.bounds.iter().skip(1);
            bounds.filter(|bound| sign * x >= **bound * scale).count() as u8
        })
    }

    fn round<const N: usize>(self, x: &Lanes, book: &Codebook<N>, scale: &Lanes) -> (Bytes, Lanes) {
        let (mut codes, mut error) = ([0; LANES], [0.0; LANES]);
        for i in 0..LANES {
            let by = if scale[i] == 0.0 {
                f32::INFINITY
            } else {
                scale[i]
            };
            let near = x[i] / by;
            let bounds = book.bounds.iter().skip(1);
            let code = bounds.filter(|bound| near >= **bound).count();
            codes[i] = code as u8;
            error[i] = x[i] - book.levels[code] * scale[i];
        }
        (codes, error)
    }

    fn feed_back(self, error: &Lanes, unit: f32, parts: &[i8], after: &mut [Lanes]) {
        for (part, after) in parts.iter().zip(after) {
            for (x, error) in after.iter_mut().zip(error) {
                *x = (error * -unit).mul_add(f32::from(*part), *x);
            }
        }
    }

    fn widen(self, x: &[u8; 64]) -> [f32; 32] {
        let (halves, _) = x.as_chunks::<2>();
        std::array::from_fn(|i| from_f16(halves[i]))
    }

    fn half_at(self, x: &[u8], i: usize) -> f32 {
        from_f16([x[2 * i], x[2 * i + 1]])
    }
}

/// Sixteen lanes at a time.
#[derive(Clone, Copy)]
pub(super) struct SimdCoder<S: Simd>(pub S);

impl<S: Simd> SimdCoder<S> {
    #[inline(always)]
    fn clean_lanes(self, x: &Lanes) -> S::F {
        let s = self.0;
        let (zero, top, bottom) = (s.splat(0.0), s.splat(VALUE_MAX), s.splat(-VALUE_MAX));
        // Adding zero makes a signaling not-a-number a quiet one: compilers read the next lines as
        // maximum and minimum, whose instructions let the former through on some machines.
        let x = s.add(s.load(x), zero);
        // NaN is neither above nor below zero.
        let above = s.if_less(zero, x, x, zero);
        let below = s.if_less(x, zero, x, zero);
        let above = s.if_less(top, above, top, above);
        let below = s.if_less(below, bottom, bottom, below);
        s.add(above, below)
    }

    #[inline(always)]
    fn curve(self, curve: Curve, x: S::F) -> S::F {
        let s = self.0;
        let mut sum = s.splat(curve[0]);
        for c in &curve[1..] {
            sum = s.fma(sum, x, s.splat(*c));
        }
        sum
    }

    /// The level of the curves near `x * by`.
    #[inline(always)]
    fn level<const N: usize>(self, x: S::F, book: &Codebook<N>, by: S::F) -> S::F {
        let s = self.0;
        let (top, magic) = (s.splat(book.top), s.splat(MAGIC));
        let near = s.max(s.mul(x, by), s.splat(-book.bottom));
        let near = s.if_less(top, near, top, near);
        let index = s.sub(s.add(self.curve(book.index, near), magic), magic);
        self.curve(book.level, index)
    }

    /// The low bytes of small integers in f32.
    #[inline(always)]
    fn low_bytes(self, x: S::F) -> Bytes {
        let s = self.0;
        let mut wide = [0.0; LANES];
        s.store(s.add(x, s.splat(MAGIC)), &mut wide);
        let mut low = [0; LANES];
        for (low, wide) in low.iter_mut().zip(wide) {
            *low = wide.to_bits() as u8;
        }
        low
    }
}

impl<S: Simd> Coder for SimdCoder<S> {
    #[inline(always)]
    fn clean(self, x: &[f32], group: &mut Group) {
        group.len = x.len();
        let (whole, tail) = x.as_chunks::<LANES>();
        for (to, x) in group.x.iter_mut().zip(whole) {
            self.0.store(self.clean_lanes(x), to);
        }
        if !tail.is_empty() {
            let x = lanes::padded(tail, 0.0);
            self.0
                .store(self.clean_lanes(&x), &mut group.x[whole.len()]);
        }
    }

    #[inline(always)]
    fn extremes(self, group: &Group) -> (f32, f32) {
        let s = self.0;
        let zero = s.splat(0.0);
        let (mut below, mut above) = (zero, zero);
        for x in group.vectors() {
            let x = s.load(x);
            below = s.max(below, s.sub(zero, x));
            above = s.max(above, x);
        }
        (s.max_lane(below), s.max_lane(above))
    }

    #[inline(always)]
    fn squares(self, group: &Group) -> f32 {
        let s = self.0;
        let mut sum = s.splat(0.0);
        for x in group.vectors() {
            let x = s.load(x);
            sum = s.fma(x, x, sum);
        }
        s.sum(sum)
    }

    #[inline(always)]
    fn products<const N: usize>(self, group: &Group, book: &Codebook<N>, by: f32) -> (f32, f32) {
        let s = self.0;
        let by = s.splat(by);
        let (mut lx, mut ll) = (s.splat(0.0), s.splat(0.0));
        let whole = group.len / LANES;
        for x in &group.x[..whole] {
            let x = s.load(x);
            let level = self.level(x, book, by);
            lx = s.fma(x, level, lx);
            ll = s.fma(level, level, ll);
        }
        let rest = group.len % LANES;
        if rest > 0 {
            let x = s.load(&group.x[whole]);
            let level = self.level(x, book, by);
            // Zeros behind the group are not part of it.
            let inside = s.if_less(s.load(&LANE), s.splat(rest as f32), level, s.splat(0.0));
            lx = s.fma(x, inside, lx);
            ll = s.fma(inside, inside, ll);
        }
        (s.sum(lx), s.sum(ll))
    }

    #[inline(always)]
    fn half(self, x: f32) -> (f32, [u8; 2]) {
        let s = self.0;
        let mut bytes = [0; 32];
        s.store_half(s.splat(x), &mut bytes);
        let mut wide = [0.0; LANES];
        s.store(s.load_half(&bytes), &mut wide);
        (wide[0], [bytes[0], bytes[1]])
    }

    #[inline(always)]
    fn uniform(self, x: &Lanes, by: f32, low: f32, high: f32) -> Bytes {
        let s = self.0;
        let (low, high) = (s.splat(low), s.splat(high));
        let x = s.div(s.load(x), s.splat(by));
        let x = s.if_less(x, low, low, x);
        self.low_bytes(s.if_less(high, x, high, x))
    }

    #[inline(always)]
    fn nearest<const N: usize>(
        self,
        x: &Lanes,
        book: &Codebook<N>,
        sign: f32,
        scale: f32,
    ) -> Bytes {
        let s = self.0;
        let (x, scale) = (s.mul(s.load(x), s.splat(sign)), s.splat(scale));
        let mut code = s.splat(0.0);
        for i in 1..N {
            let bound = s.mul(s.splat(book.bounds[i]), scale);
            code = s.if_less(x, bound, code, s.splat(i as f32));
        }
        self.low_bytes(code)
    }

    #[inline(always)]
    fn round<const N: usize>(self, x: &Lanes, book: &Codebook<N>, scale: &Lanes) -> (Bytes, Lanes) {
        let s = self.0;
        let (x, scale) = (s.load(x), s.load(scale));
        let (zero, inf) = (s.splat(0.0), s.splat(f32::INFINITY));
        // Neither above nor below zero: everything is zero.
        let by = s.if_less(zero, scale, scale, s.if_less(scale, zero, scale, inf));
        let near = s.div(x, by);
        let (mut code, mut level) = (zero, s.splat(book.levels[0]));
        for i in 1..N {
            let bound = s.splat(book.bounds[i]);
            code = s.if_less(near, bound, code, s.splat(i as f32));
            level = s.if_less(near, bound, level, s.splat(book.levels[i]));
        }
        let mut error = [0.0; LANES];
        s.store(s.sub(x, s.mul(level, scale)), &mut error);
        (self.low_bytes(code), error)
    }

    #[inline(always)]
    fn feed_back(self, error: &Lanes, unit: f32, parts: &[i8], after: &mut [Lanes]) {
        let s = self.0;
        let error = s.mul(s.load(error), s.splat(-unit));
        for (part, after) in parts.iter().zip(after) {
            let x = s.fma(error, s.splat(f32::from(*part)), s.load(after));
            s.store(x, after);
        }
    }

    #[inline(always)]
    fn widen(self, x: &[u8; 64]) -> [f32; 32] {
        let (halves, _) = x.as_chunks::<32>();
        let mut wide = [[0.0; LANES]; 2];
        for (wide, x) in wide.iter_mut().zip(halves) {
            self.0.store(self.0.load_half(x), wide);
        }
        let mut out = [0.0; 32];
        out.copy_from_slice(wide.as_flattened());
        out
    }

    #[inline(always)]
    fn half_at(self, x: &[u8], i: usize) -> f32 {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&x[2 * i..2 * i + 2]);
        let mut wide = [0.0; LANES];
        self.0.store(self.0.load_half(&bytes), &mut wide);
        wide[0]
    }
}

const LANE: [f32; LANES] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
];
