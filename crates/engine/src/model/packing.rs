//! Making a packed model of a GGUF file: one file in place of the model and its packed copy ([`haversack_gguf::packed`]).
//!
//! This writes; it removes nothing and gives no file its name. The caller compares what was written with the GGUF
//! file ([`Gguf::read_original`]) before anything else.

use super::config::Config;
use super::content::ContentRecord;
use super::error::{LoadError, LoadResult};
use super::weights::Weights;
use super::{content, fingerprint, pack};
use haversack_gguf::packed::{self, PackedWriter};
use haversack_gguf::{Gguf, OriginalFile, OriginalPiece};
use haversack_kernels::threads::ThreadPool;
use haversack_memory::MapAdvice;
use haversack_text::tokenizer::Tokenizer;
use std::fs::File;
use std::io;
use std::path::Path;

/// A GGUF file that can be packed.
pub struct Packing {
    weights: Weights,
    fingerprint: blake3::Hash,
    content: blake3::Hash,
    pool: ThreadPool,
}

impl Packing {
    /// Opens and reads a GGUF file. One that does not load is refused, and so is one that is not what it was when it was
    /// first used, as `known`, the folder of packed copies, has it.
    pub fn open(path: &Path, known: Option<&Path>, threads: usize) -> LoadResult<Packing> {
        let open = || {
            let gguf = Gguf::open(path)?;
            if gguf.packed().is_some() {
                return Err(LoadError::field("format", "it is packed already"));
            }
            if gguf.parts() > 1 {
                let what = format!(
                    "is {}; a set of files is not packed, one GGUF file is",
                    gguf.parts()
                );
                return Err(LoadError::field("split.count", what));
            }
            let config = Config::read(&gguf, None)?;
            Tokenizer::from_gguf(&gguf)?;
            content::refuse_zeros(&gguf)?;
            let pool = ThreadPool::new(threads.max(1));
            let mut record = known.map_or(ContentRecord::default(), |dir| {
                ContentRecord::read(&gguf, dir)
            });
            let content = record.check_all(&gguf, &pool)?;
            let fingerprint = fingerprint::fingerprint(&gguf);
            Ok(Packing {
                weights: Weights::find(gguf, &config)?,
                fingerprint,
                content,
                pool,
            })
        };
        open().map_err(|error: LoadError| error.at(path))
    }

    pub fn fingerprint(&self) -> &blake3::Hash {
        &self.fingerprint
    }

    /// Of the packed model.
    pub fn file_bytes(&self) -> u64 {
        let rows = self.weights.packed_rows();
        let packed: usize = rows.iter().map(|rows| rows.range.len()).sum();
        let rest = self.weights.gguf.file_bytes() - self.weights.bytes_per_token() as u64;
        packed::file_bytes(rows.len(), packed as u64, rest)
    }

    /// Writes the packed model. `sha256` is that of the GGUF file; `progress` is given (bytes done, bytes in all).
    pub fn write(
        &self,
        file: &mut File,
        sha256: [u8; 32],
        progress: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        let (weights, gguf) = (&self.weights, &self.weights.gguf);
        let total = self.file_bytes();
        let mut done = packed::START as u64;
        gguf.advise(MapAdvice::Sequential);
        let mut out = PackedWriter::new(file)?;
        let rows = weights.packed_rows();
        for (w, rows) in weights.by_place().into_iter().zip(&rows) {
            pack::pack_matrix(weights, w, &self.pool, &mut |bytes| {
                out.write(bytes)?;
                done += bytes.len() as u64;
                progress(done, total);
                Ok(())
            })?;
            let number = |n: usize| u32::try_from(n).map_err(io::Error::other);
            out.end_matrix(number(rows.tensor)?, number(rows.rows)?);
        }
        let pieces = gguf.pieces(&|tensor| rows.iter().any(|rows| rows.tensor == tensor));
        for (i, piece) in pieces.into_iter().enumerate() {
            if let OriginalPiece::Bytes(bytes) = piece {
                out.write(bytes)?;
            }
            if i == 0 {
                // The metadata; all that follows are the others.
                out.end_rest();
            }
        }
        out.end_rest();
        let bytes = gguf.file_bytes();
        out.finish(&OriginalFile {
            bytes,
            sha256,
            fingerprint: *self.fingerprint.as_bytes(),
            content: *self.content.as_bytes(),
        })?;
        progress(total, total);
        Ok(())
    }
}
