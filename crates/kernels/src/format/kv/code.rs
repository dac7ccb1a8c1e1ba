//! Numbers to codes and back, by the row and by the block.
//!
//! Rows are what the model computed, centred and turned by the caller. What a row becomes depends on
//! that row alone, so rows may come one at a time or many, and a block may be recoded whenever.
//! Recoding is reading and writing again, without the memory in between.
//!
//! Nothing here allocates. Slices are as long as the shape says and forms fit their head
//! ([`Form::fits`]): those are the caller's promises, and breaking them panics. The numbers and the
//! bytes themselves may be anything.

use super::encode::{self, Coder, Codes, Lanes, Plain, VECTORS};
use super::levels::{self, BOOK2, BOOK3, BOOK4, BOOK5};
use super::{BLOCK_SLOTS, Codec, Form, GROUP_MAX, KvShape, float, plane};
use crate::LANES;
use crate::cpu::Table;
use crate::ops::simd::{Simd, simd_fn};

pub use super::float::{read_sink_row, sink_bytes, write_sink_row};

/// Bytes of one group's scales.
const SCALES: usize = BLOCK_SLOTS * 2;

/// Dimensions read at once where a head has no groups, or none larger.
const STEP: usize = 64;

/// Keys and values lie differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    K,
    V,
}

/// Writes the keys of consecutive slots from `first_slot` on; `rows` is (slot, kv_head, dim), `k` the
/// keys of a whole block.
pub fn write_k_rows(table: Table, shape: KvShape, k: &mut [u8], first_slot: usize, rows: &[f32]) {
    let k = &mut k[..shape.k_bytes()];
    check(shape, shape.form.k, first_slot, rows.len());
    match shape.form.k.codec {
        Codec::F16 => float::store_k(table, shape, k, first_slot, rows),
        Codec::F32 => float::store_k_exact(shape, k, first_slot, rows),
        _ => encode_k(table, shape, k, first_slot, rows),
    }
}

/// Writes the values of consecutive slots from `first_slot` on; `rows` is (slot, kv_head, dim), `v` the
/// values of a whole block.
pub fn write_v_rows(table: Table, shape: KvShape, v: &mut [u8], first_slot: usize, rows: &[f32]) {
    let v = &mut v[..shape.v_bytes()];
    check(shape, shape.form.v, first_slot, rows.len());
    match shape.form.v.codec {
        Codec::F16 => float::store_v(table, shape, v, first_slot, rows),
        Codec::F32 => float::store_v_exact(shape, v, first_slot, rows),
        _ => encode_v(table, shape, v, first_slot, rows),
    }
}

fn check(shape: KvShape, form: Form, first_slot: usize, values: usize) {
    let slots = values / shape.row().max(1);
    assert_eq!(slots * shape.row(), values, "whole rows");
    assert!(
        first_slot + slots <= BLOCK_SLOTS,
        "the rows leave the block"
    );
    check_form(form, shape.head_dim);
}

fn check_form(form: Form, head_dim: usize) {
    assert!(form.fits(head_dim), "{form:?} on a head of {head_dim}");
}

/// The keys of one head of a block as numbers: `out` is (dim, slot).
pub fn read_k_head(table: Table, head_dim: usize, form: Form, head: &[u8], out: &mut [f32]) {
    check_form(form, head_dim);
    assert_eq!(out.len(), head_dim * BLOCK_SLOTS);
    let head = &head[..form.head_bytes(head_dim)];
    read_k(table, head_dim, form, head, out);
}

/// The values of one head of a block as numbers: `out` is (slot, dim).
pub fn read_v_head(table: Table, head_dim: usize, form: Form, head: &[u8], out: &mut [f32]) {
    check_form(form, head_dim);
    assert_eq!(out.len(), head_dim * BLOCK_SLOTS);
    let head = &head[..form.head_bytes(head_dim)];
    read_v(table, head_dim, form, head, out);
}

/// The keys of one head of a full block in another form.
pub fn recode_k_head(
    table: Table,
    head_dim: usize,
    from: Form,
    src: &[u8],
    to: Form,
    dst: &mut [u8],
) {
    recode(table, Side::K, head_dim, from, src, to, dst);
}

/// The values of one head of a full block in another form.
pub fn recode_v_head(
    table: Table,
    head_dim: usize,
    from: Form,
    src: &[u8],
    to: Form,
    dst: &mut [u8],
) {
    recode(table, Side::V, head_dim, from, src, to, dst);
}

