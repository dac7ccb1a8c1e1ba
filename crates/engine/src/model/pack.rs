//! The packed copy of a model's weights: a cache file that is mapped like the model itself.
//!
//! Matrix products read strips of 16 rows ([`haversack_kernels::format::packed`]); a GGUF file has rows
//! one after the other. Packing once, into a file, makes decoding run at memory speed and costs disk: about the size of
//! the model, written at first use. The pages are clean and shared
//! between processes, so it costs no private memory. Without it (`Repack::Off`, no room, no right to write)
//! each strip is packed on the fly, with the same results bit for bit and a slower decode.
//!
//! ```text
//! 0     magic "HAVERPAK", u32 version, u32 matrices, u64 total bytes, 32 bytes key, 32 bytes content, 32 bytes BLAKE3 of the
//!       table, zero up to 4096
//! 4096  matrices, each at the multiple of 64 that `Weight::packed` says
//! …     the table: BLAKE3 of each matrix, 32 bytes each
//! ```
//! The file appears under its final name only when it is complete and was read back. The key covers the samples of the
//! fingerprint and the layout, so a stale copy is never used; the content is that of the whole model
//! ([`super::content`]). A copy whose stamp has changed since it was last verified is verified again, every byte; one that
//! is damaged is named, and packed again.

use super::content::stamp;
use crate::model::weights::{PACKED_START, Weight, Weights};
use haversack_kernels::format::packed::{STRIP, pack_strip, strip_bytes};
use haversack_kernels::threads::{ThreadPool, chunks_mut};
use haversack_memory::file::{FileMap, MapAdvice, UnfinishedFile};
use std::fs;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"HAVERPAK";
/// Raised whenever the layout of `format::packed` changes.
const VERSION: u32 = 2;
/// The header without its checksum, and where the content stands in it.
const HEAD_BYTES: usize = 24 + 3 * blake3::OUT_LEN;
const CONTENT_AT: usize = 24 + blake3::OUT_LEN;
/// Bytes packed at a time: large enough for the disk, small enough not to matter in memory.
const BATCH_BYTES: usize = 2 << 20;
/// Smaller models are packed on the fly: their matrices stay in the CPU's cache anyway.
pub const WORTH_BYTES: usize = 8 << 20;

/// Why a packed copy is not used.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Nothing is wrong with it; it has to be packed again.
    #[error("it was packed by another version, or for another model")]
    Stale,
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error(
        "its samples are those of {}, its content is not: one of both is damaged (haversack verify MODEL tells; without the packed copy this file is taken as it is)", packed.display()
    )]
    Content { packed: PathBuf },
}

/// What a packed copy is made of.
pub struct PackSource<'a> {
    pub weights: &'a Weights,
    /// The fingerprint.
    pub key: &'a blake3::Hash,
    pub content: &'a blake3::Hash,
    pub pool: &'a ThreadPool,
}

/// Where the packed copy of a model is.
pub fn path(dir: &Path, key: &blake3::Hash) -> PathBuf {
    dir.join(format!("{}.packed", &key.to_hex()[..32]))
}

