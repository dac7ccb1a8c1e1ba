//! Block table: the blocks of one layer of one sequence, their forms, and how many rows of each are in use.
//!
//! Positions grow along the table and a block's first is a multiple of 32: slot `i` of an entry holds position
//! `first_position + i`, unless single rows were evicted and others moved into their slots; that happens only outside
//! the recent zone, where every query sees all rows. Evicted blocks are missing. Between steps an entry has one form,
//! except the one that leaves the recent zone next: it is near, and its far form may exist already (recoded ahead). In a
//! step other entries may have both.
//!
//! Hidden rows stay stored, but no query sees them. A span (a run of entries within 256 positions) reaches from its first
//! visible entry to its last, so that attention never touches what lies outside; entries keep their numbers, visible or
//! not.

use crate::error::{CacheResult, copied, reserve_exact};
use crate::pool::{BlockId, BlockPool};
use crate::row_stats::RowStats;
use crate::size::SLOTS;
use haversack_kernels::attention::{Block, Coded, KvView, SPAN_SLOTS, Sinks};
use haversack_kernels::format::kv::{KvForm, KvShape};
use std::ops::Range;

/// A block and its rows in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEntry {
    pub near: Option<BlockId>,
    /// Never set where near and far are one form.
    pub far: Option<BlockId>,
    pub first_position: u64,
    /// `1..=32`
    pub rows: u32,
    /// Bit `i`: the row in slot `i` is hidden. Unused slots have no bit.
    pub hidden: u32,
}

impl BlockEntry {
    pub(crate) fn block(&self) -> u64 {
        self.first_position / SLOTS
    }

    fn span(&self) -> u64 {
        self.first_position / SPAN_SLOTS as u64
    }

    /// In the recent zone, or in a layer with one form.
    pub fn is_near(&self) -> bool {
        self.near.is_some()
    }

    /// The form of an entry that is no longer recent: its only one.
    pub(crate) fn final_block(&self) -> BlockId {
        let form = self.far.or(self.near);
        form.unwrap_or_else(|| unreachable!("an entry has a form"))
    }

    pub(crate) fn replace_final_block(&mut self, id: BlockId) {
        let form = if self.far.is_some() {
            &mut self.far
        } else {
            &mut self.near
        };
        *form = Some(id);
    }

    pub fn positions(&self) -> Range<u64> {
        self.first_position..self.first_position + u64::from(self.rows)
    }

    /// Whether any row is visible.
    pub fn is_shown(&self) -> bool {
        self.hidden != low_bits(self.rows)
    }

    /// Keeps the first rows only.
    pub(crate) fn truncate(&mut self, rows: u32) {
        self.rows = rows;
        self.hidden &= low_bits(rows);
    }

    /// The rows within these positions, which are ordered and disjoint.
    fn hidden_by(&self, hidden: &[Range<u64>]) -> u32 {
        let Range { start, end } = self.positions();
        let before = |position: u64| low_bits((position.clamp(start, end) - start) as u32);
        let from = hidden.partition_point(|range| range.end <= start);
        let here = hidden[from..].iter().take_while(|range| range.start < end);
        here.fold(0, |bits, range| {
            bits | before(range.end) & !before(range.start)
        })
    }
}

/// A mask of the first `rows` bits, at most 32.
pub(crate) fn low_bits(rows: u32) -> u32 {
    u32::MAX.checked_shr(SLOTS as u32 - rows).unwrap_or(0)
}

#[derive(Debug, Default)]
pub struct BlockTable {
    pub(crate) entries: Vec<BlockEntry>,
    /// Statistics of the rows, if the sequence keeps them.
    pub(crate) row_stats: Option<RowStats>,
    /// Runs of entries within 256 positions, from the first visible one to the last.
    pub(crate) spans: Vec<Range<u32>>,
    /// The exact copy of the first tokens.
    pub(crate) sinks: Option<BlockId>,
    pub(crate) rows: usize,
    /// Attention that a row would have if it had got all of it, over all KV heads.
    pub(crate) full_mass: u64,
    /// The block of 32 queries up to which the statistics have decayed.
    pub(crate) decayed_to: u64,
    /// Positions below this one were dropped because the layer's own window has passed them.
    pub(crate) window_passed: u64,
}

