//! A sequence as bytes, and back: what a file keeps of it.
//!
//! A *column* is one block of 32 positions in every layer, in whatever form each has it; the *outline* is all else:
//! where the sequence stands, what left it, the exact first tokens. Below [`Store::settled`] a column never changes
//! again, so that it is written once; the few above it are what a later save replaces. What a layer's window has passed
//! since is left out when it is read. Restored equals computed, bit
//! for bit, but for what is hidden, which is said anew; far forms made ahead are made again. Sequences whose rows leave one by one have no image: their rows have moved between columns.
//!
//! ```text
//! column    block u64 | (layer) { form u8, rows u8 } | bytes of the layers that have it, in order
//! outline   position u64, rows_peak u64, positions u8, evicted_at u64 | gaps | (layer) { passed u64, sinks u8 } | bytes of the sinks
//! ```
//!
//! Numbers are little-endian. Lengths are checked against the store's own shapes before anything is taken, and a
//! sequence is whole or has not been opened.

use super::{Layer, Sequence, SequenceId, Store};
use crate::error::CacheError;
use crate::policy::Positions;
use crate::pool::{BlockId, Pool, Reservation, reserve_exact};
use crate::segments::Segments;
use crate::size::{SLOTS, near_from};
use crate::table::{Entry, Table};
use haversack_memory::Region;
use haversack_memory::zoo::{Bug, planted};

/// How a layer has a block.
const NONE: u8 = 0;
const NEAR: u8 = 1;
const FAR: u8 = 2;

/// What a file says of a sequence: the outline and the columns, in order of their blocks.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    pub outline: &'a [u8],
    pub columns: &'a [&'a [u8]],
}

impl Store {
    /// The first block that may still change. All full blocks before it have their last form.
    pub fn settled(&self, id: SequenceId) -> Result<u64, CacheError> {
        let sequence = &self.sequences[self.find(id)?];
        let position = sequence.position;
        let of = |layer: &Layer| match layer.shape.zoned() {
            true => near_from(layer.shape, self.zones, position),
            false => position / SLOTS,
        };
        let least = self.layers.iter().map(of).min();
        Ok(least.unwrap_or(0))
    }

    /// The blocks that any layer has, in order.
    pub fn blocks(&self, id: SequenceId) -> Result<Vec<u64>, CacheError> {
        let sequence = &self.sequences[self.find(id)?];
        let most: usize = sequence.tables.iter().map(|t| t.entries.len()).sum();
        let mut blocks = Vec::new();
        reserve_exact(&mut blocks, most)?;
        let entries = sequence.tables.iter().flat_map(|t| &t.entries);
        blocks.extend(entries.map(Entry::block));
        blocks.sort_unstable();
        blocks.dedup();
        Ok(blocks)
    }

    /// Bytes of a column whose block all layers have in the far form.
    pub fn column_bytes(&self) -> usize {
        let head = size_of::<u64>() + 2 * self.layers.len();
        let far = |layer: &Layer| self.pools[layer.far_pool].block_bytes();
        head + self.layers.iter().map(far).sum::<usize>()
    }

    /// Appends one block of every layer to `out`.
    pub fn column(&self, id: SequenceId, block: u64, out: &mut Vec<u8>) -> Result<(), CacheError> {
        let i = self.plain(id)?;
        let tables = &self.sequences[i].tables;
        let found = |table: &Table| find(table, block).map(|at| table.entries[at]);
        let bytes: usize = self
            .layers
            .iter()
            .zip(tables)
            .filter_map(|(layer, table)| Some(self.entry_bytes(layer, &found(table)?)))
            .sum();
        reserve_exact(out, size_of::<u64>() + 2 * tables.len() + bytes)?;
        write_head(tables, block, out);
        for (layer, table) in self.layers.iter().zip(tables) {
            if let Some((pool, id)) = found(table).and_then(|entry| layer.form(&entry)) {
                out.extend_from_slice(self.pools[pool].bytes(id));
            }
        }
        Ok(())
    }

