//! Measures how much the output of each layer changes when its keys or values are stored in fewer bits, and when rows are
//! evicted.
//!
//! One pass over a text with everything kept in f16. While the next layer is computed, each is evaluated by itself: its
//! keys and values are written into a small store whose layers are the same rows in every codec and with every share of
//! the rows, and queries of the second half of the text attend to all of them. The damage is the squared change of what
//! the layer adds to the stream, relative to the stream, averaged over these queries; [`Depth`] says how far it is
//! followed through later layers.
//!
//! The codecs, the zones and the choice of rows are the real ones, not a model of them.

use super::calibrate::{self, KeyStats};
use super::exact_runner;
use super::guard::{self, GuardParams};
use super::measurement_file;
use crate::model::LayerConfig;
use crate::model::Model;
use crate::model::kv::KvOptions;
use crate::sample::kl_divergence;
use crate::step::runner::{LayerCapture, ModelRunner, StepMode};
use crate::step::sequence::SequenceState;
use crate::step::{LogitRows, StepSpan};
use haversack_cache::policy::adaptive::{CODECS, DamageCurves, SHARES};
use haversack_cache::policy::heavy::HeavyScore;
use haversack_cache::policy::rows::{LayerView, RowPolicy};
use haversack_cache::{
    CacheError, CacheResult, KvRow, LayerShape, SequenceGrowth, SequenceId, StatsFormat, Store,
    StoreOptions,
};
use haversack_kernels::Exec;
use haversack_kernels::attention::{
    self, AttentionJob, AttentionLimits, BLOCK_SLOTS, KvView, Mass,
};
use haversack_kernels::cpu::Backend;
use haversack_kernels::format::kv::KvForm;
use haversack_kernels::matmul::{MatmulInput, MatrixProduct, matmul};
use haversack_kernels::ops::{self, rope};
use haversack_kernels::threads::{self, ThreadPool};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One story with people and numbers that come back: rows that are evicted too early are missed.
const TEXT: &str = include_str!("probe/text.txt");

/// Tokens of the text that are read at most.
pub const TOKENS: usize = 2048;

/// What was measured of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    pub curves: Vec<DamageCurves>,
    /// How far the logits follow a change of the stream: `ln KL = offset + slope · ln S`, for the guard.
    pub slope: f32,
    pub offset: f32,
}

impl Probe {
    /// With the usual slope and offset.
    fn of(curves: Vec<DamageCurves>) -> Probe {
        let usual = GuardParams::default();
        let (slope, offset) = (usual.slope as f32, usual.offset as f32);
        Probe {
            curves,
            slope,
            offset,
        }
    }

    /// The same with slope and offset fitted to these pairs of change and KL, where a fit is plausible.
    fn fitted(self, pairs: &[(f64, f64)]) -> Probe {
        let usual = GuardParams::default();
        match guard::fit(pairs, usual.bound) {
            Some(found) if SLOPES.contains(&found.slope) => Probe {
                slope: found.slope as f32,
                offset: found.offset as f32,
                ..self
            },
            _ => self,
        }
    }

    /// `usual` with this model's slope and offset.
    pub fn guard(&self, usual: GuardParams) -> GuardParams {
        GuardParams {
            slope: f64::from(self.slope),
            offset: f64::from(self.offset),
            ..usual
        }
    }
}

/// Damage is nearly proportional to the squared change; a slope far from 1 is an accident of few pairs.
const SLOPES: std::ops::RangeInclusive<f64> = 0.75..=1.25;

/// The file of a model's probe.
pub fn file(model: &Model, dir: &Path, depth: Depth) -> PathBuf {
    let ending = match depth {
        Depth::Full => "deep",
        Depth::Scaled => "probe",
        Depth::Local => "local",
    };
    measurement_file::path(model, dir, ending)
}

/// A probe of this depth, if one was saved.
pub fn saved(model: &Model, dir: &Path, depth: Depth) -> Option<Probe> {
    read(&file(model, dir, depth), model.config().layers.len())
}

