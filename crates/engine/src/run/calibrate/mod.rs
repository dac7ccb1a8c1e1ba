//! The mean key of each layer and head, measured once per model on a short built-in text.
//!
//! Most of a key's energy is one constant vector: taken away before rotation and coding, it leaves the
//! codes to what differs between tokens. The mean is taken before RoPE, where it is one vector; what
//! is subtracted is its average over the positions of a context after RoPE ([`KeyMeans::roped`]),
//! which is a constant too, so its share of a score is one number per query.
//!
//! Deterministic: the same model gives the same means on every machine and thread count. Kept in a
//! small file named by the model's fingerprint; a file that does not check out is made again.

use super::options::{KvOptions, Retention, RuntimeOptions, Slabs};
use super::runtime::{Runtime, RuntimeError};
use crate::load::Model;
use crate::model::Config;
use crate::model::forward::{Span, Want};
use crate::text::tokenizer::EncodeOptions;
use haversack_kernels::format::kv::KvForm;
use haversack_kernels::ops::rope::{Pairing, RopeSpec};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TEXT: &str = include_str!("text.txt");

/// Tokens of the text that are not counted: the first one is like no other.
pub const SKIP: usize = 4;

/// Tokens times bytes of weights that are affordable without being asked: about two seconds on two
/// cores of a small machine.
const WORK_MAX: u64 = 150 << 30;
/// With fewer tokens a mean says too little.
const TOKENS_MIN: usize = 128;
const TOKENS_MAX: usize = 1536;

/// Means before RoPE: (layer)(kv_head, dim).
#[derive(Clone, Debug, PartialEq)]
pub struct KeyMeans {
    layers: Vec<Vec<f32>>,
}

/// How many tokens this model can be measured with unasked; `None` = too few to be worth it.
pub fn tokens_affordable(weights_bytes: u64) -> Option<usize> {
    let tokens = usize::try_from(WORK_MAX / weights_bytes.max(1)).unwrap_or(usize::MAX);
    (tokens >= TOKENS_MIN).then_some(tokens.min(TOKENS_MAX))
}

/// Where the means of a model are kept.
pub fn file(model: &Model, dir: &Path) -> PathBuf {
    dir.join(format!("{}.means", model.fingerprint().to_hex()))
}

impl KeyMeans {
    /// Reads the built-in text with keys and values as they are and adds up the keys.
    fn measure(
        model: &Arc<Model>,
        threads: usize,
        tokens: usize,
        slabs: &Slabs,
    ) -> Result<KeyMeans, RuntimeError> {
        let options = RuntimeOptions {
            threads,
            kv: KvOptions::plain(KvForm::F16),
            retention: Retention::full(),
            slabs: slabs.clone(),
            ..Default::default()
        };
        let mut runtime = Runtime::new(model.clone(), &options)?;
        let encode = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        let mut ids = model.tokenizer().encode(TEXT, encode).unwrap_or_default();
        ids.truncate(tokens.min(model.config().context));
        let config = model.config();
        let widths = config.layers.iter().map(|c| c.kv_heads * c.head_dim);
        let mut sums: Vec<Vec<f64>> = widths.map(|width| vec![0.0; width]).collect();
        let id = runtime.open()?;
        let mut position = 0;
        for part in ids.chunks(runtime.chunk()) {
            runtime.capture_keys();
            runtime.step(&[Span {
                sequence: id,
                position: position as u64,
                tokens: part,
                want: Want::Nothing,
            }])?;
            for (sum, keys) in sums.iter_mut().zip(runtime.captured_keys()) {
                let skip = SKIP.saturating_sub(position);
                let width = sum.len();
                for row in keys.chunks_exact(width).skip(skip) {
                    sum.iter_mut()
                        .zip(row)
                        .for_each(|(s, k)| *s += f64::from(*k));
                }
            }
            position += part.len();
        }
        let count = position.saturating_sub(SKIP).max(1) as f64;
        let layers: Vec<Vec<f32>> = sums
            .iter()
            .map(|sum| sum.iter().map(|s| (s / count) as f32).collect())
            .collect();
        Ok(KeyMeans { layers })
    }

