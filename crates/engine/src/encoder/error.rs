//! Why there is no encoder, or no embedding.

use std::path::PathBuf;

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
#[error("{0}")]
pub struct EncoderFileError(pub String);
