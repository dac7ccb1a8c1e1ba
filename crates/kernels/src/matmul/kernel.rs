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

use super::int8::Line;
use super::isa::{CodeDot, Weight};
use super::task::Task;
use crate::format::WeightType::{self, *};
use crate::format::gguf::{GROUP, IQ4_VALUES, Integer};
use crate::format::packed::{STRIP, VECTOR, strip_bytes};

/// How far ahead kernels prefetch a strip: the hardware's own prefetching stops at each 4 KiB page.
const PREFETCH_BYTES: usize = 4096;

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

/// The body once for each `$i` below `$n`, which is at most 2, 4 or 8, written out: the compiler
/// does not unroll the longer bodies itself, and then sums live in memory, not in registers. The
/// conditions are constants, so bodies beyond `$n` are never compiled, which saves minutes.
macro_rules! each {
    ($i:ident < $n:expr, of 2, $body:block) => {
        each!(@ $i, $n, $body, 0 1)
    };
    ($i:ident < $n:expr, of 4, $body:block) => {
        each!(@ $i, $n, $body, 0 1 2 3)
    };
    ($i:ident < $n:expr, of 8, $body:block) => {
        each!(@ $i, $n, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident, $n:expr, $body:block, $($at:literal)*) => {
        {
            $( if const { $at < $n } { let $i: usize = $at; $body } )*
        }
    };
}

/// All strips of a task. A block of activation rows stays in L1 while all strips pass.
#[inline(always)]
pub(super) fn strips<S: CodeDot, T: Weight>(s: S, task: &Task<'_>) {
    let mut row = 0;
    if const { !T::TY.is_float() }
        && let Some(lines) = task.lines
    {
        if const { S::INT8_ROWS_MAX >= 8 } {
            while row + 8 <= task.x_rows {
                int8_strips::<S, T, 8, 1>(s, task, lines, row);
                row += 8;
            }
        }
        while row + 4 <= task.x_rows {
            int8_strips::<S, T, 4, 1>(s, task, lines, row);
            row += 4;
        }
        if const { S::INT8_ROWS_MAX >= 8 } && row + 3 == task.x_rows {
            int8_strips::<S, T, 3, 1>(s, task, lines, row);
            row += 3;
        }
        if row + 2 <= task.x_rows {
            int8_strips::<S, T, 2, 1>(s, task, lines, row);
            row += 2;
        }
        if row < task.x_rows {
            // All rows of the strip together, so that it streams by once.
            if const { S::LANES == STRIP } {
                int8_strips::<S, T, 1, 1>(s, task, lines, row);
            } else {
                int8_strips::<S, T, 1, 2>(s, task, lines, row);
            }
        }
        return;
    }
    while row + S::F32_ROWS <= task.x_rows {
        if const { S::F32_ROWS == 4 } {
            f32_strips::<S, T, 4>(s, task, row);
        } else {
            f32_strips::<S, T, 2>(s, task, row);
        }
        row += S::F32_ROWS;
    }
    while row < task.x_rows {
        f32_strips::<S, T, 1>(s, task, row);
        row += 1;
    }
}

/// `R` activation rows from `row` on through all strips, int8, `P` parts of a strip's 16 rows at a
/// time.
#[inline(always)]
fn int8_strips<S: CodeDot, T: Weight, const R: usize, const P: usize>(
    s: S,
    task: &Task<'_>,
    lines: &[Line],
    row: usize,
) {
    let groups = task.cols / GROUP;
    let lines = lines[row * groups..(row + R) * groups].as_ptr();
    for (i, strip) in task.strips(strip_bytes(T::TY, task.cols)).enumerate() {
        let mut out = [[0.0; STRIP]; R];
        let mut lane = 0;
        while lane < STRIP {
            let mut acc = [[s.splat(0.0); R]; P];
            for group in 0..groups {
                // SAFETY: a strip has the length of its shape, which covers every group.
                let record = unsafe { record::<T>(strip, group) };
                let g = group % T::SHAPE.groups;
                if row == 0 {
                    prefetch_group::<S, T>(s, record, g);
                }
                each!(p < P, of 2, {
                    let lane = lane + p * S::LANES;
                    // SAFETY: as above; `lane` is a multiple of LANES below 16.
                    let weights = unsafe { Group::load::<T>(s, record, g, lane) };
                    each!(r < R, of 8, {
                        // SAFETY: the slice above has R * groups lines.
                        let line = unsafe { &*lines.add(r * groups + group) };
                        acc[p][r] = weights.int8_step::<T, R>(s, line, acc[p][r]);
                    });
                });
            }
            each!(p < P, of 2, {
                each!(r < R, of 8, {
                    let place = &mut out[r][lane + p * S::LANES..][..S::LANES];
                    // SAFETY: the slice has LANES places.
                    unsafe { s.store_f32(acc[p][r], place.as_mut_ptr()) };
                });
            });
            lane += P * S::LANES;
        }
        task.write(i, row, &out);
    }
}

/// A group of `LANES` rows in registers.
struct Group<S: CodeDot> {
    codes: [S::B; QUADS],
    scales: [S::F; 2],
    mins: [S::F; 2],
}

impl<S: CodeDot> Group<S> {
    /// # Safety
    /// `record` is a whole record of `T`, `g` a group of it, `lane + LANES <= 16`.
    #[inline(always)]
    unsafe fn load<T: Weight>(s: S, record: *const u8, g: usize, lane: usize) -> Group<S> {
        // SAFETY: the caller's promise.
        unsafe {
            Group {
                codes: load_codes::<S, T>(s, record, g, lane),
                scales: load_scales::<S, T>(s, record, g, lane),
                mins: load_mins::<S, T>(s, record, g, lane),
            }
        }
    }

    /// One activation row's group added to its sums.
    #[inline(always)]
    fn int8_step<T: Weight, const R: usize>(&self, s: S, line: &Line, acc: S::F) -> S::F {
        let scale = s.splat(line.scale);
        let mut acc = acc;
        each!(half < halves(T::TY), of 2, {
            let dot = half_dot::<S, T, R>(s, &self.codes, line, half);
            acc = s.fma(s.mul(s.to_f32(dot), scale), self.scales[half], acc);
            if const { T::TY.has_min() } {
                let whole = const { halves(T::TY) == 1 };
                let offset = if whole { line.offset } else { line.offsets[half] };
                acc = s.fma(self.mins[half], s.splat(offset), acc);
            }
        });
        acc
    }
}

/// The exact dot product of one half of a group, or of the whole where it has one scale.
#[inline(always)]
fn half_dot<S: CodeDot, T: Weight, const R: usize>(
    s: S,
    codes: &[S::B; QUADS],
    line: &Line,
    half: usize,
) -> S::I {
    let quads = const { QUADS / halves(T::TY) };
    let signed = const { !S::BIASED && is_signed(T::TY) };
    let whole = const { halves(T::TY) == 1 };
    let neg_sum = if whole {
        line.neg_sum
    } else {
        line.neg_sums[half]
    };
    let mut dot = match const { log2_zero::<S>(T::TY) } {
        Some(n) => s.splat_i32(neg_sum << n),
        None => s.splat_i32(0),
    };
    if const { R > 1 } {
        each!(q < QUADS / halves(T::TY), of 8, {
            let quad = half * quads + q;
            dot = s.dot(dot, codes[quad], quad_of(line, quad), signed);
        });
        return dot;
    }
    // A single row has nothing to overlap its chain of dots with: two chains.
    let mut second = s.splat_i32(0);
    each!(q < QUADS / halves(T::TY) / 2, of 4, {
        let quad = half * quads + 2 * q;
        dot = s.dot(dot, codes[quad], quad_of(line, quad), signed);
        second = s.dot(second, codes[quad + 1], quad_of(line, quad + 1), signed);
    });
    s.add_i32(dot, second)
}

/// `R` activation rows from `row` on through all strips, f32.
#[inline(always)]
fn f32_strips<S: CodeDot, T: Weight, const R: usize>(s: S, task: &Task<'_>, row: usize) {
    let cols = task.cols;
    let x = &task.x[row * cols..(row + R) * cols];
    for (i, strip) in task.strips(strip_bytes(T::TY, cols)).enumerate() {
        let mut out = [[0.0; STRIP]; R];
        let mut lane = 0;
        while lane < STRIP {
            let mut acc = [[s.splat(0.0); 4]; R];
            // SAFETY: a strip has the length of its shape, x has R * cols values, and `lane` is a
            // multiple of LANES below 16.
            unsafe {
                if const { T::TY.is_float() } {
                    float_sums::<S, T, R>(s, strip, x.as_ptr(), cols, lane, &mut acc);
                } else {
                    quant_sums::<S, T, R>(s, strip, x.as_ptr(), cols, lane, &mut acc);
                }
            }
            store_sums(s, &acc, &mut out, lane);
            lane += S::LANES;
        }
        task.write(i, row, &out);
    }
}

/// Sums of a strip of quantised weights, from row `lane` of it on.
///
/// # Safety
/// `strip` is a whole strip of `T`, `x` has `R` rows of `cols`, `lane + LANES <= 16`.
#[inline(always)]
unsafe fn quant_sums<S: CodeDot, T: Weight, const R: usize>(
    s: S,
    strip: &[u8],
    x: *const f32,
    cols: usize,
    lane: usize,
    acc: &mut [[S::F; 4]; R],
) {
    let signed = const { !S::BIASED && is_signed(T::TY) };
    for group in 0..cols / GROUP {
        // SAFETY: the caller's promise; the strip covers every group.
        let weights = unsafe {
            let record = record::<T>(strip, group);
            Group::load::<T>(s, record, group % T::SHAPE.groups, lane)
        };
        // A loop, so that the codes go through memory: that is cheap beside 32 R products.
        for q in 0..QUADS {
            let half = q * const { halves(T::TY) } / QUADS;
            let k = group * GROUP + 4 * q;
            each!(j < 4, of 4, {
                let mut w = s.byte(weights.codes[q], j, signed);
                if let Some(n) = const { log2_zero::<S>(T::TY) } {
                    w = s.add(w, s.splat(-((1 << n) as f32)));
                }
                w = s.mul(weights.scales[half], w);
                if const { T::TY.has_min() } {
                    w = s.add(w, weights.mins[half]);
                }
                each!(r < R, of 4, {
                    // SAFETY: the caller's promise.
                    let x = unsafe { *x.add(r * cols + k + j) };
                    acc[r][j] = s.fma(w, s.splat(x), acc[r][j]);
                });
            });
        }
    }
}

/// Sums of a strip of float weights, from row `lane` of it on.
///
/// # Safety
/// As [`quant_sums`].
#[inline(always)]
unsafe fn float_sums<S: CodeDot, T: Weight, const R: usize>(
    s: S,
    strip: &[u8],
    x: *const f32,
    cols: usize,
    lane: usize,
    acc: &mut [[S::F; 4]; R],
) {
    let whole = cols / 4 * 4;
    for k in (0..whole).step_by(4) {
        if R == 1 && lane == 0 {
            let at = k * STRIP * T::TY.block_bytes() + PREFETCH_BYTES;
            each!(line < T::TY.block_bytes(), of 4, {
                s.prefetch(strip.as_ptr().wrapping_add(at + line * VECTOR));
            });
        }
        each!(j < 4, of 4, {
            // SAFETY: k + j < cols; a strip holds 16 weights for each, x has R * cols.
            unsafe { float_step::<S, T, R>(s, strip, x, cols, lane, k + j, j, acc) };
        });
    }
    each!(j < 3, of 4, {
        let k = whole + j;
        if k < cols {
            // SAFETY: as above.
            unsafe { float_step::<S, T, R>(s, strip, x, cols, lane, k, j, acc) };
        }
    });
}

/// Column `k` of a float strip into the sums number `j`.
///
/// # Safety
/// `strip` holds more than `k` columns, `x` has `R` rows of `cols > k`, `lane + LANES <= 16`.
#[inline(always)]
unsafe fn float_step<S: CodeDot, T: Weight, const R: usize>(
    s: S,
    strip: &[u8],
    x: *const f32,
    cols: usize,
    lane: usize,
    k: usize,
    j: usize,
    acc: &mut [[S::F; 4]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let p = strip.as_ptr().add((k * STRIP + lane) * T::TY.block_bytes());
        let w = match T::TY {
            F32 => s.load_f32(p.cast()),
            F16 => s.load_f16(p),
            _ => s.load_bf16(p),
        };
        each!(r < R, of 4, {
            acc[r][j] = s.fma(w, s.splat(*x.add(r * cols + k)), acc[r][j]);
        });
    }
}

/// The fixed end of the f32 sums.
#[inline(always)]
fn store_sums<S: CodeDot, const R: usize>(
    s: S,
    acc: &[[S::F; 4]; R],
    out: &mut [[f32; STRIP]; R],
    lane: usize,
) {
    each!(r < R, of 4, {
        let a = acc[r];
        let sum = s.add(s.add(a[0], a[1]), s.add(a[2], a[3]));
        let place = &mut out[r][lane..lane + S::LANES];
        // SAFETY: the slice has LANES places.
        unsafe { s.store_f32(sum, place.as_mut_ptr()) };
    });
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
const fn log2_zero<S: CodeDot>(ty: WeightType) -> Option<u32> {
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

/// The record that holds a group.
///
/// # Safety
/// `strip` is a whole strip of `T`, `group` a group of its rows.
#[inline(always)]
unsafe fn record<T: Weight>(strip: &[u8], group: usize) -> *const u8 {
    // SAFETY: the caller's promise.
    unsafe {
        strip
            .as_ptr()
            .add(group / T::SHAPE.groups * T::SHAPE.record_bytes)
    }
}

#[inline(always)]
fn prefetch_group<S: CodeDot, T: Weight>(s: S, record: *const u8, g: usize) {
    let from = record.wrapping_add(g * T::SHAPE.code_bytes + PREFETCH_BYTES);
    let mut at = 0;
    while at < T::SHAPE.code_bytes {
        s.prefetch(from.wrapping_add(at));
        at += VECTOR;
    }
    if g == T::SHAPE.groups - 1 {
        while at < T::SHAPE.record_bytes - (T::SHAPE.groups - 1) * T::SHAPE.code_bytes {
            s.prefetch(from.wrapping_add(at));
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
unsafe fn load_codes<S: CodeDot, T: Weight>(
    s: S,
    record: *const u8,
    g: usize,
    lane: usize,
) -> [S::B; QUADS] {
    // SAFETY: the caller's; a vector is 64 bytes and 4 * (lane + LANES) <= 64.
    let at = unsafe { record.add(g * T::SHAPE.code_bytes + 4 * lane) };
    let mut codes = [s.splat_u8(0); QUADS];
    match T::SHAPE.bits {
        8 => each!(i < QUADS, of 8, {
            // SAFETY: eight vectors of codes.
            let v = unsafe { s.load_bytes(at.add(i * VECTOR)) };
            codes[i] = if S::BIASED {
                s.xor(v, s.splat_u8(0x80))
            } else {
                v
            };
        }),
        2 | 3 => each!(i < QUADS, of 8, {
            // SAFETY: two vectors of pairs.
            let v = unsafe { s.load_bytes(at.add(i / 4 * VECTOR)) };
            codes[i] = s.and(shift(s, v, 2 * (i % 4), 0), s.splat_u8(3));
        }),
        _ => each!(i < 4, of 4, {
            // SAFETY: four vectors of nibbles.
            let v = unsafe { s.load_bytes(at.add(i * VECTOR)) };
            codes[i] = s.and(v, s.splat_u8(15));
            codes[i + 4] = s.and(s.shr(v, 4), s.splat_u8(15));
        }),
    }
    match T::SHAPE.bits {
        3 | 5 => {
            let top = T::SHAPE.bits - 1;
            // SAFETY: the one-bit plane is the last vector.
            let v = unsafe { s.load_bytes(at.add(top * VECTOR)) };
            each!(i < QUADS, of 8, {
                let bit = s.and(shift(s, v, i, top), s.splat_u8(1 << top));
                codes[i] = s.or(codes[i], bit);
            });
        }
        6 => each!(i < QUADS, of 8, {
            // SAFETY: the two vectors of pairs after the nibbles.
            let v = unsafe { s.load_bytes(at.add((4 + i / 4) * VECTOR)) };
            let pair = s.and(shift(s, v, 2 * (i % 4), 4), s.splat_u8(0x30));
            codes[i] = s.or(codes[i], pair);
        }),
        _ => {}
    }
    if matches!(T::TY.integer(), Integer::Table) {
        let table = if S::BIASED { &IQ4_BIASED } else { &IQ4_VALUES };
        each!(i < QUADS, of 8, { codes[i] = s.lookup(table, codes[i]) });
    }
    codes
}

/// Moves bit `from` of each byte to bit `to`.
#[inline(always)]
fn shift<S: CodeDot>(s: S, v: S::B, from: usize, to: usize) -> S::B {
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
unsafe fn load_scales<S: CodeDot, T: Weight>(
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
                    s.mul(d, s.to_f32(s.and_i32(a, 15))),
                    s.mul(d, s.to_f32(s.and_i32(b, 15))),
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
unsafe fn load_mins<S: CodeDot, T: Weight>(
    s: S,
    record: *const u8,
    g: usize,
    lane: usize,
) -> [S::F; 2] {
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
                    s.neg(s.mul(m, s.to_f32(s.shr4_i32(a)))),
                    s.neg(s.mul(m, s.to_f32(s.shr4_i32(b)))),
                ]
            }
            _ => [m; 2],
        }
    }
}
