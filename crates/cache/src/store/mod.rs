//! Sequences over pools of blocks: the one place where tables change.
//!
//! [`step`] and [`write`] grow sequences (`begin` → `write` → `settle` → `commit`, or `rollback`),
//! [`ahead`] makes far forms before they are seen, [`evict`] makes them shorter, [`hide`] hides rows, [`tidy`] gives memory back. This file holds what they share, and opens, forks and
//! closes sequences.
//!
//! Invariants between steps: an entry has one form, but for the far form that is made ahead of what leaves the
//! recent zone next; near forms are exactly those within the recent zone of the last position; a layer with a window holds no block that its next query cannot see;
//! the sum of all accounts is within the budget.

mod ahead;
mod audit;
mod evict;
mod hide;
mod image;
mod mapped;
mod picture;
mod rows;
mod step;
mod thin;
mod tidy;
mod write;

pub use evict::Applied;
pub use image::Image;
pub use mapped::{Laid, MappedImage};
pub use picture::{Run, Spot, Zone, ZoneBytes};
pub use step::{Grow, Step};

use crate::coding::{Mean, Staging};
use crate::error::{CacheError, CannotFit};
use crate::ledger::{Account, Ledger};
use crate::notes::{Notes, Noting};
use crate::policy::{Held, Positions, Snapshot};
use crate::pool::{BlockId, Census, Pool, reserve_exact};
use crate::segments::Segments;
use crate::size::{LayerShape, Zones};
use crate::spans::Spans;
use crate::table::{Entry, FormView, Table, TableView};
use haversack_kernels::format::kv::BLOCK_SLOTS;
use haversack_kernels::format::kv::error_feedback::ErrorFeedback;
use haversack_memory::zoo::{Bug, planted};
use haversack_memory::{Backing, Faults};

/// Slabs of this many bytes: a huge page each, and less than a block beyond it in small ones. A short chat
/// stays small all the same: pages of a slab that is not full are in memory where they were written.
const SLAB_BYTES: usize = 2 << 20;

#[derive(Clone, Debug)]
pub struct StoreOptions {
    pub layers: Vec<LayerShape>,
    pub zones: Zones,
    /// (layer): the mean key, (kv_head, dim), in the model's own basis. An empty list = none.
    pub means: Vec<Option<Vec<f32>>>,
    /// (layer): where the rounding errors of keys go. An empty list = nowhere.
    pub carries: Vec<Option<ErrorFeedback>>,
    /// Ceiling for everything in the [`Ledger`]; `None` = what the system gives.
    pub budget_bytes: Option<usize>,
    /// Remember where each row came from and how much attention it gets, so that rows can leave one by
    /// one ([`Store::thin`]): of every sequence that says nothing else.
    pub notes: Option<Noting>,
    /// Where the pages of blocks come from.
    pub backing: Backing,
    /// Arena calls that fail, for tests.
    pub faults: Option<Faults>,
    /// Rounded up to whole blocks.
    pub slab_bytes: usize,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            layers: Vec::new(),
            zones: Zones::default(),
            means: Vec::new(),
            carries: Vec::new(),
            budget_bytes: None,
            notes: None,
            backing: Backing::default(),
            faults: None,
            slab_bytes: SLAB_BYTES,
        }
    }
}

/// One sequence of one store, by slot and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId {
    index: u32,
    generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceStats {
    /// Tokens seen.
    pub position: u64,
    /// Rows kept, in the fullest layer.
    pub rows: usize,
    /// The most that `rows` has been.
    pub rows_peak: usize,
    /// Bytes of the blocks that queries of this sequence see; shared blocks count for each holder. Far forms that were
    /// made ahead are not among them.
    pub bytes: usize,
}

/// What is fixed about a layer.
struct Layer {
    shape: LayerShape,
    near_pool: usize,
    /// The same as `near_pool` where near and far are one form.
    far_pool: usize,
    sink_pool: Option<usize>,
    mean: Option<Mean>,
    carry: Option<ErrorFeedback>,
}

#[derive(Default)]
struct Sequence {
    generation: u32,
    /// (layer); empty when the slot is free.
    tables: Vec<Table>,
    position: u64,
    rows_peak: usize,
    open: bool,
    in_step: bool,
    segments: Segments,
    spans: Spans,
    /// Where it stood when rows last left one by one.
    thinned_at: u64,
    /// Rows are remembered, so that they can.
    noted: bool,
}

impl Sequence {
    /// Rows of the fullest layer.
    fn rows(&self) -> usize {
        self.tables.iter().map(Table::rows).max().unwrap_or(0)
    }
}

