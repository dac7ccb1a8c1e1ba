//! The guard's formula against attention that does without the rows, and what the guard makes of it.

use super::Runtime;
use super::options::{Policy, Retention, RuntimeOptions};
use super::trial::{TrialChange, final_rows};
use crate::kv_quality::guard::choose::VictimCounts;
use crate::kv_quality::guard::share::{AttentionShare, BATCH, statistic};
use crate::kv_quality::guard::{Guard, GuardParams, GuardRequest, GuardTools, GuardView};
use crate::model::Model;
use crate::model::kv::KvOptions;
use crate::step::query_samples::{SAMPLES, SampleLayout};
use crate::step::scratch::StepSize;
use crate::{Codec, KvForm, LoadOptions, Repack};
use haversack_cache::{KvRow, SequenceId};
use haversack_kernels::Exec;
use haversack_kernels::attention::{self, AttentionJob};
use haversack_testing::models::Spec;
use std::ops::ControlFlow;
use std::sync::Arc;

const TOKENS: usize = 480;

fn tiny() -> (Arc<Model>, Vec<u32>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let spec = Spec::named("llama").unwrap();
    spec.write_file(&path).unwrap();
    let load = LoadOptions {
        repack: Repack::Off,
        ..LoadOptions::default()
    };
    let model = Model::load(&path, &load, &mut |_, _| ()).unwrap();
    (model, spec.ids(600))
}

fn runtime(model: &Arc<Model>, kv: KvOptions, window: Option<usize>) -> Runtime {
    let options = RuntimeOptions {
        threads: 1,
        kv,
        retention: Retention {
            policy: Policy::Heavy,
            anchors: Some(32),
            window,
            ..Retention::default()
        },
        guard: GuardParams {
            turns: 1,
            ..GuardParams::default()
        },
        ..RuntimeOptions::default()
    };
    Runtime::new(model.clone(), &options).unwrap()
}

