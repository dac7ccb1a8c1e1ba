//! Rows that no query sees: hidden, shown again, and at last dropped.
//!
//! A hidden row stays stored, in whatever form it has or gets, and counts like one that attention must not look at.
//! Which are hidden is said in positions, for all layers alike; every entry knows its own. Where positions are
//! compact a gap closes over hidden rows as over those that left ([`crate::segments`]). New rows are never
//! hidden, so that every query sees itself.
//!
//! Rows that leave one by one take each other's slots, and their attention is counted: a sequence whose rows are
//! remembered ([`Store::open_noting`]) hides none.

use super::{Applied, SequenceId, Store, release, release_sinks};
use crate::error::CacheError;
use crate::pool::reserve_exact;
use crate::segments::Segments;
use crate::size::SLOTS;
use crate::table::{Entry, Table};
use std::ops::Range;

impl Store {
    /// Hides these positions of a sequence, and shows all others that it still has. They come in order, apart
    /// from each other or touching, and below the sequence's position. Where it is refused nothing has changed.
    pub fn hide(&mut self, id: SequenceId, hidden: &[Range<u64>]) -> Result<(), CacheError> {
        let i = self.idle(id)?;
        let sequence = &self.sequences[i];
        let position = sequence.position;
        let mut before = 0;
        for &Range { start, end } in hidden {
            if start >= end || start < before || end > position {
                return Err(CacheError::BadHidden {
                    start,
                    end,
                    position,
                });
            }
            before = end;
        }
        if sequence.noted && !hidden.is_empty() {
            return Err(CacheError::Noted { index: i });
        }

        // Room for the list, and for runs of entries that are shown again.
        let (gaps, room) = sequence.segments.room();
        let wanted = room.max(hidden.len());
        let mut more = Segments::bytes_for(gaps, wanted) - Segments::bytes_for(gaps, room);
        for table in &sequence.tables {
            let spans = table.spans_hiding(hidden);
            more += spans.saturating_sub(table.spans.capacity()) * size_of::<Range<u32>>();
        }
        self.ledger().fit(more)?;
        let sequence = &mut self.sequences[i];
        sequence.segments.make_room(gaps, wanted)?;
        for table in &mut sequence.tables {
            let spans = table.spans_hiding(hidden);
            let more = spans.saturating_sub(table.spans.len());
            reserve_exact(&mut table.spans, more)?;
        }

        for table in &mut sequence.tables {
            table.hide(hidden);
        }
        sequence.segments.hide(hidden);
        self.note_total();
        Ok(())
    }

    /// What is hidden, in order: as it was said, cut off where the sequence was.
    pub fn hidden(&self, id: SequenceId) -> &[Range<u64>] {
        let found = self.find(id);
        found.map_or(&[], |i| &self.sequences[i].segments.hidden)
    }

    /// Drops the blocks of which every row is hidden and among these positions, from all layers. Those of the
    /// recent zone stay, and so does the last one; blocks at the borders of what is hidden stay with their rows
    /// hidden. The sequence can be cut back to any position behind what was dropped, as before.
    pub fn drop_hidden(
        &mut self,
        id: SequenceId,
        range: Range<u64>,
    ) -> Result<Applied, CacheError> {
        let i = self.idle(id)?;
        let sequence = &self.sequences[i];
        let last = sequence.position.saturating_sub(1) / SLOTS;
        let recent = last.saturating_sub(self.zones.recent_blocks()) * SLOTS;
        let leaves = |entry: &Entry| {
            let rows = entry.positions();
            !entry.is_shown()
                && rows.start >= range.start
                && rows.end <= range.end
                && rows.start < recent
        };
        // Layers with a window have lost their first blocks: the one with most has all that others have.
        let runs = |table: &Table| {
            let mut end = None;
            let leaving = table.entries.iter().filter(|e| leaves(e));
            leaving
                .filter(|e| end.replace(e.block() + 1) != Some(e.block()))
                .count()
        };
        let gaps = sequence.tables.iter().map(runs).max().unwrap_or(0);
        if gaps == 0 {
            return Ok(Applied::default());
        }
        self.room_for_gaps(i, gaps)?;

        let live = self.ledger().kv_live;
        let mut applied = Applied::default();
        let sequence = &mut self.sequences[i];
        let segments = &mut sequence.segments;
        for (layer, table) in self.layers.iter().zip(&mut sequence.tables) {
            let before = table.rows;
            for entry in table.entries.iter_mut().filter(|e| leaves(e)) {
                let gap = entry.first_position..entry.first_position + SLOTS;
                release(&mut self.pools, layer, entry);
                if gap.start == 0 {
                    release_sinks(&mut self.pools, layer, table.sinks.take());
                }
                entry.cut(0);
                segments.evicted_at = segments.evicted_at.max(gap.end);
                segments.evict(gap);
            }
            table.drop_empty();
            table.recount();
            applied.rows = applied.rows.max(before - table.rows);
        }
        // Segments are as before: whatever left was hidden.
        applied.bytes_freed = live - self.ledger().kv_live;
        applied.slabs_released = self.release_empty_slabs();
        self.note_total();
        Ok(applied)
    }
}
