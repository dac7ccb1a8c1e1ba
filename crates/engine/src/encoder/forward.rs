//! The forward pass: every token sees every token, and each layer is attention and a feed-forward,
//! with the norm after the sum.
//!
//! A row of the batch is a token. Products with weights are [`matmul`]'s; the rest runs row by row.
//! Nothing is summed across units of work, so thread count and backend change no bit.

use super::embedding::DIMENSIONS;
use super::weights::{EncoderWeights, HEAD, HEADS, INNER, LAYERS, Layer, Linear, Norm};
use haversack_kernels::cpu::Backend;
use haversack_kernels::matmul::{MatmulInput, MatrixProduct, matmul};
use haversack_kernels::ops::{self, StridedRows};
use haversack_kernels::threads::chunks_mut;
use haversack_kernels::{Exec, LANES};

/// Tokens of a text that count, the two special ones included: what the model was trained with.
pub const TOKENS_MAX: usize = 256;

/// Of the published configuration.
const NORM_EPS: f32 = 1e-12;

/// Queries of a unit of attention: two tiles of the small product, and enough units to share.
const QUERIES: usize = 12;
/// Rows of a unit of everything that runs row by row.
const ROWS: usize = 16;

/// Floats for a text of `n` tokens.
pub(super) const fn scratch_len(n: usize) -> usize {
    n.next_multiple_of(LANES) * (2 * DIMENSIONS + INNER)
}

/// The mean of the last layer's rows. `scratch` has [`scratch_len`] floats, of any value.
pub(super) fn forward(
    exec: Exec<'_>,
    weights: &EncoderWeights,
    file: &[u8],
    ids: &[u32],
    scratch: &mut [f32],
) -> [f32; DIMENSIONS] {
    let n = ids.len();
    let pass = Pass { exec, file, n };
    let (x, rest) = scratch.split_at_mut(n * DIMENSIONS); // (token, dim)
    let (side, wide) = rest.split_at_mut(n * DIMENSIONS); // (token, dim)
    for (position, (row, &id)) in x.chunks_exact_mut(DIMENSIONS).zip(ids).enumerate() {
        weights.embed(file, id as usize, position, row);
        norm(exec.backend, row, &weights.norm);
    }
    for layer in &weights.layers[..LAYERS] {
        pass.attention(layer, x, side, wide);
        pass.feed_forward(layer, x, side, wide);
    }
    let mut mean = [0.0; DIMENSIONS];
    for row in x.chunks_exact(DIMENSIONS) {
        ops::add_assign(exec.backend, &mut mean, row);
    }
    ops::scale(exec.backend, &mut mean, 1.0 / n as f32);
    mean
}

/// One text on its way through the layers.
struct Pass<'a> {
    exec: Exec<'a>,
    file: &'a [u8],
    /// Tokens.
    n: usize,
}

