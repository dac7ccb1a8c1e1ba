//! Single rows, copied out of a table and back: for those who judge a row before it leaves or changes.
//!
//! Rows are named as [`Store::loose_rows`] did. Copies are blocks of the layer's form, full but for the
//! last, in the order of the list; no row is decoded, so what is judged is what attention saw.

use super::thin::{block_of, form_of};
use super::{SequenceId, Store};
use crate::error::CacheError;
use crate::notes::Row;
use crate::size::LayerShape;
use crate::table::Table;
use haversack_kernels::format::kv::slots::copy_slot;
use haversack_kernels::format::kv::{BLOCK_SLOTS, KvShape};

impl LayerShape {
    /// The blocks of rows that are no longer recent.
    pub fn settled_shape(self) -> KvShape {
        match self.zoned() {
            true => self.far_shape(),
            false => self.near_shape(),
        }
    }
}

impl Store {
    /// Every row of a layer in a full block that is no longer recent. `rows` is emptied first.
    pub fn settled_rows(
        &self,
        id: SequenceId,
        layer: usize,
        rows: &mut Vec<Row>,
    ) -> Result<(), CacheError> {
        self.loose_rows(id, layer, 0, rows)
    }

    /// Copies rows into `to`, whole blocks of [`LayerShape::settled_shape`]. Slots of the last block that
    /// no row takes keep what they hold.
    pub fn copy_rows(
        &self,
        id: SequenceId,
        layer: usize,
        rows: &[Row],
        to: &mut [u8],
    ) -> Result<(), CacheError> {
        let index = self.find(id)?;
        let made = self.layer(layer)?;
        let pool = &self.pools[match made.shape.zoned() {
            true => made.far_pool,
            false => made.near_pool,
        }];
        let shape = made.shape.settled_shape();
        check_room(layer, shape, rows.len(), to.len())?;
        let table = &self.sequences[index].tables[layer];
        let blocks = to.chunks_exact_mut(shape.block_bytes());
        for (rows, to) in rows.chunks(BLOCK_SLOTS).zip(blocks) {
            for (slot, row) in rows.iter().enumerate() {
                let entry = &table.entries[settled(table, made.shape, layer, row)?];
                let from = pool.bytes(block_of(entry));
                copy_slot(shape, from, usize::from(row.slot), to, slot);
            }
        }
        Ok(())
    }

    /// Writes rows back as [`Store::copy_rows`] gave them out, or changed. Blocks that a fork shares are
    /// copied first. Nothing has changed where it is refused.
    pub fn replace_rows(
        &mut self,
        id: SequenceId,
        layer: usize,
        rows: &[Row],
        from: &[u8],
    ) -> Result<(), CacheError> {
        let index = self.idle(id)?;
        let made = self.layer(layer)?;
        let (pool, shape) = match made.shape.zoned() {
            true => (made.far_pool, made.shape.far_shape()),
            false => (made.near_pool, made.shape.near_shape()),
        };
        check_room(layer, shape, rows.len(), from.len())?;
        let table = &self.sequences[index].tables[layer];
        let mut touched = vec![false; table.entries.len()];
        for row in rows {
            touched[settled(table, made.shape, layer, row)?] = true;
        }
        let is_shared = |i: &usize| self.pools[pool].is_shared(block_of(&table.entries[*i]));
        let shared: Vec<usize> = (0..touched.len())
            .filter(|&i| touched[i])
            .filter(is_shared)
            .collect();
        let bytes = shared.len() * self.pools[pool].block_bytes();
        self.ledger()
            .fit(bytes + self.pools[pool].list_bytes_to_reserve(shared.len()))?;
        let mut reservation = self.pools[pool].reserve(shared.len())?;
        let pool = &mut self.pools[pool];
        let table = &mut self.sequences[index].tables[layer];
        for i in shared {
            let entry = &mut table.entries[i];
            let private = pool.acquire(&mut reservation);
            pool.copy(block_of(entry), private);
            pool.release(block_of(entry));
            *form_of(entry) = Some(private);
        }
        pool.forfeit(reservation);
        let blocks = from.chunks_exact(shape.block_bytes());
        for (rows, from) in rows.chunks(BLOCK_SLOTS).zip(blocks) {
            for (slot, row) in rows.iter().enumerate() {
                let to = block_of(&table.entries[row.entry as usize]);
                copy_slot(shape, from, slot, pool.bytes_mut(to), usize::from(row.slot));
            }
        }
        Ok(())
    }
}

fn check_room(layer: usize, shape: KvShape, rows: usize, found: usize) -> Result<(), CacheError> {
    let expected = rows.div_ceil(BLOCK_SLOTS) * shape.block_bytes();
    if found < expected {
        return Err(CacheError::Shape {
            layer,
            rows,
            expected,
            found,
        });
    }
    Ok(())
}

/// The entry of a row that is there, in the form of rows that are no longer recent.
fn settled(table: &Table, shape: LayerShape, layer: usize, row: &Row) -> Result<usize, CacheError> {
    let index = row.entry as usize;
    let there = table
        .entries
        .get(index)
        .is_some_and(|entry| u32::from(row.slot) < entry.rows && entry.is_near() != shape.zoned());
    match there {
        true => Ok(index),
        false => Err(CacheError::NotLoose {
            layer,
            position: row.position,
        }),
    }
}