/// Minimum number of entries by which a full list grows.
const GROWTH_MIN: usize = 8;

impl BlockTable {
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<BlockEntry>()
            + self.spans.capacity() * size_of::<Range<u32>>()
            + self.row_stats.as_ref().map_or(0, RowStats::bytes)
    }

    /// Bytes of the lists of [`BlockTable::copy`].
    pub(crate) fn copy_bytes(&self) -> usize {
        size_of_val(&self.entries[..])
            + size_of_val(&self.spans[..])
            + self.row_stats.as_ref().map_or(0, RowStats::copy_bytes)
    }

    /// A second table of the same blocks; the caller takes the references.
    pub(crate) fn copy(&self) -> CacheResult<BlockTable> {
        Ok(BlockTable {
            entries: copied(&self.entries)?,
            spans: copied(&self.spans)?,
            row_stats: self.row_stats.as_ref().map(RowStats::copy).transpose()?,
            ..*self
        })
    }

    /// Number of entries that start before a position.
    pub(crate) fn entries_before(&self, at: u64) -> usize {
        self.entries.partition_point(|e| e.first_position < at)
    }

    /// The index of the entry of a block.
    pub(crate) fn find(&self, block: u64) -> Option<usize> {
        let found = self.entries.binary_search_by_key(&block, BlockEntry::block);
        found.ok()
    }

    /// The position of a row. Rows move between slots only where there are row statistics.
    pub(crate) fn position(&self, entry: usize, slot: usize) -> u64 {
        match &self.row_stats {
            Some(stats) => stats.position(entry, slot).into(),
            None => self.entries[entry].first_position + slot as u64,
        }
    }

    /// Capacities for `more` entries, grown in steps so that decoding seldom reallocates.
    fn room(&self, more: usize) -> (usize, usize) {
        let grown = |capacity: usize, wanted: usize| match wanted <= capacity {
            true => capacity,
            false => wanted.max(capacity + (capacity / 2).max(GROWTH_MIN)),
        };
        let entries = self.entries.len() + more;
        // A span has eight blocks or more unless some are missing. An entry starts one span at most, and so do new rows in
        // a hidden entry.
        let starts = self.entries.last().is_some_and(|e| !e.is_shown());
        let spans = (more + usize::from(starts)).min(more / 8 + 2);
        let spans = grown(self.spans.capacity(), self.spans.len() + spans);
        (grown(self.entries.capacity(), entries), spans)
    }

    /// How many bytes the lists grow when `more` entries are reserved.
    pub(crate) fn bytes_to_grow(&self, more: usize) -> usize {
        let (entries, spans) = self.room(more);
        let stats = self.row_stats.as_ref();
        (entries - self.entries.capacity()) * size_of::<BlockEntry>()
            + (spans - self.spans.capacity()) * size_of::<Range<u32>>()
            + stats.map_or(0, |stats| stats.bytes_to_hold(entries))
    }

    pub(crate) fn reserve(&mut self, more: usize) -> CacheResult {
        let (entries, spans) = self.room(more);
        let (have, had) = (self.entries.len(), self.spans.len());
        reserve_exact(&mut self.entries, entries - have)?;
        if let Some(stats) = &mut self.row_stats {
            stats.hold(entries)?;
        }
        reserve_exact(&mut self.spans, spans - had)
    }

    /// How many bytes the lists grow when `more` entries are inserted anywhere: each may start a span of its own.
    pub(crate) fn bytes_to_mount(&self, more: usize) -> usize {
        let entries = (self.entries.len() + more).saturating_sub(self.entries.capacity());
        let spans = (self.spans.len() + more).saturating_sub(self.spans.capacity());
        entries * size_of::<BlockEntry>() + spans * size_of::<Range<u32>>()
    }

    pub(crate) fn reserve_mount(&mut self, more: usize) -> CacheResult {
        reserve_exact(&mut self.entries, more)?;
        reserve_exact(&mut self.spans, more)
    }

    /// Appends an entry. Its room was reserved.
    pub(crate) fn push(&mut self, entry: BlockEntry) {
        debug_assert!(self.entries.len() < self.entries.capacity());
        self.rows += entry.rows as usize;
        if let Some(stats) = &mut self.row_stats {
            stats.push(entry.first_position);
        }
        self.entries.push(entry);
        self.show(self.entries.len() - 1);
    }

    /// Adds entry `i`, the last visible one so far, to the spans. There is room for one more span.
    fn show(&mut self, i: usize) {
        let end = i as u32 + 1;
        if self.last_span() == Some(self.entries[i].span())
            && let Some(last) = self.spans.last_mut()
        {
            last.end = end;
        } else {
            debug_assert!(self.spans.len() < self.spans.capacity());
            self.spans.push(i as u32..end);
        }
    }

    /// Number of the 256 positions that the last span is in.
    fn last_span(&self) -> Option<u64> {
        let last = self.spans.last()?;
        Some(self.entries[last.start as usize].span())
    }

    /// Removes entries and their row statistics.
    pub(crate) fn remove(&mut self, range: Range<usize>) -> std::vec::Drain<'_, BlockEntry> {
        if let Some(stats) = &mut self.row_stats {
            stats.remove(range.clone());
        }
        self.entries.drain(range)
    }

    /// Removes entries without rows.
    pub(crate) fn drop_empty(&mut self) {
        if let Some(stats) = &mut self.row_stats {
            stats.retain(|i| self.entries[i].rows > 0);
        }
        self.entries.retain(|entry| entry.rows > 0);
    }

    /// Adds rows to the last entry.
    pub(crate) fn extend_last(&mut self, rows: usize) {
        if let Some(last) = self.entries.last_mut() {
            last.rows += rows as u32;
            self.rows += rows;
            self.show(self.entries.len() - 1);
        }
    }

    /// Number of spans if these positions were hidden.
    pub(crate) fn spans_hiding(&self, hidden: &[Range<u64>]) -> usize {
        let is_shown = |e: &&BlockEntry| e.hidden_by(hidden) != low_bits(e.rows);
        let mut last = None;
        let starts = |e: &&BlockEntry| last.replace(e.span()) != Some(e.span());
        self.entries.iter().filter(is_shown).filter(starts).count()
    }

    /// Hides these positions and shows all others. There is room for the spans.
    pub(crate) fn hide(&mut self, hidden: &[Range<u64>]) {
        for entry in &mut self.entries {
            entry.hidden = entry.hidden_by(hidden);
        }
        self.rebuild();
    }

    /// Recomputes rows and spans after entries were removed or truncated. Needs no more room than before.
    pub(crate) fn rebuild(&mut self) {
        self.rows = self.entries.iter().map(|e| e.rows as usize).sum();
        self.spans.clear();
        for i in 0..self.entries.len() {
            if self.entries[i].is_shown() {
                self.show(i);
            }
        }
    }

    /// Entries before block `end` without a far form. They are adjacent.
    pub(crate) fn without_far(&self, end: u64) -> Range<usize> {
        let end = self.entries.partition_point(|e| e.block() < end);
        let without_far = self.entries[..end].iter().rev();
        let count = without_far.take_while(|e| e.far.is_none()).count();
        end - count..end
    }

    /// The far form of the block that leaves the recent zone next, if it was recoded ahead.
    pub(crate) fn recoded_ahead(&self) -> Option<BlockId> {
        let mut near = self.entries.iter().rev().take_while(|e| e.near.is_some());
        near.find_map(|e| e.far)
    }

    /// Number of spans once positions from `first` to `end` are stored too.
    pub(crate) fn spans_with(&self, first: u64, end: u64) -> usize {
        let slots = SPAN_SLOTS as u64;
        if end <= first {
            return self.spans.len();
        }
        let touched = (end.div_ceil(slots) - first / slots) as usize;
        let goes_on = self.last_span() == Some(first / slots);
        self.spans.len() + touched - usize::from(goes_on)
    }

    /// The last entry if it is partly filled at `position`.
    pub(crate) fn tail(&self, position: u64) -> Option<&BlockEntry> {
        let last = self.entries.last()?;
        (last.positions().end == position && !position.is_multiple_of(SLOTS)).then_some(last)
    }

    /// The end of the last block that starts before `position` and has only the far form; 0 if there is none.
    pub(crate) fn far_end(&self, position: u64) -> u64 {
        let far_only = |e: &&BlockEntry| !e.is_near() && e.first_position < position;
        let last = self.entries.iter().rev().find(far_only);
        last.map_or(0, |e| e.first_position + SLOTS)
    }
}

