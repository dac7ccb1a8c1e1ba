//! One group of one slot: its scale and its codes.
//!
//! Lanes are dimensions, as in every sum over a row ([`crate::ops::lanes`]): a group is at most
//! [`GROUP_MAX`] values, padded with zeros to whole vectors. So a slot written alone and a block
//! recoded run the same body, and neither looks at another slot.
//!
//! *Uniform* codecs: `scale = f16(absmax / top)`, `code = x / scale`, rounded to nearest with ties to
//! even and clamped. A scale that rounds to zero gives zeros.
//!
//! *Codebooks*: for a scale `s` the nearest levels `l` are known, and for given levels the best
//! scale is `Σ l·x / Σ l²`, which takes `(Σ l·x)² / Σ l²` off the squared error. So each of
//! a few first scales ([`Book::tries`]) costs one pass that yields both a better scale and its
//! worth. The best is rounded to f16 and the codes are the levels nearest under that. Midpoints of
//! levels times an f16 are exact in f32: no rounding decides a code.
//!
//! Anything may come in. What is not a number counts as zero, and magnitudes end at
//! [`VALUE_MAX`], the greatest that a level of 127 and a finite f16 can say.

use super::GROUP_MAX;
use super::levels::{Book, TRIES};
use crate::LANES;
use crate::ops::lanes;
use crate::ops::simd::Simd;
use half::f16;
use std::hint::select_unpredictable;

/// The greatest finite f16.
pub(super) const HALF_MAX: f32 = 65504.0;
/// 127 times that, exact.
pub(super) const VALUE_MAX: f32 = 127.0 * HALF_MAX;

/// Adding 1.5 * 2^23 rounds a small f32 to an integer, ties to even, found in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// Vectors of the greatest group.
const VECTORS: usize = GROUP_MAX / LANES;

/// A cleaned group: `len` values in whole vectors, zeros up to the end of the last.
pub(super) struct Group {
    x: [[f32; LANES]; VECTORS],
    len: usize,
}

impl Group {
    pub(super) const EMPTY: Group = Group {
        x: [[0.0; LANES]; VECTORS],
        len: 0,
    };

    /// The values alone.
    fn values(&self) -> &[f32] {
        &self.x.as_flattened()[..self.len]
    }

    #[inline(always)]
    fn vectors(&self) -> &[[f32; LANES]] {
        &self.x[..self.len.div_ceil(LANES)]
    }
}

/// Codes of a group, one per byte; what lies behind the group is arbitrary.
pub(super) type Codes = [[u8; LANES]; VECTORS];
pub(super) const NO_CODES: Codes = [[0; LANES]; VECTORS];

/// The operations of the encoder: a plain way and one over lanes, with equal bits.
pub(super) trait Coder: Copy {
    /// NaN to 0, within [`VALUE_MAX`].
    fn clean(self, x: &[f32], group: &mut Group);
    fn absmax(self, group: &Group) -> f32;
    fn squares(self, group: &Group) -> f32;
    /// `Σ |l|·|x|` and `Σ l²` with the levels nearest under `scale`.
    fn products<const N: usize>(self, group: &Group, book: &Book<N>, scale: f32) -> (f32, f32);
    /// The nearest f16 of a number in `0..=65504`, as a number and as bytes.
    fn half(self, x: f32) -> (f32, [u8; 2]);
    /// `x / by`, rounded and clamped; the low byte of the integer.
    fn uniform(self, x: &[f32; LANES], by: f32, low: f32, high: f32) -> [u8; LANES];
    /// Codes of the levels nearest to `x / scale`.
    fn nearest<const N: usize>(self, x: &[f32; LANES], book: &Book<N>, scale: f32) -> [u8; LANES];
    /// Thirty-two f16: a line of keys, or one group's scales of all slots.
    fn widen(self, x: &[u8; 64]) -> [f32; 32];
    /// Number `i` of some f16.
    fn half_at(self, x: &[u8], i: usize) -> f32;
}

