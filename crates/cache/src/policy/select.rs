//! What row policies share: their view of a layer, and ways to choose rows.

use crate::annotations::Annotation;
use crate::row_stats::KvRow;
use std::ops::Range;

/// One layer of a sequence, as a row policy sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerView<'a> {
    pub layer: usize,
    /// Layers of the model.
    pub layers: usize,
    /// Tokens fed.
    pub position: u64,
    /// Rows stored in this layer.
    pub rows: usize,
    /// Cap on its rows; `usize::MAX` = none.
    pub max_rows: usize,
    /// Rows before this position are evicted whatever their score.
    pub min_position: u64,
    /// Share of the budget in use, over all layers; 1 without a budget.
    pub budget_used: f32,
    /// Positions whose rows can be evicted: after the anchors, before the recent blocks.
    pub evictable: Range<u64>,
    /// Rows that are not sinks.
    pub non_sink_rows: usize,
    /// Attention that one of them would have if it had got all attention except the sinks'.
    pub full_mass: u64,
    /// Ordered and disjoint.
    pub annotations: &'a [Annotation],
}

/// Minimum number of first tokens that count as sinks where shares of attention are compared: they get much attention
/// whatever they say.
pub const SINK_COLUMNS: u64 = 4;

impl LayerView<'_> {
    /// `mass` as a multiple of the uniform share of `rows` rows.
    pub fn relative(&self, mass: u32, rows: usize) -> f32 {
        (f64::from(mass) * rows as f64 / self.full_mass.max(1) as f64) as f32
    }

    pub fn has_cap(&self) -> bool {
        self.max_rows < usize::MAX
    }

    /// Rows above the cap.
    pub(super) fn excess(&self) -> usize {
        self.rows.saturating_sub(self.max_rows)
    }

    /// Limits recent tokens to half of the cap, or nothing else could stay.
    pub(super) fn recent(&self, wanted: u64) -> u64 {
        wanted.min(self.max_rows as u64 / 2)
    }

    pub(super) fn is_recent(&self, recent: u64, position: u64) -> bool {
        position.saturating_add(self.recent(recent)) >= self.position
    }
}

/// Moves the rows for which `is_first` holds to the front and returns their number.
pub(super) fn partition(rows: &mut [KvRow], is_first: impl Fn(&KvRow) -> bool) -> usize {
    let mut count = 0;
    for i in 0..rows.len() {
        if is_first(&rows[i]) {
            rows.swap(i, count);
            count += 1;
        }
    }
    count
}

/// Moves protected rows to the back and rows before [`LayerView::min_position`] to the front. Returns how many are too
/// old, and how many are not protected.
pub(super) fn split_by_rule(view: &LayerView<'_>, rows: &mut [KvRow]) -> (usize, usize) {
    let free = partition(rows, |row| !row.protected);
    let gone = partition(&mut rows[..free], |row| row.position < view.min_position);
    (gone, free)
}

/// Moves the `count` rows of lowest worth to the front; of equal ones the older.
pub(super) fn lowest_first(rows: &mut [KvRow], count: usize) {
    if count > 0 && count < rows.len() {
        rows.select_nth_unstable_by(count - 1, order);
    }
}

pub(super) fn order(a: &KvRow, b: &KvRow) -> std::cmp::Ordering {
    let by_worth = a.worth.total_cmp(&b.worth);
    by_worth.then(a.position.cmp(&b.position))
}

/// The usual end of a policy: chooses rows that are too old, and of those that are not recent the ones of lowest worth
/// until the cap is met. `worth` is set.
pub(super) fn choose_lowest(view: &LayerView<'_>, rows: &mut [KvRow], recent: u64) -> usize {
    let (gone, free) = split_by_rule(view, rows);
    let rows = &mut rows[gone..free];
    let old = partition(rows, |row| !view.is_recent(recent, row.position));
    let leave = view.excess().saturating_sub(gone).min(old);
    lowest_first(&mut rows[..old], leave);
    gone + leave
}

/// Helpers for the tests of policies.
#[cfg(test)]
pub(super) mod testing {
    use super::LayerView;
    use crate::row_stats::KvRow;

    pub fn row(position: u64, mass: u32, norm_sq: f32) -> KvRow {
        KvRow {
            position,
            mass,
            norm_sq,
            worth: 0.0,
            entry: 0,
            slot: 0,
            protected: false,
        }
    }

    /// A view of one layer without a cap.
    pub fn view() -> LayerView<'static> {
        LayerView {
            layer: 0,
            layers: 1,
            position: 0,
            rows: 0,
            max_rows: usize::MAX,
            min_position: 0,
            budget_used: 1.0,
            evictable: 0..u64::MAX,
            non_sink_rows: 0,
            full_mass: 0,
            annotations: &[],
        }
    }

    /// Positions that `choose` evicts, in order.
    pub fn left(rows: &[KvRow], choose: impl Fn(&mut [KvRow]) -> usize) -> Vec<u64> {
        let mut rows = rows.to_vec();
        let leave = choose(&mut rows);
        let mut left: Vec<u64> = rows[..leave].iter().map(|row| row.position).collect();
        left.sort_unstable();
        left
    }
}
