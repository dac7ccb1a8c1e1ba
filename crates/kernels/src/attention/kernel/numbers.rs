//! Rows of whole numbers: what levels are multiplied with.
//!
//! Levels are whole numbers, so a row that is rounded to whole numbers, under one unit for all of it,
//! meets them in exact sums: sixty-four products in an instruction where there were sixteen, and the
//! same bits on every table without an order to keep.
//!
//! ```text
//! unit      greatest magnitude of the row / LIMIT
//! number    x / unit, nearest, ties to even
//!
//! narrow    LIMIT = 127      queries that meet keys of five bits and less
//! wide      LIMIT = 16256    queries that meet int8; weights of values
//! ```
//!
//! A rounded query of eight bits is as exact as a key in int8, of which nothing can be measured beside
//! a key in four bits. Weights need more: many small ones count as much as one great one. Rows whose
//! greatest magnitude is below [`TINY`] are zeros.

use super::{Piece, Rows};
use crate::attention::{BLOCK_SLOTS, SPAN_SLOTS};
use crate::ops::lanes::{greater, padded};
use crate::ops::simd::{Simd, simd_fn};

/// Magnitudes whose reciprocal times a limit would leave the range of f32.
const TINY: f32 = 1.0 / (1u128 << 100) as f32;

/// Which numbers: how exact, and with which instructions.
pub(super) trait Kind<S: Simd>: Copy {
    type Acc: Copy;
    type Four: Copy;
    const LIMIT: f32;
    /// Rows of a register tile.
    const ROWS: usize;
    /// The same with look-ups in registers.
    const FUSED: usize;

    fn zero(s: S) -> Self::Acc;
    fn dot(s: S, acc: Self::Acc, levels: S::Fours, by: Self::Four) -> Self::Acc;
    /// The sum of two sums.
    fn join(s: S, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn end(s: S, acc: Self::Acc, total: i32) -> S::V;
    /// # Safety
    /// - As for [`Simd::put_wide`].
    unsafe fn put(s: S, x: S::I, row: *mut u8, len: usize, at: usize);
    /// # Safety
    /// - As for [`Simd::wide_four`].
    unsafe fn four(s: S, row: *const u8, len: usize, at: usize) -> Self::Four;
}

#[derive(Clone, Copy)]
pub(super) struct Wide;
#[derive(Clone, Copy)]
pub(super) struct Narrow;

/// The limits, for the dumb twins too.
const WIDE_LIMIT: f32 = 16256.0;
const NARROW_LIMIT: f32 = 127.0;

macro_rules! kind {
    ($name:ident, $limit:ident, $acc:ident, $four:ident, $rows:ident, $fused:ident,
        $zero:ident, $dot:ident, $join:ident, $end:ident, $put:ident, $get:ident) => {
        impl<S: Simd> Kind<S> for $name {
            type Acc = S::$acc;
            type Four = S::$four;
            const LIMIT: f32 = $limit;
            const ROWS: usize = S::$rows;
            const FUSED: usize = S::$fused;

            #[inline(always)]
            fn zero(s: S) -> Self::Acc {
                s.$zero()
            }
            #[inline(always)]
            fn dot(s: S, acc: Self::Acc, levels: S::Fours, by: Self::Four) -> Self::Acc {
                s.$dot(acc, levels, by)
            }
            #[inline(always)]
            fn join(s: S, a: Self::Acc, b: Self::Acc) -> Self::Acc {
                s.$join(a, b)
            }
            #[inline(always)]
            fn end(s: S, acc: Self::Acc, total: i32) -> S::V {
                s.$end(acc, total)
            }
            #[inline(always)]
            unsafe fn put(s: S, x: S::I, row: *mut u8, len: usize, at: usize) {
                // SAFETY: the caller's promise.
                unsafe { s.$put(x, row, len, at) }
            }
            #[inline(always)]
            unsafe fn four(s: S, row: *const u8, len: usize, at: usize) -> Self::Four {
                // SAFETY: the caller's promise.
                unsafe { s.$get(row, len, at) }
            }
        }
    };
}

kind!(
    Wide, WIDE_LIMIT, Wide, WideFour, WIDE_ROWS, FUSED_WIDE, wide_zero, wide_dot, wide_join,
    wide_end, put_wide, wide_four
);
kind!(
    Narrow,
    NARROW_LIMIT,
    Narrow,
    NarrowFour,
    NARROW_ROWS,
    FUSED_NARROW,
    narrow_zero,
    narrow_dot,
    narrow_join,
    narrow_end,
    put_narrow,
    narrow_four
);

/// Rows of numbers, as the table that wrote them likes them; the scalar one has i16.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<'a> {
    /// (row, 2 * len)
    pub bytes: &'a [u8],
    /// A multiple of sixteen. What is beyond a row's end is zero.
    pub len: usize,
    /// (row): what one is worth
    pub unit: &'a [f32],
    /// (row, len / 8): sums of eights
    pub eights: &'a [i32],
}