/// Whether a probe of this depth was saved.
pub fn is_saved(model: &Model, dir: &Path, depth: Depth) -> bool {
    saved(model, dir, depth).is_some()
}

/// Reads the probe from the file in `dir`, or measures it on the built-in text and writes the file. `None`: `tell` stopped
/// it. A file that cannot be read or written is no error.
pub fn load_or_measure(
    model: &Arc<Model>,
    threads: usize,
    depth: Depth,
    dir: Option<&Path>,
    tell: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> CacheResult<Option<Probe>> {
    if let Some(probe) = dir.and_then(|dir| saved(model, dir, depth)) {
        return Ok(Some(probe));
    }
    let layers = model.config().layers.len();
    let weights_bytes = model.weights().bytes_per_token() as u64;
    let Some(tokens) = calibrate::tokens_affordable(weights_bytes) else {
        return Ok(Some(Probe::of(vec![TYPICAL; layers])));
    };
    let stats = KeyStats::load_or_measure(model, threads, tokens, dir, &StoreOptions::default())?;
    let ids = calibrate::tokens_of(model, TEXT, TOKENS.min(tokens + tokens / 3));
    let Some(probe) = measure(model, Some(&stats), threads, &ids, depth, tell)? else {
        return Ok(None);
    };
    let path = dir.map(|dir| file(model, dir, depth));
    let curves = probe.curves.iter();
    let values = curves.flat_map(|c| c.k.into_iter().chain(c.v).chain(c.rows));
    let values = values.chain([probe.slope, probe.offset]);
    measurement_file::save(path.as_deref(), "probe", HEADING, values);
    Ok(Some(probe))
}

/// For models too large to be probed unasked: roughly the damage to layers of small models.
const TYPICAL: DamageCurves = DamageCurves {
    k: [2e-4, 3e-5, 8e-6, 3e-6, 1e-6, 0.0],
    v: [8e-5, 1.2e-5, 3e-6, 1e-6, 4e-7, 0.0],
    rows: [1e-6, 6e-6, 3.5e-5, 1.5e-4, 4e-4, 1.5e-3],
};

const HEADING: &[u8] = b"haversack probe 2\n";

/// Numbers of one layer.
const EACH: usize = 2 * CODECS.len() + SHARES.len();

fn read(path: &Path, layers: usize) -> Option<Probe> {
    let values = measurement_file::read(path, HEADING, layers * EACH + 2)?;
    let (lines, rest) = values.as_chunks::<EACH>();
    let &[slope, offset] = rest else {
        return None;
    };
    let curves = lines.iter().map(|line| {
        let (k, rest) = line.split_at(CODECS.len());
        let (v, rows) = rest.split_at(CODECS.len());
        let mut curves = DamageCurves::default();
        curves.k.copy_from_slice(k);
        curves.v.copy_from_slice(v);
        curves.rows.copy_from_slice(rows);
        curves
    });
    Some(Probe {
        curves: curves.collect(),
        slope,
        offset,
    })
}

/// How much of the damage is followed to the logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// None: only what a layer adds to the stream counts.
    Local,
    /// That of one codec, keys and values together; the rest is scaled in proportion.
    #[default]
    Scaled,
    /// That of every codec.
    Full,
}

impl Depth {
    /// The last tokens of the text, for which damage is followed to the logits; fewer where one trial a layer must do.
    pub(crate) const fn last(self) -> usize {
        match self {
            Depth::Full => 4 * BLOCK_SLOTS,
            _ => 2 * BLOCK_SLOTS,
        }
    }

    /// Outputs of a layer that are followed.
    pub(crate) const fn outputs(self) -> usize {
        match self {
            Depth::Full => 2 * CODECS.len(),
            Depth::Scaled => 1,
            Depth::Local => 0,
        }
    }

    /// Of the blocks before, one in this many evaluates codecs; all of them evaluate rows.
    fn evaluate_every(self) -> usize {
        match self {
            Depth::Full => 4,
            _ => 8,
        }
    }
}

