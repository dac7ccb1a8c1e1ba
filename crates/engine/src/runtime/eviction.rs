//! Evicts rows of a sequence before the tokens of a step come, as its policy and the guard decide.

use super::error::StepResult;
use super::retention::{RetentionRules, may_evict};
use crate::kv_quality::guard::choose::VictimCounts;
use crate::kv_quality::guard::{Guard, GuardRequest, GuardTools};
use crate::step::StepSpan;
use crate::step::runner::ModelRunner;
use haversack_cache::policy::explain::RowPlan;
use haversack_cache::policy::rows::{LayerView, RowPolicy};
use haversack_cache::policy::window::{self, WindowParams};
use haversack_cache::{CacheResult, KvRow, SequenceId, reserve_exact};
use haversack_kernels::Exec;
use haversack_kernels::attention::BLOCK_SLOTS;

/// Plans in words that are kept for [`super::Runtime::plans`].
const PLANS_MAX: usize = 1024;

/// What evictions need beside the cache.
pub(super) struct Evictor {
    pub guard: Option<Guard>,
    /// Rows of a layer among which some leave; kept for its memory.
    candidates: Vec<KvRow>,
    /// Evictions in words, where the options ask for them.
    pub plans: Option<Vec<String>>,
}

/// What a layer may keep.
struct EvictionLimits {
    layer: usize,
    anchors: u64,
    rows_max: usize,
    /// Rows before this position leave in any case.
    oldest: u64,
    /// Share of the budget in use.
    used: f32,
}

impl Evictor {
    pub fn new(guard: Option<Guard>, explain: bool) -> Evictor {
        Evictor {
            guard,
            candidates: Vec::new(),
            plans: explain.then(Vec::new),
        }
    }

    /// Bytes of the list of candidates that such a list has room for already.
    pub fn candidate_bytes(&self) -> usize {
        self.candidates.capacity() * size_of::<KvRow>()
    }

    /// Makes room for lists of `rows` candidates.
    pub fn reserve(&mut self, rows: usize) -> CacheResult {
        self.candidates.clear();
        reserve_exact(&mut self.candidates, rows)
    }

    /// Evicts what the policy chooses before the tokens of this span come.
    pub fn make_room(
        &mut self,
        runner: &mut ModelRunner,
        rules: &RetentionRules,
        span: &StepSpan<'_>,
    ) -> StepResult {
        let (id, position) = (span.sequence, span.position);
        let state = runner
            .sequences
            .states
            .get(&id)
            .map(|state| &state.retention);
        let Some((state, window)) = state.and_then(|state| Some((state, state.window?))) else {
            return Ok(());
        };
        // A change may have moved the boundaries, and happens at one of the old ones.
        let last = state.changes.last();
        let changed = last.is_some_and(|change| change.position == position);
        if !changed && !may_evict(state, position) {
            return Ok(());
        }
        if let Some(policy) = state.policy {
            let rows_max = state.rows_max.clone();
            let (full, anchors) = (state.anchors + window, state.anchors as u64);
            let rows_max =
                |layer: usize| rows_max.as_ref().map_or(full, |max| full.min(max[layer]));
            return self.evict_rows(runner, rules, id, &policy, anchors, &rows_max);
        }
        let params = WindowParams {
            anchors: state.anchors as u64,
            window: window as u64,
        };
        let plan = window::plan(&runner.store.snapshot(id)?, &params);
        if plan.is_empty() {
            return Ok(());
        }
        log::debug!("{plan}");
        self.explain(&plan);
        runner.store.apply(id, &plan)?;
        // Rows that left a smaller window were spread over all slabs; only whole slabs go back to the device. If there is
        // no room even for the list of moves, blocks stay where they are.
        if changed && let Err(error) = runner.store.compact_below(100) {
            log::warn!("slabs were not compacted: {error}");
        }
        Ok(())
    }

    /// Evicts rows one by one, layer by layer. `rows_max` is what a layer keeps.
    fn evict_rows(
        &mut self,
        runner: &mut ModelRunner,
        rules: &RetentionRules,
        id: SequenceId,
        policy: &RowPolicy,
        anchors: u64,
        rows_max: &dyn Fn(usize) -> usize,
    ) -> StepResult {
        let position = runner.store.position(id)?;
        // Past the trained context the oldest leave whatever they are worth, and the anchors close up.
        let past = (position + BLOCK_SLOTS as u64).saturating_sub(rules.context as u64);
        let past = past.next_multiple_of(BLOCK_SLOTS as u64);
        let protection = Protection::new(runner, rules, id, anchors, rows_max)?;
        let anchors = protection.anchors;
        let first = anchors.next_multiple_of(BLOCK_SLOTS as u64);
        let oldest = if past > 0 { first + past } else { 0 };
        let used = budget_used(runner, rules);
        let mut words = self.plans.is_some().then(|| RowPlan::new(position));
        for layer in 0..rules.layers.len() {
            let rows_max = rows_max(layer);
            let rows = runner.store.layer_rows(id, layer)?;
            if rows <= rows_max && past == 0 && !policy.has_threshold() {
                continue;
            }
            let (store, candidates) = (&runner.store, &mut self.candidates);
            let protected = protection.rows_of_layer(rows_max);
            let kept = store.kept_zone(id, anchors, first.max(oldest), protected)?;
            store.evictable_rows_outside(id, layer, &kept, candidates)?;
            let limits = EvictionLimits {
                layer,
                anchors,
                rows_max,
                oldest,
                used,
            };
            let leave = self.choose(runner, id, policy, &limits, words.as_mut())?;
            log::debug!("position {position}: {leave} of {rows} rows leave layer {layer}");
            let (store, leave) = (&mut runner.store, &self.candidates[..leave]);
            store.evict_rows_outside(id, layer, &kept, leave)?;
        }
        if let Some(guard) = &mut self.guard {
            let kl = guard.settle();
            if let Some(state) = runner.sequences.states.get_mut(&id) {
                state.quality_debt += kl;
            }
            log::debug!("position {position}: predicted KL {kl:.6}");
        }
        if past > 0 {
            runner.store.close_gap(id, anchors..oldest)?;
        }
        if let Some(words) = words.filter(|words| !words.is_empty()) {
            self.explain(&words);
        }
        Ok(())
    }

