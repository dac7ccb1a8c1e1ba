//! Eviction policies: decide which tokens to evict. [`crate::Store::apply`] and [`crate::Store::evict_rows`] do it.
//!
//! A policy is a pure function. It holds no state, reads no clock and touches no block, so printing its decision explains
//! an eviction, and running it again gives the same one. There are two kinds: [`window`] evicts whole blocks from all
//! layers alike, from a [`Snapshot`] to an [`EvictionPlan`]; those in [`rows`] choose rows, each layer for itself.

pub mod adaptive;
pub mod count;
pub mod explain;
pub mod heavy;
mod params;
pub mod profile;
pub mod rows;
mod select;
pub mod snap;
pub mod tiers;
pub mod turns;
pub mod window;

use std::fmt;
use std::ops::Range;

/// How distances between tokens count once tokens between them are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PositionMode {
    /// Gaps close: a query's position is shifted back by the evicted tokens.
    #[default]
    Compact,
    /// Every token keeps its position.
    Original,
}

/// One block of a sequence, summed over all layers that still have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSummary {
    /// A multiple of 32.
    pub first_position: u64,
    /// `1..=32`
    pub rows: u32,
    /// Shared blocks count too.
    pub bytes: u64,
}

/// The blocks of a sequence, as a policy sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Tokens fed.
    pub position: u64,
    /// In order of position.
    pub blocks: Vec<BlockSummary>,
}

impl Snapshot {
    pub fn rows(&self) -> u64 {
        self.blocks.iter().map(|b| u64::from(b.rows)).sum()
    }

    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|b| b.bytes).sum()
    }
}

/// What to evict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionPlan {
    /// Position of the sequence when the plan was made; the plan is valid only there.
    pub position: u64,
    /// Ordered and disjoint; each range ends where a block ends.
    pub drop: Vec<Range<u64>>,
    pub rows_after: u64,
    pub bytes_after: u64,
    pub bytes_before: u64,
}

impl EvictionPlan {
    /// A plan that evicts nothing.
    pub fn nothing(snapshot: &Snapshot) -> EvictionPlan {
        EvictionPlan {
            position: snapshot.position,
            drop: Vec::new(),
            rows_after: snapshot.rows(),
            bytes_after: snapshot.bytes(),
            bytes_before: snapshot.bytes(),
        }
    }

    /// A plan that evicts the positions of `gap` that are still stored. `gap` ends at a multiple of 32.
    pub fn without(snapshot: &Snapshot, gap: Range<u64>) -> EvictionPlan {
        let mut plan = EvictionPlan::nothing(snapshot);
        for held in &snapshot.blocks {
            let end = held.first_position + u64::from(held.rows);
            let from = held.first_position.max(gap.start);
            if from >= end || held.first_position >= gap.end {
                continue;
            }
            plan.rows_after -= end - from;
            if from == held.first_position {
                plan.bytes_after -= held.bytes;
            }
            // To the end of the block, even if its last rows were evicted before.
            let block_end = held.first_position + crate::size::SLOTS;
            match plan.drop.last_mut() {
                Some(last) if last.end == from => last.end = block_end,
                _ => plan.drop.push(from..block_end),
            }
        }
        plan
    }

    pub fn is_empty(&self) -> bool {
        self.drop.is_empty()
    }
}

impl fmt::Display for EvictionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at position {}: ", self.position)?;
        let (rows, before, after) = (self.rows_after, self.bytes_before, self.bytes_after);
        if self.drop.is_empty() {
            return write!(f, "nothing leaves; {rows} rows in {after} bytes stay");
        }
        f.write_str("positions ")?;
        for (i, gap) in self.drop.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{} to {}", gap.start, gap.end - 1)?;
        }
        write!(f, " leave; {rows} rows stay, {before} bytes become {after}")
    }
}
