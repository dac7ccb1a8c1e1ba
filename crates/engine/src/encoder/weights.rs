//! The encoder's tensors: matrices where they lie in the mapped file, small vectors copied out.
//!
//! The shape is that of all-MiniLM-L6-v2 and no other: the file does not say how many heads there
//! are, so a model of another shape is refused. Only the vocabulary may have any size.

use super::embedding::DIMENSIONS;
use super::error::EncoderFileError;
use super::safetensors::{SafeTensor, SafeTensorsHeader};
use haversack_kernels::format::WeightType;
use haversack_kernels::matmul::{Matrix, MatrixLayout};
use std::ops::Range;

pub(super) const LAYERS: usize = 6;
pub(super) const HEADS: usize = 12;
pub(super) const HEAD: usize = DIMENSIONS / HEADS;
/// Between the two products of a feed-forward.
pub(super) const INNER: usize = 4 * DIMENSIONS;
/// The model has a vector for that many positions; texts are cut at half of them.
const POSITIONS: usize = 512;
const SEGMENTS: usize = 2;

/// `x · Wᵀ + b`.
pub(super) struct Linear {
    rows: usize,
    cols: usize,
    /// Of the file.
    bytes: Range<usize>,
    pub bias: Vec<f32>,
}

impl Linear {
    pub fn matrix<'a>(&self, file: &'a [u8]) -> Matrix<'a> {
        Matrix {
            ty: WeightType::F32,
            rows: self.rows,
            cols: self.cols,
            layout: MatrixLayout::Gguf,
            bytes: &file[self.bytes.clone()],
        }
    }
}

pub(super) struct Norm {
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
}

pub(super) struct Layer {
    pub q: Linear,
    pub k: Linear,
    pub v: Linear,
    pub out: Linear,
    pub out_norm: Norm,
    pub up: Linear,
    pub down: Linear,
    pub down_norm: Norm,
}

pub(super) struct EncoderWeights {
    /// (piece, dim), of the file
    words: Range<usize>,
    pub vocab: usize,
    /// (position, dim), of the file
    positions: Range<usize>,
    /// The vector of the only segment.
    segment: Vec<f32>,
    pub norm: Norm,
    pub layers: Vec<Layer>,
}

impl EncoderWeights {
    pub fn read(file: &[u8]) -> Result<EncoderWeights, EncoderFileError> {
        let source = Source {
            header: SafeTensorsHeader::parse(file)?,
            file,
        };
        const D: usize = DIMENSIONS;
        let words = source.f32("embeddings.word_embeddings.weight")?;
        let &[vocab, D] = words.shape() else {
            return Err(wrong_shape(words, format!("[any, {D}]")));
        };
        let positions = "embeddings.position_embeddings.weight";
        let segments = source.floats("embeddings.token_type_embeddings.weight", &[SEGMENTS, D])?;
        let layers = (0..LAYERS).map(|i| {
            let at = format!("encoder.layer.{i}");
            let inner = |name: &str, rows, cols| source.linear(&format!("{at}.{name}"), rows, cols);
            Ok(Layer {
                q: inner("attention.self.query", D, D)?,
                k: inner("attention.self.key", D, D)?,
                v: inner("attention.self.value", D, D)?,
                out: inner("attention.output.dense", D, D)?,
                out_norm: source.norm(&format!("{at}.attention.output.LayerNorm"))?,
                up: inner("intermediate.dense", INNER, D)?,
                down: inner("output.dense", D, INNER)?,
                down_norm: source.norm(&format!("{at}.output.LayerNorm"))?,
            })
        });
        Ok(EncoderWeights {
            words: words.start..words.end,
            vocab,
            positions: source.bytes(positions, &[POSITIONS, D])?,
            segment: segments[..D].to_vec(),
            norm: source.norm("embeddings.LayerNorm")?,
            layers: layers.collect::<Result<_, EncoderFileError>>()?,
        })
    }

    /// The sum of the vectors of a piece, its position and the segment, before the norm.
    pub fn embed(&self, file: &[u8], piece: usize, position: usize, out: &mut [f32]) {
        let row = |at: &Range<usize>, i: usize| &file[at.clone()][i * DIMENSIONS * 4..];
        let (words, _) = row(&self.words, piece).as_chunks::<4>();
        let (places, _) = row(&self.positions, position).as_chunks::<4>();
        for (i, out) in out.iter_mut().enumerate() {
            let word = f32::from_le_bytes(words[i]) + self.segment[i];
            *out = word + f32::from_le_bytes(places[i]);
        }
    }

    /// Bytes copied out of the file.
    pub fn heap_bytes(&self) -> usize {
        let norm = 2 * DIMENSIONS;
        let linears = 5 * DIMENSIONS + INNER;
        4 * (DIMENSIONS + norm + LAYERS * (linears + 2 * norm)) + LAYERS * size_of::<Layer>()
    }
}

struct Source<'a> {
    header: SafeTensorsHeader<'a>,
    file: &'a [u8],
}

impl<'a> Source<'a> {
    fn f32(&self, name: &str) -> Result<&SafeTensor<'a>, EncoderFileError> {
        match self.header.get(name) {
            Some(tensor) if tensor.dtype == "F32" => Ok(tensor),
            Some(SafeTensor { dtype, .. }) => Err(EncoderFileError(format!(
                "tensor {name} is {dtype:.80}, F32 is needed"
            ))),
            None => Err(EncoderFileError(format!("tensor {name} is missing"))),
        }
    }

    fn bytes(&self, name: &str, shape: &[usize]) -> Result<Range<usize>, EncoderFileError> {
        let tensor = self.f32(name)?;
        if tensor.shape() != shape {
            return Err(wrong_shape(tensor, format!("{shape:?}")));
        }
        Ok(tensor.start..tensor.end)
    }

    fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, EncoderFileError> {
        let (values, _) = self.file[self.bytes(name, shape)?].as_chunks::<4>();
        Ok(values.iter().map(|v| f32::from_le_bytes(*v)).collect())
    }

    fn linear(&self, name: &str, rows: usize, cols: usize) -> Result<Linear, EncoderFileError> {
        Ok(Linear {
            rows,
            cols,
            bytes: self.bytes(&format!("{name}.weight"), &[rows, cols])?,
            bias: self.floats(&format!("{name}.bias"), &[rows])?,
        })
    }

    fn norm(&self, name: &str) -> Result<Norm, EncoderFileError> {
        Ok(Norm {
            weight: self.floats(&format!("{name}.weight"), &[DIMENSIONS])?,
            bias: self.floats(&format!("{name}.bias"), &[DIMENSIONS])?,
        })
    }
}

fn wrong_shape(tensor: &SafeTensor<'_>, wanted: String) -> EncoderFileError {
    let (name, shape) = (tensor.name, tensor.shape());
    EncoderFileError(format!(
        "tensor {name:.80} has the shape {shape:?}, {wanted} is needed"
    ))
}
