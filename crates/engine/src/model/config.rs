//! The configuration of a model, from GGUF metadata: one description per layer.
//!
//! Architectures differ in data, not in code: everything `forward` branches on is a field here.
//! All numbers come from a file, so each is checked against its range and named when it is wrong.
//! Shapes are compared with the tensors later, by [`super::weights`].

use super::error::{LoadError, LoadResult};
use super::keys::{MetadataKeys, missing};
use super::rope;
use haversack_gguf::Gguf;
use haversack_kernels::ops::rope::{Pairing, RopeSpec};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    Llama,
    Qwen2,
    Qwen3,
    Gemma3,
    Phi3,
}

impl Arch {
    pub const ALL: [Arch; 5] = [
        Arch::Llama,
        Arch::Qwen2,
        Arch::Qwen3,
        Arch::Gemma3,
        Arch::Phi3,
    ];

    /// The value of `general.architecture`, which is also the prefix of its keys.
    pub fn name(self) -> &'static str {
        match self {
            Arch::Llama => "llama",
            Arch::Qwen2 => "qwen2",
            Arch::Qwen3 => "qwen3",
            Arch::Gemma3 => "gemma3",
            Arch::Phi3 => "phi3",
        }
    }

    fn pairing(self) -> Pairing {
        match self {
            // Files of this architecture store Q and K permuted for neighbouring pairs.
            Arch::Llama => Pairing::Interleaved,
            _ => Pairing::Halves,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Silu,
    Gelu,
}

/// What `forward` needs to know of one layer.
#[derive(Clone, Debug)]
pub struct LayerConfig {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn: usize,
    /// Index into [`Config::ropes`].
    pub rope: usize,
    /// Sees only this many positions back, itself included.
    pub window: Option<u64>,
    /// Multiplies q·k.
    pub score_scale: f32,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub arch: Arch,
    pub name: String,
    pub dim: usize,
    pub vocab: usize,
    /// Positions the model was trained for.
    pub context_trained: usize,
    /// Positions this load may use: the same or fewer.
    pub context: usize,
    pub norm_eps: f32,
    /// Embeddings are multiplied by this.
    pub embed_scale: f32,
    pub activation: Activation,
    /// Logits are squashed to ±cap.
    pub logit_cap: Option<f32>,
    pub layers: Vec<LayerConfig>,
    pub ropes: Vec<RopeSpec>,
}

/// Ceilings for numbers from a file: far above any model, far below where products overflow.
const LAYERS_MAX: u64 = 1024;
const DIM_MAX: u64 = 1 << 17;
const HEADS_MAX: u64 = 1 << 12;
pub(crate) const HEAD_DIM_MAX: usize = 1 << 10;
const FFN_MAX: u64 = 1 << 20;
const VOCAB_MAX: usize = 1 << 22;

/// Gemma 3: every sixth layer sees everything, the others a window; the windowed ones rotate with
/// the base of the earlier models. Files that do not say otherwise mean these.
const GEMMA3_PATTERN: usize = 6;
const GEMMA3_LOCAL_BASE: f64 = 10_000.0;
/// Gemma 3 27B is the one size whose scores are scaled by the embedding's share of a head.
const GEMMA3_27B_LAYERS: usize = 62;

impl Config {
    /// `context` is what the caller means to use at most; some models rotate differently beyond
    /// the length they were first trained for.
    pub fn read(g: &Gguf, context: Option<usize>) -> LoadResult<Config> {
        let arch_name = g.str("general.architecture")?;
        let arch_name = arch_name.ok_or_else(|| missing("general.architecture"))?;
        let Some(arch) = Arch::ALL.into_iter().find(|a| a.name() == arch_name) else {
            let (name, known) = (clip(arch_name), Arch::ALL.map(Arch::name).join(", "));
            let what = format!("{name:?} is not supported; supported: {known}");
            return Err(LoadError::field("general.architecture", what));
        };
        let keys = MetadataKeys::new(g, arch.name());

        let layers = keys.count("block_count", 1, LAYERS_MAX)?;
        let dim = keys.count("embedding_length", 1, DIM_MAX)?;
        let trained = keys.count("context_length", 1, u32::MAX as u64)?;
        let context = context.unwrap_or(trained).min(trained);
        let norm_eps = keys.float_or("attention.layer_norm_rms_epsilon", 0.0, 1.0, 1e-5)?;
        let experts = keys.optional("expert_count", 0, u32::MAX as u64)?;
        keys.check("expert_count", experts.unwrap_or(0) == 0, || {
            "mixtures of experts are not supported; accepted: 0".to_owned()
        })?;
        let vocab = vocab_rows(g)?;

        let heads = keys.per_layer("attention.head_count", layers, HEADS_MAX)?;
        let heads = heads.ok_or_else(|| keys.missing("attention.head_count"))?;
        let kv_heads = keys.per_layer("attention.head_count_kv", layers, HEADS_MAX)?;
        let kv_heads = kv_heads.unwrap_or_else(|| heads.clone());
        let ffn = keys.per_layer("feed_forward_length", layers, FFN_MAX)?;
        let ffn = ffn.ok_or_else(|| keys.missing("feed_forward_length"))?;
        let head_dim = match keys.optional("attention.key_length", 1, HEAD_DIM_MAX as u64)? {
            Some(n) => n,
            None => {
                let first = heads[0];
                keys.check("attention.head_count", dim.is_multiple_of(first), || {
                    format!("{first} does not divide embedding_length {dim}")
                })?;
                dim / first
            }
        };
        let is_good = (1..=HEAD_DIM_MAX).contains(&head_dim) && head_dim.is_multiple_of(2);
        keys.check("attention.key_length", is_good, || {
            format!("head size {head_dim} is not accepted: even numbers from 2 to {HEAD_DIM_MAX}")
        })?;
        let values = keys.optional("attention.value_length", 1, HEAD_DIM_MAX as u64)?;
        let values = values.unwrap_or(head_dim);
        keys.check("attention.value_length", values == head_dim, || {
            format!("{values} differs from the key length {head_dim}, which is not supported")
        })?;

        let rope_dims = keys.optional("rope.dimension_count", 2, HEAD_DIM_MAX as u64)?;
        let rope_dims = rope_dims.unwrap_or(head_dim);
        let is_good = rope_dims <= head_dim && rope_dims.is_multiple_of(2);
        keys.check("rope.dimension_count", is_good, || {
            format!("{rope_dims} is not accepted: even numbers from 2 to the head size {head_dim}")
        })?;
        // Gemma 3's windowed layers turn with the base of the earlier models.
        let local_base = match arch {
            Arch::Gemma3 => {
                let base = keys.float("rope.freq_base_swa", f32::MIN_POSITIVE, f32::MAX)?;
                Some(base.map_or(GEMMA3_LOCAL_BASE, f64::from))
            }
            _ => None,
        };
        let (pairing, contexts) = (arch.pairing(), (trained, context));
        let ropes = rope::read(g, &keys, pairing, rope_dims, contexts, local_base)?;

        let window = match arch {
            Arch::Gemma3 => keys.optional("attention.sliding_window", 1, u32::MAX as u64)?,
            _ => None,
        };
        let window = window.map(|n| n as u64);
        let pattern = keys.optional("attention.sliding_window_pattern", 1, LAYERS_MAX)?;
        let pattern = pattern.unwrap_or(GEMMA3_PATTERN);

        let mut layer_configs = Vec::new();
        for layer in 0..layers {
            let (heads, kv_heads) = (heads[layer], kv_heads[layer]);
            let is_good = heads.is_multiple_of(kv_heads);
            keys.check("attention.head_count_kv", is_good, || {
                format!("{kv_heads} does not divide head_count {heads} in layer {layer}")
            })?;
            let local = window.is_some() && !(layer + 1).is_multiple_of(pattern);
            let score_dim = match arch {
                Arch::Gemma3 if layers == GEMMA3_27B_LAYERS => dim as f32 / heads as f32,
                _ => head_dim as f32,
            };
            layer_configs.push(LayerConfig {
                heads,
                kv_heads,
                head_dim,
                ffn: ffn[layer],
                rope: usize::from(local),
                window: if local { window } else { None },
                score_scale: 1.0 / score_dim.sqrt(),
            });
        }

        let (embed_scale, activation) = match arch {
            Arch::Gemma3 => ((dim as f32).sqrt(), Activation::Gelu),
            _ => (1.0, Activation::Silu),
        };
        Ok(Config {
            arch,
            name: clip(g.str("general.name")?.unwrap_or(arch.name())),
            dim,
            vocab,
            context_trained: trained,
            context,
            norm_eps,
            embed_scale,
            activation,
            logit_cap: keys
                .float("final_logit_softcapping", 0.0, f32::MAX)?
                .filter(|&c| c > 0.0),
            layers: layer_configs,
            ropes,
        })
    }
}

/// Rows of the embedding: what the vocabulary really is, whatever the metadata says.
fn vocab_rows(g: &Gguf) -> LoadResult<usize> {
    let t = g.tensor("token_embd.weight");
    let rows = t.ok_or_else(|| missing("token_embd.weight"))?.rows();
    if (1..=VOCAB_MAX).contains(&rows) {
        return Ok(rows);
    }
    let what = format!("has {rows} rows; accepted: 1 to {VOCAB_MAX}");
    Err(LoadError::field("token_embd.weight", what))
}

/// Text from a file, short enough for a message.
fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}
