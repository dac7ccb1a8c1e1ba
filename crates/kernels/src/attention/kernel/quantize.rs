//! Quantised rows: queries and weights as integers, to be multiplied with levels.
//!
//! Levels are integers, so a row that is rounded to integers under one scale meets them in exact sums:
//! sixty-four products per instruction instead of sixteen, and the same bits on every backend without an
//! order to keep.
//!
//! ```text
//! row_scale greatest magnitude of the row / LIMIT
//! integer   x / row_scale, nearest, ties to even
//!
//! narrow    LIMIT = 127      queries against keys of five bits and less
//! wide      LIMIT = 16256    queries against int8; weights of values
//! ```
//!
//! A query of eight bits is as exact as a key in int8, whose error cannot be measured beside that of a
//! key in four bits. Weights need more: many small ones count as much as one great one. Rows whose
//! greatest magnitude is below [`TINY`] are zeros.

use super::level_dot::{LevelDot, NARROW, Precision, WIDE};
use super::piece::{Piece, Rows};
use crate::attention::job::SPAN_SLOTS;
use crate::format::kv::BLOCK_SLOTS;
use crate::ops::lanes::{greater, padded};
use crate::simd::simd_fn;

/// Magnitudes whose reciprocal times a limit would leave the range of f32.
const TINY: f32 = 1.0 / (1u128 << 100) as f32;

/// Rows of integers, in the layout of the backend that wrote them; the scalar one has i16.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedRows<'a> {
    /// (row, 2 * len)
    pub bytes: &'a [u8],
    /// A multiple of sixteen. What is beyond a row's end is zero.
    pub len: usize,
    /// (row)
    pub row_scale: &'a [f32],
    /// (row, len / 8): sums of eight integers each
    pub eight_sums: &'a [i32],
}

impl QuantizedRows<'_> {
    /// For the scalar reference.
    pub(super) fn at(&self, row: usize, i: usize) -> i32 {
        let at = 2 * (row * self.len + i);
        i32::from(i16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    /// The sum of a row's integers, by eights.
    #[inline(always)]
    pub(super) fn total(&self, row: usize, eight_sums: std::ops::Range<usize>) -> i32 {
        let of_row = row * self.len / 8;
        let mut sum = 0;
        for eight in &self.eight_sums[of_row + eight_sums.start..of_row + eight_sums.end] {
            sum += eight;
        }
        sum
    }
}

/// The same, to be written.
pub(crate) struct QuantizedRowsMut<'a> {
    pub bytes: &'a mut [u8],
    pub len: usize,
    pub row_scale: &'a mut [f32],
    pub eight_sums: &'a mut [i32],
}

/// The scale of a row, and its reciprocal.
#[inline(always)]
fn row_scale_of(greatest: f32, limit: f32) -> (f32, f32) {
    if greatest > TINY {
        (greatest / limit, limit / greatest)
    } else {
        (0.0, 0.0)
    }
}

