//! Metadata keys of one architecture, each read with its range: a number from a file that is out of
//! range is an error that names the key and what is accepted.

use super::error::{LoadError, LoadResult};
use haversack_gguf::{Gguf, Tensor};

/// Metadata keys of one architecture, with their ranges.
pub(super) struct MetadataKeys<'a> {
    g: &'a Gguf,
    prefix: &'static str,
}

impl<'a> MetadataKeys<'a> {
    pub fn new(g: &'a Gguf, prefix: &'static str) -> MetadataKeys<'a> {
        MetadataKeys { g, prefix }
    }

    pub fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    pub fn missing(&self, key: &str) -> LoadError {
        missing(&self.full(key))
    }

    /// Refuses the value of a key for what `why` says, unless it is good.
    pub fn check(&self, key: &str, is_good: bool, why: impl FnOnce() -> String) -> LoadResult {
        match is_good {
            true => Ok(()),
            false => Err(LoadError::field(self.full(key), why())),
        }
    }

    pub fn str(&self, key: &str) -> LoadResult<Option<&str>> {
        Ok(self.g.str(&self.full(key))?)
    }

    pub fn count(&self, key: &str, min: u64, max: u64) -> LoadResult<usize> {
        self.optional(key, min, max)?
            .ok_or_else(|| self.missing(key))
    }

    pub fn optional(&self, key: &str, min: u64, max: u64) -> LoadResult<Option<usize>> {
        let Some(n) = self.g.u64(&self.full(key))? else {
            return Ok(None);
        };
        self.in_range(key, n, min, max).map(Some)
    }

    pub fn float(&self, key: &str, min: f32, max: f32) -> LoadResult<Option<f32>> {
        let Some(x) = self.g.f32(&self.full(key))? else {
            return Ok(None);
        };
        // NaN is in no range.
        self.check(key, (min..=max).contains(&x), || {
            format!("{x:?} is out of range; accepted: {min:?} to {max:?}")
        })?;
        Ok(Some(x))
    }

    pub fn float_or(&self, key: &str, min: f32, max: f32, other: f32) -> LoadResult<f32> {
        Ok(self.float(key, min, max)?.unwrap_or(other))
    }

    /// One number for all layers, or an array with one per layer.
    pub fn per_layer(&self, key: &str, layers: usize, max: u64) -> LoadResult<Option<Vec<usize>>> {
        let full = self.full(key);
        let Some(array) = self.g.array(&full).ok().flatten() else {
            return Ok(self.optional(key, 1, max)?.map(|n| vec![n; layers]));
        };
        self.check(key, array.len() == layers, || {
            format!("has {} entries for {layers} layers", array.len())
        })?;
        let numbers = array.u32s()?;
        let numbers = numbers.map(|n| self.in_range(key, n as u64, 1, max));
        Ok(Some(numbers.collect::<Result<_, _>>()?))
    }

    fn in_range(&self, key: &str, n: u64, min: u64, max: u64) -> LoadResult<usize> {
        self.check(key, (min..=max).contains(&n), || {
            format!("{n} is out of range; accepted: {min} to {max}")
        })?;
        Ok(n as usize)
    }
}

pub(super) fn missing(key: &str) -> LoadError {
    LoadError::field(key, "is missing")
}

/// The bytes of a vector, which are never packed.
pub(super) fn vector_bytes<'a>(g: &'a Gguf, tensor: &Tensor) -> LoadResult<&'a [u8]> {
    let bytes = g.bytes(tensor);
    match bytes.len() as u64 == tensor.byte_len() {
        true => Ok(bytes),
        false => Err(LoadError::field(&tensor.name, "is packed like a matrix")),
    }
}