/// Full slabs of a pool that wait for huge pages while single tokens are fed: copying one takes as long as a third of a
/// token of a small model, and whoever reads a prompt waits anyway. A long answer gets them all the same.
const SLABS_WAITING: usize = 4;

/// Gaps that every sequence has room for, so that making room does not ask for room. With anchors and
/// a window there is one, and a few when their numbers change on the way.
const GAPS: usize = 8;

pub struct Store {
    shapes: Vec<LayerShape>,
    layers: Vec<Layer>,
    zones: Zones,
    /// One pool per block size.
    pools: Vec<Pool>,
    sequences: Vec<Sequence>,
    staging: Staging,
    /// The lists of the last step, for the next one.
    spare: Step,
    budget_bytes: Option<usize>,
    notes: Option<Noting>,
    scratch: usize,
    side: usize,
    kv_peak: usize,
    peak: usize,
    steps_under_way: usize,
}

impl Store {
    /// A store without sequences. It takes memory for staging and none for blocks.
    pub fn new(options: StoreOptions) -> Result<Store, CacheError> {
        let StoreOptions { layers, zones, .. } = options;
        if zones.sinks > BLOCK_SLOTS {
            return Err(CacheError::TooMany {
                what: "the number of sinks",
                found: zones.sinks,
                most: BLOCK_SLOTS,
            });
        }
        let mut means = options.means;
        means.resize_with(layers.len(), || None);
        let mut carries = options.carries;
        carries.resize_with(layers.len(), || None);
        let mut pools: Vec<Pool> = Vec::new();
        let mut pool_of = |block_bytes: usize| {
            let known = pools.iter().position(|p| p.block_bytes() == block_bytes);
            if let Some(pool) = known {
                return Ok(pool);
            }
            let faults = options.faults.clone();
            let pool = Pool::new(block_bytes, options.slab_bytes, options.backing, faults)?;
            pools.push(pool);
            Ok::<usize, CacheError>(pools.len() - 1)
        };
        let mut made = Vec::new();
        let stats = means.into_iter().zip(carries);
        for (i, (&shape, (mean, carry))) in layers.iter().zip(stats).enumerate() {
            if !shape.fits() {
                let head_dim = shape.head_dim;
                return Err(CacheError::Form { layer: i, head_dim });
            }
            let sink_bytes = shape.sink_bytes(zones);
            made.push(Layer {
                shape,
                near_pool: pool_of(shape.near_shape().block_bytes())?,
                far_pool: pool_of(shape.far_shape().block_bytes())?,
                sink_pool: match sink_bytes {
                    0 => None,
                    bytes => Some(pool_of(bytes)?),
                },
                mean: mean.map(|mean| mean_of(i, shape, mean)).transpose()?,
                carry: carry.map(|carry| carry_of(i, shape, carry)).transpose()?,
            });
        }
        let store = Store {
            staging: Staging::new(made.iter().map(|l| (l.shape, l.mean.is_some())))?,
            shapes: layers,
            layers: made,
            zones,
            pools,
            sequences: Vec::new(),
            spare: Step::default(),
            budget_bytes: options.budget_bytes,
            notes: options.notes,
            scratch: 0,
            side: 0,
            kv_peak: 0,
            peak: 0,
            steps_under_way: 0,
        };
        store.ledger().fit(0)?;
        Ok(store)
    }

    pub fn layers(&self) -> &[LayerShape] {
        &self.shapes
    }

    pub fn zones(&self) -> Zones {
        self.zones
    }

    /// The layer's mean key in its basis, (kv_head, dim): what attention adds back.
    pub fn mean(&self, layer: usize) -> Option<&[f32]> {
        Some(&self.layers.get(layer)?.mean.as_ref()?.turned)
    }

    /// Where the rounding errors of the layer's keys go.
    pub fn carry(&self, layer: usize) -> Option<&ErrorFeedback> {
        self.layers.get(layer)?.carry.as_ref()
    }

    pub fn ledger(&self) -> Ledger {
        let sum = |f: &dyn Fn(&Pool) -> usize| self.pools.iter().map(f).sum::<usize>();
        Ledger {
            budget: self.budget_bytes,
            kv_live: sum(&|p| (p.live() - p.ahead()) * p.block_bytes()),
            kv_ahead: sum(&|p| p.ahead() * p.block_bytes()),
            kv_file: sum(&|p| p.adopted() * p.block_bytes()),
            kv_promised: sum(&|p| p.promised() * p.block_bytes()),
            kv_peak: self.kv_peak,
            peak: self.peak,
            tables: self.table_bytes() + sum(&|p| p.list_bytes()),
            scratch: self.scratch,
            side: self.side + self.key_bytes(),
            mapped: sum(&|p| p.arena().mapped_bytes()),
        }
    }

