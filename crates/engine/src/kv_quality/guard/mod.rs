//! The quality guard: predicts from the last queries what an eviction would do, before it is made.
//!
//! ```text
//! policy: these rows ──► share of the samples' attention ──► statistic S ──► predicted KL
//!                                                               │ above the bound
//!                                   other victims, or fewer ◄───┘ (costs row by row)
//! ```
//!
//! `S` is the sum over layers of the mean over query samples of `(|W_o Δo| / |x|)²`. The output matrix is replaced
//! by one number a head, because products would cost more than all the rest. `ln KL = offset + slope · ln S`; where
//! offset and slope come from is not decided here ([`fit`]).
//!
//! An event is everything that leaves a sequence at one position. Its allowance is shared by the layers: each may take
//! its part of what is left when its turn comes. Rows for which there is no room leave in any case; then the guard only
//! chooses among victims, in one layer of sixteen at a time, and the *debt* records the predicted cost.
//!
//! Nothing depends on how tokens were split into steps: events are where blocks end, and the samples are those of the
//! block. The guard does not rank rows for the policy, and looks no further ahead than its samples reach back.

pub mod choose;
pub(crate) mod share;

use crate::model::Model;
use crate::model::config::Config;
use crate::model::weights::Weights;
use crate::step::sequence::Sequences;
use choose::{VictimCounts, choose};
use haversack_cache::{CacheResult, KvRow, SequenceId, Store, with_room};
use haversack_kernels::Exec;
use haversack_kernels::attention::{self, BLOCK_SLOTS};
use share::{AttentionShare, BATCH, RowCosts, SampledLayer, statistic};

/// How a statistic becomes a prediction, and how much is allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardParams {
    /// `ln KL = offset + slope · ln S`
    pub slope: f64,
    pub offset: f64,
    /// 95 % of true damages are below this many times the prediction.
    pub factor: f64,
    /// What `factor` times the prediction of one event may be, in nats.
    pub bound: f64,
    /// From this debt on only rows are evicted for which there is no room.
    pub total: f64,
    /// One layer in this many is looked at, each in its turn, where rows leave whatever they cost.
    pub turns: u64,
}

impl Default for GuardParams {
    /// Fitted on SmolLM2; `docs/how-it-works/guard.md` has the figures.
    fn default() -> GuardParams {
        GuardParams {
            slope: 0.95,
            offset: 0.11,
            factor: 9.8,
            bound: 0.01,
            total: TOTAL,
            turns: TURNS,
        }
    }
}

impl GuardParams {
    /// The KL that a statistic predicts. NaN predicts the worst.
    pub fn predict(&self, statistic: f64) -> f64 {
        match statistic {
            s if s.is_nan() => KL_MAX,
            s if s <= 0.0 => 0.0,
            s => (self.offset + self.slope * s.ln()).exp().min(KL_MAX),
        }
    }

    /// The statistic whose prediction reaches the bound.
    pub fn allowed(&self) -> f64 {
        let log = (self.bound / self.factor).ln() - self.offset;
        log.exp().powf(1.0 / self.slope)
    }
}

/// Looking at all layers took the time of three tokens.
const TURNS: u64 = 16;

/// With the factor, a twentieth of a nat.
const TOTAL: f64 = 0.005;

/// The greatest prediction: a model that has lost everything is not worse than this.
const KL_MAX: f64 = 20.0;

/// Slope, offset and factor of measured pairs of statistic and KL; `None` where fewer than three are above zero, or all
/// statistics are the same. `bound` is passed on.
pub fn fit(pairs: &[(f64, f64)], bound: f64) -> Option<GuardParams> {
    let positive = |&&(s, kl): &&(f64, f64)| s > 0.0 && kl > 0.0 && s.is_finite() && kl.is_finite();
    let logs = pairs.iter().filter(positive);
    let logs: Vec<(f64, f64)> = logs.map(|(s, kl)| (s.ln(), kl.ln())).collect();
    if logs.len() < 3 {
        return None;
    }
    let n = logs.len() as f64;
    let mean = |f: &dyn Fn(&(f64, f64)) -> f64| logs.iter().map(f).sum::<f64>() / n;
    let (x, y) = (mean(&|p| p.0), mean(&|p| p.1));
    let slope = mean(&|p| (p.0 - x) * (p.1 - y)) / mean(&|p| (p.0 - x) * (p.0 - x));
    // Damage that does not grow with the statistic is no prediction.
    if !(slope.is_finite() && slope > 0.0) {
        return None;
    }
    let offset = y - slope * x;
    let mut above: Vec<f64> = logs.iter().map(|p| p.1 - offset - slope * p.0).collect();
    above.sort_by(f64::total_cmp);
    let at = ((0.95 * n).ceil() as usize).clamp(1, above.len()) - 1;
    Some(GuardParams {
        slope,
        offset,
        factor: above[at].exp().max(1.0),
        bound,
        ..GuardParams::default()
    })
}

