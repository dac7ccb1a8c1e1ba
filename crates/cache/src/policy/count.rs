//! What is remembered of attention, and for how long.
//!
//! Attention kernels count in whole numbers ([`MassStatistic`]); the notes of a row add them up. A moving average forgets:
//!
//! ```text
//! I = α a + (1 − α) I                         for every query, a = the attention it gave
//!   ~ Σ (1 − α)^(queries since) a             the factor α is the same for all rows
//!
//! queries   … 63 | 64 … 95 | 96 …             weights inside a block of 32 come from the kernels,
//! notes     × d    × d       × d              at its border everything is multiplied by d = (1 − α)^32
//! ```
//!
//! Both are whole numbers, so that the average depends on the queries alone and not on how many came at once,
//! as long as no step crosses a border.

use super::rows::ParamsError;
use crate::notes::Heads;
use haversack_kernels::attention::{BLOCK_SLOTS, MassStatistic};

/// How rows are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counting {
    pub count: MassStatistic,
    pub heads: Heads,
    /// One query of so many counts.
    pub every: u64,
    /// What notes are multiplied by at every multiple of 32, in units of 2^-32; `None` = they stay.
    pub decay: Option<u32>,
}

impl Counting {
    /// One query of four: neighbours look at much the same.
    pub const EVERY: u64 = 4;

    /// Counts for ever.
    pub const fn always(count: MassStatistic) -> Counting {
        Counting {
            count,
            heads: Heads::Together,
            every: Counting::EVERY,
            decay: None,
        }
    }

    /// Only the queries of the last block of 32, all of them.
    pub const LAST_BLOCK: Counting = Counting {
        count: MassStatistic::Sum,
        heads: Heads::Together,
        every: 1,
        decay: Some(0),
    };

    /// Whether any of so many queries from `position` on counts.
    pub fn counts(&self, position: u64, queries: usize) -> bool {
        let end = position.saturating_add(queries as u64);
        position / self.every.max(1) < end / self.every.max(1)
    }

    /// Steps must not cross a multiple of 32.
    pub fn is_aligned(&self) -> bool {
        self.decay.is_some()
    }
}

/// How fast a moving average forgets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    /// The weight of a new query, above 0 and at most 1.
    Alpha(f32),
    /// Queries after which half is forgotten.
    HalfLife(f32),
}

impl Default for Memory {
    /// As published.
    fn default() -> Memory {
        Memory::Alpha(0.3)
    }
}

/// The greatest that an average is in units of its α: with more, the counters of a row that gets everything
/// would be full.
const SUM_MAX: f64 = 32.0;

/// Below this half-life every query counts.
const SPARSE_FROM: f64 = 16.0;

impl Memory {
    /// Half-lives that can be told from never and from always.
    pub const HALF_LIVES: (f32, f32) = (0.5, 1_000_000.0);

    pub fn check(self) -> Result<(), ParamsError> {
        match self {
            Memory::Alpha(alpha) if alpha > 0.0 && alpha <= 1.0 => Ok(()),
            Memory::Alpha(alpha) => ParamsError::range("alpha", alpha, f32::MIN_POSITIVE, 1.0),
            Memory::HalfLife(queries) => {
                let (least, most) = Memory::HALF_LIVES;
                ParamsError::range("the half-life", queries, least, most)
            }
        }
    }

    pub fn counting(self) -> Counting {
        let kept = self.kept();
        let half = (0..SPARSE_FROM as u32).fold(1.0, |left, _| left * kept);
        let every = if half >= 0.5 { Counting::EVERY } else { 1 };
        let newest = (SUM_MAX * (1.0 - kept) * every as f64).min(1.0);
        let mut weights = [0; BLOCK_SLOTS];
        let mut left = 1.0;
        for weight in weights.iter_mut().rev() {
            *weight = (newest * left * f64::from(MassStatistic::WEIGHT_ONE)).round() as u16;
            left *= kept;
        }
        Counting {
            count: MassStatistic::Weighted(weights),
            heads: Heads::Together,
            every,
            // A cast ends at the greatest number.
            decay: Some((left * 4_294_967_296.0).round() as u32),
        }
    }

    /// What one query leaves of the average. Only multiplications and additions: the same on every machine.
    fn kept(self) -> f64 {
        match self {
            Memory::Alpha(alpha) => 1.0 - f64::from(alpha.clamp(0.0, 1.0)),
            Memory::HalfLife(queries) => {
                let (least, most) = Memory::HALF_LIVES;
                // e^-x in powers of x, which is at most 1.4.
                let x = -std::f64::consts::LN_2 / f64::from(queries.clamp(least, most));
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

    fn weights(memory: Memory) -> [u16; 32] {
        match memory.counting().count {
            MassStatistic::Weighted(weights) => weights,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn weights_and_decay_are_one_curve() {
        for memory in [
            Memory::Alpha(0.3),
            Memory::Alpha(0.02),
            Memory::HalfLife(4.0),
            Memory::HalfLife(32.0),
            Memory::HalfLife(1000.0),
        ] {
            let weights = weights(memory);
            let kept = match memory {
                Memory::Alpha(alpha) => 1.0 - f64::from(alpha),
                Memory::HalfLife(queries) => 0.5f64.powf(1.0 / f64::from(queries)),
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
        assert_eq!(weights(Memory::HalfLife(4.0))[27], 1 << 14);
    }

    #[test]
    fn a_step_counts_if_one_of_its_queries_does() {
        let counting = Counting::always(MassStatistic::Sum);
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
        assert_eq!(Memory::Alpha(1.0).counting().decay, Some(0));
        assert_eq!(weights(Memory::Alpha(1.0))[..31], [0; 31]);
        assert_eq!(Memory::Alpha(0.3).counting().every, 1);
        assert_eq!(Memory::HalfLife(32.0).counting().every, 4);
        for bad in [
            Memory::Alpha(0.0),
            Memory::Alpha(f32::NAN),
            Memory::Alpha(1.1),
            Memory::HalfLife(0.0),
            Memory::HalfLife(f32::INFINITY),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
            // Whoever did not ask gets something all the same.
            bad.counting();
        }
        let said = Memory::HalfLife(0.25).check().unwrap_err().to_string();
        assert_eq!(said, "the half-life is 0.25; accepted: 0.5 to 1000000");
    }
}
