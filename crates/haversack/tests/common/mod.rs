//! A tiny model with random weights.
#![allow(dead_code)]

use haversack::{Engine, EngineBuilder};
use haversack_testing::models::Spec;
use std::path::{Path, PathBuf};

/// Writes the model file into `dir`.
pub fn model(dir: &Path) -> PathBuf {
    let path = dir.join("tiny.gguf");
    let spec = Spec {
        context: 2048,
        ..Spec::named("llama").unwrap()
    };
    spec.write_file(&path).unwrap();
    path
}

/// An engine over it, on one thread, for short tests.
pub fn builder(dir: &Path) -> EngineBuilder {
    Engine::open(model(dir)).threads(1).memory("64M")
}
