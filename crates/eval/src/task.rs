//! The tasks with questions, by name.

use crate::choice::Case;
use crate::{arithmetic, lookups, needles, recall};
use haversack_text::tokenizer::Tokenizer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Needles,
    Lookups,
    Recall,
    Arithmetic,
}

impl Task {
    pub const ALL: [Task; 4] = [Task::Needles, Task::Lookups, Task::Recall, Task::Arithmetic];

    pub fn name(self) -> &'static str {
        match self {
            Task::Needles => "needles",
            Task::Lookups => "lookups",
            Task::Recall => "recall",
            Task::Arithmetic => "arithmetic",
        }
    }

    /// What its columns begin with: one of what it counts.
    pub fn column(self) -> &'static str {
        self.name().trim_end_matches('s')
    }

    /// The case of this number in a context of `tokens` tokens.
    pub fn case(
        self,
        tokenizer: &Tokenizer,
        text: &[u32],
        tokens: usize,
        seed: u64,
        number: usize,
    ) -> Case {
        let make = match self {
            Task::Needles => needles::case,
            Task::Lookups => lookups::case,
            Task::Recall => recall::case,
            Task::Arithmetic => arithmetic::case,
        };
        make(tokenizer, text, tokens, seed, number)
    }
}
