//! Growing: `begin` → for each layer `write` (every sequence), attention, `settle` → `commit`.
//!
//! A step is whole or has not happened. Until `commit` nothing that was there before is given up:
//! a block that leaves the recent zone keeps its near form beside the new far one, a shared block
//! that had to be copied stays held. `rollback` therefore restores exactly.
//!
//! ```text
//! blocks          0 … 11      12 13 14       15 16 17 18 19
//! before          far         near           –                  recent zone: 2 blocks
//! written         far         near + far     both both near near near
//! settled         far         near + far     far  far  near …   only what the step made
//! committed       far         far            far  far  near …
//! ```
//!
//! Only `begin` takes memory: it reserves the worst case of all sequences together. Near forms of
//! new blocks that leave at once are counted for the layer with most of them, because `settle`
//! returns them before the next layer is written.

use super::{Layer, SequenceId, Store, release, release_sinks};
use crate::coding::{prepare, recode_batch, recode_head, write_k, write_sinks, write_v};
use crate::error::CacheError;
use crate::pool::{BlockId, Pool, Reservation, reserve_exact};
use crate::size::{Need, SLOTS, Standing, first_seen_block, near_from};
use crate::table::{Entry, Table};
use haversack_kernels::Exec;
use haversack_kernels::format::kv::BLOCK_SLOTS;
use haversack_kernels::threads::chunks_mut;
use std::ops::Range;

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grow {
    pub id: SequenceId,
    /// Where the caller says it stands.
    pub position: u64,
    pub tokens: usize,
}

/// A step under way: what was promised to it, who takes part, and what rollback needs.
#[must_use = "a step ends with commit or rollback"]
pub struct Step {
    /// (pool)
    reservations: Vec<Reservation>,
    members: Vec<Member>,
    /// (member, layer)
    marks: Vec<Mark>,
    /// The layer whose new near forms are not given back yet.
    unsettled: Option<usize>,
}

#[derive(Clone, Copy)]
struct Member {
    id: SequenceId,
    index: usize,
    position: u64,
    tokens: usize,
}

/// A table as it was, as far as the step changes it.
#[derive(Clone, Copy)]
struct Mark {
    written: bool,
    entries: usize,
    /// Rows of the last entry.
    tail_rows: u32,
    /// The shared block that a private copy stands in for.
    tail: Option<BlockId>,
    sinks: Option<BlockId>,
}

impl Mark {
    /// The first entry whose near form the step made, a private copy of the tail included.
    fn first_made(&self) -> usize {
        self.entries - usize::from(self.tail.is_some())
    }
}

impl Step {
    fn member(&self, id: SequenceId) -> Option<usize> {
        self.members.iter().position(|m| m.id == id)
    }
}

impl Store {
    /// Starts a step in which each sequence grows by so many tokens from the position it is said to
    /// stand at. The worst case is reserved here, and only here can the answer be "does not fit";
    /// then nothing has changed.
    pub fn begin(&mut self, grow: &[Grow]) -> Result<Step, CacheError> {
        let layers = self.layers.len();
        let mut step = Step {
            reservations: Vec::new(),
            members: Vec::new(),
            marks: Vec::new(),
            unsettled: None,
        };
        reserve_exact(&mut step.reservations, self.pools.len())?;
        reserve_exact(&mut step.members, grow.len())?;
        reserve_exact(&mut step.marks, grow.len().saturating_mul(layers))?;
        for &part in grow {
            let member = self.member(&step, part)?;
            step.members.push(member);
            for table in &self.sequences[member.index].tables {
                step.marks.push(Mark {
                    written: false,
                    entries: table.entries.len(),
                    tail_rows: table.entries.last().map_or(0, |e| e.rows),
                    tail: None,
                    sinks: table.sinks,
                });
            }
        }

        let (needed, lists) = self.worst_case(&step)?;
        let blocks: usize = self
            .pools
            .iter()
            .zip(&needed)
            .map(|(pool, &n)| {
                n.saturating_mul(pool.block_bytes())
                    .saturating_add(pool.list_bytes_to_reserve(n))
            })
            .fold(lists, usize::saturating_add);
        self.ledger().fit(blocks)?;

        if let Err(error) = self.take(&mut step, &needed) {
            self.forfeit(step);
            return Err(error);
        }
        for member in &step.members {
            self.sequences[member.index].in_step = true;
        }
        self.steps_under_way += 1;
        Ok(step)
    }

