//! What queries see of a span: which blocks, and which of their slots.

use super::block::{Block, Coded};
use super::job::{AttentionJob, SPAN_BLOCKS};
use super::kernel::{Head, Piece};
use crate::format::kv::{BLOCK_SLOTS, Form, Side};
use std::ops::Range;

/// The positions of a block's slots.
#[derive(Clone, Copy, Default)]
pub(super) struct Extent {
    pub rows: usize,
    pub first_position: u64,
}

impl Extent {
    fn of(block: &Block<'_>) -> Extent {
        Extent {
            rows: block.rows,
            first_position: block.first_position,
        }
    }

    /// The slots that a query at `position` sees.
    pub(super) fn visible(self, job: &AttentionJob<'_>, position: u64) -> Range<usize> {
        let upto = |p: u64| p.saturating_sub(self.first_position).min(self.rows as u64) as usize;
        let next = position.saturating_add(1);
        let lowest = job.window.map_or(0, |w| next.saturating_sub(w));
        upto(lowest)..upto(next).max(upto(lowest))
    }
}

/// A block that some query sees.
#[derive(Clone, Copy, Default)]
pub(super) struct VisibleBlock {
    pub extent: Extent,
    /// In the span.
    pub index: usize,
    pub segment: usize,
    /// As [`Block::hidden`].
    pub hidden: u32,
    /// Every query sees every slot.
    pub is_clear: bool,
}

/// What a thread will probably read after a span.
#[derive(Clone, Copy)]
pub(super) enum Prefetch {
    None,
    /// The same head of this span; after the last span, the head's values in the first, or the keys of the
    /// next head.
    Span(usize),
    /// The other heads, and then those of this span.
    Heads(usize),
}

/// The keys or values of the blocks of a span that queries of one query block see, and one head's part
/// of each. Every question to the view is a virtual call, so a span is opened once for all heads.
pub(super) struct Span<'a> {
    visible_blocks: [VisibleBlock; SPAN_BLOCKS],
    pieces: [Piece<'a>; SPAN_BLOCKS],
    /// All heads of each block, and of the block to prefetch meanwhile.
    sides: [(&'a [u8], &'a [u8]); SPAN_BLOCKS],
    seen: usize,
    /// All heads.
    sinks: &'a [u8],
    prefetch: Prefetch,
    /// How many heads [`Prefetch::Span`] advances.
    heads_on: usize,
    kv_heads: usize,
    /// In the table.
    pub first: usize,
    pub count: usize,
}