/// A table as attention reads it.
pub struct TableView<'a> {
    pub(crate) table: &'a BlockTable,
    pub(crate) near: FormView<'a>,
    pub(crate) far: FormView<'a>,
    pub(crate) sinks: Option<&'a BlockPool>,
    pub(crate) sink_rows: usize,
    pub(crate) recent_blocks: u64,
    /// Start of the gap before each segment but the first.
    pub(crate) cuts: &'a [u64],
}

/// The blocks of one form. Sizes that take divisions are computed once, not per block.
pub(crate) struct FormView<'a> {
    pool: &'a BlockPool,
    form: KvForm,
    k_bytes: usize,
}

impl<'a> FormView<'a> {
    pub(crate) fn new(pool: &'a BlockPool, shape: KvShape) -> FormView<'a> {
        FormView {
            pool,
            form: shape.form,
            k_bytes: shape.k_bytes(),
        }
    }
}

impl TableView<'_> {
    pub fn entries(&self) -> &[BlockEntry] {
        &self.table.entries
    }

    /// The block with the exact copy of the first tokens.
    pub fn sink_block(&self) -> Option<BlockId> {
        self.table.sinks
    }

    fn sinks(&self) -> Option<Sinks<'_>> {
        let bytes = self.sinks?.bytes(self.table.sinks?);
        let (k, v) = bytes.split_at(bytes.len() / 2);
        Some(Sinks {
            rows: self.sink_rows,
            k,
            v,
        })
    }
}

