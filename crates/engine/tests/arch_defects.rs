//! Metadata that lies about the model: each is refused at load with one line that names the file and
//! the field, or is harmless.

use haversack_engine::{LoadOptions, Model};
use haversack_gguf::write::Meta;
use haversack_testing::models::Spec;

/// Loads the tiny llama with one key changed.
fn load_with(key: &str, value: Meta) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lie.gguf");
    let spec = Spec::named("llama").unwrap();
    let mut writer = spec.writer().unwrap();
    writer.set(key, value);
    writer
        .write_file(&path, &mut |t, out| spec.fill(t, out))
        .unwrap();
    Model::load(&path, &LoadOptions::default(), &mut |_, _| ())
        .map(|_| ())
        .map_err(|e| e.to_string())
}

#[test]
fn lies_are_named() {
    let key = |k: &str| format!("llama.{k}");
    let cases: Vec<(String, Meta)> = vec![
        ("general.architecture".into(), Meta::Str(b"skynet".to_vec())),
        ("general.architecture".into(), Meta::U32(7)),
        (key("block_count"), Meta::U32(0)),
        (key("block_count"), Meta::U32(u32::MAX)),
        (key("block_count"), Meta::I32(-1)),
        (key("block_count"), Meta::Str(b"two".to_vec())),
        (key("embedding_length"), Meta::U32(0)),
        (key("embedding_length"), Meta::U64(u64::MAX)),
        (key("attention.head_count"), Meta::U32(0)),
        (key("attention.head_count"), Meta::U32(u32::MAX)),
        (key("attention.head_count"), Meta::array([4u32])),
        (key("attention.head_count_kv"), Meta::U32(0)),
        (key("attention.head_count_kv"), Meta::U32(3)),
        (key("feed_forward_length"), Meta::U32(0)),
        (key("rope.dimension_count"), Meta::U32(15)),
        (key("rope.dimension_count"), Meta::U32(1000)),
        (key("rope.freq_base"), Meta::F32(f32::NAN)),
        (key("rope.freq_base"), Meta::F32(0.0)),
        (key("rope.freq_base"), Meta::F32(-1.0)),
        (key("rope.scaling.factor"), Meta::F32(f32::INFINITY)),
        (key("rope.scaling.type"), Meta::Str(b"spiral".to_vec())),
        (key("context_length"), Meta::U32(0)),
        (key("attention.layer_norm_rms_epsilon"), Meta::F32(f32::NAN)),
        (key("attention.layer_norm_rms_epsilon"), Meta::F32(-1.0)),
        (key("attention.key_length"), Meta::U32(0)),
        (key("attention.key_length"), Meta::U32(1 << 31)),
        (key("attention.value_length"), Meta::U32(2)),
        (key("expert_count"), Meta::U32(8)),
    ];
    for (key, value) in cases {
        let shown = format!("{key} = {value:?}");
        let error = load_with(&key, value).expect_err(&shown);
        assert!(
            error.contains(&key) && error.contains("lie.gguf") && !error.contains('\n'),
            "{shown}: {error}"
        );
    }
}

/// Numbers that fit no tensor of the file name that tensor.
#[test]
fn shapes_must_match_the_tensors() {
    for (key, value, tensor) in [
        ("llama.feed_forward_length", 4097u32, "ffn_"),
        ("llama.attention.head_count_kv", 1, "attn_k"),
        ("llama.block_count", 40, "blk."),
    ] {
        let error = load_with(key, Meta::U32(value)).expect_err(key);
        assert!(
            error.contains(tensor) && !error.contains('\n'),
            "{key}: {error}"
        );
    }
}

/// A huge context costs nothing: blocks are taken when they are needed.
#[test]
fn a_huge_context_is_only_a_number() {
    load_with("llama.context_length", Meta::U32(u32::MAX)).unwrap();
}
