//! Row policies: choose rows to evict, one layer at a time.
//!
//! A policy gets a [`LayerView`] and the rows that can be evicted ([`crate::Store::evictable_rows`]). It moves those to
//! evict to the front and returns their number; [`crate::Store::evict_rows`] evicts them. It holds no state, reads no
//! clock and touches no block. Every policy guarantees:
//!
//! - a protected row stays: protection is a flag and no score, so nothing outbids it;
//! - rows before [`LayerView::min_position`] are evicted, whatever their score;
//! - of the others the last [`RowPolicy::recent`] tokens stay;
//! - afterwards a layer has at most [`LayerView::max_rows`] rows, or everything evictable has been evicted;
//! - the choice does not depend on the order of the rows, and of equal rows the older one is evicted;
//! - running it again right afterwards evicts nothing.

use super::count::AttentionCounting;
use super::heavy::HeavyParams;
pub use super::params::ParamsError;
pub use super::select::{LayerView, SINK_COLUMNS};
use super::snap::SnapParams;
use super::tiers::TiersParams;
use super::turns::TurnsParams;
use super::{heavy, snap, tiers, turns};
use crate::row_stats::KvRow;

/// A row policy and its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowPolicy {
    Heavy(HeavyParams),
    Tiers(TiersParams),
    Snap(SnapParams),
    Turns(TurnsParams),
}

impl Default for RowPolicy {
    fn default() -> RowPolicy {
        RowPolicy::Heavy(HeavyParams::default())
    }
}

impl RowPolicy {
    /// Moves the rows to evict to the front of `rows` and returns their number.
    pub fn choose(&self, view: &LayerView<'_>, rows: &mut [KvRow]) -> usize {
        match self {
            RowPolicy::Heavy(params) => heavy::choose(view, rows, params),
            RowPolicy::Tiers(params) => tiers::choose(view, rows, params),
            RowPolicy::Snap(params) => snap::choose(view, rows, params),
            RowPolicy::Turns(params) => turns::choose(view, rows, params),
        }
    }

    /// What attention must count for this policy; `None` = nothing.
    pub fn count(&self) -> Option<AttentionCounting> {
        match self {
            RowPolicy::Heavy(params) => Some(params.counting()),
            RowPolicy::Tiers(params) => Some(params.memory.counting()),
            RowPolicy::Snap(_) => Some(AttentionCounting::LAST_BLOCK),
            RowPolicy::Turns(_) => None,
        }
    }

    /// Whether row statistics decay at multiples of 32: then no step may cross one, and the policy runs there.
    pub fn is_aligned(&self) -> bool {
        self.count().is_some_and(|counting| counting.is_aligned())
    }

    /// Whether the policy may evict rows of a layer that is within its cap.
    pub fn has_threshold(&self) -> bool {
        matches!(self, RowPolicy::Tiers(_))
    }

    /// Number of last tokens that stay in this layer, unless they are before [`LayerView::min_position`].
    pub fn recent(&self, view: &LayerView<'_>) -> u64 {
        view.recent(match self {
            RowPolicy::Heavy(params) => params.recent,
            RowPolicy::Tiers(params) => params.recent(view.layer, view.layers),
            RowPolicy::Snap(params) => params.recent,
            RowPolicy::Turns(params) => params.recent,
        })
    }

    /// Checks the parameters for a model with this number of layers.
    pub fn check(&self, layers: usize) -> Result<(), ParamsError> {
        match self {
            RowPolicy::Heavy(params) => params.score.check(),
            RowPolicy::Tiers(params) => params.check(layers),
            RowPolicy::Snap(params) => params.check(),
            RowPolicy::Turns(_) => Ok(()),
        }
    }
}
