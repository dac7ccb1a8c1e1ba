//! What is where: bytes by zone and form, and the tokens of a layer run by run. Changes nothing, decides nothing: for
//! whoever wants to show it.

use super::{Layer, Sequence, SequenceId, Store};
use crate::error::CacheError;
use crate::pool::BlockId;
use crate::table::{Entry, Table};
use haversack_kernels::format::kv::KvForm;
use std::collections::HashSet;
use std::ops::Range;

/// How well something is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Zone {
    /// The exact copy of the first tokens.
    Sinks,
    /// Near the query, where that is kept better.
    Recent,
    Rest,
}

impl Zone {
    pub const ALL: [Zone; 3] = [Zone::Sinks, Zone::Recent, Zone::Rest];

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
    /// In the budget.
    pub bytes: usize,
    /// In mapped files.
    pub file_bytes: usize,
}

/// Where a token is in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    Held(Zone),
    /// In memory, and no query sees it.
    Hidden,
    /// The layer's own window has passed it.
    Passed,
    Missing,
}

/// Tokens behind each other that are in the same spot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub tokens: u64,
    pub spot: Spot,
}

/// A block that a sequence holds.
struct HeldBlock<'a> {
    layer: &'a Layer,
    zone: Zone,
    pool: usize,
    id: BlockId,
    /// Its queries see this form, and not one that is kept better.
    counts: bool,
}

/// Which blocks were counted.
struct Counted {
    /// (pool): a bit for each block of its slabs.
    slabs: Vec<Vec<u64>>,
    /// Pool and block, of mapped files.
    files: HashSet<(usize, u32)>,
}

