//! One owner of the cache, the workers and the scratch memory; one step at a time.
//!
//! The contract of a step, checked and not assumed: spans continue where their sequences stand,
//! each token adds exactly one row to every layer, and the position after the step is the number of
//! tokens seen. A violation is an error that names the layer; the sequences are then as before.
//!
//! Under a bounded policy rows leave every 32 positions, at places that depend on the window alone, so
//! that what a token sees does not depend on how a prompt was portioned; a span may then not cross such
//! a place. [`Runtime::feed`] and [`Runtime::decode`] see to both.

mod guarded;
mod keep;
mod promise;
pub mod trial;

use super::bounds::{Bounds, BoundsError, bounds};
use super::options::{Activations, KvOptions, Retention, RuntimeOptions, noting_by};
use crate::device::{Governor, WindowChange, governor};
use crate::kv_quality::calibrate::{self, KeyStats};
use crate::kv_quality::guard::Guard;
use crate::kv_quality::probe::{self, Probe};
use crate::model::Model;
use crate::model::canaries::Canaries;
use crate::model::forward::{
    Capture, Captured, LogitRows, Resume, Scratch, StepSize, StepSpan, forward,
};
use crate::runtime::adaptive::{self, Curves};
use crate::runtime::plan;
use haversack_cache::policy::rows::ParamsError;
use haversack_cache::{
    Account, Applied, CacheError, CannotFit, Grow, Image, LayerShape, Ledger, MappedImage, Row,
    SequenceId, SequenceStats, Step, Store, StoreOptions,
};
use haversack_kernels::Exec;
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_kernels::cpu::Table;
use haversack_kernels::format::kv::Turn;
use haversack_kernels::format::kv::carry::Carry;
use haversack_kernels::threads::Pool;
use haversack_memory::{Reading, Readings};
pub use keep::SequenceRetention;
use keep::{Reach, to_border};
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why a step did not happen. The sequences are as they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error("token {token} is out of range; accepted: 0 to {}", vocab - 1)]
    Token { token: u32, vocab: usize },
    #[error("position {end} is past the context of {context} tokens")]
    Context { end: u64, context: usize },
    #[error("{tokens} tokens are to be kept; accepted: at most {most}")]
    TooMany { tokens: usize, most: usize },
    #[error(
        "anchors {anchors} and window {window} are to be kept; accepted: a window of at least 1, together at most {most}"
    )]
    Window {
        anchors: usize,
        window: usize,
        most: usize,
    },
    #[error("a window of {window} has no rows to choose from; accepted: at least {least}")]
    Narrow { window: usize, least: usize },
    #[error("no rows of one sequence are chosen by {policy}; accepted: heavy, snap, adaptive")]
    NotOfOne { policy: &'static str },
    #[error(
        "this model was not probed, so nobody knows what its layers need; --policy adaptive does it once"
    )]
    NotProbed,
    #[error("a step needs at least one token")]
    Empty,
    #[error("the model computed a number that is not finite at position {position}")]
    NotFinite { position: u64 },
    #[error(
        "tokens {from} to {to} lie on both sides of a place where rows may leave; accepted: spans that end there"
    )]
    Crosses { from: u64, to: u64 },
}

impl StepError {
    /// The budget is what stands in the way.
    pub fn is_cannot_fit(&self) -> bool {
        matches!(self, StepError::Cache(CacheError::CannotFit(_)))
    }
}

impl From<CannotFit> for StepError {
    fn from(error: CannotFit) -> StepError {
        StepError::Cache(CacheError::CannotFit(error))
    }
}

