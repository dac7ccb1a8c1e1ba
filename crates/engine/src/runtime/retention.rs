//! Which rows a sequence keeps: asks the policy at the places where rows may leave, and has done what it says.
//!
//! The places depend on the window alone, never on how tokens were portioned.

use super::guarded::Limits;
use super::{Runtime, StepError};
use crate::device::WindowChange;
use crate::model::forward::Span;
use crate::runtime::adaptive;
use crate::runtime::bounds::Bounds;
use crate::runtime::options::{Policy, Retention};
use haversack_cache::policy::explain::RowPlan;
use haversack_cache::policy::rows::RowPolicy;
use haversack_cache::policy::window::{self, WindowParams};
use haversack_cache::{CacheError, Row, SequenceId};
use haversack_kernels::attention::BLOCK_SLOTS;
use std::sync::Arc;

/// Plans in words that wait for somebody to read them.
const PLANS_MAX: usize = 1024;

/// What one sequence keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SequenceRetention {
    /// What the options of the runtime say.
    #[default]
    Usual,
    /// Everything; it ends after so many tokens.
    All { tokens: usize },
    /// Its first tokens and its last; it has no end.
    Window { anchors: usize, window: usize },
    /// As many rows as that window, chosen one by one. It has no end; so many tokens are expected, and `Adaptive` shares
    /// rows out among layers for as many.
    Chosen {
        by: Policy,
        anchors: usize,
        window: usize,
        tokens: usize,
    },
}

/// How far back one sequence reaches.
#[derive(Clone)]
pub(super) struct Reach {
    /// First tokens that never leave.
    pub anchors: usize,
    /// The window that was asked for; `None`: nothing leaves by itself.
    pub asked: Option<usize>,
    /// The one in force, that or less.
    pub window: Option<usize>,
    /// Tokens after which it ends.
    pub end: Option<usize>,
    /// Who chooses the rows that leave; `None`: the oldest do.
    pub policy: Option<RowPolicy>,
    /// (layer): rows at most beside those of a step; none = as many as anchors and window.
    pub rows: Option<Arc<[usize]>>,
    pub changes: Vec<WindowChange>,
}

impl Runtime {
    /// Changes the window of a sequence that stands at `position`, if that is a place where its rows may
    /// leave and somebody asked for it. Asking again there changes nothing more.
    pub(super) fn set_window(&mut self, id: SequenceId, position: u64) {
        if !self.may_leave(id, position) || self.position(id) != Ok(position) {
            return;
        }
        self.look();
        let Some(reach) = self.reaches.get_mut(&id) else {
            return;
        };
        // Changes are replayed, or asked for by the device: there is no governor beside a replay.
        let replayed = self.retention.replay.get(reach.changes.len());
        let Some(asked) = reach.asked else {
            return;
        };
        let (window, reason) = match (replayed, &self.target) {
            (Some(&(from, window)), _) if from <= position => (window, "replayed"),
            (None, Some((window, reason))) => (*window, &reason[..]),
            _ => return,
        };
        let window = window.min(asked);
        if replayed.is_none() && reach.window == Some(window) {
            return;
        }
        let before = reach.window.replace(window).unwrap_or(asked);
        log::info!("window {before} -> {window} from position {position}, {reason}");
        reach.changes.push(WindowChange {
            position,
            window,
            reason: reason.to_owned(),
        });
    }

