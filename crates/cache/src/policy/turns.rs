//! Whole turns: a question and its answer leave together.
//!
//! Half a turn misleads more than none. Spans come from annotation ([`crate::Store::annotate`]); the oldest that is
//! neither protected nor reaches into the recent tokens leaves, all of it, until the cap is met. A span that begins
//! among the anchors stays, for those never leave. Rows that belong to no span leave one by one, by age, in their turn.
//! Rows that are too old ([`LayerView::oldest`]) take the rest of their turn along.
//!
//! A layer may end well below its cap, by as much as the last turn that left.
//!
//! Parameters: how many of the last tokens stay.

use super::rows::{LayerView, partition};
use crate::notes::Row;
use crate::spans::{self, Span};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnsParams {
    /// Last tokens that stay, and with them every turn they belong to. Half of the cap counts at most.
    pub recent: u64,
}

impl Default for TurnsParams {
    /// A question and the beginning of its answer.
    fn default() -> TurnsParams {
        TurnsParams { recent: 128 }
    }
}

/// As [`super::rows::RowPolicy::choose`].
pub fn choose(view: &LayerView<'_>, rows: &mut [Row], params: &TurnsParams) -> usize {
    let free = partition(rows, |row| !row.protected);
    let rows = &mut rows[..free];
    rows.sort_unstable_by_key(|row| row.position);
    let mut leave = 0;
    let mut at = 0;
    // One turn after the other, or one row that belongs to none.
    while at < rows.len() {
        let first = rows[at].position;
        let span = spans::at(view.spans, first);
        let (start, end) = span.map_or((first, first + 1), |span| (span.start, span.end));
        let len = rows[at..].partition_point(|row| row.position < end);
        let is_whole = span.is_none_or(|span| is_loose(view, span));
        let may = is_whole && !view.is_recent(params.recent, end - 1);
        let wanted = leave < view.excess() || start < view.oldest;
        // What cannot leave as a whole loses what is too old all the same.
        let too_old = rows[at..at + len].partition_point(|row| row.position < view.oldest);
        let leaving = if may && wanted { len } else { too_old };
        for (i, row) in rows[at..at + len].iter_mut().enumerate() {
            row.worth = if i < leaving { 0.0 } else { 1.0 };
        }
        leave += leaving;
        at += len;
    }
    partition(rows, |row| row.worth == 0.0)
}

/// All of the span may leave.
fn is_loose(view: &LayerView<'_>, span: &Span) -> bool {
    !span.protected && span.start >= view.loose.start && span.end <= view.loose.end
}

/// Rows that may leave when the cap asks for it: for whoever wants to know whether more was possible.
pub fn may_leave(view: &LayerView<'_>, rows: &mut [Row], params: &TurnsParams) -> usize {
    partition(rows, |row| {
        let span = spans::at(view.spans, row.position);
        let end = span.map_or(row.position + 1, |span| span.end);
        !row.protected
            && span.is_none_or(|span| is_loose(view, span))
            && !view.is_recent(params.recent, end - 1)
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{left, row, view};
    use super::*;

    fn span(start: u64, end: u64, protected: bool) -> Span {
        Span {
            start,
            end,
            protected,
        }
    }

    #[test]
    fn whole_turns_leave_the_oldest_first() {
        let spans = [
            span(40, 80, false),
            span(80, 120, true),
            span(120, 200, false),
            span(200, 290, false),
            span(300, 560, false),
        ];
        let mut rows: Vec<Row> = (64..512).map(|p| row(p, 1, 1.0)).collect();
        rows.reverse();
        for row in &mut rows {
            row.protected = (80..120).contains(&row.position);
        }
        let view = |most, oldest| LayerView {
            position: 640,
            rows: 640,
            most,
            oldest,
            loose: 64..512,
            spans: &spans,
            ..view()
        };
        let gone = |most, oldest| {
            left(&rows, |rows| {
                choose(&view(most, oldest), rows, &TurnsParams { recent: 100 })
            })
        };
        assert!(gone(640, 0).is_empty());
        // Not the one that begins among the anchors, nor the protected one.
        assert_eq!(gone(639, 0), (120..200).collect::<Vec<_>>());
        assert_eq!(gone(560, 0), (120..200).collect::<Vec<_>>());
        assert_eq!(gone(559, 0), (120..290).collect::<Vec<_>>());
        // Single rows between turns; the last turn reaches into the recent tokens and beyond what may leave.
        assert_eq!(gone(465, 0), (120..295).collect::<Vec<_>>());
        assert_eq!(gone(0, 0), (120..300).collect::<Vec<_>>());
        // Too old: its turn goes with it, and of one that cannot go as a whole what must.
        assert_eq!(gone(640, 121), (64..80).chain(120..200).collect::<Vec<_>>());
        assert_eq!(gone(640, 320).last(), Some(&319));
    }
}
