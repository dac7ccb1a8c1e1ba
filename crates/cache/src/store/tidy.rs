//! Giving memory back: pages of empty slabs, room in lists, and blocks moved out of sparse slabs.

use super::{Layer, Sequence, Store};
use crate::error::CacheError;
use crate::pool::BlockId;
use haversack_memory::zoo::{Bug, planted};

/// Slabs of which less than this is in use are emptied.
const SPARSE_PERCENT: usize = 25;

impl Store {
    /// Gives back what is empty: pages of slabs and room in tables. Returns the slabs.
    pub fn trim(&mut self) -> usize {
        for sequence in self.sequences.iter_mut().filter(|s| !s.in_step) {
            for table in &mut sequence.tables {
                table.entries.shrink_to_fit();
                table.spans.shrink_to_fit();
                if let Some(notes) = &mut table.notes {
                    notes.shrink_to_fit();
                }
            }
        }
        self.release_empty_slabs()
    }

    /// Moves blocks out of slabs that are less than a quarter full and gives those back. Returns
    /// the blocks moved; none while a step is under way.
    pub fn compact(&mut self) -> Result<usize, CacheError> {
        self.compact_below(SPARSE_PERCENT)
    }

    /// The same for slabs below `percent`; 100 moves everything as far down as there is room.
    pub fn compact_below(&mut self, percent: usize) -> Result<usize, CacheError> {
        if self.steps_under_way > 0 {
            return Ok(0);
        }
        let mut moved = 0;
        for pool in 0..self.pools.len() {
            let mut moves = self.pools[pool].compact(percent)?;
            moves.sort_unstable_by_key(|(from, _)| from.order());
            moved += moves.len();
            for sequence in &mut self.sequences {
                follow(&self.layers, sequence, pool, &moves);
            }
        }
        self.release_empty_slabs();
        Ok(moved)
    }
}

/// Every table names the blocks of `pool` where they are now.
fn follow(layers: &[Layer], sequence: &mut Sequence, pool: usize, moves: &[(BlockId, BlockId)]) {
    let step = |id: &mut Option<BlockId>| {
        if let Some(old) = *id
            && let Ok(at) = moves.binary_search_by_key(&old.order(), |(from, _)| from.order())
        {
            let mixed = usize::from(planted(Bug::DefragmentMixes));
            *id = Some(moves[(at + mixed) % moves.len()].1);
        }
    };
    if moves.is_empty() {
        return;
    }
    for (layer, table) in layers.iter().zip(&mut sequence.tables) {
        for entry in &mut table.entries {
            if layer.near_pool == pool {
                step(&mut entry.near);
            }
            if layer.far_pool == pool {
                step(&mut entry.far);
            }
        }
        if layer.sink_pool == Some(pool) {
            step(&mut table.sinks);
        }
    }
}
