#![forbid(unsafe_code)]
//! Answers that have a form: which tokens of a vocabulary may come next in a JSON schema or a regular expression.
//!
//! ```text
//! tokenizer ─► Vocabulary (a trie, once per model) ─► compile(Shape) ─► Constraint, one per answer ─► engine's Sampler
//! ```
//!
//! The parser is `llguidance`; this crate says what it may cost. Shapes come from strangers: their bytes, their
//! alternatives, the ways of patterns that must hold together, the size of what is compiled and the work for each token all have an end ([`limits`]), compiling happens
//! on a stack of known size, and what fails does so in one line. An answer that ends by itself is whole: a token that
//! ends it is possible only where the shape is complete.
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

mod intersection;
pub mod limits;
mod schema;
mod state;
mod vocabulary;

pub use schema::{Callable, calls};
pub use vocabulary::{GrammarNeeds, Vocabulary};

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
}

impl Shape {
    /// Bytes that compiling it takes beside the vocabulary, at most.
    pub fn compiling_bytes(&self) -> usize {
        let (bytes, alternatives) = match self {
            Shape::Object => (0, 0),
            Shape::Regex(regex) => (regex.len(), 0),
            Shape::Schema(schema) => {
                let bytes = schema.to_string().len();
                (bytes, schema::alternative_bytes(schema, bytes))
            }
        };
        let (by_shape, by_alternatives) = limits::GRAMMAR_PER_BYTE;
        let grammar = bytes.saturating_mul(by_shape) + alternatives * by_alternatives;
        limits::COMPILING_BYTES
            + grammar.min(limits::GRAMMAR_BYTES)
            + alternatives * limits::WRITTEN_PER_BYTE
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
    /// In the words of the compiler.
    #[error("{0}")]
    Refused(String),
    #[error("the model has no token that ends an answer, so no answer can have a form")]
    NoEnd,
    #[error("the vocabulary is too large for answers that have a form")]
    Vocabulary,
}

impl GrammarError {
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
