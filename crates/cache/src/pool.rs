//! Block pool: reference-counted blocks of one size in slabs. Reserve → acquire → forfeit.
//!
//! Making a [`Reservation`] can fail; acquiring its blocks cannot. The last `release` frees a block and raises its
//! generation, so that a stale [`BlockId`] is recognised.
//!
//! The pool acquires the lowest free block. So the high slabs run empty when sequences shrink, and an empty slab's pages
//! go back to the system. A slab moves to huge pages when it is full, and not before: huge pages of a sparse slab would
//! make its free blocks resident.
//!
//! A pool may also have blocks in mapped files ([`crate::mapped_blocks`]). They are read and counted like all others,
//! always count as shared, and are in none of the lists of free, full or sparse slabs.

use crate::error::{CacheError, CacheResult, reserve_exact, with_room};
use crate::mapped_blocks::{MAPPED, MappedBlocks, RegionIndex};
use haversack_memory::arena::ALIGN;
use haversack_memory::{Arena, ArenaError, Backing, Refusal, Region, SlabIndex, SlabIo};
use std::num::NonZeroU32;
use std::sync::Arc;

/// One block, by index and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    index: u32,
    generation: NonZeroU32,
}

impl BlockId {
    /// A sort key.
    pub(crate) fn order(self) -> (u32, u32) {
        (self.index, self.generation.get())
    }

    pub(crate) fn is_mapped(self) -> bool {
        self.index & MAPPED != 0
    }
}

/// Blocks reserved for one step and not yet acquired. Return it with [`BlockPool::forfeit`].
#[must_use = "dropping a reservation keeps its blocks reserved for ever"]
#[derive(Debug, PartialEq, Eq)]
pub struct Reservation {
    blocks: usize,
}

/// The blocks of a pool, counted one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    pub block_bytes: usize,
    pub total: usize,
    pub free: usize,
    pub live: usize,
    pub promised: usize,
    /// The sum of all reference counts.
    pub references: usize,
    pub slabs: usize,
    /// Slabs whose pages may be in memory.
    pub slabs_touched: usize,
    /// Blocks in mapped files with references. None of the numbers above includes them.
    pub mapped: usize,
    /// The sum of the reference counts of mapped blocks.
    pub mapped_references: usize,
    /// Mapped regions in use.
    pub regions: usize,
}

/// State of a slab's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// Not resident: no block was acquired since the pages were released.
    Untouched,
    /// Resident where blocks were written.
    Small,
    /// All blocks were in use and the pool asked for huge pages.
    Huge,
}

pub struct BlockPool {
    arena: Arena,
    block_bytes: usize,
    blocks_per_slab: usize,
    /// (block): tables that hold it; 0 = free. [`AHEAD`] is set while no query reads it yet.
    references: Vec<u32>,
    /// (block): raised each time the block is freed; never 0.
    generations: Vec<NonZeroU32>,
    /// (block / 64): a bit is set where the block is free.
    free: Vec<u64>,
    /// No word of `free` before this one has a bit set.
    first_free: usize,
    /// (slab): blocks in use.
    slab_live: Vec<u32>,
    slab_pages: Vec<Pages>,
    promised: usize,
    live: usize,
    /// Live blocks recoded ahead, which no query reads yet.
    ahead: usize,
    mapped: MappedBlocks,
}

/// The bit of a reference count that marks a block recoded ahead, which no query reads yet.
const AHEAD: u32 = 1 << 31;

impl BlockPool {
    /// `slab_bytes` is rounded up to whole blocks.
    pub fn new(
        block_bytes: usize,
        slab_bytes: usize,
        backing: Backing,
        io: Option<Arc<dyn SlabIo>>,
    ) -> CacheResult<BlockPool> {
        let block_bytes = block_bytes.max(1);
        let blocks_per_slab = blocks_per_slab(block_bytes, slab_bytes);
        let bytes = blocks_per_slab.saturating_mul(block_bytes);
        let arena = match io {
            Some(io) => Arena::with_io(bytes, backing, io),
            None => Arena::with_backing(bytes, backing),
        }
        .map_err(refused)?;
        Ok(BlockPool {
            arena,
            block_bytes,
            blocks_per_slab,
            references: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            first_free: 0,
            slab_live: Vec::new(),
            slab_pages: Vec::new(),
            promised: 0,
            live: 0,
            ahead: 0,
            mapped: MappedBlocks::default(),
        })
    }

    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Live blocks in slabs.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Live blocks that were recoded ahead.
    pub fn ahead(&self) -> usize {
        self.ahead
    }

