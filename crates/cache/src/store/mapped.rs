//! A sequence whose blocks stay in a file: what many begin with is in memory once, whoever reads it.
//!
//! The same image as in [`super::image`], laid out by pool instead of by column, so that the full blocks of one pool
//! lie back to back and a pool can adopt them where they are mapped. What is partly filled, and the exact first tokens,
//! are copied: the next step writes to them.
//!
//! ```text
//! index    (block) { block u64 | (layer) { form u8, rows u8 } }     full blocks, in order
//! region   (pool)  { blocks of the index that are of this pool, in its order }
//! tail     the column that is partly filled, if there is one
//! ```

use super::image::{Lies, Reader, bad, find, write_head};
use super::{SequenceId, Store};
use crate::error::CacheError;
use crate::pool::reserve_exact;
use crate::size::SLOTS;
use haversack_memory::Region;

/// What a file gets.
#[derive(Debug)]
pub struct Laid<'a> {
    pub index: Vec<u8>,
    /// (pool): blocks to be written back to back.
    pub regions: Vec<Vec<&'a [u8]>>,
    /// The columns that are not full: one or none.
    pub tail: Vec<Vec<u8>>,
}

/// What a file has. The outline is [`Store::outline`]'s.
#[derive(Clone, Copy, Debug)]
pub struct MappedImage<'a> {
    pub outline: &'a [u8],
    pub index: &'a [u8],
    /// (pool)
    pub regions: &'a [Region],
    pub tail: &'a [&'a [u8]],
}

impl Store {
    /// A sequence by pool, all but its outline.
    pub fn lay_out(&self, id: SequenceId) -> Result<Laid<'_>, CacheError> {
        let i = self.plain(id)?;
        let tables = &self.sequences[i].tables;
        let full = self.sequences[i].position / SLOTS;
        let mut laid = Laid {
            index: Vec::new(),
            regions: Vec::new(),
            tail: Vec::new(),
        };
        reserve_exact(&mut laid.regions, self.pools.len())?;
        laid.regions.resize_with(self.pools.len(), Vec::new);
        for block in self.blocks(id)? {
            if block >= full {
                let mut column = Vec::new();
                self.column(id, block, &mut column)?;
                reserve_exact(&mut laid.tail, 1)?;
                laid.tail.push(column);
                continue;
            }
            reserve_exact(&mut laid.index, size_of::<u64>() + 2 * tables.len())?;
            write_head(tables, block, &mut laid.index);
            for (layer, table) in self.layers.iter().zip(tables) {
                let Some(entry) = find(table, block).map(|at| table.entries[at]) else {
                    continue;
                };
                if let Some((pool, id)) = layer.form(&entry) {
                    reserve_exact(&mut laid.regions[pool], 1)?;
                    laid.regions[pool].push(self.pools[pool].bytes(id));
                }
            }
        }
        Ok(laid)
    }

    /// Opens the sequence of an image and reads its full blocks where they are mapped. Everything is checked first,
    /// as in [`Store::restore`]; that the bytes of blocks are those that were written is the caller's word.
    pub fn restore_mapped(&mut self, image: MappedImage<'_>) -> Result<SequenceId, CacheError> {
        if self.is_noting() {
            return Err(CacheError::NoImage);
        }
        let outline = self.read_outline(image.outline)?;
        if image.regions.len() != self.pools.len() {
            return Err(bad("regions of other pools"));
        }
        let mut taken = Vec::new();
        reserve_exact(&mut taken, self.pools.len())?;
        taken.resize(self.pools.len(), 0usize);
        let mut lies = |pool: usize, _: &mut Reader<'_>| {
            let block = taken[pool];
            taken[pool] += 1;
            Ok(Lies::InFile(block))
        };
        let mut columns = Vec::new();
        let head_bytes = size_of::<u64>() + 2 * self.layers.len();
        reserve_exact(
            &mut columns,
            image.index.len() / head_bytes + image.tail.len(),
        )?;
        let mut rest = Reader(image.index);
        while !rest.0.is_empty() {
            columns.push(self.read_parts(&mut rest, outline.position, &mut lies)?);
        }
        for (pool, (region, &blocks)) in image.regions.iter().zip(&taken).enumerate() {
            let bytes = blocks.checked_mul(self.pools[pool].block_bytes());
            if bytes != Some(region.len()) {
                return Err(bad("a region of another length"));
            }
        }
        for bytes in image.tail {
            columns.push(self.read_column(bytes, outline.position)?);
        }
        self.restore_from(&outline, &columns, image.regions)
    }
}
