//! The inner loops of attention, over the blocks of a span and one KV head, each with its scalar twin.
//!
//! With levels for `k` and `v`, scales apart, and groups of dimensions in order:
//!
//! ```text
//! score  (row, slot) = bias (row) + unit (row) * sum over groups  scale (group, slot)
//!                                              * sum over dim     number (row, dim) * k (dim, slot)
//! weigh  (row, dim)  = unit (row) * sum over slot  number (row, slot) * v (slot, dim)
//! ```
//!
//! Numbers and levels are whole, and their sums exact ([`numbers`], [`whole`]). Floats are multiplied
//! in f32, each output lane a chain of fused multiply-adds along the inner index ([`product`]), and so
//! are sinks, whatever form their block has ([`sink`]).
//!
//! Floats and `int8` are read as they lie. Narrower codes are unpacked into a tile of levels
//! ([`unpack`]) that all rows share or, four bits and few rows, in registers ([`fused`]).

mod fused;
mod head;
mod numbers;
mod product;
mod sink;
mod unpack;
mod whole;

pub(crate) use head::Head;
pub(crate) use numbers::{Numbers, NumbersMut, Weights, round_queries};
pub(crate) use whole::Room;

use super::{BLOCK_SLOTS, SPAN_BLOCKS};
use crate::LANES;
use crate::cpu::Table;
use crate::format::kv::Form;
use crate::ops::exp::{exp, exp_lanes};
use crate::ops::lanes::{fold, padded, to_fixed};
use crate::ops::simd::{Simd, simd_fn};
use product::{End, Panel, product};

/// Rows of f32 at a common distance: `row(r) = values[r * stride ..]`.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
    pub count: usize,
}

/// One block's keys or values: slot 0 has the scores or weights at `at`, and `slots` of them matter.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub head: Head<'a>,
    pub at: usize,
    pub slots: usize,
}

impl<'a> Piece<'a> {
    pub(crate) const NONE: Piece<'a> = Piece {
        head: Head {
            form: Form::F16,
            dim: 0,
            groups: 0,
            bytes: &[],
            ahead: &[],
            sinks: &[],
        },
        at: 0,
        slots: 0,
    };

    /// Every slot matters, and the planes speak for it.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        self.slots == BLOCK_SLOTS && self.head.sinks.is_empty()
    }

    /// Slots that the planes speak for and that matter.
    fn own_slots(&self) -> usize {
        self.slots.saturating_sub(self.head.sink_rows())
    }
}

/// Queries as keys meet them: as they are, and rounded two ways.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    /// (row, dim)
    pub q: Rows<'a>,
    /// (row): added to every score
    pub bias: &'a [f32],
    pub narrow: Numbers<'a>,
    pub wide: Numbers<'a>,
}