    fn explain(&mut self, plan: &dyn std::fmt::Display) {
        if let Some(plans) = &mut self.plans {
            if plans.len() == PLANS_MAX {
                plans.remove(0);
            }
            plans.push(plan.to_string());
        }
    }

    /// Moves the candidates that leave to the front and returns their number: the policy's choice, or the guard's among
    /// those and the next. Rows beyond the layer's limit leave in any case; rows below a threshold may stay.
    fn choose(
        &mut self,
        runner: &mut ModelRunner,
        id: SequenceId,
        policy: &RowPolicy,
        limits: &EvictionLimits,
        words: Option<&mut RowPlan>,
    ) -> StepResult<usize> {
        let &EvictionLimits { layer, oldest, .. } = limits;
        let view = LayerView {
            max_rows: limits.rows_max,
            min_position: oldest,
            budget_used: limits.used,
            ..runner.store.layer_view(id, layer, limits.anchors)?
        };
        let candidates = &mut self.candidates;
        let mut leave = policy.choose(&view, candidates);
        if leave > 0
            // Turns leave as a whole.
            && !matches!(policy, RowPolicy::Turns(_))
            && let Some(guard) = &mut self.guard
            && let Some(stands_for) = guard.stands_for(layer, view.position, policy.has_threshold())
        {
            let mut considered = leave;
            if let RowPolicy::Heavy(_) = policy {
                // A lower limit names the next ones too; of all those the policy's own come first again.
                let more = guard.candidates(leave) - leave;
                let lower = LayerView {
                    max_rows: limits.rows_max.saturating_sub(more),
                    ..view.clone()
                };
                considered = policy.choose(&lower, candidates);
                leave = policy.choose(&view, &mut candidates[..considered]);
            }
            let rows = &mut candidates[..considered];
            let fixed = rows.iter().filter(|row| row.position < oldest).count();
            let beyond = view.rows.saturating_sub(limits.rows_max);
            let request = GuardRequest {
                id,
                layer,
                position: view.position,
                fixed,
                counts: VictimCounts {
                    must: leave.min(beyond.max(fixed)),
                    may: leave,
                },
                stands_for,
                rows,
            };
            let (config, threads) = (runner.model.config(), runner.pool.threads());
            let tools = GuardTools {
                config,
                exec: Exec {
                    backend: runner.backend,
                    pool: &runner.pool,
                },
                store: &runner.store,
                sequences: &mut runner.sequences,
                attention: runner.scratch.small_attention(config, threads),
            };
            leave = guard.judge(tools, request)?;
        }
        if let Some(words) = words {
            words.add(policy, &view, &self.candidates[..leave]);
        }
        Ok(leave)
    }
}

/// How many annotated rows stay whatever they are worth. They take at most a quarter of the rows of a layer, and never so
/// many that the recent ones would not fit: a layer keeps to its limit.
struct Protection {
    /// First tokens that are never evicted: those of the retention, and what the sequence opens with.
    anchors: u64,
    /// Of these the rows beyond those of the retention.
    opening: usize,
    /// The blocks of the retention's anchors, and those that are recent.
    fixed: [usize; 2],
}

impl Protection {
    /// A protected annotation of the first tokens makes their whole blocks anchors, in all layers alike, so that they stay
    /// beyond the trained context too.
    fn new(
        runner: &ModelRunner,
        rules: &RetentionRules,
        id: SequenceId,
        anchors: u64,
        rows_max: &dyn Fn(usize) -> usize,
    ) -> StepResult<Protection> {
        let slots = BLOCK_SLOTS as u64;
        let first = anchors.next_multiple_of(slots);
        let recent = (rules.zones.recent_blocks() + 2) * slots;
        let mut found = Protection {
            anchors,
            opening: 0,
            fixed: [first as usize, recent as usize],
        };
        let opening = runner.store.annotations(id)?.first();
        if let Some(opening) = opening.filter(|a| a.protected && a.start == 0) {
            let layers = rules.layers.iter().enumerate();
            let layers = layers.filter(|(_, layer)| layer.window.is_none());
            let rows = layers.map(|(layer, _)| found.rows_of_layer(rows_max(layer)));
            let end = opening.end.min(first + rows.min().unwrap_or(0));
            found.anchors = anchors.max(end / slots * slots);
            found.opening = (found.anchors.next_multiple_of(slots) - first) as usize;
        }
        Ok(found)
    }

    /// Of a layer that keeps `rows_max` rows, beside the opening.
    fn rows_of_layer(&self, rows_max: usize) -> u64 {
        let [anchors, recent] = self.fixed;
        let room = rows_max.saturating_sub(anchors + recent.max(rows_max / 2));
        let protected = room.min(rows_max / 4);
        protected.saturating_sub(self.opening) as u64
    }
}

/// The share of the budget that the store uses; everything where no budget was named. What else is on the heap and what
/// the device has left do not count: tokens would depend on them.
fn budget_used(runner: &ModelRunner, rules: &RetentionRules) -> f32 {
    let ledger = runner.store.ledger();
    let share = |budget: usize| ledger.own() as f32 / budget.max(1) as f32;
    let named = ledger.budget.filter(|_| !rules.budget_follows_device);
    named.map_or(1.0, share)
}
