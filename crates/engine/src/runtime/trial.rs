//! Changes of a sequence's rows whose effect is predicted before they are made: for probes and measurements, not for the
//! path of a token.

use super::core::Runtime;
use super::error::StepResult;
use crate::kv_quality::guard::GuardTools;
use crate::kv_quality::guard::share::{AttentionShare, BATCH, statistic};
use crate::step::query_samples::SAMPLES;
use haversack_cache::{CacheError, KvRow, KvShape, SequenceId};
use haversack_kernels::Exec;
use haversack_kernels::attention::BLOCK_SLOTS;
use haversack_kernels::cpu::Backend;
use haversack_kernels::format::kv::code::{read_k_head, read_v_head, write_k_rows, write_v_rows};
use haversack_kernels::format::kv::{Basis, KvForm};
use haversack_kernels::matmul::{MatmulInput, MatrixProduct, matmul};
use haversack_kernels::ops;
use haversack_kernels::ops::rotation::{rotate_head, unrotate_head};

/// Rows that are evicted or rounded. Predicted and applied on the same sequence; a fork keeps what was.
#[derive(Clone, Debug)]
pub struct TrialChange {
    /// Layers and their rows, each layer once.
    pub rows: Vec<(usize, Vec<KvRow>)>,
    /// Rounds the rows as this form would; `None`: they are evicted.
    pub round: Option<KvForm>,
}

/// What a change will do, as far as the query samples can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrialPrediction {
    /// The guard's own statistic.
    pub statistic: f64,
    /// The same with the output matrix itself instead of one number a head.
    pub exact: f64,
}

/// Rows of a layer that a change may name.
pub fn final_rows(runtime: &Runtime, id: SequenceId, layer: usize) -> StepResult<Vec<KvRow>> {
    let mut rows = Vec::new();
    runtime.store().evictable_rows(id, layer, 0, &mut rows)?;
    Ok(rows)
}

impl TrialChange {
    /// What the change would do; `None` where there is no guard, or the sequence does not stand at the end of a block.
    pub fn predict(
        &self,
        runtime: &mut Runtime,
        id: SequenceId,
    ) -> StepResult<Option<TrialPrediction>> {
        let position = runtime.position(id)?;
        let runner = &mut runtime.runner;
        let Some(guard) = &mut runtime.evictor.guard else {
            return Ok(None);
        };
        let (config, weights) = (runner.model.config(), runner.model.weights());
        let (backend, threads) = (runner.backend, runner.pool.threads());
        let exec = Exec {
            backend,
            pool: &runner.pool,
        };
        let mut tools = GuardTools {
            config,
            exec,
            store: &runner.store,
            sequences: &mut runner.sequences,
            attention: runner.scratch.small_attention(config, threads),
        };
        let mut found = TrialPrediction::default();
        let mut after = AttentionShare::new(config)?;
        for (index, rows) in &self.rows {
            let index = *index;
            let newest = rows.iter().map(|row| row.position).max().unwrap_or(0);
            let Some(mut view) = tools.view(id, index, (position, newest)) else {
                return Ok(None);
            };
            let layer = view.layer;
            view.statistic(guard, rows)?;
            if let Some(form) = self.round {
                // Once more: the last result are differences.
                guard.before.clear(&layer);
                after.clear(&layer);
                for rows in rows.chunks(BATCH) {
                    (view.store).copy_rows(id, index, rows, &mut guard.bytes)?;
                    let (bytes, count) = (&guard.bytes, rows.len());
                    guard.before.add(exec, view.attention, &layer, bytes, count);
                    let rounded = rounded(backend, layer.shape.final_shape(), form, bytes);
                    after.add(exec, view.attention, &layer, &rounded, count);
                }
                guard.before.difference(&layer, Some(&after));
            }
            let difference = guard.before.values();
            found.statistic += statistic(exec, &layer, &guard.gains[index], difference);
            // (sample, dim)
            let w = &weights.layers[index].o;
            let mut out = vec![0.0; SAMPLES * w.rows];
            let product = MatrixProduct {
                w: weights.matrix(w),
                out: &mut out,
            };
            let input = MatmulInput {
                rows: SAMPLES,
                cols: w.cols,
                x: difference,
                int8: None,
            };
            matmul(exec, input, &mut [product]);
            let square = |x: &[f32]| f64::from(ops::dot_self(backend, x));
            let errors = out.chunks_exact(w.rows).zip(layer.samples.scale);
            let errors = errors.zip(layer.present).filter(|(_, present)| *present);
            let sum: f64 = errors
                .map(|((x, scale), _)| square(x) / f64::from(*scale))
                .sum();
            found.exact += sum / layer.count();
        }
        Ok(Some(found))
    }

