//! The memory that a model needs, from its metadata alone: the numbers that the ledger shows later.
//!
//! Pure. Blocks are counted by `cache::size`, scratch by the code that reserves it; nothing is
//! estimated twice. Tables are the one upper bound: their lists grow by halves.

use super::options::{Activations, Policy, RuntimeOptions};
use crate::kv_quality::calibrate::uses_error_feedback;
use crate::kv_quality::guard::Guard;
use crate::model::Config;
use crate::model::kv::KvOptions;
use crate::step::query_samples::SampleLayout;
use crate::step::runner::{CHUNK_MIN, COUNTED_BEYOND};
use crate::step::scratch::{StepScratch, StepSize};
use haversack_cache::policy::window::WindowParams;
use haversack_cache::row_stats::{KvRow, StatsFormat};
use haversack_cache::size::{KeptTokens, largest_that_fits};
use haversack_cache::{
    BlockEntry, BlockPool, LayerShape, SLAB_BYTES, kv_bytes, reserve_bytes, staging_bytes,
};
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_kernels::format::kv::error_feedback::ErrorFeedback;
use haversack_kernels::format::kv::{KvForm, Rotation};
use std::collections::BTreeMap;

/// How a step is computed, as far as it takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeSetting {
    pub threads: usize,
    /// Activations rounded to int8 have a copy of their own.
    pub int8: bool,
    /// Tokens per pass while reading a prompt.
    pub chunk: usize,
    /// What is kept of each row, where rows are evicted one by one.
    pub noting: Option<StatsFormat>,
    /// A guard looks at evictions.
    pub guarded: bool,
}

impl ComputeSetting {
    /// The setting of these options, with prompts read in the smallest steps.
    pub fn of(options: &RuntimeOptions) -> ComputeSetting {
        ComputeSetting {
            threads: options.threads.max(1),
            int8: options.activations == Activations::Int8,
            chunk: CHUNK_MIN,
            noting: options.retention.noting(),
            guarded: options.retention.is_guarded(),
        }
    }
}

/// What one sequence takes at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeeds {
    /// Blocks, those of a step under way included.
    pub kv_bytes: usize,
    pub tables_bytes: usize,
    pub scratch_bytes: usize,
    pub side_bytes: usize,
}

impl MemoryNeeds {
    pub fn total(&self) -> usize {
        [self.tables_bytes, self.scratch_bytes, self.side_bytes]
            .into_iter()
            .fold(self.kv_bytes, usize::saturating_add)
    }
}

/// Bytes of keys and values per token once it is no longer recent.
pub fn bytes_per_token(config: &Config, kv: &KvOptions) -> usize {
    haversack_cache::bytes_per_token(&kv.shapes(config))
}

/// Bytes of the blocks of a sequence that has seen `tokens` tokens and kept all that its layers may keep.
pub fn blocks_bytes(config: &Config, kv: &KvOptions, tokens: usize) -> u64 {
    let of = |(i, layer): (usize, &LayerShape)| {
        let rows = tokens.min(kv.rows_max(i).saturating_add(BLOCK_SLOTS));
        let layer = std::slice::from_ref(layer);
        kv_bytes(layer, kv.zones(), KeptTokens::All, rows as u64)
    };
    let layers = kv.shapes(config);
    let bytes = layers.iter().enumerate().map(of);
    bytes.fold(0, u64::saturating_add)
}

/// What is kept beside blocks: the mean keys, in the model's basis and in that of the blocks, and how
/// rounding errors are fed back.
pub fn side_bytes(config: &Config, kv: &KvOptions) -> usize {
    if !kv.centre {
        return 0;
    }
    let of = |layer: &LayerShape| {
        let mean = match layer.basis().k {
            Rotation::Hadamard => 2 * layer.width() * size_of::<f32>(),
            _ => 0,
        };
        let feedback = match uses_error_feedback(layer) {
            true => ErrorFeedback::bytes_for(layer.kv_heads, layer.head_dim),
            false => 0,
        };
        mean.saturating_add(feedback)
    };
    let layers = kv.shapes(config);
    layers.iter().map(of).fold(0, usize::saturating_add)
}

/// Scratch of a step of `setting.chunk` tokens at the end of `slots` slots.
pub fn scratch_bytes(config: &Config, setting: ComputeSetting, slots: usize) -> usize {
    let counting = usize::from(setting.noting.is_some());
    batch_scratch_bytes(config, setting, (1, counting), setting.chunk, slots)
}

