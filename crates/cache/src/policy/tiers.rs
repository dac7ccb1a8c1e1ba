//! Tiers: shallow, middle and deep layers keep different rows, the deep ones most. (The nearest paper, PyramidKV by Cai
//! et al. 2024, gives layers different shares too, but more to the shallow ones.)
//!
//! By default, in thirds of the layers, when more than 70 % of the budget is used:
//!
//! ```text
//! shallow   the anchors and the last 128 tokens
//! middle    of the middle half of the context, except the first 64 and the last 128 tokens, rows with
//!           importance below θ = 0.15 are evicted, in batches of 16
//! deep      the last 256 tokens stay; of those before, rows below θ = 0.25 are evicted, at most a tenth of all
//!           tokens, and only as a last resort: when the layer is above its cap, or has none
//! ```
//!
//! Importance is a moving average with α = 0.3, relative to the uniform share: keep if I · n ≥ θ with the sinks taken
//! out. (Attention sums to one: an absolute 0.15 would evict everything.) n shrinks with every evicted row, so that the
//! rule holds for what is left. A layer that is still above its cap loses its least important rows; without a cap, θ alone
//! decides.
//!
//! Parameters: all these numbers, and the layers at which the groups end. [`super::profile`] has sets of them.

use super::count::AttentionMemory;
use super::params::ParamsError;
use super::select::{LayerView, lowest_first, order, partition, split_by_rule};
use crate::row_stats::KvRow;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TiersParams {
    pub memory: AttentionMemory,
    /// Share of the budget that must be in use before anything is evicted.
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
    /// `None` = only recent tokens stay.
    pub theta: Option<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Middle {
    /// Number of first tokens that stay.
    pub first: u64,
    pub recent: u64,
    /// The part of the context that rows are evicted from.
    pub part: [f32; 2],
    pub theta: f32,
    /// Rows are evicted in multiples of this.
    pub batch: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deep {
    pub recent: u64,
    pub theta: f32,
    /// Largest share of all tokens that θ evicts.
    pub share_max: f32,
}

impl TiersParams {
    pub const PUBLISHED: TiersParams = TiersParams {
        memory: AttentionMemory::Alpha(0.3),
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

    pub fn check(&self, layers: usize) -> Result<(), ParamsError> {
        self.memory.check()?;
        let check = |name, found, max| ParamsError::range(name, found, (0.0, max));
        let refused = |why: String| Err(ParamsError(why));
        let (shallow, deep) = (self.shallow.theta.unwrap_or(0.0), self.deep);
        // In multiples of the uniform share.
        let theta_max = 1000.0;
        check("the trigger", self.trigger, 1.0)?;
        check("theta of shallow layers", shallow, theta_max)?;
        check("theta of middle layers", self.middle.theta, theta_max)?;
        check("theta of deep layers", deep.theta, theta_max)?;
        let [from, to] = self.middle.part;
        check("the beginning of the middle part", from, 1.0)?;
        check("the end of the middle part", to, 1.0)?;
        if from >= to {
            return refused(format!(
                "the middle part goes from {from} to {to}; accepted: a beginning before the end"
            ));
        }
        ParamsError::range("the batch", self.middle.batch, (1, 4096))?;
        check("the greatest share of deep layers", deep.share_max, 1.0)?;
        let [first, second] = self.borders.unwrap_or([0, 0]);
        if let Some(border) = [first, second].into_iter().find(|border| *border > layers) {
            return refused(format!(
                "layer border {border} is beyond the model; accepted: 0 to {layers}"
            ));
        }
        if first > second {
            return refused(format!(
                "the shallow layers end at layer {first} and the deep layers begin at layer {second}; accepted: \
                 borders that grow"
            ));
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

    /// Number of last tokens that stay in a layer.
    pub(super) fn recent(&self, layer: usize, layers: usize) -> u64 {
        match self.tier(layer, layers) {
            Tier::Shallow => self.shallow.recent,
            Tier::Middle => self.middle.recent,
            Tier::Deep => self.deep.recent,
        }
    }

    /// Importance below which rows of a layer are evicted; `None` = any.
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

/// See [`super::rows::RowPolicy::choose`]. `worth` is the importance.
pub fn choose(view: &LayerView<'_>, rows: &mut [KvRow], params: &TiersParams) -> usize {
    let (gone, free) = split_by_rule(view, rows);
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
        lowest_first(rest, more);
        leave += more;
        // The uniform share of the remaining rows is another.
        leave += rule.choose(view, &mut rows[leave..old], gone + leave);
    }
    gone + leave
}

/// What a tier evicts by importance.
struct Rule {
    is_due: bool,
    positions: std::ops::Range<u64>,
    theta: Option<f32>,
    batch: usize,
    /// Number of evicted rows at which it stops.
    gone_max: usize,
}

impl Rule {
    fn of(view: &LayerView<'_>, params: &TiersParams) -> Rule {
        let tier = params.tier(view.layer, view.layers);
        let of_all = |part: f32| (view.position as f64 * f64::from(part)) as u64;
        let anywhere = Rule {
            is_due: view.budget_used > params.trigger,
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
                is_due: anywhere.is_due && (!view.has_cap() || view.rows > view.max_rows),
                gone_max: of_all(params.deep.share_max) as usize,
                ..anywhere
            },
        }
    }

    /// Moves the rows to evict to the front, after `before` others were chosen.
    fn choose(&self, view: &LayerView<'_>, rows: &mut [KvRow], before: usize) -> usize {
        if !self.is_due {
            return 0;
        }
        let inside = partition(rows, |row| self.positions.contains(&row.position));
        let rows = &mut rows[..inside];
        let left = view.rows.saturating_sub(before);
        let gone = (view.position as usize).saturating_sub(left);
        let max = self.gone_max.saturating_sub(gone).min(rows.len());
        let Some(theta) = self.theta else {
            return max;
        };
        rows.sort_unstable_by(order);
        let others = view.non_sink_rows.saturating_sub(before);
        let below =
            |(i, row): &(usize, &KvRow)| theta > row.worth * others.saturating_sub(*i) as f32;
        let count = rows.iter().enumerate().take_while(below).count().min(max);
        count / self.batch * self.batch
    }
}

#[cfg(test)]
mod tests {
    use super::super::select::testing::{left, row, view};
    use super::*;

    const LAYERS: usize = 6;

    /// At position 1024 with all rows, each with the uniform share but for every fourth with a tenth of it.
    fn rows() -> Vec<KvRow> {
        let mass = |p: u64| if p.is_multiple_of(4) { 100 } else { 1000 };
        let mut rows: Vec<KvRow> = (64..928).map(|p| row(p, mass(p), 1.0)).collect();
        rows.reverse();
        rows
    }

    fn at(layer: usize, max_rows: usize) -> LayerView<'static> {
        LayerView {
            layer,
            layers: LAYERS,
            position: 1024,
            rows: 1024,
            max_rows,
            non_sink_rows: 1020,
            full_mass: 1_020_000,
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
        // The middle half is 256..768: every fourth row is evicted.
        let middle: Vec<u64> = (256..768).step_by(4).collect();
        assert_eq!(gone(&at(2, all), &params), middle);
        // At most a tenth, of 64..768.
        let deep: Vec<u64> = (64..768).step_by(4).take(102).collect();
        assert_eq!(gone(&at(4, all), &params), deep);
        // Below the trigger nothing is evicted.
        for layer in 0..LAYERS {
            let idle = LayerView {
                budget_used: 0.7,
                ..at(layer, 2000)
            };
            assert!(gone(&idle, &params).is_empty());
        }
        // Deep layers only when they are above their cap.
        assert!(gone(&at(5, 1024), &params).is_empty());
        assert_eq!(gone(&at(5, 1000), &params).len(), 102);
    }

    #[test]
    fn a_cap_evicts_the_least_important() {
        let params = TiersParams::default();
        for layer in 0..LAYERS {
            let gone = gone(&at(layer, 700), &params);
            assert!(gone.len() >= 324, "{layer}");
            // All small ones are evicted before any other.
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
        // Far too high: evicts everything evictable.
        params.middle.theta = 1000.0;
        params.borders = Some([0, 6]);
        params.middle.batch = 1;
        assert_eq!(gone(&at(0, usize::MAX), &params).len(), 512);
    }

    #[test]
    fn errors_name_the_parameter() {
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