    /// Makes the change. Where rows of a layer are evicted, its other rows must be named anew.
    pub fn apply(&self, runtime: &mut Runtime, id: SequenceId) -> StepResult {
        let (backend, store) = (runtime.runner.backend, &mut runtime.runner.store);
        for (layer, rows) in &self.rows {
            let Some(form) = self.round else {
                store.evict_rows(id, *layer, 0, rows)?;
                continue;
            };
            let (layer, layers) = (*layer, store.layers().len());
            let shape = store.layers().get(layer);
            let shape = shape.ok_or(CacheError::NoSuchLayer { layer, layers })?;
            let shape = shape.final_shape();
            let mut bytes = vec![0; rows.len().div_ceil(BLOCK_SLOTS) * shape.block_bytes()];
            store.copy_rows(id, layer, rows, &mut bytes)?;
            let bytes = rounded(backend, shape, form, &bytes);
            store.replace_rows(id, layer, rows, &bytes)?;
        }
        Ok(())
    }
}

/// Blocks with every row rounded as `form` rounds it, in the form they had. Rows of floats are rotated into the basis of
/// `form` first; others are in theirs already.
fn rounded(backend: Backend, shape: KvShape, form: KvForm, blocks: &[u8]) -> Vec<u8> {
    let is_float = shape.form.k.codec.is_float() && shape.form.v.codec.is_float();
    let basis = if is_float {
        Basis::of(form)
    } else {
        Basis::default()
    };
    let coarse = KvShape { form, ..shape };
    let mut to = vec![0; blocks.len()];
    let size = shape.block_bytes();
    for (from, to) in blocks.chunks_exact(size).zip(to.chunks_exact_mut(size)) {
        let mut rounded = vec![0; coarse.block_bytes()];
        let (mut k, mut v) = rows_of(backend, shape, from);
        let heads = |x: &mut [f32], f: &dyn Fn(&mut [f32])| {
            x.chunks_exact_mut(shape.head_dim).for_each(f);
        };
        heads(&mut k, &|head| rotate_head(backend, basis.k, head));
        heads(&mut v, &|head| rotate_head(backend, basis.v, head));
        write(backend, coarse, &k, &v, &mut rounded);
        let (mut k, mut v) = rows_of(backend, coarse, &rounded);
        heads(&mut k, &|head| unrotate_head(backend, basis.k, head));
        heads(&mut v, &|head| unrotate_head(backend, basis.v, head));
        write(backend, shape, &k, &v, to);
    }
    to
}

fn write(backend: Backend, shape: KvShape, k: &[f32], v: &[f32], to: &mut [u8]) {
    let (to_k, to_v) = to.split_at_mut(shape.k_bytes());
    write_k_rows(backend, shape, to_k, 0, k);
    write_v_rows(backend, shape, to_v, 0, v);
}

/// Keys and values of a block, (slot, kv_head, dim).
fn rows_of(backend: Backend, shape: KvShape, block: &[u8]) -> (Vec<f32>, Vec<f32>) {
    let (dim, heads) = (shape.head_dim, shape.kv_heads);
    let (k_bytes, v_bytes) = (shape.form.k.head_bytes(dim), shape.form.v.head_bytes(dim));
    let mut head = vec![0.0; BLOCK_SLOTS * dim];
    let mut k = vec![0.0; BLOCK_SLOTS * heads * dim];
    let mut v = k.clone();
    let (from_k, from_v) = block.split_at(shape.k_bytes());
    for h in 0..heads {
        let (from_k, from_v) = (&from_k[h * k_bytes..], &from_v[h * v_bytes..]);
        read_k_head(backend, dim, shape.form.k, from_k, &mut head);
        for (i, x) in head.iter().enumerate() {
            k[(i % BLOCK_SLOTS * heads + h) * dim + i / BLOCK_SLOTS] = *x;
        }
        read_v_head(backend, dim, shape.form.v, from_v, &mut head);
        for (slot, x) in head.chunks_exact(dim).enumerate() {
            v[(slot * heads + h) * dim..][..dim].copy_from_slice(x);
        }
    }
    (k, v)
}
