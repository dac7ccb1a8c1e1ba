//! The quality guard: what an eviction would do, told by the last queries before it is made.
//!
//! ```text
//! policy: these rows ──► share of the canaries' attention ──► statistic S ──► predicted KL
//!                                                               │ above the bound
//!                                   other victims, or fewer ◄───┘ (costs row by row)
//! ```
//!
//! `S` is the sum over layers of the mean over canaries of `(|W_o Δo| / |x|)²`. The output matrix is stood in for
//! by one number a head, because products would cost more than all the rest. `ln KL = offset + slope · ln S`; where
//! offset and slope come from is not decided here ([`fit`]).
//!
//! An event is everything that leaves a sequence at one position. Its allowance is shared by the layers: each may take
//! its part of what is left when its turn comes. What must leave for want of room leaves; then the guard only chooses
//! among victims, in one layer of sixteen at a time, and the *debt* says what it cost, as far as those can tell.
//!
//! Nothing depends on how tokens were portioned: events are where blocks end, and canaries are those of the block.
//! What it is not: it does not rank rows for the policy, and looks no further ahead than its canaries look back.

pub mod choose;
pub(crate) mod share;

pub use haversack_cache::Row;

use crate::model::canaries::Canaries;
use crate::model::config::Config;
use crate::model::forward::Scratch;
use crate::model::weights::Weights;
use choose::{Counts, choose};
use haversack_cache::{CacheError, SequenceId, Store};
use haversack_kernels::Exec;
use haversack_kernels::attention::{self, BLOCK_SLOTS};
use haversack_kernels::format::gguf::unpack_row;
use share::{BATCH, Place, Share, Single, statistic};
use std::collections::HashMap;

/// How a statistic becomes a prediction, and how much is allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardParams {
    /// `ln KL = offset + slope · ln S`
    pub slope: f64,
    pub offset: f64,
    /// 95 % of true damages are below so many times the prediction.
    pub factor: f64,
    /// What `factor` times the prediction of one event may be, in nats.
    pub bound: f64,
    /// The debt from which on nothing leaves that need not.
    pub total: f64,
    /// Of so many layers one is looked at, each in its turn, where rows leave whatever they cost.
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
    /// The KL that a statistic stands for. What is no number is the worst.
    pub fn predict(&self, statistic: f64) -> f64 {
        match statistic {
            s if s.is_nan() => KL_MAX,
            s if s <= 0.0 => 0.0,
            s => (self.offset + self.slope * s.ln()).exp().min(KL_MAX),
        }
    }

    /// The statistic whose prediction reaches the bound.
    pub fn allowed(&self) -> f64 {
        ((self.bound / self.factor).ln() - self.offset)
            .exp()
            .powf(1.0 / self.slope)
    }
}

/// Looking at all layers took the time of three tokens.
const TURNS: u64 = 16;

/// With the factor, a twentieth of a nat.
const TOTAL: f64 = 0.005;

/// A prediction ends here: a model that knows nothing any more is not worse than this.
const KL_MAX: f64 = 20.0;

/// Slope, offset and factor of measured pairs of statistic and KL; nothing where there are fewer than three
/// that are above zero, or all statistics are the same. `bound` is not theirs to say.
pub fn fit(pairs: &[(f64, f64)], bound: f64) -> Option<GuardParams> {
    let positive = |&&(s, kl): &&(f64, f64)| s > 0.0 && kl > 0.0 && s.is_finite() && kl.is_finite();
    let logs: Vec<(f64, f64)> = pairs
        .iter()
        .filter(positive)
        .map(|(s, kl)| (s.ln(), kl.ln()))
        .collect();
    if logs.len() < 3 {
        return None;
    }
    let n = logs.len() as f64;
    let mean = |f: &dyn Fn(&(f64, f64)) -> f64| logs.iter().map(f).sum::<f64>() / n;
    let (x, y) = (mean(&|p| p.0), mean(&|p| p.1));
    let (xx, xy) = (
        mean(&|p| (p.0 - x) * (p.0 - x)),
        mean(&|p| (p.0 - x) * (p.1 - y)),
    );
    let slope = xy / xx;
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
        total: TOTAL,
        turns: TURNS,
    })
}

/// Rows that a policy would let go of one layer, and those it would take next.
pub(crate) struct Ask<'a> {
    pub id: SequenceId,
    pub layer: usize,
    pub position: u64,
    /// In the policy's order; afterwards those that leave come first.
    pub rows: &'a mut [Row],
    /// Of them, the first leave whatever they cost.
    pub fixed: usize,
    /// The fixed ones among both.
    pub counts: Counts,
    /// How many layers' cost this one's is counted as.
    pub stands_for: f64,
}

/// What a guard looks at and works with.
pub(crate) struct Tools<'a> {
    pub config: &'a Config,
    pub exec: Exec<'a>,
    pub store: &'a Store,
    pub scratch: &'a mut Scratch,
}

