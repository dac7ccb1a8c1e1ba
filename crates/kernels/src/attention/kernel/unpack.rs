//! Codes of one head of a block as a tile of levels, a byte each, in quads as [`super::integer`] reads
//! them.
//!
//! ```text
//! keys    (quad of dimensions, slot, 4)
//! values  (quad of slots, dim, 4)
//! ```
//!
//! Bytes of a plane that hold the same bits of a tile's neighbours are neighbours too: unpacking is
//! shifting and masking runs of bytes, and looking the codes up. Unpacked once, the tile serves all
//! rows of a unit. Slots that were never written hold arbitrary bytes.

use super::level_dot::LevelDot;
use super::piece::Head;
use crate::format::kv::{BLOCK_SLOTS, Codec, levels as books};

/// The levels of a codec, padded to thirty-two.
fn levels(codec: Codec) -> [i8; 32] {
    let mut all = [0; 32];
    let levels = books::of(codec);
    all[..levels.len()].copy_from_slice(levels);
    all
}

/// The levels of a four-bit codec.
pub(super) fn sixteen_levels(codec: Codec) -> [i8; 16] {
    let mut all = [0; 16];
    all.copy_from_slice(&levels(codec)[..16]);
    all
}

/// One level of a key or a value, for the scalar reference.
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

/// Keys: `tile` is (quad, slot, 4).
#[inline(always)]
pub(super) fn keys<S: LevelDot>(s: S, head: &Head<'_>, tile: &mut [u8]) {
    const LINE: usize = 4 * BLOCK_SLOTS;
    let tile = &mut tile[..head.dim.div_ceil(4) * LINE];
    let mut above = 0;
    for (i, bits) in head.form.codec.planes().iter().enumerate() {
        let per = 8 / bits;
        let lines = head.plane(i).chunks_exact(LINE);
        for (j, (from, quads)) in lines.zip(tile.chunks_mut(per * LINE)).enumerate() {
            prefetch_next(s, head, j * LINE);
            for (field, to) in quads.chunks_exact_mut(LINE).enumerate() {
                spread(*bits, field, above, from, to);
            }
        }
        above += bits;
    }
    look_up(s, head.form.codec, tile);
}

/// Values of the first `slots` slots, in whole quads: `tile` is (quad, dim, 4).
#[inline(always)]
pub(super) fn values<S: LevelDot>(s: S, head: &Head<'_>, slots: usize, tile: &mut [u8]) {
    let dim = head.dim;
    let tile = &mut tile[..slots.div_ceil(4) * 4 * dim];
    let mut above = 0;
    for (i, bits) in head.form.codec.planes().iter().enumerate() {
        let n = head.form.plane_bytes(i, dim);
        let quads = head.plane(i).chunks_exact(4 * n);
        for (j, (from, to)) in quads.zip(tile.chunks_exact_mut(4 * dim)).enumerate() {
            prefetch_next(s, head, j * 4 * n);
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
fn look_up<S: LevelDot>(s: S, codec: Codec, tile: &mut [u8]) {
    let levels = levels(codec);
    let (whole, rest) = tile.as_chunks_mut::<64>();
    for codes in whole {
        s.look_up(&levels, codes);
    }
    for code in rest {
        *code = levels[usize::from(*code) % 32] as u8;
    }
}

/// Prefetches at the same offset of what is read next. One line at a time, between other work:
/// prefetching many at once waits for the first.
#[inline(always)]
fn prefetch_next<S: LevelDot>(s: S, head: &Head<'_>, at: usize) {
    for at in [at, at + 64] {
        s.prefetch(
            head.upcoming
                .as_ptr()
                .wrapping_add(at.min(head.upcoming.len())),
        );
    }
}