impl Pass<'_> {
    /// `x = norm(x + out(attend(x)))`.
    fn attention(&self, layer: &Layer, x: &mut [f32], side: &mut [f32], wide: &mut [f32]) {
        let (Exec { backend, pool }, n) = (self.exec, self.n);
        let len = n * DIMENSIONS;
        let keys = n.next_multiple_of(LANES);
        let (q, rest) = wide.split_at_mut(len);
        let (k, rest) = rest.split_at_mut(len);
        let (v, rest) = rest.split_at_mut(len);
        let turned = &mut rest[..keys * DIMENSIONS]; // (head, dim, token)
        self.linears(
            [
                (&layer.q, &mut *q),
                (&layer.k, &mut *k),
                (&layer.v, &mut *v),
            ],
            x,
        );
        let scale = 1.0 / (HEAD as f32).sqrt();
        self.rows(q, DIMENSIONS, &|_, row| {
            ops::add_assign(backend, row, &layer.q.bias);
            ops::scale(backend, row, scale);
        });
        self.rows(v, DIMENSIONS, &|_, row| {
            ops::add_assign(backend, row, &layer.v.bias)
        });
        chunks_mut(pool, turned, keys * HEAD, &|head, turned| {
            turn(k, &layer.k.bias, head, keys, turned);
        });
        let (q, v, turned) = (&*q, &*v, &*turned);
        chunks_mut(pool, side, QUERIES * DIMENSIONS, &|unit, out| {
            let q = &q[unit * QUERIES * DIMENSIONS..][..out.len()];
            for head in 0..HEADS {
                let turned = &turned[head * keys * HEAD..];
                attend(backend, q, turned, v, n, head, out);
            }
        });
        // The queries are done with: their place takes the product.
        self.add_and_norm((&layer.out, &layer.out_norm), side, x, &mut wide[..len]);
    }

    /// `x = norm(x + down(gelu(up(x))))`.
    fn feed_forward(&self, layer: &Layer, x: &mut [f32], side: &mut [f32], wide: &mut [f32]) {
        let backend = self.exec.backend;
        let inner = &mut wide[..self.n * INNER];
        self.linears([(&layer.up, &mut *inner)], x);
        self.rows(inner, INNER, &|_, row| {
            ops::add_assign(backend, row, &layer.up.bias);
            ops::gelu_exact(backend, row);
        });
        self.add_and_norm((&layer.down, &layer.down_norm), inner, x, side);
    }

    /// `x = norm(x + linear(from))`; `product` is where the product goes.
    fn add_and_norm(
        &self,
        (by, after): (&Linear, &Norm),
        from: &[f32],
        x: &mut [f32],
        product: &mut [f32],
    ) {
        let backend = self.exec.backend;
        self.linears([(by, &mut *product)], from);
        let product = &*product;
        self.rows(x, DIMENSIONS, &|i, row| {
            ops::add_assign(backend, row, &product[i * DIMENSIONS..][..DIMENSIONS]);
            ops::add_assign(backend, row, &by.bias);
            norm(backend, row, after);
        });
    }

    /// The products without their biases.
    fn linears<const N: usize>(&self, by: [(&Linear, &mut [f32]); N], x: &[f32]) {
        let input = MatmulInput {
            rows: self.n,
            cols: x.len() / self.n,
            x,
            int8: None,
        };
        let mut products = by.map(|(linear, out)| {
            let w = linear.matrix(self.file);
            MatrixProduct { w, out }
        });
        matmul(self.exec, input, &mut products);
    }

    /// `f(index, row)` for each row, a few at a time on each thread.
    fn rows(&self, x: &mut [f32], len: usize, f: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        chunks_mut(self.exec.pool, x, ROWS * len, &|unit, part| {
            for (i, row) in part.chunks_exact_mut(len).enumerate() {
                f(unit * ROWS + i, row);
            }
        });
    }
}

/// One head's keys, with their bias, turned so that a key is a lane: (dim, token), zero where there
/// is no token.
fn turn(k: &[f32], bias: &[f32], head: usize, keys: usize, turned: &mut [f32]) {
    for (dim, lane) in turned.chunks_exact_mut(keys).enumerate() {
        let at = head * HEAD + dim;
        let column = k.chunks_exact(DIMENSIONS).map(|row| row[at] + bias[at]);
        let column = column.chain(std::iter::repeat(0.0));
        for (to, key) in lane.iter_mut().zip(column) {
            *to = key;
        }
    }
}

/// One head of a few queries: scores, softmax, the sum of values.
fn attend(
    backend: Backend,
    q: &[f32],      // (query, dim of all heads)
    turned: &[f32], // (dim, token) of this head
    v: &[f32],      // (token, dim of all heads)
    n: usize,
    head: usize,
    out: &mut [f32], // (query, dim of all heads)
) {
    let keys = n.next_multiple_of(LANES);
    let queries = out.len() / DIMENSIONS;
    let mut scores = [0.0; QUERIES * TOKENS_MAX]; // (query, token)
    let at = head * HEAD;
    let of_head = |data| StridedRows {
        data,
        stride: DIMENSIONS,
    };
    let turned = StridedRows {
        data: turned,
        stride: keys,
    };
    let (q, v, out) = (of_head(&q[at..]), of_head(&v[at..]), &mut out[at..]);
    ops::product(backend, q, turned, queries, HEAD, keys, &mut scores, keys);
    for row in scores.chunks_exact_mut(keys).take(queries) {
        ops::softmax(backend, &mut row[..n]);
    }
    let scores = StridedRows {
        data: &scores,
        stride: keys,
    };
    ops::product(backend, scores, v, queries, n, HEAD, out, DIMENSIONS);
}

fn norm(backend: Backend, row: &mut [f32], norm: &Norm) {
    ops::layer_norm_assign(backend, row, &norm.weight, &norm.bias, NORM_EPS);
}
