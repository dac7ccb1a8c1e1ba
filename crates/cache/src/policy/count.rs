//! How attention is counted into row statistics, and how fast old attention decays.
//!
//! Attention kernels count in integers ([`MassStatistic`]); the row statistics add them up. A moving average decays:
//!
//! ```text
//! I = α a + (1 − α) I                         for every query, a = the attention it gave
//!   ~ Σ (1 − α)^(queries since) a             the factor α is the same for all rows
//!
//! queries   … 63 | 64 … 95 | 96 …             weights inside a block of 32 come from the kernels,
//! stats     × d    × d       × d              at its border all statistics are multiplied by d = (1 − α)^32
//! ```
//!
//! Both are integers, so the average depends on the queries alone and not on how they were split into steps, as long as
//! no step crosses a border.

use super::params::ParamsError;
pub use crate::counting::{AttentionCounting, Heads};
use haversack_kernels::attention::{BLOCK_SLOTS, MassStatistic};

/// How fast the moving average of attention decays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AttentionMemory {
    /// The weight of a new query, above 0 and at most 1.
    Alpha(f32),
    /// Queries after which half is left.
    HalfLife(f32),
}

impl Default for AttentionMemory {
    /// As published.
    fn default() -> AttentionMemory {
        AttentionMemory::Alpha(0.3)
    }
}

/// Upper limit of an average in units of its α: with more, the counter of a row that gets all attention would saturate.
const SUM_MAX: f64 = 32.0;

/// Below this half-life every query is counted.
const SPARSE_FROM: f64 = 16.0;

impl AttentionMemory {
    /// Accepted half-lives.
    pub const HALF_LIVES: (f32, f32) = (0.5, 1_000_000.0);

    pub fn check(self) -> Result<(), ParamsError> {
        match self {
            AttentionMemory::Alpha(alpha) if alpha > 0.0 && alpha <= 1.0 => Ok(()),
            AttentionMemory::Alpha(alpha) => {
                ParamsError::range("alpha", alpha, (f32::MIN_POSITIVE, 1.0))
            }
            AttentionMemory::HalfLife(queries) => {
                ParamsError::range("the half-life", queries, AttentionMemory::HALF_LIVES)
            }
        }
    }

    pub fn counting(self) -> AttentionCounting {
        let kept = self.kept();
        let half = (0..SPARSE_FROM as u32).fold(1.0, |left, _| left * kept);
        let every = if half >= 0.5 {
            AttentionCounting::EVERY
        } else {
            1
        };
        let newest = (SUM_MAX * (1.0 - kept) * every as f64).min(1.0);
        let mut weights = [0; BLOCK_SLOTS];
        let mut left = 1.0;
        for weight in weights.iter_mut().rev() {
            *weight = (newest * left * f64::from(MassStatistic::WEIGHT_ONE)).round() as u16;
            left *= kept;
        }
        AttentionCounting {
            count: MassStatistic::Weighted(weights),
            heads: Heads::Together,
            every,
            // The cast saturates.
            decay: Some((left * 4_294_967_296.0).round() as u32),
        }
    }

    /// What one query leaves of the average. Only multiplications and additions, so that it is the same on every machine.
    fn kept(self) -> f64 {
        match self {
            AttentionMemory::Alpha(alpha) => 1.0 - f64::from(alpha.clamp(0.0, 1.0)),
            AttentionMemory::HalfLife(queries) => {
                let (min, max) = AttentionMemory::HALF_LIVES;
                // e^-x in powers of x, which is at most 1.4.
                let x = -std::f64::consts::LN_2 / f64::from(queries.clamp(min, max));
                let mut term = 1.0;
                let mut sum = 1.0;
                for i in 1..30 {
                    term *= x / f64::from(i);
                    sum += term;
                }
                sum
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(memory: AttentionMemory) -> [u16; 32] {
        match memory.counting().count {
            MassStatistic::Weighted(weights) => weights,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn weights_and_decay_are_one_curve() {
        for memory in [
            AttentionMemory::Alpha(0.3),
            AttentionMemory::Alpha(0.02),
            AttentionMemory::HalfLife(4.0),
            AttentionMemory::HalfLife(32.0),
            AttentionMemory::HalfLife(1000.0),
        ] {
            let weights = weights(memory);
            let kept = match memory {
                AttentionMemory::Alpha(alpha) => 1.0 - f64::from(alpha),
                AttentionMemory::HalfLife(queries) => 0.5f64.powf(1.0 / f64::from(queries)),
            };
            let newest = f64::from(weights[31]);
            for (place, weight) in weights.iter().enumerate() {
                let ideal = newest * kept.powi(31 - place as i32);
                assert!((f64::from(*weight) - ideal).abs() <= 1.0, "{memory:?}");
            }
            let decay = f64::from(memory.counting().decay.unwrap()) / 2f64.powi(32);
            assert!((decay - kept.powi(32)).abs() < 1e-7, "{memory:?} {decay}");
            // A row that gets everything does not fill 32 bits, with 16 KV heads.
            let counting = memory.counting();
            let block = counting.count.whole(0, 32, counting.every) as f64;
            assert!(16.0 * block / (1.0 - decay) < 2f64.powi(32), "{memory:?}");
        }
        assert_eq!(weights(AttentionMemory::HalfLife(4.0))[27], 1 << 14);
    }

    #[test]
    fn a_step_is_counted_if_one_of_its_queries_is() {
        let counting = AttentionCounting::always(MassStatistic::Sum);
        let asked = [(0, 3), (0, 4), (3, 1), (4, 3), (4, 4), (7, 1), (8, 0)];
        let counted = asked.map(|(position, queries)| counting.counts(position, queries));
        assert_eq!(counted, [false, true, true, false, true, true, false]);
        for (position, queries) in asked {
            let whole = counting
                .count
                .whole(position, queries as u64, counting.every);
            assert_eq!(counting.counts(position, queries), whole > 0);
        }
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(AttentionMemory::Alpha(1.0).counting().decay, Some(0));
        assert_eq!(weights(AttentionMemory::Alpha(1.0))[..31], [0; 31]);
        assert_eq!(AttentionMemory::Alpha(0.3).counting().every, 1);
        assert_eq!(AttentionMemory::HalfLife(32.0).counting().every, 4);
        for bad in [
            AttentionMemory::Alpha(0.0),
            AttentionMemory::Alpha(f32::NAN),
            AttentionMemory::Alpha(1.1),
            AttentionMemory::HalfLife(0.0),
            AttentionMemory::HalfLife(f32::INFINITY),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
            // Unchecked parameters do not panic.
            bad.counting();
        }
        let message = AttentionMemory::HalfLife(0.25)
            .check()
            .unwrap_err()
            .to_string();
        assert_eq!(message, "the half-life is 0.25; accepted: 0.5 to 1000000");
    }
}
