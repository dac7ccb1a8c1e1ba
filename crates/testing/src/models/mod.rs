//! Test material: random models of every architecture and weight type, from a name and a seed.
//!
//! A synthetic model says nothing sensible, but it is a complete, well-formed file that any GGUF
//! runtime loads, and the same bytes come out on every platform. Tests compare our arithmetic with
//! another program's on it; benchmarks run shapes whose real weights are too large to fetch.
//!
//! What this is not: part of the way from a file to an answer. Nothing outside tests, examples and
//! benchmarks calls it.
//!
//! Fixtures name a model by its variant and seed: changing what a name produces makes them stale.

pub mod vocab;
pub mod weights;

use haversack_gguf::write::{GgufWriter, Meta, Planned};
use haversack_kernels::format::WeightType;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use vocab::Vocab;
use weights::{Look, stream};

/// The value of `general.architecture`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    Llama,
    Qwen2,
    Qwen3,
    Gemma3,
    Phi3,
}

impl Arch {
    /// As files spell it; it is also the prefix of its keys.
    pub fn name(self) -> &'static str {
        match self {
            Arch::Llama => "llama",
            Arch::Qwen2 => "qwen2",
            Arch::Qwen3 => "qwen3",
            Arch::Gemma3 => "gemma3",
            Arch::Phi3 => "phi3",
        }
    }
}

/// How positions are stretched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rope {
    Plain,
    Linear {
        factor: f32,
    },
    /// One divisor per frequency, in `rope_freqs.weight`.
    Llama3 {
        factor: f32,
    },
    Yarn {
        factor: f32,
        original: u32,
    },
    /// Two lists of divisors; the context decides which.
    Long {
        attn_factor: f32,
        original: u32,
    },
}

/// Which tensor gets which type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All matrices alike.
    All(WeightType),
    /// All but the output, which is Q6_K.
    Mostly(WeightType),
    /// Q4_K, with Q6_K for the output and for `attn_v` and `ffn_down` of about half the layers.
    Q4KM,
}

/// A model, before its weights.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: String,
    pub arch: Arch,
    pub layers: u32,
    pub dim: u32,
    pub ffn: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// Of `head_dim`, how many are rotated.
    pub rope_dim: u32,
    pub rope_base: f32,
    pub rope: Rope,
    pub context: u32,
    pub vocab: Vocab,
    pub vocab_size: u32,
    /// No `output.weight`: the embedding serves twice.
    pub tied: bool,
    /// Gemma: tokens a local layer looks back.
    pub window: Option<u32>,
    /// Gemma: every how many layers one is global; `None` leaves the key out (6 is understood).
    pub window_pattern: Option<u32>,
    pub mix: Mix,
    pub seed: u64,
}

impl Spec {
    fn tiny(name: &str, arch: Arch) -> Spec {
        Spec {
            name: name.into(),
            arch,
            layers: 3,
            dim: 128,
            ffn: 192,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            rope_dim: 32,
            rope_base: 10_000.0,
            rope: Rope::Plain,
            context: 512,
            vocab: Vocab::Bpe("gpt-2"),
            vocab_size: 320,
            tied: false,
            window: None,
            window_pattern: None,
            mix: Mix::All(WeightType::F32),
            seed: 1,
        }
    }

    /// Llama 3.2 1B in shape, tied as that is.
    pub fn preset_1b(mix: Mix) -> Spec {
        Spec {
            layers: 16,
            dim: 2048,
            ffn: 8192,
            heads: 32,
            kv_heads: 8,
            head_dim: 64,
            rope_dim: 64,
            rope_base: 500_000.0,
            rope: Rope::Llama3 { factor: 32.0 },
            context: 131_072,
            vocab: Vocab::Bpe("llama-bpe"),
            vocab_size: 128_256,
            tied: true,
            mix,
            ..Spec::tiny("1b", Arch::Llama)
        }
    }

    /// Llama 2 7B in shape.
    pub fn preset_7b(mix: Mix) -> Spec {
        Spec {
            layers: 32,
            dim: 4096,
            ffn: 11_008,
            heads: 32,
            kv_heads: 32,
            head_dim: 128,
            rope_dim: 128,
            context: 4096,
            vocab: Vocab::Spm,
            vocab_size: 32_000,
            mix,
            ..Spec::tiny("7b", Arch::Llama)
        }
    }