/// Probes with `ids`. `tell` is given the number of layers that are done; `None` = it stopped the probe.
pub fn measure(
    model: &Arc<Model>,
    stats: Option<&KeyStats>,
    threads: usize,
    ids: &[u32],
    depth: Depth,
    tell: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> CacheResult<Option<Probe>> {
    let ids = &ids[..ids.len() / BLOCK_SLOTS * BLOCK_SLOTS];
    if ids.len() < TOKENS_MIN {
        return Ok(Some(Probe::of(vec![TYPICAL; model.config().layers.len()])));
    }
    let layers = 0..model.config().layers.len();
    let mut runner = exact_runner(model, layers, threads, false, &StoreOptions::default())?;
    let id = runner.open(None, SequenceState::default())?;

    // One thread computes the model layer by layer, this one evaluates each layer meanwhile.
    let pool = ThreadPool::new(threads);
    let exec = Exec {
        backend: Backend::best(),
        pool: &pool,
    };
    let (send, receive) = std::sync::mpsc::sync_channel(0);
    let mut damages: Vec<LayerDamage> = Vec::new();
    let mut stopped = false;
    let evaluate = || -> CacheResult {
        for captured in receive {
            let bench = LayerBench::new(model, stats, damages.len(), captured);
            damages.push(bench.evaluate(exec, ids.len(), depth)?);
            if tell(damages.len()).is_break() {
                stopped = true;
                break;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let runner = &mut runner;
        let reader = scope.spawn(move || {
            let span = StepSpan::new(id, 0, ids, LogitRows::Nothing);
            // Dropping the sender ends the other thread's loop; once that has stopped, nothing is sent.
            let mut capture = |captured| drop(send.send(captured));
            let read = runner.step(&[span], StepMode::Capture(&mut capture));
            read.map(|_| ())
        });
        let done = evaluate();
        let read = reader
            .join()
            .unwrap_or_else(|_| unreachable!("a step does not panic"));
        done.and(read)
    })?;
    if stopped {
        return Ok(None);
    }
    let mut pairs = Vec::new();
    if depth != Depth::Local {
        let before = ids.len() - depth.last();
        // Layers with a window of their own have lost what was before it: then the text is read again.
        let id = match runner.store.truncate(id, before as u64) {
            Ok(()) => id,
            Err(CacheError::NotRestorable { .. }) => {
                runner.close(id)?;
                let id = runner.open(None, SequenceState::default())?;
                append(&mut runner, id, &ids[..before], LogitRows::Nothing)?;
                id
            }
            Err(error) => return Err(error),
        };
        let mut tail = TextTail {
            tokens: &ids[before..],
            truth: Vec::new(),
            pool: &pool,
            runner,
            id,
        };
        tail.read()?;
        for layer in &mut damages {
            layer.follow(&mut tail, &mut pairs)?;
        }
    }
    let curves = damages.into_iter().map(|layer| layer.curves).collect();
    Ok(Some(Probe::of(curves).fitted(&pairs)))
}

/// Appends tokens in chunks and returns the logits that were wanted.
fn append(
    runner: &mut ModelRunner,
    sequence: SequenceId,
    tokens: &[u32],
    want: LogitRows,
) -> CacheResult<Vec<f32>> {
    let mut logits = Vec::new();
    for tokens in tokens.chunks(runner.chunk_for(None)) {
        let position = runner.store.position(sequence)?;
        let span = StepSpan::new(sequence, position, tokens, want);
        logits.extend_from_slice(runner.step(&[span], StepMode::Append)?);
    }
    Ok(logits)
}

/// With fewer tokens nothing can be measured.
const TOKENS_MIN: usize = 2 * Depth::Full.last();

/// One layer with its rows and its queries, ready to be evaluated.
struct LayerBench<'a> {
    model: &'a Arc<Model>,
    stats: Option<&'a KeyStats>,
    layer: usize,
    /// Keys and queries are roped.
    rows: LayerCapture,
}

/// The damage to one layer.
struct LayerDamage {
    layer: usize,
    curves: DamageCurves,
    /// The stream of the last tokens.
    stream: Vec<f32>,
    /// Of the variants that are followed to the logits: their damage for the last tokens, and the output of attention.
    outputs: Vec<(Sides, f32, Vec<f32>)>,
}

/// Whether an output has coded keys, coded values or both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sides {
    One(Side),
    Both,
}

