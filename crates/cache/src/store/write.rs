//! Rows into blocks: copy what is shared, append in near form, make far forms of what leaves.
//!
//! Every block and every list entry was reserved by `begin`; nothing here can fail once the arguments
//! are found right, and nothing allocates.

use super::step::{Member, Step};
use super::{Layer, SequenceId, Store};
use crate::coding::{Side, Staging, at_once, blocks_at_once, recode_head, write_sinks};
use crate::error::CacheError;
use crate::pool::{BlockId, Pool, Reservation};
use crate::size::{SLOTS, near_from};
use crate::table::Entry;
use haversack_kernels::Exec;
use haversack_kernels::format::kv::BLOCK_SLOTS;
use haversack_kernels::format::kv::code::sink_bytes;
use haversack_kernels::threads::chunks_mut;
use haversack_memory::zoo::{Bug, planted};
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
        let near_from = near_from(shape, self.zones, member.end());
        if table.entries[step.marks[mark].first_made()..]
            .iter()
            .any(|e| e.is_near() && e.block() < near_from)
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
        let is_shared = |id: &BlockId| pool.is_shared(*id) && !planted(Bug::ForkSharesTail);
        if let Some(shared) = tail.filter(is_shared) {
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
        let basis = layer.shape.basis();
        let k = Side {
            keys: true,
            rows: k,
            turn: basis.k,
            mean: layer.mean.as_ref(),
            carry: layer.carry.as_ref(),
        };
        let v = Side {
            keys: false,
            rows: v,
            turn: basis.v,
            mean: None,
            carry: None,
        };
        // Several blocks at once pay where there is work for several threads.
        let alone = exec.pool.threads() < 2 || (k.is_ready() && v.is_ready());
        let most = if alone {
            1
        } else {
            blocks_at_once(layer.shape)
        };
        let mut done = 0;
        while done < member.tokens {
            let position = member.position + done as u64;
            let slot = (position % SLOTS) as usize;
            let rows = (most * BLOCK_SLOTS - slot).min(member.tokens - done);
            // Whole blocks, or the rest of one.
            let rows = match slot == 0 && rows > BLOCK_SLOTS {
                true => rows / BLOCK_SLOTS * BLOCK_SLOTS,
                false => rows.min(BLOCK_SLOTS - slot),
            };
            let table = &mut self.sequences[member.index].tables[l];
            if slot > 0 {
                table.extend_last(rows);
            }
            for first in (0..rows).step_by(BLOCK_SLOTS).filter(|_| slot == 0) {
                let pool = &mut self.pools[layer.near_pool];
                let block = pool.acquire(&mut step.reservations[layer.near_pool]);
                // Slots not written yet may go to a file: nobody else's rows in them.
                if rows - first < BLOCK_SLOTS {
                    pool.bytes_mut(block).fill(0);
                }
                table.push(Entry {
                    near: Some(block),
                    far: None,
                    first_position: position + first as u64,
                    rows: (rows - first).min(BLOCK_SLOTS) as u32,
                    hidden: 0,
                });
            }
            let entries = table.entries.len() - rows.div_ceil(BLOCK_SLOTS)..table.entries.len();
            let first = entries.start;
            let near = Near {
                exec,
                layer,
                sinks: self.zones.sinks,
                position,
                entries: &table.entries[entries],
                overlay: table.sinks,
            };
            let width = layer.shape.width();
            let range = done * width..(done + rows) * width;
            if let Some(notes) = &mut table.notes {
                for (i, values) in v.rows[range.clone()].chunks_exact(width).enumerate() {
                    let at = slot + i;
                    notes.write(first + at / BLOCK_SLOTS, at % BLOCK_SLOTS, values);
                }
            }
            near.code(&mut self.pools, &mut self.staging, k, range.clone());
            near.code(&mut self.pools, &mut self.staging, v, range);
            done += rows;
        }
    }

    /// Far forms for the near blocks that leave the recent zone of the step's last query.
    fn recode(&mut self, exec: Exec<'_>, step: &mut Step, member: &Member, l: usize) {
        let layer = &self.layers[l];
        let near_from = near_from(layer.shape, self.zones, member.end());
        let leaving = self.sequences[member.index].tables[l].uncoded(near_from);
        let promised = &mut step.reservations[layer.far_pool];
        self.code_far(exec, member.index, l, leaving, promised);
    }

    /// Far forms of these entries, beside what they have.
    pub(super) fn code_far(
        &mut self,
        exec: Exec<'_>,
        index: usize,
        l: usize,
        range: Range<usize>,
        promised: &mut Reservation,
    ) {
        let layer = &self.layers[l];
        let (near, far) = (layer.shape.near_shape(), layer.shape.far_shape());
        let k_head = far.form.k.head_bytes(far.head_dim);
        let v_head = far.form.v.head_bytes(far.head_dim);
        let mut first = range.start;
        while first < range.end {
            let entries = first..range.end.min(first + at_once(far.block_bytes()));
            let table = &self.sequences[index].tables[l];
            let pool = &self.pools[layer.near_pool];
            let coded = &mut self.staging.coded[..entries.len() * far.block_bytes()];
            chunks_mut(exec.pool, coded, k_head + v_head, &|unit, to: &mut [u8]| {
                let entry = &table.entries[entries.start + unit / far.kv_heads];
                if let Some(id) = entry.near {
                    let head = unit % far.kv_heads;
                    let (bytes, carry) = (pool.bytes(id), layer.carry.as_ref());
                    recode_head(exec.backend, near, far, carry, head, bytes, to);
                }
            });
            let table = &mut self.sequences[index].tables[l];
            let pool = &mut self.pools[layer.far_pool];
            let blocks = self.staging.coded.chunks_exact(far.block_bytes());
            for (entry, coded) in table.entries[entries.clone()].iter_mut().zip(blocks) {
                let id = pool.acquire(promised);
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

/// New rows and the near blocks they go to: the rest of one, or whole ones.
struct Near<'a> {
    exec: Exec<'a>,
    layer: &'a Layer,
    sinks: usize,
    /// Of the first row.
    position: u64,
    entries: &'a [Entry],
    overlay: Option<BlockId>,
}

impl Near<'_> {
    fn code(&self, pools: &mut [Pool], staging: &mut Staging, side: Side<'_>, range: Range<usize>) {
        let (shape, near) = (self.layer.shape, self.layer.shape.near_shape());
        let backend = self.exec.backend;
        let slot = (self.position % SLOTS) as usize;
        let rows = side.ready(self.exec, shape, &mut staging.rows, range);
        let part = side.bytes(near);
        let pool = &mut pools[self.layer.near_pool];
        let ids = self.entries.iter().filter_map(|entry| entry.near);
        if self.entries.len() > 1 {
            let coded = &mut staging.coded[..self.entries.len() * part.len()];
            let block = BLOCK_SLOTS * shape.width();
            chunks_mut(self.exec.pool, coded, part.len(), &|i, to: &mut [u8]| {
                side.code(backend, near, to, 0, &rows[i * block..(i + 1) * block]);
            });
            for (id, coded) in ids.zip(coded.chunks_exact(part.len())) {
                pool.bytes_mut(id)[part.clone()].copy_from_slice(coded);
            }
        } else {
            for id in ids {
                side.code(
                    backend,
                    near,
                    &mut pool.bytes_mut(id)[part.clone()],
                    slot,
                    rows,
                );
            }
        }
        // Rows that are among the first of the sequence.
        let exact = self.sinks.saturating_sub(self.position.min(SLOTS) as usize);
        let exact = (exact * shape.width()).min(rows.len());
        if let (Some(pool), Some(id), 1..) = (self.layer.sink_pool, self.overlay, exact) {
            let (k, v) = pools[pool].bytes_mut(id).split_at_mut(sink_bytes(
                shape.kv_heads,
                shape.head_dim,
                self.sinks,
            ));
            let to = if side.keys { k } else { v };
            write_sinks(backend, shape, self.sinks, to, slot, &rows[..exact]);
        }
    }
}
