//! Single rows of a layer: their statistics, evicting those that a row policy chose, copying them out and back.
//!
//! ```text
//! before    A·CD E·GH …  WXYZ | recent       two rows are evicted, one from each of two old blocks
//! after     AZCD EYGH …  WX   | recent       the newest old rows move into their slots
//! ```
//!
//! So blocks stay full, no key is decoded or rotated, and the work is one move per evicted row however long the table
//! is. Order inside a table does not matter to attention; the row statistics hold each row's position.
//!
//! Only blocks outside the recent zone take part, and never those of the first tokens.
//!
//! Copies are for callers that judge rows before evicting or changing them: blocks of [`LayerShape::final_shape`], full
//! except the last, in the order of the list. No row is decoded, so the caller judges exactly what attention reads.

use super::Store;
use super::sequence::SequenceId;
use crate::annotations::{self, ANNOTATIONS_MAX, Annotation};
use crate::counting::AttentionCounting;
use crate::error::{CacheError, CacheResult, with_room};
use crate::policy::rows::{LayerView, SINK_COLUMNS};
use crate::row_stats::KvRow;
use crate::size::{LayerShape, SLOTS, Zones};
use crate::table::{BlockEntry, BlockTable, low_bits};
use haversack_kernels::format::kv::slots::{copy_slot, move_slot};
use haversack_kernels::format::kv::{BLOCK_SLOTS, KvShape};
use std::ops::Range;

impl Store {
    /// Adds the attention of queries at these positions to the row statistics of a layer: `mass` is (kv_head, slot) of
    /// all its blocks, counted as `counting` says. `counting` must be the same for all calls.
    pub fn record_attention(
        &mut self,
        id: SequenceId,
        layer: usize,
        counting: &AttentionCounting,
        queries: Range<u64>,
        mass: &[u64],
    ) -> CacheResult {
        let sequence = self.sequences.get_mut(id)?;
        let kv_heads = self.storage.layer(layer)?.shape.kv_heads as u64;
        let table = &mut sequence.tables[layer];
        let Some(stats) = table.row_stats.as_mut().filter(|_| !queries.is_empty()) else {
            return Ok(());
        };
        let block = queries.start / SLOTS;
        if let Some(decay) = counting.decay {
            let (from, to) = (queries.start, queries.end - 1);
            if to / SLOTS != block {
                return Err(CacheError::Unaligned { from, to });
            }
            for _ in table.decayed_to..block {
                table.full_mass = ((u128::from(table.full_mass) * u128::from(decay)) >> 32) as u64;
                stats.decay(decay);
                if table.full_mass == 0 {
                    break;
                }
            }
            table.decayed_to = block;
        }
        let len = queries.end - queries.start;
        let whole = counting.count.whole(queries.start, len, counting.every);
        if whole == 0 {
            // Between two queries that are counted.
            return Ok(());
        }
        let whole = whole.saturating_mul(kv_heads);
        table.full_mass = table.full_mass.saturating_add(whole);
        stats.count(counting.count, mass);
        Ok(())
    }

