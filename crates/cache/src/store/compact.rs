//! Compaction: moves blocks out of sparse slabs, so that their pages go back to the system.

use super::sequence::Sequence;
use super::storage::{Layer, Storage};
use crate::error::CacheResult;
use crate::pool::BlockId;

/// Empties slabs below `percent` and updates all tables. Returns the blocks moved.
pub(super) fn compact(
    storage: &mut Storage,
    sequences: &mut [Sequence],
    percent: usize,
) -> CacheResult<usize> {
    let mut moved = 0;
    for pool in 0..storage.pools.len() {
        let mut moves = storage.pools[pool].compact(percent)?;
        moves.sort_unstable_by_key(|(from, _)| from.order());
        moved += moves.len();
        for sequence in sequences.iter_mut() {
            update(&storage.layers, sequence, pool, &moves);
        }
    }
    storage.release_empty_slabs();
    Ok(moved)
}

/// Replaces the ids of moved blocks of `pool` in every table.
fn update(layers: &[Layer], sequence: &mut Sequence, pool: usize, moves: &[(BlockId, BlockId)]) {
    let step = |id: &mut Option<BlockId>| {
        if let Some(old) = *id
            && let Ok(at) = moves.binary_search_by_key(&old.order(), |(from, _)| from.order())
        {
            *id = Some(moves[at].1);
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
