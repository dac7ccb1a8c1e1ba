//! Anchors and a window: the first tokens stay for ever, the last ones while they are recent,
//! everything between leaves first in, first out.
//!
//! ```text
//! position   0        anchors                 position - window     position
//!            [ stays )[ leaves, in whole blocks )[ stays, its whole first block too )
//! ```
//!
//! A block leaves when all of it is older than the window: at every position that differs from the
//! window by a multiple of 32. Who asks there, and feeds no tokens across such a position, keeps the
//! same rows however the tokens were fed, and never more than `anchors + window + 32`. An anchor
//! count inside a block cuts that block's rows.

use super::{Plan, Snapshot};
use crate::error::CannotFit;
use crate::size::{Kept, LayerShape, SLOTS, Zones, kv_bytes, largest_that_fits, reserve_bytes};
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowParams {
    /// First tokens that never leave.
    pub anchors: u64,
    /// Last tokens that stay.
    pub window: u64,
}

impl WindowParams {
    /// The positions that are gone at `position`.
    pub fn gap(self, position: u64) -> Range<u64> {
        let start = self.anchors;
        let end = position.saturating_sub(self.window) / SLOTS * SLOTS;
        start..end.max(start)
    }
}

/// What leaves now.
pub fn plan(snapshot: &Snapshot, params: &WindowParams) -> Plan {
    let gap = params.gap(snapshot.position);
    if gap.is_empty() {
        return Plan::nothing(snapshot);
    }
    Plan::without(snapshot, gap)
}

/// The largest window, in whole blocks, with which an endless sequence stays within `budget_bytes`
/// of blocks when it is fed `tokens` at a time, one block at least. `CannotFit` names what the
/// smallest window, one block, would take.
pub fn fit(
    layers: &[LayerShape],
    zones: Zones,
    anchors: u64,
    tokens: usize,
    budget_bytes: usize,
) -> Result<WindowParams, CannotFit> {
    let with = |blocks: u64| WindowParams {
        anchors,
        window: blocks.saturating_mul(SLOTS),
    };
    let fits = |blocks| steady_bytes(layers, zones, with(blocks), tokens) <= budget_bytes as u64;
    // Bytes grow with the window.
    match largest_that_fits(MOST_BLOCKS, fits) {
        0 => {
            let least = steady_bytes(layers, zones, with(1), tokens);
            let least = usize::try_from(least).unwrap_or(usize::MAX);
            Err(CannotFit {
                short_by: least - budget_bytes,
                budget_bytes,
            })
        }
        blocks => Ok(with(blocks)),
    }
}

/// No budget asks for more: 2^45 tokens.
const MOST_BLOCKS: u64 = 1 << 40;

/// The most block bytes that a sequence ever has live or promised when it is fed `tokens` at a time,
/// however long it goes on.
pub fn steady_bytes(
    layers: &[LayerShape],
    zones: Zones,
    params: WindowParams,
    tokens: usize,
) -> u64 {
    let tokens = tokens.clamp(1, SLOTS as usize);
    let kept = Kept::Window(params);
    let step = |at: u64| {
        let live = kv_bytes(layers, zones, kept, at);
        live.saturating_add(reserve_bytes(layers, zones, at, tokens))
    };
    let peak = |turn: u64| {
        let from = (turn / SLOTS).saturating_sub(2) * SLOTS;
        let steps = (from..from.saturating_add(6 * SLOTS)).step_by(tokens);
        steps.map(step).max().unwrap_or(0)
    };
    // Bytes grow until the policy's window is full and shrink where a layer's own window passes the
    // anchors; in between and after nothing changes but the place inside a block.
    let full = params.anchors.saturating_add(params.window);
    let recent = (zones.recent as u64).saturating_add(SLOTS);
    let mut most = peak(full).max(peak(full.saturating_add(recent)));
    let mut seen = None;
    for own in layers.iter().filter_map(|layer| layer.window) {
        if seen.replace(own) != Some(own) {
            most = most.max(peak(own));
            most = most.max(peak(own.saturating_add(full)));
        }
    }
    most
}
