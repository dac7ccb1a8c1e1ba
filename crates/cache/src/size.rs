//! How many bytes keys and values take. Planner, ledger and documents all ask here.
//!
//! Everything is counted in whole blocks, as the pools hand them out: what this file says is what
//! the ledger shows. What it does not count: tables and lists ([`crate::Ledger::tables`]).

use crate::policy::window::WindowParams;
use haversack_kernels::format::kv::code::sink_bytes;
use haversack_kernels::format::kv::{BLOCK_SLOTS, Basis, KvForm, KvShape};

/// [`BLOCK_SLOTS`] as positions count.
pub(crate) const SLOTS: u64 = BLOCK_SLOTS as u64;

/// Values of K that one token may have in a layer: a hundred times the largest model's, and far from
/// overflowing any product here.
const WIDTH_MAX: usize = 1 << 20;

/// What one layer keeps of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    pub kv_heads: usize,
    pub head_dim: usize,
    /// The form of blocks near the query.
    pub near: KvForm,
    /// The form of the others, made from the near one.
    pub far: KvForm,
    /// A sliding-window layer: a query at `p` sees positions above `p - window` only.
    pub window: Option<u64>,
}

impl LayerShape {
    /// One form, everything seen.
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
        KvShape {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            form: self.near,
        }
    }

    pub const fn far_shape(self) -> KvShape {
        KvShape {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            form: self.far,
        }
    }

    /// The basis of both forms: what the far one asks for.
    pub const fn basis(self) -> Basis {
        Basis::of(self.far)
    }

    /// Blocks change their form when they leave the recent zone.
    pub fn zoned(self) -> bool {
        self.near != self.far
    }

    /// Whether heads of this size can be stored so. Numbers that come from a file are asked here
    /// first: everything else in this module multiplies them.
    pub const fn fits(self) -> bool {
        let dim = self.head_dim;
        let width = self.kv_heads.saturating_mul(dim);
        let forms = self.near.k.fits(dim)
            && self.near.v.fits(dim)
            && self.far.k.fits(dim)
            && self.far.v.fits(dim);
        forms && width > 0 && width <= WIDTH_MAX
    }

    /// Values of K (and of V) per token.
    pub const fn width(self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes of the exact copy of the first tokens; 0 where the blocks are floats anyway.
    pub const fn sink_bytes(self, zones: Zones) -> usize {
        let floats = self.near.k.codec.is_float()
            && self.near.v.codec.is_float()
            && self.far.k.codec.is_float()
            && self.far.v.codec.is_float();
        if floats {
            0
        } else {
            2 * sink_bytes(self.kv_heads, self.head_dim, zones.sinks)
        }
    }
}

/// Which tokens are kept better than the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    /// First tokens of a sequence that have an f16 copy, at most 32.
    pub sinks: usize,
    /// Most recent tokens in the near form, beside the current block; rounded up to blocks.
    pub recent: usize,
}

impl Zones {
    /// Block distance up to which the near form is seen.
    pub const fn recent_blocks(self) -> u64 {
        (self.recent as u64).div_ceil(SLOTS)
    }
}

/// Which of the tokens seen are still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All of them.
    All,
    /// What the window policy leaves when it is asked wherever a block may leave.
    Window(WindowParams),
}

/// Bytes of keys and values per token in the far form, over all layers. It counts KV heads, not
/// query heads.
pub fn bytes_per_token(layers: &[LayerShape]) -> usize {
    let blocks: usize = layers.iter().map(|l| l.far_shape().block_bytes()).sum();
    blocks / BLOCK_SLOTS
}

