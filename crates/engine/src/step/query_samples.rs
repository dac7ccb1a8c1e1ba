//! Query samples: a few of each sequence's last queries, and what attention answered them.
//!
//! Before rows are evicted or rounded, these queries tell what that would change ([`crate::kv_quality::guard`]). One
//! query in eight of the last three blocks is kept, in every layer whose rows can leave: as good as more queries of
//! the last block, and queries further back have not seen all the rows that may leave (`docs/how-it-works/guard.md`).
//!
//! ```text
//! one layer   q (sample, head, dim)  o (sample, head, dim)  max, sum (sample, head)  scale (sample)
//! ```
//!
//! `q` is roped to where it stood, `o` is the output of attention before the output matrix, `max` and `sum` are
//! what its softmax was divided by, and `scale` is the squared length of the residual stream there.
//!
//! A query's place depends on its position alone, so where a block ends the ring holds the same queries however
//! tokens were split into steps. After a truncation some are missing until their positions are computed again. Evicted
//! rows are taken out of the answers too ([`SampleLayout::evict`]), so that the next ones are judged by what is left.
//! Nothing is rounded: copying costs less than converting to f16, and half the queries take the same bytes.

use super::span::StepSpan;
use crate::model::config::{Config, LayerConfig};
use haversack_cache::{CacheResult, filled};
use haversack_kernels::attention::{BLOCK_SLOTS, SoftmaxSum};
use haversack_kernels::cpu::Backend;
use haversack_kernels::ops;
use std::ops::Range;

/// One query in this many is kept: neighbours attend to much the same rows.
const EVERY: u64 = 8;

/// Samples of a sequence.
pub const SAMPLES: usize = 12;

/// How many positions they reach back.
const REACH: u64 = SAMPLES as u64 * EVERY;

/// Where the samples of each layer lie in a ring: the same for all sequences of a model.
pub struct SampleLayout {
    /// (layer): first float in a ring; `None` where the model's own window drops rows.
    starts: Vec<Option<usize>>,
    shapes: Vec<SampleShape>,
    floats: usize,
}

#[derive(Clone, Copy)]
struct SampleShape {
    heads: usize,
    width: usize,
}

impl SampleShape {
    fn of(c: &LayerConfig) -> SampleShape {
        SampleShape {
            heads: c.heads,
            width: c.heads * c.head_dim,
        }
    }

    fn floats(self) -> usize {
        SAMPLES * (2 * self.width + 2 * self.heads + 1)
    }

    /// Where the parts of a layer begin: q, o, max, sum, scale.
    fn parts(self, start: usize) -> [usize; 5] {
        let SampleShape { heads, width } = self;
        let parts = [0, width, 2 * width, 2 * width + heads, 2 * (width + heads)];
        parts.map(|floats| start + SAMPLES * floats)
    }
}

/// The samples of one sequence, all layers.
pub struct SampleRing {
    values: Vec<f32>,
    /// (sample): the position of the query it holds.
    positions: [u64; SAMPLES],
}

impl SampleRing {
    /// `from` has the same layout.
    pub fn copy_from(&mut self, from: &SampleRing) {
        self.values.copy_from_slice(&from.values);
        self.positions = from.positions;
    }
}

/// What one layer computed for the rows of a step.
pub(super) struct LayerQueries<'a> {
    /// (row, head, dim)
    pub q: &'a [f32],
    pub o: &'a [f32],
    /// (row, head)
    pub sums: &'a [SoftmaxSum],
    /// (row, dim): the stream before the layer adds to it, and what it will add before its norm.
    pub x: &'a [f32],
    pub y: &'a [f32],
    pub post_norm: Option<&'a [f32]>,
}

/// The samples of one layer.
#[derive(Clone, Copy)]
pub struct LayerSamples<'a> {
    /// (sample, head, dim)
    pub q: &'a [f32],
    pub o: &'a [f32],
    /// (sample, head)
    pub max: &'a [f32],
    pub sum: &'a [f32],
    /// (sample): what a squared error of the output is divided by; 0 where the sample no longer counts.
    pub scale: &'a [f32],
    /// (sample): its position; `None` where it is missing.
    pub positions: [Option<u64>; SAMPLES],
}

impl SampleLayout {
    pub fn new(config: &Config) -> SampleLayout {
        let shapes: Vec<SampleShape> = config.layers.iter().map(SampleShape::of).collect();
        let mut floats = 0;
        let starts = config.layers.iter().zip(&shapes).map(|(c, shape)| {
            let start = floats;
            c.window.is_none().then(|| {
                floats += shape.floats();
                start
            })
        });
        let starts = starts.collect();
        SampleLayout {
            starts,
            shapes,
            floats,
        }
    }

    /// Bytes of one sequence.
    pub fn ring_bytes(&self) -> usize {
        self.floats * size_of::<f32>() + size_of::<SampleRing>()
    }

    /// Room for a sequence that has computed nothing yet.
    pub fn ring(&self) -> CacheResult<SampleRing> {
        let values = filled(self.floats, 0.0)?;
        let positions = [u64::MAX; SAMPLES];
        Ok(SampleRing { values, positions })
    }

    /// Whether a layer has samples.
    pub fn has(&self, layer: usize) -> bool {
        self.starts[layer].is_some()
    }

