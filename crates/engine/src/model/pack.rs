//! The packed copy of a model's weights: a cache file that is mapped like the model itself.
//!
//! Matrix products read strips of 16 rows ([`haversack_kernels::format::packed`]); a GGUF file has rows
//! one after the other. Packing once, into a file, makes decoding run at memory speed and costs disk: about the size of
//! the model, written at first use. The pages are clean and shared
//! between processes, so it costs no private memory. Without it (`Repack::Off`, no room, no right to write)
//! each strip is packed on the fly, with the same results bit for bit and a slower decode.
//!
//! ```text
//! 0     magic "HAVERPAK", u32 version, u32 reserved, u64 total bytes, 32 bytes key
//! 4096  matrices, each at the multiple of 64 that `Weight::packed` says
//! ```
//! The file appears under its final name only when it is complete (temporary name, fsync, rename).
//! The key covers the content of the model and the layout, so a stale copy is never used.

use crate::model::weights::{PACKED_START, Weights};
use haversack_kernels::format::packed::{STRIP, pack_strip, strip_bytes};
use haversack_kernels::threads::{ThreadPool, chunks_mut};
use haversack_memory::file::{FileMap, MapAdvice};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"HAVERPAK";
/// Raised whenever the layout of `format::packed` changes.
const VERSION: u32 = 1;
/// Bytes packed at a time: large enough for the disk, small enough not to matter in memory.
const BATCH_BYTES: usize = 2 << 20;
/// Smaller models are packed on the fly: their matrices stay in the CPU's cache anyway.
pub const WORTH_BYTES: usize = 8 << 20;

/// Maps the packed copy of `weights`, writing it first if `dir` does not have it.
/// `progress` is given (bytes done, bytes in all).
pub fn open_or_write(
    weights: &Weights,
    key: &blake3::Hash,
    dir: &Path,
    pool: &ThreadPool,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<FileMap> {
    let path = dir.join(format!("{}.packed", &key.to_hex()[..32]));
    if let Ok(map) = open(weights, key, &path) {
        return Ok(map);
    }
    fs::create_dir_all(dir)?;
    weights.gguf.advise(MapAdvice::Sequential);
    let written = write(weights, key, &path, pool, progress);
    // The model goes on reading embeddings, or everything, from the same maps.
    weights.gguf.advise(MapAdvice::Normal);
    written?;
    open(weights, key, &path)
}

fn open(weights: &Weights, key: &blake3::Hash, path: &Path) -> io::Result<FileMap> {
    let map = FileMap::open(path)?;
    let bytes = map.as_slice();
    if bytes.len() != weights.packed_bytes
        || bytes.get(..PACKED_START) != Some(&header(weights, key)[..])
    {
        return Err(io::Error::other("not the packed copy of this model"));
    }
    Ok(map)
}

fn write(
    weights: &Weights,
    key: &blake3::Hash,
    path: &Path,
    pool: &ThreadPool,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<()> {
    let temporary = Temporary(path.with_extension(format!("{}.tmp", std::process::id())));
    let total = weights.packed_bytes;
    let mut file = File::create(&temporary.0)?;
    file.write_all(&header(weights, key))?;
    let mut done = PACKED_START;
    let mut batch = Vec::new();
    for w in weights.matrices() {
        let strip = strip_bytes(w.ty, w.cols);
        let source = weights.source(w);
        let row_bytes = source.len() / w.rows;
        let strips = w.rows.div_ceil(STRIP);
        let at_once = (BATCH_BYTES / strip).max(1);
        file.seek(SeekFrom::Start(w.packed.start as u64))?;
        for first in (0..strips).step_by(at_once) {
            batch.resize(at_once.min(strips - first) * strip, 0);
            chunks_mut(pool, &mut batch, strip, &|i, out: &mut [u8]| {
                let row = (first + i) * STRIP;
                let rows = STRIP.min(w.rows - row);
                let from = &source[row * row_bytes..(row + rows) * row_bytes];
                pack_strip(w.ty, w.cols, from, rows, out);
            });
            file.write_all(&batch)?;
            done += batch.len();
            progress(done as u64, total as u64);
        }
    }
    file.set_len(total as u64)?;
    file.sync_all()?;
    fs::rename(&temporary.0, path)
}

fn header(weights: &Weights, key: &blake3::Hash) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PACKED_START);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    bytes.extend_from_slice(&(weights.packed_bytes as u64).to_le_bytes());
    bytes.extend_from_slice(key.as_bytes());
    bytes.resize(PACKED_START, 0);
    bytes
}

/// Removed when dropped; after the rename there is nothing left to remove.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
