//! An observation window: the last 32 queries say what the next ones will need.
//!
//! The idea is SnapKV's: attention of the end of a prompt chooses among everything before it, and what was chosen
//! takes its neighbours along, because a word of a fact is little without the others. Published, it looks once, when
//! the prompt has been read; here it looks whenever the layer is above its cap, so that prompts may be longer than
//! the cache and answers may go on.
//!
//! ```text
//! queries    … 1023 | 1024 … 1055 |           asked at position 1056: the last block of 32 counts, alone
//! worth      the greatest attention among the rows within `neighbours` positions
//! ```
//!
//! Parameters: neighbours to either side, and how many of the last tokens stay.

use super::rows::{LayerView, ParamsError, choose_least};
use crate::notes::Row;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapParams {
    /// Positions to either side that a row is worth as much as.
    pub neighbours: u64,
    /// Last tokens that stay, the observation window among them. Half of the cap counts at most.
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
        ParamsError::number("the number of neighbours", self.neighbours, 0..=64)
    }
}

/// As [`super::rows::RowPolicy::choose`].
pub fn choose(view: &LayerView<'_>, rows: &mut [Row], params: &SnapParams) -> usize {
    if view.rows > view.most {
        rows.sort_unstable_by_key(|row| row.position);
        for i in 0..rows.len() {
            let center = rows[i].position;
            let near = |row: &&Row| row.position.abs_diff(center) <= params.neighbours;
            let before = rows[..i].iter().rev().take_while(near);
            let around = before.chain(rows[i..].iter().take_while(near));
            let most = around.map(|row| row.mass).max().unwrap_or(0);
            rows[i].worth = most as f32;
        }
    }
    choose_least(view, rows, params.recent)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{left, row, view};
    use super::*;

    #[test]
    fn neighbours_stay_with_what_was_looked_at() {
        let mut rows: Vec<Row> = (100..200).map(|p| row(p, 1, 1.0)).collect();
        rows[50].mass = 1000;
        rows.reverse();
        let view = LayerView {
            position: 600,
            rows: 100,
            most: 7,
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
