//! Where the weights lie: names and shapes of every tensor, checked once at load.
//!
//! Matrices stay where they are, in the mapped model file, in its packed copy or in the packed model; a [`Weight`] only
//! says where. Small vectors (norms, biases) are copied out as f32. Fused tensors (phi3's qkv and
//! gate/up) are seen as the row ranges they are made of, so that `forward` knows one shape only.

use super::config::{Arch, Config};
use super::error::{LoadError, LoadResult};
use super::keys::{missing, vector_bytes};
use super::residence::Residence;
use haversack_gguf::packed::{PackedRows, START};
use haversack_gguf::{Gguf, Tensor};
use haversack_kernels::format::WeightType;
use haversack_kernels::format::gguf::unpack_row;
use haversack_kernels::format::packed::{
    ALIGN, STRIP, packed_bytes, strip_bytes, unpack_packed_row,
};
use haversack_kernels::matmul::{Matrix, MatrixLayout};
use haversack_memory::file::{FileMap, MapAdvice};
use std::collections::HashMap;
use std::ops::Range;

/// A matrix of `rows` outputs by `cols` inputs: where its bytes lie.
#[derive(Clone, Debug)]
pub struct Weight {
    pub ty: WeightType,
    pub rows: usize,
    pub cols: usize,
    /// Index of the tensor, and which of its bytes.
    tensor: usize,
    bytes: Range<usize>,
    /// Where it lies in the packed copy.
    pub(super) packed: Range<usize>,
}

pub struct LayerWeights {
    pub attn_norm: Vec<f32>,
    pub q: Weight,
    pub k: Weight,
    pub v: Weight,
    pub q_bias: Option<Vec<f32>>,
    pub k_bias: Option<Vec<f32>>,
    pub v_bias: Option<Vec<f32>>,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub o: Weight,
    pub o_bias: Option<Vec<f32>>,
    pub post_attn_norm: Option<Vec<f32>>,
    pub ffn_norm: Vec<f32>,
    pub gate: Weight,
    pub up: Weight,
    pub down: Weight,
    pub post_ffn_norm: Option<Vec<f32>>,
}

impl LayerWeights {
    fn matrices(&self) -> [&Weight; 7] {
        [
            &self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down,
        ]
    }
}

pub struct Weights {
    pub(super) gguf: Gguf,
    /// The packed copy of a GGUF file.
    pub(super) packed: Option<FileMap>,
    embedding: Weight,
    pub layers: Vec<LayerWeights>,
    pub output_norm: Vec<f32>,
    pub output: Weight,
    /// Bytes of the packed copy.
    pub(super) packed_bytes: usize,
    /// Prefetch the next layer while one is computed.
    prefetch: bool,
}

/// Where matrices begin in the packed copy, as in a packed model: behind a page for its header.
pub const PACKED_START: usize = START;

impl Weights {
    pub fn find(gguf: Gguf, config: &Config) -> LoadResult<Weights> {
        let mut finder = Finder::new(&gguf);
        let embedding = finder.matrix("token_embd.weight", config.vocab, config.dim)?;
        let output_norm = finder.vector("output_norm.weight", config.dim)?;
        let output = match gguf.tensor("output.weight") {
            Some(_) => {
                // The embedding itself is read row by row from the model file: no packed copy.
                finder.packed_end = PACKED_START;
                finder.matrix("output.weight", config.vocab, config.dim)?
            }
            None => embedding.clone(),
        };
        let mut layers = Vec::new();
        for layer in 0..config.layers.len() {
            layers.push(finder.layer(config, layer)?);
        }
        finder.warn_unused(config);
        let packed_bytes = finder.packed_end;
        let weights = Weights {
            gguf,
            packed: None,
            embedding,
            layers,
            output_norm,
            output,
            packed_bytes,
            prefetch: false,
        };
        if let Some(packed) = weights.gguf.packed()
            && !packed.matrices.iter().eq(weights.packed_rows().iter())
        {
            let what =
                "are not packed as this version does; haversack unpack writes the GGUF file back";
            return Err(LoadError::field("matrices", what));
        }
        Ok(weights)
    }

    /// The file that products read packed matrices from: the packed copy, or the packed model.
    fn packed_map(&self) -> Option<&FileMap> {
        let own = || self.gguf.packed().and(self.gguf.maps().next());
        self.packed.as_ref().or_else(own)
    }

    /// Locks the file that products read, or prefetches layers from now on.
    pub fn reside(&mut self, residence: Residence) -> std::io::Result<()> {
        self.prefetch = residence == Residence::Prefetch;
        if residence != Residence::Locked {
            return Ok(());
        }
        match self.packed_map() {
            Some(map) => map.lock(),
            None => self.gguf.maps().try_for_each(FileMap::lock),
        }
    }

