//! Rows of f32 times lines of floats, in register tiles.
//!
//! ```text
//! out (row, column) <- sum over panels and i  a (row, at + i) * panel (i, column)
//! ```
//!
//! Each output lane is a chain of fused multiply-adds along the inner index, in order. [`Epilogue`] says
//! what it starts from and where it ends. So a row's bits depend neither on other rows nor on how many
//! were computed at once.

use super::level_dot::LevelDot;
use super::piece::Rows;
use crate::format::kv::Codec;
use crate::simd::simd_fn;
use half::f16;
use std::ops::Range;

/// A piece of the right-hand matrix: `inner` lines of numbers without gaps, which the values of the
/// rows from `at` on are multiplied with.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    pub lines: &'a [u8],
    /// Lines of the same shape that will be read after these, or nothing. A head's part of a
    /// block is about one page, where the hardware's prefetcher stops, and the next is elsewhere:
    /// the kernel prefetches it while it multiplies this one.
    pub upcoming: &'a [u8],
    pub at: usize,
    pub inner: usize,
}

impl<'a> Panel<'a> {
    pub(crate) const NONE: Panel<'a> = Panel {
        lines: &[],
        upcoming: &[],
        at: 0,
        inner: 0,
    };

    /// For the scalar reference.
    fn value(&self, codec: Codec, index: usize) -> f32 {
        let at = &self.lines[index * width_of(codec)..];
        match codec {
            Codec::F32 => f32::from_le_bytes([at[0], at[1], at[2], at[3]]),
            _ => f16::from_le_bytes([at[0], at[1]]).to_f32_const(),
        }
    }
}

/// Bytes of one number.
const fn width_of(codec: Codec) -> usize {
    codec.planes()[0] / 8
}

/// The codecs of lines, as what a tile is compiled for.
const WIDE: u8 = 0;
const HALF: u8 = 1;

const fn codec_of(kind: u8) -> Codec {
    match kind {
        WIDE => Codec::F32,
        _ => Codec::F16,
    }
}

/// What a chain starts from, and what is stored.
#[derive(Clone, Copy)]
pub(crate) enum Epilogue<'a> {
    /// From what is in `out`, and stored there.
    Resume,
    /// From 0; `out = chain + bias (row)`.
    Bias(&'a [f32]),
}

