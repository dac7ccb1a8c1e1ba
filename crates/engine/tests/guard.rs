//! A runtime whose guard interferes: the same tokens however a prompt is chunked, memory within the plan, and a debt.

use crate::common;

use common::load;
use haversack_cache::{SequenceId, StatsFormat};
use haversack_engine::runtime::plan::{self, ComputeSetting};
use haversack_engine::{
    GuardParams, Guarding, KvForm, KvOptions, Model, Policy, Repack, Retention, Runtime,
    RuntimeOptions,
};
use haversack_testing::models::Spec;
use std::ops::ControlFlow;
use std::sync::Arc;

fn tiny() -> (tempfile::TempDir, Arc<Model>, Vec<u32>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let spec = Spec::named("llama").unwrap();
    spec.write_file(&path).unwrap();
    let model = load(&path, Repack::Off);
    (dir, model, spec.ids(900))
}

/// Nothing is harmless to this guard, unless told otherwise.
fn options(kv: KvOptions, guard: Guarding) -> RuntimeOptions {
    RuntimeOptions {
        threads: 1,
        kv,
        retention: Retention {
            policy: Policy::Heavy,
            anchors: Some(32),
            window: Some(256),
            guard,
            ..Retention::default()
        },
        guard: GuardParams {
            bound: 1e-9,
            ..GuardParams::default()
        },
        ..RuntimeOptions::default()
    }
}

fn feed(rt: &mut Runtime, id: SequenceId, tokens: &[u32]) {
    rt.feed(id, tokens, &mut |_| ControlFlow::Continue(()))
        .unwrap();
}

#[test]
fn a_guarded_sequence_does_not_depend_on_portions() {
    let (_dir, model, tokens) = tiny();
    for kv in [KvOptions::default(), KvOptions::new(KvForm::F16)] {
        let mut expected = None;
        for (chunk, threads) in [(512, 1), (32, 2), (1, 1), (7, 2), (100, 1)] {
            let asked = RuntimeOptions {
                chunk: Some(chunk),
                threads,
                ..options(kv.clone(), Guarding::On)
            };
            let mut rt = Runtime::new(model.clone(), &asked).unwrap();
            let id = rt.open().unwrap();
            let logits = rt.all_logits(id, &tokens).unwrap();
            let debt = rt.quality_debt(id).unwrap();
            assert!(debt > 0.0 && debt.is_finite());
            let bits: Vec<u32> = logits.iter().map(|l| l.to_bits()).collect();
            let found = (bits, debt.to_bits());
            let expected = expected.get_or_insert_with(|| found.clone());
            assert!(*expected == found, "{}, chunk {chunk}", kv.name());
        }
        let mut rt = Runtime::new(model.clone(), &options(kv, Guarding::Off)).unwrap();
        let id = rt.open().unwrap();
        let logits = rt.all_logits(id, &tokens).unwrap();
        assert_eq!(rt.quality_debt(id), None);
        let bits = logits.iter().map(|l| l.to_bits());
        assert!(
            !expected.unwrap().0.into_iter().eq(bits),
            "it made no difference"
        );
    }
}

/// A guard that interferes gets away with less than one that only looks on.
#[test]
fn other_victims_cost_less() {
    let (_dir, model, tokens) = tiny();
    let debts = [1e-9, 1e9].map(|bound| {
        let mut asked = options(KvOptions::default(), Guarding::On);
        asked.guard.bound = bound;
        let mut rt = Runtime::new(model.clone(), &asked).unwrap();
        let id = rt.open().unwrap();
        feed(&mut rt, id, &tokens);
        // As many rows stay either way: there is no room for more.
        assert!(rt.stats(id).unwrap().rows <= 32 + 256 + 32);
        rt.quality_debt(id).unwrap()
    });
    assert!(debts[0] < debts[1], "{debts:?}");
}

#[test]
fn the_plan_covers_guard_and_query_samples() {
    let (_dir, model, tokens) = tiny();
    let config = model.config();
    let kv = KvOptions::default();
    let mut asked = options(kv.clone(), Guarding::On);
    let setting = ComputeSetting {
        threads: 1,
        int8: true,
        chunk: 32,
        noting: Some(StatsFormat::ATTENTION),
        guarded: true,
    };
    let rows = 32 + 256 + 32;
    let needs = plan::needs(config, &kv, setting, rows);
    let without = plan::needs(
        config,
        &kv,
        ComputeSetting {
            guarded: false,
            ..setting
        },
        rows,
    );
    assert!(without.side_bytes < needs.side_bytes);
    asked.budget_bytes = Some(needs.total());
    let mut rt = Runtime::new(model.clone(), &asked).unwrap();
    let id = rt.open().unwrap();
    feed(&mut rt, id, &tokens);
    let ledger = rt.ledger();
    assert!(ledger.side <= needs.side_bytes, "{ledger:?} {needs:?}");
    assert!(ledger.peak <= needs.total(), "{ledger:?} {needs:?}");
    // A second sequence has query samples of its own; where they do not fit it is not opened, and nothing is lost.
    let ring = ledger.side - {
        rt.close(id).unwrap();
        rt.ledger().side
    };
    assert!(ring > 0);
    let mut opened = Vec::new();
    let refused = loop {
        let before = rt.ledger();
        match rt.open() {
            Ok(id) => opened.push(id),
            Err(error) => break (error, before),
        }
        assert!(opened.len() < 10_000, "the budget has no end");
    };
    assert_eq!(rt.ledger(), refused.1, "{}", refused.0);
    for id in opened {
        rt.close(id).unwrap();
    }
    let id = rt.open().unwrap();
    feed(&mut rt, id, &tokens[..400]);
    let debt = rt.quality_debt(id).unwrap();
    let fork = rt.fork(id);
    if let Ok(fork) = fork {
        assert_eq!(rt.quality_debt(fork), Some(debt));
        rt.close(fork).unwrap();
    }
}
