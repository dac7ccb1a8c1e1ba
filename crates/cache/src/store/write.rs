//! Writes new rows into blocks: copies what is shared, appends in near form, recodes what leaves the recent zone.
//!
//! `begin` reserved every block and every list entry; once the arguments are checked nothing here can fail, and nothing
//! allocates.

use super::sequence::{SequenceId, Sequences};
use super::step::{Step, StepMember, TableUndo};
use super::storage::{Layer, Storage};
use crate::coding::{KvSide, Staging, batch_row_blocks, write_sinks};
use crate::error::{CacheError, CacheResult};
use crate::pool::{BlockId, BlockPool, Reservation};
use crate::size::SLOTS;
use crate::table::{BlockEntry, BlockTable};
use haversack_kernels::Exec;
use haversack_kernels::format::kv::BLOCK_SLOTS;
use haversack_kernels::format::kv::code::sink_bytes;
use haversack_kernels::threads::chunks_mut;
use std::ops::Range;

/// Keys and values of new rows of one layer, (row, kv_head, dim).
#[derive(Clone, Copy)]
pub(super) struct NewRows<'a> {
    pub k: &'a [f32],
    pub v: &'a [f32],
}

/// Appends rows to one layer. Returns whether there were any.
pub(super) fn write(
    storage: &mut Storage,
    sequences: &mut Sequences,
    exec: Exec<'_>,
    step: &mut Step,
    (id, l): (SequenceId, usize),
    rows: NewRows<'_>,
) -> CacheResult<bool> {
    let index = sequences.index(id)?;
    let m = step.member(id).ok_or(CacheError::NotInStep { index })?;
    let member = step.members[m];
    let shape = storage.layer(l)?.shape;
    let expected = member.tokens.saturating_mul(shape.width());
    for values in [rows.k, rows.v] {
        if values.len() != expected {
            return Err(CacheError::Shape {
                layer: l,
                rows: member.tokens,
                expected,
                found: values.len(),
            });
        }
    }
    let undo = &mut step.undo[m * storage.layers.len() + l];
    if undo.written {
        return Err(CacheError::Growth {
            layer: l,
            expected: member.tokens,
            found: 2 * member.tokens,
        });
    }
    if let Some(other) = step.unsettled.filter(|&other| other != l) {
        return Err(CacheError::Unsettled { layer: other });
    }
    undo.written = true;
    if member.tokens == 0 {
        return Ok(false);
    }
    let table = &mut sequences.slots[index].tables[l];
    let reservations = &mut step.reservations;
    copy_shared(storage, table, reservations, &member, l, undo);
    append(storage, exec, table, reservations, &member, l, rows);
    let near_from = storage.near_from(&storage.layers[l], member.end());
    let leaving = table.without_far(near_from);
    let far_pool = storage.layers[l].far_pool;
    storage.recode(exec, l, table, leaving, &mut reservations[far_pool]);
    let mut made = table.entries[undo.first_made()..].iter();
    if made.any(|e| e.is_near() && e.block() < near_from) {
        step.unsettled = Some(l);
    }
    Ok(true)
}

/// Replaces the shared blocks that the step writes to by private copies, and allocates the sinks.
fn copy_shared(
    storage: &mut Storage,
    table: &mut BlockTable,
    reservations: &mut [Reservation],
    member: &StepMember,
    l: usize,
    undo: &mut TableUndo,
) {
    let layer = &storage.layers[l];
    let pool = &mut storage.pools[layer.near_pool];
    let tail = table.tail(member.position).and_then(|e| e.near);
    if let Some(shared) = tail.filter(|id| pool.is_shared(*id)) {
        let private = pool.acquire(&mut reservations[layer.near_pool]);
        pool.copy(shared, private);
        undo.tail = Some(shared);
        if let Some(last) = table.entries.last_mut() {
            last.near = Some(private);
        }
    }
    let writes_sinks = member.position < storage.zones.sinks as u64;
    let Some(sink_pool) = layer.sink_pool.filter(|_| writes_sinks) else {
        return;
    };
    let pool = &mut storage.pools[sink_pool];
    if table.sinks.is_some_and(|sinks| !pool.is_shared(sinks)) {
        return;
    }
    let private = pool.acquire(&mut reservations[sink_pool]);
    match table.sinks.replace(private) {
        Some(shared) => pool.copy(shared, private),
        None => pool.bytes_mut(private).fill(0),
    }
}

