//! Byte arithmetic of keys and values, shared by planner, ledger and documentation.
//!
//! Counts whole blocks, as the pools hand them out, so that these numbers equal the ledger's. Tables and free lists are
//! not included ([`crate::Ledger::tables`]).

use haversack_kernels::format::kv::code::sink_bytes;
use haversack_kernels::format::kv::{BLOCK_SLOTS, Basis, Form, KvForm, KvShape};
use std::ops::Range;

/// [`BLOCK_SLOTS`], in the type of positions.
pub(crate) const SLOTS: u64 = BLOCK_SLOTS as u64;

/// Upper limit for the K values of one token in a layer: a hundred times the largest model's, and far from
/// overflowing any product here.
const WIDTH_MAX: usize = 1 << 20;

/// How one layer stores each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Form of blocks in the recent zone.
    pub near: KvForm,
    /// Form of older blocks, recoded from the near one.
    pub far: KvForm,
    /// Sliding-window layer: a query at `p` attends to positions above `p - window` only.
    pub window: Option<u64>,
}

impl LayerShape {
    /// One form, full attention.
    pub const fn plain(kv_heads: usize, head_dim: usize, form: KvForm) -> LayerShape {
        LayerShape {
            kv_heads,
            head_dim,
            near: form,
            far: form,
            window: None,
        }
    }

    pub const fn near_shape(self) -> KvShape {
        self.shape(self.near)
    }

    pub const fn far_shape(self) -> KvShape {
        self.shape(self.far)
    }

    const fn shape(self, form: KvForm) -> KvShape {
        KvShape {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            form,
        }
    }

    /// The basis of both forms, chosen by the far one.
    pub const fn basis(self) -> Basis {
        Basis::of(self.far)
    }

    /// Whether blocks are recoded when they leave the recent zone.
    pub fn zoned(self) -> bool {
        self.near != self.far
    }

    /// Whether heads of this size can be stored in these forms. Check numbers from a file here first: everything else
    /// in this module multiplies them.
    pub fn fits(self) -> bool {
        let width = self.kv_heads.saturating_mul(self.head_dim);
        let forms = self.forms().iter().all(|form| form.fits(self.head_dim));
        forms && width > 0 && width <= WIDTH_MAX
    }

    /// Of keys and values, near and far.
    fn forms(self) -> [Form; 4] {
        [self.near.k, self.near.v, self.far.k, self.far.v]
    }

    /// The form of blocks that are no longer recent.
    pub const fn final_shape(self) -> KvShape {
        // Where near and far are one form, both shapes are the same.
        self.far_shape()
    }

    /// Values of K (and of V) per token.
    pub const fn width(self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes of the exact copy of the first tokens (the sinks); 0 where blocks hold floats anyway.
    pub fn sink_bytes(self, zones: Zones) -> usize {
        match self.forms().iter().all(|form| form.codec.is_float()) {
            true => 0,
            false => 2 * sink_bytes(self.kv_heads, self.head_dim, zones.sinks),
        }
    }
}

/// Which tokens are stored more precisely than the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    /// First tokens of a sequence that have an exact f16 copy, at most 32.
    pub sinks: usize,
    /// Most recent tokens stored in the near form, in addition to the current block; rounded up to blocks.
    pub recent: usize,
}

impl Zones {
    /// Block distance up to which a query reads the near form.
    pub const fn recent_blocks(self) -> u64 {
        (self.recent as u64).div_ceil(SLOTS)
    }
}

/// Parameters of [`crate::policy::window`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowParams {
    /// First tokens, which always stay.
    pub anchors: u64,
    /// Most recent tokens, which stay.
    pub window: u64,
}

impl WindowParams {
    /// The positions that are evicted by `position`.
    pub fn gap(self, position: u64) -> Range<u64> {
        let start = self.anchors;
        let end = position.saturating_sub(self.window) / SLOTS * SLOTS;
        start..end.max(start)
    }
}

/// Which tokens of a sequence are still stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptTokens {
    /// All of them.
    All,
    /// What the window policy keeps when it runs at every position where it can evict a block.
    Window(WindowParams),
}

/// Bytes of keys and values per token in the far form, over all layers. Counts KV heads, not query heads.
pub fn bytes_per_token(layers: &[LayerShape]) -> usize {
    let blocks: usize = layers.iter().map(|l| l.far_shape().block_bytes()).sum();
    blocks / BLOCK_SLOTS
}