    /// Asks the policy which rows leave before these tokens come.
    pub(super) fn make_room(&mut self, span: &StepSpan<'_>) -> Result<(), StepError> {
        let (id, position) = (span.sequence, span.position);
        let Some(window) = self.window(id) else {
            return Ok(());
        };
        // A change may have moved the places, and happens at one of the old ones.
        let last = self.changes(id).last();
        let changed = last.is_some_and(|change| change.position == position);
        if !changed && !self.may_leave(id, position) {
            return Ok(());
        }
        if let Some(policy) = self.policy(id) {
            return self.thin(id, window, &policy);
        }
        let params = WindowParams {
            anchors: self.anchors(id) as u64,
            window: window as u64,
        };
        let plan = window::plan(&self.store.snapshot(id)?, &params);
        if plan.is_empty() {
            return Ok(());
        }
        log::debug!("{plan}");
        self.explain(&plan);
        self.store.apply(id, &plan)?;
        // What leaves a smaller window was spread over all slabs; the device gets whole ones only. Where
        // even the list of moves has no room, blocks stay where they are.
        if changed && let Err(error) = self.store.compact_below(100) {
            log::warn!("blocks stay where they are: {error}");
        }
        Ok(())
    }

    /// Lets the rows leave that the policy chooses, layer by layer.
    fn thin(&mut self, id: SequenceId, window: usize, policy: &RowPolicy) -> Result<(), StepError> {
        let position = self.position(id)?;
        let anchors = self.anchors(id) as u64;
        // Past the trained context the oldest leave whatever they are worth, and the anchors close up.
        let context = self.model.config().context as u64;
        let past = (position + BLOCK_SLOTS as u64).saturating_sub(context);
        let past = past.next_multiple_of(BLOCK_SLOTS as u64);
        let first = anchors.next_multiple_of(BLOCK_SLOTS as u64);
        let oldest = if past > 0 { first + past } else { 0 };
        let used = self.used();
        let mut words = self.retention.explain.then(|| RowPlan::new(position));
        for layer in 0..self.store.layers().len() {
            let most = self.rows_max(id, layer).min(anchors as usize + window);
            let rows = self.store.rows_in(id, layer)?;
            if rows <= most && past == 0 && !policy.has_threshold() {
                continue;
            }
            self.store.loose_rows(id, layer, anchors, &mut self.loose)?;
            let limits = Limits {
                layer,
                anchors,
                most,
                oldest,
                used,
            };
            let leave = self.choose_guarded(id, policy, &limits, words.as_mut())?;
            log::debug!("at position {position}: {leave} of {rows} rows leave layer {layer}");
            self.store.thin(id, layer, anchors, &self.loose[..leave])?;
        }
        if let Some(guard) = &mut self.guard {
            let kl = guard.settle(id);
            log::debug!("at position {position}: predicted KL {kl:.6}");
        }
        if past > 0 {
            self.store.close_gap(id, anchors..oldest)?;
        }
        if let Some(words) = words.filter(|words| !words.is_empty()) {
            self.explain(&words);
        }
        Ok(())
    }

    fn explain(&mut self, plan: &dyn std::fmt::Display) {
        if self.retention.explain {
            if self.plans.len() == PLANS_MAX {
                self.plans.remove(0);
            }
            self.plans.push(plan.to_string());
        }
    }

    /// What of the budget is in use; everything where there is none.
    fn used(&self) -> f32 {
        let ledger = self.store.ledger();
        let share = |budget: usize| ledger.total() as f32 / budget.max(1) as f32;
        ledger.budget.map_or(1.0, share)
    }

    /// Who chooses the rows of a sequence that leave.
    fn policy(&self, id: SequenceId) -> Option<RowPolicy> {
        let reach = self.reaches.get(&id);
        reach.map_or_else(|| self.retention.rows(), |reach| reach.policy)
    }

    /// Rows that a layer of a sequence keeps when rows are chosen.
    fn rows_max(&self, id: SequenceId, layer: usize) -> usize {
        match self.reaches.get(&id) {
            Some(reach) => reach.rows.as_ref().map_or(usize::MAX, |rows| rows[layer]),
            None => self.kv.rows_max(layer),
        }
    }

    /// First tokens of a sequence that never leave.
    fn anchors(&self, id: SequenceId) -> usize {
        let reach = self.reaches.get(&id);
        reach.map_or(self.bounds.anchors, |reach| reach.anchors)
    }

