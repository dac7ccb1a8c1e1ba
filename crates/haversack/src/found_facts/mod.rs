//! Facts that write themselves: what the user said of themselves in a turn, and what will still hold.
//!
//! ```text
//! turn ─► statements ─► the model: which kind? ─► fact ─► the model: does an older fact with words of it hold as well?
//!            │                   └► event, feeling, wish, request, talk, world                  └► no: it is replaced
//!            └► questions, suppositions, code
//! ```
//!
//! A fact is a sentence of the user, word for word, so nothing is invented: the model chooses, it does not write. What it
//! answers is one word of a list, whose log-probabilities are compared; nothing is sampled. A sentence that begins with a
//! pronoun has the sentence before with it. Every question begins with the same examples, which the prefix cache keeps.
//!
//! A search runs as a background request beside others, inside the budget. Dropping it cancels it; nothing is changed by
//! it until its caller adds what it has found.

mod choice;
mod search;
mod sentences;

pub(crate) use choice::{LIKELIEST, ModelChoice};
pub use search::FoundFact;
pub(crate) use search::{Chooser, find};
