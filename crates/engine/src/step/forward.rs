//! One pass of the model over the tokens of a step.
//!
//! Rows of all spans go through the matrices together, so the weights are read once; attention is
//! per span, over its own tables. A row's result does not depend on its neighbours.

use super::query_samples::LayerQueries;
use super::scratch::{JobLists, StepScratch, reuse};
use super::sequence::Sequences;
use super::span::StepSpan;
use crate::model::config::{Activation, Config, HEAD_DIM_MAX, LayerConfig};
use crate::model::weights::{Weight, Weights};
use haversack_cache::{CacheResult, Step, Store};
use haversack_kernels::Exec;
use haversack_kernels::attention::{self, AttentionJob, BLOCK_SLOTS, KvView, SoftmaxSum};
use haversack_kernels::matmul::{Int8Rows, MatmulInput, MatrixProduct, matmul};
use haversack_kernels::ops;
use haversack_kernels::threads::chunks_mut;

/// What is computed, and with what.
#[derive(Clone, Copy)]
pub(super) struct StepContext<'a> {
    pub config: &'a Config,
    pub weights: &'a Weights,
    pub exec: Exec<'a>,
    pub spans: &'a [StepSpan<'a>],
}

/// What a step reads from the cache and writes to it.
pub(super) struct StepCache<'a> {
    pub store: &'a mut Store,
    pub step: &'a mut Step,
    pub sequences: &'a mut Sequences,
}

/// What becomes of a step.
pub enum StepMode<'a> {
    /// The tokens are appended to their sequences.
    Append,
    /// The same, and each layer's keys, values and queries are handed over.
    Capture(&'a mut dyn FnMut(LayerCapture)),
    /// One layer alone, over a store of that layer: the stream that comes into it, (row, dim), becomes the stream that
    /// leaves it; into the first layer come the tokens. The other layers and the logits are not computed.
    Layer {
        layer: usize,
        stream: &'a mut [f32],
        take: &'a mut dyn FnMut(LayerCapture),
    },
    /// The step starts in the middle of a layer, with the stream that came into it and the output of its attention, and
    /// nothing is appended: the logits of a cache in which that layer would have found something else.
    Trial {
        layer: usize,
        /// (row, dim)
        stream: &'a [f32],
        /// (row, head, dim)
        output: &'a [f32],
    },
}

/// What one layer computed in a step.
pub struct LayerCapture {
    /// (row, kv_head, dim), before RoPE.
    pub keys: Vec<f32>,
    /// (row, kv_head, dim)
    pub values: Vec<f32>,
    /// (row, head, dim), before RoPE.
    pub queries: Vec<f32>,
    /// (row, dim): what came into the layer.
    pub stream: Vec<f32>,
}

pub(super) fn forward(
    cx: StepContext<'_>,
    cache: &mut StepCache<'_>,
    s: &mut StepScratch,
    mode: &mut StepMode<'_>,
) -> CacheResult {
    let (config, weights, exec, spans) = (cx.config, cx.weights, cx.exec, cx.spans);
    let rows: usize = spans.iter().map(|span| span.tokens.len()).sum();
    s.begin(config, rows);
    embed(config, weights, exec, spans, &mut s.x);
    s.rotations.begin(config, cache.store, spans);

    let (first, count) = match mode {
        StepMode::Trial { layer, .. } => (*layer, usize::MAX),
        StepMode::Layer { layer, stream, .. } => {
            if *layer > 0 {
                s.x.copy_from_slice(stream);
            }
            (*layer, 1)
        }
        _ => (0, usize::MAX),
    };
    let layers = config.layers.iter().zip(&weights.layers).enumerate();
    for (layer, (c, w)) in layers.skip(first).take(count) {
        weights.prefetch_after(layer);
        // Attention.
        match mode {
            StepMode::Trial {
                layer: trial,
                stream,
                output,
            } if *trial == layer => {
                s.x.copy_from_slice(stream);
                s.attention.out.clear();
                s.attention.out.extend_from_slice(output);
            }
            _ => attention(cx, cache, s, layer, mode)?,
        }
        let out = [(&w.o, &mut s.y)];
        multiply(exec, weights, &mut s.int8, &s.attention.out, out);
        bias(&mut s.y, &w.o_bias);
        let computed = LayerQueries {
            q: &s.q,
            o: &s.attention.out,
            sums: &s.attention.sums,
            x: &s.x,
            y: &s.y,
            post_norm: w.post_attn_norm.as_deref(),
        };
        (cache.sequences).record_queries(exec.backend, layer, spans, &computed);
        residual(exec, config, s, &w.post_attn_norm);

        // Feed-forward.
        norm(exec, &s.x, &w.ffn_norm, config, &mut s.normed);
        let gate_up = [(&w.gate, &mut s.gate), (&w.up, &mut s.up)];
        multiply(exec, weights, &mut s.int8, &s.normed, gate_up);
        activate(exec, config, c, &mut s.gate, &s.up);
        multiply(exec, weights, &mut s.int8, &s.gate, [(&w.down, &mut s.y)]);
        residual(exec, config, s, &w.post_ffn_norm);
    }

    if let StepMode::Layer { stream, .. } = mode {
        stream.copy_from_slice(&s.x);
        return Ok(());
    }
    // Logits of the rows that were asked for.
    s.gather(config, spans);
    norm(exec, &s.y, &weights.output_norm, config, &mut s.normed);
    let logits = [(&weights.output, &mut s.logits)];
    multiply(exec, weights, &mut s.int8, &s.normed, logits);
    if let Some(cap) = config.logit_cap {
        let logits = s.logits.iter_mut();
        logits.for_each(|l| *l = cap * (*l / cap).tanh());
    }
    Ok(())
}

