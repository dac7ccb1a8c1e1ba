//! The levels of each codec: what a code stands for before its scale.
//!
//! Levels are whole numbers that fit a signed byte, so one table look-up of bytes makes sixteen or more
//! of them on every instruction set, and `level * scale` is exact: eight bits times eleven.
//!
//! The codebooks are the Lloyd-Max levels of a standard normal distribution (the points that leave
//! the least squared error), multiplied so that the greatest is 127, and rounded. They are symmetric
//! and ascending; a code is an index.

use super::Codec;

pub const INT5: [i8; 32] = [
    -127, -105, -90, -79, -70, -61, -54, -47, -41, -35, -29, -24, -18, -13, -8, -3, //
    3, 8, 13, 18, 24, 29, 35, 41, 47, 54, 61, 70, 79, 90, 105, 127,
];
pub const INT4: [i8; 16] = [
    -127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127,
];
pub const INT3: [i8; 8] = [-127, -79, -45, -14, 14, 45, 79, 127];
pub const INT2: [i8; 4] = [-127, -38, 38, 127];

/// Four bits in two's complement.
pub const INT4_PLAIN: [i8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1];

/// The levels of a codec by code; none for `int8`, whose code is its level, and for floats.
pub const fn of(codec: Codec) -> &'static [i8] {
    match codec {
        Codec::Int5 => &INT5,
        Codec::Int4 => &INT4,
        Codec::Int4Plain => &INT4_PLAIN,
        Codec::Int3 => &INT3,
        Codec::Int2 => &INT2,
        Codec::F32 | Codec::F16 | Codec::Int8 => &[],
    }
}

/// A codebook as the encoder reads it: its positive half.
pub(super) struct Book<const N: usize> {
    /// The positive levels, ascending. The code of `levels[i]` is `N + i`, of its negative
    /// `N - 1 - i`.
    pub levels: [f32; N],
    /// From `bounds[i]` on, `levels[i]` is nearer than `levels[i - 1]`; the first is unused.
    pub bounds: [f32; N],
    /// The scale that fits values with a root mean square of 1: greatest Lloyd-Max level / 127.
    pub unit: f32,
    /// The encoder's first scales: each a multiple of what fits the root mean square plus one of
    /// what fits the greatest value.
    pub tries: [(f32, f32); TRIES],
}

/// First scales of each codebook. Four leave less error than eighteen around the root mean square
/// alone, on normal values and more so on heavier tails (`docs/kv-blocks.md`).
pub(super) const TRIES: usize = 4;

const fn book<const N: usize>(levels: &[i8], greatest: f32, tries: [(f32, f32); TRIES]) -> Book<N> {
    let mut book = Book {
        levels: [0.0; N],
        bounds: [0.0; N],
        unit: greatest / 127.0,
        tries,
    };
    let mut i = 0;
    while i < N {
        book.levels[i] = levels[N + i] as f32;
        if i > 0 {
            book.bounds[i] = 0.5 * (book.levels[i] + book.levels[i - 1]);
        }
        i += 1;
    }
    book
}

// With many levels the greatest value of a group wants the greatest level; with four it is better
// cut off.
pub(super) static BOOK5: Book<16> = book(
    &INT5,
    3.260_732_5,
    [(0.9, 0.0), (0.0, 0.96), (0.0, 1.0), (0.0, 1.04)],
);
pub(super) static BOOK4: Book<8> = book(
    &INT4,
    2.732_589_6,
    [(0.0, 0.92), (0.0, 0.96), (0.0, 1.0), (0.0, 1.04)],
);
pub(super) static BOOK3: Book<4> = book(
    &INT3,
    2.151_945_7,
    [(0.0, 0.72), (0.0, 0.8), (0.0, 0.88), (0.0, 0.96)],
);
pub(super) static BOOK2: Book<2> = book(
    &INT2,
    1.510_417_6,
    [(0.9, 0.0), (1.0, 0.0), (1.15, 0.0), (1.35, 0.0)],
);

#[cfg(test)]
mod tests {
    use super::*;

    fn density(x: f64) -> f64 {
        (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
    }

    /// Integral of `f` by Simpson's rule.
    fn integral(f: impl Fn(f64) -> f64, from: f64, to: f64) -> f64 {
        let n = 200;
        let h = (to - from) / n as f64;
        let inner: f64 = (1..n)
            .map(|i| f(from + i as f64 * h) * if i % 2 == 1 { 4.0 } else { 2.0 })
            .sum();
        (f(from) + f(to) + inner) * h / 3.0
    }

    /// The positive Lloyd-Max levels of N(0, 1): each is the mean of the numbers nearest to it.
    fn lloyd_max(n: usize) -> Vec<f64> {
        let mut levels: Vec<f64> = (0..n).map(|i| (i as f64 + 0.5) * 3.5 / n as f64).collect();
        loop {
            let mut edges = vec![0.0];
            edges.extend(levels.windows(2).map(|l| 0.5 * (l[0] + l[1])));
            // Beyond twelve there is less than 1e-30 of it.
            edges.push(12.0);
            let next: Vec<f64> = edges
                .windows(2)
                .map(|e| {
                    let mean = integral(|x| x * density(x), e[0], e[1]);
                    mean / integral(density, e[0], e[1])
                })
                .collect();
            let moved = levels.iter().zip(&next).map(|(a, b)| (a - b).abs());
            let moved = moved.fold(0.0, f64::max);
            levels = next;
            if moved < 1e-10 {
                return levels;
            }
        }
    }

    fn check<const N: usize>(codec: Codec, book: &Book<N>) {
        let table = of(codec);
        assert_eq!(table.len(), 2 * N);
        let ideal = lloyd_max(N);
        let greatest = ideal[N - 1];
        assert!((f64::from(book.unit) * 127.0 - greatest).abs() < 1e-5);
        for (i, ideal) in ideal.iter().enumerate() {
            let level = (ideal / greatest * 127.0).round() as i8;
            assert_eq!(table[N + i], level, "{codec} level {i}");
            assert_eq!(table[N - 1 - i], -level, "{codec} level -{i}");
        }
        assert!(table.is_sorted());
    }

    #[test]
    fn codebooks_are_lloyd_max() {
        check(Codec::Int5, &BOOK5);
        check(Codec::Int4, &BOOK4);
        check(Codec::Int3, &BOOK3);
        check(Codec::Int2, &BOOK2);
    }
}