impl Sides {
    fn has(self, side: Side) -> bool {
        self == Sides::Both || self == Sides::One(side)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Keys,
    Values,
}

/// Ways to store a layer that are evaluated at most.
pub(crate) const VARIANTS: usize = 1 + 2 * (CODECS.len() - 1) + SHARES.len();

/// A way to store the layer.
#[derive(Clone, Copy)]
enum Variant {
    Exact,
    Coded(Side, usize),
    Rows(usize),
}

impl Variant {
    fn form(self) -> KvForm {
        let exact = KvForm::F16;
        match self {
            Variant::Coded(Side::Keys, i) => KvForm {
                k: CODECS[i].form(),
                ..exact
            },
            Variant::Coded(Side::Values, i) => KvForm {
                v: CODECS[i].form(),
                ..exact
            },
            _ => exact,
        }
    }

    /// All variants of a layer with or without a window of its own.
    fn all(windowed: bool) -> Vec<Variant> {
        let fewer = 0..CODECS.len() - 1;
        let mut all = vec![Variant::Exact];
        all.extend(fewer.clone().map(|i| Variant::Coded(Side::Keys, i)));
        all.extend(fewer.map(|i| Variant::Coded(Side::Values, i)));
        if !windowed {
            all.extend((0..SHARES.len()).map(Variant::Rows));
        }
        all
    }
}

impl<'a> LayerBench<'a> {
    fn new(
        model: &'a Arc<Model>,
        stats: Option<&'a KeyStats>,
        layer: usize,
        mut captured: LayerCapture,
    ) -> LayerBench<'a> {
        let config = model.config();
        let c = &config.layers[layer];
        let spec = &config.ropes[c.rope];
        let LayerCapture { keys, queries, .. } = &mut captured;
        let mut angles = vec![0.0; spec.dims];
        for (rows, heads) in [(keys, c.kv_heads), (queries, c.heads)] {
            for (position, row) in rows.chunks_exact_mut(heads * c.head_dim).enumerate() {
                spec.angles(position as u64, &mut angles);
                for head in row.chunks_exact_mut(c.head_dim) {
                    rope::rotate(Backend::best(), head, &angles, spec);
                }
            }
        }
        LayerBench {
            model,
            stats,
            layer,
            rows: captured,
        }
    }

    fn config(&self) -> &LayerConfig {
        &self.model.config().layers[self.layer]
    }

    fn store(&self, variants: &[Variant]) -> CacheResult<Store> {
        let (config, c) = (self.model.config(), self.config());
        let shape = |v: &Variant| KvOptions::new(v.form()).layer(self.layer, c);
        let shapes: Vec<LayerShape> = variants.iter().map(shape).collect();
        let of_layer = |shape: &LayerShape| match self.stats {
            Some(stats) => stats.for_layer(config, self.layer, shape),
            None => (None, None),
        };
        let (means, carries) = shapes.iter().map(of_layer).unzip();
        Store::new(StoreOptions {
            means,
            error_feedback: carries,
            layers: shapes,
            zones: KvOptions::default().zones(),
            row_stats: Some(StatsFormat::of(&HeavyScore::Peak.counting())),
            ..StoreOptions::default()
        })
    }

