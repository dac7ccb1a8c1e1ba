//! Canaries: a few of each sequence's last queries, and what attention answered them.
//!
//! Before rows leave or change, these queries tell what that would do ([`crate::kv_quality::guard`]). One query in eight
//! of the last three blocks is kept, in every layer whose rows can leave: as good as more of
//! the last block, and queries further back have not seen all the rows that may leave (`docs/guard.md`).
//!
//! ```text
//! one layer   q (canary, head, dim)  o (canary, head, dim)  max, sum (canary, head)  scale (canary)
//! ```
//!
//! `q` is roped to where it stood, `o` is the output of attention before the output matrix, `max` and `sum` are
//! what its softmax was divided by, and `scale` is the squared length of the residual stream there.
//!
//! A query's place depends on its position alone, so where a block ends the ring holds the same queries however
//! tokens were portioned. After a cut some are missing until their places are asked again. Rows that leave are
//! taken out of the answers too ([`Canaries::lose`]), so that the next ones are judged by what is left. Nothing is
//! rounded: copying costs less than making halves of floats, and half the queries take the same bytes.

use super::config::{Config, LayerConfig};
use super::forward::Span;
use haversack_cache::{CacheError, SequenceId};
use haversack_kernels::attention::{BLOCK_SLOTS, Sum};
use haversack_kernels::cpu::Table;
use haversack_kernels::ops;
use std::collections::HashMap;
use std::ops::Range;

/// One query of so many is kept: neighbours look at much the same.
const EVERY: u64 = 8;

/// Canaries of a ring.
pub const CANARIES: usize = 12;

/// How far they reach back.
const REACH: u64 = CANARIES as u64 * EVERY;

/// The rings of all sequences.
pub struct Canaries {
    /// (layer): where it begins in a ring; nothing where rows leave by themselves.
    starts: Vec<Option<usize>>,
    shapes: Vec<Shape>,
    floats: usize,
    rings: HashMap<SequenceId, Ring>,
}

#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    width: usize,
}

impl Shape {
    fn of(c: &LayerConfig) -> Shape {
        Shape {
            heads: c.heads,
            width: c.heads * c.head_dim,
        }
    }

    fn floats(self) -> usize {
        CANARIES * (2 * self.width + 2 * self.heads + 1)
    }
}

struct Ring {
    values: Vec<f32>,
    /// (canary): the position of the query it holds.
    positions: [u64; CANARIES],
}

/// What a layer has to say about the rows of a step.
pub(super) struct Seen<'a> {
    /// (row, head, dim)
    pub q: &'a [f32],
    pub o: &'a [f32],
    /// (row, head)
    pub sums: &'a [Sum],
    /// (row, dim): the stream before the layer adds to it, and what it will add before its norm.
    pub x: &'a [f32],
    pub y: &'a [f32],
    pub post_norm: Option<&'a [f32]>,
}

/// The canaries of one layer.
#[derive(Clone, Copy)]
pub struct Layer<'a> {
    /// (canary, head, dim)
    pub q: &'a [f32],
    pub o: &'a [f32],
    /// (canary, head)
    pub max: &'a [f32],
    pub sum: &'a [f32],
    /// (canary): what a squared error of the output is measured by; nothing where the canary is silent.
    pub scale: &'a [f32],
    /// (canary): where it stood; `None` where it is missing.
    pub positions: [Option<u64>; CANARIES],
}

impl Canaries {
    pub fn new(config: &Config) -> Canaries {
        let (starts, floats) = layout(config);
        Canaries {
            starts,
            shapes: config.layers.iter().map(Shape::of).collect(),
            floats,
            rings: HashMap::new(),
        }
    }

    /// Bytes of one sequence.
    pub fn ring_bytes(config: &Config) -> usize {
        layout(config).1 * size_of::<f32>() + size_of::<Ring>()
    }

    /// Bytes of all sequences, and of `more` besides.
    pub fn bytes_with(&self, more: usize) -> usize {
        (self.rings.len() + more) * (self.floats * size_of::<f32>() + size_of::<Ring>())
    }

    /// Room for a sequence that has asked nothing yet.
    pub fn open(&mut self, id: SequenceId) -> Result<(), CacheError> {
        let mut values = Vec::new();
        let bytes = self.floats * size_of::<f32>();
        let out_of_memory = |_| CacheError::OutOfMemory { bytes };
        values
            .try_reserve_exact(self.floats)
            .map_err(out_of_memory)?;
        values.resize(self.floats, 0.0);
        let positions = [u64::MAX; CANARIES];
        self.rings.insert(id, Ring { values, positions });
        Ok(())
    }

    /// `to` has asked what `from` has.
    pub fn fork(&mut self, from: SequenceId, to: SequenceId) -> Result<(), CacheError> {
        self.open(to)?;
        let [Some(from), Some(to)] = self.rings.get_disjoint_mut([&from, &to]) else {
            return Ok(());
        };
        to.values.copy_from_slice(&from.values);
        to.positions = from.positions;
        Ok(())
    }

    pub fn close(&mut self, id: SequenceId) {
        self.rings.remove(&id);
    }

    /// Whether a layer has canaries.
    pub(crate) fn has(&self, layer: usize) -> bool {
        self.starts[layer].is_some()
    }