/// Rows that a policy would evict from one layer, and those it would take next.
pub(crate) struct GuardRequest<'a> {
    pub id: SequenceId,
    pub layer: usize,
    pub position: u64,
    /// In the policy's order; afterwards the victims come first.
    pub rows: &'a mut [KvRow],
    /// This many of the first rows leave whatever they cost.
    pub fixed: usize,
    /// How many leave, the fixed ones included.
    pub counts: VictimCounts,
    /// How many layers this one is counted for.
    pub stands_for: f64,
}

/// What a guard reads and computes with.
pub(crate) struct GuardTools<'a> {
    pub config: &'a Config,
    pub exec: Exec<'a>,
    pub store: &'a Store,
    pub sequences: &'a mut Sequences,
    pub attention: &'a mut attention::AttentionScratch,
}

impl GuardTools<'_> {
    /// The rows of a layer, if it has query samples. `newest` is the last position that is asked about.
    pub fn view(
        &mut self,
        id: SequenceId,
        index: usize,
        (position, newest): (u64, u64),
    ) -> Option<GuardView<'_>> {
        let samples = self.sequences.samples(id, index, position)?;
        let present = std::array::from_fn(|i| {
            samples.positions[i].is_some_and(|p| p > newest) && samples.scale[i] > 0.0
        });
        Some(GuardView {
            exec: self.exec,
            store: self.store,
            attention: self.attention,
            layer: SampledLayer {
                present,
                config: self.config.layers.get(index)?,
                shape: *self.store.layers().get(index)?,
                mean: self.store.mean(index),
                samples,
            },
            id,
            index,
        })
    }
}

pub struct Guard {
    pub(crate) params: GuardParams,
    /// (layer)(head)
    pub(crate) gains: Vec<Vec<f32>>,
    /// Blocks of [`BATCH`] rows.
    pub(crate) bytes: Vec<u8>,
    pub(crate) before: AttentionShare,
    row_costs: RowCosts,
    /// (candidate): what it would cost alone.
    pub(crate) own: Vec<f32>,
    rows_max: usize,
    /// Statistic of the event under way.
    pub(crate) spent: f64,
}

/// Candidates that are looked at beyond each row that must leave.
const SPARES: usize = 1;

impl Guard {
    /// Bytes of a guard over sequences of `rows` rows, their query samples apart.
    pub fn bytes_for(config: &Config, block_bytes: usize, rows: usize) -> usize {
        let heads: usize = config.layers.iter().map(|c| c.heads).sum();
        let fixed = BATCH / BLOCK_SLOTS * block_bytes
            + AttentionShare::bytes_for(config)
            + RowCosts::bytes_for(config)
            + heads * size_of::<f32>();
        fixed.saturating_add(rows.saturating_mul(size_of::<f32>()))
    }

    pub(crate) fn new(
        model: &Model,
        block_bytes: usize,
        rows_max: usize,
        params: GuardParams,
    ) -> CacheResult<Guard> {
        let config = model.config();
        Ok(Guard {
            params,
            gains: gains(config, model.weights()),
            bytes: vec![0; BATCH / BLOCK_SLOTS * block_bytes],
            before: AttentionShare::new(config)?,
            row_costs: RowCosts::new(config)?,
            own: with_room(rows_max)?,
            rows_max,
            spent: 0.0,
        })
    }

