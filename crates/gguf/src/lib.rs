#![forbid(unsafe_code)]
//! Reading GGUF files, hostile ones included.
//!
//! A [`Gguf`] is a map of one file, or of all parts of a split set, and a table of checked ranges
//! over it. Opening reads the table and never the weights; nothing that is large in the file
//! (weights, vocabularies, templates) is copied.
//!
//! What it is not: it knows no architecture. Which keys a model needs, and which shapes its tensors
//! must have, is asked by others through typed getters whose errors name the key.
//!
//! A packed model ([`packed`]) opens like the GGUF file it was made of, except that [`Gguf::bytes`] has nothing for tensors
//! that are packed.
//!
//! Invariants, for every value this module hands out, whatever the file says:
//!
//! - a tensor's bytes lie inside its file, aligned as the file promises, as many as its shape and
//!   type need, shared with no other tensor; its row length is whole blocks; `rows × cols` fits;
//! - keys and tensor names are unique;
//! - an array's items are all there, so its iterators give exactly `len` items.
//!
//! Text in the file may be any bytes: [`Gguf::str`] checks UTF-8, arrays of strings are bytes.

pub mod error;
mod extent;
mod ggml;
pub mod packed;
mod parse;
mod split;
pub mod value;
pub mod write;

pub use error::{GgufError, Problem, shown};
pub use packed::{OriginalFile, OriginalPiece, PackedModel};
pub use parse::Tensor;
pub use value::{Array, Value, ValueType};
pub use write::{GgufWriter, Meta};

use extent::Extent;
use haversack_kernels::threads::ThreadPool;
use haversack_memory::{FileMap, MapAdvice};
use parse::Parsed;
use std::path::{Path, PathBuf};

/// A model file, or a set of them.
pub struct Gguf {
    /// In order; never empty. Metadata is that of the first.
    parts: Vec<Part>,
    tensors: Vec<Tensor>,
    /// Indices of `tensors`, by name.
    by_name: Vec<u32>,
}

struct Part {
    path: PathBuf,
    map: FileMap,
    table: Parsed,
    /// Where the pieces of a packed model are.
    packed: Option<PackedModel>,
}

impl Part {
    fn open(path: &Path) -> Result<Part, GgufError> {
        let map = FileMap::open(path).map_err(|e| Problem::Open(e).of(path))?;
        let bytes = map.as_slice();
        let read = || {
            if !bytes.starts_with(packed::MAGIC) {
                return Ok((Parsed::read(bytes, bytes.len() as u64)?, None));
            }
            let mut packed = PackedModel::read(bytes)?;
            let table = Parsed::read(packed.metadata(bytes), packed.original.bytes)?;
            packed.place(&table.tensors)?;
            Ok((table, Some(packed)))
        };
        let (table, packed) = read().map_err(|p: Problem| p.of(path))?;
        Ok(Part {
            path: path.to_path_buf(),
            map,
            table,
            packed,
        })
    }

    /// The bytes that the table is of.
    fn table_bytes(&self) -> &[u8] {
        let bytes = self.map.as_slice();
        let packed = self.packed.as_ref();
        packed.map_or(bytes, |packed| packed.metadata(bytes))
    }

    /// These bytes of the GGUF file; `None` where some of them were packed.
    fn stored(&self, extent: Extent) -> Option<&[u8]> {
        let bytes = self.map.as_slice();
        match &self.packed {
            Some(packed) => packed.stored(bytes, extent),
            None => extent.slice(bytes),
        }
    }

    /// Bytes of the GGUF file.
    fn file_bytes(&self) -> u64 {
        let packed = self.packed.as_ref();
        packed.map_or(self.map.len() as u64, |packed| packed.original.bytes)
    }

    /// What stands before its first tensor.
    fn header(&self) -> Extent {
        let starts = self.table.tensors.iter().map(|t| t.extent.start());
        let end = starts.min().unwrap_or_else(|| self.file_bytes());
        Extent::new(0, end).unwrap_or_default()
    }

