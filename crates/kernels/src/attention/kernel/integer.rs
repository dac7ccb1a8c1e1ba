//! Integers times levels, in register tiles: exact sums of products, rounded to f32 at the end.
//!
//! Levels lie in quads, `(quad, column, 4)`: of dimensions for keys, whose columns are slots, and of
//! slots for values, whose columns are dimensions. That is the layout of `int8` in a block, and
//! narrower codes are unpacked to it ([`super::unpack`]); four-bit codes and few rows are looked up in
//! registers instead ([`super::fused`]).

use super::finish::{ScoreEpilogue, Scoring, add, with_rows};
use super::level_dot::{LevelDot, Precision};
use super::piece::{Panel, Piece, Rows};
use super::quantize::{
    QuantizedRows, Weights, Workspace, scalar_quantize_weights, simd_quantize_weights,
};
use super::{fused, unpack};
use crate::attention::job::{SPAN_BLOCKS, SPAN_SLOTS};
use crate::format::kv::{BLOCK_SLOTS, Codec, GROUP_MAX};
use crate::simd::simd_fn;
use std::ops::Range;

/// Whether queries against these keys are narrow.
pub(super) fn is_narrow(codec: Codec) -> bool {
    codec != Codec::Int8
}

simd_fn! {
    /// Scores: `out` is (row, slot) with `stride` between rows, 32 slots written for each piece from its
    /// `at` on. Ignores sinks.
    pub(super) fn score(of: Scoring<'_>, tile: &mut [u8], out: &mut [f32], stride: usize)
        = scalar_score, simd_score;
}

fn scalar_score(of: Scoring<'_>, _: &mut [u8], out: &mut [f32], stride: usize) {
    let Scoring {
        q,
        rows,
        bias,
        pieces,
    } = of;
    let mut levels = [0; GROUP_MAX];
    for Piece { head, at, .. } in pieces {
        for (slot, group) in (0..BLOCK_SLOTS).flat_map(|s| (0..head.groups).map(move |g| (s, g))) {
            let dims = head.group(group);
            for (level, d) in levels.iter_mut().zip(dims.clone()) {
                *level = i32::from(unpack::level(head, false, slot, d));
            }
            let scale = head.code_scale(group, slot);
            for r in 0..rows {
                let product = |(d, level): (usize, &i32)| q.at(r, d) * level;
                let sum = dims.clone().zip(&levels).map(product).sum::<i32>() as f32;
                let out = &mut out[r * stride + at + slot];
                *out = match group {
                    0 => sum * scale,
                    _ => sum.mul_add(scale, *out),
                };
                if group + 1 == head.groups {
                    *out = out.mul_add(q.row_scale[r], bias[r]);
                }
            }
        }
    }
}

#[inline(always)]
fn simd_score<S: LevelDot>(s: S, of: Scoring<'_>, tile: &mut [u8], out: &mut [f32], stride: usize) {
    if is_narrow(of.pieces[0].head.form.codec) {
        score_pieces::<S, S::Narrow>(s, of, tile, out, stride);
    } else {
        score_pieces::<S, S::Wide>(s, of, tile, out, stride);
    }
}

#[inline(always)]
fn score_pieces<S: LevelDot, N: Precision<S>>(
    s: S,
    of: Scoring<'_>,
    tile: &mut [u8],
    out: &mut [f32],
    stride: usize,
) {
    let Scoring {
        q,
        rows,
        bias,
        pieces,
    } = of;
    assert!(rows > 0 && rows <= bias.len() && rows <= q.row_scale.len());
    assert!(2 * rows * q.len <= q.bytes.len());
    let first = &pieces[0].head;
    for Piece { head, at, .. } in pieces {
        // Every address of a tile is within these: checked here, not in the loop.
        assert!(head.form == first.form && head.dim == first.dim && head.dim <= q.len);
        assert!((rows - 1) * stride + at + BLOCK_SLOTS <= out.len());
    }
    if rows <= N::FUSED && fused::takes_k(first) {
        // SAFETY: the sizes were asserted above.
        unsafe { fused::score::<S, N>(s, of, out, stride) };
        return;
    }
    for piece in pieces {
        let Piece { head, at, .. } = piece;
        let (levels, upcoming) = if head.form.codec == Codec::Int8 {
            (head.bytes, head.upcoming)
        } else {
            unpack::keys(s, head, tile);
            (&*tile, &[][..])
        };
        let quad = 4 * BLOCK_SLOTS;
        assert!(head.dim.div_ceil(4) * quad <= levels.len());
        for group in 0..head.groups {
            let dims = head.group(group);
            let quads = dims.start / 4..dims.end.div_ceil(4);
            let panel = Panel {
                lines: &levels[quads.start * quad..],
                upcoming: upcoming.get(quads.start * quad..).unwrap_or(&[]),
                at: quads.start,
                inner: quads.len(),
            };
            let mut row = 0;
            while row < rows {
                let count = (rows - row).min(N::ROWS);
                // SAFETY: rows `row..row + count` exist, and so do their slots.
                unsafe {
                    let out = (out.as_mut_ptr().add(row * stride + at), stride);
                    with_rows!(count, N::ROWS, R => {
                        let epilogue = ScoreEpilogue::<S, R>::new(s, q, row, bias, head, group);
                        let scales = head.scales(group);
                        if S::COLS == 2 {
                            let sums = sums::<S, N, R, 2>(s, q, row, &[panel], BLOCK_SLOTS, 0, row == 0);
                            epilogue.score::<N, 2>(s, scales, 0, sums, out);
                        } else {
                            for slot in [0, 16] {
                                let sums =
                                    sums::<S, N, R, 1>(s, q, row, &[panel], BLOCK_SLOTS, slot, row == 0);
                                epilogue.score::<N, 1>(s, scales, slot, sums, out);
                            }
                        }
                    });
                }
                row += count;
            }
        }
    }
}

/// Sums of `R` rows from `row` on by `C` vectors of columns from `column` on, over all panels.
///
/// # Safety
/// - `a` has these rows, as long as the panels ask; panels have quads of `width` columns, and bytes
///   for a vector behind the last.
#[inline(always)]
pub(super) unsafe fn sums<S: LevelDot, N: Precision<S>, const R: usize, const C: usize>(
    s: S,
    a: QuantizedRows<'_>,
    row: usize,
    panels: &[Panel<'_>],
    width: usize,
    column: usize,
    prefetch: bool,
) -> [[N::Acc; C]; R] {
    let mut acc = [[N::zero(s); C]; R];
    let stride = 2 * a.len;
    let rows = a.bytes.as_ptr().wrapping_add(row * stride);
    for panel in panels {
        let from = panel.lines.as_ptr().wrapping_add(4 * column);
        // With nothing upcoming, what is being read anyway.
        let upcoming = match panel.upcoming.len() {
            0 => from,
            _ if !prefetch => from,
            _ => panel.upcoming.as_ptr().wrapping_add(4 * column),
        };
        for i in 0..panel.inner {
            for c in 0..C {
                s.prefetch(upcoming.wrapping_add(4 * (i * width + 16 * c)));
            }
            // SAFETY: quad `i` of the panel has the columns, or bytes behind it; row `r` the quad.
            unsafe {
                let mut levels = [s.load_quads(&*from.add(4 * i * width).cast()); C];
                for c in 1..C {
                    levels[c] = s.load_quads(&*from.add(4 * (i * width + 16 * c)).cast());
                }
                for r in 0..R {
                    let by = N::quad(s, rows.add(r * stride), a.len, panel.at + i);
                    for c in 0..C {
                        acc[r][c] = N::dot(s, acc[r][c], levels[c], by);
                    }
                }
            }
        }
    }
    acc
}

simd_fn! {
    /// The values of blocks of one form, weighted by `p` (row, slot) and added to `out` (row, dim).
    /// Ignores sinks.
    pub(super) fn weigh(p: Rows<'_>, pieces: &[Piece<'_>], workspace: &mut Workspace<'_>, out: &mut [f32])
        = scalar_weigh, simd_weigh;
}

fn scalar_weigh(p: Rows<'_>, pieces: &[Piece<'_>], workspace: &mut Workspace<'_>, out: &mut [f32]) {
    let first = &pieces[0].head;
    for group in 0..first.groups {
        scalar_quantize_weights(p, pieces, group, &mut workspace.weights);
        let weights = workspace.weights.read();
        for d in first.group(group) {
            // (slot of the span); what is not read has no weight.
            let mut levels = [0; SPAN_SLOTS];
            for Piece { head, at, slots } in pieces {
                for slot in 0..*slots {
                    levels[at + slot] = i32::from(unpack::level(head, true, slot, d));
                }
            }
            for r in 0..p.count {
                let read = pieces
                    .iter()
                    .flat_map(|piece| piece.at..piece.at + piece.slots);
                let sum: i32 = read.map(|at| weights.at(r, at) * levels[at]).sum();
                let out = &mut out[r * first.dim + d];
                *out = (sum as f32).mul_add(weights.row_scale[r], *out);
            }
        }
    }
}

#[inline(always)]
fn simd_weigh<S: LevelDot>(
    s: S,
    p: Rows<'_>,
    pieces: &[Piece<'_>],
    workspace: &mut Workspace<'_>,
    out: &mut [f32],
) {
    let first = &pieces[0].head;
    let dim = first.dim;
    assert!(p.count > 0 && p.count * dim <= out.len() && pieces.len() <= SPAN_BLOCKS);
    for Piece { head, at, slots } in pieces {
        assert!(head.form == first.form && head.dim == dim);
        assert!(at + slots <= SPAN_SLOTS && *slots <= BLOCK_SLOTS);
    }
    if p.count <= S::Wide::FUSED && fused::takes_v(first) {
        return fused::weigh(s, p, pieces, workspace, out);
    }
    let mut panels = [Panel::default(); SPAN_BLOCKS];
    let is_bytes = first.form.codec == Codec::Int8;
    let width = if is_bytes {
        first.form.plane_bytes(0, dim)
    } else {
        let blocks = workspace.tile.chunks_exact_mut(BLOCK_SLOTS * dim);
        for (tile, piece) in blocks.zip(pieces) {
            unpack::values(s, &piece.head, piece.slots, tile);
        }
        dim
    };
    for (i, (panel, Piece { head, at, slots })) in panels.iter_mut().zip(pieces).enumerate() {
        *panel = Panel {
            lines: match is_bytes {
                true => head.bytes,
                false => &workspace.tile[i * BLOCK_SLOTS * dim..],
            },
            upcoming: if is_bytes { head.upcoming } else { &[] },
            at: at / 4,
            inner: slots.div_ceil(4),
        };
        // The last vector of the last quad may begin anywhere in it.
        assert!(panel.inner * 4 * width + 60 <= panel.lines.len());
    }
    for group in 0..first.groups {
        simd_quantize_weights(s, p, pieces, group, &mut workspace.weights);
        let panels = &panels[..pieces.len()];
        let dims = first.group(group);
        // SAFETY: the sizes were asserted above.
        unsafe {
            weigh_group(
                s,
                &workspace.weights,
                p.count,
                panels,
                width,
                dims,
                dim,
                out,
            )
        };
    }
}

/// The columns of one group.
///
/// # Safety
/// - The weights have `rows` rows; panels are of `width` columns, within the span, with a vector
///   behind; `columns` are within `width` and `dim`, and `out` has `rows` rows of `dim`.
#[inline(always)]
unsafe fn weigh_group<S: LevelDot>(
    s: S,
    weights: &Weights<'_>,
    rows: usize,
    panels: &[Panel<'_>],
    width: usize,
    columns: Range<usize>,
    dim: usize,
    out: &mut [f32],
) {
    let a = weights.read();
    let mut column = columns.start;
    while column < columns.end {
        let two = S::COLS == 2 && column + 32 <= columns.end;
        let mut row = 0;
        while row < rows {
            let count = (rows - row).min(S::Wide::ROWS);
            // SAFETY: the caller's promise; rows `row..row + count` exist.
            unsafe {
                with_rows!(count, S::Wide::ROWS, R => {
                    if two {
                        let sums = sums::<S, S::Wide, R, 2>(s, a, row, panels, width, column, row == 0);
                        for r in 0..R {
                            add(s, weights, row + r, sums[r][0], dim, column, 16, out);
                            add(s, weights, row + r, sums[r][1], dim, column + 16, 16, out);
                        }
                    } else {
                        let sums = sums::<S, S::Wide, R, 1>(s, a, row, panels, width, column, row == 0);
                        let lanes = columns.end - column;
                        for r in 0..R {
                            add(s, weights, row + r, sums[r][0], dim, column, lanes, out);
                        }
                    }
                });
            }
            row += count;
        }
        column += if two { 32 } else { 16 };
    }
}
