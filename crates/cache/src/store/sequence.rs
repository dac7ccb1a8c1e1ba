//! A sequence (one block table per layer) and the slots of all sequences.

use super::storage::Storage;
use crate::annotations::Annotations;
use crate::error::{CacheError, CacheResult, reserve_exact, with_room};
use crate::ledger::Ledger;
use crate::policy::{BlockSummary, Snapshot};
use crate::pool::BlockId;
use crate::row_stats::{RowStats, StatsFormat};
use crate::segments::Segments;
use crate::table::BlockTable;

/// One sequence of one store, by slot and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId {
    index: u32,
    generation: u32,
}

/// Gaps that every sequence has room for, so that evicting needs no memory. The window policy makes one, and a few when
/// its parameters change on the way.
pub(super) const GAPS: usize = 8;

#[derive(Default)]
pub(super) struct Sequence {
    generation: u32,
    /// (layer); empty when the slot is free.
    pub tables: Vec<BlockTable>,
    pub position: u64,
    pub rows_peak: usize,
    open: bool,
    pub in_step: bool,
    pub segments: Segments,
    pub annotations: Annotations,
    /// Position at the last eviction of single rows.
    pub rows_evicted_at: u64,
    pub has_row_stats: bool,
}

impl Sequence {
    pub fn new(storage: &Storage, format: Option<StatsFormat>) -> CacheResult<Sequence> {
        let mut sequence = Sequence {
            segments: Segments::with_capacity(GAPS, 0)?,
            has_row_stats: format.is_some(),
            ..Sequence::default()
        };
        reserve_exact(&mut sequence.tables, storage.layers.len())?;
        let tables = storage.layers.iter().map(|layer| BlockTable {
            // A layer with a window of its own drops rows by itself.
            row_stats: format
                .filter(|_| layer.shape.window.is_none())
                .map(|format| RowStats::new(format, layer.shape.kv_heads)),
            ..BlockTable::default()
        });
        sequence.tables.extend(tables);
        Ok(sequence)
    }

    /// Heap bytes of [`Sequence::fork`], except the list of tables.
    pub fn fork_bytes(&self) -> usize {
        let tables = self.tables.iter().map(BlockTable::copy_bytes);
        let (gaps, hidden) = self.segments.capacity();
        let segments = Segments::bytes_for(gaps, hidden);
        tables.sum::<usize>() + segments + self.annotations.copy_bytes()
    }

    /// A second sequence that shares every block.
    pub fn fork(&self, storage: &mut Storage) -> CacheResult<Sequence> {
        let mut copy = Sequence {
            position: self.position,
            segments: self.segments.copy()?,
            annotations: self.annotations.copy()?,
            rows_evicted_at: self.rows_evicted_at,
            has_row_stats: self.has_row_stats,
            ..Sequence::default()
        };
        reserve_exact(&mut copy.tables, self.tables.len())?;
        for table in &self.tables {
            copy.tables.push(table.copy()?);
        }
        for (layer, table) in storage.layers.iter().zip(&copy.tables) {
            for entry in &table.entries {
                for (pool, id) in layer.forms(entry) {
                    storage.pools[pool].share(id);
                }
            }
            if let Some((pool, id)) = layer.sinks(table.sinks) {
                storage.pools[pool].share(id);
            }
        }
        Ok(copy)
    }

    /// Drops all references and frees the slot.
    pub fn close(&mut self, storage: &mut Storage) {
        for (layer, table) in storage.layers.iter().zip(&self.tables) {
            for entry in &table.entries {
                layer.release(&mut storage.pools, entry);
            }
            layer.release_sinks(&mut storage.pools, table.sinks);
        }
        *self = Sequence {
            generation: self.generation.wrapping_add(1),
            ..Sequence::default()
        };
        storage.release_empty_slabs();
    }

    /// Its id in this slot.
    fn id(&self, slot: usize) -> SequenceId {
        SequenceId {
            index: slot as u32,
            generation: self.generation,
        }
    }

    /// Rows of the fullest layer.
    pub fn rows(&self) -> usize {
        self.tables.iter().map(BlockTable::rows).max().unwrap_or(0)
    }

    fn bytes(&self) -> usize {
        self.tables.capacity() * size_of::<BlockTable>()
            + self.tables.iter().map(BlockTable::bytes).sum::<usize>()
            + self.segments.bytes()
            + self.annotations.bytes()
    }

    /// Makes room for `gaps` more gaps, within the budget, and adds its bytes to `ledger`. Gaps that touch become one, so a
    /// plan that continues the last one needs none.
    pub fn reserve_gaps(&mut self, ledger: &mut Ledger, gaps: usize) -> CacheResult {
        let (capacity, hidden) = self.segments.capacity();
        let wanted = self.segments.gaps.len() + gaps;
        if wanted <= capacity {
            return Ok(());
        }
        let more = Segments::bytes_for(wanted, hidden) - Segments::bytes_for(capacity, hidden);
        ledger.fit(more)?;
        self.segments.reserve(wanted, hidden)?;
        ledger.tables += more;
        Ok(())
    }

