//! A turn: a question and its answer, from the first marker of one to the last marker of the other.
//!
//! A message that is too long to be read whole is told in parts, each a turn with markers of its own; the last has the
//! answer.
//!
//! A turn is shown, hidden, spilled, recalled and forgotten as a whole, so no marker is ever without its other half.
//!
//! ```text
//!           hidden                 quota            quota
//! Live ─────────────► Spilled ─────────────► Ids ─────────► forgotten
//!   ▲  memory is needed  │   rows in the file   │  ids and embedding in the file
//!   └────────────────────┘ mounted              │
//!   ▲                                           │
//!   └───────────────────────────────────────────┘ recomputed, at new positions
//! ```

use haversack_kernels::attention::BLOCK_SLOTS;
use std::ops::Range;

/// Where the rows of a turn are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnPlace {
    /// In memory.
    Live,
    /// In the session's file, block by block.
    Spilled,
    /// Nowhere: the file has its token ids and its embedding.
    Ids,
}

/// One turn. The tokens themselves are in its record.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Counted from 0, never reused.
    pub number: u64,
    /// Positions of its tokens. Recomputing a turn gives it new ones.
    pub span: Range<u64>,
    pub place: TurnPlace,
    /// Attention sees it. Only live turns are visible.
    pub is_visible: bool,
    /// It stays visible until the caller unpins it.
    pub is_pinned: bool,
    /// No answer sees it until the caller includes or recalls it.
    pub is_excluded: bool,
    /// A state: told rather than asked, so it holds no answer.
    pub is_state: bool,
    /// A part of a message that is too long to be read whole: the message goes on in the next turn, and the last part
    /// has its answer.
    pub is_part: bool,
}

impl Turn {
    pub fn tokens(&self) -> u64 {
        self.span.end - self.span.start
    }
}

/// Index of the first of the latest `last` turns; states and parts of messages do not count.
pub fn last_from<'a>(
    turns: impl DoubleEndedIterator<Item = &'a Turn> + ExactSizeIterator,
    last: usize,
) -> usize {
    let all = turns.len();
    let asked = turns
        .enumerate()
        .rev()
        .filter(|(_, turn)| !turn.is_state && !turn.is_part);
    asked.take(last).last().map_or(all, |(i, _)| i)
}

/// The complement of the visible spans below `position`: the spans to hide.
pub fn hidden(mut visible: Vec<Range<u64>>, position: u64) -> Vec<Range<u64>> {
    visible.sort_by_key(|span| span.start);
    let mut hidden = Vec::new();
    let mut from = 0;
    for span in visible {
        if span.start > from {
            hidden.push(from..span.start.min(position));
        }
        from = from.max(span.end);
    }
    if from < position {
        hidden.push(from..position);
    }
    hidden
}

/// Rows of a block.
pub(super) const SLOTS: u64 = BLOCK_SLOTS as u64;

/// Blocks that rows of a span are in.
pub(super) fn blocks_of(span: &Range<u64>) -> Range<u64> {
    span.start / SLOTS..span.end.div_ceil(SLOTS)
}

/// Whether rows of the span are in the block.
pub(super) fn is_in_block(block: u64, span: &Range<u64>) -> bool {
    span.start < (block + 1) * SLOTS && block * SLOTS < span.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "lists of one range")]
    fn what_is_not_visible_is_hidden() {
        assert_eq!(hidden(vec![10..20, 0..5], 30), [5..10, 20..30]);
        assert_eq!(hidden(vec![0..30], 30), []);
        assert_eq!(hidden(vec![], 3), [0..3]);
        assert_eq!(hidden(vec![0..5, 3..9], 12), [9..12]);
    }
}