    /// Keeps some of the queries of a span, whose first row in the step is `first`.
    pub(super) fn record(
        &self,
        ring: &mut SampleRing,
        backend: Backend,
        layer: usize,
        (span, first): (&StepSpan<'_>, usize),
        computed: &LayerQueries<'_>,
    ) {
        let Some(start) = self.starts[layer] else {
            return;
        };
        let shape = self.shapes[layer];
        let SampleShape { heads, width } = shape;
        let [q_at, o_at, max_at, sum_at, scale_at] = shape.parts(start);
        let dim = computed.x.len() / (computed.sums.len() / heads).max(1);
        let rows = first..first + span.tokens.len();
        for (row, sample, position) in sampled(span.position, rows) {
            let values = &mut ring.values;
            let q = row * width..(row + 1) * width;
            values[q_at..][sample * width..][..width].copy_from_slice(&computed.q[q.clone()]);
            values[o_at..][sample * width..][..width].copy_from_slice(&computed.o[q]);
            for (head, sum) in computed.sums[row * heads..][..heads].iter().enumerate() {
                values[max_at + sample * heads + head] = sum.max;
                values[sum_at + sample * heads + head] = sum.sum;
            }
            let of = |x: &[f32]| ops::dot_self(backend, &x[row * dim..(row + 1) * dim]);
            let mut scale = of(computed.x);
            if let Some(norm) = computed.post_norm {
                // The norm makes every output as long as its weights say.
                scale *= of(computed.y) / ops::dot_self(backend, norm);
            }
            values[scale_at + sample] = scale;
            ring.positions[sample] = position;
        }
    }

    /// The samples of a layer, if a block ends at `position` and any of them is present.
    pub fn samples<'a>(
        &self,
        ring: &'a SampleRing,
        layer: usize,
        position: u64,
    ) -> Option<LayerSamples<'a>> {
        let start = (*self.starts.get(layer)?)?;
        let last = position.saturating_sub(REACH)..position;
        let positions = ring.positions.map(|p| Some(p).filter(|p| last.contains(p)));
        if !position.is_multiple_of(BLOCK_SLOTS as u64) || positions.iter().all(Option::is_none) {
            return None;
        }
        let [q, o, max, sum, scale] = self.shapes[layer].parts(start);
        let values = &ring.values;
        Some(LayerSamples {
            q: &values[q..o],
            o: &values[o..max],
            max: &values[max..sum],
            sum: &values[sum..scale],
            scale: &values[scale..][..SAMPLES],
            positions,
        })
    }

    /// Takes evicted rows out of the answers of a layer: `left` is (sample, head), the part of its attention that stays,
    /// and `difference` (sample, head, dim) the change of the output. A sample that could not judge the rows no longer
    /// counts.
    pub(crate) fn evict(
        &self,
        ring: &mut SampleRing,
        layer: usize,
        present: &[bool; SAMPLES],
        left: &[f32],
        difference: &[f32],
    ) {
        let Some(start) = self.starts[layer] else {
            return;
        };
        let shape = self.shapes[layer];
        let SampleShape { heads, width } = shape;
        let [_, o_at, _, sum_at, scale_at] = shape.parts(start);
        for (sample, present) in present.iter().enumerate() {
            if !present {
                ring.values[scale_at + sample] = 0.0;
                continue;
            }
            let sums = &mut ring.values[sum_at + sample * heads..][..heads];
            for (sum, left) in sums.iter_mut().zip(&left[sample * heads..]) {
                *sum *= left;
            }
            let o = &mut ring.values[o_at + sample * width..][..width];
            for (o, difference) in o.iter_mut().zip(&difference[sample * width..]) {
                *o += difference;
            }
        }
    }
}

/// Of rows from `first_position` on: (row, sample, position) of those that are kept.
fn sampled(first_position: u64, rows: Range<usize>) -> impl Iterator<Item = (usize, usize, u64)> {
    let end = first_position + rows.len() as u64;
    let from = end.saturating_sub(REACH).max(first_position);
    let kept = (from..end).filter(|position| (position + 1).is_multiple_of(EVERY));
    kept.map(move |position| {
        let row = rows.start + (position - first_position) as usize;
        let sample = (position / EVERY % SAMPLES as u64) as usize;
        (row, sample, position)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However tokens are split into steps, the same positions are sampled.
    #[test]
    fn a_place_depends_on_the_position_alone() {
        let whole: Vec<_> = sampled(64, 0..96).collect();
        assert_eq!(whole.len(), SAMPLES);
        assert_eq!((whole[0], whole[11]), ((7, 8, 71), (95, 7, 159)));
        let parts = [(64, 0..7), (71, 0..1), (72, 0..24), (96, 0..64)];
        let parts = parts.into_iter().flat_map(|(p, rows)| sampled(p, rows));
        let places = |(_, sample, position): (usize, usize, u64)| (sample, position);
        assert!(parts.map(places).eq(whole.iter().copied().map(places)));
        // Of a long step the last ones count.
        let long: Vec<_> = sampled(0, 5..165).collect();
        assert_eq!((long[0], long.len()), ((76, 8, 71), SAMPLES));
        assert_eq!(sampled(64, 3..3).count(), 0);
    }
}