impl Numbers<'_> {
    /// For the dumb twins.
    pub(super) fn at(&self, row: usize, i: usize) -> i32 {
        let at = 2 * (row * self.len + i);
        i32::from(i16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    /// The sum of some eights of a row.
    #[inline(always)]
    pub(super) fn total(&self, row: usize, eights: std::ops::Range<usize>) -> i32 {
        let of_row = row * self.len / 8;
        let mut sum = 0;
        for eight in &self.eights[of_row + eights.start..of_row + eights.end] {
            sum += eight;
        }
        sum
    }
}

/// The same, to be written.
pub(crate) struct NumbersMut<'a> {
    pub bytes: &'a mut [u8],
    pub len: usize,
    pub unit: &'a mut [f32],
    pub eights: &'a mut [i32],
}

/// What one is worth, and its reciprocal.
#[inline(always)]
fn unit_of(greatest: f32, limit: f32) -> (f32, f32) {
    if greatest > TINY {
        (greatest / limit, limit / greatest)
    } else {
        (0.0, 0.0)
    }
}

simd_fn! {
    /// Rounds queries both ways. A query with a number that is none has zeros worth nothing that is a
    /// number, so that it shows in every score.
    pub(crate) fn round_queries(q: Rows<'_>, narrow: &mut NumbersMut<'_>, wide: &mut NumbersMut<'_>)
        = scalar_round_queries, simd_round_queries;
}

fn scalar_round_queries(q: Rows<'_>, narrow: &mut NumbersMut<'_>, wide: &mut NumbersMut<'_>) {
    for r in 0..q.count {
        let row = &q.values[r * q.stride..][..q.stride];
        let greatest = row.iter().fold(0.0, |m, x| greater(m, x.abs()));
        let finite = row.iter().all(|x| x.is_finite());
        let greatest = if finite { greatest } else { 0.0 };
        scalar_round_row(row, r, greatest, NARROW_LIMIT, narrow);
        scalar_round_row(row, r, greatest, WIDE_LIMIT, wide);
        if !finite {
            (narrow.unit[r], wide.unit[r]) = (f32::NAN, f32::NAN);
        }
    }
}

fn scalar_round_row(row: &[f32], r: usize, greatest: f32, limit: f32, to: &mut NumbersMut<'_>) {
    let (unit, by) = unit_of(greatest, limit);
    to.unit[r] = unit;
    to.bytes[2 * r * to.len..][..2 * to.len].fill(0);
    to.eights[r * to.len / 8..][..to.len / 8].fill(0);
    for (i, x) in row.iter().enumerate() {
        // What is not a number becomes zero.
        let number = (x * by).round_ties_even() as i16;
        to.bytes[2 * (r * to.len + i)..][..2].copy_from_slice(&number.to_le_bytes());
        to.eights[r * to.len / 8 + i / 8] += i32::from(number);
    }
}

#[inline(always)]
fn simd_round_queries<S: Simd>(
    s: S,
    q: Rows<'_>,
    narrow: &mut NumbersMut<'_>,
    wide: &mut NumbersMut<'_>,
) {
    for r in 0..q.count {
        let row = &q.values[r * q.stride..][..q.stride];
        let (mut greatest, mut wrong) = (s.splat(0.0), s.splat(0.0));
        for x in row.chunks(16) {
            let x = s.load(&padded(x, 0.0));
            greatest = s.max(greatest, s.max(x, s.sub(s.splat(0.0), x)));
            wrong = s.fma(x, s.splat(0.0), wrong);
        }
        // Zero times what is no number is none.
        let finite = s.sum(wrong) == 0.0;
        let greatest = if finite { s.max_lane(greatest) } else { 0.0 };
        round_row::<S, Narrow>(s, row, r, greatest, narrow);
        round_row::<S, Wide>(s, row, r, greatest, wide);
        if !finite {
            (narrow.unit[r], wide.unit[r]) = (f32::NAN, f32::NAN);
        }
    }
}

#[inline(always)]
fn round_row<S: Simd, N: Kind<S>>(
    s: S,
    row: &[f32],
    r: usize,
    greatest: f32,
    to: &mut NumbersMut<'_>,
) {
    let len = to.len;
    let (unit, by) = unit_of(greatest, N::LIMIT);
    to.unit[r] = unit;
    let by = s.splat(by);
    let bytes = &mut to.bytes[2 * r * len..][..2 * len];
    let eights = &mut to.eights[r * len / 8..][..len / 8];
    for (i, (x, eights)) in row.chunks(16).zip(eights.chunks_exact_mut(2)).enumerate() {
        // Not a number, with a factor of zero.
        let x = only_numbers(s, s.mul(s.load(&padded(x, 0.0)), by));
        let x = s.whole(x);
        // SAFETY: the row is `2 * len` bytes, and `16 * i` is below `len`, a multiple of sixteen.
        unsafe { N::put(s, x, bytes.as_mut_ptr(), len, 16 * i) };
        let mut each = [0; 16];
        s.store_whole(x, &mut each);
        for (sum, each) in eights.iter_mut().zip(each.as_chunks::<8>().0) {
            *sum = each.iter().sum();
        }
    }
}

/// Zero where a lane is not a number; other lanes are within [`WIDE_LIMIT`].
#[inline(always)]
fn only_numbers<S: Simd>(s: S, x: S::V) -> S::V {
    s.if_less(x, s.splat(2.0 * WIDE_LIMIT), x, s.splat(0.0))
}

/// Weights of values: of one group of dimensions, over the slots of a span.
pub(crate) struct Weights<'a> {
    /// (row, 2 * 256)
    pub bytes: &'a mut [u8],
    /// (row)
    pub unit: &'a mut [f32],
    /// (row): the sum of all numbers
    pub totals: &'a mut [i32],
}

