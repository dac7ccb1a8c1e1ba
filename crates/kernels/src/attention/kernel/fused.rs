//! Four-bit codes unpacked in registers: for the few rows of a decode step, where a tile of levels
//! would be written and read once each.
//!
//! The same chains as by way of a tile, and so the same bits. Speaks for blocks without sinks, where a
//! vector of values lies in one group; [`takes_k`] and [`takes_v`] say whether.
//!
//! Codes come in pairs, so a step makes two vectors of levels:
//!
//! ```text
//! keys    dimensions 2 j and 2 j + 1 of sixteen slots
//! values  dimensions c .. c + 16 and half + c .. half + c + 16 of one slot
//! ```

use super::head::Head;
use super::unpack::sixteen;
use super::{Piece, Rows, simd_scale_weights};
use crate::attention::BLOCK_SLOTS;
use crate::attention::scratch::SCORE_STRIDE;
use crate::format::kv::Codec;
use crate::ops::simd::{Simd, simd_fn};

/// Rows of a register tile at most, on any table: the weights of two groups of so many rows have to
/// fit.
pub(crate) const ROWS_MAX: usize = 8;

fn takes(head: &Head<'_>) -> bool {
    head.sinks.is_empty() && matches!(head.form.codec, Codec::Int4 | Codec::Int4Plain)
}

/// These keys can be read so.
pub(super) fn takes_k(k: &Head<'_>) -> bool {
    takes(k) && k.dim.is_multiple_of(2) && (k.groups() == 1 || k.form.group.is_multiple_of(2))
}

/// These values can be read so.
pub(super) fn takes_v(v: &Head<'_>) -> bool {
    takes(v) && v.dim.is_multiple_of(32) && (v.groups() == 1 || v.form.group.is_multiple_of(16))
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
        k: &Head<'_>,
        out: &mut [f32],
        out_stride: usize,
    ) = no_score, simd_score;
}

fn no_score(_: Rows<'_>, _: &[f32], _: &Head<'_>, _: &mut [f32], _: usize) {
    unreachable!("the scalar table unpacks");
}

