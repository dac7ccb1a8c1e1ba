//! Codes of one head of a block as a tile of levels, a byte each, in fours as [`super::whole`] reads
//! them.
//!
//! ```text
//! keys    (four of dimensions, slot, 4)
//! values  (four of slots, dim, 4)
//! ```
//!
//! Bytes of a plane that hold the same bits of a tile's neighbours are neighbours too: unpacking is
//! shifting and masking runs of bytes, and looking the codes up. Unpacked once, the tile serves all
//! rows of a unit. Slots that were never written hold anything.

use super::head::Head;
use crate::attention::BLOCK_SLOTS;
use crate::format::kv::{Codec, levels as books};
use crate::ops::simd::Simd;

/// The levels of a codec, as long as the longest.
fn levels(codec: Codec) -> [i8; 32] {
    let mut all = [0; 32];
    let levels = books::of(codec);
    all[..levels.len()].copy_from_slice(levels);
    all
}

/// The levels of a four-bit codec.
pub(super) fn sixteen(codec: Codec) -> [i8; 16] {
    let mut all = [0; 16];
    all.copy_from_slice(&levels(codec)[..16]);
    all
}

/// One level of a key or a value, for the dumb twins.
pub(super) fn level(head: &Head<'_>, is_value: bool, slot: usize, d: usize) -> i8 {
    let (mut code, mut above) = (0, 0);
    for (i, bits) in head.form.codec.planes().iter().enumerate() {
        let (per, bytes) = (8 / bits, head.form.plane_bytes(i, head.dim));
        let (byte, field) = if is_value {
            ((slot / 4 * bytes + d % bytes) * 4 + slot % 4, d / bytes)
        } else {
            ((d / 4 / per * BLOCK_SLOTS + slot) * 4 + d % 4, d / 4 % per)
        };
        code |= (usize::from(head.plane(i)[byte]) >> (bits * field) & ((1 << bits) - 1)) << above;
        above += bits;
    }
    match head.form.codec {
        Codec::Int8 => code as u8 as i8,
        codec => levels(codec)[code],
    }
}

/// Keys: `tile` is (four, slot, 4).
#[inline(always)]
pub(super) fn keys<S: Simd>(s: S, head: &Head<'_>, tile: &mut [u8]) {
    const LINE: usize = 4 * BLOCK_SLOTS;
    let tile = &mut tile[..head.dim.div_ceil(4) * LINE];
    let mut above = 0;
    for (i, bits) in head.form.codec.planes().iter().enumerate() {
        let per = 8 / bits;
        let lines = head.plane(i).chunks_exact(LINE);
        for (j, (from, fours)) in lines.zip(tile.chunks_mut(per * LINE)).enumerate() {
            ask(s, head, j * LINE);
            for (field, to) in fours.chunks_exact_mut(LINE).enumerate() {
                spread(*bits, field, above, from, to);
            }
        }
        above += bits;
    }
    look_up(s, head.form.codec, tile);
}

/// Values of the first `slots` slots, in whole fours: `tile` is (four, dim, 4).
#[inline(always)]
pub(super) fn values<S: Simd>(s: S, head: &Head<'_>, slots: usize, tile: &mut [u8]) {
    let dim = head.dim;
    let tile = &mut tile[..slots.div_ceil(4) * 4 * dim];
    let mut above = 0;
    for (i, bits) in head.form.codec.planes().iter().enumerate() {
        let n = head.form.plane_bytes(i, dim);
        let fours = head.plane(i).chunks_exact(4 * n);
        for (j, (from, to)) in fours.zip(tile.chunks_exact_mut(4 * dim)).enumerate() {
            ask(s, head, j * 4 * n);
            for (field, to) in to.chunks_mut(4 * n).enumerate() {
                spread(*bits, field, above, &from[..to.len()], to);
            }
        }
        above += bits;
    }
    look_up(s, head.form.codec, tile);
}

/// Fields of `bits` bits, each moved up by `above` and put beside what is there already (`above` 0: in
/// its place).
#[inline(always)]
fn spread(bits: usize, field: usize, above: usize, from: &[u8], to: &mut [u8]) {
    let (shift, mask) = (bits * field, ((1u16 << bits) - 1) as u8);
    if above == 0 {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from >> shift & mask;
        }
    } else {
        for (to, from) in to.iter_mut().zip(from) {
            *to |= (from >> shift & mask) << above;
        }
    }
}

/// Codes become levels.
#[inline(always)]
fn look_up<S: Simd>(s: S, codec: Codec, tile: &mut [u8]) {
    let levels = levels(codec);
    let (whole, rest) = tile.as_chunks_mut::<64>();
    for codes in whole {
        s.look_up(&levels, codes);
    }
    for code in rest {
        *code = levels[usize::from(*code) % 32] as u8;
    }
}

/// Asks for the memory that is as far into what is ahead. One line at a time, between other work:
/// asking for many at once waits for the first.
#[inline(always)]
fn ask<S: Simd>(s: S, head: &Head<'_>, at: usize) {
    for at in [at, at + 64] {
        s.prefetch(head.ahead.as_ptr().wrapping_add(at.min(head.ahead.len())));
    }
}
