//! Weights packed for the matrix product: strips of 16 rows, four neighbouring values of each row
//! side by side.
//!
//! A strip is read front to back while the sum of each of its rows runs along `k`, one row per
//! lane. Nothing is rounded: codes, f16 scales and small scales are those of the file, only their
//! places change, so a packed weight unpacks to the same f32. Rows that a matrix lacks in its last
//! strip are zero bytes.
//!
//! **Float types** (F32, F16, BF16) keep their width; 16 values (one per row) for every `k`:
//!
//! ```text
//! k = 0: row 0, row 1, … row 15 | k = 1: row 0 … row 15 | …           padded to 64 bytes
//! ```
//!
//! **Quantised types** are a run of *records*. A record holds the codes of 1, 2 or 8 groups of 32
//! values, then their scales, and is a multiple of 64 bytes, so that in a 64-byte-aligned strip
//! no vector crosses a cache line:
//!
//! ```text
//! record = codes of group 0 | codes of group 1 | … | scales of the record | padding to 64
//! ```
//!
//! Codes come in vectors of 64 bytes. Byte `4 r + b` belongs to row `r` and to value `4 q + b` of
//! the group: a *quad* `q` (0..8) is four values of 16 rows. This is the operand of an
//! instruction that multiplies 4 bytes by 4 bytes and adds them to a 32-bit lane, and the layout
//! of a B tile of AMX.
//!
//! ```text
//!            row 0       row 1             row 15
//! vector   b0 b1 b2 b3 b0 b1 b2 b3  …   b0 b1 b2 b3        64 bytes
//!
//! 4 bits   vectors 0..4: low nibble quad i, high nibble quad i + 4          (Q4, IQ4, Q5, Q6_K)
//! 8 bits   vectors 0..8: quad i                                             (Q8_0)
//! 2 bits   vectors 0..2: bits 2j, 2j+1 are quad j of vector 0, 4+j of 1     (Q2_K, Q3_K; the
//!          high pairs of Q6_K, after its nibbles)
//! 1 bit    one vector: bit i is quad i, the codes' top bit, last            (Q5, Q3_K)
//! ```
//!
//! Scales, 16 rows each:
//!
//! ```text
//! Q4_0 Q5_0 Q8_0 IQ4_NL   16 × f16 d for each of 2 groups
//! Q4_1 Q5_1               16 × f16 d, 16 × f16 m                             (1 group)
//! Q4_K Q5_K               16 × f16 d, 16 × f16 dmin, per group 16 × u8 scale, 16 × u8 min
//! Q6_K Q3_K               16 × f16 d, per group 16 × i8 (first 16 values), 16 × i8 (second)
//! IQ4_XS                  16 × f16 d, per group 16 × i8
//! Q2_K                    16 × f16 d, 16 × f16 dmin, per group 2 × 16 × u8 (low nibble scale,
//!                         high nibble min)
//! ```

use super::WeightType::{self, *};
use super::gguf::{self, GROUP, Quad, Scales};

/// Rows of a strip, one per lane of a reduction.
pub const STRIP: usize = 16;

/// Bytes of a vector of codes: four values of each row of a strip.
pub(crate) const VECTOR: usize = 4 * STRIP;

/// Everything in a strip starts at a multiple of it.
pub const ALIGN: usize = 64;

/// The record of a quantised type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// How wide a code is, and so which planes codes are spread over: a vector for each bit.
    pub bits: usize,
    /// Groups in a record.
    pub groups: usize,
    /// Bytes of codes of one group.
    pub code_bytes: usize,
    /// Where the scales start in a record.
    pub scales_at: usize,
    pub record_bytes: usize,
}

