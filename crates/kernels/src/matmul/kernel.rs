//! The products of a strip, written once for every instruction set.
//!
//! One output is one lane, and its sum is defined here and in [`super::scalar`] and nowhere else.
//!
//! **int8** (quantised weights, int8 activations). For each group of 32, or each 16 where the type
//! has scales on 16, in the order of `k`:
//!
//! ```text
//! dot = Σ integer(code) * activation                    exact, i32
//! acc = fma(f32(dot) * activation scale, weight scale, acc)
//! acc = fma(weight minimum, activation offset, acc)     types with minima
//! ```
//!
//! **f32** (any weights, f32 activations). `w = scale * integer(code) (+ minimum)`, each operation
//! rounded: the value that unpacking the file gives. Four sums by `k mod 4`:
//!
//! ```text
//! acc[k mod 4] = fma(w, x, acc[k mod 4])
//! out = (acc[0] + acc[1]) + (acc[2] + acc[3])
//! ```
//!
//! How many activation rows share an unpacked group (`R`) changes nothing in either.

use super::Task;
use super::int8::Line;
use super::isa::{Float, Isa, Quant};
use crate::format::WeightType::{self, *};
use crate::format::gguf::{GROUP, IQ4_VALUES, Integer};
use crate::format::packed::{Bits, STRIP, VECTOR, strip_bytes};

/// How far ahead of its use a strip is asked for when one row runs through it: the hardware's own
/// prefetching stops at each 4 KiB page.
const AHEAD: usize = 4096;

/// Quads of a group.
const QUADS: usize = GROUP / 4;

/// [`IQ4_VALUES`] shifted up by 128.
const IQ4_BIASED: [i8; 16] = {
    let mut table = IQ4_VALUES;
    let mut i = 0;
    while i < 16 {
        table[i] = (IQ4_VALUES[i] as u8 ^ 0x80) as i8;
        i += 1;
    }
    table
};

/// All strips of a task, quantised weights.
#[inline(always)]
pub(super) fn quant_strips<S: Isa, T: Quant>(s: S, task: &Task<'_>) {
    for (i, strip) in task.strips(strip_bytes(T::TY, task.cols)).enumerate() {
        let mut row = 0;
        if let Some(lines) = task.lines {
            while row + 8 <= task.x_rows && S::INT8_ROWS_MAX >= 8 {
                int8_block::<S, T, 8>(s, task, lines, strip, i, row);
                row += 8;
            }
            while row + 4 <= task.x_rows && S::INT8_ROWS_MAX >= 4 {
                int8_block::<S, T, 4>(s, task, lines, strip, i, row);
                row += 4;
            }
            while row + 2 <= task.x_rows {
                int8_block::<S, T, 2>(s, task, lines, strip, i, row);
                row += 2;
            }
            while row < task.x_rows {
                int8_block::<S, T, 1>(s, task, lines, strip, i, row);
                row += 1;
            }
        } else {
            while row + 4 <= task.x_rows && S::F32_ROWS_MAX >= 4 {
                f32_block::<S, T, 4>(s, task, strip, i, row);
                row += 4;
            }
            while row < task.x_rows {
                f32_block::<S, T, 1>(s, task, strip, i, row);
                row += 1;
            }
        }
    }
}

/// All strips of a task, float weights.
#[inline(always)]
pub(super) fn float_strips<S: Isa, T: Float>(s: S, task: &Task<'_>) {
    for (i, strip) in task.strips(strip_bytes(T::TY, task.cols)).enumerate() {
        let mut row = 0;
        while row + 4 <= task.x_rows && S::F32_ROWS_MAX >= 4 {
            float_block::<S, T, 4>(s, task, strip, i, row);
            row += 4;
        }
        while row < task.x_rows {
            float_block::<S, T, 1>(s, task, strip, i, row);
            row += 1;
        }
    }
}