pub struct Guard {
    params: GuardParams,
    /// (layer)(head)
    pub(crate) gains: Vec<Vec<f32>>,
    /// Blocks of [`BATCH`] rows.
    pub(crate) bytes: Vec<u8>,
    pub(crate) before: Share,
    single: Single,
    /// (candidate)
    own: Vec<f32>,
    rows_max: usize,
    /// Statistic of the event under way.
    spent: f64,
    debts: HashMap<SequenceId, f64>,
}

/// Candidates beyond those that must leave that are looked at, for each of these.
const SPARES: usize = 1;

impl Guard {
    /// Bytes of a guard over sequences of `rows` rows, their rings apart.
    pub fn bytes_for(config: &Config, block_bytes: usize, rows: usize) -> usize {
        let heads: usize = config.layers.iter().map(|c| c.heads).sum();
        let fixed = BATCH / BLOCK_SLOTS * block_bytes
            + Share::bytes_for(config)
            + Single::bytes_for(config)
            + heads * size_of::<f32>();
        fixed.saturating_add(rows.saturating_mul(size_of::<f32>()))
    }

    pub(crate) fn new(
        config: &Config,
        weights: &Weights,
        block_bytes: usize,
        rows_max: usize,
        params: GuardParams,
    ) -> Result<Guard, CacheError> {
        let mut own = Vec::new();
        let bytes = rows_max.saturating_mul(size_of::<f32>());
        own.try_reserve_exact(rows_max)
            .map_err(|_| CacheError::OutOfMemory { bytes })?;
        Ok(Guard {
            params,
            gains: gains(config, weights),
            bytes: vec![0; BATCH / BLOCK_SLOTS * block_bytes],
            before: Share::new(config)?,
            single: Single::new(config)?,
            own,
            rows_max,
            spent: 0.0,
            debts: HashMap::new(),
        })
    }

    pub fn params(&self) -> GuardParams {
        self.params
    }

    /// Another prediction or bound from now on.
    pub fn set_params(&mut self, params: GuardParams) {
        self.params = params;
    }

    /// Predicted KL of everything that left a sequence so far.
    pub fn debt(&self, id: SequenceId) -> f64 {
        self.debts.get(&id).copied().unwrap_or(0.0)
    }

    pub(crate) fn fork(&mut self, from: SequenceId, to: SequenceId) {
        let debt = self.debt(from);
        self.debts.insert(to, debt);
    }

    pub(crate) fn close(&mut self, id: SequenceId) {
        self.debts.remove(&id);
    }

    /// How many layers' cost that of a layer is counted as; `None`: it is not looked at this time. Where something may
    /// be refused, all are.
    pub(crate) fn stands_for(&self, layer: usize, position: u64, may_refuse: bool) -> Option<f64> {
        let turns = self.params.turns.max(1);
        let is_turn = (position / BLOCK_SLOTS as u64 + layer as u64).is_multiple_of(turns);
        match (may_refuse, is_turn) {
            (true, _) => Some(1.0),
            (false, true) => Some(turns as f64),
            (false, false) => None,
        }
    }

    /// How many candidates a policy should name where `leave` rows leave.
    pub(crate) fn candidates(&self, leave: usize) -> usize {
        leave.saturating_mul(1 + SPARES).min(self.rows_max)
    }

    /// What left at one position is booked.
    pub(crate) fn settle(&mut self, id: SequenceId) -> f64 {
        let spent = std::mem::take(&mut self.spent);
        let kl = self.params.predict(spent);
        if kl > 0.0 {
            *self.debts.entry(id).or_default() += kl;
        }
        kl
    }