impl<'a> Span<'a> {
    /// What the queries at `positions`, first and last, see; none if they see no block.
    /// [`Span::pieces`] chooses the head. Inlined: the result is a kilobyte, and would be copied.
    #[inline(always)]
    pub(super) fn open(
        job: &'a AttentionJob<'_>,
        positions: (u64, u64),
        span: usize,
        side: Side,
        prefetch: Prefetch,
    ) -> Option<Span<'a>> {
        let range = job.view.span(span);
        let mut open = Span {
            visible_blocks: [VisibleBlock::default(); SPAN_BLOCKS],
            pieces: [Piece::NONE; SPAN_BLOCKS],
            sides: [(&[], &[]); SPAN_BLOCKS],
            seen: 0,
            sinks: &[],
            prefetch,
            heads_on: 0,
            kv_heads: job.kv_heads,
            first: range.start,
            count: range.len(),
        };
        let query_block = positions.0 / BLOCK_SLOTS as u64;
        let mut size = Size::of(Form::F16, job.head_dim);
        for (index, i) in range.enumerate() {
            let block = job.view.block(i, query_block);
            let extent = Extent::of(&block);
            let first = extent.visible(job, positions.0);
            let last = extent.visible(job, positions.1);
            // The last query sees furthest ahead, the first furthest back.
            if first.start >= last.end || block.hides(first.start..last.end) {
                continue;
            }
            let coded = coded(side, &block);
            open.visible_blocks[open.seen] = VisibleBlock {
                extent,
                index,
                segment: block.segment,
                hidden: block.hidden,
                is_clear: last.start == 0 && first.end == BLOCK_SLOTS && block.hidden == 0,
            };
            open.pieces[open.seen] = Piece {
                head: size.head(&coded),
                at: index * BLOCK_SLOTS,
                slots: last.end,
            };
            open.sides[open.seen].0 = coded.bytes;
            if let Some(sinks) = block.sinks {
                open.sinks = match side {
                    Side::K => sinks.k,
                    Side::V => sinks.v,
                };
            }
            open.seen += 1;
        }
        if open.seen == 0 {
            return None;
        }
        // Span, side, and how many heads further on.
        let next = match (prefetch, side) {
            (Prefetch::Span(next) | Prefetch::Heads(next), _) if next < job.spans() => {
                Some((next, side, 0))
            }
            (Prefetch::Span(_), Side::K) => Some((0, Side::V, 0)),
            (Prefetch::Span(_), Side::V) => Some((0, Side::K, 1)),
            _ => None,
        };
        if let Some((next, side, heads_on)) = next {
            open.heads_on = heads_on;
            for ((_, to), i) in open.sides.iter_mut().zip(job.view.span(next)) {
                let block = job.view.block(i, query_block);
                if !block.hides(0..block.rows) {
                    *to = coded(side, &block).bytes;
                }
            }
        }
        Some(open)
    }

    /// The blocks that some query sees.
    pub(super) fn visible_blocks(&self) -> &[VisibleBlock] {
        &self.visible_blocks[..self.seen]
    }

    /// One head's part of them, with the bytes to prefetch.
    pub(super) fn pieces(&mut self, kv_head: usize) -> &[Piece<'a>] {
        // Prefetch from the next blocks or from these, and which head.
        let (of_next, upcoming) = match self.prefetch {
            Prefetch::Heads(_) if kv_head + 1 < self.kv_heads => (false, Some(kv_head + 1)),
            Prefetch::Heads(_) => (true, Some(0)),
            Prefetch::Span(_) => (true, Some(kv_head + self.heads_on)),
            Prefetch::None => (true, None),
        };
        for (piece, (bytes, next)) in self.pieces[..self.seen].iter_mut().zip(&self.sides) {
            let head = &mut piece.head;
            let size = head.bytes.len();
            head.bytes = &bytes[kv_head * size..][..size];
            let from = if of_next { next } else { bytes };
            // A block of another form may be shorter.
            head.upcoming = upcoming
                .and_then(|nth| from.get(nth * size..(nth + 1) * size))
                .unwrap_or(&[]);
        }
        if !self.sinks.is_empty() {
            // Only ever in the first block.
            let sinks = self.sinks.len() / self.kv_heads;
            self.pieces[0].head.sinks = &self.sinks[kv_head * sinks..][..sinks];
        }
        &self.pieces[..self.seen]
    }
}

/// The keys or the values of a block.
fn coded<'a>(side: Side, block: &Block<'a>) -> Coded<'a> {
    match side {
        Side::K => block.k,
        Side::V => block.v,
    }
}

/// Bytes and groups of a head in one form, kept from block to block: computing them takes divisions.
#[derive(Clone, Copy)]
struct Size {
    form: Form,
    dim: usize,
    bytes: usize,
    groups: usize,
}

impl Size {
    fn of(form: Form, dim: usize) -> Size {
        Size {
            form,
            dim,
            bytes: form.head_bytes(dim),
            groups: form.groups(dim),
        }
    }

    /// The first head of the keys or values of a block.
    fn head<'a>(&mut self, coded: &Coded<'a>) -> Head<'a> {
        if coded.form != self.form {
            *self = Size::of(coded.form, self.dim);
        }
        Head {
            form: coded.form,
            dim: self.dim,
            groups: self.groups,
            bytes: &coded.bytes[..self.bytes],
            upcoming: &[],
            sinks: &[],
        }
    }
}
