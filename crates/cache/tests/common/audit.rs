//! Consistency check of a store between steps, counted from its tables: slow and obvious.

use haversack_cache::{BlockId, SequenceId, Store};
use std::collections::HashMap;

const SLOTS: u64 = 32;

/// Checks reference counts against tables, reservations, positions of entries, and the budget.
pub fn audit(store: &Store) -> Result<(), String> {
    let pool_of = |bytes: usize| {
        let mut pools = store.pools().iter();
        pools.position(|pool| pool.block_bytes() == bytes).unwrap()
    };
    // (pool, block): tables that hold it.
    let mut held: HashMap<(usize, BlockId), usize> = HashMap::new();
    for (i, id) in store.sequences().enumerate() {
        for (l, shape) in store.layers().iter().enumerate() {
            let wrong = |what: String| Err(format!("sequence {i}, layer {l}: {what}"));
            let view = store.view(id, l).unwrap();
            let rows: usize = view.entries().iter().map(|e| e.rows as usize).sum();
            let counted = store.layer_rows(id, l).unwrap();
            if rows != counted {
                return wrong(format!("{counted} rows are counted, {rows} held"));
            }
            if let Some(what) = misplaced(store, id, l) {
                return wrong(what);
            }
            let near = pool_of(shape.near_shape().block_bytes());
            let far = pool_of(shape.far_shape().block_bytes());
            let forms = view.entries().iter().flat_map(|entry| {
                let near = entry.near.map(|id| (near, id));
                near.into_iter().chain(entry.far.map(|id| (far, id)))
            });
            let sinks = view.sink_block();
            let sinks = sinks.map(|id| (pool_of(shape.sink_bytes(store.zones())), id));
            for block in forms.chain(sinks) {
                *held.entry(block).or_default() += 1;
            }
        }
    }
    for (p, pool) in store.pools().iter().enumerate() {
        let wrong = |what: String| Err(format!("pool {p}: {what}"));
        let stats = pool.stats();
        if stats.free + stats.live != stats.total {
            let (free, live, total) = (stats.free, stats.live, stats.total);
            return wrong(format!("{free} free and {live} live are not {total}"));
        }
        if stats.promised > 0 {
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
    let ledger = store.ledger();
    match ledger.budget {
        Some(budget) if ledger.peak > budget || ledger.total() > budget => {
            Err(format!("more than the budget: {ledger:?}"))
        }
        _ => Ok(()),
    }
}

/// An entry of a layer that is not where it must be.
fn misplaced(store: &Store, id: SequenceId, layer: usize) -> Option<String> {
    let view = store.view(id, layer).unwrap();
    let position = store.position(id).unwrap();
    // With row statistics, rows move between slots.
    let moves = store.has_row_stats(id).unwrap() && store.layers()[layer].window.is_none();
    let mut before = None;
    for entry in view.entries() {
        let positions = entry.positions();
        let is_placed = positions.start.is_multiple_of(SLOTS)
            && before.is_none_or(|before| before < positions.start)
            && positions.end <= position
            && entry.rows > 0;
        if !is_placed && !moves {
            return Some(format!("{positions:?} at position {position}"));
        }
        if entry.near.is_none() && entry.far.is_none() {
            return Some(format!("{positions:?} has no form"));
        }
        before = Some(positions.start);
    }
    let tail = position % SLOTS;
    let last = view.entries().last().map(|e| e.positions().end);
    let is_whole = tail == 0 || last == Some(position) || moves;
    (!is_whole).then(|| format!("rows end at {last:?}, the position is {position}"))
}
