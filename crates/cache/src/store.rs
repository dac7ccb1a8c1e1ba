//! Sequences over pools of blocks: the one place where tables change.
//!
//! A step is `begin` → `write` for every layer → `commit`, or `rollback`. Between steps every table
//! of a sequence has the same rows, and the sequence's position is the number of tokens it has seen.

use crate::error::CacheError;
use crate::pool::{Pool, Reservation, fit};
use crate::size::LayerShape;
use crate::table::{Table, TableView};
use haversack_kernels::attention::{BLOCK_SLOTS, write_k_rows, write_v_rows};
use haversack_kernels::cpu::Table as Kernels;

#[derive(Clone, Debug)]
pub struct StoreOptions {
    pub layers: Vec<LayerShape>,
    /// Ceiling for the bytes of all blocks; `None` = what the system gives.
    pub budget_bytes: Option<usize>,
    /// Which kernels round rows into blocks; all give the same bytes.
    pub kernels: Kernels,
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
    /// Bytes of the blocks this sequence holds; shared blocks count for each holder.
    pub bytes: usize,
}

/// A step under way: what was promised to it, and who takes part.
#[must_use = "a step ends with commit or rollback"]
pub struct Step {
    /// (pool)
    reservations: Vec<Reservation>,
    /// (sequence, tokens fed, rows of every layer before)
    members: Vec<Member>,
}

struct Member {
    id: SequenceId,
    tokens: usize,
    rows_before: usize,
}

struct Sequence {
    generation: u32,
    /// (layer); empty when the slot is free.
    tables: Vec<Table>,
    position: u64,
    open: bool,
    in_step: bool,
}

pub struct Store {
    layers: Vec<LayerShape>,
    /// One pool per block size.
    pools: Vec<Pool>,
    /// (layer): its pool.
    pool_of: Vec<usize>,
    sequences: Vec<Sequence>,
    budget_bytes: Option<usize>,
    kernels: Kernels,
}

impl Store {
    pub fn new(options: StoreOptions) -> Store {
        let mut pools: Vec<Pool> = Vec::new();
        let pool_of = options
            .layers
            .iter()
            .map(|layer| {
                let bytes = layer.block_bytes();
                pools
                    .iter()
                    .position(|p| p.block_bytes() == bytes)
                    .unwrap_or_else(|| {
                        pools.push(Pool::new(bytes));
                        pools.len() - 1
                    })
            })
            .collect();
        Store {
            layers: options.layers,
            pools,
            pool_of,
            sequences: Vec::new(),
            budget_bytes: options.budget_bytes,
            kernels: options.kernels,
        }
    }

    pub fn layers(&self) -> &[LayerShape] {
        &self.layers
    }

    pub fn budget_bytes(&self) -> Option<usize> {
        self.budget_bytes
    }

    /// Bytes of blocks in use.
    pub fn bytes_live(&self) -> usize {
        self.pools.iter().map(|p| p.live() * p.block_bytes()).sum()
    }

    pub fn bytes_peak(&self) -> usize {
        self.pools
            .iter()
            .map(|p| p.live_peak() * p.block_bytes())
            .sum()
    }

    pub fn open(&mut self) -> SequenceId {
        let tables = vec![Table::default(); self.layers.len()];
        self.admit(tables, 0)
    }

