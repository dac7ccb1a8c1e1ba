//! Turning a head into another basis and back: see [`Turn`].
//!
//! The Hadamard transform of `n` values runs its steps 1, 2, 4, … `n / 2` apart: each takes a pair
//! to its sum and its difference, one rounding each. One multiplication by `1 / sqrt(n)` ends it,
//! which makes it its own inverse. Heads that are no power of two are turned in pieces, the
//! greatest power of two first: 80 = 64 + 16, 20 = 16 + 4.

use super::simd::{Simd, simd_fn};
use crate::LANES;
use crate::cpu::Table;
use crate::format::kv::Turn;

/// Values that [`Turn::Pairs`] reorders through a copy; more are reordered half by half.
const COPY_MAX: usize = 256;

/// Turns one head.
pub fn turn(table: Table, turn: Turn, head: &mut [f32]) {
    match turn {
        Turn::None => {}
        Turn::Hadamard => hadamard(table, head),
        Turn::Pairs => part(head),
        Turn::Eights => head.as_chunks_mut::<8>().0.iter_mut().for_each(|x| part(x)),
    }
}

/// Undoes [`turn`].
pub fn turn_back(table: Table, turn: Turn, head: &mut [f32]) {
    match turn {
        Turn::None => {}
        Turn::Hadamard => hadamard(table, head),
        Turn::Pairs => interleave(head),
        Turn::Eights => {
            let (eights, _) = head.as_chunks_mut::<8>();
            eights.iter_mut().for_each(|x| interleave(x));
        }
    }
}

/// Even elements first, then odd ones.
fn part(x: &mut [f32]) {
    if x.len() <= COPY_MAX {
        let (mut copy, evens) = ([0.0; COPY_MAX], x.len().div_ceil(2));
        copy[..x.len()].copy_from_slice(x);
        for (i, from) in copy[..x.len()].iter().enumerate() {
            x[i / 2 + if i % 2 == 1 { evens } else { 0 }] = *from;
        }
    } else {
        let middle = x.len() / 4 * 2;
        part(&mut x[..middle]);
        part(&mut x[middle..]);
        // even odd | even odd
        let evens = (x.len() - middle).div_ceil(2);
        x[middle / 2..middle + evens].rotate_left(middle / 2);
    }
}

/// Undoes [`part`].
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

/// The first piece of what is left of a head.
#[inline(always)]
fn piece(left: usize) -> usize {
    1 << left.ilog2()
}

/// Rounded once from f64, so no table has its own root.
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
    let mut apart = 1;
    while apart < x.len() {
        for pair in x.chunks_exact_mut(2 * apart) {
            let (a, b) = pair.split_at_mut(apart);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        apart *= 2;
    }
    let factor = factor(x.len());
    for x in x {
        *x *= factor;
    }
}

/// 1 where the lane is the first of its pair, -1 where it is the second.
const fn signs(apart: usize) -> [f32; LANES] {
    let mut signs = [1.0; LANES];
    let mut i = 0;
    while i < LANES {
        if i & apart != 0 {
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
    let mut apart = 1;
    while apart < x.len() {
        for pair in x.chunks_exact_mut(2 * apart) {
            let (a, b) = pair.split_at_mut(apart);
            for (a, b) in a.iter_mut().zip(b) {
                let (x, y) = (s.load(a), s.load(b));
                s.store(s.add(x, y), a);
                s.store(s.sub(x, y), b);
            }
        }
        apart *= 2;
    }
    for x in x {
        s.store(s.mul(s.load(x), s.splat(factor)), x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next() * 3.0).collect()
    }

    fn turned(table: Table, by: Turn, x: &[f32]) -> Vec<f32> {
        let mut x = x.to_vec();
        turn(table, by, &mut x);
        x
    }

    fn dot(a: &[f32], b: &[f32]) -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    }

    /// From the definition: the sign of entry (i, j) is the parity of `i & j`.
    fn literal(x: &[f32]) -> Vec<f64> {
        let (mut out, mut at) = (Vec::new(), 0);
        while at < x.len() {
            let n = 1 << (x.len() - at).ilog2();
            for i in 0..n {
                let sign = |j: usize| {
                    if (i & j).count_ones() % 2 == 1 {
                        -1.0
                    } else {
                        1.0
                    }
                };
                let sum: f64 = (0..n).map(|j| sign(j) * f64::from(x[at + j])).sum();
                out.push(sum / (n as f64).sqrt());
            }
            at += n;
        }
        out
    }

    #[test]
    fn hadamard_is_what_it_says_for_all_sizes() {
        for n in (2..=256).step_by(2) {
            let x = numbers(n, n as u64);
            let got = turned(Table::SCALAR, Turn::Hadamard, &x);
            let size = dot(&x, &x).sqrt();
            for (got, want) in got.iter().zip(literal(&x)) {
                assert!((f64::from(*got) - want).abs() < 1e-6 * size, "{n}");
            }
        }
    }

    #[test]
    fn all_tables_turn_to_the_same_bits() {
        for n in 2..=300 {
            let x = numbers(n, 7 + n as u64);
            for by in [Turn::None, Turn::Hadamard, Turn::Pairs, Turn::Eights] {
                let want = turned(Table::SCALAR, by, &x);
                for table in Table::available() {
                    let got = turned(table, by, &x);
                    let same = want
                        .iter()
                        .zip(&got)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{} {by:?} {n}", table.name());
                }
            }
        }
    }

    #[test]
    fn turning_back_and_products() {
        for n in (2..=256).step_by(2).chain([512, 514, 1000, 1024]) {
            let (x, y) = (numbers(n, 3 * n as u64), numbers(n, 5 * n as u64));
            let size = (dot(&x, &x) * dot(&y, &y)).sqrt();
            for table in Table::available() {
                for by in [Turn::None, Turn::Hadamard, Turn::Pairs, Turn::Eights] {
                    let (tx, ty) = (turned(table, by, &x), turned(table, by, &y));
                    assert!((dot(&tx, &ty) - dot(&x, &y)).abs() < 1e-6 * size, "{n}");
                    let mut back = tx;
                    turn_back(table, by, &mut back);
                    for (back, x) in back.iter().zip(&x) {
                        assert!(
                            (back - x).abs() <= 1e-6 * 3.0 * (n as f32).sqrt(),
                            "{n} {by:?}"
                        );
                    }
                    if by != Turn::Hadamard {
                        assert_eq!(back, x, "a reordering is exact");
                    }
                }
            }
        }
    }

    #[test]
    fn pairs_are_evens_then_odds() {
        for n in [2, 3, 10, 64, 256, 258, 301, 1024] {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let want: Vec<f32> = (0..n)
                .step_by(2)
                .chain((1..n).step_by(2))
                .map(|i| i as f32)
                .collect();
            assert_eq!(turned(Table::SCALAR, Turn::Pairs, &x), want);
        }
        let x: Vec<f32> = (0..18).map(|i| i as f32).collect();
        let want = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 16, 17];
        let got = turned(Table::SCALAR, Turn::Eights, &x);
        assert_eq!(got, want.map(|i| i as f32));
    }
}
