//! Blocks of one size in slabs: reserve → acquire → forfeit.
//!
//! A [`Reservation`] is a promise of blocks. Taking one out of the pool can fail; using it cannot.
//! Blocks are counted, not owned: the last `release` puts a block on the free list and raises its
//! generation, so that a stale [`BlockId`] is recognised.

use crate::error::{CacheError, CannotFit};
use haversack_memory::arena::{Arena, SlabIndex};

/// One block, by index and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    index: u32,
    generation: u32,
}

/// Blocks promised to one step and not yet taken. Give it back with [`Pool::forfeit`].
#[must_use = "a reservation that is dropped keeps its blocks promised for ever"]
#[derive(Debug, PartialEq, Eq)]
pub struct Reservation {
    blocks: usize,
}

/// Slabs of at least this many bytes: large enough that the system call does not show, small
/// enough that a short chat stays small.
const SLAB_BYTES_MIN: usize = 1 << 20;

pub struct Pool {
    arena: Arena,
    block_bytes: usize,
    blocks_per_slab: usize,
    /// (block): how many tables hold it; 0 = free.
    references: Vec<u32>,
    /// (block): raised each time the block is freed.
    generations: Vec<u32>,
    free: Vec<u32>,
    promised: usize,
    live: usize,
    live_peak: usize,
}

impl Pool {
    pub fn new(block_bytes: usize) -> Pool {
        let blocks_per_slab = SLAB_BYTES_MIN.div_ceil(block_bytes.max(1));
        Pool {
            arena: Arena::new(blocks_per_slab * block_bytes),
            block_bytes,
            blocks_per_slab,
            references: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            promised: 0,
            live: 0,
            live_peak: 0,
        }
    }

    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Blocks in use.
    pub fn live(&self) -> usize {
        self.live
    }

    pub fn live_peak(&self) -> usize {
        self.live_peak
    }

    /// Blocks in use or promised: what the budget is held against.
    pub fn committed(&self) -> usize {
        self.live + self.promised
    }

    /// Promises `blocks` blocks, growing the arena if the free list is short. On failure nothing is
    /// promised; slabs that were added stay for the next call.
    pub fn reserve(&mut self, blocks: usize) -> Result<Reservation, CacheError> {
        while self.free.len() < self.promised + blocks {
            self.add_slab()?;
        }
        self.promised += blocks;
        Ok(Reservation { blocks })
    }

    /// Takes one promised block, with one reference. Its bytes are whatever they were before.
    ///
    /// Panics when the reservation is empty: the caller computed the worst case wrongly, which is a
    /// bug and not a shortage.
    pub fn acquire(&mut self, reservation: &mut Reservation) -> BlockId {
        assert!(
            reservation.blocks > 0,
            "a step took more blocks than it reserved"
        );
        reservation.blocks -= 1;
        self.promised -= 1;
        let index = self
            .free
            .pop()
            .unwrap_or_else(|| unreachable!("promised blocks are free"));
        self.references[index as usize] = 1;
        self.live += 1;
        self.live_peak = self.live_peak.max(self.live);
        BlockId {
            index,
            generation: self.generations[index as usize],
        }
    }

    /// Gives back what a step did not take.
    pub fn forfeit(&mut self, reservation: Reservation) {
        self.promised -= reservation.blocks;
    }

    /// One more table holds the block.
    pub fn share(&mut self, id: BlockId) {
        self.check(id);
        self.references[id.index as usize] += 1;
    }

    /// One table less holds the block; the last one frees it.
    pub fn release(&mut self, id: BlockId) {
        self.check(id);
        let i = id.index as usize;
        self.references[i] -= 1;
        if self.references[i] == 0 {
            self.generations[i] = self.generations[i].wrapping_add(1);
            self.free.push(id.index);
            self.live -= 1;
        }
    }

    pub fn is_shared(&self, id: BlockId) -> bool {
        self.check(id);
        self.references[id.index as usize] > 1
    }