impl KvView for TableView<'_> {
    fn blocks(&self) -> usize {
        self.table.entries.len()
    }

    /// The near form within the recent distance, the far one beyond. A block may have lost a form that no query of the
    /// step reads; then this is the other one.
    fn block(&self, i: usize, query_block: u64) -> Block<'_> {
        let entry = &self.table.entries[i];
        let is_near = query_block.saturating_sub(entry.block()) <= self.recent_blocks;
        let near = entry.near.map(|id| (&self.near, id));
        let far = entry.far.map(|id| (&self.far, id));
        // With one form there is only the near one.
        let form = if is_near { near.or(far) } else { far.or(near) };
        let (view, id) = form.unwrap_or_else(|| unreachable!("an entry has a form"));
        let (k, v) = view.pool.bytes(id).split_at(view.k_bytes);
        Block {
            k: Coded {
                form: view.form.k,
                bytes: k,
            },
            v: Coded {
                form: view.form.v,
                bytes: v,
            },
            sinks: if entry.first_position == 0 {
                self.sinks()
            } else {
                None
            },
            rows: entry.rows as usize,
            hidden: entry.hidden,
            first_position: entry.first_position,
            segment: self.cuts.partition_point(|&c| c <= entry.first_position),
        }
    }

    fn spans(&self) -> usize {
        self.table.spans.len()
    }

    fn span(&self, i: usize) -> Range<usize> {
        let span = &self.table.spans[i];
        span.start as usize..span.end as usize
    }
}
