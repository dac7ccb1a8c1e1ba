//! Mapped images: a sequence whose full blocks stay in a file, so that a prefix which many sequences begin with is in
//! memory once.
//!
//! The same image as in [`super::image`], laid out by pool instead of by column, so that the full blocks of one pool are
//! back to back and the pool can use them where the file is mapped. The partly filled column and the exact first tokens
//! are copied, because the next step writes to them.
//!
//! `tests/image_format.rs` reads this table and checks it against written images:
//!
//! ```text
//! index             for each full block, in order
//!     block         u64                                    first position / 32
//!     layer         { form u8, rows u8 } × layers          form: 0 none, 1 near, 2 far
//! region            for each pool: its blocks, in the order of the index
//! tail              the partly filled column, if there is one
//! ```

use super::image::{BlockSource, Column, Outline, Reader, bad};
use super::image::{blocks, column_forms, head_bytes, write_column, write_head};
use super::sequence::Sequence;
use super::storage::Storage;
use crate::error::{CacheResult, filled, reserve_exact, with_room};
use crate::size::SLOTS;
use haversack_memory::Region;

/// The parts of a mapped image to be written, except the outline.
#[derive(Debug)]
pub struct ImageLayout<'a> {
    pub index: Vec<u8>,
    /// (pool): blocks to be written back to back.
    pub regions: Vec<Vec<&'a [u8]>>,
    /// The columns that are not full: one or none.
    pub tail: Vec<Vec<u8>>,
}

/// The parts of a mapped image as a file has them.
#[derive(Clone, Copy, Debug)]
pub struct MappedImage<'a> {
    pub outline: &'a [u8],
    pub index: &'a [u8],
    /// (pool)
    pub regions: &'a [Region],
    pub tail: &'a [&'a [u8]],
}

pub(super) fn layout<'a>(
    storage: &'a Storage,
    sequence: &Sequence,
) -> CacheResult<ImageLayout<'a>> {
    let full = sequence.position / SLOTS;
    let mut layout = ImageLayout {
        index: Vec::new(),
        regions: filled(storage.pools.len(), Vec::new())?,
        tail: Vec::new(),
    };
    for block in blocks(sequence)? {
        if block >= full {
            let mut column = Vec::new();
            write_column(storage, sequence, block, &mut column)?;
            reserve_exact(&mut layout.tail, 1)?;
            layout.tail.push(column);
            continue;
        }
        reserve_exact(&mut layout.index, head_bytes(storage))?;
        write_head(&sequence.tables, block, &mut layout.index);
        for (pool, id) in column_forms(storage, sequence, block) {
            reserve_exact(&mut layout.regions[pool], 1)?;
            layout.regions[pool].push(storage.pools[pool].bytes(id));
        }
    }
    Ok(layout)
}

/// Reads the columns of a mapped image; full blocks refer to the regions.
pub(super) fn read_columns<'a>(
    storage: &Storage,
    outline: &Outline<'_>,
    image: MappedImage<'a>,
) -> CacheResult<Vec<Column<'a>>> {
    if image.regions.len() != storage.pools.len() {
        return Err(bad("regions of other pools"));
    }
    let mut taken = filled(storage.pools.len(), 0usize)?;
    let mut mapped = |pool: usize, _: &mut Reader<'a>| {
        let block = taken[pool];
        taken[pool] += 1;
        Ok(BlockSource::Mapped(block))
    };
    let heads = image.index.len() / head_bytes(storage);
    let mut columns = with_room(heads + image.tail.len())?;
    let mut rest = Reader(image.index);
    while !rest.0.is_empty() {
        let column = Column::read_parts(storage, &mut rest, outline.position, &mut mapped)?;
        columns.push(column);
    }
    for ((pool, region), &blocks) in storage.pools.iter().zip(image.regions).zip(&taken) {
        if blocks.checked_mul(pool.block_bytes()) != Some(region.len()) {
            return Err(bad("a region of another length"));
        }
    }
    for bytes in image.tail {
        columns.push(Column::read(storage, bytes, outline.position)?);
    }
    Ok(columns)
}
