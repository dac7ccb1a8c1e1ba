//! Sequence images: a sequence as bytes, and back.
//!
//! A *column* is one block of 32 positions in every layer, in the form that each layer has; the *outline* is everything
//! else: position, gaps, the exact first tokens. A column below `Store::first_mutable_block` never changes again, so it is
//! written once; a later save replaces the few above it. When a column is read, layers whose window has passed it since
//! leave it out. A restored sequence equals the saved one bit for bit, except that nothing is hidden (the caller hides
//! again) and blocks recoded ahead are recoded again. Sequences with row statistics have no image, because their rows move
//! between columns.
//!
//! Numbers are little-endian. `tests/image_format.rs` reads this table and checks it against written images:
//!
//! ```text
//! column
//!     block         u64                                    first position / 32
//!     layer         { form u8, rows u8 } × layers          form: 0 none, 1 near, 2 far
//!     blocks        bytes of each layer with form > 0      in the order of the layers
//! outline
//!     position      u64
//!     rows_peak     u64
//!     compact       u64                                    1: compact positions, 0: original
//!     evicted_at    u64
//!     gaps          u64
//!     gap           { start u64, end u64 } × gaps
//!     layer         { window_passed u64, sinks u64 } × layers
//!     sinks         bytes of each layer with sinks > 0     in the order of the layers
//! ```
//!
//! Lengths are checked against the store's own shapes before anything is allocated; a sequence is restored whole or not at
//! all.

use super::sequence::Sequence;
use super::storage::{Layer, Storage};
use crate::error::{CacheError, CacheResult, filled, reserve_exact, with_room};
use crate::ledger::Ledger;
use crate::policy::PositionMode;
use crate::pool::{BlockId, BlockPool, Reservation};
use crate::size::SLOTS;
use crate::table::{BlockEntry, BlockTable};
use haversack_memory::Region;
use std::ops::Range;

/// How a layer has a block.
const NONE: u8 = 0;
const NEAR: u8 = 1;
const FAR: u8 = 2;

/// The saved parts of a sequence: the outline, and the columns in order of their blocks.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    pub outline: &'a [u8],
    pub columns: &'a [&'a [u8]],
}

/// The first block that may still change. All full blocks before it have their final form.
pub(super) fn first_mutable_block(storage: &Storage, position: u64) -> u64 {
    let of = |layer: &Layer| match layer.shape.zoned() {
        true => storage.near_from(layer, position),
        false => position / SLOTS,
    };
    storage.layers.iter().map(of).min().unwrap_or(0)
}

/// The blocks that any layer has, in order.
pub(super) fn blocks(sequence: &Sequence) -> CacheResult<Vec<u64>> {
    let max = sequence.tables.iter().map(|t| t.entries.len()).sum();
    let mut blocks = with_room(max)?;
    let entries = sequence.tables.iter().flat_map(|t| &t.entries);
    blocks.extend(entries.map(BlockEntry::block));
    blocks.sort_unstable();
    blocks.dedup();
    Ok(blocks)
}

/// Bytes of a column whose block all layers have in the far form.
pub(super) fn column_bytes(storage: &Storage) -> usize {
    let far = |layer: &Layer| storage.pools[layer.far_pool].block_bytes();
    head_bytes(storage) + storage.layers.iter().map(far).sum::<usize>()
}

/// Bytes before the blocks of a column.
pub(super) fn head_bytes(storage: &Storage) -> usize {
    size_of::<u64>() + 2 * storage.layers.len()
}

/// Appends one block of every layer to `out`.
pub(super) fn write_column(
    storage: &Storage,
    sequence: &Sequence,
    block: u64,
    out: &mut Vec<u8>,
) -> CacheResult {
    let forms = || column_forms(storage, sequence, block);
    let bytes = forms().map(|(pool, _)| storage.pools[pool].block_bytes());
    reserve_exact(out, head_bytes(storage) + bytes.sum::<usize>())?;
    write_head(&sequence.tables, block, out);
    for (pool, id) in forms() {
        out.extend_from_slice(storage.pools[pool].bytes(id));
    }
    Ok(())
}

/// Pool and block of each layer that has a block.
pub(super) fn column_forms(
    storage: &Storage,
    sequence: &Sequence,
    block: u64,
) -> impl Iterator<Item = (usize, BlockId)> {
    let layers = storage.layers.iter().zip(&sequence.tables);
    layers.filter_map(move |(layer, table)| layer.form(&table.entries[table.find(block)?]))
}

