//! Metadata values. Scalars are read at once; strings and arrays stay in the file as ranges that
//! were walked and checked once, so a vocabulary of 262144 strings costs nothing until it is read.

use super::error::{GgufError, Problem, shown};
use std::fmt;

/// The types of metadata, numbered as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// By number: each type, its name, and the bytes of a value whose size does not depend on its content.
    const TABLE: [(ValueType, &str, Option<u64>); 13] = [
        (ValueType::U8, "u8", Some(1)),
        (ValueType::I8, "i8", Some(1)),
        (ValueType::U16, "u16", Some(2)),
        (ValueType::I16, "i16", Some(2)),
        (ValueType::U32, "u32", Some(4)),
        (ValueType::I32, "i32", Some(4)),
        (ValueType::F32, "f32", Some(4)),
        (ValueType::Bool, "bool", Some(1)),
        (ValueType::Str, "string", None),
        (ValueType::Array, "array", None),
        (ValueType::U64, "u64", Some(8)),
        (ValueType::I64, "i64", Some(8)),
        (ValueType::F64, "f64", Some(8)),
    ];

    pub fn from_id(id: u32) -> Option<ValueType> {
        let row = ValueType::TABLE.get(usize::try_from(id).ok()?);
        row.map(|(kind, ..)| *kind)
    }

    pub const fn id(self) -> u32 {
        self as u32
    }

    pub const fn name(self) -> &'static str {
        ValueType::TABLE[self as usize].1
    }

    /// Bytes of a value whose size does not depend on its content.
    pub const fn fixed_bytes(self) -> Option<u64> {
        ValueType::TABLE[self as usize].2
    }

    /// The fewest bytes one value takes: a count in the file is compared with it.
    pub const fn least_bytes(self) -> u64 {
        match self.fixed_bytes() {
            Some(n) => n,
            // A string is a length, an array an item type and a count.
            None if matches!(self, ValueType::Str) => 8,
            None => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One metadata value.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// As it lies in the file: the format says UTF-8, the file may not.
    Str(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    pub fn kind(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::Str(_) => ValueType::Str,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The type for a message: `u32`, or `array of string`.
    pub fn kind_name(&self) -> String {
        match self {
            Value::Array(a) => format!("array of {}", a.elem),
            other => other.kind().to_string(),
        }
    }

    /// An integer of any width, a bool not counted as one.
    pub fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// A scalar of `kind` from its bytes, which are as many as the kind has. `None` for strings,
    /// arrays, the wrong number of bytes, and a bool that is neither 0 nor 1.
    pub(super) fn scalar(kind: ValueType, bytes: &[u8]) -> Option<Value<'a>> {
        Some(match kind {
            ValueType::U8 => Value::U8(u8::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::Bool => match bytes {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                _ => return None,
            },
            ValueType::Str | ValueType::Array => return None,
        })
    }
}

/// For `inspect` and messages: escaped, cut, arrays by their type and length.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::F32(v) => write!(f, "{v}"),
            Value::F64(v) => write!(f, "{v}"),
            Value::Bool(v) => write!(f, "{v}"),
            Value::Str(v) => write!(f, "\"{}\"", shown(v)),
            Value::Array(a) => write!(f, "{} {}", a.len, a.elem),
            other => other.integer().map_or(Ok(()), |v| write!(f, "{v}")),
        }
    }
}

/// An array as it lies in the file, every item inside it already checked to be there.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    pub(super) file: &'a std::path::Path,
    pub(super) key: &'a [u8],
    pub(super) elem: ValueType,
    pub(super) len: usize,
    pub(super) bytes: &'a [u8],
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.elem, self.len)
    }
}

impl<'a> Array<'a> {
    pub fn elem(&self) -> ValueType {
        self.elem
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The strings, as bytes.
    pub fn strs(&self) -> Result<Strs<'a>, GgufError> {
        if self.elem != ValueType::Str {
            return Err(self.wrong_elem("array of string"));
        }
        Ok(Strs {
            bytes: self.bytes,
            left: self.len,
        })
    }

    /// Integers of any width, each checked to fit before the first is handed out.
    pub fn u32s(&self) -> Result<impl ExactSizeIterator<Item = u32> + use<'a>, GgufError> {
        self.integers::<u32>("array of integers", "0 to 4294967295")
    }

    pub fn i32s(&self) -> Result<impl ExactSizeIterator<Item = i32> + use<'a>, GgufError> {
        self.integers::<i32>("array of integers", "-2147483648 to 2147483647")
    }

    pub fn f32s(&self) -> Result<impl ExactSizeIterator<Item = f32> + use<'a>, GgufError> {
        if self.elem != ValueType::F32 && self.elem != ValueType::F64 {
            return Err(self.wrong_elem("array of f32"));
        }
        Ok(self.scalars().map(|v| match v {
            Value::F32(v) => v,
            Value::F64(v) => v as f32,
            _ => f32::NAN,
        }))
    }

    pub fn bools(&self) -> Result<impl ExactSizeIterator<Item = bool> + use<'a>, GgufError> {
        if self.elem != ValueType::Bool {
            return Err(self.wrong_elem("array of bool"));
        }
        Ok(self.scalars().map(|v| matches!(v, Value::Bool(true))))
    }

    fn integers<T: TryFrom<i128> + Default>(
        &self,
        wanted: &'static str,
        range: &str,
    ) -> Result<impl ExactSizeIterator<Item = T> + use<'a, T>, GgufError> {
        let is_integer = !matches!(self.elem, ValueType::F32 | ValueType::F64 | ValueType::Bool)
            && self.elem.fixed_bytes().is_some();
        if !is_integer {
            return Err(self.wrong_elem(wanted));
        }
        let fit = |v: &Value<'_>| v.integer().and_then(|n| T::try_from(n).ok());
        let misfit = self.scalars().enumerate().find(|(_, v)| fit(v).is_none());
        if let Some((i, v)) = misfit {
            let field = format!("item {i} of {}", shown(self.key));
            return Err(Problem::value(field, v, range).of(self.file));
        }
        // The pass above makes the default unreachable.
        Ok(self.scalars().map(move |v| fit(&v).unwrap_or_default()))
    }

    /// Items of fixed size. Empty for strings and arrays, whose callers have checked.
    fn scalars(&self) -> impl ExactSizeIterator<Item = Value<'a>> + use<'a> {
        let elem = self.elem;
        let item_bytes = elem.fixed_bytes().map_or(usize::MAX, |n| n as usize);
        self.bytes
            .chunks_exact(item_bytes)
            // Validated when the file was read; the default is never seen.
            .map(move |b| Value::scalar(elem, b).unwrap_or(Value::U8(0)))
    }

    fn wrong_elem(&self, wanted: &'static str) -> GgufError {
        Problem::Kind {
            key: shown(self.key),
            found: format!("array of {}", self.elem),
            accepted: wanted,
        }
        .of(self.file)
    }
}

/// The strings of an array, in order.
#[derive(Clone)]
pub struct Strs<'a> {
    bytes: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Strs<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let (len, rest) = self.bytes.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let (item, rest) = rest.split_at_checked(len)?;
        self.bytes = rest;
        self.left -= 1;
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strs<'_> {}