    /// Live blocks in mapped files.
    pub fn mapped(&self) -> usize {
        self.mapped.live
    }

    pub fn promised(&self) -> usize {
        self.promised
    }

    /// Blocks in slabs, live or free.
    pub fn total(&self) -> usize {
        self.references.len()
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Counts every block, for tests and reports.
    pub fn stats(&self) -> PoolStats {
        let (references, pages) = (self.references.iter(), self.slab_pages.iter());
        PoolStats {
            block_bytes: self.block_bytes,
            total: self.total(),
            free: self.free.iter().map(|w| w.count_ones() as usize).sum(),
            live: self.references.iter().filter(|&&r| r > 0).count(),
            promised: self.promised,
            references: references.map(|&r| (r & !AHEAD) as usize).sum(),
            slabs: self.slab_live.len(),
            slabs_touched: pages.filter(|&&pages| pages != Pages::Untouched).count(),
            mapped: self.mapped.live,
            mapped_references: self.mapped.references(),
            regions: self.mapped.regions(),
        }
    }

    /// Bytes of the pool's lists.
    pub fn list_bytes(&self) -> usize {
        self.references.capacity() * size_of::<u32>()
            + self.generations.capacity() * size_of::<NonZeroU32>()
            + self.free.capacity() * size_of::<u64>()
            + self.slab_live.capacity() * size_of::<u32>()
            + self.slab_pages.capacity() * size_of::<Pages>()
            + self.mapped.list_bytes()
    }

    /// How many bytes the lists grow when `blocks` more are reserved.
    pub fn list_bytes_to_reserve(&self, blocks: usize) -> usize {
        let slabs = self.slabs_to_reserve(blocks);
        let slabs = self.slab_live.len().saturating_add(slabs);
        let now = self.list_bytes() - self.mapped.list_bytes();
        list_bytes_of(slabs, self.blocks_per_slab).saturating_sub(now)
    }

    /// Bytes of `blocks` more blocks, and of longer lists.
    pub fn bytes_to_reserve(&self, blocks: usize) -> usize {
        let bytes = blocks.saturating_mul(self.block_bytes);
        bytes.saturating_add(self.list_bytes_to_reserve(blocks))
    }

    /// Bytes of the lists of a pool with `blocks` blocks.
    pub fn list_bytes_for(block_bytes: usize, slab_bytes: usize, blocks: usize) -> usize {
        let per_slab = blocks_per_slab(block_bytes.max(1), slab_bytes);
        list_bytes_of(blocks.div_ceil(per_slab), per_slab)
    }

    /// Reserves `blocks` blocks and adds slabs if too few are free. On failure nothing is reserved; slabs that were added
    /// stay for the next call.
    pub fn reserve(&mut self, blocks: usize) -> CacheResult<Reservation> {
        for _ in 0..self.slabs_to_reserve(blocks) {
            self.add_slab()?;
        }
        self.promised += blocks;
        Ok(Reservation { blocks })
    }

    /// Takes one reserved block, with one reference. Its bytes are whatever they were before.
    ///
    /// Panics when the reservation is empty: the caller computed the worst case wrongly, which is a bug and not a
    /// shortage.
    pub fn acquire(&mut self, reservation: &mut Reservation) -> BlockId {
        assert!(
            reservation.blocks > 0,
            "a step took more blocks than it reserved"
        );
        reservation.blocks -= 1;
        self.promised -= 1;
        // `reserve` added slabs until every reserved block was free, and only `acquire` takes one.
        let index = self.lowest_free().expect("reserved blocks are free");
        self.occupy(index, 1);
        self.id(index)
    }

    /// Returns a block that only this step holds to its reservation.
    pub fn put_back(&mut self, reservation: &mut Reservation, id: BlockId) {
        debug_assert!(!self.is_shared(id));
        self.release(id);
        reservation.blocks += 1;
        self.promised += 1;
    }

    /// Returns what a step reserved and did not acquire.
    pub fn forfeit(&mut self, reservation: Reservation) {
        self.promised -= reservation.blocks;
    }

    /// Adds a region of whole blocks. A caller that takes none of them calls [`BlockPool::drop_unused_regions`].
    pub(crate) fn map_region(&mut self, region: &Region) -> CacheResult<RegionIndex> {
        let whole = region.len().is_multiple_of(self.block_bytes);
        if !whole || !region.as_slice().as_ptr().addr().is_multiple_of(ALIGN) {
            let what = "a region that is not of whole blocks";
            return Err(CacheError::BadImage { what });
        }
        self.mapped.add(region, region.len() / self.block_bytes)
    }

    /// How many bytes the lists grow with a region.
    pub(crate) fn list_bytes_to_map(&self, region: &Region) -> usize {
        let blocks = region.len() / self.block_bytes;
        self.mapped.list_bytes_to_add(region, blocks)
    }

    /// Takes a reference to block number `block` of a region.
    pub(crate) fn take_mapped(&mut self, from: RegionIndex, block: usize) -> BlockId {
        let (index, generation) = self.mapped.take(from, block);
        BlockId { index, generation }
    }

    /// Drops regions without references.
    pub(crate) fn drop_unused_regions(&mut self) {
        self.mapped.drop_unused_regions();
    }

    /// Takes one more reference to a block.
    pub fn share(&mut self, id: BlockId) {
        self.check(id);
        if id.is_mapped() {
            return self.mapped.share(id.index);
        }
        self.references[id.index as usize] += 1;
    }

    /// Drops a reference; the last one frees the block.
    pub fn release(&mut self, id: BlockId) {
        self.check(id);
        if id.is_mapped() {
            return self.mapped.release(id.index);
        }
        let i = id.index as usize;
        self.references[i] -= 1;
        if self.references[i] & !AHEAD == 0 {
            self.set_ahead(id, false);
            self.vacate(i);
        }
    }

    /// Marks a block as recoded ahead, or clears the mark. Not for mapped blocks.
    pub(crate) fn set_ahead(&mut self, id: BlockId, is_ahead: bool) {
        let count = &mut self.references[id.index as usize];
        let was = *count & AHEAD != 0;
        *count = *count & !AHEAD | if is_ahead { AHEAD } else { 0 };
        self.ahead = self.ahead + usize::from(is_ahead) - usize::from(was);
    }

    pub(crate) fn is_ahead(&self, id: BlockId) -> bool {
        !id.is_mapped() && self.references[id.index as usize] & AHEAD != 0
    }

    /// Whether another table holds the block too, so that it must not be written. Always true for mapped blocks.
    pub fn is_shared(&self, id: BlockId) -> bool {
        self.check(id);
        id.is_mapped() || self.references[id.index as usize] & !AHEAD > 1
    }

    /// References to the block; `None` if it was freed since.
    pub fn holders(&self, id: BlockId) -> Option<usize> {
        if id.is_mapped() {
            return Some(self.mapped.holders(id.index, id.generation) as usize).filter(|&n| n > 0);
        }
        let i = id.index as usize;
        let is_free = self.free[i / 64] >> (i % 64) & 1 == 1;
        let count = (self.references[i] & !AHEAD) as usize;
        (count > 0 && !is_free && self.generations[i] == id.generation).then_some(count)
    }

    pub fn bytes(&self, id: BlockId) -> &[u8] {
        self.check(id);
        if id.is_mapped() {
            return self.mapped.bytes(id.index, self.block_bytes);
        }
        let (slab, at) = self.place(id.index as usize);
        &self.arena.slab(slab)[at..at + self.block_bytes]
    }

    /// Panics for a mapped block: those are shared, and the caller must copy shared blocks.
    pub fn bytes_mut(&mut self, id: BlockId) -> &mut [u8] {
        self.check(id);
        assert!(!id.is_mapped(), "a block of a file is not written");
        let (slab, at) = self.place(id.index as usize);
        &mut self.arena.slab_mut(slab)[at..at + self.block_bytes]
    }

    /// One block to read and another to write.
    pub(crate) fn pair_mut(&mut self, from: BlockId, to: BlockId) -> (&[u8], &mut [u8]) {
        self.check(from);
        self.check(to);
        assert!(!to.is_mapped(), "a block of a file is not written");
        if from.is_mapped() {
            let (slab, at) = self.place(to.index as usize);
            let from = self.mapped.bytes(from.index, self.block_bytes);
            let to = &mut self.arena.slab_mut(slab)[at..at + self.block_bytes];
            return (from, to);
        }
        self.pair_raw_mut(from.index as usize, to.index as usize)
    }

    fn pair_raw_mut(&mut self, from: usize, to: usize) -> (&[u8], &mut [u8]) {
        let bytes = self.block_bytes;
        let (from_slab, from_at) = self.place(from);
        let (to_slab, to_at) = self.place(to);
        if from_slab == to_slab {
            let slab = self.arena.slab_mut(from_slab);
            let (low, high) = slab.split_at_mut(from_at.max(to_at));
            return if from_at < to_at {
                (&low[from_at..from_at + bytes], &mut high[..bytes])
            } else {
                (&high[..bytes], &mut low[to_at..to_at + bytes])
            };
        }
        let (from_slab, to_slab) = self.arena.two_slabs(from_slab, to_slab);
        (
            &from_slab[from_at..from_at + bytes],
            &mut to_slab[to_at..to_at + bytes],
        )
    }

    /// Copies one block's bytes into another.
    pub fn copy(&mut self, from: BlockId, to: BlockId) {
        let (from, to) = self.pair_mut(from, to);
        to.copy_from_slice(from);
    }

    /// Copies a shared block into one of the reservation and drops the reference to it.
    pub(crate) fn make_private(&mut self, shared: BlockId, from: &mut Reservation) -> BlockId {
        let private = self.acquire(from);
        self.copy(shared, private);
        self.release(shared);
        private
    }

    /// Releases the pages of slabs without live blocks that no reservation needs. Returns the number of slabs.
    pub fn release_empty_slabs(&mut self) -> usize {
        let mut free_below = 0;
        let mut released = 0;
        for slab in 0..self.slab_live.len() {
            let live = self.slab_live[slab] as usize;
            let touched = self.slab_pages[slab] != Pages::Untouched;
            if live == 0 && touched && free_below >= self.promised {
                self.arena.release(SlabIndex(slab));
                self.slab_pages[slab] = Pages::Untouched;
                released += 1;
            }
            free_below += self.blocks_per_slab - live;
        }
        released
    }

    /// Full slabs that still have small pages.
    pub fn full_slabs(&self) -> impl Iterator<Item = SlabIndex> + '_ {
        let slabs = self.slab_pages.iter().zip(&self.slab_live).enumerate();
        let full = slabs.filter(|(_, (pages, live))| {
            **pages == Pages::Small && **live as usize == self.blocks_per_slab
        });
        full.map(|(i, _)| SlabIndex(i))
    }

