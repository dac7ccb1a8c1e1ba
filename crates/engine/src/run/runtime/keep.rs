//! Which rows a sequence keeps: asks the policy at the places where rows may leave, and has done what it says.
//!
//! The places depend on the window alone, never on how tokens were portioned.

use super::{Keep, Reach, Runtime, StepError};
use crate::device::WindowChange;
use crate::model::forward::Span;
use crate::run::guard::Limits;
use haversack_cache::SequenceId;
use haversack_cache::policy::explain::RowPlan;
use haversack_cache::policy::rows::RowPolicy;
use haversack_cache::policy::window::{self, WindowParams};
use haversack_kernels::attention::BLOCK_SLOTS;

/// Plans in words that wait for somebody to read them.
const PLANS_MAX: usize = 1024;

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
    pub(super) fn make_room(&mut self, span: &Span<'_>) -> Result<(), StepError> {
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
        if let Some(policy) = self.retention.rows() {
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
            let most = self.rows_max(layer, anchors as usize + window);
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

    /// Rows that a layer keeps when rows are chosen.
    fn rows_max(&self, layer: usize, rows: usize) -> usize {
        self.kv.rows_max(layer).min(rows)
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
            changes: Vec::new(),
        }
    }

    /// What a sequence keeps, if this runtime has room for it.
    pub(super) fn reach_of(&self, keep: Keep) -> Result<Reach, StepError> {
        let usual = self.usual();
        match keep {
            Keep::Usual => Ok(usual),
            Keep::All { tokens } => {
                let most = self.bounds.rows_max.min(self.model.config().context);
                if tokens > most {
                    return Err(StepError::TooMany { tokens, most });
                }
                Ok(Reach {
                    asked: None,
                    window: None,
                    end: Some(tokens),
                    ..usual
                })
            }
            Keep::Window { anchors, window } => {
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
                // Where rows are chosen, whole blocks are.
                let window = match self.retention.rows() {
                    Some(_) => (window / BLOCK_SLOTS * BLOCK_SLOTS).max(BLOCK_SLOTS),
                    None => window,
                };
                Ok(Reach {
                    anchors,
                    asked: Some(window),
                    window: Some(window),
                    end: None,
                    changes: Vec::new(),
                })
            }
        }
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
        if self
            .retention
            .rows()
            .is_some_and(|policy| policy.is_aligned())
        {
            return 0;
        }
        let fewest = self.kv.rows.values().copied().min();
        let full = self.anchors(id) + window;
        let full = fewest.map_or(full, |fewest| full.min(fewest)) as u64;
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

    /// How many of so many tokens the next step of a sequence may take.
    pub fn portion_of(&self, id: SequenceId, position: u64, tokens: usize) -> usize {
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