/// Appends the rows in near form, and the first tokens to the sinks.
fn append(
    storage: &mut Storage,
    exec: Exec<'_>,
    table: &mut BlockTable,
    reservations: &mut [Reservation],
    member: &StepMember,
    l: usize,
    rows: NewRows<'_>,
) {
    let layer = &storage.layers[l];
    let basis = layer.shape.basis();
    let k = KvSide {
        keys: true,
        rows: rows.k,
        rotation: basis.k,
        mean: layer.mean.as_ref(),
        error_feedback: layer.error_feedback.as_ref(),
    };
    let v = KvSide {
        keys: false,
        rows: rows.v,
        rotation: basis.v,
        mean: None,
        error_feedback: None,
    };
    // Batches of blocks pay where there is work for several threads.
    let one_by_one = exec.pool.threads() < 2 || (k.is_raw() && v.is_raw());
    let batch = match one_by_one {
        true => 1,
        false => batch_row_blocks(layer.shape),
    };
    let mut done = 0;
    while done < member.tokens {
        let position = member.position + done as u64;
        let slot = (position % SLOTS) as usize;
        let rows = (batch * BLOCK_SLOTS - slot).min(member.tokens - done);
        // Whole blocks, or the rest of one.
        let rows = if slot == 0 && rows > BLOCK_SLOTS {
            rows / BLOCK_SLOTS * BLOCK_SLOTS
        } else {
            rows.min(BLOCK_SLOTS - slot)
        };
        if slot > 0 {
            table.extend_last(rows);
        }
        for first in (0..rows).step_by(BLOCK_SLOTS).filter(|_| slot == 0) {
            let pool = &mut storage.pools[layer.near_pool];
            let block = pool.acquire(&mut reservations[layer.near_pool]);
            // Unused slots may be saved to a file: they must not hold another sequence's rows.
            if rows - first < BLOCK_SLOTS {
                pool.bytes_mut(block).fill(0);
            }
            table.push(BlockEntry {
                near: Some(block),
                far: None,
                first_position: position + first as u64,
                rows: (rows - first).min(BLOCK_SLOTS) as u32,
                hidden: 0,
            });
        }
        let first = table.entries.len() - rows.div_ceil(BLOCK_SLOTS);
        let near = NearRows {
            exec,
            layer,
            sinks: storage.zones.sinks,
            position,
            entries: &table.entries[first..],
            sink_block: table.sinks,
        };
        let width = layer.shape.width();
        let range = done * width..(done + rows) * width;
        if let Some(stats) = &mut table.row_stats {
            for (i, values) in v.rows[range.clone()].chunks_exact(width).enumerate() {
                let at = slot + i;
                stats.write(first + at / BLOCK_SLOTS, at % BLOCK_SLOTS, values);
            }
        }
        near.encode(&mut storage.pools, &mut storage.staging, k, range.clone());
        near.encode(&mut storage.pools, &mut storage.staging, v, range);
        done += rows;
    }
}

/// New rows and the near blocks they go to: the rest of one, or whole ones.
struct NearRows<'a> {
    exec: Exec<'a>,
    layer: &'a Layer,
    sinks: usize,
    /// Of the first row.
    position: u64,
    entries: &'a [BlockEntry],
    sink_block: Option<BlockId>,
}

impl NearRows<'_> {
    fn encode(
        &self,
        pools: &mut [BlockPool],
        staging: &mut Staging,
        side: KvSide<'_>,
        range: Range<usize>,
    ) {
        let (shape, near) = (self.layer.shape, self.layer.shape.near_shape());
        let backend = self.exec.backend;
        let slot = (self.position % SLOTS) as usize;
        let rows = side.prepare(self.exec, shape, &mut staging.rows, range);
        let part = side.bytes(near);
        let pool = &mut pools[self.layer.near_pool];
        let ids = self.entries.iter().filter_map(|entry| entry.near);
        if self.entries.len() > 1 {
            let coded = &mut staging.coded[..self.entries.len() * part.len()];
            let block = BLOCK_SLOTS * shape.width();
            chunks_mut(self.exec.pool, coded, part.len(), &|i, to: &mut [u8]| {
                side.encode(backend, near, to, 0, &rows[i * block..(i + 1) * block]);
            });
            for (id, coded) in ids.zip(coded.chunks_exact(part.len())) {
                pool.bytes_mut(id)[part.clone()].copy_from_slice(coded);
            }
        } else {
            for id in ids {
                let to = &mut pool.bytes_mut(id)[part.clone()];
                side.encode(backend, near, to, slot, rows);
            }
        }
        // Rows that are among the first of the sequence.
        let exact = self.sinks.saturating_sub(self.position.min(SLOTS) as usize);
        let exact = (exact * shape.width()).min(rows.len());
        if let (Some((pool, id)), 1..) = (self.layer.sinks(self.sink_block), exact) {
            let keys = sink_bytes(shape.kv_heads, shape.head_dim, self.sinks);
            let (k, v) = pools[pool].bytes_mut(id).split_at_mut(keys);
            let to = if side.keys { k } else { v };
            write_sinks(backend, shape, self.sinks, to, slot, &rows[..exact]);
        }
    }
}
