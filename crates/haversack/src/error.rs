//! What can go wrong, as one enum. [`Error::kind`] is stable: an HTTP status or a binding's exception is chosen by it,
//! never by the text.

use haversack_conversations::scheduler::{RequestError, SubmitError};
use haversack_conversations::session::{LimitError, SessionError};
use haversack_engine::encoder::EncoderError;
use haversack_engine::runtime::bounds::BoundsError;
use haversack_engine::runtime::generate::GenerateError;
use haversack_engine::sample::SampleError;
use haversack_engine::{LoadError, RuntimeError, StepError};
use haversack_gguf::{GgufError, Problem};
use haversack_memory::journal::JournalError;
use haversack_text::tokenizer::TokenizeError;

/// What a caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is wrong; the same call fails again.
    InvalidInput,
    /// No such conversation, fact, turn or file.
    NotFound,
    /// The conversation is busy with another answer, or its name is taken.
    Conflict,
    /// All places in the queue are taken; try again later.
    Busy,
    /// The prompt or the answer is longer than the context or the budget ever allows.
    TooLarge,
    /// The budget has no room now; try again when other requests have ended.
    OutOfMemory,
    /// This engine was started without what the call needs.
    Unsupported,
    /// The answer ended before it was complete.
    Cancelled,
    /// The engine has stopped.
    Closed,
    /// A file could not be read or written.
    Io,
    /// A defect of the model file or of the engine.
    Internal,
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is not what it may be.
    #[error("{name}: {what}")]
    Argument {
        /// Of the argument.
        name: &'static str,
        /// What is wrong, and what is accepted.
        what: String,
    },
    /// The model could not be loaded.
    #[error(transparent)]
    Load(Box<LoadError>),
    /// The model cannot run within these settings.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The sentence encoder could not be loaded.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
    /// Texts are embedded by an encoder, and the engine was started without one.
    #[error("there is no sentence encoder; an engine is started with the folder of one")]
    NoEncoder,
    /// A text that the tokenizer cannot read.
    #[error(transparent)]
    Tokenize(#[from] TokenizeError),
    /// A schema or grammar that cannot be followed, or would cost too much.
    #[cfg(feature = "grammar")]
    #[error(transparent)]
    Grammar(#[from] haversack_grammar::GrammarError),
    /// The scheduler refused a request.
    #[error(transparent)]
    Submit(Box<SubmitError>),
    /// A conversation could not do what was asked.
    #[error(transparent)]
    Session(Box<SessionError>),
    /// All places in the queue are taken.
    #[error("all places in the queue are taken")]
    Busy,
    /// The engine stops, or has stopped.
    #[error("the engine is stopping")]
    Closed,
    /// The reader was too far behind, or the engine ended.
    #[error("the answer was cut off")]
    CutOff,
    /// The request failed while it was computed.
    #[error(transparent)]
    Request(Box<RequestError>),
    /// No token could be sampled.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A defect ended the engine.
    #[error("the engine's thread panicked")]
    Panicked,
    /// The system gave the engine no thread.
    #[error("the engine's thread could not be started: {0}")]
    Thread(#[source] std::io::Error),
}

// Boxed: an error travels through every `Result` of the library.
macro_rules! boxed {
    ($($from:ident => $variant:ident),*) => {
        $(impl From<$from> for Error {
            fn from(error: $from) -> Error {
                Error::$variant(Box::new(error))
            }
        })*
    };
}

boxed!(LoadError => Load, SessionError => Session, SubmitError => Submit);

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Error {
        match error {
            RequestError::Session(error) => error.into(),
            error => Error::Request(Box::new(error)),
        }
    }
}

impl Error {
    /// By which a status or an exception is chosen.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Argument { .. } | Error::Tokenize(_) => ErrorKind::InvalidInput,
            #[cfg(feature = "grammar")]
            Error::Grammar(_) => ErrorKind::InvalidInput,
            Error::Load(error) => of_load(error),
            Error::Runtime(error) => of_runtime(error),
            Error::Encoder(_) | Error::NoEncoder => ErrorKind::Unsupported,
            Error::Submit(error) => of_submit(error),
            Error::Session(error) => of_session(error),
            Error::Busy => ErrorKind::Busy,
            Error::Closed => ErrorKind::Closed,
            Error::CutOff => ErrorKind::Cancelled,
            Error::Request(error) => of_request(error),
            Error::Sample(error) => of_sample(error),
            Error::Panicked => ErrorKind::Internal,
            Error::Thread(_) => ErrorKind::Io,
        }
    }
}