    /// Tokens after which a sequence ends; `None` where rows leave in time.
    pub fn end(&self, id: SequenceId) -> Option<usize> {
        let reach = self.reaches.get(&id);
        reach.map_or(self.bounds.end(), |reach| reach.end)
    }

    pub(super) fn usual(&self) -> Reach {
        Reach {
            anchors: self.bounds.anchors,
            asked: self.bounds.window,
            window: self.bounds.window,
            end: self.bounds.end(),
            policy: self.retention.rows(),
            rows: (!self.kv.rows.is_empty()).then(|| {
                let layers = 0..self.store.layers().len();
                layers.map(|layer| self.kv.rows_max(layer)).collect()
            }),
            changes: Vec::new(),
        }
    }

    /// What a sequence keeps, if this runtime has room for it.
    pub(super) fn reach_of(&self, keep: SequenceRetention) -> Result<Reach, StepError> {
        let usual = self.usual();
        match keep {
            SequenceRetention::Default => Ok(usual),
            SequenceRetention::All { tokens } => {
                let most = self.bounds.rows_max.min(self.model.config().context);
                if tokens > most {
                    return Err(StepError::TooManyTokens { tokens, most });
                }
                Ok(Reach {
                    asked: None,
                    window: None,
                    end: Some(tokens),
                    policy: None,
                    rows: None,
                    ..usual
                })
            }
            SequenceRetention::Window { anchors, window } => self.windowed(anchors, window),
            SequenceRetention::Selected {
                by,
                anchors,
                window,
                tokens,
            } => self.chosen(by, anchors, window, tokens),
        }
    }

    fn windowed(&self, anchors: usize, window: usize) -> Result<Reach, StepError> {
        let rows = anchors.saturating_add(window).saturating_add(BLOCK_SLOTS);
        let most = self.bounds.rows_max.min(self.model.config().context);
        if window == 0 || rows > most {
            let most = most.saturating_sub(BLOCK_SLOTS);
            return Err(StepError::Window {
                anchors,
                window,
                most,
            });
        }
        Ok(Reach {
            anchors,
            asked: Some(window),
            window: Some(window),
            end: None,
            policy: None,
            rows: None,
            changes: Vec::new(),
        })
    }

    /// As many rows as a window has, chosen one by one.
    fn chosen(
        &self,
        by: Policy,
        anchors: usize,
        window: usize,
        tokens: usize,
    ) -> Result<Reach, StepError> {
        // Whole blocks leave and stay.
        let window = window / BLOCK_SLOTS * BLOCK_SLOTS;
        let reach = self.windowed(anchors, window.max(1))?;
        let recent = self.kv.recent.next_multiple_of(BLOCK_SLOTS);
        let least = recent.saturating_add(Bounds::CHOICE);
        if window < least {
            return Err(StepError::NarrowWindow { window, least });
        }
        let policy = match by {
            // Tiers look at how full the budget is, which others fill; turns, at what nobody has said of a request.
            Policy::Heavy | Policy::Snap | Policy::Adaptive => match self.retention.policy == by {
                true => self.retention.rows(),
                false => Retention::by(by).rows(),
            },
            _ => {
                let policy = by.name();
                return Err(StepError::PolicyPerSequence { policy });
            }
        };
        let rows = match by {
            Policy::Adaptive => Some(self.shared_out(anchors, window, tokens)?),
            _ => None,
        };
        // Some layers have more than that.
        let fullest =
            |rows: &Arc<[usize]>| rows.iter().copied().filter(|&rows| rows < usize::MAX).max();
        let fullest = rows.as_ref().and_then(fullest).unwrap_or(0);
        let beside = fullest.saturating_sub(anchors);
        let window = window.max(beside.next_multiple_of(BLOCK_SLOTS));
        Ok(Reach {
            asked: Some(window),
            window: Some(window),
            policy,
            rows,
            ..reach
        })
    }