    /// Appends all but the columns to `out`.
    pub fn outline(&self, id: SequenceId, out: &mut Vec<u8>) -> Result<(), CacheError> {
        let i = self.plain(id)?;
        let sequence = &self.sequences[i];
        let segments = &sequence.segments;
        let sinks: usize = self
            .layers
            .iter()
            .zip(&sequence.tables)
            .map(|(layer, table)| self.sink_bytes(layer, table))
            .sum();
        reserve_exact(
            out,
            64 + 16 * segments.gaps.len() + 9 * sequence.tables.len() + sinks,
        )?;
        let mut number = |n: u64| out.extend_from_slice(&n.to_le_bytes());
        number(sequence.position);
        number(sequence.rows_peak as u64);
        number(u64::from(segments.positions == Positions::Compact));
        number(segments.evicted_at);
        number(segments.gaps.len() as u64);
        for gap in &segments.gaps {
            number(gap.start);
            number(gap.end);
        }
        for table in &sequence.tables {
            number(table.passed);
            number(u64::from(table.sinks.is_some()));
        }
        for (layer, table) in self.layers.iter().zip(&sequence.tables) {
            if let (Some(pool), Some(id)) = (layer.sink_pool, table.sinks) {
                out.extend_from_slice(self.pools[pool].bytes(id));
            }
        }
        Ok(())
    }

    /// Opens the sequence of an image. Everything is checked first, then there is room for all of it or
    /// nothing has happened.
    pub fn restore(&mut self, image: Image<'_>) -> Result<SequenceId, CacheError> {
        if self.is_noting() {
            return Err(CacheError::NoImage);
        }
        let outline = self.read_outline(image.outline)?;
        let mut columns = Vec::new();
        reserve_exact(&mut columns, image.columns.len())?;
        for bytes in image.columns {
            let mut column = self.read_column(bytes, outline.position)?;
            column.leave_out_passed(outline.layers.iter().map(|layer| layer.passed));
            columns.push(column);
        }
        self.restore_from(&outline, &columns, &[])
    }

