//! Rotations of a head: what they are, the same bits from every backend, and undone.

use haversack_kernels::cpu::Backend;
use haversack_kernels::format::kv::Rotation;
use haversack_kernels::ops::{rotate_head, unrotate_head};

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

fn rotated(backend: Backend, by: Rotation, x: &[f32]) -> Vec<f32> {
    let mut x = x.to_vec();
    rotate_head(backend, by, &mut x);
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
        let got = rotated(Backend::SCALAR, Rotation::Hadamard, &x);
        let size = dot(&x, &x).sqrt();
        for (got, want) in got.iter().zip(literal(&x)) {
            assert!((f64::from(*got) - want).abs() < 1e-6 * size, "{n}");
        }
    }
}

#[test]
fn all_backends_rotate_to_the_same_bits() {
    for n in 2..=300 {
        let x = numbers(n, 7 + n as u64);
        for by in [
            Rotation::None,
            Rotation::Hadamard,
            Rotation::Pairs,
            Rotation::Eights,
        ] {
            let want = rotated(Backend::SCALAR, by, &x);
            for backend in Backend::available() {
                let got = rotated(backend, by, &x);
                let same = want
                    .iter()
                    .zip(&got)
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{} {by:?} {n}", backend.name());
            }
        }
    }
}

#[test]
fn unrotating_and_products() {
    for n in (2..=256).step_by(2).chain([512, 514, 1000, 1024]) {
        let (x, y) = (numbers(n, 3 * n as u64), numbers(n, 5 * n as u64));
        let size = (dot(&x, &x) * dot(&y, &y)).sqrt();
        for backend in Backend::available() {
            for by in [
                Rotation::None,
                Rotation::Hadamard,
                Rotation::Pairs,
                Rotation::Eights,
            ] {
                let (tx, ty) = (rotated(backend, by, &x), rotated(backend, by, &y));
                assert!((dot(&tx, &ty) - dot(&x, &y)).abs() < 1e-6 * size, "{n}");
                let mut back = tx;
                unrotate_head(backend, by, &mut back);
                for (back, x) in back.iter().zip(&x) {
                    assert!(
                        (back - x).abs() <= 1e-6 * 3.0 * (n as f32).sqrt(),
                        "{n} {by:?}"
                    );
                }
                if by != Rotation::Hadamard {
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
        assert_eq!(rotated(Backend::SCALAR, Rotation::Pairs, &x), want);
    }
    let x: Vec<f32> = (0..18).map(|i| i as f32).collect();
    let want = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 16, 17];
    let got = rotated(Backend::SCALAR, Rotation::Eights, &x);
    assert_eq!(got, want.map(|i| i as f32));
}
