//! Codebooks are what their comments say: trained, and approximated by their curves.

use haversack_kernels::format::kv::Codec;
use haversack_kernels::format::kv::levels::{BOOK2, BOOK3, BOOK4, BOOK5, Codebook, Curve, of};

/// Numbers between zero and one that never change.
struct Noise(u64);

impl Noise {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        ((self.0 >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let (radius, angle) = ((-2.0 * self.unit().ln()).sqrt(), self.unit());
        radius * (std::f64::consts::TAU * angle).cos()
    }
}

/// The index of the level nearest to `x`.
fn nearest<const N: usize>(book: &Codebook<N>, x: f64) -> usize {
    let bounds = book.bounds[1..].iter();
    bounds.filter(|bound| x >= f64::from(**bound)).count()
}

/// The scale of either sign that leaves the least error, of ninety-six.
fn best_scale<const N: usize>(table: &[i8], book: &Codebook<N>, x: &[f64]) -> f64 {
    let max = x.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let (mut best_gain, mut best) = (0.0, 1.0);
    for (sign, i) in [1.0, -1.0]
        .into_iter()
        .flat_map(|s| (0..48).map(move |i| (s, i)))
    {
        let by = sign * (0.3 + 0.02 * f64::from(i)) * max / 127.0;
        let (mut lx, mut ll) = (0.0, 0.0);
        for x in x {
            let level = f64::from(table[nearest(book, x / by)]);
            (lx, ll) = (lx + level * x, ll + level * level);
        }
        if lx * lx / ll > best_gain {
            (best_gain, best) = (lx * lx / ll, lx / ll);
        }
    }
    best
}

/// How far the mean of the values nearest to a level may be from it: rounding is a half, and so few
/// groups leave a level uncertain by a quarter.
const OFF_MAX: f64 = 0.8;

fn check<const N: usize>(codec: Codec, book: &Codebook<N>) {
    let table = of(codec);
    assert_eq!(table.len(), N);
    assert!(table.windows(2).all(|l| l[0] < l[1]), "{codec} ascends");
    assert!((table[N - 1], book.top) == (127, 127.0), "{codec}");
    assert_eq!(-book.bottom, f32::from(table[0]));
    // Zero times infinity says that a group is zeros.
    assert!(book.bounds[1..].iter().all(|b| *b != 0.0), "{codec}");

    let mut noise = Noise(1);
    let (mut sums, mut weights) = ([0.0; N], [0.0; N]);
    for _ in 0..2000 {
        let x: [f64; 64] = std::array::from_fn(|_| noise.normal());
        let scale = best_scale(table, book, &x);
        for x in x {
            let i = nearest(book, x / scale);
            sums[i] += x * scale;
            weights[i] += scale * scale;
        }
    }
    let means: [f64; N] = std::array::from_fn(|i| sums[i] / weights[i]);
    for (level, mean) in table.iter().zip(means) {
        let off = f64::from(*level) - mean * 127.0 / means[N - 1];
        println!("{codec}: level {level} off by {off:.2}");
        assert!(off.abs() < OFF_MAX, "{codec}: level {level} off by {off}");
    }
}

#[test]
fn levels_are_means() {
    check(Codec::Int5, &BOOK5);
    check(Codec::Int4, &BOOK4);
    check(Codec::Int3, &BOOK3);
    check(Codec::Int2, &BOOK2);
}

fn at(curve: Curve, x: f32) -> f32 {
    curve.iter().fold(0.0, |sum, c| sum * x + c)
}

/// Between the ends the curves lead to the nearest level, or to its neighbour when within half a unit
/// of the bound, and say it to a unit. No level of theirs is zero: a sum of squares divides.
#[test]
fn curves_follow_the_levels() {
    fn follow<const N: usize>(codec: Codec, book: &Codebook<N>) {
        let half = (N / 2) as f32;
        let steps = ((book.top + book.bottom) * 8.0) as usize;
        for x in (0..=steps).map(|i| i as f32 / 8.0 - book.bottom) {
            let index = at(book.index, x).round_ties_even();
            assert!((-half..half).contains(&index), "{codec}: {x} to {index}");
            let index = (index + half) as usize;
            let near = |to: f32| nearest(book, f64::from(x + to));
            assert!(
                (near(-0.5)..=near(0.5)).contains(&index),
                "{codec}: {x} to {index}"
            );
        }
        for (i, level) in of(codec).iter().enumerate() {
            let curve = at(book.level, i as f32 - half);
            assert!((curve - f32::from(*level)).abs() < 1.0, "{codec}: {level}");
            assert!(curve.abs() > 0.5, "{codec}: {level}");
        }
    }
    follow(Codec::Int5, &BOOK5);
    follow(Codec::Int4, &BOOK4);
    follow(Codec::Int3, &BOOK3);
    follow(Codec::Int2, &BOOK2);
}