    /// (pool): its blocks, counted one by one. For tests and reports.
    pub fn census(&self) -> Vec<Census> {
        self.pools.iter().map(Pool::census).collect()
    }

    /// Bytes of slabs in memory, as the system says; `None` where it does not.
    pub fn resident_bytes(&self) -> Option<u64> {
        let mut pools = self.pools.iter();
        pools.try_fold(0, |sum, p| Some(sum + p.arena().resident_bytes()?))
    }

    /// The pools, for hints and readings of their arenas.
    pub fn pools_mut(&mut self) -> &mut [Pool] {
        &mut self.pools
    }

    /// Sets the level of an account that others keep. It is refused where the sum would pass the
    /// budget.
    pub fn charge(&mut self, account: Account, bytes: usize) -> Result<(), CannotFit> {
        let ledger = self.ledger();
        let level = match account {
            Account::Scratch => &mut self.scratch,
            Account::Side => &mut self.side,
        };
        let before = std::mem::replace(level, bytes);
        if planted(Bug::BudgetAfterAllocating) {
            self.note_total();
        }
        let more = bytes.saturating_sub(before);
        if let Some(error) = ledger.fit(more).err().filter(|_| more > 0) {
            match account {
                Account::Scratch => self.scratch = before,
                Account::Side => self.side = before,
            }
            return Err(error);
        }
        self.note_total();
        Ok(())
    }

    /// Another ceiling from now on. A ceiling below what is held is refused: evict first.
    pub fn set_budget(&mut self, budget_bytes: Option<usize>) -> Result<(), CannotFit> {
        let budget = budget_bytes;
        Ledger {
            budget,
            ..self.ledger()
        }
        .fit(0)?;
        self.budget_bytes = budget_bytes;
        Ok(())
    }

    pub fn open(&mut self) -> Result<SequenceId, CacheError> {
        self.open_noting(self.notes)
    }

    /// A sequence of whose rows something else is remembered than of the others'.
    pub fn open_noting(&mut self, notes: Option<Noting>) -> Result<SequenceId, CacheError> {
        let slot = self.free_slot(Segments::bytes_for(GAPS, 0))?;
        let mut sequence = Sequence {
            segments: Segments::with_room(GAPS, 0)?,
            noted: notes.is_some(),
            ..Sequence::default()
        };
        reserve_exact(&mut sequence.tables, self.layers.len())?;
        let tables = self.layers.iter().map(|layer| Table {
            // A layer with a window of its own loses rows by itself.
            notes: notes
                .filter(|_| layer.shape.window.is_none())
                .map(|noting| Notes::new(noting, layer.shape.kv_heads)),
            ..Table::default()
        });
        sequence.tables.extend(tables);
        Ok(self.admit(slot, sequence))
    }

