//! Every arena call of a runtime's life fails once.
//!
//! The life: measure the mean keys, open, read a prompt past the window, decode, shrink the window and
//! compact, fork, truncate, close; all of it under the smallest budget that is accepted. For each N the
//! Nth call (a slab to add, pages to give back) is refused. What was asked then either happens all the
//! same, or ends in a typed error and happens when it is asked again. After every act the logits
//! and the ledger (but for what is made ahead) are those of a runtime that never saw a fault, and so is
//! the whole next life.

use crate::common;

use common::load;
use haversack_cache::{CacheError, PoolStats};
use haversack_engine::runtime::SequenceId;
use haversack_engine::runtime::bounds::BoundsError;
use haversack_engine::runtime::options::Slabs;
use haversack_engine::{
    Codec, KvForm, KvOptions, Ledger, Model, Policy, Repack, Retention, Runtime, RuntimeError,
    RuntimeOptions, StepError,
};
use haversack_memory::{Cgroup, Reading};
use haversack_testing::ArenaFaults;
use haversack_testing::models::Spec;
use haversack_testing::quota::quota;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// A few blocks each: there are slabs to add, pages to give back, and blocks to move together.
const SLAB_BYTES: usize = 12 << 10;
const WINDOW: usize = 128;

/// How things stand after an act: the ledger, and the bits of the logits.
#[derive(Debug, PartialEq)]
struct Record {
    act: &'static str,
    ledger: Ledger,
    /// (pool)
    census: Vec<PoolStats>,
    logits: Vec<u32>,
}

struct Life {
    rt: Runtime,
    errors: Vec<&'static str>,
    records: Vec<Record>,
}

fn is_refusal(error: &CacheError) -> bool {
    matches!(error, CacheError::OutOfMemory { .. })
}

