//! Tiers: shallow, middle and deep layers keep different rows.
//!
//! As published, in thirds of the layers, when more than 70 % of the budget is used:
//!
//! ```text
//! shallow   the anchors and the last 128 tokens
//! middle    of the middle half of the context, but for the first 64 and the last 128 tokens, those leave whose
//!           importance is below θ = 0.15, in batches of 16
//! deep      the last 256 tokens stay; of those before, what is below θ = 0.25, a tenth of all tokens at most,
//!           and only as a last resort: when the layer is above its cap, or has none
//! ```
//!
//! Importance is a moving average with α = 0.3, relative to the uniform share: keep if I · n ≥ θ with the sinks taken
//! out. (Attention sums to one: an absolute 0.15 would let everything leave.) n shrinks with every row that leaves, so
//! that the rule holds for what is left. A layer that is above its cap all the same loses the least important; without
//! a cap rows leave by θ alone.
//!
//! Parameters: all these numbers, and the layers at which the groups end. [`super::profile`] has sets of them.

use super::count::Memory;
use super::rows::{LayerView, ParamsError, least_first, order, partition, set_apart};
use crate::notes::Row;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TiersParams {
    pub memory: Memory,
    /// What of the budget must be used before anything leaves.
    pub trigger: f32,
    /// The first middle and the first deep layer; `None` = thirds.
    pub borders: Option<[usize; 2]>,
    pub shallow: Shallow,
    pub middle: Middle,
    pub deep: Deep,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shallow {
    pub recent: u64,
    /// `None` = nothing but the recent tokens stays.
    pub theta: Option<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Middle {
    /// First tokens that stay.
    pub first: u64,
    pub recent: u64,
    /// The part of the context that rows leave from.
    pub part: [f32; 2],
    pub theta: f32,
    /// Rows leave in multiples of it.
    pub batch: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deep {
    pub recent: u64,
    pub theta: f32,
    /// The most that ever leaves by θ, of all tokens.
    pub share_max: f32,
}

impl TiersParams {
    pub const PUBLISHED: TiersParams = TiersParams {
        memory: Memory::Alpha(0.3),
        trigger: 0.7,
        borders: None,
        shallow: Shallow {
            recent: 128,
            theta: None,
        },
        middle: Middle {
            first: 64,
            recent: 128,
            part: [0.25, 0.75],
            theta: 0.15,
            batch: 16,
        },
        deep: Deep {
            recent: 256,
            theta: 0.25,
            share_max: 0.1,
        },
    };

    /// Multiples of the uniform share; beyond the greatest no row is ever kept.
    const THETA_MAX: f32 = 1000.0;

    pub fn check(&self, layers: usize) -> Result<(), ParamsError> {
        self.memory.check()?;
        ParamsError::range("the trigger", self.trigger, 0.0, 1.0)?;
        let thetas = [
            ("theta of shallow layers", self.shallow.theta.unwrap_or(0.0)),
            ("theta of middle layers", self.middle.theta),
            ("theta of deep layers", self.deep.theta),
        ];
        for (name, theta) in thetas {
            ParamsError::range(name, theta, 0.0, TiersParams::THETA_MAX)?;
        }
        let [from, to] = self.middle.part;
        ParamsError::range("the beginning of the middle part", from, 0.0, 1.0)?;
        ParamsError::range("the end of the middle part", to, 0.0, 1.0)?;
        if from >= to {
            let name = "the middle part";
            return Err(ParamsError::Reversed { name, from, to });
        }
        ParamsError::number("the batch", self.middle.batch as u64, 1..=4096)?;
        ParamsError::range(
            "the greatest share of deep layers",
            self.deep.share_max,
            0.0,
            1.0,
        )?;
        let Some([first, second]) = self.borders else {
            return Ok(());
        };
        for border in [first, second] {
            if border > layers {
                return Err(ParamsError::Border { border, layers });
            }
        }
        if first > second {
            return Err(ParamsError::Order {
                first: "shallow layers",
                end: first,
                second: "deep layers",
                start: second,
            });
        }
        Ok(())
    }

    fn tier(&self, layer: usize, layers: usize) -> Tier {
        let thirds = [layers.div_ceil(3), (2 * layers).div_ceil(3)];
        let [first, second] = self.borders.unwrap_or(thirds);
        match layer {
            _ if layer < first => Tier::Shallow,
            _ if layer < second => Tier::Middle,
            _ => Tier::Deep,
        }
    }

    /// Last tokens that stay in a layer.
    pub(super) fn recent(&self, layer: usize, layers: usize) -> u64 {
        match self.tier(layer, layers) {
            Tier::Shallow => self.shallow.recent,
            Tier::Middle => self.middle.recent,
            Tier::Deep => self.deep.recent,
        }
    }

    /// Below which importance rows leave a layer; `None` = whatever it is.
    pub fn theta(&self, layer: usize, layers: usize) -> Option<f32> {
        match self.tier(layer, layers) {
            Tier::Shallow => self.shallow.theta,
            Tier::Middle => Some(self.middle.theta),
            Tier::Deep => Some(self.deep.theta),
        }
    }
}

impl Default for TiersParams {
    fn default() -> TiersParams {
        TiersParams::PUBLISHED
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    Shallow,
    Middle,
    Deep,
}

/// As [`super::rows::RowPolicy::choose`]. Rows get their importance as worth.
pub fn choose(view: &LayerView<'_>, rows: &mut [Row], params: &TiersParams) -> usize {
    let (gone, free) = set_apart(view, rows);
    let rows = &mut rows[gone..free];
    let rule = Rule::of(view, params);
    if !rule.is_due && view.excess() <= gone {
        return gone;
    }
    let recent = params.recent(view.layer, view.layers);
    let old = partition(rows, |row| !view.is_recent(recent, row.position));
    for row in rows[..old].iter_mut() {
        row.worth = view.relative(row.mass, 1);
    }
    let mut leave = rule.choose(view, &mut rows[..old], gone);
    let excess = view.excess().saturating_sub(gone + leave);
    if excess > 0 {
        let rest = &mut rows[leave..old];
        let more = excess.min(rest.len());
        least_first(rest, more);
        leave += more;
        // The uniform share of what is left is another.
        leave += rule.choose(view, &mut rows[leave..old], gone + leave);
    }
    gone + leave
}

/// What a tier lets leave by importance.
struct Rule {
    is_due: bool,
    positions: std::ops::Range<u64>,
    theta: Option<f32>,
    batch: usize,
    /// Rows that are gone when no more leave.
    gone_max: usize,
}

impl Rule {
    fn of(view: &LayerView<'_>, params: &TiersParams) -> Rule {
        let tier = params.tier(view.layer, view.layers);
        let of_all = |part: f32| (view.position as f64 * f64::from(part)) as u64;
        let anywhere = Rule {
            is_due: view.used > params.trigger,
            positions: 0..u64::MAX,
            theta: params.theta(view.layer, view.layers),
            batch: 1,
            gone_max: usize::MAX,
        };
        match tier {
            Tier::Shallow => anywhere,
            Tier::Middle => Rule {
                positions: of_all(params.middle.part[0]).max(params.middle.first)
                    ..of_all(params.middle.part[1]),
                batch: params.middle.batch.max(1),
                ..anywhere
            },
            Tier::Deep => Rule {
                is_due: anywhere.is_due && (!view.has_cap() || view.rows > view.most),
                gone_max: of_all(params.deep.share_max) as usize,
                ..anywhere
            },
        }
    }

    /// Those that leave come first, after `before` others left.
    fn choose(&self, view: &LayerView<'_>, rows: &mut [Row], before: usize) -> usize {
        if !self.is_due {
            return 0;
        }
        let inside = partition(rows, |row| self.positions.contains(&row.position));
        let rows = &mut rows[..inside];
        let left = view.rows.saturating_sub(before);
        let gone = (view.position as usize).saturating_sub(left);
        let most = self.gone_max.saturating_sub(gone).min(rows.len());
        let Some(theta) = self.theta else {
            return most;
        };
        rows.sort_unstable_by(order);
        let others = view.others.saturating_sub(before);
        let below = |(i, row): &(usize, &Row)| theta > row.worth * others.saturating_sub(*i) as f32;
        let count = rows.iter().enumerate().take_while(below).count().min(most);
        count / self.batch * self.batch
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{left, row, view};
    use super::*;

    const LAYERS: usize = 6;

    /// At position 1024 with all rows, each with the uniform share but for every fourth with a tenth of it.
    fn rows() -> Vec<Row> {
        let mass = |p: u64| if p.is_multiple_of(4) { 100 } else { 1000 };
        let mut rows: Vec<Row> = (64..928).map(|p| row(p, mass(p), 1.0)).collect();
        rows.reverse();
        rows
    }

    fn at(layer: usize, most: usize) -> LayerView<'static> {
        LayerView {
            layer,
            layers: LAYERS,
            position: 1024,
            rows: 1024,
            most,
            others: 1020,
            whole: 1_020_000,
            ..view()
        }
    }

    fn gone(view: &LayerView<'_>, params: &TiersParams) -> Vec<u64> {
        left(&rows(), |rows| choose(view, rows, params))
    }

    #[test]
    fn as_published() {
        let params = TiersParams::default();
        let all = usize::MAX;
        assert_eq!(gone(&at(0, all), &params), (64..896).collect::<Vec<_>>());
        assert_eq!(gone(&at(1, all), &params).len(), 832);
        // The middle half is 256..768: every fourth leaves.
        let middle: Vec<u64> = (256..768).step_by(4).collect();
        assert_eq!(gone(&at(2, all), &params), middle);
        // A tenth at most, of 64..768.
        let deep: Vec<u64> = (64..768).step_by(4).take(102).collect();
        assert_eq!(gone(&at(4, all), &params), deep);
        // Below the trigger nothing leaves.
        for layer in 0..LAYERS {
            let idle = LayerView {
                used: 0.7,
                ..at(layer, 2000)
            };
            assert!(gone(&idle, &params).is_empty());
        }
        // Deep layers only when they are above their cap.
        assert!(gone(&at(5, 1024), &params).is_empty());
        assert_eq!(gone(&at(5, 1000), &params).len(), 102);
    }

    #[test]
    fn a_cap_is_met_by_the_least_important() {
        let params = TiersParams::default();
        for layer in 0..LAYERS {
            let gone = gone(&at(layer, 700), &params);
            assert!(gone.len() >= 324, "{layer}");
            // All that are small leave before any other.
            let small = gone.iter().filter(|p| p.is_multiple_of(4)).count();
            let end = if layer < 4 { 896 } else { 768 };
            assert_eq!(small as u64, (end - 64) / 4, "{layer}");
        }
    }

    #[test]
    fn batches_and_borders() {
        let mut params = TiersParams::default();
        params.middle.batch = 100;
        assert_eq!(gone(&at(2, usize::MAX), &params).len(), 100);
        params.borders = Some([0, 0]);
        assert_eq!(gone(&at(0, usize::MAX), &params).len(), 102);
        // Far too high: everything that may.
        params.middle.theta = 1000.0;
        params.borders = Some([0, 6]);
        params.middle.batch = 1;
        assert_eq!(gone(&at(0, usize::MAX), &params).len(), 512);
    }

    #[test]
    fn bad_numbers_are_named() {
        let said = |change: fn(&mut TiersParams)| {
            let mut params = TiersParams::default();
            change(&mut params);
            params.check(30).unwrap_err().to_string()
        };
        assert_eq!(
            said(|p| p.middle.theta = -0.1),
            "theta of middle layers is -0.1; accepted: 0 to 1000"
        );
        assert_eq!(
            said(|p| p.deep.theta = f32::NAN),
            "theta of deep layers is NaN; accepted: 0 to 1000"
        );
        assert_eq!(
            said(|p| p.borders = Some([10, 31])),
            "layer border 31 is beyond the model; accepted: 0 to 30"
        );
        assert_eq!(
            said(|p| p.borders = Some([20, 10])),
            "the shallow layers end at layer 20 and the deep layers begin at layer 10; accepted: borders that grow"
        );
        assert_eq!(
            said(|p| p.middle.part = [0.75, 0.25]),
            "the middle part goes from 0.75 to 0.25; accepted: a beginning before the end"
        );
        assert_eq!(
            said(|p| p.middle.batch = 0),
            "the batch is 0; accepted: 1 to 4096"
        );
        assert_eq!(
            said(|p| p.trigger = 1.5),
            "the trigger is 1.5; accepted: 0 to 1"
        );
        assert_eq!(
            said(|p| p.deep.share_max = -1.0),
            "the greatest share of deep layers is -1; accepted: 0 to 1"
        );
        assert_eq!(TiersParams::default().check(0), Ok(()));
    }
}
