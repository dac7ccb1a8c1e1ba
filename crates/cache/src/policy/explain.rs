//! What a policy that chooses rows decided, in words.
//!
//! Made when somebody asks for an explanation, layer by layer, from what [`RowPolicy::choose`] left; the path of a token
//! does without. A line stays short however deep the model and however many rows leave: layers that lose rows for the same
//! reasons stand together.

use super::heavy::Score;
use super::rows::{LayerView, RowPolicy};
use crate::notes::Row;
use std::fmt;

/// What leaves a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct RowPlan {
    /// Tokens seen when it was made.
    pub position: u64,
    /// Those that lose rows, in order.
    pub layers: Vec<LayerPlan>,
}

/// What leaves one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPlan {
    pub layer: usize,
    pub rows_before: usize,
    /// Positions, in order.
    pub leave: Vec<u64>,
    /// Reasons, in the order in which they were asked, each of a row at least.
    pub why: Vec<Why>,
}

/// Why rows leave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// Before the oldest that may stay.
    Age,
    /// Nothing but the last so many tokens stays.
    NotRecent(u64),
    /// Importance below so much of the uniform share.
    Below(f32),
    /// The least of what may leave, for the cap.
    Least(Measure),
    /// A turn, as a whole.
    Turn,
}

/// What was least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    Heavy(Score),
    Importance,
    Observed,
}

impl RowPlan {
    pub fn new(position: u64) -> RowPlan {
        RowPlan {
            position,
            layers: Vec::new(),
        }
    }

    /// One layer more: `view` and the rows that leave, as [`RowPolicy::choose`] was given the one and left the
    /// other.
    pub fn add(&mut self, policy: &RowPolicy, view: &LayerView<'_>, leave: &[Row]) {
        if leave.is_empty() {
            return;
        }
        let mut positions: Vec<u64> = leave.iter().map(|row| row.position).collect();
        positions.sort_unstable();
        let mut why: Vec<Why> = Vec::new();
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

fn reason(policy: &RowPolicy, view: &LayerView<'_>, row: &Row, leave: usize) -> Why {
    if row.position < view.oldest {
        return Why::Age;
    }
    match policy {
        RowPolicy::Heavy(params) => Why::Least(Measure::Heavy(params.score)),
        RowPolicy::Snap(_) => Why::Least(Measure::Observed),
        RowPolicy::Turns(_) => Why::Turn,
        RowPolicy::Tiers(params) => match params.theta(view.layer, view.layers) {
            None => Why::NotRecent(policy.recent(view)),
            Some(theta) => {
                let left = view.others.saturating_sub(leave);
                match view.relative(row.mass, left) < theta {
                    true => Why::Below(theta),
                    false => Why::Least(Measure::Importance),
                }
            }
        },
    }
}

impl Why {
    fn rank(&self) -> u8 {
        match self {
            Why::Age => 0,
            Why::NotRecent(_) | Why::Turn => 1,
            Why::Below(_) => 2,
            Why::Least(_) => 3,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Age => f.write_str("by age"),
            Why::NotRecent(recent) => write!(f, "all but the last {recent} tokens"),
            Why::Below(theta) => write!(f, "importance below {theta} of the uniform share"),
            Why::Turn => f.write_str("whole turns, the oldest first"),
            Why::Least(measure) => f.write_str(match measure {
                Measure::Heavy(Score::Sum) => "the least attention so far",
                Measure::Heavy(Score::Peak) => "the least squared attention and value",
                Measure::Heavy(Score::Max) => "the least attention of any one query",
                Measure::Heavy(Score::Average(_)) => "the least attention of late",
                Measure::Importance => "the least important for the cap",
                Measure::Observed => "the least seen by the last 32 queries",
            }),
        }
    }
}

/// Positions named one by one before the others are only counted.
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

/// Layers that lose rows for the same reasons. Between them may be some that lose none.
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
    let left = Ends::of(group.iter().map(|layer| layer.leave.len() as u64));
    let rows = Ends::of(group.iter().map(|layer| layer.rows_before as u64));
    match last.layer - first.layer + 1 == group.len() {
        true => write!(f, "layers {} to {}", first.layer, last.layer)?,
        false => write!(
            f,
            "{} layers from {} to {}",
            group.len(),
            first.layer,
            last.layer
        )?,
    }
    write!(f, " let {left} of {rows} rows go each, ")?;
    if group.iter().all(|layer| layer.leave == first.leave) {
        positions(f, &first.leave)?;
    } else {
        let all = group.iter().flat_map(|layer| &layer.leave);
        write!(f, "among positions {}", Ends::of(all.copied()))?;
    }
    reasons(f, &first.why)
}

fn reasons(f: &mut fmt::Formatter<'_>, why: &[Why]) -> fmt::Result {
    for (i, why) in why.iter().enumerate() {
        write!(f, "{}{why}", if i > 0 { " and " } else { ", " })?;
    }
    Ok(())
}

/// In order: one run, or the first few.
fn positions(f: &mut fmt::Formatter<'_>, list: &[u64]) -> fmt::Result {
    let ends = Ends::of(list.iter().copied());
    let is_run = ends.most - ends.least + 1 == list.len() as u64;
    if list.len() == 1 {
        return write!(f, "position {ends}");
    }
    if is_run {
        return write!(f, "positions {ends}");
    }
    let named = if list.len() <= NAMED + 1 {
        list.len()
    } else {
        NAMED
    };
    f.write_str("positions ")?;
    for (i, position) in list[..named].iter().enumerate() {
        write!(f, "{}{position}", if i > 0 { ", " } else { "" })?;
    }
    match list.len() - named {
        0 => Ok(()),
        more => write!(f, " and {more} more up to {}", ends.most),
    }
}

/// Of numbers.
struct Ends {
    least: u64,
    most: u64,
}

impl Ends {
    fn of(numbers: impl Iterator<Item = u64>) -> Ends {
        let none = Ends {
            least: u64::MAX,
            most: 0,
        };
        let ends = numbers.fold(none, |ends, n| Ends {
            least: ends.least.min(n),
            most: ends.most.max(n),
        });
        Ends {
            least: ends.least.min(ends.most),
            ..ends
        }
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.least == self.most {
            true => write!(f, "{}", self.most),
            false => write!(f, "{} to {}", self.least, self.most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(layer: usize, rows_before: usize, leave: Vec<u64>, why: &[Why]) -> LayerPlan {
        LayerPlan {
            layer,
            rows_before,
            leave,
            why: why.to_vec(),
        }
    }

    #[test]
    fn a_plan_is_said_in_words() {
        let mut plan = RowPlan::new(1056);
        assert_eq!(plan.to_string(), "at position 1056: nothing leaves");
        let shallow: Vec<u64> = (64..96).collect();
        let recent = [Why::NotRecent(128)];
        plan.layers = (0..10)
            .map(|i| layer(i, 608, shallow.clone(), &recent))
            .collect();
        let scattered: Vec<u64> = (71..87).map(|p| p * p % 97 + 71).collect();
        let mut sorted = scattered.clone();
        sorted.sort_unstable();
        plan.layers
            .push(layer(17, 700, sorted, &[Why::Below(0.15)]));
        let both = [Why::Below(0.25), Why::Least(Measure::Importance)];
        plan.layers
            .push(layer(20, 640, vec![80, 90, 100, 110], &both));
        plan.layers.push(layer(22, 630, vec![85], &both));
        plan.layers.push(layer(23, 630, vec![85], &[Why::Age]));
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
