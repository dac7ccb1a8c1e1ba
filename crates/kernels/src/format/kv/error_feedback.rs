//! Error feedback: keys are rounded with their queries in view, and later dimensions make up for the error
//! of earlier ones (the idea of GPTQ and optimal brain surgery, applied to keys).
//!
//! A rounded key causes an error in its scores, `q · Δk`. Over many queries that is
//! `Δkᵀ M Δk` with the second moments `M = E[q qᵀ]`, and queries prefer some directions by far. So
//! the encoder rounds dimensions in order, and before the next one it moves the rest of the key by what
//! best makes up for the errors so far:
//!
//! ```text
//! M⁻¹ = Uᵀ U (U upper)     x[j] -= (x[i] - rounded[i]) * U[i][j] / U[i][i]     for all j > i
//! ```
//!
//! Only the encoder knows: the layout, scales and attention stay the same. Scales are chosen first, for
//! the unchanged key.
//!
//! Lanes are slots here, sixteen at a time, because a slot's dimensions depend on each other. A key's
//! code still depends on that key alone.

use super::code::{SCALES, check, coder_fn, put_codes, read_slot};
use super::encode::{self, Coder, Group, ScalarCoder, SimdCoder};
use super::levels::{BOOK2, BOOK3, BOOK4, BOOK5, Codebook};
use super::plane;
use super::{BLOCK_SLOTS, Codec, Form, GROUP_MAX, KvShape, Side};
use crate::LANES;
use crate::cpu::Backend;
use crate::simd::Simd;
use std::ops::Range;

/// Moments are raised by this part of their mean: directions in which no query was seen are
/// not free.
pub const RIDGE: f64 = 0.05;

/// How the encoder distributes the errors of one layer's keys.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorFeedback {
    head_dim: usize,
    /// (kv_head, i, j > i): share of the error of dimension `i` that dimension `j` takes over, in units.
    parts: Vec<i8>,
    /// (kv_head, i)
    units: Vec<f32>,
}

/// How the encoder distributes the errors of one head's keys.
#[derive(Clone, Copy)]
pub struct HeadErrorFeedback<'a> {
    /// (i, j > i): share of the error of dimension `i` that dimension `j` takes over, in units.
    pub parts: &'a [i8],
    pub units: &'a [f32],
}

/// Numbers above the diagonal.
const fn triangle(head_dim: usize) -> usize {
    head_dim * head_dim.saturating_sub(1) / 2
}

impl ErrorFeedback {
    /// Whether keys in this form can be encoded with feedback: codebooks can, floats and uniform codes gain
    /// nothing.
    pub const fn fits(form: Form, head_dim: usize) -> bool {
        let book = matches!(
            form.codec,
            Codec::Int5 | Codec::Int4 | Codec::Int3 | Codec::Int2
        );
        book && head_dim <= GROUP_MAX
    }

    /// Bytes on the heap.
    pub const fn bytes_for(kv_heads: usize, head_dim: usize) -> usize {
        let head = triangle(head_dim).saturating_add(4 * head_dim);
        kv_heads.saturating_mul(head)
    }

    /// From the second moments of each head's queries, (kv_head, dim, dim) in the basis of the
    /// blocks. Moments that are not positive definite give no feedback.
    pub fn new(head_dim: usize, moments: &[f64]) -> ErrorFeedback {
        let heads = moments.len() / (head_dim * head_dim).max(1);
        let mut feedback = ErrorFeedback {
            head_dim,
            parts: Vec::with_capacity(heads * triangle(head_dim)),
            units: Vec::with_capacity(heads * head_dim),
        };
        for moments in moments.chunks_exact((head_dim * head_dim).max(1)) {
            feedback.push(factors(head_dim, moments).as_deref());
        }
        feedback
    }

    /// Rows of `U`, each divided by its diagonal, as bytes.
    fn push(&mut self, upper: Option<&[f64]>) {
        let dim = self.head_dim;
        for i in 0..dim {
            let row = upper.map_or(&[][..], |u| &u[i * dim + i..(i + 1) * dim]);
            let (diagonal, rest) = row.split_first().unwrap_or((&1.0, &[]));
            let max = rest.iter().fold(0.0, |max, x| f64::max(max, x.abs()));
            let unit = max / diagonal / 127.0;
            self.units.push(unit as f32);
            let part = |x: &f64| (x / diagonal / unit).round() as i8;
            let parts = rest.iter().map(|x| if unit > 0.0 { part(x) } else { 0 });
            let end = self.parts.len() + (dim - 1 - i);
            self.parts.extend(parts);
            self.parts.resize(end, 0);
        }
    }