    /// A second sequence that shares every block with the first. The tail is copied when either
    /// writes to it.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, CacheError> {
        let i = self.idle(id)?;
        let (tables, position) = (self.sequences[i].tables.clone(), self.sequences[i].position);
        for (layer, table) in tables.iter().enumerate() {
            for &block in &table.blocks {
                self.pools[self.pool_of[layer]].share(block);
            }
        }
        Ok(self.admit(tables, position))
    }

    pub fn close(&mut self, id: SequenceId) -> Result<(), CacheError> {
        let i = self.idle(id)?;
        self.cut(i, 0);
        let sequence = &mut self.sequences[i];
        sequence.open = false;
        sequence.tables = Vec::new();
        sequence.generation = sequence.generation.wrapping_add(1);
        Ok(())
    }

    pub fn stats(&self, id: SequenceId) -> Result<SequenceStats, CacheError> {
        let sequence = &self.sequences[self.find(id)?];
        let bytes = |(layer, t): (usize, &Table)| t.blocks.len() * self.layers[layer].block_bytes();
        Ok(SequenceStats {
            position: sequence.position,
            rows: sequence.tables.iter().map(Table::rows).max().unwrap_or(0),
            bytes: sequence.tables.iter().enumerate().map(bytes).sum(),
        })
    }

    /// Forgets every token from `position` on.
    pub fn truncate(&mut self, id: SequenceId, position: u64) -> Result<(), CacheError> {
        let i = self.idle(id)?;
        let stands = self.sequences[i].position;
        if position > stands {
            return Err(CacheError::Truncate {
                asked: position,
                position: stands,
            });
        }
        self.cut(i, position as usize);
        self.sequences[i].position = position;
        Ok(())
    }

    /// Starts a step in which each sequence grows by so many tokens from the position it is said to
    /// stand at. The worst case is reserved here, and only here can the answer be "does not fit";
    /// then nothing has changed.
    pub fn begin(&mut self, grow: &[(SequenceId, u64, usize)]) -> Result<Step, CacheError> {
        let mut needed = vec![0usize; self.pools.len()];
        let mut members: Vec<Member> = Vec::with_capacity(grow.len());
        for &(id, position, tokens) in grow {
            let i = self.idle(id)?;
            if members.iter().any(|m| m.id == id) {
                return Err(CacheError::Busy { index: i });
            }
            let sequence = &self.sequences[i];
            if sequence.position != position {
                return Err(CacheError::Position {
                    expected: sequence.position,
                    found: position,
                });
            }
            for (layer, table) in sequence.tables.iter().enumerate() {
                let pool = self.pool_of[layer];
                needed[pool] += table.blocks_to_grow(&self.pools[pool], tokens);
            }
            let rows_before = sequence.tables.first().map_or(0, Table::rows);
            members.push(Member {
                id,
                tokens,
                rows_before,
            });
        }
        let sum = |count: &dyn Fn(usize) -> usize| -> usize {
            (0..self.pools.len())
                .map(|p| count(p) * self.pools[p].block_bytes())
                .sum()
        };
        fit(
            sum(&|p| self.pools[p].committed()),
            sum(&|p| needed[p]),
            self.budget_bytes,
        )?;

        let mut reservations = Vec::with_capacity(self.pools.len());
        for (pool, &blocks) in self.pools.iter_mut().zip(&needed) {
            match pool.reserve(blocks) {
                Ok(r) => reservations.push(r),
                Err(error) => {
                    for (pool, r) in self.pools.iter_mut().zip(reservations) {
                        pool.forfeit(r);
                    }
                    return Err(error);
                }
            }
        }
        for member in &members {
            self.sequences[member.id.index as usize].in_step = true;
        }
        Ok(Step {
            reservations,
            members,
        })
    }

    /// Appends rows to one layer: `k` and `v` are (row, kv_head, dim), keys already rotated.
    pub fn write(
        &mut self,
        step: &mut Step,
        id: SequenceId,
        layer: usize,
        k: &[f32],
        v: &[f32],
    ) -> Result<(), CacheError> {
        let i = self.find(id)?;
        let member = step
            .members
            .iter()
            .find(|m| m.id == id)
            .ok_or(CacheError::NotInStep { index: i })?;
        let shape = *self.layers.get(layer).ok_or(CacheError::NoSuchLayer {
            layer,
            layers: self.layers.len(),
        })?;
        let expected = member.tokens * shape.width();
        for values in [k, v] {
            if values.len() != expected {
                let rows = member.tokens;
                return Err(CacheError::Shape {
                    layer,
                    rows,
                    expected,
                    found: values.len(),
                });
            }
        }
        let table = &mut self.sequences[i].tables[layer];
        if table.rows != member.rows_before {
            let found = table.rows - member.rows_before + member.tokens;
            return Err(CacheError::Growth {
                layer,
                expected: member.tokens,
                found,
            });
        }
        let pool = &mut self.pools[self.pool_of[layer]];
        let reservation = &mut step.reservations[self.pool_of[layer]];
        if table.tail_is_shared(pool)
            && member.tokens > 0
            && let Some(tail) = table.blocks.last_mut()
        {
            let private = pool.acquire(reservation);
            pool.copy(*tail, private);
            pool.release(*tail);
            *tail = private;
        }
        let mut done = 0;
        while done < member.tokens {
            let slot = table.rows % BLOCK_SLOTS;
            if slot == 0 {
                table.blocks.push(pool.acquire(reservation));
            }
            let rows = (BLOCK_SLOTS - slot).min(member.tokens - done);
            let from = done * shape.width()..(done + rows) * shape.width();
            if let Some(&block) = table.blocks.last() {
                let shape = shape.kernel();
                let (block_k, block_v) = pool.bytes_mut(block).split_at_mut(shape.k_bytes());
                write_k_rows(self.kernels, shape, block_k, slot, &k[from.clone()]);
                write_v_rows(self.kernels, shape, block_v, slot, &v[from]);
            }
            table.rows += rows;
            done += rows;
        }
        Ok(())
    }

    /// Ends a step: every layer of every sequence must have grown by exactly the tokens fed. If one
    /// has not, the step is rolled back and the error names the layer.
    pub fn commit(&mut self, step: Step) -> Result<(), CacheError> {
        for member in &step.members {
            let sequence = &self.sequences[member.id.index as usize];
            for (layer, table) in sequence.tables.iter().enumerate() {
                let found = table.rows - member.rows_before;
                if found != member.tokens {
                    let expected = member.tokens;
                    self.rollback(step);
                    return Err(CacheError::Growth {
                        layer,
                        expected,
                        found,
                    });
                }
            }
        }
        for member in &step.members {
            let sequence = &mut self.sequences[member.id.index as usize];
            sequence.position += member.tokens as u64;
            sequence.in_step = false;
        }
        self.forfeit(step);
        Ok(())
    }

    /// Ends a step as if it had not begun.
    pub fn rollback(&mut self, step: Step) {
        for member in &step.members {
            let i = member.id.index as usize;
            self.cut(i, member.rows_before);
            self.sequences[i].in_step = false;
        }
        self.forfeit(step);
    }

    /// One layer as attention reads it, rows of the step under way included.
    pub fn view(&self, id: SequenceId, layer: usize) -> Result<TableView<'_>, CacheError> {
        let i = self.find(id)?;
        let shape = self.layers.get(layer).ok_or(CacheError::NoSuchLayer {
            layer,
            layers: self.layers.len(),
        })?;
        Ok(TableView {
            table: &self.sequences[i].tables[layer],
            pool: &self.pools[self.pool_of[layer]],
            shape: shape.kernel(),
        })
    }

    fn admit(&mut self, tables: Vec<Table>, position: u64) -> SequenceId {
        let index = self
            .sequences
            .iter()
            .position(|s| !s.open)
            .unwrap_or_else(|| {
                self.sequences.push(Sequence {
                    generation: 0,
                    tables: Vec::new(),
                    position: 0,
                    open: false,
                    in_step: false,
                });
                self.sequences.len() - 1
            });
        let sequence = &mut self.sequences[index];
        sequence.tables = tables;
        sequence.position = position;
        sequence.open = true;
        SequenceId {
            index: index as u32,
            generation: sequence.generation,
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

    fn cut(&mut self, index: usize, rows: usize) {
        for (layer, table) in self.sequences[index].tables.iter_mut().enumerate() {
            table.truncate(&mut self.pools[self.pool_of[layer]], rows.min(table.rows));
        }
    }

    fn forfeit(&mut self, step: Step) {
        for (pool, reservation) in self.pools.iter_mut().zip(step.reservations) {
            pool.forfeit(reservation);
        }
    }
}
