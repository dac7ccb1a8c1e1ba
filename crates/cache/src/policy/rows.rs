//! Policies that choose rows, one layer at a time.
//!
//! A policy sees a [`LayerView`] and the rows that may leave ([`crate::Store::loose_rows`]). It puts those that leave
//! first and says how many they are; [`crate::Store::thin`] takes them out. It holds no state, reads no clock and
//! touches no block. What holds for every one of them:
//!
//! - a protected row never leaves; protection is a flag and no score, so nothing outbids it;
//! - rows before [`LayerView::oldest`] leave, whatever they are worth;
//! - of the others the last [`RowPolicy::recent`] tokens stay;
//! - afterwards a layer has at most [`LayerView::most`] rows, or everything that may leave has left;
//! - the same rows leave in whatever order they were given, and of equal ones the older;
//! - asking again right afterwards lets nothing leave.

use super::count::Counting;
use super::heavy::HeavyParams;
use super::snap::SnapParams;
use super::tiers::TiersParams;
use super::turns::TurnsParams;
use super::{heavy, snap, tiers, turns};
use crate::notes::Row;
use crate::spans::Span;
use std::ops::Range;

/// One layer of a sequence, as a policy sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerView<'a> {
    pub layer: usize,
    /// Of the model.
    pub layers: usize,
    /// Tokens seen.
    pub position: u64,
    /// Rows kept in this layer, all of them.
    pub rows: usize,
    /// Rows it may have; `usize::MAX` = any number.
    pub most: usize,
    /// Tokens before this position leave, whatever they are worth.
    pub oldest: u64,
    /// What of the budget is in use, over all layers; 1 where there is none.
    pub used: f32,
    /// Positions whose rows may leave: behind the anchors, before the recent blocks.
    pub loose: Range<u64>,
    /// Rows that are not sinks, and what one of them would have counted that got all attention the sinks did
    /// not get.
    pub others: usize,
    pub whole: u64,
    /// What was annotated, in order and apart from each other.
    pub spans: &'a [Span],
}

/// First tokens that count as sinks where shares of attention are compared, at least: they get much of it
/// whatever they say.
pub const SINK_COLUMNS: u64 = 4;

impl LayerView<'_> {
    /// How many times the uniform share of `others` rows `mass` is.
    pub fn relative(&self, mass: u32, others: usize) -> f32 {
        (f64::from(mass) * others as f64 / self.whole.max(1) as f64) as f32
    }

    pub fn has_cap(&self) -> bool {
        self.most < usize::MAX
    }

    /// Rows that must leave for the cap.
    pub(super) fn excess(&self) -> usize {
        self.rows.saturating_sub(self.most)
    }

    /// Half of the cap at most is recent, or nothing else could stay.
    pub(super) fn recent(&self, wanted: u64) -> u64 {
        wanted.min(self.most as u64 / 2)
    }

    pub(super) fn is_recent(&self, recent: u64, position: u64) -> bool {
        position.saturating_add(self.recent(recent)) >= self.position
    }
}

/// Who decides, with its parameters.
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
    pub fn name(&self) -> &'static str {
        match self {
            RowPolicy::Heavy(_) => "heavy",
            RowPolicy::Tiers(_) => "tiers",
            RowPolicy::Snap(_) => "snap",
            RowPolicy::Turns(_) => "turns",
        }
    }

    /// Those that leave come first in `rows` afterwards; their number is returned.
    pub fn choose(&self, view: &LayerView<'_>, rows: &mut [Row]) -> usize {
        match self {
            RowPolicy::Heavy(params) => heavy::choose(view, rows, params),
            RowPolicy::Tiers(params) => tiers::choose(view, rows, params),
            RowPolicy::Snap(params) => snap::choose(view, rows, params),
            RowPolicy::Turns(params) => turns::choose(view, rows, params),
        }
    }

    /// What attention is asked to count; `None` = nothing.
    pub fn count(&self) -> Option<Counting> {
        match self {
            RowPolicy::Heavy(params) => Some(params.counting()),
            RowPolicy::Tiers(params) => Some(params.memory.counting()),
            RowPolicy::Snap(_) => Some(Counting::LAST_BLOCK),
            RowPolicy::Turns(_) => None,
        }
    }

    /// Notes decay at multiples of 32: no step may cross one, and this is asked there.
    pub fn is_aligned(&self) -> bool {
        self.count().is_some_and(|counting| counting.is_aligned())
    }

    /// Rows may leave a layer that has no more than its cap.
    pub fn has_threshold(&self) -> bool {
        matches!(self, RowPolicy::Tiers(_))
    }

    /// Last tokens that stay in this layer, but for those before `oldest`.
    pub fn recent(&self, view: &LayerView<'_>) -> u64 {
        view.recent(match self {
            RowPolicy::Heavy(params) => params.recent,
            RowPolicy::Tiers(params) => params.recent(view.layer, view.layers),
            RowPolicy::Snap(params) => params.recent,
            RowPolicy::Turns(params) => params.recent,
        })
    }

    /// Whether the parameters make sense for a model of so many layers.
    pub fn check(&self, layers: usize) -> Result<(), ParamsError> {
        match self {
            RowPolicy::Heavy(params) => params.score.check(),
            RowPolicy::Tiers(params) => params.check(layers),
            RowPolicy::Snap(params) => params.check(),
            RowPolicy::Turns(_) => Ok(()),
        }
    }
}

