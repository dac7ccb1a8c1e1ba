//! Steps: `begin` → for each layer `write` (every sequence), attention, `settle` → `commit`.
//!
//! A step is whole or has not happened. Until `commit` every old block stays: a block that leaves the recent zone keeps
//! its near form beside the new far one, and a shared block that had to be copied keeps its reference. So `rollback`
//! restores exactly.
//!
//! ```text
//! blocks          0 … 11      12 13 14       15 16 17 18 19
//! before          far         near           –                  recent zone: 2 blocks
//! written         far         near + far     both both near near near
//! settled         far         near + far     far  far  near …   only what the step made
//! committed       far         far            far  far  near …
//! ```
//!
//! Only `begin` takes memory: it reserves the worst case of all sequences together. Near forms of new blocks that leave
//! the recent zone at once are counted for the layer with most of them, because `settle` returns them before the next
//! layer is written.

use super::sequence::{SequenceId, Sequences};
use super::storage::{Layer, Storage};
use crate::error::{CacheError, CacheResult, reserve_exact};
use crate::pool::{BlockId, BlockPool, Reservation};
use crate::size::{BlockDemand, SLOTS, TableState, first_seen_block};
use crate::table::BlockTable;

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceGrowth {
    pub id: SequenceId,
    /// The position at which the caller believes the sequence to be.
    pub position: u64,
    pub tokens: usize,
}

/// A step in progress: its reservations, its sequences, and what rollback needs. The store reuses its lists for the next
/// step.
#[must_use = "a step ends with commit or rollback"]
#[derive(Default)]
pub struct Step {
    /// (pool)
    pub(super) reservations: Vec<Reservation>,
    pub(super) members: Vec<StepMember>,
    /// (member, layer)
    pub(super) undo: Vec<TableUndo>,
    /// The layer whose transient near forms are not returned yet.
    pub(super) unsettled: Option<usize>,
    /// (pool): blocks that the step can need at once.
    needed: Vec<usize>,
    /// (pool): those of them that one layer after the other needs.
    transient: Vec<usize>,
}

#[derive(Clone, Copy)]
pub(super) struct StepMember {
    pub id: SequenceId,
    pub index: usize,
    pub position: u64,
    pub tokens: usize,
}

impl StepMember {
    /// Its position after the step.
    pub fn end(&self) -> u64 {
        self.position + self.tokens as u64
    }

    /// Blocks that the step begins.
    fn new_blocks(&self) -> usize {
        (self.end().div_ceil(SLOTS) - self.position.div_ceil(SLOTS)) as usize
    }
}

/// What a step changes in a table, as it was before.
#[derive(Clone, Copy)]
pub(super) struct TableUndo {
    pub written: bool,
    pub entries: usize,
    /// Rows of the last entry.
    pub tail_rows: u32,
    /// The shared block that a private copy replaced.
    pub tail: Option<BlockId>,
    pub sinks: Option<BlockId>,
    /// The far form of a near block, recoded ahead.
    pub recoded_ahead: Option<BlockId>,
}

impl TableUndo {
    fn of(table: &BlockTable) -> TableUndo {
        TableUndo {
            written: false,
            entries: table.entries.len(),
            tail_rows: table.entries.last().map_or(0, |e| e.rows),
            tail: None,
            sinks: table.sinks,
            recoded_ahead: table.recoded_ahead(),
        }
    }

    /// The first entry whose near form the step made, including a private copy of the tail.
    pub fn first_made(&self) -> usize {
        self.entries - usize::from(self.tail.is_some())
    }

    /// Drops what was kept for a rollback.
    fn commit(
        &self,
        pools: &mut [BlockPool],
        layer: &Layer,
        table: &mut BlockTable,
        near_from: u64,
    ) {
        if let Some(shared) = self.tail {
            pools[layer.near_pool].release(shared);
        }
        if let Some(before) = self.sinks.filter(|_| self.sinks != table.sinks) {
            layer.release_sinks(pools, Some(before));
        }
        for (i, entry) in table.entries.iter_mut().enumerate().rev() {
            if entry.block() < near_from
                && let Some(near) = entry.near.take()
            {
                pools[layer.near_pool].release(near);
                if let Some(far) = entry.far {
                    pools[layer.far_pool].set_ahead(far, false);
                }
            } else if i < self.first_made() && entry.near.is_none() {
                break;
            }
        }
    }