impl Counted {
    fn is_new(&mut self, pool: usize, id: BlockId) -> bool {
        let (index, _) = id.order();
        if id.is_adopted() {
            return self.files.insert((pool, index));
        }
        let (word, bit) = (index as usize / 64, 1 << (index % 64));
        let Some(word) = self.slabs[pool].get_mut(word) else {
            return false;
        };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

impl Store {
    /// Bytes of blocks by zone and form, shared ones once, those made ahead apart: together [`crate::Ledger::kv_live`] and
    /// [`crate::Ledger::kv_file`].
    pub fn zone_bytes(&self) -> Vec<ZoneBytes> {
        let words = |pool: &crate::Pool| vec![0; pool.total().div_ceil(64)];
        let mut counted = Counted {
            slabs: self.pools.iter().map(words).collect(),
            files: HashSet::new(),
        };
        let mut sums = Vec::new();
        for sequence in self.sequences.iter().filter(|s| s.open) {
            self.each_block(sequence, |held| {
                // One that a sequence saw which is gone is nobody's next form any more, and not ahead either.
                if !self.pools[held.pool].is_ahead(held.id) && counted.is_new(held.pool, held.id) {
                    self.add(&mut sums, held);
                }
            });
        }
        sums
    }

    /// The same of one sequence: blocks that its queries see, shared or not.
    pub fn zone_bytes_of(&self, id: SequenceId) -> Result<Vec<ZoneBytes>, CacheError> {
        let sequence = &self.sequences[self.find(id)?];
        let mut sums = Vec::new();
        self.each_block(sequence, |held| {
            if held.counts {
                self.add(&mut sums, held);
            }
        });
        Ok(sums)
    }

    /// The tokens of one layer, from the first to the last that was seen.
    pub fn runs(&self, id: SequenceId, layer: usize) -> Result<Vec<Run>, CacheError> {
        let sequence = &self.sequences[self.find(id)?];
        let made = self.layer(layer)?;
        let table = &sequence.tables[layer];
        let sinks = match table.sinks {
            Some(_) => self.zones.sinks as u64,
            None => 0,
        };
        let mut spots: Vec<(Range<u64>, Spot)> = Vec::new();
        for (i, entry) in table.entries.iter().enumerate() {
            let zone = made.zone(entry);
            for (positions, is_hidden) in rows(table, i, entry) {
                let spot = match is_hidden {
                    true => Spot::Hidden,
                    false => Spot::Held(zone),
                };
                let exact = positions.end.min(sinks);
                if positions.start < exact && !is_hidden {
                    spots.push((positions.start..exact, Spot::Held(Zone::Sinks)));
                }
                let rest = positions.start.max(if is_hidden { 0 } else { exact })..positions.end;
                if !rest.is_empty() {
                    spots.push((rest, spot));
                }
            }
        }
        // Rows that stay when others leave one by one stand in no order.
        spots.sort_by_key(|(positions, _)| positions.start);
        let mut runs = Vec::new();
        let mut at = 0;
        for (positions, spot) in spots {
            missing(&mut runs, at..positions.start, table.passed);
            push(&mut runs, positions.end - positions.start, spot);
            at = positions.end;
        }
        missing(&mut runs, at..sequence.position, table.passed);
        Ok(runs)
    }

    /// Each block, in every form it has, of sinks too.
    fn each_block(&self, sequence: &Sequence, mut tell: impl FnMut(HeldBlock<'_>)) {
        for (layer, table) in self.layers.iter().zip(&sequence.tables) {
            for entry in &table.entries {
                for (i, (pool, id)) in layer.forms(entry).enumerate() {
                    let zone = if i == 0 {
                        layer.zone(entry)
                    } else {
                        Zone::Rest
                    };
                    let counts = i == 0;
                    tell(HeldBlock {
                        layer,
                        zone,
                        pool,
                        id,
                        counts,
                    });
                }
            }
            if let (Some(pool), Some(id)) = (layer.sink_pool, table.sinks) {
                let zone = Zone::Sinks;
                tell(HeldBlock {
                    layer,
                    zone,
                    pool,
                    id,
                    counts: true,
                });
            }
        }
    }

    fn add(&self, sums: &mut Vec<ZoneBytes>, held: HeldBlock<'_>) {
        let HeldBlock {
            layer,
            zone,
            pool,
            id,
            ..
        } = held;
        let form = match zone {
            Zone::Sinks => KvForm::F16,
            Zone::Recent => layer.shape.near,
            Zone::Rest => layer.shape.far,
        };
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
        let bytes = self.pools[pool].block_bytes();
        match id.is_adopted() {
            true => sums[at].file_bytes += bytes,
            false => sums[at].bytes += bytes,
        }
    }
}

impl Layer {
    /// Of an entry that counts. A layer of one form has no recent zone.
    fn zone(&self, entry: &Entry) -> Zone {
        match self.shape.zoned() && entry.is_near() {
            true => Zone::Recent,
            false => Zone::Rest,
        }
    }
}

/// Positions of an entry's rows, in stretches that are hidden or not.
fn rows(table: &Table, i: usize, entry: &Entry) -> Vec<(Range<u64>, bool)> {
    let position = |slot: u32| match &table.notes {
        Some(notes) => u64::from(notes.position(i, slot as usize)),
        None => entry.first_position + u64::from(slot),
    };
    let mut found: Vec<(Range<u64>, bool)> = Vec::new();
    for slot in 0..entry.rows {
        let (at, is_hidden) = (position(slot), entry.hidden >> slot & 1 == 1);
        match found.last_mut() {
            Some((positions, hidden)) if positions.end == at && *hidden == is_hidden => {
                positions.end = at + 1;
            }
            _ => found.push((at..at + 1, is_hidden)),
        }
    }
    found
}

/// Tokens that no table has.
fn missing(runs: &mut Vec<Run>, positions: Range<u64>, passed: u64) {
    let border = passed.clamp(positions.start, positions.end.max(positions.start));
    push(runs, border - positions.start, Spot::Passed);
    push(runs, positions.end.saturating_sub(border), Spot::Missing);
}

fn push(runs: &mut Vec<Run>, tokens: u64, spot: Spot) {
    match runs.last_mut() {
        _ if tokens == 0 => {}
        Some(last) if last.spot == spot => last.tokens += tokens,
        _ => runs.push(Run { tokens, spot }),
    }
}
