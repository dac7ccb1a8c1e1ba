//! Activations rounded to int8, 32 values to a scale.
//!
//! One group of 32 values and all a product may want to know about it fill one cache line:
//!
//! ```text
//! 0          32      36        40            48       52              60
//! | 32 codes | scale | -sum 32 | -sum 16 × 2 | offset | offset 16 × 2 | 0 |
//! ```
//!
//! `value ≈ scale * code`, codes in -127..=127; the sums are of codes, exact, negated so that a
//! weight's zero point (a power of two) is subtracted by a shift; an offset is `scale * sum`, what
//! a weight's minimum is multiplied with. A row is a run of lines, row after row: also what an AMX
//! A tile is loaded from, with the row as stride.
//!
//! Rounding: scale = absmax / 127, code = x * (127 / absmax) to the nearest even. A group with a
//! NaN or an infinity gets a NaN or infinite scale, so a broken model shows in the output and does
//! not pass for a small number.

use crate::cpu::{Kind, Table};
use crate::format::gguf::GROUP;

/// One group of a row; see the module's drawing.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    pub codes: [i8; GROUP],
    pub scale: f32,
    pub neg_sum: i32,
    pub neg_sums: [i32; 2],
    pub offset: f32,
    pub offsets: [f32; 2],
    padding: u32,
}

/// Rows of int8 activations in memory that is kept from call to call.
#[derive(Clone, Debug, Default)]
pub struct Int8Rows {
    lines: Vec<Line>, // (rows, cols / 32)
    rows: usize,
    cols: usize,
}

impl Int8Rows {
    /// Room for `rows` rows of `cols` values, so that [`Int8Rows::quantise`] does not allocate.
    pub fn with_capacity(rows: usize, cols: usize) -> Int8Rows {
        Int8Rows {
            lines: vec![Line::default(); rows * cols.div_ceil(GROUP)],
            rows: 0,
            cols: 0,
        }
    }

    /// Bytes held, for the ledger.
    pub fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Rounds `x` (rows, cols) to int8. `cols` is a multiple of 32. Allocates only beyond the
    /// capacity.
    pub fn quantise(&mut self, table: Table, x: &[f32], rows: usize, cols: usize) {
        assert_eq!(x.len(), rows * cols);
        assert!(cols.is_multiple_of(GROUP), "{cols} columns");
        let count = x.len() / GROUP;
        if self.lines.len() < count {
            self.lines.resize(count, Line::default());
        }
        (self.rows, self.cols) = (rows, cols);
        let groups = x.as_chunks::<GROUP>().0;
        let lines = &mut self.lines[..count];
        match table.kind() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the table exists, so the CPU has the features.
            Kind::Avx512 => unsafe { lines_avx512(groups, lines) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kind::Avx2 => unsafe { lines_avx2(groups, lines) },
            _ => lines_plain(groups, lines),
        }
    }

    /// All lines, (rows, cols / 32).
    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines[..self.rows * self.cols / GROUP]
    }
}

// One source for every table: elementwise IEEE operations, an order-free maximum and integer sums
// give the same bits however wide the compiler makes them.

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn lines_avx512(groups: &[[f32; GROUP]], lines: &mut [Line]) {
    lines_plain(groups, lines);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn lines_avx2(groups: &[[f32; GROUP]], lines: &mut [Line]) {
    lines_plain(groups, lines);
}

#[inline(always)]
fn lines_plain(groups: &[[f32; GROUP]], lines: &mut [Line]) {
    for (group, line) in groups.iter().zip(lines) {
        quantise_group(group, line);
    }
}

#[inline(always)]
fn quantise_group(x: &[f32; GROUP], line: &mut Line) {
    // The largest magnitude by its bits: NaN is above infinity, so neither is lost.
    let mut max_bits = 0;
    for k in 0..GROUP {
        max_bits = max_bits.max(x[k].to_bits() & 0x7FFF_FFFF);
    }
    let absmax = f32::from_bits(max_bits);
    let scale = absmax / 127.0;
    let inverse = if absmax > 0.0 { 127.0 / absmax } else { 0.0 };
    let mut sums = [0; 2];
    for k in 0..GROUP {
        // |x * inverse| is at most 127 and a little, which rounds to 127; a subnormal group whose
        // inverse overflows saturates in the clamp.
        let code = (x[k] * inverse).round_ties_even().clamp(-127.0, 127.0) as i32;
        line.codes[k] = code as i8;
        sums[k / 16] += i32::from(code as i8);
    }
    let sum = sums[0] + sums[1];
    line.scale = scale;
    line.neg_sum = -sum;
    line.neg_sums = sums.map(|s| -s);
    line.offset = scale * sum as f32;
    line.offsets = sums.map(|s| scale * s as f32);
}