/// `R` activation rows from `row` on through one strip, int8.
#[inline(always)]
fn int8_block<S: Isa, T: Quant, const R: usize>(
    s: S,
    task: &Task<'_>,
    lines: &[Line],
    strip: &[u8],
    strip_index: usize,
    row: usize,
) {
    let groups = task.cols / GROUP;
    assert!(strip.len() == strip_bytes(T::TY, task.cols));
    let lines = lines[row * groups..(row + R) * groups].as_ptr();
    let (halves, log2_zero) = (halves(T::TY), log2_zero::<S>(T::TY));
    let mut out = [[0.0; STRIP]; R];
    let mut lane = 0;
    while lane < STRIP {
        let mut acc = [s.splat(0.0); R];
        for group in 0..groups {
            // SAFETY: the strip has the length of its shape, which covers every group, and
            // `lane` is a multiple of LANES below 16.
            let (codes, scales, mins) = unsafe {
                let record = strip
                    .as_ptr()
                    .add(group / T::SHAPE.groups * T::SHAPE.record_bytes);
                let g = group % T::SHAPE.groups;
                if R == 1 && lane == 0 {
                    prefetch_group::<S, T>(s, record, g);
                }
                (
                    load_codes::<S, T>(s, record, g, lane),
                    load_scales::<S, T>(s, record, g, lane),
                    load_mins::<S, T>(s, record, g, lane),
                )
            };
            let mut r = 0;
            while r < R {
                // SAFETY: the slice above has R * groups lines.
                let line = unsafe { &*lines.add(r * groups + group) };
                let scale = s.splat(line.scale);
                let mut half = 0;
                while half < halves {
                    let per_half = QUADS / halves;
                    let neg_sum = if halves == 1 {
                        line.neg_sum
                    } else {
                        line.neg_sums[half]
                    };
                    let mut dot = match log2_zero {
                        Some(n) => s.splat_i(neg_sum << n),
                        None => s.splat_i(0),
                    };
                    let mut second = s.splat_i(0);
                    let mut q = 0;
                    while q < per_half {
                        let quad = half * per_half + q;
                        let code = codes[quad];
                        let x = quad_of(line, quad);
                        let signed = !S::BIASED && is_signed(T::TY);
                        if q < 4 {
                            dot = s.dot(dot, code, x, signed);
                        } else {
                            second = s.dot(second, code, x, signed);
                        }
                        q += 1;
                    }
                    if per_half > 4 {
                        dot = s.add_i(dot, second);
                    }
                    acc[r] = s.fma(s.mul(s.to_f32(dot), scale), scales[half], acc[r]);
                    if T::TY.has_min() {
                        let offset = if halves == 1 {
                            line.offset
                        } else {
                            line.offsets[half]
                        };
                        acc[r] = s.fma(mins[half], s.splat(offset), acc[r]);
                    }
                    half += 1;
                }
                r += 1;
            }
        }
        let mut r = 0;
        while r < R {
            // SAFETY: lane + LANES is at most 16, the length of out[r].
            unsafe { s.store(acc[r], out[r].as_mut_ptr().add(lane)) };
            r += 1;
        }
        lane += S::LANES;
    }
    task.write(strip_index, row, &out);
}

