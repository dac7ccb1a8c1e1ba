//! One head of a block as a tile of f32: levels, or the floats themselves; scales stay apart.
//!
//! ```text
//! keys    (dim, slot)     one line of 32 slots for each dimension
//! values  (slot, dim)
//! ```
//!
//! Sinks stand in the tile as the values they are. Unpacked once, the tile serves all rows of a
//! unit. Slots that were never written hold anything.

use super::head::{Head, half_at};
use crate::attention::BLOCK_SLOTS;
use crate::format::kv::{Codec, levels as books};
use crate::ops::simd::{Simd, simd_fn};

/// Dimensions of the widest head whose codes are put together on the stack; wider ones take the
/// plain way.
const CODES_MAX: usize = 512;

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

simd_fn! {
    /// Keys: `tile` is (dim, slot).
    pub(crate) fn unpack_k(head: &Head<'_>, tile: &mut [f32]) = scalar_unpack_k, simd_unpack_k;
}

/// The code of one value, from all planes: `bits` are found where `place` says, as byte and shift
/// for `per` values to a byte.
fn code_of(head: &Head<'_>, place: impl Fn(usize, usize) -> (usize, usize)) -> usize {
    let mut code = 0;
    let mut above = 0;
    for (i, bits) in head.form.codec.planes().iter().enumerate() {
        let (byte, nth) = place(8 / bits, head.form.plane_bytes(i, head.dim));
        let field = usize::from(head.plane(i)[byte]) >> (bits * nth) & ((1 << bits) - 1);
        code |= field << above;
        above += bits;
    }
    code
}

/// A float, or the level of a code.
fn number(head: &Head<'_>, index: usize, place: impl Fn(usize, usize) -> (usize, usize)) -> f32 {
    match head.form.codec {
        Codec::F32 => {
            let at = &head.bytes[4 * index..];
            f32::from_le_bytes([at[0], at[1], at[2], at[3]])
        }
        Codec::F16 => half_at(head.bytes, index),
        Codec::Int8 => f32::from(head.bytes[index] as i8),
        codec => f32::from(levels(codec)[code_of(head, place)]),
    }
}

fn scalar_unpack_k(head: &Head<'_>, tile: &mut [f32]) {
    for d in 0..head.dim {
        for slot in 0..BLOCK_SLOTS {
            tile[d * BLOCK_SLOTS + slot] = if slot < head.sink_rows() {
                half_at(head.sink(slot), d)
            } else {
                number(head, d * BLOCK_SLOTS + slot, |per, _| {
                    (d / per * BLOCK_SLOTS + slot, d % per)
                })
            };
        }
    }
}

#[inline(always)]
fn simd_unpack_k<S: Simd>(s: S, head: &Head<'_>, tile: &mut [f32]) {
    let (lines, _) = tile[..head.dim * BLOCK_SLOTS].as_chunks_mut::<16>();
    match head.form.codec {
        Codec::F32 | Codec::F16 | Codec::Int8 => numbers(s, head, lines),
        codec @ (Codec::Int4 | Codec::Int4Plain) if head.dim.is_multiple_of(2) => {
            let levels = s.levels(&sixteen(codec));
            let (bytes, _) = head.plane(0).as_chunks::<16>();
            // Two lines of two vectors each.
            for (i, (to, from)) in lines
                .chunks_exact_mut(4)
                .zip(bytes.chunks_exact(2))
                .enumerate()
            {
                ask(s, head, 32 * i);
                for c in 0..2 {
                    let (low, high) = s.nibbles(levels, &from[c]);
                    s.store(low, &mut to[c]);
                    s.store(high, &mut to[2 + c]);
                }
            }
        }
        codec => {
            let levels = levels(codec);
            let (low, high) = (head.plane(0), high_plane(head));
            let bits = codec.planes()[0];
            let (low, _) = low.as_chunks::<16>();
            let (high, _) = high.as_chunks::<16>();
            let per = 8 / bits;
            let mask = (1u8 << bits) - 1;
            for d in 0..head.dim {
                ask(s, head, 32 * d);
                for c in 0..2 {
                    let field = s.field(s.bytes(&low[d / per * 2 + c]), bits * (d % per), mask);
                    let code = if high.is_empty() {
                        field
                    } else {
                        let bit = s.field(s.bytes(&high[d / 8 * 2 + c]), d % 8, 1);
                        s.join(field, bit, bits)
                    };
                    s.store(s.widen(s.level(&levels, code)), &mut lines[2 * d + c]);
                }
            }
        }
    }
    for slot in 0..head.sink_rows() {
        let sink = head.sink(slot);
        for d in (0..head.dim).step_by(16) {
            let values = halves(s, &sink[2 * d..]);
            for (i, value) in values.iter().enumerate().take(head.dim - d) {
                tile[(d + i) * BLOCK_SLOTS + slot] = *value;
            }
        }
    }
}

simd_fn! {
    /// Values of the first `slots` slots: `tile` is (slot, dim).
    pub(crate) fn unpack_v(head: &Head<'_>, slots: usize, tile: &mut [f32])
        = scalar_unpack_v, simd_unpack_v;
}

fn scalar_unpack_v(head: &Head<'_>, slots: usize, tile: &mut [f32]) {
    for slot in 0..slots {
        for d in 0..head.dim {
            tile[slot * head.dim + d] = if slot < head.sink_rows() {
                half_at(head.sink(slot), d)
            } else {
                number(head, slot * head.dim + d, |_, bytes| {
                    (slot * bytes + d % bytes, d / bytes)
                })
            };
        }
    }
}

#[inline(always)]
fn simd_unpack_v<S: Simd>(s: S, head: &Head<'_>, slots: usize, tile: &mut [f32]) {
    let dim = head.dim;
    if !dim.is_multiple_of(16) || dim > CODES_MAX {
        return scalar_unpack_v(head, slots, tile);
    }
    let (lines, _) = tile[..slots * dim].as_chunks_mut::<16>();
    match head.form.codec {
        Codec::F32 | Codec::F16 | Codec::Int8 => numbers(s, head, lines),
        codec @ (Codec::Int4 | Codec::Int4Plain) if dim.is_multiple_of(32) => {
            let levels = s.levels(&sixteen(codec));
            let (bytes, _) = head.plane(0).as_chunks::<16>();
            let slots = lines.chunks_exact_mut(dim / 16);
            for (i, (to, from)) in slots.zip(bytes.chunks_exact(dim / 32)).enumerate() {
                ask(s, head, i * dim / 2);
                let (to_low, to_high) = to.split_at_mut(dim / 32);
                for ((to_low, to_high), from) in to_low.iter_mut().zip(to_high).zip(from) {
                    let (low, high) = s.nibbles(levels, from);
                    s.store(low, to_low);
                    s.store(high, to_high);
                }
            }
        }
        codec => {
            let levels = levels(codec);
            let (low, high) = (head.plane(0), high_plane(head));
            let bits = codec.planes()[0];
            let mut codes = [0u8; CODES_MAX];
            for (slot, lines) in lines.chunks_exact_mut(dim / 16).enumerate() {
                ask(s, head, slot * dim / 2);
                spread(bits, 0, row_of(low, slot), &mut codes[..dim]);
                if !high.is_empty() {
                    spread(1, bits, row_of(high, slot), &mut codes[..dim]);
                }
                for (line, codes) in lines.iter_mut().zip(codes.as_chunks::<16>().0) {
                    s.store(s.widen(s.level(&levels, s.bytes(codes))), line);
                }
            }
        }
    }
    for slot in 0..head.sink_rows().min(slots) {
        let to = &mut tile[slot * dim..][..dim];
        for (to, from) in to.chunks_mut(16).zip(head.sink(slot).chunks(32)) {
            to.copy_from_slice(&halves(s, from)[..to.len()]);
        }
    }
}

/// One slot's bytes of a plane of values.
fn row_of(plane: &[u8], slot: usize) -> &[u8] {
    let bytes = plane.len() / BLOCK_SLOTS;
    &plane[slot * bytes..][..bytes]
}

/// One slot's fields of `bits` bits, each moved up by `above` and put beside what is there already
/// (`above` 0: in its place).
#[inline(always)]
fn spread(bits: usize, above: usize, row: &[u8], codes: &mut [u8]) {
    let mask = (1u8 << bits) - 1;
    for (i, codes) in codes.chunks_mut(row.len()).enumerate() {
        // Eight bytes in one word: what a shift moves into a neighbour is masked away.
        let (words, last) = codes.as_chunks_mut::<8>();
        let (from, _) = row.as_chunks::<8>();
        for (code, from) in words.iter_mut().zip(from) {
            let fields = u64::from_le_bytes(*from) >> (bits * i) & u64::from_le_bytes([mask; 8]);
            let kept = if above == 0 {
                0
            } else {
                u64::from_le_bytes(*code)
            };
            *code = (kept | fields << above).to_le_bytes();
        }
        let tail = &row[8 * words.len()..];
        for (code, byte) in last.iter_mut().zip(tail) {
            let field = (byte >> (bits * i) & mask) << above;
            *code = if above == 0 { field } else { *code | field };
        }
    }
}

/// The second plane, or nothing.
fn high_plane<'a>(head: &Head<'a>) -> &'a [u8] {
    match head.form.codec.planes().len() {
        1 => &[],
        _ => head.plane(1),
    }
}