    fn member(&self, step: &Step, grow: Grow) -> Result<Member, CacheError> {
        let index = self.idle(grow.id)?;
        if step.member(grow.id).is_some() {
            return Err(CacheError::Busy { index });
        }
        let position = self.sequences[index].position;
        if position != grow.position {
            return Err(CacheError::Position {
                expected: position,
                found: grow.position,
            });
        }
        let most = (u64::MAX / 2).saturating_sub(position);
        if grow.tokens as u64 > most.min(u64::from(u32::MAX)) {
            return Err(CacheError::TooMany {
                what: "the number of tokens in a step",
                found: grow.tokens,
                most: u32::MAX as usize,
            });
        }
        Ok(Member {
            id: grow.id,
            index,
            position,
            tokens: grow.tokens,
        })
    }

    /// (pool): blocks that the step can need at once; and how much longer the tables become.
    fn worst_case(&self, step: &Step) -> Result<(Vec<usize>, usize), CacheError> {
        let mut needed = Vec::new();
        let mut transient = Vec::new();
        reserve_exact(&mut needed, self.pools.len())?;
        reserve_exact(&mut transient, self.pools.len())?;
        needed.resize(self.pools.len(), 0usize);
        transient.resize(self.pools.len(), 0usize);
        let mut lists = 0;
        for (l, layer) in self.layers.iter().enumerate() {
            let mut of_layer = 0;
            for member in &step.members {
                let table = &self.sequences[member.index].tables[l];
                let need = self.need(layer, table, member);
                needed[layer.near_pool] += need.near as usize;
                needed[layer.far_pool] += need.far as usize;
                if let Some(pool) = layer.sink_pool {
                    needed[pool] += need.sinks as usize;
                }
                of_layer += need.transient as usize;
                lists += table.bytes_to_grow(new_blocks(member));
            }
            transient[layer.near_pool] = transient[layer.near_pool].max(of_layer);
        }
        for (needed, transient) in needed.iter_mut().zip(transient) {
            *needed += transient;
        }
        Ok((needed, lists))
    }

    fn need(&self, layer: &Layer, table: &Table, member: &Member) -> Need {
        let (position, tokens) = (member.position, member.tokens);
        let near_from = near_from(layer.shape, self.zones, position + tokens as u64);
        let near = &self.pools[layer.near_pool];
        let shared = |pool: &Pool, id: Option<BlockId>| id.is_some_and(|id| pool.is_shared(id));
        let standing = Standing {
            leaving: table.leaving(near_from) as u64,
            copy_tail: shared(near, table.tail(position).and_then(|e| e.near)),
            make_sinks: match (layer.sink_pool, table.sinks) {
                (Some(pool), sinks) => sinks.is_none() || shared(&self.pools[pool], sinks),
                (None, _) => false,
            },
        };
        Need::of(layer.shape, self.zones, position, tokens, standing)
    }