impl Weights<'_> {
    pub(super) fn read(&self) -> Numbers<'_> {
        Numbers {
            bytes: self.bytes,
            len: SPAN_SLOTS,
            unit: self.unit,
            eights: &[],
        }
    }
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
pub(super) fn scalar_round_weights(
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
        let (unit, by) = unit_of(greatest, WIDE_LIMIT);
        (to.unit[r], to.totals[r]) = (unit, 0);
        for (at, w) in weights {
            // What is not a number becomes zero.
            let number = (w * by).round_ties_even() as i16;
            bytes[2 * at..2 * at + 2].copy_from_slice(&number.to_le_bytes());
            to.totals[r] += i32::from(number);
        }
    }
}

/// The same in lanes. Where a weight is not a number, its sum of weights is none either, and so is what
/// becomes of the row: the number it is rounded to does not matter.
#[inline(always)]
pub(super) fn simd_round_weights<S: Simd>(
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
    // All of the greatest, and then all rows: a division takes as long as rounding half a row, which can
    // go on meanwhile.
    for r in 0..p.count {
        let p = &p.values[r * p.stride..][..SPAN_SLOTS];
        let mut greatest = zero;
        for (piece, sizes) in pieces.iter().zip(sizes.chunks_exact(2)) {
            let (p, _) = p[piece.at..piece.at + BLOCK_SLOTS].as_chunks::<16>();
            for (p, size) in p.iter().zip(sizes) {
                greatest = s.max(greatest, s.mul(s.load(p), s.load(size)));
            }
        }
        to.unit[r] = s.max_lane(greatest);
    }
    for r in 0..p.count {
        let p = &p.values[r * p.stride..][..SPAN_SLOTS];
        let (unit, by) = unit_of(to.unit[r], WIDE_LIMIT);
        let by = s.splat(by);
        let bytes = &mut to.bytes[2 * r * SPAN_SLOTS..][..2 * SPAN_SLOTS];
        let mut total = s.whole(zero);
        for (piece, scales) in pieces.iter().zip(scales.chunks_exact(2)) {
            let (p, _) = p[piece.at..piece.at + BLOCK_SLOTS].as_chunks::<16>();
            for (half, (p, scale)) in p.iter().zip(scales).enumerate() {
                let w = s.whole(s.mul(s.mul(s.load(p), s.load(scale)), by));
                total = s.add_whole(total, w);
                // SAFETY: the row is `2 * 256` bytes, and the piece's block is within the span.
                unsafe {
                    s.put_wide(w, bytes.as_mut_ptr(), SPAN_SLOTS, piece.at + 16 * half);
                }
            }
        }
        let mut each = [0; 16];
        s.store_whole(total, &mut each);
        // What is not a number has become the least whole one.
        let total = each.iter().fold(0i32, |sum, x| sum.wrapping_add(*x));
        (to.unit[r], to.totals[r]) = (unit, total);
    }
}
