//! Structured output: the vocabulary as grammars see it, prepared when the first constraint is compiled.

use crate::channel::lock;
use crate::error::Error;
use haversack_grammar::{GrammarError, Vocabulary};
use haversack_text::tokenizer::Tokenizer;
use std::sync::{Mutex, OnceLock};

#[derive(Default)]
pub(crate) struct LazyVocabulary {
    prepared: OnceLock<Result<Vocabulary, GrammarError>>,
    /// Held while one thread prepares it; others wait.
    preparing: Mutex<()>,
}

impl LazyVocabulary {
    /// Its bytes are reserved before they are allocated; what only the preparation needed is released after.
    pub fn get(
        &self,
        tokenizer: &Tokenizer,
        reserve: impl FnOnce(usize) -> Result<(), Error>,
        release: impl FnOnce(usize),
    ) -> Result<&Vocabulary, Error> {
        let _alone = lock(&self.preparing);
        let prepared = match self.prepared.get() {
            Some(prepared) => prepared,
            None => self.prepare(tokenizer, reserve, release)?,
        };
        Ok(prepared.as_ref().map_err(Clone::clone)?)
    }

    fn prepare(
        &self,
        tokenizer: &Tokenizer,
        reserve: impl FnOnce(usize) -> Result<(), Error>,
        release: impl FnOnce(usize),
    ) -> Result<&Result<Vocabulary, GrammarError>, Error> {
        let needs = Vocabulary::needs(tokenizer);
        reserve(needs.making)?;
        let prepared = Vocabulary::new(tokenizer);
        release(match &prepared {
            Ok(_) => needs.making - needs.kept,
            Err(_) => needs.making,
        });
        Ok(self.prepared.get_or_init(|| prepared))
    }
}
