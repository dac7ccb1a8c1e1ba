//! The share of the query samples' attention that some rows have, and what is lost with them.
//!
//! For one sample and head, with `p` the attention probabilities it had, over the rows `L` that leave:
//!
//! ```text
//! w  = Σ p[j]        values = Σ p[j] v[j]        o' - o = (w o - values) / (1 - w)
//! ```
//!
//! Rows that change have a share before and one after: `(values' - values - (w' - w) o) / (1 - w + w')`.
//! Both are sums over those rows alone, so the rest of the table is not read: the rows are gathered into blocks
//! and the attention kernel runs over them, in their codec.

use crate::model::config::{Config, LayerConfig};
use crate::step::query_samples::{LayerSamples, SAMPLES};
use haversack_cache::{CacheResult, KvShape, LayerShape, with_room};
use haversack_kernels::Exec;
use haversack_kernels::attention::{
    self, AttentionJob, BLOCK_SLOTS, Block, Coded, KvView, SPAN_SLOTS, SoftmaxSum,
};
use haversack_kernels::format::kv::code::{read_k_head, read_v_head};
use haversack_kernels::ops::{self, dot, exp::exp, rotation::rotate_head};
use std::ops::Range;

/// Rows that are gathered at a time.
pub const BATCH: usize = 2 * BLOCK_SLOTS;

/// What stays of a sample's attention when this part leaves. Less than a thousandth is all rounding, and rows that were
/// recoded since the query may seem to have more than everything: then a sixteenth is assumed.
fn rest(leaves: f32) -> f32 {
    match 1.0 - leaves {
        rest if rest >= 1.0 / 1024.0 => rest,
        _ => 1.0 / 16.0,
    }
}

/// One layer and its query samples.
#[derive(Clone, Copy)]
pub struct SampledLayer<'a> {
    pub config: &'a LayerConfig,
    pub shape: LayerShape,
    /// (kv_head, dim), in the basis of the blocks.
    pub mean: Option<&'a [f32]>,
    pub samples: LayerSamples<'a>,
    /// Samples that count: they are there, and have seen every row that is asked about.
    pub present: [bool; SAMPLES],
}

impl SampledLayer<'_> {
    /// How many samples count.
    pub fn count(&self) -> f64 {
        let present = self.present.iter().filter(|present| **present);
        present.count().max(1) as f64
    }
}

/// Rows gathered into blocks that every sample sees.
struct Gathered<'a> {
    shape: KvShape,
    bytes: &'a [u8],
    rows: usize,
}

impl KvView for Gathered<'_> {
    fn blocks(&self) -> usize {
        self.rows.div_ceil(BLOCK_SLOTS)
    }

    fn block(&self, i: usize, _: u64) -> Block<'_> {
        let bytes = &self.bytes[i * self.shape.block_bytes()..][..self.shape.block_bytes()];
        let (k, v) = bytes.split_at(self.shape.k_bytes());
        let first = i * BLOCK_SLOTS;
        Block {
            k: Coded {
                form: self.shape.form.k,
                bytes: k,
            },
            v: Coded {
                form: self.shape.form.v,
                bytes: v,
            },
            sinks: None,
            rows: (self.rows - first).min(BLOCK_SLOTS),
            first_position: first as u64,
            hidden: 0,
            segment: 0,
        }
    }

    fn spans(&self) -> usize {
        1
    }

    fn span(&self, _: usize) -> Range<usize> {
        0..self.blocks()
    }
}

const _: () = assert!(BATCH <= SPAN_SLOTS, "gathered rows are one span");

/// What some rows have of the samples' attention.
#[derive(Default)]
pub struct AttentionShare {
    /// (sample, head)
    weight: Vec<f32>,
    /// (sample, head, dim): weighted values.
    values: Vec<f32>,
    /// Of one batch.
    out: Vec<f32>,
    sums: Vec<SoftmaxSum>,
}

impl AttentionShare {
    /// The greatest widths of a model's layers.
    fn widths(config: &Config) -> (usize, usize) {
        let max = |f: fn(&LayerConfig) -> usize| config.layers.iter().map(f).max().unwrap_or(0);
        (max(|c| c.heads), max(|c| c.heads * c.head_dim))
    }

    pub fn bytes_for(config: &Config) -> usize {
        let (heads, width) = AttentionShare::widths(config);
        let sample =
            heads * (size_of::<f32>() + size_of::<SoftmaxSum>()) + 2 * width * size_of::<f32>();
        SAMPLES.saturating_mul(sample)
    }

