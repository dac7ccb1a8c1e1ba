//! Four-bit codes looked up in registers: for the few rows of a decode step, which would write a tile
//! of levels and read it once.
//!
//! Sums are exact, and so the same as with a tile. [`takes_k`] and [`takes_v`] say which blocks this
//! works for. Codes come in pairs, so a step makes two vectors of quads:
//!
//! ```text
//! keys    quads 2 j and 2 j + 1 of sixteen slots
//! values  dimensions c .. c + 16 and half + c .. half + c + 16 of one quad of slots
//! ```

use super::finish::{ScoreEpilogue, Scoring, add, with_rows};
use super::level_dot::{LevelDot, Precision, WideAcc};
use super::piece::{Head, Piece, Rows};
use super::quantize::{QuantizedRows, Workspace, simd_quantize_weights};
use super::unpack::sixteen_levels;
use crate::attention::job::SPAN_SLOTS;
use crate::format::kv::{BLOCK_SLOTS, Codec};

fn takes(head: &Head<'_>) -> bool {
    matches!(head.form.codec, Codec::Int4 | Codec::Int4Plain)
}

/// These keys can be read so: a group is whole pairs of quads.
pub(super) fn takes_k(k: &Head<'_>) -> bool {
    takes(k) && k.dim.is_multiple_of(8)
}

/// These values can be read so: a vector lies in one group.
pub(super) fn takes_v(v: &Head<'_>) -> bool {
    takes(v) && v.dim.is_multiple_of(32) && (v.groups == 1 || v.form.group.is_multiple_of(16))
}

/// Scores of blocks of one form: `out` is (row, slot).
///
/// # Safety
/// - `takes_k` holds for the pieces, which have bytes for every dimension and are of one size; queries and
///   `bias` have `rows` rows, at most [`Precision::FUSED`], with all dimensions; `out` has `rows` rows with
///   all slots of the pieces, `stride` apart.
#[inline(always)]
pub(super) unsafe fn score<S: LevelDot, N: Precision<S>>(
    s: S,
    of: Scoring<'_>,
    out: &mut [f32],
    stride: usize,
) {
    let out = (out.as_mut_ptr(), stride);
    // SAFETY: the caller's promise.
    unsafe {
        with_rows!(of.rows, N::FUSED, R => {
            if S::COLS == 2 {
                score_tiles::<S, N, R, 2>(s, of, 0, out);
            } else {
                score_tiles::<S, N, R, 1>(s, of, 0, out);
                score_tiles::<S, N, R, 1>(s, of, 16, out);
            }
        });
    }
}

/// `R` rows by `C` vectors of slots from `slot` on, block by block.
///
/// # Safety
/// - As for [`score`], with `R` rows; `slot + 16 * C <= 32`.
#[inline(always)]
unsafe fn score_tiles<S: LevelDot, N: Precision<S>, const R: usize, const C: usize>(
    s: S,
    of: Scoring<'_>,
    slot: usize,
    out: (*mut f32, usize),
) {
    const LINE: usize = 4 * BLOCK_SLOTS;
    let Scoring {
        q, bias, pieces, ..
    } = of;
    let first = &pieces[0].head;
    let book = s.codebook(&sixteen_levels(first.form.codec));
    let (rows, stride) = (q.bytes.as_ptr(), 2 * q.len);
    for group in 0..first.groups {
        let dims = first.group(group);
        let epilogue = ScoreEpilogue::<S, R>::new(s, q, 0, bias, first, group);
        for Piece { head, at, .. } in pieces {
            let plane = head.bytes.as_ptr().wrapping_add(4 * slot);
            // With nothing upcoming, what is being read anyway.
            let upcoming = match head.upcoming.len() {
                0 => plane,
                _ => head.upcoming.as_ptr().wrapping_add(4 * slot),
            };
            // Low and high codes apart: chains of half the length.
            let mut low = [[N::zero(s); C]; R];
            let mut high = [[N::zero(s); C]; R];
            for j in dims.start / 8..dims.end / 8 {
                // SAFETY: line `j` has these slots, and row `r` these dimensions.
                unsafe {
                    for c in 0..C {
                        s.prefetch(upcoming.wrapping_add(j * LINE + 64 * c));
                        let levels = s.look_up_nibbles(book, &*plane.add(j * LINE + 64 * c).cast());
                        for r in 0..R {
                            let row = rows.add(r * stride);
                            let by = N::quad(s, row, q.len, 2 * j);
                            low[r][c] = N::dot(s, low[r][c], levels.0, by);
                            let by = N::quad(s, row, q.len, 2 * j + 1);
                            let sum = if R <= S::CHAINS { &mut high } else { &mut low };
                            sum[r][c] = N::dot(s, sum[r][c], levels.1, by);
                        }
                    }
                }
            }
            if R <= S::CHAINS {
                for r in 0..R {
                    for c in 0..C {
                        low[r][c] = N::add(s, low[r][c], high[r][c]);
                    }
                }
            }
            // SAFETY: the caller's promise.
            unsafe {
                let out = (out.0.add(*at), out.1);
                epilogue.score::<N, C>(s, head.scales(group), slot, low, out);
            }
        }
    }
}

