//! Memory report of a store: bytes by zone and form, and the state of every token of a layer, as runs.

use super::sequence::{Sequence, Sequences};
use super::storage::{Layer, Storage};
use crate::pool::BlockId;
use crate::table::{BlockEntry, BlockTable};
use haversack_kernels::format::kv::KvForm;
use std::collections::HashSet;
use std::ops::Range;

/// How precisely rows are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Zone {
    /// The exact copy of the first tokens.
    Sinks,
    /// Recent blocks, in a layer with two forms.
    Recent,
    Rest,
}

impl Zone {
    pub const fn name(self) -> &'static str {
        match self {
            Zone::Sinks => "sinks",
            Zone::Recent => "recent",
            Zone::Rest => "rest",
        }
    }
}

/// The blocks of one zone and form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneBytes {
    pub zone: Zone,
    pub form: KvForm,
    /// Bytes that the budget covers.
    pub bytes: usize,
    /// Bytes in mapped files.
    pub file_bytes: usize,
}

/// The state of a token in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenState {
    Held(Zone),
    /// Stored, but invisible to queries.
    Hidden,
    /// The layer's own window has passed it.
    Passed,
    Missing,
}

/// Consecutive tokens in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRun {
    pub tokens: u64,
    pub state: TokenState,
}

/// A block that a sequence holds.
struct HeldBlock {
    zone: Zone,
    form: KvForm,
    pool: usize,
    id: BlockId,
    /// The form that the sequence's queries read.
    is_read: bool,
}

/// Bytes of blocks by zone and form. A shared block counts once; blocks recoded ahead do not count.
pub(super) fn zone_bytes(storage: &Storage, sequences: &Sequences) -> Vec<ZoneBytes> {
    let mut counted = HashSet::new();
    let mut sums = Vec::new();
    for (_, sequence) in sequences.open() {
        for held in held_blocks(storage, sequence) {
            let is_ahead = storage.pools[held.pool].is_ahead(held.id);
            if !is_ahead && counted.insert((held.pool, held.id)) {
                add(storage, &mut sums, &held);
            }
        }
    }
    sums
}

/// The same for one sequence: blocks that its queries read, shared or not.
pub(super) fn sequence_zone_bytes(storage: &Storage, sequence: &Sequence) -> Vec<ZoneBytes> {
    let mut sums = Vec::new();
    for held in held_blocks(storage, sequence).filter(|held| held.is_read) {
        add(storage, &mut sums, &held);
    }
    sums
}

/// Every block of a sequence in every form, and the sinks.
fn held_blocks(storage: &Storage, sequence: &Sequence) -> impl Iterator<Item = HeldBlock> {
    let layers = storage.layers.iter().zip(&sequence.tables);
    layers.flat_map(|(layer, table)| {
        let held = |zone, (pool, id), is_read| HeldBlock {
            zone,
            form: match zone {
                Zone::Sinks => KvForm::F16,
                Zone::Recent => layer.shape.near,
                Zone::Rest => layer.shape.far,
            },
            pool,
            id,
            is_read,
        };
        let blocks = table.entries.iter().flat_map(move |entry| {
            let forms = layer.forms(entry).enumerate();
            forms.map(move |(i, form)| match i {
                0 => held(zone(layer, entry), form, true),
                _ => held(Zone::Rest, form, false),
            })
        });
        let sinks = layer.sinks(table.sinks);
        blocks.chain(sinks.map(move |sinks| held(Zone::Sinks, sinks, true)))
    })
}

fn add(storage: &Storage, sums: &mut Vec<ZoneBytes>, held: &HeldBlock) {
    let (zone, form) = (held.zone, held.form);
    let is_it = |sum: &ZoneBytes| sum.zone == zone && sum.form == form;
    let at = sums.iter().position(is_it).unwrap_or_else(|| {
        sums.push(ZoneBytes {
            zone,
            form,
            bytes: 0,
            file_bytes: 0,
        });
        sums.len() - 1
    });
    let bytes = storage.pools[held.pool].block_bytes();
    if held.id.is_mapped() {
        sums[at].file_bytes += bytes;
    } else {
        sums[at].bytes += bytes;
    }
}

/// The tokens of one layer, from the first to the last that was fed.
pub(super) fn token_runs(storage: &Storage, sequence: &Sequence, layer: usize) -> Vec<TokenRun> {
    let table = &sequence.tables[layer];
    let sinks = table.sinks.map_or(0, |_| storage.zones.sinks as u64);
    let mut states: Vec<(Range<u64>, TokenState)> = Vec::new();
    for (i, entry) in table.entries.iter().enumerate() {
        let zone = zone(&storage.layers[layer], entry);
        for (positions, is_hidden) in stretches(table, i, entry) {
            if is_hidden {
                states.push((positions, TokenState::Hidden));
                continue;
            }
            let exact = positions.end.min(sinks);
            if positions.start < exact {
                states.push((positions.start..exact, TokenState::Held(Zone::Sinks)));
            }
            let rest = positions.start.max(exact)..positions.end;
            if !rest.is_empty() {
                states.push((rest, TokenState::Held(zone)));
            }
        }
    }
    // Evicting single rows leaves the others in no order.
    states.sort_by_key(|(positions, _)| positions.start);
    let mut runs = Vec::new();
    let mut at = 0;
    for (positions, state) in states {
        missing(&mut runs, at..positions.start, table.window_passed);
        push(&mut runs, positions.end - positions.start, state);
        at = positions.end;
    }
    missing(&mut runs, at..sequence.position, table.window_passed);
    runs
}

/// The zone of an entry's visible form. A layer with one form has no recent zone.
fn zone(layer: &Layer, entry: &BlockEntry) -> Zone {
    let is_recent = layer.shape.zoned() && entry.is_near();
    if is_recent { Zone::Recent } else { Zone::Rest }
}

/// Positions of an entry's rows, in stretches that are hidden or not.
fn stretches(table: &BlockTable, i: usize, entry: &BlockEntry) -> Vec<(Range<u64>, bool)> {
    let mut found: Vec<(Range<u64>, bool)> = Vec::new();
    for slot in 0..entry.rows {
        let at = table.position(i, slot as usize);
        let is_hidden = entry.hidden >> slot & 1 == 1;
        match found.last_mut() {
            Some((positions, hidden)) if positions.end == at && *hidden == is_hidden => {
                positions.end = at + 1;
            }
            _ => found.push((at..at + 1, is_hidden)),
        }
    }
    found
}

/// Adds tokens that the table does not have.
fn missing(runs: &mut Vec<TokenRun>, positions: Range<u64>, window_passed: u64) {
    let border = window_passed.clamp(positions.start, positions.end.max(positions.start));
    push(runs, border - positions.start, TokenState::Passed);
    let after = positions.end.saturating_sub(border);
    push(runs, after, TokenState::Missing);
}

fn push(runs: &mut Vec<TokenRun>, tokens: u64, state: TokenState) {
    match runs.last_mut() {
        _ if tokens == 0 => {}
        Some(last) if last.state == state => last.tokens += tokens,
        _ => runs.push(TokenRun { tokens, state }),
    }
}
