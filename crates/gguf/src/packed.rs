//! A packed model: one file in place of a GGUF file and the packed copy of its matrices.
//!
//! The matrices stand in it as products read them ([`haversack_kernels::format::packed`]), which moves bits and drops
//! none; all other bytes of the GGUF file, its metadata, vectors and padding, stand behind them as they were. So the GGUF
//! file can be written back bit for bit, and nothing is in the file twice. Bytes: docs/reference/packed-models.md.
//!
//! ```text
//! 0      head: sizes, what the GGUF file was, checksums
//! 4096   matrices, each a multiple of 64 bytes
//!        metadata: the GGUF file up to its first tensor
//!        others: what stands between and behind the matrices in the GGUF file
//!        table: for each of these regions its tensor, bytes and BLAKE3
//! ```
//!
//! What opens is checked: head, table and metadata match their checksums, the regions are as long as tensors of their types
//! are, and with the others they make up the GGUF file. Whether the bytes of matrices and others are whole takes
//! reading all of them ([`PackedModel::check`]).

use super::error::{Problem, shown};
use super::extent::Extent;
use super::parse::Tensor;
use haversack_kernels::format::packed::{STRIP, packed_bytes, strip_bytes, unpack_strip};
use haversack_kernels::threads::{ThreadPool, chunks_mut};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;

/// What a packed model begins with.
pub const MAGIC: &[u8; 8] = b"HAVERMOD";
/// Raised whenever these bytes, or the layout of packed matrices, change.
const VERSION: u32 = 1;
/// Where matrices begin: behind a page for the head.
pub const START: usize = 4096;
/// The head without its checksum.
const HEAD_BYTES: usize = 160;
const HASH_BYTES: usize = blake3::OUT_LEN;
/// Of the table, for each region.
const ENTRY_BYTES: usize = 16 + HASH_BYTES;
/// In place of a tensor: metadata and others.
const NO_TENSOR: u32 = u32::MAX;
/// Bytes unpacked at a time.
const BATCH_BYTES: usize = 2 << 20;

/// What is known of the GGUF file that was packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginalFile {
    pub bytes: u64,
    pub sha256: [u8; 32],
    /// Of the model, by which sessions know it.
    pub fingerprint: [u8; 32],
    /// Of every byte, as known models are recorded.
    pub content: [u8; 32],
}

/// A piece of the GGUF file, in its order.
#[derive(Clone, Copy, Debug)]
pub enum OriginalPiece<'a> {
    Bytes(&'a [u8]),
    /// All bytes of this tensor.
    Tensor(usize),
}

/// Rows of a tensor that are packed together, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedRows {
    pub tensor: usize,
    pub rows: usize,
    pub range: Range<usize>,
}

/// What head and table say.
pub struct PackedModel {
    pub original: OriginalFile,
    /// In file order.
    pub matrices: Vec<PackedRows>,
    metadata: Range<usize>,
    others: Range<usize>,
    /// BLAKE3 of the matrices, the metadata and the others.
    hashes: Vec<[u8; HASH_BYTES]>,
    /// Where tensors are missing among the others, by place in the GGUF file, and how many bytes of tensors are
    /// missing before each.
    cuts: Vec<(Extent, u64)>,
    /// (tensor)
    is_packed: Vec<bool>,
}