    /// One tiny model for each way the arithmetic differs.
    pub fn variants() -> Vec<Spec> {
        let tiny = Spec::tiny;
        vec![
            tiny("llama", Arch::Llama),
            Spec {
                tied: true,
                vocab: Vocab::Spm,
                ..tiny("llama-tied-spm", Arch::Llama)
            },
            // Heads that are not dim / heads wide, as in Mistral Nemo.
            Spec {
                head_dim: 16,
                rope_dim: 16,
                ..tiny("llama-narrow-heads", Arch::Llama)
            },
            Spec {
                rope: Rope::Linear { factor: 4.0 },
                ..tiny("llama-linear", Arch::Llama)
            },
            Spec {
                rope: Rope::Llama3 { factor: 32.0 },
                rope_base: 500_000.0,
                ..tiny("llama-llama3", Arch::Llama)
            },
            Spec {
                rope: Rope::Yarn {
                    factor: 4.0,
                    original: 32,
                },
                ..tiny("llama-yarn", Arch::Llama)
            },
            Spec {
                rope_base: 1_000_000.0,
                ..tiny("qwen2", Arch::Qwen2)
            },
            Spec {
                rope: Rope::Yarn {
                    factor: 4.0,
                    original: 32,
                },
                tied: true,
                ..tiny("qwen2-yarn", Arch::Qwen2)
            },
            Spec {
                head_dim: 48,
                rope_dim: 48,
                rope_base: 1_000_000.0,
                tied: true,
                ..tiny("qwen3", Arch::Qwen3)
            },
            // Seven layers: one global among six by default, then a local one again.
            Spec {
                layers: 7,
                dim: 64,
                ffn: 128,
                kv_heads: 1,
                rope_base: 1_000_000.0,
                window: Some(16),
                vocab: Vocab::Spm,
                tied: true,
                ..tiny("gemma3", Arch::Gemma3)
            },
            // The larger ones stretch their global layers, and only those.
            Spec {
                layers: 4,
                dim: 64,
                ffn: 128,
                rope_base: 1_000_000.0,
                rope: Rope::Linear { factor: 8.0 },
                window: Some(16),
                window_pattern: Some(2),
                vocab: Vocab::Spm,
                tied: true,
                ..tiny("gemma3-linear", Arch::Gemma3)
            },
            tiny("phi3", Arch::Phi3),
            // A context of 256, which is what the other program makes of 96 tokens, is longer than
            // the original here and shorter than it in the next.
            Spec {
                rope: Rope::Long {
                    attn_factor: 1.19,
                    original: 64,
                },
                ..tiny("phi3-long", Arch::Phi3)
            },
            Spec {
                rope: Rope::Long {
                    attn_factor: 1.19,
                    original: 512,
                },
                context: 2048,
                ..tiny("phi3-short", Arch::Phi3)
            },
            // Phi-4-mini rotates three quarters of each head.
            Spec {
                rope_dim: 24,
                tied: true,
                ..tiny("phi3-partial", Arch::Phi3)
            },
        ]
    }

    /// One model for each weight type: `type-q4_k`. Rows are whole blocks of every type.
    pub fn of_type(ty: WeightType) -> Spec {
        Spec {
            layers: 2,
            dim: 256,
            ffn: 512,
            head_dim: 64,
            rope_dim: 64,
            mix: Mix::All(ty),
            ..Spec::tiny(&format!("type-{}", ty.name().to_lowercase()), Arch::Llama)
        }
    }

    /// Any of the above by its name.
    pub fn named(name: &str) -> Option<Spec> {
        Spec::variants()
            .into_iter()
            .chain(WeightType::ALL.map(Spec::of_type))
            .find(|s| s.name == name)
    }

    /// Ids for a test text: the same for everyone, no special tokens among them.
    pub fn ids(&self, count: usize) -> Vec<u32> {
        let mut random = weights::Random::new(stream(self.seed, "ids"));
        // The last four are the specials of one vocabulary, the first three of the other.
        let plain = u64::from(self.vocab_size.saturating_sub(7).max(1));
        (0..count)
            .map(|_| 3 + (random.bits() % plain) as u32)
            .collect()
    }

