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

use super::{Layer, SLABS_WAITING, SequenceId, Store, release, release_far, release_sinks};
use crate::error::CacheError;
use crate::pool::{BlockId, Pool, Reservation, reserve_exact};
use crate::size::{Need, SLOTS, Standing, first_seen_block, near_from};
use crate::table::Table;
use haversack_memory::zoo::{Bug, planted};

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grow {
    pub id: SequenceId,
    /// Where the caller says it stands.
    pub position: u64,
    pub tokens: usize,
}

/// A step under way: what was promised to it, who takes part, and what rollback needs. Its lists go back
/// to the store, for the next one.
#[must_use = "a step ends with commit or rollback"]
#[derive(Default)]
pub struct Step {
    /// (pool)
    pub(super) reservations: Vec<Reservation>,
    pub(super) members: Vec<Member>,
    /// (member, layer)
    pub(super) marks: Vec<Mark>,
    /// The layer whose new near forms are not given back yet.
    pub(super) unsettled: Option<usize>,
    /// (pool): blocks that it can need at once, and those of them that one layer after the other needs.
    needed: Vec<usize>,
    transient: Vec<usize>,
}

#[derive(Clone, Copy)]
pub(super) struct Member {
    pub id: SequenceId,
    pub index: usize,
    pub position: u64,
    pub tokens: usize,
}

impl Member {
    /// Where it stands after the step.
    pub fn end(&self) -> u64 {
        self.position + self.tokens as u64
    }
}

/// A table as it was, as far as the step changes it.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    pub written: bool,
    pub entries: usize,
    /// Rows of the last entry.
    pub tail_rows: u32,
    /// The shared block that a private copy stands in for.
    pub tail: Option<BlockId>,
    pub sinks: Option<BlockId>,
    /// The far form of a block that was still near.
    pub prepared: Option<BlockId>,
}

impl Mark {
    /// The first entry whose near form the step made, a private copy of the tail included.
    pub fn first_made(&self) -> usize {
        self.entries - usize::from(self.tail.is_some())
    }
}

impl Step {
    /// Heap bytes of the lists of a step of so many sequences.
    pub(super) fn bytes_for(members: usize, layers: usize, pools: usize) -> usize {
        if members == 0 {
            return 0;
        }
        let member = size_of::<Member>() + layers * size_of::<Mark>();
        members * member + pools * (size_of::<Reservation>() + 2 * size_of::<usize>())
    }

    pub(super) fn member(&self, id: SequenceId) -> Option<usize> {
        self.members.iter().position(|m| m.id == id)
    }
}

