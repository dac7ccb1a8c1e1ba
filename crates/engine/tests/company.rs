//! Tokens do not depend on company: logits are equal bit for bit however a prompt is chunked, whatever
//! shares the batch, on any number of threads, and whether rows were computed now or before.

use crate::common;

use common::{Dice, SMOLLM2, load, packed_dir, real_model};
use haversack_engine::step::{LogitRows, StepSpan};
use haversack_engine::{
    Activations, Codec, KvForm, KvOptions, Model, Policy, Repack, Retention, Runtime,
    RuntimeOptions,
};
use haversack_kernels::cpu::Backend;
use haversack_testing::models::Spec;
use haversack_testing::quota::quota;
use std::sync::Arc;

fn tiny(variant: &str) -> (tempfile::TempDir, Arc<Model>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    Spec::named(variant).unwrap().write_file(&path).unwrap();
    let model = load(&path, Repack::Off);
    (dir, model)
}

/// How a runtime is set up, company apart.
#[derive(Clone)]
struct Setup {
    activations: Activations,
    kv: KvOptions,
    retention: Retention,
}

impl Setup {
    fn new(activations: Activations, kv: KvOptions) -> Setup {
        Setup {
            activations,
            kv,
            retention: Retention::default(),
        }
    }

    fn name(&self) -> String {
        let KvOptions { sinks, recent, .. } = self.kv;
        let name = self.kv.name();
        format!(
            "{:?}, {name}, {sinks} sinks, {recent} recent",
            self.activations
        )
    }
}

fn coded(codec: Codec) -> KvOptions {
    KvOptions::new(KvForm::both(codec.form()))
}

/// Every codec with the usual zones, and zones that are not the usual ones.
fn kinds() -> Vec<KvOptions> {
    let mut kinds: Vec<KvOptions> = Codec::ALL.into_iter().map(coded).collect();
    let k8v4 = KvForm {
        k: Codec::Int8.form(),
        v: Codec::Int4.form(),
    };
    kinds.push(KvOptions::new(k8v4));
    kinds.push(KvOptions::plain(KvForm::both(Codec::Int4.form())));
    kinds.push(KvOptions {
        near: Codec::F16,
        recent: 1,
        sinks: 1,
        ..coded(Codec::Int3)
    });
    kinds.push(KvOptions {
        layers: [(1, k8v4), (0, KvForm::F16)].into(),
        recent: 32,
        ..coded(Codec::Int2)
    });
    kinds
}

fn runtime(model: &Arc<Model>, threads: usize, setup: &Setup) -> Runtime {
    let options = RuntimeOptions {
        threads,
        activations: setup.activations,
        kv: setup.kv.clone(),
        retention: setup.retention.clone(),
        // What is known of keys is measured once.
        cache_dir: Some(packed_dir()),
        ..Default::default()
    };
    Runtime::new(model.clone(), &options).unwrap()
}

fn prompt(model: &Model, seed: u64, len: usize) -> Vec<u32> {
    let mut dice = Dice(seed * 2 + 1);
    (0..len)
        .map(|_| dice.roll(model.config().vocab) as u32)
        .collect()
}

/// Logits of every position, alone, in chunks of `chunk`.
fn alone(
    model: &Arc<Model>,
    threads: usize,
    setup: &Setup,
    tokens: &[u32],
    chunk: usize,
) -> Vec<u32> {
    let mut rt = runtime(model, threads, setup);
    let sequence = rt.open().unwrap();
    let mut bits = Vec::new();
    for part in tokens.chunks(chunk) {
        let logits = rt.all_logits(sequence, part).unwrap();
        bits.extend(logits.iter().map(|l| l.to_bits()));
    }
    bits
}

fn chunks_and_threads(model: &Arc<Model>, setup: &Setup, tokens: &[u32], chunks: &[usize]) {
    let truth = alone(model, 1, setup, tokens, chunks[0]);
    assert!(truth.iter().all(|&b| f32::from_bits(b).is_finite()));
    for (i, &chunk) in chunks[1..].iter().enumerate() {
        let threads = 2 - i % 2;
        let found = alone(model, threads, setup, tokens, chunk);
        assert!(
            found == truth,
            "{}: chunk {chunk} on {threads} threads differs from chunk {}",
            setup.name(),
            chunks[0]
        );
    }
}

#[test]
fn chunk_and_thread_count_change_nothing() {
    for variant in ["llama", "gemma3", "qwen3"] {
        let (_dir, model) = tiny(variant);
        let tokens = prompt(&model, 7, 230);
        // What differs between architectures is not the codec.
        let kinds = kinds();
        let kinds = if variant == "llama" {
            &kinds[..]
        } else {
            &kinds[kinds.len() - 4..]
        };
        for kv in kinds {
            let setup = Setup::new(Activations::Int8, kv.clone());
            chunks_and_threads(&model, &setup, &tokens, &[1, 7, 64, 512]);
        }
        let exact = Setup::new(Activations::F32, coded(Codec::F16));
        chunks_and_threads(&model, &exact, &tokens, &[1, 7, 64, 512]);
    }
}