    /// Prefetches the layer after this one.
    pub fn prefetch_after(&self, layer: usize) {
        if !self.prefetch {
            return;
        }
        let next = self.layers.get(layer + 1);
        let of_layer = next.map(LayerWeights::matrices);
        let output = next.is_none().then_some(&self.output);
        for w in of_layer.into_iter().flatten().chain(output) {
            match self.packed_map() {
                Some(map) => {
                    // A hint: without it the layer is slow, not wrong.
                    let _ = map.advise(w.packed.clone(), MapAdvice::WillNeed);
                }
                None => {
                    let tensor = &self.gguf.tensors()[w.tensor];
                    self.gguf.prefetch(tensor, w.bytes.clone());
                }
            }
        }
    }

    /// Bytes a single token reads: every matrix once.
    pub fn bytes_per_token(&self) -> usize {
        self.matrices().map(|w| w.bytes.len()).sum()
    }

    /// Every matrix that is multiplied with, in the order of the packed copy's table.
    pub fn matrices(&self) -> impl Iterator<Item = &Weight> {
        let layers = self.layers.iter().flat_map(LayerWeights::matrices);
        std::iter::once(&self.output).chain(layers)
    }

    /// The same in the order of their places in the packed copy.
    pub(super) fn by_place(&self) -> Vec<&Weight> {
        let mut matrices: Vec<&Weight> = self.matrices().collect();
        matrices.sort_by_key(|w| w.packed.start);
        matrices
    }

    /// What a packed model has of each.
    pub(super) fn packed_rows(&self) -> Vec<PackedRows> {
        let matrices = self.by_place().into_iter();
        matrices
            .map(|w| PackedRows {
                tensor: w.tensor,
                rows: w.rows,
                range: w.packed.clone(),
            })
            .collect()
    }

    /// The bytes of a matrix as they lie in a GGUF file.
    pub fn source(&self, w: &Weight) -> &[u8] {
        &self.gguf.bytes(&self.gguf.tensors()[w.tensor])[w.bytes.clone()]
    }

    pub fn matrix(&self, w: &Weight) -> Matrix<'_> {
        let (layout, bytes) = match self.packed_map() {
            Some(map) => (MatrixLayout::Packed, &map.as_slice()[w.packed.clone()]),
            None => (MatrixLayout::Gguf, self.source(w)),
        };
        Matrix {
            ty: w.ty,
            rows: w.rows,
            cols: w.cols,
            layout,
            bytes,
        }
    }

    /// One row of the embedding as f32.
    pub fn embed(&self, token: usize, out: &mut [f32]) {
        self.row(&self.embedding, token, out);
    }

    /// One row of a matrix as f32, from the file that has it: a packed model has no other form of its matrices.
    pub fn row(&self, w: &Weight, row: usize, out: &mut [f32]) {
        let tensor = self.gguf.bytes(&self.gguf.tensors()[w.tensor]);
        if let Some(bytes) = tensor.get(w.bytes.clone()) {
            let row_bytes = bytes.len() / w.rows;
            unpack_row(w.ty, &bytes[row * row_bytes..][..row_bytes], out);
        } else if let Some(map) = self.packed_map() {
            let strip = strip_bytes(w.ty, w.cols);
            let strips = &map.as_slice()[w.packed.clone()];
            let from = &strips[row / STRIP * strip..][..strip];
            unpack_packed_row(w.ty, from, row % STRIP, out);
        }
    }
}

struct Finder<'a> {
    g: &'a Gguf,
    index: HashMap<&'a str, usize>,
    used: Vec<bool>,
    packed_end: usize,
}

