//! A model with its cache: opens sequences and appends tokens to them, a step at a time.
//!
//! A step is checked, not assumed: spans continue where their sequences stand, each token adds exactly one row to every
//! layer, and the position after the step is the number of tokens seen. If anything fails the sequences are as before.
//! Nothing is evicted here.

pub use super::forward::{LayerCapture, StepMode};

use super::forward::{StepCache, StepContext, forward};
use super::scratch::{StepScratch, StepSize};
use super::sequence::{SequenceState, Sequences};
use super::span::StepSpan;
use crate::model::Model;
use haversack_cache::{
    Account, CacheError, CacheResult, CannotFit, SequenceGrowth, SequenceId, StatsFormat, Step,
    Store,
};
use haversack_kernels::Exec;
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_kernels::cpu::Backend;
use haversack_kernels::threads::ThreadPool;
use std::sync::Arc;

/// Tokens of the smallest step that a prompt is read in: a block.
pub const CHUNK_MIN: usize = BLOCK_SLOTS;
const CHUNK_MAX: usize = 512;
/// Scratch memory that choosing a chunk aims at.
const SCRATCH_BYTES: usize = 16 << 20;

/// Slots beyond the rows of a table that attention may count in: blocks that are not full.
pub(crate) const COUNTED_BEYOND: usize = 3 * BLOCK_SLOTS;

pub struct ModelRunner {
    pub(crate) model: Arc<Model>,
    pub(crate) pool: ThreadPool,
    pub(crate) backend: Backend,
    pub(crate) store: Store,
    pub(crate) sequences: Sequences,
    pub(crate) scratch: StepScratch,
    /// What the step under way adds to each sequence; kept for its memory.
    growth: Vec<SequenceGrowth>,
    /// Charged beside blocks, whatever is open.
    pub(crate) side_bytes: usize,
}

impl ModelRunner {
    pub fn new(
        model: Arc<Model>,
        store: Store,
        threads: usize,
        backend: Backend,
        int8: bool,
    ) -> ModelRunner {
        let scratch = StepScratch::new(model.config(), int8);
        ModelRunner {
            pool: ThreadPool::new(threads),
            backend,
            store,
            sequences: Sequences::new(None),
            scratch,
            growth: Vec::new(),
            side_bytes: 0,
            model,
        }
    }

    /// Tokens of a step while reading a prompt, by the size of the model and the budget.
    pub fn chunk_for(&self, budget_bytes: Option<usize>) -> usize {
        let room = budget_bytes.map_or(usize::MAX, |budget| budget / 4);
        let rows = SCRATCH_BYTES.min(room) / StepScratch::bytes_per_row(self.model.config());
        rows.clamp(CHUNK_MIN, CHUNK_MAX) / CHUNK_MIN * CHUNK_MIN
    }

    pub fn set_threads(&mut self, threads: usize) {
        if threads != self.pool.threads() {
            self.pool = ThreadPool::new(threads);
            // The scratch has room for each thread.
            self.scratch.release(self.model.config());
        }
    }

    /// Charges what others keep beside blocks: a level. Query samples come on top.
    pub fn set_side_bytes(&mut self, bytes: usize) -> Result<(), CannotFit> {
        self.charge_side(bytes, 0)?;
        self.side_bytes = bytes;
        Ok(())
    }

    fn charge_side(&mut self, bytes: usize, more: usize) -> Result<(), CannotFit> {
        let samples = self.sequences.sample_bytes(more);
        self.store.charge(Account::Side, bytes + samples)
    }

    /// Opens a sequence. `noting` says what the store keeps of each row.
    pub fn open(
        &mut self,
        noting: Option<StatsFormat>,
        state: SequenceState,
    ) -> CacheResult<SequenceId> {
        self.opened(
            |runner| {
                let samples = runner.sequences.new_ring()?;
                Ok(SequenceState { samples, ..state })
            },
            |store| store.open_with_stats(noting),
        )
    }

    /// A sequence that goes on from another.
    pub fn fork(&mut self, from: SequenceId) -> CacheResult<SequenceId> {
        self.opened(
            |runner| runner.sequences.copy_of(from),
            |store| store.fork(from),
        )
    }

