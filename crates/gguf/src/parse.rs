//! One file, from bytes to a table of checked ranges.
//!
//! ```text
//! "GGUF" version:u32 tensor_count:u64 kv_count:u64
//! kv_count     × { key: string, type: u32, value }
//! tensor_count × { name: string, n_dims: u32, dims: u64 × n_dims, type: u32, offset: u64 }
//! padding to general.alignment
//! tensor data, every offset relative to here
//! ```
//!
//! The rules that make this safe on hostile bytes:
//!
//! - every number from the file goes through [`Extent`] before it is used as a size or a place;
//! - a count is compared with the bytes left (each item has a least size) before anything is
//!   reserved, so memory is bounded by a small multiple of the file, and by [`ENTRIES_MAX`];
//! - one pass forward over at most [`TABLE_BYTES_MAX`] bytes, no recursion: nested arrays are walked with a stack of [`DEPTH_MAX`] counts;
//! - duplicates and overlaps are found by sorting, never by comparing all pairs.

use super::error::{Problem, shown};
use super::extent::{self, Extent};
use super::ggml;
use super::value::{Array, Value, ValueType};
use haversack_kernels::format::WeightType;
use std::fmt;
use std::path::Path;

/// Keys, and tensors. The largest models published have a few thousand tensors.
pub const ENTRIES_MAX: u64 = 1 << 16;
/// Everything before the tensor data. The largest vocabularies take some 20 MiB; walking what is
/// allowed here takes a fraction of a second.
const TABLE_BYTES_MAX: u64 = 128 << 20;
/// What the format allows a key.
const KEY_BYTES_MAX: u64 = (1 << 16) - 1;
/// What the format allows a tensor's name.
const NAME_BYTES_MAX: u64 = 64;
/// What the format allows a tensor's dimensions.
pub const DIMS_MAX: usize = 4;
/// Arrays in arrays. No model nests them at all.
const DEPTH_MAX: usize = 4;
const ALIGN_DEFAULT: u64 = 32;
/// The format asks for a multiple of 8.
const ALIGN_MIN: u64 = 8;
/// More would only be padding; rounding up to it stays small.
const ALIGN_MAX: u64 = 1 << 16;

/// What the table of one file says.
pub struct Parsed {
    pub version: u32,
    pub align: u64,
    /// In file order.
    pub entries: Vec<MetadataEntry>,
    /// Indices of `entries`, by key.
    pub by_key: Vec<u32>,
    pub tensors: Vec<Tensor>,
}

pub struct MetadataEntry {
    pub key: Extent,
    pub slot: Slot,
}

/// A value without its bytes.
#[derive(Clone, Copy)]
pub enum Slot {
    Scalar(Value<'static>),
    Str(Extent),
    Array {
        elem: ValueType,
        len: usize,
        items: Extent,
    },
}

/// A tensor's place and shape.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub ty: WeightType,
    /// `dims[0]` is the length of a row; unused ones are 1.
    pub dims: [u64; DIMS_MAX],
    pub n_dims: usize,
    /// Which file of a split set.
    pub(super) part: u32,
    /// In that file.
    pub(super) extent: Extent,
}

impl Tensor {
    /// Values in a row: the dimension that runs fastest.
    pub fn cols(&self) -> usize {
        self.dims[0] as usize
    }

    /// All other dimensions together.
    pub fn rows(&self) -> usize {
        // The product of all four was checked when the file was read.
        self.dims[1..].iter().product::<u64>() as usize
    }

    /// The dimensions the file gives, without the padding to four.
    pub fn shape(&self) -> &[u64] {
        &self.dims[..self.n_dims]
    }

    /// Bytes in the file.
    pub fn byte_len(&self) -> u64 {
        self.extent.len()
    }
}

