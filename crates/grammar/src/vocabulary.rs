//! The trie of a vocabulary, and shapes compiled against it.

use crate::calls::constraint::CallConstraint;
use crate::state::GrammarState;
use crate::{CheckedShape, GrammarError, Shape, lark, limits};
use haversack_engine::sample::Constraint;
use haversack_text::tokenizer::Tokenizer;
use haversack_text::tokenizer::pieces::TokenKind;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A vocabulary as shapes see it: the bytes of its tokens, and which of them end an answer.
pub struct Vocabulary {
    factory: ParserFactory,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.factory.tok_env().tok_trie().vocab_size();
        f.debug_struct("Vocabulary")
            .field("tokens", &tokens)
            .finish()
    }
}

/// What nothing in UTF-8 begins with: tokens with this in front are no text.
const NO_TEXT: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// Most tokens may come in most strings. Where one of these holds for all that may come, its tokens are allowed together.
const SLICES: [&str; 1] = [r#"[^"\\\x00-\x1F\x7F]+"#];

/// Bytes that a vocabulary takes, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrammarNeeds {
    /// While it is made, what stays included.
    pub making: usize,
    pub kept: usize,
}

impl Vocabulary {
    /// What one of this tokenizer takes, before anything is made.
    pub fn needs(tokenizer: &Tokenizer) -> GrammarNeeds {
        let ids = 0..tokenizer.len() as u32;
        let pieces: usize = ids
            .map(|id| tokenizer.piece_bytes(id).len().min(limits::PIECE_BYTES) + 1)
            .sum();
        let of = |(token, byte): (usize, usize)| {
            tokenizer.len() * token + pieces * byte + limits::VOCABULARY_BYTES
        };
        GrammarNeeds {
            making: of(limits::MAKING_BYTES),
            kept: of(limits::KEPT_BYTES),
        }
    }

    pub fn new(tokenizer: &Tokenizer) -> Result<Vocabulary, GrammarError> {
        let ends = tokenizer.ends();
        let &first = ends.first().ok_or(GrammarError::NoEnd)?;
        let words = words(tokenizer);
        if words.iter().map(Vec::len).sum::<usize>() > limits::PIECES_BYTES {
            return Err(GrammarError::Vocabulary);
        }
        let info = TokRxInfo::new(words.len() as u32, first);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(ends);
        drop(words);
        // How a text is cut into tokens is the model's choice: nothing is forced, everything that fits is allowed.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SLICES.map(str::to_owned);
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::refused(&error))?;
        *factory.limits_mut() = limits::parser();
        factory.quiet();
        Ok(Vocabulary { factory })
    }

    /// A constraint at its beginning. Takes milliseconds, and for a bad shape up to a second.
    pub fn compile(&self, shape: &Shape) -> Result<Box<dyn Constraint>, GrammarError> {
        self.compile_checked(shape.check()?)
    }

    pub fn compile_checked(
        &self,
        shape: CheckedShape,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let parser = on_a_stack(|| self.factory.create_parser(shape.grammar));
        let refused = |text: String| match lark::refused(&text) {
            Some(error) if shape.is_lark => error,
            // The compiler saw what was made of the shape: places in that mean nothing.
            Some(GrammarError::Syntax { what, .. }) => GrammarError::Refused(what),
            _ => GrammarError::refused(&text),
        };
        let parser = parser.map_err(|error| refused(error.to_string()))?;
        let state = GrammarState::new(Matcher::new(Ok(parser)));
        Ok(match shape.reader {
            Some(reader) => {
                let env = self.factory.tok_env().clone();
                Box::new(CallConstraint::new(reader, state, env))
            }
            None => Box::new(state),
        })
    }
}

/// Runs on a stack of known size: what is compiled is as deep as a stranger made it.
fn on_a_stack<T: Send, E: Send + From<std::io::Error>>(
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(limits::STACK_BYTES);
        let handle = thread.spawn_scoped(scope, work)?;
        let panicked = |_| Err(std::io::Error::other("it cannot be compiled").into());
        handle.join().unwrap_or_else(panicked)
    })
}

/// The bytes of each token; of those that never come, none.
fn words(tokenizer: &Tokenizer) -> Vec<Vec<u8>> {
    let mut twins: HashMap<Vec<u8>, u8> = HashMap::new();
    (0..tokenizer.len() as u32)
        .map(|id| {
            let word = word(tokenizer, id);
            let seen = twins.entry(word.clone()).or_default();
            *seen = seen.saturating_add(1);
            match *seen > limits::TWINS {
                true => Vec::new(),
                false => word,
            }
        })
        .collect()
}

fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let piece = tokenizer.piece_bytes(id);
    if piece.len() > limits::PIECE_BYTES {
        return Vec::new();
    }
    let is_text = match tokenizer.kind(id) {
        TokenKind::Control | TokenKind::Unknown => false,
        // Where text has a space put in front, the one behind such a token is not shown: bytes and text would differ.
        TokenKind::UserDefined | TokenKind::HiddenTag => !tokenizer.add_space_prefix(),
        TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => true,
    };
    match is_text {
        true if piece.first() == Some(&NO_TEXT) => Vec::new(),
        true => piece.into_owned(),
        false => [&[NO_TEXT], &*piece].concat(),
    }
}