fn recode(
    table: Table,
    side: Side,
    head_dim: usize,
    from: Form,
    src: &[u8],
    to: Form,
    dst: &mut [u8],
) {
    check_form(from, head_dim);
    check_form(to, head_dim);
    let src = &src[..from.head_bytes(head_dim)];
    let dst = &mut dst[..to.head_bytes(head_dim)];
    // A small tile stays in the nearest cache beside what it is made from and into.
    match side {
        Side::K if step(to, head_dim) <= STEP => {
            recode_k_small(table, head_dim, from, src, to, dst)
        }
        Side::V if step(to, head_dim) <= STEP => {
            recode_v_small(table, head_dim, from, src, to, dst)
        }
        Side::K => recode_k_large(table, head_dim, from, src, to, dst),
        Side::V => recode_v_large(table, head_dim, from, src, to, dst),
    }
}

/// Dimensions that are written together.
fn step(form: Form, head_dim: usize) -> usize {
    if form.codec.is_float() {
        STEP
    } else {
        form.group.min(head_dim)
    }
}

/// Declares the faces of a body that is generic over [`Coder`].
macro_rules! coded {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $body:path, $plain:ident, $lanes:ident;)*) => {$(
        simd_fn! {
            fn $name($($arg: $ty),*) = $plain, $lanes;
        }
        fn $plain($($arg: $ty),*) {
            $body(Plain, $($arg),*)
        }
        #[inline(always)]
        fn $lanes<S: Simd>(s: S, $($arg: $ty),*) {
            $body(Lanes(s), $($arg),*)
        }
    )*};
}

coded! {
    fn encode_k(shape: KvShape, k: &mut [u8], first_slot: usize, rows: &[f32])
        = encode_k_rows, scalar_encode_k, simd_encode_k;
    fn encode_v(shape: KvShape, v: &mut [u8], first_slot: usize, rows: &[f32])
        = encode_v_rows, scalar_encode_v, simd_encode_v;
    fn read_k(head_dim: usize, form: Form, head: &[u8], out: &mut [f32])
        = read_k_body, scalar_read_k, simd_read_k;
    fn read_v(head_dim: usize, form: Form, head: &[u8], out: &mut [f32])
        = read_v_body, scalar_read_v, simd_read_v;
    fn recode_k_small(head_dim: usize, from: Form, src: &[u8], to: Form, dst: &mut [u8])
        = recode_k_tile::<STEP, _>, scalar_recode_k_small, simd_recode_k_small;
    fn recode_v_small(head_dim: usize, from: Form, src: &[u8], to: Form, dst: &mut [u8])
        = recode_v_tile::<STEP, _>, scalar_recode_v_small, simd_recode_v_small;
    fn recode_k_large(head_dim: usize, from: Form, src: &[u8], to: Form, dst: &mut [u8])
        = recode_k_tile::<GROUP_MAX, _>, scalar_recode_k_large, simd_recode_k_large;
    fn recode_v_large(head_dim: usize, from: Form, src: &[u8], to: Form, dst: &mut [u8])
        = recode_v_tile::<GROUP_MAX, _>, scalar_recode_v_large, simd_recode_v_large;
}

#[inline(always)]
fn encode_k_rows<C: Coder>(c: C, shape: KvShape, k: &mut [u8], first_slot: usize, rows: &[f32]) {
    let (form, dim) = (shape.form.k, shape.head_dim);
    for (i, row) in rows.chunks_exact(shape.row()).enumerate() {
        let heads = k.chunks_exact_mut(form.head_bytes(dim));
        for (head, x) in heads.zip(row.chunks_exact(dim)) {
            for (g, x) in x.chunks(form.group).enumerate() {
                put_group(c, Side::K, form, dim, head, first_slot + i, g, x);
            }
        }
    }
}

#[inline(always)]
fn encode_v_rows<C: Coder>(c: C, shape: KvShape, v: &mut [u8], first_slot: usize, rows: &[f32]) {
    let (form, dim) = (shape.form.v, shape.head_dim);
    for (i, row) in rows.chunks_exact(shape.row()).enumerate() {
        let heads = v.chunks_exact_mut(form.head_bytes(dim));
        for (head, x) in heads.zip(row.chunks_exact(dim)) {
            for (g, x) in x.chunks(form.group).enumerate() {
                put_group(c, Side::V, form, dim, head, first_slot + i, g, x);
            }
        }
    }
}

