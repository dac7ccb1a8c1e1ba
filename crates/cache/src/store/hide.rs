//! Hidden rows: stored, but invisible to queries; shown again or dropped later.
//!
//! A hidden row keeps its place and is recoded like any other; attention skips it. Hidden ranges are given in positions,
//! for all layers alike. With compact positions a gap closes over hidden rows as over evicted ones
//! ([`crate::segments`]). New rows are visible, so that every query sees itself.
//!
//! A sequence with row statistics cannot hide rows: its rows move between slots and their attention is counted.

use super::evict::{EvictionOutcome, shorten};
use super::sequence::Sequence;
use super::storage::Storage;
use crate::error::{CacheError, reserve_exact};
use crate::ledger::Ledger;
use crate::segments::Segments;
use crate::size::SLOTS;
use crate::table::{BlockEntry, BlockTable};
use std::ops::Range;

/// Checks the ranges, makes room and hides them. `index` names the sequence in errors.
pub(super) fn hide(
    sequence: &mut Sequence,
    ledger: &Ledger,
    index: usize,
    hidden: &[Range<u64>],
) -> Result<(), CacheError> {
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
    Ok(())
}

/// Drops the fully hidden blocks within `range`; `None` if there are none.
pub(super) fn drop_hidden(
    storage: &mut Storage,
    sequence: &mut Sequence,
    mut ledger: Ledger,
    range: Range<u64>,
) -> Result<Option<EvictionOutcome>, CacheError> {
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
        let leaving = table.entries.iter().filter(|e| leaves(e));
        leaving
            .filter(|e| end.replace(e.block() + 1) != Some(e.block()))
            .count()
    };
    let gaps = sequence.tables.iter().map(gaps).max().unwrap_or(0);
    if gaps == 0 {
        return Ok(None);
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
    Ok(Some(shorten(storage, sequence, rows_left)))
}
