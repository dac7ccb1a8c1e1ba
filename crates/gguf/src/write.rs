//! Writing GGUF files: for tests, for the tool that makes synthetic models, and for converters.
//!
//! Metadata is held in memory, tensors are planned first and streamed later, so a file of any size
//! takes the memory of its table. What is written is always well-formed; hostile files are made from
//! its bytes by tests.

use super::extent::{bytes_of, product, round_up};
use super::split::sibling;
use super::value::ValueType;
use haversack_kernels::format::WeightType;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A metadata value to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum Meta {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(Vec<u8>),
    /// Item type, and items of that type.
    Array(ValueType, Vec<Meta>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Meta {
    pub fn kind(&self) -> ValueType {
        match self {
            Meta::U8(_) => ValueType::U8,
            Meta::I8(_) => ValueType::I8,
            Meta::U16(_) => ValueType::U16,
            Meta::I16(_) => ValueType::I16,
            Meta::U32(_) => ValueType::U32,
            Meta::I32(_) => ValueType::I32,
            Meta::F32(_) => ValueType::F32,
            Meta::Bool(_) => ValueType::Bool,
            Meta::Str(_) => ValueType::Str,
            Meta::Array(..) => ValueType::Array,
            Meta::U64(_) => ValueType::U64,
            Meta::I64(_) => ValueType::I64,
            Meta::F64(_) => ValueType::F64,
        }
    }

    /// An array of anything that becomes a value. Empty arrays need [`Meta::Array`] for their type.
    pub fn array<T: Into<Meta>>(items: impl IntoIterator<Item = T>) -> Meta {
        let items: Vec<Meta> = items.into_iter().map(Into::into).collect();
        let kind = items.first().map_or(ValueType::U32, Meta::kind);
        Meta::Array(kind, items)
    }

    fn put(&self, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Meta::U8(v) => out.push(*v),
            Meta::I8(v) => out.extend(v.to_le_bytes()),
            Meta::U16(v) => out.extend(v.to_le_bytes()),
            Meta::I16(v) => out.extend(v.to_le_bytes()),
            Meta::U32(v) => out.extend(v.to_le_bytes()),
            Meta::I32(v) => out.extend(v.to_le_bytes()),
            Meta::F32(v) => out.extend(v.to_le_bytes()),
            Meta::Bool(v) => out.push(u8::from(*v)),
            Meta::Str(v) => put_str(out, v),
            Meta::U64(v) => out.extend(v.to_le_bytes()),
            Meta::I64(v) => out.extend(v.to_le_bytes()),
            Meta::F64(v) => out.extend(v.to_le_bytes()),
            Meta::Array(kind, items) => {
                if items.iter().any(|i| i.kind() != *kind) {
                    return Err(misuse("an array holds items of different types"));
                }
                out.extend(kind.id().to_le_bytes());
                out.extend((items.len() as u64).to_le_bytes());
                for item in items {
                    item.put(out)?;
                }
            }
        }
        Ok(())
    }
}

macro_rules! meta_from {
    ($($from:ty => $variant:ident),*) => {
        $(impl From<$from> for Meta {
            fn from(v: $from) -> Meta {
                Meta::$variant(v)
            }
        })*
    };
}
meta_from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32,
    bool => Bool, Vec<u8> => Str, u64 => U64, i64 => I64, f64 => F64);

impl From<&str> for Meta {
    fn from(v: &str) -> Meta {
        Meta::Str(v.as_bytes().to_vec())
    }
}

impl From<String> for Meta {
    fn from(v: String) -> Meta {
        Meta::Str(v.into_bytes())
    }
}

/// A tensor to come.
#[derive(Clone, Debug)]
pub struct Planned {
    pub name: String,
    pub ty: WeightType,
    /// `dims[0]` is the length of a row.
    pub dims: Vec<u64>,
    pub bytes: u64,
}

/// Called once per tensor, in order; must write exactly [`Planned::bytes`].
pub type Fill<'a> = dyn FnMut(&Planned, &mut dyn Write) -> io::Result<()> + 'a;

/// A file, or a split set, in the making.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    align: u64,
    meta: Vec<(String, Meta)>,
    tensors: Vec<Planned>,
}

impl Default for GgufWriter {
    fn default() -> GgufWriter {
        GgufWriter::new()
    }
}

