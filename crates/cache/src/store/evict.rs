//! Shortening a sequence: at its end (`truncate`), where a plan says (`apply`), or out of sight (`hide`, `drop_hidden`).
//!
//! All check everything first and then cannot fail.
//!
//! A hidden row is stored, but invisible to queries; it is shown again or dropped later. It keeps its place and is recoded
//! like any other; attention skips it. Hidden ranges are given in positions, for all layers alike. With compact positions a
//! gap closes over hidden rows as over evicted ones ([`crate::segments`]). New rows are visible, so that every query sees
//! itself. A sequence with row statistics cannot hide rows: its rows move between slots and their attention is counted.

use super::Store;
use super::sequence::{Sequence, SequenceId};
use super::storage::Storage;
use crate::error::{CacheError, CacheResult, reserve_exact};
use crate::policy::EvictionPlan;
use crate::segments::Segments;
use crate::size::SLOTS;
use crate::table::{BlockEntry, BlockTable};
use std::ops::Range;

/// What an eviction freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionOutcome {
    /// Evicted rows, in the layer that lost most.
    pub rows: usize,
    /// Bytes of blocks without references now.
    pub bytes_freed: usize,
    /// Slabs whose pages went back to the system.
    pub slabs_released: usize,
}

impl Store {
    /// Removes every token from `position` on. Afterwards the sequence is exactly what it was at that position, or the
    /// call is refused: evicted rows and recoded blocks cannot be restored. Hidden rows stay hidden.
    pub fn truncate(&mut self, id: SequenceId, position: u64) -> CacheResult {
        let (storage, sequence) = (&mut self.storage, self.sequences.idle_mut(id)?);
        if position > sequence.position {
            let (asked, position) = (position, sequence.position);
            return Err(CacheError::Truncate { asked, position });
        }
        if position == sequence.position {
            return Ok(());
        }
        if !can_restore(storage, sequence, position) {
            let (asked, oldest) = (position, oldest_restorable(storage, sequence));
            return Err(CacheError::NotRestorable { asked, oldest });
        }
        let pools = &mut storage.pools;
        for (layer, table) in storage.layers.iter().zip(&mut sequence.tables) {
            let kept = table.entries_before(position);
            for entry in table.remove(kept..table.entries.len()) {
                layer.release(pools, &entry);
            }
            // Blocks recoded ahead are not due yet, or hold rows that are removed.
            layer.release_far(pools, table, None);
            if let Some(last) = table.entries.last_mut() {
                let rows = position - last.first_position;
                last.truncate(last.rows.min(rows.min(SLOTS) as u32));
            }
            if position == 0 {
                layer.release_sinks(pools, table.sinks.take());
                table.window_passed = 0;
            }
            table.rebuild();
        }
        if position == 0 {
            sequence.rows_evicted_at = 0;
        }
        sequence.position = position;
        sequence.annotations.truncate(position);
        let first_gap = sequence.segments.gaps.first();
        if first_gap.is_some_and(|gap| position <= gap.start) {
            sequence.segments.clear_gaps();
        }
        sequence.segments.truncate(position);
        storage.release_empty_slabs();
        Ok(())
    }

    /// The smallest position from which on [`Store::truncate`] accepts every one.
    pub fn oldest_restorable(&self, id: SequenceId) -> CacheResult<u64> {
        Ok(oldest_restorable(&self.storage, self.sequences.get(id)?))
    }

