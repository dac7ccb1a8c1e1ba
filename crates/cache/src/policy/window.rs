//! Window policy: the first tokens (anchors, or attention sinks) and the most recent ones stay; blocks between
//! them are evicted first in, first out. From StreamingLLM (Xiao et al. 2023).
//!
//! ```text
//! position   0        anchors                    position - window     position
//!            [ stays )[ evicted, in whole blocks )[ stays, its whole first block too )
//! ```
//!
//! A block is evicted when all of it is older than the window: at every position that differs from the window by a
//! multiple of 32. A caller that asks at those positions, and feeds no tokens across one, keeps the same rows however it
//! splits the tokens, and never more than `anchors + window + 32`. An anchor count inside a block cuts that block's rows.

use super::{EvictionPlan, Snapshot};
use crate::error::CannotFit;
pub use crate::size::WindowParams;
use crate::size::{
    KeptTokens, LayerShape, SLOTS, Zones, kv_bytes, largest_that_fits, reserve_bytes,
};

/// What to evict now.
pub fn plan(snapshot: &Snapshot, params: &WindowParams) -> EvictionPlan {
    let gap = params.gap(snapshot.position);
    if gap.is_empty() {
        return EvictionPlan::nothing(snapshot);
    }
    EvictionPlan::without(snapshot, gap)
}

/// The largest window, in whole blocks, with which a sequence of any length stays within `budget_bytes` of blocks when
/// it is fed `tokens` at a time. At least one block; `CannotFit` says what that would take.
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
    match largest_that_fits(MAX_BLOCKS, fits) {
        0 => {
            let min = steady_bytes(layers, zones, with(1), tokens);
            let min = usize::try_from(min).unwrap_or(usize::MAX);
            Err(CannotFit {
                short_by: min - budget_bytes,
                budget_bytes,
            })
        }
        blocks => Ok(with(blocks)),
    }
}

/// Beyond any budget: 2^45 tokens.
const MAX_BLOCKS: u64 = 1 << 40;

/// The highest number of block bytes that a sequence of any length ever has live or reserved when it is fed `tokens` at
/// a time.
pub fn steady_bytes(
    layers: &[LayerShape],
    zones: Zones,
    params: WindowParams,
    tokens: usize,
) -> u64 {
    let tokens = tokens.clamp(1, SLOTS as usize);
    let kept = KeptTokens::Window(params);
    let step = |at: u64| {
        let live = kv_bytes(layers, zones, kept, at);
        live.saturating_add(reserve_bytes(layers, zones, at, tokens))
    };
    let peak = |around: u64| {
        let from = (around / SLOTS).saturating_sub(2) * SLOTS;
        let steps = (from..from.saturating_add(6 * SLOTS)).step_by(tokens);
        steps.map(step).max().unwrap_or(0)
    };
    // Bytes grow until the policy's window is full and shrink where a layer's own window passes the anchors; elsewhere
    // only the offset inside a block matters.
    let full = params.anchors.saturating_add(params.window);
    let recent = (zones.recent as u64).saturating_add(SLOTS);
    let mut max = peak(full).max(peak(full.saturating_add(recent)));
    let mut seen = None;
    for own in layers.iter().filter_map(|layer| layer.window) {
        if seen.replace(own) != Some(own) {
            max = max.max(peak(own));
            max = max.max(peak(own.saturating_add(full)));
        }
    }
    max
}
