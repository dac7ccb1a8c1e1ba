//! Facts that write themselves: what the user said of themselves in a turn, and what will still hold.
//!
//! ```text
//! turn ─► statements ─► the model: which kind? ─► fact ─► the model: does an older fact with words of it hold as well?
//!            │                   └► event, feeling, wish, request, talk, world                  └► no: it is replaced
//!            └► questions, requests, suppositions, code
//! ```
//!
//! A fact is a sentence of the user, word for word, so nothing is invented: the model chooses, it does not write. What it
//! answers is one word of a list, whose log-probabilities are compared; nothing is sampled. A sentence that begins with a
//! pronoun has the sentence before with it. Every question begins with the same examples, which the prefix cache keeps.
//!
//! A search runs as background requests, inside the budget. What a program asks for runs beside others
//! ([`crate::FactSearch`]): dropping it cancels it, and nothing is changed by it until its caller adds what it has found.
//! For sessions that ask for it `finder` searches by itself, while nothing is answered, and adds what it finds.

mod choice;
mod finder;
mod search;
mod sentences;

pub(crate) use choice::{LIKELIEST, ModelChoice};
pub(crate) use finder::{EVENTS_MAX, FactFinder, SavedTurn};
pub use search::FoundFact;
pub(crate) use search::{Chooser, find};
