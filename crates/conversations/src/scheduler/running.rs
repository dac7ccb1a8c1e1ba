//! A request between submission and its last event: prepared while it waits in the queue, running in the batch.

use super::plan::{Demand, Priority};
use super::prefix_cache::{PrefixKey, PrefixMatch, PromptBeingRead, checkpoints};
use super::queue::QueuedRequest;
use super::request::RequestId;
use super::row_limit::RowLimit;
use crate::session::QuestionEmbedding;
use crate::session::{
    BegunRead, Owner, ReadInProgress, Requester, SessionName, SessionRead, TurnInProgress,
};
use haversack_cache::Annotation;
use haversack_engine::runtime::completion::Completion;
use haversack_engine::runtime::options::Policy;
use haversack_engine::runtime::{
    GenerateOptions, Runtime, SequenceId, SequenceRetention, StepError,
};
use haversack_engine::sample::Sampler;
use std::cell::Cell;
use std::time::Duration;

/// A request that was checked and waits.
pub(super) struct PreparedRequest {
    pub id: RequestId,
    pub sampler: Sampler,
    pub work: PreparedWork,
}

pub(super) enum PreparedWork {
    Completion(Box<CompletionWork>),
    Turn(Box<PreparedTurn>),
    Read(Box<PreparedRead>),
}

impl PreparedWork {
    /// The session that it is for. Requests of a session keep their order.
    pub fn session(&self) -> Option<SessionName<'_>> {
        match self {
            PreparedWork::Completion(_) => None,
            PreparedWork::Turn(turn) => Some(turn.session()),
            PreparedWork::Read(read) => Some(read.session()),
        }
    }
}

pub(super) struct CompletionWork {
    pub completion: Completion,
    pub keep: SequenceRetention,
    /// Set where its rows are read again whenever they are full.
    pub reread: Option<RowLimit>,
    pub max_rows: usize,
    pub owner: Requester,
    pub continues: bool,
    /// Prompt tokens that came from the prefix cache.
    pub reused: usize,
    /// After how many tokens of its prompt the prefix cache gets a fork of its sequence, ascending. Borders that the caller
    /// named until it is admitted.
    pub checkpoints: Vec<usize>,
    /// What parts of its prompt mean for a policy that selects rows.
    pub annotations: Vec<Annotation>,
    /// A policy selects its rows one by one, so attention is counted.
    pub counts_attention: bool,
}

impl CompletionWork {
    pub fn prefix_key(&self, request: RequestId) -> PrefixKey {
        PrefixKey {
            request,
            owner: self.owner,
            keep: self.keep,
            continues: self.continues,
        }
    }

    /// Whether other requests may go on from what it reads: it keeps every row.
    pub fn is_cacheable(&self, runtime: &Runtime) -> bool {
        let keeps_all = match self.keep {
            SequenceRetention::All { .. } => true,
            SequenceRetention::Default => {
                matches!(runtime.retention().policy, Policy::Full | Policy::Streams)
            }
            _ => false,
        };
        keeps_all && !self.continues && self.reread.is_none()
    }

    /// Where its sequence is cached while it reads its prompt.
    pub fn checkpoints(&self, runtime: &Runtime, found: PrefixMatch) -> Vec<usize> {
        let prompt = self.completion.prompt().len();
        if self.is_cacheable(runtime) {
            return checkpoints(prompt, &self.checkpoints, found);
        }
        // Rows that are evicted one by one move inside blocks, and those of a fork would be copied first.
        let chooses = runtime.retention().policy.chooses();
        let is_named = self.continues && !self.checkpoints.is_empty();
        match is_named && !chooses && self.reread.is_none() {
            true => checkpoints(prompt, &self.checkpoints, found),
            false => Vec::new(),
        }
    }
}