    /// Restores the table.
    fn roll_back(&self, pools: &mut [BlockPool], layer: &Layer, table: &mut BlockTable) {
        for entry in table.remove(self.entries..table.entries.len()) {
            layer.release(pools, &entry);
        }
        if let Some(last) = table.entries.last_mut() {
            last.rows = self.tail_rows;
            if let Some(shared) = self.tail
                && let Some(private) = last.near.replace(shared)
            {
                pools[layer.near_pool].release(private);
            }
        }
        layer.release_far(pools, table, self.recoded_ahead);
        if self.sinks != table.sinks {
            layer.release_sinks(pools, table.sinks);
            table.sinks = self.sinks;
        }
        table.rebuild();
    }
}

impl Step {
    /// Heap bytes of the lists of a step with this number of sequences.
    pub(super) fn bytes_for(members: usize, layers: usize, pools: usize) -> usize {
        if members == 0 {
            return 0;
        }
        let member = size_of::<StepMember>() + layers * size_of::<TableUndo>();
        members * member + pools * (size_of::<Reservation>() + 2 * size_of::<usize>())
    }

    pub(super) fn member(&self, id: SequenceId) -> Option<usize> {
        self.members.iter().position(|m| m.id == id)
    }

    /// Adds the sequences that grow, and remembers their tables.
    pub(super) fn add_members(
        &mut self,
        storage: &Storage,
        sequences: &Sequences,
        growth: &[SequenceGrowth],
    ) -> CacheResult {
        let (layers, pools) = (storage.layers.len(), storage.pools.len());
        // Room for all sequences there are: a larger batch is refused below.
        let members = sequences.slots.len();
        reserve_exact(&mut self.reservations, pools)?;
        reserve_exact(&mut self.members, members)?;
        reserve_exact(&mut self.undo, members.saturating_mul(layers))?;
        reserve_exact(&mut self.needed, pools)?;
        reserve_exact(&mut self.transient, pools)?;
        for growth in growth {
            let member = self.checked_member(sequences, growth)?;
            self.members.push(member);
            let tables = &sequences.slots[member.index].tables;
            self.undo.extend(tables.iter().map(TableUndo::of));
        }
        Ok(())
    }

    fn checked_member(
        &self,
        sequences: &Sequences,
        growth: &SequenceGrowth,
    ) -> CacheResult<StepMember> {
        let index = sequences.idle_index(growth.id)?;
        if self.member(growth.id).is_some() {
            return Err(CacheError::Busy { index });
        }
        let position = sequences.slots[index].position;
        let (expected, found) = (position, growth.position);
        if expected != found {
            return Err(CacheError::Position { expected, found });
        }
        let max = (u64::MAX / 2).saturating_sub(position);
        if growth.tokens as u64 > max.min(u64::from(u32::MAX)) {
            return Err(CacheError::TooMany {
                what: "the number of tokens in a step",
                found: growth.tokens,
                max: u32::MAX as usize,
            });
        }
        Ok(StepMember {
            id: growth.id,
            index,
            position,
            tokens: growth.tokens,
        })
    }

    /// Counts the blocks that the step can need at once. Returns their bytes and those of longer tables.
    pub(super) fn worst_case(&mut self, storage: &Storage, sequences: &Sequences) -> usize {
        let (members, needed, transient) = (&self.members, &mut self.needed, &mut self.transient);
        needed.resize(storage.pools.len(), 0);
        transient.resize(storage.pools.len(), 0);
        let mut bytes = 0usize;
        for (l, layer) in storage.layers.iter().enumerate() {
            let mut of_layer = 0;
            for member in members.iter() {
                let table = &sequences.slots[member.index].tables[l];
                let demand = demand(storage, layer, table, member);
                needed[layer.near_pool] += demand.near as usize;
                needed[layer.far_pool] += demand.far as usize;
                if let Some(pool) = layer.sink_pool {
                    needed[pool] += demand.sinks as usize;
                }
                of_layer += demand.transient as usize;
                bytes = bytes.saturating_add(table.bytes_to_grow(member.new_blocks()));
            }
            transient[layer.near_pool] = transient[layer.near_pool].max(of_layer);
        }
        let needed = needed.iter_mut().zip(transient);
        for (pool, (needed, transient)) in storage.pools.iter().zip(needed) {
            *needed += *transient;
            bytes = bytes.saturating_add(pool.bytes_to_reserve(*needed));
        }
        bytes
    }

    /// Reserves the counted blocks, and room in the tables.
    pub(super) fn reserve(
        &mut self,
        storage: &mut Storage,
        sequences: &mut Sequences,
    ) -> CacheResult {
        for (pool, &blocks) in storage.pools.iter_mut().zip(&self.needed) {
            self.reservations.push(pool.reserve(blocks)?);
        }
        for member in &self.members {
            for table in &mut sequences.slots[member.index].tables {
                table.reserve(member.new_blocks())?;
            }
        }
        Ok(())
    }