impl Parsed {
    /// Reads the table from the beginning of a file of `file_bytes`, of which `bytes` has at least what stands before its
    /// first tensor.
    pub fn read(bytes: &[u8], file_bytes: u64) -> Result<Parsed, Problem> {
        let mut at = Cursor::new(bytes);
        let version = header(&mut at, bytes)?;
        let tensor_count = at.u64(format_args!("tensor_count"))?;
        let kv_count = at.u64(format_args!("kv_count"))?;

        // Key length, one byte of key, type, one byte of value.
        at.room_for(format_args!("kv_count"), kv_count, 8 + 1 + 4 + 1)?;
        let mut entries = reserve("kv_count", kv_count)?;
        for i in 0..kv_count {
            entries.push(entry(&mut at, bytes, i)?);
        }
        let by_key = sorted_keys(bytes, &entries)?;
        let mut parsed = Parsed {
            version,
            align: ALIGN_DEFAULT,
            entries,
            by_key,
            tensors: Vec::new(),
        };
        parsed.align = parsed.alignment(bytes)?;
        let align = parsed.align;

        // Name length, one byte of name, n_dims, one dimension, type, offset.
        let tensor_bytes = 8 + 1 + 4 + 8 + 4 + 8;
        at.room_for(format_args!("tensor_count"), tensor_count, tensor_bytes)?;
        let mut tensors: Vec<Tensor> = reserve("tensor_count", tensor_count)?;
        let mut offsets: Vec<u64> = reserve("tensor_count", tensor_count)?;
        for i in 0..tensor_count {
            let (tensor, offset) = tensor_info(&mut at, bytes, i, align)?;
            tensors.push(tensor);
            offsets.push(offset);
        }
        sorted_names(&tensors)?;

        let whole = Extent::new(0, file_bytes).unwrap_or_default();
        let data = whole.tail(extent::round_up(at.at, align).unwrap_or(whole.len()));
        for (tensor, &offset) in tensors.iter_mut().zip(&offsets) {
            let len = tensor.extent.len();
            tensor.extent = data.within(offset, len).ok_or_else(|| Problem::Outside {
                tensor: tensor.name.clone(),
                offset,
                bytes: len,
                left: data.len(),
            })?;
        }
        refuse_overlaps(&tensors)?;
        parsed.tensors = tensors;
        Ok(parsed)
    }

    /// The entry with this key.
    pub fn find(&self, bytes: &[u8], key: &[u8]) -> Option<&MetadataEntry> {
        let key_of = |&i: &u32| self.entries[i as usize].key(bytes);
        let i = self.by_key.binary_search_by(|i| key_of(i).cmp(key)).ok()?;
        self.entries.get(*self.by_key.get(i)? as usize)
    }

    /// Of the tensor data, as the metadata says.
    fn alignment(&self, bytes: &[u8]) -> Result<u64, Problem> {
        const KEY: &str = "general.alignment";
        let Some(entry) = self.find(bytes, KEY.as_bytes()) else {
            return Ok(ALIGN_DEFAULT);
        };
        let value = entry.value(Path::new(""), bytes);
        let Some(found) = value.integer() else {
            return Err(Problem::Kind {
                key: KEY.into(),
                found: value.kind_name(),
                accepted: "u32",
            });
        };
        let is_good = |a: &u64| a.is_power_of_two() && (ALIGN_MIN..=ALIGN_MAX).contains(a);
        u64::try_from(found).ok().filter(is_good).ok_or_else(|| {
            let accepted = format!("a power of two from {ALIGN_MIN} to {ALIGN_MAX}");
            Problem::value(KEY, found, accepted)
        })
    }
}

impl MetadataEntry {
    pub fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        self.key.slice(bytes).unwrap_or_default()
    }

    pub fn value<'a>(&self, file: &'a Path, bytes: &'a [u8]) -> Value<'a> {
        match self.slot {
            Slot::Scalar(v) => v,
            Slot::Str(e) => Value::Str(e.slice(bytes).unwrap_or_default()),
            Slot::Array { elem, len, items } => Value::Array(Array {
                file,
                key: self.key(bytes),
                elem,
                len,
                bytes: items.slice(bytes).unwrap_or_default(),
            }),
        }
    }
}

/// Where we are in the file.
struct Cursor<'a> {
    bytes: &'a [u8],
    whole: Extent,
    at: u64,
}

