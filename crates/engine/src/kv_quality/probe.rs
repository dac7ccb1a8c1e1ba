//! What hurts this very model: how much the output of each layer changes when its keys or values are stored in
//! fewer bits, and when rows leave.
//!
//! One pass over a text with everything kept in f16. While the next layer is computed, each is read again by itself: its
//! keys and values are written into a small store whose layers are the same rows in every codec and with every share of
//! the rows, and queries of the second half of the text attend to all of them. The damage is the squared change of what
//! the layer adds to the stream, relative to the stream, averaged over these queries; [`Depth`] says how much is known of
//! what later layers make of it.
//!
//! Real codecs, real zones and the real choice of rows: nothing here is a model of something else.

use super::calibrate::{self, KeyStats};
use super::figures;
use super::guard::{self, GuardParams};
use crate::model::LayerConfig;
use crate::model::Model;
use crate::model::forward::{Capture, Captured, LogitRows, Resume, StepSpan};
use crate::runtime::options::{Activations, KvOptions, Retention, RuntimeOptions};
use crate::runtime::step::{Runtime, RuntimeError, StepError};
use crate::sample::kl_divergence;
use haversack_cache::policy::adaptive::{CODECS, Curves, SHARES};
use haversack_cache::policy::heavy::Score;
use haversack_cache::policy::rows::{LayerView, RowPolicy};
use haversack_cache::{CacheError, Grow, LayerShape, Noting, Row, SequenceId, Store, StoreOptions};
use haversack_kernels::Exec;
use haversack_kernels::attention::{self, Attend, BLOCK_SLOTS, KvView, Mass, Need};
use haversack_kernels::cpu::Table;
use haversack_kernels::format::kv::KvForm;
use haversack_kernels::matmul::{Input, Product, matmul};
use haversack_kernels::ops::{self, rope};
use haversack_kernels::threads::{self, Pool};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One story with people and numbers that come back: what leaves too early is missed.
const TEXT: &str = include_str!("probe/text.txt");

/// Tokens that are read at most.
pub const TOKENS: usize = 2048;

/// What was found of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    pub curves: Vec<Curves>,
    /// How the model answers to a change of the stream: `ln KL = offset + slope · ln S`, for the guard.
    pub slope: f32,
    pub offset: f32,
}

impl Probe {
    /// With the line that most models follow.
    fn of(curves: Vec<Curves>) -> Probe {
        let usual = GuardParams::default();
        let (slope, offset) = (usual.slope as f32, usual.offset as f32);
        Probe {
            curves,
            slope,
            offset,
        }
    }

    /// The same with the line of these pairs of change and KL, where they make one.
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

    /// `usual` with what is this model's.
    pub fn guard(&self, usual: GuardParams) -> GuardParams {
        GuardParams {
            slope: f64::from(self.slope),
            offset: f64::from(self.offset),
            ..usual
        }
    }
}

/// Damage is nearly in proportion to the squared change; a line far from that is an accident of few pairs.
const SLOPES: std::ops::RangeInclusive<f64> = 0.75..=1.25;

/// Where the figures of a model are kept.
pub fn file(model: &Model, dir: &Path, depth: Depth) -> PathBuf {
    let ending = match depth {
        Depth::Full => "deep",
        Depth::Scaled => "probe",
        Depth::Local => "local",
    };
    dir.join(format!("{}.{ending}", model.fingerprint().to_hex()))
}

/// A probe of this depth, if one was measured before.
pub fn kept(model: &Model, dir: &Path, depth: Depth) -> Option<Probe> {
    read(&file(model, dir, depth), model.config().layers.len())
}

/// Whether one was.
pub fn is_kept(model: &Model, dir: &Path, depth: Depth) -> bool {
    kept(model, dir, depth).is_some()
}

