//! Far forms ahead of time.
//!
//! Every 32nd token a block leaves the recent zone, in all layers at once: a token by itself would pay for all of them. But
//! the block has been full for long. So after each step the far form of the one that leaves next is made in a few layers,
//! as many as the tokens until then make even, and put aside: until it leaves, queries see its near form. That takes early
//! what the step over the border takes otherwise, and is left out where there is no room.

use super::{SequenceId, Store};
use crate::error::CacheError;
use crate::size::{SLOTS, near_from};
use haversack_kernels::Exec;

impl Store {
    /// After a step of so many tokens of a sequence: its share of what is to be made ahead.
    pub fn make_ahead(
        &mut self,
        exec: Exec<'_>,
        id: SequenceId,
        tokens: usize,
    ) -> Result<(), CacheError> {
        let index = self.idle(id)?;
        let recent = self.zones.recent_blocks();
        let last = match self.sequences[index].position.checked_sub(1) {
            // A block that is not full may still change.
            Some(last) if tokens > 0 && recent > 0 && last / SLOTS >= recent => last,
            _ => return Ok(()),
        };
        let mut layers = 0..self.layers.len();
        let left = layers.clone();
        let left = left.filter_map(|l| self.leaves_next(index, l)).count() as u64;
        let in_block = (last % SLOTS + 1).min(tokens as u64);
        // The step over the border may have a share as well.
        let to_come = SLOTS - last % SLOTS;
        let mut share = (left * in_block).div_ceil(in_block + to_come);
        while share > 0 {
            let next = layers.find_map(|l| Some((l, self.leaves_next(index, l)?)));
            let Some((l, entry)) = next else { break };
            let far_pool = self.layers[l].far_pool;
            let pool = &self.pools[far_pool];
            let bytes = pool.block_bytes() + pool.list_bytes_to_reserve(1);
            if self.ledger().fit(bytes).is_err() {
                break;
            }
            let Ok(mut promised) = self.pools[far_pool].reserve(1) else {
                break;
            };
            self.note_total();
            self.code_far(exec, index, l, entry..entry + 1, &mut promised);
            let pool = &mut self.pools[far_pool];
            pool.forfeit(promised);
            if let Some(far) = self.sequences[index].tables[l].entries[entry].far {
                pool.set_ahead(far, true);
            }
            share -= 1;
        }
        Ok(())
    }

    /// The entry of the block that leaves the recent zone next, where it has no far form yet.
    fn leaves_next(&self, index: usize, l: usize) -> Option<usize> {
        let (shape, sequence) = (self.layers[l].shape, &self.sequences[index]);
        let next = near_from(shape, self.zones, sequence.position);
        let table = &sequence.tables[l];
        let entry = table.uncoded(next + 1).last()?;
        (shape.zoned() && table.entries[entry].block() == next).then_some(entry)
    }
}
