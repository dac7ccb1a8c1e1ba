//! The store: sequences over pools of blocks. The only place where tables change.
//!
//! [`Storage`] is the layers and their pools, [`Sequences`] the tables that point into them. The files beside this one
//! each hold one operation: [`step`] and [`write`] grow sequences (`begin` → `write` → `settle` → `commit`, or
//! `rollback`), [`recode_ahead`] makes far forms before they are due, [`evict`] and [`rows`] shorten them,
//! [`image`] and [`mapped`] save and restore them, [`compact`] gives memory back. This file checks ids and the budget and
//! calls them; what shortens a sequence has its methods beside it.
//!
//! Invariants between steps: an entry has one form, except for a far form recoded ahead of the block that leaves the
//! recent zone next; entries are near exactly within the recent zone of the last position; a layer with a window holds no
//! block that its next query cannot see; the sum of all accounts is within the budget.

mod compact;
mod evict;
mod image;
mod mapped;
mod recode_ahead;
mod report;
mod rows;
mod sequence;
mod step;
mod storage;
mod write;

pub use evict::EvictionOutcome;
pub use image::Image;
pub use mapped::{ImageLayout, MappedImage};
pub use report::{TokenRun, TokenState, Zone, ZoneBytes};
pub use rows::KeptZone;
pub use sequence::SequenceId;
pub use step::{SequenceGrowth, Step};
pub use storage::{SLAB_BYTES, StoreOptions};

use crate::error::{CacheError, CacheResult, CannotFit};
use crate::ledger::{Account, Ledger};
use crate::policy::{PositionMode, Snapshot};
use crate::pool::{BlockPool, PoolStats};
use crate::row_stats::StatsFormat;
use crate::segments::Segments;
use crate::size::{LayerShape, SLOTS, Zones};
use crate::table::{BlockTable, TableView};
use haversack_kernels::Exec;
use haversack_kernels::format::kv::error_feedback::ErrorFeedback;
use haversack_memory::Region;
use image::{Column, Outline};
use sequence::{GAPS, Sequence, Sequences};
use storage::Storage;
use write::NewRows;

/// Full slabs of a pool that may wait for huge pages while single tokens are fed: copying one takes a third of the time
/// of a token of a small model, while a prompt takes long anyway. A long answer still moves them all in time.
const SLABS_WAITING: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceStats {
    /// Tokens fed.
    pub position: u64,
    /// Rows stored, in the fullest layer.
    pub rows: usize,
    /// Highest `rows` so far.
    pub rows_peak: usize,
    /// Bytes of the blocks that queries of this sequence read; a shared block counts for each holder, and blocks recoded
    /// ahead do not count.
    pub bytes: usize,
}

pub struct Store {
    storage: Storage,
    sequences: Sequences,
    /// The lists of the last step, for the next one.
    spare: Step,
    row_stats: Option<StatsFormat>,
    budget_bytes: Option<usize>,
    scratch: usize,
    side: usize,
    heap: usize,
    kv_peak: usize,
    peak: usize,
    steps_under_way: usize,
}

/// Options, accounts and budget.
impl Store {
    /// A store without sequences. It allocates staging buffers and no blocks.
    pub fn new(options: StoreOptions) -> CacheResult<Store> {
        let store = Store {
            sequences: Sequences::default(),
            spare: Step::default(),
            row_stats: options.row_stats,
            budget_bytes: options.budget_bytes,
            scratch: 0,
            side: 0,
            heap: 0,
            kv_peak: 0,
            peak: 0,
            steps_under_way: 0,
            storage: Storage::new(options)?,
        };
        store.ledger().fit(0)?;
        Ok(store)
    }

    pub fn layers(&self) -> &[LayerShape] {
        &self.storage.shapes
    }

    pub fn zones(&self) -> Zones {
        self.storage.zones
    }