fn of_load(error: &LoadError) -> ErrorKind {
    match error {
        LoadError::Gguf(GgufError {
            problem: Problem::Open(source),
            ..
        }) => match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        },
        LoadError::Lock { .. } => ErrorKind::Io,
        _ => ErrorKind::InvalidInput,
    }
}

fn of_runtime(error: &RuntimeError) -> ErrorKind {
    match error {
        RuntimeError::Bounds(BoundsError::Budget { .. }) => ErrorKind::OutOfMemory,
        RuntimeError::Bounds(_) | RuntimeError::Params(_) => ErrorKind::InvalidInput,
        RuntimeError::Measurement(_) | RuntimeError::Probe { .. } | RuntimeError::Cache(_) => {
            ErrorKind::OutOfMemory
        }
    }
}

fn of_step(error: &StepError) -> ErrorKind {
    match error {
        StepError::Window { .. }
        | StepError::NarrowWindow { .. }
        | StepError::PolicyPerSequence { .. }
        | StepError::NotProbed
        | StepError::TooManyTokens { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::Internal,
    }
}

fn of_submit(error: &SubmitError) -> ErrorKind {
    match error {
        SubmitError::QueueFull(_) => ErrorKind::Busy,
        SubmitError::PromptTooLong { .. } | SubmitError::TooManyBytes { .. } => ErrorKind::TooLarge,
        SubmitError::MemoryPromised { .. } => ErrorKind::OutOfMemory,
        SubmitError::Session(error) => of_session(error),
        SubmitError::Step(error) => of_step(error),
        _ => ErrorKind::InvalidInput,
    }
}

pub(crate) fn of_request(error: &RequestError) -> ErrorKind {
    match error {
        RequestError::Sample(error) => of_sample(error),
        RequestError::Step(error) if error.is_cannot_fit() => ErrorKind::OutOfMemory,
        RequestError::Session(SessionError::Generate(GenerateError::Sample(error))) => {
            of_sample(error)
        }
        _ => ErrorKind::Internal,
    }
}

/// What a request forbids or asks for may leave no token; logits that are no numbers are no request's doing.
fn of_sample(error: &SampleError) -> ErrorKind {
    match error {
        SampleError::Nan(_) | SampleError::Empty => ErrorKind::Internal,
        _ => ErrorKind::InvalidInput,
    }
}

fn of_session(error: &SessionError) -> ErrorKind {
    match error {
        SessionError::NoSuchSession { .. }
        | SessionError::NoSuchFact { .. }
        | SessionError::NoSuchState { .. }
        | SessionError::NoSuchTurn { .. } => ErrorKind::NotFound,
        SessionError::NowhereToLook { .. } => ErrorKind::NotFound,
        SessionError::Answering { .. }
        | SessionError::Open { .. }
        | SessionError::NotInMemory { .. } => ErrorKind::Conflict,
        SessionError::File { source, .. } => of_file(source),
        SessionError::Unsaved { why, .. } => of_session(why),
        SessionError::NoSessions => ErrorKind::Unsupported,
        SessionError::Stopped => ErrorKind::Cancelled,
        SessionError::Limit(LimitError::Room { .. }) => ErrorKind::OutOfMemory,
        SessionError::Limit(_) => ErrorKind::InvalidInput,
        _ if error.is_cannot_fit() => ErrorKind::OutOfMemory,
        SessionError::Io { .. } | SessionError::Record { .. } => ErrorKind::Io,
        SessionError::Step(_) | SessionError::Generate(_) => ErrorKind::Internal,
        _ => ErrorKind::InvalidInput,
    }
}

/// A file that is damaged or cannot be written is no fault of the request: trying another one does not help.
fn of_file(error: &JournalError) -> ErrorKind {
    match error {
        JournalError::Busy | JournalError::Exists => ErrorKind::Conflict,
        JournalError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            ErrorKind::NotFound
        }
        _ => ErrorKind::Io,
    }
}
