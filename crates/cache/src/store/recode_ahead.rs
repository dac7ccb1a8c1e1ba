//! Recoding ahead of time.
//!
//! At every 32nd token a block leaves the recent zone in all layers at once, and that token alone would pay for recoding
//! it. But the block has been full for long. So after each step a few layers recode the block that leaves next, as many
//! as spread the work evenly over the tokens until then. Queries read its near form until it leaves. Recoding ahead takes
//! memory early that the step over the border takes otherwise, and is skipped where the budget has no room.

use super::sequence::Sequence;
use super::storage::Storage;
use crate::ledger::Ledger;
use crate::size::SLOTS;
use haversack_kernels::Exec;

/// After a step of `tokens` tokens of a sequence: how many layers to recode now.
pub(super) fn share(storage: &Storage, sequence: &Sequence, tokens: usize) -> u64 {
    let recent = storage.zones.recent_blocks();
    let last = match sequence.position.checked_sub(1) {
        // A block that is not full may still change.
        Some(last) if tokens > 0 && recent > 0 && last / SLOTS >= recent => last,
        _ => return 0,
    };
    let left = (0..storage.layers.len()).filter_map(|l| leaves_next(storage, sequence, l));
    let left = left.count() as u64;
    let in_block = (last % SLOTS + 1).min(tokens as u64);
    // The step over the border may have a share as well.
    let to_come = SLOTS - last % SLOTS;
    (left * in_block).div_ceil(in_block + to_come)
}

/// Recodes the block that leaves the recent zone next in up to `share` layers, as far as the budget has room. Returns how
/// many.
pub(super) fn recode(
    storage: &mut Storage,
    sequence: &mut Sequence,
    mut ledger: Ledger,
    exec: Exec<'_>,
    share: u64,
) -> u64 {
    let mut layers = 0..storage.layers.len();
    for done in 0..share {
        let next = layers.find_map(|l| Some((l, leaves_next(storage, sequence, l)?)));
        let Some((l, entry)) = next else { return done };
        let far_pool = storage.layers[l].far_pool;
        let pool = &mut storage.pools[far_pool];
        let (block, lists) = (pool.block_bytes(), pool.list_bytes_to_reserve(1));
        if ledger.fit(block + lists).is_err() {
            return done;
        }
        let Ok(mut reservation) = pool.reserve(1) else {
            return done;
        };
        ledger.kv_ahead += block;
        ledger.tables += lists;
        let table = &mut sequence.tables[l];
        storage.recode(exec, l, table, entry..entry + 1, &mut reservation);
        let pool = &mut storage.pools[far_pool];
        pool.forfeit(reservation);
        if let Some(far) = table.entries[entry].far {
            pool.set_ahead(far, true);
        }
    }
    share
}

/// The entry of the block that leaves the recent zone next, if it has no far form yet.
fn leaves_next(storage: &Storage, sequence: &Sequence, l: usize) -> Option<usize> {
    let layer = &storage.layers[l];
    let next = storage.near_from(layer, sequence.position);
    let table = &sequence.tables[l];
    let entry = table.without_far(next + 1).last()?;
    (layer.shape.zoned() && table.entries[entry].block() == next).then_some(entry)
}
