//! The layers of a model and the pools that hold their blocks: everything a sequence's tables point into.

use crate::coding::{Mean, Staging, batch_blocks, recode_head};
use crate::error::{CacheError, CacheResult};
use crate::pool::{BlockId, BlockPool, Reservation};
use crate::row_stats::StatsFormat;
use crate::size::{LayerShape, Zones, near_from};
use crate::table::{BlockEntry, BlockTable, FormView, TableView};
use haversack_kernels::Exec;
use haversack_kernels::format::kv::BLOCK_SLOTS;
use haversack_kernels::format::kv::error_feedback::ErrorFeedback;
use haversack_kernels::threads::chunks_mut;
use haversack_memory::{Backing, SlabIo};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a slab: a huge page, rounded up to whole blocks. A short chat stays small all the same, because only written
/// pages of a slab that is not full are resident.
pub const SLAB_BYTES: usize = 2 << 20;

#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    pub layers: Vec<LayerShape>,
    pub zones: Zones,
    /// (layer): the mean key, (kv_head, dim), in the model's own basis. An empty list = none.
    pub means: Vec<Option<Vec<f32>>>,
    /// (layer): error feedback for the rounding of keys. An empty list = none.
    pub error_feedback: Vec<Option<ErrorFeedback>>,
    /// Limit for the total of the [`crate::Ledger`]; `None` = no limit.
    pub budget_bytes: Option<usize>,
    /// What [`crate::Store::open`] records about each row, so that single rows can be evicted ([`crate::Store::evict_rows`]).
    pub row_stats: Option<StatsFormat>,
    /// Where the pages of blocks come from.
    pub backing: Backing,
    /// The arenas' calls to the system; `None` = the real ones.
    pub slab_io: Option<Arc<dyn SlabIo>>,
    /// Rounded up to whole blocks; `None` = [`SLAB_BYTES`].
    pub slab_bytes: Option<usize>,
}

/// A layer: its shape, what its keys are encoded with, and the pools of its blocks.
pub(super) struct Layer {
    pub shape: LayerShape,
    pub near_pool: usize,
    /// The same as `near_pool` where near and far are one form.
    pub far_pool: usize,
    pub sink_pool: Option<usize>,
    pub mean: Option<Mean>,
    pub error_feedback: Option<ErrorFeedback>,
}

impl Layer {
    /// Pool and block of each form that an entry has.
    pub fn forms(&self, entry: &BlockEntry) -> impl Iterator<Item = (usize, BlockId)> + use<> {
        let near = entry.near.map(|id| (self.near_pool, id));
        let far = entry.far.map(|id| (self.far_pool, id));
        near.into_iter().chain(far)
    }

    /// The form that queries read: the near one while there is one.
    pub fn form(&self, entry: &BlockEntry) -> Option<(usize, BlockId)> {
        self.forms(entry).next()
    }

    /// Pool and block of the exact first tokens.
    pub fn sinks(&self, sinks: Option<BlockId>) -> Option<(usize, BlockId)> {
        self.sink_pool.zip(sinks)
    }

    /// Drops the references of an entry.
    pub fn release(&self, pools: &mut [BlockPool], entry: &BlockEntry) {
        for (pool, id) in self.forms(entry) {
            pools[pool].release(id);
        }
    }

    /// Drops the far forms of near entries, except `kept`.
    pub fn release_far(
        &self,
        pools: &mut [BlockPool],
        table: &mut BlockTable,
        kept: Option<BlockId>,
    ) {
        for entry in table.entries.iter_mut().rev().filter(|e| e.is_near()) {
            if let Some(far) = entry.far.take_if(|far| Some(*far) != kept) {
                pools[self.far_pool].release(far);
            }
        }
    }

    pub fn release_sinks(&self, pools: &mut [BlockPool], sinks: Option<BlockId>) {
        if let Some((pool, id)) = self.sinks(sinks) {
            pools[pool].release(id);
        }
    }

    fn key_bytes(&self) -> usize {
        self.mean.as_ref().map_or(0, Mean::bytes)
            + self.error_feedback.as_ref().map_or(0, ErrorFeedback::bytes)
    }
}

pub(super) struct Storage {
    pub shapes: Vec<LayerShape>,
    pub layers: Vec<Layer>,
    pub zones: Zones,
    /// One pool per block size.
    pub pools: Vec<BlockPool>,
    pub staging: Staging,
}