/// Bytes of the live blocks of one sequence that has seen `position` tokens.
pub fn kv_bytes(layers: &[LayerShape], zones: Zones, kept: Kept, position: u64) -> u64 {
    let (head, tail) = kept.blocks(position);
    let sum = layers.iter().map(|layer| {
        let seen = layer
            .window
            .map_or(0, |window| first_seen_block(window, position));
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

/// Bytes that a step of `tokens` from `position` on reserves beside what is live: the worst case of
/// one sequence that shares nothing and still has its recent blocks.
pub fn reserve_bytes(layers: &[LayerShape], zones: Zones, position: u64, tokens: usize) -> u64 {
    // (block bytes, the most that one layer returns when it is settled)
    let mut transient: Vec<(usize, u64)> = Vec::new();
    let mut bytes = 0u64;
    for layer in layers {
        let standing = Standing::alone(*layer, zones, position, tokens);
        let need = Need::of(*layer, zones, position, tokens, standing);
        let near = layer.near_shape().block_bytes();
        bytes = bytes
            .saturating_add(need.near.saturating_mul(near as u64))
            .saturating_add(
                need.far
                    .saturating_mul(layer.far_shape().block_bytes() as u64),
            )
            .saturating_add(need.sinks.saturating_mul(layer.sink_bytes(zones) as u64));
        match transient.iter_mut().find(|(size, _)| *size == near) {
            Some((_, most)) => *most = need.transient.max(*most),
            None => transient.push((near, need.transient)),
        }
    }
    transient.iter().fold(bytes, |sum, &(size, blocks)| {
        sum.saturating_add(blocks.saturating_mul(size as u64))
    })
}

/// Bytes that a fork at `position` keeps while the sequence goes on for so many tokens: near forms that it does
/// without by then, and the block it was writing to, which it copies.
pub fn fork_bytes(layers: &[LayerShape], zones: Zones, position: u64, tokens: usize) -> u64 {
    let of = |layer: &LayerShape| {
        let leaving = Standing::alone(*layer, zones, position, tokens).leaving;
        let near = layer.near_shape().block_bytes() as u64;
        leaving.saturating_add(1).saturating_mul(near)
    };
    layers.iter().map(of).fold(0, u64::saturating_add)
}

impl Kept {
    /// Blocks before and after the gap.
    fn blocks(self, position: u64) -> (std::ops::Range<u64>, std::ops::Range<u64>) {
        let end = position.div_ceil(SLOTS);
        match self {
            Kept::All => (0..0, 0..end),
            Kept::Window(params) => {
                let gap = params.gap(position);
                if gap.is_empty() {
                    (0..0, 0..end)
                } else {
                    (0..gap.start.div_ceil(SLOTS), gap.end / SLOTS..end)
                }
            }
        }
    }
}

/// The largest number up to `most` that fits, 0 if not even 1 does. What fits, fits for every number
/// below. Asks a number of times that grows with the digits of the answer.
pub fn largest_that_fits(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    // `low` fits or is 0, `high` does not or is past `most`.
    let (mut low, mut high) = (0, 1);
    while high <= most && fits(high) {
        (low, high) = (high, high.saturating_mul(2));
    }
    high = high.min(most.saturating_add(1));
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

/// The first block that a query at `position` or later may see in a layer with this window. Exactly
/// those before it have `last position + window <= position`.
pub(crate) fn first_seen_block(window: u64, position: u64) -> u64 {
    // The block of the first position seen: `position - window + 1`. A query sees itself at least.
    (position + 1).saturating_sub(window.max(1)) / SLOTS
}

/// The first block that is near when the last query stood at `position - 1`.
pub(crate) fn near_from(layer: LayerShape, zones: Zones, position: u64) -> u64 {
    if !layer.zoned() {
        return 0;
    }
    (position.saturating_sub(1) / SLOTS).saturating_sub(zones.recent_blocks())
}

/// What a layer of a sequence holds that a step must know to count what it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Near blocks that the step makes far.
    pub leaving: u64,
    /// The last block is partly filled and must be copied before it is written.
    pub copy_tail: bool,
    /// The sinks must be made, or copied before they are written.
    pub make_sinks: bool,
}

impl Standing {
    fn alone(layer: LayerShape, zones: Zones, position: u64, tokens: usize) -> Standing {
        let before = near_from(layer, zones, position);
        let after = near_from(layer, zones, position.saturating_add(tokens as u64));
        Standing {
            leaving: after.min(position.div_ceil(SLOTS)).saturating_sub(before),
            copy_tail: false,
            make_sinks: position == 0,
        }
    }
}

/// Blocks that a step takes for one layer of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// In near form, until the end of the step at least.
    pub near: u64,
    /// In near form, until the layer is settled.
    pub transient: u64,
    pub far: u64,
    pub sinks: u64,
}

impl Need {
    pub fn of(
        layer: LayerShape,
        zones: Zones,
        position: u64,
        tokens: usize,
        standing: Standing,
    ) -> Need {
        if tokens == 0 {
            return Need::default();
        }
        let end = position.saturating_add(tokens as u64);
        let near_from = near_from(layer, zones, end);
        let (first, last) = (position.div_ceil(SLOTS), end.div_ceil(SLOTS));
        let mut transient = near_from.min(last).saturating_sub(first);
        let mut near = (last - first) - transient;
        let far = transient + standing.leaving;
        if standing.copy_tail {
            if position / SLOTS < near_from {
                transient += 1;
            } else {
                near += 1;
            }
        }
        let writes_sinks = layer.sink_bytes(zones) > 0 && position < zones.sinks as u64;
        Need {
            near,
            transient,
            far,
            sinks: u64::from(writes_sinks && standing.make_sinks),
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
    fn the_largest_that_fits() {
        for most in [0, 1, 2, 3, 7, 8, 9, 100] {
            for limit in 0..=most + 2 {
                let found = largest_that_fits(most, |n| {
                    assert!((1..=most).contains(&n));
                    n <= limit
                });
                assert_eq!(found, limit.min(most), "up to {most}");
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
            let after = kv_bytes(&layers, zones, Kept::All, tokens as u64);
            let reserved = reserve_bytes(&layers, zones, 0, tokens);
            let transient = (tokens as u64).div_ceil(SLOTS).saturating_sub(3)
                * layer.near_shape().block_bytes() as u64;
            assert_eq!(reserved, after + transient, "{tokens}");
        }
    }
}