/// What the rows of one layer find in the cache, their own keys and values included: `s.attention.out`.
fn attention(
    cx: StepContext<'_>,
    cache: &mut StepCache<'_>,
    s: &mut StepScratch,
    layer: usize,
    mode: &mut StepMode<'_>,
) -> CacheResult {
    let (config, weights, exec, spans) = (cx.config, cx.weights, cx.exec, cx.spans);
    let (c, w) = (&config.layers[layer], &weights.layers[layer]);
    let stored = match mode {
        StepMode::Layer { .. } => 0,
        _ => layer,
    };
    norm(exec, &s.x, &w.attn_norm, config, &mut s.normed);
    let qkv = [(&w.q, &mut s.q), (&w.k, &mut s.k), (&w.v, &mut s.v)];
    multiply(exec, weights, &mut s.int8, &s.normed, qkv);
    bias(&mut s.q, &w.q_bias);
    bias(&mut s.k, &w.k_bias);
    bias(&mut s.v, &w.v_bias);
    head_norm(exec, config, c, &mut s.q, &w.q_norm);
    head_norm(exec, config, c, &mut s.k, &w.k_norm);
    if let StepMode::Capture(take) | StepMode::Layer { take, .. } = mode {
        take(LayerCapture {
            keys: s.k.clone(),
            values: s.v.clone(),
            queries: s.q.clone(),
            stream: s.x.clone(),
        });
    }
    s.rotations.rotate(exec, config, c, &mut s.q, &mut s.k);
    let kv = c.kv_heads * c.head_dim;
    let mut row = 0;
    for span in spans {
        let range = row * kv..(row + span.tokens.len()) * kv;
        let (k, v) = (&s.k[range.clone()], &s.v[range]);
        (cache.store).write(exec, cache.step, span.sequence, stored, k, v)?;
        row += span.tokens.len();
    }
    let is_counted = c.window.is_none() && cache.sequences.counts_any(spans);
    attend(cx, cache, s, (layer, stored), is_counted)?;
    if is_counted {
        let counts = &s.attention.counts;
        counts.save(cache.sequences, c, cache.store, stored, spans)?;
    }
    cache.store.settle(cache.step, stored);
    Ok(())
}