impl GgufWriter {
    pub fn new() -> GgufWriter {
        GgufWriter {
            version: 3,
            align: 32,
            meta: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// Versions 2 and 3 have the same bytes but for the number.
    pub fn version(&mut self, version: u32) -> &mut GgufWriter {
        self.version = version;
        self
    }

    /// Also sets `general.alignment`. A power of two, or writing fails.
    pub fn align(&mut self, align: u32) -> &mut GgufWriter {
        self.align = align.into();
        self.set("general.alignment", align)
    }

    /// Adds a key, or replaces its value in place.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Meta>) -> &mut GgufWriter {
        let key = key.into();
        let value = value.into();
        match self.meta.iter_mut().find(|(k, _)| *k == key) {
            Some((_, old)) => *old = value,
            None => self.meta.push((key, value)),
        }
        self
    }

    /// Plans a tensor. Fails when its rows are not whole blocks of its type.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        ty: WeightType,
        dims: &[u64],
    ) -> io::Result<&mut GgufWriter> {
        let name = name.into();
        let block_len = ty.block_len() as u64;
        let row = dims.first().copied().unwrap_or(0);
        let bytes = product(dims)
            .filter(|_| row > 0 && row.is_multiple_of(block_len))
            .and_then(|n| bytes_of(n / block_len, ty.block_bytes() as u64))
            .ok_or_else(|| misuse(format!("{name}: {dims:?} are no whole blocks of {ty}")))?;
        self.tensors.push(Planned {
            name,
            ty,
            dims: dims.to_vec(),
            bytes,
        });
        Ok(self)
    }

    pub fn tensors(&self) -> &[Planned] {
        &self.tensors
    }

    /// One file at `path`.
    pub fn write_file(&self, path: &Path, fill: &mut Fill<'_>) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        self.write(&mut out, fill)?;
        out.flush()
    }

    pub fn to_bytes(&self, fill: &mut Fill<'_>) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        self.write(&mut out, fill)?;
        Ok(out)
    }

    pub fn write(&self, out: &mut dyn Write, fill: &mut Fill<'_>) -> io::Result<()> {
        let align = self.align;
        if !align.is_power_of_two() {
            return Err(misuse(format!("an alignment of {align}")));
        }
        let mut head = b"GGUF".to_vec();
        head.extend(self.version.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.meta.len() as u64).to_le_bytes());
        for (key, value) in &self.meta {
            put_str(&mut head, key.as_bytes());
            head.extend(value.kind().id().to_le_bytes());
            value.put(&mut head)?;
        }
        let mut offset = 0u64;
        for t in &self.tensors {
            put_str(&mut head, t.name.as_bytes());
            head.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| head.extend(d.to_le_bytes()));
            head.extend(t.ty.id().to_le_bytes());
            head.extend(offset.to_le_bytes());
            let end = offset.checked_add(t.bytes);
            let end = end.and_then(|end| round_up(end, align));
            offset = end.ok_or_else(|| misuse("more than 64 bits of tensors"))?;
        }
        out.write_all(&head)?;
        pad(out, head.len() as u64, align)?;
        for t in &self.tensors {
            let mut counted = Counted { out, bytes: 0 };
            fill(t, &mut counted)?;
            let (found, planned) = (counted.bytes, t.bytes);
            if found != planned {
                let what = format!("{}: {found} bytes written, {planned} planned", t.name);
                return Err(misuse(what));
            }
            pad(out, planned, align)?;
        }
        Ok(())
    }

    /// `NAME-00001-of-0000N.gguf` beside `stem` (`…/NAME`): metadata in the first part, tensors
    /// dealt out in order, as evenly by count as they go.
    pub fn write_split(
        &self,
        stem: &Path,
        parts: u16,
        fill: &mut Fill<'_>,
    ) -> io::Result<Vec<PathBuf>> {
        let parts = usize::from(parts.max(1));
        let per_part = self.tensors.len().div_ceil(parts).max(1);
        let mut paths = Vec::new();
        for i in 0..parts {
            let from = (i * per_part).min(self.tensors.len());
            let to = (from + per_part).min(self.tensors.len());
            let mut part = GgufWriter {
                meta: Vec::new(),
                tensors: self.tensors[from..to].to_vec(),
                ..*self
            };
            if i == 0 {
                part.meta = self.meta.clone();
            }
            part.set("split.no", i as u16);
            part.set("split.count", parts as u16);
            part.set("split.tensors.count", self.tensors.len() as i32);
            if i > 0 && self.align != 32 {
                part.set("general.alignment", self.align as u32);
            }
            let path = sibling(stem, i as u32, parts as u32);
            part.write_file(&path, fill)?;
            paths.push(path);
        }
        Ok(paths)
    }
}

fn put_str(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn pad(out: &mut dyn Write, len: u64, align: u64) -> io::Result<()> {
    let zeros = round_up(len, align).unwrap_or(len) - len;
    io::copy(&mut io::Read::take(io::repeat(0), zeros), out)?;
    Ok(())
}

fn misuse(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

/// Counts what goes through.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
