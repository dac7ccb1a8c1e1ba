//! The formula against attention that does without the rows, and what the guard makes of it.

use super::choose::Counts;
use super::share::{BATCH, Share, statistic};
use super::*;
use crate::model::Model;
use crate::runtime::options::{KvOptions, Policy, Retention, RuntimeOptions};
use crate::runtime::step::Runtime;
use crate::runtime::trial::Change;
use crate::{Codec, KvForm, LoadOptions, Repack};
use haversack_kernels::attention::Attend;
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

/// What a canary was answered, or would be by the rows of `id`.
fn answer(rt: &mut Runtime, id: SequenceId, layer: usize, canary: usize) -> Vec<f32> {
    let (model, table) = (rt.model().clone(), rt.table());
    let config = model.config();
    let (_, pool, store, scratch) = rt.guarded().unwrap();
    let size = crate::model::forward::StepSize {
        jobs: 1,
        slots: 1024,
        ..Default::default()
    };
    scratch.reserve(config, 1, size);
    let (attention, canaries) = scratch.guarded(config, 1).unwrap();
    let seen = place(config, store, canaries, id, layer, (TOKENS as u64, 0)).unwrap();
    let c = seen.config;
    let width = c.heads * c.head_dim;
    let view = store.view(id, layer).unwrap();
    let mut out = vec![0.0; width];
    let job = Attend {
        kv_heads: c.kv_heads,
        head_dim: c.head_dim,
        heads: c.heads,
        basis: seen.shape.basis(),
        mean: seen.mean,
        scale: c.score_scale,
        softcap: None,
        window: None,
        q: &[&seen.canaries.q[canary * width..][..width]],
        first_position: seen.canaries.positions[canary].unwrap(),
        view: &view,
        out: &mut out,
        mass: None,
        sums: None,
    };
    attention::attend(Exec { table, pool }, attention, &mut [job]);
    out
}

/// (canary, head, dim): outputs after rows left, less those before, by the formula; and the statistic.
fn foreseen(rt: &mut Runtime, id: SequenceId, layer: usize, rows: &[Row]) -> (Vec<f32>, f64) {
    let (model, table) = (rt.model().clone(), rt.table());
    let (guard, pool, store, scratch) = rt.guarded().unwrap();
    let (attention, canaries) = scratch.guarded(model.config(), 1).unwrap();
    let place = place(
        model.config(),
        store,
        canaries,
        id,
        layer,
        (TOKENS as u64, 0),
    )
    .unwrap();
    let exec = Exec { table, pool };
    let mut look = Look {
        exec,
        store,
        attention,
        place,
        id,
        layer,
    };
    let cost = look.statistic(guard, rows).unwrap();
    let difference = guard.before.values().to_vec();
    let again = statistic(exec, &place, &guard.gains[layer], &difference);
    assert_eq!(cost, again);
    (difference, cost)
}

/// Queries of the last block saw rows in the codes they have now.
fn codes_as_seen(canary: usize) -> bool {
    // One in eight of 480 tokens: the last block has the last four places.
    canary >= 8
}

fn some(rows: &[Row], every: usize) -> Vec<Row> {
    rows.iter().step_by(every).copied().collect()
}