fn embed(
    config: &Config,
    weights: &Weights,
    exec: Exec<'_>,
    spans: &[StepSpan<'_>],
    x: &mut [f32],
) {
    let tokens = spans.iter().flat_map(|span| span.tokens);
    for (row, &token) in x.chunks_exact_mut(config.dim).zip(tokens) {
        weights.embed(token as usize, row);
        if config.embed_scale != 1.0 {
            ops::scale(exec.backend, row, config.embed_scale);
        }
    }
}

fn norm(exec: Exec<'_>, x: &[f32], weight: &[f32], config: &Config, out: &mut [f32]) {
    let dim = config.dim;
    chunks_mut(exec.pool, out, dim, &|row, out: &mut [f32]| {
        let x = &x[row * dim..(row + 1) * dim];
        ops::rms_norm(exec.backend, x, weight, config.norm_eps, out);
    });
}

fn bias(x: &mut [f32], bias: &Option<Vec<f32>>) {
    if let Some(bias) = bias {
        for row in x.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
    }
}

/// The norm of every head, where the model has one. `x` is (row, head, dim).
fn head_norm(
    exec: Exec<'_>,
    config: &Config,
    c: &LayerConfig,
    x: &mut [f32],
    weight: &Option<Vec<f32>>,
) {
    let Some(weight) = weight else {
        return;
    };
    chunks_mut(exec.pool, x, c.head_dim, &|_, head: &mut [f32]| {
        let mut copy = [0.0; HEAD_DIM_MAX];
        let copy = &mut copy[..c.head_dim];
        copy.copy_from_slice(head);
        ops::rms_norm(exec.backend, copy, weight, config.norm_eps, head);
    });
}

/// `stored`: the layer's number in the store.
fn attend(
    cx: StepContext<'_>,
    cache: &StepCache<'_>,
    s: &mut StepScratch,
    (layer, stored): (usize, usize),
    is_counted: bool,
) -> CacheResult {
    let StepContext { exec, spans, .. } = cx;
    let (store, sequences) = (&*cache.store, &*cache.sequences);
    let c = &cx.config.layers[layer];
    let width = c.heads * c.head_dim;
    let (q, rotations, state) = (&s.q, &s.rotations, &mut s.attention);
    let lists = std::mem::take(&mut state.lists);
    let (mut views, mut queries, mut jobs) =
        (reuse(lists.views), reuse(lists.queries), reuse(lists.jobs));
    for span in spans {
        views.push(store.view(span.sequence, stored)?);
    }
    state.out.resize(q.len(), 0.0);
    let mut row = 0;
    for (i, span) in spans.iter().enumerate() {
        let range = row * width..(row + span.tokens.len()) * width;
        for (segment, &shift) in rotations.shifts(i).iter().enumerate() {
            queries.push(match rotations.moved.get(segment) {
                Some(moved) if shift != 0 => &moved[range.clone()],
                _ => &q[range.clone()],
            });
        }
        row += span.tokens.len();
    }
    let shape = store.layers()[stored];
    let (mut out, mut left) = (&mut state.out[..], &queries[..]);
    let counts = &mut state.counts;
    let mut counters = is_counted.then(|| counts.begin(sequences, c.kv_heads, spans, &views));
    let is_sampled = sequences.layout.as_ref().is_some_and(|l| l.has(layer));
    let mut sums = is_sampled.then(|| {
        state
            .sums
            .resize(q.len() / c.head_dim, SoftmaxSum::default());
        &mut state.sums[..]
    });
    for (i, (span, view)) in spans.iter().zip(&views).enumerate() {
        let (q, others) = left.split_at(rotations.shifts(i).len());
        left = others;
        let (out_here, out_rest) = out.split_at_mut(span.tokens.len() * width);
        out = out_rest;
        let mass = counters.as_mut().and_then(|counters| {
            let slots = view.blocks() * BLOCK_SLOTS * c.kv_heads;
            counters.take(span, slots)
        });
        jobs.push(AttentionJob {
            kv_heads: c.kv_heads,
            head_dim: c.head_dim,
            heads: c.heads,
            basis: shape.basis(),
            mean: store.mean(stored),
            scale: c.score_scale,
            window: c.window,
            q,
            first_position: span.position,
            view,
            out: out_here,
            mass,
            sums: sums.take().map(|all| {
                let (own, others) = all.split_at_mut(span.tokens.len() * c.heads);
                sums = Some(others);
                own
            }),
        });
    }
    attention::attend(exec, &mut state.kernel, &mut jobs);
    state.lists = JobLists {
        jobs: reuse(jobs),
        queries: reuse(queries),
        views: reuse(views),
    };
    Ok(())
}

/// Rows of the stream that one thread adds to at a time.
const RESIDUAL_ROWS: usize = 16;

/// x += y, through the model's norm after the block where it has one.
fn residual(exec: Exec<'_>, config: &Config, s: &mut StepScratch, post_norm: &Option<Vec<f32>>) {
    let y = match post_norm {
        Some(weight) => {
            norm(exec, &s.y, weight, config, &mut s.normed);
            &s.normed
        }
        None => &s.y,
    };
    let part = RESIDUAL_ROWS * config.dim;
    chunks_mut(exec.pool, &mut s.x, part, &|i, x: &mut [f32]| {
        ops::add_assign(exec.backend, x, &y[i * part..][..x.len()]);
    });
}

fn activate(exec: Exec<'_>, config: &Config, c: &LayerConfig, gate: &mut [f32], up: &[f32]) {
    let ffn = c.ffn;
    chunks_mut(exec.pool, gate, ffn, &|row, gate: &mut [f32]| {
        let up = &up[row * ffn..(row + 1) * ffn];
        match config.activation {
            Activation::Silu => ops::silu_mul(exec.backend, gate, up),
            Activation::Gelu => ops::gelu_mul(exec.backend, gate, up),
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
        MatrixProduct { w, out }
    });
    let input = MatmulInput {
        rows,
        cols,
        x,
        int8,
    };
    matmul(exec, input, &mut products);
}
