//! Requests that are longer than the rows they may have. Pure.
//!
//! | | what the answer sees | what it costs |
//! |---|---|---|
//! | [`Long::Truncate`] | the first and the last tokens of the prompt; it ends when its rows are full | nothing |
//! | [`Long::Window`] | the first tokens and the last, and through the rows that stay, a little of what has left | nothing |
//! | [`Long::Choose`] | the last tokens, and of those before them the rows that a policy chooses, layer by layer | counting attention |
//! | [`Long::Again`] | the first tokens and the last, computed as if there had been nothing between | the last tokens are read again now and then |
//!
//! Where tokens are left out depends on how many there were, never on when they came: an answer does not depend on how its
//! prompt was portioned.

use haversack_engine::runtime::Keep;
use haversack_engine::runtime::options::Policy;
use haversack_kernels::attention::BLOCK_SLOTS;

/// What becomes of a request that is longer than its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LongPrompt {
    /// It is not taken.
    #[default]
    Refuse,
    Truncate,
    Window,
    /// Rows leave one by one: those that `Heavy`, `Snap` or `Adaptive` would let go.
    Select(Policy),
    /// Like a window whose rows are read again each time so many tokens have left it.
    Reread {
        every: usize,
    },
}

/// The rows of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLimit {
    pub most: usize,
    /// First tokens that are always among them.
    pub anchors: usize,
    pub long: LongPrompt,
}

/// Rows with which nothing can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowLimitError {
    #[error("{most} rows with {anchors} anchors; accepted: at least {least}")]
    Few {
        most: usize,
        anchors: usize,
        least: usize,
    },
    #[error("rows are to be read again every {every} tokens; accepted: 1 to {most}")]
    Every { every: usize, most: usize },
}

impl RowLimit {
    pub fn check(&self) -> Result<(), RowLimitError> {
        let RowLimit {
            most,
            anchors,
            long,
        } = *self;
        let least = anchors.saturating_add(2 * BLOCK_SLOTS);
        if most < least {
            return Err(RowLimitError::Few {
                most,
                anchors,
                least,
            });
        }
        match long {
            LongPrompt::Reread { every } if !(1..=most - least).contains(&every) => {
                let most = most - least;
                Err(RowLimitError::Every { every, most })
            }
            _ => Ok(()),
        }
    }

    pub fn is_read_again(&self) -> bool {
        matches!(self.long, LongPrompt::Reread { .. })
    }

    /// What its sequence keeps, which sees so many tokens at most.
    pub fn keep(&self, tokens: usize) -> Keep {
        let anchors = self.anchors;
        // Of rows that were not checked nobody says more than that they are too few.
        let window = self
            .most
            .saturating_sub(anchors.saturating_add(BLOCK_SLOTS));
        match self.long {
            LongPrompt::Window => Keep::Window { anchors, window },
            LongPrompt::Select(by) if tokens > self.most => Keep::Chosen {
                by,
                anchors,
                window,
                tokens,
            },
            _ => Keep::All { tokens: self.most },
        }
    }

    /// What of a prompt is read, where an answer of so many tokens is to follow; `None`: it is too long.
    pub fn of_prompt(&self, prompt: &[u32], answer: usize) -> Option<Vec<u32>> {
        let (most, n) = (self.most, prompt.len());
        match self.long {
            LongPrompt::Window | LongPrompt::Select(_) => Some(prompt.to_vec()),
            _ if n.saturating_add(answer) <= most => Some(prompt.to_vec()),
            LongPrompt::Refuse => None,
            LongPrompt::Truncate => {
                // Half of the rows are the prompt's, whatever is asked for.
                let room = most - answer.min(most / 2);
                Some(self.ends(prompt, room.min(n)))
            }
            LongPrompt::Reread { .. } => Some(self.at(prompt)),
        }
    }

