//! Copies single rows out of a table and back, for callers that judge rows before evicting or changing them.
//!
//! Rows are named as `Store::evictable_rows` returned them. Copies are blocks of [`LayerShape::final_shape`], full except
//! the last, in the order of the list; no row is decoded, so the caller judges exactly what attention reads.

use super::storage::Storage;
use crate::error::CacheError;
use crate::ledger::Ledger;
use crate::row_stats::KvRow;
use crate::size::LayerShape;
use crate::table::BlockTable;
use haversack_kernels::format::kv::slots::copy_slot;
use haversack_kernels::format::kv::{BLOCK_SLOTS, KvShape};

pub(super) fn copy_rows(
    storage: &Storage,
    table: &BlockTable,
    layer: usize,
    rows: &[KvRow],
    to: &mut [u8],
) -> Result<(), CacheError> {
    let of = storage.layer(layer)?;
    let (pool, shape) = (&storage.pools[of.far_pool], of.shape.final_shape());
    check_room(layer, shape, rows.len(), to.len())?;
    let blocks = to.chunks_exact_mut(shape.block_bytes());
    for (rows, to) in rows.chunks(BLOCK_SLOTS).zip(blocks) {
        for (slot, row) in rows.iter().enumerate() {
            let entry = &table.entries[final_entry(table, of.shape, layer, row)?];
            let from = pool.bytes(entry.final_block());
            copy_slot(shape, from, usize::from(row.slot), to, slot);
        }
    }
    Ok(())
}

pub(super) fn replace_rows(
    storage: &mut Storage,
    table: &mut BlockTable,
    ledger: &Ledger,
    layer: usize,
    rows: &[KvRow],
    from: &[u8],
) -> Result<(), CacheError> {
    let of = storage.layer(layer)?;
    let shape = of.shape.final_shape();
    check_room(layer, shape, rows.len(), from.len())?;
    let mut touched = vec![false; table.entries.len()];
    for row in rows {
        touched[final_entry(table, of.shape, layer, row)?] = true;
    }
    let far_pool = of.far_pool;
    let pool = &mut storage.pools[far_pool];
    let is_shared = |i: &usize| pool.is_shared(table.entries[*i].final_block());
    let shared: Vec<usize> = (0..touched.len())
        .filter(|&i| touched[i])
        .filter(is_shared)
        .collect();
    let bytes = shared.len() * pool.block_bytes();
    ledger.fit(bytes + pool.list_bytes_to_reserve(shared.len()))?;
    let mut reservation = pool.reserve(shared.len())?;
    for i in shared {
        let entry = &mut table.entries[i];
        entry.replace_final_block(pool.make_private(entry.final_block(), &mut reservation));
    }
    pool.forfeit(reservation);
    let blocks = from.chunks_exact(shape.block_bytes());
    for (rows, from) in rows.chunks(BLOCK_SLOTS).zip(blocks) {
        for (slot, row) in rows.iter().enumerate() {
            let to = table.entries[row.entry as usize].final_block();
            copy_slot(shape, from, slot, pool.bytes_mut(to), usize::from(row.slot));
        }
    }
    Ok(())
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

/// The entry of a stored row that is no longer recent.
fn final_entry(
    table: &BlockTable,
    shape: LayerShape,
    layer: usize,
    row: &KvRow,
) -> Result<usize, CacheError> {
    let index = row.entry as usize;
    let is_final = table
        .entries
        .get(index)
        .is_some_and(|entry| u32::from(row.slot) < entry.rows && entry.is_near() != shape.zoned());
    if is_final {
        Ok(index)
    } else {
        Err(CacheError::NotEvictable {
            layer,
            position: row.position,
        })
    }
}