/// Bytes of the live blocks of one sequence after `position` tokens.
pub fn kv_bytes(layers: &[LayerShape], zones: Zones, kept: KeptTokens, position: u64) -> u64 {
    let (head, tail) = kept.blocks(position);
    let sum = layers.iter().map(|layer| {
        let window = layer.window;
        let seen = window.map_or(0, |window| first_seen_block(window, position));
        let near_from = near_from(*layer, zones, position);
        let mut bytes = 0u64;
        for blocks in [head.clone(), tail.clone()] {
            let blocks = blocks.start.max(seen)..blocks.end.max(seen);
            let far = blocks.end.min(near_from).saturating_sub(blocks.start);
            let near = (blocks.end - blocks.start) - far;
            bytes = bytes
                .saturating_add(far.saturating_mul(layer.far_shape().block_bytes() as u64))
                .saturating_add(near.saturating_mul(layer.near_shape().block_bytes() as u64));
        }
        let first_is_kept = seen == 0 && (head.start < head.end || tail.start == 0);
        if position > 0 && first_is_kept {
            bytes = bytes.saturating_add(layer.sink_bytes(zones) as u64);
        }
        bytes
    });
    sum.fold(0, u64::saturating_add)
}

/// Bytes that a step of `tokens` from `position` on reserves in addition to what is live: the worst case of one sequence
/// that shares nothing and still has its recent blocks.
pub fn reserve_bytes(layers: &[LayerShape], zones: Zones, position: u64, tokens: usize) -> u64 {
    // (block bytes, most blocks that one layer returns when it is settled)
    let mut transient: Vec<(usize, u64)> = Vec::new();
    let mut bytes = 0u64;
    for layer in layers {
        let state = TableState::alone(*layer, zones, position, tokens);
        let need = BlockDemand::of(*layer, zones, position, tokens, state);
        let (near, far) = (
            layer.near_shape().block_bytes(),
            layer.far_shape().block_bytes(),
        );
        for (blocks, size) in [
            (need.near, near),
            (need.far, far),
            (need.sinks, layer.sink_bytes(zones)),
        ] {
            bytes = bytes.saturating_add(blocks.saturating_mul(size as u64));
        }
        match transient.iter_mut().find(|(size, _)| *size == near) {
            Some((_, max)) => *max = need.transient.max(*max),
            None => transient.push((near, need.transient)),
        }
    }
    transient.iter().fold(bytes, |sum, &(size, blocks)| {
        sum.saturating_add(blocks.saturating_mul(size as u64))
    })
}

/// Bytes that a fork at `position` keeps alive while the original sequence grows by `tokens`: near forms that the
/// original has recoded by then, and the block it was writing to, which it copies.
pub fn fork_bytes(layers: &[LayerShape], zones: Zones, position: u64, tokens: usize) -> u64 {
    let of = |layer: &LayerShape| {
        let leaving = TableState::alone(*layer, zones, position, tokens).leaving;
        let near = layer.near_shape().block_bytes() as u64;
        leaving.saturating_add(1).saturating_mul(near)
    };
    layers.iter().map(of).fold(0, u64::saturating_add)
}

impl KeptTokens {
    /// Blocks before and after the gap.
    fn blocks(self, position: u64) -> (Range<u64>, Range<u64>) {
        let end = position.div_ceil(SLOTS);
        let gap = match self {
            KeptTokens::All => 0..0,
            KeptTokens::Window(params) => params.gap(position),
        };
        match gap.is_empty() {
            true => (0..0, 0..end),
            false => (0..gap.start.div_ceil(SLOTS), gap.end / SLOTS..end),
        }
    }
}

/// The largest number up to `max` that fits, 0 if not even 1 does, by binary search: `fits` must be monotone.
pub fn largest_that_fits(max: u64, fits: impl Fn(u64) -> bool) -> u64 {
    // `low` fits or is 0, `high` does not fit or is past `max`.
    let (mut low, mut high) = (0, 1);
    while high <= max && fits(high) {
        (low, high) = (high, high.saturating_mul(2));
    }
    high = high.min(max.saturating_add(1));
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The first block that a query at `position` or later can attend to in a layer with this window. Exactly the blocks
/// before it have `last position + window <= position`.
pub(crate) fn first_seen_block(window: u64, position: u64) -> u64 {
    // The block of the first visible position, `position - window + 1`. A query always sees itself.
    (position + 1).saturating_sub(window.max(1)) / SLOTS
}

/// The first block in the recent zone when the last query is at `position - 1`.
pub(crate) fn near_from(layer: LayerShape, zones: Zones, position: u64) -> u64 {
    if !layer.zoned() {
        return 0;
    }
    (position.saturating_sub(1) / SLOTS).saturating_sub(zones.recent_blocks())
}

/// What a step must know of a table to count the blocks it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableState {
    /// Near blocks that leave the recent zone in this step.
    pub leaving: u64,
    /// The last block is partly filled and shared, so the step copies it before writing.
    pub copy_tail: bool,
    /// The sinks must be allocated, or copied before they are written.
    pub make_sinks: bool,
}

