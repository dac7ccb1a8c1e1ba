//! What a unit sees of a span: which blocks, which of their slots, and one head's bytes of them.

use super::block::Block;
use super::kernel::{Head, Piece};
use super::step::Unit;
use super::{Attend, BLOCK_SLOTS, SPAN_BLOCKS};
use crate::format::kv::Form;
use std::ops::Range;

/// How many blocks later the one is that is asked for while a block of codes is read. Floats are
/// read for longer: the next one is far enough.
const CODES_AHEAD: usize = 2;

/// Which of a block's two halves.
#[derive(Clone, Copy)]
pub(super) enum Side {
    K,
    V,
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

    /// Any query of the unit sees any slot: the last query sees furthest ahead, the first furthest
    /// back.
    fn is_seen(self, job: &Attend<'_>, unit: &Unit) -> bool {
        let first = self.visible(job, unit.position(job, 0));
        let last = self.visible(job, unit.position(job, unit.queries - 1));
        first.start < last.end
    }
}

/// One head of one side of a block.
pub(super) struct Look<'a> {
    pub head: Head<'a>,
    pub extent: Extent,
    pub segment: usize,
    /// Slots that the last query sees. Later ones may not have been written.
    pub slots: usize,
    /// Some query sees some slot.
    is_seen: bool,
    /// Every query sees every slot.
    pub is_clear: bool,
}

impl<'a> Look<'a> {
    /// As block `i` of its span.
    pub(super) fn piece(&self, i: usize) -> Piece<'a> {
        Piece {
            head: self.head,
            at: i * BLOCK_SLOTS,
            slots: self.slots,
        }
    }
}

/// The blocks of a span and those after it that are asked for ahead of time. Asking the view is a
/// call each, so it is done once.
pub(super) struct Span<'a> {
    looks: [Option<Look<'a>>; SPAN_BLOCKS + CODES_AHEAD],
    /// In the table.
    pub first: usize,
    pub count: usize,
}

impl<'a> Span<'a> {
    /// Nothing, if no query of the unit sees any of it.
    pub(super) fn open(
        job: &'a Attend<'_>,
        unit: &Unit,
        span: usize,
        side: Side,
    ) -> Option<Span<'a>> {
        let range = job.view.span(span);
        let mut open = Span {
            looks: [const { None }; SPAN_BLOCKS + CODES_AHEAD],
            first: range.start,
            count: range.len(),
        };
        let first = unit.position(job, 0);
        let last = unit.position(job, unit.queries - 1);
        let query_block = first / BLOCK_SLOTS as u64;
        let mut size = Size::of(Form::F16, job.head_dim);
        let mut any = false;
        let end = (range.end + CODES_AHEAD).min(job.view.blocks());
        for (to, i) in open.looks.iter_mut().zip(range.start..end) {
            let block = job.view.block(i, query_block);
            let extent = Extent::of(&block);
            let (first, last) = (extent.visible(job, first), extent.visible(job, last));
            let is_seen = first.start < last.end;
            any |= is_seen && i < range.end;
            *to = Some(Look {
                head: size.head(&block, unit.kv_head, side),
                extent,
                segment: block.segment,
                slots: last.end,
                is_seen,
                is_clear: last.start == 0 && first.end == BLOCK_SLOTS,
            });
        }
        if !any {
            return None;
        }
        for i in 0..open.count {
            let ahead = |look: &Look<'_>| match look.head.form.codec.is_float() {
                true => 1,
                false => CODES_AHEAD,
            };
            let ahead = open.looks[i].as_ref().map_or(1, ahead);
            let later = open.looks[i + ahead].as_ref().map(|look| look.head.bytes);
            if let (Some(look), Some(later)) = (&mut open.looks[i], later) {
                look.head.ahead = later;
            }
        }
        Some(open)
    }

    /// The blocks that some query sees, with their index in the span.
    pub(super) fn seen(&self) -> impl Iterator<Item = (usize, &Look<'a>)> {
        let looks = self.looks[..self.count].iter().enumerate();
        looks
            .filter_map(|(i, look)| Some((i, look.as_ref()?)))
            .filter(|(_, look)| look.is_seen)
    }
}

/// Whether [`Span::open`] finds anything.
pub(super) fn sees_span(job: &Attend<'_>, unit: &Unit, span: usize) -> bool {
    let query_block = unit.position(job, 0) / BLOCK_SLOTS as u64;
    job.view
        .span(span)
        .any(|i| Extent::of(&job.view.block(i, query_block)).is_seen(job, unit))
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
    fn head<'a>(&mut self, block: &Block<'a>, kv_head: usize, side: Side) -> Head<'a> {
        let coded = match side {
            Side::K => block.k,
            Side::V => block.v,
        };
        if coded.form != self.form {
            *self = Size::of(coded.form, self.dim);
        }
        let sinks: &[u8] = block.sinks.map_or(&[], |sinks| {
            let rows = match side {
                Side::K => sinks.k,
                Side::V => sinks.v,
            };
            let bytes = 2 * self.dim * sinks.rows;
            &rows[kv_head * bytes..][..bytes]
        });
        Head {
            form: coded.form,
            dim: self.dim,
            groups: self.groups,
            bytes: &coded.bytes[kv_head * self.bytes..][..self.bytes],
            ahead: &[],
            sinks,
        }
    }
}
