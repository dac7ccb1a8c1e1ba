//! Codes into planes and out of them: the bytes that [`super`] draws, and nothing about their
//! meaning.
//!
//! Writing goes along a head in ascending dimensions, from multiples of eight on, and leaves every
//! byte of the slot defined: bits without a dimension are zero.

use super::{BLOCK_SLOTS, Form};

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

/// The low bits.
const fn mask(bits: usize) -> u8 {
    (0xff_u16 >> (8 - bits)) as u8
}

/// Writes codes, shifted right by `drop` first, as the keys of a slot from dimension `first` on.
#[inline(always)]
pub(super) fn put_k<const BITS: usize>(
    plane: &mut [u8],
    drop: usize,
    slot: usize,
    first: usize,
    codes: &[u8],
) {
    let per = const { 8 / BITS };
    let (lines, _) = plane.as_chunks_mut::<BLOCK_SLOTS>();
    let lines = &mut lines[first / per..];
    let whole = codes.chunks_exact(per);
    let rest = whole.remainder();
    for (line, codes) in lines.iter_mut().zip(whole) {
        line[slot] = byte::<BITS>(drop, codes);
    }
    if !rest.is_empty() {
        lines[codes.len() / per][slot] = byte::<BITS>(drop, rest);
    }
}

/// Neighbours in one byte, the first lowest.
#[inline(always)]
fn byte<const BITS: usize>(drop: usize, codes: &[u8]) -> u8 {
    let mut byte = 0;
    for (i, code) in codes.iter().enumerate() {
        byte |= ((code >> drop) & mask(BITS)) << (BITS * i);
    }
    byte
}

/// Writes codes, shifted right by `drop` first, as the values of a slot from dimension `first` on.
#[inline(always)]
pub(super) fn put_v<const BITS: usize>(
    plane: &mut [u8],
    drop: usize,
    slot: usize,
    first: usize,
    codes: &[u8],
) {
    let n = plane.len() / BLOCK_SLOTS;
    let line = &mut plane[slot * n..][..n];
    let (mut at, mut codes) = (first, codes);
    while !codes.is_empty() {
        let (part, j) = (at / n, at % n);
        let (run, rest) = codes.split_at(codes.len().min(n - j));
        let line = &mut line[j..j + run.len()];
        if part == 0 {
            for (byte, code) in line.iter_mut().zip(run) {
                *byte = (code >> drop) & mask(BITS);
            }
        } else {
            for (byte, code) in line.iter_mut().zip(run) {
                *byte |= ((code >> drop) & mask(BITS)) << (BITS * part);
            }
        }
        at += run.len();
        codes = rest;
    }
}

/// Adds to `codes` the bits that a plane of keys holds of one dimension of all slots, shifted left
/// by `lift`.
#[inline(always)]
pub(super) fn get_k<const BITS: usize>(
    plane: &[u8],
    lift: usize,
    dim: usize,
    codes: &mut [u8; BLOCK_SLOTS],
) {
    let per = const { 8 / BITS };
    let shift = BITS * (dim % per);
    let (lines, _) = plane.as_chunks::<BLOCK_SLOTS>();
    for (code, byte) in codes.iter_mut().zip(&lines[dim / per]) {
        *code |= ((byte >> shift) & mask(BITS)) << lift;
    }
}

/// Adds to `codes` the bits that a plane of values holds of one slot from dimension `first` on,
/// shifted left by `lift`.
#[inline(always)]
pub(super) fn get_v<const BITS: usize>(
    plane: &[u8],
    lift: usize,
    slot: usize,
    first: usize,
    codes: &mut [u8],
) {
    let n = plane.len() / BLOCK_SLOTS;
    let line = &plane[slot * n..][..n];
    let (mut at, mut codes) = (first, codes);
    while !codes.is_empty() {
        let (part, j) = (at / n, at % n);
        let run = codes.len().min(n - j);
        let (to, rest) = codes.split_at_mut(run);
        for (code, byte) in to.iter_mut().zip(&line[j..j + run]) {
            *code |= ((byte >> (BITS * part)) & mask(BITS)) << lift;
        }
        at += run;
        codes = rest;
    }
}