impl Store {
    /// Starts a step in which each sequence grows by so many tokens from the position it is said to
    /// stand at. The worst case is reserved here, and only here can the answer be "does not fit";
    /// then nothing has changed.
    pub fn begin(&mut self, grow: &[Grow]) -> Result<Step, CacheError> {
        let (layers, pools) = (self.layers.len(), self.pools.len());
        let mut step = std::mem::take(&mut self.spare);
        // All sequences there are: a batch of more is refused below.
        let members = self.sequences.len();
        reserve_exact(&mut step.reservations, pools)?;
        reserve_exact(&mut step.members, members)?;
        reserve_exact(&mut step.marks, members.saturating_mul(layers))?;
        reserve_exact(&mut step.needed, pools)?;
        reserve_exact(&mut step.transient, pools)?;
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
                    prepared: table.prepared(),
                });
            }
        }

        let worst = self.worst_case(&mut step);
        if !planted(Bug::BudgetAfterAllocating) {
            self.ledger().fit(worst)?;
        }

        let mut taken = self.take(&mut step);
        if planted(Bug::BudgetAfterAllocating) {
            self.note_total();
            taken = taken.and_then(|()| Ok(self.ledger().fit(0)?));
        }
        if let Err(error) = taken {
            self.forfeit(step);
            return Err(error);
        }
        for member in &step.members {
            self.sequences[member.index].in_step = true;
        }
        self.steps_under_way += 1;
        self.note_total();
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

    /// Counts the blocks that the step can need at once; returns the bytes of those and of longer tables.
    fn worst_case(&self, step: &mut Step) -> usize {
        let Step {
            members,
            needed,
            transient,
            ..
        } = step;
        needed.resize(self.pools.len(), 0);
        transient.resize(self.pools.len(), 0);
        let mut bytes = 0usize;
        for (l, layer) in self.layers.iter().enumerate() {
            let mut of_layer = 0;
            for member in members.iter() {
                let table = &self.sequences[member.index].tables[l];
                let need = self.need(layer, table, member);
                needed[layer.near_pool] += need.near as usize;
                needed[layer.far_pool] += need.far as usize;
                if let Some(pool) = layer.sink_pool {
                    needed[pool] += need.sinks as usize;
                }
                of_layer += need.transient as usize;
                bytes = bytes.saturating_add(table.bytes_to_grow(new_blocks(member)));
            }
            transient[layer.near_pool] = transient[layer.near_pool].max(of_layer);
        }
        for (pool, (needed, transient)) in self.pools.iter().zip(needed.iter_mut().zip(transient)) {
            *needed += *transient;
            bytes = bytes
                .saturating_add(needed.saturating_mul(pool.block_bytes()))
                .saturating_add(pool.list_bytes_to_reserve(*needed));
        }
        bytes
    }

    fn need(&self, layer: &Layer, table: &Table, member: &Member) -> Need {
        let Member {
            position, tokens, ..
        } = *member;
        let near_from = near_from(layer.shape, self.zones, member.end());
        let near = &self.pools[layer.near_pool];
        let shared = |pool: &Pool, id: Option<BlockId>| id.is_some_and(|id| pool.is_shared(id));
        let standing = Standing {
            leaving: table.uncoded(near_from).len() as u64,
            copy_tail: shared(near, table.tail(position).and_then(|e| e.near)),
            make_sinks: match (layer.sink_pool, table.sinks) {
                (Some(pool), sinks) => sinks.is_none() || shared(&self.pools[pool], sinks),
                (None, _) => false,
            },
        };
        Need::of(layer.shape, self.zones, position, tokens, standing)
    }

    /// Blocks from the pools and room in the tables.
    fn take(&mut self, step: &mut Step) -> Result<(), CacheError> {
        for (pool, &blocks) in self.pools.iter_mut().zip(&step.needed) {
            step.reservations.push(pool.reserve(blocks)?);
        }
        for member in &step.members {
            for table in &mut self.sequences[member.index].tables {
                table.reserve(new_blocks(member))?;
            }
        }
        Ok(())
    }

    /// After attention of that layer: near forms that the step made and that no later query sees go
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
            let near_from = near_from(made.shape, self.zones, member.end());
            let table = &mut self.sequences[member.index].tables[layer];
            for entry in &mut table.entries[mark.first_made()..] {
                if entry.block() < near_from
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
            sequence.rows_peak = sequence.rows_peak.max(sequence.rows());
            for (l, table) in sequence.tables.iter_mut().enumerate() {
                let mark = &step.marks[m * layers + l];
                let layer = &self.layers[l];
                let near_from = near_from(layer.shape, self.zones, sequence.position);
                finish(&mut self.pools, layer, table, mark, near_from);
                if let Some(window) = layer.shape.window {
                    let first = first_seen_block(window, sequence.position) * SLOTS;
                    drop_passed(&mut self.pools, layer, table, first);
                }
            }
        }
        self.steps_under_way -= 1;
        let reads = step.members.iter().any(|m| m.tokens as u64 >= SLOTS);
        self.forfeit(step);
        self.release_empty_slabs();
        if self.steps_under_way == 0 {
            self.collapse_full_slabs(if reads { 0 } else { SLABS_WAITING });
        }
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

    /// Ends with what it was promised and did not take; its lists stay.
    fn forfeit(&mut self, mut step: Step) {
        for (pool, reservation) in self.pools.iter_mut().zip(step.reservations.drain(..)) {
            pool.forfeit(reservation);
        }
        step.members.clear();
        step.marks.clear();
        step.needed.clear();
        step.transient.clear();
        step.unsettled = None;
        self.spare = step;
    }
}

/// Blocks that the step begins.
fn new_blocks(member: &Member) -> usize {
    (member.end().div_ceil(SLOTS) - member.position.div_ceil(SLOTS)) as usize
}

/// What was kept for a rollback goes.
fn finish(pools: &mut [Pool], layer: &Layer, table: &mut Table, mark: &Mark, near_from: u64) {
    if let Some(shared) = mark.tail {
        pools[layer.near_pool].release(shared);
    }
    if let Some(before) = mark.sinks.filter(|_| mark.sinks != table.sinks) {
        release_sinks(pools, layer, Some(before));
    }
    for (i, entry) in table.entries.iter_mut().enumerate().rev() {
        if entry.block() < near_from
            && let Some(near) = entry.near.take()
        {
            pools[layer.near_pool].release(near);
            if let Some(far) = entry.far {
                pools[layer.far_pool].set_ahead(far, false);
            }
        } else if i < mark.first_made() && entry.near.is_none() {
            break;
        }
    }
}

fn undo(pools: &mut [Pool], layer: &Layer, table: &mut Table, mark: &Mark) {
    for entry in table.take(mark.entries..table.entries.len()) {
        release(pools, layer, &entry);
    }
    if let Some(last) = table.entries.last_mut() {
        last.rows = mark.tail_rows;
        if let Some(shared) = mark.tail
            && let Some(private) = last.near.replace(shared)
        {
            pools[layer.near_pool].release(private);
        }
    }
    release_far(pools, layer, table, mark.prepared);
    if mark.sinks != table.sinks {
        release_sinks(pools, layer, table.sinks);
        table.sinks = mark.sinks;
    }
    table.recount();
}

/// Blocks before `first` leave a layer whose window has passed them.
fn drop_passed(pools: &mut [Pool], layer: &Layer, table: &mut Table, first: u64) {
    let passed = table.entries.partition_point(|e| e.first_position < first);
    if passed == 0 {
        return;
    }
    let mut upto = table.passed;
    for entry in table.take(0..passed) {
        upto = entry.first_position + SLOTS;
        release(pools, layer, &entry);
    }
    table.passed = upto;
    release_sinks(pools, layer, table.sinks.take());
    table.recount();
}
