//! What waits at a desk, and what has entered.

use super::plan::{Priority, Wish};
use super::request::RequestId;
use super::row_limit::RowLimit;
use crate::session::TurnInProgress;
use haversack_engine::encoder::Embedding;
use haversack_engine::runtime::completion::Completion;
use haversack_engine::runtime::{GenerateOptions, Keep, Runtime, SequenceId, StepError};
use haversack_engine::sample::Sampler;
use std::cell::Cell;
use std::time::Duration;

/// Something that waits.
pub(super) struct Entry {
    pub ticket: RequestId,
    pub sampler: Sampler,
    pub what: What,
}

pub(super) enum What {
    Request(Box<Asked>),
    Turn(Box<Turn>),
}

/// A request, checked.
pub(super) struct Asked {
    pub completion: Completion,
    pub keep: Keep,
    /// Where its rows are read again.
    pub again: Option<RowLimit>,
    /// That it has at most.
    pub rows: usize,
    /// Whose it is.
    pub owner: u64,
    /// Tokens of its prompt that somebody else had read.
    pub reused: usize,
    /// Where its prompt parts from another.
    pub parts: Option<usize>,
    /// They are chosen one by one, so that attention is counted.
    pub counts: bool,
}

/// A turn of a session, before it has begun.
pub(super) struct Turn {
    pub session: String,
    pub text: String,
    pub embedding: Option<Embedding>,
    pub now_ms: u64,
    pub options: GenerateOptions,
    /// Tokens that it reads at most.
    pub coming: u64,
    /// How many had left when there was no room for it.
    pub tried: Cell<Option<u64>>,
}

/// Something that has entered.
pub(super) struct Job {
    pub ticket: RequestId,
    pub sampler: Sampler,
    pub priority: Priority,
    pub deadline: Option<Duration>,
    /// That its sequence was promised.
    pub bytes: usize,
    /// That its sequence has at most.
    pub rows: usize,
    /// Attention is counted for it.
    pub counts: bool,
    pub waited: u64,
    pub work: Work,
}

pub(super) enum Work {
    Request {
        asked: Box<Asked>,
        sequence: SequenceId,
    },
    Turn(Box<TurnInProgress>),
}

impl Job {
    pub fn sequence(&self) -> SequenceId {
        match &self.work {
            Work::Request { sequence, .. } => *sequence,
            Work::Turn(saying) => saying.sequence(),
        }
    }

    pub fn pending(&self) -> &[u32] {
        match &self.work {
            Work::Request { asked, .. } => asked.completion.pending(),
            Work::Turn(saying) => saying.pending(),
        }
    }

    pub fn samples_after(&self, tokens: usize) -> bool {
        match &self.work {
            Work::Request { asked, .. } => asked.completion.samples_after(tokens),
            Work::Turn(saying) => saying.samples_after(tokens),
        }
    }

    pub fn read(&mut self, tokens: usize) {
        match &mut self.work {
            Work::Request { asked, .. } => asked.completion.read(tokens),
            Work::Turn(saying) => saying.read(tokens),
        }
    }

    /// Tokens of the prompt that a step ends with, if it takes so many behind a position: where prompts part is kept.
    pub fn up_to_part(&self, position: u64, take: usize) -> usize {
        let Work::Request { asked, .. } = &self.work else {
            return take;
        };
        let parts = asked.parts.map(|at| (at as u64).saturating_sub(position));
        match parts {
            Some(left) if left > 0 => take.min(usize::try_from(left).unwrap_or(take)),
            _ => take,
        }
    }

    /// Nobody wants more of it.
    pub fn cancel(&mut self) {
        if let Some(completion) = self.work.completion() {
            completion.cancel();
        }
    }

    pub fn wish(&self) -> Wish {
        Wish {
            priority: self.priority,
            pending: self.pending().len(),
            waited: self.waited,
        }
    }

    /// Bytes that it was promised and does not hold yet.
    pub fn outstanding(&self, runtime: &Runtime) -> usize {
        let held = runtime.stats(self.sequence()).map_or(0, |s| s.bytes);
        self.bytes.saturating_sub(held)
    }

    /// A request whose rows are read again, and which has come to the end of them.
    pub fn is_full(&self, runtime: &Runtime) -> Result<bool, StepError> {
        let Work::Request { asked, sequence } = &self.work else {
            return Ok(false);
        };
        let Some(rows) = asked.again else {
            return Ok(false);
        };
        let held = runtime.position(*sequence)? as usize + asked.completion.pending().len();
        Ok(held >= rows.max_rows)
    }

    /// A request's sequence that has nothing yet, and what belongs into its rows to read. `false`: it is none.
    pub fn begin_again(&mut self, runtime: &mut Runtime) -> Result<bool, StepError> {
        let Work::Request { asked, sequence } = &mut self.work else {
            return Ok(false);
        };
        // What it holds is free before it is taken again.
        runtime.close(*sequence)?;
        *sequence = runtime.open_keeping(asked.keep)?;
        let history = asked.completion.history();
        let read = match &asked.again {
            Some(rows) => rows.rows_after(history),
            None => history.to_vec(),
        };
        asked.completion.read_again(read);
        asked.reused = 0;
        Ok(true)
    }
}

impl Work {
    /// The answer, while there is more of it to come.
    pub fn completion(&mut self) -> Option<&mut Completion> {
        match self {
            Work::Request { asked, .. } => Some(&mut asked.completion),
            Work::Turn(saying) => saying.completion(),
        }
    }
}
