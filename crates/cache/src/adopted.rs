//! Blocks that lie in a file somebody else wrote: read where they are, never written, counted all the same.
//!
//! A *region* is a part of a read-only map with blocks of the pool's size back to back. Nobody takes a block of it as
//! free and nobody moves one; a table that wants to write makes a copy, as of any block that others hold too. The
//! region, and with it the map, goes with the last reference to any of its blocks.
//!
//! ```text
//! index   1 | region (15 bits) | block (16 bits)      bit 31 tells them from blocks of slabs
//! ```

use crate::error::CacheError;
use crate::pool::reserve_exact;
use haversack_memory::Region;
use std::num::NonZeroU32;

/// The bit of an index that says: adopted.
pub(crate) const ADOPTED: u32 = 1 << 31;

const BLOCK_BITS: u32 = 16;
const BLOCKS_MAX: usize = 1 << BLOCK_BITS;
const REGIONS_MAX: usize = 1 << (31 - BLOCK_BITS);

/// Where a region's blocks are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionIndex(u32);

/// The regions of one pool.
#[derive(Default)]
pub(crate) struct Adopted {
    /// A place is free once its region went.
    regions: Vec<Option<Blocks>>,
    /// Given to each block that is taken while nobody holds it, so that a stale id is recognised.
    generation: u32,
    live: usize,
}

struct Blocks {
    region: Region,
    /// (block)
    counts: Vec<Count>,
    /// Blocks that a table holds.
    live: usize,
}

#[derive(Clone, Copy)]
struct Count {
    references: u32,
    generation: NonZeroU32,
}

impl Adopted {
    /// Blocks that a table holds, shared ones once.
    pub fn live(&self) -> usize {
        self.live
    }

    pub fn regions(&self) -> usize {
        self.regions.iter().flatten().count()
    }

    pub fn references(&self) -> usize {
        let counts = self.regions.iter().flatten().flat_map(|b| &b.counts);
        counts.map(|c| c.references as usize).sum()
    }

    pub fn list_bytes(&self) -> usize {
        let counts = self.regions.iter().flatten().map(|b| b.counts.capacity());
        self.regions.capacity() * size_of::<Option<Blocks>>()
            + counts.sum::<usize>() * size_of::<Count>()
    }

    /// How much longer the lists become with this region.
    pub fn list_bytes_to_add(&self, region: &Region, blocks: usize) -> usize {
        if self.find(region).is_some() {
            return 0;
        }
        let place = match self.regions.iter().any(Option::is_none) {
            true => 0,
            false => {
                let places = self.regions.len() + 1;
                places.saturating_sub(self.regions.capacity()) * size_of::<Option<Blocks>>()
            }
        };
        place + blocks.saturating_mul(size_of::<Count>())
    }

    /// A region of `blocks` blocks, of which nobody holds one yet; the same one if it is there already.
    pub fn add(&mut self, region: &Region, blocks: usize) -> Result<RegionIndex, CacheError> {
        if let Some(at) = self.find(region) {
            return Ok(RegionIndex(at as u32));
        }
        if blocks > BLOCKS_MAX {
            return Err(CacheError::TooMany {
                what: "the number of blocks in a file",
                found: blocks,
                most: BLOCKS_MAX,
            });
        }
        let free = self.regions.iter().position(Option::is_none);
        let at = free.unwrap_or(self.regions.len());
        if at >= REGIONS_MAX {
            return Err(CacheError::TooMany {
                what: "the number of files with blocks",
                found: at,
                most: REGIONS_MAX,
            });
        }
        let mut counts = Vec::new();
        reserve_exact(&mut counts, blocks)?;
        let count = Count {
            references: 0,
            generation: NonZeroU32::MIN,
        };
        counts.resize(blocks, count);
        let made = Blocks {
            region: region.clone(),
            counts,
            live: 0,
        };
        if at == self.regions.len() {
            reserve_exact(&mut self.regions, 1)?;
            self.regions.push(None);
        }
        self.regions[at] = Some(made);
        Ok(RegionIndex(at as u32))
    }

    /// One more table holds a block. Which one is the caller's arithmetic: a wrong one is a bug and panics.
    pub fn take(&mut self, from: RegionIndex, block: usize) -> (u32, NonZeroU32) {
        let index = ADOPTED | from.0 << BLOCK_BITS | block as u32;
        let (region, block) = place(index);
        let blocks = self.regions[region].as_mut().expect("it was just added");
        let count = &mut blocks.counts[block];
        if count.references == 0 {
            self.generation = self.generation.wrapping_add(1);
            count.generation = NonZeroU32::new(self.generation).unwrap_or(NonZeroU32::MIN);
            blocks.live += 1;
            self.live += 1;
        }
        count.references += 1;
        (index, count.generation)
    }

