//! Moves a head into another orthogonal basis and back: see [`Rotation`].
//!
//! The Hadamard transform of `n` values runs its steps 1, 2, 4, … `n / 2` apart: each takes a pair
//! to its sum and its difference, one rounding each. One multiplication by `1 / sqrt(n)` ends it,
//! which makes it its own inverse. A head whose size is no power of two is transformed in pieces, the
//! greatest power of two first: 80 = 64 + 16, 20 = 16 + 4.

use crate::LANES;
use crate::cpu::Backend;
use crate::simd::{Simd, simd_fn};

/// The basis change of a head before it is encoded; attention undoes it on its output. Each is
/// orthogonal, so the dot product with a query that was rotated too stays the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rotation {
    #[default]
    None,
    /// The Hadamard transform, which spreads outliers over the head.
    Hadamard,
    /// `(0, 2, 4, …, 1, 3, 5, …)`: puts neighbours into one byte of the values' planes.
    Pairs,
    /// `(0, 2, 4, 6, 1, 3, 5, 7)` of every eight: the same for the keys' planes. A last
    /// group of fewer than eight stays.
    Eights,
}

/// Values that [`Rotation::Pairs`] reorders through a copy; more are reordered half by half.
const COPY_MAX: usize = 256;

/// Rotates one head in place.
pub fn rotate_head(backend: Backend, rotation: Rotation, head: &mut [f32]) {
    match rotation {
        Rotation::None => {}
        Rotation::Hadamard => hadamard(backend, head),
        Rotation::Pairs => deinterleave(head),
        Rotation::Eights => head
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .for_each(|x| deinterleave(x)),
    }
}

/// Undoes [`rotate_head`].
pub fn unrotate_head(backend: Backend, rotation: Rotation, head: &mut [f32]) {
    match rotation {
        Rotation::None => {}
        Rotation::Hadamard => hadamard(backend, head),
        Rotation::Pairs => interleave(head),
        Rotation::Eights => {
            let (eights, _) = head.as_chunks_mut::<8>();
            eights.iter_mut().for_each(|x| interleave(x));
        }
    }
}

/// Even elements first, then odd ones.
fn deinterleave(x: &mut [f32]) {
    if x.len() <= COPY_MAX {
        let (mut copy, evens) = ([0.0; COPY_MAX], x.len().div_ceil(2));
        copy[..x.len()].copy_from_slice(x);
        for (i, from) in copy[..x.len()].iter().enumerate() {
            x[i / 2 + if i % 2 == 1 { evens } else { 0 }] = *from;
        }
    } else {
        let middle = x.len() / 4 * 2;
        deinterleave(&mut x[..middle]);
        deinterleave(&mut x[middle..]);
        // even odd | even odd
        let evens = (x.len() - middle).div_ceil(2);
        x[middle / 2..middle + evens].rotate_left(middle / 2);
    }
}

/// Undoes [`deinterleave`].
fn interleave(x: &mut [f32]) {
    if x.len() <= COPY_MAX {
        let (mut copy, evens) = ([0.0; COPY_MAX], x.len().div_ceil(2));
        copy[..x.len()].copy_from_slice(x);
        for (i, to) in x.iter_mut().enumerate() {
            *to = copy[i / 2 + if i % 2 == 1 { evens } else { 0 }];
        }
    } else {
        let middle = x.len() / 4 * 2;
        let evens = (x.len() - middle).div_ceil(2);
        x[middle / 2..middle + evens].rotate_right(middle / 2);
        interleave(&mut x[..middle]);
        interleave(&mut x[middle..]);
    }
}

simd_fn! {
    fn hadamard(head: &mut [f32]) = scalar_hadamard, simd_hadamard;
}

/// The size of the first piece of what is left of a head.
#[inline(always)]
fn piece(left: usize) -> usize {
    1 << left.ilog2()
}

/// Rounded once from f64, so every backend has the same root.
#[inline(always)]
fn factor(n: usize) -> f32 {
    (1.0 / (n as f64).sqrt()) as f32
}

fn scalar_hadamard(mut head: &mut [f32]) {
    while !head.is_empty() {
        let (x, rest) = head.split_at_mut(piece(head.len()));
        scalar_piece(x);
        head = rest;
    }
}

#[inline(always)]
fn scalar_piece(x: &mut [f32]) {
    let mut distance = 1;
    while distance < x.len() {
        for pair in x.chunks_exact_mut(2 * distance) {
            let (a, b) = pair.split_at_mut(distance);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        distance *= 2;
    }
    let factor = factor(x.len());
    for x in x {
        *x *= factor;
    }
}

/// 1 where the lane is the first of its pair, -1 where it is the second.
const fn signs(distance: usize) -> [f32; LANES] {
    let mut signs = [1.0; LANES];
    let mut i = 0;
    while i < LANES {
        if i & distance != 0 {
            signs[i] = -1.0;
        }
        i += 1;
    }
    signs
}

#[inline(always)]
fn simd_hadamard<S: Simd>(s: S, mut head: &mut [f32]) {
    while !head.is_empty() {
        let (x, rest) = head.split_at_mut(piece(head.len()));
        if x.len() < LANES {
            scalar_piece(x);
        } else {
            simd_piece(s, x);
        }
        head = rest;
    }
}

/// A power of two from sixteen on.
#[inline(always)]
fn simd_piece<S: Simd>(s: S, x: &mut [f32]) {
    let factor = factor(x.len());
    let (x, _) = x.as_chunks_mut::<LANES>();
    // Within a vector: the other of the pair plus or minus the lane itself. A product with one is
    // exact, so the sum is rounded once.
    let [one, two, four, eight] = const { [signs(1), signs(2), signs(4), signs(8)] };
    for x in x.iter_mut() {
        let mut v = s.load(x);
        v = s.fma(v, s.load(&one), s.swap_lanes::<1>(v));
        v = s.fma(v, s.load(&two), s.swap_lanes::<2>(v));
        v = s.fma(v, s.load(&four), s.swap_lanes::<4>(v));
        v = s.fma(v, s.load(&eight), s.swap_lanes::<8>(v));
        s.store(v, x);
    }
    let mut distance = 1;
    while distance < x.len() {
        for pair in x.chunks_exact_mut(2 * distance) {
            let (a, b) = pair.split_at_mut(distance);
            for (a, b) in a.iter_mut().zip(b) {
                let (x, y) = (s.load(a), s.load(b));
                s.store(s.add(x, y), a);
                s.store(s.sub(x, y), b);
            }
        }
        distance *= 2;
    }
    for x in x {
        s.store(s.mul(s.load(x), s.splat(factor)), x);
    }
}