    /// A second sequence that shares every block with the first. What is partly filled is copied
    /// when either writes to it.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, CacheError> {
        let from = self.idle(id)?;
        let lists: usize = self.sequences[from].tables.iter().map(list_bytes).sum();
        let (gaps, hidden) = self.sequences[from].segments.room();
        let segments = Segments::bytes_for(gaps, hidden);
        let spans = self.sequences[from].spans.copy_bytes();
        let slot = self.free_slot(lists + segments + spans)?;
        let source = &self.sequences[from];
        let mut sequence = Sequence {
            position: source.position,
            segments: source.segments.copy()?,
            spans: source.spans.copy()?,
            thinned_at: source.thinned_at,
            noted: source.noted,
            ..Sequence::default()
        };
        reserve_exact(&mut sequence.tables, self.layers.len())?;
        for table in &source.tables {
            let mut copy = Table {
                sinks: table.sinks,
                rows: table.rows,
                passed: table.passed,
                notes: table.notes.as_ref().map(Notes::copy).transpose()?,
                whole: table.whole,
                aged: table.aged,
                ..Table::default()
            };
            reserve_exact(&mut copy.entries, table.entries.len())?;
            reserve_exact(&mut copy.spans, table.spans.len())?;
            copy.entries.extend_from_slice(&table.entries);
            copy.spans.extend_from_slice(&table.spans);
            sequence.tables.push(copy);
        }
        for (layer, table) in self.layers.iter().zip(&sequence.tables) {
            for entry in &table.entries {
                for (pool, id) in layer.forms(entry) {
                    if entry.first_position > 0 || !planted(Bug::ForkLosesReference) {
                        self.pools[pool].share(id);
                    }
                }
            }
            if let (Some(pool), Some(id)) = (layer.sink_pool, table.sinks) {
                self.pools[pool].share(id);
            }
        }
        Ok(self.admit(slot, sequence))
    }

    pub fn close(&mut self, id: SequenceId) -> Result<(), CacheError> {
        let i = self.idle(id)?;
        let tables = std::mem::take(&mut self.sequences[i].tables);
        for (layer, table) in self.layers.iter().zip(tables) {
            for entry in &table.entries {
                release(&mut self.pools, layer, entry);
            }
            release_sinks(&mut self.pools, layer, table.sinks);
        }
        self.sequences[i] = Sequence {
            generation: self.sequences[i].generation.wrapping_add(1),
            ..Sequence::default()
        };
        self.release_empty_slabs();
        Ok(())
    }

    /// Tokens seen. Cheap, unlike [`Store::stats`], which adds up every block.
    pub fn position(&self, id: SequenceId) -> Result<u64, CacheError> {
        Ok(self.sequences[self.find(id)?].position)
    }

    /// Rows kept, in the fullest layer. Cheap.
    pub fn rows(&self, id: SequenceId) -> Result<usize, CacheError> {
        Ok(self.sequences[self.find(id)?].rows())
    }

    /// Rows kept in one layer.
    pub fn rows_in(&self, id: SequenceId, layer: usize) -> Result<usize, CacheError> {
        self.layer(layer)?;
        Ok(self.sequences[self.find(id)?].tables[layer].rows())
    }

    /// Whether rows of sequences that say nothing else are remembered.
    pub fn is_noting(&self) -> bool {
        self.notes.is_some()
    }

    /// Whether rows of a sequence are remembered, so that they can leave one by one.
    pub fn is_noted(&self, id: SequenceId) -> Result<bool, CacheError> {
        Ok(self.sequences[self.find(id)?].noted)
    }

    /// What [`KvView::spans`] will say of the layer with most once `tokens` more are there. Blocks may be
    /// missing or hidden anywhere, so rows do not bound it.
    ///
    /// [`KvView::spans`]: haversack_kernels::attention::KvView::spans
    pub fn spans_with(&self, id: SequenceId, tokens: usize) -> Result<usize, CacheError> {
        let sequence = &self.sequences[self.find(id)?];
        let first = sequence.position;
        let end = first.saturating_add(tokens as u64);
        let spans = sequence.tables.iter().map(|t| t.spans_with(first, end));
        Ok(spans.max().unwrap_or(0))
    }

    pub fn stats(&self, id: SequenceId) -> Result<SequenceStats, CacheError> {
        let sequence = &self.sequences[self.find(id)?];
        let mut bytes = 0;
        for (layer, table) in self.layers.iter().zip(&sequence.tables) {
            bytes += table
                .entries
                .iter()
                .map(|e| self.entry_bytes(layer, e))
                .sum::<usize>();
            bytes += self.sink_bytes(layer, table);
        }
        Ok(SequenceStats {
            position: sequence.position,
            rows: sequence.rows(),
            rows_peak: sequence.rows_peak,
            bytes,
        })
    }

    /// What a policy decides on.
    pub fn snapshot(&self, id: SequenceId) -> Result<Snapshot, CacheError> {
        let sequence = &self.sequences[self.find(id)?];
        let mut blocks: Vec<Held> = Vec::new();
        let tables = sequence.tables.iter().map(|t| t.entries.len());
        reserve_exact(&mut blocks, tables.max().unwrap_or(0))?;
        for (layer, table) in self.layers.iter().zip(&sequence.tables) {
            for entry in &table.entries {
                let mut bytes = self.entry_bytes(layer, entry) as u64;
                if entry.first_position == 0 {
                    bytes += self.sink_bytes(layer, table) as u64;
                }
                let at = blocks.partition_point(|b| b.first_position < entry.first_position);
                match blocks.get_mut(at) {
                    Some(held) if held.first_position == entry.first_position => {
                        held.bytes += bytes;
                    }
                    _ => {
                        let held = Held {
                            first_position: entry.first_position,
                            rows: entry.rows,
                            bytes,
                        };
                        reserve_exact(&mut blocks, 1)?;
                        blocks.insert(at, held);
                    }
                }
            }
        }
        Ok(Snapshot {
            position: sequence.position,
            blocks,
        })
    }

    /// One layer as attention reads it, rows of the step under way included.
    pub fn view(&self, id: SequenceId, layer: usize) -> Result<TableView<'_>, CacheError> {
        let sequence = &self.sequences[self.find(id)?];
        let made = self.layer(layer)?;
        Ok(TableView {
            table: &sequence.tables[layer],
            near: FormView::new(&self.pools[made.near_pool], made.shape.near_shape()),
            far: FormView::new(&self.pools[made.far_pool], made.shape.far_shape()),
            sinks: made.sink_pool.map(|pool| &self.pools[pool]),
            sink_rows: self.zones.sinks,
            recent_blocks: self.zones.recent_blocks(),
            cuts: &sequence.segments.cuts,
        })
    }

    /// Positions of the rows that a layer still has, block by block.
    pub fn kept(
        &self,
        id: SequenceId,
        layer: usize,
    ) -> Result<impl Iterator<Item = u64> + '_, CacheError> {
        self.layer(layer)?;
        let table = &self.sequences[self.find(id)?].tables[layer];
        let position = |(i, entry): (usize, &Entry), slot: usize| match &table.notes {
            Some(notes) => u64::from(notes.position(i, slot)),
            None => entry.first_position + slot as u64,
        };
        let rows = |entry: &Entry| 0..entry.rows as usize;
        let entries = table.entries.iter().enumerate();
        Ok(entries.flat_map(move |(i, e)| rows(e).map(move |slot| position((i, e), slot))))
    }

    /// (segment): how far back the query stands for its keys. `[0]` where nothing was evicted or is hidden.
    pub fn shifts(&self, id: SequenceId) -> &[u64] {
        let shifts = self
            .find(id)
            .map(|i| &self.sequences[i].segments.shifts[..]);
        shifts.ok().filter(|s| !s.is_empty()).unwrap_or(&[0])
    }

    /// Whether gaps close from now on.
    pub fn set_positions(&mut self, id: SequenceId, to: Positions) -> Result<(), CacheError> {
        let i = self.idle(id)?;
        self.sequences[i].segments.positions = to;
        self.sequences[i].segments.cut();
        Ok(())
    }

    fn layer(&self, layer: usize) -> Result<&Layer, CacheError> {
        self.layers.get(layer).ok_or(CacheError::NoSuchLayer {
            layer,
            layers: self.layers.len(),
        })
    }

    /// A slot for a sequence with `more` bytes of lists, if the budget has room for it.
    fn free_slot(&mut self, more: usize) -> Result<usize, CacheError> {
        let tables = self.layers.len() * size_of::<Table>();
        let free = self.sequences.iter().position(|s| !s.open);
        let slots = self.sequences.len();
        let slot = match free {
            Some(_) => 0,
            None => size_of::<Sequence>() + self.step_bytes(slots + 1) - self.step_bytes(slots),
        };
        self.ledger().fit(tables + more + slot)?;
        if let Some(slot) = free {
            return Ok(slot);
        }
        reserve_exact(&mut self.sequences, 1)?;
        self.sequences.push(Sequence::default());
        Ok(self.sequences.len() - 1)
    }

    fn admit(&mut self, slot: usize, sequence: Sequence) -> SequenceId {
        let generation = self.sequences[slot].generation;
        self.sequences[slot] = Sequence {
            generation,
            open: true,
            ..sequence
        };
        SequenceId {
            index: slot as u32,
            generation,
        }
    }

    fn find(&self, id: SequenceId) -> Result<usize, CacheError> {
        let index = id.index as usize;
        match self.sequences.get(index) {
            Some(s) if s.open && s.generation == id.generation => Ok(index),
            _ => Err(CacheError::Closed { index }),
        }
    }

    fn idle(&self, id: SequenceId) -> Result<usize, CacheError> {
        let index = self.find(id)?;
        if self.sequences[index].in_step {
            return Err(CacheError::Busy { index });
        }
        Ok(index)
    }

    /// Of the form that counts.
    fn entry_bytes(&self, layer: &Layer, entry: &Entry) -> usize {
        let form = layer.form(entry);
        form.map_or(0, |(pool, _)| self.pools[pool].block_bytes())
    }

    fn sink_bytes(&self, layer: &Layer, table: &Table) -> usize {
        let pool = table.sinks.and(layer.sink_pool);
        pool.map_or(0, |pool| self.pools[pool].block_bytes())
    }

    /// Sequences, staging, and the lists of a step.
    fn table_bytes(&self) -> usize {
        let sequences = self.sequences.iter().map(Sequence::bytes).sum::<usize>();
        self.sequences.capacity() * size_of::<Sequence>()
            + sequences
            + self.staging.bytes()
            + self.step_bytes(self.sequences.len())
    }

    /// The lists of a step of so many sequences.
    fn step_bytes(&self, members: usize) -> usize {
        Step::bytes_for(members, self.layers.len(), self.pools.len())
    }

    /// What layers know about their keys.
    fn key_bytes(&self) -> usize {
        let of = |layer: &Layer| {
            layer.mean.as_ref().map_or(0, Mean::bytes)
                + layer.carry.as_ref().map_or(0, ErrorFeedback::bytes)
        };
        self.layers.iter().map(of).sum()
    }

    fn release_empty_slabs(&mut self) -> usize {
        let pools = self.pools.iter_mut();
        pools.map(Pool::release_empty_slabs).sum()
    }

    /// Puts slabs that have become full into huge pages, all but so many of each pool. The system holds both until it
    /// has copied, so there must be room in the budget for one more.
    fn collapse_full_slabs(&mut self, waiting: usize) {
        for pool in 0..self.pools.len() {
            loop {
                let slab = self.pools[pool].full_slabs().nth(waiting);
                let Some(slab) = slab else { break };
                let bytes = self.pools[pool].arena().slab_bytes();
                if self.ledger().fit(bytes).is_err() {
                    return;
                }
                self.pools[pool].collapse(slab);
            }
        }
    }

    /// After something was promised or charged: nothing else makes the total grow.
    fn note_total(&mut self) {
        self.peak = self.peak.max(self.ledger().total());
    }

    fn note_peak(&mut self) {
        let live = |p: &Pool| (p.live() - p.ahead()) * p.block_bytes();
        self.kv_peak = self.kv_peak.max(self.pools.iter().map(live).sum());
    }
}

