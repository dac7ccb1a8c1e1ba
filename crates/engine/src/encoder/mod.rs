//! The sentence encoder: turns a text into a direction, so that texts about the same thing point the same way.
//!
//! It is all-MiniLM-L6-v2, read from its safetensors file: six layers of attention in both
//! directions, the mean over tokens, length 1. Sessions compare turns of a conversation with a question by it.
//!
//! ```no_run
//! use haversack_engine::encoder::{Encoder, EncoderOptions, similarity};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let encoder = Encoder::open("models/all-minilm-l6-v2".as_ref(), &EncoderOptions::default())?;
//! let (a, b) = (encoder.embed("My cat is called Minka.")?, encoder.embed("What is my cat's name?")?);
//! println!("{}", similarity(&a, &b));
//! let kept: [u8; 388] = a.store().to_bytes();
//! # Ok(())
//! # }
//! ```
//!
//! Invariants:
//!
//! - the same text gives the same bits on every thread count and backend;
//! - weights stay in the mapped file; what is copied out is the vocabulary's index and small vectors
//!   ([`Encoder::heap_bytes`]);
//! - one text is embedded at a time and other threads wait, so there is one scratch
//!   ([`Encoder::scratch_bytes`]). It is freed after each text, though an allocator may keep it;
//! - a text of any length is accepted and cut at [`TOKENS_MAX`] tokens.

mod embedding;
mod error;
mod forward;
pub mod safetensors;
mod weights;
pub mod wordpiece;

pub use embedding::{
    DIMENSIONS, Embedding, STORED_BYTES, StoredEmbedding, StoredError, similarity,
};
pub use error::{EncoderError, EncoderFileError};
pub use forward::TOKENS_MAX;

use haversack_kernels::Exec;
use haversack_kernels::cpu::Backend;
use haversack_kernels::format::{WeightType, packed::strip_bytes};
use haversack_kernels::threads::ThreadPool;
use haversack_memory::file::FileMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use weights::{EncoderWeights, INNER};
use wordpiece::WordPiece;

/// Files of the encoder's folder.
pub const WEIGHTS_FILE: &str = "model.safetensors";
pub const VOCAB_FILE: &str = "vocab.txt";

/// How the encoder computes; no choice changes a result.
#[derive(Clone, Copy, Debug)]
pub struct EncoderOptions {
    /// One leaves the other cores to the model that is answering.
    pub threads: usize,
    pub backend: Backend,
}

impl Default for EncoderOptions {
    fn default() -> EncoderOptions {
        EncoderOptions {
            threads: 1,
            backend: Backend::best(),
        }
    }
}

/// A sentence encoder, ready to run. May be shared among threads.
pub struct Encoder {
    file: FileMap,
    weights: EncoderWeights,
    pieces: WordPiece,
    backend: Backend,
    pool: ThreadPool,
    /// Held while a text is embedded: one scratch at a time.
    busy: Mutex<()>,
}

impl Encoder {
    /// Opens the folder that `haversack pull minilm` makes.
    pub fn open(dir: &Path, options: &EncoderOptions) -> Result<Encoder, EncoderError> {
        let (path, file) = map(dir, WEIGHTS_FILE)?;
        let weights = EncoderWeights::read(file.as_slice())
            .map_err(|error| EncoderError::Refused { path, error })?;
        let (path, vocab) = map(dir, VOCAB_FILE)?;
        let pieces = WordPiece::from_vocab(vocab.as_slice(), weights.vocab)
            .map_err(|error| EncoderError::Refused { path, error })?;
        Ok(Encoder {
            pieces,
            file,
            weights,
            backend: options.backend,
            pool: ThreadPool::new(options.threads),
            busy: Mutex::new(()),
        })
    }

    /// The direction of a text.
    pub fn embed(&self, text: &str) -> Result<Embedding, EncoderError> {
        let ids = self.tokens(text);
        // A panic leaves nothing half done.
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let len = forward::scratch_len(ids.len());
        let mut scratch = Vec::new();
        if scratch.try_reserve_exact(len).is_err() {
            return Err(EncoderError::Memory(len * size_of::<f32>()));
        }
        scratch.resize(len, 0.0);
        let exec = Exec {
            backend: self.backend,
            pool: &self.pool,
        };
        let file = self.file.as_slice();
        let mean = forward::forward(exec, &self.weights, file, &ids, &mut scratch);
        Embedding::of(mean).ok_or(EncoderError::NoDirection)
    }

    /// The ids that [`Encoder::embed`] sees.
    pub fn tokens(&self, text: &str) -> Vec<u32> {
        self.pieces.encode(text, TOKENS_MAX)
    }

    /// The most bytes that embedding a text takes: rows of [`TOKENS_MAX`] tokens, and for each
    /// thread the strip of weights it multiplies with (kept by the thread).
    pub fn scratch_bytes(&self) -> usize {
        forward::scratch_len(TOKENS_MAX) * size_of::<f32>()
            + self.pool.threads() * strip_bytes(WeightType::F32, INNER)
    }

    /// Bytes that an open encoder keeps on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.weights.heap_bytes() + self.pieces.heap_bytes()
    }
}

fn map(dir: &Path, name: &str) -> Result<(PathBuf, FileMap), EncoderError> {
    let path = dir.join(name);
    match FileMap::open(&path) {
        Ok(map) => Ok((path, map)),
        Err(error) => Err(EncoderError::File { path, error }),
    }
}
