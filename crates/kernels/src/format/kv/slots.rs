//! Copies slots from one block to another of the same shape, without decoding.
//!
//! Every byte of a plane belongs to one slot.

use super::{BLOCK_SLOTS, Form, KvShape};
use std::ops::Range;

/// Copies all heads of one slot, keys and values. Both are whole blocks of `shape`.
pub fn copy_slot(shape: KvShape, from: &[u8], from_slot: usize, to: &mut [u8], to_slot: usize) {
    assert!(from_slot < BLOCK_SLOTS && to_slot < BLOCK_SLOTS);
    assert!(from.len() >= shape.block_bytes() && to.len() >= shape.block_bytes());
    each_piece(shape, |piece| {
        for (a, b) in piece.of(from_slot).zip(piece.of(to_slot)) {
            to[b].copy_from_slice(&from[a]);
        }
    });
}

/// The same inside one block.
pub fn move_slot(shape: KvShape, block: &mut [u8], from_slot: usize, to_slot: usize) {
    assert!(from_slot < BLOCK_SLOTS && to_slot < BLOCK_SLOTS);
    assert!(block.len() >= shape.block_bytes());
    each_piece(shape, |piece| {
        for (a, b) in piece.of(from_slot).zip(piece.of(to_slot)) {
            block.copy_within(a, b.start);
        }
    });
}

/// Runs of bytes that one slot has in a part of a block, as far apart as in every other slot.
#[derive(Clone, Copy)]
struct Piece {
    /// Of the part.
    start: usize,
    /// Coded values lie in quads of slots; everything else lies slot by slot.
    by_quads: bool,
    /// Bytes of a run, from one run to the next, and how many.
    bytes: usize,
    stride: usize,
    count: usize,
}

impl Piece {
    fn of(self, slot: usize) -> impl Iterator<Item = Range<usize>> {
        let first = match self.by_quads {
            true => slot / 4 * self.count * 4 + slot % 4,
            false => slot * self.bytes,
        };
        (0..self.count).map(move |i| {
            let at = self.start + first + i * self.stride;
            at..at + self.bytes
        })
    }
}

/// Every piece of a block.
fn each_piece(shape: KvShape, mut f: impl FnMut(Piece)) {
    let mut start = 0;
    for (keys, form) in [(true, shape.form.k), (false, shape.form.v)] {
        for _ in 0..shape.kv_heads {
            head_pieces(keys, form, shape.head_dim, start, &mut f);
            start += form.head_bytes(shape.head_dim);
        }
    }
}

fn head_pieces(
    keys: bool,
    form: Form,
    head_dim: usize,
    mut start: usize,
    f: &mut impl FnMut(Piece),
) {
    for (i, &bits) in form.codec.planes().iter().enumerate() {
        let slot = form.plane_bytes(i, head_dim);
        let lines = |bytes: usize| Piece {
            start,
            by_quads: false,
            bytes,
            stride: BLOCK_SLOTS * bytes,
            count: slot / bytes,
        };
        f(match (keys, form.codec.is_float()) {
            (true, true) => lines(bits / 8),
            (true, false) => lines(4),
            (false, true) => lines(slot),
            (false, false) => Piece {
                start,
                by_quads: true,
                bytes: 1,
                stride: 4,
                count: slot,
            },
        });
        start += BLOCK_SLOTS * slot;
    }
    f(Piece {
        start,
        by_quads: false,
        bytes: 2,
        stride: 2 * BLOCK_SLOTS,
        count: form.groups(head_dim),
    });
}
