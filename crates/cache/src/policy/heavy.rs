//! Heavy hitters: of the rows that may leave, those leave which got least attention.
//!
//! The idea is H2O's (accumulated attention, and the most recent tokens whatever they got). [`Score::Sum`] is as
//! published. [`Score::Peak`] won our comparison: the root of the mean *squared* attention times the length of the
//! value, because one query that needs a row says more than many that glance at it, and a row without length says
//! nothing. [`Score::Max`] takes the greatest instead, and [`Score::Average`] forgets, as TOVA does at once.
//!
//! Parameters: the score, and how many of the last tokens stay whatever they got.
//!
//! Every layer for itself: rows that leave one layer may stay in another.

use super::count::{Counting, Memory};
use super::rows::{LayerView, ParamsError, choose_least};
pub use crate::notes::Heads;
use crate::notes::Row;
use haversack_kernels::attention::MassStatistic;

/// What a row is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Score {
    /// All attention it ever got. Notes hold sums.
    Sum,
    #[default]
    /// Length of its value times the root of the mean squared attention. Notes hold squares.
    Peak,
    /// The most attention that one query ever gave it.
    Max,
    /// Attention of late: a moving average.
    Average(Memory),
}

impl Score {
    /// What attention counts for it.
    pub fn counting(self) -> Counting {
        match self {
            Score::Sum => Counting::always(MassStatistic::Sum),
            Score::Peak => Counting::always(MassStatistic::Squares),
            Score::Max => Counting::always(MassStatistic::Max),
            Score::Average(memory) => memory.counting(),
        }
    }

    pub fn check(self) -> Result<(), ParamsError> {
        match self {
            Score::Average(memory) => memory.check(),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeavyParams {
    pub score: Score,
    pub heads: Heads,
    /// Last tokens that stay whatever they got. Half of the cap counts at most.
    pub recent: u64,
}

impl Default for HeavyParams {
    /// Half of the cap is recent.
    fn default() -> HeavyParams {
        HeavyParams {
            score: Score::default(),
            heads: Heads::default(),
            recent: u64::MAX,
        }
    }
}

impl HeavyParams {
    pub fn counting(&self) -> Counting {
        Counting {
            heads: self.heads,
            ..self.score.counting()
        }
    }
}

/// As [`super::rows::RowPolicy::choose`].
pub fn choose(view: &LayerView<'_>, rows: &mut [Row], params: &HeavyParams) -> usize {
    if view.rows > view.most {
        for row in rows.iter_mut() {
            row.worth = worth(row, view.position, params.score);
        }
    }
    choose_least(view, rows, params.recent)
}

/// Grows with the score; the root is left out, because only the order counts.
fn worth(row: &Row, position: u64, score: Score) -> f32 {
    match score {
        Score::Sum | Score::Max | Score::Average(_) => row.mass as f32,
        Score::Peak => row.norm_sq * (row.mass as f32 / row.queries(position).max(1) as f32),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{left, row, view};
    use super::*;

    fn params(score: Score, recent: u64) -> HeavyParams {
        HeavyParams {
            score,
            recent,
            ..HeavyParams::default()
        }
    }

    /// At position 1000, with so many rows too many.
    fn leaving(rows: &[Row], leave: usize, oldest: u64, params: HeavyParams) -> Vec<u64> {
        let view = LayerView {
            position: 1000,
            rows: 600,
            most: 600 - leave,
            oldest,
            ..view()
        };
        left(rows, |rows| choose(&view, rows, &params))
    }

    #[test]
    fn the_least_leave_and_the_recent_stay() {
        let rows = [
            row(0, 900, 1.0),
            row(10, 900, 0.1),
            row(500, 500, 1.0),
            row(800, 400, 1.0),
            row(990, 0, 0.0),
        ];
        assert_eq!(leaving(&rows, 2, 0, params(Score::Sum, 64)), [500, 800]);
        assert_eq!(leaving(&rows, 2, 0, params(Score::Max, 64)), [500, 800]);
        // Means: 0.93, 0.093, 1.04, 2.38.
        assert_eq!(leaving(&rows, 2, 0, params(Score::Peak, 64)), [0, 10]);
        assert_eq!(leaving(&rows, 9, 0, params(Score::Peak, 64)).len(), 4);
        assert_eq!(leaving(&rows, 1, 0, params(Score::Sum, 0)), [990]);
        assert!(leaving(&rows, 0, 0, params(Score::Sum, 0)).is_empty());
        let aged = |leave| leaving(&rows, leave, 501, params(Score::Sum, 64));
        assert_eq!(aged(1), [0, 10, 500]);
        assert_eq!(aged(4), [0, 10, 500, 800]);
    }

    #[test]
    fn of_equal_rows_the_older_leaves() {
        let rows: Vec<Row> = (0..100).rev().map(|p| row(p, 5, 1.0)).collect();
        let gone = leaving(&rows, 30, 0, params(Score::Sum, 64));
        assert_eq!(gone, (0..30).collect::<Vec<_>>());
    }

    #[test]
    fn half_of_the_cap_is_recent_at_most() {
        let rows: Vec<Row> = (900..1000).map(|p| row(p, 5, 1.0)).collect();
        let view = LayerView {
            position: 1000,
            rows: 100,
            most: 60,
            ..view()
        };
        let gone = left(&rows, |rows| choose(&view, rows, &HeavyParams::default()));
        assert_eq!(gone, (900..940).collect::<Vec<_>>());
    }
}