    /// Blocks from the pools and room in the tables.
    fn take(&mut self, step: &mut Step, needed: &[usize]) -> Result<(), CacheError> {
        for (pool, &blocks) in self.pools.iter_mut().zip(needed) {
            step.reservations.push(pool.reserve(blocks)?);
        }
        for member in &step.members {
            for table in &mut self.sequences[member.index].tables {
                table.reserve(new_blocks(member))?;
            }
        }
        Ok(())
    }

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
                write_sinks(shape, sinks, &mut bytes[..side], slot, &rows_k[..exact]);
            }

            let stage = &mut self.staging.rows;
            let rows_v = prepare(exec.table, shape, basis.v, None, stage, &v[from]);
            let bytes = self.pools[layer.near_pool].bytes_mut(block);
            write_v(exec.table, near, bytes, slot, rows_v);
            if let Some((pool, id)) = exact_at(layer.sink_pool) {
                let bytes = self.pools[pool].bytes_mut(id);
                let side = bytes.len() / 2;
                write_sinks(shape, sinks, &mut bytes[side..], slot, &rows_v[..exact]);
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

    /// After attention of that layer: near forms that the step made and that have a far form go
    /// back to the reservation, for the next layer.
    pub fn settle(&mut self, step: &mut Step, layer: usize) {
        if step.unsettled != Some(layer) {
            return;
        }
        step.unsettled = None;
        let made = &self.layers[layer];
        let pool = &mut self.pools[made.near_pool];
        let reservation = &mut step.reservations[made.near_pool];
        for (m, member) in step.members.iter().enumerate() {
            let mark = &step.marks[m * self.layers.len() + layer];
            let table = &mut self.sequences[member.index].tables[layer];
            for entry in &mut table.entries[mark.first_made()..] {
                if entry.far.is_some()
                    && let Some(near) = entry.near.take()
                {
                    pool.put_back(reservation, near);
                }
            }
        }
    }

    /// Ends a step: every layer of every sequence must have grown by exactly the tokens fed. If one
    /// has not, the step is rolled back and the error names the layer.
    pub fn commit(&mut self, step: Step) -> Result<(), CacheError> {
        let layers = self.layers.len();
        for (m, member) in step.members.iter().enumerate() {
            let marks = &step.marks[m * layers..(m + 1) * layers];
            let missing = marks.iter().position(|mark| !mark.written);
            if let Some(layer) = missing.filter(|_| member.tokens > 0) {
                let expected = member.tokens;
                self.rollback(step);
                return Err(CacheError::Growth {
                    layer,
                    expected,
                    found: 0,
                });
            }
        }
        for (m, member) in step.members.iter().enumerate() {
            let sequence = &mut self.sequences[member.index];
            sequence.position += member.tokens as u64;
            sequence.in_step = false;
            for (l, table) in sequence.tables.iter_mut().enumerate() {
                let mark = &step.marks[m * layers + l];
                let layer = &self.layers[l];
                finish(&mut self.pools, layer, table, mark);
                if let Some(window) = layer.shape.window {
                    let first = first_seen_block(window, sequence.position) * SLOTS;
                    drop_passed(&mut self.pools, layer, table, first);
                }
            }
        }
        self.steps_under_way -= 1;
        self.forfeit(step);
        self.release_empty_slabs();
        Ok(())
    }

    /// Ends a step as if it had not begun.
    pub fn rollback(&mut self, step: Step) {
        let layers = self.layers.len();
        for (m, member) in step.members.iter().enumerate() {
            let sequence = &mut self.sequences[member.index];
            sequence.in_step = false;
            for (l, table) in sequence.tables.iter_mut().enumerate() {
                let mark = &step.marks[m * layers + l];
                if mark.written && member.tokens > 0 {
                    undo(&mut self.pools, &self.layers[l], table, mark);
                }
            }
        }
        self.steps_under_way -= 1;
        self.forfeit(step);
        self.release_empty_slabs();
    }

    fn forfeit(&mut self, step: Step) {
        for (pool, reservation) in self.pools.iter_mut().zip(step.reservations) {
            pool.forfeit(reservation);
        }
    }
}

/// Blocks that the step begins.
fn new_blocks(member: &Member) -> usize {
    let end = member.position + member.tokens as u64;
    (end.div_ceil(SLOTS) - member.position.div_ceil(SLOTS)) as usize
}

/// Entries that are near and before block `near_from`: they stand together.
fn leaving(table: &Table, near_from: u64) -> Range<usize> {
    let end = table.entries.partition_point(|e| e.block() < near_from);
    let near = table.entries[..end].iter().rev();
    let count = near.take_while(|e| e.near.is_some()).count();
    end - count..end
}

/// What was kept for a rollback goes.
fn finish(pools: &mut [Pool], layer: &Layer, table: &mut Table, mark: &Mark) {
    if let Some(shared) = mark.tail {
        pools[layer.near_pool].release(shared);
    }
    if let Some(before) = mark.sinks.filter(|_| mark.sinks != table.sinks) {
        release_sinks(pools, layer, Some(before));
    }
    for (i, entry) in table.entries.iter_mut().enumerate().rev() {
        if entry.far.is_some()
            && let Some(near) = entry.near.take()
        {
            pools[layer.near_pool].release(near);
        } else if i < mark.entries && entry.near.is_none() {
            break;
        }
    }
}

fn undo(pools: &mut [Pool], layer: &Layer, table: &mut Table, mark: &Mark) {
    for entry in table.entries.drain(mark.entries..) {
        release(pools, layer, &entry);
    }
    if let Some(last) = table.entries.last_mut() {
        last.rows = mark.tail_rows;
        if let Some(shared) = mark.tail {
            if let Some(private) = last.near.replace(shared) {
                pools[layer.near_pool].release(private);
            }
        }
    }
    for entry in table.entries.iter_mut().filter(|e| e.near.is_some()) {
        if let Some(far) = entry.far.take() {
            pools[layer.far_pool].release(far);
        }
    }
    if mark.sinks != table.sinks {
        release_sinks(pools, layer, table.sinks);
        table.sinks = mark.sinks;
    }
    table.recount();
}

/// Blocks before `first` leave a layer whose window has passed them.
fn drop_passed(pools: &mut [Pool], layer: &Layer, table: &mut Table, first: u64) {
    let passed = table.entries.partition_point(|e| e.first_position < first);
    if passed > 0 {
        for entry in table.entries.drain(..passed) {
            release(pools, layer, &entry);
        }
        release_sinks(pools, layer, table.sinks.take());
        table.recount();
    }
    table.passed = table.passed.max(first);
}