impl<'a> Cursor<'a> {
    fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor {
            bytes,
            whole: Extent::of(bytes),
            at: 0,
        }
    }

    fn left(&self) -> u64 {
        self.whole.tail(self.at).len()
    }

    /// The next `len` bytes, if the file has them.
    fn take(&mut self, len: u64, field: fmt::Arguments<'_>) -> Result<Extent, Problem> {
        let extent = self.whole.within(self.at, len);
        let extent = extent.ok_or_else(|| Problem::CutShort {
            field: field.to_string(),
            needs: len,
            left: self.left(),
        })?;
        if extent.end() > TABLE_BYTES_MAX {
            let field = format!("the end of {field}");
            let accepted = format!("the first {TABLE_BYTES_MAX} bytes of the file");
            return Err(Problem::value(field, extent.end(), accepted));
        }
        self.at = extent.end();
        Ok(extent)
    }

    fn array<const N: usize>(&mut self, field: fmt::Arguments<'_>) -> Result<[u8; N], Problem> {
        let extent = self.take(N as u64, field)?;
        let bytes = extent.slice(self.bytes).and_then(|b| b.try_into().ok());
        bytes.ok_or_else(|| Problem::CutShort {
            field: field.to_string(),
            needs: N as u64,
            left: 0,
        })
    }

    fn u32(&mut self, field: fmt::Arguments<'_>) -> Result<u32, Problem> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    fn u64(&mut self, field: fmt::Arguments<'_>) -> Result<u64, Problem> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A length and as many bytes.
    fn string(&mut self, field: fmt::Arguments<'_>) -> Result<Extent, Problem> {
        let len = self.u64(format_args!("the length of {field}"))?;
        self.take(len, field)
    }

    /// A short string with bounds of its own, as UTF-8.
    fn name(&mut self, bytes_max: u64, field: fmt::Arguments<'_>) -> Result<Extent, Problem> {
        let len = self.u64(format_args!("the length of {field}"))?;
        if len == 0 || len > bytes_max {
            let accepted = format!("1 to {bytes_max} bytes");
            return Err(Problem::value(
                format!("the length of {field}"),
                len,
                accepted,
            ));
        }
        let extent = self.take(len, field)?;
        let bytes = extent.slice(self.bytes).unwrap_or_default();
        if std::str::from_utf8(bytes).is_err() {
            let found = format!("\"{}\"", shown(bytes));
            return Err(Problem::value(field, found, "valid UTF-8"));
        }
        Ok(extent)
    }

    /// Refuses a count of things that cannot all be in the rest of the file.
    fn room_for(
        &self,
        field: fmt::Arguments<'_>,
        count: u64,
        least_bytes: u64,
    ) -> Result<(), Problem> {
        if extent::bytes_of(count, least_bytes).is_some_and(|n| n <= self.left()) {
            return Ok(());
        }
        let left = self.left();
        let count_max = left / least_bytes;
        let accepted = format!("at most {count_max}, for which {left} bytes are left");
        Err(Problem::value(field, count, accepted))
    }
}

fn reserve<T>(field: &'static str, count: u64) -> Result<Vec<T>, Problem> {
    if count > ENTRIES_MAX {
        let accepted = format!("at most {ENTRIES_MAX}");
        return Err(Problem::value(field, count, accepted));
    }
    let mut v = Vec::new();
    let reserved = v.try_reserve_exact(count as usize);
    reserved.map_err(|_| Problem::Memory { field, count })?;
    Ok(v)
}

fn header(at: &mut Cursor<'_>, bytes: &[u8]) -> Result<u32, Problem> {
    if !bytes.starts_with(b"GGUF") {
        return Err(Problem::NotGguf(what_else(bytes)));
    }
    at.u32(format_args!("the magic"))?;
    let version = at.u32(format_args!("the version"))?;
    let (found, hint) = match version {
        2 | 3 => return Ok(version),
        1 => (version, " (obsolete, 32-bit counts)"),
        v if v != 0 && v & 0xffff == 0 => (v.swap_bytes(), " in big-endian byte order"),
        _ => (version, ""),
    };
    Err(Problem::Version { found, hint })
}

/// What people point us at instead.
fn what_else(bytes: &[u8]) -> String {
    let starts = |with: &[u8]| bytes.starts_with(with);
    let lower: Vec<u8> = bytes
        .iter()
        .take(64)
        .map(u8::to_ascii_lowercase)
        .skip_while(u8::is_ascii_whitespace)
        .collect();
    let older = [
        "ggml", "GGML", "lmgg", "ggjt", "tjgg", "ggmf", "fmgg", "ggla",
    ];
    let what = if bytes.is_empty() {
        "it is empty"
    } else if starts(b"FUGG") {
        "its magic is byte-swapped"
    } else if older.iter().any(|magic| starts(magic.as_bytes())) {
        "it is in an older GGML format; convert it to GGUF"
    } else if starts(b"version https://git-lfs") {
        "it is a git-lfs pointer; fetch the real file with git lfs pull"
    } else if lower.starts_with(b"<!doctype") || lower.starts_with(b"<html") {
        "it is an HTML page, perhaps of a failed download"
    } else if starts(&[0x1f, 0x8b]) {
        "it is gzip-compressed"
    } else if starts(b"PK\x03\x04") {
        "it is a zip archive or a PyTorch checkpoint"
    } else if bytes.get(8) == Some(&b'{') {
        "it looks like safetensors; convert it to GGUF"
    } else if lower.starts_with(b"{") {
        "it is JSON"
    } else if bytes.iter().take(64).all(|&b| b == 0) {
        "it begins with zeros, perhaps of an unfinished download"
    } else {
        let found = shown(bytes.get(..4).unwrap_or(bytes));
        return format!("it begins with \"{found}\" instead of \"GGUF\"");
    };
    what.into()
}

