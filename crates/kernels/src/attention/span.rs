//! What queries see of a span: which blocks, and which of their slots.

use super::block::{Block, Coded};
use super::kernel::{Head, Piece};
use super::{Attend, BLOCK_SLOTS, SPAN_BLOCKS};
use crate::format::kv::Form;
use std::ops::Range;

/// Which of a block's two halves.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Side {
    K,
    V,
}

impl Side {
    fn of<'a>(self, block: &Block<'a>) -> Coded<'a> {
        match self {
            Side::K => block.k,
            Side::V => block.v,
        }
    }
}

/// The positions of a block's slots.
#[derive(Clone, Copy)]
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
    pub(super) fn visible(self, job: &Attend<'_>, position: u64) -> Range<usize> {
        let upto = |p: u64| p.saturating_sub(self.first_position).min(self.rows as u64) as usize;
        let next = position.saturating_add(1);
        let lowest = job.window.map_or(0, |w| next.saturating_sub(w));
        upto(lowest)..upto(next).max(upto(lowest))
    }
}

/// A block that some query sees.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    block: Block<'a>,
    pub extent: Extent,
    /// In the span.
    pub index: usize,
    /// Slots that the last query sees. Later ones may not have been written.
    slots: usize,
    /// Every query sees every slot.
    pub is_clear: bool,
}

impl Look<'_> {
    pub(super) fn segment(&self) -> usize {
        self.block.segment
    }
}

/// What will be read after a span, on the same thread and if no other one takes it.
#[derive(Clone, Copy)]
pub(super) enum Ahead {
    Nothing,
    /// The same head of this span.
    Span(Side, usize),
    /// The other heads, and then those of this span.
    Heads(Side, usize),
}

/// The blocks of a span that queries of one query block see. Asking the view is a call each, so it is
/// done once for all heads.
pub(super) struct Span<'a> {
    looks: [Option<Look<'a>>; SPAN_BLOCKS],
    seen: usize,
    ahead: Ahead,
    /// Blocks at the same places of the span that is ahead.
    next: [Option<Coded<'a>>; SPAN_BLOCKS],
    head_dim: usize,
    kv_heads: usize,
    /// In the table.
    pub first: usize,
    pub count: usize,
}

impl<'a> Span<'a> {
    /// What the queries at `positions`, first and last, see. Nothing, if they see none of it.
    pub(super) fn open(
        job: &'a Attend<'_>,
        positions: (u64, u64),
        span: usize,
        ahead: Ahead,
    ) -> Option<Span<'a>> {
        let range = job.view.span(span);
        let mut open = Span {
            looks: [None; SPAN_BLOCKS],
            seen: 0,
            ahead,
            next: [None; SPAN_BLOCKS],
            head_dim: job.head_dim,
            kv_heads: job.kv_heads,
            first: range.start,
            count: range.len(),
        };
        let query_block = positions.0 / BLOCK_SLOTS as u64;
        for (index, i) in range.clone().enumerate() {
            let block = job.view.block(i, query_block);
            let extent = Extent::of(&block);
            let first = extent.visible(job, positions.0);
            let last = extent.visible(job, positions.1);
            // The last query sees furthest ahead, the first furthest back.
            if first.start < last.end {
                open.looks[open.seen] = Some(Look {
                    block,
                    extent,
                    index,
                    slots: last.end,
                    is_clear: last.start == 0 && first.end == BLOCK_SLOTS,
                });
                open.seen += 1;
            }
        }
        if open.seen == 0 {
            return None;
        }
        if let Ahead::Span(side, next) | Ahead::Heads(side, next) = ahead
            && next < job.spans()
        {
            for (to, i) in open.next.iter_mut().zip(job.view.span(next)) {
                *to = Some(side.of(&job.view.block(i, query_block)));
            }
        }
        Some(open)
    }

    /// The blocks that some query sees.
    pub(super) fn looks(&self) -> impl Iterator<Item = &Look<'a>> {
        self.looks[..self.seen].iter().flatten()
    }

    /// One head's part of them, with what will be read a span of blocks later.
    pub(super) fn pieces(&self, kv_head: usize, side: Side) -> Pieces<'a> {
        let mut pieces = Pieces {
            all: [Piece::NONE; SPAN_BLOCKS],
            count: 0,
        };
        let mut size = Size::of(Form::F16, self.head_dim);
        for (i, look) in self.looks().enumerate() {
            let coded = side.of(&look.block);
            let mut head = size.head(&coded, kv_head);
            let (later, later_head) = match self.ahead {
                Ahead::Heads(..) if kv_head + 1 < self.kv_heads => (Some(coded), kv_head + 1),
                Ahead::Heads(..) => (self.next[i], 0),
                Ahead::Span(..) => (self.next[i], kv_head),
                Ahead::Nothing => (None, 0),
            };
            if let Some(later) = later {
                head.ahead = size.head(&later, later_head).bytes;
            }
            if let Some(sinks) = look.block.sinks {
                let rows = match side {
                    Side::K => sinks.k,
                    Side::V => sinks.v,
                };
                let bytes = 2 * self.head_dim * sinks.rows;
                head.sinks = &rows[kv_head * bytes..][..bytes];
            }
            pieces.all[i] = Piece {
                head,
                at: look.index * BLOCK_SLOTS,
                slots: look.slots,
            };
            pieces.count += 1;
        }
        pieces
    }
}

/// At most a span of pieces.
pub(super) struct Pieces<'a> {
    all: [Piece<'a>; SPAN_BLOCKS],
    count: usize,
}

impl<'a> std::ops::Deref for Pieces<'a> {
    type Target = [Piece<'a>];

    fn deref(&self) -> &[Piece<'a>] {
        &self.all[..self.count]
    }
}

/// Bytes and groups of a head in one form. Blocks of a form follow each other, and working these out
/// takes divisions.
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

    /// One head's part of the keys or values of a block.
    fn head<'a>(&mut self, coded: &Coded<'a>, kv_head: usize) -> Head<'a> {
        if coded.form != self.form {
            *self = Size::of(coded.form, self.dim);
        }
        Head {
            form: coded.form,
            dim: self.dim,
            groups: self.groups,
            bytes: &coded.bytes[kv_head * self.bytes..][..self.bytes],
            ahead: &[],
            sinks: &[],
        }
    }
}