/// Far past the context, with rows leaving: still the same however the tokens come.
#[test]
fn bounded_sequences_do_not_depend_on_portions() {
    for variant in ["llama", "gemma3"] {
        let (_dir, model) = tiny(variant);
        let tokens = prompt(&model, 5, 2 * model.config().context + 100);
        for &(anchors, window) in quota(&[(10, 100)][..], &[(64, 96), (10, 100), (0, 33)]) {
            for kv in [coded(Codec::F16), coded(Codec::Int4)] {
                let mut setup = Setup::new(Activations::Int8, kv);
                setup.retention = Retention {
                    policy: Policy::Window,
                    anchors: Some(anchors),
                    window: Some(window),
                    ..Retention::default()
                };
                chunks_and_threads(&model, &setup, &tokens, &[50, 1, 512]);
            }
        }
    }
}

/// The same where attention decides which rows leave, inside the context and past it.
#[test]
fn chosen_rows_do_not_depend_on_portions() {
    for (variant, anchors) in [("llama", 64), ("gemma3", 10)] {
        let (_dir, model) = tiny(variant);
        let tokens = prompt(&model, 7, 2 * model.config().context + 100);
        for kv in [coded(Codec::F16), coded(Codec::Int4)] {
            let mut setup = Setup::new(Activations::Int8, kv);
            setup.retention = Retention {
                policy: Policy::Heavy,
                anchors: Some(anchors),
                window: Some(256),
                ..Retention::default()
            };
            chunks_and_threads(&model, &setup, &tokens, &[50, 1, 512]);
        }
    }
}

/// Five sequences of different lengths through one batch, in random portions: each gets the logits
/// it gets alone. 60 schedules, 200 in the long form.
#[test]
fn random_schedules_give_what_each_gets_alone() {
    let (_dir, model) = tiny("llama");
    let vocab = model.config().vocab;
    let prompts: Vec<Vec<u32>> = (0..5)
        .map(|i| prompt(&model, 100 + i, 20 + 43 * i as usize))
        .collect();
    for setup in [
        Setup::new(Activations::Int8, coded(Codec::F16)),
        Setup::new(Activations::F32, coded(Codec::F16)),
        Setup::new(Activations::Int8, coded(Codec::Int4)),
        Setup::new(Activations::F32, coded(Codec::Int3)),
    ] {
        let truths: Vec<Vec<u32>> = prompts
            .iter()
            .map(|p| alone(&model, 1, &setup, p, 512))
            .collect();
        for schedule in 0..quota(15, 50) {
            let mut dice = Dice(schedule * 77 + 5);
            let mut rt = runtime(&model, 1 + dice.roll(2), &setup);
            let ids: Vec<_> = prompts.iter().map(|_| rt.open().unwrap()).collect();
            let mut done = [0usize; 5];
            while (0..5).any(|i| done[i] < prompts[i].len()) {
                let mut spans = Vec::new();
                let mut members = Vec::new();
                for i in 0..5 {
                    let left = prompts[i].len() - done[i];
                    let take = [0, 1, 1, 2 + dice.roll(40)][dice.roll(4)].min(left);
                    if take > 0 {
                        spans.push(StepSpan {
                            sequence: ids[i],
                            position: done[i] as u64,
                            tokens: &prompts[i][done[i]..done[i] + take],
                            want: LogitRows::All,
                        });
                        members.push((i, take));
                    }
                }
                if spans.is_empty() {
                    continue;
                }
                let logits = rt.step(&spans).unwrap();
                let mut row = 0;
                for (i, take) in members {
                    let found = logits[row * vocab..(row + take) * vocab]
                        .iter()
                        .map(|l| l.to_bits());
                    let truth = &truths[i][done[i] * vocab..(done[i] + take) * vocab];
                    assert!(
                        found.eq(truth.iter().copied()),
                        "schedule {schedule}, sequence {i}, position {}",
                        done[i]
                    );
                    row += take;
                    done[i] += take;
                }
            }
        }
    }
}

/// A fork, a cut and a second reading give what reading from scratch gives.
#[test]
fn reused_rows_equal_computed_rows() {
    let (_dir, model) = tiny("llama");
    let tokens = prompt(&model, 3, 200);
    for kv in kinds() {
        let setup = Setup::new(Activations::Int8, kv);
        let truth = alone(&model, 1, &setup, &tokens, 90);
        let mut rt = runtime(&model, 2, &setup);
        let a = rt.open().unwrap();
        rt.all_logits(a, &tokens[..170]).unwrap();
        let b = rt.fork(a).unwrap();
        rt.all_logits(a, &[1, 2, 3]).unwrap();
        rt.truncate(a, 165).unwrap();
        for (id, from) in [(b, 170), (a, 165)] {
            let logits = rt.all_logits(id, &tokens[from..]).unwrap();
            let truth = &truth[from * model.config().vocab..];
            let found = logits.iter().map(|l| l.to_bits());
            let name = setup.name();
            assert!(found.eq(truth.iter().copied()), "{name}: from {from}");
        }
    }
}

