//! What sequences and steps may come to hold, before they do: admission asks here.

use super::{CHUNK_MIN, Runtime, SequenceRetention, StepError};
use crate::model::canaries::Canaries;
use crate::model::forward::{Scratch, StepSize};
use crate::runtime::options::{Activations, KvOptions, noting_by};
use crate::runtime::plan::{self, ComputeSetting};
use haversack_cache::{Account, Row};
use haversack_kernels::attention::BLOCK_SLOTS;

impl Runtime {
    /// Tokens after which a sequence that keeps this ends, if this runtime has room for it.
    pub fn end_of(&self, keep: SequenceRetention) -> Result<Option<usize>, StepError> {
        Ok(self.reach_of(keep)?.end)
    }

    /// Rows that a sequence which keeps this has at most until it has seen so many tokens.
    pub fn rows_keeping(&self, keep: SequenceRetention, tokens: usize) -> Result<usize, StepError> {
        Ok(tokens.min(self.rows_of(&self.reach_of(keep)?)))
    }

    /// Whether rows of such a sequence are chosen one by one, so that attention is counted for it.
    pub fn is_counting(&self, keep: SequenceRetention) -> Result<bool, StepError> {
        Ok(self.reach_of(keep)?.policy.is_some())
    }

    /// Bytes that a sequence of so many rows holds at most, a step that reads a block included.
    pub fn sequence_bytes(&self, rows: usize) -> usize {
        self.bytes_in(&self.kv, self.setting(), rows)
    }

    /// The same of one that keeps this.
    pub fn bytes_keeping(&self, keep: SequenceRetention, rows: usize) -> Result<usize, StepError> {
        if keep == SequenceRetention::Default {
            return Ok(self.sequence_bytes(rows));
        }
        let reach = self.reach_of(keep)?;
        let own = reach.rows.iter().flat_map(|rows| rows.iter());
        let own = own.enumerate().filter(|(_, rows)| **rows < usize::MAX);
        let kv = KvOptions {
            rows: own.map(|(layer, &rows)| (layer, rows)).collect(),
            ..self.kv.clone()
        };
        let setting = ComputeSetting {
            noting: reach.policy.as_ref().map(noting_by),
            ..self.setting()
        };
        // The list of rows among which some leave is there for all, once it is.
        let list = reach
            .policy
            .map_or(0, |_| rows.saturating_mul(size_of::<Row>()));
        let list = list.saturating_sub(self.loose.capacity() * size_of::<Row>());
        Ok(self.bytes_in(&kv, setting, rows).saturating_add(list))
    }

    fn bytes_in(&self, kv: &KvOptions, setting: ComputeSetting, rows: usize) -> usize {
        let config = self.model.config();
        let rows = rows.max(1).next_multiple_of(BLOCK_SLOTS);
        let needs = plan::needs(config, kv, setting, rows);
        let ring = match self.guard {
            Some(_) => Canaries::ring_bytes(config),
            None => 0,
        };
        [needs.tables_bytes, ring]
            .into_iter()
            .fold(needs.kv_bytes, usize::saturating_add)
    }

    /// Bytes of scratch once steps have been taken of so many sequences, which read so many tokens together, with no
    /// more than so many rows each, all of which keep what is usual.
    pub fn scratch_bytes(&self, sequences: usize, tokens: usize, rows: usize) -> usize {
        let counting = match self.setting().noting {
            Some(_) => sequences,
            None => 0,
        };
        self.scratch_bytes_counting(sequences, counting, tokens, rows)
    }

    /// The same where attention is counted for so many of them.
    pub fn scratch_counting(
        &self,
        sequences: usize,
        counting: usize,
        tokens: usize,
        rows: usize,
    ) -> usize {
        let rows = rows.next_multiple_of(BLOCK_SLOTS);
        let setting = self.setting();
        let counted = counting * (rows + plan::COUNTED_BEYOND);
        let size = StepSize {
            rows: tokens,
            wanted: sequences,
            jobs: sequences,
            slots: rows,
            moved: 1,
            segments: 2 * sequences,
            counted,
            watched: if setting.guarded { tokens } else { 0 },
        };
        let config = self.model.config();
        Scratch::bytes_for(config, setting.threads, setting.int8, size)
    }

    /// What the budget has for sequences beside the scratch of such steps and what is kept whatever is open; `None`
    /// without a budget.
    pub fn room_bytes(&self, scratch_bytes: usize) -> Option<usize> {
        let ledger = self.ledger();
        let taken = ledger.side.saturating_add(scratch_bytes);
        ledger.budget.map(|budget| budget.saturating_sub(taken))
    }

    /// Gives back what steps computed in. The next one takes what it needs.
    pub fn release_scratch(&mut self) {
        let config = self.model.config();
        self.scratch.release(config);
        let threads = self.pool.threads();
        let held = (self.scratch).bytes_with(config, threads, StepSize::default());
        // Less than before always fits.
        if let Err(error) = self.store.charge(Account::Scratch, held) {
            log::error!("scratch that was given back is still charged: {error}");
        }
    }

    /// So many bytes are kept beside sequences by somebody else, in the ledger like everything: a change, not a level.
    pub fn keep_beside(&mut self, bytes: usize) -> Result<(), StepError> {
        let ledger = self.ledger();
        self.store
            .charge(Account::Side, ledger.side.saturating_add(bytes))?;
        self.side_bytes += bytes;
        Ok(())
    }

    /// So many of them are kept no longer.
    pub fn drop_beside(&mut self, bytes: usize) {
        let bytes = bytes.min(self.side_bytes - self.held_bytes);
        let side = self.ledger().side.saturating_sub(bytes);
        self.side_bytes -= bytes;
        // Less than before always fits.
        if let Err(error) = self.store.charge(Account::Side, side) {
            log::error!("what is kept no longer is still charged: {error}");
        }
    }

    /// So many bytes of the budget are for others, until they are given back. Returns the budget.
    pub fn set_aside(&mut self, bytes: usize) -> Result<Option<usize>, StepError> {
        let budget = self.ledger().budget;
        let left = budget.map(|budget| budget.saturating_sub(bytes));
        self.store.set_budget(left)?;
        Ok(budget)
    }

    /// The budget is what it was before something was set aside.
    pub fn give_back(&mut self, budget: Option<usize>) {
        // What is held kept to less.
        if let Err(error) = self.store.set_budget(budget) {
            log::error!("the budget stays smaller: {error}");
        }
    }

    fn setting(&self) -> ComputeSetting {
        ComputeSetting {
            threads: self.threads_most,
            int8: self.activations == Activations::Int8,
            chunk: CHUNK_MIN,
            noting: self.retention.noting(),
            guarded: self.guard.is_some(),
        }
    }
}
