//! A request: what a caller submits, why it may be refused, and the events it causes until it ends.
//!
//! ```text
//! Request ─► QueuedRequest<PreparedRequest> ─► RunningRequest ─► RequestEvent::{Completed, TurnSaved, Failed}
//! submit      waits in the queue                in the batch
//! ```

use super::plan::Priority;
use super::queue::QueueFull;
use super::row_limit::{RowLimit, RowLimitError};
use crate::session::QuestionEmbedding;
use crate::session::{Requester, SessionError, SessionRead, TurnAnswer};
use haversack_engine::runtime::completion::{Completed, Sampled};
use haversack_engine::runtime::{GenerateOptions, SequenceUsage, StepError};
use haversack_engine::sample::{Constraint, SampleError, SampleOptions};
use haversack_text::chat::MessageSpan;
use haversack_text::stop::StopError;
use std::ops::ControlFlow;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Request {
    pub kind: RequestKind,
    pub sample: SampleOptions,
    /// Restricts which tokens the answer may have, such as a grammar.
    pub constraint: Option<Box<dyn Constraint>>,
    pub options: GenerateOptions,
    pub priority: Priority,
    /// The queue serves owners round-robin, and the users of each; a turn is of a session of this owner.
    pub owner: Requester,
    /// On the clock of [`Scheduler::step`](super::Scheduler::step).
    pub deadline: Option<Duration>,
    /// A completion goes on from where this owner's last such request ended, as far as the prompt begins alike and the
    /// state of then is still there: rows that were evicted do not come back.
    pub continues: bool,
    /// After how many tokens of its prompt other prompts are likely to depart from it, such as where a message begins. The
    /// prefix cache has its state of there; no token depends on it.
    pub borders: Vec<usize>,
    /// The messages of its prompt. Where rows are evicted one by one, those of the system message and of headers stay, or
    /// whole turns leave: see [`super::protection`].
    pub messages: Vec<MessageSpan>,
}

// The embedding is an array of 1.5 kB. A request moves a few times in its life; a box would burden every caller.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum RequestKind {
    /// A prompt in tokens. Its sequence ends with the request.
    Completion {
        prompt: Vec<u32>,
        /// `None`: the runtime's retention options apply.
        rows: Option<RowLimit>,
    },
    /// A turn of a stored session. The scheduler opens the session if it is not in memory.
    Turn {
        session: String,
        text: String,
        /// From [`SessionTexts::question`](crate::session::SessionTexts::question). `None`: the scheduler makes them, while other
        /// requests wait for it.
        tokens: Option<Vec<u32>>,
        /// Of the text. `None`: computed when the turn begins, while other requests wait for it.
        embedding: Option<QuestionEmbedding>,
        now_ms: u64,
    },
    /// Something that a session reads without answering. Turns of it wait until it is over.
    Read {
        session: String,
        read: SessionRead,
        now_ms: u64,
    },
}

impl Request {
    /// A completion with default options.
    pub fn completion(prompt: Vec<u32>) -> Request {
        Request::new(RequestKind::Completion { prompt, rows: None })
    }

    /// A turn with default options, at time 0.
    pub fn turn(session: impl Into<String>, text: impl Into<String>) -> Request {
        Request::new(RequestKind::Turn {
            session: session.into(),
            text: text.into(),
            tokens: None,
            embedding: None,
            now_ms: 0,
        })
    }

    /// A read with default options.
    pub fn read(session: impl Into<String>, read: SessionRead, now_ms: u64) -> Request {
        Request::new(RequestKind::Read {
            session: session.into(),
            read,
            now_ms,
        })
    }

    pub fn new(kind: RequestKind) -> Request {
        Request {
            kind,
            sample: SampleOptions::default(),
            constraint: None,
            options: GenerateOptions::default(),
            priority: Priority::default(),
            owner: Requester::default(),
            deadline: None,
            continues: false,
            borders: Vec::new(),
            messages: Vec::new(),
        }
    }
}

/// Names a request from its submission on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

impl RequestId {
    /// Counted from 0, never reused.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Why the scheduler did not take a request. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("token {token} is outside of the vocabulary of {vocabulary}")]
    UnknownToken { token: u32, vocabulary: usize },
    #[error("the prompt has {tokens} tokens; accepted: at most {max}")]
    PromptTooLong { tokens: usize, max: usize },
    #[error("the request may need {bytes} bytes; accepted: at most {max}")]
    TooManyBytes { bytes: usize, max: usize },
    #[error("{bytes} bytes are needed, and other requests hold or were promised them")]
    MemoryPromised { bytes: usize },
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    RowLimit(#[from] RowLimitError),
    #[error(transparent)]
    QueueFull(#[from] QueueFull),
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error(transparent)]
    Stop(#[from] StopError),
}

/// What happens to a request. `Completed`, `TurnSaved`, `SessionRead` and `Failed` are the last event of theirs.
#[derive(Debug)]
pub enum RequestEvent<'a> {
    /// Its bytes are promised, and it is in the batch.
    Admitted,
    PromptRead {
        done: usize,
        total: usize,
    },
    Token {
        sampled: Sampled<'a>,
        logits: &'a [f32],
    },
    /// A completion has ended, or a request of either kind passed its deadline in the queue.
    Completed(Completed, Box<RequestReport>),
    /// A turn has ended, is part of its session and was saved.
    TurnSaved(Box<TurnAnswer>),
    /// A session has read everything: the number of its new fact or state, 0 of a new session.
    SessionRead {
        number: u64,
    },
    Failed(RequestError),
}

/// Why a request failed after it was taken.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Sample(#[from] SampleError),
}

/// Receives events. `Break` cancels the request.
pub(super) type Deliver<'a> = &'a mut dyn FnMut(RequestId, RequestEvent<'_>) -> ControlFlow<()>;

/// What the sequence of a completion held when it ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestReport {
    pub usage: SequenceUsage,
    /// Prompt tokens that came from the prefix cache.
    pub reused: usize,
    /// What the policy chose, in words, where [`Retention::explain`](haversack_engine::Retention::explain) asks for it.
    pub plans: Vec<String>,
}
