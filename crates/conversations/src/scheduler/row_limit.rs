//! Row limit of one request, and what happens to a request that is longer. Pure.
//!
//! | | what the answer sees | cost |
//! |---|---|---|
//! | [`LongPrompt::Truncate`] | the first and last tokens of the prompt; the answer ends when the rows are full | none |
//! | [`LongPrompt::Window`] | the first and last tokens, and through their rows a little of the evicted ones | none |
//! | [`LongPrompt::Select`] | the last tokens, and rows of earlier ones that a policy selects layer by layer | counting attention |
//! | [`LongPrompt::Reread`] | the first and last tokens, computed as if nothing had been between | re-reads the last tokens now and then |
//!
//! Which tokens are left out depends on how many there were, never on when they came. So the answer does not depend on how
//! the prompt was cut into portions.

use haversack_engine::runtime::SequenceRetention;
use haversack_engine::runtime::options::Policy;
use haversack_kernels::attention::BLOCK_SLOTS;

/// What happens to a request that is longer than its row limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LongPrompt {
    /// [`Scheduler::submit`](super::Scheduler::submit) refuses it.
    #[default]
    Refuse,
    Truncate,
    Window,
    /// Evicts rows one by one: those that `Heavy`, `Snap`, `Turns` or `Adaptive` would evict.
    Select(Policy),
    /// A window that is computed anew after every `every` evicted tokens.
    Reread {
        every: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLimit {
    pub max_rows: usize,
    /// First tokens that always stay.
    pub anchors: usize,
    pub when_longer: LongPrompt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowLimitError {
    #[error("{max_rows} rows with {anchors} anchors; accepted: at least {min_rows}")]
    TooFewRows {
        max_rows: usize,
        anchors: usize,
        min_rows: usize,
    },
    #[error("rows are to be read again every {every} tokens; accepted: 1 to {max}")]
    RereadInterval { every: usize, max: usize },
}

impl RowLimit {
    pub fn check(&self) -> Result<(), RowLimitError> {
        let RowLimit {
            max_rows,
            anchors,
            when_longer,
        } = *self;
        let min_rows = anchors.saturating_add(2 * BLOCK_SLOTS);
        let Some(max) = max_rows.checked_sub(min_rows) else {
            return Err(RowLimitError::TooFewRows {
                max_rows,
                anchors,
                min_rows,
            });
        };
        match when_longer {
            LongPrompt::Reread { every } if !(1..=max).contains(&every) => {
                Err(RowLimitError::RereadInterval { every, max })
            }
            _ => Ok(()),
        }
    }

    pub fn rereads(&self) -> bool {
        matches!(self.when_longer, LongPrompt::Reread { .. })
    }

    /// What the sequence of a request of at most `tokens` tokens keeps.
    pub fn keep(&self, tokens: usize) -> SequenceRetention {
        let anchors = self.anchors;
        // Saturates for limits that `check` has not seen.
        let window = (self.max_rows).saturating_sub(anchors.saturating_add(BLOCK_SLOTS));
        match self.when_longer {
            LongPrompt::Window => SequenceRetention::Window { anchors, window },
            LongPrompt::Select(by) if tokens > self.max_rows => SequenceRetention::Selected {
                by,
                anchors,
                window,
                tokens,
            },
            _ => SequenceRetention::All {
                tokens: self.max_rows,
            },
        }
    }

    /// The part of a prompt to read before an answer of `answer` tokens; `None`: the prompt is too long.
    pub fn prompt_to_read(&self, prompt: &[u32], answer: usize) -> Option<Vec<u32>> {
        let (max_rows, n) = (self.max_rows, prompt.len());
        match self.when_longer {
            LongPrompt::Window | LongPrompt::Select(_) => Some(prompt.to_vec()),
            _ if n.saturating_add(answer) <= max_rows => Some(prompt.to_vec()),
            LongPrompt::Refuse => None,
            LongPrompt::Truncate => {
                // The prompt keeps at least half of the rows, however long an answer the client asks for.
                let room = max_rows - answer.min(max_rows / 2);
                Some(self.head_and_tail(prompt, room.min(n)))
            }
            LongPrompt::Reread { .. } => Some(self.rows_after(prompt)),
        }
    }

    /// The tokens in the rows of a request that re-reads, after all of `tokens`.
    pub fn rows_after(&self, tokens: &[u32]) -> Vec<u32> {
        let LongPrompt::Reread { every } = self.when_longer else {
            return tokens.to_vec();
        };
        // Rows are full at `max_rows` and every `every` tokens after; since the last such place none was evicted.
        let since = match tokens.len().checked_sub(self.max_rows) {
            Some(past) => past % every,
            None => return tokens.to_vec(),
        };
        self.head_and_tail(tokens, self.max_rows - every + since)
    }

    /// The anchors and the last tokens, `count` together.
    fn head_and_tail(&self, tokens: &[u32], count: usize) -> Vec<u32> {
        if count >= tokens.len() {
            return tokens.to_vec();
        }
        let anchors = self.anchors.min(count);
        let tail = tokens.len() - (count - anchors);
        [&tokens[..anchors], &tokens[tail..]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(when_longer: LongPrompt) -> RowLimit {
        RowLimit {
            max_rows: 100,
            anchors: 4,
            when_longer,
        }
    }

    fn ids(n: u32) -> Vec<u32> {
        (0..n).collect()
    }

    #[test]
    fn a_prompt_that_fits_is_read_whole() {
        for long in [
            LongPrompt::Refuse,
            LongPrompt::Truncate,
            LongPrompt::Window,
            LongPrompt::Select(Policy::Heavy),
            LongPrompt::Reread { every: 8 },
        ] {
            assert_eq!(limit(long).prompt_to_read(&ids(80), 20), Some(ids(80)));
        }
        assert_eq!(limit(LongPrompt::Refuse).prompt_to_read(&ids(81), 20), None);
        for long in [LongPrompt::Window, LongPrompt::Select(Policy::Snap)] {
            assert_eq!(limit(long).prompt_to_read(&ids(500), 20), Some(ids(500)));
        }
    }

    #[test]
    fn rows_are_selected_only_beyond_the_limit() {
        let limit = limit(LongPrompt::Select(Policy::Heavy));
        assert_eq!(limit.keep(100), SequenceRetention::All { tokens: 100 });
        let chosen = SequenceRetention::Selected {
            by: Policy::Heavy,
            anchors: 4,
            window: 64,
            tokens: 101,
        };
        assert_eq!(limit.keep(101), chosen);
    }

    #[test]
    fn truncated_prompts_leave_room_for_the_answer() {
        let truncate = limit(LongPrompt::Truncate);
        let cut = truncate.prompt_to_read(&ids(500), 20).unwrap();
        assert_eq!(cut.len(), 80);
        assert_eq!(cut[..5], [0, 1, 2, 3, 424]);
        assert_eq!(cut[79], 499);
        let cut = truncate.prompt_to_read(&ids(500), 5000).unwrap();
        assert_eq!(cut.len(), 50);
    }

    /// Token by token, with a re-read where the rows are full, the rows hold what [`RowLimit::rows_after`] says at once.
    #[test]
    fn rereading_has_one_history() {
        let limit = limit(LongPrompt::Reread { every: 24 });
        let mut held: Vec<u32> = Vec::new();
        for n in 1..400 {
            held.push(n - 1);
            if held.len() == limit.max_rows {
                held = limit.head_and_tail(&ids(n), limit.max_rows - 24);
            }
            assert_eq!(limit.rows_after(&ids(n)), held, "{n} tokens");
            assert!(held.len() < limit.max_rows && held.last() == Some(&(n - 1)));
        }
    }

    #[test]
    fn bad_limits() {
        let of = |max_rows, anchors, when_longer| RowLimit {
            max_rows,
            anchors,
            when_longer,
        };
        assert!(of(68, 4, LongPrompt::Truncate).check().is_ok());
        assert!(matches!(
            of(67, 4, LongPrompt::Window).check(),
            Err(RowLimitError::TooFewRows { min_rows: 68, .. })
        ));
        assert!(of(67, usize::MAX, LongPrompt::Window).check().is_err());
        for every in [0, 33, usize::MAX] {
            let bad = of(100, 4, LongPrompt::Reread { every }).check();
            assert_eq!(bad, Err(RowLimitError::RereadInterval { every, max: 32 }));
        }
    }
}
