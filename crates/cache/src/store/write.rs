//! Rows into blocks: copy what is shared, append in near form, make far forms of what leaves.
//!
//! Every block and every list entry was reserved by `begin`; nothing here can fail once the arguments
//! are found right, and nothing allocates.

use super::step::{Member, Step};
use super::{SequenceId, Store};
use crate::coding::{prepare, recode_batch, recode_head, write_k, write_sinks, write_v};
use crate::error::CacheError;
use crate::size::{SLOTS, near_from};
use crate::table::{Entry, Table};
use haversack_kernels::Exec;
use haversack_kernels::format::kv::BLOCK_SLOTS;
use haversack_kernels::threads::chunks_mut;
use std::ops::Range;

impl Store {
    /// Appends rows to one layer: `k` and `v` are (row, kv_head, dim) in the model's basis, keys
    /// already rotated. Blocks that the last query of the step sees from afar get their far form.
    pub fn write(
        &mut self,
        exec: Exec<'_>,
        step: &mut Step,
        id: SequenceId,
        layer: usize,
        k: &[f32],
        v: &[f32],
    ) -> Result<(), CacheError> {
        let index = self.find(id)?;
        let m = step.member(id).ok_or(CacheError::NotInStep { index })?;
        let member = step.members[m];
        let shape = self.layer(layer)?.shape;
        let expected = member.tokens.saturating_mul(shape.width());
        for values in [k, v] {
            if values.len() != expected {
                return Err(CacheError::Shape {
                    layer,
                    rows: member.tokens,
                    expected,
                    found: values.len(),
                });
            }
        }
        let mark = m * self.layers.len() + layer;
        if step.marks[mark].written {
            return Err(CacheError::Growth {
                layer,
                expected: member.tokens,
                found: 2 * member.tokens,
            });
        }
        if let Some(other) = step.unsettled.filter(|&other| other != layer) {
            return Err(CacheError::Unsettled { layer: other });
        }
        step.marks[mark].written = true;
        if member.tokens == 0 {
            return Ok(());
        }
        self.copy_shared(step, &member, layer, mark);
        self.append(exec, step, &member, layer, k, v);
        self.recode(exec, step, &member, layer);
        let table = &self.sequences[index].tables[layer];
        let both = |e: &Entry| e.near.is_some() && e.far.is_some();
        if table.entries[step.marks[mark].first_made()..]
            .iter()
            .any(both)
        {
            step.unsettled = Some(layer);
        }
        self.note_peak();
        Ok(())
    }

    /// A block that another table holds too is not written: a copy takes its place.
    fn copy_shared(&mut self, step: &mut Step, member: &Member, l: usize, mark: usize) {
        let layer = &self.layers[l];
        let table = &mut self.sequences[member.index].tables[l];
        let pool = &mut self.pools[layer.near_pool];
        let tail = table.tail(member.position).and_then(|e| e.near);
        if let Some(shared) = tail.filter(|&id| pool.is_shared(id)) {
            let private = pool.acquire(&mut step.reservations[layer.near_pool]);
            pool.copy(shared, private);
            step.marks[mark].tail = Some(shared);
            if let Some(last) = table.entries.last_mut() {
                last.near = Some(private);
            }
        }
        let Some(sink_pool) = layer.sink_pool else {
            return;
        };
        if member.position >= self.zones.sinks as u64 {
            return;
        }
        let pool = &mut self.pools[sink_pool];
        match table.sinks {
            Some(shared) if pool.is_shared(shared) => {
                let private = pool.acquire(&mut step.reservations[sink_pool]);
                pool.copy(shared, private);
                table.sinks = Some(private);
            }
            Some(_) => {}
            None => {
                let made = pool.acquire(&mut step.reservations[sink_pool]);
                pool.bytes_mut(made).fill(0);
                table.sinks = Some(made);
            }
        }
    }

