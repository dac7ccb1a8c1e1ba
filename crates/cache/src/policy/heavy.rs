//! Heavy hitters: evicts the rows with the least accumulated attention; the most recent tokens stay.
//! From H2O (Zhang et al. 2023).
//!
//! [`HeavyScore::Sum`] is as published. [`HeavyScore::Peak`] won our comparison: the root of the mean *squared* attention
//! times the norm of the value, because one query that needs a row says more than many that glance at it, and a value
//! near zero adds nothing. [`HeavyScore::Max`] takes the maximum instead. [`HeavyScore::Average`] is a moving average;
//! its limit, the attention of the last query alone, is TOVA (Oren et al. 2024).
//!
//! Parameters: the score, and how many of the last tokens always stay. Each layer decides for itself: a row evicted from
//! one layer may stay in another.

pub use super::count::Heads;
use super::count::{AttentionCounting, AttentionMemory};
use super::params::ParamsError;
use super::select::{LayerView, choose_lowest};
use crate::row_stats::KvRow;
use haversack_kernels::attention::MassStatistic;

/// The score of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum HeavyScore {
    /// The sum of all its attention. Statistics hold sums.
    Sum,
    #[default]
    /// Norm of its value times the root of the mean squared attention. Statistics hold squares.
    Peak,
    /// The most attention that a single query gave it.
    Max,
    /// A moving average of its attention.
    Average(AttentionMemory),
}

impl HeavyScore {
    /// How attention is counted for this score.
    pub fn counting(self) -> AttentionCounting {
        match self {
            HeavyScore::Sum => AttentionCounting::always(MassStatistic::Sum),
            HeavyScore::Peak => AttentionCounting::always(MassStatistic::Squares),
            HeavyScore::Max => AttentionCounting::always(MassStatistic::Max),
            HeavyScore::Average(memory) => memory.counting(),
        }
    }

    pub fn check(self) -> Result<(), ParamsError> {
        match self {
            HeavyScore::Average(memory) => memory.check(),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeavyParams {
    pub score: HeavyScore,
    pub heads: Heads,
    /// Number of last tokens that always stay; at most half of the cap.
    pub recent: u64,
}

impl Default for HeavyParams {
    /// Half of the cap holds recent tokens.
    fn default() -> HeavyParams {
        HeavyParams {
            score: HeavyScore::default(),
            heads: Heads::default(),
            recent: u64::MAX,
        }
    }
}

impl HeavyParams {
    pub fn counting(&self) -> AttentionCounting {
        AttentionCounting {
            heads: self.heads,
            ..self.score.counting()
        }
    }
}

/// See [`super::rows::RowPolicy::choose`].
pub fn choose(view: &LayerView<'_>, rows: &mut [KvRow], params: &HeavyParams) -> usize {
    if view.rows > view.max_rows {
        for row in rows.iter_mut() {
            row.worth = worth(row, view.position, params.score);
        }
    }
    choose_lowest(view, rows, params.recent)
}

/// Monotone in the score; the root is left out, because only the order matters.
fn worth(row: &KvRow, position: u64, score: HeavyScore) -> f32 {
    match score {
        HeavyScore::Sum | HeavyScore::Max | HeavyScore::Average(_) => row.mass as f32,
        HeavyScore::Peak => row.norm_sq * (row.mass as f32 / row.queries(position).max(1) as f32),
    }
}

#[cfg(test)]
mod tests {
    use super::super::select::testing::{left, row, view};
    use super::*;

    fn params(score: HeavyScore, recent: u64) -> HeavyParams {
        HeavyParams {
            score,
            recent,
            ..HeavyParams::default()
        }
    }

    /// At position 1000, with `leave` rows above the cap.
    fn leaving(rows: &[KvRow], leave: usize, oldest: u64, params: HeavyParams) -> Vec<u64> {
        let view = LayerView {
            position: 1000,
            rows: 600,
            max_rows: 600 - leave,
            min_position: oldest,
            ..view()
        };
        left(rows, |rows| choose(&view, rows, &params))
    }

    #[test]
    fn lowest_scores_are_evicted_and_recent_rows_stay() {
        let rows = [
            row(0, 900, 1.0),
            row(10, 900, 0.1),
            row(500, 500, 1.0),
            row(800, 400, 1.0),
            row(990, 0, 0.0),
        ];
        assert_eq!(
            leaving(&rows, 2, 0, params(HeavyScore::Sum, 64)),
            [500, 800]
        );
        assert_eq!(
            leaving(&rows, 2, 0, params(HeavyScore::Max, 64)),
            [500, 800]
        );
        // Means: 0.93, 0.093, 1.04, 2.38.
        assert_eq!(leaving(&rows, 2, 0, params(HeavyScore::Peak, 64)), [0, 10]);
        assert_eq!(leaving(&rows, 9, 0, params(HeavyScore::Peak, 64)).len(), 4);
        assert_eq!(leaving(&rows, 1, 0, params(HeavyScore::Sum, 0)), [990]);
        assert!(leaving(&rows, 0, 0, params(HeavyScore::Sum, 0)).is_empty());
        let aged = |leave| leaving(&rows, leave, 501, params(HeavyScore::Sum, 64));
        assert_eq!(aged(1), [0, 10, 500]);
        assert_eq!(aged(4), [0, 10, 500, 800]);
    }

    #[test]
    fn of_equal_rows_the_older_is_evicted() {
        let rows: Vec<KvRow> = (0..100).rev().map(|p| row(p, 5, 1.0)).collect();
        let gone = leaving(&rows, 30, 0, params(HeavyScore::Sum, 64));
        assert_eq!(gone, (0..30).collect::<Vec<_>>());
    }

    #[test]
    fn at_most_half_of_the_cap_is_recent() {
        let rows: Vec<KvRow> = (900..1000).map(|p| row(p, 5, 1.0)).collect();
        let view = LayerView {
            position: 1000,
            rows: 100,
            max_rows: 60,
            ..view()
        };
        let gone = left(&rows, |rows| choose(&view, rows, &HeavyParams::default()));
        assert_eq!(gone, (900..940).collect::<Vec<_>>());
    }
}