#[test]
fn what_is_foreseen_is_what_attention_does_without_the_rows() {
    let (model, tokens) = tiny();
    for kv in codecs() {
        let mut rt = runtime(&model, kv.clone(), None);
        let most = if kv.form == KvForm::F16 { 2e-5 } else { 1e-2 };
        let id = fed(&mut rt, &tokens[..TOKENS]);
        for layer in 0..model.config().layers.len() {
            let rows = rt.settled_rows(id, layer).unwrap();
            let rows: Vec<Row> = rows.into_iter().filter(|row| row.position >= 32).collect();
            assert!(rows.len() > 2 * BATCH);
            for every in [1, 2, 7, 100] {
                let leave = some(&rows, every);
                let (difference, _) = foreseen(&mut rt, id, layer, &leave);
                let fork = rt.fork(id).unwrap();
                let change = TrialChange {
                    rows: vec![(layer, leave)],
                    round: None,
                };
                rt.make(fork, &change).unwrap();
                let width = difference.len() / crate::model::canaries::CANARIES;
                for (canary, difference) in difference.chunks_exact(width).enumerate() {
                    if !(codes_as_seen(canary) || kv.form == KvForm::F16) {
                        continue;
                    }
                    let before = answer(&mut rt, id, layer, canary);
                    let after = answer(&mut rt, fork, layer, canary);
                    let length = before.iter().map(|x| x * x).sum::<f32>().sqrt();
                    for ((before, after), difference) in before.iter().zip(&after).zip(difference) {
                        let error = (after - before - difference).abs();
                        // Attention over codes rounds queries and probabilities.
                        assert!(
                            error <= most * length,
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

/// What a canary holds as its answer, all heads.
fn held(rt: &mut Runtime, id: SequenceId, layer: usize, canary: usize, width: usize) -> Vec<f32> {
    let model = rt.model().clone();
    let (_, _, store, scratch) = rt.guarded().unwrap();
    let (_, canaries) = scratch.guarded(model.config(), 1).unwrap();
    let stand = (TOKENS as u64, 0);
    let place = place(model.config(), store, canaries, id, layer, stand).unwrap();
    place.canaries.o[canary * width..][..width].to_vec()
}

#[test]
fn canaries_were_answered_as_they_say() {
    let (model, tokens) = tiny();
    for kv in codecs() {
        let mut rt = runtime(&model, kv, None);
        let id = fed(&mut rt, &tokens[..TOKENS]);
        for layer in 0..model.config().layers.len() {
            for canary in (0..12).filter(|&canary| codes_as_seen(canary)) {
                let found = answer(&mut rt, id, layer, canary);
                let o = held(&mut rt, id, layer, canary, found.len());
                assert!(found == o, "layer {layer}, canary {canary}");
            }
        }
    }
}

/// Rows that left are taken out of the answers: what a canary holds is what it would be answered now.
#[test]
fn canaries_forget_what_left() {
    let (model, tokens) = tiny();
    let mut rt = runtime(&model, KvOptions::new(KvForm::F16), Some(256));
    let id = fed(&mut rt, &tokens[..TOKENS]);
    assert!(rt.stats(id).unwrap().rows < TOKENS - 96 && rt.quality_debt(id) > Some(0.0));
    for layer in 0..model.config().layers.len() {
        for canary in 0..crate::model::canaries::CANARIES {
            let found = answer(&mut rt, id, layer, canary);
            let o = held(&mut rt, id, layer, canary, found.len());
            let length = found.iter().map(|x| x * x).sum::<f32>().sqrt();
            for (a, b) in found.iter().zip(&o) {
                assert!(
                    (a - b).abs() <= 1e-4 * length,
                    "layer {layer}, canary {canary}: {a} {b}"
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
        let rows = some(&rt.settled_rows(id, 1).unwrap(), 3);
        let own = {
            let table = rt.table();
            let (guard, pool, store, scratch) = rt.guarded().unwrap();
            let (attention, canaries) = scratch.guarded(model.config(), 1).unwrap();
            let place = place(model.config(), store, canaries, id, 1, (TOKENS as u64, 0)).unwrap();
            let look = Look {
                exec: Exec { table, pool },
                store,
                attention,
                place,
                id,
                layer: 1,
            };
            look.own(guard, &rows).unwrap();
            guard.own.clone()
        };
        assert_eq!(own.len(), rows.len());
        for (row, own) in rows.iter().zip(own) {
            let (_, cost) = foreseen(&mut rt, id, 1, &[*row]);
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
        // What is judged counts as gone, so each time on a fork.
        let id = rt.fork(whole).unwrap();
        let table = rt.table();
        let mut left = Vec::new();
        let mut spent = 0.0;
        for layer in 0..model.config().layers.len() {
            let mut rows = rt.settled_rows(id, layer).unwrap();
            // The dearest go first, if it is up to this policy.
            rows.sort_by_key(|row| std::cmp::Reverse(row.mass));
            rows.truncate(may + spare);
            let (guard, pool, store, scratch) = rt.guarded().unwrap();
            guard.set_params(GuardParams {
                bound,
                ..GuardParams::default()
            });
            let tools = Tools {
                config: model.config(),
                exec: Exec { table, pool },
                store,
                scratch,
            };
            let ask = Ask {
                id,
                layer,
                position: TOKENS as u64,
                rows: &mut rows,
                fixed: 0,
                counts: Counts { must, may },
                stands_for: 1.0,
            };
            let leave = guard.judge(tools, ask).unwrap();
            assert!((must..=may).contains(&leave));
            spent = guard.spent;
            left.push(leave);
        }
        let (guard, ..) = rt.guarded().unwrap();
        let (allowed, before) = (guard.params().allowed(), guard.debt(id));
        let kl = guard.settle(id);
        assert_eq!(guard.debt(id), before + kl);
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
    assert_eq!(one - none, Canaries::ring_bytes(model.config()));
    let rows = some(&rt.settled_rows(id, 0).unwrap(), 9);
    let change = TrialChange {
        rows: vec![(0, rows)],
        round: None,
    };
    let expected = rt.foresee(id, &change).unwrap().unwrap();
    assert!(expected.statistic > 0.0 && expected.exact > 0.0);
    let fork = rt.fork(id).unwrap();
    assert_eq!(rt.ledger().side - one, one - none);
    rt.feed(id, &tokens[TOKENS..TOKENS + 5], &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap();
    // In the middle of a block nobody knows; the fork does, and the other one again where it stood.
    assert_eq!(rt.foresee(id, &change).unwrap(), None);
    assert_eq!(rt.foresee(fork, &change).unwrap(), Some(expected));
    rt.truncate(id, TOKENS as u64 - 32).unwrap();
    let again = &tokens[TOKENS - 32..TOKENS];
    rt.feed(id, again, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(rt.foresee(id, &change).unwrap(), Some(expected));
    rt.close(fork).unwrap();
    assert_eq!(rt.ledger().side, one);
    rt.close(id).unwrap();
    assert_eq!(rt.ledger().side, none);
    assert_eq!(rt.quality_debt(id), Some(0.0));
}

/// Rows that are rounded: foreseen as attention sees them afterwards.
#[test]
fn rounding_is_foreseen_too() {
    let (model, tokens) = tiny();
    let mut rt = runtime(&model, KvOptions::new(KvForm::F16), None);
    let id = fed(&mut rt, &tokens[..TOKENS]);
    let rows = some(&rt.settled_rows(id, 1).unwrap(), 2);
    let mut last = 0.0;
    for codec in [Codec::F16, Codec::Int8, Codec::Int4, Codec::Int2] {
        let change = TrialChange {
            rows: vec![(1, rows.clone())],
            round: Some(KvForm::both(codec.form())),
        };
        let found = rt.foresee(id, &change).unwrap().unwrap();
        assert!(
            codec == Codec::F16 || found.statistic > 4.0 * last,
            "{codec}: {found:?}"
        );
        last = found.statistic;
        // The differences of that moment, against what attention says.
        let (guard, ..) = rt.guarded().unwrap();
        let difference = guard.before.values().to_vec();
        let fork = rt.fork(id).unwrap();
        rt.make(fork, &change).unwrap();
        let width = difference.len() / crate::model::canaries::CANARIES;
        for (canary, difference) in difference.chunks_exact(width).enumerate() {
            let before = answer(&mut rt, id, 1, canary);
            let after = answer(&mut rt, fork, 1, canary);
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
    let rows = rt.settled_rows(id, 0).unwrap();
    let (table, mut share) = (rt.table(), Share::new(model.config()).unwrap());
    let (guard, pool, store, scratch) = rt.guarded().unwrap();
    let (attention, canaries) = scratch.guarded(model.config(), 1).unwrap();
    let place = place(model.config(), store, canaries, id, 0, (TOKENS as u64, 0)).unwrap();
    share.clear(&place);
    for rows in rows.chunks(BATCH) {
        store.copy_rows(id, 0, rows, &mut guard.bytes).unwrap();
        share.add(
            Exec { table, pool },
            attention,
            &place,
            &guard.bytes,
            rows.len(),
        );
    }
    // All but the recent rows: most of it, never more than all.
    let weights = share.weights();
    assert!(weights.iter().all(|&w| w > 0.1 && w < 1.0), "{weights:?}");
}

#[test]
fn a_bound_is_where_the_prediction_reaches_it() {
    let params = GuardParams::default();
    let upper = params.predict(params.allowed()) * params.factor;
    assert!((upper / params.bound - 1.0).abs() < 1e-9, "{upper}");
    assert_eq!(params.predict(0.0), 0.0);
    assert_eq!(params.predict(-1.0), 0.0);
    assert_eq!(params.predict(f64::NAN), KL_MAX);
    assert_eq!(params.predict(f64::INFINITY), KL_MAX);
}

#[test]
fn a_fit_finds_the_line_and_the_spread() {
    let noise = |i: usize| ((i * 37 % 101) as f64 / 50.0 - 1.0) * 0.5;
    let pair = |i: usize| {
        let x = -12.0 + 0.01 * i as f64;
        (x.exp(), (-0.5 + 0.9 * x + noise(i)).exp())
    };
    let pairs: Vec<_> = (0..1000).map(pair).collect();
    let found = fit(&pairs, 0.02).unwrap();
    assert!((found.slope - 0.9).abs() < 0.02, "{found:?}");
    assert!((found.offset + 0.5).abs() < 0.2, "{found:?}");
    assert!((found.factor.ln() - 0.45).abs() < 0.05, "{found:?}");
    assert_eq!(found.bound, 0.02);
    for bad in [
        &pairs[..2],
        &[(0.0, 1.0); 9],
        &[(1.0, 1.0); 9],
        &[(f64::NAN, 1.0); 9],
        &[(1.0, 2.0), (2.0, 1.5), (3.0, 1.0)],
    ] {
        assert_eq!(fit(bad, 0.1), None);
    }
}
