//! Encodes and decodes rows and blocks.
//!
//! Rows are what the model computed, centred and rotated by the caller. The code of a row depends on that
//! row alone, so rows may come one at a time or many, and a block may be recoded at any time. Recoding is
//! decoding and encoding, without a block of floats in between.
//!
//! Nothing here allocates. Slices are as long as the shape says and forms fit their head
//! ([`Form::fits`]): anything else panics. The values and the bytes
//! themselves may be arbitrary.

use super::Codec::{self, *};
use super::encode::{self, Coder, Codes, Group, NO_CODES, ScalarCoder, SimdCoder};
use super::levels::{self, BOOK2, BOOK3, BOOK4, BOOK5};
use super::plane::{self, Parts, Place};
use super::{BLOCK_SLOTS, Form, GROUP_MAX, KvShape, Side, float};
use crate::cpu::Backend;
use crate::simd::Simd;

pub use super::float::{sink_bytes, write_sink_row};

/// Bytes of one group's scales.
pub(super) const SCALES: usize = BLOCK_SLOTS * 2;

/// Numbers of a tile: thirty-two slots of the usual group, eight of the greatest. It fits L1 together with
/// its source and its target.
const TILE: usize = 8 * GROUP_MAX;
/// Dimensions recoded at once where a head has no groups.
const FLOAT_STEP: usize = 64;

/// Writes the keys of consecutive slots from `slot` on; `rows` is (slot, kv_head, dim), `k` the keys of a
/// whole block.
pub fn write_k_rows(backend: Backend, shape: KvShape, k: &mut [u8], slot: usize, rows: &[f32]) {
    write_rows(backend, Side::K, shape, k, slot, rows);
}

/// Writes the values of consecutive slots from `slot` on; `rows` is (slot, kv_head, dim), `v` the values of
/// a whole block.
pub fn write_v_rows(backend: Backend, shape: KvShape, v: &mut [u8], slot: usize, rows: &[f32]) {
    write_rows(backend, Side::V, shape, v, slot, rows);
}

fn write_rows(
    backend: Backend,
    side: Side,
    shape: KvShape,
    block: &mut [u8],
    slot: usize,
    rows: &[f32],
) {
    let form = shape.form.of(side);
    let block = &mut block[..shape.kv_heads * form.head_bytes(shape.head_dim)];
    check(shape, form, slot, rows.len());
    match form.codec {
        F16 => float::store(backend, side, shape, block, slot, rows),
        F32 => float::store_each(side, false, shape, block, slot, rows),
        _ => encode(backend, side, shape, block, slot, rows),
    }
}

pub(super) fn check(shape: KvShape, form: Form, first_slot: usize, values: usize) {
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

/// The keys of one head of a block as f32: `out` is (dim, slot).
pub fn read_k_head(backend: Backend, head_dim: usize, form: Form, head: &[u8], out: &mut [f32]) {
    read(backend, Side::K, head_dim, form, head, out);
}

/// The values of one head of a block as f32: `out` is (slot, dim).
pub fn read_v_head(backend: Backend, head_dim: usize, form: Form, head: &[u8], out: &mut [f32]) {
    read(backend, Side::V, head_dim, form, head, out);
}

/// The keys of one head of a full block in another form.
pub fn recode_k_head(
    backend: Backend,
    head_dim: usize,
    from: Form,
    src: &[u8],
    to: Form,
    dst: &mut [u8],
) {
    recode(backend, Side::K, head_dim, from, src, to, dst);
}

/// The values of one head of a full block in another form.
pub fn recode_v_head(
    backend: Backend,
    head_dim: usize,
    from: Form,
    src: &[u8],
    to: Form,
    dst: &mut [u8],
) {
    recode(backend, Side::V, head_dim, from, src, to, dst);
}

/// Declares the dispatch of a body that is generic over [`Coder`].
macro_rules! coder_fn {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $body:path, $plain:ident, $lanes:ident;)*) => {$(
        $crate::simd::simd_fn! {
            fn $name($($arg: $ty),*) = $plain, $lanes;
        }
        fn $plain($($arg: $ty),*) {
            $body(ScalarCoder, $($arg),*)
        }
        #[inline(always)]
        fn $lanes<S: Simd>(s: S, $($arg: $ty),*) {
            $body(SimdCoder(s), $($arg),*)
        }
    )*};
}
pub(super) use coder_fn;