    pub fn new(config: &Config) -> CacheResult<AttentionShare> {
        let (heads, width) = AttentionShare::widths(config);
        Ok(AttentionShare {
            weight: with_room(SAMPLES * heads)?,
            values: with_room(SAMPLES * width)?,
            out: with_room(SAMPLES * width)?,
            sums: with_room(SAMPLES * heads)?,
        })
    }

    /// Starts with no rows.
    pub fn clear(&mut self, layer: &SampledLayer<'_>) {
        for (list, like) in [
            (&mut self.weight, &layer.samples.max),
            (&mut self.values, &layer.samples.o),
        ] {
            list.clear();
            list.resize(like.len(), 0.0);
        }
    }

    /// Adds the share of up to [`BATCH`] rows, which lie in blocks of `shape`.
    pub fn add(
        &mut self,
        exec: Exec<'_>,
        scratch: &mut attention::AttentionScratch,
        layer: &SampledLayer<'_>,
        bytes: &[u8],
        rows: usize,
    ) {
        let (c, samples) = (layer.config, &layer.samples);
        self.out.clear();
        self.out.resize(samples.q.len(), 0.0);
        self.sums.clear();
        self.sums.resize(samples.max.len(), SoftmaxSum::default());
        let view = Gathered {
            shape: layer.shape.final_shape(),
            bytes,
            rows,
        };
        let job = AttentionJob {
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            heads: c.heads,
            basis: layer.shape.basis(),
            mean: layer.mean,
            scale: c.score_scale,
            window: None,
            q: &[samples.q],
            // Behind every gathered row, and in one block of queries.
            first_position: SPAN_SLOTS as u64,
            view: &view,
            out: &mut self.out,
            mass: None,
            sums: Some(&mut self.sums),
        };
        attention::attend(exec, scratch, &mut [job]);
        for (i, sum) in self.sums.iter().enumerate() {
            // The kernel normalises over these rows alone; this is their part of the sample's whole attention.
            let part = exp(sum.max - samples.max[i]) * (sum.sum / samples.sum[i]);
            self.weight[i] += part;
            let range = i * c.head_dim..(i + 1) * c.head_dim;
            let out = &self.out[range.clone()];
            for (to, out) in self.values[range].iter_mut().zip(out) {
                *to += part * out;
            }
        }
    }

    /// (sample, head)
    #[cfg(test)]
    pub fn weights(&self) -> &[f32] {
        &self.weight
    }

    /// The result of [`AttentionShare::difference`], and the parts of attention that stay, (sample, head), which replace the
    /// weights.
    pub fn parts(&mut self) -> (&[f32], &[f32]) {
        for weight in &mut self.weight {
            *weight = rest(*weight);
        }
        (&self.values, &self.weight)
    }

    /// The result of [`AttentionShare::difference`].
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// How the outputs change when rows with this share become rows with the share `after`, or leave: the differences
    /// replace the values, (sample, head, dim).
    pub fn difference(
        &mut self,
        layer: &SampledLayer<'_>,
        after: Option<&AttentionShare>,
    ) -> &[f32] {
        let dim = layer.config.head_dim;
        for (i, values) in self.values.chunks_exact_mut(dim).enumerate() {
            let weight = after.map_or(0.0, |after| after.weight[i]) - self.weight[i];
            let by = 1.0 / rest(-weight);
            let o = &layer.samples.o[i * dim..(i + 1) * dim];
            match after {
                Some(after) => {
                    let after = &after.values[i * dim..(i + 1) * dim];
                    for ((x, o), after) in values.iter_mut().zip(o).zip(after) {
                        *x = by * (after - *x - weight * o);
                    }
                }
                None => {
                    for (x, o) in values.iter_mut().zip(o) {
                        *x = by * (-weight * o - *x);
                    }
                }
            }
        }
        &self.values
    }
}

/// The statistic of one layer: the mean over samples of the squared error that reaches the stream, over the
/// squared length of the stream. `gains` is (head): how much an error of its output is stretched.
pub fn statistic(
    exec: Exec<'_>,
    layer: &SampledLayer<'_>,
    gains: &[f32],
    difference: &[f32],
) -> f64 {
    let (heads, dim) = (layer.config.heads, layer.config.head_dim);
    let mut sum = 0.0;
    for (sample, difference) in difference.chunks_exact(heads * dim).enumerate() {
        if !layer.present[sample] {
            continue;
        }
        let square = |x: &[f32]| f64::from(ops::dot_self(exec.backend, x));
        let heads = difference.chunks_exact(dim).zip(gains);
        let error: f64 = heads.map(|(x, gain)| square(x) * f64::from(*gain)).sum();
        sum += error / f64::from(layer.samples.scale[sample]);
    }
    sum / layer.count()
}