/// Pieces of one form come together; at most a span of them.
fn alike(pieces: &[Piece<'_>]) -> usize {
    let alike = |other: &&Piece<'_>| other.head.form == pieces[0].head.form;
    pieces.iter().take_while(alike).count().min(SPAN_BLOCKS)
}

/// Scores of blocks that meet the same queries: `out` is (row, slot) with `stride` between rows, 32
/// slots written for each piece.
pub(crate) fn score(
    table: Table,
    query: Query<'_>,
    pieces: &[Piece<'_>],
    room: &mut Room<'_>,
    out: &mut [f32],
    stride: usize,
) {
    let Query { q, bias, .. } = query;
    let mut rest = pieces;
    while let Some(Piece { head, .. }) = rest.first() {
        let (pieces, later) = rest.split_at(alike(rest));
        if head.form.codec.is_float() {
            for Piece { head, at, .. } in pieces {
                let panel = [Panel {
                    lines: head.bytes,
                    ahead: head.ahead,
                    at: 0,
                    inner: head.dim,
                }];
                let (codec, out, end) = (head.form.codec, &mut out[*at..], End::Bias(bias));
                let (width, slots) = (BLOCK_SLOTS, 0..BLOCK_SLOTS);
                product(table, codec, q, &panel, width, slots, out, stride, end);
            }
        } else {
            let numbers = match whole::is_narrow(head.form.codec) {
                true => query.narrow,
                false => query.wide,
            };
            whole::score(
                table, numbers, q.count, bias, pieces, room.tile, out, stride,
            );
        }
        for Piece { head, at, .. } in pieces.iter().filter(|p| !p.head.sinks.is_empty()) {
            sink::score(table, q, bias, head, &mut out[*at..], stride);
        }
        rest = later;
    }
}

/// The values of the blocks of one span, weighted: `out` is (row, dim) without gaps; `p` is
/// (row, slot). `pieces` are in order.
pub(crate) fn weigh(
    table: Table,
    p: Rows<'_>,
    pieces: &[Piece<'_>],
    dim: usize,
    room: &mut Room<'_>,
    out: &mut [f32],
) {
    out[..p.count * dim].fill(0.0);
    for Piece { head, at, slots } in pieces.iter().filter(|p| !p.head.sinks.is_empty()) {
        let p = Rows {
            values: &p.values[*at..],
            ..p
        };
        sink::weigh(table, p, head, *slots, out);
    }
    let mut rest = pieces;
    while let Some(Piece { head, .. }) = rest.first() {
        let (pieces, later) = rest.split_at(alike(rest));
        if head.form.codec.is_float() {
            let line = dim * head.form.codec.planes()[0] / 8;
            let mut panels = [Panel::NONE; SPAN_BLOCKS];
            for (panel, piece) in panels.iter_mut().zip(pieces) {
                let sinks = piece.slots - piece.own_slots();
                *panel = Panel {
                    lines: &piece.head.bytes[sinks * line..],
                    ahead: piece.head.ahead,
                    at: piece.at + sinks,
                    inner: piece.own_slots(),
                };
            }
            let (codec, panels) = (head.form.codec, &panels[..pieces.len()]);
            product(table, codec, p, panels, dim, 0..dim, out, dim, End::Resume);
        } else {
            whole::weigh(table, p, pieces, room, out);
        }
        rest = later;
    }
}

simd_fn! {
    /// The product of two rows: sixteen lanes of fused multiply-adds and their tree.
    pub fn dot(a: &[f32], b: &[f32]) -> f32 = scalar_dot, simd_dot;
}

fn scalar_dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for i in 0..a.len().next_multiple_of(LANES) {
        let (a, b) = (a.get(i).unwrap_or(&0.0), b.get(i).unwrap_or(&0.0));
        lanes[i % LANES] = a.mul_add(*b, lanes[i % LANES]);
    }
    fold(lanes)
}

#[inline(always)]
fn simd_dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    let mut acc = s.splat(0.0);
    for (a, b) in a.iter().zip(b) {
        acc = s.fma(s.load(a), s.load(b), acc);
    }
    if !a_tail.is_empty() {
        let (a, b) = (padded(a_tail, 0.0), padded(b_tail, 0.0));
        acc = s.fma(s.load(&a), s.load(&b), acc);
    }
    s.sum(acc)
}

simd_fn! {
    /// Soft cap of scores: `cap * tanh(x / cap)`, with `tanh y = 1 - 2 / (1 + e^2y)`. Its absolute
    /// error is within `cap * 2^-22`.
    pub(crate) fn soft_cap(x: &mut [f32], cap: f32) = scalar_soft_cap, simd_soft_cap;
}

fn scalar_soft_cap(x: &mut [f32], cap: f32) {
    let by = 2.0 / cap;
    for x in x {
        *x = (-2.0 / (1.0 + exp(*x * by))).mul_add(cap, cap);
    }
}

#[inline(always)]
fn simd_soft_cap<S: Simd>(s: S, x: &mut [f32], cap: f32) {
    let (by, cap) = (s.splat(2.0 / cap), s.splat(cap));
    let (whole, tail) = x.as_chunks_mut::<16>();
    assert!(tail.is_empty(), "scores come by the block");
    for x in whole {
        let e = exp_lanes(s, s.mul(s.load(x), by));
        let t = s.div(s.splat(-2.0), s.add(s.splat(1.0), e));
        s.store(s.fma(t, cap, cap), x);
    }
}

simd_fn! {
    /// Attention mass of one query and sixteen slots: `a` is the mean over the rows of
    /// `p (row, slot) * inverse (row)`; `a`, or its square, times `factor` is added to the counters in units
    /// of 2^-40. Rows of `p` are at least sixteen slots.
    pub(crate) fn mass_lanes(
        p: Rows<'_>,
        inverse: &[f32],
        factor: f32,
        is_squared: bool,
        to: &mut [u64; 16],
    ) = scalar_mass_lanes, simd_mass_lanes;
}

fn scalar_mass_lanes(
    p: Rows<'_>,
    inverse: &[f32],
    factor: f32,
    is_squared: bool,
    to: &mut [u64; 16],
) {
    for (slot, to) in to.iter_mut().enumerate() {
        let mut a = 0.0f32;
        for r in 0..p.count {
            a = p.values[r * p.stride + slot].mul_add(inverse[r], a);
        }
        a *= 1.0 / p.count as f32;
        if is_squared {
            a *= a;
        }
        *to = to.wrapping_add(to_fixed(a * factor));
    }
}

#[inline(always)]
fn simd_mass_lanes<S: Simd>(
    s: S,
    p: Rows<'_>,
    inverse: &[f32],
    factor: f32,
    is_squared: bool,
    to: &mut [u64; 16],
) {
    let mut a = s.splat(0.0);
    for r in 0..p.count {
        if let Some(p) = p.values[r * p.stride..].first_chunk::<16>() {
            a = s.fma(s.load(p), s.splat(inverse[r]), a);
        }
    }
    let mut a = s.mul(a, s.splat(1.0 / p.count as f32));
    if is_squared {
        a = s.mul(a, a);
    }
    s.add_fixed(s.mul(a, s.splat(factor)), to);
}