/// As [`super::integer::weigh`], which saw to the sizes; `takes_v` holds, and there are at most
/// [`Precision::FUSED`] rows.
#[inline(always)]
pub(super) fn weigh<S: LevelDot>(
    s: S,
    p: Rows<'_>,
    pieces: &[Piece<'_>],
    workspace: &mut Workspace<'_>,
    out: &mut [f32],
) {
    let Head { form, dim, .. } = pieces[0].head;
    let half = dim / 2;
    for Piece { head, slots, .. } in pieces {
        assert!(slots.div_ceil(4) * 4 * half <= head.bytes.len());
    }
    let book = s.codebook(&sixteen_levels(form.codec));
    let mut loaded = usize::MAX;
    for column in (0..half).step_by(16) {
        let groups = [column / form.group, (half + column) / form.group];
        let same = groups[0] == groups[1];
        for (nth, group) in groups.into_iter().enumerate() {
            if nth == 1 && same {
                break;
            }
            if loaded != group {
                simd_quantize_weights(s, p, pieces, group, &mut workspace.weights);
                loaded = group;
            }
            // SAFETY: the pieces' sizes were asserted above and by the caller; the weights have been
            // rounded for all rows.
            unsafe {
                let a = workspace.weights.read();
                with_rows!(p.count, S::Wide::FUSED, R => {
                    let sums = weigh_tile::<S, R>(s, book, a, pieces, half, column, nth == 0);
                    for r in 0..R {
                        if nth == 0 {
                            add(s, &workspace.weights, r, sums[r][0], dim, column, 16, out);
                        }
                        if nth == 1 || same {
                            add(s, &workspace.weights, r, sums[r][1], dim, half + column, 16, out);
                        }
                    }
                });
            }
        }
    }
}

/// Sums of `R` rows by two vectors of dimensions: from `column` on, and half a head further.
///
/// # Safety
/// - `a` has `R` rows of a span's slots; the pieces are within the span and have their slots, and
///   `takes_v`; `column + 16 <= half`.
#[inline(always)]
unsafe fn weigh_tile<S: LevelDot, const R: usize>(
    s: S,
    book: S::Codebook,
    a: QuantizedRows<'_>,
    pieces: &[Piece<'_>],
    half: usize,
    column: usize,
    prefetch: bool,
) -> [[WideAcc<S>; 2]; R] {
    let mut acc = [[S::Wide::zero(s); 2]; R];
    let rows = a.bytes.as_ptr();
    for Piece { head, at, slots } in pieces {
        let from = head.bytes.as_ptr().wrapping_add(4 * column);
        // With nothing upcoming, what is being read anyway.
        let upcoming = match head.upcoming.len() {
            0 => from,
            _ if !prefetch => from,
            _ => head.upcoming.as_ptr().wrapping_add(4 * column),
        };
        for i in 0..slots.div_ceil(4) {
            s.prefetch(upcoming.wrapping_add(4 * i * half));
            // SAFETY: the piece has the slots, the row their weights.
            unsafe {
                let levels = s.look_up_nibbles(book, &*from.add(4 * i * half).cast());
                for r in 0..R {
                    let row = rows.add(2 * SPAN_SLOTS * r);
                    let by = S::Wide::quad(s, row, SPAN_SLOTS, at / 4 + i);
                    acc[r][0] = S::Wide::dot(s, acc[r][0], levels.0, by);
                    acc[r][1] = S::Wide::dot(s, acc[r][1], levels.1, by);
                }
            }
        }
    }
    acc
}
