//! Codes unpacked in registers: for the few rows of a decode step, where a tile of levels would be
//! written and read once each.
//!
//! The same chains as by way of a tile, and so the same bits. Speaks for `int8` and the four-bit
//! codecs, without sinks, where a vector of values lies in one group; [`takes_k`] and [`takes_v`]
//! say whether.
//!
//! A step makes two vectors of levels, because four-bit codes come in pairs:
//!
//! ```text
//! keys    dimensions 2 j and 2 j + 1 of sixteen slots
//! values  dimensions c .. c + 16 and half + c .. half + c + 16 of one slot
//! ```

use super::head::Head;
use super::unpack::sixteen;
use super::{Piece, Room, Rows};
use crate::attention::BLOCK_SLOTS;
use crate::attention::scratch::SCORE_STRIDE;
use crate::format::kv::Codec;
use crate::ops::simd::{Simd, simd_fn};

/// Rows of a register tile at most, on any table: what [`Room::scaled`] is reserved for.
pub(crate) const ROWS_MAX: usize = 8;

fn takes(head: &Head<'_>) -> bool {
    let codec = head.form.codec;
    head.sinks.is_empty() && matches!(codec, Codec::Int8 | Codec::Int4 | Codec::Int4Plain)
}

/// These keys can be read so.
pub(super) fn takes_k(k: &Head<'_>) -> bool {
    takes(k) && k.dim.is_multiple_of(2) && (k.groups() == 1 || k.form.group.is_multiple_of(2))
}

/// These values can be read so.
pub(super) fn takes_v(v: &Head<'_>) -> bool {
    takes(v) && v.dim.is_multiple_of(32) && (v.groups() == 1 || v.form.group.is_multiple_of(16))
}

/// How two vectors of levels come out of memory.
trait Pairs<S: Simd>: Copy {
    /// Bytes of two dimensions of a block's keys.
    const K_BYTES: usize;

    /// Dimensions `2 j` and `2 j + 1` of sixteen slots.
    ///
    /// # Safety
    /// - `at` is the first of these slots in a pair of lines.
    unsafe fn keys(self, s: S, at: *const u8) -> (S::V, S::V);

    /// Bytes of one slot's values.
    fn v_bytes(dim: usize) -> usize;

    /// Dimensions from `column` and from `half + column` on.
    ///
    /// # Safety
    /// - `slot` is a slot of values with so many dimensions.
    unsafe fn values(self, s: S, slot: *const u8, column: usize, half: usize) -> (S::V, S::V);
}

/// `int8`: a code is its level.
#[derive(Clone, Copy)]
struct Whole;

impl<S: Simd> Pairs<S> for Whole {
    const K_BYTES: usize = 2 * BLOCK_SLOTS;

    #[inline(always)]
    unsafe fn keys(self, s: S, at: *const u8) -> (S::V, S::V) {
        // SAFETY: two lines of slots.
        unsafe {
            (
                s.widen(s.bytes(&*at.cast())),
                s.widen(s.bytes(&*at.add(BLOCK_SLOTS).cast())),
            )
        }
    }

    #[inline(always)]
    fn v_bytes(dim: usize) -> usize {
        dim
    }

    #[inline(always)]
    unsafe fn values(self, s: S, slot: *const u8, column: usize, half: usize) -> (S::V, S::V) {
        // SAFETY: the slot has these dimensions.
        unsafe {
            (
                s.widen(s.bytes(&*slot.add(column).cast())),
                s.widen(s.bytes(&*slot.add(half + column).cast())),
            )
        }
    }
}

/// Four bits: a code is an index into sixteen levels.
#[derive(Clone, Copy)]
struct Nibbles<S: Simd>(S::Levels);

impl<S: Simd> Pairs<S> for Nibbles<S> {
    const K_BYTES: usize = BLOCK_SLOTS;

    #[inline(always)]
    unsafe fn keys(self, s: S, at: *const u8) -> (S::V, S::V) {
        // SAFETY: a line of slots.
        s.nibbles(self.0, unsafe { &*at.cast() })
    }

    #[inline(always)]
    fn v_bytes(dim: usize) -> usize {
        dim / 2
    }