    /// The layer's mean key in its basis, (kv_head, dim), which attention adds back.
    pub fn mean(&self, layer: usize) -> Option<&[f32]> {
        Some(&self.storage.layers.get(layer)?.mean.as_ref()?.rotated)
    }

    /// The error feedback for the rounding of the layer's keys.
    pub fn error_feedback(&self, layer: usize) -> Option<&ErrorFeedback> {
        self.storage.layers.get(layer)?.error_feedback.as_ref()
    }

    pub fn ledger(&self) -> Ledger {
        let pools = &self.storage.pools;
        let sum = |f: &dyn Fn(&BlockPool) -> usize| pools.iter().map(f).sum::<usize>();
        Ledger {
            budget: self.budget_bytes,
            kv_live: self.storage.live_bytes(),
            kv_ahead: sum(&|p| p.ahead() * p.block_bytes()),
            kv_file: sum(&|p| p.mapped() * p.block_bytes()),
            kv_promised: sum(&|p| p.promised() * p.block_bytes()),
            kv_peak: self.kv_peak,
            peak: self.peak,
            tables: self.sequences.bytes()
                + self.storage.staging.bytes()
                + self.step_bytes(self.sequences.slots.len())
                + sum(&|p| p.list_bytes()),
            scratch: self.scratch,
            side: self.side + self.storage.key_bytes(),
            heap: self.heap,
            mapped: sum(&|p| p.arena().mapped_bytes()),
        }
    }

    /// (pool): its blocks, counted one by one, for tests and reports.
    pub fn pool_stats(&self) -> Vec<PoolStats> {
        self.storage.pools.iter().map(BlockPool::stats).collect()
    }

    /// The pools, for readings of their arenas.
    pub fn pools(&self) -> &[BlockPool] {
        &self.storage.pools
    }

    /// Sets the level of an account that the caller keeps. Refused if the sum would pass the budget.
    pub fn charge(&mut self, account: Account, bytes: usize) -> Result<(), CannotFit> {
        let ledger = self.ledger();
        let before = std::mem::replace(self.level(account), bytes);
        let more = bytes.saturating_sub(before);
        if let Some(error) = ledger.fit(more).err().filter(|_| more > 0) {
            *self.level(account) = before;
            return Err(error);
        }
        self.update_peak();
        Ok(())
    }

    fn level(&mut self, account: Account) -> &mut usize {
        match account {
            Account::Scratch => &mut self.scratch,
            Account::Side => &mut self.side,
        }
    }

    /// Takes over what the process has on its heap beside the store: see [`Ledger::heap`].
    pub fn set_heap(&mut self, bytes: usize) {
        self.heap = bytes;
        self.update_peak();
    }

    /// Changes the budget. A budget below what is held is refused: evict first.
    pub fn set_budget(&mut self, budget_bytes: Option<usize>) -> Result<(), CannotFit> {
        let mut ledger = self.ledger();
        ledger.budget = budget_bytes;
        ledger.fit(0)?;
        self.budget_bytes = budget_bytes;
        Ok(())
    }

    /// Moves blocks out of slabs of which less than `percent` is in use and releases those slabs; 100 moves every block as
    /// far down as there is room. Returns the number of blocks moved; 0 during a step.
    pub fn compact_below(&mut self, percent: usize) -> CacheResult<usize> {
        if self.steps_under_way > 0 {
            return Ok(0);
        }
        compact::compact(&mut self.storage, &mut self.sequences.slots, percent)
    }

    /// Moves full slabs to huge pages, except `waiting` of each pool. The system holds both copies for a moment, so the
    /// budget must have room for one slab.
    fn collapse_full_slabs(&mut self, waiting: usize) {
        for pool in 0..self.storage.pools.len() {
            loop {
                let slab = self.storage.pools[pool].full_slabs().nth(waiting);
                let Some(slab) = slab else { break };
                let bytes = self.storage.pools[pool].arena().slab_bytes();
                if self.ledger().fit(bytes).is_err() {
                    return;
                }
                self.storage.pools[pool].collapse(slab);
            }
        }
    }

