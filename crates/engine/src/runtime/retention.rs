//! Which rows a sequence keeps, and where others may be evicted. Pure: nothing here touches the store.
//!
//! Rows leave at positions that depend on the window alone, never on how tokens were split into steps.

use super::adaptive;
use super::bounds::Bounds;
use super::error::{StepError, StepResult};
use super::options::{Policy, Retention};
use crate::device::WindowChange;
use crate::model::kv::KvOptions;
use crate::step::sequence::RetentionState;
use haversack_cache::policy::adaptive::DamageCurves;
use haversack_cache::{LayerShape, Zones};
use haversack_kernels::attention::BLOCK_SLOTS;
use std::sync::Arc;

/// What one sequence keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SequenceRetention {
    /// What the options of the runtime say.
    #[default]
    Default,
    /// Everything; the sequence ends after `tokens` tokens.
    All { tokens: usize },
    /// Its first tokens and its last; it has no end.
    Window { anchors: usize, window: usize },
    /// As many rows as that window, chosen one by one. It has no end; `Adaptive` divides the rows among layers for
    /// `tokens` expected tokens.
    Selected {
        by: Policy,
        anchors: usize,
        window: usize,
        tokens: usize,
    },
}

/// The rules of a runtime, from which the state of each sequence follows.
pub(super) struct RetentionRules {
    pub options: Retention,
    pub bounds: Bounds,
    pub kv: KvOptions,
    pub context: usize,
    pub layers: Vec<LayerShape>,
    pub zones: Zones,
    /// The caller named no budget.
    pub budget_follows_device: bool,
    /// (layer): what a probe measured, if there was one.
    pub curves: Option<Vec<DamageCurves>>,
}

impl RetentionRules {
    /// The state of a new sequence, or why this runtime cannot keep it.
    pub fn state(&self, retention: SequenceRetention) -> StepResult<RetentionState> {
        match retention {
            SequenceRetention::Default => Ok(self.default_state()),
            SequenceRetention::All { tokens } => {
                let max = self.rows_max();
                if tokens > max {
                    return Err(StepError::TooManyTokens { tokens, max });
                }
                Ok(RetentionState {
                    anchors: self.bounds.anchors,
                    end: Some(tokens),
                    ..RetentionState::default()
                })
            }
            SequenceRetention::Window { anchors, window } => self.windowed(anchors, window),
            SequenceRetention::Selected {
                by,
                anchors,
                window,
                tokens,
            } => self.selected(by, anchors, window, tokens),
        }
    }

    pub fn default_state(&self) -> RetentionState {
        let rows = || {
            let layers = 0..self.layers.len();
            layers.map(|layer| self.kv.rows_max(layer)).collect()
        };
        RetentionState {
            anchors: self.bounds.anchors,
            window_asked: self.bounds.window,
            window: self.bounds.window,
            end: self.bounds.end(),
            policy: self.options.rows(),
            rows_max: (!self.kv.rows.is_empty()).then(rows),
            changes: Vec::new(),
        }
    }

    fn rows_max(&self) -> usize {
        self.bounds.rows_max.min(self.context)
    }

    fn windowed(&self, anchors: usize, window: usize) -> StepResult<RetentionState> {
        let rows = anchors.saturating_add(window).saturating_add(BLOCK_SLOTS);
        let max = self.rows_max();
        if window == 0 || rows > max {
            let max = max.saturating_sub(BLOCK_SLOTS);
            return Err(StepError::Window {
                anchors,
                window,
                max,
            });
        }
        Ok(RetentionState {
            anchors,
            window_asked: Some(window),
            window: Some(window),
            ..RetentionState::default()
        })
    }

    /// As many rows as a window has, chosen one by one.
    fn selected(
        &self,
        by: Policy,
        anchors: usize,
        window: usize,
        tokens: usize,
    ) -> StepResult<RetentionState> {
        // Whole blocks are evicted and kept.
        let window = window / BLOCK_SLOTS * BLOCK_SLOTS;
        let state = self.windowed(anchors, window.max(1))?;
        let recent = self.kv.recent.next_multiple_of(BLOCK_SLOTS);
        let min = recent.saturating_add(Bounds::CHOICE);
        if window < min {
            return Err(StepError::NarrowWindow { window, min });
        }
        let policy = match by {
            // Tiers look at how full the budget is, which other requests fill.
            Policy::Heavy | Policy::Snap | Policy::Turns | Policy::Adaptive
                if self.options.policy == by =>
            {
                self.options.rows()
            }
            Policy::Heavy | Policy::Snap | Policy::Turns | Policy::Adaptive => {
                Retention::by(by).rows()
            }
            _ => {
                let policy = by.name();
                return Err(StepError::PolicyPerSequence { policy });
            }
        };
        let rows_max = match by {
            Policy::Adaptive => Some(self.divided_rows(anchors, window, tokens)?),
            _ => None,
        };
        // Some layers have more than the window.
        let fullest = |rows: &Arc<[usize]>| {
            let bounded = rows.iter().copied().filter(|&rows| rows < usize::MAX);
            bounded.max()
        };
        let fullest = rows_max.as_ref().and_then(fullest).unwrap_or(0);
        let beside_anchors = fullest.saturating_sub(anchors);
        let window = window.max(beside_anchors.next_multiple_of(BLOCK_SLOTS));
        Ok(RetentionState {
            window_asked: Some(window),
            window: Some(window),
            policy,
            rows_max,
            ..state
        })
    }