    /// Asks for huge pages for a full slab. If the system has none, only reading is slower.
    pub fn collapse(&mut self, slab: SlabIndex) {
        self.arena.collapse(slab);
        self.slab_pages[slab.0] = Pages::Huge;
    }

    /// Moves blocks out of slabs of which less than `percent` is in use, the highest first, into free blocks below.
    /// Returns old and new id of each; the caller updates its tables.
    ///
    /// Must not run during a step: a step keeps ids of its own.
    pub fn compact(&mut self, percent: usize) -> CacheResult<Vec<(BlockId, BlockId)>> {
        let sparse = |live: u32, blocks: usize| {
            live > 0 && (live as usize).saturating_mul(100) < percent.saturating_mul(blocks)
        };
        let slabs = self.slab_live.iter();
        let moving = slabs.filter(|&&live| sparse(live, self.blocks_per_slab));
        let mut moves = with_room(moving.map(|&live| live as usize).sum())?;
        for slab in (0..self.slab_live.len()).rev() {
            if !sparse(self.slab_live[slab], self.blocks_per_slab) {
                continue;
            }
            let first = slab * self.blocks_per_slab;
            for from in (first..first + self.blocks_per_slab).rev() {
                if self.references[from] == 0 {
                    continue;
                }
                match self.lowest_free() {
                    Some(to) if to < first => moves.push(self.shift(from, to)),
                    _ => return Ok(moves),
                }
            }
        }
        Ok(moves)
    }