fn entry(at: &mut Cursor<'_>, bytes: &[u8], i: u64) -> Result<MetadataEntry, Problem> {
    let key = at.name(KEY_BYTES_MAX, format_args!("key {i}"))?;
    // Escaped only when a message needs it.
    let name = Shown(key.slice(bytes).unwrap_or_default());
    let id = at.u32(format_args!("the type of {name}"))?;
    let kind = value_type(id, format_args!("the type of {name}"))?;
    let slot = match kind {
        ValueType::Str => Slot::Str(at.string(format_args!("{name}"))?),
        ValueType::Array => array(at, bytes, name)?,
        scalar => {
            let extent = at.take(scalar.least_bytes(), format_args!("{name}"))?;
            let found = extent.slice(bytes);
            let value = found.and_then(|b| Value::scalar(scalar, b));
            let value = value.ok_or_else(|| bad_bool(format_args!("{name}"), found))?;
            Slot::Scalar(value)
        }
    };
    Ok(MetadataEntry { key, slot })
}

fn value_type(id: u32, field: fmt::Arguments<'_>) -> Result<ValueType, Problem> {
    ValueType::from_id(id).ok_or_else(|| Problem::value(field, id, "0 to 12"))
}

fn bad_bool(field: fmt::Arguments<'_>, found: Option<&[u8]>) -> Problem {
    let found = found.and_then(|b| b.first()).copied().unwrap_or_default();
    Problem::value(field, found, "a bool of 0 or 1")
}

/// Walks one array to its end, arrays inside it included, and keeps its range.
fn array(at: &mut Cursor<'_>, bytes: &[u8], name: Shown<'_>) -> Result<Slot, Problem> {
    let (elem, count) = array_head(at, name)?;
    let start = at.at;
    // (item type, items to come) of every array we are inside of.
    let mut open = [(elem, count); DEPTH_MAX];
    let mut depth = 1;
    while depth > 0 {
        let (elem, left) = open[depth - 1];
        if left == 0 {
            depth -= 1;
            continue;
        }
        match elem {
            ValueType::Str => {
                for i in 0..left {
                    at.string(format_args!("item {i} of {name}"))?;
                }
                depth -= 1;
            }
            ValueType::Array => {
                open[depth - 1].1 -= 1;
                if depth == DEPTH_MAX {
                    let accepted = format!("at most {DEPTH_MAX} levels");
                    return Err(Problem::value(name, "an array nested deeper", accepted));
                }
                open[depth] = array_head(at, name)?;
                depth += 1;
            }
            scalar => {
                let needs = extent::bytes_of(left, scalar.least_bytes()).unwrap_or(u64::MAX);
                let items = at.take(needs, format_args!("{name}"))?;
                if scalar == ValueType::Bool {
                    let items = items.slice(bytes).unwrap_or_default();
                    if let Some(&b) = items.iter().find(|&&b| b > 1) {
                        return Err(bad_bool(format_args!("an item of {name}"), Some(&[b])));
                    }
                }
                depth -= 1;
            }
        }
    }
    let overflow = || Problem::value(name, count, "as many items as fit the memory");
    Ok(Slot::Array {
        elem,
        len: usize::try_from(count).map_err(|_| overflow())?,
        items: Extent::new(start, at.at - start).ok_or_else(overflow)?,
    })
}

fn array_head(at: &mut Cursor<'_>, name: Shown<'_>) -> Result<(ValueType, u64), Problem> {
    let id = at.u32(format_args!("the item type of {name}"))?;
    let elem = value_type(id, format_args!("the item type of {name}"))?;
    let count = at.u64(format_args!("the item count of {name}"))?;
    let field = format_args!("the item count of {name}");
    at.room_for(field, count, elem.least_bytes())?;
    Ok((elem, count))
}

/// Indices of `items` by `key`. Two that stand next to each other are refused if they `clash`.
fn sorted<'a, T, K: Ord>(
    field: &'static str,
    items: &'a [T],
    key: impl Fn(&'a T) -> K,
    clash: impl Fn(&T, &T) -> Option<Problem>,
) -> Result<Vec<u32>, Problem> {
    let mut order: Vec<u32> = reserve(field, items.len() as u64)?;
    order.extend(0..items.len() as u32);
    order.sort_unstable_by_key(|&i| key(&items[i as usize]));
    for pair in order.windows(2) {
        if let Some(problem) = clash(&items[pair[0] as usize], &items[pair[1] as usize]) {
            return Err(problem);
        }
    }
    Ok(order)
}