/// Scratch of a step that reads `tokens` tokens of `sequences` sequences with at most `slots` slots each, of which
/// `counting` count attention.
pub(super) fn batch_scratch_bytes(
    config: &Config,
    setting: ComputeSetting,
    (sequences, counting): (usize, usize),
    tokens: usize,
    slots: usize,
) -> usize {
    let size = StepSize {
        rows: tokens,
        wanted: sequences,
        jobs: sequences,
        slots,
        moved: 1,
        segments: 2 * sequences,
        counted: counting * (slots + COUNTED_BEYOND),
        sampled: if setting.guarded { tokens } else { 0 },
    };
    StepScratch::bytes_for(config, setting.threads, setting.int8, size)
}

/// What a sequence of `slots` slots takes at most, one step under way.
pub fn needs(
    config: &Config,
    kv: &KvOptions,
    setting: ComputeSetting,
    slots: usize,
) -> MemoryNeeds {
    let layers = kv.shapes(config);
    let (zones, chunk) = (kv.zones(), setting.chunk.min(slots));
    let before = ((slots - chunk) / BLOCK_SLOTS * BLOCK_SLOTS) as u64;
    let live = |(i, layer): (usize, &LayerShape)| {
        let rows = kv.rows_max(i).min(usize::MAX / 2);
        let max = rows.next_multiple_of(BLOCK_SLOTS) as u64;
        let layer = std::slice::from_ref(layer);
        kv_bytes(layer, zones, KeptTokens::All, before.min(max))
    };
    let live = layers.iter().enumerate().map(live);
    let live = live.fold(0, u64::saturating_add);
    let step = reserve_bytes(&layers, zones, before, chunk);
    // Lists grow by halves and have room for a few entries more.
    let entries = slots.div_ceil(BLOCK_SLOTS) * 3 / 2 + 16;
    let notes = |layer: &LayerShape| setting.noting.map_or(0, |n| n.block_bytes(layer.kv_heads));
    let table = |layer| entries * (size_of::<BlockEntry>() + 8 + notes(layer)) + TABLE_BYTES;
    let tables: usize = layers.iter().map(table).sum();
    let tables = tables + store_bytes(&layers, kv, slots + chunk);
    MemoryNeeds {
        kv_bytes: usize::try_from(live.saturating_add(step)).unwrap_or(usize::MAX),
        tables_bytes: tables,
        scratch_bytes: scratch_bytes(config, setting, slots),
        side_bytes: side_bytes(config, kv)
            .saturating_add(candidate_bytes(setting, slots))
            .saturating_add(guard_bytes(config, kv, setting, slots)),
    }
}

/// The list of candidates for eviction.
pub(crate) fn candidate_bytes(setting: ComputeSetting, rows: usize) -> usize {
    let row = setting.noting.map_or(0, |_| size_of::<KvRow>());
    rows.saturating_mul(row)
}

/// The query samples of one sequence, and the memory of a guard.
fn guard_bytes(config: &Config, kv: &KvOptions, setting: ComputeSetting, rows: usize) -> usize {
    if !setting.guarded {
        return 0;
    }
    let guard = Guard::bytes_for(config, settled_bytes(&kv.shapes(config)), rows);
    guard.saturating_add(SampleLayout::new(config).ring_bytes())
}

/// The largest block of rows that are no longer recent.
pub(crate) fn settled_bytes(layers: &[LayerShape]) -> usize {
    let sizes = layers.iter().map(|l| l.final_shape().block_bytes());
    sizes.max().unwrap_or(0)
}

/// What a store keeps beside blocks and tables: staging memory, and an entry for every block of its slabs.
fn store_bytes(layers: &[LayerShape], kv: &KvOptions, slots: usize) -> usize {
    // (block bytes, blocks) of each pool.
    let mut pools: BTreeMap<usize, usize> = BTreeMap::new();
    let blocks = slots.div_ceil(BLOCK_SLOTS) + 1;
    for layer in layers {
        for size in [
            layer.near_shape().block_bytes(),
            layer.far_shape().block_bytes(),
            layer.sink_bytes(kv.zones()),
        ] {
            if size > 0 {
                *pools.entry(size).or_default() += blocks;
            }
        }
    }
    let lists = pools.into_iter();
    let lists = lists.map(|(size, blocks)| BlockPool::list_bytes_for(size, SLAB_BYTES, blocks));
    lists.fold(staging_bytes(layers), usize::saturating_add)
}