simd_fn! {
    /// The columns `columns` of `out (row, column)`, for panels of lines of `width` numbers: f32 or
    /// f16.
    pub(crate) fn product(
        codec: Codec,
        a: Rows<'_>,
        panels: &[Panel<'_>],
        width: usize,
        columns: Range<usize>,
        out: &mut [f32],
        out_stride: usize,
        end: Epilogue<'_>,
    ) = scalar_product, simd_product;
}

fn scalar_product(
    codec: Codec,
    a: Rows<'_>,
    panels: &[Panel<'_>],
    width: usize,
    columns: Range<usize>,
    out: &mut [f32],
    out_stride: usize,
    end: Epilogue<'_>,
) {
    for r in 0..a.count {
        let a = &a.values[r * a.stride..];
        for column in columns.clone() {
            let out = &mut out[r * out_stride + column];
            let mut sum = match end {
                Epilogue::Resume => *out,
                _ => 0.0f32,
            };
            for panel in panels {
                for i in 0..panel.inner {
                    sum = a[panel.at + i].mul_add(panel.value(codec, i * width + column), sum);
                }
            }
            *out = match end {
                Epilogue::Resume => sum,
                Epilogue::Bias(bias) => sum + bias[r],
            };
        }
    }
}

#[inline(always)]
fn simd_product<S: LevelDot>(
    s: S,
    codec: Codec,
    a: Rows<'_>,
    panels: &[Panel<'_>],
    width: usize,
    columns: Range<usize>,
    out: &mut [f32],
    out_stride: usize,
    end: Epilogue<'_>,
) {
    match codec {
        Codec::F32 => columns_of::<S, WIDE>(s, a, panels, width, columns, out, out_stride, end),
        Codec::F16 => columns_of::<S, HALF>(s, a, panels, width, columns, out, out_stride, end),
        codec => unreachable!("lines of {codec}"),
    }
}

/// Panels of one kind.
#[inline(always)]
fn columns_of<S: LevelDot, const KIND: u8>(
    s: S,
    a: Rows<'_>,
    panels: &[Panel<'_>],
    width: usize,
    columns: Range<usize>,
    out: &mut [f32],
    out_stride: usize,
    end: Epilogue<'_>,
) {
    if a.count == 0 || columns.is_empty() {
        return;
    }
    let codec = codec_of(KIND);
    // Every address of a tile is within these: checked once here, not in the loop.
    assert!(columns.end <= width && (a.count - 1) * out_stride + columns.end <= out.len());
    for panel in panels {
        assert!((a.count - 1) * a.stride + panel.at + panel.inner <= a.values.len());
        assert!(width_of(codec) * panel.inner * width <= panel.lines.len());
    }
    if let Epilogue::Bias(bias) = end {
        assert!(a.count <= bias.len());
    }

    let whole = columns.start + columns.len() / 16 * 16;
    let mut column = columns.start;
    while column < whole {
        let cols = if S::COLS == 2 && column + 32 <= whole {
            2
        } else {
            1
        };
        let mut row = 0;
        while row < a.count {
            let rows = (a.count - row).min(S::ROWS);
            let end = match end {
                Epilogue::Bias(bias) => Epilogue::Bias(&bias[row..]),
                Epilogue::Resume => end,
            };
            // SAFETY: rows `row..row + rows` are below `a.count`, columns `column..column + 16
            // * cols` below `columns.end`, and the sizes were asserted above.
            unsafe {
                let a = (a.values.as_ptr().add(row * a.stride), a.stride);
                let out = (out.as_mut_ptr().add(row * out_stride + column), out_stride);
                let first = row == 0;
                if let Epilogue::Resume = end {
                    tiles::<S, KIND, true>(
                        s, rows, cols, a, panels, width, column, first, out, end,
                    );
                } else {
                    tiles::<S, KIND, false>(
                        s, rows, cols, a, panels, width, column, first, out, end,
                    );
                }
            }
            row += rows;
        }
        column += 16 * cols;
    }
    // Columns that are not whole vectors: the same chain, one at a time.
    let rest = whole..columns.end;
    if !rest.is_empty() {
        scalar_product(codec, a, panels, width, rest, out, out_stride, end);
    }
}

/// The register tile of the right size.
///
/// # Safety
/// - As for [`tile`], with `rows` and `cols` for `R` and `C`; `rows <= S::ROWS`, `cols <= S::COLS`.
#[inline(always)]
unsafe fn tiles<S: LevelDot, const KIND: u8, const RESUME: bool>(
    s: S,
    rows: usize,
    cols: usize,
    a: (*const f32, usize),
    panels: &[Panel<'_>],
    width: usize,
    column: usize,
    first: bool,
    out: (*mut f32, usize),
    end: Epilogue<'_>,
) {
    macro_rules! pick {
        ($($r:literal)*) => {
            match (rows, cols) {
                $(
                    // SAFETY: the caller's promise.
                    ($r, 2) if S::COLS >= 2 && $r <= S::ROWS => unsafe {
                        tile::<S, $r, 2, KIND, RESUME>(s, a, panels, width, column, first, out, end)
                    },
                    // SAFETY: the caller's promise.
                    ($r, 1) if $r <= S::ROWS => unsafe {
                        tile::<S, $r, 1, KIND, RESUME>(s, a, panels, width, column, first, out, end)
                    },
                )*
                _ => unreachable!("no tile of {rows} rows and {cols} columns"),
            }
        };
    }
    pick!(1 2 3 4 5 6 7 8 9 10 11 12);
}

/// `R` rows by `C` vectors of [`product`], accumulated in registers over all panels. `a` and `out`
/// are a pointer and the distance of rows. The `first` tile of some columns prefetches.
///
/// # Safety
/// - `a` has `R` rows as long as the panels ask; panels have lines of `width` values, of which the
///   tile takes `16 * C` from `column` on; `out` has `R` rows of `16 * C` values that nothing else
///   refers to; the bias of `end` has these rows; `RESUME` is whether `end` is [`Epilogue::Resume`].
#[inline(always)]
unsafe fn tile<S: LevelDot, const R: usize, const C: usize, const KIND: u8, const RESUME: bool>(
    s: S,
    a: (*const f32, usize),
    panels: &[Panel<'_>],
    width: usize,
    column: usize,
    first: bool,
    out: (*mut f32, usize),
    end: Epilogue<'_>,
) {
    let size = width_of(codec_of(KIND));
    let mut acc = [[s.splat(0.0); C]; R];
    // Known when compiled, or the accumulators would take a way through memory.
    if RESUME {
        for r in 0..R {
            for c in 0..C {
                // SAFETY: row `r` of `out` has vector `c`.
                acc[r][c] = s.load(unsafe { &*out.0.add(r * out.1 + 16 * c).cast() });
            }
        }
    }
    for panel in panels {
        let b = panel.lines.as_ptr().wrapping_add(size * column);
        // With nothing upcoming, what is being read anyway.
        let upcoming = if first && !panel.upcoming.is_empty() {
            panel.upcoming.as_ptr().wrapping_add(size * column)
        } else {
            b
        };
        // SAFETY: the rows of `a` reach to the panel's end.
        let a = (unsafe { a.0.add(panel.at) }, a.1);
        for i in 0..panel.inner {
            s.prefetch(upcoming.wrapping_add(i * size * width));
            let mut line = [s.splat(0.0); C];
            for c in 0..C {
                // SAFETY: line `i` of the panel has vector `c`.
                line[c] = unsafe {
                    let at = b.add(size * (i * width + 16 * c));
                    match KIND {
                        WIDE => s.load(&at.cast::<[f32; 16]>().read_unaligned()),
                        _ => s.load_half(&*at.cast()),
                    }
                };
            }
            for r in 0..R {
                // SAFETY: row `r` of `a` has value `i`.
                let x = s.splat(unsafe { *a.0.add(r * a.1 + i) });
                for c in 0..C {
                    acc[r][c] = s.fma(x, line[c], acc[r][c]);
                }
            }
        }
    }
    // Short loops each: the compiler unrolls them, and the accumulators stay in registers.
    match end {
        Epilogue::Resume => {
            for r in 0..R {
                for c in 0..C {
                    // SAFETY: row `r` of `out` has vector `c`, and nothing else refers to it.
                    s.store(acc[r][c], unsafe { vector(out, r, c) });
                }
            }
        }
        Epilogue::Bias(bias) => {
            for r in 0..R {
                // SAFETY: the bias has the tile's rows.
                let bias = s.splat(unsafe { *bias.get_unchecked(r) });
                for c in 0..C {
                    // SAFETY: row `r` of `out` has vector `c`, and nothing else refers to it.
                    s.store(s.add(acc[r][c], bias), unsafe { vector(out, r, c) });
                }
            }
        }
    }
}

/// Vector `c` of row `r`.
///
/// # Safety
/// - `out` has it, and nothing else refers to it while the result lives.
#[inline(always)]
unsafe fn vector<'a>(out: (*mut f32, usize), r: usize, c: usize) -> &'a mut [f32; 16] {
    // SAFETY: the caller's promise.
    unsafe { &mut *out.0.add(r * out.1 + 16 * c).cast() }
}