    /// Reads the text again, a block at a time, in every variant of this one layer.
    fn evaluate(&self, exec: Exec<'_>, tokens: usize, depth: Depth) -> CacheResult<LayerDamage> {
        let c = self.config();
        let variants = Variant::all(c.window.is_some());
        let mut store = self.store(&variants)?;
        let id = store.open()?;
        let mut scratch = attention::AttentionScratch::new(AttentionLimits {
            threads: exec.pool.threads(),
            jobs: 1,
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            slots: tokens + 8 * BLOCK_SLOTS,
        });
        let counting = HeavyScore::Peak.counting();
        let (mut exact_mass, mut own_mass) = (Vec::new(), Vec::new());
        let mut loose = Vec::new();
        // Variants that have lost no row so far equal the exact one.
        let mut is_whole = vec![true; variants.len()];
        let mut damages: Vec<DamageMean> = vec![DamageMean::default(); variants.len()];
        let mut ends: Vec<(DamageMean, Vec<f32>)> = vec![Default::default(); variants.len()];
        let (wide, narrow) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        for block in 0..tokens / BLOCK_SLOTS {
            let rows = block * BLOCK_SLOTS..(block + 1) * BLOCK_SLOTS;
            let part =
                |x: &'_ [f32], width: usize| x[rows.start * width..rows.end * width].to_vec();
            let is_last = rows.start >= tokens - depth.last();
            let is_evaluated = rows.start >= tokens / 2;
            let evaluates_codecs = is_last || (is_evaluated && block % depth.evaluate_every() == 0);
            let losses = (&mut loose, &mut is_whole[..]);
            self.thin(&mut store, id, &variants, tokens, losses)?;
            let queries = rows.start as u64..rows.end as u64;
            let mut step = store.begin(&[SequenceGrowth {
                id,
                position: rows.start as u64,
                tokens: BLOCK_SLOTS,
            }])?;
            let (k, v) = (
                part(&self.rows.keys, narrow),
                part(&self.rows.values, narrow),
            );
            let q = part(&self.rows.queries, wide);
            let mut exact: Vec<f32> = Vec::new();
            for (i, variant) in variants.iter().enumerate() {
                store.write(exec, &mut step, id, i, &k, &v)?;
                let attends = match variant {
                    Variant::Exact => true,
                    Variant::Coded(..) => evaluates_codecs,
                    Variant::Rows(_) => !is_whole[i],
                };
                if attends {
                    let mut out = vec![0.0; q.len()];
                    let view = store.view(id, i)?;
                    let slots = view.blocks() * BLOCK_SLOTS * c.kv_heads;
                    let (mass, counted) = match variant {
                        Variant::Exact => (&mut exact_mass, c.window.is_none()),
                        Variant::Coded(..) => (&mut own_mass, false),
                        Variant::Rows(_) => (&mut own_mass, true),
                    };
                    mass.clear();
                    mass.resize(if counted { slots } else { 0 }, 0);
                    let mut bad = u64::MAX;
                    let job = AttentionJob {
                        kv_heads: c.kv_heads,
                        head_dim: c.head_dim,
                        heads: c.heads,
                        basis: store.layers()[i].basis(),
                        mean: store.mean(i),
                        scale: c.score_scale,
                        window: c.window,
                        q: &[&q],
                        first_position: rows.start as u64,
                        view: &view,
                        out: &mut out,
                        sums: None,
                        mass: counted.then_some(Mass {
                            counters: mass,
                            count: counting.count,
                            every: counting.every,
                            bad: &mut bad,
                        }),
                    };
                    attention::attend(exec, &mut scratch, &mut [job]);
                    if is_last && self.is_followed(*variant, depth) {
                        ends[i].1.extend_from_slice(&out);
                    }
                    if is_evaluated {
                        let added = self.added(exec, &out);
                        let dim = self.model.config().dim;
                        let stream = &self.rows.stream[rows.start * dim..rows.end * dim];
                        if let Variant::Exact = variant {
                            exact = added;
                        } else {
                            damages[i].add(&added, &exact, stream, dim);
                            if is_last {
                                ends[i].0.add(&added, &exact, stream, dim);
                            }
                        }
                    }
                }
                if let Variant::Rows(_) = variant {
                    let mass = if attends { &own_mass } else { &exact_mass };
                    store.record_attention(id, i, &counting, queries.clone(), mass)?;
                    if is_evaluated && !attends {
                        damages[i].add_nothing(BLOCK_SLOTS);
                    }
                }
                store.settle(&mut step, i);
            }
            store.commit(step)?;
        }
        let mut curves = DamageCurves::default();
        let mut outputs = Vec::new();
        // Small changes add up: keys + values - exact.
        let mut both = (0.0, Vec::new());
        for ((variant, damage), (change, output)) in variants.iter().zip(&damages).zip(ends) {
            match *variant {
                Variant::Exact => both.1 = output.into_iter().map(|x| -x).collect(),
                Variant::Coded(side, codec) => {
                    match side {
                        Side::Keys => curves.k[codec] = damage.get(),
                        Side::Values => curves.v[codec] = damage.get(),
                    }
                    if depth == Depth::Full {
                        outputs.push((Sides::One(side), change.get(), output));
                    } else if !output.is_empty() {
                        both.0 += change.get();
                        both.1.iter_mut().zip(output).for_each(|(x, y)| *x += y);
                    }
                }
                Variant::Rows(share) => curves.rows[share] = damage.get(),
            }
        }
        if depth == Depth::Scaled {
            outputs.push((Sides::Both, both.0, both.1));
        }
        let dim = self.model.config().dim;
        Ok(LayerDamage {
            layer: self.layer,
            curves,
            stream: self.rows.stream[(tokens - depth.last()) * dim..tokens * dim].to_vec(),
            outputs,
        })
    }

