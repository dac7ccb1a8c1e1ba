//! Blocks in mapped files: read in place, never written, reference-counted like all others.
//!
//! A *region* is a part of a read-only map with blocks of the pool's size back to back. Its blocks are never free and
//! never move; a table that writes to one copies it first, as it does with any shared block. The region, and with it
//! the map, is dropped with the last reference to any of its blocks.
//!
//! ```text
//! index   1 | region (15 bits) | block (16 bits)      bit 31 distinguishes them from blocks in slabs
//! ```

use crate::error::{CacheError, CacheResult, filled, reserve_exact};
use haversack_memory::Region;
use std::num::NonZeroU32;

/// The bit that marks the index of a mapped block.
pub(crate) const MAPPED: u32 = 1 << 31;

const BLOCK_BITS: u32 = 16;
const BLOCKS_MAX: usize = 1 << BLOCK_BITS;
const REGIONS_MAX: usize = 1 << (31 - BLOCK_BITS);

/// Index of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionIndex(u32);

/// The regions of one pool.
#[derive(Default)]
pub(crate) struct MappedBlocks {
    /// `None`: a free slot.
    regions: Vec<Option<RegionBlocks>>,
    /// Last generation given out. A block gets a new one when its first reference is taken, so that stale ids are
    /// recognised.
    generation: u32,
    /// Blocks with references; a shared block counts once.
    pub live: usize,
}

struct RegionBlocks {
    region: Region,
    /// (block)
    counts: Vec<RefCount>,
    /// Blocks with references.
    live: usize,
}

#[derive(Clone, Copy)]
struct RefCount {
    references: u32,
    generation: NonZeroU32,
}

impl MappedBlocks {
    pub fn regions(&self) -> usize {
        self.regions.iter().flatten().count()
    }

    pub fn references(&self) -> usize {
        let counts = self.regions.iter().flatten().flat_map(|b| &b.counts);
        counts.map(|c| c.references as usize).sum()
    }

    pub fn list_bytes(&self) -> usize {
        let counts = self.regions.iter().flatten().map(|b| b.counts.capacity());
        self.regions.capacity() * size_of::<Option<RegionBlocks>>()
            + counts.sum::<usize>() * size_of::<RefCount>()
    }

    /// How many bytes the lists grow when this region is added.
    pub fn list_bytes_to_add(&self, region: &Region, blocks: usize) -> usize {
        if self.find(region).is_some() {
            return 0;
        }
        let slot = if self.regions.iter().any(Option::is_none) {
            0
        } else {
            let slots = self.regions.len() + 1;
            slots.saturating_sub(self.regions.capacity()) * size_of::<Option<RegionBlocks>>()
        };
        slot + blocks.saturating_mul(size_of::<RefCount>())
    }

    /// Adds a region of `blocks` blocks without references, or finds it if it was added before.
    pub fn add(&mut self, region: &Region, blocks: usize) -> CacheResult<RegionIndex> {
        if let Some(at) = self.find(region) {
            return Ok(RegionIndex(at as u32));
        }
        if blocks > BLOCKS_MAX {
            return Err(CacheError::TooMany {
                what: "the number of blocks in a file",
                found: blocks,
                max: BLOCKS_MAX,
            });
        }
        let free = self.regions.iter().position(Option::is_none);
        let at = free.unwrap_or(self.regions.len());
        if at >= REGIONS_MAX {
            return Err(CacheError::TooMany {
                what: "the number of files with blocks",
                found: at,
                max: REGIONS_MAX,
            });
        }
        let count = RefCount {
            references: 0,
            generation: NonZeroU32::MIN,
        };
        let made = RegionBlocks {
            region: region.clone(),
            counts: filled(blocks, count)?,
            live: 0,
        };
        if at == self.regions.len() {
            reserve_exact(&mut self.regions, 1)?;
            self.regions.push(None);
        }
        self.regions[at] = Some(made);
        Ok(RegionIndex(at as u32))
    }

    /// Takes a reference to a block. Panics for a block outside the region: the caller computed it wrongly.
    pub fn take(&mut self, from: RegionIndex, block: usize) -> (u32, NonZeroU32) {
        let index = MAPPED | from.0 << BLOCK_BITS | block as u32;
        let (region, block) = split(index);
        let blocks = self.regions[region].as_mut().expect("the region is there");
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

    /// References to the block; 0 if the id is stale.
    pub fn holders(&self, index: u32, generation: NonZeroU32) -> u32 {
        let (region, block) = split(index);
        let blocks = self.regions.get(region).and_then(Option::as_ref);
        match blocks.and_then(|b| b.counts.get(block)) {
            Some(count) if count.generation == generation => count.references,
            _ => 0,
        }
    }

    /// Takes one more reference to a live block.
    pub fn share(&mut self, index: u32) {
        let (region, block) = split(index);
        if let Some(blocks) = &mut self.regions[region] {
            blocks.counts[block].references += 1;
        }
    }

    /// Drops a reference; the last one of a region drops the region.
    pub fn release(&mut self, index: u32) {
        let (region, block) = split(index);
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

    /// Drops regions without references.
    pub fn drop_unused_regions(&mut self) {
        for region in &mut self.regions {
            region.take_if(|blocks| blocks.live == 0);
        }
    }

    pub fn bytes(&self, index: u32, block_bytes: usize) -> &[u8] {
        let (region, block) = split(index);
        let blocks = self.regions[region].as_ref().expect("the block is live");
        &blocks.region.as_slice()[block * block_bytes..][..block_bytes]
    }

    fn find(&self, region: &Region) -> Option<usize> {
        let same = |blocks: &RegionBlocks| blocks.region.is_same(region);
        let mut regions = self.regions.iter();
        regions.position(|region| region.as_ref().is_some_and(same))
    }
}

/// Region and block of an index.
fn split(index: u32) -> (usize, usize) {
    let region = (index & !MAPPED) >> BLOCK_BITS;
    (region as usize, index as usize & (BLOCKS_MAX - 1))
}