    pub fn bytes(&self, id: BlockId) -> &[u8] {
        self.check(id);
        let (slab, at) = self.place(id);
        &self.arena.slab(slab)[at..at + self.block_bytes]
    }

    pub fn bytes_mut(&mut self, id: BlockId) -> &mut [u8] {
        self.check(id);
        let (slab, at) = self.place(id);
        &mut self.arena.slab_mut(slab)[at..at + self.block_bytes]
    }

    /// Copies one block's bytes into another: the private tail after a fork.
    pub fn copy(&mut self, from: BlockId, to: BlockId) {
        let bytes = self.bytes(from).to_vec();
        self.bytes_mut(to).copy_from_slice(&bytes);
    }

    fn place(&self, id: BlockId) -> (SlabIndex, usize) {
        let i = id.index as usize;
        (
            SlabIndex(i / self.blocks_per_slab),
            i % self.blocks_per_slab * self.block_bytes,
        )
    }

    fn check(&self, id: BlockId) {
        let i = id.index as usize;
        assert!(
            self.references[i] > 0 && self.generations[i] == id.generation,
            "block {i} was freed and is not this table's any more"
        );
    }

    fn add_slab(&mut self) -> Result<(), CacheError> {
        let bytes = self.blocks_per_slab * self.block_bytes;
        let slab = self
            .arena
            .add_slab()
            .map_err(|_| CacheError::OutOfMemory { bytes })?;
        let first = (slab.0 * self.blocks_per_slab) as u32;
        let end = first + self.blocks_per_slab as u32;
        self.references.resize(end as usize, 0);
        self.generations.resize(end as usize, 0);
        // Lowest index last, so that it is taken first and memory fills from the front.
        self.free.splice(0..0, (first..end).rev());
        Ok(())
    }
}

/// How far `committed + needed` bytes exceed `budget_bytes`, as an answer.
pub(crate) fn fit(
    committed: usize,
    needed: usize,
    budget_bytes: Option<usize>,
) -> Result<(), CannotFit> {
    let Some(budget_bytes) = budget_bytes else {
        return Ok(());
    };
    let wanted = committed.saturating_add(needed);
    match wanted.checked_sub(budget_bytes) {
        None | Some(0) => Ok(()),
        Some(short_by) => Err(CannotFit {
            short_by,
            budget_bytes,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_a_promise_and_forfeit_returns_it() {
        let mut pool = Pool::new(4096);
        let mut r = pool.reserve(3).unwrap();
        assert_eq!(pool.committed(), 3);
        let a = pool.acquire(&mut r);
        assert_eq!((pool.live(), pool.committed()), (1, 3));
        pool.forfeit(r);
        assert_eq!((pool.live(), pool.committed()), (1, 1));
        pool.release(a);
        assert_eq!((pool.live(), pool.live_peak()), (0, 1));
    }

    #[test]
    fn no_block_is_handed_out_twice() {
        let mut pool = Pool::new(64 << 10);
        let mut r = pool.reserve(100).unwrap();
        let ids: Vec<_> = (0..100).map(|_| pool.acquire(&mut r)).collect();
        pool.forfeit(r);
        for (i, &id) in ids.iter().enumerate() {
            pool.bytes_mut(id).fill(i as u8);
        }
        for (i, &id) in ids.iter().enumerate() {
            assert!(pool.bytes(id).iter().all(|&b| b == i as u8));
        }
    }

    #[test]
    #[should_panic(expected = "was freed")]
    fn a_stale_id_is_recognised() {
        let mut pool = Pool::new(4096);
        let mut r = pool.reserve(2).unwrap();
        let a = pool.acquire(&mut r);
        pool.release(a);
        let _b = pool.acquire(&mut r);
        pool.forfeit(r);
        pool.bytes(a);
    }

    #[test]
    fn budget_is_an_answer() {
        assert_eq!(fit(10, 5, Some(15)), Ok(()));
        assert_eq!(
            fit(10, 6, Some(15)),
            Err(CannotFit {
                short_by: 1,
                budget_bytes: 15
            })
        );
        assert_eq!(fit(10, usize::MAX, None), Ok(()));
    }
}