impl TableState {
    fn alone(layer: LayerShape, zones: Zones, position: u64, tokens: usize) -> TableState {
        let before = near_from(layer, zones, position);
        let after = near_from(layer, zones, position.saturating_add(tokens as u64));
        TableState {
            leaving: after.min(position.div_ceil(SLOTS)).saturating_sub(before),
            copy_tail: false,
            make_sinks: position == 0,
        }
    }
}

/// Blocks that a step takes for one layer of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockDemand {
    /// In near form, until the end of the step or longer.
    pub near: u64,
    /// In near form, until the layer is settled.
    pub transient: u64,
    pub far: u64,
    pub sinks: u64,
}

impl BlockDemand {
    pub fn of(
        layer: LayerShape,
        zones: Zones,
        position: u64,
        tokens: usize,
        state: TableState,
    ) -> BlockDemand {
        if tokens == 0 {
            return BlockDemand::default();
        }
        let end = position.saturating_add(tokens as u64);
        let near_from = near_from(layer, zones, end);
        let (first, last) = (position.div_ceil(SLOTS), end.div_ceil(SLOTS));
        let mut transient = near_from.min(last).saturating_sub(first);
        let mut near = (last - first) - transient;
        let far = transient + state.leaving;
        if state.copy_tail {
            if position / SLOTS < near_from {
                transient += 1;
            } else {
                near += 1;
            }
        }
        let writes_sinks = layer.sink_bytes(zones) > 0 && position < zones.sinks as u64;
        BlockDemand {
            near,
            transient,
            far,
            sinks: u64::from(writes_sinks && state.make_sinks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_kernels::format::kv::Codec;

    #[test]
    fn known_models() {
        let layers = |n, kv_heads, head_dim| {
            let layer = LayerShape::plain(kv_heads, head_dim, KvForm::F16);
            vec![layer; n]
        };
        assert_eq!(bytes_per_token(&layers(30, 3, 64)), 23_040, "SmolLM2-135M");
        assert_eq!(bytes_per_token(&layers(32, 32, 128)), 512 << 10, "LLaMA-7B");
    }

    #[test]
    fn largest_that_fits_finds_the_limit() {
        for max in [0, 1, 2, 3, 7, 8, 9, 100] {
            for limit in 0..=max + 2 {
                let found = largest_that_fits(max, |n| {
                    assert!((1..=max).contains(&n));
                    n <= limit
                });
                assert_eq!(found, limit.min(max), "up to {max}");
            }
        }
    }

    #[test]
    fn absurd_heads_do_not_fit() {
        let fits = |heads, dim, form| LayerShape::plain(heads, dim, form).fits();
        assert!(fits(128, 256, KvForm::F16));
        assert!(!fits(0, 64, KvForm::F16));
        assert!(!fits(8, 0, KvForm::F16));
        assert!(!fits(usize::MAX, 64, KvForm::F32));
        assert!(!fits(1, 1 << 40, KvForm::F16));
        let odd = KvForm::both(haversack_kernels::format::kv::Form {
            codec: Codec::Int4,
            group: 20,
        });
        assert!(!fits(1, 64, odd), "groups that end inside a byte");
    }

    #[test]
    fn a_window_sees_what_it_says() {
        for window in 1..100 {
            for position in 0..400 {
                let first = first_seen_block(window, position);
                for block in 0..20 {
                    let dropped = block * SLOTS + SLOTS - 1 + window <= position;
                    assert_eq!(dropped, block < first, "{window} {position} {block}");
                }
            }
        }
    }

    /// One step from the start and many small ones end with the same bytes, and the reservation
    /// covers them.
    #[test]
    fn reserved_is_enough_and_not_much_more() {
        let layer = LayerShape {
            near: KvForm::both(Codec::Int8.form()),
            far: KvForm::both(Codec::Int4.form()),
            ..LayerShape::plain(3, 64, KvForm::F16)
        };
        let zones = Zones {
            sinks: 4,
            recent: 64,
        };
        let layers = [layer; 5];
        for tokens in [1usize, 32, 96, 97, 128, 129, 512] {
            let after = kv_bytes(&layers, zones, KeptTokens::All, tokens as u64);
            let reserved = reserve_bytes(&layers, zones, 0, tokens);
            let transient = (tokens as u64).div_ceil(SLOTS).saturating_sub(3)
                * layer.near_shape().block_bytes() as u64;
            assert_eq!(reserved, after + transient, "{tokens}");
        }
    }
}
