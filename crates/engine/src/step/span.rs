//! What a step computes: the new tokens of one sequence.

use haversack_cache::SequenceId;
use std::ops::Range;

/// Which rows of a span get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    Nothing,
    Last,
    All,
}

/// New tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct StepSpan<'a> {
    pub sequence: SequenceId,
    /// Where the sequence stands: the position of `tokens[0]`.
    pub position: u64,
    pub tokens: &'a [u32],
    pub want: LogitRows,
}

impl<'a> StepSpan<'a> {
    pub fn new(sequence: SequenceId, position: u64, tokens: &'a [u32], want: LogitRows) -> Self {
        StepSpan {
            sequence,
            position,
            tokens,
            want,
        }
    }

    /// The rows of this span that get logits.
    pub(crate) fn wanted(&self) -> Range<usize> {
        let n = self.tokens.len();
        match self.want {
            LogitRows::Nothing => n..n,
            LogitRows::Last => n.saturating_sub(1)..n,
            LogitRows::All => 0..n,
        }
    }
}
