//! What handles ask of the engine's thread: one variant for each operation, each with a typed reply.

use crate::channel::{ReplyTo, Sender};
use crate::places::Permit;
use crate::report::AnswerEvent;
use crate::sessions::{ConversationView, History};
use haversack_conversations::scheduler::{MemoryReport, Request, RequestId};
use haversack_conversations::session::Listed;
use haversack_engine::device::Thermal;

/// How short of memory the system says it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// The engine goes by its own readings of the device.
    #[default]
    Nominal,
    /// Idle conversations move to their files, and no further request starts beside the running ones.
    Warning,
    /// Windows shrink too.
    Critical,
}

pub(crate) struct Submit {
    pub requests: Vec<Request>,
    /// One for each request.
    pub permits: Vec<Permit>,
    pub logprobs: Option<usize>,
    pub events: Sender<(usize, AnswerEvent)>,
}

pub(crate) enum Command {
    Submit(Submit, ReplyTo<Vec<RequestId>>),
    Cancel(Vec<RequestId>),
    List(ReplyTo<Vec<Listed>>),
    Open {
        name: String,
        system: String,
        reply: ReplyTo<()>,
    },
    Create {
        name: String,
        verbatim: String,
        persistent: String,
        reply: ReplyTo<ConversationView>,
    },
    View {
        name: String,
        reply: ReplyTo<ConversationView>,
    },
    Fork {
        from: String,
        name: String,
        reply: ReplyTo<ConversationView>,
    },
    Delete {
        name: String,
        reply: ReplyTo<()>,
    },
    Rewind {
        name: String,
        system: String,
        history: History,
        reply: ReplyTo<bool>,
    },
    AddFact {
        name: String,
        text: String,
        supersedes: Option<u64>,
        reply: ReplyTo<u64>,
    },
    RevokeFact {
        name: String,
        number: u64,
        reply: ReplyTo<()>,
    },
    Recall {
        name: String,
        number: u64,
        reply: ReplyTo<()>,
    },
    Retract {
        name: String,
        reply: ReplyTo<Option<u64>>,
    },
    Memory(ReplyTo<MemoryReport>),
    Reserve {
        bytes: usize,
        reply: ReplyTo<()>,
    },
    Release {
        bytes: usize,
    },
    Thermal(Option<Thermal>),
    Pressure(Pressure),
    Stop,
}