    /// One layer as a row policy sees it, without a cap and with nothing too old.
    pub fn layer_view(
        &self,
        id: SequenceId,
        layer: usize,
        anchors: u64,
    ) -> CacheResult<LayerView<'_>> {
        let table = self.table(id, layer)?;
        let (sequence, zones) = (self.sequences.get(id)?, self.storage.zones);
        // The first block keeps its rows, or lost all of them.
        let columns = SINK_COLUMNS.max(zones.sinks as u64) as usize;
        let first = table.entries.first().filter(|e| e.first_position == 0);
        let sinks = first.map_or(0, |entry| columns.min(entry.rows as usize));
        let stats = table.row_stats.as_ref();
        let sink_mass = stats.map_or(0, |stats| stats.attention_of_first(sinks));
        Ok(LayerView {
            layer,
            layers: self.storage.layers.len(),
            position: sequence.position,
            rows: table.rows,
            max_rows: usize::MAX,
            min_position: 0,
            budget_used: 1.0,
            evictable: evictable_positions(zones, sequence.position, anchors),
            non_sink_rows: table.rows - sinks,
            full_mass: table.full_mass.saturating_sub(sink_mass),
            annotations: sequence.annotations.list(),
        })
    }

    /// Annotates a range of a sequence, as a turn or as something that must stay. It takes its positions from earlier
    /// annotations.
    pub fn annotate(&mut self, id: SequenceId, range: Range<u64>, protected: bool) -> CacheResult {
        let index = self.sequences.idle_index(id)?;
        if range.is_empty() {
            let (start, end) = (range.start, range.end);
            return Err(CacheError::BadSpan { start, end });
        }
        let annotations = &self.sequences.slots[index].annotations;
        let same = annotations::at(annotations.list(), range.start);
        if same.is_some_and(|a| (a.start..a.end) == range && a.protected == protected) {
            return Ok(());
        }
        let count = annotations.list().len();
        if count + 2 > ANNOTATIONS_MAX {
            return Err(CacheError::TooMany {
                what: "the number of annotations",
                found: count + 1,
                max: ANNOTATIONS_MAX - 2,
            });
        }
        let more = annotations.room_wanted();
        self.ledger().fit(more * size_of::<Annotation>())?;
        let annotations = &mut self.sequences.slots[index].annotations;
        annotations.make_room(more)?;
        annotations.insert(range, protected);
        self.update_peak();
        Ok(())
    }

    /// What stays of a layer whose annotations protect only positions from `from` on, and at most `max` of them, the first
    /// ones.
    pub fn kept_zone(
        &self,
        id: SequenceId,
        anchors: u64,
        from: u64,
        max: u64,
    ) -> CacheResult<KeptZone> {
        let until = annotations::protected_until(self.annotations(id)?, from, max);
        Ok(KeptZone {
            anchors,
            protected: from..until,
        })
    }

    /// The annotations, in order.
    pub fn annotations(&self, id: SequenceId) -> CacheResult<&[Annotation]> {
        Ok(self.sequences.get(id)?.annotations.list())
    }

    /// The rows of a layer that can be evicted: in full blocks, older than the recent zone and after the first `anchors`
    /// tokens. `rows` is emptied first.
    pub fn evictable_rows(
        &self,
        id: SequenceId,
        layer: usize,
        anchors: u64,
        rows: &mut Vec<KvRow>,
    ) -> CacheResult {
        self.evictable_rows_outside(id, layer, &KeptZone::behind(anchors), rows)
    }

    /// The same, with those protected that `kept` has.
    pub fn evictable_rows_outside(
        &self,
        id: SequenceId,
        layer: usize,
        kept: &KeptZone,
        rows: &mut Vec<KvRow>,
    ) -> CacheResult {
        let anchors = kept.anchors;
        let table = self.table(id, layer)?;
        let sequence = self.sequences.get(id)?;
        rows.clear();
        let Some(stats) = &table.row_stats else {
            return Ok(());
        };
        for i in evictable_entries(self.storage.zones, table, sequence.position, anchors) {
            rows.extend((0..table.entries[i].rows as usize).map(|slot| {
                let position = u64::from(stats.position(i, slot));
                let (mass, norm_sq) = stats.attention_and_norm(i, slot);
                KvRow {
                    position,
                    mass,
                    norm_sq,
                    worth: 0.0,
                    entry: i as u32,
                    slot: slot as u8,
                    protected: kept.protects(sequence.annotations.list(), position),
                }
            }));
        }
        Ok(())
    }

    /// Evicts rows of one layer. Rows are named as [`Store::evictable_rows`] returned them; if one is protected or was not
    /// returned, the call is refused and nothing has changed.
    pub fn evict_rows(
        &mut self,
        id: SequenceId,
        layer: usize,
        anchors: u64,
        leave: &[KvRow],
    ) -> CacheResult<usize> {
        self.evict_rows_outside(id, layer, &KeptZone::behind(anchors), leave)
    }

    /// The same of rows that [`Store::evictable_rows_outside`] returned.
    pub fn evict_rows_outside(
        &mut self,
        id: SequenceId,
        layer: usize,
        kept: &KeptZone,
        leave: &[KvRow],
    ) -> CacheResult<usize> {
        let anchors = kept.anchors;
        let ledger = self.ledger();
        let sequence = self.sequences.idle_mut(id)?;
        let storage = &mut self.storage;
        storage.layer(layer)?;
        let table = &mut sequence.tables[layer];
        let entries = evictable_entries(storage.zones, table, sequence.position, anchors);
        let mut live = rows_left(
            table,
            &entries,
            (sequence.annotations.list(), kept),
            layer,
            leave,
        )?;
        if leave.is_empty() {
            return Ok(0);
        }
        let of = &storage.layers[layer];
        let shape = of.shape.final_shape();
        let pool = &mut storage.pools[of.far_pool];
        // A shared block is copied before a row moves into it. Rows move to the front, also into a block that has lost all of
        // its own.
        let rows: u32 = live.iter().map(|bits| bits.count_ones()).sum();
        let filled = rows.div_ceil(SLOTS as u32) as usize;
        let copies = entries.clone().zip(&live).take(filled);
        let is_shared = |i: usize| pool.is_shared(table.entries[i].final_block());
        let copies = copies.filter(|&(i, &bits)| bits != u32::MAX && is_shared(i));
        let copies = copies.count();
        ledger.fit(pool.bytes_to_reserve(copies))?;
        let mut reservation = pool.reserve(copies)?;

        let (mut low, mut high) = (0, live.len());
        // Entries from `high` on are empty; those before `low` are full.
        while low < high {
            if live[low] == u32::MAX {
                low += 1;
                continue;
            }
            if live[high - 1] == 0 {
                high -= 1;
                continue;
            }
            let (to, from) = (entries.start + low, entries.start + high - 1);
            let hole = live[low].trailing_ones() as usize;
            let last = 31 - live[high - 1].leading_zeros() as usize;
            if low == high - 1 && hole > last {
                // Its rows are adjacent, at the front.
                break;
            }
            let entry = &mut table.entries[to];
            if pool.is_shared(entry.final_block()) {
                entry.replace_final_block(pool.make_private(entry.final_block(), &mut reservation));
            }
            let to_id = entry.final_block();
            let from_id = table.entries[from].final_block();
            if from_id == to_id {
                move_slot(shape, pool.bytes_mut(to_id), last, hole);
            } else {
                let (from, to) = pool.pair_mut(from_id, to_id);
                copy_slot(shape, from, last, to, hole);
            }
            if let Some(stats) = &mut table.row_stats {
                stats.move_row((from, last), (to, hole));
            }
            live[low] |= 1 << hole;
            live[high - 1] &= !(1 << last);
        }
        pool.forfeit(reservation);
        for (entry, bits) in table.entries[entries.clone()].iter_mut().zip(&live) {
            entry.rows = bits.count_ones();
        }
        for entry in table.remove(entries.start + high..entries.end) {
            of.release(&mut storage.pools, &entry);
        }
        table.rebuild();
        sequence.rows_evicted_at = sequence.position;
        storage.release_empty_slabs();
        Ok(leave.len())
    }

    /// Declares that no layer has a row of these positions any more: with compact positions the gap closes.
    pub fn close_gap(&mut self, id: SequenceId, gap: Range<u64>) -> CacheResult {
        let mut ledger = self.ledger();
        let sequence = self.sequences.idle_mut(id)?;
        sequence.reserve_gaps(&mut ledger, 1)?;
        if gap.start < gap.end && gap.end <= sequence.position {
            sequence.segments.evict(gap);
            sequence.segments.evicted_at = sequence.position;
            sequence.segments.rebuild();
        }
        Ok(())
    }

    /// Copies rows into `to`, whole blocks of [`LayerShape::final_shape`]. Unused slots of the last block keep what they
    /// hold.
    pub fn copy_rows(
        &self,
        id: SequenceId,
        layer: usize,
        rows: &[KvRow],
        to: &mut [u8],
    ) -> CacheResult {
        let (table, storage) = (self.table(id, layer)?, &self.storage);
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

    /// Writes rows back as [`Store::copy_rows`] copied them, or changed. Shared blocks are copied first. On error nothing
    /// has changed.
    pub fn replace_rows(
        &mut self,
        id: SequenceId,
        layer: usize,
        rows: &[KvRow],
        from: &[u8],
    ) -> CacheResult {
        let ledger = self.ledger();
        let sequence = self.sequences.idle_mut(id)?;
        let storage = &mut self.storage;
        let of = storage.layer(layer)?;
        let table = &mut sequence.tables[layer];
        let shape = of.shape.final_shape();
        check_room(layer, shape, rows.len(), from.len())?;
        let mut touched = vec![false; table.entries.len()];
        for row in rows {
            touched[final_entry(table, of.shape, layer, row)?] = true;
        }
        let far_pool = of.far_pool;
        let pool = &mut storage.pools[far_pool];
        let is_shared = |i: &usize| pool.is_shared(table.entries[*i].final_block());
        let touched = (0..touched.len()).filter(|&i| touched[i]);
        let shared: Vec<usize> = touched.filter(is_shared).collect();
        ledger.fit(pool.bytes_to_reserve(shared.len()))?;
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
}

/// Entries whose rows can be evicted. They are adjacent.
fn evictable_entries(
    zones: Zones,
    table: &BlockTable,
    position: u64,
    anchors: u64,
) -> Range<usize> {
    if table.row_stats.is_none() {
        return 0..0;
    }
    let positions = evictable_positions(zones, position, anchors);
    let start = table.entries_before(positions.start);
    start..table.entries_before(positions.end).max(start)
}

/// In whole blocks.
fn evictable_positions(zones: Zones, position: u64, anchors: u64) -> Range<u64> {
    // The first block keeps the sinks.
    let first = anchors.max(zones.sinks.min(1) as u64);
    let start = first.checked_next_multiple_of(SLOTS).unwrap_or(u64::MAX);
    let recent = zones.recent_blocks().saturating_add(1);
    start..((position / SLOTS).saturating_sub(recent) * SLOTS).max(start)
}

/// (entry): the slots in use after `leave` left. Refuses rows that are not evictable, protected, or named twice.
fn rows_left(
    table: &BlockTable,
    entries: &Range<usize>,
    (annotations, kept): (&[Annotation], &KeptZone),
    layer: usize,
    leave: &[KvRow],
) -> CacheResult<Vec<u32>> {
    let mut live: Vec<u32> = with_room(entries.len())?;
    let rows = table.entries[entries.clone()].iter();
    live.extend(rows.map(|e| low_bits(e.rows)));
    for row in leave {
        let entry = row.entry as usize;
        let at = entry.checked_sub(entries.start);
        let bits = at.and_then(|at| live.get_mut(at));
        let bit = 1u32.checked_shl(u32::from(row.slot)).unwrap_or(0);
        let stays = || kept.protects(annotations, table.position(entry, row.slot.into()));
        match bits {
            Some(bits) if *bits & bit != 0 && !stays() => *bits &= !bit,
            _ => return Err(not_evictable(layer, row)),
        }
    }
    Ok(live)
}

/// What a layer keeps whatever a policy chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptZone {
    /// First tokens.
    pub anchors: u64,
    /// Positions in which annotations protect rows.
    pub protected: Range<u64>,
}

impl KeptZone {
    /// The first tokens, and everything that is protected.
    pub fn behind(anchors: u64) -> KeptZone {
        KeptZone {
            anchors,
            protected: 0..u64::MAX,
        }
    }

    fn protects(&self, list: &[Annotation], position: u64) -> bool {
        let is_protected = |annotation: &Annotation| annotation.protected;
        self.protected.contains(&position)
            && annotations::at(list, position).is_some_and(is_protected)
    }
}

fn check_room(layer: usize, shape: KvShape, rows: usize, found: usize) -> CacheResult {
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
) -> CacheResult<usize> {
    let index = row.entry as usize;
    let is_final = |e: &&BlockEntry| u32::from(row.slot) < e.rows && e.is_near() != shape.zoned();
    match table.entries.get(index).filter(is_final) {
        Some(_) => Ok(index),
        None => Err(not_evictable(layer, row)),
    }
}

fn not_evictable(layer: usize, row: &KvRow) -> CacheError {
    let position = row.position;
    CacheError::NotEvictable { layer, position }
}