/// A layer's share of lists that do not grow with rows.
const TABLE_BYTES: usize = 1024;

/// The largest number of slots, in whole blocks, whose needs are within `budget_bytes`.
pub fn slots_max(
    config: &Config,
    kv: &KvOptions,
    setting: ComputeSetting,
    budget_bytes: usize,
) -> usize {
    let fits = |blocks: u64| {
        let slots = blocks as usize * BLOCK_SLOTS;
        needs(config, kv, setting, slots).total() <= budget_bytes
    };
    largest_that_fits((SLOTS_MAX / BLOCK_SLOTS) as u64, fits) as usize * BLOCK_SLOTS
}

/// Longer than any context: where the search ends.
const SLOTS_MAX: usize = 1 << 30;

/// What fits within a share of the bytes of a full f16 cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareFit {
    /// All rows, in the forms asked for.
    Everything,
    /// Anchors and this many of the last rows: whole blocks.
    Window(usize),
}

/// Not even the smallest window fits.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a share of {share} of the f16 bytes is too small; accepted: at least {min:.4}")]
pub struct ShareTooSmall {
    pub share: f64,
    /// The share that the smallest window takes.
    pub min: f64,
}

/// Bytes of the blocks of `tokens` tokens in f16, none evicted: what shares are measured against.
pub fn full_bytes(config: &Config, tokens: usize) -> u64 {
    blocks_bytes(config, &KvOptions::plain(KvForm::F16), tokens)
}

/// The largest number of block bytes that anchors and a window hold in the last blocks before `context` tokens, or
/// in the step under way there, with sinks, the near zone and the current block. Where rows are evicted one by one,
/// layers with a window of their own keep all of it.
pub fn window_bytes(
    config: &Config,
    kv: &KvOptions,
    policy: Policy,
    anchors: usize,
    window: usize,
    context: usize,
) -> u64 {
    let kept = KeptTokens::Window(WindowParams {
        anchors: anchors as u64,
        window: window as u64,
    });
    let (layers, zones) = (kv.shapes(config), kv.zones());
    let from = context.saturating_sub(2 * BLOCK_SLOTS);
    let kept_by = |layer: &LayerShape| match policy.chooses() && layer.window.is_some() {
        true => KeptTokens::All,
        false => kept,
    };
    let live = |position: usize| -> u64 {
        let bytes = layers.iter().map(|layer| {
            let one = std::slice::from_ref(layer);
            kv_bytes(one, zones, kept_by(layer), position as u64)
        });
        bytes.sum()
    };
    // One layer has a block in both forms: layers before it are done, layers after it have not begun.
    let zoned = layers.iter().filter(|layer| layer.zoned());
    let under_way = zoned.map(|layer| layer.far_shape().block_bytes());
    let under_way = under_way.max().unwrap_or(0) as u64;
    let max = (from..=context).map(live).max().unwrap_or(0);
    max.saturating_add(under_way)
}

/// The largest window behind `anchors` anchors, of at least `window_min` rows, with which `context` tokens
/// take at most `share` of what they take in f16; everything, where that is within the share.
pub fn within_share(
    config: &Config,
    kv: &KvOptions,
    policy: Policy,
    anchors: usize,
    window_min: usize,
    context: usize,
    share: f64,
) -> Result<ShareFit, ShareTooSmall> {
    let full = full_bytes(config, context).max(1);
    let max = (full as f64 * share) as u64;
    if blocks_bytes(config, kv, context) <= max {
        return Ok(ShareFit::Everything);
    }
    let bytes = |blocks: u64| {
        let window = blocks as usize * BLOCK_SLOTS;
        window_bytes(config, kv, policy, anchors, window, context)
    };
    let min = window_min.div_ceil(BLOCK_SLOTS).max(1) as u64;
    // Anchors, window and the block of the step are within the context.
    let room = context.min(config.context).saturating_sub(anchors) / BLOCK_SLOTS;
    let room = (room as u64).saturating_sub(1);
    let fits = |blocks: u64| min <= room && bytes(blocks.max(min)) <= max;
    match largest_that_fits(room, fits) {
        0 => Err(ShareTooSmall {
            share,
            min: bytes(min) as f64 / full as f64,
        }),
        blocks => Ok(ShareFit::Window(blocks.max(min) as usize * BLOCK_SLOTS)),
    }
}
