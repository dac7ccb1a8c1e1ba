//! Whether the books are right, counted from the tables: slow, obvious, for tests.

use super::{Sequence, Store};
use crate::pool::BlockId;
use crate::size::SLOTS;
use std::collections::HashMap;

impl Store {
    /// Sequences that are open.
    pub fn open_sequences(&self) -> usize {
        self.sequences.iter().filter(|s| s.open).count()
    }

    /// What is wrong between steps, if anything: a block that is counted for more or fewer tables than hold it, one that
    /// is free and held, promises that nobody keeps, a table whose rows and positions do not agree, more than the
    /// budget.
    pub fn audit(&self) -> Result<(), String> {
        // (pool, block): tables that hold it.
        let mut held: HashMap<(usize, BlockId), usize> = HashMap::new();
        for (i, sequence) in self.sequences.iter().enumerate().filter(|(_, s)| s.open) {
            for (l, (layer, table)) in self.layers.iter().zip(&sequence.tables).enumerate() {
                let wrong = |what: String| Err(format!("sequence {i}, layer {l}: {what}"));
                let rows: usize = table.entries.iter().map(|e| e.rows as usize).sum();
                if rows != table.rows {
                    return wrong(format!("{} rows are counted, {rows} held", table.rows));
                }
                if let Some(what) = self.misplaced(sequence, l) {
                    return wrong(what);
                }
                let sinks = layer.sink_pool.zip(table.sinks);
                let forms = table.entries.iter().flat_map(|entry| layer.forms(entry));
                for block in forms.chain(sinks) {
                    *held.entry(block).or_default() += 1;
                }
            }
        }
        for (p, pool) in self.pools.iter().enumerate() {
            let wrong = |what: String| Err(format!("pool {p}: {what}"));
            let census = pool.census();
            if census.free + census.live != census.total {
                let (free, live, total) = (census.free, census.live, census.total);
                return wrong(format!("{free} free and {live} live are not {total}"));
            }
            if self.steps_under_way == 0 && census.promised > 0 {
                return wrong(format!("{} blocks stay promised", census.promised));
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
            if blocks != census.live + census.adopted {
                let counted = census.live + census.adopted;
                return wrong(format!(
                    "{counted} blocks are counted, tables hold {blocks}"
                ));
            }
        }
        let ledger = self.ledger();
        match ledger.budget {
            Some(budget) if ledger.peak > budget || ledger.total() > budget => {
                Err(format!("more than the budget: {ledger:?}"))
            }
            _ => Ok(()),
        }
    }

    /// An entry of a layer that is not where it must be.
    fn misplaced(&self, sequence: &Sequence, layer: usize) -> Option<String> {
        let table = &sequence.tables[layer];
        let position = sequence.position;
        let mut before = None;
        for entry in &table.entries {
            let positions = entry.positions();
            let is_placed = positions.start.is_multiple_of(SLOTS)
                && before.is_none_or(|before| before < positions.start)
                && positions.end <= position
                && entry.rows > 0;
            // Rows that took each other's places have no positions that follow from their slots.
            if !is_placed && table.notes.is_none() {
                return Some(format!("{positions:?} at position {position}"));
            }
            if entry.near.is_none() && entry.far.is_none() {
                return Some(format!("{positions:?} has no form"));
            }
            before = Some(positions.start);
        }
        let tail = position % SLOTS;
        let last = table.entries.last().map(|e| e.positions().end);
        let is_whole = tail == 0 || last == Some(position) || table.notes.is_some();
        (!is_whole).then(|| format!("rows end at {last:?}, the position is {position}"))
    }
}