    /// The lists of a step of this many sequences.
    fn step_bytes(&self, members: usize) -> usize {
        let (layers, pools) = (self.storage.layers.len(), self.storage.pools.len());
        Step::bytes_for(members, layers, pools)
    }

    /// Called after reserving or charging: nothing else makes the total grow.
    fn update_peak(&mut self) {
        self.peak = self.peak.max(self.ledger().total());
    }

    fn update_kv_peak(&mut self) {
        self.kv_peak = self.kv_peak.max(self.storage.live_bytes());
    }

    /// The sequences that are open.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        self.sequences.open().map(|(id, _)| id)
    }

    /// Bytes of blocks by zone and form: together [`Ledger::kv_live`] and [`Ledger::kv_file`].
    pub fn zone_bytes(&self) -> Vec<ZoneBytes> {
        report::zone_bytes(&self.storage, &self.sequences)
    }
}

/// Sequences: open, fork, close, read.
impl Store {
    pub fn open(&mut self) -> CacheResult<SequenceId> {
        self.open_with_stats(self.row_stats)
    }

    /// Opens a sequence with its own choice of row statistics.
    pub fn open_with_stats(&mut self, format: Option<StatsFormat>) -> CacheResult<SequenceId> {
        let slot = self.free_slot(Segments::bytes_for(GAPS, 0))?;
        let sequence = Sequence::new(&self.storage, format)?;
        Ok(self.sequences.put(slot, sequence))
    }

    /// A second sequence that shares every block with the first. A partly filled block is copied when either writes to it.
    pub fn fork(&mut self, id: SequenceId) -> CacheResult<SequenceId> {
        let from = self.sequences.idle_index(id)?;
        let slot = self.free_slot(self.sequences.slots[from].fork_bytes())?;
        let sequence = self.sequences.slots[from].fork(&mut self.storage)?;
        Ok(self.sequences.put(slot, sequence))
    }

    pub fn close(&mut self, id: SequenceId) -> CacheResult {
        self.sequences.idle_mut(id)?.close(&mut self.storage);
        Ok(())
    }

    /// A slot for a sequence with `more` bytes of lists, if the budget has room for it.
    fn free_slot(&mut self, more: usize) -> CacheResult<usize> {
        let tables = self.storage.layers.len() * size_of::<BlockTable>();
        let free = self.sequences.free_slot();
        let slots = self.sequences.slots.len();
        let slot = match free {
            Some(_) => 0,
            None => size_of::<Sequence>() + self.step_bytes(slots + 1) - self.step_bytes(slots),
        };
        self.ledger().fit(tables + more + slot)?;
        match free {
            Some(slot) => Ok(slot),
            None => self.sequences.add_slot(),
        }
    }

    /// Tokens fed. Cheap, unlike [`Store::stats`], which adds up every block.
    pub fn position(&self, id: SequenceId) -> CacheResult<u64> {
        Ok(self.sequences.get(id)?.position)
    }

    /// Rows stored, in the fullest layer. Cheap.
    pub fn rows(&self, id: SequenceId) -> CacheResult<usize> {
        Ok(self.sequences.get(id)?.rows())
    }

    /// Rows stored in one layer.
    pub fn layer_rows(&self, id: SequenceId, layer: usize) -> CacheResult<usize> {
        Ok(self.table(id, layer)?.rows())
    }

    /// Whether a sequence has row statistics, so that single rows can be evicted.
    pub fn has_row_stats(&self, id: SequenceId) -> CacheResult<bool> {
        Ok(self.sequences.get(id)?.has_row_stats)
    }

