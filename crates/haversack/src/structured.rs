//! Structured output: the vocabulary as grammars see it, prepared when the first constraint is compiled.

use crate::channel::lock;
use crate::error::Error;
use haversack_engine::sample::Constraint;
use haversack_grammar::{GrammarError, Shape, Vocabulary};
use haversack_text::tokenizer::Tokenizer;
use std::sync::{Mutex, OnceLock};

#[derive(Default)]
pub(crate) struct LazyVocabulary {
    prepared: OnceLock<Result<Vocabulary, GrammarError>>,
    /// Held while one thread prepares it; others wait.
    preparing: Mutex<()>,
}

impl LazyVocabulary {
    pub fn compile(
        &self,
        tokenizer: &Tokenizer,
        shape: &Shape,
        reserve: impl FnOnce(usize) -> Result<(), Error>,
        release: impl FnOnce(usize),
    ) -> Result<Box<dyn Constraint>, Error> {
        let vocabulary = self.get(tokenizer, reserve, release)?.as_ref();
        Ok(vocabulary.map_err(Clone::clone)?.compile(shape)?)
    }

    /// Its bytes are reserved before they are allocated; what only the preparation needed is released after.
    fn get(
        &self,
        tokenizer: &Tokenizer,
        reserve: impl FnOnce(usize) -> Result<(), Error>,
        release: impl FnOnce(usize),
    ) -> Result<&Result<Vocabulary, GrammarError>, Error> {
        let _alone = lock(&self.preparing);
        if let Some(prepared) = self.prepared.get() {
            return Ok(prepared);
        }
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
