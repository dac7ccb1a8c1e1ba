//! Encoding of rows into blocks (subtract the mean, rotate, quantise) and recoding of near blocks into the far form.
//!
//! An encoded row depends on that row alone, and a far block on its near bytes alone.

use crate::error::{CacheResult, copied, filled};
use crate::size::LayerShape;
use haversack_kernels::Exec;
use haversack_kernels::cpu::Backend as Kernels;
use haversack_kernels::format::kv::code::{
    recode_k_head, recode_v_head, write_k_rows, write_sink_row, write_v_rows,
};
use haversack_kernels::format::kv::error_feedback::{self, ErrorFeedback};
use haversack_kernels::format::kv::{BLOCK_SLOTS, KvShape, Rotation};
use haversack_kernels::ops::rotation::rotate_head;
use haversack_kernels::threads::chunks_mut;
use std::ops::Range;

/// The mean key of a layer: (kv_head, dim).
pub(crate) struct Mean {
    /// In the model's basis.
    model: Vec<f32>,
    /// In the layer's basis.
    pub rotated: Vec<f32>,
}

impl Mean {
    pub fn new(shape: LayerShape, model: Vec<f32>) -> CacheResult<Mean> {
        let mut rotated = copied(&model)?;
        let (to, dim) = (shape.basis().k, shape.head_dim);
        rotate_rows(Kernels::best(), to, dim, &mut rotated);
        Ok(Mean { model, rotated })
    }

    pub fn bytes(&self) -> usize {
        (self.model.capacity() + self.rotated.capacity()) * size_of::<f32>()
    }
}

/// Staging buffers for rows to be encoded and blocks to be recoded. Allocated once, so that a step allocates nothing.
pub(crate) struct Staging {
    /// Keys or values, (block, slot, kv_head, dim).
    pub rows: Vec<f32>,
    /// Encoded keys or values, (block); or recoded blocks, (block, kv_head) { keys values }.
    pub coded: Vec<u8>,
}

/// Target size of a staged batch, which has one block at least: a few units for each thread, and within the L2 cache.
const STAGED_BYTES: usize = 128 << 10;

impl Staging {
    /// (layer): its shape, and whether its keys are centred.
    pub fn new(layers: impl Iterator<Item = (LayerShape, bool)>) -> CacheResult<Staging> {
        let (rows, coded) = staged(layers);
        Ok(Staging {
            rows: filled(rows, 0.0)?,
            coded: filled(coded, 0)?,
        })
    }

    pub fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<f32>() + self.coded.capacity()
    }
}

/// The bytes of a store's staging buffers. Layers whose keys are centred are rotated as well.
pub fn staging_bytes(layers: &[LayerShape]) -> usize {
    let (rows, coded) = staged(layers.iter().map(|&layer| (layer, false)));
    rows.saturating_mul(size_of::<f32>()).saturating_add(coded)
}

/// Values and bytes of the layer that needs most. Rows that are encoded as they come need none.
fn staged(layers: impl Iterator<Item = (LayerShape, bool)>) -> (usize, usize) {
    let (mut rows, mut coded) = (0, 0);
    for (layer, centred) in layers {
        if centred || layer.basis() != Default::default() {
            let blocks = batch_row_blocks(layer);
            let near = layer.near_shape();
            let values = layer.width().saturating_mul(BLOCK_SLOTS);
            rows = rows.max(values.saturating_mul(blocks));
            let side = near.k_bytes().max(near.v_bytes());
            coded = coded.max(side.saturating_mul(blocks));
        }
        if layer.zoned() {
            let block = layer.far_shape().block_bytes();
            coded = coded.max(block.saturating_mul(batch_blocks(block)));
        }
    }
    (rows, coded)
}

/// Blocks of this size per staged batch.
pub(crate) fn batch_blocks(block_bytes: usize) -> usize {
    (STAGED_BYTES / block_bytes.max(1)).clamp(1, 16)
}

/// Blocks of new rows per staged batch.
pub(crate) fn batch_row_blocks(shape: LayerShape) -> usize {
    let row = shape.width().saturating_mul(size_of::<f32>());
    batch_blocks(row.saturating_mul(BLOCK_SLOTS))
}

/// Keys or values of new rows, and how to encode them.
#[derive(Clone, Copy)]
pub(crate) struct KvSide<'a> {
    pub keys: bool,
    /// (row, kv_head, dim), as the model computed them.
    pub rows: &'a [f32],
    pub rotation: Rotation,
    pub mean: Option<&'a Mean>,
    pub error_feedback: Option<&'a ErrorFeedback>,
}