    /// The largest [`KvView::spans`] of any layer after `tokens` more. Blocks may be missing or hidden anywhere, so the
    /// number of rows does not bound it.
    ///
    /// [`KvView::spans`]: haversack_kernels::attention::KvView::spans
    pub fn max_spans_after(&self, id: SequenceId, tokens: usize) -> CacheResult<usize> {
        let sequence = self.sequences.get(id)?;
        let first = sequence.position;
        let end = first.saturating_add(tokens as u64);
        let spans = sequence.tables.iter().map(|t| t.spans_with(first, end));
        Ok(spans.max().unwrap_or(0))
    }

    pub fn stats(&self, id: SequenceId) -> CacheResult<SequenceStats> {
        let sequence = self.sequences.get(id)?;
        Ok(SequenceStats {
            position: sequence.position,
            rows: sequence.rows(),
            rows_peak: sequence.rows_peak,
            bytes: sequence.block_bytes(&self.storage),
        })
    }

    /// [`SequenceStats::bytes`] with each block divided among its holders, so that the shares of all sequences are the sum of
    /// live blocks.
    pub fn share_bytes(&self, id: SequenceId) -> CacheResult<usize> {
        Ok(self.sequences.get(id)?.share_bytes(&self.storage))
    }

    /// The blocks of a sequence, for a policy.
    pub fn snapshot(&self, id: SequenceId) -> CacheResult<Snapshot> {
        self.sequences.get(id)?.snapshot(&self.storage)
    }

    /// One layer as attention reads it, including rows of the step in progress.
    pub fn view(&self, id: SequenceId, layer: usize) -> CacheResult<TableView<'_>> {
        let sequence = self.sequences.get(id)?;
        let of = self.storage.layer(layer)?;
        let table = &sequence.tables[layer];
        Ok(self.storage.view(of, table, &sequence.segments.cuts))
    }

    /// Positions of the rows that a layer has, block by block.
    pub fn kept_positions(
        &self,
        id: SequenceId,
        layer: usize,
    ) -> CacheResult<impl Iterator<Item = u64> + '_> {
        let table = self.table(id, layer)?;
        let entries = table.entries.iter().enumerate();
        let rows = move |(i, entry): (usize, &crate::BlockEntry)| {
            (0..entry.rows as usize).map(move |slot| table.position(i, slot))
        };
        Ok(entries.flat_map(rows))
    }

    /// (segment): how far back the query's position is shifted for its keys. `[0]` if nothing is evicted or hidden.
    pub fn shifts(&self, id: SequenceId) -> &[u64] {
        let sequence = self.sequences.get(id).ok();
        let shifts = sequence.map(|s| &s.segments.shifts[..]);
        shifts.filter(|s| !s.is_empty()).unwrap_or(&[0])
    }

    /// Whether gaps close from now on.
    pub fn set_positions(&mut self, id: SequenceId, to: PositionMode) -> CacheResult {
        let segments = &mut self.sequences.idle_mut(id)?.segments;
        segments.positions = to;
        segments.rebuild();
        Ok(())
    }

    /// [`Store::zone_bytes`] of one sequence: blocks that its queries read, shared or not.
    pub fn sequence_zone_bytes(&self, id: SequenceId) -> CacheResult<Vec<ZoneBytes>> {
        let sequence = self.sequences.get(id)?;
        Ok(report::sequence_zone_bytes(&self.storage, sequence))
    }

    /// The tokens of one layer, from the first to the last that was fed.
    pub fn token_runs(&self, id: SequenceId, layer: usize) -> CacheResult<Vec<TokenRun>> {
        self.table(id, layer)?;
        let sequence = self.sequences.get(id)?;
        Ok(report::token_runs(&self.storage, sequence, layer))
    }

    fn table(&self, id: SequenceId, layer: usize) -> CacheResult<&BlockTable> {
        let sequence = self.sequences.get(id)?;
        self.storage.layer(layer)?;
        Ok(&sequence.tables[layer])
    }
}