/// Appends which layers have a block, in which form.
pub(super) fn write_head(tables: &[BlockTable], block: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&block.to_le_bytes());
    for table in tables {
        let (form, rows) = match table.find(block).map(|at| table.entries[at]) {
            None => (NONE, 0),
            Some(entry) if entry.is_near() => (NEAR, entry.rows),
            Some(entry) => (FAR, entry.rows),
        };
        out.extend_from_slice(&[form, rows as u8]);
    }
}

/// Appends all but the columns to `out`.
pub(super) fn write_outline(
    storage: &Storage,
    sequence: &Sequence,
    out: &mut Vec<u8>,
) -> CacheResult {
    let segments = &sequence.segments;
    let tables = || storage.layers.iter().zip(&sequence.tables);
    let sinks = tables().map(|(layer, table)| storage.sink_bytes(layer, table));
    let numbers = 8 + 2 * (segments.gaps.len() + sequence.tables.len());
    reserve_exact(out, 8 * numbers + sinks.sum::<usize>())?;
    let mut number = |n: u64| out.extend_from_slice(&n.to_le_bytes());
    number(sequence.position);
    number(sequence.rows_peak as u64);
    number(u64::from(segments.positions == PositionMode::Compact));
    number(segments.evicted_at);
    number(segments.gaps.len() as u64);
    for gap in &segments.gaps {
        number(gap.start);
        number(gap.end);
    }
    for table in &sequence.tables {
        number(table.window_passed);
        number(u64::from(table.sinks.is_some()));
    }
    for (pool, id) in tables().filter_map(|(layer, table)| layer.sinks(table.sinks)) {
        out.extend_from_slice(storage.pools[pool].bytes(id));
    }
    Ok(())
}

/// One block of every layer, as read.
pub(super) struct Column<'a> {
    block: u64,
    /// (layer)
    parts: Vec<Option<LayerBlock<'a>>>,
}

#[derive(Clone, Copy)]
struct LayerBlock<'a> {
    form: u8,
    rows: u32,
    source: BlockSource<'a>,
}

impl LayerBlock<'_> {
    fn pool(&self, layer: &Layer) -> usize {
        match self.form {
            FAR => layer.far_pool,
            _ => layer.near_pool,
        }
    }
}

/// Where the bytes of a block are.
#[derive(Clone, Copy)]
pub(super) enum BlockSource<'a> {
    Inline(&'a [u8]),
    /// This block of its pool's mapped region.
    Mapped(usize),
}

pub(super) struct Outline<'a> {
    pub position: u64,
    rows_peak: usize,
    positions: PositionMode,
    evicted_at: u64,
    gaps: Vec<Range<u64>>,
    /// (layer)
    layers: Vec<LayerOutline<'a>>,
}

struct LayerOutline<'a> {
    window_passed: u64,
    sinks: Option<&'a [u8]>,
}