impl<'a> KvSide<'a> {
    /// Whether rows are encoded as they come.
    pub fn is_raw(&self) -> bool {
        self.mean.is_none() && self.rotation == Rotation::None
    }

    /// The values of `range`, centred and rotated into `stage` block by block where that is needed.
    pub fn prepare(
        &self,
        exec: Exec<'_>,
        shape: LayerShape,
        stage: &'a mut [f32],
        range: Range<usize>,
    ) -> &'a [f32] {
        let rows = &self.rows[range];
        if self.is_raw() {
            return rows;
        }
        let stage = &mut stage[..rows.len()];
        let block = BLOCK_SLOTS * shape.width();
        chunks_mut(exec.pool, stage, block, &|i, stage: &mut [f32]| {
            stage.copy_from_slice(&rows[i * block..][..stage.len()]);
            if let Some(mean) = self.mean {
                for row in stage.chunks_exact_mut(shape.width()) {
                    row.iter_mut().zip(&mean.model).for_each(|(x, m)| *x -= m);
                }
            }
            rotate_rows(exec.backend, self.rotation, shape.head_dim, stage);
        });
        stage
    }

    /// Its part of a block's bytes.
    pub fn bytes(&self, shape: KvShape) -> Range<usize> {
        if self.keys {
            0..shape.k_bytes()
        } else {
            shape.k_bytes()..shape.block_bytes()
        }
    }

    /// Encodes prepared rows into its part of a block.
    pub fn encode(
        &self,
        backend: Kernels,
        shape: KvShape,
        to: &mut [u8],
        slot: usize,
        rows: &[f32],
    ) {
        match error_feedback(self.error_feedback, shape) {
            Some(carry) if self.keys => {
                error_feedback::write_k_rows(backend, shape, carry, to, slot, rows)
            }
            _ if self.keys => write_k_rows(backend, shape, to, slot, rows),
            _ => write_v_rows(backend, shape, to, slot, rows),
        }
    }
}

/// The error feedback of keys in this form, if it applies.
fn error_feedback(carry: Option<&ErrorFeedback>, shape: KvShape) -> Option<&ErrorFeedback> {
    carry.filter(|_| ErrorFeedback::fits(shape.form.k, shape.head_dim))
}

/// Recodes one head of a block from the near form to the far one. `to` is the head's keys, then its values.
pub(crate) fn recode_head(
    backend: Kernels,
    near: KvShape,
    far: KvShape,
    carry: Option<&ErrorFeedback>,
    head: usize,
    from: &[u8],
    to: &mut [u8],
) {
    let (from_k, from_v) = from.split_at(near.k_bytes());
    let (to_k, to_v) = to.split_at_mut(far.form.k.head_bytes(far.head_dim));
    let part = |bytes: usize| head * bytes..(head + 1) * bytes;
    let from_k = &from_k[part(near.form.k.head_bytes(near.head_dim))];
    let from_v = &from_v[part(near.form.v.head_bytes(near.head_dim))];
    let (dim, from, to) = (near.head_dim, near.form.k, far.form.k);
    match error_feedback(carry, far) {
        Some(carry) => {
            error_feedback::recode_k_head(backend, dim, from, from_k, to, carry.head(head), to_k)
        }
        None => recode_k_head(backend, dim, from, from_k, to, to_k),
    }
    recode_v_head(backend, dim, near.form.v, from_v, far.form.v, to_v);
}

/// Writes exact rows of the first tokens: one side of the sinks, (kv_head, slot, dim) with `sinks` slots.
pub(crate) fn write_sinks(
    backend: Kernels,
    shape: LayerShape,
    sinks: usize,
    side: &mut [u8],
    first_slot: usize,
    rows: &[f32],
) {
    for (i, row) in rows.chunks_exact(shape.width()).enumerate() {
        write_sink_row(backend, shape.head_dim, sinks, first_slot + i, row, side);
    }
}

/// Rotates heads, one after the other, into another basis.
fn rotate_rows(backend: Kernels, to: Rotation, head_dim: usize, rows: &mut [f32]) {
    if to != Rotation::None {
        for head in rows.chunks_exact_mut(head_dim) {
            rotate_head(backend, to, head);
        }
    }
}
