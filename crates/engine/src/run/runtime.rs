//! One owner of the cache, the workers and the scratch memory; one step at a time.
//!
//! The contract of a step, checked and not assumed: spans continue where their sequences stand,
//! each token adds exactly one row to every layer, and the position after the step is the number of
//! tokens seen. A violation is an error that names the layer; the sequences are then as before.

use crate::load::Model;
use crate::model::forward::{Scratch, Span, Want, forward};
use haversack_cache::{
    CacheError, LayerShape, Precision, SequenceId, SequenceStats, Store, StoreOptions,
};
use haversack_kernels::Exec;
use haversack_kernels::cpu::Table;
use haversack_kernels::threads::Pool;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// Rounded to 8 bits before each product: the fast path.
    Int8,
    /// Exact: quantised weights unpacked, f32 arithmetic.
    F32,
}

#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    pub threads: usize,
    pub activations: Activations,
    /// Tokens per pass while reading a prompt; `None` = by the size of the model.
    pub chunk: Option<usize>,
    /// How keys and values are stored.
    pub kv: Precision,
    /// Ceiling for keys and values.
    pub budget_bytes: Option<usize>,
    pub table: Table,
}

impl Default for RuntimeOptions {
    fn default() -> RuntimeOptions {
        RuntimeOptions {
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            activations: Activations::Int8,
            chunk: None,
            kv: Precision::F16,
            budget_bytes: None,
            table: Table::best(),
        }
    }
}

/// Why a step did not happen. The sequences are as they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error("token {token} is out of range; accepted: 0 to {}", vocab - 1)]
    Token { token: u32, vocab: usize },
    #[error("position {end} is past the context of {context} tokens")]
    Context { end: u64, context: usize },
    #[error("a step needs at least one token")]
    Empty,
    #[error("the model computed a number that is not finite at position {position}")]
    NotFinite { position: u64 },
}

pub struct Runtime {
    model: Arc<Model>,
    pool: Pool,
    table: Table,
    store: Store,
    scratch: Scratch,
    chunk: usize,
}

/// Scratch memory that choosing a chunk aims at.
const SCRATCH_BYTES: usize = 16 << 20;
const CHUNK_MIN: usize = 32;
const CHUNK_MAX: usize = 512;

impl Runtime {
    pub fn new(model: Arc<Model>, options: &RuntimeOptions) -> Runtime {
        let config = model.config();
        let shape = |c: &crate::model::LayerConfig| LayerShape {
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            precision: options.kv,
        };
        let store = Store::new(StoreOptions {
            layers: config.layers.iter().map(shape).collect(),
            budget_bytes: options.budget_bytes,
            kernels: options.table,
        });
        let scratch = Scratch::new(config, options.activations == Activations::Int8);
        let chunk = options.chunk.unwrap_or_else(|| {
            (SCRATCH_BYTES / Scratch::bytes_per_row(config)).clamp(CHUNK_MIN, CHUNK_MAX) / CHUNK_MIN
                * CHUNK_MIN
        });
        Runtime {
            pool: Pool::new(options.threads.max(1)),
            table: options.table,
            store,
            scratch,
            chunk: chunk.max(1),
            model,
        }
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How keys and values are stored.
    pub fn precision(&self) -> Precision {
        self.store
            .layers()
            .first()
            .map_or(Precision::F16, |l| l.precision)
    }

    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    pub fn chunk(&self) -> usize {
        self.chunk
    }

    pub fn open(&mut self) -> SequenceId {
        self.store.open()
    }

    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, StepError> {
        Ok(self.store.fork(id)?)
    }

    pub fn close(&mut self, id: SequenceId) -> Result<(), StepError> {
        Ok(self.store.close(id)?)
    }

    /// Forgets every token from `position` on.
    pub fn truncate(&mut self, id: SequenceId, position: u64) -> Result<(), StepError> {
        Ok(self.store.truncate(id, position)?)
    }

    pub fn stats(&self, id: SequenceId) -> Result<SequenceStats, StepError> {
        Ok(self.store.stats(id)?)
    }

    /// Feeds every span its tokens in one pass and returns the logits that were wanted,
    /// (wanted row, vocab), span after span.
    pub fn step(&mut self, spans: &[Span<'_>]) -> Result<&[f32], StepError> {
        self.check(spans)?;
        let grow: Vec<_> = spans
            .iter()
            .map(|s| (s.sequence, s.position, s.tokens.len()))
            .collect();
        let mut step = self.store.begin(&grow)?;
        let exec = Exec {
            table: self.table,
            pool: &self.pool,
        };
        let (config, weights) = (self.model.config(), self.model.weights());
        if let Err(error) = forward(
            config,
            weights,
            exec,
            &mut self.store,
            &mut step,
            &mut self.scratch,
            spans,
        ) {
            self.store.rollback(step);
            return Err(error.into());
        }
        self.store.commit(step)?;
        self.trace(spans);
        Ok(self.scratch.last_logits())
    }

    /// Reads a prompt in chunks; returns the logits after its last token.
    pub fn feed(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> std::ops::ControlFlow<()>,
    ) -> Result<Option<&[f32]>, StepError> {
        let mut position = self.stats(id)?.position;
        let end = position + tokens.len() as u64;
        self.check_context(end)?;
        let chunk = self.chunk;
        let mut done = 0;
        for part in tokens.chunks(chunk) {
            done += part.len();
            let want = if done == tokens.len() {
                Want::Last
            } else {
                Want::Nothing
            };
            self.step(&[Span {
                sequence: id,
                position,
                tokens: part,
                want,
            }])?;
            position += part.len() as u64;
            if progress(done).is_break() {
                return Ok(None);
            }
        }
        if tokens.is_empty() {
            return Err(StepError::Empty);
        }
        Ok(Some(self.scratch.last_logits()))
    }

    /// Logits of the last step.
    pub fn logits(&self) -> &[f32] {
        self.scratch.last_logits()
    }

    /// One new token of one sequence.
    pub fn decode(&mut self, id: SequenceId, token: u32) -> Result<&[f32], StepError> {
        let position = self.stats(id)?.position;
        self.step(&[Span {
            sequence: id,
            position,
            tokens: &[token],
            want: Want::Last,
        }])
    }

    fn check(&self, spans: &[Span<'_>]) -> Result<(), StepError> {
        let vocab = self.model.config().vocab;
        for span in spans {
            if span.tokens.is_empty() {
                return Err(StepError::Empty);
            }
            if let Some(&token) = span.tokens.iter().find(|&&t| t as usize >= vocab) {
                return Err(StepError::Token { token, vocab });
            }
            self.check_context(span.position + span.tokens.len() as u64)?;
        }
        if spans.is_empty() {
            Err(StepError::Empty)
        } else {
            Ok(())
        }
    }

    fn check_context(&self, end: u64) -> Result<(), StepError> {
        let context = self.model.config().context;
        if end > context as u64 {
            Err(StepError::Context { end, context })
        } else {
            Ok(())
        }
    }

    fn trace(&self, spans: &[Span<'_>]) {
        if !log::log_enabled!(log::Level::Trace) {
            return;
        }
        let config = self.model.config();
        for span in spans {
            if let Ok(stats) = self.store.stats(span.sequence) {
                log::trace!(
                    "step: tokens {} from position {} -> position {}, rows {} in each of {} layers, hidden [{} × {}], logits {:?}",
                    span.tokens.len(),
                    span.position,
                    stats.position,
                    stats.rows,
                    config.layers.len(),
                    span.tokens.len(),
                    config.dim,
                    span.want
                );
            }
        }
    }
}
