//! Metadata keys of one architecture, each read with its range: a number from a file that is out of
//! range is an error that names the key and what is accepted.

use super::error::LoadError;
use haversack_gguf::Gguf;

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

    pub fn wrong(&self, key: &str, what: &str) -> LoadError {
        LoadError::field(self.full(key), what)
    }

    pub fn str(&self, key: &str) -> Result<Option<&str>, LoadError> {
        Ok(self.g.str(&self.full(key))?)
    }

    pub fn count(&self, key: &str, min: u64, max: u64) -> Result<usize, LoadError> {
        self.optional(key, min, max)?
            .ok_or_else(|| self.missing(key))
    }

    pub fn optional(&self, key: &str, min: u64, max: u64) -> Result<Option<usize>, LoadError> {
        let Some(n) = self.g.u64(&self.full(key))? else {
            return Ok(None);
        };
        self.in_range(key, n, min, max).map(Some)
    }

    pub fn float(&self, key: &str, min: f32, max: f32) -> Result<Option<f32>, LoadError> {
        let Some(x) = self.g.f32(&self.full(key))? else {
            return Ok(None);
        };
        // NaN is in no range.
        if !(min..=max).contains(&x) {
            return Err(self.wrong(
                key,
                &format!("{x:?} is out of range; accepted: {min:?} to {max:?}"),
            ));
        }
        Ok(Some(x))
    }

    /// One number for all layers, or an array with one per layer.
    pub fn per_layer(
        &self,
        key: &str,
        layers: usize,
        max: u64,
    ) -> Result<Option<Vec<usize>>, LoadError> {
        let full = self.full(key);
        let Some(array) = self.g.array(&full).ok().flatten() else {
            return Ok(self.optional(key, 1, max)?.map(|n| vec![n; layers]));
        };
        if array.len() != layers {
            return Err(self.wrong(
                key,
                &format!("has {} entries for {layers} layers", array.len()),
            ));
        }
        let numbers: Result<Vec<usize>, LoadError> = array
            .u32s()?
            .map(|n| self.in_range(key, n as u64, 1, max))
            .collect();
        numbers.map(Some)
    }

    fn in_range(&self, key: &str, n: u64, min: u64, max: u64) -> Result<usize, LoadError> {
        if (min..=max).contains(&n) {
            Ok(n as usize)
        } else {
            Err(self.wrong(
                key,
                &format!("{n} is out of range; accepted: {min} to {max}"),
            ))
        }
    }
}

pub(super) fn missing(key: &str) -> LoadError {
    LoadError::field(key, "is missing")
}
