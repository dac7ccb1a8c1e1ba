//! Whole turns: evicts a question and its answer together. Our own.
//!
//! Half a turn misleads more than none. Turns are annotations ([`crate::Store::annotate`]). The policy evicts the oldest
//! turn that is neither protected nor recent, all of it, until the cap is met. Rows outside turns are evicted one by one, by
//! age, in the same order. Rows that are too old ([`LayerView::min_position`]) take the rest of their turn along.
//!
//! Where no such turn is left and the cap is not met, a turn that has ended leaves as far as it is evictable: one that begins
//! among the anchors leaves its beginning there, one that ends among the recent blocks leaves the rest a little later. Only
//! the turn under way, or one that is longer than all rows, loses single rows, the oldest first.
//!
//! A layer may end below its cap by as much as the last evicted turn.
//!
//! Parameters: how many of the last tokens stay.

use super::select::{LayerView, partition};
use crate::annotations::{self, Annotation};
use crate::row_stats::KvRow;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnsParams {
    /// Number of last tokens that stay, and with them every turn they belong to; at most half of the cap.
    pub recent: u64,
}

impl Default for TurnsParams {
    /// None but the blocks that are never evictable: a turn that ends shortly before them can leave as a whole.
    fn default() -> TurnsParams {
        TurnsParams { recent: 0 }
    }
}

/// What leaves together, in the order in which it is tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Whole turns, and rows outside of them.
    Whole,
    /// All evictable rows of a turn that has ended.
    Ended,
    Rows,
}

/// See [`super::rows::RowPolicy::choose`].
pub fn choose(view: &LayerView<'_>, rows: &mut [KvRow], params: &TurnsParams) -> usize {
    let free = partition(rows, |row| !row.protected);
    let rows = &mut rows[..free];
    rows.sort_unstable_by_key(|row| row.position);
    let mut leave = rows.partition_point(|row| row.position < view.min_position);
    for (i, row) in rows.iter_mut().enumerate() {
        row.worth = if i < leave { LEAVES } else { STAYS };
    }
    for round in [Round::Whole, Round::Ended, Round::Rows] {
        let mut at = 0;
        while at < rows.len() {
            let first = rows[at].position;
            let span = annotations::at(view.annotations, first).filter(|_| round != Round::Rows);
            let end = span.map_or(first + 1, |span| span.end);
            let len = rows[at..].partition_point(|row| row.position < end);
            let group = &mut rows[at..at + len];
            at += len;
            let may = match span {
                Some(span) => may_leave(view, span, round, params),
                None => true,
            };
            let takes_along = round == Round::Whole
                && span.is_some_and(|s| s.start < view.min_position || is_remnant(view, s, first));
            if !may || leave >= view.excess() && !takes_along {
                continue;
            }
            for row in group {
                if row.worth == STAYS && !view.is_recent(params.recent, row.position) {
                    row.worth = LEAVES;
                    leave += 1;
                }
            }
        }
    }
    partition(rows, |row| row.worth == LEAVES)
}

const LEAVES: f32 = 0.0;
const STAYS: f32 = 1.0;

fn may_leave(view: &LayerView<'_>, span: &Annotation, round: Round, params: &TurnsParams) -> bool {
    !span.protected
        && match round {
            Round::Whole => {
                let is_inside =
                    span.start >= view.evictable.start && span.end <= view.evictable.end;
                is_inside && !view.is_recent(params.recent, span.end - 1)
            }
            _ => span.end <= view.position,
        }
}

/// Whether a turn has left but for rows that were among the recent blocks then. `first` is the first one it has.
fn is_remnant(view: &LayerView<'_>, span: &Annotation, first: u64) -> bool {
    let recent = view.position.saturating_sub(view.evictable.end);
    span.start < first && span.end - first <= recent
}

#[cfg(test)]
mod tests {
    use super::super::select::testing::{left, row, view};
    use super::*;

    fn span(start: u64, end: u64, protected: bool) -> Annotation {
        Annotation {
            start,
            end,
            protected,
        }
    }

    #[test]
    fn whole_turns_are_evicted_oldest_first() {
        let spans = [
            span(40, 80, false),
            span(80, 120, true),
            span(120, 200, false),
            span(200, 290, false),
            span(300, 560, false),
        ];
        let mut rows: Vec<KvRow> = (64..512).map(|p| row(p, 1, 1.0)).collect();
        rows.reverse();
        for row in &mut rows {
            row.protected = (80..120).contains(&row.position);
        }
        let view = |max_rows, min_position| LayerView {
            position: 640,
            rows: 640,
            max_rows,
            min_position,
            evictable: 64..512,
            annotations: &spans,
            ..view()
        };
        let gone = |max_rows, min_position| {
            left(&rows, |rows| {
                choose(
                    &view(max_rows, min_position),
                    rows,
                    &TurnsParams { recent: 100 },
                )
            })
        };
        assert!(gone(640, 0).is_empty());
        // Not the one that begins among the anchors, nor the protected one.
        assert_eq!(gone(639, 0), (120..200).collect::<Vec<_>>());
        assert_eq!(gone(560, 0), (120..200).collect::<Vec<_>>());
        assert_eq!(gone(559, 0), (120..290).collect::<Vec<_>>());
        // Single rows between turns; the last turn reaches into the recent tokens and past the evictable ones.
        assert_eq!(gone(465, 0), (120..295).collect::<Vec<_>>());
        assert_eq!(gone(460, 0), (120..300).collect::<Vec<_>>());
        // No whole turn is left: what is behind the anchors, then what is before the recent blocks.
        let behind = || (64..80).chain(120..300);
        assert_eq!(gone(459, 0), behind().collect::<Vec<_>>());
        assert_eq!(gone(444, 0), behind().collect::<Vec<_>>());
        assert_eq!(gone(443, 0), behind().chain(300..512).collect::<Vec<_>>());
        assert_eq!(gone(0, 0), behind().chain(300..512).collect::<Vec<_>>());
        // A row that is too old takes its turn along; of a turn that stays, only what is too old.
        assert_eq!(gone(640, 121), (64..80).chain(120..200).collect::<Vec<_>>());
        assert_eq!(gone(640, 320).last(), Some(&319));
    }

    #[test]
    fn a_turn_under_way_loses_single_rows_and_a_rest_follows_its_turn() {
        let rows: Vec<KvRow> = (32..224).map(|p| row(p, 1, 1.0)).collect();
        let gone = |spans: &[Annotation], rows: &[KvRow], max_rows| {
            let view = LayerView {
                position: 320,
                rows: 128 + rows.len(),
                max_rows,
                evictable: 32..224,
                annotations: spans,
                ..view()
            };
            left(rows, |rows| choose(&view, rows, &TurnsParams::default()))
        };
        let whole = [
            span(0, 32, true),
            span(32, 100, false),
            span(100, u64::MAX, false),
        ];
        assert_eq!(gone(&whole, &rows, 319), (32..100).collect::<Vec<_>>());
        assert_eq!(gone(&whole, &rows, 250), (32..102).collect::<Vec<_>>());
        // It ends among the recent blocks; then those are not recent any more.
        let ended = [
            span(0, 32, true),
            span(32, 240, false),
            span(240, u64::MAX, false),
        ];
        assert_eq!(gone(&ended, &rows, 319), (32..224).collect::<Vec<_>>());
        let rest = [
            span(0, 32, true),
            span(32, 200, false),
            span(200, u64::MAX, false),
        ];
        assert_eq!(
            gone(&rest, &rows[150..], 320),
            (182..200).collect::<Vec<_>>()
        );
        assert!(gone(&rest, &rows[10..], 320).is_empty());
    }
}