impl Layer {
    /// Which block of which pool: the forms an entry has.
    fn forms(&self, entry: &Entry) -> impl Iterator<Item = (usize, BlockId)> + use<> {
        let near = entry.near.map(|id| (self.near_pool, id));
        let far = entry.far.map(|id| (self.far_pool, id));
        near.into_iter().chain(far)
    }

    /// The form that counts: the near one while there is one.
    fn form(&self, entry: &Entry) -> Option<(usize, BlockId)> {
        self.forms(entry).next()
    }
}

impl Sequence {
    fn bytes(&self) -> usize {
        self.tables.capacity() * size_of::<Table>()
            + self.tables.iter().map(Table::bytes).sum::<usize>()
            + self.segments.bytes()
            + self.spans.bytes()
    }
}

fn mean_of(layer: usize, shape: LayerShape, mean: Vec<f32>) -> Result<Mean, CacheError> {
    if mean.len() != shape.width() {
        return Err(CacheError::Mean {
            layer,
            expected: shape.width(),
            found: mean.len(),
        });
    }
    Mean::new(shape, mean)
}

fn carry_of(
    layer: usize,
    shape: LayerShape,
    carry: ErrorFeedback,
) -> Result<ErrorFeedback, CacheError> {
    if carry.kv_heads() != shape.kv_heads || carry.head_dim() != shape.head_dim {
        return Err(CacheError::Carry { layer });
    }
    Ok(carry)
}

/// Bytes of a copy of the table's lists.
fn list_bytes(table: &Table) -> usize {
    table.entries.len() * size_of::<Entry>()
        + size_of_val(&table.spans[..])
        + table.notes.as_ref().map_or(0, Notes::copy_bytes)
}

/// One table less holds what the entry names.
fn release(pools: &mut [Pool], layer: &Layer, entry: &Entry) {
    for (pool, id) in layer.forms(entry) {
        pools[pool].release(id);
    }
}

/// Far forms of near entries go, all but `kept`.
fn release_far(pools: &mut [Pool], layer: &Layer, table: &mut Table, kept: Option<BlockId>) {
    for entry in table.entries.iter_mut().rev().filter(|e| e.is_near()) {
        if let Some(far) = entry.far.take_if(|far| Some(*far) != kept) {
            pools[layer.far_pool].release(far);
        }
    }
}

fn release_sinks(pools: &mut [Pool], layer: &Layer, sinks: Option<BlockId>) {
    if let (Some(pool), Some(id)) = (layer.sink_pool, sinks) {
        pools[pool].release(id);
    }
}
