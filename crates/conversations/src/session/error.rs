//! Why a session could not do what it was asked to. The conversation is as it was then.

use haversack_engine::encoder::EncoderError;
use haversack_engine::runtime::StepError;
use haversack_memory::journal;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Name(#[from] super::names::BadName),
    #[error("session {index} is closed")]
    Closed { index: usize },
    #[error("session {name} is answering")]
    Answering { name: String },
    #[error("session {name}: {source}")]
    File {
        name: String,
        source: journal::Error,
    },
    #[error("session {name}: {source}")]
    Record {
        name: String,
        source: super::record::BadRecord,
    },
    #[error("session {name} was saved with {what} {saved}; this is {here}")]
    Identity {
        name: String,
        what: &'static str,
        saved: String,
        here: String,
    },
    #[error("there is no session {name}")]
    NoSuchSession { name: String },
    #[error("nothing keeps sessions here")]
    NoSessions,
    #[error("session {name} is open already")]
    Open { name: String },
    #[error("session {name} is not saved: {why}")]
    Unsaved { name: String, why: String },
    #[error("sessions are not saved here; there is no {name}")]
    NowhereToLook { name: String },
    #[error(
        "the persistent stream would have {tokens} tokens; accepted: at most {most}, facts included"
    )]
    PersistentFull { tokens: usize, most: usize },
    #[error("an answer of {tokens} tokens; accepted: 1 to {most}")]
    AnswerLength { tokens: usize, most: usize },
    #[error(transparent)]
    Condense(#[from] super::condense::CondenseError),
    #[error("there is no fact {number} that holds")]
    NoSuchFact { number: u64 },
    #[error("there is no turn {number}")]
    NoSuchTurn { number: u64 },
    #[error("turn {number} is no state that holds")]
    NoSuchState { number: u64 },
    #[error("{tokens} tokens of state; accepted: {most} at most")]
    TooMuchState { tokens: usize, most: usize },
    #[error("the budget leaves {room} tokens for a conversation; accepted: at least {least}")]
    Budget { room: usize, least: usize },
    #[error(transparent)]
    TooLong(#[from] super::turns::TooLong),
    #[error(transparent)]
    Tokenize(#[from] haversack_text::tokenizer::TokenizeError),
    #[error(transparent)]
    Layout(#[from] super::layout::LayoutError),
    #[error(transparent)]
    Encoder(#[from] EncoderError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Generate(#[from] haversack_engine::runtime::generate::GenerateError),
    #[error("{doing} {path}: {source}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
}

impl SessionError {
    /// The budget is what stands in the way.
    pub fn is_cannot_fit(&self) -> bool {
        matches!(self, SessionError::Step(error) if error.is_cannot_fit())
    }
}