simd_fn! {
    /// Quantises queries in both precisions. A query that is not finite becomes zeros with a scale of NaN,
    /// so that it shows in every score.
    pub(crate) fn quantize_queries(q: Rows<'_>, narrow: &mut QuantizedRowsMut<'_>, wide: &mut QuantizedRowsMut<'_>)
        = scalar_quantize_queries, simd_quantize_queries;
}

fn scalar_quantize_queries(
    q: Rows<'_>,
    narrow: &mut QuantizedRowsMut<'_>,
    wide: &mut QuantizedRowsMut<'_>,
) {
    for r in 0..q.count {
        let row = &q.values[r * q.stride..][..q.stride];
        let greatest = row.iter().fold(0.0, |m, x| greater(m, x.abs()));
        let finite = row.iter().all(|x| x.is_finite());
        let greatest = if finite { greatest } else { 0.0 };
        scalar_quantize_row(row, r, greatest, NARROW as f32, narrow);
        scalar_quantize_row(row, r, greatest, WIDE as f32, wide);
        if !finite {
            (narrow.row_scale[r], wide.row_scale[r]) = (f32::NAN, f32::NAN);
        }
    }
}

fn scalar_quantize_row(
    row: &[f32],
    r: usize,
    greatest: f32,
    limit: f32,
    to: &mut QuantizedRowsMut<'_>,
) {
    let (row_scale, by) = row_scale_of(greatest, limit);
    to.row_scale[r] = row_scale;
    to.bytes[2 * r * to.len..][..2 * to.len].fill(0);
    to.eight_sums[r * to.len / 8..][..to.len / 8].fill(0);
    for (i, x) in row.iter().enumerate() {
        // NaN becomes zero.
        let number = (x * by).round_ties_even() as i16;
        to.bytes[2 * (r * to.len + i)..][..2].copy_from_slice(&number.to_le_bytes());
        to.eight_sums[r * to.len / 8 + i / 8] += i32::from(number);
    }
}

#[inline(always)]
fn simd_quantize_queries<S: LevelDot>(
    s: S,
    q: Rows<'_>,
    narrow: &mut QuantizedRowsMut<'_>,
    wide: &mut QuantizedRowsMut<'_>,
) {
    for r in 0..q.count {
        let row = &q.values[r * q.stride..][..q.stride];
        let (mut greatest, mut wrong) = (s.splat(0.0), s.splat(0.0));
        for x in row.chunks(16) {
            let x = s.load(&padded(x, 0.0));
            greatest = s.max(greatest, s.max(x, s.sub(s.splat(0.0), x)));
            wrong = s.fma(x, s.splat(0.0), wrong);
        }
        // Zero times what is not finite is NaN.
        let finite = s.sum(wrong) == 0.0;
        let greatest = if finite { s.max_lane(greatest) } else { 0.0 };
        quantize_row::<S, S::Narrow>(s, row, r, greatest, narrow);
        quantize_row::<S, S::Wide>(s, row, r, greatest, wide);
        if !finite {
            (narrow.row_scale[r], wide.row_scale[r]) = (f32::NAN, f32::NAN);
        }
    }
}

#[inline(always)]
fn quantize_row<S: LevelDot, N: Precision<S>>(
    s: S,
    row: &[f32],
    r: usize,
    greatest: f32,
    to: &mut QuantizedRowsMut<'_>,
) {
    let len = to.len;
    let (row_scale, by) = row_scale_of(greatest, N::LIMIT);
    to.row_scale[r] = row_scale;
    let by = s.splat(by);
    let bytes = &mut to.bytes[2 * r * len..][..2 * len];
    let eight_sums = &mut to.eight_sums[r * len / 8..][..len / 8];
    for (i, (x, eight_sums)) in row
        .chunks(16)
        .zip(eight_sums.chunks_exact_mut(2))
        .enumerate()
    {
        // NaN where the factor is zero.
        let x = nan_to_zero(s, s.mul(s.load(&padded(x, 0.0)), by));
        let x = s.to_i32(x);
        // SAFETY: the row is `2 * len` bytes, and `16 * i` is below `len`, a multiple of sixteen.
        unsafe { N::put(s, x, bytes.as_mut_ptr(), len, 16 * i) };
        let mut each = [0; 16];
        s.store_int(x, &mut each);
        for (sum, each) in eight_sums.iter_mut().zip(each.as_chunks::<8>().0) {
            *sum = each.iter().sum();
        }
    }
}

/// Zero where a lane is NaN; other lanes are within [`WIDE`].
#[inline(always)]
fn nan_to_zero<S: LevelDot>(s: S, x: S::F) -> S::F {
    s.if_less(x, s.splat(2.0 * WIDE as f32), x, s.splat(0.0))
}

/// Weights of values: of one group of dimensions, over the slots of a span.
pub(crate) struct Weights<'a> {
    /// (row, 2 * 256)
    pub bytes: &'a mut [u8],
    /// (row)
    pub row_scale: &'a mut [f32],
    /// (row): the sum of all integers
    pub totals: &'a mut [i32],
}

impl Weights<'_> {
    pub(super) fn read(&self) -> QuantizedRows<'_> {
        QuantizedRows {
            bytes: self.bytes,
            len: SPAN_SLOTS,
            row_scale: self.row_scale,
            eight_sums: &[],
        }
    }
}

/// Scratch for one block's levels and one group's weights.
pub(crate) struct Workspace<'a> {
    /// (quad, column, 4) of a block of keys or a span of values, and a vector behind it
    pub tile: &'a mut [u8],
    pub weights: Weights<'a>,
}

/// The scale of a slot that is read from its plane; zero for the others.
fn read_scale(piece: &Piece<'_>, group: usize, slot: usize) -> f32 {
    if slot < piece.slots && slot >= piece.head.sink_rows() {
        piece.head.code_scale(group, slot)
    } else {
        0.0
    }
}

