//! One layer of one sequence: which blocks hold it, in which form, and how many rows of them count.
//!
//! Positions grow along the table and a block's first is a multiple of 32: slot `i` of an entry holds
//! position `first_position + i`, unless rows left one by one and others took their slots
//! ([`crate::store`]); those have left the recent zone, so that every query sees all of them. Blocks may be
//! missing where they were evicted. Between steps an entry has one form, but for the one that leaves the recent
//! zone next: it is near, and its far form may be there already. In a step others may have both.
//!
//! Rows may be hidden: they stay where they are, and no query sees them. Spans hold what is shown and reach
//! from the first such entry of their 256 positions to the last, so that what lies outside is never looked at; entries
//! keep their numbers whether they are shown or not.

use crate::error::CacheError;
use crate::notes::Notes;
use crate::pool::{BlockId, Pool, reserve_exact};
use crate::size::SLOTS;
use haversack_kernels::attention::{Block, Coded, KvView, SPAN_SLOTS, Sinks};
use haversack_kernels::format::kv::{KvForm, KvShape};
use haversack_memory::zoo::{Bug, planted};
use std::ops::Range;

/// A block and what counts of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub near: Option<BlockId>,
    /// Never set where near and far are the same form.
    pub far: Option<BlockId>,
    pub first_position: u64,
    /// `1..=32`
    pub rows: u32,
    /// Bit `i`: the row in slot `i` is hidden. Rows that are not there are not.
    pub hidden: u32,
}

impl Entry {
    pub(crate) fn block(&self) -> u64 {
        self.first_position / SLOTS
    }

    fn span(&self) -> u64 {
        self.first_position / SPAN_SLOTS as u64
    }

    /// Within the recent zone, or of a layer without one.
    pub fn is_near(&self) -> bool {
        self.near.is_some()
    }

    pub fn positions(&self) -> Range<u64> {
        self.first_position..self.first_position + u64::from(self.rows)
    }

    /// Whether any row is not hidden.
    pub fn is_shown(&self) -> bool {
        self.hidden != low_bits(self.rows)
    }

    /// Keeps the first rows only.
    pub(crate) fn cut(&mut self, rows: u32) {
        self.rows = rows;
        self.hidden &= low_bits(rows);
    }

    /// Which rows are among these positions, in order and apart from each other.
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

/// As many bits as rows, at most 32.
pub(crate) fn low_bits(rows: u32) -> u32 {
    u32::MAX.checked_shr(SLOTS as u32 - rows).unwrap_or(0)
}

#[derive(Debug, Default)]
pub struct Table {
    pub(crate) entries: Vec<Entry>,
    /// What is remembered of each entry, if anything.
    pub(crate) notes: Option<Notes>,
    /// Runs of entries in the same 256 positions, from the first that is shown to the last.
    pub(crate) spans: Vec<Range<u32>>,
    /// The exact copy of the first tokens.
    pub(crate) sinks: Option<BlockId>,
    pub(crate) rows: usize,
    /// What a row would have counted that got all attention, over all KV heads.
    pub(crate) whole: u64,
    /// The block of 32 queries for which counters are weighed.
    pub(crate) aged: u64,
    /// Positions below were dropped because the layer's window has passed them.
    pub(crate) passed: u64,
}

/// Entries by which a full list grows at least.
const GROWTH_MIN: usize = 8;

impl Table {
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.spans.capacity() * size_of::<Range<u32>>()
            + self.notes.as_ref().map_or(0, Notes::bytes)
    }

    /// Capacities that hold `more` entries, grown in steps so that decoding seldom asks.
    fn room(&self, more: usize) -> (usize, usize) {
        let grown = |capacity: usize, wanted: usize| {
            if wanted <= capacity {
                capacity
            } else {
                wanted.max(capacity + (capacity / 2).max(GROWTH_MIN))
            }
        };
        let entries = self.entries.len() + more;
        // A run that goes on, and then at least eight blocks to a run unless some are missing; one
        // more entry never starts more than one more run, and neither do rows in a hidden one.
        let starts = self.entries.last().is_some_and(|e| !e.is_shown());
        let spans = self.spans.len() + more + usize::from(starts);
        (
            grown(self.entries.capacity(), entries),
            grown(
                self.spans.capacity(),
                spans.min(self.spans.len() + more / 8 + 2),
            ),
        )
    }