/// A turn that has not begun.
pub(super) struct PreparedTurn {
    pub owner: Owner,
    pub session: String,
    pub text: String,
    /// The text in tokens.
    pub question: Vec<u32>,
    pub embedding: Option<QuestionEmbedding>,
    pub now_ms: u64,
    pub options: GenerateOptions,
    /// [`Resources::releases`](super::resources::Resources::releases) when it found no memory.
    pub no_memory_at: Cell<Option<u64>>,
}

/// A read that has not begun.
pub(super) struct PreparedRead {
    pub owner: Owner,
    pub session: String,
    pub read: SessionRead,
    pub now_ms: u64,
    /// As of a turn.
    pub no_memory_at: Cell<Option<u64>>,
    /// It was refused before because the stream is not condensed yet.
    pub has_waited: Cell<bool>,
}

impl PreparedTurn {
    pub fn session(&self) -> SessionName<'_> {
        self.owner.session(&self.session)
    }
}

impl PreparedRead {
    pub fn session(&self) -> SessionName<'_> {
        self.owner.session(&self.session)
    }
}

/// A request in the batch.
pub(super) struct RunningRequest {
    pub id: RequestId,
    pub sampler: Sampler,
    pub owner: Owner,
    pub priority: Priority,
    pub deadline: Option<Duration>,
    /// Worst-case bytes of its sequence.
    pub promised_bytes: usize,
    pub max_rows: usize,
    pub counts_attention: bool,
    /// Steps since it last took part in one.
    pub skipped_steps: u64,
    pub work: RunningWork,
}

pub(super) enum RunningWork {
    Completion {
        work: Box<CompletionWork>,
        sequence: SequenceId,
    },
    Turn(Box<TurnInProgress>),
    Read(Box<ReadInProgress>),
}

/// What admission gives a request to start with.
pub(super) enum Started {
    Completion {
        sequence: SequenceId,
        reused: usize,
        checkpoints: Vec<usize>,
    },
    Turn {
        turn: Box<TurnInProgress>,
        promised_bytes: usize,
        max_rows: usize,
    },
    Read {
        begun: BegunRead,
        promised_bytes: usize,
        max_rows: usize,
    },
}

impl RunningRequest {
    pub fn new(queued: QueuedRequest<PreparedRequest>, started: Started) -> RunningRequest {
        let PreparedRequest { id, sampler, work } = queued.request;
        let (work, promised_bytes, max_rows, counts_attention) = match (started, work) {
            (
                Started::Completion {
                    sequence,
                    reused,
                    checkpoints,
                },
                PreparedWork::Completion(mut work),
            ) => {
                work.completion.read(reused);
                (work.reused, work.checkpoints) = (reused, checkpoints);
                let (max_rows, counts) = (work.max_rows, work.counts_attention);
                let bytes = queued.worst_case_bytes as usize;
                let work = RunningWork::Completion { work, sequence };
                (work, bytes, max_rows, counts)
            }
            (
                Started::Turn {
                    turn,
                    promised_bytes,
                    max_rows,
                },
                _,
            ) => (RunningWork::Turn(turn), promised_bytes, max_rows, false),
            (
                Started::Read {
                    begun,
                    promised_bytes,
                    max_rows,
                },
                PreparedWork::Read(read),
            ) => {
                let PreparedRead { read, now_ms, .. } = *read;
                let read = Box::new(ReadInProgress::new(begun, read, now_ms));
                (RunningWork::Read(read), promised_bytes, max_rows, false)
            }
            (Started::Completion { .. } | Started::Read { .. }, _) => {
                unreachable!("admission starts a request as what it is")
            }
        };
        RunningRequest {
            id,
            sampler,
            owner: queued.owner.owner,
            priority: queued.priority,
            deadline: queued.deadline,
            promised_bytes,
            max_rows,
            counts_attention,
            skipped_steps: 0,
            work,
        }
    }

    pub fn sequence(&self) -> SequenceId {
        match &self.work {
            RunningWork::Completion { sequence, .. } => *sequence,
            RunningWork::Turn(turn) => turn.sequence(),
            RunningWork::Read(read) => read.sequence(),
        }
    }