coder_fn! {
    fn encode(side: Side, shape: KvShape, block: &mut [u8], first_slot: usize, rows: &[f32])
        = encode_rows, scalar_encode, simd_encode;
    fn read(side: Side, head_dim: usize, form: Form, head: &[u8], out: &mut [f32])
        = read_head, scalar_read, simd_read;
    fn recode(side: Side, head_dim: usize, from: Form, src: &[u8], to: Form, dst: &mut [u8])
        = recode_tiles, scalar_recode, simd_recode;
}

#[inline(always)]
fn encode_rows<C: Coder>(
    c: C,
    side: Side,
    shape: KvShape,
    block: &mut [u8],
    first_slot: usize,
    rows: &[f32],
) {
    let (form, dim) = (shape.form.of(side), shape.head_dim);
    let (mut group, mut codes) = (Group::EMPTY, NO_CODES);
    for (i, row) in rows.chunks_exact(shape.row()).enumerate() {
        let heads = block.chunks_exact_mut(form.head_bytes(dim));
        for (head, x) in heads.zip(row.chunks_exact(dim)) {
            let parts = &mut plane::parts_mut(form, dim, head);
            for (g, x) in x.chunks(form.group).enumerate() {
                let slot = first_slot + i;
                put_group(c, side, form, parts, slot, g, x, &mut group, &mut codes);
            }
        }
    }
}

/// Encodes group `g` of one slot: writes its codes to the planes, and its scale.
#[inline(always)]
fn put_group<C: Coder>(
    c: C,
    side: Side,
    form: Form,
    parts: &mut Parts<&mut [u8]>,
    slot: usize,
    g: usize,
    x: &[f32],
    group: &mut Group,
    codes: &mut Codes,
) {
    let scale = match form.codec {
        Int8 => encode::uniform(c, x, (-127.0, 127.0), group, codes),
        Int4Plain => encode::uniform(c, x, (-8.0, 7.0), group, codes),
        Int5 => encode::codebook(c, x, &BOOK5, group, codes),
        Int4 => encode::codebook(c, x, &BOOK4, group, codes),
        Int3 => encode::codebook(c, x, &BOOK3, group, codes),
        Int2 => encode::codebook(c, x, &BOOK2, group, codes),
        F16 | F32 => unreachable!("floats have no groups"),
    };
    let codes = &codes.as_flattened()[..x.len()];
    put_codes(side, form, parts, slot, g * form.group, codes);
    parts.scales[g * SCALES + 2 * slot..][..2].copy_from_slice(&scale);
}

/// Codes of one slot from dimension `first` on, where a group starts.
#[inline(always)]
pub(super) fn put_codes(
    side: Side,
    form: Form,
    parts: &mut Parts<&mut [u8]>,
    slot: usize,
    first: usize,
    codes: &[u8],
) {
    let Parts { low, high, .. } = parts;
    let below = 0;
    let place = Place { slot, first, below };
    match form.codec.planes() {
        [8] => plane::put::<8>(side, low, place, codes),
        [4, ..] => plane::put::<4>(side, low, place, codes),
        _ => plane::put::<2>(side, low, place, codes),
    }
    if let [below, 1] = *form.codec.planes() {
        plane::put::<1>(side, high, Place { below, ..place }, codes);
    }
}

/// Levels of codes as f32.
#[inline(always)]
fn to_levels(codec: Codec, codes: &[u8], out: &mut [f32]) {
    let table = levels::of(codec);
    if table.is_empty() {
        for (out, code) in out.iter_mut().zip(codes) {
            *out = f32::from(*code as i8);
        }
    } else {
        // The length is a power of two: the mask proves that no code is outside.
        for (out, code) in out.iter_mut().zip(codes) {
            *out = f32::from(table[usize::from(*code) & (table.len() - 1)]);
        }
    }
}