fn fed(rt: &mut Runtime, tokens: &[u32]) -> SequenceId {
    let id = rt.open().unwrap();
    rt.feed(id, tokens, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    id
}

fn codecs() -> [KvOptions; 3] {
    [
        KvOptions::new(KvForm::F16),
        KvOptions::new(KvForm::both(Codec::Int8.form())),
        KvOptions::default(),
    ]
}

/// The guard of a runtime and what it computes with.
fn guarded(rt: &mut Runtime) -> (&mut Guard, GuardTools<'_>) {
    let runner = &mut rt.runner;
    let (config, pool) = (runner.model.config(), &runner.pool);
    let tools = GuardTools {
        config,
        exec: Exec {
            backend: runner.backend,
            pool,
        },
        store: &runner.store,
        sequences: &mut runner.sequences,
        attention: runner.scratch.small_attention(config, pool.threads()),
    };
    (rt.evictor.guard.as_mut().unwrap(), tools)
}

/// A layer of a sequence that stands at [`TOKENS`], with its query samples.
fn view<'a>(tools: &'a mut GuardTools<'_>, id: SequenceId, index: usize) -> GuardView<'a> {
    tools.view(id, index, (TOKENS as u64, 0)).unwrap()
}

/// What attention over the rows of `id` gives a query sample.
fn answer(rt: &mut Runtime, id: SequenceId, layer: usize, sample: usize) -> Vec<f32> {
    let size = StepSize {
        jobs: 1,
        slots: 1024,
        ..Default::default()
    };
    let model = rt.model().clone();
    rt.runner.scratch.reserve(model.config(), 1, size);
    let (_, mut tools) = guarded(rt);
    let view = view(&mut tools, id, layer);
    let c = view.layer.config;
    let width = c.heads * c.head_dim;
    let table = view.store.view(id, layer).unwrap();
    let mut out = vec![0.0; width];
    let job = AttentionJob {
        kv_heads: c.kv_heads,
        head_dim: c.head_dim,
        heads: c.heads,
        basis: view.layer.shape.basis(),
        mean: view.layer.mean,
        scale: c.score_scale,
        window: None,
        q: &[&view.layer.samples.q[sample * width..][..width]],
        first_position: view.layer.samples.positions[sample].unwrap(),
        view: &table,
        out: &mut out,
        mass: None,
        sums: None,
    };
    attention::attend(view.exec, view.attention, &mut [job]);
    out
}

/// (sample, head, dim): outputs after rows left, less those before, by the formula; and the statistic.
fn predicted(rt: &mut Runtime, id: SequenceId, layer: usize, rows: &[KvRow]) -> (Vec<f32>, f64) {
    let (guard, mut tools) = guarded(rt);
    let mut view = view(&mut tools, id, layer);
    let cost = view.statistic(guard, rows).unwrap();
    let difference = guard.before.values().to_vec();
    let same = statistic(view.exec, &view.layer, &guard.gains[layer], &difference);
    assert_eq!(cost, same);
    (difference, cost)
}

/// Queries of the last block saw rows in the codes they have now.
fn codes_as_seen(sample: usize) -> bool {
    // One in eight of 480 tokens: the last block has the last four places.
    sample >= 8
}

fn some(rows: &[KvRow], every: usize) -> Vec<KvRow> {
    rows.iter().step_by(every).copied().collect()
}

#[test]
fn the_prediction_is_what_attention_does_without_the_rows() {
    let (model, tokens) = tiny();
    for kv in codecs() {
        let mut rt = runtime(&model, kv.clone(), None);
        let tolerance = if kv.form == KvForm::F16 { 2e-5 } else { 1e-2 };
        let id = fed(&mut rt, &tokens[..TOKENS]);
        for layer in 0..model.config().layers.len() {
            let rows = final_rows(&rt, id, layer).unwrap();
            let rows: Vec<KvRow> = rows.into_iter().filter(|row| row.position >= 32).collect();
            assert!(rows.len() > 2 * BATCH);
            for every in [1, 2, 7, 100] {
                let leave = some(&rows, every);
                let (difference, _) = predicted(&mut rt, id, layer, &leave);
                let fork = rt.fork(id).unwrap();
                let change = TrialChange {
                    rows: vec![(layer, leave)],
                    round: None,
                };
                change.apply(&mut rt, fork).unwrap();
                let width = difference.len() / SAMPLES;
                for (sample, difference) in difference.chunks_exact(width).enumerate() {
                    if !(codes_as_seen(sample) || kv.form == KvForm::F16) {
                        continue;
                    }
                    let before = answer(&mut rt, id, layer, sample);
                    let after = answer(&mut rt, fork, layer, sample);
                    let length = before.iter().map(|x| x * x).sum::<f32>().sqrt();
                    for ((before, after), difference) in before.iter().zip(&after).zip(difference) {
                        let error = (after - before - difference).abs();
                        // Attention over codes rounds queries and probabilities.
                        assert!(
                            error <= tolerance * length,
                            "{}, 1/{every}: {error} of {length}",
                            kv.name()
                        );
                    }
                }
                rt.close(fork).unwrap();
            }
        }
    }
}

/// The output that a query sample holds, all heads.
fn held(rt: &mut Runtime, id: SequenceId, layer: usize, sample: usize, width: usize) -> Vec<f32> {
    let (_, mut tools) = guarded(rt);
    let view = view(&mut tools, id, layer);
    view.layer.samples.o[sample * width..][..width].to_vec()
}

#[test]
fn samples_hold_what_attention_gave() {
    let (model, tokens) = tiny();
    for kv in codecs() {
        let mut rt = runtime(&model, kv, None);
        let id = fed(&mut rt, &tokens[..TOKENS]);
        for layer in 0..model.config().layers.len() {
            for sample in (0..12).filter(|&sample| codes_as_seen(sample)) {
                let found = answer(&mut rt, id, layer, sample);
                let o = held(&mut rt, id, layer, sample, found.len());
                assert!(found == o, "layer {layer}, sample {sample}");
            }
        }
    }
}

/// Evicted rows are taken out of the samples: a sample holds what attention would give it now.
#[test]
fn samples_forget_evicted_rows() {
    let (model, tokens) = tiny();
    let mut rt = runtime(&model, KvOptions::new(KvForm::F16), Some(256));
    let id = fed(&mut rt, &tokens[..TOKENS]);
    assert!(rt.stats(id).unwrap().rows < TOKENS - 96 && rt.quality_debt(id) > Some(0.0));
    for layer in 0..model.config().layers.len() {
        for sample in 0..SAMPLES {
            let found = answer(&mut rt, id, layer, sample);
            let o = held(&mut rt, id, layer, sample, found.len());
            let length = found.iter().map(|x| x * x).sum::<f32>().sqrt();
            for (a, b) in found.iter().zip(&o) {
                assert!(
                    (a - b).abs() <= 1e-4 * length,
                    "layer {layer}, sample {sample}: {a} {b}"
                );
            }
        }
    }
}

/// Row by row and by attention over a block of one are two ways to the same number.
#[test]
fn a_row_alone_costs_what_a_set_of_one_costs() {
    let (model, tokens) = tiny();
    for kv in codecs() {
        let mut rt = runtime(&model, kv.clone(), None);
        let id = fed(&mut rt, &tokens[..TOKENS]);
        let rows = some(&final_rows(&rt, id, 1).unwrap(), 3);
        let (guard, mut tools) = guarded(&mut rt);
        view(&mut tools, id, 1).own(guard, &rows).unwrap();
        let own = guard.own.clone();
        assert_eq!(own.len(), rows.len());
        for (row, own) in rows.iter().zip(own) {
            let (_, cost) = predicted(&mut rt, id, 1, &[*row]);
            let own = f64::from(own);
            assert!(
                (own - cost).abs() <= 0.1 * cost + 1e-9,
                "{}: {own} {cost}",
                kv.name()
            );
        }
    }
}

/// A policy that would let everything go: what the guard lets it do costs no more than allowed, and more is
/// allowed under a greater bound. Where rows must leave it takes the cheaper ones.
#[test]
fn a_hostile_policy_is_held_to_the_bound() {
    let (model, tokens) = tiny();
    let mut rt = runtime(&model, KvOptions::default(), None);
    let whole = fed(&mut rt, &tokens[..TOKENS]);
    let mut ask = |bound: f64, must: usize, may: usize, spare: usize| {
        // Judged rows count as evicted, so each time on a fork.
        let id = rt.fork(whole).unwrap();
        let mut left = Vec::new();
        let mut spent = 0.0;
        for layer in 0..model.config().layers.len() {
            let mut rows = final_rows(&rt, id, layer).unwrap();
            // This policy evicts the most expensive rows first.
            rows.sort_by_key(|row| std::cmp::Reverse(row.mass));
            rows.truncate(may + spare);
            let (guard, tools) = guarded(&mut rt);
            guard.params = GuardParams {
                bound,
                ..GuardParams::default()
            };
            let request = GuardRequest {
                id,
                layer,
                position: TOKENS as u64,
                rows: &mut rows,
                fixed: 0,
                counts: VictimCounts { must, may },
                stands_for: 1.0,
            };
            let leave = guard.judge(tools, request).unwrap();
            assert!((must..=may).contains(&leave));
            spent = guard.spent;
            left.push(leave);
        }
        let (guard, _) = guarded(&mut rt);
        let allowed = guard.params.allowed();
        assert_eq!(guard.settle(), guard.params.predict(spent));
        rt.close(id).unwrap();
        (left, spent, allowed)
    };
    let (all, free, _) = ask(1e9, 0, 120, 0);
    assert!(all.iter().all(|&n| n == 120) && free > 0.0);
    let mut fewer = usize::MAX;
    for part in [0.5, 0.1, 0.01, 0.0001] {
        let params = GuardParams::default();
        let bound = params.factor * params.predict(free * part);
        let (left, spent, allowed) = ask(bound, 0, 120, 0);
        assert!(spent <= allowed, "{spent} {allowed}");
        let count: usize = left.iter().sum();
        assert!(count < 120 * left.len() && count <= fewer, "{left:?}");
        fewer = count;
        // As many as must, and cheaper ones.
        let (left, forced, _) = ask(bound, 60, 60, 60);
        assert!(left.iter().all(|&n| n == 60));
        let (_, careless, _) = ask(1e9, 60, 60, 60);
        assert!(forced < careless, "{forced} {careless}");
    }
}

#[test]
fn rings_follow_their_sequences() {
    let (model, tokens) = tiny();
    let mut rt = runtime(&model, KvOptions::new(KvForm::F16), None);
    let none = rt.ledger().side;
    let id = fed(&mut rt, &tokens[..TOKENS]);
    let one = rt.ledger().side;
    assert_eq!(one - none, SampleLayout::new(model.config()).ring_bytes());
    let rows = some(&final_rows(&rt, id, 0).unwrap(), 9);
    let change = TrialChange {
        rows: vec![(0, rows)],
        round: None,
    };
    let expected = change.predict(&mut rt, id).unwrap().unwrap();
    assert!(expected.statistic > 0.0 && expected.exact > 0.0);
    let fork = rt.fork(id).unwrap();
    assert_eq!(rt.ledger().side - one, one - none);
    rt.feed(id, &tokens[TOKENS..TOKENS + 5], &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap();
    // In the middle of a block there is no prediction; the fork has one, and the other one again where it stood.
    assert_eq!(change.predict(&mut rt, id).unwrap(), None);
    assert_eq!(change.predict(&mut rt, fork).unwrap(), Some(expected));
    rt.truncate(id, TOKENS as u64 - 32).unwrap();
    let again = &tokens[TOKENS - 32..TOKENS];
    rt.feed(id, again, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(change.predict(&mut rt, id).unwrap(), Some(expected));
    rt.close(fork).unwrap();
    assert_eq!(rt.ledger().side, one);
    rt.close(id).unwrap();
    assert_eq!(rt.ledger().side, none);
    assert_eq!(rt.quality_debt(id), Some(0.0));
}

/// Rounded rows: predicted as attention sees them afterwards.
#[test]
fn rounding_is_predicted_too() {
    let (model, tokens) = tiny();
    let mut rt = runtime(&model, KvOptions::new(KvForm::F16), None);
    let id = fed(&mut rt, &tokens[..TOKENS]);
    let rows = some(&final_rows(&rt, id, 1).unwrap(), 2);
    let mut last = 0.0;
    for codec in [Codec::F16, Codec::Int8, Codec::Int4, Codec::Int2] {
        let change = TrialChange {
            rows: vec![(1, rows.clone())],
            round: Some(KvForm::both(codec.form())),
        };
        let found = change.predict(&mut rt, id).unwrap().unwrap();
        assert!(
            codec == Codec::F16 || found.statistic > 4.0 * last,
            "{codec}: {found:?}"
        );
        last = found.statistic;
        // The differences of that moment, against what attention says.
        let (guard, _) = guarded(&mut rt);
        let difference = guard.before.values().to_vec();
        let fork = rt.fork(id).unwrap();
        change.apply(&mut rt, fork).unwrap();
        let width = difference.len() / SAMPLES;
        for (sample, difference) in difference.chunks_exact(width).enumerate() {
            let before = answer(&mut rt, id, 1, sample);
            let after = answer(&mut rt, fork, 1, sample);
            let length = before.iter().map(|x| x * x).sum::<f32>().sqrt();
            for ((before, after), difference) in before.iter().zip(&after).zip(difference) {
                let error = (after - before - difference).abs();
                assert!(error <= 1e-4 * length, "{codec}: {error} of {length}");
            }
        }
        rt.close(fork).unwrap();
    }
}

#[test]
fn a_share_of_everything_is_one() {
    let (model, tokens) = tiny();
    let mut rt = runtime(&model, KvOptions::new(KvForm::F16), None);
    let id = fed(&mut rt, &tokens[..TOKENS]);
    let rows = final_rows(&rt, id, 0).unwrap();
    let mut share = AttentionShare::new(model.config()).unwrap();
    let (guard, mut tools) = guarded(&mut rt);
    let view = view(&mut tools, id, 0);
    share.clear(&view.layer);
    for rows in rows.chunks(BATCH) {
        let bytes = &mut guard.bytes;
        view.store.copy_rows(id, 0, rows, bytes).unwrap();
        share.add(view.exec, view.attention, &view.layer, bytes, rows.len());
    }
    // All but the recent rows: most of it, never more than all.
    let weights = share.weights();
    assert!(weights.iter().all(|&w| w > 0.1 && w < 1.0), "{weights:?}");
}
