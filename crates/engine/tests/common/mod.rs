//! Shared by the tests: where real models are, small ones, and loading them.
#![allow(dead_code)]

use haversack_engine::{
    Activations, KvForm, KvOptions, LoadOptions, Model, Repack, Retention, Runtime, RuntimeOptions,
};
use haversack_testing::models::Spec;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.gguf";
pub const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

/// A real model, if it was fetched: `$HAVERSACK_TEST_MODELS`, `$HAVERSACK_HOME/models`, or the
/// data directory. Skipping is loud.
pub fn real_model(file: &str) -> Option<PathBuf> {
    let dirs = [
        std::env::var_os("HAVERSACK_TEST_MODELS").map(PathBuf::from),
        std::env::var_os("HAVERSACK_HOME").map(|h| PathBuf::from(h).join("models")),
        std::env::var_os("XDG_DATA_HOME").map(|h| PathBuf::from(h).join("haversack/models")),
        std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".local/share/haversack/models")),
    ];
    let found = dirs
        .into_iter()
        .flatten()
        .map(|d| d.join(file))
        .find(|p| p.is_file());
    if found.is_none() {
        println!("SKIPPED: {file} is not here; `haversack pull` fetches it");
    }
    found
}

/// A directory for packed copies that outlives one test and is shared by all of them.
pub fn packed_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("packed")
}

/// A model in which many worlds fit a second.
pub fn small(architecture: &str, context: usize) -> Spec {
    Spec {
        context: context as u32,
        layers: 2,
        dim: 32,
        ffn: 32,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        rope_dim: 16,
        ..Spec::named(architecture).unwrap()
    }
}

pub fn load(path: &Path, repack: Repack) -> Arc<Model> {
    load_with(
        path,
        &LoadOptions {
            repack,
            threads: 2,
            ..Default::default()
        },
    )
}

pub fn load_with(path: &Path, options: &LoadOptions) -> Arc<Model> {
    Model::load(path, options, &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}"))
}

/// Everything kept as f16: what the reference figures were made with.
pub fn runtime(model: &Arc<Model>, activations: Activations) -> Runtime {
    let options = RuntimeOptions {
        activations,
        threads: 2,
        kv: KvOptions::plain(KvForm::F16),
        retention: Retention::full(),
        ..Default::default()
    };
    Runtime::new(model.clone(), &options).unwrap_or_else(|e| panic!("{e}"))
}

/// A small deterministic generator for schedules.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}
