//! Which tokens leave: decided here, done by [`crate::Store::apply`].
//!
//! A policy is a pure function. It holds no state, reads no clock and touches no block, so printing
//! what it decided explains an eviction and running it again gives the same one. There are two kinds:
//! [`window`] lets whole blocks leave all layers alike, from a [`Snapshot`] to a [`Plan`]; those in
//! [`rows`] choose rows, every layer for itself.

pub mod adaptive;
pub mod count;
pub mod explain;
pub mod heavy;
pub mod profile;
pub mod rows;
pub mod snap;
pub mod tiers;
pub mod turns;
pub mod window;

use std::fmt;
use std::ops::Range;

/// How far apart tokens count as standing once those between them have left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Positions {
    /// The gap closes: a query counts as standing right behind what is left.
    #[default]
    Compact,
    /// Where they were.
    Original,
}

/// One block of a sequence, over all layers that still have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// A multiple of 32.
    pub first_position: u64,
    /// `1..=32`
    pub rows: u32,
    /// Of all its forms and layers; blocks that others share count too.
    pub bytes: u64,
}

/// What a sequence holds, as a policy sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Tokens seen.
    pub position: u64,
    /// In order of position.
    pub blocks: Vec<Held>,
}

impl Snapshot {
    pub fn rows(&self) -> u64 {
        self.blocks.iter().map(|b| u64::from(b.rows)).sum()
    }

    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|b| b.bytes).sum()
    }
}

/// What leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Tokens seen when it was made; it is good for no other moment.
    pub position: u64,
    /// In order, apart from each other; each ends where a block ends.
    pub drop: Vec<Range<u64>>,
    pub rows_after: u64,
    pub bytes_after: u64,
    pub bytes_before: u64,
}

impl Plan {
    /// Everything stays.
    pub fn nothing(snapshot: &Snapshot) -> Plan {
        Plan {
            position: snapshot.position,
            drop: Vec::new(),
            rows_after: snapshot.rows(),
            bytes_after: snapshot.bytes(),
            bytes_before: snapshot.bytes(),
        }
    }

    /// Drops the positions of `gap` that are still there. `gap` ends at a multiple of 32.
    pub fn without(snapshot: &Snapshot, gap: Range<u64>) -> Plan {
        let mut plan = Plan::nothing(snapshot);
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
            // The whole block, also where its last rows left before.
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

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at position {}: ", self.position)?;
        if self.drop.is_empty() {
            return write!(
                f,
                "nothing leaves; {} rows in {} bytes stay",
                self.rows_after, self.bytes_after
            );
        }
        f.write_str("positions ")?;
        for (i, gap) in self.drop.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{} to {}", gap.start, gap.end - 1)?;
        }
        write!(
            f,
            " leave; {} rows stay, {} bytes become {}",
            self.rows_after, self.bytes_before, self.bytes_after
        )
    }
}

/// What the tests of policies share.
#[cfg(test)]
mod testing {
    use super::rows::LayerView;
    use crate::notes::Row;

    pub fn row(position: u64, mass: u32, norm_sq: f32) -> Row {
        Row {
            position,
            mass,
            norm_sq,
            worth: 0.0,
            entry: 0,
            slot: 0,
            protected: false,
        }
    }

    /// Of one layer without a cap.
    pub fn view() -> LayerView<'static> {
        LayerView {
            layer: 0,
            layers: 1,
            position: 0,
            rows: 0,
            most: usize::MAX,
            oldest: 0,
            used: 1.0,
            loose: 0..u64::MAX,
            others: 0,
            whole: 0,
            spans: &[],
        }
    }

    /// Positions that leave, in order.
    pub fn left(rows: &[Row], choose: impl Fn(&mut [Row]) -> usize) -> Vec<u64> {
        let mut rows = rows.to_vec();
        let leave = choose(&mut rows);
        let mut left: Vec<u64> = rows[..leave].iter().map(|row| row.position).collect();
        left.sort_unstable();
        left
    }
}
