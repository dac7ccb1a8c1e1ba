//! Shortening a sequence: at its end (`truncate`), or where a plan says (`apply`).
//!
//! Both check everything first and then cannot fail.

use super::sequence::Sequence;
use super::storage::Storage;
use crate::error::CacheError;
use crate::ledger::Ledger;
use crate::policy::EvictionPlan;
use crate::segments::Segments;
use crate::size::SLOTS;
use crate::table::{BlockEntry, BlockTable};

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

pub(super) fn truncate(
    storage: &mut Storage,
    sequence: &mut Sequence,
    position: u64,
) -> Result<(), CacheError> {
    if position > sequence.position {
        return Err(CacheError::Truncate {
            asked: position,
            position: sequence.position,
        });
    }
    if position == sequence.position {
        return Ok(());
    }
    if !can_restore(storage, sequence, position) {
        return Err(CacheError::NotRestorable {
            asked: position,
            oldest: oldest_restorable(storage, sequence),
        });
    }
    let pools = &mut storage.pools;
    for (layer, table) in storage.layers.iter().zip(&mut sequence.tables) {
        let kept = table
            .entries
            .partition_point(|e| e.first_position < position);
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

fn can_restore(storage: &Storage, sequence: &Sequence, position: u64) -> bool {
    let Segments {
        gaps, evicted_at, ..
    } = &sequence.segments;
    let whole = gaps
        .first()
        .is_none_or(|gap| position >= *evicted_at || position <= gap.start)
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
pub(super) fn oldest_restorable(storage: &Storage, sequence: &Sequence) -> u64 {
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

/// Evicts what a plan says from every layer.
pub(super) fn apply(
    storage: &mut Storage,
    sequence: &mut Sequence,
    mut ledger: Ledger,
    plan: &EvictionPlan,
) -> Result<EvictionOutcome, CacheError> {
    if plan.position != sequence.position {
        return Err(CacheError::StalePlan {
            planned: plan.position,
            position: sequence.position,
        });
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

/// Truncates entries to the rows that `rows_left` says, and drops those without rows.
pub(super) fn shorten(
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
