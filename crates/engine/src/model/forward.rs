//! One pass of the model over the tokens of a step.
//!
//! Rows of all spans go through the matrices together, so the weights are read once; attention is
//! per span, over its own tables. A row's result does not depend on its neighbours.

use super::config::{Activation, Config, HEAD_DIM_MAX, LayerConfig};
use super::weights::{Weight, Weights};
use haversack_cache::{CacheError, SequenceId, Step, Store};
use haversack_kernels::Exec;
use haversack_kernels::attention::{self, Attend, Need};
use haversack_kernels::matmul::{Input, Int8Rows, Product, matmul};
use haversack_kernels::ops::{self, rope};
use haversack_kernels::threads::chunks_mut;

/// Which rows of a span get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    Nothing,
    Last,
    All,
}

/// New tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pub sequence: SequenceId,
    /// Where the sequence stands: the position of `tokens[0]`.
    pub position: u64,
    pub tokens: &'a [u32],
    pub want: Want,
}

impl Span<'_> {
    fn wanted(&self) -> std::ops::Range<usize> {
        let n = self.tokens.len();
        match self.want {
            Want::Nothing => n..n,
            Want::Last => n.saturating_sub(1)..n,
            Want::All => 0..n,
        }
    }
}

pub fn forward(
    config: &Config,
    weights: &Weights,
    exec: Exec<'_>,
    store: &mut Store,
    step: &mut Step,
    s: &mut Scratch,
    spans: &[Span<'_>],
) -> Result<(), CacheError> {
    let rows: usize = spans.iter().map(|span| span.tokens.len()).sum();
    s.begin(config, exec, spans, rows);
    embed(config, weights, exec, spans, &mut s.x);
    angles(config, spans, &mut s.angles);

    for (layer, (c, w)) in config.layers.iter().zip(&weights.layers).enumerate() {
        // Attention.
        norm(exec, &s.x, &w.attn_norm, config, &mut s.normed);
        let qkv = [(&w.q, &mut s.q), (&w.k, &mut s.k), (&w.v, &mut s.v)];
        multiply(exec, weights, &mut s.int8, &s.normed, qkv);
        bias(&mut s.q, &w.q_bias);
        bias(&mut s.k, &w.k_bias);
        bias(&mut s.v, &w.v_bias);
        rotate(exec, config, c, &mut s.q, &w.q_norm, &s.angles[c.rope]);
        rotate(exec, config, c, &mut s.k, &w.k_norm, &s.angles[c.rope]);
        let kv = c.kv_heads * c.head_dim;
        let mut row = 0;
        for span in spans {
            let range = row * kv..(row + span.tokens.len()) * kv;
            store.write(step, span.sequence, layer, &s.k[range.clone()], &s.v[range])?;
            row += span.tokens.len();
        }
        attend(c, exec, store, layer, s, spans)?;
        multiply(exec, weights, &mut s.int8, &s.att, [(&w.o, &mut s.y)]);
        bias(&mut s.y, &w.o_bias);
        residual(exec, config, s, &w.post_attn_norm);

        // Feed-forward.
        norm(exec, &s.x, &w.ffn_norm, config, &mut s.normed);
        let gate_up = [(&w.gate, &mut s.gate), (&w.up, &mut s.up)];
        multiply(exec, weights, &mut s.int8, &s.normed, gate_up);
        activate(exec, config, c, &mut s.gate, &s.up);
        multiply(exec, weights, &mut s.int8, &s.gate, [(&w.down, &mut s.y)]);
        residual(exec, config, s, &w.post_ffn_norm);
    }

    // Logits of the rows that were asked for.
    s.gather(config, spans);
    norm(exec, &s.y, &weights.output_norm, config, &mut s.normed);
    let logits = [(&weights.output, &mut s.logits)];
    multiply(exec, weights, &mut s.int8, &s.normed, logits);
    if let Some(cap) = config.logit_cap {
        s.logits
            .iter_mut()
            .for_each(|l| *l = cap * (*l / cap).tanh());
    }
    Ok(())
}

fn embed(config: &Config, weights: &Weights, exec: Exec<'_>, spans: &[Span<'_>], x: &mut [f32]) {
    let tokens = spans.iter().flat_map(|span| span.tokens);
    for (row, &token) in x.chunks_exact_mut(config.dim).zip(tokens) {
        weights.embed(token as usize, row);
        if config.embed_scale != 1.0 {
            ops::scale(exec.table, row, config.embed_scale);
        }
    }
}