impl PackedModel {
    /// Checks head, table and metadata of a file that begins with [`MAGIC`].
    pub(super) fn read(bytes: &[u8]) -> Result<PackedModel, Problem> {
        let damaged = |what: &str| Problem::Damaged(what.into());
        let header = bytes.get(..START).ok_or(damaged("it is cut short"))?;
        let (head, rest) = header.split_at(HEAD_BYTES);
        let (check, zeros) = rest.split_at(HASH_BYTES);
        let version = number(&head[8..12]);
        if version != u64::from(VERSION) {
            return Err(Problem::value("the version of a packed model", version, 1));
        }
        if blake3::hash(head).as_bytes() != check || zeros.iter().any(|&byte| byte != 0) {
            return Err(damaged("its head does not match its checksum"));
        }
        // From here on the head is what was written.
        let (regions, whole) = (number(&head[12..16]) as usize, number(&head[16..24]));
        if whole != bytes.len() as u64 {
            let found = bytes.len();
            return Err(damaged(&format!("it has {found} bytes of {whole}")));
        }
        let table_at = regions
            .checked_mul(ENTRY_BYTES)
            .and_then(|table| bytes.len().checked_sub(table))
            .filter(|&at| at >= START && regions >= 2)
            .ok_or(damaged("its table does not fit"))?;
        let table = &bytes[table_at..];
        let hash_at = |at: usize| -> [u8; HASH_BYTES] {
            let mut hash = [0; HASH_BYTES];
            hash.copy_from_slice(&head[at..at + HASH_BYTES]);
            hash
        };
        if blake3::hash(table).as_bytes() != &hash_at(128) {
            return Err(damaged("its table does not match its checksum"));
        }
        let mut packed = PackedModel {
            original: OriginalFile {
                bytes: number(&head[24..32]),
                sha256: hash_at(32),
                fingerprint: hash_at(64),
                content: hash_at(96),
            },
            matrices: Vec::new(),
            metadata: 0..0,
            others: 0..0,
            hashes: Vec::new(),
            cuts: Vec::new(),
            is_packed: Vec::new(),
        };
        packed.read_table(table, table_at)?;
        let metadata = &bytes[packed.metadata.clone()];
        if blake3::hash(metadata).as_bytes() != &packed.hashes[packed.matrices.len()] {
            return Err(damaged("its metadata does not match its checksum"));
        }
        Ok(packed)
    }

    /// The regions, which lie one behind the other from [`START`] to `end`.
    fn read_table(&mut self, table: &[u8], end: usize) -> Result<(), Problem> {
        let damaged = || Problem::Damaged("its table is not one of a packed model".into());
        let (entries, _) = table.as_chunks::<ENTRY_BYTES>();
        let mut at = START;
        for (i, entry) in entries.iter().enumerate() {
            let (tensor, rows) = (number(&entry[..4]), number(&entry[4..8]));
            let bytes = usize::try_from(number(&entry[8..16])).map_err(|_| damaged())?;
            let region_end = at.checked_add(bytes).filter(|&region| region <= end);
            let range = at..region_end.ok_or_else(damaged)?;
            at = range.end;
            let is_matrix = tensor != u64::from(NO_TENSOR);
            match entries.len() - i {
                1 | 2 if is_matrix || rows != 0 => return Err(damaged()),
                1 => self.others = range,
                2 => self.metadata = range,
                _ if !is_matrix => return Err(damaged()),
                _ => self.matrices.push(PackedRows {
                    tensor: tensor as usize,
                    rows: rows as usize,
                    range,
                }),
            }
            let mut hash = [0; HASH_BYTES];
            hash.copy_from_slice(&entry[16..]);
            self.hashes.push(hash);
        }
        if at == end { Ok(()) } else { Err(damaged()) }
    }

