//! Consistency check of a store, counted from its tables: slow and obvious, for tests.

use super::sequence::{Sequence, Sequences};
use super::storage::Storage;
use crate::pool::BlockId;
use crate::size::SLOTS;
use std::collections::HashMap;

/// Checks reference counts, reservations and tables between steps.
pub(super) fn audit(storage: &Storage, sequences: &Sequences, in_step: bool) -> Result<(), String> {
    // (pool, block): tables that hold it.
    let mut held: HashMap<(usize, BlockId), usize> = HashMap::new();
    for (i, sequence) in sequences.open() {
        for (l, (layer, table)) in storage.layers.iter().zip(&sequence.tables).enumerate() {
            let wrong = |what: String| Err(format!("sequence {i}, layer {l}: {what}"));
            let rows: usize = table.entries.iter().map(|e| e.rows as usize).sum();
            if rows != table.rows {
                return wrong(format!("{} rows are counted, {rows} held", table.rows));
            }
            if let Some(what) = misplaced(sequence, l) {
                return wrong(what);
            }
            let forms = table.entries.iter().flat_map(|entry| layer.forms(entry));
            for block in forms.chain(layer.sinks(table.sinks)) {
                *held.entry(block).or_default() += 1;
            }
        }
    }
    for (p, pool) in storage.pools.iter().enumerate() {
        let wrong = |what: String| Err(format!("pool {p}: {what}"));
        let stats = pool.stats();
        if stats.free + stats.live != stats.total {
            let (free, live, total) = (stats.free, stats.live, stats.total);
            return wrong(format!("{free} free and {live} live are not {total}"));
        }
        if !in_step && stats.promised > 0 {
            return wrong(format!("{} blocks stay reserved", stats.promised));
        }
        let mine = || held.iter().filter(|((pool, _), _)| *pool == p);
        for ((_, id), &tables) in mine() {
            match pool.holders(*id) {
                Some(counted) if counted == tables => {}
                counted => {
                    return wrong(format!("{id:?} is in {tables} tables, counted {counted:?}"));
                }
            }
        }
        let blocks = mine().count();
        let counted = stats.live + stats.mapped;
        if blocks != counted {
            return wrong(format!(
                "{counted} blocks are counted, tables hold {blocks}"
            ));
        }
    }
    Ok(())
}

/// An entry of a layer that is not where it must be.
fn misplaced(sequence: &Sequence, layer: usize) -> Option<String> {
    let table = &sequence.tables[layer];
    let position = sequence.position;
    let mut before = None;
    for entry in &table.entries {
        let positions = entry.positions();
        let is_placed = positions.start.is_multiple_of(SLOTS)
            && before.is_none_or(|before| before < positions.start)
            && positions.end <= position
            && entry.rows > 0;
        // With row statistics, rows move between slots.
        if !is_placed && table.row_stats.is_none() {
            return Some(format!("{positions:?} at position {position}"));
        }
        if entry.near.is_none() && entry.far.is_none() {
            return Some(format!("{positions:?} has no form"));
        }
        before = Some(positions.start);
    }
    let tail = position % SLOTS;
    let last = table.entries.last().map(|e| e.positions().end);
    let is_whole = tail == 0 || last == Some(position) || table.row_stats.is_some();
    (!is_whole).then(|| format!("rows end at {last:?}, the position is {position}"))
}