    /// How many layers a layer is counted for; `None`: it is not looked at this time. Where evictions may be refused, every
    /// layer is looked at.
    pub(crate) fn stands_for(&self, layer: usize, position: u64, may_refuse: bool) -> Option<f64> {
        let turns = self.params.turns.max(1);
        let is_turn = (position / BLOCK_SLOTS as u64 + layer as u64).is_multiple_of(turns);
        let in_turn = is_turn.then_some(turns as f64);
        if may_refuse { Some(1.0) } else { in_turn }
    }

    /// How many candidates a policy should name where `leave` rows leave.
    pub(crate) fn candidates(&self, leave: usize) -> usize {
        leave.saturating_mul(1 + SPARES).min(self.rows_max)
    }

    /// Ends an event and returns its predicted KL.
    pub(crate) fn settle(&mut self) -> f64 {
        self.params.predict(std::mem::take(&mut self.spent))
    }

    /// Chooses the victims of one layer: they come first afterwards, and their number is returned. Without query samples
    /// at this position the policy's choice stands.
    pub(crate) fn judge(
        &mut self,
        mut tools: GuardTools<'_>,
        request: GuardRequest<'_>,
    ) -> CacheResult<usize> {
        let GuardRequest {
            id, layer, rows, ..
        } = request;
        let may = request.counts.may.min(rows.len());
        let must = request.counts.must.min(may);
        let state = tools.sequences.states.get(&id);
        let debt = state.map_or(0.0, |state| state.quality_debt);
        let may = if debt >= self.params.total { must } else { may };
        let fixed = request.fixed.min(must);
        let newest = rows.iter().map(|row| row.position).max().unwrap_or(0);
        let layout = tools.sequences.layout.as_ref();
        let has_samples = |l: &usize| layout.is_some_and(|layout| layout.has(*l));
        let left = (layer..tools.config.layers.len())
            .filter(has_samples)
            .count();
        let Some(mut view) = tools.view(id, layer, (request.position, newest)) else {
            return Ok(may);
        };
        let allowed = (self.params.allowed() - self.spent).max(0.0) / left.max(1) as f64;
        let mut leave = may;
        let mut cost = view.statistic(self, &rows[..leave])?;
        if cost > allowed && (rows.len() > may || may > must) {
            view.own(self, &rows[fixed..])?;
            for _ in 0..ROUNDS {
                // Together rows cost more or less than the sum of their own costs.
                let own = self.own[..leave - fixed].iter();
                let alone: f64 = own.map(|&x| f64::from(x)).sum();
                let together = match alone > 0.0 {
                    true => (cost / alone).max(1.0),
                    false => 1.0,
                };
                let counts = VictimCounts {
                    must: must - fixed,
                    may: may - fixed,
                };
                let own = &mut self.own;
                let chosen = choose(own, counts, allowed / together);
                let same = chosen.iter().copied().eq(0..(leave - fixed) as u32);
                leave = fixed + chosen.len();
                for (to, from) in chosen.into_iter().enumerate() {
                    rows.swap(fixed + to, fixed + from as usize);
                    own.swap(to, from as usize);
                }
                if same {
                    break;
                }
                cost = view.statistic(self, &rows[..leave])?;
                if cost <= allowed {
                    break;
                }
            }
            if cost > allowed && leave > must {
                leave = must;
                cost = view.statistic(self, &rows[..leave])?;
            }
        }
        let cost = if cost.is_nan() { f64::INFINITY } else { cost };
        self.spent += request.stands_for * cost;
        let present = view.layer.present;
        if leave > 0 {
            // The statistic was computed last for the rows that leave.
            let (difference, left) = self.before.parts();
            let sequences = tools.sequences;
            sequences.evict_from_samples(id, layer, &present, left, difference);
        }
        Ok(leave)
    }
}

/// Times that victims are chosen anew in one layer.
const ROUNDS: usize = 3;

/// The rows of one layer, judged by its query samples.
pub(crate) struct GuardView<'a> {
    pub exec: Exec<'a>,
    pub store: &'a Store,
    pub attention: &'a mut attention::AttentionScratch,
    pub layer: SampledLayer<'a>,
    pub id: SequenceId,
    pub index: usize,
}