    pub fn bytes(&self) -> usize {
        self.parts.capacity() + self.units.capacity() * size_of::<f32>()
    }

    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    pub fn kv_heads(&self) -> usize {
        self.units.len() / self.head_dim.max(1)
    }

    pub fn head(&self, kv_head: usize) -> HeadErrorFeedback<'_> {
        let (parts, dim) = (triangle(self.head_dim), self.head_dim);
        HeadErrorFeedback {
            parts: &self.parts[kv_head * parts..][..parts],
            units: &self.units[kv_head * dim..][..dim],
        }
    }
}

/// The upper factor of the inverse of one head's moments, (dim, dim).
pub fn factors(dim: usize, moments: &[f64]) -> Option<Vec<f64>> {
    let mean = (0..dim).map(|i| moments[i * dim + i]).sum::<f64>() / dim as f64;
    if !(mean.is_finite() && mean > 0.0) {
        return None;
    }
    let mut a: Vec<f64> = moments.iter().map(|m| m / mean).collect();
    for i in 0..dim {
        a[i * dim + i] += RIDGE;
    }
    // M = W Wᵀ with W upper, from the last row up; then M⁻¹ = W⁻ᵀ W⁻¹ and U = W⁻¹.
    let mut w = vec![0.0; dim * dim];
    for j in (0..dim).rev() {
        for i in (0..=j).rev() {
            let mut sum = a[i * dim + j];
            for k in j + 1..dim {
                sum -= w[i * dim + k] * w[j * dim + k];
            }
            w[i * dim + j] = if i == j {
                if !(sum.is_finite() && sum > 0.0) {
                    return None;
                }
                sum.sqrt()
            } else {
                sum / w[j * dim + j]
            };
        }
    }
    // W⁻¹, column by column.
    let mut u = vec![0.0; dim * dim];
    for j in 0..dim {
        u[j * dim + j] = 1.0 / w[j * dim + j];
        for i in (0..j).rev() {
            let sum: f64 = (i + 1..=j).map(|k| w[i * dim + k] * u[k * dim + j]).sum();
            u[i * dim + j] = -sum / w[i * dim + i];
        }
    }
    u.iter().all(|x| x.is_finite()).then_some(u)
}

/// Writes the keys of consecutive slots from `first_slot` on; `rows` is (slot, kv_head, dim), `k` the
/// keys of a whole block. The form fits ([`ErrorFeedback::fits`]).
pub fn write_k_rows(
    backend: Backend,
    shape: KvShape,
    feedback: &ErrorFeedback,
    k: &mut [u8],
    first_slot: usize,
    rows: &[f32],
) {
    let (form, dim) = (shape.form.k, shape.head_dim);
    check(shape, form, first_slot, rows.len());
    let slots = first_slot..first_slot + rows.len() / shape.row();
    let heads = k.chunks_exact_mut(form.head_bytes(dim));
    for (i, to) in heads.take(shape.kv_heads).enumerate() {
        let from = Source::Rows {
            rows: &rows[i * dim..],
            stride: shape.row(),
            first_slot,
        };
        let keys = Keys {
            from,
            form,
            head_dim: dim,
            feedback: feedback.head(i),
        };
        keys.code(backend, slots.clone(), to);
    }
}

/// The keys of one head of a full block in another form, which fits ([`ErrorFeedback::fits`]).
pub fn recode_k_head(
    backend: Backend,
    head_dim: usize,
    from: Form,
    src: &[u8],
    to: Form,
    feedback: HeadErrorFeedback<'_>,
    dst: &mut [u8],
) {
    let head = &src[..from.head_bytes(head_dim)];
    let from = Source::Block { form: from, head };
    let dst = &mut dst[..to.head_bytes(head_dim)];
    let keys = Keys {
        from,
        form: to,
        head_dim,
        feedback,
    };
    keys.code(backend, 0..BLOCK_SLOTS, dst);
}

