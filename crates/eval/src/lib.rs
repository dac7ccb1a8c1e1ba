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
pub mod coverage;
pub mod dice;
pub mod free_answers;
pub mod guard;
pub mod instructions;
pub mod long_talk;
pub mod lookups;
pub mod needles;
pub mod recall;
pub mod records;
pub mod side;
pub mod stats;
pub mod story;
pub mod talk;
pub mod task;
pub mod told_facts;
mod words;

use haversack_engine::{LoadError, LoadOptions, Model, Repack};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where what was made of models is kept.
pub fn folder() -> PathBuf {
    std::env::temp_dir().join("haversack-eval-packed")
}

/// A model as programs run it: its packed copy is kept.
pub fn load(path: &Path) -> Result<Arc<Model>, LoadError> {
    let options = LoadOptions {
        repack: Repack::Into(folder()),
        ..LoadOptions::default()
    };
    Model::load(path, &options, &mut |_, _| ())
}