/// (rope, row, 2 × pair): one rotation for all layers and heads of a row.
fn angles(config: &Config, spans: &[Span<'_>], out: &mut [Vec<f32>]) {
    for (spec, out) in config.ropes.iter().zip(out) {
        let positions = spans
            .iter()
            .flat_map(|span| (0..span.tokens.len()).map(|i| span.position + i as u64));
        for (row, position) in out.chunks_exact_mut(spec.dims).zip(positions) {
            spec.angles(position, row);
        }
    }
}

fn norm(exec: Exec<'_>, x: &[f32], weight: &[f32], config: &Config, out: &mut [f32]) {
    let dim = config.dim;
    chunks_mut(exec.pool, out, dim, &|row, out: &mut [f32]| {
        ops::rms_norm(
            exec.table,
            &x[row * dim..(row + 1) * dim],
            weight,
            config.norm_eps,
            out,
        );
    });
}

fn bias(x: &mut [f32], bias: &Option<Vec<f32>>) {
    if let Some(bias) = bias {
        for row in x.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
    }
}

/// Norm (where the model has one) and rotation of every head. `x` is (row, head, dim).
fn rotate(
    exec: Exec<'_>,
    config: &Config,
    c: &LayerConfig,
    x: &mut [f32],
    norm: &Option<Vec<f32>>,
    angles: &[f32],
) {
    let spec = &config.ropes[c.rope];
    let rows = angles.len() / spec.dims;
    let width = x.len() / rows;
    chunks_mut(exec.pool, x, width, &|row, x: &mut [f32]| {
        let angles = &angles[row * spec.dims..(row + 1) * spec.dims];
        for head in x.chunks_exact_mut(c.head_dim) {
            if let Some(weight) = norm {
                let mut copy = [0.0; HEAD_DIM_MAX];
                let copy = &mut copy[..c.head_dim];
                copy.copy_from_slice(head);
                ops::rms_norm(exec.table, copy, weight, config.norm_eps, head);
            }
            rope::rotate(exec.table, head, angles, spec);
        }
    });
}

fn attend(
    c: &LayerConfig,
    exec: Exec<'_>,
    store: &Store,
    layer: usize,
    s: &mut Scratch,
    spans: &[Span<'_>],
) -> Result<(), CacheError> {
    let width = c.heads * c.head_dim;
    let views: Vec<_> = spans
        .iter()
        .map(|span| store.view(span.sequence, layer))
        .collect::<Result<_, _>>()?;
    s.att.resize(s.q.len(), 0.0);
    let (mut q, mut out) = (&s.q[..], &mut s.att[..]);
    let mut jobs = Vec::with_capacity(spans.len());
    for (span, view) in spans.iter().zip(&views) {
        let (q_here, q_rest) = q.split_at(span.tokens.len() * width);
        let (out_here, out_rest) = out.split_at_mut(span.tokens.len() * width);
        (q, out) = (q_rest, out_rest);
        jobs.push(Attend {
            shape: store.layers()[layer].kernel(),
            heads: c.heads,
            scale: c.score_scale,
            softcap: None,
            window: c.window,
            q: q_here,
            first_position: span.position,
            view,
            out: out_here,
            mass: None,
        });
    }
    attention::attend(exec, &mut s.attention, &mut jobs);
    Ok(())
}

/// Rows of the stream that one thread adds to at a time.
const RESIDUAL_ROWS: usize = 16;

/// x += y, through the model's norm after the block where it has one.
fn residual(exec: Exec<'_>, config: &Config, s: &mut Scratch, post_norm: &Option<Vec<f32>>) {
    let y = match post_norm {
        Some(weight) => {
            norm(exec, &s.y, weight, config, &mut s.normed);
            &s.normed
        }
        None => &s.y,
    };
    let dim = config.dim;
    chunks_mut(
        exec.pool,
        &mut s.x,
        RESIDUAL_ROWS * dim,
        &|i, x: &mut [f32]| {
            ops::add_assign(exec.table, x, &y[i * RESIDUAL_ROWS * dim..][..x.len()]);
        },
    );
}

fn activate(exec: Exec<'_>, config: &Config, c: &LayerConfig, gate: &mut [f32], up: &[f32]) {
    let ffn = c.ffn;
    chunks_mut(exec.pool, gate, ffn, &|row, gate: &mut [f32]| {
        let up = &up[row * ffn..(row + 1) * ffn];
        match config.activation {
            Activation::Silu => ops::silu_mul(exec.table, gate, up),
            Activation::Gelu => ops::gelu_mul(exec.table, gate, up),
        }
    });
}

/// All products of one input, in one pass over the threads; each output is (row, w.rows).
fn multiply<const N: usize>(
    exec: Exec<'_>,
    weights: &Weights,
    int8: &mut Option<Int8Rows>,
    x: &[f32],
    outputs: [(&Weight, &mut Vec<f32>); N],
) {
    let cols = outputs[0].0.cols;
    let rows = x.len() / cols;
    // Only whole groups of 32 have an int8 form; products of other widths have float weights anyway.
    let int8 = int8.as_mut().filter(|_| cols.is_multiple_of(32));
    let int8 = int8.map(|int8| {
        int8.quantise(exec, x, rows, cols);
        &*int8
    });
    let mut products = outputs.map(|(w, out)| {
        out.resize(rows * w.rows, 0.0);
        let w = weights.matrix(w);
        Product { w, out }
    });
    let input = Input {
        rows,
        cols,
        x,
        int8,
    };
    matmul(exec, input, &mut products);
}

/// Everything a step computes in, allocated once for `rows_max` rows.
pub struct Scratch {
    /// Present on the fast path.
    int8: Option<Int8Rows>,
    attention: attention::Scratch,
    /// (row, dim): the residual stream, and what a block adds to it.
    x: Vec<f32>,
    y: Vec<f32>,
    normed: Vec<f32>,
    /// (row, head, dim)
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    att: Vec<f32>,
    /// (row, ffn)
    gate: Vec<f32>,
    up: Vec<f32>,
    /// (rope)(row, 2 × pair)
    angles: Vec<Vec<f32>>,
    /// (wanted row, vocab)
    logits: Vec<f32>,
}

impl Scratch {
    pub fn new(config: &Config, int8: bool) -> Scratch {
        Scratch {
            int8: int8.then(|| Int8Rows::with_capacity(0, 0)),
            attention: attention::Scratch::new(Need {
                threads: 1,
                jobs: 1,
                heads: 1,
                kv_heads: 1,
                head_dim: 1,
                slots: 0,
            }),
            x: Vec::new(),
            y: Vec::new(),
            normed: Vec::new(),
            q: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
            att: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
            angles: vec![Vec::new(); config.ropes.len()],
            logits: Vec::new(),
        }
    }

    /// Logits of the last step, (wanted row, vocab).
    pub fn last_logits(&self) -> &[f32] {
        &self.logits
    }

    /// What one more row costs.
    pub fn bytes_per_row(config: &Config) -> usize {
        let widest =
            |f: &dyn Fn(&LayerConfig) -> usize| config.layers.iter().map(f).max().unwrap_or(0);
        let q = widest(&|c| c.heads * c.head_dim);
        let kv = widest(&|c| c.kv_heads * c.head_dim);
        let ffn = widest(&|c| c.ffn);
        let int8 = ffn.max(q).max(config.dim) * 5 / 4;
        (3 * config.dim + 2 * q + 2 * kv + 2 * ffn) * size_of::<f32>() + int8
    }

    fn begin(&mut self, config: &Config, exec: Exec<'_>, spans: &[Span<'_>], rows: usize) {
        let longest = spans
            .iter()
            .map(|s| s.position as usize + s.tokens.len())
            .max()
            .unwrap_or(0);
        for c in &config.layers {
            self.attention.reserve(Need {
                threads: exec.pool.threads(),
                jobs: spans.len(),
                heads: c.heads,
                kv_heads: c.kv_heads,
                head_dim: c.head_dim,
                // Grown in large steps, so that a long answer does not move it often.
                slots: longest.next_multiple_of(1024),
            });
        }
        for v in [&mut self.x, &mut self.y, &mut self.normed] {
            v.resize(rows * config.dim, 0.0);
        }
        for (spec, v) in config.ropes.iter().zip(&mut self.angles) {
            v.resize(rows * spec.dims, 0.0);
        }
    }

    /// Moves the rows that want logits to the front of `y`.
    fn gather(&mut self, config: &Config, spans: &[Span<'_>]) {
        let dim = config.dim;
        let (mut first, mut kept) = (0, 0);
        for span in spans {
            let wanted = span.wanted();
            let from = (first + wanted.start) * dim..(first + wanted.end) * dim;
            self.y[kept * dim..(kept + wanted.len()) * dim].copy_from_slice(&self.x[from]);
            kept += wanted.len();
            first += span.tokens.len();
        }
        self.y.truncate(kept * dim);
        self.normed.truncate(kept * dim);
    }
}