/// `R` activation rows from `row` on through one strip of quantised weights, f32.
#[inline(always)]
fn f32_block<S: Isa, T: Quant, const R: usize>(
    s: S,
    task: &Task<'_>,
    strip: &[u8],
    strip_index: usize,
    row: usize,
) {
    let cols = task.cols;
    assert!(strip.len() == strip_bytes(T::TY, cols));
    let x = task.x[row * cols..(row + R) * cols].as_ptr();
    let halves = halves(T::TY);
    let signed = !S::BIASED && is_signed(T::TY);
    let zero = match log2_zero::<S>(T::TY) {
        Some(n) => s.splat(-((1 << n) as f32)),
        None => s.splat(0.0),
    };
    let mut out = [[0.0; STRIP]; R];
    let mut lane = 0;
    while lane < STRIP {
        let mut acc = [[s.splat(0.0); 4]; R];
        for group in 0..cols / GROUP {
            // SAFETY: as in `int8_block`.
            let (codes, scales, mins) = unsafe {
                let record = strip
                    .as_ptr()
                    .add(group / T::SHAPE.groups * T::SHAPE.record_bytes);
                let g = group % T::SHAPE.groups;
                (
                    load_codes::<S, T>(s, record, g, lane),
                    load_scales::<S, T>(s, record, g, lane),
                    load_mins::<S, T>(s, record, g, lane),
                )
            };
            let mut k = 0;
            while k < GROUP {
                let half = k * halves / GROUP;
                let mut w = s.byte(codes[k / 4], k % 4, signed);
                if log2_zero::<S>(T::TY).is_some() {
                    w = s.add(w, zero);
                }
                w = s.mul(scales[half], w);
                if T::TY.has_min() {
                    w = s.add(w, mins[half]);
                }
                let mut r = 0;
                while r < R {
                    // SAFETY: the slice above has R * cols values.
                    let x = unsafe { *x.add(r * cols + group * GROUP + k) };
                    acc[r][k % 4] = s.fma(w, s.splat(x), acc[r][k % 4]);
                    r += 1;
                }
                k += 1;
            }
        }
        store_sums(s, &acc, &mut out, lane);
        lane += S::LANES;
    }
    task.write(strip_index, row, &out);
}

/// `R` activation rows from `row` on through one strip of float weights.
#[inline(always)]
fn float_block<S: Isa, T: Float, const R: usize>(
    s: S,
    task: &Task<'_>,
    strip: &[u8],
    strip_index: usize,
    row: usize,
) {
    let cols = task.cols;
    assert!(strip.len() == strip_bytes(T::TY, cols));
    let x = task.x[row * cols..(row + R) * cols].as_ptr();
    let mut out = [[0.0; STRIP]; R];
    let mut lane = 0;
    while lane < STRIP {
        let mut acc = [[s.splat(0.0); 4]; R];
        let whole = cols / 4 * 4;
        let mut k = 0;
        while k < whole {
            let mut j = 0;
            while j < 4 {
                // SAFETY: k + j < cols, the strip holds 16 weights for each and x R * cols.
                unsafe { float_step::<S, T, R>(s, strip, x, cols, lane, k + j, j, &mut acc) };
                j += 1;
            }
            k += 4;
        }
        let mut j = 0;
        while j < 3 {
            if whole + j < cols {
                // SAFETY: as above.
                unsafe { float_step::<S, T, R>(s, strip, x, cols, lane, whole + j, j, &mut acc) };
            }
            j += 1;
        }
        store_sums(s, &acc, &mut out, lane);
        lane += S::LANES;
    }
    task.write(strip_index, row, &out);
}

/// Column `k` of a float strip into the sums number `j`.
///
/// # Safety
/// `strip` holds more than `k` columns, `x` has `R` rows of `cols > k`, `lane + LANES <= 16`.
#[inline(always)]
unsafe fn float_step<S: Isa, T: Float, const R: usize>(
    s: S,
    strip: &[u8],
    x: *const f32,
    cols: usize,
    lane: usize,
    k: usize,
    j: usize,
    acc: &mut [[S::F; 4]; R],
) {
    // SAFETY: the caller's.
    unsafe {
        let p = strip.as_ptr().add((k * STRIP + lane) * T::TY.block_bytes());
        let w = match T::TY {
            F32 => s.load_f32(p),
            F16 => s.load_f16(p),
            _ => s.load_bf16(p),
        };
        let mut r = 0;
        while r < R {
            acc[r][j] = s.fma(w, s.splat(*x.add(r * cols + k)), acc[r][j]);
            r += 1;
        }
    }
}

/// The fixed end of the f32 sums.
#[inline(always)]
fn store_sums<S: Isa, const R: usize>(
    s: S,
    acc: &[[S::F; 4]; R],
    out: &mut [[f32; STRIP]; R],
    lane: usize,
) {
    let mut r = 0;
    while r < R {
        let a = acc[r];
        let sum = s.add(s.add(a[0], a[1]), s.add(a[2], a[3]));
        let place = &mut out[r][lane..lane + S::LANES];
        // SAFETY: the slice has LANES places.
        unsafe { s.store(sum, place.as_mut_ptr()) };
        r += 1;
    }
}