    fn shift(&mut self, from: usize, to: usize) -> (BlockId, BlockId) {
        let old = self.id(from);
        let (bytes, copy) = self.pair_raw_mut(from, to);
        copy.copy_from_slice(bytes);
        let references = std::mem::take(&mut self.references[from]);
        self.vacate(from);
        self.occupy(to, references);
        (old, self.id(to))
    }

    fn id(&self, index: usize) -> BlockId {
        BlockId {
            index: index as u32,
            generation: self.generations[index],
        }
    }

    fn lowest_free(&mut self) -> Option<usize> {
        while *self.free.get(self.first_free)? == 0 {
            self.first_free += 1;
        }
        Some(self.first_free * 64 + self.free[self.first_free].trailing_zeros() as usize)
    }

    fn occupy(&mut self, index: usize, references: u32) {
        self.free[index / 64] &= !(1 << (index % 64));
        self.references[index] = references;
        let slab = index / self.blocks_per_slab;
        self.slab_live[slab] += 1;
        if self.slab_pages[slab] == Pages::Untouched {
            self.slab_pages[slab] = Pages::Small;
        }
        self.live += 1;
    }

    fn vacate(&mut self, index: usize) {
        let next = self.generations[index].checked_add(1);
        self.generations[index] = next.unwrap_or(NonZeroU32::MIN);
        self.free[index / 64] |= 1 << (index % 64);
        self.first_free = self.first_free.min(index / 64);
        self.slab_live[index / self.blocks_per_slab] -= 1;
        self.live -= 1;
    }