/// `scale` as a divisor: a scale of zero says that everything is zero.
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
    let scale = c.absmax(group) / high;
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
    book: &Book<N>,
    group: &mut Group,
    codes: &mut Codes,
) -> [u8; 2] {
    c.clean(x, group);
    let from_max = c.absmax(group) / 127.0;
    let from_rms = if book.tries.iter().any(|(by_rms, _)| *by_rms > 0.0) {
        (c.squares(group) / group.len as f32).sqrt() * book.unit
    } else {
        0.0
    };
    let (mut fits, mut gains) = ([0.0; TRIES], [0.0; TRIES]);
    for (i, (by_rms, by_max)) in book.tries.iter().enumerate() {
        let (lx, ll) = c.products(group, book, by_rms * from_rms + by_max * from_max);
        (fits[i], gains[i]) = (lx / ll, lx * lx / ll);
    }
    // Which is best is a coin's throw: selected, not branched for, the passes overlap.
    let (mut worth, mut scale) = (gains[0], fits[0]);
    for i in 1..TRIES {
        scale = select_unpredictable(gains[i] > worth, fits[i], scale);
        worth = select_unpredictable(gains[i] > worth, gains[i], worth);
    }
    let (scale, bytes) = c.half(if scale > HALF_MAX { HALF_MAX } else { scale });
    for (codes, x) in codes.iter_mut().zip(group.vectors()) {
        *codes = c.nearest(x, book, divisor(scale));
    }
    bytes
}

/// To f16: nearest, ties to even, within the finite range.
pub(super) fn to_half(x: f32) -> [u8; 2] {
    let x = if x > HALF_MAX { HALF_MAX } else { x };
    let x = if x < -HALF_MAX { -HALF_MAX } else { x };
    f16::from_f32_const(x).to_le_bytes()
}

/// The plain way.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Plain {
    /// Index of the level nearest to `|x| / scale` in the positive half.
    fn index<const N: usize>(x: f32, book: &Book<N>, scale: f32) -> usize {
        let bounds = book.bounds.iter().skip(1);
        bounds.filter(|bound| x.abs() >= *bound * scale).count()
    }
}

impl Coder for Plain {
    fn clean(self, x: &[f32], group: &mut Group) {
        *group = Group::EMPTY;
        group.len = x.len();
        for (to, x) in group.x.as_flattened_mut().iter_mut().zip(x) {
            if !x.is_nan() {
                *to = x.clamp(-VALUE_MAX, VALUE_MAX);
            }
        }
    }

    fn absmax(self, group: &Group) -> f32 {
        let values = group.values().iter();
        values.fold(0.0, |m, x| if m < x.abs() { x.abs() } else { m })
    }

    fn squares(self, group: &Group) -> f32 {
        let mut lanes = [0.0f32; LANES];
        for (i, x) in group.values().iter().enumerate() {
            lanes[i % LANES] = x.mul_add(*x, lanes[i % LANES]);
        }
        lanes::fold(lanes)
    }

    fn products<const N: usize>(self, group: &Group, book: &Book<N>, scale: f32) -> (f32, f32) {
        let (mut lx, mut ll) = ([0.0f32; LANES], [0.0f32; LANES]);
        for (i, x) in group.values().iter().enumerate() {
            let level = book.levels[Plain::index(*x, book, scale)];
            let lane = i % LANES;
            lx[lane] = x.abs().mul_add(level, lx[lane]);
            ll[lane] = level.mul_add(level, ll[lane]);
        }
        (lanes::fold(lx), lanes::fold(ll))
    }

    fn half(self, x: f32) -> (f32, [u8; 2]) {
        let half = f16::from_f32_const(x);
        (half.to_f32_const(), half.to_le_bytes())
    }

    fn uniform(self, x: &[f32; LANES], by: f32, low: f32, high: f32) -> [u8; LANES] {
        x.map(|x| (x / by).round_ties_even().clamp(low, high) as i8 as u8)
    }

    fn nearest<const N: usize>(self, x: &[f32; LANES], book: &Book<N>, scale: f32) -> [u8; LANES] {
        x.map(|x| {
            let i = Plain::index(x, book, scale);
            (if x < 0.0 { N - 1 - i } else { N + i }) as u8
        })
    }

    fn widen(self, x: &[u8; 64]) -> [f32; 32] {
        let (halves, _) = x.as_chunks::<2>();
        std::array::from_fn(|i| f16::from_le_bytes(halves[i]).to_f32_const())
    }