/// Why there is no runtime.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RuntimeError {
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    #[error(transparent)]
    Params(#[from] ParamsError),
    #[error("measuring the mean keys: {0}")]
    Means(#[from] Box<StepError>),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl From<StepError> for RuntimeError {
    fn from(error: StepError) -> RuntimeError {
        RuntimeError::Means(Box::new(error))
    }
}

pub struct Runtime {
    pub(super) model: Arc<Model>,
    pub(super) pool: Pool,
    pub(super) table: Table,
    pub(super) store: Store,
    pub(super) scratch: Scratch,
    /// What the step under way adds to each sequence; kept for its room.
    grow: Vec<Grow>,
    /// What is promised holds for so many.
    threads_most: usize,
    chunk: usize,
    kv: KvOptions,
    activations: Activations,
    retention: Retention,
    bounds: Bounds,
    reaches: HashMap<SequenceId, Reach>,
    /// What a probe found of each layer, if there was one.
    curves: Option<Vec<Curves>>,
    governor: Option<Governor>,
    device: Option<Device>,
    /// Rows of a layer among which some leave; kept for its room.
    pub(super) loose: Vec<Row>,
    pub(super) guard: Option<Guard>,
    /// What is kept beside blocks whatever is open.
    pub(super) side_bytes: usize,
    /// Of these, what sessions hold.
    held_bytes: usize,
    /// Plans that were applied, in words, if somebody wants to know.
    plans: Vec<String>,
    /// The window that the device has room for, and why. Each sequence takes it over where rows of its
    /// own may leave.
    target: Option<(usize, String)>,
}

/// The device this runs on, read now and then.
struct Device {
    readings: Readings,
    started: Instant,
    /// When the next reading is due.
    due: Duration,
}

/// Scratch memory that choosing a chunk aims at.
const SCRATCH_BYTES: usize = 16 << 20;
pub(crate) const CHUNK_MIN: usize = BLOCK_SLOTS;
const CHUNK_MAX: usize = 512;

impl Runtime {
    pub fn new(model: Arc<Model>, options: &RuntimeOptions) -> Result<Runtime, RuntimeError> {
        if adaptive::is_open(options) {
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
        let setting = plan::ComputeSetting::of(options);
        let (threads, int8) = (setting.threads, setting.int8);
        let need = |rows| plan::needs(config, &options.kv, setting, rows).total();
        let retention = options.retention.clone();
        let mut bounds = bounds(config.context, &retention, options.budget_bytes, &need)?;
        if setting.noting.is_some() {
            bounds = bounds.chosen(options.kv.recent)?;
        }

        let layers: Vec<LayerShape> = plan::layers(config, &options.kv);
        let settled_bytes = plan::settled_bytes(&layers);
        let (means, carries) = known(&model, options, &layers)?;
        let usual = StoreOptions::default();
        let mut store = Store::new(StoreOptions {
            layers,
            zones: options.kv.zones(),
            means,
            carries,
            budget_bytes: options.budget_bytes,
            notes: setting.noting,
            slab_bytes: options.slabs.bytes.unwrap_or(usual.slab_bytes),
            faults: options.slabs.faults.clone(),
            ..usual
        })?;
        let mut scratch = Scratch::new(config, int8);
        let mut loose = Vec::new();
        let most = plan::loose_bytes(setting, bounds.rows_max);
        let mut side_bytes = most;
        let mut guard = None;
        if setting.guarded {
            side_bytes += Guard::bytes_for(config, settled_bytes, bounds.rows_max);
        }
        store
            .charge(Account::Side, side_bytes)
            .map_err(CacheError::CannotFit)?;
        if setting.guarded {
            scratch.canaries = Some(Canaries::new(config));
            let (weights, rows) = (model.weights(), bounds.rows_max);
            guard = Some(Guard::new(
                config,
                weights,
                settled_bytes,
                rows,
                options.guard,
            )?);
        }
        loose
            .try_reserve_exact(most / size_of::<Row>())
            .map_err(|_| CacheError::OutOfMemory { bytes: most })?;
        let chunk = options.chunk.unwrap_or_else(|| {
            let room = options.budget_bytes.map_or(usize::MAX, |budget| budget / 4);
            let rows = SCRATCH_BYTES.min(room) / Scratch::bytes_per_row(config);
            rows.clamp(CHUNK_MIN, CHUNK_MAX) / CHUNK_MIN * CHUNK_MIN
        });
        let governor = bounds
            .window
            .filter(|_| retention.replay.is_empty())
            .map(|window| {
                let per_token = plan::bytes_per_token(config, &options.kv);
                Governor::new(window, per_token, model.weights().bytes_per_token() as u64)
            });
        let depth = retention.adaptive.depth;
        let dir = options.cache_dir.as_deref();
        let probe = dir.and_then(|dir| probe::kept(&model, dir, depth));
        let curves = probe.map(|probe| probe.curves);
        Ok(Runtime {
            pool: Pool::new(threads),
            table: options.table,
            store,
            scratch,
            grow: Vec::new(),
            threads_most: threads,
            chunk: chunk.max(1),
            kv: options.kv.clone(),
            activations: options.activations,
            retention,
            bounds,
            reaches: HashMap::new(),
            curves,
            governor,
            device: options.follow_device.then(|| Device {
                readings: Readings::open(),
                started: Instant::now(),
                due: Duration::ZERO,
            }),
            loose,
            plans: Vec::new(),
            guard,
            side_bytes,
            held_bytes: 0,
            target: None,
            model,
        })
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn kv(&self) -> &KvOptions {
        &self.kv
    }

    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// What was asked for.
    pub fn retention(&self) -> &Retention {
        &self.retention
    }

    /// What a sequence may keep.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    pub fn ledger(&self) -> Ledger {
        self.store.ledger()
    }

    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// How many threads compute from now on, at most as many as the options said. Tokens do not depend on it.
    pub fn set_threads(&mut self, threads: usize) {
        let threads = threads.clamp(1, self.threads_most);
        if threads != self.threads() {
            self.pool = Pool::new(threads);
            // It has room for each thread.
            self.scratch.release(self.model.config());
        }
    }

    pub fn chunk(&self) -> usize {
        self.chunk
    }

    pub fn open(&mut self) -> Result<SequenceId, StepError> {
        self.open_with(SequenceRetention::Default)
    }

    /// A sequence that keeps something else than the others. A window is within what the runtime has room for.
    pub fn open_keeping(&mut self, keep: SequenceRetention) -> Result<SequenceId, StepError> {
        let reach = self.reach_of(keep)?;
        let policy = reach.policy;
        if policy.is_some() {
            self.make_room_for_choice(self.rows_of(&reach))?;
        }
        let id = self.open_ring(policy.as_ref().map(noting_by))?;
        self.store
            .set_positions(id, self.retention.positions.in_store())?;
        if let Some(counting) = policy.and_then(|policy| policy.count()) {
            self.scratch.mass.open(id, counting);
        }
        self.reaches.insert(id, reach);
        Ok(id)
    }

    /// What a probe found of the model: sequences may keep what `Adaptive` says from now on.
    pub fn know(&mut self, probe: &Probe) {
        if probe.curves.len() == self.model.config().layers.len() {
            self.curves = Some(probe.curves.clone());
        }
    }

    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, StepError> {
        let fork = self.fork_ring(id)?;
        self.scratch.mass.fork(id, fork);
        if let Some(guard) = &mut self.guard {
            guard.fork(id, fork);
        }
        if let Some(reach) = self.reaches.get(&id) {
            self.reaches.insert(fork, reach.clone());
        }
        Ok(fork)
    }

    pub fn close(&mut self, id: SequenceId) -> Result<(), StepError> {
        self.store.close(id)?;
        self.reaches.remove(&id);
        self.scratch.mass.close(id);
        if let Some(canaries) = &mut self.scratch.canaries {
            canaries.close(id);
        }
        if let Some(guard) = &mut self.guard {
            guard.close(id);
        }
        self.charge_rings(0)
    }

    /// Sets what sessions keep beside sequences: a level, which the budget covers like everything else.
    pub fn hold(&mut self, bytes: usize) -> Result<(), StepError> {
        let own = self.side_bytes - self.held_bytes;
        let rings = self
            .scratch
            .canaries
            .as_ref()
            .map_or(0, |c| c.bytes_with(0));
        self.store.charge(Account::Side, own + bytes + rings)?;
        self.side_bytes = own + bytes;
        self.held_bytes = bytes;
        Ok(())
    }

    /// A sequence from its image. It stands where it stood, and goes on the same way.
    pub fn restore(&mut self, image: Image<'_>) -> Result<SequenceId, StepError> {
        let id = self.store.restore(image)?;
        self.reach(id);
        Ok(id)
    }

    /// The same from a mapped file: full blocks stay there, and cost no private memory.
    pub fn restore_mapped(&mut self, image: MappedImage<'_>) -> Result<SequenceId, StepError> {
        let id = self.store.restore_mapped(image)?;
        self.reach(id);
        Ok(id)
    }

    fn reach(&mut self, id: SequenceId) {
        self.reaches.insert(id, self.usual());
    }

    /// Puts blocks that left a sequence back to where they were.
    pub fn mount(&mut self, id: SequenceId, columns: &[&[u8]]) -> Result<(), StepError> {
        Ok(self.store.mount(id, columns)?)
    }

    /// Whether gaps of a sequence close from now on.
    pub fn set_positions(
        &mut self,
        id: SequenceId,
        to: haversack_cache::Positions,
    ) -> Result<(), StepError> {
        Ok(self.store.set_positions(id, to)?)
    }

    /// Forgets every token from `position` on. Refused where the state of then is not there any more:
    /// a fork taken in time keeps it.
    pub fn truncate(&mut self, id: SequenceId, position: u64) -> Result<(), StepError> {
        Ok(self.store.truncate(id, position)?)
    }

    /// Hides these positions from every query from now on, and shows all others: see [`Store::hide`]. Refused
    /// where rows leave one by one.
    pub fn hide(&mut self, id: SequenceId, hidden: &[Range<u64>]) -> Result<(), StepError> {
        Ok(self.store.hide(id, hidden)?)
    }

    /// Drops the blocks whose rows are all hidden and among these positions: see [`Store::drop_hidden`].
    pub fn drop_hidden(&mut self, id: SequenceId, range: Range<u64>) -> Result<Applied, StepError> {
        Ok(self.store.drop_hidden(id, range)?)
    }

    /// Tokens a sequence has seen.
    pub fn position(&self, id: SequenceId) -> Result<u64, StepError> {
        Ok(self.store.position(id)?)
    }

    pub fn stats(&self, id: SequenceId) -> Result<SequenceStats, StepError> {
        Ok(self.store.stats(id)?)
    }

    /// The plans that were applied since the last call, in words; those of a while, if nobody asks for long.
    pub fn plans(&mut self) -> Vec<String> {
        std::mem::take(&mut self.plans)
    }

    /// Every change of a sequence's window so far, in order. Told to [`Retention::replay`], they give the
    /// same tokens again.
    pub fn changes(&self, id: SequenceId) -> &[WindowChange] {
        self.reaches.get(&id).map_or(&[], |reach| &reach.changes)
    }

    /// The window in force, if rows leave at all.
    pub fn window(&self, id: SequenceId) -> Option<usize> {
        self.reaches
            .get(&id)
            .map_or(self.bounds.window, |reach| reach.window)
    }

    /// Tells the runtime what the device says. A shortage may shrink the window of every sequence, from
    /// the next place on where its rows may leave; what changes is recorded.
    pub fn observe(&mut self, reading: &Reading, now: Duration) {
        let Some(governor) = &mut self.governor else {
            return;
        };
        if let Some(change) = governor.decide(reading, now) {
            self.target = Some(change);
        }
    }

    /// Reads the device if it is time to.
    fn look(&mut self) {
        let Some(device) = &mut self.device else {
            return;
        };
        let now = device.started.elapsed();
        if now >= device.due {
            device.due = now + governor::INTERVAL;
            let reading = device.readings.now();
            self.observe(&reading, now);
        }
    }

    /// Feeds every span its tokens in one pass and returns the logits that were wanted,
    /// (wanted row, vocab), span after span.
    pub fn step(&mut self, spans: &[StepSpan<'_>]) -> Result<&[f32], StepError> {
        for span in spans {
            self.set_window(span.sequence, span.position);
        }
        self.check(spans)?;
        for span in spans {
            self.make_room(span)?;
        }
        self.grow.clear();
        self.grow.extend(spans.iter().map(|s| Grow {
            id: s.sequence,
            position: s.position,
            tokens: s.tokens.len(),
        }));
        let size = self.step_size(spans)?;
        let mut step = match self.begin(size) {
            // What greater steps left behind may be what is missing.
            Err(CacheError::CannotFit(_)) if self.scratch.exceeds(size) => {
                self.scratch.release(self.model.config());
                self.begin(size)?
            }
            step => step?,
        };
        let is_trial = self.scratch.resume.is_some();
        let exec = Exec {
            table: self.table,
            pool: &self.pool,
        };
        let (config, weights) = (self.model.config(), self.model.weights());
        let (store, scratch) = (&mut self.store, &mut self.scratch);
        if let Err(error) = forward(config, weights, exec, store, &mut step, scratch, spans) {
            self.store.rollback(step);
            return Err(error.into());
        }
        if is_trial {
            self.store.rollback(step);
            return Ok(self.scratch.last_logits());
        }
        self.store.commit(step)?;
        for span in spans {
            self.store
                .make_ahead(exec, span.sequence, span.tokens.len())?;
        }
        self.trace(spans);
        Ok(self.scratch.last_logits())
    }

    /// Room for a step, in the scratch and in the blocks, or nothing.
    fn begin(&mut self, size: StepSize) -> Result<Step, CacheError> {
        let (config, threads) = (self.model.config(), self.pool.threads());
        let wanted = self.scratch.bytes_with(config, threads, size);
        let begun = self
            .store
            .charge(Account::Scratch, wanted)
            .map_err(CacheError::CannotFit)
            .and_then(|()| self.store.begin(&self.grow));
        match begun {
            Ok(step) => {
                self.scratch.reserve(config, threads, size);
                Ok(step)
            }
            Err(error) => {
                let held = StepSize::default();
                let held = self.scratch.bytes_with(config, threads, held);
                self.store.charge(Account::Scratch, held)?;
                Err(error)
            }
        }
    }

    /// The logits that a step would give if one layer had found something else in the cache. The sequence is as
    /// before.
    pub(crate) fn trial(
        &mut self,
        span: StepSpan<'_>,
        resume: Resume,
    ) -> Result<&[f32], StepError> {
        self.scratch.resume = Some(resume);
        let done = self.step(&[span]).map(|_| ());
        self.scratch.resume = None;
        done.map(|()| self.scratch.last_logits())
    }

    /// Bytes that the scratch has not held yet and may, while a sequence (or a new one) reads so many tokens in the
    /// smallest portions.
    pub fn scratch_to_come(
        &self,
        id: Option<SequenceId>,
        tokens: usize,
    ) -> Result<usize, StepError> {
        let (rows, spans) = match id {
            Some(id) => (self.store.rows(id)?, self.store.spans_with(id, tokens)?),
            None => (0, 1),
        };
        let size = StepSize {
            jobs: 1,
            rows: tokens.min(CHUNK_MIN),
            wanted: 1,
            slots: StepSize::slots_for(rows + tokens, spans),
            segments: id.map_or(0, |id| self.store.shifts(id).len()),
            ..StepSize::default()
        };
        let (config, threads) = (self.model.config(), self.pool.threads());
        let wanted = self.scratch.bytes_with(config, threads, size);
        Ok(wanted.saturating_sub(self.ledger().scratch))
    }

    fn step_size(&self, spans: &[StepSpan<'_>]) -> Result<StepSize, StepError> {
        let mut size = StepSize {
            jobs: spans.len(),
            ..StepSize::default()
        };
        for span in spans {
            size.rows += span.tokens.len();
            size.wanted += span.wanted().len();
            let rows = self.store.rows(span.sequence)? + span.tokens.len();
            let spans = self.store.spans_with(span.sequence, span.tokens.len())?;
            size.slots = size.slots.max(StepSize::slots_for(rows, spans));
            let shifts = self.store.shifts(span.sequence);
            size.segments += shifts.len();
            if self.store.is_noted(span.sequence)? {
                size.counted += rows + plan::COUNTED_BEYOND;
            }
            if self.guard.is_some() {
                size.watched += span.tokens.len();
            }
            let moved = shifts.iter().rposition(|&s| s != 0).map_or(0, |i| i + 1);
            size.moved = size.moved.max(moved);
        }
        Ok(size)
    }

    /// Feeds tokens step by step and hands over the logits of each step: all of them, or only those of
    /// the last token. `tell` hears how many tokens are done and may stop.
    fn walk(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        all: bool,
        tell: &mut dyn FnMut(usize, &[f32]) -> ControlFlow<()>,
    ) -> Result<bool, StepError> {
        if tokens.is_empty() {
            return Err(StepError::Empty);
        }
        let mut position = self.position(id)?;
        self.check_context(id, position + tokens.len() as u64)?;
        let mut chunk = self.chunk;
        let mut done = 0;
        while done < tokens.len() {
            self.set_window(id, position);
            let take = self.portion(id, position, tokens.len() - done, chunk);
            let want = match (all, done + take == tokens.len()) {
                (true, _) => LogitRows::All,
                (false, true) => LogitRows::Last,
                (false, false) => LogitRows::Nothing,
            };
            let step = self.step(&[StepSpan {
                sequence: id,
                position,
                tokens: &tokens[done..done + take],
                want,
            }]);
            match step {
                // A smaller portion needs less beside what it leaves; the bits are the same.
                Err(error) if error.is_cannot_fit() && take > CHUNK_MIN => {
                    chunk = (take / 2 / CHUNK_MIN * CHUNK_MIN).max(CHUNK_MIN);
                    continue;
                }
                step => step?,
            };
            done += take;
            position += take as u64;
            if tell(done, self.scratch.last_logits()).is_break() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads a prompt in chunks; returns the logits after its last token.
    pub fn feed(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<&[f32]>, StepError> {
        let whole = self.walk(id, tokens, false, &mut |done, _| progress(done))?;
        Ok(whole.then(|| self.scratch.last_logits()))
    }

    /// Feeds tokens and returns the logits after each, (token, vocab).
    pub fn all_logits(&mut self, id: SequenceId, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        let values = tokens.len().saturating_mul(self.model.config().vocab);
        let mut all = Vec::new();
        all.try_reserve_exact(values)
            .map_err(|_| CacheError::OutOfMemory {
                bytes: values.saturating_mul(size_of::<f32>()),
            })?;
        self.walk(id, tokens, true, &mut |_, logits| {
            all.extend_from_slice(logits);
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }

    /// Logits of the last step.
    pub fn logits(&self) -> &[f32] {
        self.scratch.last_logits()
    }

    /// One new token of one sequence.
    pub fn decode(&mut self, id: SequenceId, token: u32) -> Result<&[f32], StepError> {
        let position = self.position(id)?;
        self.step(&[StepSpan {
            sequence: id,
            position,
            tokens: &[token],
            want: LogitRows::Last,
        }])
    }

    /// Hands over what the layers compute in the next steps, until [`Runtime::captured`].
    pub(crate) fn capture(&mut self, to: Capture) {
        self.scratch.captured = Some(to);
    }

    /// (layer), step after step, since [`Runtime::capture`], if it was kept.
    pub(crate) fn captured(&mut self) -> Vec<Captured> {
        match self.scratch.captured.take() {
            Some(Capture::Keep(list)) => list,
            _ => Vec::new(),
        }
    }

    fn check(&self, spans: &[StepSpan<'_>]) -> Result<(), StepError> {
        let vocab = self.model.config().vocab;
        for span in spans {
            if span.tokens.is_empty() {
                return Err(StepError::Empty);
            }
            if let Some(&token) = span.tokens.iter().find(|&&t| t as usize >= vocab) {
                return Err(StepError::Token { token, vocab });
            }
            let id = span.sequence;
            let (expected, found) = (self.position(id)?, span.position);
            if expected != found {
                return Err(CacheError::Position { expected, found }.into());
            }
            let end = span.position + span.tokens.len() as u64;
            self.check_context(id, end)?;
            let within = self.window(id).map(|w| to_border(w, span.position));
            let crosses = within.is_some_and(|within| span.tokens.len() > within);
            if crosses && end > self.free_until(id, span.position) {
                return Err(StepError::CrossesEviction {
                    from: span.position,
                    to: end - 1,
                });
            }
        }
        if spans.is_empty() {
            Err(StepError::Empty)
        } else {
            Ok(())
        }
    }

    /// Without a bounded policy the context is the end.
    fn check_context(&self, id: SequenceId, end: u64) -> Result<(), StepError> {
        match self.end(id) {
            Some(context) if end > context as u64 => Err(StepError::Context { end, context }),
            _ => Ok(()),
        }
    }

    fn trace(&self, spans: &[StepSpan<'_>]) {
        if !log::log_enabled!(log::Level::Trace) {
            return;
        }
        let config = self.model.config();
        for span in spans {
            if let Ok(stats) = self.store.stats(span.sequence) {
                log::trace!(
                    "step: tokens {} from position {} -> position {}, rows {} in each of {} layers, hidden [{} × {}], logits {:?}",
                    span.tokens.len(),
                    span.position,
                    stats.position,
                    stats.rows,
                    config.layers.len(),
                    span.tokens.len(),
                    config.dim,
                    span.want
                );
            }
        }
    }
}

/// What is known about the keys of each layer, where a codec asks for it and it can be had: the mean to
/// take from them, and where their rounding errors go.
type Known = (Vec<Option<Vec<f32>>>, Vec<Option<Carry>>);

fn known(
    model: &Arc<Model>,
    options: &RuntimeOptions,
    layers: &[LayerShape],
) -> Result<Known, RuntimeError> {
    let centred = |layer: &LayerShape| layer.basis().k == Turn::Hadamard;
    let tokens = calibrate::tokens_affordable(model.weights().bytes_per_token() as u64);
    let (true, true, Some(tokens)) = (options.kv.centre, layers.iter().any(centred), tokens) else {
        return Ok((Vec::new(), Vec::new()));
    };
    let dir = options.cache_dir.as_deref();
    let stats = KeyStats::load_or_measure(model, options.threads, tokens, dir, &options.slabs)?;
    let layers = layers.iter().enumerate();
    let known = layers.map(|(i, layer)| stats.known(model.config(), i, layer));
    Ok(known.unzip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LoadOptions, Repack};
    use haversack_cache::policy::Plan;
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
            let snapshot = rt.store.snapshot(id).unwrap();
            let mut plan = Plan::nothing(&snapshot);
            plan.drop = (0..9).map(|i| 256 * i + 32..256 * (i + 1)).collect();
            rt.store.apply(id, &plan).unwrap();
            assert!(rt.store.rows(id).unwrap() <= 10 * 32 + 64);
            assert_eq!(rt.store.spans_with(id, 1).unwrap(), 10);
            // The scratch of the prompt is gone.
            rt.scratch = Scratch::new(model.config(), true);
            for &token in &tokens[2400..2410] {
                rt.decode(id, token).unwrap();
            }
            rt.feed(id, &tokens[2410..], &mut go_on).unwrap();
            logits.push(rt.logits().to_vec());
        }
        assert!(logits[0] == logits[1] && logits[0].iter().all(|l| l.is_finite()));
    }
}