/// Memory to compute the cost of rows one by one.
#[derive(Default)]
pub struct RowCosts {
    /// (dim, slot)
    across: Vec<f32>,
    /// (slot, dim)
    k: Vec<f32>,
    v: Vec<f32>,
    /// (dim), in the basis of the blocks.
    q: Vec<f32>,
    o: Vec<f32>,
}

impl RowCosts {
    fn head_dim(config: &Config) -> usize {
        config.layers.iter().map(|c| c.head_dim).max().unwrap_or(0)
    }

    pub fn bytes_for(config: &Config) -> usize {
        (3 * BLOCK_SLOTS + 2) * RowCosts::head_dim(config) * size_of::<f32>()
    }

    pub fn new(config: &Config) -> CacheResult<RowCosts> {
        let dim = RowCosts::head_dim(config);
        Ok(RowCosts {
            across: with_room(BLOCK_SLOTS * dim)?,
            k: with_room(BLOCK_SLOTS * dim)?,
            v: with_room(BLOCK_SLOTS * dim)?,
            q: with_room(dim)?,
            o: with_room(dim)?,
        })
    }

    /// What each row of one block would cost if it left alone: [`statistic`], row by row, added to `own`.
    pub fn add_own(
        &mut self,
        exec: Exec<'_>,
        layer: &SampledLayer<'_>,
        gains: &[f32],
        block: &[u8],
        own: &mut [f32],
    ) {
        let (c, shape, samples) = (layer.config, layer.shape.final_shape(), &layer.samples);
        let (dim, basis, backend) = (c.head_dim, layer.shape.basis(), exec.backend);
        let group = c.heads / c.kv_heads;
        let (k_bytes, v_bytes) = (shape.form.k.head_bytes(dim), shape.form.v.head_bytes(dim));
        for list in [&mut self.across, &mut self.k, &mut self.v] {
            list.resize(BLOCK_SLOTS * dim, 0.0);
        }
        for list in [&mut self.q, &mut self.o] {
            list.resize(dim, 0.0);
        }
        let (k, v) = block.split_at(shape.k_bytes());
        for kv_head in 0..c.kv_heads {
            let k = &k[kv_head * k_bytes..][..k_bytes];
            let v = &v[kv_head * v_bytes..][..v_bytes];
            read_k_head(backend, dim, shape.form.k, k, &mut self.across);
            read_v_head(backend, dim, shape.form.v, v, &mut self.v);
            for (i, x) in self.across.iter().enumerate() {
                self.k[i % BLOCK_SLOTS * dim + i / BLOCK_SLOTS] = *x;
            }
            let mean = layer.mean.map(|mean| &mean[kv_head * dim..][..dim]);
            for sample in (0..SAMPLES).filter(|&sample| layer.present[sample]) {
                let part = (1.0 / (f64::from(samples.scale[sample]) * layer.count())) as f32;
                for head in kv_head * group..(kv_head + 1) * group {
                    let i = sample * c.heads + head;
                    self.q.copy_from_slice(&samples.q[i * dim..][..dim]);
                    self.o.copy_from_slice(&samples.o[i * dim..][..dim]);
                    rotate_head(backend, basis.k, &mut self.q);
                    rotate_head(backend, basis.v, &mut self.o);
                    ops::scale(backend, &mut self.q, c.score_scale);
                    let bias = mean.map_or(0.0, |mean| dot(backend, &self.q, mean));
                    let o_sq = ops::dot_self(backend, &self.o);
                    let slots = self.k.chunks_exact(dim).zip(self.v.chunks_exact(dim));
                    for (own, (k, v)) in own.iter_mut().zip(slots) {
                        let score = dot(backend, &self.q, k) + bias;
                        let p = exp(score - samples.max[i]) / samples.sum[i];
                        let apart =
                            o_sq - 2.0 * dot(backend, &self.o, v) + ops::dot_self(backend, v);
                        let moved = p / rest(p);
                        *own += gains[head] * moved * moved * apart.max(0.0) * part;
                    }
                }
            }
        }
    }
}