    /// What is in the rows once so many tokens have come, for a request that reads again.
    pub fn at(&self, tokens: &[u32]) -> Vec<u32> {
        let LongPrompt::Reread { every } = self.long else {
            return tokens.to_vec();
        };
        // Rows are full at `most`, and again each `every` tokens: since the last such place nothing has left.
        let past = match tokens.len().checked_sub(self.most) {
            Some(past) => past % every,
            None => return tokens.to_vec(),
        };
        self.ends(tokens, self.most - every + past)
    }

    /// The anchors and the last tokens, so many together.
    fn ends(&self, tokens: &[u32], count: usize) -> Vec<u32> {
        if count >= tokens.len() {
            return tokens.to_vec();
        }
        let anchors = self.anchors.min(count);
        let last = tokens.len() - (count - anchors);
        [&tokens[..anchors], &tokens[last..]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(long: LongPrompt) -> RowLimit {
        RowLimit {
            most: 100,
            anchors: 4,
            long,
        }
    }

    fn ids(n: u32) -> Vec<u32> {
        (0..n).collect()
    }

    #[test]
    fn what_fits_is_read_as_it_is() {
        for long in [
            LongPrompt::Refuse,
            LongPrompt::Truncate,
            LongPrompt::Window,
            LongPrompt::Select(Policy::Heavy),
            LongPrompt::Reread { every: 8 },
        ] {
            assert_eq!(rows(long).of_prompt(&ids(80), 20), Some(ids(80)));
        }
        assert_eq!(rows(LongPrompt::Refuse).of_prompt(&ids(81), 20), None);
        for long in [LongPrompt::Window, LongPrompt::Select(Policy::Snap)] {
            assert_eq!(rows(long).of_prompt(&ids(500), 20), Some(ids(500)));
        }
    }

    /// Nothing is chosen where everything has room.
    #[test]
    fn rows_are_chosen_where_they_are_too_many() {
        let rows = rows(LongPrompt::Select(Policy::Heavy));
        assert_eq!(rows.keep(100), Keep::All { tokens: 100 });
        let chosen = Keep::Chosen {
            by: Policy::Heavy,
            anchors: 4,
            window: 64,
            tokens: 101,
        };
        assert_eq!(rows.keep(101), chosen);
    }

    #[test]
    fn truncated_prompts_leave_room_for_the_answer() {
        let cut = rows(LongPrompt::Truncate).of_prompt(&ids(500), 20).unwrap();
        assert_eq!(cut.len(), 80);
        assert_eq!(cut[..5], [0, 1, 2, 3, 424]);
        assert_eq!(cut[79], 499);
        let cut = rows(LongPrompt::Truncate)
            .of_prompt(&ids(500), 5000)
            .unwrap();
        assert_eq!(cut.len(), 50);
    }

    /// Token by token, reading again where the rows are full, the rows hold what [`Rows::at`] says at once.
    #[test]
    fn reading_again_has_one_history() {
        let rows = rows(LongPrompt::Reread { every: 24 });
        let mut held: Vec<u32> = Vec::new();
        for n in 1..400 {
            held.push(n - 1);
            if held.len() == rows.most {
                held = rows.ends(&ids(n), rows.most - 24);
            }
            assert_eq!(rows.at(&ids(n)), held, "{n} tokens");
            assert!(held.len() < rows.most && held.last() == Some(&(n - 1)));
        }
    }

    #[test]
    fn bad_rows() {
        let of = |most, anchors, long| RowLimit {
            most,
            anchors,
            long,
        };
        assert!(of(68, 4, LongPrompt::Truncate).check().is_ok());
        assert!(matches!(
            of(67, 4, LongPrompt::Window).check(),
            Err(RowLimitError::Few { least: 68, .. })
        ));
        assert!(of(67, usize::MAX, LongPrompt::Window).check().is_err());
        for every in [0, 33, usize::MAX] {
            let bad = of(100, 4, LongPrompt::Reread { every }).check();
            assert_eq!(bad, Err(RowLimitError::Every { every, most: 32 }));
        }
    }
}
