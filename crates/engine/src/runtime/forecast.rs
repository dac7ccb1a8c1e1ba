//! What sequences and steps may come to hold, before they do: admission asks here.

use super::core::Runtime;
use super::error::StepResult;
use super::options::{RowPolicy, noting_by};
use super::plan::{self, ComputeSetting};
use super::retention::SequenceRetention;
use crate::model::kv::KvOptions;
use crate::step::runner::CHUNK_MIN;
use crate::step::scratch::StepSize;
use haversack_cache::{KvRow, SequenceId};
use haversack_kernels::attention::BLOCK_SLOTS;

impl Runtime {
    /// Tokens after which a sequence with this retention ends, if this runtime has room for it.
    pub fn end_with(&self, retention: SequenceRetention) -> StepResult<Option<usize>> {
        Ok(self.rules.state(retention)?.end)
    }

    /// Rows that a sequence with this retention has at most until it has seen `tokens` tokens.
    pub fn rows_with(&self, retention: SequenceRetention, tokens: usize) -> StepResult<usize> {
        let state = self.rules.state(retention)?;
        Ok(tokens.min(self.rules.rows_of(&state)))
    }

    /// How rows of such a sequence are chosen, where they are evicted one by one and its attention is counted.
    pub fn row_policy(&self, retention: SequenceRetention) -> StepResult<Option<RowPolicy>> {
        Ok(self.rules.state(retention)?.policy)
    }

    /// Bytes that a sequence of `rows` rows holds at most, a step that reads a block included.
    pub fn sequence_bytes(&self, rows: usize) -> usize {
        self.bytes_in(&self.rules.kv, self.setting, rows)
    }

    /// Bytes that one sequence of `rows` rows needs in all, scratch and what is kept beside sequences included.
    pub fn needs_bytes(&self, rows: usize) -> usize {
        let rows = rows.max(1).next_multiple_of(BLOCK_SLOTS);
        plan::needs(self.model().config(), &self.rules.kv, self.setting, rows).total()
    }

    /// The same for a sequence with this retention.
    pub fn sequence_bytes_with(
        &self,
        retention: SequenceRetention,
        rows: usize,
    ) -> StepResult<usize> {
        if retention == SequenceRetention::Default {
            return Ok(self.sequence_bytes(rows));
        }
        let state = self.rules.state(retention)?;
        let own = state.rows_max.iter().flat_map(|rows| rows.iter());
        let own = own.enumerate().filter(|(_, rows)| **rows < usize::MAX);
        let kv = KvOptions {
            rows: own.map(|(layer, &rows)| (layer, rows)).collect(),
            ..self.rules.kv.clone()
        };
        let setting = ComputeSetting {
            noting: state.policy.as_ref().map(noting_by),
            ..self.setting
        };
        // All sequences share one list of candidates for eviction.
        let row = state.policy.map_or(0, |_| size_of::<KvRow>());
        let list = rows.saturating_mul(row);
        let list = list.saturating_sub(self.evictor.candidate_bytes());
        Ok(self.bytes_in(&kv, setting, rows).saturating_add(list))
    }

    fn bytes_in(&self, kv: &KvOptions, setting: ComputeSetting, rows: usize) -> usize {
        let rows = rows.max(1).next_multiple_of(BLOCK_SLOTS);
        let needs = plan::needs(self.model().config(), kv, setting, rows);
        let layout = self.runner.sequences.layout.as_ref();
        let samples = layout.map_or(0, |layout| layout.ring_bytes());
        let bytes = needs.kv_bytes.saturating_add(needs.tables_bytes);
        bytes.saturating_add(samples)
    }

    /// Bytes of scratch after steps of `sequences` sequences, which read `tokens` tokens together and have at most `rows`
    /// rows each; attention is counted for `counting` of them.
    pub fn scratch_bytes_counting(
        &self,
        sequences: usize,
        counting: usize,
        tokens: usize,
        rows: usize,
    ) -> usize {
        let (config, rows) = (self.model().config(), rows.next_multiple_of(BLOCK_SLOTS));
        plan::batch_scratch_bytes(config, self.setting, (sequences, counting), tokens, rows)
    }

    /// Bytes by which the scratch may still grow while a sequence (or a new one) reads `tokens` tokens in the smallest
    /// steps.
    pub fn scratch_growth(&self, id: Option<SequenceId>, tokens: usize) -> StepResult<usize> {
        let store = self.store();
        let (rows, spans) = match id {
            Some(id) => (store.rows(id)?, store.max_spans_after(id, tokens)?),
            None => (0, 1),
        };
        let size = StepSize {
            jobs: 1,
            rows: tokens.min(CHUNK_MIN),
            wanted: 1,
            slots: StepSize::slots_for(rows + tokens, spans),
            segments: id.map_or(0, |id| store.shifts(id).len()),
            ..StepSize::default()
        };
        let wanted = self.runner.scratch_bytes_with(size);
        Ok(wanted.saturating_sub(self.ledger().scratch))
    }

    /// What the budget has for sequences beside `scratch_bytes` of scratch and what is kept whatever is open; `None`
    /// without a budget.
    pub fn available_bytes(&self, scratch_bytes: usize) -> Option<usize> {
        let ledger = self.ledger();
        let taken = ledger.side.saturating_add(scratch_bytes);
        ledger.budget.map(|budget| budget.saturating_sub(taken))
    }

    /// Gives back what steps computed in. The next step takes what it needs.
    pub fn release_scratch(&mut self) {
        self.runner.release_scratch();
    }
}