    fn is_followed(&self, variant: Variant, depth: Depth) -> bool {
        match (variant, depth) {
            (Variant::Coded(..), Depth::Full) => true,
            (Variant::Coded(_, codec), Depth::Scaled) => codec == SCALE_CODEC,
            (Variant::Exact, Depth::Scaled) => true,
            _ => false,
        }
    }

    /// Evicts rows as a runtime does, in the variants that keep a share of them.
    fn thin(
        &self,
        store: &mut Store,
        id: SequenceId,
        variants: &[Variant],
        tokens: usize,
        (loose, is_whole): (&mut Vec<KvRow>, &mut [bool]),
    ) -> CacheResult {
        let anchors = BLOCK_SLOTS as u64;
        for (i, variant) in variants.iter().enumerate() {
            let Variant::Rows(share) = *variant else {
                continue;
            };
            let most = ((tokens as f32 * SHARES[share]) as usize).saturating_sub(BLOCK_SLOTS);
            if store.layer_rows(id, i)? <= most {
                continue;
            }
            store.evictable_rows(id, i, anchors, loose)?;
            let view = LayerView {
                max_rows: most,
                ..store.layer_view(id, i, anchors)?
            };
            let leave = RowPolicy::default().choose(&view, loose);
            store.evict_rows(id, i, anchors, &loose[..leave])?;
            is_whole[i] &= leave == 0;
        }
        Ok(())
    }

    /// What the layer adds to the stream for these outputs of its attention.
    fn added(&self, exec: Exec<'_>, out: &[f32]) -> Vec<f32> {
        let (config, weights) = (self.model.config(), self.model.weights());
        let w = &weights.layers[self.layer];
        let cols = self.config().heads * self.config().head_dim;
        let rows = out.len() / cols;
        let mut added = vec![0.0; rows * config.dim];
        let product = MatrixProduct {
            w: weights.matrix(&w.o),
            out: &mut added,
        };
        let input = MatmulInput {
            rows,
            cols,
            x: out,
            int8: None,
        };
        matmul(exec, input, &mut [product]);
        if let Some(weight) = &w.post_attn_norm {
            let mut row = vec![0.0; config.dim];
            for added in added.chunks_exact_mut(config.dim) {
                row.copy_from_slice(added);
                ops::rms_norm(exec.backend, &row, weight, config.norm_eps, added);
            }
        }
        added
    }
}

