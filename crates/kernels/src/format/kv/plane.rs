//! Codes into planes and out of them: the bytes that [`super`] draws, and nothing about their
//! meaning.
//!
//! Writing goes along a head in ascending dimensions, from multiples of eight on, and leaves every
//! byte of the slot defined: bits without a dimension are zero.

use super::{BLOCK_SLOTS, Form, Side};

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

/// Where some codes of a slot lie in a plane.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub slot: usize,
    /// Their first dimension.
    pub first: usize,
    /// Bits of a code that lie in the plane before.
    pub below: usize,
}

/// Writes the bits of codes that this plane holds. Their first dimension is a multiple of eight.
#[inline(always)]
pub(super) fn put<const BITS: usize>(side: Side, plane: &mut [u8], at: Place, codes: &[u8]) {
    match side {
        Side::K => put_k::<BITS>(plane, at, codes),
        Side::V => put_v::<BITS>(plane, at, codes),
    }
}

/// Adds to `codes` the bits that this plane holds. Their first dimension is a multiple of four.
#[inline(always)]
pub(super) fn get<const BITS: usize>(side: Side, plane: &[u8], at: Place, codes: &mut [u8]) {
    match side {
        Side::K => get_k::<BITS>(plane, at, codes),
        Side::V => get_v::<BITS>(plane, at, codes),
    }
}

#[inline(always)]
fn put_k<const BITS: usize>(plane: &mut [u8], place: Place, codes: &[u8]) {
    let per = const { 8 / BITS };
    let (quads, _) = plane.as_chunks_mut::<4>();
    let mut at = place.first / 4;
    let whole = codes.chunks_exact(4);
    let rest = whole.remainder();
    for codes in whole {
        let quad = &mut quads[at / per * BLOCK_SLOTS + place.slot];
        put_quad::<BITS>(quad, place.below, at % per, codes);
        at += 1;
    }
    if !rest.is_empty() {
        let mut codes = [0; 4];
        codes[..rest.len()].copy_from_slice(rest);
        let quad = &mut quads[at / per * BLOCK_SLOTS + place.slot];
        put_quad::<BITS>(quad, place.below, at % per, &codes);
    }
}

/// The first field of a byte clears the others.
#[inline(always)]
fn put_quad<const BITS: usize>(quad: &mut [u8; 4], below: usize, field: usize, codes: &[u8]) {
    for (byte, code) in quad.iter_mut().zip(codes) {
        let kept = if field == 0 { 0 } else { *byte };
        *byte = kept | ((code >> below) & mask(BITS)) << (BITS * field);
    }
}

#[inline(always)]
fn put_v<const BITS: usize>(plane: &mut [u8], place: Place, codes: &[u8]) {
    let Place { slot, first, below } = place;
    let n = plane.len() / BLOCK_SLOTS;
    let (quads, _) = plane.as_chunks_mut::<4>();
    let (line, i) = (&mut quads[slot / 4 * n..][..n], slot % 4);
    if first == 0 {
        // A head shorter than its plane leaves bytes that no code clears.
        for quad in &mut line[codes.len().min(n)..] {
            quad[i] = 0;
        }
    }
    let (mut at, mut codes) = (first, codes);
    while !codes.is_empty() {
        let (field, j) = (at / n, at % n);
        let (run, rest) = codes.split_at(codes.len().min(n - j));
        let line = &mut line[j..j + run.len()];
        if field == 0 {
            for (quad, code) in line.iter_mut().zip(run) {
                quad[i] = (code >> below) & mask(BITS);
            }
        } else {
            for (quad, code) in line.iter_mut().zip(run) {
                quad[i] |= ((code >> below) & mask(BITS)) << (BITS * field);
            }
        }
        at += run.len();
        codes = rest;
    }
}

#[inline(always)]
fn get_k<const BITS: usize>(plane: &[u8], place: Place, codes: &mut [u8]) {
    let per = const { 8 / BITS };
    let (quads, _) = plane.as_chunks::<4>();
    for (at, codes) in (place.first / 4..).zip(codes.chunks_mut(4)) {
        let quad = &quads[at / per * BLOCK_SLOTS + place.slot];
        for (code, byte) in codes.iter_mut().zip(quad) {
            *code |= ((byte >> (BITS * (at % per))) & mask(BITS)) << place.below;
        }
    }
}

#[inline(always)]
fn get_v<const BITS: usize>(plane: &[u8], place: Place, codes: &mut [u8]) {
    let Place { slot, first, below } = place;
    let n = plane.len() / BLOCK_SLOTS;
    let (quads, _) = plane.as_chunks::<4>();
    let (line, i) = (&quads[slot / 4 * n..][..n], slot % 4);
    let (mut at, mut codes) = (first, codes);
    while !codes.is_empty() {
        let (field, j) = (at / n, at % n);
        let run = codes.len().min(n - j);
        let (to, rest) = codes.split_at_mut(run);
        for (code, quad) in to.iter_mut().zip(&line[j..j + run]) {
            *code |= ((quad[i] >> (BITS * field)) & mask(BITS)) << below;
        }
        at += run;
        codes = rest;
    }
}