    /// The GGUF file up to its first tensor.
    pub(super) fn metadata<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.metadata.clone()).unwrap_or_default()
    }

    /// Takes the tensors of the metadata: refuses regions that are not theirs, or do not make up the GGUF file with the
    /// others.
    pub(super) fn place(&mut self, tensors: &[Tensor]) -> Result<(), Problem> {
        let damaged = |what: &str| Problem::Damaged(what.into());
        let starts = tensors.iter().map(|tensor| tensor.extent.start());
        let first = starts.min().unwrap_or(self.original.bytes);
        if first != self.metadata.len() as u64 {
            return Err(damaged("its tensors do not begin where its metadata ends"));
        }
        let mut rows_found = vec![0usize; tensors.len()];
        for matrix in &self.matrices {
            let tensor = tensors.get(matrix.tensor);
            let tensor = tensor.ok_or(damaged("its table names a tensor that it does not have"))?;
            if matrix.rows == 0
                || packed_bytes(tensor.ty, matrix.rows, tensor.cols()) != matrix.range.len()
            {
                let name = shown(tensor.name.as_bytes());
                return Err(damaged(&format!(
                    "the packed size of tensor {name} is not that of its shape"
                )));
            }
            let found = &mut rows_found[matrix.tensor];
            *found = found.saturating_add(matrix.rows);
        }
        let mut cut: Vec<&Tensor> = Vec::new();
        for (tensor, rows) in tensors.iter().zip(&rows_found) {
            if *rows != 0 && *rows != tensor.rows() {
                let name = shown(tensor.name.as_bytes());
                return Err(damaged(&format!(
                    "tensor {name} is not there with all rows"
                )));
            }
            cut.extend((*rows != 0).then_some(tensor));
        }
        self.is_packed = rows_found.iter().map(|&rows| rows != 0).collect();
        cut.sort_by_key(|tensor| tensor.extent.start());
        // Tensors do not overlap and lie in the GGUF file, so the sum fits.
        let mut missing = 0;
        for tensor in cut {
            self.cuts.push((tensor.extent, missing));
            missing += tensor.extent.len();
        }
        let others = self.original.bytes - first - missing;
        if others != self.others.len() as u64 {
            return Err(damaged("it does not hold the whole of its GGUF file"));
        }
        Ok(())
    }

    /// Bytes of the GGUF file that were not packed; `None` where some of them were.
    pub(super) fn stored<'a>(&self, bytes: &'a [u8], extent: Extent) -> Option<&'a [u8]> {
        let metadata = self.metadata.len() as u64;
        if extent.end() <= metadata {
            return extent.slice(self.metadata(bytes));
        }
        let next = self
            .cuts
            .partition_point(|(cut, _)| cut.end() <= extent.start());
        let missing = match self.cuts.get(next) {
            Some((cut, _)) if cut.overlaps(extent) => return None,
            Some((_, missing)) => *missing,
            None => self
                .cuts
                .last()
                .map_or(0, |(cut, before)| before + cut.len()),
        };
        let start = extent.start().checked_sub(metadata)?.checked_sub(missing)?;
        let others = bytes.get(self.others.clone())?;
        Extent::new(start, extent.len())?.slice(others)
    }

    /// Reads every byte and compares it with the checksums.
    pub(super) fn check(
        &self,
        bytes: &[u8],
        tensors: &[Tensor],
        pool: &ThreadPool,
    ) -> Result<(), Problem> {
        let matrices = self.matrices.iter().map(|matrix| &matrix.range);
        let regions: Vec<&Range<usize>> = matrices.chain([&self.metadata, &self.others]).collect();
        let mut is_whole = vec![false; regions.len()];
        chunks_mut(pool, &mut is_whole, 1, &|i, out: &mut [bool]| {
            let region = bytes.get(regions[i].clone()).unwrap_or_default();
            out[0] = blake3::hash(region).as_bytes() == &self.hashes[i];
        });
        let Some(bad) = is_whole.iter().position(|whole| !whole) else {
            return Ok(());
        };
        let tensor = self.matrices.get(bad).map(|matrix| &tensors[matrix.tensor]);
        let what = match tensor {
            Some(tensor) => format!(
                "tensor {} does not match its checksum",
                shown(tensor.name.as_bytes())
            ),
            None if bad == self.matrices.len() => "its metadata does not match its checksum".into(),
            None => "its tensors that are not packed do not match their checksum".into(),
        };
        Err(Problem::Damaged(what))
    }

    pub(super) fn holds(&self, tensor: usize) -> bool {
        self.is_packed.get(tensor).is_some_and(|&packed| packed)
    }

    /// The rows of a packed tensor as the GGUF file had them, several whole rows at a time.
    pub(super) fn read_rows<E>(
        &self,
        bytes: &[u8],
        (index, tensor): (usize, &Tensor),
        pool: &ThreadPool,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (ty, cols) = (tensor.ty, tensor.cols());
        let (strip, row_bytes) = (strip_bytes(ty, cols), ty.row_bytes(cols).unwrap_or(0));
        let rows_at_once = (BATCH_BYTES / strip.max(1)).max(1) * STRIP;
        let mut batch = Vec::new();
        for matrix in self.matrices.iter().filter(|matrix| matrix.tensor == index) {
            let strips = bytes.get(matrix.range.clone()).unwrap_or_default();
            for first in (0..matrix.rows).step_by(rows_at_once) {
                let rows = rows_at_once.min(matrix.rows - first);
                batch.resize(rows * row_bytes, 0);
                chunks_mut(
                    pool,
                    &mut batch,
                    STRIP * row_bytes,
                    &|i, rows: &mut [u8]| {
                        let from = &strips[(first / STRIP + i) * strip..][..strip];
                        unpack_strip(ty, cols, from, rows.len() / row_bytes, rows);
                    },
                );
                sink(&batch)?;
            }
        }
        Ok(())
    }
}

