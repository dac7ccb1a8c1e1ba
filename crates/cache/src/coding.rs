//! From what the model computed to the bytes of a block: centre, turn, code; and from the near form
//! to the far one.
//!
//! What a row becomes depends on that row alone, and a far block on its near bytes alone.

use crate::error::CacheError;
use crate::pool::reserve_exact;
use crate::size::LayerShape;
use haversack_kernels::cpu::Table as Kernels;
use haversack_kernels::format::kv::code::{
    recode_k_head, recode_v_head, write_k_rows, write_sink_row, write_v_rows,
};
use haversack_kernels::format::kv::{BLOCK_SLOTS, KvShape, Turn};
use haversack_kernels::ops::turn::turn;

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

/// Room for rows on their way into a block and for blocks on their way to the far form. Made once,
/// so that a step allocates nothing.
#[derive(Default)]
pub(crate) struct Staging {
    /// (slot, kv_head, dim) of one block's keys or values.
    pub rows: Vec<f32>,
    /// (block, kv_head) { keys values }
    pub coded: Vec<u8>,
}

/// Coded bytes of far blocks that are made at once, one block at least: enough units for all
/// threads, and it stays in the second cache.
const RECODE_BYTES: usize = 256 << 10;

impl Staging {
    pub fn new(layers: &[LayerShape], centred: bool) -> Result<Staging, CacheError> {
        let mut staging = Staging::default();
        let rows = layers
            .iter()
            .filter(|l| centred || l.basis() != Default::default())
            .map(|l| l.width().saturating_mul(BLOCK_SLOTS));
        let rows = rows.max().unwrap_or(0);
        reserve_exact(&mut staging.rows, rows)?;
        staging.rows.resize(rows, 0.0);
        let coded = layers.iter().filter(|l| l.zoned()).map(|l| {
            let block = l.far_shape().block_bytes();
            block.saturating_mul(recode_batch(block))
        });
        let coded = coded.max().unwrap_or(0);
        reserve_exact(&mut staging.coded, coded)?;
        staging.coded.resize(coded, 0);
        Ok(staging)
    }

    pub fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<f32>() + self.coded.capacity()
    }
}

/// Far blocks of this size that are made at once.
pub(crate) fn recode_batch(block_bytes: usize) -> usize {
    (RECODE_BYTES / block_bytes.max(1)).clamp(1, 16)
}

/// Rows of one block as they are coded: centred and turned into `stage`, or as they are where
/// nothing is to be done.
pub(crate) fn prepare<'a>(
    table: Kernels,
    shape: LayerShape,
    to: Turn,
    mean: Option<&Mean>,
    stage: &'a mut [f32],
    rows: &'a [f32],
) -> &'a [f32] {
    if mean.is_none() && to == Turn::None {
        return rows;
    }
    let stage = &mut stage[..rows.len()];
    stage.copy_from_slice(rows);
    if let Some(mean) = mean {
        for row in stage.chunks_exact_mut(shape.width()) {
            row.iter_mut().zip(&mean.model).for_each(|(x, m)| *x -= m);
        }
    }
    turn_rows(table, to, shape.head_dim, stage);
    stage
}

pub(crate) fn write_k(table: Kernels, shape: KvShape, block: &mut [u8], slot: usize, rows: &[f32]) {
    write_k_rows(table, shape, &mut block[..shape.k_bytes()], slot, rows);
}

pub(crate) fn write_v(table: Kernels, shape: KvShape, block: &mut [u8], slot: usize, rows: &[f32]) {
    write_v_rows(table, shape, &mut block[shape.k_bytes()..], slot, rows);
}

/// One head of a block from the near form to the far one. `to` is the head's keys, then its values.
pub(crate) fn recode_head(
    table: Kernels,
    near: KvShape,
    far: KvShape,
    head: usize,
    from: &[u8],
    to: &mut [u8],
) {
    let (from_k, from_v) = from.split_at(near.k_bytes());
    let (to_k, to_v) = to.split_at_mut(far.form.k.head_bytes(far.head_dim));
    let part = |bytes: usize| head * bytes..(head + 1) * bytes;
    let from_k = &from_k[part(near.form.k.head_bytes(near.head_dim))];
    let from_v = &from_v[part(near.form.v.head_bytes(near.head_dim))];
    recode_k_head(table, near.head_dim, near.form.k, from_k, far.form.k, to_k);
    recode_v_head(table, near.head_dim, near.form.v, from_v, far.form.v, to_v);
}

/// Exact rows of the first tokens: one side of the overlay, (kv_head, slot, dim) with `sinks` slots.
pub(crate) fn write_sinks(
    table: Kernels,
    shape: LayerShape,
    sinks: usize,
    side: &mut [u8],
    first_slot: usize,
    rows: &[f32],
) {
    for (i, row) in rows.chunks_exact(shape.width()).enumerate() {
        write_sink_row(table, shape.head_dim, sinks, first_slot + i, row, side);
    }
}

/// Heads, one after the other, into another basis.
fn turn_rows(table: Kernels, to: Turn, head_dim: usize, rows: &mut [f32]) {
    if to != Turn::None {
        for head in rows.chunks_exact_mut(head_dim) {
            turn(table, to, head);
        }
    }
}