    fn place(&self, index: usize) -> (SlabIndex, usize) {
        (
            SlabIndex(index / self.blocks_per_slab),
            index % self.blocks_per_slab * self.block_bytes,
        )
    }

    fn check(&self, id: BlockId) {
        let i = id.index as usize;
        let is_live = if id.is_mapped() {
            self.mapped.holders(id.index, id.generation) > 0
        } else {
            self.references[i] > 0 && self.generations[i] == id.generation
        };
        assert!(is_live, "block {i} was freed");
    }

    fn slabs_to_reserve(&self, blocks: usize) -> usize {
        let wanted = self.promised.saturating_add(blocks);
        let free = self.total() - self.live;
        wanted.saturating_sub(free).div_ceil(self.blocks_per_slab)
    }

    fn add_slab(&mut self) -> CacheResult {
        let first = self.total();
        let end = first + self.blocks_per_slab;
        if end > MAPPED as usize {
            let bytes = self.arena.slab_bytes();
            return Err(CacheError::OutOfMemory { bytes });
        }
        reserve_exact(&mut self.references, self.blocks_per_slab)?;
        reserve_exact(&mut self.generations, self.blocks_per_slab)?;
        let words = end.div_ceil(64);
        reserve_exact(&mut self.free, words - first.div_ceil(64))?;
        reserve_exact(&mut self.slab_live, 1)?;
        reserve_exact(&mut self.slab_pages, 1)?;
        self.arena.add_slab().map_err(refused)?;
        self.references.resize(end, 0);
        self.generations.resize(end, NonZeroU32::MIN);
        self.free.resize(words, 0);
        for index in first..end {
            self.free[index / 64] |= 1 << (index % 64);
        }
        self.first_free = self.first_free.min(first / 64);
        self.slab_live.push(0);
        self.slab_pages.push(Pages::Untouched);
        Ok(())
    }
}

fn blocks_per_slab(block_bytes: usize, slab_bytes: usize) -> usize {
    slab_bytes.div_ceil(block_bytes).max(1)
}

fn list_bytes_of(slabs: usize, blocks_per_slab: usize) -> usize {
    let blocks = slabs.saturating_mul(blocks_per_slab);
    let per_block = size_of::<u32>() + size_of::<NonZeroU32>();
    blocks
        .saturating_mul(per_block)
        .saturating_add(blocks.div_ceil(64).saturating_mul(size_of::<u64>()))
        .saturating_add(slabs.saturating_mul(size_of::<u32>() + size_of::<Pages>()))
}