/// Writes a packed model: regions in their order, then [`PackedWriter::finish`].
pub struct PackedWriter<W> {
    out: W,
    table: Vec<u8>,
    /// Of the region that is being written.
    hasher: blake3::Hasher,
    bytes: u64,
    /// In the file so far.
    end: u64,
}

impl<W: Write + Seek> PackedWriter<W> {
    pub fn new(mut out: W) -> io::Result<PackedWriter<W>> {
        out.seek(SeekFrom::Start(START as u64))?;
        Ok(PackedWriter {
            out,
            table: Vec::new(),
            hasher: blake3::Hasher::new(),
            bytes: 0,
            end: START as u64,
        })
    }

    /// More bytes of the region.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// The region is whole: these rows of this tensor.
    pub fn end_matrix(&mut self, tensor: u32, rows: u32) {
        self.end_region(tensor, rows);
    }

    /// The region is whole: the metadata, or after it the others.
    pub fn end_rest(&mut self) {
        self.end_region(NO_TENSOR, 0);
    }

    fn end_region(&mut self, tensor: u32, rows: u32) {
        self.table.extend_from_slice(&tensor.to_le_bytes());
        self.table.extend_from_slice(&rows.to_le_bytes());
        self.table.extend_from_slice(&self.bytes.to_le_bytes());
        self.table
            .extend_from_slice(self.hasher.finalize().as_bytes());
        self.hasher.reset();
        self.end += self.bytes;
        self.bytes = 0;
    }

    /// Writes table and head. Returns the bytes of the file.
    pub fn finish(mut self, original: &OriginalFile) -> io::Result<u64> {
        self.out.write_all(&self.table)?;
        let whole = self.end + self.table.len() as u64;
        let regions = (self.table.len() / ENTRY_BYTES) as u32;
        let mut head = Vec::with_capacity(START);
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&regions.to_le_bytes());
        head.extend_from_slice(&whole.to_le_bytes());
        head.extend_from_slice(&original.bytes.to_le_bytes());
        head.extend_from_slice(&original.sha256);
        head.extend_from_slice(&original.fingerprint);
        head.extend_from_slice(&original.content);
        head.extend_from_slice(blake3::hash(&self.table).as_bytes());
        let check = blake3::hash(&head);
        head.extend_from_slice(check.as_bytes());
        head.resize(START, 0);
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&head)?;
        Ok(whole)
    }
}

/// Bytes of a packed model with matrices of this many bytes, and this many bytes of metadata and others.
pub fn file_bytes(matrices: usize, matrix_bytes: u64, rest_bytes: u64) -> u64 {
    START as u64 + matrix_bytes + rest_bytes + ((matrices + 2) * ENTRY_BYTES) as u64
}

/// A little-endian number of at most 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}