/// Parameters that no run can follow.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParamsError {
    #[error("{name} is {found}; accepted: {least} to {most}")]
    Range {
        name: &'static str,
        found: f32,
        least: f32,
        most: f32,
    },
    #[error("{name} is {found}; accepted: {least} to {most}")]
    Number {
        name: &'static str,
        found: u64,
        least: u64,
        most: u64,
    },
    #[error("layer border {border} is beyond the model; accepted: 0 to {layers}")]
    Border { border: usize, layers: usize },
    #[error(
        "the {first} end at layer {end} and the {second} begin at layer {start}; accepted: borders that grow"
    )]
    Order {
        first: &'static str,
        end: usize,
        second: &'static str,
        start: usize,
    },
    #[error("{name} goes from {from} to {to}; accepted: a beginning before the end")]
    Reversed {
        name: &'static str,
        from: f32,
        to: f32,
    },
}

impl ParamsError {
    /// What is not a number is in no range.
    pub(super) fn range(
        name: &'static str,
        found: f32,
        least: f32,
        most: f32,
    ) -> Result<(), ParamsError> {
        match (least..=most).contains(&found) {
            true => Ok(()),
            false => Err(ParamsError::Range {
                name,
                found,
                least,
                most,
            }),
        }
    }

    pub(super) fn number(
        name: &'static str,
        found: u64,
        accepted: std::ops::RangeInclusive<u64>,
    ) -> Result<(), ParamsError> {
        match accepted.contains(&found) {
            true => Ok(()),
            false => Err(ParamsError::Number {
                name,
                found,
                least: *accepted.start(),
                most: *accepted.end(),
            }),
        }
    }
}

/// Those for which `is_first` holds come first; their number.
pub(super) fn partition(rows: &mut [Row], is_first: impl Fn(&Row) -> bool) -> usize {
    let mut count = 0;
    for i in 0..rows.len() {
        if is_first(&rows[i]) {
            rows.swap(i, count);
            count += 1;
        }
    }
    count
}

/// What no score has a say in: protected rows go to the back, those before the oldest to the front. How many are
/// too old, and how many are not protected.
pub(super) fn set_apart(view: &LayerView<'_>, rows: &mut [Row]) -> (usize, usize) {
    let free = partition(rows, |row| !row.protected);
    let gone = partition(&mut rows[..free], |row| row.position < view.oldest);
    (gone, free)
}

/// The least worth come first, `count` of them; of equal ones the older.
pub(super) fn least_first(rows: &mut [Row], count: usize) {
    if count > 0 && count < rows.len() {
        rows.select_nth_unstable_by(count - 1, order);
    }
}

pub(super) fn order(a: &Row, b: &Row) -> std::cmp::Ordering {
    a.worth
        .total_cmp(&b.worth)
        .then(a.position.cmp(&b.position))
}

/// The usual end of a policy: too old ones leave, and of those that are not recent the least worth until the cap
/// is met. Rows have their worth.
pub(super) fn choose_least(view: &LayerView<'_>, rows: &mut [Row], recent: u64) -> usize {
    let (gone, free) = set_apart(view, rows);
    let rows = &mut rows[gone..free];
    let old = partition(rows, |row| !view.is_recent(recent, row.position));
    let leave = view.excess().saturating_sub(gone).min(old);
    least_first(&mut rows[..old], leave);
    gone + leave
}