    /// The samples of a sequence are charged before they are allocated.
    fn opened(
        &mut self,
        state: impl FnOnce(&ModelRunner) -> CacheResult<SequenceState>,
        make: impl FnOnce(&mut Store) -> CacheResult<SequenceId>,
    ) -> CacheResult<SequenceId> {
        let side = self.side_bytes;
        self.charge_side(side, 1)?;
        let made = make(&mut self.store).and_then(|id| match state(self) {
            Ok(state) => {
                self.sequences.states.insert(id, state);
                Ok(id)
            }
            Err(error) => {
                self.store.close(id)?;
                Err(error)
            }
        });
        self.charge_side(side, 0)?;
        made
    }

    pub fn close(&mut self, id: SequenceId) -> CacheResult {
        self.store.close(id)?;
        self.sequences.states.remove(&id);
        Ok(self.charge_side(self.side_bytes, 0)?)
    }

    /// Computes all spans in one pass and returns the logits that were wanted, (wanted row, vocab), span after span.
    pub fn step(&mut self, spans: &[StepSpan<'_>], mut mode: StepMode<'_>) -> CacheResult<&[f32]> {
        self.growth.clear();
        self.growth.extend(spans.iter().map(|s| SequenceGrowth {
            id: s.sequence,
            position: s.position,
            tokens: s.tokens.len(),
        }));
        let size = self.step_size(spans)?;
        let mut step = match self.begin(size) {
            // What greater steps left behind may be what is missing.
            Err(CacheError::CannotFit(_)) if self.scratch.exceeds(size) => {
                self.scratch.release(self.model.config());
                self.begin(size)?
            }
            step => step?,
        };
        let exec = Exec {
            backend: self.backend,
            pool: &self.pool,
        };
        let cx = StepContext {
            config: self.model.config(),
            weights: self.model.weights(),
            exec,
            spans,
        };
        let mut cache = StepCache {
            store: &mut self.store,
            step: &mut step,
            sequences: &mut self.sequences,
        };
        let done = forward(cx, &mut cache, &mut self.scratch, &mut mode);
        let is_trial = matches!(mode, StepMode::Trial { .. });
        if done.is_err() || is_trial {
            self.store.rollback(step);
            return done.map(|()| &self.scratch.logits[..]);
        }
        self.store.commit(step)?;
        for span in spans {
            self.store
                .recode_ahead(exec, span.sequence, span.tokens.len())?;
        }
        Ok(&self.scratch.logits[..])
    }

    /// Reserves scratch and blocks for a step, or nothing.
    fn begin(&mut self, size: StepSize) -> CacheResult<Step> {
        let wanted = self.scratch_bytes_with(size);
        let charged = self.store.charge(Account::Scratch, wanted);
        let begun = charged.map_err(CacheError::from);
        let begun = begun.and_then(|()| self.store.begin(&self.growth));
        match begun {
            Ok(step) => {
                let (config, threads) = (self.model.config(), self.pool.threads());
                self.scratch.reserve(config, threads, size);
                Ok(step)
            }
            Err(error) => {
                let held = self.scratch_bytes_with(StepSize::default());
                self.store.charge(Account::Scratch, held)?;
                Err(error)
            }
        }
    }

    fn step_size(&self, spans: &[StepSpan<'_>]) -> CacheResult<StepSize> {
        let mut size = StepSize {
            jobs: spans.len(),
            ..StepSize::default()
        };
        for span in spans {
            let (id, tokens) = (span.sequence, span.tokens.len());
            size.rows += tokens;
            size.wanted += span.wanted().len();
            let rows = self.store.rows(id)? + tokens;
            let spans = self.store.max_spans_after(id, tokens)?;
            size.slots = size.slots.max(StepSize::slots_for(rows, spans));
            let shifts = self.store.shifts(id);
            size.segments += shifts.len();
            if self.store.has_row_stats(id)? {
                size.counted += rows + COUNTED_BEYOND;
            }
            if self.sequences.layout.is_some() {
                size.sampled += tokens;
            }
            let moved = shifts.iter().rposition(|&s| s != 0).map_or(0, |i| i + 1);
            size.moved = size.moved.max(moved);
        }
        Ok(size)
    }

    /// Bytes of the scratch once it serves a step of this size too.
    pub fn scratch_bytes_with(&self, size: StepSize) -> usize {
        let (config, threads) = (self.model.config(), self.pool.threads());
        self.scratch.bytes_with(config, threads, size)
    }

    /// Gives back what steps computed in. The next step takes what it needs.
    pub fn release_scratch(&mut self) {
        self.scratch.release(self.model.config());
        let held = self.scratch_bytes_with(StepSize::default());
        // Less than before always fits.
        if let Err(error) = self.store.charge(Account::Scratch, held) {
            log::error!("released scratch memory is still charged: {error}");
        }
    }
}