    /// The whole file.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        self.writer()?.to_bytes(&mut |t, out| self.fill(t, out))
    }

    pub fn write_file(&self, path: &Path) -> io::Result<()> {
        self.writer()?
            .write_file(path, &mut |t, out| self.fill(t, out))
    }

    pub fn write_split(&self, stem: &Path, parts: u16) -> io::Result<Vec<PathBuf>> {
        self.writer()?
            .write_split(stem, parts, &mut |t, out| self.fill(t, out))
    }

    /// Metadata and the plan of all tensors.
    pub fn writer(&self) -> io::Result<GgufWriter> {
        let mut w = GgufWriter::new();
        self.describe(&mut w);
        self.vocab.describe(self.vocab_size as usize, &mut w);
        self.plan(&mut w)?;
        Ok(w)
    }

    fn describe(&self, w: &mut GgufWriter) {
        let arch = self.arch.name();
        let file_type: u32 = match self.mix {
            Mix::Q4KM => 15,
            Mix::Mostly(WeightType::Q4_0) | Mix::All(WeightType::Q4_0) => 2,
            Mix::All(WeightType::F16) => 1,
            Mix::Mostly(WeightType::Q8_0) | Mix::All(WeightType::Q8_0) => 7,
            _ => 0,
        };
        w.set("general.architecture", arch)
            // Some runtimes look for a family in this text and then expect its special tokens.
            .set("general.name", "synthetic")
            .set("general.file_type", file_type)
            .set("general.quantization_version", 2u32)
            .set("synth.variant", self.name.as_str())
            .set("synth.seed", self.seed);
        let key = |name: &str| format!("{arch}.{name}");
        w.set(key("block_count"), self.layers)
            .set(key("context_length"), self.context)
            .set(key("embedding_length"), self.dim)
            .set(key("feed_forward_length"), self.ffn)
            .set(key("attention.head_count"), self.heads)
            .set(key("attention.head_count_kv"), self.kv_heads)
            .set(key("attention.layer_norm_rms_epsilon"), 1e-5f32)
            .set(key("rope.dimension_count"), self.rope_dim)
            .set(key("rope.freq_base"), self.rope_base)
            .set(key("vocab_size"), self.vocab_size);
        if self.head_dim * self.heads != self.dim {
            w.set(key("attention.key_length"), self.head_dim)
                .set(key("attention.value_length"), self.head_dim);
        }
        if let Some(window) = self.window {
            w.set(key("attention.sliding_window"), window);
        }
        if let Some(pattern) = self.window_pattern {
            w.set(key("attention.sliding_window_pattern"), pattern);
        }
        let mut scaling = |name: &str, value: Meta| {
            w.set(key(&format!("rope.scaling.{name}")), value);
        };
        match self.rope {
            Rope::Plain | Rope::Llama3 { .. } => {}
            Rope::Linear { factor } => {
                scaling("type", "linear".into());
                scaling("factor", factor.into());
            }
            Rope::Yarn { factor, original } => {
                scaling("type", "yarn".into());
                scaling("factor", factor.into());
                scaling("original_context_length", original.into());
            }
            Rope::Long {
                attn_factor,
                original,
            } => {
                scaling("type", "longrope".into());
                scaling("attn_factor", attn_factor.into());
                scaling("original_context_length", original.into());
            }
        }
    }

    fn plan(&self, w: &mut GgufWriter) -> io::Result<()> {
        let dim = u64::from(self.dim);
        let ffn = u64::from(self.ffn);
        let head_dim = u64::from(self.head_dim);
        let q_dim = u64::from(self.heads) * head_dim;
        let kv_dim = u64::from(self.kv_heads) * head_dim;
        let vocab = u64::from(self.vocab_size);
        let half_rope = u64::from(self.rope_dim / 2);
        let f32 = WeightType::F32;
        let output = self.output_type();
        let embedding = if self.tied { output } else { self.base_type() };

        w.tensor("token_embd.weight", embedding, &[dim, vocab])?;
        if let Rope::Llama3 { .. } = self.rope {
            w.tensor("rope_freqs.weight", f32, &[half_rope])?;
        }
        if let Rope::Long { .. } = self.rope {
            w.tensor("rope_factors_long.weight", f32, &[half_rope])?;
            w.tensor("rope_factors_short.weight", f32, &[half_rope])?;
        }
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let base = self.base_type();
            let fine = self.finer_type(layer);
            w.tensor(name("attn_norm.weight"), f32, &[dim])?;
            if self.arch == Arch::Phi3 {
                w.tensor(name("attn_qkv.weight"), base, &[dim, q_dim + 2 * kv_dim])?;
            } else {
                w.tensor(name("attn_q.weight"), base, &[dim, q_dim])?;
                w.tensor(name("attn_k.weight"), base, &[dim, kv_dim])?;
                w.tensor(name("attn_v.weight"), fine, &[dim, kv_dim])?;
            }
            if self.arch == Arch::Qwen2 {
                w.tensor(name("attn_q.bias"), f32, &[q_dim])?;
                w.tensor(name("attn_k.bias"), f32, &[kv_dim])?;
                w.tensor(name("attn_v.bias"), f32, &[kv_dim])?;
            }
            if matches!(self.arch, Arch::Qwen3 | Arch::Gemma3) {
                w.tensor(name("attn_q_norm.weight"), f32, &[head_dim])?;
                w.tensor(name("attn_k_norm.weight"), f32, &[head_dim])?;
            }
            w.tensor(name("attn_output.weight"), base, &[q_dim, dim])?;
            if self.arch == Arch::Gemma3 {
                w.tensor(name("post_attention_norm.weight"), f32, &[dim])?;
                w.tensor(name("post_ffw_norm.weight"), f32, &[dim])?;
            }
            w.tensor(name("ffn_norm.weight"), f32, &[dim])?;
            if self.arch == Arch::Phi3 {
                w.tensor(name("ffn_up.weight"), base, &[dim, 2 * ffn])?;
            } else {
                w.tensor(name("ffn_gate.weight"), base, &[dim, ffn])?;
                w.tensor(name("ffn_up.weight"), base, &[dim, ffn])?;
            }
            w.tensor(name("ffn_down.weight"), fine, &[ffn, dim])?;
        }
        w.tensor("output_norm.weight", f32, &[dim])?;
        if !self.tied {
            w.tensor("output.weight", output, &[dim, vocab])?;
        }
        Ok(())
    }

    fn base_type(&self) -> WeightType {
        match self.mix {
            Mix::All(ty) | Mix::Mostly(ty) => ty,
            Mix::Q4KM => WeightType::Q4_K,
        }
    }

    fn output_type(&self) -> WeightType {
        match self.mix {
            Mix::All(ty) => ty,
            Mix::Mostly(_) | Mix::Q4KM => WeightType::Q6_K,
        }
    }

    /// The first and last eighth of the layers, and every third between.
    fn finer_type(&self, layer: u32) -> WeightType {
        let eighth = self.layers / 8;
        let chosen = layer < eighth
            || layer >= 7 * self.layers / 8
            || (layer.saturating_sub(eighth)) % 3 == 2;
        match self.mix {
            Mix::Q4KM if chosen => WeightType::Q6_K,
            _ => self.base_type(),
        }
    }

    pub fn fill(&self, t: &Planned, out: &mut dyn Write) -> io::Result<()> {
        let cols = t.dims.first().copied().unwrap_or(0);
        let values: u64 = t.dims.iter().product();
        if let Some(list) = self.divisors(&t.name, cols) {
            return list
                .iter()
                .try_for_each(|v| out.write_all(&v.to_le_bytes()));
        }
        let look = self.look(&t.name, cols);
        weights::fill(t.ty, values, look, stream(self.seed, &t.name), out)
    }

    /// Frequencies are divided by these; made of exact steps, so that no `pow` is involved.
    fn divisors(&self, name: &str, count: u64) -> Option<Vec<f32>> {
        let ramp = |from: u64, top: f32| -> Vec<f32> {
            let steps = (count - from).max(1) as f32;
            (0..count)
                .map(|i| 1.0 + (top - 1.0) * (i.saturating_sub(from) as f32 / steps))
                .collect()
        };
        match (name, self.rope) {
            ("rope_freqs.weight", Rope::Llama3 { factor }) => Some(ramp(count / 2, factor)),
            ("rope_factors_long.weight", _) => Some(ramp(0, 16.0)),
            ("rope_factors_short.weight", _) => Some(ramp(0, 2.0)),
            _ => None,
        }
    }

    /// Spreads that keep activations near 1 and logits a few units apart.
    fn look(&self, name: &str, cols: u64) -> Look {
        let unit = 1.0 / (cols as f32).sqrt();
        // A tied embedding must be small beside what the layers add, or every token would predict
        // itself; the output norm makes up for it. Gemma multiplies its embedding by √dim.
        let faint = match self.arch {
            _ if !self.tied => 2.0,
            Arch::Gemma3 => 0.25,
            _ => 1.0,
        };
        if name == "output_norm.weight" && self.tied {
            Look::Between(1.0 / faint, 3.0 / faint)
        } else if name.ends_with("norm.weight") {
            Look::Between(0.5, 1.5)
        } else if name.ends_with(".bias") {
            Look::Between(-0.5, 0.5)
        } else if name == "output.weight" {
            Look::Spread(2.0 * unit)
        } else if name == "token_embd.weight" && self.tied {
            Look::Spread(faint * unit)
        } else if name == "token_embd.weight" {
            Look::Spread(1.0)
        } else if name.contains("attn_q") || name.contains("attn_k") {
            // Attention that prefers some tokens to others.
            Look::Spread(1.5 * unit)
        } else {
            Look::Spread(unit)
        }
    }
}