    /// How many bytes larger the lists become when `more` entries are made room for.
    pub(crate) fn bytes_to_grow(&self, more: usize) -> usize {
        let (entries, spans) = self.room(more);
        let notes = self.notes.as_ref();
        (entries - self.entries.capacity()) * size_of::<Entry>()
            + (spans - self.spans.capacity()) * size_of::<Range<u32>>()
            + notes.map_or(0, |notes| notes.bytes_to_hold(entries))
    }

    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), CacheError> {
        let (entries, spans) = self.room(more);
        let (have, had) = (self.entries.len(), self.spans.len());
        reserve_exact(&mut self.entries, entries - have)?;
        if let Some(notes) = &mut self.notes {
            notes.hold(entries)?;
        }
        reserve_exact(&mut self.spans, spans - had)
    }

    /// How many bytes larger the lists become when `more` entries are put in anywhere: each may start a run of its own.
    pub(crate) fn bytes_to_mount(&self, more: usize) -> usize {
        let entries = (self.entries.len() + more).saturating_sub(self.entries.capacity());
        let spans = (self.spans.len() + more).saturating_sub(self.spans.capacity());
        entries * size_of::<Entry>() + spans * size_of::<Range<u32>>()
    }

    pub(crate) fn reserve_mount(&mut self, more: usize) -> Result<(), CacheError> {
        reserve_exact(&mut self.entries, more)?;
        reserve_exact(&mut self.spans, more)
    }

    /// Appends an entry. Its room was reserved.
    pub(crate) fn push(&mut self, entry: Entry) {
        debug_assert!(self.entries.len() < self.entries.capacity());
        self.rows += entry.rows as usize;
        if let Some(notes) = &mut self.notes {
            notes.push(entry.first_position);
        }
        self.entries.push(entry);
        self.show(self.entries.len() - 1);
    }

    /// A run holds entry `i`, after which none is shown yet. There is room for one more run.
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

    /// Which 256 positions the last run is in.
    fn last_span(&self) -> Option<u64> {
        let last = self.spans.last()?;
        Some(self.entries[last.start as usize].span())
    }

    /// Takes entries out, with what is remembered of them.
    pub(crate) fn take(&mut self, range: Range<usize>) -> std::vec::Drain<'_, Entry> {
        if let Some(notes) = &mut self.notes {
            notes.take(range.clone());
        }
        self.entries.drain(range)
    }

    /// Entries without rows go.
    pub(crate) fn drop_empty(&mut self) {
        if let Some(notes) = &mut self.notes {
            notes.retain(|i| self.entries[i].rows > 0);
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

    /// How many runs there are when these positions are hidden.
    pub(crate) fn spans_hiding(&self, hidden: &[Range<u64>]) -> usize {
        let is_shown = |e: &&Entry| e.hidden_by(hidden) != low_bits(e.rows);
        let mut last = None;
        let shown = self.entries.iter().filter(is_shown);
        shown
            .filter(|e| last.replace(e.span()) != Some(e.span()))
            .count()
    }

    /// Hides these positions and no others. There is room for the runs.
    pub(crate) fn hide(&mut self, hidden: &[Range<u64>]) {
        for (i, entry) in self.entries.iter_mut().enumerate() {
            let mut counted = *entry;
            if planted(Bug::MaskByRows) {
                counted.first_position = i as u64 * SLOTS;
            }
            entry.hidden = counted.hidden_by(hidden);
        }
        self.recount();
    }

    /// After entries were taken out or cut: rows and runs anew. Needs no room that was not there.
    pub(crate) fn recount(&mut self) {
        self.rows = self.entries.iter().map(|e| e.rows as usize).sum();
        self.spans.clear();
        for i in 0..self.entries.len() {
            if self.entries[i].is_shown() {
                self.show(i);
            }
        }
    }

    /// Entries before block `end` that have no far form yet. They stand together.
    pub(crate) fn uncoded(&self, end: u64) -> Range<usize> {
        let end = self.entries.partition_point(|e| e.block() < end);
        let uncoded = self.entries[..end].iter().rev();
        let count = uncoded.take_while(|e| e.far.is_none()).count();
        end - count..end
    }

    /// The far form of the block that leaves the recent zone next, if it is there already.
    pub(crate) fn prepared(&self) -> Option<BlockId> {
        let mut near = self.entries.iter().rev().take_while(|e| e.near.is_some());
        near.find_map(|e| e.far)
    }

    /// Runs of entries in the same 256 positions once positions from `first` to `end` are there too.
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
    pub(crate) fn tail(&self, position: u64) -> Option<&Entry> {
        let last = self.entries.last()?;
        (last.positions().end == position && !position.is_multiple_of(SLOTS)).then_some(last)
    }

    /// The end of the last block that has only the far form and starts before `position`; 0 if
    /// there is none.
    pub(crate) fn far_end(&self, position: u64) -> u64 {
        let far_only = |e: &&Entry| !e.is_near() && e.first_position < position;
        let last = self.entries.iter().rev().find(far_only);
        last.map_or(0, |e| e.first_position + SLOTS)
    }
}

/// A table as attention reads it.
pub struct TableView<'a> {
    pub(crate) table: &'a Table,
    pub(crate) near: FormView<'a>,
    pub(crate) far: FormView<'a>,
    pub(crate) sinks: Option<&'a Pool>,
    pub(crate) sink_rows: usize,
    pub(crate) recent_blocks: u64,
    /// Where the gaps before the segments after the first start.
    pub(crate) cuts: &'a [u64],
}

/// The blocks of one form. What takes divisions is worked out once, not for every block.
pub(crate) struct FormView<'a> {
    pool: &'a Pool,
    form: KvForm,
    k_bytes: usize,
}

impl<'a> FormView<'a> {
    pub(crate) fn new(pool: &'a Pool, shape: KvShape) -> FormView<'a> {
        FormView {
            pool,
            form: shape.form,
            k_bytes: shape.k_bytes(),
        }
    }
}

impl TableView<'_> {
    pub fn entries(&self) -> &[Entry] {
        &self.table.entries
    }

    /// The block of the exact copy of the first tokens.
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

    /// The near form up to the recent distance, the far one beyond. A block that no such query sees
    /// may have lost the form they would see; then the other is shown.
    fn block(&self, i: usize, query_block: u64) -> Block<'_> {
        let entry = &self.table.entries[i];
        let is_near = query_block.saturating_sub(entry.block()) <= self.recent_blocks;
        let near = entry.near.map(|id| (&self.near, id));
        let far = entry.far.map(|id| (&self.far, id));
        // Where both forms are the same there is only ever the near one.
        let (view, id) = match is_near {
            true => near.or(far),
            false => far.or(near),
        }
        .unwrap_or_else(|| unreachable!("an entry has a form"));
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
            segment: match planted(Bug::ShiftMissesCoded) && entry.near.is_none() {
                true => self.cuts.len(),
                false => self.cuts.partition_point(|&c| c <= entry.first_position),
            },
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