/// Scales per group: one, or one for each 16 values.
pub(super) const fn halves(ty: WeightType) -> usize {
    if matches!(ty, Q2_K | Q3_K | Q6_K) {
        2
    } else {
        1
    }
}

const fn is_signed(ty: WeightType) -> bool {
    matches!(ty.integer(), Integer::Signed | Integer::Table)
}

/// What the loaded codes are too large by, as a power of two.
const fn log2_zero<S: Isa>(ty: WeightType) -> Option<u32> {
    match ty.integer() {
        Integer::Minus(0) => None,
        Integer::Minus(zero) => Some(zero.trailing_zeros()),
        _ if S::BIASED => Some(7),
        _ => None,
    }
}

/// Four neighbouring activations in one register-sized piece.
#[inline(always)]
fn quad_of(line: &Line, quad: usize) -> i32 {
    assert!(quad < QUADS);
    // SAFETY: quad < 8, so the four bytes are among the 32 codes.
    unsafe {
        line.codes
            .as_ptr()
            .add(4 * quad)
            .cast::<i32>()
            .read_unaligned()
    }
}

#[inline(always)]
fn prefetch_group<S: Isa, T: Quant>(s: S, record: *const u8, g: usize) {
    let ahead = record.wrapping_add(g * T::SHAPE.code_bytes + AHEAD);
    let mut at = 0;
    while at < T::SHAPE.code_bytes {
        s.prefetch(ahead.wrapping_add(at));
        at += VECTOR;
    }
    if g == T::SHAPE.groups - 1 {
        while at < T::SHAPE.record_bytes - (T::SHAPE.groups - 1) * T::SHAPE.code_bytes {
            s.prefetch(ahead.wrapping_add(at));
            at += VECTOR;
        }
    }
}

/// The codes of a group as bytes, one vector per quad: unsigned, or signed where the type's
/// integers are and the instruction set wants them so.
///
/// # Safety
/// `record` is a whole record of `T`, `g` a group of it, `lane + LANES <= 16`.
#[inline(always)]
unsafe fn load_codes<S: Isa, T: Quant>(
    s: S,
    record: *const u8,
    g: usize,
    lane: usize,
) -> [S::B; QUADS] {
    // SAFETY: the caller's; a vector is 64 bytes and 4 * (lane + LANES) <= 64.
    let at = unsafe { record.add(g * T::SHAPE.code_bytes + 4 * lane) };
    let mut codes = [s.splat_b(0); QUADS];
    let mut i = 0;
    match T::SHAPE.bits {
        Bits::Eight => {
            while i < 8 {
                // SAFETY: eight vectors of codes.
                let v = unsafe { s.load(at.add(i * VECTOR)) };
                codes[i] = if S::BIASED {
                    s.xor(v, s.splat_b(0x80))
                } else {
                    v
                };
                i += 1;
            }
        }
        Bits::Two | Bits::Three => {
            while i < 8 {
                // SAFETY: two vectors of pairs.
                let v = unsafe { s.load(at.add(i / 4 * VECTOR)) };
                codes[i] = s.and(shift(s, v, 2 * (i % 4), 0), s.splat_b(3));
                i += 1;
            }
        }
        Bits::Four | Bits::Five | Bits::Six => {
            while i < 4 {
                // SAFETY: four vectors of nibbles.
                let v = unsafe { s.load(at.add(i * VECTOR)) };
                codes[i] = s.and(v, s.splat_b(15));
                codes[i + 4] = s.and(s.shr(v, 4), s.splat_b(15));
                i += 1;
            }
        }
    }
    i = 0;
    match T::SHAPE.bits {
        Bits::Five | Bits::Three => {
            let (plane, to) = if matches!(T::SHAPE.bits, Bits::Five) {
                (4, 4)
            } else {
                (2, 2)
            };
            // SAFETY: the one-bit plane is the last vector.
            let v = unsafe { s.load(at.add(plane * VECTOR)) };
            while i < 8 {
                let bit = s.and(shift(s, v, i, to), s.splat_b(1 << to));
                codes[i] = s.or(codes[i], bit);
                i += 1;
            }
        }
        Bits::Six => {
            while i < 8 {
                // SAFETY: the two vectors of pairs after the nibbles.
                let v = unsafe { s.load(at.add((4 + i / 4) * VECTOR)) };
                let pair = s.and(shift(s, v, 2 * (i % 4), 4), s.splat_b(0x30));
                codes[i] = s.or(codes[i], pair);
                i += 1;
            }
        }
        _ => {}
    }
    if matches!(T::TY.integer(), Integer::Table) {
        let table = if S::BIASED { &IQ4_BIASED } else { &IQ4_VALUES };
        i = 0;
        while i < 8 {
            codes[i] = s.lookup(table, codes[i]);
            i += 1;
        }
    }
    codes
}