impl Shape {
    pub(crate) const fn of(ty: WeightType) -> Shape {
        let bits = match ty {
            Q4_0 | Q4_1 | Q4_K | IQ4_NL | IQ4_XS => 4,
            Q5_0 | Q5_1 | Q5_K => 5,
            Q6_K => 6,
            Q8_0 => 8,
            Q2_K => 2,
            Q3_K => 3,
            // Without records.
            F32 | F16 | BF16 => 0,
        };
        // (groups, f16 scales per record, bytes of small scales per group), per row
        let (groups, halves, small) = match ty {
            Q4_1 | Q5_1 => (1, 2, 0),
            Q4_K | Q5_K | Q2_K => (8, 2, 2),
            Q6_K | Q3_K => (8, 1, 2),
            IQ4_XS => (8, 1, 1),
            _ => (2, 2, 0),
        };
        let scales_at = groups * bits * VECTOR;
        let scale_bytes = STRIP * (2 * halves + groups * small);
        Shape {
            bits,
            groups,
            code_bytes: bits * VECTOR,
            scales_at,
            record_bytes: (scales_at + scale_bytes).next_multiple_of(ALIGN),
        }
    }

    /// Where the f16 scales of group `g` of a record start, and the step from scale to minimum.
    pub(crate) const fn halves_at(&self, g: usize) -> usize {
        // Two groups without minima: the second one's scales lie where a minimum would.
        self.scales_at + if self.groups == 2 { 2 * STRIP * g } else { 0 }
    }

    /// Where the small scales of group `g` of a record start.
    pub(crate) const fn small_at(&self, ty: WeightType, g: usize) -> usize {
        let halves = if ty.has_min() { 2 } else { 1 };
        let per_group = if matches!(ty, IQ4_XS) { 1 } else { 2 };
        self.scales_at + STRIP * (2 * halves + per_group * g)
    }
}

/// Bytes of a packed strip of `cols` columns (a multiple of the type's block, as in the file).
/// Saturates instead of overflowing: a caller compares it with bytes that exist.
pub const fn strip_bytes(ty: WeightType, cols: usize) -> usize {
    if ty.is_float() {
        let bytes = cols.saturating_mul(STRIP * ty.block_bytes());
        return match bytes.checked_next_multiple_of(ALIGN) {
            Some(bytes) => bytes,
            None => usize::MAX,
        };
    }
    let shape = Shape::of(ty);
    (cols / GROUP)
        .div_ceil(shape.groups)
        .saturating_mul(shape.record_bytes)
}

/// Strips of a matrix of `rows` rows.
pub const fn strips(rows: usize) -> usize {
    rows.div_ceil(STRIP)
}

/// Bytes of a whole packed matrix, saturating like [`strip_bytes`].
pub const fn packed_bytes(ty: WeightType, rows: usize, cols: usize) -> usize {
    strips(rows).saturating_mul(strip_bytes(ty, cols))
}

/// Packs `n_rows` (1..=16) neighbouring rows of a GGUF tensor into a strip.
///
/// `rows` is exactly those rows' bytes and `out` exactly [`strip_bytes`].
pub fn pack_strip(ty: WeightType, cols: usize, rows: &[u8], n_rows: usize, out: &mut [u8]) {
    assert!((1..=STRIP).contains(&n_rows), "a strip of {n_rows} rows");
    let row_bytes = rows.len() / n_rows;
    assert_eq!(Some(row_bytes), ty.row_bytes(cols), "{ty} rows of {cols}");
    assert_eq!(rows.len(), n_rows * row_bytes);
    assert_eq!(out.len(), strip_bytes(ty, cols));
    out.fill(0);
    if row_bytes == 0 {
        return;
    }
    // The type is a constant in each arm, so that its loop is compiled for it alone.
    macro_rules! one_loop_each {
        ($($ty:ident)*) => {
            match ty {
                $( $ty => pack_rows($ty, row_bytes, rows, out), )*
            }
        };
    }
    one_loop_each!(F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS);
}

#[inline(always)]
fn pack_rows(ty: WeightType, row_bytes: usize, rows: &[u8], out: &mut [u8]) {
    for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
        if ty.is_float() {
            pack_float_row(ty.block_bytes(), row, r, out);
        } else {
            pack_row(ty, row, r, out);
        }
    }
}

#[inline(always)]
fn pack_float_row(width: usize, row: &[u8], r: usize, out: &mut [u8]) {
    let places = out.chunks_exact_mut(width * STRIP);
    for (value, place) in row.chunks_exact(width).zip(places) {
        place[r * width..][..width].copy_from_slice(value);
    }
}

