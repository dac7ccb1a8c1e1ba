//! Attention that is not a number: a step says where, and what was there before is still there.

use crate::common;

use common::load;
use haversack_cache::CacheError;
use haversack_engine::{
    Activations, Codec, KvForm, KvOptions, Policy, Repack, Retention, Runtime, RuntimeOptions,
    StepError,
};
use haversack_gguf::Gguf;
use haversack_testing::models::Spec;
use std::fs;
use std::ops::ControlFlow;

/// A small model in which some numbers of a tensor are not any.
fn broken(tensor: &str, from: usize, count: usize) -> (tempfile::TempDir, Runtime, Vec<u32>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let spec = Spec::named("llama").unwrap();
    spec.write_file(&path).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let head = gguf.bytes(gguf.tensor(tensor).unwrap());
    // No two tensors begin alike.
    let head = &head[4 * from..][..64];
    let at = bytes.windows(64).position(|w| w == head).unwrap();
    for number in bytes[at..at + 4 * count].chunks_exact_mut(4) {
        number.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    let path = dir.path().join("broken.gguf");
    fs::write(&path, bytes).unwrap();
    let options = RuntimeOptions {
        threads: 1,
        activations: Activations::F32,
        kv: KvOptions {
            // Nothing is measured with such a model.
            centre: false,
            ..KvOptions::new(KvForm::both(Codec::Int4.form()))
        },
        retention: Retention {
            policy: Policy::Heavy,
            anchors: Some(32),
            window: Some(256),
            ..Retention::default()
        },
        ..RuntimeOptions::default()
    };
    let model = load(&path, Repack::Off);
    let runtime = Runtime::new(model, &options).unwrap();
    (dir, runtime, spec.ids(300))
}

#[test]
fn a_token_that_is_not_a_number_is_named() {
    let bad = 7;
    let (_dir, mut rt, mut tokens) = broken("token_embd.weight", bad * 128, 128);
    tokens
        .iter_mut()
        .filter(|t| **t == bad as u32)
        .for_each(|t| *t += 1);
    let id = rt.open().unwrap();
    rt.feed(id, &tokens[..270], &mut |_| ControlFlow::Continue(()))
        .unwrap();
    let error = rt.decode(id, bad as u32).unwrap_err();
    let named = CacheError::NotANumber {
        layer: 0,
        position: 270,
    };
    assert_eq!(error, StepError::Cache(named));
    assert_eq!(
        error.to_string(),
        "the attention of layer 0 is not a number at position 270"
    );
    assert_eq!(rt.position(id), Ok(270));
    let logits = rt.decode(id, tokens[270]).unwrap();
    assert!(logits.iter().all(|x| x.is_finite()));
}

#[test]
fn a_layer_that_is_not_a_number_is_named() {
    let (_dir, mut rt, tokens) = broken("blk.1.attn_q.weight", 0, 128);
    let id = rt.open().unwrap();
    let fed = rt.feed(id, &tokens[..20], &mut |_| ControlFlow::Continue(()));
    let named = CacheError::NotANumber {
        layer: 1,
        position: 0,
    };
    assert_eq!(fed.unwrap_err(), StepError::Cache(named));
    assert_eq!(rt.position(id), Ok(0));
}