    /// From the file in `dir`, or measured and written there. Trouble with the file is no trouble.
    pub fn load_or_measure(
        model: &Arc<Model>,
        threads: usize,
        tokens: usize,
        dir: Option<&Path>,
        slabs: &Slabs,
    ) -> Result<KeyMeans, RuntimeError> {
        let path = dir.map(|dir| file(model, dir));
        if let Some(path) = &path
            && let Some(means) = KeyMeans::read(path, model.config())
        {
            return Ok(means);
        }
        let means = KeyMeans::measure(model, threads, tokens, slabs)?;
        if let Some(path) = &path
            && let Err(e) = means.write(path)
        {
            log::warn!("{}: not kept: {e}", path.display());
        }
        Ok(means)
    }

    fn bytes(&self) -> Vec<u8> {
        let values = self.layers.iter().flatten();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(values.flat_map(|x| x.to_le_bytes()));
        let hash = blake3::hash(&bytes);
        bytes.extend_from_slice(hash.as_bytes());
        bytes
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&temporary, self.bytes())?;
        std::fs::rename(&temporary, path)
    }

    fn read(path: &Path, config: &Config) -> Option<KeyMeans> {
        let widths: Vec<usize> = config
            .layers
            .iter()
            .map(|c| c.kv_heads * c.head_dim)
            .collect();
        let values: usize = widths.iter().sum();
        let expected = MAGIC.len() + 4 * values + blake3::OUT_LEN;
        let length = std::fs::metadata(path).ok()?.len();
        if length != expected as u64 {
            return None;
        }
        let bytes = std::fs::read(path).ok()?;
        let (body, hash) = bytes.split_at_checked(expected - blake3::OUT_LEN)?;
        if blake3::hash(body).as_bytes() != hash {
            return None;
        }
        let body = body.strip_prefix(MAGIC)?;
        let mut numbers = body
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b));
        let layers: Vec<Vec<f32>> = widths
            .iter()
            .map(|&width| numbers.by_ref().take(width).collect())
            .collect();
        let finite = layers.iter().flatten().all(|x| x.is_finite());
        finite.then_some(KeyMeans { layers })
    }

    /// What is taken from every roped key of a layer: the mean over `positions` positions of the
    /// roped mean.
    pub fn roped(&self, config: &Config, layer: usize, positions: u64) -> Vec<f32> {
        let c = &config.layers[layer];
        let spec = &config.ropes[c.rope];
        let factors: Vec<(f64, f64)> = spec
            .freqs
            .iter()
            .map(|&freq| mean_turn(freq, positions))
            .collect();
        let mut mean = self.layers[layer].clone();
        for head in mean.chunks_exact_mut(c.head_dim) {
            turn_by(head, spec, &factors);
        }
        mean
    }
}

const MAGIC: &[u8] = b"haversack means 1\n";

/// The mean of `e^(i freq p)` over `p = 0 .. n`: how much of a pair is left, and where it points.
fn mean_turn(freq: f64, n: u64) -> (f64, f64) {
    // Enough places to see every turn that is not nothing anyway.
    let places = n.clamp(1, 1 << 16);
    let (mut re, mut im) = (0.0, 0.0);
    for p in 0..places {
        let (sin, cos) = (freq * p as f64 * (n as f64 / places as f64)).sin_cos();
        re += cos;
        im += sin;
    }
    (re / places as f64, im / places as f64)
}

fn turn_by(head: &mut [f32], spec: &RopeSpec, factors: &[(f64, f64)]) {
    let magnitude = f64::from(spec.magnitude);
    for (i, (re, im)) in factors.iter().enumerate() {
        let (a, b) = match spec.pairing {
            Pairing::Interleaved => (2 * i, 2 * i + 1),
            Pairing::Halves => (i, i + spec.dims / 2),
        };
        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
        head[a] = ((x * re - y * im) * magnitude) as f32;
        head[b] = ((x * im + y * re) * magnitude) as f32;
    }
}
