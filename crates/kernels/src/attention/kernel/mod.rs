//! The inner loops of attention, over the blocks of a span and one KV head, each with its scalar
//! reference.
//!
//! With `k` and `v` as levels without their scales, and groups of dimensions in order:
//!
//! ```text
//! score  (row, slot) = bias (row) + row_scale (row) * sum over groups  scale (group, slot)
//!                                              * sum over dim     integer (row, dim) * k (dim, slot)
//! weigh  (row, dim)  = row_scale (row) * sum over slot  integer (row, slot) * v (slot, dim)
//! ```
//!
//! Queries and weights are quantised to integers, levels are integers, and their sums exact
//! ([`quantize`], [`integer`]). Floats are multiplied in f32, each output lane a chain of fused
//! multiply-adds along the inner index ([`product`]), and so are sinks, whatever form their block has
//! ([`sink`]).
//!
//! Kernels read floats and `int8` in place. They unpack narrower codes into a tile of levels that all
//! rows share ([`unpack`]) or, for four bits and few rows, in registers ([`fused`]).

mod finish;
mod fused;
mod integer;
mod level_dot;
mod piece;
mod product;
mod quantize;
mod sink;
mod unpack;

pub(crate) use piece::{Head, Piece, Rows};
pub(crate) use quantize::{QuantizedRows, QuantizedRowsMut, Weights, Workspace, quantize_queries};

use super::job::SPAN_BLOCKS;
use crate::cpu::Backend;
use crate::format::kv::BLOCK_SLOTS;
use crate::ops::lanes::to_fixed;
use crate::simd::{Simd, simd_fn};
use finish::Scoring;
use piece::Panel;
use product::{Epilogue, Product, product};

/// Queries in f32 and quantised in both precisions.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    /// (row, dim)
    pub q: Rows<'a>,
    /// (row): added to every score
    pub bias: &'a [f32],
    pub narrow: QuantizedRows<'a>,
    pub wide: QuantizedRows<'a>,
}

/// Leading pieces of the same form; at most a span of them.
fn same_form(pieces: &[Piece<'_>]) -> usize {
    let same_form = |other: &&Piece<'_>| other.head.form == pieces[0].head.form;
    pieces.iter().take_while(same_form).count().min(SPAN_BLOCKS)
}

/// Scores of blocks of one segment: `out` is (row, slot) with `stride` between rows, 32
/// slots written for each piece.
pub(crate) fn score(
    backend: Backend,
    query: Query<'_>,
    pieces: &[Piece<'_>],
    workspace: &mut Workspace<'_>,
    out: &mut [f32],
    stride: usize,
) {
    let Query { q, bias, .. } = query;
    let mut rest = pieces;
    while let Some(Piece { head, .. }) = rest.first() {
        let (pieces, later) = rest.split_at(same_form(rest));
        if head.form.codec.is_float() {
            for Piece { head, at, .. } in pieces {
                let panel = [Panel {
                    lines: head.bytes,
                    upcoming: head.upcoming,
                    at: 0,
                    inner: head.dim,
                }];
                let p = Product {
                    a: q,
                    panels: &panel,
                    codec: head.form.codec,
                    width: BLOCK_SLOTS,
                    end: Epilogue::Bias(bias),
                };
                product(backend, p, 0..BLOCK_SLOTS, &mut out[*at..], stride);
            }
        } else {
            let numbers = match integer::is_narrow(head.form.codec) {
                true => query.narrow,
                false => query.wide,
            };
            let of = Scoring {
                q: numbers,
                rows: q.count,
                bias,
                pieces,
            };
            integer::score(backend, of, workspace.tile, out, stride);
        }
        for Piece { head, at, .. } in pieces.iter().filter(|p| !p.head.sinks.is_empty()) {
            sink::score(backend, q, bias, head, &mut out[*at..], stride);
        }
        rest = later;
    }
}

/// The values of the blocks of one span, weighted: `out` is (row, dim) without gaps; `p` is
/// (row, slot). `pieces` are in order.
pub(crate) fn weigh(
    backend: Backend,
    p: Rows<'_>,
    pieces: &[Piece<'_>],
    dim: usize,
    workspace: &mut Workspace<'_>,
    out: &mut [f32],
) {
    out[..p.count * dim].fill(0.0);
    for Piece { head, at, slots } in pieces.iter().filter(|p| !p.head.sinks.is_empty()) {
        let p = Rows {
            values: &p.values[*at..],
            ..p
        };
        sink::weigh(backend, p, head, *slots, out);
    }
    let mut rest = pieces;
    while let Some(Piece { head, .. }) = rest.first() {
        let (pieces, later) = rest.split_at(same_form(rest));
        if head.form.codec.is_float() {
            let line = dim * head.form.codec.planes()[0] / 8;
            let mut panels = [Panel::default(); SPAN_BLOCKS];
            for (panel, piece) in panels.iter_mut().zip(pieces) {
                let sinks = piece.slots - piece.own_slots();
                *panel = Panel {
                    lines: &piece.head.bytes[sinks * line..],
                    upcoming: piece.head.upcoming,
                    at: piece.at + sinks,
                    inner: piece.own_slots(),
                };
            }
            let p = Product {
                a: p,
                panels: &panels[..pieces.len()],
                codec: head.form.codec,
                width: dim,
                end: Epilogue::Resume,
            };
            product(backend, p, 0..dim, out, dim);
        } else {
            integer::weigh(backend, p, pieces, workspace, out);
        }
        rest = later;
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
    s.count_fixed(s.mul(a, s.splat(factor)), to);
}