impl GuardView<'_> {
    /// What these rows cost together.
    pub fn statistic(&mut self, guard: &mut Guard, rows: &[KvRow]) -> CacheResult<f64> {
        let share = &mut guard.before;
        share.clear(&self.layer);
        for rows in rows.chunks(BATCH) {
            let bytes = &mut guard.bytes;
            self.store.copy_rows(self.id, self.index, rows, bytes)?;
            share.add(self.exec, self.attention, &self.layer, bytes, rows.len());
        }
        let gains = &guard.gains[self.index];
        let difference = share.difference(&self.layer, None);
        Ok(statistic(self.exec, &self.layer, gains, difference))
    }

    /// What each of these rows would cost alone: `guard.own`.
    pub fn own(&self, guard: &mut Guard, rows: &[KvRow]) -> CacheResult {
        guard.own.clear();
        guard.own.resize(rows.len(), 0.0);
        let block_bytes = self.layer.shape.final_shape().block_bytes();
        let gains = &guard.gains[self.index];
        for (rows, own) in rows.chunks(BATCH).zip(guard.own.chunks_mut(BATCH)) {
            let bytes = &mut guard.bytes;
            self.store.copy_rows(self.id, self.index, rows, bytes)?;
            let blocks = bytes.chunks_exact(block_bytes);
            for (block, own) in blocks.zip(own.chunks_mut(BLOCK_SLOTS)) {
                (guard.row_costs).add_own(self.exec, &self.layer, gains, block, own);
            }
        }
        Ok(())
    }
}

/// Rows of the output matrix that are read: enough for one number a head.
const GAIN_ROWS: usize = 64;

/// (layer)(head): by how much the output matrix stretches the squared length of an error of a head, on average over
/// directions: the squares of its columns, summed, over the head's dimensions.
fn gains(config: &Config, weights: &Weights) -> Vec<Vec<f32>> {
    let of = |layer: usize| {
        let (c, w) = (&config.layers[layer], &weights.layers[layer].o);
        let step = w.rows.div_ceil(GAIN_ROWS).max(1);
        let mut row = vec![0.0; w.cols];
        let mut squares = vec![0.0f64; c.heads];
        let mut seen = 0;
        for r in (0..w.rows).step_by(step) {
            weights.row(w, r, &mut row);
            for (sum, head) in squares.iter_mut().zip(row.chunks_exact(c.head_dim)) {
                *sum += head.iter().map(|x| f64::from(x * x)).sum::<f64>();
            }
            seen += 1;
        }
        let by = w.rows as f64 / seen.max(1) as f64 / c.head_dim as f64;
        squares.into_iter().map(|s| (s * by) as f32).collect()
    };
    (0..config.layers.len()).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_where_the_prediction_reaches_it() {
        let params = GuardParams::default();
        let upper = params.predict(params.allowed()) * params.factor;
        assert!((upper / params.bound - 1.0).abs() < 1e-9, "{upper}");
        assert_eq!(params.predict(0.0), 0.0);
        assert_eq!(params.predict(-1.0), 0.0);
        assert_eq!(params.predict(f64::NAN), KL_MAX);
        assert_eq!(params.predict(f64::INFINITY), KL_MAX);
    }

    #[test]
    fn a_fit_finds_the_line_and_the_spread() {
        let noise = |i: usize| ((i * 37 % 101) as f64 / 50.0 - 1.0) * 0.5;
        let pair = |i: usize| {
            let x = -12.0 + 0.01 * i as f64;
            (x.exp(), (-0.5 + 0.9 * x + noise(i)).exp())
        };
        let pairs: Vec<_> = (0..1000).map(pair).collect();
        let found = fit(&pairs, 0.02).unwrap();
        assert!((found.slope - 0.9).abs() < 0.02, "{found:?}");
        assert!((found.offset + 0.5).abs() < 0.2, "{found:?}");
        assert!((found.factor.ln() - 0.45).abs() < 0.05, "{found:?}");
        assert_eq!(found.bound, 0.02);
        for bad in [
            &pairs[..2],
            &[(0.0, 1.0); 9],
            &[(1.0, 1.0); 9],
            &[(f64::NAN, 1.0); 9],
            &[(1.0, 2.0), (2.0, 1.5), (3.0, 1.0)],
        ] {
            assert_eq!(fit(bad, 0.1), None);
        }
    }
}
