//! From what the model computed to the bytes of a block: centre, turn, code; and from the near form
//! to the far one.
//!
//! What a row becomes depends on that row alone, and a far block on its near bytes alone.

use crate::error::CacheError;
use crate::pool::reserve_exact;
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
    /// As the model computes keys.
    model: Vec<f32>,
    /// In the layer's basis.
    pub turned: Vec<f32>,
}

impl Mean {
    pub fn new(shape: LayerShape, model: Vec<f32>) -> Result<Mean, CacheError> {
        let mut turned = Vec::new();
        reserve_exact(&mut turned, model.len())?;
        turned.extend_from_slice(&model);
        turn_rows(
            Kernels::best(),
            shape.basis().k,
            shape.head_dim,
            &mut turned,
        );
        Ok(Mean { model, turned })
    }

    pub fn bytes(&self) -> usize {
        (self.model.capacity() + self.turned.capacity()) * size_of::<f32>()
    }
}

/// Room for rows on their way into blocks and for blocks on their way to the far form. Made once, so
/// that a step allocates nothing.
#[derive(Default)]
pub(crate) struct Staging {
    /// (block, slot, kv_head, dim) of keys or values.
    pub rows: Vec<f32>,
    /// (block) of keys or values; or (block, kv_head) { keys values }
    pub coded: Vec<u8>,
}

/// Bytes that are staged at once, one block at least: a few units for each thread, and they stay in
/// the second cache.
const STAGED_BYTES: usize = 128 << 10;

impl Staging {
    /// (layer): its shape, and whether a mean is taken from its keys.
    pub fn new(layers: impl Iterator<Item = (LayerShape, bool)>) -> Result<Staging, CacheError> {
        let mut staging = Staging::default();
        let (rows, coded) = staged(layers);
        reserve_exact(&mut staging.rows, rows)?;
        staging.rows.resize(rows, 0.0);
        reserve_exact(&mut staging.coded, coded)?;
        staging.coded.resize(coded, 0);
        Ok(staging)
    }

    pub fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<f32>() + self.coded.capacity()
    }
}

/// The bytes of a store's staging. Layers whose keys are centred are turned as well.
pub fn staging_bytes(layers: &[LayerShape]) -> usize {
    let (rows, coded) = staged(layers.iter().map(|&layer| (layer, false)));
    rows.saturating_mul(size_of::<f32>()).saturating_add(coded)
}

/// Values and bytes of the layer that needs most. Rows that are coded as they are need none.
fn staged(layers: impl Iterator<Item = (LayerShape, bool)>) -> (usize, usize) {
    let (mut rows, mut coded) = (0, 0);
    for (layer, centred) in layers {
        if centred || layer.basis() != Default::default() {
            let blocks = blocks_at_once(layer);
            let near = layer.near_shape();
            let values = layer.width().saturating_mul(BLOCK_SLOTS);
            rows = rows.max(values.saturating_mul(blocks));
            let side = near.k_bytes().max(near.v_bytes());
            coded = coded.max(side.saturating_mul(blocks));
        }
        if layer.zoned() {
            let block = layer.far_shape().block_bytes();
            coded = coded.max(block.saturating_mul(at_once(block)));
        }
    }
    (rows, coded)
}

/// Blocks of this size that are staged at once.
pub(crate) fn at_once(block_bytes: usize) -> usize {
    (STAGED_BYTES / block_bytes.max(1)).clamp(1, 16)
}

/// Blocks of new rows that are staged at once.
pub(crate) fn blocks_at_once(shape: LayerShape) -> usize {
    let row = shape.width().saturating_mul(size_of::<f32>());
    at_once(row.saturating_mul(BLOCK_SLOTS))
}

/// Keys or values of new rows: how they are made ready and where they go.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    pub keys: bool,
    /// (row, kv_head, dim), as the model computed them.
    pub rows: &'a [f32],
    pub turn: Rotation,
    pub mean: Option<&'a Mean>,
    pub carry: Option<&'a ErrorFeedback>,
}

impl<'a> Side<'a> {
    /// Coded as they are.
    pub fn is_ready(&self) -> bool {
        self.mean.is_none() && self.turn == Rotation::None
    }

    /// The values from `range` on as they are coded: centred and turned into `stage`, block by block.
    pub fn ready(
        &self,
        exec: Exec<'_>,
        shape: LayerShape,
        stage: &'a mut [f32],
        range: Range<usize>,
    ) -> &'a [f32] {
        let rows = &self.rows[range];
        if self.is_ready() {
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
            turn_rows(exec.backend, self.turn, shape.head_dim, stage);
        });
        stage
    }

    /// Its part of a block's bytes.
    pub fn bytes(&self, shape: KvShape) -> Range<usize> {
        match self.keys {
            true => 0..shape.k_bytes(),
            false => shape.k_bytes()..shape.block_bytes(),
        }
    }

    /// Codes rows that are ready into its part of a block.
    pub fn code(&self, backend: Kernels, shape: KvShape, to: &mut [u8], slot: usize, rows: &[f32]) {
        match carried(self.carry, shape) {
            Some(carry) if self.keys => {
                error_feedback::write_k_rows(backend, shape, carry, to, slot, rows)
            }
            _ if self.keys => write_k_rows(backend, shape, to, slot, rows),
            _ => write_v_rows(backend, shape, to, slot, rows),
        }
    }
}

/// What the keys of this form are rounded with, if they are.
fn carried(carry: Option<&ErrorFeedback>, shape: KvShape) -> Option<&ErrorFeedback> {
    carry.filter(|_| ErrorFeedback::fits(shape.form.k, shape.head_dim))
}

/// One head of a block from the near form to the far one. `to` is the head's keys, then its values.
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
    match carried(carry, far) {
        Some(carry) => {
            error_feedback::recode_k_head(backend, dim, from, from_k, to, carry.head(head), to_k)
        }
        None => recode_k_head(backend, dim, from, from_k, to, to_k),
    }
    recode_v_head(
        backend,
        near.head_dim,
        near.form.v,
        from_v,
        far.form.v,
        to_v,
    );
}

/// Exact rows of the first tokens: one side of the overlay, (kv_head, slot, dim) with `sinks` slots.
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

/// Heads, one after the other, into another basis.
fn turn_rows(backend: Kernels, to: Rotation, head_dim: usize, rows: &mut [f32]) {
    if to != Rotation::None {
        for head in rows.chunks_exact_mut(head_dim) {
            rotate_head(backend, to, head);
        }
    }
}
