//! The inner loops of attention, over one block and one KV head, each with its scalar twin.
//!
//! Both products are of one kind: rows of f32 times a matrix that lies in memory in the order it is
//! used, each output lane a chain of fused multiply-adds along the inner index ([`product`]). With
//! levels for `k` and `v`, scales apart, and groups of dimensions in order:
//!
//! ```text
//! score  (row, slot) = bias (row) + sum over groups  scale (group, slot)
//!                                 * sum over dim     q (row, dim) * k (dim, slot)
//! weigh  (row, dim)  = sum over slot  (p (row, slot) * scale (group of dim, slot)) * v (slot, dim)
//! ```
//!
//! Each `*` and the `+` after it round once, but for `p * scale`, which rounds by itself. Floats are
//! one group with the scale 1, and so are sinks, whatever form their block has.
//!
//! Floats and `int8` are read as they lie and widened on their way into the registers, again for every
//! dozen rows: widening a block into scratch once for all rows was tried and is slower. Narrower
//! codes are unpacked into a tile of levels ([`unpack`]) that all rows share or, four bits and few
//! rows, in registers too ([`fused`]).

mod fused;
mod head;
mod product;
mod unpack;

pub(crate) use fused::ROWS_MAX;
pub(crate) use head::Head;

use super::scratch::SCORE_STRIDE;
use super::{BLOCK_SLOTS, SPAN_BLOCKS};
use crate::LANES;
use crate::cpu::{Kind, Table};
use crate::format::kv::{Codec, Form};
use crate::ops::exp::{exp, exp_lanes};
use crate::ops::lanes::{fold, padded, to_fixed};
use crate::ops::simd::{Simd, simd_fn};
use product::{End, Panel, product};
use unpack::{unpack_k, unpack_v};

/// Rows up to which codes are unpacked in registers.
const FUSE_AVX512: usize = 8;
const FUSE_OTHERS: usize = 8;

/// Rows of f32 at a common distance: `row(r) = values[r * stride ..]`.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
    pub count: usize,
}

/// The values of one block: slot 0 has the weights at `at`, and `slots` of them are read.
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

    /// Its lines, wherever they are.
    fn panel(&self, lines: &'a [u8], ahead: &'a [u8]) -> Panel<'a> {
        Panel {
            lines,
            ahead,
            at: self.at,
            inner: self.slots,
        }
    }
}

/// Room for the work on one block.
pub(crate) struct Room<'a> {
    /// (dim, slot) or (slot, dim)
    pub tile: &'a mut [f32],
    /// Weights with scales in them: (row, 256 + pad)
    pub scaled: &'a mut [f32],
}

/// Scores of one block: `out` is (row, slot) with `out_stride` between rows, 32 slots written in
/// each; `q` is (row, dim), `bias` (row).
pub(crate) fn score(
    table: Table,
    q: Rows<'_>,
    bias: &[f32],
    k: &Head<'_>,
    room: &mut Room<'_>,
    out: &mut [f32],
    out_stride: usize,
) {
    if fuses(table, q.count) && fused::takes_k(k) {
        fused::score(table, q, bias, k, out, out_stride);
        return;
    }
    let (codec, lines, ahead) = if k.is_lines() {
        (k.form.codec, k.bytes, k.ahead)
    } else {
        unpack_k(table, k, room.tile);
        (Codec::F32, bytes_of(room.tile), &[][..])
    };
    let line = BLOCK_SLOTS * codec.planes()[0] / 8;
    for group in 0..k.groups() {
        let dims = k.group(group);
        let first = dims.start * line;
        let panels = [Panel {
            lines: &lines[first..],
            ahead: ahead.get(first..).unwrap_or(&[]),
            at: dims.start,
            inner: dims.len(),
        }];
        let scales = &slot_scales(table, k, group);
        let end = match group {
            0 => End::First(scales, bias),
            _ => End::Next(scales),
        };
        let (width, slots) = (BLOCK_SLOTS, 0..BLOCK_SLOTS);
        product(table, codec, q, &panels, width, slots, out, out_stride, end);
    }
}

/// Unpacking in registers pays. Decides the time it takes, never the bits.
fn fuses(table: Table, rows: usize) -> bool {
    let most = match table.kind() {
        Kind::Scalar => 0,
        Kind::Avx512 => FUSE_AVX512,
        Kind::Avx2 | Kind::Neon | Kind::NeonDot => FUSE_OTHERS,
    };
    rows <= most
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
    let mut rest = pieces;
    while let Some(Piece { head, .. }) = rest.first() {
        // Blocks of one form are taken together, as far as they are read as they lie.
        let alike =
            |other: &&Piece<'_>| other.head.form == head.form && other.head.sinks.is_empty();
        let alike = rest.iter().take_while(alike).count().min(SPAN_BLOCKS);
        let fuses = fuses(table, p.count) && fused::takes_v(head);
        let run = if fuses || head.is_lines() { alike } else { 1 };
        let (pieces, later) = rest.split_at(run);
        if fuses {
            fused::weigh(table, p, pieces, room.scaled, out);
        } else if head.is_lines() {
            let mut panels = [Panel::NONE; SPAN_BLOCKS];
            for (panel, piece) in panels.iter_mut().zip(pieces) {
                *panel = piece.panel(piece.head.bytes, piece.head.ahead);
            }
            let codec = head.form.codec;
            weigh_panels(table, p, pieces, codec, &panels[..run], room.scaled, out);
        } else {
            unpack_v(table, head, pieces[0].slots, room.tile);
            let panels = [pieces[0].panel(bytes_of(room.tile), &[])];
            weigh_panels(table, p, pieces, Codec::F32, &panels, room.scaled, out);
        }
        rest = later;
    }
}

