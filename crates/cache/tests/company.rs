//! What a query sees does not depend on how the tokens before it were fed.
//!
//! A block has two forms, and inside one chunk early queries see the near one and late queries the
//! far one. Here the same tokens go in one by one, in blocks, in ragged chunks and at once, alone and
//! beside another sequence, on one thread and on two; under the window policy too, where blocks of 32 are the largest chunk.
//! Attention over the store must give the same bits each time, close to attention over f32.

use crate::common;

use common::*;
use haversack_cache::policy::window::{WindowParams, plan};
use haversack_cache::{
    Codec, KvForm, LayerShape, SequenceGrowth, SequenceId, Store, StoreOptions, Zones,
};
use haversack_kernels::Exec;
use haversack_kernels::attention::{AttentionJob, AttentionLimits, AttentionScratch, attend};

const HEADS: usize = 4;
const TOKENS: usize = 330;

fn attention(
    store: &Store,
    scratch: &mut AttentionScratch,
    id: SequenceId,
    layer: usize,
    first_position: u64,
    tokens: &[u32],
) -> Vec<f32> {
    let shape = store.layers()[layer];
    let width = HEADS * shape.head_dim;
    // A query for each token; without rope all segments meet the same one.
    let mut q = vec![0.0; tokens.len() * width];
    for (row, &token) in q.chunks_exact_mut(width).zip(tokens) {
        fill(token, layer, 2, row);
    }
    let queries = vec![&q[..]; store.shifts(id).len()];
    let mut out = vec![0.0; q.len()];
    let view = store.view(id, layer).unwrap();
    attend(
        exec(),
        scratch,
        &mut [AttentionJob {
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            heads: HEADS,
            basis: shape.basis(),
            mean: store.mean(layer),
            scale: 0.1,
            window: shape.window,
            q: &queries,
            first_position,
            view: &view,
            out: &mut out,
            mass: None,
            sums: None,
        }],
    );
    out
}

/// Single tokens on one thread, chunks on two.
fn exec_of(tokens: usize) -> Exec<'static> {
    if tokens == 1 { exec() } else { exec_two() }
}

/// (layer, token, head, dim) of everything fed in chunks of these sizes, over and over.
fn outputs(
    options: &StoreOptions,
    chunks: &[usize],
    policy: Option<WindowParams>,
) -> Vec<Vec<f32>> {
    let mut store = Store::new(options.clone()).unwrap();
    let mut scratch = AttentionScratch::new(AttentionLimits {
        threads: exec().pool.threads(),
        jobs: 1,
        heads: HEADS,
        kv_heads: options.layers[0].kv_heads,
        head_dim: options.layers[0].head_dim,
        slots: TOKENS + 64,
    });
    let tokens: Vec<u32> = (1..=TOKENS as u32).collect();
    let id = store.open().unwrap();
    // Company: another sequence in each step, which leaves again.
    let other = store.open().unwrap();
    let mut out = vec![Vec::new(); options.layers.len()];
    let mut at = 0;
    for &chunk in chunks.iter().cycle() {
        let n = chunk.min(TOKENS - at);
        if n == 0 {
            break;
        }
        let part = &tokens[at..at + n];
        let company = store.stats(other).unwrap().position;
        let mut step = store
            .begin(&[
                SequenceGrowth {
                    id,
                    position: at as u64,
                    tokens: n,
                },
                SequenceGrowth {
                    id: other,
                    position: company,
                    tokens: 3,
                },
            ])
            .unwrap();
        for layer in 0..options.layers.len() {
            write(&mut store, &mut step, other, layer, &[7, 8, 9]).unwrap();
            let shape = options.layers[layer];
            let (k, v) = (rows(shape, layer, 0, part), rows(shape, layer, 1, part));
            let written = store.write(exec_of(n), &mut step, id, layer, &k, &v);
            written.unwrap();
            let seen = attention(&store, &mut scratch, id, layer, at as u64, part);
            out[layer].extend(seen);
            store.settle(&mut step, layer);
        }
        store.commit(step).unwrap();
        store.recode_ahead(exec_of(n), id, n).unwrap();
        at += n;
        if let Some(params) = policy {
            let plan = plan(&store.snapshot(id).unwrap(), &params);
            store.apply(id, &plan).unwrap();
        }
    }
    out
}

fn recipes() -> Vec<(&'static str, KvForm, KvForm)> {
    let int8 = KvForm::both(Codec::Int8.form());
    let mut recipes = vec![("f16", KvForm::F16, KvForm::F16), ("int8", int8, int8)];
    for codec in [
        Codec::Int5,
        Codec::Int4,
        Codec::Int4Plain,
        Codec::Int3,
        Codec::Int2,
    ] {
        recipes.push((codec.name(), int8, KvForm::both(codec.form())));
    }
    let mixed = KvForm {
        k: Codec::Int8.form(),
        v: Codec::Int4.form(),
    };
    recipes.push(("k=int8,v=int4", int8, mixed));
    recipes
}

fn options(near: KvForm, far: KvForm) -> StoreOptions {
    let layer = LayerShape {
        far,
        ..LayerShape::plain(2, 64, near)
    };
    let sliding = LayerShape {
        window: Some(75),
        ..layer
    };
    let mean: Vec<f32> = (0..layer.width()).map(|i| (i % 7) as f32 - 3.0).collect();
    StoreOptions {
        layers: vec![layer, sliding],
        zones: Zones {
            sinks: 4,
            recent: 64,
        },
        means: vec![Some(mean), None],
        error_feedback: vec![Some(some_carry(layer)), None],
        ..StoreOptions::default()
    }
}

/// The square of the error over the square of what it should be.
fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    let (mut error, mut whole) = (0.0, 0.0);
    for (x, y) in pairs {
        error += f64::from(x - y).powi(2);
        whole += f64::from(*y).powi(2);
    }
    error / whole
}

#[test]
fn chunks_and_company_change_nothing() {
    let exact = outputs(&options(KvForm::F32, KvForm::F32), &[TOKENS], None);
    for (name, near, far) in recipes() {
        let options = options(near, far);
        let alone = outputs(&options, &[1], None);
        for chunks in [&[32][..], &[TOKENS], &[7, 100, 1, 33], &[64, 3], &[31, 33]] {
            let other = outputs(&options, chunks, None);
            assert!(alone == other, "{name} in chunks of {chunks:?}");
        }
        let error = distance(&alone, &exact);
        // A bound that a wrong basis, mean, sink or form breaks at once.
        let bound = match far.v.codec {
            Codec::F16 => 1e-6,
            Codec::Int8 => 1e-3,
            Codec::Int2 => 0.5,
            _ => 0.1,
        };
        assert!(error < bound, "{name}: {error}");
    }
}

#[test]
fn under_a_window_too() {
    let params = WindowParams {
        anchors: 40,
        window: 96,
    };
    for (name, near, far) in recipes() {
        let options = options(near, far);
        let alone = outputs(&options, &[1], Some(params));
        for chunks in [&[32][..], &[5, 27], &[16]] {
            let other = outputs(&options, chunks, Some(params));
            assert!(alone == other, "{name} in chunks of {chunks:?}");
        }
    }
}
