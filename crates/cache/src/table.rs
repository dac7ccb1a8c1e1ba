//! One layer of one sequence: which blocks hold it, and how many rows of them are filled.

use crate::pool::{BlockId, Pool};
use haversack_kernels::attention::{BLOCK_SLOTS, Block, KvShape, KvView};

/// Blocks in order; all but the last are full.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) rows: usize,
}

impl Table {
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Blocks a step must take to append `rows`, a private copy of a shared tail included.
    pub(crate) fn blocks_to_grow(&self, pool: &Pool, rows: usize) -> usize {
        let fresh = (self.rows + rows).div_ceil(BLOCK_SLOTS) - self.blocks.len();
        fresh + usize::from(rows > 0 && self.tail_is_shared(pool))
    }

    /// A partly filled last block that another table holds too: writing needs a copy first.
    pub(crate) fn tail_is_shared(&self, pool: &Pool) -> bool {
        !self.rows.is_multiple_of(BLOCK_SLOTS)
            && self.blocks.last().is_some_and(|&tail| pool.is_shared(tail))
    }

    /// Drops rows from the end and releases blocks that hold none any more.
    pub(crate) fn truncate(&mut self, pool: &mut Pool, rows: usize) {
        debug_assert!(rows <= self.rows);
        for id in self.blocks.drain(rows.div_ceil(BLOCK_SLOTS)..) {
            pool.release(id);
        }
        self.rows = rows;
    }
}

/// A table as attention reads it.
pub struct TableView<'a> {
    pub(crate) table: &'a Table,
    pub(crate) pool: &'a Pool,
    pub(crate) shape: KvShape,
}

impl KvView for TableView<'_> {
    fn blocks(&self) -> usize {
        self.table.blocks.len()
    }

    fn block(&self, i: usize) -> Block<'_> {
        let (k, v) = self
            .pool
            .bytes(self.table.blocks[i])
            .split_at(self.shape.k_bytes());
        Block {
            k,
            v,
            rows: (self.table.rows - i * BLOCK_SLOTS).min(BLOCK_SLOTS),
            // Rows and positions coincide while nothing is evicted; they are still two counters.
            first_position: (i * BLOCK_SLOTS) as u64,
        }
    }
}
