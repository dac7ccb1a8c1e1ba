//! What handles ask of the engine's thread: one variant for each operation, each with a typed reply.

use crate::channel::{ReplyTo, Sender};
use crate::places::Permit;
use crate::report::AnswerEvent;
use haversack_conversations::scheduler::{MemoryReport, Request, RequestId};
use haversack_conversations::session::{ListedSession, SessionStats, TurnView};
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

/// Everything there is to know about one conversation.
#[derive(Clone, Debug)]
pub struct ConversationView {
    pub stats: SessionStats,
    /// Facts that hold, with their numbers.
    pub facts: Vec<(u64, String)>,
    /// The last [`VIEW_TURNS_MAX`] turns.
    pub turns: Vec<TurnView>,
}

/// Turns of a [`ConversationView`].
pub const VIEW_TURNS_MAX: usize = 256;

/// Messages and their answers, the oldest first.
pub type History = Vec<(String, String)>;

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
    List(ReplyTo<Vec<ListedSession>>),
    /// To the conversation of this name.
    Conversation(String, ConversationCommand),
    Memory(ReplyTo<MemoryReport>),
    /// Bytes that a caller is about to allocate, and bytes it gives back.
    Reserve(usize, ReplyTo<()>),
    Release(usize),
    Thermal(Option<Thermal>),
    Pressure(Pressure),
    Stop,
}

pub(crate) enum ConversationCommand {
    /// Begins with this system text, if there is none of the name.
    Open(String, ReplyTo<()>),
    /// Verbatim and persistent text.
    Create(String, String, ReplyTo<ConversationView>),
    View(ReplyTo<ConversationView>),
    /// Under a new name.
    Fork(String, ReplyTo<ConversationView>),
    Delete(ReplyTo<()>),
    /// To a system text and a history.
    Rewind(String, History, ReplyTo<bool>),
    /// In place of the fact it supersedes.
    AddFact(String, Option<u64>, ReplyTo<u64>),
    RevokeFact(u64, ReplyTo<()>),
    Recall(u64, ReplyTo<()>),
    Retract(ReplyTo<Option<u64>>),
}