/// Where keys come from.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// From `rows[0]` on, `stride` apart.
    Rows {
        rows: &'a [f32],
        stride: usize,
        first_slot: usize,
    },
    /// One head.
    Block { form: Form, head: &'a [u8] },
}

/// One head's keys on their way into a form.
#[derive(Clone, Copy)]
struct Keys<'a> {
    from: Source<'a>,
    form: Form,
    head_dim: usize,
    feedback: HeadErrorFeedback<'a>,
}

impl Keys<'_> {
    fn code(self, backend: Backend, slots: Range<usize>, to: &mut [u8]) {
        let Keys { form, head_dim, .. } = self;
        assert!(
            ErrorFeedback::fits(form, head_dim) && form.fits(head_dim),
            "{form:?}"
        );
        assert!(slots.end <= BLOCK_SLOTS, "the rows leave the block");
        assert_eq!(self.feedback.units.len(), head_dim);
        let mut first = slots.start;
        while first < slots.end {
            let some = first..slots.end.min(first + LANES);
            first = some.end;
            code_slots(backend, self, some, to);
        }
    }
}

coder_fn! {
    fn code_slots(keys: Keys<'_>, slots: Range<usize>, to: &mut [u8])
        = slots_body, scalar_slots, simd_slots;
}

#[inline(always)]
fn slots_body<C: Coder>(c: C, keys: Keys<'_>, slots: Range<usize>, to: &mut [u8]) {
    match keys.form.codec {
        Codec::Int5 => slots_of(c, &BOOK5, keys, slots, to),
        Codec::Int4 => slots_of(c, &BOOK4, keys, slots, to),
        Codec::Int3 => slots_of(c, &BOOK3, keys, slots, to),
        _ => slots_of(c, &BOOK2, keys, slots, to),
    }
}

/// One to sixteen slots.
#[inline(always)]
fn slots_of<C: Coder, const N: usize>(
    c: C,
    book: &Codebook<N>,
    keys: Keys<'_>,
    slots: Range<usize>,
    to: &mut [u8],
) {
    let Keys {
        from,
        form,
        head_dim,
        feedback,
    } = keys;
    let mut parts = plane::parts_mut(form, head_dim, to);
    // (dim, lane), and (group, lane).
    let mut x = [[0.0; LANES]; GROUP_MAX];
    let mut scales = [[0.0; LANES]; GROUP_MAX];
    let mut row = [0.0; GROUP_MAX];
    let row = &mut row[..head_dim];
    let mut group = Group::EMPTY;
    for (lane, slot) in slots.clone().enumerate() {
        match from {
            Source::Rows {
                rows,
                stride,
                first_slot,
            } => row.copy_from_slice(&rows[(slot - first_slot) * stride..][..head_dim]),
            Source::Block { form, head } => {
                read_slot(c, Side::K, form, head_dim, head, slot, 0, row)
            }
        }
        for (g, values) in row.chunks(form.group).enumerate() {
            let (scale, bytes) = encode::scale(c, values, book, &mut group);
            scales[g][lane] = scale;
            parts.scales[g * SCALES + 2 * slot..][..2].copy_from_slice(&bytes);
            for (x, clean) in x[g * form.group..].iter_mut().zip(group.values()) {
                x[lane] = *clean;
            }
        }
    }
    // (dim, lane)
    let mut codes = [[0; LANES]; GROUP_MAX];
    let mut rest = feedback.parts;
    for i in 0..head_dim {
        let (now, after) = x[i..head_dim].split_at_mut(1);
        let (share, others) = rest.split_at(after.len());
        rest = others;
        let (rounded, error) = c.round(&now[0], book, &scales[i / form.group]);
        codes[i] = rounded;
        c.feed_back(&error, feedback.units[i], share, after);
    }
    let mut of_slot = [0; GROUP_MAX];
    for (lane, slot) in slots.enumerate() {
        for (to, codes) in of_slot.iter_mut().zip(&codes[..head_dim]) {
            *to = codes[lane];
        }
        put_codes(Side::K, form, &mut parts, slot, 0, &of_slot[..head_dim]);
    }
}