/// The problem of two that are called alike.
fn duplicate(what: &'static str, a: &[u8], b: &[u8]) -> Option<Problem> {
    (a == b).then(|| Problem::Duplicate {
        what,
        name: shown(a),
    })
}

fn sorted_keys(bytes: &[u8], entries: &[MetadataEntry]) -> Result<Vec<u32>, Problem> {
    let key = |entry: &MetadataEntry| entry.key(bytes);
    sorted("kv_count", entries, key, |a, b| {
        duplicate("key", key(a), key(b))
    })
}

/// One tensor and its offset; its extent has the right length and no place yet.
fn tensor_info(
    at: &mut Cursor<'_>,
    bytes: &[u8],
    i: u64,
    align: u64,
) -> Result<(Tensor, u64), Problem> {
    let name = at.name(NAME_BYTES_MAX, format_args!("the name of tensor {i}"))?;
    let raw = name.slice(bytes).unwrap_or_default();
    let name = Shown(raw);
    let n_dims = at.u32(format_args!("n_dims of tensor {name}"))?;
    if n_dims == 0 || n_dims as usize > DIMS_MAX {
        let field = format!("n_dims of tensor {name}");
        return Err(Problem::value(field, n_dims, format!("1 to {DIMS_MAX}")));
    }
    let mut dims = [1u64; DIMS_MAX];
    for (d, dim) in dims.iter_mut().take(n_dims as usize).enumerate() {
        *dim = at.u64(format_args!("dimension {d} of tensor {name}"))?;
        if *dim == 0 || *dim > i64::MAX as u64 {
            let field = format!("dimension {d} of tensor {name}");
            return Err(Problem::value(field, *dim, format!("1 to {}", i64::MAX)));
        }
    }
    let id = at.u32(format_args!("the type of tensor {name}"))?;
    let Some(ty) = WeightType::from_id(id) else {
        return Err(Problem::TensorType {
            tensor: name.to_string(),
            found: ggml::type_name(id),
            accepted: ggml::supported(),
        });
    };
    let offset = at.u64(format_args!("the offset of tensor {name}"))?;
    if !offset.is_multiple_of(align) {
        let field = format!("the offset of tensor {name}");
        let accepted = format!("a multiple of the alignment {align}");
        return Err(Problem::value(field, offset, accepted));
    }
    let block_len = ty.block_len() as u64;
    if !dims[0].is_multiple_of(block_len) {
        let field = format!("the row length of tensor {name}");
        let accepted = format!("a multiple of {block_len} for {ty}");
        return Err(Problem::value(field, dims[0], accepted));
    }
    let too_big = || {
        let found = format!("{:?}", &dims[..n_dims as usize]);
        let accepted = format!("a product of at most {}", i64::MAX);
        Problem::value(format!("the shape of tensor {name}"), found, accepted)
    };
    let values = extent::product(&dims).ok_or_else(too_big)?;
    let len = extent::bytes_of(values / block_len, ty.block_bytes() as u64).ok_or_else(too_big)?;
    let tensor = Tensor {
        name: String::from_utf8_lossy(raw).into_owned(),
        ty,
        dims,
        n_dims: n_dims as usize,
        part: 0,
        extent: Extent::new(0, len).ok_or_else(too_big)?,
    };
    Ok((tensor, offset))
}

/// Indices by name; two tensors of one name are refused.
pub fn sorted_names(tensors: &[Tensor]) -> Result<Vec<u32>, Problem> {
    sorted(
        "tensor_count",
        tensors,
        |t| &t.name,
        |a, b| duplicate("tensor", a.name.as_bytes(), b.name.as_bytes()),
    )
}

/// Sharing bytes saves nothing a model needs; in a damaged file it passes for weights.
fn refuse_overlaps(tensors: &[Tensor]) -> Result<(), Problem> {
    let clash = |a: &Tensor, b: &Tensor| {
        a.extent.overlaps(b.extent).then(|| Problem::Overlap {
            first: shown(a.name.as_bytes()),
            second: shown(b.name.as_bytes()),
        })
    };
    sorted("tensor_count", tensors, |t| t.extent.start(), clash).map(drop)
}

/// Bytes that are escaped when, and only when, they are printed.
#[derive(Clone, Copy)]
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(self.0))
    }
}