    pub fn pending(&self) -> &[u32] {
        match &self.work {
            RunningWork::Completion { work, .. } => work.completion.pending(),
            RunningWork::Turn(turn) => turn.pending(),
            RunningWork::Read(read) => read.pending(),
        }
    }

    pub fn samples_after(&self, tokens: usize) -> bool {
        match &self.work {
            RunningWork::Completion { work, .. } => work.completion.samples_after(tokens),
            RunningWork::Turn(turn) => turn.samples_after(tokens),
            RunningWork::Read(_) => false,
        }
    }

    pub fn read(&mut self, tokens: usize) {
        match &mut self.work {
            RunningWork::Completion { work, .. } => work.completion.read(tokens),
            RunningWork::Turn(turn) => turn.read(tokens),
            RunningWork::Read(read) => read.read(tokens),
        }
    }

    /// Shortens a portion of `take` tokens from `position` on, so that the step ends at the next checkpoint.
    pub fn up_to_checkpoint(&self, position: u64, take: usize) -> usize {
        let RunningWork::Completion { work, .. } = &self.work else {
            return take;
        };
        let mut left = work.checkpoints.iter().map(|&at| at as u64);
        let next = left.find(|&at| at > position);
        next.map_or(take, |at| take.min((at - position) as usize))
    }

    /// The prompt that it reads, if the prefix cache will have more of it.
    pub fn reading(&self) -> Option<PromptBeingRead<'_>> {
        let RunningWork::Completion { work, .. } = &self.work else {
            return None;
        };
        let (done, _) = work.completion.progress()?;
        let passed = work.checkpoints.partition_point(|&at| at <= done);
        Some(PromptBeingRead {
            key: work.prefix_key(self.id),
            priority: self.priority,
            prompt: work.completion.prompt(),
            checkpoints: &work.checkpoints[passed..],
        })
    }

    pub fn cancel(&mut self) {
        match &mut self.work {
            RunningWork::Completion { work, .. } => work.completion.cancel(),
            RunningWork::Turn(turn) => turn.cancel(),
            RunningWork::Read(_) => {}
        }
    }

    pub fn demand(&self, owner_load: u64) -> Demand {
        Demand {
            priority: self.priority,
            pending: self.pending().len(),
            skipped_steps: self.skipped_steps,
            owner: self.owner,
            owner_load,
        }
    }

    /// A completion that re-reads its rows, and whose rows are full.
    pub fn is_full(&self, runtime: &Runtime) -> Result<bool, StepError> {
        let RunningWork::Completion { work, sequence } = &self.work else {
            return Ok(false);
        };
        let Some(rows) = work.reread else {
            return Ok(false);
        };
        let held = runtime.position(*sequence)? as usize + work.completion.pending().len();
        Ok(held >= rows.max_rows)
    }

    /// Gives a completion an empty sequence and has it read its rows again. `false`: it is no completion, and nothing
    /// changed.
    pub fn restart(&mut self, runtime: &mut Runtime) -> Result<bool, StepError> {
        let RunningWork::Completion { work, sequence } = &mut self.work else {
            return Ok(false);
        };
        // Frees the rows before it takes new ones.
        runtime.close(*sequence)?;
        *sequence = runtime.open_with(work.keep)?;
        runtime.annotate(*sequence, &work.annotations)?;
        let history = work.completion.history();
        let read = match &work.reread {
            Some(rows) => rows.rows_after(history),
            None => history.to_vec(),
        };
        work.completion.read_again(read);
        work.reused = 0;
        Ok(true)
    }
}

impl RunningWork {
    /// The answer, while tokens may be added to it.
    pub fn completion(&mut self) -> Option<&mut Completion> {
        match self {
            RunningWork::Completion { work, .. } => Some(&mut work.completion),
            RunningWork::Turn(turn) => turn.completion(),
            RunningWork::Read(_) => None,
        }
    }
}
