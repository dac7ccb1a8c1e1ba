//! Explains a row policy's decision in words.
//!
//! Built only when an explanation is asked for, layer by layer, from the result of [`RowPolicy::choose`]. The text stays
//! short however deep the model and however many rows are evicted: layers that lose rows for the same reasons are grouped.

use super::heavy::HeavyScore;
use super::rows::RowPolicy;
use super::select::LayerView;
use crate::row_stats::KvRow;
use std::fmt;

/// The rows that leave a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct RowPlan {
    /// Position of the sequence when the policy ran.
    pub position: u64,
    /// Layers that lose rows, in order.
    pub layers: Vec<LayerPlan>,
}

/// The rows that leave one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPlan {
    pub layer: usize,
    pub rows_before: usize,
    /// Positions, in order.
    pub leave: Vec<u64>,
    /// Reasons in order of precedence, each for one row or more.
    pub why: Vec<EvictionReason>,
}

/// Why rows are evicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EvictionReason {
    /// Before [`LayerView::min_position`].
    Age,
    /// Only this many last tokens stay.
    NotRecent(u64),
    /// Importance below this multiple of the uniform share.
    Below(f32),
    /// The lowest of the evictable rows, for the cap: in words, by which score.
    Lowest(&'static str),
    /// A whole turn.
    Turn,
}

impl RowPlan {
    pub fn new(position: u64) -> RowPlan {
        RowPlan {
            position,
            layers: Vec::new(),
        }
    }

    /// Adds a layer: `view` as given to [`RowPolicy::choose`], and the rows that it chose.
    pub fn add(&mut self, policy: &RowPolicy, view: &LayerView<'_>, leave: &[KvRow]) {
        if leave.is_empty() {
            return;
        }
        let mut positions: Vec<u64> = leave.iter().map(|row| row.position).collect();
        positions.sort_unstable();
        let mut why: Vec<EvictionReason> = Vec::new();
        for row in leave {
            let reason = reason(policy, view, row, leave.len());
            if !why.contains(&reason) {
                why.push(reason);
            }
        }
        why.sort_by_key(|why| why.rank());
        self.layers.push(LayerPlan {
            layer: view.layer,
            rows_before: view.rows,
            leave: positions,
            why,
        });
    }

    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }
}

const LEAST_IMPORTANT: &str = "the least important for the cap";

fn reason(policy: &RowPolicy, view: &LayerView<'_>, row: &KvRow, leave: usize) -> EvictionReason {
    if row.position < view.min_position {
        return EvictionReason::Age;
    }
    match policy {
        RowPolicy::Heavy(params) => EvictionReason::Lowest(match params.score {
            HeavyScore::Sum => "the least attention so far",
            HeavyScore::Peak => "the least squared attention and value",
            HeavyScore::Max => "the least attention of any one query",
            HeavyScore::Average(_) => "the least attention of late",
        }),
        RowPolicy::Snap(_) => EvictionReason::Lowest("the least seen by the last 32 queries"),
        RowPolicy::Turns(_) => EvictionReason::Turn,
        RowPolicy::Tiers(params) => match params.theta(view.layer, view.layers) {
            None => EvictionReason::NotRecent(policy.recent(view)),
            Some(theta) => {
                let left = view.non_sink_rows.saturating_sub(leave);
                match view.relative(row.mass, left) < theta {
                    true => EvictionReason::Below(theta),
                    false => EvictionReason::Lowest(LEAST_IMPORTANT),
                }
            }
        },
    }
}

impl EvictionReason {
    fn rank(&self) -> u8 {
        match self {
            EvictionReason::Age => 0,
            EvictionReason::NotRecent(_) | EvictionReason::Turn => 1,
            EvictionReason::Below(_) => 2,
            EvictionReason::Lowest(_) => 3,
        }
    }
}

impl fmt::Display for EvictionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EvictionReason::Age => f.write_str("by age"),
            EvictionReason::NotRecent(recent) => write!(f, "all but the last {recent} tokens"),
            EvictionReason::Below(theta) => {
                write!(f, "importance below {theta} of the uniform share")
            }
            EvictionReason::Turn => f.write_str("whole turns, the oldest first"),
            EvictionReason::Lowest(score) => f.write_str(score),
        }
    }
}

/// Positions listed before the others are only counted.
const NAMED: usize = 3;

impl fmt::Display for RowPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at position {}: ", self.position)?;
        if self.layers.is_empty() {
            return f.write_str("nothing leaves");
        }
        let alike = |a: &LayerPlan, b: &LayerPlan| a.why == b.why;
        for (i, group) in self.layers.chunk_by(alike).enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            describe(f, group)?;
        }
        Ok(())
    }
}