/// Group `g` of one slot: numbers to codes, codes to planes, the scale beside them.
#[inline(always)]
fn put_group<C: Coder>(
    c: C,
    side: Side,
    form: Form,
    head_dim: usize,
    head: &mut [u8],
    slot: usize,
    g: usize,
    x: &[f32],
) {
    let mut codes: Codes = [[0; LANES]; VECTORS];
    let scale = match form.codec {
        Codec::Int8 => encode::uniform(c, x, (-127.0, 127.0), &mut codes),
        Codec::Int4Plain => encode::uniform(c, x, (-8.0, 7.0), &mut codes),
        Codec::Int5 => encode::codebook(c, x, &BOOK5, &mut codes),
        Codec::Int4 => encode::codebook(c, x, &BOOK4, &mut codes),
        Codec::Int3 => encode::codebook(c, x, &BOOK3, &mut codes),
        Codec::Int2 => encode::codebook(c, x, &BOOK2, &mut codes),
        Codec::F16 | Codec::F32 => unreachable!("floats have no groups"),
    };
    let codes = &codes.as_flattened()[..x.len()];
    let first = g * form.group;
    let planes = form.codec.planes();
    let parts = plane::parts_mut(form, head_dim, head);
    match side {
        Side::K => {
            plane::put_k(parts.low, planes[0], 0, slot, first, codes);
            if let [low, high] = planes {
                plane::put_k(parts.high, *high, *low, slot, first, codes);
            }
        }
        Side::V => {
            let n = parts.low.len() / BLOCK_SLOTS;
            let line = &mut parts.low[slot * n..][..n];
            plane::put_v(line, planes[0], 0, first, codes);
            if let [low, high] = planes {
                let n = parts.high.len() / BLOCK_SLOTS;
                let line = &mut parts.high[slot * n..][..n];
                plane::put_v(line, *high, *low, first, codes);
            }
        }
    }
    parts.scales[g * SCALES + 2 * slot..][..2].copy_from_slice(&scale);
}

/// Levels of codes as numbers.
#[inline(always)]
fn to_levels(codec: Codec, codes: &[u8], out: &mut [f32]) {
    let table = levels::of(codec);
    if table.is_empty() {
        for (out, code) in out.iter_mut().zip(codes) {
            *out = f32::from(*code as i8);
        }
    } else {
        // A power of two: the mask says that no code is outside.
        for (out, code) in out.iter_mut().zip(codes) {
            *out = f32::from(table[usize::from(*code) & (table.len() - 1)]);
        }
    }
}

/// One group's scales of all slots.
#[inline(always)]
fn scales<C: Coder>(c: C, scales: &[u8], g: usize) -> [f32; BLOCK_SLOTS] {
    let (groups, _) = scales.as_chunks::<SCALES>();
    c.widen(&groups[g])
}

/// The keys of one dimension: all slots.
#[inline(always)]
fn k_line<C: Coder>(c: C, form: Form, head_dim: usize, head: &[u8], dim: usize) -> [f32; 32] {
    if form.codec.is_float() {
        return float::k_line(c, form.codec == Codec::F16, head, dim);
    }
    let parts = plane::parts(form, head_dim, head);
    let planes = form.codec.planes();
    let mut codes = [0; BLOCK_SLOTS];
    plane::get_k(parts.low, planes[0], 0, dim, &mut codes);
    if let [low, high] = planes {
        plane::get_k(parts.high, *high, *low, dim, &mut codes);
    }
    let mut line = [0.0; BLOCK_SLOTS];
    to_levels(form.codec, &codes, &mut line);
    let scales = scales(c, parts.scales, dim / form.group);
    for (x, scale) in line.iter_mut().zip(scales) {
        *x *= scale;
    }
    line
}

#[inline(always)]
fn read_k_body<C: Coder>(c: C, head_dim: usize, form: Form, head: &[u8], out: &mut [f32]) {
    let (lines, _) = out.as_chunks_mut::<BLOCK_SLOTS>();
    for (dim, line) in lines.iter_mut().enumerate() {
        *line = k_line(c, form, head_dim, head, dim);
    }
}