/// The values of blocks of one form, which lie in `panels` as floats or levels.
fn weigh_panels(
    table: Table,
    p: Rows<'_>,
    pieces: &[Piece<'_>],
    codec: Codec,
    panels: &[Panel<'_>],
    scaled: &mut [f32],
    out: &mut [f32],
) {
    let head = &pieces[0].head;
    for group in 0..head.groups() {
        let p = if head.form.codec.is_float() {
            p
        } else {
            scale_weights(table, p, pieces, group, scaled);
            Rows {
                values: scaled,
                stride: SCORE_STRIDE,
                count: p.count,
            }
        };
        let (dim, dims) = (head.dim, head.group(group));
        product(table, codec, p, panels, dim, dims, out, dim, End::Resume);
    }
}

/// Floats as the bytes they are.
fn bytes_of(floats: &[f32]) -> &[u8] {
    // SAFETY: any bytes are bytes, and there are four to a float.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) }
}

simd_fn! {
    /// The scales of a group: one for floats and sinks.
    fn slot_scales(head: &Head<'_>, group: usize) -> [f32; BLOCK_SLOTS]
        = scalar_slot_scales, simd_slot_scales;
}

fn scalar_slot_scales(head: &Head<'_>, group: usize) -> [f32; BLOCK_SLOTS] {
    std::array::from_fn(|slot| head.scale(group, slot))
}

#[inline(always)]
fn simd_slot_scales<S: Simd>(s: S, head: &Head<'_>, group: usize) -> [f32; BLOCK_SLOTS] {
    let mut scales = [1.0; BLOCK_SLOTS];
    if !head.form.codec.is_float() {
        let (to, _) = scales.as_chunks_mut::<16>();
        for (to, from) in to.iter_mut().zip(head.scales(group).as_chunks::<32>().0) {
            s.store(s.load_half(from), to);
        }
        scales[..head.sink_rows()].fill(1.0);
    }
    scales
}

simd_fn! {
    /// `out (row, at + slot) = p (row, at + slot) * scale (group, slot)`, all slots of the pieces'
    /// blocks; rows of `out` are a span apart.
    fn scale_weights(p: Rows<'_>, pieces: &[Piece<'_>], group: usize, out: &mut [f32])
        = scalar_scale_weights, simd_scale_weights;
}

fn scalar_scale_weights(p: Rows<'_>, pieces: &[Piece<'_>], group: usize, out: &mut [f32]) {
    for Piece { head, at, .. } in pieces {
        for r in 0..p.count {
            for slot in 0..BLOCK_SLOTS {
                let p = p.values[r * p.stride + at + slot];
                out[r * SCORE_STRIDE + at + slot] = p * head.scale(group, slot);
            }
        }
    }
}

#[inline(always)]
fn simd_scale_weights<S: Simd>(
    s: S,
    p: Rows<'_>,
    pieces: &[Piece<'_>],
    group: usize,
    out: &mut [f32],
) {
    for Piece { head, at, .. } in pieces {
        let scales = simd_slot_scales(s, head, group);
        let (scales, _) = scales.as_chunks::<16>();
        let (low, high) = (s.load(&scales[0]), s.load(&scales[1]));
        for r in 0..p.count {
            let from = &p.values[r * p.stride + at..][..BLOCK_SLOTS];
            let to = &mut out[r * SCORE_STRIDE + at..][..BLOCK_SLOTS];
            let ((from, _), (to, _)) = (from.as_chunks::<16>(), to.as_chunks_mut::<16>());
            s.store(s.mul(s.load(&from[0]), low), &mut to[0]);
            s.store(s.mul(s.load(&from[1]), high), &mut to[1]);
        }
    }
}

simd_fn! {
    /// The product of two rows: sixteen lanes of fused multiply-adds and their tree.
    pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 = scalar_dot, simd_dot;
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
    /// `p (row, slot) * inverse (row)`; `a` and `a^2` are added to the counters in fixed point.
    /// Rows of `p` are at least sixteen slots.
    pub(crate) fn mass_lanes(
        p: Rows<'_>,
        inverse: &[f32],
        sum: &mut [u64; 16],
        sum_sq: &mut [u64; 16],
    ) = scalar_mass_lanes, simd_mass_lanes;
}

fn scalar_mass_lanes(p: Rows<'_>, inverse: &[f32], sum: &mut [u64; 16], sum_sq: &mut [u64; 16]) {
    for slot in 0..16 {
        let mut a = 0.0f32;
        for r in 0..p.count {
            a = p.values[r * p.stride + slot].mul_add(inverse[r], a);
        }
        a *= 1.0 / p.count as f32;
        sum[slot] = sum[slot].wrapping_add(to_fixed(a));
        sum_sq[slot] = sum_sq[slot].wrapping_add(to_fixed(a * a));
    }
}

#[inline(always)]
fn simd_mass_lanes<S: Simd>(
    s: S,
    p: Rows<'_>,
    inverse: &[f32],
    sum: &mut [u64; 16],
    sum_sq: &mut [u64; 16],
) {
    let mut a = s.splat(0.0);
    for r in 0..p.count {
        if let Some(p) = p.values[r * p.stride..].first_chunk::<16>() {
            a = s.fma(s.load(p), s.splat(inverse[r]), a);
        }
    }
    let a = s.mul(a, s.splat(1.0 / p.count as f32));
    s.add_fixed(a, sum);
    s.add_fixed(s.mul(a, a), sum_sq);
}