    fn half_at(self, x: &[u8], i: usize) -> f32 {
        f16::from_le_bytes([x[2 * i], x[2 * i + 1]]).to_f32_const()
    }
}

/// Sixteen lanes at a time.
#[derive(Clone, Copy)]
pub(super) struct Lanes<S: Simd>(pub S);

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn abs(self, x: S::V) -> S::V {
        let s = self.0;
        s.max(x, s.sub(s.splat(0.0), x))
    }

    #[inline(always)]
    fn clean_lanes(self, x: &[f32; LANES]) -> S::V {
        let s = self.0;
        let (zero, top, bottom) = (s.splat(0.0), s.splat(VALUE_MAX), s.splat(-VALUE_MAX));
        // Adding zero makes a signaling not-a-number a quiet one: compilers read the next lines as
        // maximum and minimum, whose instructions let the former through on some machines.
        let x = s.add(s.load(x), zero);
        // What is not a number is neither above nor below zero.
        let above = s.if_less(zero, x, x, zero);
        let below = s.if_less(x, zero, x, zero);
        let above = s.if_less(top, above, top, above);
        let below = s.if_less(below, bottom, bottom, below);
        s.add(above, below)
    }

    /// The bounds under a scale.
    #[inline(always)]
    fn bounds<const N: usize>(self, book: &Book<N>, scale: f32) -> [S::V; N] {
        let s = self.0;
        let scale = s.splat(scale);
        let mut bounds = [scale; N];
        for i in 1..N {
            bounds[i] = s.mul(s.splat(book.bounds[i]), scale);
        }
        bounds
    }

    /// The entry of `of` whose bounds `x` lies between.
    #[inline(always)]
    fn pick<const N: usize>(self, x: S::V, bounds: &[S::V; N], of: &[S::V; N]) -> S::V {
        let mut found = of[0];
        for i in 1..N {
            found = self.0.if_less(x, bounds[i], found, of[i]);
        }
        found
    }

    /// The low bytes of small integers in f32.
    #[inline(always)]
    fn low_bytes(self, x: S::V) -> [u8; LANES] {
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

impl<S: Simd> Coder for Lanes<S> {
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
    fn absmax(self, group: &Group) -> f32 {
        let s = self.0;
        let mut most = s.splat(0.0);
        for x in group.vectors() {
            most = s.max(most, self.abs(s.load(x)));
        }
        s.max_lane(most)
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
    fn products<const N: usize>(self, group: &Group, book: &Book<N>, scale: f32) -> (f32, f32) {
        let s = self.0;
        let bounds = self.bounds(book, scale);
        let mut levels = [s.splat(0.0); N];
        for i in 0..N {
            levels[i] = s.splat(book.levels[i]);
        }
        let (mut lx, mut ll) = (s.splat(0.0), s.splat(0.0));
        let whole = group.len / LANES;
        for x in &group.x[..whole] {
            let x = self.abs(s.load(x));
            let level = self.pick(x, &bounds, &levels);
            lx = s.fma(x, level, lx);
            ll = s.fma(level, level, ll);
        }
        let rest = group.len % LANES;
        if rest > 0 {
            let x = self.abs(s.load(&group.x[whole]));
            let level = self.pick(x, &bounds, &levels);
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
    fn uniform(self, x: &[f32; LANES], by: f32, low: f32, high: f32) -> [u8; LANES] {
        let s = self.0;
        let (low, high) = (s.splat(low), s.splat(high));
        let x = s.div(s.load(x), s.splat(by));
        let x = s.if_less(x, low, low, x);
        self.low_bytes(s.if_less(high, x, high, x))
    }

    #[inline(always)]
    fn nearest<const N: usize>(self, x: &[f32; LANES], book: &Book<N>, scale: f32) -> [u8; LANES] {
        let s = self.0;
        let bounds = self.bounds(book, scale);
        let mut codes = [s.splat(0.0); N];
        for i in 0..N {
            codes[i] = s.splat((N + i) as f32);
        }
        let x = s.load(x);
        let above = self.pick(self.abs(x), &bounds, &codes);
        let below = s.sub(s.splat((2 * N - 1) as f32), above);
        self.low_bytes(s.if_less(x, s.splat(0.0), below, above))
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
