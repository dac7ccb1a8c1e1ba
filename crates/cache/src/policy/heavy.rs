//! Heavy hitters: of the rows that may leave, those leave which got least attention.
//!
//! The idea is H2O's (accumulated attention, and the most recent tokens whatever they got); SnapKV and TOVA
//! differ in when they look. [`Score::Sum`] is as published. [`Score::Peak`] won our comparison: the root of the mean
//! *squared* attention times the length of the value, because one query that needs a row says more than many that
//! glance at it, and a row without length says nothing.
//!
//! Every layer for itself: rows that leave one layer may stay in another.

use crate::notes::Row;

/// What a row is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Score {
    /// All attention it ever got. Notes hold sums.
    Sum,
    #[default]
    /// Length of its value times the root of the mean squared attention. Notes hold squares.
    Peak,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeavyParams {
    pub score: Score,
    /// Last tokens that stay whatever they got.
    pub recent: u64,
    /// Tokens before this position leave whatever they got.
    pub oldest: u64,
}

/// Which `leave` of the loose rows leave when the sequence stands at `position`: they come first in `rows`
/// afterwards, and their number is returned. Fewer if too many are recent, more if more are too old. Of
/// equal rows the older one leaves.
pub fn choose(rows: &mut [Row], position: u64, leave: usize, params: &HeavyParams) -> usize {
    let gone = partition(rows, |row| row.position < params.oldest);
    let (leave, rows) = (leave.saturating_sub(gone), &mut rows[gone..]);
    let old = partition(rows, |row| row.position + params.recent < position);
    let leave = leave.min(old);
    if leave < old && leave > 0 {
        let worth = |row: &Row| (worth(row, position, params.score), row.position);
        let order = |a: &Row, b: &Row| {
            let (a, b) = (worth(a), worth(b));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
        };
        rows[..old].select_nth_unstable_by(leave - 1, order);
    }
    gone + leave
}

/// Grows with the score; the root is left out, because only the order counts.
fn worth(row: &Row, position: u64, score: Score) -> f32 {
    match score {
        Score::Sum => row.mass as f32,
        Score::Peak => row.norm_sq * (row.mass as f32 / row.queries(position).max(1) as f32),
    }
}

/// Those for which `is_first` holds come first; their number.
fn partition(rows: &mut [Row], is_first: impl Fn(&Row) -> bool) -> usize {
    let mut count = 0;
    for i in 0..rows.len() {
        if is_first(&rows[i]) {
            rows.swap(i, count);
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(position: u64, mass: u32, norm_sq: f32) -> Row {
        Row {
            position,
            mass,
            norm_sq,
            entry: 0,
            slot: 0,
        }
    }

    fn left(rows: &[Row], leave: usize, params: &HeavyParams) -> Vec<u64> {
        let mut rows = rows.to_vec();
        let leave = choose(&mut rows, 1000, leave, params);
        let mut left: Vec<u64> = rows[..leave].iter().map(|row| row.position).collect();
        left.sort_unstable();
        left
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
        let params = |score, recent| HeavyParams {
            score,
            recent,
            oldest: 0,
        };
        assert_eq!(left(&rows, 2, &params(Score::Sum, 64)), [500, 800]);
        // Means: 0.93, 0.093, 1.04, 2.38.
        assert_eq!(left(&rows, 2, &params(Score::Peak, 64)), [0, 10]);
        assert_eq!(left(&rows, 9, &params(Score::Peak, 64)).len(), 4);
        assert_eq!(left(&rows, 1, &params(Score::Sum, 0)), [990]);
        assert!(left(&rows, 0, &params(Score::Sum, 0)).is_empty());
        let aged = HeavyParams {
            oldest: 501,
            ..params(Score::Sum, 64)
        };
        assert_eq!(left(&rows, 1, &aged), [0, 10, 500]);
        assert_eq!(left(&rows, 4, &aged), [0, 10, 500, 800]);
    }

    #[test]
    fn of_equal_rows_the_older_leaves() {
        let rows: Vec<Row> = (0..100).rev().map(|p| row(p, 5, 1.0)).collect();
        let params = HeavyParams {
            score: Score::Sum,
            recent: 64,
            oldest: 0,
        };
        assert_eq!(left(&rows, 30, &params), (0..30).collect::<Vec<_>>());
    }
}
