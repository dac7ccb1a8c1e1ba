//! `--policy adaptive`: how each layer stores its rows, and how many, from what a probe measured and the budget allows.
//!
//! The plan is made once, before the first token, for a conversation as long as the context; a shorter one keeps all
//! its rows in the same forms.

pub use super::options::AdaptiveOptions;
pub use haversack_cache::policy::adaptive::{AllotmentTarget, DamageCurves};

use super::bounds::BoundsError;
use super::error::RuntimeError;
use super::options::{Policy, Retention, RuntimeOptions};
use super::plan::{self, ComputeSetting};
use crate::kv_quality::calibrate;
use crate::kv_quality::probe::{self, Depth, Probe};
use crate::model::kv::KvOptions;
use crate::model::{Config, LayerConfig, Model};
use haversack_cache::policy::adaptive::{
    Allotment, AllotmentPlan, allot, allot_rows, form_name, rows_bytes,
};
use haversack_cache::{CannotFit, LayerShape, Zones};
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_kernels::format::kv::{Codec, KvForm};
use haversack_memory::HeapBudget;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::Arc;

impl AdaptiveOptions {
    /// How much a lost row counts in a context of `tokens` tokens. The same share of more rows holds more of what is
    /// looked for: four times the context, half the damage.
    pub fn row_weight(&self, tokens: usize) -> f32 {
        let weight = if self.recall { RECALL_WEIGHT } else { 1.0 };
        weight * (probe::TOKENS as f32 / tokens.max(1) as f32).sqrt()
    }
}

/// How much more a lost row counts where recall is wanted.
const RECALL_WEIGHT: f32 = 2.0;

/// Recent rows: one token in this many of the context, fewer below an eighth of the bytes of f16. Measured in
/// `docs/how-it-works/policies.md`.
const RECENT_PART: f64 = 32.0;
const NARROW_SHARE: f64 = 0.125;

/// How many rows are recent where the options do not say.
fn recent(tokens: u64, share: f64) -> usize {
    let part = tokens as f64 / RECENT_PART * (share / NARROW_SHARE).min(1.0);
    let blocks = (part / BLOCK_SLOTS as f64).round().max(1.0);
    blocks as usize * BLOCK_SLOTS
}

/// Share of the bytes of f16 where no budget is given.
const USUAL_SHARE: f64 = 0.25;

/// Whether the options ask for a plan and have none yet.
pub fn needs_plan(options: &RuntimeOptions) -> bool {
    options.retention.policy == Policy::Adaptive && options.kv.layers.is_empty()
}

/// The options with forms and rows of every layer. Probes the model if no probe was saved.
pub fn resolve(
    model: &Arc<Model>,
    options: &RuntimeOptions,
) -> Result<RuntimeOptions, RuntimeError> {
    let depth = options.retention.adaptive.depth;
    let found = load_or_measure(model, options, depth, &mut |_| ControlFlow::Continue(()))?;
    let probe = found.unwrap_or_else(|| unreachable!("nothing stops it"));
    Ok(with_probe(model.config(), options, &probe)?)
}

