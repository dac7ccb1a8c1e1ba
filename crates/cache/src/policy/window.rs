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
pub use crate::size::WindowParams;

/// What to evict now.
pub fn plan(snapshot: &Snapshot, params: &WindowParams) -> EvictionPlan {
    let gap = params.gap(snapshot.position);
    if gap.is_empty() {
        return EvictionPlan::nothing(snapshot);
    }
    EvictionPlan::without(snapshot, gap)
}