/// Writes layers that lose rows for the same reasons. Layers between them may lose none.
fn describe(f: &mut fmt::Formatter<'_>, group: &[LayerPlan]) -> fmt::Result {
    let [first, .., last] = group else {
        let Some(only) = group.first() else {
            return Ok(());
        };
        let (layer, left, rows) = (only.layer, only.leave.len(), only.rows_before);
        write!(f, "layer {layer} lets {left} of {rows} rows go, ")?;
        positions(f, &only.leave)?;
        return reasons(f, &only.why);
    };
    let left = Bounds::of(group.iter().map(|layer| layer.leave.len() as u64));
    let rows = Bounds::of(group.iter().map(|layer| layer.rows_before as u64));
    let (from, to, count) = (first.layer, last.layer, group.len());
    match to - from + 1 == count {
        true => write!(f, "layers {from} to {to}")?,
        false => write!(f, "{count} layers from {from} to {to}")?,
    }
    write!(f, " let {left} of {rows} rows go each, ")?;
    if group.iter().all(|layer| layer.leave == first.leave) {
        positions(f, &first.leave)?;
    } else {
        let all = group.iter().flat_map(|layer| &layer.leave);
        write!(f, "among positions {}", Bounds::of(all.copied()))?;
    }
    reasons(f, &first.why)
}

fn reasons(f: &mut fmt::Formatter<'_>, why: &[EvictionReason]) -> fmt::Result {
    for (i, why) in why.iter().enumerate() {
        write!(f, "{}{why}", if i > 0 { " and " } else { ", " })?;
    }
    Ok(())
}

/// Writes ordered positions: one range, or the first few.
fn positions(f: &mut fmt::Formatter<'_>, list: &[u64]) -> fmt::Result {
    let bounds = Bounds::of(list.iter().copied());
    let is_run = bounds.max - bounds.min + 1 == list.len() as u64;
    if list.len() == 1 {
        return write!(f, "position {bounds}");
    }
    if is_run {
        return write!(f, "positions {bounds}");
    }
    let all = list.len() <= NAMED + 1;
    let named = if all { list.len() } else { NAMED };
    f.write_str("positions ")?;
    for (i, position) in list[..named].iter().enumerate() {
        write!(f, "{}{position}", if i > 0 { ", " } else { "" })?;
    }
    match list.len() - named {
        0 => Ok(()),
        more => write!(f, " and {more} more up to {}", bounds.max),
    }
}

/// Smallest and largest of some numbers.
struct Bounds {
    min: u64,
    max: u64,
}

impl Bounds {
    fn of(numbers: impl Iterator<Item = u64> + Clone) -> Bounds {
        Bounds {
            min: numbers.clone().min().unwrap_or(0),
            max: numbers.max().unwrap_or(0),
        }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min < self.max {
            write!(f, "{} to ", self.min)?;
        }
        write!(f, "{}", self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(
        layer: usize,
        rows_before: usize,
        leave: Vec<u64>,
        why: &[EvictionReason],
    ) -> LayerPlan {
        LayerPlan {
            layer,
            rows_before,
            leave,
            why: why.to_vec(),
        }
    }

    #[test]
    fn a_plan_prints_in_words() {
        let mut plan = RowPlan::new(1056);
        assert_eq!(plan.to_string(), "at position 1056: nothing leaves");
        let shallow: Vec<u64> = (64..96).collect();
        let recent = [EvictionReason::NotRecent(128)];
        plan.layers = (0..10)
            .map(|i| layer(i, 608, shallow.clone(), &recent))
            .collect();
        let scattered: Vec<u64> = (71..87).map(|p| p * p % 97 + 71).collect();
        let mut sorted = scattered.clone();
        sorted.sort_unstable();
        plan.layers
            .push(layer(17, 700, sorted, &[EvictionReason::Below(0.15)]));
        let both = [
            EvictionReason::Below(0.25),
            EvictionReason::Lowest(LEAST_IMPORTANT),
        ];
        plan.layers
            .push(layer(20, 640, vec![80, 90, 100, 110], &both));
        plan.layers.push(layer(22, 630, vec![85], &both));
        plan.layers
            .push(layer(23, 630, vec![85], &[EvictionReason::Age]));
        assert_eq!(
            plan.to_string(),
            "at position 1056: layers 0 to 9 let 32 of 608 rows go each, positions 64 to 95, all but the last 128 \
             tokens; layer 17 lets 16 of 700 rows go, positions 73, 83, 95 and 13 more up to 167, importance below \
             0.15 of the uniform share; 2 layers from 20 to 22 let 1 to 4 of 630 to 640 rows go each, among positions 80 to \
             110, importance below 0.25 of the uniform share and the least important for the cap; layer 23 lets 1 of \
             630 rows go, position 85, by age"
        );
    }
}