    /// Opens a sequence of columns that have been read. Those in files are in `regions`, (pool).
    pub(super) fn restore_from(
        &mut self,
        outline: &Outline<'_>,
        columns: &[Column<'_>],
        regions: &[Region],
    ) -> Result<SequenceId, CacheError> {
        if !columns.is_sorted_by(|a, b| a.block < b.block) {
            return Err(bad("columns out of order"));
        }
        self.check_zones(outline, columns)?;

        let id = self.open()?;
        let filled = self.fill(id, outline, columns, regions);
        if let Err(error) = filled {
            if !planted(Bug::FailedRestoreLeaks) {
                self.close(id)?;
            }
            return Err(error);
        }
        Ok(id)
    }

    /// Puts blocks that left a sequence back to where they were. They must be settled there, and not there now.
    pub fn mount(&mut self, id: SequenceId, columns: &[&[u8]]) -> Result<(), CacheError> {
        let i = self.plain(id)?;
        self.idle(id)?;
        let (position, settled) = (self.sequences[i].position, self.settled(id)?);
        let mut read = Vec::new();
        reserve_exact(&mut read, columns.len())?;
        for bytes in columns {
            let mut column = self.read_column(bytes, position)?;
            column.leave_out_passed(self.sequences[i].tables.iter().map(|t| t.passed));
            if column.block >= settled {
                return Err(bad("a column that is not settled"));
            }
            let mut layers = self.sequences[i].tables.iter().zip(&column.parts);
            if layers.any(|(table, part)| part.is_some() && find(table, column.block).is_some()) {
                return Err(bad("a column that is there already"));
            }
            read.push(column);
        }
        if !read.is_sorted_by(|a, b| a.block < b.block) {
            return Err(bad("columns out of order"));
        }
        // Each may leave a gap on either side.
        self.room_for_gaps(i, read.len())?;
        self.take_columns(i, &read, &[], &[])?;
        let segments = &mut self.sequences[i].segments;
        for column in &read {
            let first = column.block * SLOTS;
            segments.mount(first..first + SLOTS);
        }
        segments.cut();
        Ok(())
    }

    /// The sequence, if its rows have not moved.
    pub(super) fn plain(&self, id: SequenceId) -> Result<usize, CacheError> {
        let i = self.find(id)?;
        match self.sequences[i].noted {
            true => Err(CacheError::NoImage),
            false => Ok(i),
        }
    }

    pub(super) fn read_column<'a>(
        &self,
        bytes: &'a [u8],
        position: u64,
    ) -> Result<Column<'a>, CacheError> {
        let mut rest = Reader(bytes);
        let mut read = |pool: usize, rest: &mut Reader<'a>| {
            let bytes = rest.take(self.pools[pool].block_bytes())?;
            Ok(Lies::Here(bytes))
        };
        let column = self.read_parts(&mut rest, position, &mut read)?;
        rest.end()?;
        Ok(column)
    }

    /// The head of a column, and of each layer that has it what `lies` says of its pool.
    pub(super) fn read_parts<'a>(
        &self,
        rest: &mut Reader<'a>,
        position: u64,
        lies: &mut dyn FnMut(usize, &mut Reader<'a>) -> Result<Lies<'a>, CacheError>,
    ) -> Result<Column<'a>, CacheError> {
        let block = rest.number()?;
        let end = block
            .checked_mul(SLOTS)
            .filter(|&first| first < position)
            .ok_or(bad("a column past the position"))?;
        let mut heads = Vec::new();
        reserve_exact(&mut heads, self.layers.len())?;
        for _ in &self.layers {
            let head = rest.take(2)?;
            heads.push((head[0], head[1]));
        }
        let mut parts = Vec::new();
        reserve_exact(&mut parts, self.layers.len())?;
        for (layer, (form, rows)) in self.layers.iter().zip(heads) {
            let pool = match form {
                NONE if rows == 0 => {
                    parts.push(None);
                    continue;
                }
                NEAR => layer.near_pool,
                FAR if layer.shape.zoned() => layer.far_pool,
                _ => return Err(bad("a form that the layer does not have")),
            };
            let rows = u32::from(rows);
            let fits = rows >= 1
                && u64::from(rows) <= SLOTS
                && end
                    .checked_add(u64::from(rows))
                    .is_some_and(|end| end <= position);
            if !fits {
                return Err(bad("more rows than positions"));
            }
            parts.push(Some(Part {
                form,
                rows,
                lies: lies(pool, rest)?,
            }));
        }
        Ok(Column { block, parts })
    }

    pub(super) fn read_outline<'a>(&self, bytes: &'a [u8]) -> Result<Outline<'a>, CacheError> {
        let mut rest = Reader(bytes);
        let position = rest.number()?;
        let rows_peak = rest.number()?;
        let positions = match rest.number()? {
            0 => Positions::Original,
            1 => Positions::Compact,
            _ => return Err(bad("positions of no kind")),
        };
        let evicted_at = rest.number()?;
        let count = rest.number()?;
        if position > u64::MAX / 4 || rows_peak > position || evicted_at > position {
            return Err(bad("a position that is too large"));
        }
        // Apart from each other, so there are at most half as many as positions; and their bytes are there.
        if count > bytes.len() as u64 / 16 {
            return Err(bad("more gaps than bytes"));
        }
        let mut gaps = Vec::new();
        reserve_exact(&mut gaps, count as usize)?;
        let mut last = 0;
        for _ in 0..count {
            let gap = rest.number()?..rest.number()?;
            let apart = gaps.is_empty() || gap.start > last;
            if !apart || gap.start >= gap.end || gap.end > position {
                return Err(bad("gaps out of order"));
            }
            last = gap.end;
            gaps.push(gap);
        }
        let mut layers = Vec::new();
        reserve_exact(&mut layers, self.layers.len())?;
        for layer in &self.layers {
            let (passed, sinks) = (rest.number()?, rest.number()?);
            let window_passed = layer.shape.window.is_some() || passed == 0;
            let known = match sinks {
                0 => true,
                1 => layer.sink_pool.is_some(),
                _ => false,
            };
            if !known || !window_passed || passed > position {
                return Err(bad("an outline of other layers"));
            }
            layers.push((passed, sinks == 1));
        }
        let mut made = Vec::new();
        reserve_exact(&mut made, self.layers.len())?;
        for (layer, (passed, sinks)) in self.layers.iter().zip(layers) {
            let bytes = match (sinks, layer.sink_pool) {
                (true, Some(pool)) => Some(rest.take(self.pools[pool].block_bytes())?),
                _ => None,
            };
            made.push(Outlined {
                passed,
                sinks: bytes,
            });
        }
        rest.end()?;
        Ok(Outline {
            position,
            rows_peak: rows_peak as usize,
            positions,
            evicted_at,
            gaps,
            layers: made,
        })
    }

    /// Near exactly within the recent zone, full but at the end and before gaps, sinks with their block.
    fn check_zones(&self, outline: &Outline<'_>, columns: &[Column<'_>]) -> Result<(), CacheError> {
        let position = outline.position;
        for (l, layer) in self.layers.iter().enumerate() {
            let near_from = near_from(layer.shape, self.zones, position);
            let mut first = false;
            let mut last = None;
            for (block, part) in columns.iter().filter_map(|c| Some((c.block, c.parts[l]?))) {
                let near = block >= near_from;
                if near != (part.form == NEAR) {
                    return Err(bad("a block in the form of another zone"));
                }
                first |= block == 0;
                last = Some((block, part.rows));
            }
            let tail = position % SLOTS;
            if tail != 0 && last != Some((position / SLOTS, tail as u32)) {
                return Err(bad("an end without its rows"));
            }
            if outline.layers[l].sinks.is_some() != (first && layer.sink_pool.is_some()) {
                return Err(bad("first tokens without their block"));
            }
        }
        Ok(())
    }

    fn fill(
        &mut self,
        id: SequenceId,
        outline: &Outline<'_>,
        columns: &[Column<'_>],
        regions: &[Region],
    ) -> Result<(), CacheError> {
        let i = self.find(id)?;
        self.room_for_gaps(i, outline.gaps.len())?;
        self.take_columns(i, columns, &outline.layers, regions)?;
        let sequence = &mut self.sequences[i];
        sequence.position = outline.position;
        sequence.rows_peak = outline.rows_peak;
        let Segments {
            positions,
            gaps,
            evicted_at,
            ..
        } = &mut sequence.segments;
        *positions = outline.positions;
        *evicted_at = outline.evicted_at;
        gaps.extend(outline.gaps.iter().cloned());
        sequence.segments.cut();
        for (table, layer) in sequence.tables.iter_mut().zip(&outline.layers) {
            table.passed = layer.passed;
        }
        Ok(())
    }

    /// Blocks for all columns, and for the first tokens of `outlined`, or none. What lies in a file stays there.
    fn take_columns(
        &mut self,
        i: usize,
        columns: &[Column<'_>],
        outlined: &[Outlined<'_>],
        regions: &[Region],
    ) -> Result<(), CacheError> {
        let mut needed = Vec::new();
        reserve_exact(&mut needed, self.pools.len())?;
        needed.resize(self.pools.len(), 0usize);
        let mut lists = 0;
        for (l, layer) in self.layers.iter().enumerate() {
            let mut more = 0;
            for part in columns.iter().filter_map(|c| c.parts[l]) {
                let is_here = matches!(part.lies, Lies::Here(_));
                needed[layer.pool_of(part.form)] += usize::from(is_here);
                more += 1;
            }
            if let Some(pool) = layer.sink_pool {
                needed[pool] += usize::from(outlined.get(l).is_some_and(|o| o.sinks.is_some()));
            }
            lists += self.sequences[i].tables[l].bytes_to_mount(more);
        }
        let bytes = self
            .pools
            .iter()
            .zip(&needed)
            .map(|(pool, &n)| {
                n.saturating_mul(pool.block_bytes())
                    .saturating_add(pool.list_bytes_to_reserve(n))
            })
            .fold(lists, usize::saturating_add);
        let adopted = self.pools.iter().zip(regions);
        let bytes = adopted
            .map(|(pool, region)| pool.list_bytes_to_adopt(region))
            .fold(bytes, usize::saturating_add);
        self.ledger().fit(bytes)?;

        let mut promised: Vec<Reservation> = Vec::new();
        reserve_exact(&mut promised, self.pools.len())?;
        let mut taken = Ok(());
        for (pool, &blocks) in self.pools.iter_mut().zip(&needed) {
            match pool.reserve(blocks) {
                Ok(reservation) => promised.push(reservation),
                Err(error) => {
                    taken = Err(error);
                    break;
                }
            }
        }
        let mut homes = Vec::new();
        taken = taken.and_then(|()| reserve_exact(&mut homes, regions.len()));
        for (pool, region) in self.pools.iter_mut().zip(regions) {
            taken = taken.and_then(|()| {
                homes.push(pool.adopt(region)?);
                Ok(())
            });
        }
        for l in 0..self.layers.len() {
            let more = columns.iter().filter(|c| c.parts[l].is_some()).count();
            taken = taken.and_then(|()| self.sequences[i].tables[l].reserve_mount(more));
        }
        if taken.is_ok() {
            self.note_total();
            for (l, layer) in self.layers.iter().enumerate() {
                let Sequence {
                    tables, segments, ..
                } = &mut self.sequences[i];
                let table = &mut tables[l];
                for (block, part) in columns.iter().filter_map(|c| Some((c.block, c.parts[l]?))) {
                    let pool = layer.pool_of(part.form);
                    let id = match part.lies {
                        Lies::Here(bytes) => {
                            acquire(&mut self.pools[pool], &mut promised[pool], bytes)
                        }
                        Lies::InFile(block) => self.pools[pool].take_adopted(homes[pool], block),
                    };
                    let (near, far) = match part.form {
                        FAR => (None, Some(id)),
                        _ => (Some(id), None),
                    };
                    let entry = Entry {
                        near,
                        far,
                        first_position: block * SLOTS,
                        rows: part.rows,
                        hidden: 0,
                    };
                    let at = table.entries.partition_point(|e| e.block() < block);
                    table.entries.insert(at, entry);
                }
                table.hide(&segments.hidden);
                let sinks = outlined.get(l).and_then(|o| o.sinks);
                if let (Some(pool), Some(bytes)) = (layer.sink_pool, sinks) {
                    let id = acquire(&mut self.pools[pool], &mut promised[pool], bytes);
                    table.sinks = Some(id);
                }
            }
            self.note_peak();
        }
        for (pool, reservation) in self.pools.iter_mut().zip(promised) {
            pool.forfeit(reservation);
        }
        // Also where nothing of a region was wanted.
        self.pools.iter_mut().for_each(Pool::drop_unused);
        taken
    }
}

impl Layer {
    fn pool_of(&self, form: u8) -> usize {
        match form {
            FAR => self.far_pool,
            _ => self.near_pool,
        }
    }
}

/// Which layers have a block, in which form.
pub(super) fn write_head(tables: &[Table], block: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&block.to_le_bytes());
    for table in tables {
        let (form, rows) = match find(table, block).map(|at| table.entries[at]) {
            None => (NONE, 0),
            Some(entry) if entry.is_near() => (NEAR, entry.rows),
            Some(entry) => (FAR, entry.rows),
        };
        out.extend_from_slice(&[form, rows as u8]);
    }
}

fn acquire(pool: &mut Pool, from: &mut Reservation, bytes: &[u8]) -> BlockId {
    let id = pool.acquire(from);
    pool.bytes_mut(id).copy_from_slice(bytes);
    id
}

pub(super) fn find(table: &Table, block: u64) -> Option<usize> {
    table
        .entries
        .binary_search_by_key(&block, Entry::block)
        .ok()
}

pub(super) const fn bad(what: &'static str) -> CacheError {
    CacheError::BadImage { what }
}

/// One block of every layer.
pub(super) struct Column<'a> {
    block: u64,
    /// (layer)
    parts: Vec<Option<Part<'a>>>,
}