    fn value(&self, key: &str) -> Option<Value<'_>> {
        let bytes = self.table_bytes();
        let entry = self.table.find(bytes, key.as_bytes())?;
        Some(entry.value(&self.path, bytes))
    }

    fn error(&self, problem: Problem) -> GgufError {
        problem.of(&self.path)
    }

    fn integer<T: TryFrom<i128>>(
        &self,
        key: &str,
        kind: &'static str,
        range: &str,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let Some(n) = value.integer() else {
            return Err(self.wrong_kind(key, value, kind));
        };
        let misfit = |_| self.error(Problem::value(shown(key.as_bytes()), n, range));
        T::try_from(n).map(Some).map_err(misfit)
    }

    fn wrong_kind(&self, key: &str, found: Value<'_>, accepted: &'static str) -> GgufError {
        self.error(Problem::Kind {
            key: shown(key.as_bytes()),
            found: found.kind_name(),
            accepted,
        })
    }
}

impl Gguf {
    /// Opens a file; of a split set any part will do, the others are found beside it.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, GgufError> {
        let parts = split::complete(Part::open(path.as_ref())?)?;
        let mut tensors = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let of_part = &part.table.tensors;
            let (field, count) = ("tensor_count", (tensors.len() + of_part.len()) as u64);
            let reserved = tensors.try_reserve(of_part.len());
            reserved.map_err(|_| part.error(Problem::Memory { field, count }))?;
            tensors.extend(of_part.iter().map(|t| Tensor {
                part: i as u32,
                ..t.clone()
            }));
        }
        let by_name = parse::sorted_names(&tensors).map_err(|p| parts[0].error(p))?;
        Ok(Gguf {
            parts,
            tensors,
            by_name,
        })
    }

    /// The first part.
    pub fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// 2 or 3.
    pub fn version(&self) -> u32 {
        self.parts[0].table.version
    }

    /// Files in the set; 1 when it is not split.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    pub fn part_paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.parts.iter().map(|p| p.path.as_path())
    }

    /// The maps themselves, for advice to the kernel and for fingerprints.
    pub fn maps(&self) -> impl ExactSizeIterator<Item = &FileMap> {
        self.parts.iter().map(|p| &p.map)
    }

    /// Tells the system how all files of the set will be read. A hint.
    pub fn advise(&self, advice: MapAdvice) {
        for map in self.maps() {
            let _ = map.advise(0..map.len(), advice);
        }
    }

    /// Each part's table: what stands before its first tensor.
    pub fn headers(&self) -> impl Iterator<Item = &[u8]> {
        let headers = self.parts.iter().map(|part| part.stored(part.header()));
        headers.map(Option::unwrap_or_default)
    }

    /// Of all parts together, as they are on the disk.
    pub fn file_bytes(&self) -> u64 {
        self.maps().map(|m| m.len() as u64).sum()
    }

    pub fn alignment(&self) -> u64 {
        self.parts[0].table.align
    }

    /// All metadata in file order.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        let part = &self.parts[0];
        let bytes = part.table_bytes();
        part.table.entries.iter().map(move |e| {
            // Keys were checked to be UTF-8.
            let key = std::str::from_utf8(e.key(bytes)).unwrap_or_default();
            (key, e.value(&part.path, bytes))
        })
    }

    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        self.parts[0].value(key)
    }

    /// Any integer type whose value fits.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.parts[0].integer(key, "u32", "0 to 4294967295")
    }

    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.parts[0].integer(key, "u64", "0 to 18446744073709551615")
    }

    /// f32 or f64; NaN and infinities are handed on.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::F32(v)) => Ok(Some(v)),
            Some(Value::F64(v)) => Ok(Some(v as f32)),
            Some(other) => Err(self.parts[0].wrong_kind(key, other, "f32")),
        }
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(v)),
            Some(other) => Err(self.parts[0].wrong_kind(key, other, "bool")),
        }
    }

    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Str(bytes)) => std::str::from_utf8(bytes).map(Some).map_err(|_| {
                let found = format!("\"{}\"", shown(bytes));
                self.problem(Problem::value(shown(key.as_bytes()), found, "valid UTF-8"))
            }),
            Some(other) => Err(self.parts[0].wrong_kind(key, other, "string")),
        }
    }

    pub fn array(&self, key: &str) -> Result<Option<Array<'_>>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(a)) => Ok(Some(a)),
            Some(other) => Err(self.parts[0].wrong_kind(key, other, "array")),
        }
    }

    /// An error about this file, for layers above that find its content wanting.
    pub fn problem(&self, problem: Problem) -> GgufError {
        self.parts[0].error(problem)
    }

    /// In file order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        let i = self
            .by_name
            .binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name))
            .ok()?;
        self.tensors.get(self.by_name[i] as usize)
    }

    /// Asks the system to bring in some bytes of a tensor. A hint: what fails is slow, not wrong.
    pub fn prefetch(&self, tensor: &Tensor, bytes: std::ops::Range<usize>) {
        if let Some(part) = self.parts.get(tensor.part as usize) {
            let first = part.map.as_slice().as_ptr().addr();
            let at = self.bytes(tensor).as_ptr().addr().saturating_sub(first);
            let range = at.saturating_add(bytes.start)..at.saturating_add(bytes.end);
            let _ = part.map.advise(range, MapAdvice::WillNeed);
        }
    }

    /// The weights of a tensor of *this* set, as they lie in the file; nothing where they are packed.
    pub fn bytes(&self, tensor: &Tensor) -> &[u8] {
        self.parts
            .get(tensor.part as usize)
            .and_then(|part| part.stored(tensor.extent))
            .unwrap_or_default()
    }

    /// What a packed model says of itself; `None` of a GGUF file.
    pub fn packed(&self) -> Option<&PackedModel> {
        self.parts[0].packed.as_ref()
    }

    /// Reads every byte of a packed model and compares it with its checksums. A GGUF file has none.
    pub fn check_packed(&self, pool: &ThreadPool) -> Result<(), GgufError> {
        let part = &self.parts[0];
        let checked = part
            .packed
            .as_ref()
            .map(|packed| packed.check(part.map.as_slice(), &part.table.tensors, pool));
        checked.unwrap_or(Ok(())).map_err(|p| part.error(p))
    }

    /// The first file as it was before it was packed, if these of its tensors are: pieces in their order, first what stands
    /// before all tensors.
    pub fn pieces(&self, is_packed: &dyn Fn(usize) -> bool) -> Vec<OriginalPiece<'_>> {
        let part = &self.parts[0];
        let tensors = part.table.tensors.iter().enumerate();
        let mut packed: Vec<(usize, Extent)> = tensors
            .filter(|(i, _)| is_packed(*i))
            .map(|(i, tensor)| (i, tensor.extent))
            .collect();
        packed.sort_by_key(|(_, extent)| extent.start());
        let header = part.header();
        let mut pieces = vec![OriginalPiece::Bytes(
            part.stored(header).unwrap_or_default(),
        )];
        let mut at = header.end();
        let mut bytes_to = |end: u64, next: u64, pieces: &mut Vec<_>| {
            let between = Extent::new(at, end.saturating_sub(at));
            let between = between.and_then(|between| part.stored(between));
            pieces.extend(between.filter(|b| !b.is_empty()).map(OriginalPiece::Bytes));
            at = next;
        };
        for (tensor, extent) in packed {
            bytes_to(extent.start(), extent.end(), &mut pieces);
            pieces.push(OriginalPiece::Tensor(tensor));
        }
        bytes_to(part.file_bytes(), part.file_bytes(), &mut pieces);
        pieces
    }

    /// The rows of a tensor as the GGUF file has them, several whole rows at a time.
    pub fn read_rows<E>(
        &self,
        index: usize,
        pool: &ThreadPool,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (part, tensor) = (&self.parts[0], &self.tensors[index]);
        match part.packed.as_ref().filter(|packed| packed.holds(index)) {
            Some(packed) => packed.read_rows(part.map.as_slice(), (index, tensor), pool, sink),
            None => sink(self.bytes(tensor)),
        }
    }

    /// The bytes of the GGUF file that a packed model was made of, from the first to the last.
    pub fn read_original<E>(
        &self,
        pool: &ThreadPool,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let packed = self.packed();
        let pieces = self.pieces(&|tensor| packed.is_some_and(|packed| packed.holds(tensor)));
        for piece in pieces {
            match piece {
                OriginalPiece::Bytes(bytes) => sink(bytes)?,
                OriginalPiece::Tensor(tensor) => self.read_rows(tensor, pool, sink)?,
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Gguf({}, {} parts, {} tensors)",
            self.path().display(),
            self.parts.len(),
            self.tensors.len()
        )
    }
}