/// A probe that was saved, or a new one if the budget has room for measuring it: see [`probe::load_or_measure`].
pub fn load_or_measure(
    model: &Arc<Model>,
    options: &RuntimeOptions,
    depth: Depth,
    tell: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Option<Probe>, RuntimeError> {
    check_probe(model, options, depth)?;
    let (threads, dir) = (options.threads, options.cache_dir.as_deref());
    probe::load_or_measure(model, threads, depth, dir, tell).map_err(RuntimeError::Measurement)
}

/// Refuses a probe that has to be measured and does not fit the budget.
pub fn check_probe(
    model: &Model,
    options: &RuntimeOptions,
    depth: Depth,
) -> Result<(), RuntimeError> {
    let dir = options.cache_dir.as_deref();
    let is_saved = dir.is_some_and(|dir| probe::is_saved(model, dir, depth));
    let weights_bytes = model.weights().bytes_per_token() as u64;
    let is_typical = calibrate::tokens_affordable(weights_bytes).is_none();
    let Some(budget) = options.budget_bytes.filter(|_| !is_saved && !is_typical) else {
        return Ok(());
    };
    let needed = probe_bytes(model.config(), options.threads, depth);
    // The heap of a first request is beside the budget, and no request runs yet.
    let needed = needed.saturating_sub(HeapBudget::WORKING_BYTES);
    match needed > budget {
        true => Err(RuntimeError::Probe { needed, budget }),
        false => Ok(()),
    }
}

/// What a probe takes at most: the text in f16 and the scratch of reading it in one step, or of its last tokens with all
/// their logits; two layers as they were captured, and one of them in every variant; what is kept of each layer.
pub fn probe_bytes(config: &Config, threads: usize, depth: Depth) -> usize {
    let (tokens, last) = (probe::TOKENS.min(config.context), depth.last());
    let floats = |count: usize| count.saturating_mul(size_of::<f32>());
    let setting = ComputeSetting {
        threads,
        int8: false,
        chunk: tokens,
        noting: None,
        guarded: false,
    };
    let exact = KvOptions::plain(KvForm::F16);
    let kv = plan::needs(config, &exact, setting, tokens);
    let width = |layer: &LayerConfig| {
        (
            layer.heads * layer.head_dim,
            layer.kv_heads * layer.head_dim,
        )
    };
    let captured = |layer| {
        let (wide, narrow) = width(layer);
        floats(tokens * (wide + 2 * narrow + config.dim))
    };
    let captured = config.layers.iter().map(captured).max().unwrap_or(0);
    let variant = plan::full_bytes(config, tokens) as usize / config.layers.len().max(1);
    let kept = |layer| floats(last * (config.dim + depth.outputs() * width(layer).0));
    let kept: usize = config.layers.iter().map(kept).sum();
    // In the scratch, and as the truth.
    let logits = floats(2 * last * config.vocab);
    [2 * captured, probe::VARIANTS * variant, kept, logits]
        .into_iter()
        .fold(kv.total(), usize::saturating_add)
}

/// The same with a given probe.
pub fn with_probe(
    config: &Config,
    options: &RuntimeOptions,
    probe: &Probe,
) -> Result<RuntimeOptions, BoundsError> {
    let curves = &probe.curves[..];
    // What the device happens to have left changes no plan.
    let named = options.budget_bytes;
    let named = named.filter(|_| !options.budget_follows_device);
    let kv = match (options.retention.adaptive.kv_bytes, named) {
        (Some(bytes), _) => within(config, curves, options, bytes)?,
        (None, None) => {
            let full = plan::full_bytes(config, config.context);
            let bytes = (full as f64 * USUAL_SHARE) as u64;
            within(config, curves, options, bytes)?
        }
        (None, Some(budget)) => budgeted(config, curves, options, budget)?,
    };
    Ok(RuntimeOptions {
        kv,
        guard: probe.guard(options.guard),
        ..options.clone()
    })
}

fn within(
    config: &Config,
    curves: &[DamageCurves],
    options: &RuntimeOptions,
    bytes: u64,
) -> Result<KvOptions, BoundsError> {
    let (wanted, anchors) = (options.retention.adaptive, options.retention.anchors);
    let ask = AllotmentTarget {
        bytes,
        tokens: config.context as u64,
        zones: options.kv.zones(),
        anchors: anchors.unwrap_or(Retention::ADAPTIVE_ANCHORS) as u64,
        row_weight: wanted.row_weight(config.context),
    };
    plan(config, curves, &options.kv, &ask).map_err(|error| BoundsError::Budget {
        budget_bytes: error.budget_bytes,
        min_bytes: error.minimum_bytes(),
    })
}

/// The largest plan that fits with everything counted: blocks, and what grows with rows beside them.
fn budgeted(
    config: &Config,
    curves: &[DamageCurves],
    options: &RuntimeOptions,
    budget: usize,
) -> Result<KvOptions, BoundsError> {
    let setting = ComputeSetting::of(options);
    let needs = |kv: &KvOptions| {
        let rows = rows_max(config, kv);
        plan::needs(config, kv, setting, rows)
    };
    let min = match within(config, curves, options, 0) {
        Err(BoundsError::Budget { min_bytes, .. }) => min_bytes as u64,
        other => return other,
    };
    let mut best = within(config, curves, options, min)?;
    let min_bytes = needs(&best).total();
    if min_bytes > budget {
        return Err(BoundsError::Budget {
            budget_bytes: budget,
            min_bytes,
        });
    }
    // `low` fits, `high` may not. What is beside the blocks grows with them, nearly always.
    let (mut low, mut high) = (min, budget as u64 + 1);
    for _ in 0..TRIES {
        let bytes = low + (high - low) / 2;
        if bytes == low {
            break;
        }
        let kv = within(config, curves, options, bytes)?;
        if needs(&kv).total() <= budget {
            (low, best) = (bytes, kv);
        } else {
            high = bytes;
        }
    }
    Ok(best)
}

/// Halvings of the search: to a thousandth of the budget.
const TRIES: usize = 10;

/// Rows of the fullest layer, those of a step included.
fn rows_max(config: &Config, kv: &KvOptions) -> usize {
    let own = |layer: usize| kv.rows_max(layer).saturating_add(BLOCK_SLOTS);
    let max = (0..config.layers.len()).map(own).max();
    max.unwrap_or(usize::MAX).min(config.context)
}

/// `usual` with forms and rows of every layer, so that the blocks of a sequence stay within `ask`, and with the recent rows
/// in eight bits or exact, whichever does less damage.
pub fn plan(
    config: &Config,
    curves: &[DamageCurves],
    usual: &KvOptions,
    ask: &AllotmentTarget,
) -> Result<KvOptions, CannotFit> {
    let full = plan::full_bytes(config, ask.tokens as usize);
    let mut usual = usual.clone();
    let mut ask = *ask;
    if usual.recent == KvOptions::RECENT {
        usual.recent = recent(ask.tokens, ask.bytes as f64 / full.max(1) as f64);
        ask.zones = usual.zones();
    }
    let (usual, ask) = (&usual, &ask);
    let exact: Vec<DamageCurves> = curves.iter().map(DamageCurves::with_exact_near).collect();
    let rounded = allotted(config, curves, usual, Codec::Int8, ask);
    let exact = allotted(config, &exact, usual, Codec::F16, ask);
    let (near, found) = match (rounded, exact) {
        (Ok(rounded), Ok(exact)) if exact.damage < rounded.damage => (Codec::F16, exact),
        (rounded, _) => (Codec::Int8, rounded?),
    };
    let mut kv = KvOptions {
        near,
        ..usual.clone()
    };
    for (layer, Allotment { form, rows }) in found.layers.into_iter().enumerate() {
        kv.layers.insert(layer, form);
        if rows < ask.tokens && config.layers[layer].window.is_none() {
            // The rows of a step come on top.
            kv.rows.insert(layer, rows as usize - BLOCK_SLOTS);
        }
    }
    Ok(kv)
}

fn allotted(
    config: &Config,
    curves: &[DamageCurves],
    usual: &KvOptions,
    near: Codec,
    ask: &AllotmentTarget,
) -> Result<AllotmentPlan, CannotFit> {
    let shape = |layer: usize, form| {
        let kv = KvOptions {
            form,
            near,
            layers: Default::default(),
            ..usual.clone()
        };
        kv.layer(layer, &config.layers[layer])
    };
    allot(curves, &shape, ask)
}

/// (layer): the rows that each layer keeps beside those of a step, so that all of them together take what `rows` rows
/// take in each, while a sequence sees `tokens` tokens; `None`: it has a window of its own. Forms of layers stay.
pub(crate) fn rows_of(
    curves: &[DamageCurves],
    layers: &[LayerShape],
    zones: Zones,
    anchors: usize,
    rows: usize,
    tokens: usize,
) -> Result<Vec<Option<usize>>, CannotFit> {
    // A layer with a window of its own drops rows by itself.
    let is_open = |layer: &LayerShape| layer.window.is_none();
    let open = layers.iter().zip(curves);
    let open = open.filter(|(layer, _)| is_open(layer));
    let (shapes, curves): (Vec<LayerShape>, Vec<DamageCurves>) =
        open.map(|(s, c)| (*s, *c)).unzip();
    let step = BLOCK_SLOTS as u64;
    let ask = AllotmentTarget {
        bytes: rows_bytes(&shapes, zones, rows as u64 + step),
        tokens: tokens as u64,
        zones,
        anchors: anchors as u64,
        row_weight: AdaptiveOptions::default().row_weight(tokens),
    };
    let mut found = allot_rows(&curves, &shapes, &ask)?.layers.into_iter();
    let rows = layers.iter().map(|layer| {
        let own = is_open(layer).then(|| found.next()).flatten()?.rows;
        let has_all = own >= ask.tokens;
        Some((if has_all { own } else { own - step }) as usize)
    });
    Ok(rows.collect())
}

/// The plan in words, one line for neighbouring layers that are alike.
pub fn describe(kv: &KvOptions, context: usize) -> String {
    let mut text = String::new();
    let mut layers = kv.layers.iter().peekable();
    while let Some((&first, &form)) = layers.next() {
        let rows = kv.rows.get(&first);
        let mut last = first;
        while let Some((&next, _)) =
            layers.next_if(|(next, f)| **f == form && kv.rows.get(next) == rows)
        {
            last = next;
        }
        let which = match last == first {
            true => format!("layer {first}"),
            false => format!("layers {first} to {last}"),
        };
        let rows = match rows {
            Some(rows) => format!("at most {} of {context} rows", rows + BLOCK_SLOTS),
            None => "all rows".to_owned(),
        };
        let _ = writeln!(text, "{which}: {}, {rows}", form_name(form));
    }
    text
}
