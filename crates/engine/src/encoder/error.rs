//! Why there is no encoder, or no embedding.

use super::safetensors::SafeTensorsError;
use haversack_text::tokenizer::pieces::VocabError;
use std::path::PathBuf;

/// Ten times the largest vocabulary known; that of the encoder has 226 KiB.
pub(super) const VOCAB_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum EncoderError {
    #[error("{}: {error}", path.display())]
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    /// The file was read and has the wrong content.
    #[error("{}: {error}", path.display())]
    Refused {
        path: PathBuf,
        error: EncoderFileError,
    },
    #[error("no memory for the {0} bytes that embedding a text takes")]
    Memory(usize),
    #[error("the encoder gave no direction: its weights are zero or not finite numbers")]
    NoDirection,
}

/// What is wrong with a file of the encoder.
#[derive(Debug, thiserror::Error)]
pub enum EncoderFileError {
    #[error(transparent)]
    SafeTensors(#[from] SafeTensorsError),
    #[error(transparent)]
    Vocabulary(#[from] VocabError),
    #[error("{0} bytes of vocabulary; accepted: at most {VOCAB_BYTES_MAX}")]
    VocabularyBytes(usize),
    #[error("there is no piece {0}")]
    MissingPiece(&'static str),
    #[error("{pieces} pieces, but the weights have vectors for {vectors}")]
    PieceCount { pieces: usize, vectors: usize },
    #[error("tensor {0} is missing")]
    MissingTensor(String),
    #[error("tensor {name} is {dtype:.80}, F32 is needed")]
    TensorType { name: String, dtype: String },
    #[error("tensor {name:.80} has the shape {shape:?}, {wanted} is needed")]
    TensorShape {
        name: String,
        shape: Vec<usize>,
        wanted: String,
    },
}