/// Numbers that are stored as themselves, in the order they have in a tile.
#[inline(always)]
fn numbers<S: Simd>(s: S, head: &Head<'_>, lines: &mut [[f32; 16]]) {
    match head.form.codec {
        Codec::F32 => {
            let (from, _) = head.bytes.as_chunks::<4>();
            let (from, _) = from.as_chunks::<16>();
            for (to, from) in lines.iter_mut().zip(from) {
                *to = from.map(f32::from_le_bytes);
            }
        }
        Codec::F16 => {
            let (from, _) = head.bytes.as_chunks::<32>();
            for (i, (to, from)) in lines.iter_mut().zip(from).enumerate() {
                ask(s, head, 32 * i);
                s.store(s.load_half(from), to);
            }
        }
        _ => {
            let (from, _) = head.bytes.as_chunks::<16>();
            for (i, (to, from)) in lines.iter_mut().zip(from).enumerate() {
                if i % 4 == 0 {
                    ask(s, head, 16 * i);
                }
                s.store(s.widen(s.bytes(from)), to);
            }
        }
    }
}

/// Sixteen f16, or as many as there are.
#[inline(always)]
fn halves<S: Simd>(s: S, from: &[u8]) -> [f32; 16] {
    let mut out = [0.0; 16];
    match from.first_chunk::<32>() {
        Some(from) => s.store(s.load_half(from), &mut out),
        None => {
            let mut padded = [0; 32];
            padded[..from.len()].copy_from_slice(from);
            s.store(s.load_half(&padded), &mut out);
        }
    }
    out
}

/// Asks for the memory that is as far into what is ahead. One line at a time, between other work:
/// asking for many at once waits for the first.
#[inline(always)]
fn ask<S: Simd>(s: S, head: &Head<'_>, at: usize) {
    s.prefetch(head.ahead.as_ptr().wrapping_add(at.min(head.ahead.len())));
}