impl Storage {
    /// Pools without blocks.
    pub fn new(options: StoreOptions) -> CacheResult<Storage> {
        let StoreOptions { layers, zones, .. } = options;
        if zones.sinks > BLOCK_SLOTS {
            return Err(CacheError::TooMany {
                what: "the number of sinks",
                found: zones.sinks,
                max: BLOCK_SLOTS,
            });
        }
        let mut means = options.means;
        means.resize_with(layers.len(), || None);
        let mut error_feedback = options.error_feedback;
        error_feedback.resize_with(layers.len(), || None);
        let slab_bytes = options.slab_bytes.unwrap_or(SLAB_BYTES);
        let mut pools: Vec<BlockPool> = Vec::new();
        let mut pool_of = |block_bytes: usize| {
            let known = pools.iter().position(|p| p.block_bytes() == block_bytes);
            if let Some(pool) = known {
                return Ok(pool);
            }
            let io = options.slab_io.clone();
            let pool = BlockPool::new(block_bytes, slab_bytes, options.backing, io)?;
            pools.push(pool);
            Ok::<usize, CacheError>(pools.len() - 1)
        };
        let mut made = Vec::new();
        let known = means.into_iter().zip(error_feedback);
        for (i, (&shape, (mean, error_feedback))) in layers.iter().zip(known).enumerate() {
            if !shape.fits() {
                let head_dim = shape.head_dim;
                return Err(CacheError::Form { layer: i, head_dim });
            }
            let near_pool = pool_of(shape.near_shape().block_bytes())?;
            let far_pool = pool_of(shape.far_shape().block_bytes())?;
            let sink_pool = match shape.sink_bytes(zones) {
                0 => None,
                bytes => Some(pool_of(bytes)?),
            };
            let expected = shape.width();
            let found = mean.as_ref().map_or(expected, Vec::len);
            if found != expected {
                return Err(CacheError::Mean {
                    layer: i,
                    expected,
                    found,
                });
            }
            let heads = |f: &ErrorFeedback| (f.kv_heads(), f.head_dim());
            let own = (shape.kv_heads, shape.head_dim);
            if error_feedback.as_ref().map_or(own, heads) != own {
                return Err(CacheError::ErrorFeedback { layer: i });
            }
            made.push(Layer {
                shape,
                near_pool,
                far_pool,
                sink_pool,
                mean: mean.map(|mean| Mean::new(shape, mean)).transpose()?,
                error_feedback,
            });
        }
        Ok(Storage {
            staging: Staging::new(made.iter().map(|l| (l.shape, l.mean.is_some())))?,
            shapes: layers,
            layers: made,
            zones,
            pools,
        })
    }

    pub fn layer(&self, layer: usize) -> CacheResult<&Layer> {
        let (found, layers) = (self.layers.get(layer), self.layers.len());
        found.ok_or(CacheError::NoSuchLayer { layer, layers })
    }

    /// Bytes of mean keys and error feedback.
    pub fn key_bytes(&self) -> usize {
        self.layers.iter().map(Layer::key_bytes).sum()
    }

    /// Bytes of the form that queries read.
    pub fn entry_bytes(&self, layer: &Layer, entry: &BlockEntry) -> usize {
        let form = layer.form(entry);
        form.map_or(0, |(pool, _)| self.pools[pool].block_bytes())
    }

    pub fn sink_bytes(&self, layer: &Layer, table: &BlockTable) -> usize {
        let sinks = layer.sinks(table.sinks);
        sinks.map_or(0, |(pool, _)| self.pools[pool].block_bytes())
    }

    /// Bytes of live blocks that queries read.
    pub fn live_bytes(&self) -> usize {
        let live = |p: &BlockPool| (p.live() - p.ahead()) * p.block_bytes();
        self.pools.iter().map(live).sum()
    }

    /// One table as attention reads it.
    pub fn view<'a>(
        &'a self,
        layer: &Layer,
        table: &'a BlockTable,
        cuts: &'a [u64],
    ) -> TableView<'a> {
        TableView {
            table,
            near: FormView::new(&self.pools[layer.near_pool], layer.shape.near_shape()),
            far: FormView::new(&self.pools[layer.far_pool], layer.shape.far_shape()),
            sinks: layer.sink_pool.map(|pool| &self.pools[pool]),
            sink_rows: self.zones.sinks,
            recent_blocks: self.zones.recent_blocks(),
            cuts,
        }
    }

    pub fn release_empty_slabs(&mut self) -> usize {
        let pools = self.pools.iter_mut();
        pools.map(BlockPool::release_empty_slabs).sum()
    }

    /// The first block of a layer in the recent zone when the last query is at `position - 1`.
    pub fn near_from(&self, layer: &Layer, position: u64) -> u64 {
        near_from(layer.shape, self.zones, position)
    }

    /// Makes the far forms of these entries; they keep their near forms.
    pub fn recode(
        &mut self,
        exec: Exec<'_>,
        l: usize,
        table: &mut BlockTable,
        range: Range<usize>,
        reservation: &mut Reservation,
    ) {
        let layer = &self.layers[l];
        let (near, far) = (layer.shape.near_shape(), layer.shape.far_shape());
        let k_head = far.form.k.head_bytes(far.head_dim);
        let v_head = far.form.v.head_bytes(far.head_dim);
        let mut first = range.start;
        while first < range.end {
            let entries = first..range.end.min(first + batch_blocks(far.block_bytes()));
            let pool = &self.pools[layer.near_pool];
            let coded = &mut self.staging.coded[..entries.len() * far.block_bytes()];
            chunks_mut(exec.pool, coded, k_head + v_head, &|unit, to: &mut [u8]| {
                let entry = &table.entries[entries.start + unit / far.kv_heads];
                if let Some(id) = entry.near {
                    let head = unit % far.kv_heads;
                    let feedback = layer.error_feedback.as_ref();
                    recode_head(exec.backend, near, far, feedback, head, pool.bytes(id), to);
                }
            });
            let pool = &mut self.pools[layer.far_pool];
            let blocks = self.staging.coded.chunks_exact(far.block_bytes());
            for (entry, coded) in table.entries[entries.clone()].iter_mut().zip(blocks) {
                let id = pool.acquire(reservation);
                let (k, v) = pool.bytes_mut(id).split_at_mut(far.k_bytes());
                let heads = coded.chunks_exact(k_head + v_head);
                for (head, coded) in heads.enumerate() {
                    k[head * k_head..][..k_head].copy_from_slice(&coded[..k_head]);
                    v[head * v_head..][..v_head].copy_from_slice(&coded[k_head..]);
                }
                entry.far = Some(id);
            }
            first = entries.end;
        }
    }
}