impl<'a> Finder<'a> {
    fn new(g: &'a Gguf) -> Finder<'a> {
        let tensors = g.tensors().iter().enumerate();
        Finder {
            g,
            index: tensors.map(|(i, t)| (t.name.as_str(), i)).collect(),
            used: vec![false; g.tensors().len()],
            packed_end: PACKED_START,
        }
    }

    fn layer(&mut self, config: &Config, layer: usize) -> LoadResult<LayerWeights> {
        let c = &config.layers[layer];
        let dim = config.dim;
        let (q_rows, kv_rows) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let name = |part: &str| format!("blk.{layer}.{part}");

        let fused = name("attn_qkv.weight");
        let [q, k, v] = if self.g.tensor(&fused).is_some() {
            self.split(&fused, [q_rows, kv_rows, kv_rows], dim)?
        } else {
            [
                self.matrix(&name("attn_q.weight"), q_rows, dim)?,
                self.matrix(&name("attn_k.weight"), kv_rows, dim)?,
                self.matrix(&name("attn_v.weight"), kv_rows, dim)?,
            ]
        };
        let [gate, up] = if config.arch == Arch::Phi3 {
            self.split(&name("ffn_up.weight"), [c.ffn, c.ffn], dim)?
        } else {
            [
                self.matrix(&name("ffn_gate.weight"), c.ffn, dim)?,
                self.matrix(&name("ffn_up.weight"), c.ffn, dim)?,
            ]
        };
        let qk_norm = matches!(config.arch, Arch::Qwen3 | Arch::Gemma3);
        let post_norm = config.arch == Arch::Gemma3;
        Ok(LayerWeights {
            attn_norm: self.vector(&name("attn_norm.weight"), dim)?,
            q,
            k,
            v,
            q_bias: self.optional(&name("attn_q.bias"), q_rows)?,
            k_bias: self.optional(&name("attn_k.bias"), kv_rows)?,
            v_bias: self.optional(&name("attn_v.bias"), kv_rows)?,
            q_norm: self.when(qk_norm, &name("attn_q_norm.weight"), c.head_dim)?,
            k_norm: self.when(qk_norm, &name("attn_k_norm.weight"), c.head_dim)?,
            o: self.matrix(&name("attn_output.weight"), dim, q_rows)?,
            o_bias: self.optional(&name("attn_output.bias"), dim)?,
            post_attn_norm: self.when(post_norm, &name("post_attention_norm.weight"), dim)?,
            ffn_norm: self.vector(&name("ffn_norm.weight"), dim)?,
            gate,
            up,
            down: self.matrix(&name("ffn_down.weight"), dim, c.ffn)?,
            post_ffn_norm: self.when(post_norm, &name("post_ffw_norm.weight"), dim)?,
        })
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> LoadResult<Weight> {
        let [w] = self.split(name, [rows], cols)?;
        Ok(w)
    }

    /// One tensor as several matrices, one below the other.
    fn split<const N: usize>(
        &mut self,
        name: &str,
        rows: [usize; N],
        cols: usize,
    ) -> LoadResult<[Weight; N]> {
        let (index, t) = self.find(name)?;
        let total: usize = rows.iter().sum();
        if t.cols() != cols || t.rows() != total {
            let what = format!("is {} × {}, expected {cols} × {total}", t.cols(), t.rows());
            return Err(LoadError::field(name, what));
        }
        let Some(row_bytes) = t.ty.row_bytes(cols) else {
            let what = format!("rows of {cols} values are not whole blocks of {}", t.ty);
            return Err(LoadError::field(name, what));
        };
        let ty = t.ty;
        let mut start = 0;
        Ok(rows.map(|rows| {
            let bytes = start..start + rows * row_bytes;
            start = bytes.end;
            let at = self.packed_end;
            let packed = at..at + packed_bytes(ty, rows, cols);
            self.packed_end = packed.end.next_multiple_of(ALIGN);
            Weight {
                ty,
                rows,
                cols,
                tensor: index,
                bytes,
                packed,
            }
        }))
    }

    fn vector(&mut self, name: &str, len: usize) -> LoadResult<Vec<f32>> {
        let (_, t) = self.find(name)?;
        if t.cols() != len || t.rows() != 1 {
            let what = format!("is {} × {}, expected {len} values", t.cols(), t.rows());
            return Err(LoadError::field(name, what));
        }
        if t.ty.row_bytes(len).is_none() {
            let what = format!("{len} values are not whole blocks of {}", t.ty);
            return Err(LoadError::field(name, what));
        }
        let mut out = vec![0.0; len];
        unpack_row(t.ty, vector_bytes(self.g, t)?, &mut out);
        Ok(out)
    }

    fn optional(&mut self, name: &str, len: usize) -> LoadResult<Option<Vec<f32>>> {
        let present = self.g.tensor(name).is_some();
        self.when(present, name, len)
    }

    fn when(&mut self, needed: bool, name: &str, len: usize) -> LoadResult<Option<Vec<f32>>> {
        needed.then(|| self.vector(name, len)).transpose()
    }

    fn find(&mut self, name: &str) -> LoadResult<(usize, &'a Tensor)> {
        let index = *self.index.get(name).ok_or_else(|| missing(name))?;
        self.used[index] = true;
        Ok((index, &self.g.tensors()[index]))
    }

    /// A tensor of a layer that nothing reads means that the model computes something we do not.
    fn warn_unused(&self, config: &Config) {
        let arch = config.arch.name();
        let tensors = self.g.tensors().iter().zip(&self.used);
        let unused = tensors.filter(|(_, used)| !**used);
        for (t, _) in unused.filter(|(t, _)| t.name.starts_with("blk.")) {
            let name = t.name.escape_debug();
            log::warn!("tensor {name} is unknown in architecture {arch} and is ignored");
        }
    }
}