    #[inline(always)]
    unsafe fn values(self, s: S, slot: *const u8, column: usize, _: usize) -> (S::V, S::V) {
        // SAFETY: the slot has these dimensions.
        s.nibbles(self.0, unsafe { &*slot.add(column).cast() })
    }
}

/// The sixteen levels of a four-bit codec.
#[inline(always)]
fn nibbles<S: Simd>(s: S, codec: Codec) -> Nibbles<S> {
    Nibbles(s.levels(&sixteen(codec)))
}

/// Calls a tile with the row count as a constant.
macro_rules! with_rows {
    ($rows:expr, $S:ident, $r:ident => $call:expr) => {
        with_rows!(@ $rows, $S, $r => $call; 1 2 3 4 5 6 7 8)
    };
    (@ $rows:expr, $S:ident, $r:ident => $call:expr; $($n:literal)*) => {
        match $rows {
            $($n if $n <= $S::FUSED_ROWS => {
                const $r: usize = $n;
                $call
            })*
            rows => unreachable!("no tile of {rows} rows"),
        }
    };
}

simd_fn! {
    /// As [`super::score`], for what [`takes_k`] says. The scalar table has no registers to do it in.
    pub(super) fn score(
        q: Rows<'_>,
        bias: &[f32],
        k: Head<'_>,
        out: &mut [f32],
        out_stride: usize,
    ) = no_score, simd_score;
}

fn no_score(_: Rows<'_>, _: &[f32], _: Head<'_>, _: &mut [f32], _: usize) {
    unreachable!("the scalar table unpacks");
}

#[inline(always)]
fn simd_score<S: Simd>(
    s: S,
    q: Rows<'_>,
    bias: &[f32],
    k: Head<'_>,
    out: &mut [f32],
    out_stride: usize,
) {
    match k.form.codec {
        Codec::Int8 => score_pairs(s, Whole, q, bias, k, out, out_stride),
        codec => score_pairs(s, nibbles(s, codec), q, bias, k, out, out_stride),
    }
}

#[inline(always)]
fn score_pairs<S: Simd, P: Pairs<S>>(
    s: S,
    pairs: P,
    q: Rows<'_>,
    bias: &[f32],
    k: Head<'_>,
    out: &mut [f32],
    out_stride: usize,
) {
    assert!(takes_k(&k) && q.count > 0 && q.count <= bias.len());
    // Every address of a tile is within these: checked once here, not in the loop.
    assert!((q.count - 1) * q.stride + k.dim <= q.values.len());
    assert!((q.count - 1) * out_stride + BLOCK_SLOTS <= out.len());
    assert!(k.dim / 2 * P::K_BYTES <= k.bytes.len());
    let mut row = 0;
    while row < q.count {
        let rows = (q.count - row).min(S::FUSED_ROWS);
        // SAFETY: rows `row..row + rows` are below `q.count`; the sizes were asserted above.
        unsafe {
            let q = (q.values.as_ptr().add(row * q.stride), q.stride);
            let out = (out.as_mut_ptr().add(row * out_stride), out_stride);
            let bias = &bias[row..row + rows];
            if S::COLS == 2 {
                with_rows!(rows, S, R => score_tile::<S, P, R, 2>(s, pairs, q, bias, k, 0, out));
            } else {
                with_rows!(rows, S, R => score_tile::<S, P, R, 1>(s, pairs, q, bias, k, 0, out));
                with_rows!(rows, S, R => score_tile::<S, P, R, 1>(s, pairs, q, bias, k, 16, out));
            }
        }
        row += rows;
    }
}