    /// Returns near forms that the step made and no later query reads to the reservation, for the next layer.
    pub(super) fn settle(
        &mut self,
        storage: &mut Storage,
        sequences: &mut Sequences,
        layer: usize,
    ) {
        if self.unsettled != Some(layer) {
            return;
        }
        self.unsettled = None;
        let layers = storage.layers.len();
        for (m, member) in self.members.iter().enumerate() {
            let of = &storage.layers[layer];
            let near_from = storage.near_from(of, member.end());
            let pool = &mut storage.pools[of.near_pool];
            let first = self.undo[m * layers + layer].first_made();
            let table = &mut sequences.slots[member.index].tables[layer];
            for entry in &mut table.entries[first..] {
                if entry.block() < near_from
                    && let Some(near) = entry.near.take()
                {
                    pool.put_back(&mut self.reservations[of.near_pool], near);
                }
            }
        }
    }

    /// Checks that every layer of every sequence has grown by exactly its tokens.
    pub(super) fn check_written(&self, layers: usize) -> CacheResult {
        for (m, member) in self.members.iter().enumerate() {
            let undo = &self.undo[m * layers..(m + 1) * layers];
            let missing = undo.iter().position(|undo| !undo.written);
            if let Some(layer) = missing.filter(|_| member.tokens > 0) {
                return Err(CacheError::Growth {
                    layer,
                    expected: member.tokens,
                    found: 0,
                });
            }
        }
        Ok(())
    }

    pub(super) fn commit(&self, storage: &mut Storage, sequences: &mut Sequences) {
        let layers = storage.layers.len();
        for (m, member) in self.members.iter().enumerate() {
            let sequence = &mut sequences.slots[member.index];
            sequence.position += member.tokens as u64;
            sequence.in_step = false;
            sequence.rows_peak = sequence.rows_peak.max(sequence.rows());
            for (l, table) in sequence.tables.iter_mut().enumerate() {
                let layer = &storage.layers[l];
                let near_from = storage.near_from(layer, sequence.position);
                let undo = &self.undo[m * layers + l];
                undo.commit(&mut storage.pools, layer, table, near_from);
                if let Some(window) = layer.shape.window {
                    let first = first_seen_block(window, sequence.position) * SLOTS;
                    drop_passed(&mut storage.pools, layer, table, first);
                }
            }
        }
    }

    pub(super) fn roll_back(&self, storage: &mut Storage, sequences: &mut Sequences) {
        let layers = storage.layers.len();
        for (m, member) in self.members.iter().enumerate() {
            let sequence = &mut sequences.slots[member.index];
            sequence.in_step = false;
            for (l, table) in sequence.tables.iter_mut().enumerate() {
                let undo = &self.undo[m * layers + l];
                if undo.written && member.tokens > 0 {
                    undo.roll_back(&mut storage.pools, &storage.layers[l], table);
                }
            }
        }
    }

    /// Returns what was reserved and not acquired, and empties the lists.
    pub(super) fn forfeit(&mut self, pools: &mut [BlockPool]) {
        for (pool, reservation) in pools.iter_mut().zip(self.reservations.drain(..)) {
            pool.forfeit(reservation);
        }
        self.members.clear();
        self.undo.clear();
        self.needed.clear();
        self.transient.clear();
        self.unsettled = None;
    }
}

/// Blocks that the step can take for one table.
fn demand(
    storage: &Storage,
    layer: &Layer,
    table: &BlockTable,
    member: &StepMember,
) -> BlockDemand {
    let near = &storage.pools[layer.near_pool];
    let shared = |pool: &BlockPool, id: Option<BlockId>| id.is_some_and(|id| pool.is_shared(id));
    let leaving = table.without_far(storage.near_from(layer, member.end()));
    let must_make = |pool| table.sinks.is_none() || shared(&storage.pools[pool], table.sinks);
    let state = TableState {
        leaving: leaving.len() as u64,
        copy_tail: shared(near, table.tail(member.position).and_then(|e| e.near)),
        make_sinks: layer.sink_pool.is_some_and(must_make),
    };
    let (shape, zones) = (layer.shape, storage.zones);
    BlockDemand::of(shape, zones, member.position, member.tokens, state)
}

/// Drops blocks before `first` from a layer whose window has passed them.
fn drop_passed(pools: &mut [BlockPool], layer: &Layer, table: &mut BlockTable, first: u64) {
    let passed = table.entries_before(first);
    if passed == 0 {
        return;
    }
    let mut end = table.window_passed;
    for entry in table.remove(0..passed) {
        end = entry.first_position + SLOTS;
        layer.release(pools, &entry);
    }
    table.window_passed = end;
    layer.release_sinks(pools, table.sinks.take());
    table.rebuild();
}
