//! A runtime whose rows leave: what it holds, and what it gives back.

mod common;

use common::load;
use haversack::load::gguf::synth::Spec;
use haversack::memory::{Cgroup, Reading};
use haversack::plan::{self, Setting};
use haversack::run::options::Slabs;
use haversack::{
    Codec, KvForm, KvOptions, Model, Policy, Repack, Retention, Runtime, RuntimeOptions, StepError,
};
use haversack_cache::SequenceId;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

fn tiny() -> (tempfile::TempDir, Arc<Model>, Vec<u32>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let spec = Spec::named("llama").unwrap();
    spec.write_file(&path).unwrap();
    let model = load(&path, Repack::Off);
    (dir, model, spec.ids(600))
}

fn options(anchors: usize, window: usize) -> RuntimeOptions {
    RuntimeOptions {
        threads: 1,
        kv: KvOptions::plain(KvForm::F16),
        retention: Retention {
            policy: Policy::Window,
            anchors: Some(anchors),
            window: Some(window),
            ..Retention::default()
        },
        ..RuntimeOptions::default()
    }
}

fn feed(rt: &mut Runtime, id: SequenceId, tokens: &[u32]) -> Result<(), StepError> {
    rt.feed(id, tokens, &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}

/// A device with so much room left.
fn room(bytes: u64) -> Reading {
    Reading {
        cgroup: Some(Cgroup {
            limit_bytes: Some(bytes),
            anon_bytes: Some(0),
            ..Cgroup::default()
        }),
        ..Reading::default()
    }
}

/// Blocks of a prompt lie layer after layer, so what a smaller window keeps is spread over all slabs.
/// The device wants pages back, not holes.
#[test]
fn a_window_that_shrinks_gives_whole_slabs_back() {
    let (_dir, model, tokens) = tiny();
    let options = RuntimeOptions {
        // Eight blocks.
        slabs: Slabs {
            bytes: Some(64 << 10),
            ..Slabs::default()
        },
        ..options(64, 384)
    };
    let mut rt = Runtime::new(model, &options).unwrap();
    let id = rt.open().unwrap();
    feed(&mut rt, id, &tokens).unwrap();
    let full = rt.store().census();
    rt.observe(&room(0), Duration::ZERO);
    let mut more = tokens.iter();
    while rt.changes().is_empty() {
        rt.decode(id, *more.next().unwrap()).unwrap();
    }
    for (full, pool) in full.iter().zip(rt.store().census()) {
        let whole = pool.live.div_ceil(pool.total / pool.slabs);
        assert!(full.slabs_touched > whole + 1, "{full:?}");
        assert!(pool.slabs_touched <= whole + 1, "{pool:?}");
    }
}

/// What is promised before is what is booked later: the mean keys once, and nothing above the sum.
#[test]
fn the_ledger_is_within_the_plan() {
    let (_dir, model, tokens) = tiny();
    let config = model.config();
    for kv in [
        KvOptions::default(),
        KvOptions::plain(KvForm::F16),
        KvOptions {
            layers: [(1, KvForm::F16)].into(),
            ..KvOptions::new(KvForm::both(Codec::Int3.form()))
        },
    ] {
        let options = RuntimeOptions {
            kv: kv.clone(),
            ..options(64, 128)
        };
        let mut rt = Runtime::new(model.clone(), &options).unwrap();
        assert_eq!(rt.ledger().side, plan::side_bytes(config, &kv));
        let id = rt.open().unwrap();
        for part in tokens.chunks(32) {
            feed(&mut rt, id, part).unwrap();
        }
        let setting = Setting {
            threads: rt.threads(),
            int8: true,
            chunk: 32,
        };
        let needs = plan::needs(config, &kv, setting, 64 + 128 + 32);
        let ledger = rt.ledger();
        assert!(ledger.peak <= needs.total(), "{ledger:?} {needs:?}");
        assert!(ledger.tables <= needs.tables_bytes, "{ledger:?} {needs:?}");
        assert!(
            ledger.scratch <= needs.scratch_bytes,
            "{ledger:?} {needs:?}"
        );
    }
}