impl<'a> Outline<'a> {
    pub fn read(storage: &Storage, bytes: &'a [u8]) -> CacheResult<Outline<'a>> {
        let mut rest = Reader(bytes);
        let position = rest.number()?;
        let rows_peak = rest.number()?;
        let positions = match rest.number()? {
            0 => PositionMode::Original,
            1 => PositionMode::Compact,
            _ => return Err(bad("an unknown position mode")),
        };
        let evicted_at = rest.number()?;
        let count = rest.number()?;
        if position > u64::MAX / 4 || rows_peak > position || evicted_at > position {
            return Err(bad("a position that is too large"));
        }
        // Checked before the list is allocated.
        if count > bytes.len() as u64 / 16 {
            return Err(bad("more gaps than bytes"));
        }
        let mut gaps: Vec<Range<u64>> = with_room(count as usize)?;
        for _ in 0..count {
            let gap = rest.number()?..rest.number()?;
            let is_apart = gaps.last().is_none_or(|last| gap.start > last.end);
            if !is_apart || gap.start >= gap.end || gap.end > position {
                return Err(bad("gaps out of order"));
            }
            gaps.push(gap);
        }
        let mut layers = with_room(storage.layers.len())?;
        for layer in &storage.layers {
            let (window_passed, sinks) = (rest.number()?, rest.number()?);
            let fits = sinks == 0 || sinks == 1 && layer.sink_pool.is_some();
            let has_window = layer.shape.window.is_some() || window_passed == 0;
            if !fits || !has_window || window_passed > position {
                return Err(bad("an outline of other layers"));
            }
            let sinks = (sinks == 1).then_some(&[][..]);
            layers.push(LayerOutline {
                window_passed,
                sinks,
            });
        }
        for (layer, outline) in storage.layers.iter().zip(&mut layers) {
            if let (Some(sinks), Some(pool)) = (&mut outline.sinks, layer.sink_pool) {
                *sinks = rest.take(storage.pools[pool].block_bytes())?;
            }
        }
        rest.end()?;
        Ok(Outline {
            position,
            rows_peak: rows_peak as usize,
            positions,
            evicted_at,
            gaps,
            layers,
        })
    }

    /// (layer)
    fn window_passed(&self) -> impl Iterator<Item = u64> {
        self.layers.iter().map(|layer| layer.window_passed)
    }
}

impl<'a> Column<'a> {
    /// A column with the bytes of its blocks.
    pub fn read(storage: &Storage, bytes: &'a [u8], position: u64) -> CacheResult<Column<'a>> {
        let mut rest = Reader(bytes);
        let mut inline = |pool: usize, rest: &mut Reader<'a>| {
            let bytes = rest.take(storage.pools[pool].block_bytes())?;
            Ok(BlockSource::Inline(bytes))
        };
        let column = Column::read_parts(storage, &mut rest, position, &mut inline)?;
        rest.end()?;
        Ok(column)
    }

    /// The head of a column; `source` says where the bytes of a block of a pool are.
    pub fn read_parts(
        storage: &Storage,
        rest: &mut Reader<'a>,
        position: u64,
        source: &mut dyn FnMut(usize, &mut Reader<'a>) -> CacheResult<BlockSource<'a>>,
    ) -> CacheResult<Column<'a>> {
        let block = rest.number()?;
        let first = block.checked_mul(SLOTS).filter(|first| *first < position);
        let first = first.ok_or(bad("a column past the position"))?;
        let heads = rest.take(2 * storage.layers.len())?;
        let mut parts = with_room(storage.layers.len())?;
        for (layer, head) in storage.layers.iter().zip(heads.chunks_exact(2)) {
            let (form, rows) = (head[0], u64::from(head[1]));
            let pool = match form {
                NONE if rows == 0 => {
                    parts.push(None);
                    continue;
                }
                NEAR => layer.near_pool,
                FAR if layer.shape.zoned() => layer.far_pool,
                _ => return Err(bad("a form that the layer does not have")),
            };
            let end = first.checked_add(rows);
            if !(1..=SLOTS).contains(&rows) || end.is_none_or(|end| end > position) {
                return Err(bad("more rows than positions"));
            }
            parts.push(Some(LayerBlock {
                form,
                rows: rows as u32,
                source: source(pool, rest)?,
            }));
        }
        Ok(Column { block, parts })
    }