/// Steps.
impl Store {
    /// Starts a step in which each sequence grows by some tokens from the position where the caller believes it to be.
    /// Reserves the worst case; this is the only call of a step that can answer [`CannotFit`], and then nothing has
    /// changed.
    pub fn begin(&mut self, growth: &[SequenceGrowth]) -> CacheResult<Step> {
        let mut step = std::mem::take(&mut self.spare);
        step.add_members(&self.storage, &self.sequences, growth)?;
        let worst = step.worst_case(&self.storage, &self.sequences);
        self.ledger().fit(worst)?;
        if let Err(error) = step.reserve(&mut self.storage, &mut self.sequences) {
            self.end(step);
            return Err(error);
        }
        for member in &step.members {
            self.sequences.slots[member.index].in_step = true;
        }
        self.steps_under_way += 1;
        self.update_peak();
        Ok(step)
    }

    /// Appends rows to one layer: `k` and `v` are (row, kv_head, dim) in the model's basis, keys already rotated. Blocks
    /// that leave the recent zone of the step's last query get their far form.
    pub fn write(
        &mut self,
        exec: Exec<'_>,
        step: &mut Step,
        id: SequenceId,
        layer: usize,
        k: &[f32],
        v: &[f32],
    ) -> CacheResult {
        let (storage, sequences) = (&mut self.storage, &mut self.sequences);
        let rows = NewRows { k, v };
        if write::write(storage, sequences, exec, step, (id, layer), rows)? {
            self.update_kv_peak();
        }
        Ok(())
    }

    /// After attention of a layer: returns near forms that the step made and no later query reads, for the next layer.
    pub fn settle(&mut self, step: &mut Step, layer: usize) {
        step.settle(&mut self.storage, &mut self.sequences, layer);
    }

    /// Ends a step. If a layer of a sequence has not grown by exactly the tokens fed, the step is rolled back and the
    /// error names the layer.
    pub fn commit(&mut self, step: Step) -> CacheResult {
        if let Err(error) = step.check_written(self.storage.layers.len()) {
            self.rollback(step);
            return Err(error);
        }
        step.commit(&mut self.storage, &mut self.sequences);
        self.steps_under_way -= 1;
        let is_prompt = step.members.iter().any(|m| m.tokens as u64 >= SLOTS);
        self.end(step);
        self.storage.release_empty_slabs();
        if self.steps_under_way == 0 {
            self.collapse_full_slabs(if is_prompt { 0 } else { SLABS_WAITING });
        }
        Ok(())
    }

    /// Ends a step as if it had not begun.
    pub fn rollback(&mut self, step: Step) {
        step.roll_back(&mut self.storage, &mut self.sequences);
        self.steps_under_way -= 1;
        self.end(step);
        self.storage.release_empty_slabs();
    }

    fn end(&mut self, mut step: Step) {
        step.forfeit(&mut self.storage.pools);
        self.spare = step;
    }

    /// After a step of `tokens` tokens of a sequence: recodes its share of the block that leaves the recent zone next.
    pub fn recode_ahead(&mut self, exec: Exec<'_>, id: SequenceId, tokens: usize) -> CacheResult {
        let index = self.sequences.idle_index(id)?;
        let share = recode_ahead::share(&self.storage, &self.sequences.slots[index], tokens);
        if share > 0 {
            let ledger = self.ledger();
            let sequence = &mut self.sequences.slots[index];
            if recode_ahead::recode(&mut self.storage, sequence, ledger, exec, share) > 0 {
                self.update_peak();
            }
        }
        Ok(())
    }
}

/// Images.
impl Store {
    /// The first block that may still change. All full blocks before it have their final form.
    pub fn first_mutable_block(&self, id: SequenceId) -> CacheResult<u64> {
        let position = self.sequences.get(id)?.position;
        Ok(image::first_mutable_block(&self.storage, position))
    }

    /// The blocks that any layer has, in order.
    pub fn blocks(&self, id: SequenceId) -> CacheResult<Vec<u64>> {
        image::blocks(self.sequences.get(id)?)
    }