/// Mean of squared changes, relative to the stream.
#[derive(Clone, Copy, Default)]
struct DamageMean {
    sum: f64,
    count: usize,
}

impl DamageMean {
    fn add(&mut self, found: &[f32], exact: &[f32], stream: &[f32], dim: usize) {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let pairs = found.chunks_exact(dim).zip(exact.chunks_exact(dim));
        for ((found, exact), stream) in pairs.zip(stream.chunks_exact(dim)) {
            let change: f64 = found.iter().zip(exact).map(|(a, b)| square(a - b)).sum();
            let whole: f64 = stream.iter().map(|&x| square(x)).sum();
            self.sum += change / whole.max(f64::MIN_POSITIVE);
            self.count += 1;
        }
    }

    /// Tokens for which nothing changed.
    fn add_nothing(&mut self, tokens: usize) {
        self.count += tokens;
    }

    fn get(&self) -> f32 {
        (self.sum / self.count.max(1) as f64) as f32
    }
}

/// The end of the text, read by the whole model.
struct TextTail<'a> {
    runner: ModelRunner,
    id: SequenceId,
    tokens: &'a [u32],
    /// Logits of all of them.
    truth: Vec<f32>,
    pool: &'a ThreadPool,
}

impl TextTail<'_> {
    fn read(&mut self) -> CacheResult {
        let fork = self.runner.fork(self.id)?;
        self.truth = append(&mut self.runner, fork, self.tokens, LogitRows::All)?;
        self.runner.close(fork)
    }

    /// Mean KL divergence of the logits when the attention of one layer gives `output`.
    fn divergence(&mut self, layer: usize, stream: &[f32], output: &[f32]) -> CacheResult<f32> {
        let position = self.runner.store.position(self.id)?;
        let span = StepSpan::new(self.id, position, self.tokens, LogitRows::All);
        let vocab = self.runner.model.config().vocab;
        let trial = StepMode::Trial {
            layer,
            stream,
            output,
        };
        let found = self.runner.step(&[span], trial)?;
        let mut each = vec![0.0; self.tokens.len()];
        threads::chunks_mut(self.pool, &mut each, 1, &|i, kl| {
            let token = i * vocab..(i + 1) * vocab;
            kl[0] = kl_divergence(&self.truth[token.clone()], &found[token]).0;
        });
        Ok((each.iter().sum::<f64>() / each.len() as f64) as f32)
    }
}

/// Smaller damages count as this.
const TINY: f32 = 1e-12;

/// The codec whose damage is followed where only one is: large enough to be measured, small enough to be proportional.
const SCALE_CODEC: usize = 1;

impl LayerDamage {
    /// Scales the damage to the stream to the damage to the logits.
    fn follow(&mut self, tail: &mut TextTail<'_>, pairs: &mut Vec<(f64, f64)>) -> CacheResult {
        let mut factors = Vec::new();
        for (sides, damage, output) in &self.outputs {
            let distance = tail.divergence(self.layer, &self.stream, output)?;
            let factor = distance.max(TINY) / damage.max(TINY);
            pairs.push((f64::from(*damage), f64::from(distance)));
            factors.push((*sides, factor.ln()));
        }
        let mean = |of: &dyn Fn(Sides) -> bool| {
            let chosen = factors.iter().filter(|(sides, _)| of(*sides));
            let logs: Vec<f32> = chosen.map(|(_, log)| *log).collect();
            (logs.iter().sum::<f32>() / logs.len().max(1) as f32).exp()
        };
        let k = mean(&|sides| sides.has(Side::Keys));
        let v = mean(&|sides| sides.has(Side::Values));
        let both = mean(&|_| true);
        self.curves.k.iter_mut().for_each(|x| *x *= k);
        self.curves.v.iter_mut().for_each(|x| *x *= v);
        self.curves.rows.iter_mut().for_each(|x| *x *= both);
        Ok(())
    }
}
