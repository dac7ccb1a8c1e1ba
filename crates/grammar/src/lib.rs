#![forbid(unsafe_code)]
//! Answers that have a form: which tokens of a vocabulary may come next in a JSON schema or a regular expression.
//!
//! ```text
//! tokenizer ─► Vocabulary (a trie, once per model) ─► compile(Shape) ─► Constraint, one per answer ─► engine's Sampler
//! ```
//!
//! The parser is `llguidance`; this crate says what it may cost. Shapes come from strangers: their bytes, their
//! alternatives, the ways of patterns that must hold together, the size of what is compiled and the work for each token
//! all have an end ([`limits`]), compiling happens on a stack of known size, and what fails does so in one line. An answer
//! that ends by itself is whole: a token that ends it is possible only where the shape is complete.
//!
//! ```no_run
//! use haversack_engine::sample::{SampleOptions, Sampler};
//! use haversack_grammar::{Shape, Vocabulary};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let model = haversack_engine::Model::load("model.gguf".as_ref(), &Default::default(), &mut |_, _| ())?;
//! let vocabulary = Vocabulary::new(model.tokenizer())?;
//! let schema = serde_json::json!({ "type": "object", "properties": { "age": { "type": "integer" } } });
//! let constraint = vocabulary.compile(&Shape::Schema(schema))?;
//! let sampler = Sampler::new(SampleOptions::default())?.constrained(Some(constraint));
//! # Ok(())
//! # }
//! ```

mod calls;
mod closed;
mod gbnf;
mod intersection;
mod lark;
pub mod limits;
mod references;
mod schema;
mod state;
mod vocabulary;

pub use calls::constraint::{Calls, Function};
pub use calls::{AnswerPart, CallReader, Functions, ToolCall};
pub use vocabulary::{GrammarNeeds, Vocabulary};

use llguidance::api::TopLevelGrammar;
use serde_json::Value as Json;

/// What an answer is to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Any JSON object.
    Object,
    /// JSON that fits this schema, which is an object.
    Schema(Json),
    /// Text that this regular expression matches as a whole, in the syntax of the `regex` crate.
    Regex(String),
    /// Text of this GBNF grammar, as llama.cpp has them; its first rule is `root`.
    Gbnf(String),
    /// Text of this Lark grammar, as `llguidance` has them; its first rule is `start`.
    Lark(String),
    /// Text, and calls of these functions with arguments that fit their schemas.
    Calls(Calls),
}

impl Shape {
    /// The shape as it is compiled, if it is within the limits.
    pub fn check(&self) -> Result<CheckedShape, GrammarError> {
        let (mut reader, mut is_lark) = (None, false);
        let (grammar, bytes, alternative_bytes) = match self {
            Shape::Object => (
                TopLevelGrammar::from_json_schema(schema::any_object()),
                0,
                0,
            ),
            Shape::Regex(regex) => {
                let bytes = regex.len();
                check_bytes("regular expression", bytes, limits::REGEX_BYTES)?;
                (TopLevelGrammar::from_regex(regex), bytes, 0)
            }
            Shape::Schema(schema) => {
                let checked = schema::check(schema)?;
                let grammar = TopLevelGrammar::from_json_schema(checked.schema);
                (grammar, checked.bytes, checked.alternative_bytes)
            }
            Shape::Gbnf(grammar) => {
                check_bytes("grammar", grammar.len(), limits::GRAMMAR_TEXT_BYTES)?;
                let lark = gbnf::to_lark(grammar)?;
                (TopLevelGrammar::from_lark(lark), grammar.len(), 0)
            }
            Shape::Lark(grammar) => {
                check_bytes("grammar", grammar.len(), limits::GRAMMAR_TEXT_BYTES)?;
                let checked = lark::check(grammar)?;
                let bytes = grammar.len() + checked.bytes;
                is_lark = true;
                (
                    TopLevelGrammar::from_lark(checked.lark),
                    bytes,
                    checked.alternative_bytes,
                )
            }
            Shape::Calls(calls) => {
                let checked = calls.check()?;
                reader = (!calls.must).then(|| calls.reader());
                let grammar = TopLevelGrammar::from_lark(checked.lark);
                (grammar, checked.bytes, checked.alternative_bytes)
            }
        };
        let (by_shape, by_alternatives) = limits::GRAMMAR_PER_BYTE;
        let largest = bytes * by_shape + alternative_bytes * by_alternatives;
        Ok(CheckedShape {
            grammar,
            is_lark,
            reader,
            compiling_bytes: limits::COMPILING_BYTES
                + largest.min(limits::GRAMMAR_BYTES)
                + alternative_bytes * limits::WRITTEN_PER_BYTE,
        })
    }
}

fn check_bytes(what: &'static str, bytes: usize, most: usize) -> Result<(), GrammarError> {
    match (1..=most).contains(&bytes) {
        true => Ok(()),
        false => Err(GrammarError::Bytes { what, bytes, most }),
    }
}

/// A shape within the limits ([`Shape::check`]).
#[derive(Clone)]
pub struct CheckedShape {
    grammar: TopLevelGrammar,
    /// A client wrote it: places in errors are places in its text.
    is_lark: bool,
    /// Of calls beside text.
    reader: Option<CallReader>,
    compiling_bytes: usize,
}

impl CheckedShape {
    /// Bytes that compiling it takes beside the vocabulary, at most.
    pub fn compiling_bytes(&self) -> usize {
        self.compiling_bytes
    }
}

/// Why there is no constraint. One line, whatever the shape says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    #[error("the {what} has {bytes} bytes; accepted: 1 to {most}")]
    Bytes {
        what: &'static str,
        bytes: usize,
        most: usize,
    },
    #[error("the schema is not a JSON object")]
    NotAnObject,
    #[error("the schema has {found} alternatives in {bytes} bytes; accepted: at most {most}")]
    Alternatives {
        found: usize,
        bytes: usize,
        most: usize,
    },
    #[error(
        "regular expressions that must hold together can go on in {found} ways; accepted: at most {most}"
    )]
    Ways { found: usize, most: usize },
    #[error("line {line}, column {column}: {what}")]
    Syntax {
        line: usize,
        column: usize,
        what: String,
    },
    /// In the words of the compiler.
    #[error("{0}")]
    Refused(String),
    #[error("the model has no token that ends an answer, so no answer can have a form")]
    NoEnd,
    #[error("the vocabulary is too large for answers that have a form")]
    Vocabulary,
}

impl GrammarError {
    fn of_function(self, name: &str) -> GrammarError {
        GrammarError::refused(&format_args!("function {name}: {self}"))
    }

    /// One line of what the compiler says, without what could break a terminal, and not longer than a line should be.
    fn refused(error: &dyn std::fmt::Display) -> GrammarError {
        let text = error.to_string();
        // Expressions are drawn with their fault marked; the sentence comes last.
        let told = text.lines().find_map(|line| line.strip_prefix("error: "));
        let line = told.or(text.lines().next()).unwrap_or_default();
        if line.starts_with("panic") {
            return GrammarError::Refused("it cannot be compiled".to_owned());
        }
        let line = line.chars().filter(|c| !c.is_control());
        GrammarError::Refused(line.take(limits::MESSAGE_CHARS).collect())
    }
}
