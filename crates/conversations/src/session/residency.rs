//! Where a session's rows are: its sequence in the cache, and the columns that its file has.
//!
//! Nothing is ever cut out of the sequence. Rows that attention must not see are hidden; rows that are hidden and saved
//! may be dropped; dropped rows are mounted at their old positions.

use super::error::SessionResult;
use super::transcript::Transcript;
use super::turns::{SLOTS, blocks_of, hidden};
use haversack_cache::size::{KeptTokens, fork_bytes, kv_bytes, reserve_bytes};
use haversack_engine::runtime::{Runtime, SequenceId, StepError};
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_memory::journal::RecordRef;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

#[derive(Clone, Debug)]
pub(super) struct Residency {
    pub sequence: SequenceId,
    /// Columns in the file, by block.
    pub columns: BTreeMap<u64, RecordRef>,
    /// Blocks in memory whose columns the last state record refers to.
    pub blocks: Vec<u64>,
}

impl Residency {
    pub fn new(sequence: SequenceId) -> Residency {
        Residency {
            sequence,
            columns: BTreeMap::new(),
            blocks: Vec::new(),
        }
    }

    /// Hides all rows that are not visible, and drops the blocks of turns that have left memory.
    pub fn mask(&self, runtime: &mut Runtime, transcript: &Transcript) -> SessionResult {
        let position = runtime.position(self.sequence)?;
        let invisible = hidden(transcript.live_spans(false), position);
        runtime.hide(self.sequence, &invisible)?;
        let gone = hidden(transcript.live_spans(true), position);
        for block in self.blocks_in_memory(runtime)? {
            let rows = block * SLOTS..(block + 1) * SLOTS;
            let is_gone = gone
                .iter()
                .any(|g| g.start <= rows.start && rows.end <= g.end);
            // A block of a spilled turn stays until the file has it.
            if is_gone && (self.columns.contains_key(&block) || !transcript.spills_block(block)) {
                runtime.drop_hidden(self.sequence, rows)?;
            }
        }
        Ok(())
    }

    /// Hides the rows of all turns: what is read next sees facts alone, until the next [`Residency::mask`].
    pub fn mask_turns(&self, runtime: &mut Runtime, transcript: &Transcript) -> SessionResult {
        let position = runtime.position(self.sequence)?;
        let facts = transcript.facts.iter().map(|fact| fact.span.clone());
        let turns = hidden(facts.collect(), position);
        Ok(runtime.hide(self.sequence, &turns)?)
    }

    /// Columns that have to be mounted for a span to be in memory; `None` where the file does not have them all.
    pub fn missing(
        &self,
        runtime: &Runtime,
        span: &Range<u64>,
    ) -> SessionResult<Option<Vec<(u64, RecordRef)>>> {
        let there = self.blocks_in_memory(runtime)?;
        let missing = blocks_of(span).filter(|block| there.binary_search(block).is_err());
        let column = |block| Some((block, *self.columns.get(&block)?));
        Ok(missing.map(column).collect())
    }

    /// Whether the file has all rows of a span.
    pub fn is_saved(&self, span: &Range<u64>) -> bool {
        blocks_of(span).all(|block| self.columns.contains_key(&block))
    }

    /// Gives up the saved columns of a span that the transcript no longer needs; returns their bytes in the file.
    pub fn release(&mut self, span: &Range<u64>, transcript: &Transcript) -> u64 {
        let unneeded = blocks_of(span).filter(|&block| !transcript.needs_block(block));
        let released = unneeded.filter_map(|block| self.columns.remove(&block));
        released.map(|record| record.file_bytes()).sum()
    }

    pub fn heap_bytes(&self) -> usize {
        // A tree's nodes are half empty at worst.
        2 * self.columns.len() * (size_of::<u64>() + size_of::<RecordRef>())
    }

    fn blocks_in_memory(&self, runtime: &Runtime) -> Result<Vec<u64>, StepError> {
        Ok(runtime.store().blocks(self.sequence)?)
    }
}

/// Reads tokens to the end.
pub(super) fn feed(runtime: &mut Runtime, id: SequenceId, tokens: &[u32]) -> SessionResult {
    runtime.feed(id, tokens, &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}

/// Rows in memory beyond those of the streams: hidden rows that are not yet settled, blocks at the borders of hidden
/// spans, and the step.
pub(super) fn slack(runtime: &Runtime) -> usize {
    runtime.kv().recent.next_multiple_of(BLOCK_SLOTS) + 6 * BLOCK_SLOTS
}

/// Whether the budget has room for `coming` more tokens of a sequence, or of a new one.
pub(super) fn fits(
    runtime: &Runtime,
    id: Option<SequenceId>,
    coming: u64,
) -> Result<bool, StepError> {
    let ledger = runtime.ledger();
    let Some(budget) = ledger.budget else {
        return Ok(true);
    };
    let scratch = runtime.scratch_growth(id, coming as usize)? as u64;
    let wanted = growth_bytes(runtime, id, coming)?.saturating_add(scratch);
    Ok((ledger.own() as u64).saturating_add(wanted) <= budget as u64)
}

/// Bytes that a sequence will hold after `coming` more tokens, at most.
pub(super) fn promised_bytes(
    runtime: &Runtime,
    sequence: SequenceId,
    coming: u64,
) -> Result<usize, StepError> {
    let held = runtime.stats(sequence)?.bytes;
    let growth = growth_bytes(runtime, Some(sequence), coming)?;
    Ok(held.saturating_add(usize::try_from(growth).unwrap_or(usize::MAX)))
}

/// Bytes that `coming` more tokens add to a sequence, or to a new one, the step that reads them included.
fn growth_bytes(runtime: &Runtime, id: Option<SequenceId>, coming: u64) -> Result<u64, StepError> {
    let store = runtime.store();
    let (layers, zones) = (store.layers(), store.zones());
    let position = id.map_or(Ok(0), |id| runtime.position(id))?;
    let bytes = |position| kv_bytes(layers, zones, KeptTokens::All, position);
    let growth = bytes(position + coming).saturating_sub(bytes(position));
    let step = reserve_bytes(layers, zones, position, BLOCK_SLOTS);
    // The backup of the sequence lives until the turn is committed.
    let fork = fork_bytes(layers, zones, position, coming as usize);
    let lists = growth / 16;
    let wanted = [growth, step, fork, lists];
    Ok(wanted.into_iter().fold(0, u64::saturating_add))
}