    /// The rows in near form, and the first tokens in f16 beside.
    fn append(
        &mut self,
        exec: Exec<'_>,
        step: &mut Step,
        member: &Member,
        l: usize,
        k: &[f32],
        v: &[f32],
    ) {
        let layer = &self.layers[l];
        let (shape, near) = (layer.shape, layer.shape.near_shape());
        let basis = shape.basis();
        let table = &mut self.sequences[member.index].tables[l];
        let mut done = 0;
        while done < member.tokens {
            let position = member.position + done as u64;
            let slot = (position % SLOTS) as usize;
            let rows = (BLOCK_SLOTS - slot).min(member.tokens - done);
            if slot == 0 {
                let pool = &mut self.pools[layer.near_pool];
                let block = pool.acquire(&mut step.reservations[layer.near_pool]);
                table.push(Entry {
                    near: Some(block),
                    far: None,
                    first_position: position,
                    rows: rows as u32,
                });
            } else {
                table.extend_last(rows);
            }
            let block = table.entries.last().and_then(|e| e.near);
            let block = block.unwrap_or_else(|| unreachable!("the current block is near"));
            let from = done * shape.width()..(done + rows) * shape.width();
            let sinks = self.zones.sinks;
            // Rows of this block that are among the first of the sequence.
            let exact =
                sinks.saturating_sub(position.min(SLOTS) as usize).min(rows) * shape.width();
            let exact_at = |pool: Option<usize>| pool.filter(|_| exact > 0).zip(table.sinks);

            let stage = &mut self.staging.rows;
            let rows_k = &k[from.clone()];
            let rows_k = prepare(
                exec.table,
                shape,
                basis.k,
                layer.mean.as_ref(),
                stage,
                rows_k,
            );
            let bytes = self.pools[layer.near_pool].bytes_mut(block);
            write_k(exec.table, near, bytes, slot, rows_k);
            if let Some((pool, id)) = exact_at(layer.sink_pool) {
                let bytes = self.pools[pool].bytes_mut(id);
                let side = bytes.len() / 2;
                write_sinks(
                    exec.table,
                    shape,
                    sinks,
                    &mut bytes[..side],
                    slot,
                    &rows_k[..exact],
                );
            }

            let stage = &mut self.staging.rows;
            let rows_v = prepare(exec.table, shape, basis.v, None, stage, &v[from]);
            let bytes = self.pools[layer.near_pool].bytes_mut(block);
            write_v(exec.table, near, bytes, slot, rows_v);
            if let Some((pool, id)) = exact_at(layer.sink_pool) {
                let bytes = self.pools[pool].bytes_mut(id);
                let side = bytes.len() / 2;
                write_sinks(
                    exec.table,
                    shape,
                    sinks,
                    &mut bytes[side..],
                    slot,
                    &rows_v[..exact],
                );
            }
            done += rows;
        }
    }

    /// Far forms for the near blocks that leave the recent zone of the step's last query.
    fn recode(&mut self, exec: Exec<'_>, step: &mut Step, member: &Member, l: usize) {
        let layer = &self.layers[l];
        let end = member.position + member.tokens as u64;
        let leaving = leaving(
            &self.sequences[member.index].tables[l],
            near_from(layer.shape, self.zones, end),
        );
        let (near, far) = (layer.shape.near_shape(), layer.shape.far_shape());
        let k_head = far.form.k.head_bytes(far.head_dim);
        let v_head = far.form.v.head_bytes(far.head_dim);
        let mut first = leaving.start;
        while first < leaving.end {
            let entries = first..leaving.end.min(first + recode_batch(far.block_bytes()));
            let table = &self.sequences[member.index].tables[l];
            let pool = &self.pools[layer.near_pool];
            let coded = &mut self.staging.coded[..entries.len() * far.block_bytes()];
            chunks_mut(exec.pool, coded, k_head + v_head, &|unit, to: &mut [u8]| {
                let entry = &table.entries[entries.start + unit / far.kv_heads];
                if let Some(id) = entry.near {
                    let head = unit % far.kv_heads;
                    recode_head(exec.table, near, far, head, pool.bytes(id), to);
                }
            });
            let table = &mut self.sequences[member.index].tables[l];
            let pool = &mut self.pools[layer.far_pool];
            let blocks = self.staging.coded.chunks_exact(far.block_bytes());
            for (entry, coded) in table.entries[entries.clone()].iter_mut().zip(blocks) {
                let id = pool.acquire(&mut step.reservations[layer.far_pool]);
                let (k, v) = pool.bytes_mut(id).split_at_mut(far.k_bytes());
                let heads = coded.chunks_exact(k_head + v_head);
                for (head, coded) in heads.enumerate() {
                    k[head * k_head..][..k_head].copy_from_slice(&coded[..k_head]);
                    v[head * v_head..][..v_head].copy_from_slice(&coded[k_head..]);
                }
                entry.far = Some(id);
            }
            first = entries.end;
        }
    }
}

/// Entries that are near and before block `near_from`: they stand together.
fn leaving(table: &Table, near_from: u64) -> Range<usize> {
    let end = table.entries.partition_point(|e| e.block() < near_from);
    let near = table.entries[..end].iter().rev();
    let count = near.take_while(|e| e.near.is_some()).count();
    end - count..end
}