#[inline(always)]
fn pack_row(ty: WeightType, row: &[u8], r: usize, out: &mut [u8]) {
    let shape = Shape::of(ty);
    let groups_per_block = ty.block_len() / GROUP;
    for (b, block) in row.chunks_exact(ty.block_bytes()).enumerate() {
        for g in 0..groups_per_block {
            let group = b * groups_per_block + g;
            let record =
                &mut out[group / shape.groups * shape.record_bytes..][..shape.record_bytes];
            let quads = gguf::codes(ty, block, g);
            let place = &mut record[group % shape.groups * shape.code_bytes..][..shape.code_bytes];
            pack_codes(shape.bits, &quads, r, place);
            let scales = gguf::scales(ty, block, g);
            pack_scales(ty, &scales, group % shape.groups, r, record);
        }
    }
}

/// Spreads a row's 32 codes over the planes of a group.
#[inline(always)]
fn pack_codes(bits: usize, quads: &[Quad; GROUP / 4], r: usize, out: &mut [u8]) {
    let (vectors, _) = out.as_chunks_mut::<VECTOR>();
    let mut put = |vector: usize, quad: Quad| {
        vectors[vector][4 * r..4 * r + 4].copy_from_slice(&quad.to_le_bytes());
    };
    // Bit `from` of each code, a bit for each quad.
    let bit = |from: usize| {
        let bits = quads.iter().enumerate();
        bits.fold(0, |v, (q, quad)| v | (quad >> from & 0x0101_0101) << q)
    };
    // Bits `from` and `from + 1` of each code, a pair for each quad of the first or second four.
    let pairs = |from: u32, four: usize| {
        let pairs = quads[4 * four..4 * four + 4].iter().enumerate();
        pairs.fold(0, |v, (j, quad)| {
            v | (quad >> from & 0x0303_0303) << (2 * j)
        })
    };
    match bits {
        8 => {
            for (vector, quad) in quads.iter().enumerate() {
                put(vector, *quad);
            }
        }
        2 | 3 => {
            put(0, pairs(0, 0));
            put(1, pairs(0, 1));
        }
        _ => {
            for i in 0..4 {
                let low = quads[i] & 0x0F0F_0F0F;
                put(i, low | (quads[i + 4] & 0x0F0F_0F0F) << 4);
            }
        }
    }
    match bits {
        3 | 5 => put(bits - 1, bit(bits - 1)),
        6 => {
            put(4, pairs(4, 0));
            put(5, pairs(4, 1));
        }
        _ => {}
    }
}

#[inline(always)]
fn pack_scales(ty: WeightType, scales: &Scales, g: usize, r: usize, record: &mut [u8]) {
    let shape = Shape::of(ty);
    let at = shape.halves_at(g) + 2 * r;
    record[at..at + 2].copy_from_slice(&scales.d.to_le_bytes());
    if ty.has_min() {
        let at = at + 2 * STRIP;
        record[at..at + 2].copy_from_slice(&scales.m.to_le_bytes());
    }
    let at = shape.small_at(ty, g) + r;
    match ty {
        Q4_K | Q5_K => {
            record[at] = scales.sub[0] as u8;
            record[at + STRIP] = scales.sub_min[0];
        }
        Q6_K | Q3_K => {
            record[at] = scales.sub[0] as u8;
            record[at + STRIP] = scales.sub[1] as u8;
        }
        IQ4_XS => record[at] = scales.sub[0] as u8,
        Q2_K => {
            for half in 0..2 {
                record[at + STRIP * half] = scales.sub[half] as u8 | scales.sub_min[half] << 4;
            }
        }
        _ => {}
    }
}

/// Takes a strip apart again: the inverse of [`pack_strip`], bit for bit.
///
/// `strip` is exactly [`strip_bytes`] and `rows` exactly the bytes of `n_rows` (1..=16) rows in the file.
pub fn unpack_strip(ty: WeightType, cols: usize, strip: &[u8], n_rows: usize, rows: &mut [u8]) {
    assert!((1..=STRIP).contains(&n_rows), "a strip of {n_rows} rows");
    let row_bytes = rows.len() / n_rows;
    assert_eq!(Some(row_bytes), ty.row_bytes(cols), "{ty} rows of {cols}");
    assert_eq!(rows.len(), n_rows * row_bytes);
    assert_eq!(strip.len(), strip_bytes(ty, cols));
    if row_bytes == 0 {
        return;
    }
    for (r, row) in rows.chunks_exact_mut(row_bytes).enumerate() {
        for (b, block) in row.chunks_exact_mut(ty.block_bytes()).enumerate() {
            read_block(ty, strip, b, r, block);
        }
    }
}