impl Life {
    /// `None` where loading was refused by name.
    fn new(model: &Arc<Model>, options: &RuntimeOptions) -> Option<Life> {
        let rt = match Runtime::new(model.clone(), options) {
            Ok(rt) => rt,
            Err(RuntimeError::Cache(error) | RuntimeError::Measurement(error))
                if is_refusal(&error) =>
            {
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        Some(Life {
            rt,
            errors: Vec::new(),
            records: Vec::new(),
        })
    }

    /// Does it; or it has failed by name, and the second try does it.
    fn insist<T>(
        &mut self,
        act: &'static str,
        mut go: impl FnMut(&mut Runtime) -> Result<T, StepError>,
    ) -> T {
        let done = match go(&mut self.rt) {
            Err(StepError::Cache(error)) if is_refusal(&error) => {
                self.errors.push(act);
                assert_eq!(self.rt.ledger().kv_promised, 0, "{act}");
                go(&mut self.rt)
            }
            done => done,
        };
        let done = done.unwrap_or_else(|error| panic!("{act}: {error}"));
        let census = self.rt.store().pool_stats();
        for pool in &census {
            assert_eq!(pool.free + pool.live, pool.total);
            assert_eq!(pool.promised, 0);
        }
        self.records.push(Record {
            act,
            census,
            ledger: self.rt.ledger(),
            logits: self.rt.logits().iter().map(|l| l.to_bits()).collect(),
        });
        done
    }

    /// Goes on where the sequence stands, as a caller does whose request was refused half way.
    fn feed(&mut self, act: &'static str, id: SequenceId, tokens: &[u32]) {
        let first = self.rt.position(id).unwrap();
        self.insist(act, |rt| {
            let done = (rt.position(id)? - first) as usize;
            let mut go_on = |_| ControlFlow::Continue(());
            rt.feed(id, &tokens[done..], &mut go_on).map(|_| ())
        });
    }

    fn decode(&mut self, act: &'static str, id: SequenceId, tokens: &[u32]) {
        for &token in tokens {
            self.insist(act, |rt| rt.decode(id, token).map(|_| ()));
        }
    }

    fn live(&mut self, tokens: &[u32], seconds: u64) -> Vec<Record> {
        let id = self.insist("open", Runtime::open);
        self.feed("prefill", id, &tokens[..120]);
        let room = |bytes| Reading {
            cgroup: Some(Cgroup {
                limit_bytes: Some(bytes),
                anon_bytes: Some(0),
                ..Cgroup::default()
            }),
            ..Reading::default()
        };
        let [short, plenty] = [seconds, seconds + 20].map(Duration::from_secs);
        self.decode("decode", id, &tokens[..75]);
        self.rt.observe(&room(0), short);
        let changes = self.rt.window_changes(id).len();
        for &token in &tokens[75..115] {
            self.decode("compact", id, &[token]);
            if self.rt.window_changes(id).len() > changes {
                break;
            }
        }
        assert_eq!(self.rt.window_changes(id).len(), changes + 1);
        self.decode("shrunk", id, &tokens[..5]);
        self.rt.observe(&room(1 << 40), plenty);
        self.decode("grow", id, &tokens[100..180]);
        let fork = self.insist("fork", |rt| rt.fork(id));
        self.decode("first of two", id, &tokens[..3]);
        self.decode("second of two", fork, &tokens[100..110]);
        let back = self.rt.position(id).unwrap() - 2;
        self.insist("cut", |rt| rt.truncate(id, back));
        self.decode("after the cut", id, &tokens[20..24]);
        for id in [id, fork] {
            self.insist("close", |rt| rt.close(id));
        }
        let after = &self.records.last().unwrap();
        let ledger = &after.ledger;
        let held = (ledger.kv_live, ledger.kv_ahead, ledger.kv_promised);
        assert_eq!(held, (0, 0, 0));
        assert!(after.census.iter().all(|pool| pool.slabs_touched == 0));
        std::mem::take(&mut self.records)
    }
}

fn options(kv: KvOptions, budget_bytes: Option<usize>, faults: ArenaFaults) -> RuntimeOptions {
    RuntimeOptions {
        threads: 1,
        kv,
        retention: Retention {
            policy: Policy::Window,
            anchors: Some(40),
            window: Some(WINDOW),
            ..Retention::default()
        },
        budget_bytes,
        slabs: Slabs {
            bytes: Some(SLAB_BYTES),
            io: Some(faults.io()),
        },
        ..RuntimeOptions::default()
    }
}

/// The smallest budget that the runtime accepts for its window, and as much again for the fork.
fn smallest_budget(model: &Arc<Model>, kv: &KvOptions) -> usize {
    let refused = |bytes: usize| {
        let options = options(kv.clone(), Some(bytes), ArenaFaults::never());
        match Runtime::new(model.clone(), &options).err() {
            Some(RuntimeError::Bounds(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    let BoundsError::Budget { min_bytes, .. } = refused(1) else {
        panic!("a byte is too small for anything");
    };
    match refused(min_bytes) {
        BoundsError::Window { min_bytes, .. } => min_bytes * 3 / 2,
        error => panic!("{error}"),
    }
}

/// One call in `stride`, all of them in the long form. `must` names acts of which some are refused.
fn sweep(variant: &str, kv: KvOptions, stride: usize, must: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    // Measuring the mean keys reads one context.
    let spec = Spec {
        context: 256,
        ..Spec::named(variant).unwrap()
    };
    spec.write_file(&path).unwrap();
    let model = load(&path, Repack::Off);
    let tokens = spec.ids(200);
    let budget = Some(smallest_budget(&model, &kv));
    let start = |faults: &ArenaFaults| {
        let options = options(kv.clone(), budget, faults.clone());
        Life::new(&model, &options)
    };

    let never = ArenaFaults::never();
    let mut life = start(&never).unwrap();
    let loaded = never.calls();
    let truth = life.live(&tokens, 100);
    let calls = never.calls();
    let next_truth = life.live(&tokens, 200);

    let mut refused = Vec::new();
    for n in (1..=calls).step_by(quota(stride, 1)) {
        let faults = ArenaFaults::fail_nth(n);
        let mut life = start(&faults).unwrap_or_else(|| {
            assert!(n <= loaded, "call {n}");
            refused.push("load");
            start(&faults).expect("one fault only")
        });
        assert_same(&life.live(&tokens, 100), &truth, n);
        assert!(faults.struck());
        assert!(life.errors.len() <= 1, "call {n}: one fault only");
        refused.append(&mut life.errors);
        assert_same(&life.live(&tokens, 200), &next_truth, n);
        assert_eq!(life.errors, [""; 0], "call {n}: one fault only");
    }
    println!("{calls} calls, {} of them refused by name", refused.len());
    for act in must {
        assert!(refused.contains(act), "{act}: {refused:?}");
    }
    assert_eq!(refused.contains(&"load"), loaded > 0, "{refused:?}");
}

/// What does not depend on how much was made ahead.
fn seen(ledger: Ledger) -> Ledger {
    Ledger {
        kv_ahead: 0,
        kv_peak: 0,
        peak: 0,
        mapped: 0,
        ..ledger
    }
}

fn assert_same(found: &[Record], truth: &[Record], n: u64) {
    assert_eq!(found.len(), truth.len());
    for (i, (found, truth)) in found.iter().zip(truth).enumerate() {
        let act = truth.act;
        let (seen, seen_truth) = (seen(found.ledger), seen(truth.ledger));
        assert_eq!(seen, seen_truth, "call {n}, act {i}, {act}");
        assert!(found.ledger.peak <= found.ledger.budget.unwrap());
        // A form that could not be made ahead is made later, or in the step that needs it.
        if found.ledger.kv_ahead == truth.ledger.kv_ahead {
            assert_eq!(found.census, truth.census, "call {n}, act {i}, {act}");
        }
        assert!(found.logits == truth.logits, "call {n}, act {i}, {act}");
    }
}

/// The slabs that decoding needs are asked for ahead, where a refusal costs nothing.
#[test]
fn every_arena_call_fails_once_with_zones_and_means() {
    let kv = KvOptions::new(KvForm::both(Codec::Int4.form()));
    sweep("llama", kv, 5, &["prefill"]);
}

/// Layers with a window of their own drop blocks at every step.
#[test]
fn every_arena_call_fails_once_with_floats_and_sliding_layers() {
    let kv = KvOptions::plain(KvForm::F16);
    sweep("gemma3", kv, 2, &["prefill", "decode"]);
}