    /// (layer): rows beside those of a step, so that all layers together take what anchors and window take in each.
    fn divided_rows(
        &self,
        anchors: usize,
        window: usize,
        tokens: usize,
    ) -> StepResult<Arc<[usize]>> {
        let curves = self.curves.as_ref().ok_or(StepError::NotProbed)?;
        let tokens = tokens.min(self.context);
        let max = self.bounds.rows_max.saturating_sub(BLOCK_SLOTS);
        let rows = anchors + window;
        let rows = adaptive::rows_of(curves, &self.layers, self.zones, anchors, rows, tokens)?;
        let bounded = |rows: Option<usize>| rows.map_or(usize::MAX, |rows| rows.min(max));
        Ok(rows.into_iter().map(bounded).collect())
    }

    /// Rows of the fullest layer while such a sequence is read.
    pub fn rows_of(&self, state: &RetentionState) -> usize {
        match (state.end, state.window_asked) {
            (Some(end), _) => end,
            (None, Some(window)) => state.anchors + window + BLOCK_SLOTS,
            (None, None) => self.bounds.rows_max,
        }
    }

    /// Tokens of a sequence before this position can be read from `position` on before anything must be evicted.
    pub fn free_until(&self, state: &RetentionState, position: u64) -> u64 {
        let Some(window) = state.window else {
            return u64::MAX;
        };
        if state.policy.is_some_and(|policy| policy.is_aligned()) {
            return 0;
        }
        let fewest = (0..self.layers.len()).map(|layer| state.rows_max(layer));
        let full = fewest.fold(state.anchors + window, usize::min) as u64;
        // Nor across the position of a change that is to be replayed.
        match self.options.replay.get(state.changes.len()) {
            Some(&(from, _)) if from >= position => {
                let to_boundary = to_boundary(window, from) % BLOCK_SLOTS;
                full.min(from.saturating_add(to_boundary as u64))
            }
            Some(_) => full.min(position),
            None => full,
        }
    }

    /// How many of `left` tokens the next step of a sequence may take, at most `max`.
    pub fn chunk(&self, state: &RetentionState, position: u64, left: usize, max: usize) -> usize {
        let take = left.min(max);
        let Some(window) = state.window else {
            return take;
        };
        let free = self.free_until(state, position);
        if position + take as u64 <= free {
            return take;
        }
        let free_left = free.saturating_sub(position) as usize;
        take.min(free_left.max(to_boundary(window, position)))
    }

    /// The change of a sequence's window at `position`, where its rows may be evicted: replayed, or `target`, which the
    /// device asks for. There is no target beside a replay.
    pub fn window_change(
        &self,
        state: &RetentionState,
        position: u64,
        target: Option<&(usize, String)>,
    ) -> Option<WindowChange> {
        let asked = state.window_asked?;
        let replayed = self.options.replay.get(state.changes.len());
        let (window, reason) = match (replayed, target) {
            (Some(&(from, window)), _) if from <= position => (window, "replayed"),
            (None, Some((window, reason))) => (*window, &reason[..]),
            _ => return None,
        };
        let window = window.min(asked);
        if replayed.is_none() && state.window == Some(window) {
            return None;
        }
        Some(WindowChange {
            position,
            window,
            reason: reason.to_owned(),
        })
    }
}

/// Whether rows of a sequence may be evicted at `position`.
pub(super) fn may_evict(state: &RetentionState, position: u64) -> bool {
    let window = state.window;
    window.is_some_and(|window| to_boundary(window, position) == BLOCK_SLOTS)
}

/// Tokens from `position` to the next place where rows may be evicted, `1..=32`: the places where the oldest
/// block of a full window has just become older than the window.
pub(super) fn to_boundary(window: usize, position: u64) -> usize {
    let slots = BLOCK_SLOTS as u64;
    let since = (position % slots + slots - window as u64 % slots) % slots;
    BLOCK_SLOTS - since as usize
}