    /// Evicts what a plan says, from every layer. A plan made at another position, or one that would leave a hole inside a
    /// block, is refused.
    pub fn apply(&mut self, id: SequenceId, plan: &EvictionPlan) -> CacheResult<EvictionOutcome> {
        let mut ledger = self.ledger();
        let (storage, sequence) = (&mut self.storage, self.sequences.idle_mut(id)?);
        let (planned, position) = (plan.position, sequence.position);
        if planned != position {
            return Err(CacheError::StalePlan { planned, position });
        }
        let mut end = 0;
        for gap in &plan.drop {
            let (start, stop) = (gap.start, gap.end);
            let whole = stop.is_multiple_of(SLOTS) && stop <= sequence.position;
            if start >= stop || start < end || !whole {
                return Err(CacheError::BadPlan { start, end: stop });
            }
            end = stop;
        }
        if plan.drop.is_empty() {
            return Ok(EvictionOutcome::default());
        }
        sequence.reserve_gaps(&mut ledger, plan.drop.len())?;

        let outcome = shorten(storage, sequence, |entry| {
            let gap = plan.drop.iter().find(|gap| gap.end > entry.first_position);
            gap.map_or(u64::MAX, |gap| {
                gap.start.saturating_sub(entry.first_position)
            })
        });
        for gap in &plan.drop {
            sequence.segments.evict(gap.clone());
        }
        sequence.segments.evicted_at = sequence.position;
        sequence.segments.rebuild();
        Ok(outcome)
    }

    /// Hides these positions of a sequence and shows all others that it has. They must be ordered, disjoint and below the
    /// sequence's position. On error nothing has changed.
    pub fn hide(&mut self, id: SequenceId, hidden: &[Range<u64>]) -> CacheResult {
        let index = self.sequences.idle_index(id)?;
        let ledger = self.ledger();
        let sequence = &mut self.sequences.slots[index];
        let position = sequence.position;
        let mut before = 0;
        for &Range { start, end } in hidden {
            if start >= end || start < before || end > position {
                return Err(CacheError::BadHidden {
                    start,
                    end,
                    position,
                });
            }
            before = end;
        }
        if sequence.has_row_stats && !hidden.is_empty() {
            return Err(CacheError::HasRowStats { index });
        }

        let (gaps, capacity) = sequence.segments.capacity();
        let wanted = capacity.max(hidden.len());
        let mut more = Segments::bytes_for(gaps, wanted) - Segments::bytes_for(gaps, capacity);
        for table in &sequence.tables {
            let spans = table.spans_hiding(hidden);
            more += spans.saturating_sub(table.spans.capacity()) * size_of::<Range<u32>>();
        }
        ledger.fit(more)?;
        sequence.segments.reserve(gaps, wanted)?;
        for table in &mut sequence.tables {
            let spans = table.spans_hiding(hidden);
            let more = spans.saturating_sub(table.spans.len());
            reserve_exact(&mut table.spans, more)?;
        }

        for table in &mut sequence.tables {
            table.hide(hidden);
        }
        sequence.segments.hide(hidden);
        self.update_peak();
        Ok(())
    }

    /// The hidden ranges, in order.
    pub fn hidden(&self, id: SequenceId) -> &[Range<u64>] {
        let sequence = self.sequences.get(id);
        sequence.map_or(&[], |sequence| &sequence.segments.hidden)
    }

    /// Drops the blocks within `range` of which every row is hidden, from all layers. Blocks of the recent zone and the
    /// last block stay; blocks at the borders of what is hidden stay with their rows hidden. The sequence can still be
    /// truncated to any position after what was dropped.
    pub fn drop_hidden(
        &mut self,
        id: SequenceId,
        range: Range<u64>,
    ) -> CacheResult<EvictionOutcome> {
        let mut ledger = self.ledger();
        let (storage, sequence) = (&mut self.storage, self.sequences.idle_mut(id)?);
        let last = sequence.position.saturating_sub(1) / SLOTS;
        let recent = last.saturating_sub(storage.zones.recent_blocks()) * SLOTS;
        let leaves = |entry: &BlockEntry| {
            let rows = entry.positions();
            !entry.is_shown()
                && rows.start >= range.start
                && rows.end <= range.end
                && rows.start < recent
        };
        // Layers with a window have lost their first blocks; the layer with most gaps has all that others have.
        let gaps = |table: &BlockTable| {
            let mut end = None;
            let starts = |e: &&BlockEntry| end.replace(e.block() + 1) != Some(e.block());
            let leaving = table.entries.iter().filter(|e| leaves(e));
            leaving.filter(starts).count()
        };
        let gaps = sequence.tables.iter().map(gaps).max().unwrap_or(0);
        if gaps == 0 {
            return Ok(EvictionOutcome::default());
        }
        sequence.reserve_gaps(&mut ledger, gaps)?;

        // Segments are not rebuilt: everything dropped was hidden.
        for entry in sequence.tables.iter().flat_map(|table| &table.entries) {
            if leaves(entry) {
                let gap = entry.first_position..entry.first_position + SLOTS;
                sequence.segments.evicted_at = sequence.segments.evicted_at.max(gap.end);
                sequence.segments.evict(gap);
            }
        }
        let rows_left = |entry: &BlockEntry| if leaves(entry) { 0 } else { u64::MAX };
        let outcome = shorten(storage, sequence, rows_left);
        self.update_peak();
        Ok(outcome)
    }
}