/// From the file in `dir`, or measured on the built-in text and written there. `None`: it was stopped. Trouble with
/// the file is no trouble.
pub fn load_or_measure(
    model: &Arc<Model>,
    threads: usize,
    depth: Depth,
    dir: Option<&Path>,
    tell: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Option<Probe>, RuntimeError> {
    let layers = model.config().layers.len();
    let path = dir.map(|dir| file(model, dir, depth));
    if let Some(probe) = path.as_ref().and_then(|path| read(path, layers)) {
        return Ok(Some(probe));
    }
    let weights_bytes = model.weights().bytes_per_token() as u64;
    let Some(tokens) = calibrate::tokens_affordable(weights_bytes) else {
        return Ok(Some(Probe::of(vec![TYPICAL; layers])));
    };
    let stats = KeyStats::load_or_measure(model, threads, tokens, dir, &Default::default())?;
    let ids = calibrate::tokens_of(model, TEXT, TOKENS.min(tokens + tokens / 3));
    let Some(probe) = measure(model, Some(&stats), threads, &ids, depth, tell)? else {
        return Ok(None);
    };
    if let Some(path) = &path
        && let Err(e) = write_file(path, &probe)
    {
        log::warn!("{}: not kept: {e}", path.display());
    }
    Ok(Some(probe))
}

/// Where a model is too large to be probed unasked: what layers of small models suffer, about.
const TYPICAL: Curves = Curves {
    k: [2e-4, 3e-5, 8e-6, 3e-6, 1e-6, 0.0],
    v: [8e-5, 1.2e-5, 3e-6, 1e-6, 4e-7, 0.0],
    rows: [1e-6, 6e-6, 3.5e-5, 1.5e-4, 4e-4, 1.5e-3],
};

const HEADING: &[u8] = b"haversack probe 2\n";

/// Numbers of one layer.
const EACH: usize = 2 * CODECS.len() + SHARES.len();

fn write_file(path: &Path, probe: &Probe) -> std::io::Result<()> {
    let values = probe
        .curves
        .iter()
        .flat_map(|c| c.k.into_iter().chain(c.v).chain(c.rows));
    let values = values.chain([probe.slope, probe.offset]);
    figures::write(path, HEADING, values)
}

fn read(path: &Path, layers: usize) -> Option<Probe> {
    let values = figures::read(path, HEADING, layers * EACH + 2)?;
    let (lines, rest) = values.as_chunks::<EACH>();
    let &[slope, offset] = rest else {
        return None;
    };
    let curves = lines.iter().map(|line| {
        let (k, rest) = line.split_at(CODECS.len());
        let (v, rows) = rest.split_at(CODECS.len());
        let mut curves = Curves::default();
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

/// The last tokens of the text, whose words are followed to the end of the model.
const LAST: usize = 4 * BLOCK_SLOTS;

/// The same where one try a layer must do.
const LAST_SHORT: usize = 2 * BLOCK_SLOTS;

/// Of the blocks before, one in so many judges codecs; all of them judge rows.
const JUDGE_EVERY: usize = 4;
const JUDGE_EVERY_SHORT: usize = 8;

/// How much of the damage is followed to the end of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// None: what a layer adds to the stream is all that counts.
    Local,
    /// That of one codec, keys and values together; everything else is in proportion.
    #[default]
    Scaled,
    /// That of every codec.
    Full,
}

impl Depth {
    fn last(self) -> usize {
        match self {
            Depth::Full => LAST,
            _ => LAST_SHORT,
        }
    }

    fn judge_every(self) -> usize {
        match self {
            Depth::Full => JUDGE_EVERY,
            _ => JUDGE_EVERY_SHORT,
        }
    }
}

/// Probes with `ids`. `tell` hears how many layers are done; `None` = it stopped.
pub fn measure(
    model: &Arc<Model>,
    stats: Option<&KeyStats>,
    threads: usize,
    ids: &[u32],
    depth: Depth,
    tell: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Option<Probe>, RuntimeError> {
    let options = RuntimeOptions {
        threads,
        activations: Activations::F32,
        kv: KvOptions::plain(KvForm::F16),
        retention: Retention::full(),
        ..RuntimeOptions::default()
    };
    let mut runtime = Runtime::new(model.clone(), &options)?;
    let id = runtime.open()?;
    let ids = &ids[..ids.len() / BLOCK_SLOTS * BLOCK_SLOTS];
    if ids.len() < LEAST {
        return Ok(Some(Probe::of(vec![TYPICAL; model.config().layers.len()])));
    }

    // One thread computes the model layer by layer, this one judges each layer meanwhile.
    let pool = Pool::new(threads);
    let exec = Exec {
        table: Table::best(),
        pool: &pool,
    };
    let (send, receive) = std::sync::mpsc::sync_channel(0);
    runtime.capture(Capture::Send(send));
    let mut judged: Vec<Judged> = Vec::new();
    let mut stopped = false;
    let judge = || -> Result<(), RuntimeError> {
        for captured in receive {
            let bench = Bench::new(model, stats, judged.len(), captured);
            judged.push(bench.judge(exec, ids.len(), depth)?);
            if tell(judged.len()).is_break() {
                stopped = true;
                break;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let runtime = &mut runtime;
        let reader = scope.spawn(move || {
            let span = StepSpan {
                sequence: id,
                position: 0,
                tokens: ids,
                want: LogitRows::Nothing,
            };
            let read = runtime.step(&[span]).map(|_| ());
            // Ends the other thread's loop.
            runtime.captured();
            read
        });
        let done = judge();
        let read = reader
            .join()
            .unwrap_or_else(|_| unreachable!("a step does not panic"));
        done.and(read.map_err(RuntimeError::from))
    })?;
    if stopped {
        return Ok(None);
    }
    let mut pairs = Vec::new();
    if depth != Depth::Local {
        let before = ids.len() - depth.last();
        // Layers with a window of their own have lost what was before it: then the text is read again.
        let id = match runtime.truncate(id, before as u64) {
            Ok(()) => id,
            Err(StepError::Cache(CacheError::Gone { .. })) => {
                runtime.close(id)?;
                let id = runtime.open()?;
                let go_on = &mut |_| ControlFlow::Continue(());
                runtime.feed(id, &ids[..before], go_on)?;
                id
            }
            Err(error) => return Err(error.into()),
        };
        let mut end = End {
            tokens: &ids[before..],
            truth: Vec::new(),
            pool: &pool,
            runtime,
            id,
        };
        end.listen()?;
        for layer in &mut judged {
            layer.follow(&mut end, &mut pairs)?;
        }
    }
    let curves = judged.into_iter().map(|layer| layer.curves).collect();
    Ok(Some(Probe::of(curves).fitted(&pairs)))
}

/// With fewer tokens a probe says nothing.
const LEAST: usize = 2 * LAST;

/// One layer, its rows and its queries, ready to be judged.
struct Bench<'a> {
    model: &'a Arc<Model>,
    stats: Option<&'a KeyStats>,
    layer: usize,
    /// (row, kv_head, dim), roped.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// (row, head, dim), roped.
    queries: Vec<f32>,
    stream: Vec<f32>,
}

/// What came of it.
struct Judged {
    layer: usize,
    curves: Curves,
    /// The stream of the last tokens.
    stream: Vec<f32>,
    /// Of the variants that are followed: what they change for the last tokens, and what they find.
    outputs: Vec<(Sides, f32, Vec<f32>)>,
}

/// Of what an output is.
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

/// A form of the layer that is tried.
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

    /// Of a layer with or without a window of its own.
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

impl<'a> Bench<'a> {
    fn new(
        model: &'a Arc<Model>,
        stats: Option<&'a KeyStats>,
        layer: usize,
        captured: Captured,
    ) -> Bench<'a> {
        let config = model.config();
        let c = &config.layers[layer];
        let spec = &config.ropes[c.rope];
        let Captured {
            mut keys,
            values,
            mut queries,
            stream,
        } = captured;
        let mut angles = vec![0.0; spec.dims];
        for (rows, heads) in [(&mut keys, c.kv_heads), (&mut queries, c.heads)] {
            for (position, row) in rows.chunks_exact_mut(heads * c.head_dim).enumerate() {
                spec.angles(position as u64, &mut angles);
                for head in row.chunks_exact_mut(c.head_dim) {
                    rope::rotate(Table::best(), head, &angles, spec);
                }
            }
        }
        Bench {
            model,
            stats,
            layer,
            keys,
            values,
            queries,
            stream,
        }
    }

    fn config(&self) -> &LayerConfig {
        &self.model.config().layers[self.layer]
    }

    fn store(&self, variants: &[Variant]) -> Result<Store, RuntimeError> {
        let (config, c) = (self.model.config(), self.config());
        let shapes: Vec<LayerShape> = variants
            .iter()
            .map(|v| KvOptions::new(v.form()).layer(self.layer, c))
            .collect();
        let known = |shape: &LayerShape| match self.stats {
            Some(stats) => stats.known(config, self.layer, shape),
            None => (None, None),
        };
        let (means, carries) = shapes.iter().map(known).unzip();
        Ok(Store::new(StoreOptions {
            means,
            carries,
            layers: shapes,
            zones: KvOptions::default().zones(),
            notes: Some(Noting::of(&Score::Peak.counting())),
            ..StoreOptions::default()
        })?)
    }

    /// Reads the text again, a block at a time, in every variant of this one layer.
    fn judge(&self, exec: Exec<'_>, tokens: usize, depth: Depth) -> Result<Judged, RuntimeError> {
        let c = self.config();
        let variants = Variant::all(c.window.is_some());
        let mut store = self.store(&variants)?;
        let id = store.open()?;
        let mut scratch = attention::Scratch::new(Need {
            threads: exec.pool.threads(),
            jobs: 1,
            heads: c.heads,
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            slots: tokens + 8 * BLOCK_SLOTS,
        });
        let counting = Score::Peak.counting();
        let (mut exact_mass, mut own_mass) = (Vec::new(), Vec::new());
        let mut loose = Vec::new();
        // Variants that have lost nothing so far: what holds for the exact one holds for them.
        let mut is_whole = vec![true; variants.len()];
        let mut damages: Vec<Mean> = vec![Mean::default(); variants.len()];
        let mut ends: Vec<(Mean, Vec<f32>)> = vec![Default::default(); variants.len()];
        let (wide, narrow) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        for block in 0..tokens / BLOCK_SLOTS {
            let rows = block * BLOCK_SLOTS..(block + 1) * BLOCK_SLOTS;
            let part =
                |x: &'_ [f32], width: usize| x[rows.start * width..rows.end * width].to_vec();
            let is_last = rows.start >= tokens - depth.last();
            let is_judge = rows.start >= tokens / 2;
            let judges_codecs = is_last || (is_judge && block % depth.judge_every() == 0);
            let losses = (&mut loose, &mut is_whole[..]);
            self.thin(&mut store, id, &variants, tokens, losses)?;
            let queries = rows.start as u64..rows.end as u64;
            let mut step = store.begin(&[Grow {
                id,
                position: rows.start as u64,
                tokens: BLOCK_SLOTS,
            }])?;
            let (k, v) = (part(&self.keys, narrow), part(&self.values, narrow));
            let q = part(&self.queries, wide);
            let mut exact: Vec<f32> = Vec::new();
            for (i, variant) in variants.iter().enumerate() {
                store.write(exec, &mut step, id, i, &k, &v)?;
                let attends = match variant {
                    Variant::Exact => true,
                    Variant::Coded(..) => judges_codecs,
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
                    let job = Attend {
                        kv_heads: c.kv_heads,
                        head_dim: c.head_dim,
                        heads: c.heads,
                        basis: store.layers()[i].basis(),
                        mean: store.mean(i),
                        scale: c.score_scale,
                        softcap: None,
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
                    if is_judge {
                        let added = self.added(exec, &out);
                        let dim = self.model.config().dim;
                        let stream = &self.stream[rows.start * dim..rows.end * dim];
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
                    store.note_mass(id, i, &counting, queries.clone(), mass)?;
                    if is_judge && !attends {
                        damages[i].add_nothing(BLOCK_SLOTS);
                    }
                }
                store.settle(&mut step, i);
            }
            store.commit(step)?;
        }
        let mut curves = Curves::default();
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
        Ok(Judged {
            layer: self.layer,
            curves,
            stream: self.stream[(tokens - depth.last()) * dim..tokens * dim].to_vec(),
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

    /// Lets rows go as a runtime does, in the variants with fewer of them.
    fn thin(
        &self,
        store: &mut Store,
        id: SequenceId,
        variants: &[Variant],
        tokens: usize,
        (loose, is_whole): (&mut Vec<Row>, &mut [bool]),
    ) -> Result<(), RuntimeError> {
        let anchors = BLOCK_SLOTS as u64;
        for (i, variant) in variants.iter().enumerate() {
            let Variant::Rows(share) = *variant else {
                continue;
            };
            let most = ((tokens as f32 * SHARES[share]) as usize).saturating_sub(BLOCK_SLOTS);
            if store.rows_in(id, i)? <= most {
                continue;
            }
            store.loose_rows(id, i, anchors, loose)?;
            let view = LayerView {
                most,
                ..store.layer_view(id, i, anchors)?
            };
            let leave = RowPolicy::default().choose(&view, loose);
            store.thin(id, i, anchors, &loose[..leave])?;
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
        let product = Product {
            w: weights.matrix(&w.o),
            out: &mut added,
        };
        let input = Input {
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
                ops::rms_norm(exec.table, &row, weight, config.norm_eps, added);
            }
        }
        added
    }
}

/// Of squared changes, relative to the stream.
#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: usize,
}

impl Mean {
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

    /// So many tokens for which nothing changed.
    fn add_nothing(&mut self, tokens: usize) {
        self.count += tokens;
    }

    fn get(&self) -> f32 {
        (self.sum / self.count.max(1) as f64) as f32
    }
}

/// The end of the text as the whole model reads it.
struct End<'a> {
    runtime: Runtime,
    id: SequenceId,
    tokens: &'a [u32],
    /// Logits of all of them.
    truth: Vec<f32>,
    pool: &'a Pool,
}

impl End<'_> {
    fn listen(&mut self) -> Result<(), StepError> {
        let fork = self.runtime.fork(self.id)?;
        self.truth = self.runtime.all_logits(fork, self.tokens)?;
        self.runtime.close(fork)
    }

    /// How far the model's words are from the truth when one layer's attention finds `output`.
    fn distance(&mut self, layer: usize, stream: &[f32], output: &[f32]) -> Result<f32, StepError> {
        let resume = Resume {
            layer,
            stream: stream.to_vec(),
            output: output.to_vec(),
        };
        let span = StepSpan {
            sequence: self.id,
            position: self.runtime.position(self.id)?,
            tokens: self.tokens,
            want: LogitRows::All,
        };
        let vocab = self.runtime.model().config().vocab;
        let found = self.runtime.trial(span, resume)?;
        let mut each = vec![0.0; self.tokens.len()];
        threads::chunks_mut(self.pool, &mut each, 1, &|i, kl| {
            let token = i * vocab..(i + 1) * vocab;
            kl[0] = kl_divergence(&self.truth[token.clone()], &found[token]).0;
        });
        Ok((each.iter().sum::<f64>() / each.len() as f64) as f32)
    }
}

/// Less is nothing.
const TINY: f32 = 1e-12;

/// The codec whose damage is followed where one is: great enough to be seen, small enough to be in proportion.
const SCALE_CODEC: usize = 1;

impl Judged {
    /// From what the layer adds to what the model says.
    fn follow(&mut self, end: &mut End<'_>, pairs: &mut Vec<(f64, f64)>) -> Result<(), StepError> {
        let mut factors = Vec::new();
        for (sides, damage, output) in &self.outputs {
            let distance = end.distance(self.layer, &self.stream, output)?;
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