/// Moves bit `from` of each byte to bit `to`.
#[inline(always)]
fn shift<S: Isa>(s: S, v: S::B, from: usize, to: usize) -> S::B {
    if from > to {
        s.shr(v, from - to)
    } else if from < to {
        s.shl(v, to - from)
    } else {
        v
    }
}

/// The f32 scales of a group: of its halves, or twice the same.
///
/// # Safety
/// As [`load_codes`].
#[inline(always)]
unsafe fn load_scales<S: Isa, T: Quant>(
    s: S,
    record: *const u8,
    g: usize,
    lane: usize,
) -> [S::F; 2] {
    // SAFETY: the caller's; the places are those the shape gives, 16 rows each.
    unsafe {
        let d = s.load_f16(record.add(T::SHAPE.halves_at(g) + 2 * lane));
        // Past the end for types without small scales, which do not read it.
        let small = record.wrapping_add(T::SHAPE.small_at(T::TY, g) + lane);
        match T::TY {
            Q4_K | Q5_K => [s.mul(d, s.to_f32(s.load_u8(small))); 2],
            IQ4_XS => [s.mul(d, s.to_f32(s.load_i8(small))); 2],
            Q6_K | Q3_K => [
                s.mul(d, s.to_f32(s.load_i8(small))),
                s.mul(d, s.to_f32(s.load_i8(small.add(STRIP)))),
            ],
            Q2_K => {
                let (a, b) = (s.load_u8(small), s.load_u8(small.add(STRIP)));
                [
                    s.mul(d, s.to_f32(s.and_i(a, 15))),
                    s.mul(d, s.to_f32(s.and_i(b, 15))),
                ]
            }
            _ => [d; 2],
        }
    }
}

/// The f32 minima of a group, to be added; zeros for types without.
///
/// # Safety
/// As [`load_codes`].
#[inline(always)]
unsafe fn load_mins<S: Isa, T: Quant>(s: S, record: *const u8, g: usize, lane: usize) -> [S::F; 2] {
    if !T::TY.has_min() {
        return [s.splat(0.0); 2];
    }
    // SAFETY: as in `load_scales`.
    unsafe {
        let m = s.load_f16(record.add(T::SHAPE.halves_at(g) + 2 * STRIP + 2 * lane));
        // Past the end for types without small scales, which do not read it.
        let small = record.wrapping_add(T::SHAPE.small_at(T::TY, g) + lane);
        match T::TY {
            Q4_K | Q5_K => [s.neg(s.mul(m, s.to_f32(s.load_u8(small.add(STRIP))))); 2],
            Q2_K => {
                let (a, b) = (s.load_u8(small), s.load_u8(small.add(STRIP)));
                [
                    s.neg(s.mul(m, s.to_f32(s.shr4_i(a)))),
                    s.neg(s.mul(m, s.to_f32(s.shr4_i(b)))),
                ]
            }
            _ => [m; 2],
        }
    }
}