/// Row `r` of a strip as f32: bit for bit what [`gguf::unpack_row`] makes of the same row in the file.
pub fn unpack_packed_row(ty: WeightType, strip: &[u8], r: usize, out: &mut [f32]) {
    assert!(r < STRIP && out.len().is_multiple_of(ty.block_len()));
    assert_eq!(strip.len(), strip_bytes(ty, out.len()));
    let mut block = [0; BLOCK_BYTES_MAX];
    let block = &mut block[..ty.block_bytes()];
    for (b, out) in out.chunks_exact_mut(ty.block_len()).enumerate() {
        read_block(ty, strip, b, r, block);
        gguf::unpack_row(ty, block, out);
    }
}

/// Of all types; Q6_K has the largest blocks.
const BLOCK_BYTES_MAX: usize = 210;

/// Block `b` of row `r`, as it lies in the file.
fn read_block(ty: WeightType, strip: &[u8], b: usize, r: usize, block: &mut [u8]) {
    if ty.is_float() {
        let width = ty.block_bytes();
        block.copy_from_slice(&strip[(b * STRIP + r) * width..][..width]);
        return;
    }
    block.fill(0);
    let groups = ty.block_len() / GROUP;
    for g in 0..groups {
        let (codes, scales) = read_group(ty, strip, b * groups + g, r);
        gguf::put_codes(ty, &codes, g, block);
        gguf::put_scales(ty, &scales, g, block);
    }
}

/// Reads a packed group of one row back: what the scalar product is made of.
///
/// `strip` is a whole strip of a quantised type, `group` counts from the start of the row.
pub(crate) fn read_group(
    ty: WeightType,
    strip: &[u8],
    group: usize,
    r: usize,
) -> ([u8; GROUP], Scales) {
    let shape = Shape::of(ty);
    let record = &strip[group / shape.groups * shape.record_bytes..][..shape.record_bytes];
    let g = group % shape.groups;
    let vectors = &record[g * shape.code_bytes..][..shape.code_bytes];
    let mut codes = [0; GROUP];
    for (k, code) in codes.iter_mut().enumerate() {
        let q = k / 4;
        let byte = |vector: usize| vectors[vector * VECTOR + 4 * r + k % 4];
        let nibble = || byte(q % 4) >> (4 * (q / 4)) & 15;
        let pair = |first: usize| byte(first + q / 4) >> (2 * (q % 4)) & 3;
        let bit = |vector: usize| byte(vector) >> q & 1;
        *code = match shape.bits {
            2 => pair(0),
            3 => pair(0) | bit(2) << 2,
            4 => nibble(),
            5 => nibble() | bit(4) << 4,
            6 => nibble() | pair(4) << 4,
            _ => byte(q),
        };
    }
    (codes, read_scales(ty, record, g, r))
}

fn read_scales(ty: WeightType, record: &[u8], g: usize, r: usize) -> Scales {
    let shape = Shape::of(ty);
    let half = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
    let at = shape.halves_at(g) + 2 * r;
    let mut scales = Scales {
        d: half(at),
        m: if ty.has_min() {
            half(at + 2 * STRIP)
        } else {
            0
        },
        ..Scales::default()
    };
    let at = shape.small_at(ty, g) + r;
    match ty {
        Q4_K | Q5_K => {
            scales.sub = [record[at] as i8; 2];
            scales.sub_min = [record[at + STRIP]; 2];
        }
        Q6_K | Q3_K => scales.sub = [record[at] as i8, record[at + STRIP] as i8],
        IQ4_XS => scales.sub = [record[at] as i8; 2],
        Q2_K => {
            let both = [record[at], record[at + STRIP]];
            scales.sub = both.map(|b| (b & 15) as i8);
            scales.sub_min = both.map(|b| b >> 4);
        }
        _ => {}
    }
    scales
}
