//! Observation window: the attention of the last 32 queries decides which rows stay. From SnapKV (Li et al. 2024).
//!
//! Attention of the end of a prompt chooses among everything before it, and a chosen row keeps its neighbours, because one
//! word of a fact is little without the others. As published, the choice is made once, after the prompt; here it is made
//! whenever the layer is above its cap, so that prompts can be longer than the cache and answers can go on.
//!
//! ```text
//! queries    … 1023 | 1024 … 1055 |           run at position 1056: only the last block of 32 counts
//! worth      the maximum attention of the rows within `neighbours` positions
//! ```
//!
//! Parameters: neighbours to either side, and how many of the last tokens stay.

use super::params::ParamsError;
use super::select::{LayerView, choose_lowest};
use crate::row_stats::KvRow;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapParams {
    /// Distance within which a row is worth as much as its best neighbour.
    pub neighbours: u64,
    /// Number of last tokens that stay, including the observation window; at most half of the cap.
    pub recent: u64,
}

impl Default for SnapParams {
    /// Pools of seven, as published.
    fn default() -> SnapParams {
        SnapParams {
            neighbours: 3,
            recent: 64,
        }
    }
}

impl SnapParams {
    pub(super) fn check(&self) -> Result<(), ParamsError> {
        ParamsError::range("the number of neighbours", self.neighbours, (0, 64))
    }
}

/// See [`super::rows::RowPolicy::choose`].
pub fn choose(view: &LayerView<'_>, rows: &mut [KvRow], params: &SnapParams) -> usize {
    if view.rows > view.max_rows {
        rows.sort_unstable_by_key(|row| row.position);
        for i in 0..rows.len() {
            let center = rows[i].position;
            let near = |row: &&KvRow| row.position.abs_diff(center) <= params.neighbours;
            let before = rows[..i].iter().rev().take_while(near);
            let around = before.chain(rows[i..].iter().take_while(near));
            let max = around.map(|row| row.mass).max().unwrap_or(0);
            rows[i].worth = max as f32;
        }
    }
    choose_lowest(view, rows, params.recent)
}

#[cfg(test)]
mod tests {
    use super::super::select::testing::{left, row, view};
    use super::*;

    #[test]
    fn neighbours_of_attended_rows_stay() {
        let mut rows: Vec<KvRow> = (100..200).map(|p| row(p, 1, 1.0)).collect();
        rows[50].mass = 1000;
        rows.reverse();
        let view = LayerView {
            position: 600,
            rows: 100,
            max_rows: 7,
            ..view()
        };
        let gone = left(&rows, |rows| choose(&view, rows, &SnapParams::default()));
        let stays: Vec<u64> = (100..200).filter(|p| !gone.contains(p)).collect();
        assert_eq!(stays, (147..=153).collect::<Vec<_>>());
        let alone = SnapParams {
            neighbours: 0,
            ..SnapParams::default()
        };
        let gone = left(&rows, |rows| choose(&view, rows, &alone));
        assert!(gone.contains(&149) && !gone.contains(&150));
        assert!(
            SnapParams {
                neighbours: 65,
                ..alone
            }
            .check()
            .is_err()
        );
    }
}