/// Dimensions `first..` of all slots' values into rows of `stride` numbers, at most
/// [`GROUP_MAX`] of them.
#[inline(always)]
fn v_rows<C: Coder>(
    c: C,
    form: Form,
    head_dim: usize,
    head: &[u8],
    (first, dims): (usize, usize),
    out: &mut [f32],
    stride: usize,
) {
    if form.codec.is_float() {
        for (slot, row) in out.chunks_mut(stride).enumerate() {
            float::get_v(
                form.codec == Codec::F16,
                head_dim,
                head,
                slot,
                first,
                &mut row[..dims],
            );
        }
        return;
    }
    let parts = plane::parts(form, head_dim, head);
    let planes = form.codec.planes();
    let (low_n, high_n) = (
        parts.low.len() / BLOCK_SLOTS,
        parts.high.len() / BLOCK_SLOTS,
    );
    let mut at = first;
    while at < first + dims {
        // Up to the end of a group: one scale for each slot.
        let g = at / form.group;
        let end = ((g + 1) * form.group).min(first + dims);
        let scales = scales(c, parts.scales, g);
        for (slot, row) in out.chunks_mut(stride).enumerate() {
            let mut codes = [0; GROUP_MAX];
            let codes = &mut codes[..end - at];
            let line = &parts.low[slot * low_n..][..low_n];
            plane::get_v(line, planes[0], 0, at..end, codes);
            if let [low, high] = planes {
                let line = &parts.high[slot * high_n..][..high_n];
                plane::get_v(line, *high, *low, at..end, codes);
            }
            let row = &mut row[at - first..end - first];
            to_levels(form.codec, codes, row);
            for x in row {
                *x *= scales[slot];
            }
        }
        at = end;
    }
}

#[inline(always)]
fn read_v_body<C: Coder>(c: C, head_dim: usize, form: Form, head: &[u8], out: &mut [f32]) {
    for first in (0..head_dim).step_by(GROUP_MAX) {
        let dims = (head_dim - first).min(GROUP_MAX);
        v_rows(
            c,
            form,
            head_dim,
            head,
            (first, dims),
            &mut out[first..],
            head_dim,
        );
    }
}

/// Group by group of the new form; `T` is at least as great as its groups.
#[inline(always)]
fn recode_k_tile<const T: usize, C: Coder>(
    c: C,
    head_dim: usize,
    from: Form,
    src: &[u8],
    to: Form,
    dst: &mut [u8],
) {
    let mut tile = [[0.0; T]; BLOCK_SLOTS];
    let step = step(to, head_dim);
    for (g, first) in (0..head_dim).step_by(step).enumerate() {
        let dims = (head_dim - first).min(step);
        for d in 0..dims {
            let line = k_line(c, from, head_dim, src, first + d);
            for (row, x) in tile.iter_mut().zip(line) {
                row[d] = x;
            }
        }
        put_tile(c, Side::K, to, head_dim, dst, (g, first, dims), &tile);
    }
}

/// Group by group of the new form; `T` is at least as great as its groups.
#[inline(always)]
fn recode_v_tile<const T: usize, C: Coder>(
    c: C,
    head_dim: usize,
    from: Form,
    src: &[u8],
    to: Form,
    dst: &mut [u8],
) {
    let mut tile = [[0.0; T]; BLOCK_SLOTS];
    let step = step(to, head_dim);
    for (g, first) in (0..head_dim).step_by(step).enumerate() {
        let dims = (head_dim - first).min(step);
        v_rows(
            c,
            from,
            head_dim,
            src,
            (first, dims),
            tile.as_flattened_mut(),
            T,
        );
        put_tile(c, Side::V, to, head_dim, dst, (g, first, dims), &tile);
    }
}

/// Some dimensions of all slots; `tile` is (slot, dim).
#[inline(always)]
fn put_tile<const T: usize, C: Coder>(
    c: C,
    side: Side,
    to: Form,
    head_dim: usize,
    dst: &mut [u8],
    (g, first, dims): (usize, usize, usize),
    tile: &[[f32; T]; BLOCK_SLOTS],
) {
    for (slot, row) in tile.iter().enumerate() {
        let x = &row[..dims];
        if to.codec.is_float() {
            float::put(side, to.codec == Codec::F16, head_dim, dst, slot, first, x);
        } else {
            put_group(c, side, to, head_dim, dst, slot, g, x);
        }
    }
}