    /// How many tables hold the block; 0 where the id is stale.
    pub fn held(&self, index: u32, generation: NonZeroU32) -> u32 {
        let (region, block) = place(index);
        let blocks = self.regions.get(region).and_then(Option::as_ref);
        match blocks.and_then(|b| b.counts.get(block)) {
            Some(count) if count.generation == generation => count.references,
            _ => 0,
        }
    }

    /// One more table holds what one holds already.
    pub fn share(&mut self, index: u32) {
        let (region, block) = place(index);
        if let Some(blocks) = &mut self.regions[region] {
            blocks.counts[block].references += 1;
        }
    }

    /// One table less; with the last of all, the region goes.
    pub fn release(&mut self, index: u32) {
        let (region, block) = place(index);
        let Some(blocks) = &mut self.regions[region] else {
            return;
        };
        blocks.counts[block].references -= 1;
        if blocks.counts[block].references == 0 {
            blocks.live -= 1;
            self.live -= 1;
            if blocks.live == 0 {
                self.regions[region] = None;
            }
        }
    }

    /// Lets regions go of which nobody took a block.
    pub fn drop_unused(&mut self) {
        for place in &mut self.regions {
            if place.as_ref().is_some_and(|blocks| blocks.live == 0) {
                *place = None;
            }
        }
    }

    pub fn bytes(&self, index: u32, block_bytes: usize) -> &[u8] {
        let (region, block) = place(index);
        let blocks = self.regions[region].as_ref().expect("a block is held");
        &blocks.region.as_slice()[block * block_bytes..][..block_bytes]
    }

    fn find(&self, region: &Region) -> Option<usize> {
        let same = |blocks: &Blocks| blocks.region.is_same(region);
        let mut places = self.regions.iter();
        places.position(|place| place.as_ref().is_some_and(same))
    }
}

/// Region and block of an index.
fn place(index: u32) -> (usize, usize) {
    let region = (index & !ADOPTED) >> BLOCK_BITS;
    (region as usize, index as usize & (BLOCKS_MAX - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use haversack_memory::{Backing, FileMap};
    use std::sync::{Arc, Weak};

    /// A pool and a file with three of its blocks, of which block `i` is all `i`.
    fn pool(name: &str) -> (Pool, Region, Weak<FileMap>) {
        let name = format!("haversack-adopted-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let bytes: Vec<u8> = (0..3 * 128).map(|i| (i / 128) as u8).collect();
        std::fs::write(&path, bytes).unwrap();
        let map = Arc::new(FileMap::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let weak = Arc::downgrade(&map);
        let pool = Pool::new(128, 1024, Backing::Private, None).unwrap();
        (pool, Region::new(map, 0..384).unwrap(), weak)
    }

    #[test]
    fn a_region_goes_with_the_last_reference() {
        let (mut pool, region, map) = pool("last");
        let said = pool.list_bytes_to_adopt(&region);
        let home = pool.adopt(&region).unwrap();
        assert_eq!(pool.list_bytes(), said);
        assert_eq!(pool.list_bytes_to_adopt(&region), 0);
        assert_eq!(pool.adopt(&region).unwrap(), home, "the same one once");
        drop(region);
        let (one, two) = (pool.take_adopted(home, 1), pool.take_adopted(home, 2));
        assert_eq!(pool.take_adopted(home, 1), one);
        assert_eq!((pool.adopted(), pool.live(), pool.total()), (2, 0, 0));
        assert!(pool.is_shared(two), "with the file");
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
        assert_eq!((pool.adopted(), pool.census().regions), (1, 1));
        assert!(map.upgrade().is_some());
        pool.release(two);
        assert_eq!((pool.adopted(), pool.census().regions), (0, 0));
        assert!(map.upgrade().is_none());
    }

    #[test]
    fn a_region_that_nobody_took_from_goes() {
        let (mut pool, region, map) = pool("unused");
        pool.adopt(&region).unwrap();
        drop(region);
        pool.drop_unused();
        assert!(map.upgrade().is_none());
    }

    #[test]
    #[should_panic(expected = "was freed")]
    fn a_stale_id_is_recognised() {
        let (mut pool, region, _map) = pool("stale");
        let home = pool.adopt(&region).unwrap();
        let (_kept, id) = (pool.take_adopted(home, 1), pool.take_adopted(home, 0));
        pool.release(id);
        assert_ne!(pool.take_adopted(home, 0), id);
        pool.bytes(id);
    }

    #[test]
    #[should_panic(expected = "a block of a file is not written")]
    fn nobody_writes_to_a_file() {
        let (mut pool, region, _map) = pool("write");
        let home = pool.adopt(&region).unwrap();
        let id = pool.take_adopted(home, 0);
        pool.bytes_mut(id);
    }

    #[test]
    fn parts_of_blocks_are_refused() {
        let (mut pool, region, map) = pool("part");
        let map = map.upgrade().unwrap();
        for range in [0..100, 8..136] {
            let part = Region::new(map.clone(), range).unwrap();
            assert!(pool.adopt(&part).is_err());
        }
        drop(region);
    }
}