impl PackSource<'_> {
    /// Maps the packed copy, writing it first if it is missing or damaged. `verified` is the stamp that it had when it was
    /// last verified. `progress` is given (bytes done, bytes in all).
    pub fn open_or_write(
        &self,
        dir: &Path,
        verified: &mut Option<String>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<FileMap, PackError> {
        let path = path(dir, self.key);
        match self.open(&path, verified) {
            Ok(map) => return Ok(map),
            Err(error @ PackError::Content { .. }) => return Err(error),
            Err(error @ PackError::Damaged(_)) => {
                log::warn!("{}: {error}; packing the weights again", path.display());
            }
            Err(error) => log::debug!("{}: {error}", path.display()),
        }
        let gguf = &self.weights.gguf;
        gguf.advise(MapAdvice::Sequential);
        let written = self.write(&path, progress);
        // The model goes on reading embeddings, or everything, from the same maps.
        gguf.advise(MapAdvice::Normal);
        written?;
        *verified = None;
        self.open(&path, verified)
    }

    /// Maps the copy and verifies it, unless its stamp is the one it was verified with.
    fn open(&self, path: &Path, verified: &mut Option<String>) -> Result<FileMap, PackError> {
        let stamp = stamp(path)?;
        let map = FileMap::open(path)?;
        self.check_header(&map, path)?;
        if verified.as_ref() != Some(&stamp) {
            self.verify(&map)?;
            *verified = Some(stamp);
        }
        Ok(map)
    }

    /// Verifies the copy in `dir`, if there is one, whatever its stamp is.
    pub fn check(&self, dir: &Path) -> Result<Option<PathBuf>, PackError> {
        let path = path(dir, self.key);
        match self.open(&path, &mut None) {
            Ok(_) => Ok(Some(path)),
            Err(PackError::Stale) => Ok(None),
            Err(PackError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn check_header(&self, map: &FileMap, path: &Path) -> Result<(), PackError> {
        let bytes = map.as_slice();
        let damaged = |what: &str| PackError::Damaged(what.into());
        let header = bytes
            .get(..PACKED_START)
            .ok_or(damaged("it is cut short"))?;
        if &header[..8] != MAGIC {
            return Err(damaged("it does not begin like a packed copy"));
        }
        // Version 1 had no checksums.
        if header[8..12] == 1u32.to_le_bytes() {
            return Err(PackError::Stale);
        }
        let (head, rest) = header.split_at(HEAD_BYTES);
        let (check, rest) = rest.split_at(blake3::OUT_LEN);
        if blake3::hash(head).as_bytes() != check || rest.iter().any(|&byte| byte != 0) {
            return Err(damaged("its header does not match its checksum"));
        }
        // From here on it is what was written.
        if bytes.len() != self.file_bytes() {
            let (found, whole) = (bytes.len(), self.file_bytes());
            return Err(damaged(&format!("it has {found} bytes of {whole}")));
        }
        let table = &bytes[self.weights.packed_bytes..];
        let expected = self.head(blake3::hash(table));
        if head == expected {
            return Ok(());
        }
        let content = CONTENT_AT..CONTENT_AT + blake3::OUT_LEN;
        if head[content.clone()] != expected[content] {
            let packed = path.to_owned();
            return Err(PackError::Content { packed });
        }
        if head[..CONTENT_AT] != expected[..CONTENT_AT] {
            return Err(PackError::Stale);
        }
        Err(damaged("its table does not match its checksum"))
    }

    fn verify(&self, map: &FileMap) -> Result<(), PackError> {
        let bytes = map.as_slice();
        let matrices: Vec<&Weight> = self.weights.matrices().collect();
        let (table, _) = bytes[self.weights.packed_bytes..].as_chunks::<{ blake3::OUT_LEN }>();
        let mut is_whole = vec![false; matrices.len()];
        chunks_mut(self.pool, &mut is_whole, 1, &|i, out: &mut [bool]| {
            let matrix = bytes.get(matrices[i].packed.clone()).unwrap_or_default();
            out[0] = table.get(i) == Some(blake3::hash(matrix).as_bytes());
        });
        match is_whole.iter().position(|whole| !whole) {
            Some(i) => Err(PackError::Damaged(format!(
                "matrix {i} of {} does not match its checksum",
                matrices.len()
            ))),
            None => Ok(()),
        }
    }

    fn file_bytes(&self) -> usize {
        self.weights.packed_bytes + self.weights.matrices().count() * blake3::OUT_LEN
    }

    fn head(&self, table: blake3::Hash) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PACKED_START);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.weights.matrices().count() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.file_bytes() as u64).to_le_bytes());
        bytes.extend_from_slice(self.key.as_bytes());
        bytes.extend_from_slice(self.content.as_bytes());
        bytes.extend_from_slice(table.as_bytes());
        bytes
    }

    fn write(&self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(), PackError> {
        let weights = self.weights;
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut unfinished = UnfinishedFile::create(path)?;
        let file = unfinished.file();
        let total = self.file_bytes() as u64;
        let mut done = PACKED_START;
        let mut table = Vec::new();
        for w in weights.matrices() {
            let mut hasher = blake3::Hasher::new();
            file.seek(SeekFrom::Start(w.packed.start as u64))?;
            pack_matrix(weights, w, self.pool, &mut |batch| {
                file.write_all(batch)?;
                hasher.update(batch);
                done += batch.len();
                progress(done as u64, total);
                Ok(())
            })?;
            table.extend_from_slice(hasher.finalize().as_bytes());
        }
        file.seek(SeekFrom::Start(weights.packed_bytes as u64))?;
        file.write_all(&table)?;
        let mut header = self.head(blake3::hash(&table));
        let check = blake3::hash(&header);
        header.extend_from_slice(check.as_bytes());
        header.resize(PACKED_START, 0);
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&header)?;
        Ok(unfinished.place(path)?)
    }
}

/// Packs a matrix of a GGUF file and hands it on, several strips at a time.
pub(super) fn pack_matrix(
    weights: &Weights,
    w: &Weight,
    pool: &ThreadPool,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let strip = strip_bytes(w.ty, w.cols);
    let source = weights.source(w);
    let row_bytes = source.len() / w.rows;
    let strips = w.rows.div_ceil(STRIP);
    let at_once = (BATCH_BYTES / strip).max(1);
    let mut batch = Vec::new();
    for first in (0..strips).step_by(at_once) {
        batch.resize(at_once.min(strips - first) * strip, 0);
        chunks_mut(pool, &mut batch, strip, &|i, out: &mut [u8]| {
            let row = (first + i) * STRIP;
            let rows = STRIP.min(w.rows - row);
            let from = &source[row * row_bytes..(row + rows) * row_bytes];
            pack_strip(w.ty, w.cols, from, rows, out);
        });
        sink(&batch)?;
    }
    Ok(())
}
