//! Whole turns: evicts a question and its answer together. Our own.
//!
//! Half a turn misleads more than none. Turns are annotations ([`crate::Store::annotate`]). The policy evicts the oldest
//! turn that is neither protected nor reaches into the recent tokens, all of it, until the cap is met. A turn that begins
//! among the anchors stays with them. Rows outside turns are evicted one by one, by age, in the same order. Rows that are
//! too old ([`LayerView::min_position`]) take the rest of their turn along.
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
    /// A question and the beginning of its answer.
    fn default() -> TurnsParams {
        TurnsParams { recent: 128 }
    }
}

/// See [`super::rows::RowPolicy::choose`].
pub fn choose(view: &LayerView<'_>, rows: &mut [KvRow], params: &TurnsParams) -> usize {
    let free = partition(rows, |row| !row.protected);
    let rows = &mut rows[..free];
    rows.sort_unstable_by_key(|row| row.position);
    let mut leave = 0;
    let mut at = 0;
    // Turn by turn, or row by row outside turns.
    while at < rows.len() {
        let first = rows[at].position;
        let span = annotations::at(view.annotations, first);
        let (start, end) = span.map_or((first, first + 1), |span| (span.start, span.end));
        let len = rows[at..].partition_point(|row| row.position < end);
        let is_whole = span.is_none_or(|span| is_evictable(view, span));
        let may = is_whole && !view.is_recent(params.recent, end - 1);
        let wanted = leave < view.excess() || start < view.min_position;
        // A turn that stays as a whole still loses what is too old.
        let too_old = rows[at..at + len].partition_point(|row| row.position < view.min_position);
        let leaving = if may && wanted { len } else { too_old };
        for (i, row) in rows[at..at + len].iter_mut().enumerate() {
            row.worth = if i < leaving { 0.0 } else { 1.0 };
        }
        leave += leaving;
        at += len;
    }
    partition(rows, |row| row.worth == 0.0)
}

/// Whether the whole turn can be evicted.
fn is_evictable(view: &LayerView<'_>, span: &Annotation) -> bool {
    !span.protected && span.start >= view.evictable.start && span.end <= view.evictable.end
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
        assert_eq!(gone(0, 0), (120..300).collect::<Vec<_>>());
        // A row that is too old takes its turn along; of a turn that stays, only what is too old.
        assert_eq!(gone(640, 121), (64..80).chain(120..200).collect::<Vec<_>>());
        assert_eq!(gone(640, 320).last(), Some(&319));
    }
}