fn refused(error: ArenaError) -> CacheError {
    match error.why {
        Refusal::NoBacking(why) => CacheError::NoBacking { why },
        Refusal::OutOfMemory => CacheError::OutOfMemory {
            bytes: error.slab_bytes,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_memory::FileMap;
    use std::sync::{Arc, Weak};

    fn pool(block_bytes: usize, blocks: usize) -> BlockPool {
        BlockPool::new(block_bytes, blocks * block_bytes, Backing::Private, None).unwrap()
    }

    #[test]
    fn forfeit_returns_a_reservation() {
        let mut pool = pool(4096, 8);
        let mut r = pool.reserve(3).unwrap();
        assert_eq!((pool.live(), pool.promised()), (0, 3));
        let a = pool.acquire(&mut r);
        assert_eq!((pool.live(), pool.promised()), (1, 2));
        pool.put_back(&mut r, a);
        assert_eq!((pool.live(), pool.promised()), (0, 3));
        pool.forfeit(r);
        assert_eq!((pool.live(), pool.promised()), (0, 0));
    }

    #[test]
    fn blocks_do_not_overlap() {
        let mut pool = pool(640, 7);
        let mut r = pool.reserve(100).unwrap();
        let ids: Vec<_> = (0..100).map(|_| pool.acquire(&mut r)).collect();
        pool.forfeit(r);
        for (i, &id) in ids.iter().enumerate() {
            pool.bytes_mut(id).fill(i as u8);
        }
        for (i, &id) in ids.iter().enumerate() {
            assert!(pool.bytes(id).iter().all(|&b| b == i as u8));
        }
        let stats = pool.stats();
        assert_eq!(stats.free + stats.live, stats.total);
        assert_eq!((stats.slabs, stats.live), (15, 100));
    }

    #[test]
    #[should_panic(expected = "was freed")]
    fn a_stale_id_is_recognised() {
        let mut pool = pool(4096, 8);
        let mut r = pool.reserve(2).unwrap();
        let a = pool.acquire(&mut r);
        pool.release(a);
        let _b = pool.acquire(&mut r);
        pool.forfeit(r);
        pool.bytes(a);
    }

    #[test]
    fn lists_grow_by_the_predicted_bytes() {
        let mut pool = pool(64, 100);
        let mut all = 0;
        for blocks in [1, 99, 1, 250, 3] {
            let predicted = pool.list_bytes_to_reserve(blocks);
            let before = pool.list_bytes();
            let _held = pool.reserve(blocks).unwrap();
            all += blocks;
            assert_eq!(pool.list_bytes() - before, predicted);
            assert_eq!(pool.list_bytes(), BlockPool::list_bytes_for(64, 6400, all));
        }
    }

    #[test]
    fn a_full_slab_moves_to_huge_pages_once() {
        let mut pool = pool(6528, 322);
        let mut r = pool.reserve(400).unwrap();
        let mut ids: Vec<_> = (0..321).map(|_| pool.acquire(&mut r)).collect();
        assert_eq!(pool.full_slabs().next(), None, "one is missing");
        ids.push(pool.acquire(&mut r));
        for (i, &id) in ids.iter().enumerate() {
            pool.bytes_mut(id).fill(i as u8);
        }
        let before = pool.arena().resident_bytes();
        let slab = pool.full_slabs().next().unwrap();
        pool.collapse(slab);
        assert_eq!(pool.full_slabs().next(), None, "not twice");
        assert_eq!(pool.arena().resident_bytes(), before);
        for (i, &id) in ids.iter().enumerate() {
            assert!(pool.bytes(id).iter().all(|&b| b == i as u8));
        }
        pool.forfeit(r);
        ids.drain(..).for_each(|id| pool.release(id));
        assert_eq!(pool.release_empty_slabs(), 1);
        let mut r = pool.reserve(322).unwrap();
        ids.extend((0..322).map(|_| pool.acquire(&mut r)));
        assert_eq!(
            pool.full_slabs().next(),
            Some(slab),
            "and again when its pages are new"
        );
        pool.forfeit(r);
    }

    #[test]
    fn compaction_empties_high_slabs() {
        let mut pool = pool(4096, 4);
        let mut r = pool.reserve(12).unwrap();
        let ids: Vec<_> = (0..12).map(|_| pool.acquire(&mut r)).collect();
        pool.forfeit(r);
        for &id in &ids[1..9] {
            pool.release(id);
        }
        assert_eq!(pool.release_empty_slabs(), 1, "only the middle slab");
        for (i, &id) in [ids[0], ids[9], ids[10], ids[11]].iter().enumerate() {
            pool.bytes_mut(id).fill(i as u8);
        }
        let moves = pool.compact(25).unwrap();
        assert_eq!(moves, [], "a quarter is not below a quarter");
        pool.release(ids[9]);
        pool.release(ids[10]);
        let moves = pool.compact(50).unwrap();
        assert_eq!(moves.len(), 1);
        assert_eq!((moves[0].0, moves[0].1.index), (ids[11], 1));
        assert!(pool.bytes(moves[0].1).iter().all(|&b| b == 3));
        assert_eq!(pool.release_empty_slabs(), 1);
        assert_eq!(pool.stats().slabs_touched, 1);
    }

    /// A pool and a file with three of its blocks, of which block `i` is all `i`.
    fn mapped_pool(name: &str) -> (BlockPool, Region, Weak<FileMap>) {
        let name = format!("haversack-mapped-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let bytes: Vec<u8> = (0..3 * 128).map(|i| (i / 128) as u8).collect();
        std::fs::write(&path, bytes).unwrap();
        let map = Arc::new(FileMap::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let weak = Arc::downgrade(&map);
        let pool = BlockPool::new(128, 1024, Backing::Private, None).unwrap();
        (pool, Region::new(map, 0..384).unwrap(), weak)
    }

    #[test]
    fn the_last_reference_drops_a_region() {
        let (mut pool, region, map) = mapped_pool("last");
        let predicted = pool.list_bytes_to_map(&region);
        let region_index = pool.map_region(&region).unwrap();
        assert_eq!(pool.list_bytes(), predicted);
        assert_eq!(pool.list_bytes_to_map(&region), 0);
        assert_eq!(
            pool.map_region(&region).unwrap(),
            region_index,
            "added once"
        );
        drop(region);
        let (one, two) = (
            pool.take_mapped(region_index, 1),
            pool.take_mapped(region_index, 2),
        );
        assert_eq!(pool.take_mapped(region_index, 1), one);
        assert_eq!((pool.mapped(), pool.live(), pool.total()), (2, 0, 0));
        assert!(pool.is_shared(two), "always shared");
        pool.share(two);
        assert!(pool.bytes(two).iter().all(|&b| b == 2));
        let mut r = pool.reserve(1).unwrap();
        let copy = pool.acquire(&mut r);
        pool.forfeit(r);
        pool.copy(one, copy);
        assert!(pool.bytes(copy).iter().all(|&b| b == 1));
        for id in [one, two, one] {
            pool.release(id);
        }
        assert_eq!((pool.mapped(), pool.stats().regions), (1, 1));
        assert!(map.upgrade().is_some());
        pool.release(two);
        assert_eq!((pool.mapped(), pool.stats().regions), (0, 0));
        assert!(map.upgrade().is_none());
    }

    #[test]
    fn an_unused_region_is_dropped() {
        let (mut pool, region, map) = mapped_pool("unused");
        pool.map_region(&region).unwrap();
        drop(region);
        pool.drop_unused_regions();
        assert!(map.upgrade().is_none());
    }

    #[test]
    #[should_panic(expected = "was freed")]
    fn a_stale_id_of_a_mapped_block_is_recognised() {
        let (mut pool, region, _map) = mapped_pool("stale");
        let region_index = pool.map_region(&region).unwrap();
        let (_kept, id) = (
            pool.take_mapped(region_index, 1),
            pool.take_mapped(region_index, 0),
        );
        pool.release(id);
        assert_ne!(pool.take_mapped(region_index, 0), id);
        pool.bytes(id);
    }

    #[test]
    #[should_panic(expected = "a block of a file is not written")]
    fn mapped_blocks_are_read_only() {
        let (mut pool, region, _map) = mapped_pool("write");
        let region_index = pool.map_region(&region).unwrap();
        let id = pool.take_mapped(region_index, 0);
        pool.bytes_mut(id);
    }

    #[test]
    fn regions_of_partial_blocks_are_refused() {
        let (mut pool, region, map) = mapped_pool("part");
        let map = map.upgrade().unwrap();
        for range in [0..100, 8..136] {
            let part = Region::new(map.clone(), range).unwrap();
            assert!(pool.map_region(&part).is_err());
        }
        drop(region);
    }
}
