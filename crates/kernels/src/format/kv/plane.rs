//! Codes into planes and out of them: the bytes that [`super`] draws, and nothing about their
//! meaning.
//!
//! Writing goes along a head in ascending dimensions, from multiples of eight on, and leaves every
//! byte of the slot defined: bits without a dimension are zero.

use super::{BLOCK_SLOTS, Form};
use std::ops::Range;

/// One head of a block of integers, cut into its parts.
pub(super) struct Parts<B> {
    pub low: B,
    /// Empty where codes have one plane.
    pub high: B,
    pub scales: B,
}

fn sizes(form: Form, head_dim: usize) -> (usize, usize) {
    let high = match form.codec.planes().len() {
        1 => 0,
        _ => form.plane_bytes(1, head_dim),
    };
    (form.plane_bytes(0, head_dim), high)
}

/// `head` is exactly one head.
#[inline(always)]
pub(super) fn parts(form: Form, head_dim: usize, head: &[u8]) -> Parts<&[u8]> {
    let (low, high) = sizes(form, head_dim);
    let (low, rest) = head.split_at(BLOCK_SLOTS * low);
    let (high, scales) = rest.split_at(BLOCK_SLOTS * high);
    Parts { low, high, scales }
}

/// `head` is exactly one head.
#[inline(always)]
pub(super) fn parts_mut(form: Form, head_dim: usize, head: &mut [u8]) -> Parts<&mut [u8]> {
    let (low, high) = sizes(form, head_dim);
    let (low, rest) = head.split_at_mut(BLOCK_SLOTS * low);
    let (high, scales) = rest.split_at_mut(BLOCK_SLOTS * high);
    Parts { low, high, scales }
}

/// Writes codes of `bits` bits, shifted right by `drop` first, as the keys of a slot from dimension
/// `first` on.
#[inline(always)]
pub(super) fn put_k(
    plane: &mut [u8],
    bits: usize,
    drop: usize,
    slot: usize,
    first: usize,
    codes: &[u8],
) {
    let per = 8 / bits;
    let mask = (0xff_u16 >> (8 - bits)) as u8;
    let (lines, _) = plane.as_chunks_mut::<BLOCK_SLOTS>();
    let lines = &mut lines[first / per..];
    for (line, codes) in lines.iter_mut().zip(codes.chunks(per)) {
        let mut byte = 0;
        for (i, code) in codes.iter().enumerate() {
            byte |= ((code >> drop) & mask) << (bits * i);
        }
        line[slot] = byte;
    }
}

/// Writes codes of `bits` bits, shifted right by `drop` first, as the values of a slot from
/// dimension `first` on; `line` is that slot's bytes.
#[inline(always)]
pub(super) fn put_v(line: &mut [u8], bits: usize, drop: usize, first: usize, codes: &[u8]) {
    let n = line.len();
    let mask = (0xff_u16 >> (8 - bits)) as u8;
    let (mut at, mut codes) = (first, codes);
    while !codes.is_empty() {
        let (part, j) = (at / n, at % n);
        let (run, rest) = codes.split_at(codes.len().min(n - j));
        let line = &mut line[j..j + run.len()];
        if part == 0 {
            for (byte, code) in line.iter_mut().zip(run) {
                *byte = (code >> drop) & mask;
            }
        } else {
            for (byte, code) in line.iter_mut().zip(run) {
                *byte |= ((code >> drop) & mask) << (bits * part);
            }
        }
        at += run.len();
        codes = rest;
    }
}

/// Adds to `codes` the bits that a plane of keys holds of one dimension of all slots, shifted left
/// by `lift`.
#[inline(always)]
pub(super) fn get_k(
    plane: &[u8],
    bits: usize,
    lift: usize,
    dim: usize,
    codes: &mut [u8; BLOCK_SLOTS],
) {
    let per = 8 / bits;
    let mask = (0xff_u16 >> (8 - bits)) as u8;
    let shift = bits * (dim % per);
    let (lines, _) = plane.as_chunks::<BLOCK_SLOTS>();
    for (code, byte) in codes.iter_mut().zip(&lines[dim / per]) {
        *code |= ((byte >> shift) & mask) << lift;
    }
}

/// Adds to `codes` the bits that one slot's line of values holds of some dimensions, shifted left
/// by `lift`.
#[inline(always)]
pub(super) fn get_v(line: &[u8], bits: usize, lift: usize, dims: Range<usize>, codes: &mut [u8]) {
    let n = line.len();
    let mask = (0xff_u16 >> (8 - bits)) as u8;
    let (mut at, mut codes) = (dims.start, &mut codes[..dims.len()]);
    while !codes.is_empty() {
        let (part, j) = (at / n, at % n);
        let run = codes.len().min(n - j);
        let (to, rest) = codes.split_at_mut(run);
        for (code, byte) in to.iter_mut().zip(&line[j..j + run]) {
            *code |= ((byte >> (bits * part)) & mask) << lift;
        }
        at += run;
        codes = rest;
    }
}
