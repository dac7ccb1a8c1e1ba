//! Rows of f32 times lines of floats, in register tiles.
//!
//! ```text
//! out (row, column) <- sum over panels and i  a (row, at + i) * panel (i, column)
//! ```
//!
//! Each output lane is a chain of fused multiply-adds along the inner index, in order. [`Epilogue`] says
//! what it starts from and where it ends. So a row's bits depend neither on other rows nor on how many
//! were computed at once.

use super::finish::with_rows;
use super::level_dot::LevelDot;
use super::piece::{Panel, Rows};
use crate::format::half::from_f16;
use crate::format::kv::Codec;
use crate::simd::simd_fn;
use std::ops::Range;

/// One number of a panel, for the scalar reference.
fn value(panel: &Panel<'_>, codec: Codec, index: usize) -> f32 {
    let at = &panel.lines[index * width_of(codec)..];
    match codec {
        Codec::F32 => f32::from_le_bytes([at[0], at[1], at[2], at[3]]),
        _ => from_f16([at[0], at[1]]),
    }
}

/// Bytes of one number.
const fn width_of(codec: Codec) -> usize {
    codec.planes()[0] / 8
}

/// What a chain starts from, and what is stored.
#[derive(Clone, Copy)]
pub(crate) enum Epilogue<'a> {
    /// From what is in `out`, and stored there.
    Resume,
    /// From 0; `out = chain + bias (row)`.
    Bias(&'a [f32]),
}

/// Rows times panels.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub a: Rows<'a>,
    pub panels: &'a [Panel<'a>],
    /// Of the lines: f32 or f16.
    pub codec: Codec,
    /// Numbers of a line.
    pub width: usize,
    pub end: Epilogue<'a>,
}

simd_fn! {
    /// The columns `columns` of `out (row, column)`.
    pub(crate) fn product(p: Product<'_>, columns: Range<usize>, out: &mut [f32], stride: usize)
        = scalar_product, simd_product;
}

fn scalar_product(p: Product<'_>, columns: Range<usize>, out: &mut [f32], stride: usize) {
    for r in 0..p.a.count {
        let a = &p.a.values[r * p.a.stride..];
        for column in columns.clone() {
            let out = &mut out[r * stride + column];
            let mut sum = match p.end {
                Epilogue::Resume => *out,
                _ => 0.0f32,
            };
            for panel in p.panels {
                for i in 0..panel.inner {
                    let value = value(panel, p.codec, i * p.width + column);
                    sum = a[panel.at + i].mul_add(value, sum);
                }
            }
            *out = match p.end {
                Epilogue::Resume => sum,
                Epilogue::Bias(bias) => sum + bias[r],
            };
        }
    }
}

#[inline(always)]
fn simd_product<S: LevelDot>(
    s: S,
    p: Product<'_>,
    columns: Range<usize>,
    out: &mut [f32],
    stride: usize,
) {
    match (p.codec, p.end) {
        (Codec::F32, Epilogue::Resume) => tiles::<S, false, true>(s, p, columns, out, stride),
        (Codec::F32, _) => tiles::<S, false, false>(s, p, columns, out, stride),
        (Codec::F16, Epilogue::Resume) => tiles::<S, true, true>(s, p, columns, out, stride),
        (Codec::F16, _) => tiles::<S, true, false>(s, p, columns, out, stride),
        (codec, _) => unreachable!("lines of {codec}"),
    }
}

/// Panels of one codec: f16 if `HALF`. `RESUME` is whether the end is [`Epilogue::Resume`].
#[inline(always)]
fn tiles<S: LevelDot, const HALF: bool, const RESUME: bool>(
    s: S,
    p: Product<'_>,
    columns: Range<usize>,
    out: &mut [f32],
    stride: usize,
) {
    let Product {
        a, panels, width, ..
    } = p;
    if a.count == 0 || columns.is_empty() {
        return;
    }
    // Every address of a tile is within these: checked once here, not in the loop.
    assert!(columns.end <= width && (a.count - 1) * stride + columns.end <= out.len());
    for panel in panels {
        assert!((a.count - 1) * a.stride + panel.at + panel.inner <= a.values.len());
        assert!(width_of(p.codec) * panel.inner * width <= panel.lines.len());
    }
    if let Epilogue::Bias(bias) = p.end {
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
            // SAFETY: rows `row..row + rows` are below `a.count`, columns `column..column + 16
            // * cols` below `columns.end`, and the sizes were asserted above.
            unsafe {
                let out = (out.as_mut_ptr().add(row * stride + column), stride);
                with_rows!(rows, S::ROWS, R => {
                    if S::COLS == 2 && cols == 2 {
                        tile::<S, R, 2, HALF, RESUME>(s, p, row, column, out);
                    } else {
                        tile::<S, R, 1, HALF, RESUME>(s, p, row, column, out);
                    }
                });
            }
            row += rows;
        }
        column += 16 * cols;
    }
    // Columns that are not whole vectors: the same chain, one at a time.
    let rest = whole..columns.end;
    if !rest.is_empty() {
        scalar_product(p, rest, out, stride);
    }
}