    /// Blocks that a column of `regions` has too, in the same form and byte for byte, stay there.
    pub fn share(&mut self, storage: &Storage, mapped: &[Column<'_>], regions: &[Region]) {
        let Some(mapped) = mapped.iter().find(|other| other.block == self.block) else {
            return;
        };
        for ((part, other), layer) in
            (self.parts.iter_mut().zip(&mapped.parts)).zip(&storage.layers)
        {
            let (Some(part), Some(other)) = (part, other) else {
                continue;
            };
            let (BlockSource::Inline(own), BlockSource::Mapped(at)) = (part.source, other.source)
            else {
                continue;
            };
            let (pool, bytes) = (part.pool(layer), own.len());
            let theirs = regions.get(pool).map(Region::as_slice);
            let theirs = theirs.and_then(|all| all.get(at * bytes..(at + 1) * bytes));
            if (part.form, part.rows) == (other.form, other.rows) && theirs == Some(own) {
                part.source = BlockSource::Mapped(at);
            }
        }
    }

    fn part(&self, layer: usize) -> Option<(u64, LayerBlock<'a>)> {
        Some((self.block, self.parts[layer]?))
    }

    /// Leaves out layers whose window has passed the column since it was written. `window_passed` is (layer).
    fn drop_passed(&mut self, window_passed: impl Iterator<Item = u64>) {
        let end = self.block.saturating_add(1).saturating_mul(SLOTS);
        for (part, passed) in self.parts.iter_mut().zip(window_passed) {
            part.take_if(|_| end <= passed);
        }
    }
}

/// Reads the columns of an image.
pub(super) fn read_columns<'a>(
    storage: &Storage,
    outline: &Outline<'_>,
    columns: &[&'a [u8]],
) -> CacheResult<Vec<Column<'a>>> {
    let mut read = with_room(columns.len())?;
    for bytes in columns {
        let mut column = Column::read(storage, bytes, outline.position)?;
        column.drop_passed(outline.window_passed());
        read.push(column);
    }
    Ok(read)
}

/// Checks columns against the outline: in order, near exactly within the recent zone, full except at the end and before
/// gaps, sinks with their block.
pub(super) fn check(
    storage: &Storage,
    outline: &Outline<'_>,
    columns: &[Column<'_>],
) -> CacheResult {
    check_order(columns)?;
    let position = outline.position;
    for (l, layer) in storage.layers.iter().enumerate() {
        let near_from = storage.near_from(layer, position);
        let mut has_first = false;
        let mut last = None;
        for (block, part) in columns.iter().filter_map(|c| c.part(l)) {
            if (block >= near_from) != (part.form == NEAR) {
                return Err(bad("a block in the form of another zone"));
            }
            has_first |= block == 0;
            last = Some((block, part.rows));
        }
        let tail = position % SLOTS;
        if tail != 0 && last != Some((position / SLOTS, tail as u32)) {
            return Err(bad("an end without its rows"));
        }
        if outline.layers[l].sinks.is_some() != (has_first && layer.sink_pool.is_some()) {
            return Err(bad("first tokens without their block"));
        }
    }
    Ok(())
}

fn check_order(columns: &[Column<'_>]) -> CacheResult {
    let is_sorted = columns.is_sorted_by(|a, b| a.block < b.block);
    is_sorted.then_some(()).ok_or(bad("columns out of order"))
}

/// Fills a new sequence. `regions` is (pool), or empty if no column is mapped.
pub(super) fn fill(
    storage: &mut Storage,
    sequence: &mut Sequence,
    mut ledger: Ledger,
    outline: &Outline<'_>,
    columns: &[Column<'_>],
    regions: &[Region],
) -> CacheResult {
    sequence.reserve_gaps(&mut ledger, outline.gaps.len())?;
    let layers = &outline.layers;
    insert(storage, sequence, &ledger, columns, layers, regions)?;
    sequence.position = outline.position;
    sequence.rows_peak = outline.rows_peak;
    let segments = &mut sequence.segments;
    segments.positions = outline.positions;
    segments.evicted_at = outline.evicted_at;
    segments.gaps.extend(outline.gaps.iter().cloned());
    segments.rebuild();
    for (table, layer) in sequence.tables.iter_mut().zip(layers) {
        table.window_passed = layer.window_passed;
    }
    Ok(())
}

/// Puts evicted columns back. They must be final, and not stored now.
pub(super) fn mount(
    storage: &mut Storage,
    sequence: &mut Sequence,
    mut ledger: Ledger,
    columns: &[&[u8]],
) -> CacheResult {
    let first_mutable = first_mutable_block(storage, sequence.position);
    let mut read = with_room(columns.len())?;
    for bytes in columns {
        let mut column = Column::read(storage, bytes, sequence.position)?;
        column.drop_passed(sequence.tables.iter().map(|t| t.window_passed));
        if column.block >= first_mutable {
            return Err(bad("a column that may still change"));
        }
        let mut layers = sequence.tables.iter().zip(&column.parts);
        if layers.any(|(table, part)| part.is_some() && table.find(column.block).is_some()) {
            return Err(bad("a column that is there already"));
        }
        read.push(column);
    }
    check_order(&read)?;
    // Each may leave a gap on either side.
    sequence.reserve_gaps(&mut ledger, read.len())?;
    insert(storage, sequence, &ledger, &read, &[], &[])?;
    for column in &read {
        let first = column.block * SLOTS;
        sequence.segments.mount(first..first + SLOTS);
    }
    sequence.segments.rebuild();
    Ok(())
}

/// Takes blocks for all columns, and for the sinks of `outlines`, or for none of them. Mapped blocks stay in their file.
fn insert(
    storage: &mut Storage,
    sequence: &mut Sequence,
    ledger: &Ledger,
    columns: &[Column<'_>],
    outlines: &[LayerOutline<'_>],
    regions: &[Region],
) -> CacheResult {
    let sinks = |l: usize| outlines.get(l).and_then(|outline| outline.sinks);
    let parts = |l: usize| columns.iter().filter_map(move |c| c.part(l));
    let mut needed = filled(storage.pools.len(), 0usize)?;
    let mut bytes = 0usize;
    for (l, layer) in storage.layers.iter().enumerate() {
        for (_, part) in parts(l) {
            let is_inline = matches!(part.source, BlockSource::Inline(_));
            needed[part.pool(layer)] += usize::from(is_inline);
        }
        if let Some(pool) = layer.sink_pool {
            needed[pool] += usize::from(sinks(l).is_some());
        }
        bytes += sequence.tables[l].bytes_to_mount(parts(l).count());
    }
    for (pool, &n) in storage.pools.iter().zip(&needed) {
        bytes = bytes.saturating_add(pool.bytes_to_reserve(n));
    }
    for (pool, region) in storage.pools.iter().zip(regions) {
        bytes = bytes.saturating_add(pool.list_bytes_to_map(region));
    }
    ledger.fit(bytes)?;

    let mut reservations: Vec<Reservation> = Vec::new();
    let mut mapped = Vec::new();
    let mut reserve = || -> CacheResult {
        reserve_exact(&mut reservations, storage.pools.len())?;
        for (pool, &blocks) in storage.pools.iter_mut().zip(&needed) {
            reservations.push(pool.reserve(blocks)?);
        }
        reserve_exact(&mut mapped, regions.len())?;
        for (pool, region) in storage.pools.iter_mut().zip(regions) {
            mapped.push(pool.map_region(region)?);
        }
        for (l, table) in sequence.tables.iter_mut().enumerate() {
            table.reserve_mount(parts(l).count())?;
        }
        Ok(())
    };
    let reserved = reserve();
    if reserved.is_ok() {
        let tables = storage.layers.iter().zip(&mut sequence.tables);
        for (l, (layer, table)) in tables.enumerate() {
            for (block, part) in parts(l) {
                let pool = part.pool(layer);
                let id = match part.source {
                    BlockSource::Inline(bytes) => {
                        acquire(&mut storage.pools[pool], &mut reservations[pool], bytes)
                    }
                    BlockSource::Mapped(at) => storage.pools[pool].take_mapped(mapped[pool], at),
                };
                let (near, far) = match part.form {
                    FAR => (None, Some(id)),
                    _ => (Some(id), None),
                };
                let entry = BlockEntry {
                    near,
                    far,
                    first_position: block * SLOTS,
                    rows: part.rows,
                    hidden: 0,
                };
                let at = table.entries.partition_point(|e| e.block() < block);
                table.entries.insert(at, entry);
            }
            table.hide(&sequence.segments.hidden);
            if let (Some(pool), Some(bytes)) = (layer.sink_pool, sinks(l)) {
                let id = acquire(&mut storage.pools[pool], &mut reservations[pool], bytes);
                table.sinks = Some(id);
            }
        }
    }
    for (pool, reservation) in storage.pools.iter_mut().zip(reservations) {
        pool.forfeit(reservation);
    }
    // Also after success: a region may have no wanted block.
    let pools = storage.pools.iter_mut();
    pools.for_each(BlockPool::drop_unused_regions);
    reserved
}

fn acquire(pool: &mut BlockPool, from: &mut Reservation, bytes: &[u8]) -> BlockId {
    let id = pool.acquire(from);
    pool.bytes_mut(id).copy_from_slice(bytes);
    id
}

pub(super) const fn bad(what: &'static str) -> CacheError {
    CacheError::BadImage { what }
}

/// The unread part of an image.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> CacheResult<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(bad("bytes missing"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> CacheResult<u64> {
        let (number, rest) = self.0.split_first_chunk().ok_or(bad("bytes missing"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*number))
    }

    fn end(self) -> CacheResult {
        match self.0 {
            [] => Ok(()),
            _ => Err(bad("bytes left over")),
        }
    }
}