impl Column<'_> {
    /// A column is written once, when its rows have their last form. A layer whose window has passed them since has them no
    /// more. `passed` is (layer).
    fn leave_out_passed(&mut self, passed: impl Iterator<Item = u64>) {
        let end = self.block.saturating_add(1).saturating_mul(SLOTS);
        for (part, passed) in self.parts.iter_mut().zip(passed) {
            part.take_if(|_| end <= passed);
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    form: u8,
    rows: u32,
    lies: Lies<'a>,
}

/// Where the bytes of a block are.
#[derive(Clone, Copy)]
pub(super) enum Lies<'a> {
    Here(&'a [u8]),
    /// The so many'th block of its pool's region.
    InFile(usize),
}

pub(super) struct Outline<'a> {
    pub position: u64,
    rows_peak: usize,
    positions: Positions,
    evicted_at: u64,
    gaps: Vec<std::ops::Range<u64>>,
    /// (layer)
    layers: Vec<Outlined<'a>>,
}

pub(super) struct Outlined<'a> {
    passed: u64,
    sinks: Option<&'a [u8]>,
}

/// What is left of an image.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], CacheError> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(bad("bytes missing"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, CacheError> {
        let bytes = self.take(size_of::<u64>())?;
        let mut number = [0; 8];
        number.copy_from_slice(bytes);
        Ok(u64::from_le_bytes(number))
    }

    fn end(self) -> Result<(), CacheError> {
        match self.0 {
            [] => Ok(()),
            _ => Err(bad("bytes left over")),
        }
    }
}
