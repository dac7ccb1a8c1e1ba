//! Errors of sessions. After an error the conversation is as it was before the call.

use haversack_engine::encoder::EncoderError;
use haversack_engine::runtime::StepError;
use haversack_memory::journal;
use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

pub type SessionResult<T = ()> = Result<T, SessionError>;

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
        source: journal::JournalError,
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
    #[error("sessions are not enabled here")]
    NoSessions,
    #[error("session {name} is open already")]
    Open { name: String },
    #[error("session {name} is not saved: {why}")]
    Unsaved {
        name: String,
        why: SharedError<SessionError>,
    },
    #[error("sessions are not saved here; there is no {name}")]
    NowhereToLook { name: String },
    #[error(
        "the persistent stream would have {tokens} tokens; accepted: at most {max}, facts included"
    )]
    PersistentFull { tokens: usize, max: usize },
    #[error("a history of {turns} turns; accepted: at most {max}")]
    HistoryTurns { turns: usize, max: usize },
    #[error("the history has too many tokens; accepted: at most {max}")]
    HistoryTokens { max: usize },
    #[error("it was stopped before it was read")]
    Stopped,
    #[error(transparent)]
    Condense(#[from] super::condense::CondenseError),
    #[error("there is no fact {number} that holds")]
    NoSuchFact { number: u64 },
    #[error("there is no turn {number}")]
    NoSuchTurn { number: u64 },
    #[error("turn {number} is not a state that holds")]
    NoSuchState { number: u64 },
    #[error(
        "turn {number} is a state; accepted: a turn that was said (a state is replaced or deleted)"
    )]
    IsState { number: u64 },
    #[error(
        "turn {number} is not in memory; accepted: turns in memory (recall it for the next answer, then pin it)"
    )]
    NotInMemory { number: u64 },
    #[error("{tokens} tokens of state; accepted: {max} at most")]
    TooMuchState { tokens: usize, max: usize },
    #[error("{tokens} tokens of pinned turns and states; accepted: {max} at most")]
    TooMuchPinned { tokens: u64, max: u64 },
    #[error(transparent)]
    Limit(#[from] super::limits::LimitError),
    #[error(transparent)]
    TooLong(#[from] super::plan::TooLong),
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
    /// Whether the memory budget is the cause.
    pub fn is_cannot_fit(&self) -> bool {
        matches!(self, SessionError::Step(error) if error.is_cannot_fit())
    }

    /// Whether there is a session of this name already.
    pub fn is_taken(&self) -> bool {
        match self {
            SessionError::Open { .. } => true,
            SessionError::File { source, .. } => matches!(source, journal::JournalError::Exists),
            _ => false,
        }
    }

    /// Whether the session's file is not what was written: it can be exported up to the damage, deleted and replaced.
    pub fn is_damage(&self) -> bool {
        use journal::JournalError::{Damaged, Foreign, Truncated, Version};
        match self {
            SessionError::Record { .. } => true,
            SessionError::File { source, .. } => matches!(
                source,
                Damaged { .. } | Foreign { .. } | Truncated { .. } | Version { .. }
            ),
            _ => false,
        }
    }

    /// Whether the disk is the cause, so that trying again may help.
    pub(super) fn is_disk(&self) -> bool {
        use journal::JournalError::{Io, Quota};
        match self {
            SessionError::Io { .. } => true,
            SessionError::File { source, .. } => matches!(source, Io { .. } | Quota { .. }),
            _ => false,
        }
    }
}

/// An error that several reports hold. Two are equal if their texts are: errors of the operating system cannot be
/// compared otherwise.
#[derive(Debug)]
pub struct SharedError<E>(Arc<E>);

impl<E> Clone for SharedError<E> {
    fn clone(&self) -> SharedError<E> {
        SharedError(self.0.clone())
    }
}

impl<E> From<E> for SharedError<E> {
    fn from(error: E) -> SharedError<E> {
        SharedError(Arc::new(error))
    }
}

impl<E> Deref for SharedError<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.0
    }
}

impl<E: fmt::Display> fmt::Display for SharedError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: fmt::Display> PartialEq for SharedError<E> {
    fn eq(&self, other: &SharedError<E>) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.to_string() == other.to_string()
    }
}

impl<E: fmt::Display> Eq for SharedError<E> {}