/// What cannot be restored exactly is refused, and nothing changes.
#[test]
fn a_cut_is_exact_or_refused() {
    let (_dir, model) = tiny("llama");
    let tokens = prompt(&model, 3, 200);
    let setup = Setup::new(Activations::Int8, coded(Codec::Int4));
    let truth = alone(&model, 1, &setup, &tokens, 200);
    let mut rt = runtime(&model, 1, &setup);
    let a = rt.open().unwrap();
    rt.all_logits(a, &tokens[..170]).unwrap();
    let refused = rt.truncate(a, 100).unwrap_err();
    assert!(refused.to_string().contains("100"), "{refused}");
    let logits = rt.all_logits(a, &tokens[170..]).unwrap();
    let truth = &truth[170 * model.config().vocab..];
    assert!(logits.iter().map(|l| l.to_bits()).eq(truth.iter().copied()));
}

/// Every table of this CPU gives the same bits: a model's answer does not depend on the instruction set.
#[test]
fn every_table_gives_the_same_logits() {
    let (_dir, model) = tiny("llama");
    let tokens = prompt(&model, 9, quota(70, 150));
    let logits = |backend: Backend, setup: &Setup| {
        let options = RuntimeOptions {
            backend,
            activations: setup.activations,
            kv: setup.kv.clone(),
            ..Default::default()
        };
        let mut rt = Runtime::new(model.clone(), &options).unwrap();
        let id = rt.open().unwrap();
        let logits = rt.all_logits(id, &tokens).unwrap();
        logits.iter().map(|l| l.to_bits()).collect::<Vec<_>>()
    };
    let mut setups = vec![Setup::new(Activations::F32, coded(Codec::F16))];
    setups.extend(
        kinds()
            .into_iter()
            .map(|kv| Setup::new(Activations::Int8, kv)),
    );
    for setup in setups {
        let truth = logits(Backend::SCALAR, &setup);
        for backend in Backend::available() {
            assert!(
                logits(backend, &setup) == truth,
                "{}: {} differs from scalar",
                setup.name(),
                backend.name()
            );
        }
    }
}

/// A packed copy on disk and packing on the fly give the same logits, on the real model.
#[test]
fn real_model_chunks_threads_batch_and_packing() {
    let Some(path) = real_model(SMOLLM2) else {
        return;
    };
    let model = load(&path, Repack::Into(packed_dir()));
    let tokens = prompt(&model, 11, 150);
    for codec in [Codec::F16, Codec::Int4] {
        let setup = Setup::new(Activations::Int8, coded(codec));
        chunks_and_threads(&model, &setup, &tokens, &[150, 1, 7, 64]);
    }
    // Ten times as slow.
    let exact = Setup::new(Activations::F32, coded(Codec::Int8));
    let portions = quota(&[70, 32][..], &[70, 7, 32]);
    chunks_and_threads(&model, &exact, &tokens[..70], portions);

    let unpacked = load(&path, Repack::Off);
    let layout = |model: &Model| model.weights().matrix(&model.weights().output).layout;
    assert_ne!(layout(&model), layout(&unpacked));
    let setup = Setup::new(Activations::Int8, coded(Codec::Int4));
    let truth = alone(&model, 2, &setup, &tokens, 512);
    assert!(
        alone(&unpacked, 2, &setup, &tokens, 7) == truth,
        "packing on the fly differs"
    );

    let vocab = model.config().vocab;
    let mut rt = runtime(&model, 2, &setup);
    let others: Vec<Vec<u32>> = (0..4)
        .map(|i| prompt(&model, 50 + i, 9 + 5 * i as usize))
        .collect();
    let ids: Vec<_> = (0..5).map(|_| rt.open().unwrap()).collect();
    let mut spans = vec![StepSpan {
        sequence: ids[0],
        position: 0,
        tokens: &tokens,
        want: LogitRows::All,
    }];
    for (id, other) in ids[1..].iter().zip(&others) {
        spans.push(StepSpan {
            sequence: *id,
            position: 0,
            tokens: other,
            want: LogitRows::Last,
        });
    }
    let logits = rt.step(&spans).unwrap();
    assert!(
        logits[..tokens.len() * vocab]
            .iter()
            .map(|l| l.to_bits())
            .eq(truth),
        "a batch of five differs"
    );
}