/// `R` rows from `row` on by `C` vectors of [`product`], accumulated in registers over all panels.
/// `out` is a pointer and the distance of rows. The first rows of some columns prefetch.
///
/// # Safety
/// - `a` has these rows, as long as the panels ask; panels have lines of `width` values, of which the
///   tile takes `16 * C` from `column` on; `out` has `R` rows of `16 * C` values that nothing else
///   refers to; the bias of `end` has these rows; `HALF` and `RESUME` are as the product says.
#[inline(always)]
unsafe fn tile<
    S: LevelDot,
    const R: usize,
    const C: usize,
    const HALF: bool,
    const RESUME: bool,
>(
    s: S,
    p: Product<'_>,
    row: usize,
    column: usize,
    out: (*mut f32, usize),
) {
    let (size, width) = (if HALF { 2 } else { 4 }, p.width);
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
    for panel in p.panels {
        let b = panel.lines.as_ptr().wrapping_add(size * column);
        // With nothing upcoming, what is being read anyway.
        let upcoming = if row == 0 && !panel.upcoming.is_empty() {
            panel.upcoming.as_ptr().wrapping_add(size * column)
        } else {
            b
        };
        let stride = p.a.stride;
        // SAFETY: the rows of `a` reach to the panel's end.
        let a = unsafe { p.a.values.as_ptr().add(row * stride + panel.at) };
        for i in 0..panel.inner {
            s.prefetch(upcoming.wrapping_add(i * size * width));
            let mut line = [s.splat(0.0); C];
            for c in 0..C {
                // SAFETY: line `i` of the panel has vector `c`.
                line[c] = unsafe {
                    let at = b.add(size * (i * width + 16 * c));
                    if HALF {
                        s.load_half(&*at.cast())
                    } else {
                        s.load(&at.cast::<[f32; 16]>().read_unaligned())
                    }
                };
            }
            for r in 0..R {
                // SAFETY: row `r` of `a` has value `i`.
                let x = s.splat(unsafe { *a.add(r * stride + i) });
                for c in 0..C {
                    acc[r][c] = s.fma(x, line[c], acc[r][c]);
                }
            }
        }
    }
    // Short loops each: the compiler unrolls them, and the accumulators stay in registers.
    match p.end {
        Epilogue::Bias(bias) if !RESUME => {
            for r in 0..R {
                // SAFETY: the bias has the tile's rows.
                let bias = s.splat(unsafe { *bias.get_unchecked(row + r) });
                for c in 0..C {
                    // SAFETY: row `r` of `out` has vector `c`, and nothing else refers to it.
                    s.store(s.add(acc[r][c], bias), unsafe { vector(out, r, c) });
                }
            }
        }
        _ => {
            for r in 0..R {
                for c in 0..C {
                    // SAFETY: as above.
                    s.store(acc[r][c], unsafe { vector(out, r, c) });
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
