//! One owner of the model, the cache and the policies; one step at a time.
//!
//! Under a bounded policy rows are evicted every 32 positions, at places that depend on the window alone, so
//! that what a token sees does not depend on how a prompt was split into steps; a span may not cross such
//! a place. [`Runtime::feed`] and [`Runtime::decode`] see to it.

use super::adaptive;
use super::bounds::{Bounds, BoundsError, bounds};
use super::error::{RuntimeError, StepError, StepResult};
use super::eviction::Evictor;
use super::options::{Activations, Retention, RuntimeOptions, noting_by};
use super::plan::{self, ComputeSetting};
use super::retention::{RetentionRules, SequenceRetention, may_evict, to_boundary};
use crate::device::{Governor, WindowChange, governor};
use crate::kv_quality::calibrate::{self, KeyStats};
use crate::kv_quality::guard::Guard;
use crate::kv_quality::probe::{self, Probe};
use crate::model::Model;
use crate::model::kv::KvOptions;
use crate::step::query_samples::SampleLayout;
use crate::step::runner::{ModelRunner, StepMode};
use crate::step::sequence::{RetentionState, SequenceState, Sequences};
use crate::step::{LogitRows, StepSpan};
use haversack_cache::{
    Annotation, CacheError, EvictionOutcome, Image, KvRow, LayerShape, Ledger, MappedImage,
    PositionMode, SequenceId, SequenceStats, Store, StoreOptions, with_room,
};
use haversack_kernels::format::kv::Rotation;
use haversack_kernels::format::kv::error_feedback::ErrorFeedback;
use haversack_memory::{Reading, Readings};
use std::ops::{ControlFlow, Deref, DerefMut, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use crate::step::runner::CHUNK_MIN;

pub struct Runtime {
    pub(super) runner: ModelRunner,
    pub(super) rules: RetentionRules,
    pub(super) evictor: Evictor,
    pub(super) setting: ComputeSetting,
    chunk: usize,
    /// What sessions keep, a part of the runner's side bytes.
    session_bytes: usize,
    device: Option<DeviceWindow>,
    /// What a sequence of all rows needs, where the budget follows the device: it does not fall below.
    budget_min: Option<usize>,
}

/// Lets windows follow what the device has left.
struct DeviceWindow {
    governor: Governor,
    /// Where this machine is read; `None`: readings come from [`Runtime::observe`] alone.
    readings: Option<DueReadings>,
    /// The window that the device has room for, and why. Each sequence takes it over where rows of its own may be
    /// evicted.
    target: Option<(usize, String)>,
}

struct DueReadings {
    readings: Readings,
    started: Instant,
    /// When the next reading is due.
    due: Duration,
}

impl Runtime {
    /// Measures what the options need to know of the model, if no file of `cache_dir` has it.
    pub fn new(model: Arc<Model>, options: &RuntimeOptions) -> Result<Runtime, RuntimeError> {
        if adaptive::needs_plan(options) {
            let planned = adaptive::resolve(&model, options)?;
            return Runtime::new(model, &planned);
        }
        let config = model.config();
        if let Some(policy) = options.retention.rows() {
            policy.check(config.layers.len())?;
        }
        if let Some((&layer, _)) = options.kv.layers.range(config.layers.len()..).next() {
            let last = config.layers.len() - 1;
            return Err(BoundsError::NoSuchLayer { layer, last }.into());
        }
        let setting = ComputeSetting::of(options);
        let need = |rows| plan::needs(config, &options.kv, setting, rows).total();
        let retention = options.retention.clone();
        let mut bounds = bounds(config.context, &retention, options.budget_bytes, &need)?;
        if setting.noting.is_some() {
            bounds = bounds.chosen(options.kv.recent)?;
        }

        let budget_min = need(bounds.rows_max);
        let layers = options.kv.shapes(config);
        let arenas = StoreOptions {
            slab_bytes: options.slabs.bytes,
            slab_io: options.slabs.io.clone(),
            ..StoreOptions::default()
        };
        let (means, carries) = key_stats(&model, options, &layers, &arenas)?;
        let store = Store::new(StoreOptions {
            layers: layers.clone(),
            zones: options.kv.zones(),
            means,
            error_feedback: carries,
            budget_bytes: options.budget_bytes,
            row_stats: setting.noting,
            backing: options.kv_memory,
            ..arenas
        })?;
        let (threads, int8) = (setting.threads, setting.int8);
        let mut runner = ModelRunner::new(model.clone(), store, threads, options.backend, int8);
        let rows_max = bounds.rows_max;
        let settled_bytes = plan::settled_bytes(&layers);
        let candidate_bytes = plan::candidate_bytes(setting, rows_max);
        let guard_bytes = match setting.guarded {
            true => Guard::bytes_for(config, settled_bytes, rows_max),
            false => 0,
        };
        let side_bytes = candidate_bytes + guard_bytes;
        runner
            .set_side_bytes(side_bytes)
            .map_err(CacheError::from)?;
        let mut guard = None;
        if setting.guarded {
            runner.sequences = Sequences::new(Some(SampleLayout::new(config)));
            let made = Guard::new(&model, settled_bytes, rows_max, options.guard)?;
            guard = Some(made);
        }
        let mut evictor = Evictor::new(guard, retention.explain);
        evictor.reserve(candidate_bytes / size_of::<KvRow>())?;
        let chunk = options.chunk;
        let chunk = chunk.unwrap_or_else(|| runner.chunk_for(options.budget_bytes));
        let window = bounds.window.filter(|_| retention.replay.is_empty());
        let device = window.map(|window| {
            let per_token = plan::bytes_per_token(config, &options.kv);
            let weights_bytes = model.weights().bytes_per_token() as u64;
            DeviceWindow {
                governor: Governor::new(window, per_token, weights_bytes),
                readings: options.follow_device.then(|| DueReadings {
                    readings: Readings::open(),
                    started: Instant::now(),
                    due: Duration::ZERO,
                }),
                target: None,
            }
        });
        let depth = retention.adaptive.depth;
        let dir = options.cache_dir.as_deref();
        let probe = dir.and_then(|dir| probe::saved(&model, dir, depth));
        Ok(Runtime {
            rules: RetentionRules {
                options: retention,
                bounds,
                kv: options.kv.clone(),
                context: config.context,
                layers,
                zones: options.kv.zones(),
                budget_follows_device: options.budget_follows_device,
                curves: probe.map(|probe| probe.curves),
            },
            runner,
            evictor,
            setting,
            chunk: chunk.max(1),
            session_bytes: 0,
            device,
            budget_min: options.budget_follows_device.then_some(budget_min),
        })
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.runner.model
    }

    pub fn store(&self) -> &Store {
        &self.runner.store
    }

    pub fn kv(&self) -> &KvOptions {
        &self.rules.kv
    }

    pub fn activations(&self) -> Activations {
        match self.setting.int8 {
            true => Activations::Int8,
            false => Activations::F32,
        }
    }

    /// What was asked for.
    pub fn retention(&self) -> &Retention {
        &self.rules.options
    }

    /// What a sequence may keep.
    pub fn bounds(&self) -> &Bounds {
        &self.rules.bounds
    }

    pub fn ledger(&self) -> Ledger {
        self.runner.store.ledger()
    }

    pub fn threads(&self) -> usize {
        self.runner.pool.threads()
    }

    /// Computes with this many threads from now on, at most as many as the options said. Tokens do not depend on it.
    pub fn set_threads(&mut self, threads: usize) {
        self.runner
            .set_threads(threads.clamp(1, self.setting.threads));
    }

    pub fn chunk(&self) -> usize {
        self.chunk
    }

    pub fn open(&mut self) -> StepResult<SequenceId> {
        self.open_with(SequenceRetention::Default)
    }

    /// Opens a sequence with a retention of its own, within what the runtime has room for.
    pub fn open_with(&mut self, retention: SequenceRetention) -> StepResult<SequenceId> {
        let retention = self.rules.state(retention)?;
        let policy = retention.policy;
        if policy.is_some() {
            self.reserve_candidates(self.rules.rows_of(&retention))?;
        }
        let state = SequenceState {
            retention,
            counting: policy.and_then(|policy| policy.count()),
            ..SequenceState::default()
        };
        let id = self.runner.open(policy.as_ref().map(noting_by), state)?;
        let positions = self.rules.options.positions.in_store();
        self.runner.store.set_positions(id, positions)?;
        Ok(id)
    }

    /// Gives parts of a sequence a meaning for policies that choose rows: see [`Store::annotate`]. Tokens may follow later.
    pub fn annotate(&mut self, id: SequenceId, annotations: &[Annotation]) -> StepResult {
        for of in annotations {
            let range = of.start..of.end;
            self.runner.store.annotate(id, range, of.protected)?;
        }
        Ok(())
    }

    /// Makes room for the list of `rows` candidates for eviction, and charges it.
    fn reserve_candidates(&mut self, rows: usize) -> StepResult {
        let bytes = rows.saturating_mul(size_of::<KvRow>());
        let more = bytes.saturating_sub(self.evictor.candidate_bytes());
        if more > 0 {
            self.charge_side(more)?;
            self.evictor.reserve(rows)?;
        }
        Ok(())
    }

    /// Uses what a probe measured of the model: sequences may be opened with policy `Adaptive` from now on.
    pub fn load_probe(&mut self, probe: &Probe) {
        if probe.curves.len() == self.model().config().layers.len() {
            self.rules.curves = Some(probe.curves.clone());
        }
    }

    pub fn fork(&mut self, id: SequenceId) -> StepResult<SequenceId> {
        Ok(self.runner.fork(id)?)
    }

    pub fn close(&mut self, id: SequenceId) -> StepResult {
        Ok(self.runner.close(id)?)
    }

    /// Sets what sessions keep beside sequences: a level, which the budget covers like everything else.
    pub fn set_session_bytes(&mut self, bytes: usize) -> StepResult {
        let own = self.runner.side_bytes - self.session_bytes;
        self.runner.set_side_bytes(own + bytes)?;
        self.session_bytes = bytes;
        Ok(())
    }

    /// Charges bytes that others keep beside sequences: a change, not a level.
    pub fn charge_side(&mut self, bytes: usize) -> StepResult {
        let side = self.runner.side_bytes.saturating_add(bytes);
        Ok(self.runner.set_side_bytes(side)?)
    }

    /// Takes back what [`Runtime::charge_side`] charged, or a part of it.
    pub fn release_side(&mut self, bytes: usize) {
        let side = self.runner.side_bytes;
        let bytes = bytes.min(side - self.session_bytes);
        // Less than before always fits.
        if let Err(error) = self.runner.set_side_bytes(side - bytes) {
            log::error!("released memory is still charged: {error}");
        }
    }

    /// Takes over what the process has on its heap beside this runtime: a level. Admission asks for it; no step fails for it.
    pub fn set_heap_bytes(&mut self, bytes: usize) {
        self.runner.store.set_heap(bytes);
    }

    /// Lowers the budget by `bytes` until the returned guard is dropped.
    pub fn reserve(&mut self, bytes: usize) -> StepResult<ReservedBudget<'_>> {
        let budget = self.ledger().budget;
        let left = budget.map(|budget| budget.saturating_sub(bytes));
        self.runner.store.set_budget(left)?;
        Ok(ReservedBudget {
            runtime: self,
            budget,
        })
    }

    /// A sequence from its image. It goes on where it stood.
    pub fn restore(&mut self, image: Image<'_>) -> StepResult<SequenceId> {
        let id = self.runner.store.restore(image)?;
        self.insert_restored(id);
        Ok(id)
    }

    /// The same; blocks that a mapped file has too stay there, and cost no private memory.
    pub fn restore_shared(
        &mut self,
        image: Image<'_>,
        shared: MappedImage<'_>,
    ) -> StepResult<SequenceId> {
        let id = self.runner.store.restore_shared(image, shared)?;
        self.insert_restored(id);
        Ok(id)
    }

    /// The same from a mapped file: full blocks stay there, and cost no private memory.
    pub fn restore_mapped(&mut self, image: MappedImage<'_>) -> StepResult<SequenceId> {
        let id = self.runner.store.restore_mapped(image)?;
        self.insert_restored(id);
        Ok(id)
    }

    fn insert_restored(&mut self, id: SequenceId) {
        let state = SequenceState {
            retention: self.rules.default_state(),
            ..SequenceState::default()
        };
        self.runner.sequences.states.insert(id, state);
    }

    /// Puts blocks that left a sequence back to where they were.
    pub fn mount(&mut self, id: SequenceId, columns: &[&[u8]]) -> StepResult {
        Ok(self.runner.store.mount(id, columns)?)
    }

    /// Whether gaps of a sequence close from now on.
    pub fn set_positions(&mut self, id: SequenceId, to: PositionMode) -> StepResult {
        Ok(self.runner.store.set_positions(id, to)?)
    }

    /// Drops every token from `position` on. Refused where the state of then is gone: a fork taken in time keeps it.
    pub fn truncate(&mut self, id: SequenceId, position: u64) -> StepResult {
        Ok(self.runner.store.truncate(id, position)?)
    }

    /// Hides these positions from every query from now on, and shows all others: see [`Store::hide`]. Refused
    /// where rows are evicted one by one.
    pub fn hide(&mut self, id: SequenceId, hidden: &[Range<u64>]) -> StepResult {
        Ok(self.runner.store.hide(id, hidden)?)
    }

    /// Drops the blocks whose rows are all hidden and among these positions: see [`Store::drop_hidden`].
    pub fn drop_hidden(
        &mut self,
        id: SequenceId,
        range: Range<u64>,
    ) -> StepResult<EvictionOutcome> {
        Ok(self.runner.store.drop_hidden(id, range)?)
    }

    /// Tokens a sequence has seen.
    pub fn position(&self, id: SequenceId) -> StepResult<u64> {
        Ok(self.runner.store.position(id)?)
    }

    pub fn stats(&self, id: SequenceId) -> StepResult<SequenceStats> {
        Ok(self.runner.store.stats(id)?)
    }

    /// The evictions since the last call, in words, where the options ask for them; the latest ones, if there were many.
    pub fn plans(&mut self) -> Vec<String> {
        let plans = self.evictor.plans.as_mut();
        plans.map(std::mem::take).unwrap_or_default()
    }

    fn retention_of(&self, id: SequenceId) -> Option<&RetentionState> {
        Some(&self.runner.sequences.states.get(&id)?.retention)
    }

    /// Every change of a sequence's window so far, in order. Passed to [`Retention::replay`], they give the
    /// same tokens again.
    pub fn window_changes(&self, id: SequenceId) -> &[WindowChange] {
        self.retention_of(id).map_or(&[], |state| &state.changes)
    }

    /// The window in force, if rows are evicted at all.
    pub fn window(&self, id: SequenceId) -> Option<usize> {
        self.retention_of(id)
            .map_or(self.rules.bounds.window, |state| state.window)
    }

    /// Tokens after which a sequence ends; `None` where rows are evicted in time.
    pub fn end(&self, id: SequenceId) -> Option<usize> {
        self.retention_of(id)
            .map_or(self.rules.bounds.end(), |state| state.end)
    }

    /// Predicted KL of all evictions of a sequence so far, where a guard looks at them.
    pub fn quality_debt(&self, id: SequenceId) -> Option<f64> {
        self.evictor.guard.as_ref()?;
        let state = self.runner.sequences.states.get(&id);
        Some(state.map_or(0.0, |state| state.quality_debt))
    }

    /// Moves blocks together and gives whole slabs and the scratch back to the device.
    pub fn give_back(&mut self) {
        // If there is no room even for the list of moves, blocks stay where they are.
        if let Err(error) = self.runner.store.compact_below(100) {
            log::warn!("slabs were not compacted: {error}");
        }
        self.runner.release_scratch();
    }

    /// Passes a reading of the device on. A shortage may shrink the window of every sequence, from
    /// the next place on where its rows may be evicted; changes are recorded.
    pub fn observe(&mut self, reading: &Reading, now: Duration) {
        if let Some(device) = &mut self.device
            && let Some(change) = device.governor.decide(reading, now)
        {
            device.target = Some(change);
        }
    }

    /// Whether the budget is the device's rather than one that was named.
    pub fn budget_follows_device(&self) -> bool {
        self.budget_min.is_some()
    }

    /// Moves a budget that was the device's to what the device has room for now: not below what is held, what was
    /// `promised` on top of it, and what one sequence of all rows needs.
    pub fn follow_budget(&mut self, reading: &Reading, promised: usize) {
        let Some(min) = self.budget_min else {
            return;
        };
        let ledger = self.ledger();
        let held = ledger.total();
        let weights_bytes = self.model().weights().bytes_per_token() as u64;
        let found = governor::budget(reading, weights_bytes, held as u64);
        let bytes = found.bytes.max(min).max(held.saturating_add(promised));
        if ledger.budget == Some(bytes) {
            return;
        }
        // It covers what is held.
        if let Err(error) = self.runner.store.set_budget(Some(bytes)) {
            log::error!("the budget did not follow the device: {error}");
        }
    }

    /// Reads the device if it is time to.
    fn read_device(&mut self) {
        let Some(due) = self.device.as_mut().and_then(|d| d.readings.as_mut()) else {
            return;
        };
        let now = due.started.elapsed();
        if now >= due.due {
            due.due = now + governor::INTERVAL;
            let reading = due.readings.now();
            self.observe(&reading, now);
        }
    }

    /// Changes the window of a sequence that stands at `position`, if its rows may be evicted there and the device or a
    /// replay asks for it. Calling it twice at one position changes nothing more.
    fn update_window(&mut self, id: SequenceId, position: u64) {
        let may_change = |state: &RetentionState| may_evict(state, position);
        if !self.retention_of(id).is_some_and(may_change) || self.position(id) != Ok(position) {
            return;
        }
        self.read_device();
        let target = self.device.as_ref().and_then(|d| d.target.as_ref());
        let Some(state) = self.runner.sequences.states.get_mut(&id) else {
            return;
        };
        let state = &mut state.retention;
        let Some(change) = self.rules.window_change(state, position, target) else {
            return;
        };
        let WindowChange { window, reason, .. } = &change;
        let before = state.window.or(state.window_asked).unwrap_or(*window);
        log::info!("window {before} -> {window} from position {position}, {reason}");
        state.window = Some(*window);
        state.changes.push(change);
    }

    /// Feeds every span its tokens in one pass and returns the logits that were wanted,
    /// (wanted row, vocab), span after span.
    pub fn step(&mut self, spans: &[StepSpan<'_>]) -> StepResult<&[f32]> {
        for span in spans {
            self.update_window(span.sequence, span.position);
        }
        self.check(spans)?;
        for span in spans {
            self.evictor
                .make_room(&mut self.runner, &self.rules, span)?;
        }
        self.runner.step(spans, StepMode::Append)?;
        self.trace(spans);
        Ok(&self.runner.scratch.logits)
    }

    /// Feeds tokens step by step and hands over the logits of each step: all of them, or only those of
    /// the last token. `tell` is given the number of tokens done and may stop.
    fn walk(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        all: bool,
        tell: &mut dyn FnMut(usize, &[f32]) -> ControlFlow<()>,
    ) -> StepResult<bool> {
        if tokens.is_empty() {
            return Err(StepError::Empty);
        }
        let mut position = self.position(id)?;
        self.check_context(id, position + tokens.len() as u64)?;
        let mut chunk = self.chunk;
        let mut done = 0;
        while done < tokens.len() {
            let take = self.chunk_at(id, position, tokens.len() - done, chunk);
            let want = match (all, done + take == tokens.len()) {
                (true, _) => LogitRows::All,
                (false, true) => LogitRows::Last,
                (false, false) => LogitRows::Nothing,
            };
            let part = &tokens[done..done + take];
            match self.step(&[StepSpan::new(id, position, part, want)]) {
                // A smaller step needs less memory; the bits are the same.
                Err(error) if error.is_cannot_fit() && take > 1 => {
                    // Queries are roped anew for each piece between gaps: with many of them a block is much.
                    chunk = match take > CHUNK_MIN {
                        true => (take / 2 / CHUNK_MIN * CHUNK_MIN).max(CHUNK_MIN),
                        false => take / 2,
                    };
                    continue;
                }
                step => step?,
            };
            done += take;
            position += take as u64;
            if tell(done, self.logits()).is_break() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// How many of `tokens` tokens the next step of a sequence may take, at most `max`. A window that changes here has
    /// changed then: where the step has to end follows from the new one.
    fn chunk_at(&mut self, id: SequenceId, position: u64, tokens: usize, max: usize) -> usize {
        self.update_window(id, position);
        match self.retention_of(id) {
            Some(state) => self.rules.chunk(state, position, tokens, max),
            None => tokens.min(max),
        }
    }

    /// How many of `tokens` tokens the next step of a sequence at `position` may take.
    pub fn next_chunk(&mut self, id: SequenceId, position: u64, tokens: usize) -> usize {
        self.chunk_at(id, position, tokens, self.chunk)
    }

    /// Reads a prompt in chunks; returns the logits after its last token.
    pub fn feed(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> StepResult<Option<&[f32]>> {
        let whole = self.walk(id, tokens, false, &mut |done, _| progress(done))?;
        Ok(whole.then(|| self.logits()))
    }

    /// Feeds tokens and returns the logits after each, (token, vocab).
    pub fn all_logits(&mut self, id: SequenceId, tokens: &[u32]) -> StepResult<Vec<f32>> {
        let values = tokens.len().saturating_mul(self.model().config().vocab);
        let mut all = with_room(values)?;
        self.walk(id, tokens, true, &mut |_, logits| {
            all.extend_from_slice(logits);
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }

    /// Logits of the last step.
    pub fn logits(&self) -> &[f32] {
        &self.runner.scratch.logits
    }

    /// One new token of one sequence.
    pub fn decode(&mut self, id: SequenceId, token: u32) -> StepResult<&[f32]> {
        let position = self.position(id)?;
        self.step(&[StepSpan::new(id, position, &[token], LogitRows::Last)])
    }

    fn check(&self, spans: &[StepSpan<'_>]) -> StepResult {
        if spans.is_empty() {
            return Err(StepError::Empty);
        }
        let vocab = self.model().config().vocab;
        for span in spans {
            if span.tokens.is_empty() {
                return Err(StepError::Empty);
            }
            if let Some(&token) = span.tokens.iter().find(|&&t| t as usize >= vocab) {
                return Err(StepError::Token { token, vocab });
            }
            let (id, from) = (span.sequence, span.position);
            let expected = self.position(id)?;
            if expected != from {
                let found = from;
                return Err(CacheError::Position { expected, found }.into());
            }
            let end = from + span.tokens.len() as u64;
            self.check_context(id, end)?;
            let crosses = |state: &RetentionState| {
                let within = state.window.map(|window| to_boundary(window, from));
                within.is_some_and(|within| span.tokens.len() > within)
                    && end > self.rules.free_until(state, from)
            };
            if self.retention_of(id).is_some_and(crosses) {
                return Err(StepError::CrossesEviction { from, to: end - 1 });
            }
        }
        Ok(())
    }

    /// Without a bounded policy a sequence ends where the context does.
    fn check_context(&self, id: SequenceId, end: u64) -> StepResult {
        match self.end(id) {
            Some(context) if end > context as u64 => Err(StepError::Context { end, context }),
            _ => Ok(()),
        }
    }

    fn trace(&self, spans: &[StepSpan<'_>]) {
        if !log::log_enabled!(log::Level::Trace) {
            return;
        }
        let config = self.model().config();
        let (layers, dim) = (config.layers.len(), config.dim);
        for span in spans {
            if let Ok(SequenceStats { position, rows, .. }) = self.stats(span.sequence) {
                let (tokens, from, want) = (span.tokens.len(), span.position, span.want);
                log::trace!(
                    "step: tokens {tokens} from position {from} -> position {position}, rows {rows} in each of {layers} layers, hidden [{tokens} × {dim}], logits {want:?}"
                );
            }
        }
    }
}

/// A runtime with a part of its budget set aside. Dropping it restores the budget.
pub struct ReservedBudget<'a> {
    runtime: &'a mut Runtime,
    budget: Option<usize>,
}

impl Deref for ReservedBudget<'_> {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.runtime
    }
}

impl DerefMut for ReservedBudget<'_> {
    fn deref_mut(&mut self) -> &mut Runtime {
        self.runtime
    }
}

impl Drop for ReservedBudget<'_> {
    fn drop(&mut self) {
        // What is held was within less.
        if let Err(error) = self.runtime.runner.store.set_budget(self.budget) {
            log::error!("the budget was not restored: {error}");
        }
    }
}

/// What codecs use of the keys of each layer, where they do and it can be measured: the mean to subtract, and how
/// rounding errors are fed back.
type LayerKeyStats = (Vec<Option<Vec<f32>>>, Vec<Option<ErrorFeedback>>);

fn key_stats(
    model: &Arc<Model>,
    options: &RuntimeOptions,
    layers: &[LayerShape],
    arenas: &StoreOptions,
) -> Result<LayerKeyStats, RuntimeError> {
    let centred = |layer: &LayerShape| layer.basis().k == Rotation::Hadamard;
    let tokens = calibrate::tokens_affordable(model.weights().bytes_per_token() as u64);
    let (true, true, Some(tokens)) = (options.kv.centre, layers.iter().any(centred), tokens) else {
        return Ok((Vec::new(), Vec::new()));
    };
    let dir = options.cache_dir.as_deref();
    let stats = KeyStats::load_or_measure(model, options.threads, tokens, dir, arenas)
        .map_err(RuntimeError::Measurement)?;
    let layers = layers.iter().enumerate();
    let of_layer = layers.map(|(i, layer)| stats.for_layer(model.config(), i, layer));
    Ok(of_layer.unzip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::scratch::StepScratch;
    use crate::{LoadOptions, Repack};
    use haversack_cache::policy::EvictionPlan;
    use haversack_testing::models::Spec;

    /// Any block may leave: one of every eight stays, each in 256 positions of its own. Rows alone would
    /// have attention reserve for six spans; there are ten.
    #[test]
    fn scattered_blocks_have_room_in_attention() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        let spec = Spec {
            context: 4096,
            ..Spec::named("llama").unwrap()
        };
        spec.write_file(&path).unwrap();
        let load = LoadOptions {
            repack: Repack::Off,
            ..LoadOptions::default()
        };
        let model = Model::load(&path, &load, &mut |_, _| ()).unwrap();
        let tokens = spec.ids(2500);
        let mut logits = Vec::new();
        for threads in [1, 2] {
            let options = RuntimeOptions {
                threads,
                retention: Retention::full(),
                ..RuntimeOptions::default()
            };
            let mut rt = Runtime::new(model.clone(), &options).unwrap();
            let id = rt.open().unwrap();
            let mut go_on = |_| ControlFlow::Continue(());
            rt.feed(id, &tokens[..2400], &mut go_on).unwrap();
            let snapshot = rt.runner.store.snapshot(id).unwrap();
            let mut plan = EvictionPlan::nothing(&snapshot);
            plan.drop = (0..9).map(|i| 256 * i + 32..256 * (i + 1)).collect();
            rt.runner.store.apply(id, &plan).unwrap();
            assert!(rt.store().rows(id).unwrap() <= 10 * 32 + 64);
            assert_eq!(rt.store().max_spans_after(id, 1).unwrap(), 10);
            // The scratch of the prompt is gone.
            rt.runner.scratch = StepScratch::new(model.config(), true);
            for &token in &tokens[2400..2410] {
                rt.decode(id, token).unwrap();
            }
            rt.feed(id, &tokens[2410..], &mut go_on).unwrap();
            logits.push(rt.logits().to_vec());
        }
        assert!(logits[0] == logits[1] && logits[0].iter().all(|l| l.is_finite()));
    }
}
