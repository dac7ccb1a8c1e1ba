//! Rows that leave one by one: chosen by a policy, taken out by [`Store::thin`].
//!
//! ```text
//! before    A·CD E·GH …  WXYZ | recent       two rows leave, one from each of two old blocks
//! after     AZCD EYGH …  WX   | recent       the newest old rows take their places
//! ```
//!
//! So blocks stay full, no key is decoded or rotated, and the work is one move for each row that left,
//! however long the table is. Order inside a table does not matter to attention; where a row came from is
//! in its [`Notes`](crate::notes::Notes).
//!
//! Only blocks that have left the recent zone take part, and never those of the first tokens.

use super::{SequenceId, Store, release};
use crate::error::CacheError;
use crate::notes::{Notes, Row};
use crate::policy::count::Counting;
use crate::policy::rows::{LayerView, SINK_COLUMNS};
use crate::pool::{BlockId, Pool, reserve_exact};
use crate::size::SLOTS;
use crate::spans::{self, SPANS_MAX, Span};
use crate::table::{Entry, Table, low_bits};
use haversack_kernels::format::kv::slots::{copy_slot, move_slot};
use std::ops::Range;

impl Store {
    /// Adds the attention of queries at these positions to the rows of a layer: `mass` is (kv_head, slot) of all
    /// its blocks, counted as `counting` says. Always the same for a store.
    pub fn note_mass(
        &mut self,
        id: SequenceId,
        layer: usize,
        counting: &Counting,
        queries: Range<u64>,
        mass: &[u64],
    ) -> Result<(), CacheError> {
        let index = self.find(id)?;
        let kv_heads = self.layer(layer)?.shape.kv_heads as u64;
        let table = &mut self.sequences[index].tables[layer];
        let Some(notes) = table.notes.as_mut().filter(|_| !queries.is_empty()) else {
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
            for _ in table.aged..block {
                table.whole = ((u128::from(table.whole) * u128::from(decay)) >> 32) as u64;
                notes.decay(decay);
                if table.whole == 0 {
                    break;
                }
            }
            table.aged = block;
        }
        let len = queries.end - queries.start;
        let whole = counting.count.whole(queries.start, len, counting.every);
        if whole == 0 {
            // Between two queries that are counted.
            return Ok(());
        }
        table.whole = table.whole.saturating_add(whole.saturating_mul(kv_heads));
        notes.count(counting.count, mass);
        Ok(())
    }

