//! Synthetic models: the fixtures' numbers belong to exactly the bytes the generator writes.

use haversack_gguf::Gguf;
use haversack_kernels::format::WeightType;
use haversack_testing::models::{Mix, Spec};
use std::collections::BTreeSet;
use std::fs;

fn all() -> impl Iterator<Item = Spec> {
    Spec::variants()
        .into_iter()
        .chain(WeightType::ALL.map(Spec::of_type))
}

#[test]
fn every_fixture_names_a_model_that_still_has_its_bytes() {
    let mut names: BTreeSet<String> = all().map(|s| s.name).collect();
    for entry in fs::read_dir("tests/fixtures/arch").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let golden: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let name = golden["variant"].as_str().unwrap();
        let mut spec = Spec::named(name).unwrap();
        spec.seed = golden["seed"].as_u64().unwrap();
        let hash = blake3::hash(&spec.to_bytes().unwrap()).to_string();
        assert_eq!(golden["blake3"], hash, "{name} is stale");
        let ids: Vec<u64> = spec.ids(64).into_iter().map(u64::from).collect();
        assert_eq!(golden["ids"], serde_json::json!(ids), "{name}");
        assert_eq!(golden["positions"].as_array().unwrap().len(), 64);
        names.remove(name);
    }
    assert!(names.is_empty(), "no fixture for {names:?}");
}

#[test]
fn every_model_opens_and_holds_what_its_name_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    for spec in all() {
        spec.write_file(&path).unwrap();
        let g = Gguf::open(&path).unwrap();
        let arch = spec.arch.name();
        assert_eq!(g.str("general.architecture").unwrap(), Some(arch));
        let key = format!("{arch}.block_count");
        assert_eq!(g.u32(&key).unwrap(), Some(spec.layers));
        let tokens = g.array("tokenizer.ggml.tokens").unwrap().unwrap();
        assert_eq!(tokens.len() as u32, spec.vocab_size);
        let unique: BTreeSet<&[u8]> = tokens.strs().unwrap().collect();
        assert_eq!(unique.len(), tokens.len(), "{}", spec.name);
        assert_eq!(g.tensor("output.weight").is_none(), spec.tied);
        if let Mix::All(ty) = spec.mix {
            assert_eq!(g.tensor("blk.0.ffn_down.weight").unwrap().ty, ty);
        }
        assert!(spec.ids(500).iter().all(|&id| id < spec.vocab_size));
    }
}

#[test]
fn a_seed_changes_the_weights_and_nothing_else() {
    let spec = Spec::named("qwen2").unwrap();
    let other = Spec {
        seed: 2,
        ..spec.clone()
    };
    let (a, b) = (spec.to_bytes().unwrap(), other.to_bytes().unwrap());
    assert_eq!(a.len(), b.len());
    assert_ne!(a, b);
    assert_eq!(a, spec.to_bytes().unwrap());
}

/// The mix of the benchmark files, without writing them.
#[test]
fn the_presets_have_the_sizes_of_the_real_ones() {
    let bytes = |spec: Spec| -> u64 {
        let w = spec.writer().unwrap();
        w.tensors().iter().map(|t| t.bytes).sum()
    };
    // Llama 3.2 1B and Llama 2 7B as published: 0.80, 0.77 and 4.08 GB.
    assert_eq!(bytes(Spec::preset_1b(Mix::Q4KM)) >> 20, 762);
    assert_eq!(
        bytes(Spec::preset_1b(Mix::Mostly(WeightType::Q4_0))) >> 20,
        727
    );
    assert_eq!(bytes(Spec::preset_7b(Mix::Q4KM)) >> 20, 3891);
}