    /// Bytes of a column whose block all layers have in the far form.
    pub fn column_bytes(&self) -> usize {
        image::column_bytes(&self.storage)
    }

    /// Appends one block of every layer to `out`.
    pub fn column(&self, id: SequenceId, block: u64, out: &mut Vec<u8>) -> CacheResult {
        let sequence = self.sequences.with_image(id)?;
        image::write_column(&self.storage, sequence, block, out)
    }

    /// Appends all but the columns to `out`.
    pub fn outline(&self, id: SequenceId, out: &mut Vec<u8>) -> CacheResult {
        let sequence = self.sequences.with_image(id)?;
        image::write_outline(&self.storage, sequence, out)
    }

    /// Opens the sequence of an image. Everything is checked first; then all of it fits or nothing has happened.
    pub fn restore(&mut self, image: Image<'_>) -> CacheResult<SequenceId> {
        let outline = self.read_outline(image.outline)?;
        let columns = image::read_columns(&self.storage, &outline, image.columns)?;
        self.restore_from(&outline, &columns, &[])
    }

    /// Opens the sequence of an image, as [`Store::restore`] does; blocks that `shared` has too, byte for byte, stay in its
    /// file.
    pub fn restore_shared(
        &mut self,
        image: Image<'_>,
        shared: MappedImage<'_>,
    ) -> CacheResult<SequenceId> {
        let outline = self.read_outline(image.outline)?;
        let mut columns = image::read_columns(&self.storage, &outline, image.columns)?;
        let other = self.read_outline(shared.outline)?;
        let mapped = mapped::read_columns(&self.storage, &other, shared)?;
        for column in &mut columns {
            column.share(&self.storage, &mapped, shared.regions);
        }
        self.restore_from(&outline, &columns, shared.regions)
    }

    /// The parts of a mapped image of a sequence, except its outline.
    pub fn mapped_layout(&self, id: SequenceId) -> CacheResult<ImageLayout<'_>> {
        mapped::layout(&self.storage, self.sequences.with_image(id)?)
    }

    /// Opens the sequence of a mapped image; its full blocks stay in the file. Everything is checked first, as in
    /// [`Store::restore`], except the bytes of the blocks, for which the caller vouches.
    pub fn restore_mapped(&mut self, image: MappedImage<'_>) -> CacheResult<SequenceId> {
        let outline = self.read_outline(image.outline)?;
        let columns = mapped::read_columns(&self.storage, &outline, image)?;
        self.restore_from(&outline, &columns, image.regions)
    }

    fn read_outline<'a>(&self, bytes: &'a [u8]) -> CacheResult<Outline<'a>> {
        if self.row_stats.is_some() {
            return Err(CacheError::NoImage);
        }
        Outline::read(&self.storage, bytes)
    }

    fn restore_from(
        &mut self,
        outline: &Outline<'_>,
        columns: &[Column<'_>],
        regions: &[Region],
    ) -> CacheResult<SequenceId> {
        image::check(&self.storage, outline, columns)?;
        let id = self.open()?;
        let ledger = self.ledger();
        let sequence = self.sequences.get_mut(id)?;
        let storage = &mut self.storage;
        if let Err(error) = image::fill(storage, sequence, ledger, outline, columns, regions) {
            self.close(id)?;
            return Err(error);
        }
        self.update_peak();
        self.update_kv_peak();
        Ok(id)
    }

    /// Puts evicted blocks back where they were. They must be final, and not stored now.
    pub fn mount(&mut self, id: SequenceId, columns: &[&[u8]]) -> CacheResult {
        self.sequences.with_image(id)?;
        let ledger = self.ledger();
        let sequence = self.sequences.idle_mut(id)?;
        image::mount(&mut self.storage, sequence, ledger, columns)?;
        self.update_peak();
        self.update_kv_peak();
        Ok(())
    }
}