    /// (layer): rows beside those of a step, so that all layers together take what anchors and window take in each.
    fn shared_out(
        &self,
        anchors: usize,
        window: usize,
        tokens: usize,
    ) -> Result<Arc<[usize]>, StepError> {
        let curves = self.curves.as_ref().ok_or(StepError::NotProbed)?;
        let tokens = tokens.min(self.model.config().context);
        let most = self.bounds.rows_max.saturating_sub(BLOCK_SLOTS);
        let asked = anchors + window;
        let (layers, zones) = (self.store.layers(), self.store.zones());
        let found = adaptive::rows_of(curves, layers, zones, anchors, asked, tokens)?;
        let bounded = |rows: Option<usize>| rows.map_or(usize::MAX, |rows| rows.min(most));
        Ok(found.into_iter().map(bounded).collect())
    }

    /// Rows of the fullest layer while such a sequence is read.
    pub(super) fn rows_of(&self, reach: &Reach) -> usize {
        match (reach.end, reach.asked) {
            (Some(end), _) => end,
            (None, Some(window)) => reach.anchors + window + BLOCK_SLOTS,
            (None, None) => self.bounds.rows_max,
        }
    }

    /// Room for the list of so many rows among which some leave.
    pub(super) fn make_room_for_choice(&mut self, rows: usize) -> Result<(), StepError> {
        let more = rows.saturating_sub(self.loose.capacity());
        if more == 0 {
            return Ok(());
        }
        let bytes = more * size_of::<Row>();
        self.keep_beside(bytes)?;
        self.loose.clear();
        self.loose
            .try_reserve_exact(rows)
            .map_err(|_| CacheError::OutOfMemory { bytes })?;
        Ok(())
    }

    /// Whether rows of a sequence may leave at `position`.
    fn may_leave(&self, id: SequenceId, position: u64) -> bool {
        let window = self.window(id);
        window.is_some_and(|window| to_border(window, position) == BLOCK_SLOTS)
    }

    /// Up to where tokens of a sequence can be read from `position` on before anything must leave.
    pub(super) fn free_until(&self, id: SequenceId, position: u64) -> u64 {
        let Some(window) = self.window(id) else {
            return u64::MAX;
        };
        if self.policy(id).is_some_and(|policy| policy.is_aligned()) {
            return 0;
        }
        let fewest = (0..self.store.layers().len()).map(|layer| self.rows_max(id, layer));
        let full = self.anchors(id) + window;
        let full = fewest.fold(full, usize::min) as u64;
        // Nor across the place of a change that is to be made again.
        match self.retention.replay.get(self.changes(id).len()) {
            Some(&(from, _)) if from >= position => {
                let to_border = to_border(window, from) % BLOCK_SLOTS;
                full.min(from.saturating_add(to_border as u64))
            }
            Some(_) => full.min(position),
            None => full,
        }
    }

    /// How many of so many tokens the next step of a sequence may take. A window that changes here has changed then: where
    /// the step has to end follows from the new one.
    pub fn portion_of(&mut self, id: SequenceId, position: u64, tokens: usize) -> usize {
        self.set_window(id, position);
        self.portion(id, position, tokens, self.chunk)
    }

    /// How many of `left` tokens the next step of a sequence may take.
    pub(super) fn portion(&self, id: SequenceId, position: u64, left: usize, most: usize) -> usize {
        let take = left.min(most);
        let Some(window) = self.window(id) else {
            return take;
        };
        let free = self.free_until(id, position);
        if position + take as u64 <= free {
            return take;
        }
        let free_left = free.saturating_sub(position) as usize;
        take.min(free_left.max(to_border(window, position)))
    }
}

/// Tokens from `position` to the next place where rows may leave, `1..=32`: the places where the oldest
/// block of a full window has just become older than the window.
pub(super) fn to_border(window: usize, position: u64) -> usize {
    let slots = BLOCK_SLOTS as u64;
    let since = (position % slots + slots - window as u64 % slots) % slots;
    BLOCK_SLOTS - since as usize
}
