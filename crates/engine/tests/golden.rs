//! Real models against llama.cpp in f32: the same ids, the same probabilities, the same greedy
//! continuation. The figures in `fixtures/golden` were made with the weights dequantised to f32.

use crate::common;

use common::{GEMMA3, SMOLLM2, load, packed_dir, real_model, runtime};
use haversack_engine::runtime::{GenerateOptions, generate, score};
use haversack_engine::sample::{SampleOptions, Sampler};
use haversack_engine::{Activations, Model, Repack};
use haversack_testing::quota::quota;
use serde_json::Value;
use std::ops::ControlFlow;
use std::sync::Arc;

fn records(file: &str) -> Vec<Value> {
    let path = format!(
        "{}/tests/fixtures/golden/{file}",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_u64().unwrap() as u32)
        .collect()
}

/// How far a path is from the truth, over all texts.
#[derive(Debug, Default)]
struct Distance {
    positions: usize,
    top1: usize,
    logprobs: usize,
    logprob_error: f64,
    nll: f64,
    nll_true: f64,
    texts: usize,
    texts_greedy_equal: usize,
}

impl Distance {
    fn top1_share(&self) -> f64 {
        self.top1 as f64 / self.positions as f64
    }

    fn mean_error(&self) -> f64 {
        self.logprob_error / self.logprobs as f64
    }

    fn nll_drift(&self) -> f64 {
        (self.nll / self.nll_true - 1.0).abs()
    }

    fn greedy_share(&self) -> f64 {
        self.texts_greedy_equal as f64 / self.texts as f64
    }
}

/// Of one text in `every`.
fn measure(model: &Arc<Model>, activations: Activations, files: &[&str], every: usize) -> Distance {
    let mut d = Distance::default();
    for record in files.iter().flat_map(|f| records(f)).step_by(every) {
        let ids_in = ids(&record["ids"]);
        let positions = record["positions"].as_array().unwrap();
        let mut rt = runtime(model, activations);
        // One more token than there is, so that the last position is judged too.
        let padded: Vec<u32> = ids_in.iter().copied().chain([0]).collect();
        let scored = score(&mut rt, &padded, 1, &mut |_| ControlFlow::Continue(())).unwrap();
        for (i, truth) in positions.iter().enumerate() {
            let here = &scored[i + 1];
            d.positions += 1;
            d.top1 += usize::from(here.top[0].0 as u64 == truth["top"][0][0].as_u64().unwrap());
            if let Some(expected) = truth["next_logprob"].as_f64() {
                let found = here.logprob.unwrap();
                d.logprobs += 1;
                d.logprob_error += (found - expected).abs();
                d.nll -= found;
                d.nll_true -= expected;
            }
        }
        let greedy = ids(&record["greedy"]);
        let sequence = rt.open().unwrap();
        let mut sampler = Sampler::new(SampleOptions {
            temperature: 0.0,
            ..Default::default()
        })
        .unwrap();
        let options = GenerateOptions {
            tokens_max: Some(greedy.len().min(20)),
            ..Default::default()
        };
        let answer = generate(
            &mut rt,
            sequence,
            &ids_in,
            &mut sampler,
            &options,
            &mut |_| ControlFlow::Continue(()),
        )
        .unwrap();
        d.texts += 1;
        let equal = answer.tokens == greedy[..greedy.len().min(20)];
        d.texts_greedy_equal += usize::from(equal);
        if !equal {
            println!(
                "{}: {:?}\n  expected {greedy:?}",
                record["file"], answer.tokens
            );
        }
    }
    println!(
        "{activations:?}: top-1 {:.2} % of {}, |Δ logprob| {:.5}, NLL drift {:.3} %, greedy {}/{}",
        100.0 * d.top1_share(),
        d.positions,
        d.mean_error(),
        100.0 * d.nll_drift(),
        d.texts_greedy_equal,
        d.texts
    );
    d
}

const SMOLLM2_FILES: [&str; 2] = ["smollm2_f32_plain.jsonl", "smollm2_f32_chat.jsonl"];
const GEMMA3_FILES: [&str; 1] = ["gemma3_f32_plain.jsonl"];

fn exact(file: &str, goldens: &[&str]) {
    let Some(path) = real_model(file) else { return };
    let model = load(&path, Repack::Into(packed_dir()));
    // Ten times as slow.
    let d = measure(&model, Activations::F32, goldens, quota(4, 1));
    assert!(
        d.top1_share() >= 0.995 && d.mean_error() <= 0.005 && d.greedy_share() >= 0.9,
        "{d:?}"
    );
}

/// No further from the truth than llama.cpp's own int8 path is.
fn fast(file: &str, goldens: &[&str], top1: f64, error: f64) {
    let Some(path) = real_model(file) else { return };
    let model = load(&path, Repack::Into(packed_dir()));
    let d = measure(&model, Activations::Int8, goldens, quota(2, 1));
    assert!(
        d.top1_share() >= top1 && d.mean_error() <= error && d.nll_drift() <= 0.005,
        "{d:?}"
    );
}

#[test]
fn smollm2_exact() {
    exact(SMOLLM2, &SMOLLM2_FILES);
}

#[test]
fn smollm2_fast() {
    fast(SMOLLM2, &SMOLLM2_FILES, 0.94, 0.07);
}

#[test]
fn gemma3_exact() {
    exact(GEMMA3, &GEMMA3_FILES);
}

#[test]
fn gemma3_fast() {
    fast(GEMMA3, &GEMMA3_FILES, 0.95, 0.085);
}
