//! Tokens do not depend on company: logits are equal bit for bit however a prompt is chunked, whoever
//! shares the batch, on any number of threads, and whether rows were computed now or before.

mod common;

use common::{SMOLLM2, load, packed_dir, real_model};
use haversack::cpu::Table;
use haversack::load::gguf::synth::Spec;
use haversack::model::forward::{Span, Want};
use haversack::{Activations, Model, Repack, Runtime, RuntimeOptions};
use std::sync::Arc;

/// A small deterministic generator for schedules.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

fn tiny(variant: &str) -> (tempfile::TempDir, Arc<Model>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    Spec::named(variant).unwrap().write_file(&path).unwrap();
    let model = load(&path, Repack::Off);
    (dir, model)
}

fn runtime(model: &Arc<Model>, threads: usize, activations: Activations) -> Runtime {
    Runtime::new(
        model.clone(),
        &RuntimeOptions {
            threads,
            activations,
            ..Default::default()
        },
    )
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
    activations: Activations,
    tokens: &[u32],
    chunk: usize,
) -> Vec<u32> {
    let mut rt = runtime(model, threads, activations);
    let sequence = rt.open();
    let mut bits = Vec::new();
    let mut position = 0;
    for part in tokens.chunks(chunk) {
        let logits = rt
            .step(&[Span {
                sequence,
                position,
                tokens: part,
                want: Want::All,
            }])
            .unwrap();
        bits.extend(logits.iter().map(|l| l.to_bits()));
        position += part.len() as u64;
    }
    bits
}

fn chunks_and_threads(model: &Arc<Model>, tokens: &[u32], chunks: &[usize]) {
    for activations in [Activations::Int8, Activations::F32] {
        let truth = alone(model, 1, activations, tokens, chunks[0]);
        assert!(truth.iter().all(|&b| f32::from_bits(b).is_finite()));
        for &chunk in &chunks[1..] {
            for threads in [1, 2] {
                let found = alone(model, threads, activations, tokens, chunk);
                assert!(
                    found == truth,
                    "{activations:?}: chunk {chunk} on {threads} threads differs from chunk {}",
                    chunks[0]
                );
            }
        }
    }
}

#[test]
fn chunk_and_thread_count_change_nothing() {
    for variant in ["llama", "gemma3", "qwen3"] {
        let (_dir, model) = tiny(variant);
        let tokens = prompt(&model, 7, 150);
        chunks_and_threads(&model, &tokens, &[1, 7, 64, 512]);
    }
}

/// Five sequences of different lengths through one batch, in random portions: each gets the logits
/// it gets alone. 200 schedules.
#[test]
fn random_schedules_give_what_each_gets_alone() {
    let (_dir, model) = tiny("llama");
    let vocab = model.config().vocab;
    let prompts: Vec<Vec<u32>> = (0..5)
        .map(|i| prompt(&model, 100 + i, 20 + 23 * i as usize))
        .collect();
    for activations in [Activations::Int8, Activations::F32] {
        let truths: Vec<Vec<u32>> = prompts
            .iter()
            .map(|p| alone(&model, 1, activations, p, 512))
            .collect();
        for schedule in 0..100 {
            let mut dice = Dice(schedule * 77 + 5);
            let mut rt = runtime(&model, 1 + dice.roll(2), activations);
            let ids: Vec<_> = prompts.iter().map(|_| rt.open()).collect();
            let mut done = [0usize; 5];
            while (0..5).any(|i| done[i] < prompts[i].len()) {
                let mut spans = Vec::new();
                let mut members = Vec::new();
                for i in 0..5 {
                    let left = prompts[i].len() - done[i];
                    let take = [0, 1, 1, 2 + dice.roll(40)][dice.roll(4)].min(left);
                    if take > 0 {
                        spans.push(Span {
                            sequence: ids[i],
                            position: done[i] as u64,
                            tokens: &prompts[i][done[i]..done[i] + take],
                            want: Want::All,
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
    let vocab = model.config().vocab;
    let tokens = prompt(&model, 3, 90);
    let truth = alone(&model, 1, Activations::Int8, &tokens, 90);
    let mut rt = runtime(&model, 2, Activations::Int8);
    let a = rt.open();
    rt.step(&[Span {
        sequence: a,
        position: 0,
        tokens: &tokens[..70],
        want: Want::Nothing,
    }])
    .unwrap();
    let b = rt.fork(a).unwrap();
    rt.step(&[Span {
        sequence: a,
        position: 70,
        tokens: &[1, 2, 3],
        want: Want::Nothing,
    }])
    .unwrap();
    rt.truncate(a, 41).unwrap();
    for (id, from) in [(b, 70), (a, 41)] {
        let logits = rt
            .step(&[Span {
                sequence: id,
                position: from as u64,
                tokens: &tokens[from..],
                want: Want::All,
            }])
            .unwrap();
        assert!(
            logits
                .iter()
                .map(|l| l.to_bits())
                .eq(truth[from * vocab..].iter().copied()),
            "from {from}"
        );
    }
}

/// Every table of this CPU gives the same bits: a model's answer does not depend on the instruction set.
#[test]
fn every_table_gives_the_same_logits() {
    let (_dir, model) = tiny("llama");
    let tokens = prompt(&model, 9, 70);
    let logits = |table: Table, activations| {
        let mut rt = Runtime::new(
            model.clone(),
            &RuntimeOptions {
                table,
                activations,
                ..Default::default()
            },
        );
        let sequence = rt.open();
        let span = Span {
            sequence,
            position: 0,
            tokens: &tokens,
            want: Want::All,
        };
        rt.step(&[span])
            .unwrap()
            .iter()
            .map(|l| l.to_bits())
            .collect::<Vec<_>>()
    };
    for activations in [Activations::Int8, Activations::F32] {
        let truth = logits(Table::SCALAR, activations);
        for table in Table::available() {
            assert!(
                logits(table, activations) == truth,
                "{} differs from scalar",
                table.name()
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
    let tokens = prompt(&model, 11, 40);
    chunks_and_threads(&model, &tokens, &[40, 1, 7, 64]);

    let unpacked = load(&path, Repack::Off);
    assert!(model.weights().is_packed() && !unpacked.weights().is_packed());
    let activations = Activations::Int8;
    let truth = alone(&model, 2, activations, &tokens, 512);
    assert!(
        alone(&unpacked, 2, activations, &tokens, 7) == truth,
        "packing on the fly differs"
    );

    let vocab = model.config().vocab;
    let mut rt = runtime(&model, 2, activations);
    let others: Vec<Vec<u32>> = (0..4)
        .map(|i| prompt(&model, 50 + i, 9 + 5 * i as usize))
        .collect();
    let ids: Vec<_> = (0..5).map(|_| rt.open()).collect();
    let mut spans = vec![Span {
        sequence: ids[0],
        position: 0,
        tokens: &tokens,
        want: Want::All,
    }];
    for (id, other) in ids[1..].iter().zip(&others) {
        spans.push(Span {
            sequence: *id,
            position: 0,
            tokens: other,
            want: Want::Last,
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