/// `R` rows by `C` vectors of slots from `slot` on; `q` and `out` are a pointer and the distance of
/// rows.
///
/// # Safety
/// - `q` has `R` rows of `k.dim` values, `bias` `R` values and `out` `R` rows of 32 values that
///   nothing else refers to; `takes_k(k)`, with bytes for every dimension; `slot + 16 * C <= 32`.
#[inline(always)]
unsafe fn score_tile<S: Simd, P: Pairs<S>, const R: usize, const C: usize>(
    s: S,
    pairs: P,
    q: (*const f32, usize),
    bias: &[f32],
    k: Head<'_>,
    slot: usize,
    out: (*mut f32, usize),
) {
    let plane = k.bytes.as_ptr().wrapping_add(slot);
    // With nothing ahead, what is being read anyway.
    let ahead = match k.ahead.len() {
        0 => plane,
        _ => k.ahead.as_ptr(),
    };
    for group in 0..k.groups() {
        let dims = k.group(group);
        let mut acc = [[s.splat(0.0); C]; R];
        for j in dims.start / 2..dims.end / 2 {
            s.prefetch(ahead.wrapping_add(j * P::K_BYTES));
            let mut level = [[s.splat(0.0); C]; 2];
            for c in 0..C {
                // SAFETY: pair `j` of lines has these slots.
                let pair = unsafe { pairs.keys(s, plane.add(j * P::K_BYTES + 16 * c)) };
                (level[0][c], level[1][c]) = pair;
            }
            for (i, level) in level.iter().enumerate() {
                for r in 0..R {
                    // SAFETY: row `r` of `q` has this dimension.
                    let x = s.splat(unsafe { *q.0.add(r * q.1 + 2 * j + i) });
                    for c in 0..C {
                        acc[r][c] = s.fma(x, level[c], acc[r][c]);
                    }
                }
            }
        }
        let (scales, _) = k.scales(group).as_chunks::<32>();
        for c in 0..C {
            let scale = s.load_half(&scales[slot / 16 + c]);
            for r in 0..R {
                // SAFETY: row `r` of `out` has these slots, and nothing else refers to them.
                let out: &mut [f32; 16] =
                    unsafe { &mut *out.0.add(r * out.1 + slot + 16 * c).cast() };
                let from = match group {
                    0 => s.splat(bias[r]),
                    _ => s.load(out),
                };
                s.store(s.fma(acc[r][c], scale, from), out);
            }
        }
    }
}

simd_fn! {
    /// As [`super::weigh`], for a run of pieces of one form that [`takes_v`] says, added to what is in
    /// `out`. The scalar table has no registers to do it in.
    pub(super) fn weigh(
        p: Rows<'_>,
        pieces: &[Piece<'_>],
        room: &mut Room<'_>,
        out: &mut [f32],
    ) = no_weigh, simd_weigh;
}

fn no_weigh(_: Rows<'_>, _: &[Piece<'_>], _: &mut Room<'_>, _: &mut [f32]) {
    unreachable!("the scalar table unpacks");
}