/// Dimensions `first..` of one slot, at most [`GROUP_MAX`] of them, from a multiple of four on.
#[inline(always)]
pub(super) fn read_slot<C: Coder>(
    c: C,
    side: Side,
    form: Form,
    head_dim: usize,
    head: &[u8],
    slot: usize,
    first: usize,
    out: &mut [f32],
) {
    if form.codec.is_float() {
        let half = form.codec == F16;
        return float::get(c, side, half, head_dim, head, slot, first, out);
    }
    let Parts { low, high, scales } = plane::parts(form, head_dim, head);
    let mut codes = [0; GROUP_MAX];
    let codes = &mut codes[..out.len()];
    let below = 0;
    let place = Place { slot, first, below };
    match form.codec.planes() {
        [8] => plane::get::<8>(side, low, place, codes),
        [4, ..] => plane::get::<4>(side, low, place, codes),
        _ => plane::get::<2>(side, low, place, codes),
    }
    if let [below, 1] = *form.codec.planes() {
        plane::get::<1>(side, high, Place { below, ..place }, codes);
    }
    to_levels(form.codec, codes, out);
    let (mut at, mut out) = (first, out);
    while !out.is_empty() {
        // Up to the end of a group.
        let g = at / form.group;
        let (run, rest) = out.split_at_mut(out.len().min((g + 1) * form.group - at));
        let scale = c.half_at(scales, g * BLOCK_SLOTS + slot);
        for x in run.iter_mut() {
            *x *= scale;
        }
        at += run.len();
        out = rest;
    }
}

#[inline(always)]
fn read_head<C: Coder>(c: C, side: Side, dim: usize, form: Form, head: &[u8], out: &mut [f32]) {
    check_form(form, dim);
    assert_eq!(out.len(), dim * BLOCK_SLOTS);
    let head = &head[..form.head_bytes(dim)];
    if side == Side::V {
        for (slot, row) in out.chunks_exact_mut(dim).enumerate() {
            for (i, x) in row.chunks_mut(GROUP_MAX).enumerate() {
                read_slot(c, side, form, dim, head, slot, i * GROUP_MAX, x);
            }
        }
        return;
    }
    let (lines, _) = out.as_chunks_mut::<BLOCK_SLOTS>();
    let mut row = [0.0; GROUP_MAX];
    for (i, lines) in lines.chunks_mut(GROUP_MAX).enumerate() {
        let row = &mut row[..lines.len()];
        for slot in 0..BLOCK_SLOTS {
            read_slot(c, side, form, dim, head, slot, i * GROUP_MAX, row);
            for (line, x) in lines.iter_mut().zip(&*row) {
                line[slot] = *x;
            }
        }
    }
}

/// Group by group of the new form, as many slots at a time as the tile holds.
#[inline(always)]
fn recode_tiles<C: Coder>(
    c: C,
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
    let step = match to.codec.is_float() {
        true => FLOAT_STEP.min(head_dim),
        false => to.group.min(head_dim),
    };
    let at_once = (TILE / step).min(BLOCK_SLOTS);
    let mut tile = [0.0; TILE];
    let (mut group, mut codes) = (Group::EMPTY, NO_CODES);
    for (g, first) in (0..head_dim).step_by(step).enumerate() {
        let dims = (head_dim - first).min(step);
        for slots in (0..BLOCK_SLOTS).step_by(at_once) {
            // (slot, dim)
            let tile = &mut tile[..at_once.min(BLOCK_SLOTS - slots) * dims];
            for (i, row) in tile.chunks_exact_mut(dims).enumerate() {
                read_slot(c, side, from, head_dim, src, slots + i, first, row);
            }
            for (i, x) in tile.chunks_exact(dims).enumerate() {
                let slot = slots + i;
                if to.codec.is_float() {
                    float::put(side, to.codec == F16, head_dim, dst, slot, first, x);
                } else {
                    let parts = &mut plane::parts_mut(to, head_dim, dst);
                    put_group(c, side, to, parts, slot, g, x, &mut group, &mut codes);
                }
            }
        }
    }
}