    /// Keeps some of the last queries of a step. Rows are those of all spans, one after the other.
    pub(super) fn keep(
        &mut self,
        table: Table,
        layer: usize,
        spans: &[StepSpan<'_>],
        seen: &Seen<'_>,
    ) {
        let Some(start) = self.starts[layer] else {
            return;
        };
        let Shape { heads, width } = self.shapes[layer];
        let mut first = 0;
        for span in spans {
            let rows = first..first + span.tokens.len();
            first = rows.end;
            let Some(ring) = self.rings.get_mut(&span.sequence) else {
                continue;
            };
            let dim = seen.x.len() / (seen.sums.len() / heads).max(1);
            for (row, canary, position) in kept(span.position, rows) {
                let parts = Parts::at(start, heads, width);
                let values = &mut ring.values;
                let (q, sums) = (row * width..(row + 1) * width, &seen.sums[row * heads..]);
                values[parts.q..][canary * width..][..width].copy_from_slice(&seen.q[q.clone()]);
                values[parts.o..][canary * width..][..width].copy_from_slice(&seen.o[q]);
                for (head, sum) in sums[..heads].iter().enumerate() {
                    values[parts.max + canary * heads + head] = sum.max;
                    values[parts.sum + canary * heads + head] = sum.sum;
                }
                let of = |x: &[f32]| ops::dot_self(table, &x[row * dim..(row + 1) * dim]);
                let mut scale = of(seen.x);
                if let Some(norm) = seen.post_norm {
                    // The norm makes every output as long as its weights say.
                    scale *= of(seen.y) / ops::dot_self(table, norm);
                }
                values[parts.scale + canary] = scale;
                ring.positions[canary] = position;
            }
        }
    }

    /// The canaries of a layer, if a block ends at `position` and any of them is there.
    pub fn of(&self, id: SequenceId, layer: usize, position: u64) -> Option<Layer<'_>> {
        let ring = self.rings.get(&id)?;
        let start = (*self.starts.get(layer)?)?;
        let last = position.saturating_sub(REACH)..position;
        let positions = ring.positions.map(|p| Some(p).filter(|p| last.contains(p)));
        if !position.is_multiple_of(BLOCK_SLOTS as u64) || positions.iter().all(Option::is_none) {
            return None;
        }
        let Shape { heads, width } = self.shapes[layer];
        let parts = Parts::at(start, heads, width);
        let values = &ring.values;
        Some(Layer {
            q: &values[parts.q..parts.o],
            o: &values[parts.o..parts.max],
            max: &values[parts.max..parts.sum],
            sum: &values[parts.sum..parts.scale],
            scale: &values[parts.scale..][..CANARIES],
            positions,
        })
    }

    /// Takes rows out of the answers of a layer: `left` is (canary, head), the part of its attention that stays, and
    /// `difference` (canary, head, dim) what becomes of the output. A canary that could not tell is silent from then on.
    pub(crate) fn lose(
        &mut self,
        id: SequenceId,
        layer: usize,
        present: &[bool; CANARIES],
        left: &[f32],
        difference: &[f32],
    ) {
        let (Some(ring), Some(start)) = (self.rings.get_mut(&id), self.starts[layer]) else {
            return;
        };
        let Shape { heads, width } = self.shapes[layer];
        let parts = Parts::at(start, heads, width);
        for (canary, present) in present.iter().enumerate() {
            if !present {
                ring.values[parts.scale + canary] = 0.0;
                continue;
            }
            let sums = &mut ring.values[parts.sum + canary * heads..][..heads];
            for (sum, left) in sums.iter_mut().zip(&left[canary * heads..]) {
                *sum *= left;
            }
            let o = &mut ring.values[parts.o + canary * width..][..width];
            for (o, difference) in o.iter_mut().zip(&difference[canary * width..]) {
                *o += difference;
            }
        }
    }
}

/// Where each layer begins, and the floats of them all.
fn layout(config: &Config) -> (Vec<Option<usize>>, usize) {
    let mut floats = 0;
    let starts = config.layers.iter().map(|c| {
        let start = floats;
        c.window.is_none().then(|| {
            floats += Shape::of(c).floats();
            start
        })
    });
    let starts = starts.collect();
    (starts, floats)
}

/// Where the parts of a layer begin.
struct Parts {
    q: usize,
    o: usize,
    max: usize,
    sum: usize,
    scale: usize,
}

impl Parts {
    fn at(start: usize, heads: usize, width: usize) -> Parts {
        Parts {
            q: start,
            o: start + CANARIES * width,
            max: start + 2 * CANARIES * width,
            sum: start + CANARIES * (2 * width + heads),
            scale: start + CANARIES * (2 * width + 2 * heads),
        }
    }
}

/// Of rows from `first_position` on: (row, canary, position) of those that are kept.
fn kept(first_position: u64, rows: Range<usize>) -> impl Iterator<Item = (usize, usize, u64)> {
    let end = first_position + rows.len() as u64;
    let from = end.saturating_sub(REACH).max(first_position);
    (from..end)
        .filter(|position| (position + 1).is_multiple_of(EVERY))
        .map(move |position| {
            let row = rows.start + (position - first_position) as usize;
            let canary = (position / EVERY % CANARIES as u64) as usize;
            (row, canary, position)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However tokens came, canaries are the same ones of them.
    #[test]
    fn a_place_depends_on_the_position_alone() {
        let whole: Vec<_> = kept(64, 0..96).collect();
        assert_eq!(whole.len(), CANARIES);
        assert_eq!((whole[0], whole[11]), ((7, 8, 71), (95, 7, 159)));
        let parts = [(64, 0..7), (71, 0..1), (72, 0..24), (96, 0..64)];
        let parts = parts.into_iter().flat_map(|(p, rows)| kept(p, rows));
        let places = |(_, canary, position): (usize, usize, u64)| (canary, position);
        assert!(parts.map(places).eq(whole.iter().copied().map(places)));
        // Of a long portion the last ones count.
        let long: Vec<_> = kept(0, 5..165).collect();
        assert_eq!((long[0], long.len()), ((76, 8, 71), CANARIES));
        assert_eq!(kept(64, 3..3).count(), 0);
    }
}