    /// Bytes of the blocks that its queries read.
    pub fn block_bytes(&self, storage: &Storage) -> usize {
        let tables = storage.layers.iter().zip(&self.tables);
        let bytes = tables.map(|(layer, table)| {
            let entries = table.entries.iter();
            let entries = entries.map(|e| storage.entry_bytes(layer, e));
            entries.sum::<usize>() + storage.sink_bytes(layer, table)
        });
        bytes.sum()
    }

    /// The same with each block divided among its holders.
    pub fn share_bytes(&self, storage: &Storage) -> usize {
        let tables = storage.layers.iter().zip(&self.tables);
        let forms = tables.flat_map(|(layer, table)| {
            let entries = table.entries.iter().filter_map(|entry| layer.form(entry));
            entries.chain(layer.sinks(table.sinks))
        });
        let share = |(pool, id): (usize, BlockId)| {
            let pool = &storage.pools[pool];
            pool.block_bytes() / pool.holders(id).unwrap_or(1).max(1)
        };
        forms.map(share).sum()
    }

    pub fn snapshot(&self, storage: &Storage) -> CacheResult<Snapshot> {
        let entries = self.tables.iter().map(|t| t.entries.len());
        let mut blocks: Vec<BlockSummary> = with_room(entries.max().unwrap_or(0))?;
        for (layer, table) in storage.layers.iter().zip(&self.tables) {
            for entry in &table.entries {
                let (first_position, rows) = (entry.first_position, entry.rows);
                let mut bytes = storage.entry_bytes(layer, entry) as u64;
                if first_position == 0 {
                    bytes += storage.sink_bytes(layer, table) as u64;
                }
                let at = blocks.partition_point(|b| b.first_position < first_position);
                match blocks.get_mut(at) {
                    Some(block) if block.first_position == first_position => block.bytes += bytes,
                    _ => {
                        reserve_exact(&mut blocks, 1)?;
                        let block = BlockSummary {
                            first_position,
                            rows,
                            bytes,
                        };
                        blocks.insert(at, block);
                    }
                }
            }
        }
        Ok(Snapshot {
            position: self.position,
            blocks,
        })
    }
}

/// The slots of all sequences.
#[derive(Default)]
pub(super) struct Sequences {
    pub slots: Vec<Sequence>,
}

impl Sequences {
    pub fn open(&self) -> impl Iterator<Item = (SequenceId, &Sequence)> {
        let open = self.slots.iter().enumerate().filter(|(_, s)| s.open);
        open.map(|(index, s)| (s.id(index), s))
    }

    pub fn index(&self, id: SequenceId) -> CacheResult<usize> {
        let index = id.index as usize;
        match self.slots.get(index) {
            Some(s) if s.open && s.generation == id.generation => Ok(index),
            _ => Err(CacheError::Closed { index }),
        }
    }

    pub fn get(&self, id: SequenceId) -> CacheResult<&Sequence> {
        Ok(&self.slots[self.index(id)?])
    }

    pub fn get_mut(&mut self, id: SequenceId) -> CacheResult<&mut Sequence> {
        let index = self.index(id)?;
        Ok(&mut self.slots[index])
    }

    /// The slot of a sequence that is not in a step.
    pub fn idle_index(&self, id: SequenceId) -> CacheResult<usize> {
        let index = self.index(id)?;
        if self.slots[index].in_step {
            return Err(CacheError::Busy { index });
        }
        Ok(index)
    }

    pub fn idle_mut(&mut self, id: SequenceId) -> CacheResult<&mut Sequence> {
        let index = self.idle_index(id)?;
        Ok(&mut self.slots[index])
    }

    /// The sequence, if its rows have not moved between blocks.
    pub fn with_image(&self, id: SequenceId) -> CacheResult<&Sequence> {
        let sequence = self.get(id)?;
        if sequence.has_row_stats {
            return Err(CacheError::NoImage);
        }
        Ok(sequence)
    }

    pub fn free_slot(&self) -> Option<usize> {
        self.slots.iter().position(|s| !s.open)
    }

    pub fn add_slot(&mut self) -> CacheResult<usize> {
        reserve_exact(&mut self.slots, 1)?;
        self.slots.push(Sequence::default());
        Ok(self.slots.len() - 1)
    }

    pub fn put(&mut self, slot: usize, sequence: Sequence) -> SequenceId {
        self.slots[slot] = Sequence {
            generation: self.slots[slot].generation,
            open: true,
            ..sequence
        };
        self.slots[slot].id(slot)
    }

    pub fn bytes(&self) -> usize {
        let sequences = self.slots.iter().map(Sequence::bytes).sum::<usize>();
        self.slots.capacity() * size_of::<Sequence>() + sequences
    }
}
