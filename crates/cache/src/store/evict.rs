//! Making a sequence shorter: at its end (`truncate`), or wherever a plan says (`apply`).
//!
//! Both check everything first and then cannot fail.

use super::{SequenceId, Store, release, release_far, release_sinks};
use crate::error::CacheError;
use crate::policy::Plan;
use crate::segments::Segments;
use crate::size::{SLOTS, near_from};
use crate::table::Table;
use haversack_memory::zoo::{Bug, planted};

/// What a plan did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Rows that left, in the layer that lost most.
    pub rows: usize,
    /// Bytes of blocks that nobody holds any more.
    pub bytes_freed: usize,
    /// Slabs whose pages went back to the system.
    pub slabs_released: usize,
}

impl Store {
    /// Forgets every token from `position` on. Afterwards the sequence is exactly what it was when
    /// it stood there, or nothing has changed: what has left since, or has only its far form where
    /// it was near, cannot be restored. What is hidden stays hidden.
    pub fn truncate(&mut self, id: SequenceId, position: u64) -> Result<(), CacheError> {
        let i = self.idle(id)?;
        let stands = self.sequences[i].position;
        if position > stands {
            return Err(CacheError::Truncate {
                asked: position,
                position: stands,
            });
        }
        if position == stands {
            return Ok(());
        }
        if !self.restores(i, position) {
            return Err(CacheError::Gone {
                asked: position,
                oldest: self.oldest(i),
            });
        }
        let sequence = &mut self.sequences[i];
        for (layer, table) in self.layers.iter().zip(&mut sequence.tables) {
            let kept = table
                .entries
                .partition_point(|e| e.first_position < position);
            for entry in table.take(kept..table.entries.len()) {
                release(&mut self.pools, layer, &entry);
            }
            // What was made ahead is not due yet, or of rows that are no longer there.
            release_far(&mut self.pools, layer, table, None);
            if let Some(last) = table.entries.last_mut() {
                let left_over = u64::from(planted(Bug::RollbackOffByOne));
                let rows = position - last.first_position + left_over;
                last.cut(last.rows.min(rows.min(SLOTS) as u32));
            }
            if position == 0 {
                release_sinks(&mut self.pools, layer, table.sinks.take());
                table.passed = 0;
            }
            table.recount();
        }
        if position == 0 {
            sequence.thinned_at = 0;
        }
        sequence.position = position;
        sequence.spans.truncate(position);
        let before_gaps = sequence.segments.gaps.first();
        if before_gaps.is_some_and(|gap| position <= gap.start) {
            sequence.segments.forget();
        }
        sequence.segments.truncate(position);
        self.release_empty_slabs();
        Ok(())
    }

    /// The least position from which on every one up to the present can be restored.
    pub fn oldest_restorable(&self, id: SequenceId) -> Result<u64, CacheError> {
        Ok(self.oldest(self.find(id)?))
    }

    fn restores(&self, i: usize, position: u64) -> bool {
        let sequence = &self.sequences[i];
        let Segments {
            gaps, evicted_at, ..
        } = &sequence.segments;
        let whole = gaps
            .first()
            .is_none_or(|gap| position >= *evicted_at || position <= gap.start)
            && position >= sequence.thinned_at;
        position == 0
            || whole
                && self.layers.iter().zip(&sequence.tables).all(|(l, table)| {
                    let near_from = near_from(l.shape, self.zones, position);
                    table.far_end(position) <= near_from * SLOTS
                        && l.shape.window.is_none_or(|w| {
                            planted(Bug::PartialRemoval) || position >= seen_from(table, w)
                        })
                })
    }

    fn oldest(&self, i: usize) -> u64 {
        let sequence = &self.sequences[i];
        let mut oldest = match sequence.segments.gaps.is_empty() {
            true => 0,
            false => sequence.segments.evicted_at,
        };
        oldest = oldest.max(sequence.thinned_at);
        for (layer, table) in self.layers.iter().zip(&sequence.tables) {
            let far_end = table.far_end(sequence.position);
            if layer.shape.zoned() && far_end > 0 {
                // The block of the last token is `recent` blocks after the last far one.
                let recent = self.zones.recent_blocks().saturating_mul(SLOTS);
                oldest = oldest.max(far_end.saturating_add(recent).saturating_add(1));
            }
            if let Some(window) = layer.shape.window {
                oldest = oldest.max(seen_from(table, window));
            }
        }
        oldest.min(sequence.position)
    }

    /// Does what a plan says, in every layer. A plan that was made elsewhere or that would leave a
    /// hole inside a block is refused.
    pub fn apply(&mut self, id: SequenceId, plan: &Plan) -> Result<Applied, CacheError> {
        let i = self.idle(id)?;
        let sequence = &self.sequences[i];
        if plan.position != sequence.position {
            return Err(CacheError::StalePlan {
                planned: plan.position,
                position: sequence.position,
            });
        }
        let mut end = 0;
        for gap in &plan.drop {
            let (start, stop) = (gap.start, gap.end);
            let whole = stop.is_multiple_of(SLOTS) && stop <= sequence.position;
            if start >= stop || start < end || !whole {
                return Err(CacheError::BadPlan { start, end: stop });
            }
            end = stop;
        }
        if plan.drop.is_empty() {
            return Ok(Applied::default());
        }
        self.room_for_gaps(i, plan.drop.len())?;

        let live = self.ledger().kv_live;
        let mut applied = Applied::default();
        let sequence = &mut self.sequences[i];
        for (layer, table) in self.layers.iter().zip(&mut sequence.tables) {
            let before = table.rows;
            for entry in &mut table.entries {
                let cut = plan.drop.iter().find(|gap| gap.end > entry.first_position);
                let Some(gap) = cut else { continue };
                let left = gap.start.saturating_sub(entry.first_position);
                if left >= u64::from(entry.rows) {
                    continue;
                }
                entry.cut(left as u32);
                if left == 0 {
                    release(&mut self.pools, layer, entry);
                    if entry.first_position == 0 {
                        release_sinks(&mut self.pools, layer, table.sinks.take());
                    }
                }
            }
            table.drop_empty();
            table.recount();
            applied.rows = applied.rows.max(before - table.rows);
        }
        for gap in &plan.drop {
            sequence.segments.evict(gap.clone());
        }
        sequence.segments.evicted_at = sequence.position;
        sequence.segments.cut();
        applied.bytes_freed = live - self.ledger().kv_live;
        applied.slabs_released = self.release_empty_slabs();
        Ok(applied)
    }

    /// Room for so many more gaps, within the budget. Gaps that touch become one, so that a plan
    /// which goes on where the last one ended needs none.
    pub(super) fn room_for_gaps(&mut self, i: usize, gaps: usize) -> Result<(), CacheError> {
        let segments = &self.sequences[i].segments;
        let (room, hidden) = segments.room();
        let wanted = segments.gaps.len() + gaps;
        if wanted <= room {
            return Ok(());
        }
        let more = Segments::bytes_for(wanted, hidden) - Segments::bytes_for(room, hidden);
        self.ledger().fit(more)?;
        self.sequences[i].segments.make_room(wanted, hidden)
    }
}

/// The first position at which no query sees what the layer's window has dropped.
fn seen_from(table: &Table, window: u64) -> u64 {
    match table.passed {
        0 => 0,
        passed => (passed - 1).saturating_add(window.max(1)),
    }
}