#[inline(always)]
fn simd_weigh<S: Simd>(
    s: S,
    p: Rows<'_>,
    pieces: &[Piece<'_>],
    room: &mut Room<'_>,
    out: &mut [f32],
) {
    match pieces[0].head.form.codec {
        Codec::Int8 => weigh_pairs(s, Whole, p, pieces, room, out),
        codec => weigh_pairs(s, nibbles(s, codec), p, pieces, room, out),
    }
}

#[inline(always)]
fn weigh_pairs<S: Simd, P: Pairs<S>>(
    s: S,
    pairs: P,
    p: Rows<'_>,
    pieces: &[Piece<'_>],
    room: &mut Room<'_>,
    out: &mut [f32],
) {
    let first = &pieces[0].head;
    let (form, dim) = (first.form, first.dim);
    // Every address of a tile is within these: checked once here, not in the loop.
    assert!(p.count > 0 && p.count * dim <= out.len());
    for piece in pieces {
        let Piece { head, at, slots } = *piece;
        assert!(takes_v(&head) && head.form == form && head.dim == dim);
        assert!(at + slots <= SCORE_STRIDE && slots * P::v_bytes(dim) <= head.bytes.len());
    }
    let half = dim / 2;
    let mut row = 0;
    while row < p.count {
        let rows = (p.count - row).min(S::FUSED_ROWS);
        let p = Rows {
            values: &p.values[row * p.stride..],
            count: rows,
            ..p
        };
        // The weights of two groups: of the lower dimensions and of the upper.
        let (low, high) = room.scaled.split_at_mut(ROWS_MAX * SCORE_STRIDE);
        assert!(rows * SCORE_STRIDE <= high.len());
        let mut groups = (usize::MAX, usize::MAX);
        for column in (0..half).step_by(16) {
            let here = (column / form.group, (half + column) / form.group);
            if here.0 != groups.0 {
                scale(s, p, pieces, here.0, low);
            }
            if here.1 != groups.1 && here.1 != here.0 {
                scale(s, p, pieces, here.1, high);
            }
            groups = here;
            let upper = if here.0 == here.1 { &*low } else { &*high };
            // SAFETY: rows `row..row + rows` are below `p.count`, the columns below `dim`; the
            // sizes were asserted above.
            unsafe {
                let p = (low.as_ptr(), upper.as_ptr());
                let out = out.as_mut_ptr().add(row * dim + column);
                let ask = row == 0;
                with_rows!(rows, S, R => {
                    weigh_tile::<S, P, R>(s, pairs, p, pieces, dim, column, ask, out)
                });
            }
        }
        row += rows;
    }
}

/// `out (row, at + slot) = p (row, at + slot) * scale (group, slot)` for the pieces' slots.
#[inline(always)]
fn scale<S: Simd>(s: S, p: Rows<'_>, pieces: &[Piece<'_>], group: usize, out: &mut [f32]) {
    for Piece { head, at, .. } in pieces {
        let (scales, _) = head.scales(group).as_chunks::<32>();
        for (c, scale) in scales.iter().enumerate() {
            let scale = s.load_half(scale);
            for r in 0..p.count {
                let from = p.values[r * p.stride + at + 16 * c..].first_chunk::<16>();
                let to = out[r * SCORE_STRIDE + at + 16 * c..].first_chunk_mut::<16>();
                if let (Some(from), Some(to)) = (from, to) {
                    s.store(s.mul(s.load(from), scale), to);
                }
            }
        }
    }
}

/// `R` rows by two vectors of dimensions: from `column` on, and half a head further. `p` are the
/// weights of either. With `ask`, what is ahead is asked for.
///
/// # Safety
/// - `p` are `R` rows of weights at [`SCORE_STRIDE`] each, with all slots of the pieces; these are of
///   `dim` dimensions, and `takes_v` and have their slots; `column + 16 <= dim / 2`; `out` has `R`
///   rows at `dim`, from `column` on, that nothing else refers to.
#[inline(always)]
unsafe fn weigh_tile<S: Simd, P: Pairs<S>, const R: usize>(
    s: S,
    pairs: P,
    p: (*const f32, *const f32),
    pieces: &[Piece<'_>],
    dim: usize,
    column: usize,
    ask: bool,
    out: *mut f32,
) {
    let half = dim / 2;
    let bytes = P::v_bytes(dim);
    let mut acc = [[s.splat(0.0); 2]; R];
    for r in 0..R {
        // SAFETY: `out` has the row, and both vectors of it.
        unsafe {
            acc[r][0] = s.load(&*out.add(r * dim).cast());
            acc[r][1] = s.load(&*out.add(r * dim + half).cast());
        }
    }
    for Piece { head, at, slots } in pieces {
        let from = head.bytes.as_ptr();
        // With nothing ahead, what is being read anyway.
        let ahead = match head.ahead.len() {
            0 => from,
            _ if !ask => from,
            _ => head.ahead.as_ptr().wrapping_add(2 * column),
        };
        for slot in 0..*slots {
            s.prefetch(ahead.wrapping_add(slot * bytes));
            // SAFETY: the piece has the slot.
            let level = unsafe { pairs.values(s, from.add(slot * bytes), column, half) };
            for r in 0..R {
                // SAFETY: the row has the slot's weights.
                let (low, high) = unsafe {
                    let i = r * SCORE_STRIDE + at + slot;
                    (s.splat(*p.0.add(i)), s.splat(*p.1.add(i)))
                };
                acc[r][0] = s.fma(low, level.0, acc[r][0]);
                acc[r][1] = s.fma(high, level.1, acc[r][1]);
            }
        }
    }
    for r in 0..R {
        // SAFETY: `out` has the row, and both vectors of it, for nobody else.
        unsafe {
            s.store(acc[r][0], &mut *out.add(r * dim).cast());
            s.store(acc[r][1], &mut *out.add(r * dim + half).cast());
        }
    }
}
