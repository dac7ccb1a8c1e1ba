//! From integer sums to scores, and to what is added to the output.

use super::level_dot::{LevelDot, Precision, WideAcc};
use super::piece::{Head, Piece};
use super::quantize::{QuantizedRows, Weights};
use crate::format::kv::BLOCK_SLOTS;
use crate::ops::lanes::padded;

/// Calls something with the row count as a constant, up to `$max`.
macro_rules! with_rows {
    ($rows:expr, $max:expr, $r:ident => $call:expr) => {
        $crate::attention::kernel::finish::with_rows!(
            @ $rows, $max, $r => $call; 1 2 3 4 5 6 7 8 9 10 11 12)
    };
    (@ $rows:expr, $max:expr, $r:ident => $call:expr; $($n:literal)*) => {
        match $rows {
            $($n if $n <= $max => {
                const $r: usize = $n;
                $call
            })*
            rows => unreachable!("no tile of {rows} rows"),
        }
    };
}
pub(super) use with_rows;

/// Rows of queries and blocks of one form.
#[derive(Clone, Copy)]
pub(super) struct Scoring<'a> {
    pub q: QuantizedRows<'a>,
    pub rows: usize,
    /// (row)
    pub bias: &'a [f32],
    pub pieces: &'a [Piece<'a>],
}

/// Turns the sums of `R` rows into scores.
pub(super) struct ScoreEpilogue<S: LevelDot, const R: usize> {
    totals: [i32; R],
    row_scale: [S::F; R],
    bias: [S::F; R],
    is_first: bool,
    is_last: bool,
}

impl<S: LevelDot, const R: usize> ScoreEpilogue<S, R> {
    /// Of one group of dimensions, for the rows from `row` on.
    #[inline(always)]
    pub(super) fn new(
        s: S,
        q: QuantizedRows<'_>,
        row: usize,
        bias: &[f32],
        head: &Head<'_>,
        group: usize,
    ) -> Self {
        let dims = head.group(group);
        let mut epilogue = ScoreEpilogue {
            totals: [0; R],
            row_scale: [s.splat(0.0); R],
            bias: [s.splat(0.0); R],
            is_first: group == 0,
            is_last: group + 1 == head.groups,
        };
        for r in 0..R {
            epilogue.totals[r] = q.total(row + r, dims.start / 8..dims.end.div_ceil(8));
            epilogue.row_scale[r] = s.splat(q.row_scale[row + r]);
            epilogue.bias[r] = s.splat(bias[row + r]);
        }
        epilogue
    }

    /// Times the group's scales, added to the groups before; after the last one times the row scale, plus the
    /// bias.
    ///
    /// # Safety
    /// - `out` is a pointer to slot 0 of the first row and the distance of rows, and nothing else refers
    ///   to slots `slot..slot + 16 * C` of `R` rows; `scales` are of all slots.
    #[inline(always)]
    pub(super) unsafe fn score<N: Precision<S>, const C: usize>(
        &self,
        s: S,
        scales: &[u8; 2 * BLOCK_SLOTS],
        slot: usize,
        sums: [[N::Acc; C]; R],
        out: (*mut f32, usize),
    ) {
        let (scales, _) = scales.as_chunks::<32>();
        for c in 0..C {
            let scale = s.load_half(&scales[slot / 16 + c]);
            for r in 0..R {
                // SAFETY: the row has the slots, and nothing else refers to them.
                let out: &mut [f32; 16] =
                    unsafe { &mut *out.0.add(r * out.1 + slot + 16 * c).cast() };
                let sum = N::to_f32(s, sums[r][c], self.totals[r]);
                let mut score = match self.is_first {
                    true => s.mul(sum, scale),
                    false => s.fma(sum, scale, s.load(out)),
                };
                if self.is_last {
                    score = s.fma(score, self.row_scale[r], self.bias[r]);
                }
                s.store(score, out);
            }
        }
    }
}

/// The sums of values, times the row scale, added to `out` (row, dim) from `column` on.
#[inline(always)]
pub(super) fn add<S: LevelDot>(
    s: S,
    weights: &Weights<'_>,
    row: usize,
    sum: WideAcc<S>,
    dim: usize,
    column: usize,
    lanes: usize,
    out: &mut [f32],
) {
    let sum = S::Wide::to_f32(s, sum, weights.totals[row]);
    let row_scale = s.splat(weights.row_scale[row]);
    let out = &mut out[row * dim + column..];
    match out.first_chunk_mut::<16>() {
        Some(out) if lanes >= 16 => s.store(s.fma(sum, row_scale, s.load(out)), out),
        _ => {
            let out = &mut out[..lanes];
            let mut last = padded(out, 0.0);
            s.store(s.fma(sum, row_scale, s.load(&last)), &mut last);
            out.copy_from_slice(&last[..lanes]);
        }
    }
}
