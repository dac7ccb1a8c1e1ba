//! Evicting single rows of a layer, chosen by a row policy.
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

use super::sequence::Sequence;
use super::storage::Storage;
use crate::annotations::{self, Annotation};
use crate::counting::AttentionCounting;
use crate::error::{CacheError, reserve_exact};
use crate::ledger::Ledger;
use crate::policy::rows::{LayerView, SINK_COLUMNS};
use crate::pool::{BlockId, BlockPool};
use crate::row_stats::KvRow;
use crate::size::{SLOTS, Zones};
use crate::table::{BlockTable, low_bits};
use haversack_kernels::format::kv::KvShape;
use haversack_kernels::format::kv::slots::{copy_slot, move_slot};
use std::ops::Range;

/// Adds the attention of `queries` to the statistics of a table; `mass` is (kv_head, slot) of all its blocks.
pub(super) fn record_attention(
    table: &mut BlockTable,
    kv_heads: u64,
    counting: &AttentionCounting,
    queries: Range<u64>,
    mass: &[u64],
) -> Result<(), CacheError> {
    let Some(stats) = table.row_stats.as_mut().filter(|_| !queries.is_empty()) else {
        return Ok(());
    };
    let block = queries.start / SLOTS;
    if let Some(decay) = counting.decay {
        if (queries.end - 1) / SLOTS != block {
            return Err(CacheError::Unaligned {
                from: queries.start,
                to: queries.end - 1,
            });
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
pub(super) fn layer_view<'a>(
    storage: &Storage,
    sequence: &'a Sequence,
    layer: usize,
    anchors: u64,
) -> LayerView<'a> {
    let table = &sequence.tables[layer];
    // The first block keeps its rows, or lost all of them.
    let columns = SINK_COLUMNS.max(storage.zones.sinks as u64) as usize;
    let first = table.entries.first().filter(|e| e.first_position == 0);
    let sinks = first.map_or(0, |entry| columns.min(entry.rows as usize));
    let stats = table.row_stats.as_ref();
    let sink_mass = stats.map_or(0, |stats| stats.attention_of_first(sinks));
    LayerView {
        layer,
        layers: storage.layers.len(),
        position: sequence.position,
        rows: table.rows,
        max_rows: usize::MAX,
        min_position: 0,
        budget_used: 1.0,
        evictable: evictable_positions(storage.zones, sequence.position, anchors),
        non_sink_rows: table.rows - sinks,
        full_mass: table.full_mass.saturating_sub(sink_mass),
        annotations: sequence.annotations.list(),
    }
}

/// The rows of a layer that can be evicted. `rows` is emptied first.
pub(super) fn evictable_rows(
    zones: Zones,
    sequence: &Sequence,
    layer: usize,
    anchors: u64,
    rows: &mut Vec<KvRow>,
) {
    let table = &sequence.tables[layer];
    rows.clear();
    let Some(stats) = &table.row_stats else {
        return;
    };
    for i in evictable_entries(zones, table, sequence.position, anchors) {
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
                protected: is_protected(sequence.annotations.list(), position),
            }
        }));
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
    let before = |position| {
        table
            .entries
            .partition_point(|e| e.first_position < position)
    };
    let (start, end) = (before(positions.start), before(positions.end));
    start..end.max(start)
}

/// In whole blocks.
fn evictable_positions(zones: Zones, position: u64, anchors: u64) -> Range<u64> {
    // The first block keeps the sinks.
    let first = anchors.max(zones.sinks.min(1) as u64);
    let start = first.checked_next_multiple_of(SLOTS).unwrap_or(u64::MAX);
    let recent = zones.recent_blocks().saturating_add(1);
    start..((position / SLOTS).saturating_sub(recent) * SLOTS).max(start)
}

/// Evicts rows of one layer.
pub(super) fn evict_rows(
    storage: &mut Storage,
    sequence: &mut Sequence,
    ledger: &Ledger,
    layer: usize,
    anchors: u64,
    leave: &[KvRow],
) -> Result<usize, CacheError> {
    let table = &mut sequence.tables[layer];
    let entries = evictable_entries(storage.zones, table, sequence.position, anchors);
    let live = rows_left(table, &entries, sequence.annotations.list(), layer, leave)?;
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
    let copies = copies
        .filter(|&(i, &bits)| bits != u32::MAX && is_shared(i))
        .count();
    let bytes = copies * pool.block_bytes();
    ledger.fit(bytes + pool.list_bytes_to_reserve(copies))?;
    let mut reservation = pool.reserve(copies)?;

    let mut live = live;
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
        move_row(pool, shape, (from_id, last), (to_id, hole));
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

/// (entry): the slots in use after `leave` left. Refuses rows that are not evictable, protected, or named twice.
fn rows_left(
    table: &BlockTable,
    entries: &Range<usize>,
    annotations: &[Annotation],
    layer: usize,
    leave: &[KvRow],
) -> Result<Vec<u32>, CacheError> {
    let mut live: Vec<u32> = Vec::new();
    reserve_exact(&mut live, entries.len())?;
    let rows = table.entries[entries.clone()].iter();
    live.extend(rows.map(|e| low_bits(e.rows)));
    for row in leave {
        let entry = row.entry as usize;
        let at = entry.checked_sub(entries.start);
        let bits = at.and_then(|at| live.get_mut(at));
        let bit = 1u32.checked_shl(u32::from(row.slot)).unwrap_or(0);
        let stays = || is_protected(annotations, table.position(entry, row.slot.into()));
        match bits {
            Some(bits) if *bits & bit != 0 && !stays() => *bits &= !bit,
            _ => {
                return Err(CacheError::NotEvictable {
                    layer,
                    position: row.position,
                });
            }
        }
    }
    Ok(live)
}

fn is_protected(list: &[Annotation], position: u64) -> bool {
    annotations::at(list, position).is_some_and(|annotation| annotation.protected)
}

/// Moves a row from one slot to another.
fn move_row(
    pool: &mut BlockPool,
    shape: KvShape,
    (from, from_slot): (BlockId, usize),
    (to, to_slot): (BlockId, usize),
) {
    if from == to {
        move_slot(shape, pool.bytes_mut(to), from_slot, to_slot);
    } else {
        let (from, to) = pool.pair_mut(from, to);
        copy_slot(shape, from, from_slot, to, to_slot);
    }
}
