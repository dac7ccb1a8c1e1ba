//! Means with intervals, by drawing again.
//!
//! A figure is a ratio of sums over *units*: pieces of 64 tokens for divergence, cases for questions,
//! answers for BLEU. As many units as there are, with replacement, a thousand times over; the middle 95 of a
//! hundred figures are the interval. Tokens of a piece are drawn together, because neighbours err
//! together. Seeded, so that a report can be made again.

use crate::dice::Dice;

/// Tokens that are drawn together.
pub const PIECE_TOKENS: usize = 64;
const DRAWS: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

/// The 95 % interval of a figure over `units`. `None` of less than two: one unit says nothing about
/// others.
pub fn interval<T>(units: &[T], seed: u64, figure: impl Fn(&[&T]) -> f64) -> Option<Interval> {
    if units.len() < 2 {
        return None;
    }
    let mut dice = Dice::new(seed, &[units.len() as u64]);
    let mut drawn: Vec<&T> = Vec::with_capacity(units.len());
    let mut figures: Vec<f64> = (0..DRAWS)
        .map(|_| {
            drawn.clear();
            drawn.extend((0..units.len()).map(|_| &units[dice.below(units.len())]));
            figure(&drawn)
        })
        .collect();
    figures.sort_by(f64::total_cmp);
    let tail = DRAWS / 40;
    Some(Interval {
        low: figures[tail],
        high: figures[DRAWS - 1 - tail],
    })
}

/// (sum, count) of each piece.
pub fn pieces(values: &[f32]) -> Vec<(f64, usize)> {
    let pieces = values.chunks(PIECE_TOKENS);
    pieces
        .map(|piece| (piece.iter().map(|&x| f64::from(x)).sum(), piece.len()))
        .collect()
}

/// Sum over count of what was drawn.
pub fn ratio(units: &[&(f64, usize)]) -> f64 {
    let (sum, count) = units.iter().fold((0.0, 0), |(sum, count), unit| {
        (sum + unit.0, count + unit.1)
    });
    sum / count as f64
}

/// Values of which the long ones matter, such as times between tokens.
pub struct Spread {
    sorted: Vec<f64>,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        (!values.is_empty()).then_some(Spread { sorted: values })
    }

    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    pub fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.count() as f64
    }

    /// The percentile: this share of a hundred is not above it.
    pub fn percentile(&self, part: usize) -> f64 {
        let last = self.count() - 1;
        self.sorted[(self.count() * part / 100).min(last)]
    }

    pub fn median(&self) -> f64 {
        self.percentile(50)
    }

    pub fn longest(&self) -> f64 {
        self.percentile(100)
    }
}

/// The middle one, or between the middle two.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = sorted.len() / 2;
    let upper = *sorted.get(at)?;
    Some(match sorted.len() % 2 {
        0 => (sorted[at - 1] + upper) / 2.0,
        _ => upper,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn spreads() {
        assert!(Spread::of(Vec::new()).is_none());
        let spread = Spread::of((1..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!((spread.count(), spread.mean()), (100, 50.5));
        assert_eq!((spread.median(), spread.percentile(95)), (51.0, 96.0));
        assert_eq!(spread.longest(), 100.0);
        assert_eq!(Spread::of(vec![7.0]).unwrap().percentile(99), 7.0);
    }

    #[test]
    fn pieces_hold_everything() {
        let values: Vec<f32> = (0..150).map(|i| i as f32).collect();
        let pieces = pieces(&values);
        let counts: Vec<usize> = pieces.iter().map(|piece| piece.1).collect();
        assert_eq!(counts, [64, 64, 22]);
        let refs: Vec<&(f64, usize)> = pieces.iter().collect();
        assert_eq!(ratio(&refs), 149.0 / 2.0);
    }

    /// Of many samples from a known distribution, about 95 of a hundred intervals hold its mean.
    #[test]
    fn intervals_hold_the_mean() {
        let mut dice = Dice::new(5, &[]);
        let mut held = 0;
        for seed in 0..200 {
            let units: Vec<(f64, usize)> = (0..60).map(|_| (dice.below(1001) as f64, 1)).collect();
            let found = interval(&units, seed, ratio).unwrap();
            held += usize::from((found.low..=found.high).contains(&500.0));
        }
        assert!((180..=199).contains(&held), "{held} of 200");
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let units: Vec<(f64, usize)> = (0..30).map(|i| (f64::from(i * i % 17), 1)).collect();
        let of = |seed| interval(&units, seed, ratio);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert_eq!(interval(&units[..1], 1, ratio), None);
    }
}