    /// One layer as a policy that chooses rows sees it: without a cap, and with nothing too old.
    pub fn layer_view(
        &self,
        id: SequenceId,
        layer: usize,
        anchors: u64,
    ) -> Result<LayerView<'_>, CacheError> {
        let sequence = &self.sequences[self.find(id)?];
        self.layer(layer)?;
        let table = &sequence.tables[layer];
        // The first block keeps its rows, or lost all of them.
        let columns = SINK_COLUMNS.max(self.zones.sinks as u64) as usize;
        let first = table.entries.first().filter(|e| e.first_position == 0);
        let sinks = first.map_or(0, |entry| columns.min(entry.rows as usize));
        let of_sinks = table.notes.as_ref().map_or(0, |n| n.of_first(sinks));
        Ok(LayerView {
            layer,
            layers: self.layers.len(),
            position: sequence.position,
            rows: table.rows,
            most: usize::MAX,
            oldest: 0,
            used: 1.0,
            loose: self.loose_positions(sequence.position, anchors),
            others: table.rows - sinks,
            whole: table.whole.saturating_sub(of_sinks),
            spans: sequence.spans.list(),
        })
    }

    /// Says what a piece of a sequence is: a turn, or something that must stay. It takes its positions from what
    /// was said before.
    pub fn annotate(
        &mut self,
        id: SequenceId,
        span: Range<u64>,
        protected: bool,
    ) -> Result<(), CacheError> {
        let i = self.idle(id)?;
        if span.is_empty() {
            let (start, end) = (span.start, span.end);
            return Err(CacheError::BadSpan { start, end });
        }
        let spans = &self.sequences[i].spans;
        if spans.list().len() + 2 > SPANS_MAX {
            return Err(CacheError::TooMany {
                what: "the number of annotated pieces",
                found: spans.list().len() + 1,
                most: SPANS_MAX - 2,
            });
        }
        let more = spans.wanted();
        self.ledger().fit(more * size_of::<Span>())?;
        self.sequences[i].spans.make_room(more)?;
        self.sequences[i].spans.put(span, protected);
        self.note_total();
        Ok(())
    }

    /// What was annotated, in order.
    pub fn annotations(&self, id: SequenceId) -> Result<&[Span], CacheError> {
        Ok(self.sequences[self.find(id)?].spans.list())
    }

    /// The rows of a layer that may leave: sealed, older than the recent zone and past the first
    /// `anchors` tokens. `rows` is emptied first; it has room for all of them or grows.
    pub fn loose_rows(
        &self,
        id: SequenceId,
        layer: usize,
        anchors: u64,
        rows: &mut Vec<Row>,
    ) -> Result<(), CacheError> {
        let sequence = &self.sequences[self.find(id)?];
        self.layer(layer)?;
        let table = &sequence.tables[layer];
        let spans = sequence.spans.list();
        rows.clear();
        let Some(notes) = &table.notes else {
            return Ok(());
        };
        for i in self.loose(table, sequence.position, anchors) {
            rows.extend((0..table.entries[i].rows as usize).map(|slot| {
                let position = notes.position(i, slot);
                let (mass, norm_sq) = notes.worth(i, slot);
                Row {
                    position: u64::from(position),
                    mass,
                    norm_sq,
                    worth: 0.0,
                    entry: i as u32,
                    slot: slot as u8,
                    protected: is_protected(spans, position),
                }
            }));
        }
        Ok(())
    }

    /// Entries whose rows may leave. They stand together.
    fn loose(&self, table: &Table, position: u64, anchors: u64) -> Range<usize> {
        if table.notes.is_none() {
            return 0..0;
        }
        let loose = self.loose_positions(position, anchors);
        let before = |position| {
            table
                .entries
                .partition_point(|e| e.first_position < position)
        };
        let (start, end) = (before(loose.start), before(loose.end));
        start..end.max(start)
    }

    /// Whole blocks.
    fn loose_positions(&self, position: u64, anchors: u64) -> Range<u64> {
        // The first block keeps the sinks.
        let first = anchors.max(self.zones.sinks.min(1) as u64);
        let start = first.checked_next_multiple_of(SLOTS).unwrap_or(u64::MAX);
        let recent = self.zones.recent_blocks().saturating_add(1);
        start..((position / SLOTS).saturating_sub(recent) * SLOTS).max(start)
    }

    /// Positions of which no layer has a row any more count as gone: what is left before them closes up, where
    /// positions are compact.
    pub fn close_gap(&mut self, id: SequenceId, gap: Range<u64>) -> Result<(), CacheError> {
        let i = self.idle(id)?;
        self.room_for_gaps(i, 1)?;
        let sequence = &mut self.sequences[i];
        if gap.start < gap.end && gap.end <= sequence.position {
            sequence.segments.evict(gap);
            sequence.segments.evicted_at = sequence.position;
            sequence.segments.cut();
        }
        Ok(())
    }

    /// Takes rows out of one layer. Rows are named as [`Store::loose_rows`] did; what it did not name, or named as
    /// protected, is refused, and then nothing has changed.
    pub fn thin(
        &mut self,
        id: SequenceId,
        layer: usize,
        anchors: u64,
        leave: &[Row],
    ) -> Result<usize, CacheError> {
        let index = self.idle(id)?;
        self.layer(layer)?;
        let sequence = &self.sequences[index];
        let table = &sequence.tables[layer];
        let loose = self.loose(table, sequence.position, anchors);
        let spans = sequence.spans.list();
        let mut live: Vec<u32> = Vec::new();
        reserve_exact(&mut live, loose.len())?;
        live.extend(
            table.entries[loose.clone()]
                .iter()
                .map(|e| low_bits(e.rows)),
        );
        for row in leave {
            let at = (row.entry as usize).checked_sub(loose.start);
            let bits = at.and_then(|at| live.get_mut(at));
            let bit = 1u32.checked_shl(u32::from(row.slot)).unwrap_or(0);
            let stays = |slot: u8| {
                let position = |n: &Notes| n.position(row.entry as usize, slot.into());
                let position = table.notes.as_ref().map(position);
                position.is_some_and(|position| is_protected(spans, position))
            };
            match bits {
                Some(bits) if *bits & bit != 0 && !stays(row.slot) => *bits &= !bit,
                _ => {
                    return Err(CacheError::NotLoose {
                        layer,
                        position: row.position,
                    });
                }
            }
        }
        if leave.is_empty() {
            return Ok(0);
        }
        let made = &self.layers[layer];
        let (pool, shape) = match made.shape.zoned() {
            true => (made.far_pool, made.shape.far_shape()),
            false => (made.near_pool, made.shape.near_shape()),
        };
        // Blocks that others hold too are copied before a row moves into them.
        let shared = |i: usize| self.pools[pool].is_shared(block_of(&table.entries[i]));
        // Rows move to the front, also into a block that has lost all of its own.
        let rows: u32 = live.iter().map(|bits| bits.count_ones()).sum();
        let filled = loose
            .clone()
            .zip(&live)
            .take(rows.div_ceil(SLOTS as u32) as usize);
        let copies = filled
            .filter(|&(i, &bits)| bits != u32::MAX && shared(i))
            .count();
        let bytes = copies * self.pools[pool].block_bytes();
        self.ledger()
            .fit(bytes + self.pools[pool].list_bytes_to_reserve(copies))?;
        let mut reservation = self.pools[pool].reserve(copies)?;

        let position = sequence.position;
        let (layers, pools) = (&self.layers, &mut self.pools);
        let sequence = &mut self.sequences[index];
        let table = &mut sequence.tables[layer];
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
            let (to, from) = (loose.start + low, loose.start + high - 1);
            let hole = live[low].trailing_ones() as usize;
            let last = 31 - live[high - 1].leading_zeros() as usize;
            if low == high - 1 && hole > last {
                // Its rows stand together at the front.
                break;
            }
            if pools[pool].is_shared(block_of(&table.entries[to])) {
                let private = pools[pool].acquire(&mut reservation);
                let entry = &mut table.entries[to];
                pools[pool].copy(block_of(entry), private);
                pools[pool].release(block_of(entry));
                *form_of(entry) = Some(private);
            }
            let (to_id, from_id) = (block_of(&table.entries[to]), block_of(&table.entries[from]));
            move_row(&mut pools[pool], shape, (from_id, last), (to_id, hole));
            if let Some(notes) = &mut table.notes {
                notes.move_row((from, last), (to, hole));
            }
            live[low] |= 1 << hole;
            live[high - 1] &= !(1 << last);
        }
        pools[pool].forfeit(reservation);
        for (entry, bits) in table.entries[loose.clone()].iter_mut().zip(&live) {
            entry.rows = bits.count_ones();
        }
        for entry in table.take(loose.start + high..loose.end) {
            release(pools, &layers[layer], &entry);
        }
        table.recount();
        sequence.thinned_at = position;
        self.release_empty_slabs();
        Ok(leave.len())
    }
}

fn is_protected(spans: &[Span], position: u32) -> bool {
    !spans.is_empty() && spans::at(spans, position.into()).is_some_and(|span| span.protected)
}

/// The only form of an entry.
pub(super) fn form_of(entry: &mut Entry) -> &mut Option<BlockId> {
    match entry.far {
        Some(_) => &mut entry.far,
        None => &mut entry.near,
    }
}

pub(super) fn block_of(entry: &Entry) -> BlockId {
    let form = entry.far.or(entry.near);
    form.unwrap_or_else(|| unreachable!("an entry has a form"))
}

/// A row from one place to another.
fn move_row(
    pool: &mut Pool,
    shape: haversack_kernels::format::kv::KvShape,
    (from, from_slot): (BlockId, usize),
    (to, to_slot): (BlockId, usize),
) {
    if from == to {
        move_slot(shape, pool.bytes_mut(to), from_slot, to_slot);
    } else {
        let (from, to) = pool.two(from, to);
        copy_slot(shape, from, from_slot, to, to_slot);
    }
}