#[inline(always)]
fn simd_score<S: Simd>(
    s: S,
    q: Rows<'_>,
    bias: &[f32],
    k: &Head<'_>,
    out: &mut [f32],
    out_stride: usize,
) {
    assert!(takes_k(k) && q.count > 0 && q.count <= bias.len());
    // Every address of a tile is within these: checked once here, not in the loop.
    assert!((q.count - 1) * q.stride + k.dim <= q.values.len());
    assert!((q.count - 1) * out_stride + BLOCK_SLOTS <= out.len());
    assert!(k.dim / 2 * BLOCK_SLOTS <= k.bytes.len());
    let levels = s.levels(&sixteen(k.form.codec));
    let mut row = 0;
    while row < q.count {
        let rows = (q.count - row).min(S::FUSED_ROWS);
        // SAFETY: rows `row..row + rows` are below `q.count`; the sizes were asserted above.
        unsafe {
            let q = (q.values.as_ptr().add(row * q.stride), q.stride);
            let out = (out.as_mut_ptr().add(row * out_stride), out_stride);
            let bias = &bias[row..row + rows];
            if S::COLS == 2 {
                with_rows!(rows, S, R => score_tile::<S, R, 2>(s, levels, q, bias, k, 0, out));
            } else {
                with_rows!(rows, S, R => score_tile::<S, R, 1>(s, levels, q, bias, k, 0, out));
                with_rows!(rows, S, R => score_tile::<S, R, 1>(s, levels, q, bias, k, 16, out));
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
unsafe fn score_tile<S: Simd, const R: usize, const C: usize>(
    s: S,
    levels: S::Levels,
    q: (*const f32, usize),
    bias: &[f32],
    k: &Head<'_>,
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
            s.prefetch(ahead.wrapping_add(j * BLOCK_SLOTS));
            let mut level = [[s.splat(0.0); C]; 2];
            for c in 0..C {
                // SAFETY: line `j` has these slots.
                let codes = unsafe { &*plane.add(j * BLOCK_SLOTS + 16 * c).cast() };
                (level[0][c], level[1][c]) = s.nibbles(levels, codes);
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
        scaled: &mut [f32],
        out: &mut [f32],
    ) = no_weigh, simd_weigh;
}

fn no_weigh(_: Rows<'_>, _: &[Piece<'_>], _: &mut [f32], _: &mut [f32]) {
    unreachable!("the scalar table unpacks");
}

#[inline(always)]
fn simd_weigh<S: Simd>(
    s: S,
    p: Rows<'_>,
    pieces: &[Piece<'_>],
    scaled: &mut [f32],
    out: &mut [f32],
) {
    let first = &pieces[0].head;
    let (form, dim) = (first.form, first.dim);
    // Every address of a tile is within these: checked once here, not in the loop.
    assert!(p.count > 0 && p.count * dim <= out.len());
    for piece in pieces {
        let Piece { head, at, slots } = *piece;
        assert!(takes_v(&head) && head.form == form && head.dim == dim);
        assert!(at + slots <= SCORE_STRIDE && slots * dim / 2 <= head.bytes.len());
    }
    let half = dim / 2;
    let levels = s.levels(&sixteen(form.codec));
    let mut row = 0;
    while row < p.count {
        let rows = (p.count - row).min(S::FUSED_ROWS);
        let p = Rows {
            values: &p.values[row * p.stride..],
            count: rows,
            ..p
        };
        // The weights of two groups: of the lower dimensions and of the upper.
        let (low, high) = scaled.split_at_mut(ROWS_MAX * SCORE_STRIDE);
        assert!(rows * SCORE_STRIDE <= high.len());
        let mut groups = (usize::MAX, usize::MAX);
        for column in (0..half).step_by(16) {
            let here = (column / form.group, (half + column) / form.group);
            if here.0 != groups.0 {
                simd_scale_weights(s, p, pieces, here.0, low);
            }
            if here.1 != groups.1 && here.1 != here.0 {
                simd_scale_weights(s, p, pieces, here.1, high);
            }
            groups = here;
            let same = here.0 == here.1;
            // SAFETY: rows `row..row + rows` are below `p.count`, the columns below `dim`; the
            // sizes were asserted above.
            unsafe {
                let p = (low.as_ptr(), high.as_ptr());
                let out = out.as_mut_ptr().add(row * dim + column);
                let ask = row == 0;
                with_rows!(rows, S, R => if same {
                    weigh_tile::<S, R, true>(s, levels, p, pieces, dim, column, ask, out)
                } else {
                    weigh_tile::<S, R, false>(s, levels, p, pieces, dim, column, ask, out)
                });
            }
        }
        row += rows;
    }
}

/// `R` rows by two vectors of dimensions: from `column` on, and half a head further. `p` are the
/// weights of either; `SAME` if they share the first. With `ask`, what is ahead is asked for.
///
/// # Safety
/// - `p` are `R` rows of weights at [`SCORE_STRIDE`] each, with all slots of the pieces; these are of
///   `dim` dimensions, and `takes_v` and have their slots; `column + 16 <= dim / 2`; `out` has `R`
///   rows at `dim`, from `column` on, that nothing else refers to.
#[inline(always)]
unsafe fn weigh_tile<S: Simd, const R: usize, const SAME: bool>(
    s: S,
    levels: S::Levels,
    p: (*const f32, *const f32),
    pieces: &[Piece<'_>],
    dim: usize,
    column: usize,
    ask: bool,
    out: *mut f32,
) {
    let half = dim / 2;
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
            s.prefetch(ahead.wrapping_add(slot * half));
            // SAFETY: the piece has the slot.
            let codes = unsafe { &*from.add(slot * half + column).cast() };
            let level = s.nibbles(levels, codes);
            for r in 0..R {
                // SAFETY: the row has the slot's weights.
                let (low, high) = unsafe {
                    let i = r * SCORE_STRIDE + at + slot;
                    let low = s.splat(*p.0.add(i));
                    (low, if SAME { low } else { s.splat(*p.1.add(i)) })
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