    /// Which of the rows leave one layer: they come first afterwards, and their number is returned. Without the
    /// canaries of this very place the policy has its way.
    pub(crate) fn judge(&mut self, tools: Tools<'_>, ask: Ask<'_>) -> Result<usize, CacheError> {
        let Ask { id, layer, .. } = ask;
        let may = ask.counts.may.min(ask.rows.len());
        let must = ask.counts.must.min(may);
        let may = match self.debt(id) >= self.params.total {
            true => must,
            false => may,
        };
        let fixed = ask.fixed.min(must);
        let Tools {
            config,
            exec,
            store,
            scratch,
        } = tools;
        let Some((attention, canaries)) = scratch.guarded(config, exec.pool.threads()) else {
            return Ok(may);
        };
        let newest = ask.rows.iter().map(|row| row.position).max().unwrap_or(0);
        let Some(place) = place(config, store, canaries, id, layer, (ask.position, newest)) else {
            return Ok(may);
        };
        let mut look = Look {
            exec,
            store,
            attention,
            place,
            id,
            layer,
        };
        let left = (layer..config.layers.len())
            .filter(|&l| canaries.has(l))
            .count();
        let allowed = (self.params.allowed() - self.spent).max(0.0) / left.max(1) as f64;
        let rows = ask.rows;
        let mut leave = may;
        let mut cost = look.statistic(self, &rows[..leave])?;
        if cost > allowed && (rows.len() > may || may > must) {
            look.own(self, &rows[fixed..])?;
            for _ in 0..ROUNDS {
                // What rows cost together is more or less than what they cost alone.
                let alone: f64 = self.own[..leave - fixed]
                    .iter()
                    .map(|&x| f64::from(x))
                    .sum();
                let together = if alone > 0.0 {
                    (cost / alone).max(1.0)
                } else {
                    1.0
                };
                let counts = Counts {
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
                cost = look.statistic(self, &rows[..leave])?;
                if cost <= allowed {
                    break;
                }
            }
            if cost > allowed && leave > must {
                leave = must;
                cost = look.statistic(self, &rows[..leave])?;
            }
        }
        let cost = if cost.is_nan() { f64::INFINITY } else { cost };
        self.spent += ask.stands_for * cost;
        let present = look.place.present;
        if leave > 0
            && let Some(canaries) = &mut scratch.canaries
        {
            // What was looked at last is what leaves.
            let (difference, left) = self.before.parts();
            canaries.lose(id, layer, &present, left, difference);
        }
        Ok(leave)
    }
}

/// Times that victims are chosen anew in one layer.
const ROUNDS: usize = 3;

/// The rows of one layer, seen by its canaries.
pub(crate) struct Look<'a> {
    pub(crate) exec: Exec<'a>,
    pub(crate) store: &'a Store,
    pub(crate) attention: &'a mut attention::Scratch,
    pub(crate) place: Place<'a>,
    pub(crate) id: SequenceId,
    pub(crate) layer: usize,
}

impl Look<'_> {
    /// What these rows cost together.
    pub(crate) fn statistic(&mut self, guard: &mut Guard, rows: &[Row]) -> Result<f64, CacheError> {
        let share = &mut guard.before;
        share.clear(&self.place);
        for rows in rows.chunks(BATCH) {
            self.store
                .copy_rows(self.id, self.layer, rows, &mut guard.bytes)?;
            share.add(
                self.exec,
                self.attention,
                &self.place,
                &guard.bytes,
                rows.len(),
            );
        }
        let gains = &guard.gains[self.layer];
        let difference = share.difference(&self.place, None);
        Ok(statistic(self.exec, &self.place, gains, difference))
    }

    /// What each of these rows would cost alone, in the guard's list.
    fn own(&self, guard: &mut Guard, rows: &[Row]) -> Result<(), CacheError> {
        guard.own.clear();
        guard.own.resize(rows.len(), 0.0);
        let block_bytes = self.place.shape.settled_shape().block_bytes();
        for (rows, own) in rows.chunks(BATCH).zip(guard.own.chunks_mut(BATCH)) {
            self.store
                .copy_rows(self.id, self.layer, rows, &mut guard.bytes)?;
            let blocks = guard.bytes.chunks_exact(block_bytes);
            for (block, own) in blocks.zip(own.chunks_mut(BLOCK_SLOTS)) {
                let gains = &guard.gains[self.layer];
                guard
                    .single
                    .add_own(self.exec, &self.place, gains, block, own);
            }
        }
        Ok(())
    }
}

/// A layer as its canaries see it, if they are there.
pub(crate) fn place<'a>(
    config: &'a Config,
    store: &'a Store,
    canaries: &'a Canaries,
    id: SequenceId,
    layer: usize,
    (position, newest): (u64, u64),
) -> Option<Place<'a>> {
    let canaries = canaries.of(id, layer, position)?;
    let present = std::array::from_fn(|i| {
        canaries.positions[i].is_some_and(|p| p > newest) && canaries.scale[i] > 0.0
    });
    Some(Place {
        present,
        config: config.layers.get(layer)?,
        shape: *store.layers().get(layer)?,
        mean: store.mean(layer),
        canaries,
    })
}

/// Rows of the output matrix that are looked at: enough for one number a head.
const GAIN_ROWS: usize = 64;

/// (layer)(head): by how much the output matrix stretches the squared length of an error of a head, on average over
/// directions: the squares of its columns, summed, over the head's dimensions.
fn gains(config: &Config, weights: &Weights) -> Vec<Vec<f32>> {
    let of = |layer: usize| {
        let (c, w) = (&config.layers[layer], &weights.layers[layer].o);
        let bytes = weights.source(w);
        let row_bytes = bytes.len() / w.rows.max(1);
        let step = w.rows.div_ceil(GAIN_ROWS).max(1);
        let mut row = vec![0.0; w.cols];
        let mut squares = vec![0.0f64; c.heads];
        let mut seen = 0;
        for r in (0..w.rows).step_by(step) {
            unpack_row(w.ty, &bytes[r * row_bytes..][..row_bytes], &mut row);
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
mod tests;