fn can_restore(storage: &Storage, sequence: &Sequence, position: u64) -> bool {
    let first = sequence.segments.gaps.first();
    let evicted_at = sequence.segments.evicted_at;
    let whole = first.is_none_or(|gap| position >= evicted_at || position <= gap.start)
        && position >= sequence.rows_evicted_at;
    let mut tables = storage.layers.iter().zip(&sequence.tables);
    position == 0
        || whole
            && tables.all(|(layer, table)| {
                table.far_end(position) <= storage.near_from(layer, position) * SLOTS
                    && layer
                        .shape
                        .window
                        .is_none_or(|w| position >= first_unaffected(table, w))
            })
}

/// The smallest position from which on every one up to the present can be restored.
fn oldest_restorable(storage: &Storage, sequence: &Sequence) -> u64 {
    let mut oldest = match sequence.segments.gaps.is_empty() {
        true => 0,
        false => sequence.segments.evicted_at,
    };
    oldest = oldest.max(sequence.rows_evicted_at);
    for (layer, table) in storage.layers.iter().zip(&sequence.tables) {
        let far_end = table.far_end(sequence.position);
        if layer.shape.zoned() && far_end > 0 {
            // The block of the last token is `recent` blocks after the last far one.
            let recent = storage.zones.recent_blocks().saturating_mul(SLOTS);
            oldest = oldest.max(far_end.saturating_add(recent).saturating_add(1));
        }
        if let Some(window) = layer.shape.window {
            oldest = oldest.max(first_unaffected(table, window));
        }
    }
    oldest.min(sequence.position)
}

/// The first position whose queries do not see what the layer's own window has dropped.
fn first_unaffected(table: &BlockTable, window: u64) -> u64 {
    match table.window_passed {
        0 => 0,
        passed => (passed - 1).saturating_add(window.max(1)),
    }
}

/// Truncates entries to the rows that `rows_left` says, and drops those without rows.
fn shorten(
    storage: &mut Storage,
    sequence: &mut Sequence,
    rows_left: impl Fn(&BlockEntry) -> u64,
) -> EvictionOutcome {
    let live = storage.live_bytes();
    let mut rows = 0;
    for (layer, table) in storage.layers.iter().zip(&mut sequence.tables) {
        let before = table.rows;
        for entry in &mut table.entries {
            let left = rows_left(entry);
            if left >= u64::from(entry.rows) {
                continue;
            }
            entry.truncate(left as u32);
            if left == 0 {
                layer.release(&mut storage.pools, entry);
                if entry.first_position == 0 {
                    layer.release_sinks(&mut storage.pools, table.sinks.take());
                }
            }
        }
        table.drop_empty();
        table.rebuild();
        rows = rows.max(before - table.rows);
    }
    EvictionOutcome {
        rows,
        bytes_freed: live - storage.live_bytes(),
        slabs_released: storage.release_empty_slabs(),
    }
}
