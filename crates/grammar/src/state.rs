//! Where one answer stands.

use haversack_engine::sample::{Constraint, ConstraintError};
use llguidance::Matcher;
use llguidance::toktrie::{SimpleVob, TokTrie};
use std::fmt;

#[derive(Clone)]
pub struct GrammarState {
    /// The states of the lexer are shared: copies are used one after another.
    matcher: Matcher,
    allowed: SimpleVob,
}

impl GrammarState {
    pub fn new(matcher: Matcher) -> GrammarState {
        GrammarState {
            matcher,
            allowed: SimpleVob::new(),
        }
    }

    /// The tokens that may come next.
    pub fn mask(&mut self) -> Result<SimpleVob, ConstraintError> {
        let mask = self.matcher.compute_mask_or_eos();
        mask.map_err(|error| failed(&error))
    }

    /// Goes on by these bytes, in whatever tokens they are.
    pub fn take_bytes(&mut self, trie: &TokTrie, bytes: &[u8]) -> Result<(), ConstraintError> {
        let taken = self.matcher.consume_tokens(&trie.greedy_tokenize(bytes));
        taken.map_err(|error| failed(&error))
    }
}

/// What went wrong, without what was generated.
fn failed(error: &dyn fmt::Display) -> ConstraintError {
    let text = error.to_string();
    let is_fuel = text.starts_with("lexer error") || text.starts_with("parser error");
    ConstraintError(match is_fuel {
        true => "the form that was asked for takes too much to follow",
        false => "the form that was asked for could not be followed",
    })
}

impl fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarState").finish_non_exhaustive()
    }
}

impl Constraint for GrammarState {
    fn allowed(&mut self) -> Result<&[u32], ConstraintError> {
        self.allowed = self.mask()?;
        Ok(self.allowed.as_slice())
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        // Behind the end there is nothing that could be wrong.
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Ok(());
        }
        let taken = self.matcher.consume_token(token);
        taken.map_err(|error| failed(&error))
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}
