#![forbid(unsafe_code)]
//! Judging what a cache keeps. Not part of the library that ships.
//!
//! A *contender* is a policy, a codec and a share of the bytes of a full f16 cache ([`contender`]). It is
//! judged by what it does to predictions ([`side`]), by questions about things said long ago ([`task`]),
//! and by the answers it gives when it runs freely ([`answers`]). Figures come with intervals ([`stats`]).
//! Everything is a function of a model, a text and a seed; nothing here reads a clock, except for what a
//! token takes.

pub mod answers;
pub mod arithmetic;
pub mod bleu;
pub mod choice;
pub mod contender;
pub mod dice;
pub mod guard;
pub mod instructions;
pub mod lookups;
pub mod needles;
pub mod recall;
pub mod side;
pub mod stats;
pub mod story;
pub mod talk;
pub mod task;
mod words;
