//! What each thread of the simulation computes with: tiny models, and runtimes without a budget for reference answers.
//!
//! The models mean nothing, but every bit they compute depends on every row: activations are f32, and checks compare not
//! only tokens but a hash of all the logits. A row that is missing, foreign, moved or masked wrongly shows at the next
//! token.

use crate::common::session::Words;
use crate::common::{Dice, load, small};
use haversack_conversations::session::Embed;
use haversack_engine::encoder::{Embedding, EncoderError};
use haversack_engine::runtime::options::Slabs;
use haversack_engine::{
    Activations, Codec, KvForm, KvOptions, Model, Repack, Retention, Runtime, RuntimeOptions,
};
use haversack_testing::models::Spec;
use haversack_testing::models::vocab::Vocab;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A plain one, another of the same shape, and one with windows in half of its layers.
pub const MODELS: usize = 3;
pub const OTHER: usize = 1;

/// Context length of each model.
pub const CONTEXT: usize = 768;

/// KV cache forms.
pub const FORMS: usize = 4;

pub fn load_all(folder: &Path) -> Vec<Arc<Model>> {
    let plain = small("llama", CONTEXT);
    let other = Spec {
        seed: 2,
        ..plain.clone()
    };
    let windowed = Spec {
        window: Some(20),
        window_pattern: Some(2),
        vocab: Vocab::Bpe("gpt-2"),
        ..small("gemma3", CONTEXT)
    };
    let specs = [plain, other, windowed];
    let made = specs.iter().enumerate().map(|(i, spec)| {
        let path = folder.join(format!("model-{i}.gguf"));
        spec.write_file(&path).unwrap();
        load(&path, Repack::Into(folder.join("packed")))
    });
    made.collect()
}

fn form(i: usize) -> KvOptions {
    let zoned = |codec: Codec| KvOptions {
        recent: 32,
        centre: false,
        ..KvOptions::new(KvForm::both(codec.form()))
    };
    match i {
        0 => KvOptions::plain(KvForm::F16),
        1 => zoned(Codec::Int4),
        2 => zoned(Codec::Int8),
        _ => KvOptions {
            near: Codec::F16,
            ..zoned(Codec::Int4)
        },
    }
}

/// Options of a runtime.
#[derive(Clone, Debug, Default)]
pub struct Make {
    pub model: usize,
    pub form: usize,
    pub retention: Retention,
    pub budget: Option<usize>,
    pub chunk: Option<usize>,
    pub slabs: Slabs,
}

/// Kept from seed to seed.
pub struct Models {
    pub models: Vec<Arc<Model>>,
    pub folder: PathBuf,
    alone: HashMap<(usize, usize, bool), Runtime>,
}

impl Models {
    pub fn new(models: &[Arc<Model>], folder: &Path) -> Models {
        Models {
            models: models.to_vec(),
            folder: folder.to_owned(),
            alone: HashMap::new(),
        }
    }

    pub fn runtime(&self, make: &Make) -> Result<Runtime, String> {
        let options = RuntimeOptions {
            threads: 1,
            activations: Activations::F32,
            chunk: make.chunk,
            kv: form(make.form),
            retention: make.retention.clone(),
            budget_bytes: make.budget,
            slabs: make.slabs.clone(),
            ..RuntimeOptions::default()
        };
        let model = self.models[make.model].clone();
        Runtime::new(model, &options).map_err(|e| e.to_string())
    }

    /// A runtime without a budget for reference answers; `managed`: for sessions.
    pub fn alone(&mut self, model: usize, form: usize, managed: bool) -> &mut Runtime {
        if !self.alone.contains_key(&(model, form, managed)) {
            let make = Make {
                model,
                form,
                retention: match managed {
                    true => Retention::managed(),
                    false => Retention::full(),
                },
                ..Make::default()
            };
            let made = self.runtime(&make).unwrap();
            self.alone.insert((model, form, managed), made);
        }
        self.alone.get_mut(&(model, form, managed)).unwrap()
    }

    /// Drops runtimes that a panic may have left in a bad state.
    pub fn clear(&mut self) {
        self.alone.clear();
    }
}

/// An encoder that runs on the scheduler's thread, so that thread timing decides nothing.
pub struct QuickEncoder;

impl Embed for QuickEncoder {
    fn embed(&self, text: &str) -> Result<Embedding, EncoderError> {
        Words.embed(text)
    }

    fn is_quick(&self) -> bool {
        true
    }
}

/// Hashes every bit of the logits.
pub fn fingerprint(logits: &[f32]) -> u64 {
    logits.iter().fold(0xcbf2_9ce4_8422_2325, |hash, logit| {
        (hash ^ u64::from(logit.to_bits()))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}

/// True once in `sides` times.
pub fn one_in(dice: &mut Dice, sides: usize) -> bool {
    dice.roll(sides) == 0
}

pub fn pick<T: Clone>(dice: &mut Dice, list: &[T]) -> T {
    list[dice.roll(list.len())].clone()
}