/// `p (row, slot) * scale (group, slot)`, rounded, for the slots of the pieces that are read and are no
/// sinks; zero for the others of their blocks.
pub(super) fn scalar_quantize_weights(
    p: Rows<'_>,
    pieces: &[Piece<'_>],
    group: usize,
    to: &mut Weights<'_>,
) {
    for r in 0..p.count {
        let bytes = &mut to.bytes[2 * r * SPAN_SLOTS..][..2 * SPAN_SLOTS];
        let weights = pieces.iter().flat_map(|piece| {
            (0..BLOCK_SLOTS).map(move |slot| {
                let at = piece.at + slot;
                let p = p.values[r * p.stride + at];
                (at, p * read_scale(piece, group, slot))
            })
        });
        let greatest = weights.clone().fold(0.0, |m, (_, w)| greater(m, w.abs()));
        let (row_scale, by) = row_scale_of(greatest, WIDE as f32);
        (to.row_scale[r], to.totals[r]) = (row_scale, 0);
        for (at, w) in weights {
            // NaN becomes zero.
            let number = (w * by).round_ties_even() as i16;
            bytes[2 * at..2 * at + 2].copy_from_slice(&number.to_le_bytes());
            to.totals[r] += i32::from(number);
        }
    }
}

/// The same in lanes. Where a weight is NaN, the softmax sum is NaN too, and so is the row's output: what
/// the weight is rounded to does not matter.
#[inline(always)]
pub(super) fn simd_quantize_weights<S: LevelDot>(
    s: S,
    p: Rows<'_>,
    pieces: &[Piece<'_>],
    group: usize,
    to: &mut Weights<'_>,
) {
    const VECTORS: usize = SPAN_SLOTS / 16;
    let zero = s.splat(0.0);
    // Scales and their magnitudes.
    let mut scales = [[0.0; 16]; VECTORS];
    let mut sizes = [[0.0; 16]; VECTORS];
    for (i, piece) in pieces.iter().enumerate() {
        assert!(piece.at + BLOCK_SLOTS <= SPAN_SLOTS);
        let scales = &mut scales[2 * i..2 * i + 2];
        let (halves, _) = piece.head.scales(group).as_chunks::<32>();
        for (scale, half) in scales.iter_mut().zip(halves) {
            s.store(s.load_half(half), scale);
        }
        if !piece.is_whole() {
            let scales = scales.as_flattened_mut();
            scales[..piece.head.sink_rows()].fill(0.0);
            scales[piece.slots..].fill(0.0);
        }
        for (size, scale) in sizes[2 * i..].iter_mut().zip(scales) {
            let scale = s.load(scale);
            s.store(s.max(scale, s.sub(zero, scale)), size);
        }
    }
    // First the maxima of all rows, then the rounding: a division takes as long as rounding half a row,
    // and overlaps with it.
    for r in 0..p.count {
        let p = &p.values[r * p.stride..][..SPAN_SLOTS];
        let mut greatest = zero;
        for (piece, sizes) in pieces.iter().zip(sizes.chunks_exact(2)) {
            let (p, _) = p[piece.at..piece.at + BLOCK_SLOTS].as_chunks::<16>();
            for (p, size) in p.iter().zip(sizes) {
                greatest = s.max(greatest, s.mul(s.load(p), s.load(size)));
            }
        }
        to.row_scale[r] = s.max_lane(greatest);
    }
    for r in 0..p.count {
        let p = &p.values[r * p.stride..][..SPAN_SLOTS];
        let (row_scale, by) = row_scale_of(to.row_scale[r], WIDE as f32);
        let by = s.splat(by);
        let bytes = &mut to.bytes[2 * r * SPAN_SLOTS..][..2 * SPAN_SLOTS];
        let mut total = s.to_i32(zero);
        for (piece, scales) in pieces.iter().zip(scales.chunks_exact(2)) {
            let (p, _) = p[piece.at..piece.at + BLOCK_SLOTS].as_chunks::<16>();
            for (half, (p, scale)) in p.iter().zip(scales).enumerate() {
                let w = s.to_i32(s.mul(s.mul(s.load(p), s.load(scale)), by));
                total = s.add_i32(total, w);
                // SAFETY: the row is `2 * 256` bytes, and the piece's block is within the span.
                unsafe {
                    S::Wide::put(s, w, bytes.as_mut_ptr(), SPAN_SLOTS, piece.at + 16 * half);
                }
            }
        }
        let mut each = [0; 16];
        s.store_int(total, &mut each);
        // NaN has become i32::MIN.
        let total = each.iter().fold(0i32, |sum, x| sum.wrapping_add(*x));
        (to.row_scale[r], to.totals[r]) = (row_scale, total);
    }
}
